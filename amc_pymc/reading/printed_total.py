"""Graphs of a flat vector as printed code, which compiles in a fraction of PyTensor's time."""

from __future__ import annotations

import logging
import math

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from amc_pymc.engine import Graph
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import Printed, call
from amc_pymc.engine.printer import Printer
from amc_pymc.reading.graphs import lowered, rebuilt
from amc_pymc.reading.row_program import Columns, element_reader
from amc_pymc.reading.rows import constant_data
from amc_pymc.reading.scalars import Index, NotScalar, stabilised

__all__ = ["PrintedTotal", "coordinate", "printed_map", "printed_total", "scalar_expression"]

_log = logging.getLogger("amc_pymc")
#: Largest number of operations for which code without loops compiles faster than PyTensor's vector
#: operations, and largest size of an array in the graph.
_MOST_OPERATIONS, _MOST_ENTRIES = 6_000, 2_000
#: Largest product of operations and coordinates; each costs some microseconds of differentiation.
_MOST_STEPS = 200_000


class PrintedTotal:
    """Printed functions of a scalar graph: its value, gradient and Hessian.

    The graph is converted once. Create it by :func:`printed_total`.

    Parameters
    ----------
    graph : Graph
    node : int
        The scalar.
    arguments : sequence of str
        Names of its arrays, "eta" for x.
    """

    def __init__(self, graph: Graph, node: int, arguments: Sequence[str]):
        self._graph, self._node, self._arguments = graph, node, tuple(arguments)
        self._known: dict[bytes, list[tuple[int, int, int]] | None] = {}

    def value(self):
        """Return a Numba function ``x (D,), program -> float``, and its program.

        With an array of held values the function is ``x, held (H,), program -> float``.
        """
        kernel = _total if len(self._arguments) == 1 else _total_held
        return kernel, _printed(self._graph, self._arguments, [self._node])

    def gradient(self, discrete: np.ndarray):
        """Return a Numba function of the gradient, ``x (D,), program -> (D,)``, and its program.

        With an array of held values the function is ``x, held (H,), program -> (D,)``.

        Parameters
        ----------
        discrete : (D,) bool array
            Coordinates at which the gradient is zero.

        Returns
        -------
        tuple or None
            None if it is too large, or a discrete variable chooses an entry of x.
        """
        found = self._slopes(discrete)
        if found is None:
            return None
        slopes = [self._graph.const(0.0)] * discrete.size
        for place, _, slope in found:
            slopes[place] = slope
        if len(self._graph.upstream(slopes)) > _MOST_OPERATIONS:
            return None
        return self._kernel, _printed(self._graph, self._arguments, slopes)

    def hessian(self, discrete: np.ndarray):
        """Return a Numba function of the entries of the Hessian that may differ from zero.

        Parameters
        ----------
        discrete : (D,) bool array
            Coordinates at which the Hessian is zero.

        Returns
        -------
        tuple or None
            The function ``x (D,), program -> (M,)``, or ``x, held, program -> (M,)``, its program, and the
            rows and columns (M,) of the entries on and below the diagonal. None for the reasons of
            :meth:`gradient`.
        """
        slopes, graph = self._slopes(discrete), self._graph
        if slopes is None:
            return None
        found, rows, columns, steps = [], [], [], 0
        for i, _, slope in slopes:
            within = set(graph.upstream([slope]))
            for j, other, _ in slopes:
                if j > i or other not in within:
                    continue
                steps += len(within)
                if steps > _MOST_STEPS:
                    return None
                second = graph.partial(slope, other)
                if graph.number(second) != 0.0:
                    found.append(second)
                    rows.append(i)
                    columns.append(j)
        if len(graph.upstream(found)) > _MOST_OPERATIONS:
            return None
        program = _printed(graph, self._arguments, found)
        return self._kernel, program, np.array(rows, np.intp), np.array(columns, np.intp)

    @property
    def _kernel(self) -> Callable[..., np.ndarray]:
        return _vector if len(self._arguments) == 1 else _vector_held

    def _slopes(self, discrete: np.ndarray) -> list[tuple[int, int, int]] | None:
        """Return coordinates, entries of x and derivatives by them; None if differentiation is refused."""
        key = discrete.tobytes()
        if key not in self._known:
            self._known[key] = self._differentiated(discrete)
        return self._known[key]

    def _differentiated(self, discrete: np.ndarray) -> list[tuple[int, int, int]] | None:
        graph, out = self._graph, []
        if len(graph.upstream([self._node])) * discrete.size > _MOST_STEPS:
            return None
        for entry in graph.leaves([self._node], "entry"):
            if graph.nodes[entry].value != self._arguments[0]:  # held
                continue
            place = graph.number(graph.nodes[entry].args[0])
            if place is None:  # indexed by a discrete variable
                return None
            if not discrete[int(place)]:
                out.append((int(place), entry, graph.partial(self._node, entry)))
        return sorted(out)


