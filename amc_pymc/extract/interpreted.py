"""Modes in which PyTensor interprets a graph with NumPy and compiles nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors

__all__ = ["interpreted_mode", "modes_for_few", "rewritten_mode", "unrewritten_mode"]

#: Maximum number of rows for which an evaluation without rewriting costs less than rewriting.
_FEW_ROWS = 100_000
#: Excluded rewrites of sums and products; they take minutes for a recursion of a hundred terms and gain little.
_SLOW = ("local_add_canonizer", "local_mul_canonizer", "local_greedy_distributor")


class _RewritersOnce(Mode):
    """Mode that creates its rewriters once.

    PyTensor creates new ones for every function, which must again find the rewrites for each operation.
    """

    @cached_property
    def optimizer(self):
        return super().optimizer


@cache
def interpreted_mode() -> Mode:
    """Return the mode for graphs that run a few times, such as log densities."""
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
    """Return the mode for graphs of data, shapes and prior draws that run once or twice.

    It does no rewriting, which would take most of the time. Log densities need rewriting: without it the logarithm
    of a logistic function underflows.
    """
    return _RewritersOnce(linker="py", optimizer=None)


def modes_for_few(graphs: Sequence[Variable], n_rows: int) -> tuple[Mode, Mode]:
    """Return two modes in which to evaluate log densities at a few points: a quick one, and one if that fails.

    With few rows an evaluation takes less time than rewriting. What underflows must be evaluated again, as PyTensor
    would compute it. Inner graphs are always rewritten: PyTensor would compile those that are not inlined.
    """
    inner = (
        v.owner is not None and isinstance(v.owner.op, HasInnerGraph) for v in ancestors(graphs)
    )
    quick = interpreted_mode() if n_rows > _FEW_ROWS or any(inner) else unrewritten_mode()
    return quick, rewritten_mode()
