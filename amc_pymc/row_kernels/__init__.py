"""Log-likelihoods of rows, and what races, sums and gradients make of them, as compiled loops."""

from amc_pymc.row_kernels.printed import RowProgram, TooLarge, printed_source

__all__ = ["RowProgram", "TooLarge", "printed_source"]
