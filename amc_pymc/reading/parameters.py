"""Parameters through which rows depend on discrete variables.

Rows seldom depend on a discrete variable directly, but through a few smooth quantities such as
gamma * beta or mu[k]. The row graph is cut at these: the row log-likelihood becomes a smooth
function of the parameters eta(x), in which it can be expanded even if x has discrete entries.
"""

from __future__ import annotations

import itertools

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytensor
import pytensor.scalar as scalar
import pytensor.tensor as pt

from numba import types
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.type import TensorType

from amc_pymc.engine.first_class import bound_function
from amc_pymc.reading.interpreted import interpreted_mode, plain_function
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.native import compile_graph, native_function
from amc_pymc.reading.printed_total import printed_map
from amc_pymc.reading.rows import RowLogp

__all__ = ["ParameterCut", "cut_parameters"]

_MAP = types.float64[::1](types.float64[::1])
_JOINING = (scalar.Add, scalar.Mul)
_SMOOTH = (
    scalar.Add,
    scalar.Sub,
    scalar.Mul,
    scalar.TrueDiv,
    scalar.Neg,
    scalar.Reciprocal,
    scalar.Exp,
    scalar.Expm1,
    scalar.Log,
    scalar.Log1p,
    scalar.Pow,
    scalar.Sqr,
    scalar.Sqrt,
    scalar.Sigmoid,
    scalar.Softplus,
)


@dataclass(frozen=True, eq=False)
class ParameterCut:
    """Row log-likelihood in terms of parameters, and the map from the value variables to them.

    Attributes
    ----------
    rows : RowLogp
        Row log-likelihood in the layout of eta (E,): value variables that enter rows directly, then
        pieces made from discrete variables, none of them a function of the others.
    layout : FlatLayout
        Layout of x (D,), the value variables of the model.
    pieces : tuple of variables
        Graphs in terms of the row log-likelihood's own placeholders.
    """

    rows: RowLogp
    layout: FlatLayout
    pieces: tuple
    placeholders: dict

    def __getstate__(self):
        kept = {k: v for k, v in self.__dict__.items() if k not in ("native", "evaluate")}
        return kept | {"rows": self.rows.without_data()}  # densities hold the data themselves

    def graph(self, x):
        """Return the symbolic eta (E,) at the symbolic flat point x."""
        values = self.layout.split(x)
        swap = {
            p: p.type.filter_variable(values[name], allow_convert=True)
            for name, p in self.placeholders.items()
        }
        pieces = clone_replace(list(self.pieces), swap, rebuild_strict=False)
        direct = [values[n] for n in self.rows.value_vars[: -len(self.pieces) or None]]
        parts = [pt.flatten(v).astype("float64") for v in [*direct, *pieces]]
        return pt.concatenate(parts)

    @cached_property
    def native(self):
        """First-class ``x (D,) -> eta (E,)``."""
        x = pt.vector("x", shape=(self.layout.size,))
        printed = printed_map(x, self.graph(x), self.rows.layout.size)
        if printed is not None:
            return bound_function(printed[0], _MAP, [printed[1]])
        return native_function(compile_graph([x], self.graph(x)), _MAP)

    @cached_property
    def evaluate(self):
        """``x (D,) -> eta (E,)``, interpreted."""
        x = pt.vector("x")
        return pytensor.function(
            [x], self.graph(x), mode=interpreted_mode(), on_unused_input="ignore"
        )

    def rough(self) -> np.ndarray:
        """Return the coordinates of eta that are not of a floating type: conditions and indices."""
        names = [n for n in self.rows.value_vars if not self.rows.layout.is_continuous(n)]
        return self.rows.layout.indices(names)


def cut_parameters(rows: RowLogp, x: np.ndarray) -> ParameterCut:
    """Cut the row graph where functions of discrete variables enter the rows.

    Parameters
    ----------
    rows : RowLogp
    x : (D,) array
        A valid point, at which the shapes of the parameters are evaluated.

    Returns
    -------
    ParameterCut
    """
    rows = replace(rows, _output=_with_float_pieces(rows))
    pieces = _pieces(rows)
    needed = set(ancestors([rows._output], blockers=pieces))
    direct = tuple(n for n in rows.value_vars if rows._values[n] in needed - set(pieces))
    values = rows.layout.unravel(np.asarray(x, dtype=float))
    shapes = _shapes(rows, pieces, values)
    names = direct + tuple(f"piece {k}" for k in range(len(pieces)))
    at = {n: k for k, n in enumerate(rows.layout.names)}
    layout = FlatLayout(
        names,
        tuple(rows.layout.shapes[at[n]] for n in direct) + shapes,
        tuple(rows.layout.dtypes[at[n]] for n in direct) + tuple(p.type.dtype for p in pieces),
    )
    placeholders = {n: rows._values[n] for n in direct} | dict(zip(names[len(direct) :], pieces))
    cut = replace(rows, value_vars=names, layout=layout, _values=placeholders)
    return ParameterCut(cut, rows.layout, pieces, dict(rows._values))


