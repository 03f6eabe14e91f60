"""Modes in which PyTensor interprets a graph with NumPy and compiles nothing."""

from __future__ import annotations

from functools import cache, cached_property

from pytensor.compile.mode import Mode

__all__ = ["interpreted_mode", "rewritten_mode", "unrewritten_mode"]

#: Rewrites of sums and products, which take minutes for the hundred terms of a recursion and gain little here.
_SLOW = ("local_add_canonizer", "local_mul_canonizer", "local_greedy_distributor")


class _RewritersOnce(Mode):
    """A mode that makes its rewriters once.

    PyTensor makes new ones for every function, which have to find out again which rewrites concern which operations.
    """

    @cached_property
    def optimizer(self):
        return super().optimizer


@cache
def interpreted_mode() -> Mode:
    """Mode for graphs that run a handful of times, log densities among them."""
    mode = _RewritersOnce(linker="py", optimizer="fast_compile")
    return mode.excluding("BlasOpt", "blas", "cxx_only", *_SLOW)


@cache
def rewritten_mode() -> Mode:
    """Mode with the rewrites of compiled functions, for comparisons with these.

    Without them a logistic likelihood underflows where the compiled one does not. Rewrites that put many terms into
    one sum are left out, since NumPy's functions take at most 32 arrays.
    """
    mode = _RewritersOnce(linker="py", optimizer="fast_run")
    mode = mode.excluding("fusion", "inplace", "BlasOpt", "cxx_only")
    return mode.excluding("add_mul_fusion", "local_add_canonizer")


@cache
def unrewritten_mode() -> Mode:
    """Mode for graphs of data, shapes and prior draws that run once or twice.

    Rewriting takes most of the time there. Log densities need it: without it the logarithm of a logistic function
    underflows.
    """
    return _RewritersOnce(linker="py", optimizer=None)
