"""Modes in which PyTensor interprets a graph with NumPy and compiles nothing."""

from __future__ import annotations

from pytensor.compile.mode import Mode

__all__ = ["interpreted_mode", "unrewritten_mode"]

#: Rewrites of sums and products, which take minutes for the hundred terms of a recursion and gain little here.
_SLOW = ("local_add_canonizer", "local_mul_canonizer", "local_greedy_distributor")


def interpreted_mode() -> Mode:
    """Mode for graphs that run a handful of times, log densities among them."""
    mode = Mode(linker="py", optimizer="fast_compile")
    return mode.excluding("BlasOpt", "blas", "cxx_only", *_SLOW)


def unrewritten_mode() -> Mode:
    """Mode for graphs of data, shapes and prior draws that run once or twice.

    Rewriting takes most of the time there. Log densities need it: without it the logarithm of a logistic function
    underflows.
    """
    return Mode(linker="py", optimizer=None)
