"""Log-likelihoods of rows, and what races, sums and gradients make of them, as compiled loops."""

from amc_pymc.row_kernels.data_control import printed_data_control
from amc_pymc.row_kernels.kernels import RowKernels
from amc_pymc.row_kernels.printed import RowProgram, TooLarge, printed_rows, row_program

__all__ = [
    "RowKernels",
    "RowProgram",
    "TooLarge",
    "printed_data_control",
    "printed_rows",
    "row_program",
]
