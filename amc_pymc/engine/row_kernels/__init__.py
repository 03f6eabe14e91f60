"""Compiled loops over the log-likelihoods of rows, for races, sums and gradients."""

from amc_pymc.engine.row_kernels import loops
from amc_pymc.engine.row_kernels.bounds import row_bounds
from amc_pymc.engine.row_kernels.loops import RowProgram, TooLarge, printed_rows

__all__ = ["RowProgram", "TooLarge", "loops", "printed_rows", "row_bounds"]
