"""Log densities of a model at many points: as printed code or, without a scalar form, by the graphs of PyTensor.

Small expressions are computed for several points at once, likelihoods of many rows for several rows at
once and one point at a time.
"""

from __future__ import annotations

import logging
import math

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from amc_pymc.engine import Graph
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.printer import Printer
from amc_pymc.engine.row_kernels import loops
from amc_pymc.reading.batched import Batched
from amc_pymc.reading.graphs import WithoutCaches
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, PackedRows, pack_rows
from amc_pymc.reading.row_program import Columns
from amc_pymc.reading.rows import (
    NotRowFactorised,
    choose_observed,
    extract_rows,
    row_count,
    with_constants,
)
from amc_pymc.reading.scalars import ElementReader, NotScalar, stabilised

_log = logging.getLogger("amc_pymc")
#: Largest numbers of operations of values and gradients that are printed: half a minute of compiling.
_MOST_OPERATIONS, _MOST_IN_GRADIENTS = 12_000, 40_000
#: Largest size of an array that is written element by element.
_MOST_ENTRIES = 2_000
#: Smallest number of rows for which a loop over rows is worthwhile.
_FEWEST_ROWS = 16
_ARGUMENTS = ("block", "stride", "n", "out", "out_stride")


class PrintedTerms:
    """Scalar expressions of a point, and their gradients, at many points.

    Parameters
    ----------
    graph : Graph
        Graph whose columns are the coordinates of a point.
    terms : sequence of int
        Nodes of the expressions.
    continuous : sequence of int
        Coordinates with respect to which gradients are taken.
    """

    def __init__(self, graph: Graph, terms: Sequence[int], continuous: Sequence[int]):
        self._graph, self._terms, self._continuous = graph, tuple(terms), tuple(continuous)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (K, P) at points (P, D)."""
        return self._called(self._values, len(self._terms), xs)

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (K, P) and gradients (K, P, D)."""
        printed, number, slopes = self._gradients
        found = self._called((printed, number), len(self._terms) + len(slopes), xs)
        out = np.zeros((len(self._terms), *xs.shape))
        for row, (term, d) in zip(found[len(self._terms) :], slopes, strict=True):
            out[term, :, d] = row
        return found[: len(self._terms)], out

    @staticmethod
    def _called(printed: tuple[Printed, int], number: int, xs: np.ndarray) -> np.ndarray:
        out = np.empty((number, len(xs)))
        loops.at_points(*printed[0].arrays, xs, max(1, printed[1]), out)
        return out

    @cached_property
    def _values(self) -> tuple[Printed, int]:
        return self._printed(self._terms)

    @cached_property
    def _gradients(self) -> tuple[Printed, int, list[tuple[int, int]]]:
        """Printed code, its number of output rows, and the term and coordinate of each derivative."""
        g, slopes = self._graph, {}
        for k, term in enumerate(self._terms):
            read = {g.nodes[n].value for n in g.leaves([term], "column")}
            for d in read.intersection(self._continuous):
                slopes[k, d] = g.partial(term, g.leaf("column", d))
        outputs = [*self._terms, *slopes.values()]
        size = len(g.upstream(outputs))
        if size > _MOST_IN_GRADIENTS:
            raise NotScalar(f"gradients take {size} operations")
        return *self._printed(outputs), list(slopes)

    def _printed(self, outputs: Sequence[int]) -> tuple[Printed, int]:
        printer = Printer(self._graph)
        number = printer.each_row("terms", _ARGUMENTS, outputs)
        return Printed(printer.text, ("terms",)), number


def printed_terms(
    x: Variable, terms: Sequence[Variable], discrete: np.ndarray
) -> PrintedTerms | None:
    """Print scalar graphs of a flat vector; None, with the reason logged, if they are too large.

    Parameters
    ----------
    x : vector variable
        Flat vector of static shape (D,).
    terms : sequence of scalar variables
        Graphs; data that they read become constants.
    discrete : (D,) bool array
        Coordinates without a gradient.
    """
    graph = Graph()
    try:
        nodes = _by_columns(graph, [_expression(graph, x, t) for t in terms])
        size = len(graph.upstream(nodes))
        if size > _MOST_OPERATIONS:
            raise NotScalar(f"it takes {size} operations")
    except (NotScalar, RecursionError) as error:
        _log.info("PyTensor computes log densities: they have no scalar form (%s).", error)
        return None
    return PrintedTerms(graph, nodes, np.flatnonzero(~discrete).tolist())