def _with_float_pieces(rows: RowLogp):
    """Return the row graph with the value variables of each sum and product joined to a float array.

    ``gamma * beta * x`` is one product of three factors in the graph, and no expansion is possible
    in the integer gamma alone.
    """
    of_rows, discrete = _row_placeholders(rows), _discrete_placeholders(rows)
    new: dict = {}
    for node in toposort([rows._output]):
        if any(i in discrete for i in node.inputs):
            discrete.update(node.outputs)
        if any(i in of_rows for i in node.inputs):
            of_rows.update(node.outputs)
        inputs = [new.get(i, i) for i in node.inputs]
        mine = [k for k, i in enumerate(node.inputs) if i not in of_rows]
        whole = [k for k in mine if node.inputs[k] in discrete and _is_integer(node.inputs[k])]
        if whole and node.outputs[0] in of_rows and _is_arithmetic(node):
            for k in whole:
                inputs[k] = inputs[k].astype("float64")
            if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, _JOINING):
                joined = node.op(*(inputs[k] for k in mine)) if len(mine) > 1 else inputs[mine[0]]
                inputs = [joined, *(i for k, i in enumerate(inputs) if k not in mine)]
            new[node.outputs[0]] = node.op(*inputs)
        elif any(i in new for i in node.inputs):
            again = node.clone_with_new_inputs(inputs, strict=False)
            new.update(zip(node.outputs, again.outputs))
    return new.get(rows._output, rows._output)


def _is_integer(variable) -> bool:
    return isinstance(variable.type, TensorType) and variable.type.dtype[0] in "iub"


def _is_arithmetic(node) -> bool:
    """Whether a node does arithmetic with a float result, in which integers act as numbers."""
    op, out = node.op, node.outputs[0]
    smooth = isinstance(getattr(op, "core_op", op), Dot)
    smooth |= isinstance(op, Elemwise) and isinstance(op.scalar_op, _SMOOTH)
    return smooth and out.type.dtype == "float64"


def _row_placeholders(rows: RowLogp) -> set:
    """Return the placeholders that differ from row to row."""
    of_rows = {i.placeholder for i in rows._inputs} | {rows._length}
    return of_rows | {rows._values[n] for n in rows.row_local}


def _discrete_placeholders(rows: RowLogp) -> set:
    names = [n for n in rows.value_vars if not rows.layout.is_continuous(n)]
    return {rows._values[n] for n in names} - _row_placeholders(rows)


def _pieces(rows: RowLogp) -> tuple:
    """Return inputs of row-dependent nodes that depend on discrete variables but not on rows."""
    of_rows, discrete = _row_placeholders(rows), _discrete_placeholders(rows)
    free = set(rows._values.values())
    pieces: dict = {}
    for node in toposort([rows._output]):
        if any(i in discrete for i in node.inputs):
            discrete.update(node.outputs)
        if any(i in free for i in node.inputs):
            free.update(node.outputs)
        if any(i in of_rows for i in node.inputs):
            of_rows.update(node.outputs)
            met = [i for i in node.inputs if i in discrete and i not in of_rows]
            pieces |= dict.fromkeys(
                itertools.chain.from_iterable(_arrays(i, discrete) for i in met)
            )
    return _independent(dict.fromkeys(_origin(p, discrete, free) for p in pieces), rows)


def _origin(piece, discrete, free):
    """Return the float array of which a piece is a smooth elementwise function.

    Rows that depend on sigma[k] also depend on log sigma[k]; the two must not vary independently.
    """
    while piece.owner is not None:
        op = piece.owner.op
        smooth = isinstance(op, Elemwise) and isinstance(op.scalar_op, _SMOOTH)
        varying = {i for i in piece.owner.inputs if i in free}
        if not (smooth or isinstance(op, DimShuffle)) or len(varying) != 1:
            break
        (only,) = varying
        if only not in discrete or not only.type.dtype.startswith("float"):
            break
        piece = only
    return piece


def _independent(pieces, rows: RowLogp) -> tuple:
    """Leave out float pieces that are functions of other pieces.

    Conditions stay: a search for the mode may step to where evaluating one would raise an error.
    """
    free, kept = set(rows._values.values()), list(pieces)
    for piece in [p for p in kept if not _is_integer(p)]:
        others = [p for p in kept if p is not piece]
        if not free & set(ancestors([piece], blockers=others)):
            kept.remove(piece)
    return tuple(kept)


def _arrays(variable, discrete) -> list:
    """Return the variable itself, or the arrays from which a non-tensor scalar is computed."""
    if isinstance(variable.type, TensorType):
        return [variable]
    inputs = [i for i in variable.owner.inputs if i in discrete]
    return list(itertools.chain.from_iterable(_arrays(i, discrete) for i in inputs))


def _shapes(rows: RowLogp, pieces, values) -> tuple[tuple[int, ...], ...]:
    if not pieces:
        return ()
    inputs = list(rows._values.values())
    fn = plain_function(inputs, list(pieces))
    return tuple(np.shape(v) for v in fn(*(values[n] for n in rows._values)))