def printed_total(
    x: Variable, total: Variable, held: SharedVariable | None = None
) -> PrintedTotal | None:
    """Convert a scalar graph of a flat vector; None if it is too large or not scalar.

    Parameters
    ----------
    x : vector variable
        Flat vector of static shape.
    total : scalar variable
        Graph; data that it reads become constants.
    held : shared vector, optional
        Vector that remains an argument besides x.
    """
    inputs = {x: "eta"} if held is None else {x: "eta", held: "held"}
    graph = Graph()
    nodes = _nodes(graph, inputs, total, None, "Priors")
    return None if nodes is None else PrintedTotal(graph, nodes[0], tuple(inputs.values()))


def printed_map(x: Variable, output: Variable, size: int):
    """Return a Numba function of a vector-valued graph; None if too large or not made of scalars.

    Parameters
    ----------
    x : vector variable
        Flat vector of static shape (D,).
    output : vector variable
        Graph; data that it reads become constants.
    size : int
        Length E of the output.

    Returns
    -------
    tuple of Numba function and array, or None
        ``x (D,), array -> (E,)``.
    """
    graph = Graph()
    nodes = _nodes(graph, {x: "eta"}, output, range(size), "Parameters of rows")
    return None if nodes is None else (_vector, _printed(graph, ("eta",), nodes))


def _nodes(
    graph: Graph,
    inputs: Mapping[Variable, str],
    output: Variable,
    places: Iterable[int] | None,
    what: str,
) -> list[int] | None:
    """Return the nodes of :func:`_elements`; None, with the reason logged, if it fails."""
    try:
        leaves = {v: partial(coordinate, graph, name) for v, name in inputs.items()}
        nodes = _elements(graph, leaves, output, places)
        size = len(graph.upstream(nodes))
        if size > _MOST_OPERATIONS:
            raise NotScalar(f"it takes {size} operations")
    except (NotScalar, RecursionError) as error:
        _log.debug("%s are compiled by PyTensor: %s", what, error)
        return None
    return nodes


def _printed(graph: Graph, arguments: Sequence[str], outputs: Sequence[int]) -> np.ndarray:
    """Return the address of a function that writes expressions, and their number."""
    printer = Printer(graph)
    printer.once("written", (*arguments, "out"), outputs)
    return Printed(printer.text, ("written", len(outputs))).arrays[0]


@njit(cache=True, error_model="numpy")
def _vector(x, program):
    out = np.empty(program[1])
    call(program[0], x, out)
    return out


@njit(cache=True, error_model="numpy")
def _vector_held(x, held, program):
    out = np.empty(program[1])
    call(program[0], x, held, out)
    return out


@njit(cache=True, error_model="numpy")
def _total(x, program):
    out = np.empty(1)
    call(program[0], x, out)
    return out[0]


@njit(cache=True, error_model="numpy")
def _total_held(x, held, program):
    out = np.empty(1)
    call(program[0], x, held, out)
    return out[0]


def scalar_expression(
    graph: Graph, inputs: Mapping[Variable, Callable[[Index], int]], total: Variable
) -> int:
    """Return the node of a scalar graph of some vectors.

    Parameters
    ----------
    graph : Graph
        Graph to which it is added.
    inputs : mapping of vector variables to callables
        ``index -> node`` of an element, for each vector.
    total : scalar variable
        Graph; data that it reads become constants.

    Raises
    ------
    NotScalar
    """
    return _elements(graph, inputs, total, None)[0]


def _elements(
    graph: Graph,
    inputs: Mapping[Variable, Callable[[Index], int]],
    output: Variable,
    places: Iterable[int] | None,
) -> list[int]:
    """Return the nodes of some elements of a vector, or of a scalar if `places` is None."""
    (output,) = lowered([output])
    memo = constant_data(output, list(inputs), "prior")
    leaves = {}
    for old, leaf in inputs.items():
        length = old.type.shape[0]
        if length is None:
            length = old.get_value(borrow=True).size
        new = old.type.clone(shape=(length,))(old.name)
        memo[old] = new
        leaves[new] = leaf
    (out,) = rebuilt([output], memo)
    for v in ancestors([out]):
        if v not in leaves and _length(v) > _MOST_ENTRIES:
            raise NotScalar("it has a long array")
    columns = Columns(graph, "column")
    reader, stable = element_reader(graph, leaves, columns), stabilised(out)
    indices = [()] if places is None else [(graph.const(k),) for k in places]
    nodes = [reader.element(stable, index) for index in indices]
    if columns.arrays:
        raise NotScalar("a variable chooses among constants")
    return nodes


def coordinate(graph: Graph, array: str, index: Index) -> int:
    """Return the node of an element of a vector."""
    return graph.entry(array, index[0])


def _length(v: Variable) -> int:
    """Return the number of entries of a tensor along its axes of known length."""
    shape = v.type.shape if isinstance(v.type, TensorType) else ()
    return math.prod(n for n in shape if n is not None)
