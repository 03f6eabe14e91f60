"""Elements of tensors as scalar expressions, requested by their indices."""

from __future__ import annotations

import itertools

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytensor.graph.basic import Constant, Variable

from amc_pymc.engine import Families, Graph

Index = tuple[int, ...]

_MOST_NODES = 20_000

#: Largest axis that is enumerated where an index must be a number but depends on data.
_MOST_CASES = 64

#: Exclusive bound on the terms of an incomplete Gamma or Beta function that is a finite sum.
_MOST_TERMS = 20


class NotScalar(Exception):
    """Error for a graph that cannot be read element by element."""


class Unaddressable(NotScalar):
    """Error for an index that must be a number and is not."""


#: Functions ``(reader, node, index) -> node`` for each kind of operation, which :mod:`amc_pymc.reading.scalars` adds.
RULES: dict[type, Callable[..., int]] = {}


class ElementReader:
    """Reader of elements of tensors as expressions.

    Parameters
    ----------
    graph : Graph
        Graph to which expressions are added.
    leaves : mapping of variables to callables
        ``index -> node`` for the inputs of the tensor graph; an index is a tuple of nodes.
    columns : Columns
        Columns of data, to which elements of constant arrays are added that are indexed by data.
    families : Families, optional
        Families to which coefficients of long products are added if they are functions of parameters.
    loops : bool
        Whether long products of columns and parameters are loops, leaves "dot", and not sums.
    """

    def __init__(
        self,
        graph: Graph,
        leaves: Mapping[Variable, Callable[[Index], int]],
        columns: Any,
        families: Families | None = None,
        loops: bool = True,
    ):
        self.graph = graph
        self.leaves = dict(leaves)
        self.columns = columns
        self.families, self.loops = families, loops
        self._negative: dict[int, bool] = {}
        self._memo: dict[tuple[Variable, Index], int] = {}

    # --- elements -------------------------------------------------------------------------------

    def element(self, variable: Variable, index: Index = ()) -> int:
        """Return the expression of one element; raise NotScalar if an operation has none."""
        key = variable, index
        if key not in self._memo:
            if len(self.graph.nodes) > _MOST_NODES:
                raise NotScalar(f"it takes more than {_MOST_NODES} operations a row")
            try:
                self._memo[key] = self._element(variable, index)
            except RecursionError as error:
                raise NotScalar("its graph is too deep") from error
        return self._memo[key]

    def _element(self, variable: Variable, index: Index) -> int:
        if variable in self.leaves:
            try:
                return self.leaves[variable](index)
            except Unaddressable:
                return self._each_case(variable, index)
        if isinstance(variable, Constant):
            try:
                return self._constant(np.asarray(variable.data), index)
            except Unaddressable:
                return self._each_case(variable, index)
        node = variable.owner
        if node is None:
            raise NotScalar(f"it depends on {variable}")
        which = () if len(node.outputs) == 1 else (node.outputs.index(variable),)
        for kind in type(node.op).__mro__:
            rule = RULES.get(kind)
            if rule is not None:
                try:
                    return rule(self, node, index, *which)
                except Unaddressable:
                    return self._each_case(variable, index)
        raise NotScalar(f"{type(node.op).__name__} has no scalar form")

    def _each_case(self, variable: Variable, index: Index) -> int:
        """Return a switch among the elements along an axis whose index depends on data."""
        shape = self.shape(variable)
        open_axes = [k for k, i in enumerate(index) if self.graph.number(i) is None]
        axis = min(open_axes, key=lambda k: shape[k], default=None)
        if axis is None or shape[axis] > _MOST_CASES:
            source = variable if variable.owner is None else type(variable.owner.op).__name__
            raise NotScalar(f"data choose an element of {source}")
        cases = [
            self.element(variable, (*index[:axis], self.const(k), *index[axis + 1 :]))
            for k in range(shape[axis])
        ]
        out = cases[-1]
        for k in reversed(range(shape[axis] - 1)):
            out = self.make("switch", self.make("eq", index[axis], self.const(k)), cases[k], out)
        return out

    def _constant(self, data: np.ndarray, index: Index) -> int:
        if data.size == 1:
            return self._number(data.reshape(())[()])
        numbers = [self.graph.number(i) for i in index]
        if None in numbers:
            if self.graph.leaves(index, "entry"):
                raise Unaddressable("a constant array is indexed by data")
            return self.columns.derived(("table", id(data)), lambda: data, index)
        return self._number(data[tuple(numbers)])

    def _number(self, value) -> int:
        kind = np.asarray(value).dtype.kind
        return self.graph.const(
            bool(value) if kind == "b" else int(value) if kind in "iu" else float(value)
        )

    def number(self, node: int) -> int:
        """Return the value of an integer constant."""
        value = self.graph.number(node)
        if value is None:
            raise Unaddressable("a shape or a slice depends on data")
        return int(value)

    def whole(self, node: int) -> int | None:
        """Return the value of an expression that is always the same integer from 1 to 19, or None."""
        value = self.columns.alike(node)
        return int(value) if value in range(1, _MOST_TERMS) else None

    def may_be_negative(self, index: int) -> bool:
        """Whether an index, a node, may be negative."""
        if index not in self._negative:
            self._negative[index] = self.columns.may_be_negative(index)
        return self._negative[index]

    def shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the static shape."""
        known = variable.type.shape
        if None in known:
            raise NotScalar(f"the shape of {variable} is not known")
        return known

    # --- shorthands -----------------------------------------------------------------------------

    def make(self, op: str, *args: int) -> int:
        """Add an operation."""
        return self.graph.make(op, *args)

    def const(self, value) -> int:
        """Add a constant."""
        return self.graph.const(value)

    def broadcast(self, variable: Variable, index: Index) -> int:
        """Return the element of an input of an elementwise operation."""
        zero = self.const(0)
        shape = variable.type.shape
        own = index[len(index) - len(shape) :]
        return self.element(variable, tuple(zero if n == 1 else i for n, i in zip(shape, own)))

    def over(self, sizes: Sequence[int]):
        """Return all indices of a block."""
        ranges = [[self.const(k) for k in range(n)] for n in sizes]
        return itertools.product(*ranges)
