"""Modes in which PyTensor interprets a graph with NumPy and compiles nothing."""

from __future__ import annotations

from pytensor.compile.mode import Mode

__all__ = ["interpreted_mode", "unrewritten_mode"]


def interpreted_mode() -> Mode:
    """Mode for graphs that run a handful of times, log densities among them."""
    return Mode(linker="py", optimizer="fast_compile").excluding("BlasOpt", "blas", "cxx_only")


def unrewritten_mode() -> Mode:
    """Mode for graphs of data, shapes and prior draws that run once or twice.

    Rewriting takes most of the time there. Log densities need it: without it the logarithm of a logistic function
    underflows.
    """
    return Mode(linker="py", optimizer=None)
