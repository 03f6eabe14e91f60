"""Compiled loops over the log-likelihoods of rows, for races, sums and gradients."""

from amc_pymc.engine.row_kernels.data_control import printed_data_control
from amc_pymc.engine.row_kernels.loops import RowKernels
from amc_pymc.engine.row_kernels.printed import RowProgram, TooLarge, printed_rows, row_program
from amc_pymc.engine.row_kernels.third import row_bounds

__all__ = [
    "RowKernels",
    "RowProgram",
    "TooLarge",
    "printed_data_control",
    "printed_rows",
    "row_bounds",
    "row_program",
]
