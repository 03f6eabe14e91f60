"""Evaluation of graphs by NumPy, in which nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, cached_property, reduce
from typing import Any

import numpy as np
import pytensor

from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.graph.utils import MissingInputError
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.elemwise import Elemwise

__all__ = [
    "MakeFunction",
    "functions_for_few",
    "interpreted_function",
    "interpreted_mode",
    "plain_function",
]

type MakeFunction = Callable[
    [Sequence[Variable], Variable | Sequence[Variable]], Callable[..., Any]
]

#: Maximum number of rows for which an evaluation without rewriting costs less than rewriting.
_FEW_ROWS = 100_000
#: Number of arrays from which a NumPy function computes another.
_MOST_INPUTS = 31
#: Excluded rewrites of sums and products; they take minutes for a recursion of a hundred terms and gain little.
_SLOW = ("local_add_canonizer", "local_mul_canonizer", "local_greedy_distributor")


@node_rewriter([Elemwise])
def _narrow(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Split a sum or product of more arrays than NumPy's functions take."""
    op = node.op.scalar_op
    if len(node.inputs) <= _MOST_INPUTS or not isinstance(op, Add | Mul):
        return None
    return [reduce(Elemwise(op), node.inputs)]


class _RewritersOnce(Mode):
    """Mode that creates its rewriters once.

    PyTensor creates new ones for every function, which must again find the rewrites for each operation.
    """

    @cached_property
    def optimizer(self):
        return super().optimizer


@cache
def interpreted_mode() -> Mode:
    """Return the mode for graphs that run a few times, such as log densities.

    They are made numerically stable, as in PyTensor's own modes: otherwise the logarithm of a logistic function
    underflows. Nothing is compiled.
    """
    mode = _RewritersOnce(linker="py", optimizer="fast_compile").register((in2out(_narrow), 100.0))
    mode = mode.including("stabilize")
    return mode.excluding("BlasOpt", "blas", "cxx_only", *_SLOW)


def interpreted_function(
    inputs: Sequence[Variable], outputs: Variable | Sequence[Variable], **kwargs: Any
) -> Callable[..., Any]:
    """Return a function that PyTensor makes in this mode; ``kwargs`` are those of ``pytensor.function``."""
    return pytensor.function(
        inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore", **kwargs
    )


def plain_function(
    inputs: Sequence[Variable], outputs: Variable | Sequence[Variable]
) -> Callable[..., Any]:
    """Return a function that evaluates graphs as they are, one operation after the other.

    It takes a fifth of the time that PyTensor takes to create and call a function without rewriting. Random
    generators are not updated.

    Parameters
    ----------
    inputs : sequence of variables
    outputs : variable or sequence of variables

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.interpreted import plain_function
    >>> x = pt.vector("x")
    >>> float(plain_function([x], (x**2).sum())([1.0, 2.0]))
    5.0
    """
    several = isinstance(outputs, list | tuple)
    wanted = list(outputs) if several else [outputs]
    nodes = io_toposort(inputs, wanted)
    if not all(_is_plain(node.op) and len(node.inputs) <= _MOST_INPUTS for node in nodes):
        return interpreted_function(inputs, outputs)
    evaluate = _Plain(list(inputs), wanted, nodes)
    return evaluate if several else lambda *values: evaluate(*values)[0]


def functions_for_few(graphs: Sequence[Variable], n_rows: int) -> tuple[MakeFunction, MakeFunction]:
    """Return two makers of functions of log densities at a few points: a quick one, and one if its values underflow.

    With few rows an evaluation takes less time than rewriting. Inner graphs are always rewritten: PyTensor would
    compile those that are not inlined.
    """
    inner = (
        v.owner is not None and isinstance(v.owner.op, HasInnerGraph) for v in ancestors(graphs)
    )
    plain = n_rows <= _FEW_ROWS and not any(inner)
    return plain_function if plain else interpreted_function, interpreted_function


def _is_plain(op: Op) -> bool:
    """Whether calling its ``perform`` is all that evaluates an operation."""
    named = type(op).__module__.startswith("pytensor.xtensor")  # must be lowered to tensors
    own = type(op).make_thunk in (Op.make_thunk, COp.make_thunk)
    return own and not named and not isinstance(op, HasInnerGraph)


class _Plain:
    """Function of graphs whose operations are called one after the other."""

    def __init__(self, inputs: list[Variable], outputs: list[Variable], nodes: list[Apply]):
        self._inputs, self._outputs = inputs, outputs
        last = {v: node for node in nodes for v in node.inputs}
        for v in outputs:
            last.pop(v, None)
        self._steps = []
        for node in nodes:
            done = [v for v in set(node.inputs) if last.get(v) is node]
            self._steps.append((node, _prepared(node), done))
        made = {v for node in nodes for v in node.outputs}
        used = {v for node in nodes for v in node.inputs} | set(outputs)
        self._given = [v for v in used if v not in made and v not in set(inputs)]
        for v in self._given:
            if not isinstance(v, Constant | SharedVariable):
                raise MissingInputError(f"{v} is not among the inputs")

    def __call__(self, *values: Any) -> list[Any]:
        stored = {v: _value(v) for v in self._given}
        stored |= {v: v.type.filter(x) for v, x in zip(self._inputs, values, strict=True)}
        given = {id(x) for x in stored.values()}
        for node, prepared, done in self._steps:
            cells: list[list[Any]] = [[None] for _ in node.outputs]
            node.op.perform(prepared, [stored[v] for v in node.inputs], cells)
            stored.update((v, cell[0]) for v, cell in zip(node.outputs, cells))
            for v in done:
                del stored[v]
        return [_own(stored[v], given) for v in self._outputs]


def _prepared(node: Apply) -> Apply:
    """Return a copy of a node that can be evaluated; PyTensor keeps NumPy's functions in its tag."""
    prepared = copy(node)
    prepared.tag = copy(node.tag)
    prepared.op.prepare_node(prepared, None, None, "py")
    return prepared


def _value(v: Variable) -> Any:
    return v.get_value(borrow=True) if isinstance(v, SharedVariable) else v.data


def _own(value: Any, given: set[int]) -> Any:
    """Return a value that shares no memory with what has been given."""
    shared = isinstance(value, np.ndarray) and (value.base is not None or id(value) in given)
    return value.copy() if shared else value