def _expression(graph: Graph, x: Variable, total: Variable) -> int:
    """Return the node of a scalar graph of a flat vector, whose data become constants."""
    out, (new,) = with_constants(total, {x: x.type.shape})
    for v in ancestors([out]):
        shape = v.type.shape if isinstance(v.type, TensorType) else ()
        if v is not new and math.prod(n for n in shape if n is not None) > _MOST_ENTRIES:
            raise NotScalar("it has a long array")
    columns = Columns(graph, "column")
    leaves = {new: lambda index: graph.entry("x", index[0])}
    node = ElementReader(graph, leaves, columns).element(stabilised(out))
    if columns.arrays:
        raise NotScalar("a variable chooses among constants")
    return node


class GraphTerms:
    """Graphs of a point without a scalar form, and their gradients, computed by NumPy at many points.

    Parameters
    ----------
    x : vector variable
    terms : sequence of scalar variables
    """

    def __init__(self, x: Variable, terms: Sequence[Variable]):
        self._x, self._terms = x, [t.astype("float64") for t in terms]
        self._values = Batched([x], self._terms)

    @cached_property
    def _gradients(self) -> Batched:
        return Batched([self._x], self._terms, slopes=True)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (K, P) at points (P, D)."""
        return np.stack(self._values([xs], len(xs)))

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (K, P) and gradients (K, P, D)."""
        found, number = self._gradients([xs], len(xs)), len(self._terms)
        return np.stack(found[:number]), np.stack(found[number:])


class RowTerm(WithoutCaches):
    """Log-likelihood of all rows of a model, and its gradient, at many points.

    Parameters
    ----------
    rows : PackedRows
    discrete : (D,) bool array
        Coordinates without a gradient.
    """

    def __init__(self, rows: PackedRows, discrete: np.ndarray):
        self._rows, self._discrete = rows, discrete

    @cached_property
    def _columns(self) -> np.ndarray:
        return np.ascontiguousarray(self._rows.data.T)

    def _zs(self, xs: np.ndarray) -> np.ndarray:
        found = self._rows.coefficients
        return xs if found is None else found.of_points(xs)

    def _totals(self, zs: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        return loops.totals(zs, self._columns, slopes, self._rows.functions)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (1, P) at points (P, D)."""
        return self._totals(self._zs(xs), np.empty((0, 0)))[None]

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (1, P) and gradients (1, P, D)."""
        zs = self._zs(xs)
        slopes = np.zeros(zs.shape)
        values = self._totals(zs, slopes)
        if self._rows.coefficients is not None:
            slopes = self._rows.coefficients.gradients(xs, slopes)
        slopes[:, self._discrete] = 0.0
        return values[None], slopes[None]


def row_term(model, layout: FlatLayout) -> RowTerm | None:
    """Return the log-likelihood as a sum over rows; None if it is not one over enough rows."""
    if model.potentials:
        return None
    try:
        observed = choose_observed(model, None)
        if len(observed) < len(model.observed_RVs) or row_count(model, observed) < _FEWEST_ROWS:
            return None
        rows = extract_rows(model)
        if rows.layout.names != layout.names:
            return None
        return RowTerm(pack_rows(rows, second_order=False), layout.discrete)
    except (NotRowFactorised, ParameterValueError, *NO_SCALAR_FORM) as error:
        _log.debug("The likelihood is not taken row by row: %s", error)
        return None


def _by_columns(graph: Graph, nodes: Sequence[int]) -> list[int]:
    """Return expressions that read coordinates from columns with one number per point."""
    change = {}
    for entry in graph.leaves(nodes, "entry"):
        place = graph.number(graph.nodes[entry].args[0])
        if place is None:
            raise NotScalar("a discrete variable chooses among coordinates")
        change[entry] = graph.leaf("column", int(place))
    return graph.replaced(nodes, change)
