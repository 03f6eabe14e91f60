"""Log-likelihoods of rows, and what races, sums and gradients make of them, as compiled loops."""

from amc_pymc.row_kernels.printed import (
    SHARED_LOOPS,
    RowProgram,
    TooLarge,
    printed_source,
    row_program,
)

__all__ = ["SHARED_LOOPS", "RowProgram", "TooLarge", "printed_source", "row_program"]
