"""Groups in a model: variables with a value per group, and rows that read the value of their group.

A free variable is *local* if every row reads one of its entries, selected by an index in the data, if
its prior is a product over groups given other variables, and if nothing else in the model depends
on it. Given everything else, the local effects of different groups are then independent, and can be
integrated out one group at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from amc_pymc.engine import Graph
from amc_pymc.reading.centring import Centring, find_scales
from amc_pymc.reading.factors import (
    Factor,
    chosen_by_data,
    effects_at,
    find_factors,
    local_slots,
    prior_expression,
    row_sources,
    states_of_effects,
)
from amc_pymc.reading.held import Held, HeldColumn
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.memo import remembering
from amc_pymc.reading.row_program import Column, Columns, parameter_leaf, row_expression
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import Index
from amc_pymc.rows import RowStore, SharedArray, shared_array
from amc_pymc.tall.groups import ROWS_BEYOND, GroupProgram

__all__ = [
    "Factor",
    "GroupExpressions",
    "Groups",
    "effects_at",
    "find_factors",
    "group_expressions",
    "local_slots",
    "sorted_by_level",
    "take_groups",
]


@dataclass(frozen=True, eq=False)
class GroupExpressions:
    """Expressions of rows and priors of groups, and the columns that they read.

    Attributes
    ----------
    factor : Factor
        Factor whose effects are integrated out.
    layout : FlatLayout
        Layout of the other value variables, eta (E,).
    program : GroupProgram
    reads : tuple of str
        Names of the value variables that groups depend on.
    centring : Centring
        Map between these variables and the coordinates that expressions read.
    observed_vars : tuple of str
        Names of the observed variables.
    states : (K, q) array or None
        States of discrete local effects.
    held : Held or None
        Values of variables that are treated as data.
    row_columns, group_columns : tuple of Column
        Columns in the order in which the program numbers them.
    level : int
        Node of the level of a row of the first observed variable.
    """

    factor: Factor
    layout: FlatLayout
    program: GroupProgram
    reads: tuple[str, ...]
    centring: Centring
    observed_vars: tuple[str, ...]
    states: np.ndarray | None
    held: Held | None
    row_columns: tuple[Column, ...]
    group_columns: tuple[Column, ...]
    level: int

    def groups(self, rows: np.ndarray, first: np.ndarray, order: np.ndarray) -> Groups:
        """Create the groups of rows that are sorted by level."""
        groups = _group_data(self.group_columns, self.factor.n_levels)
        held = _held_columns(self.row_columns, rows), _held_columns(self.group_columns, groups.T)
        return Groups(**self.__dict__, rows=rows, first=first, group_data=groups, order=order,
                      held_rows=held[0], held_groups=held[1])  # fmt: skip


@dataclass(frozen=True, eq=False)
class Groups(GroupExpressions):
    """Data and expressions of a model whose local effects are integrated out.

    Attributes
    ----------
    rows : (C, N + 16) array
        Columns of the rows, sorted by group and padded with copies of the last row.
    first : (G + 1,) int64 array
        First row of each group, and the number of rows.
    group_data : (G, B) array
        Columns that the priors of local effects read.
    order : (N,) int64 array
        Position in the data of each sorted row.
    held_rows, held_groups : tuple of HeldColumn
        Columns of held variables in ``rows`` and ``group_data``.
    shared : SharedArray or None
        Shared memory of ``rows``, if processes share them.
    store : RowStore or None
        Store of the rows (N + 16, C) if they are not in memory; ``rows`` then holds none of them.
    """

    rows: np.ndarray
    first: np.ndarray
    group_data: np.ndarray
    order: np.ndarray
    held_rows: tuple[HeldColumn, ...] = ()
    held_groups: tuple[HeldColumn, ...] = ()
    shared: SharedArray | None = None
    store: RowStore | None = None

    def __getstate__(self):
        # Unsorted data are not needed after unpickling.
        state = self.__dict__ | {"row_columns": (), "group_columns": (), "order": self.order[:0]}
        return state if self.shared is None else state | {"rows": None}

    def __setstate__(self, state):
        if state["shared"] is not None:
            state = state | {"rows": state["shared"].data}
        self.__dict__.update(state)

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return int(self.first[-1])

    @property
    def columns(self) -> np.ndarray:
        """Columns (C, N + 16) that kernels read, in memory or memory-mapped."""
        return self.rows if self.store is None else self.store.data.T

    @property
    def n_groups(self) -> int:
        """Number of groups G."""
        return self.factor.n_levels

    def hold(self, point) -> None:
        """Set the values of held variables, if any, to those of a point of the user's model."""
        if self.held is None:
            return
        self.held.take(point)
        for data, columns in ((self.rows, self.held_rows), (self.group_data.T, self.held_groups)):
            for k, positions in columns:
                data[k] = self.held.values[positions]


# --- extraction ---------------------------------------------------------------------------------


@remembering()
def take_groups(
    model,
    factor: Factor,
    observed_vars: Sequence[Any] | None = None,
    held: Sequence[str] = (),
    centring: bool = True,
) -> Groups:
    """Return data and expressions of a model with the effects of one factor integrated out.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor from :func:`find_factors` with an empty ``reason``.
    observed_vars : sequence of str or variables, optional
        As for :func:`find_factors`.
    held : sequence of str
        Value variables to treat as data instead of parameters.
    centring : bool
        Whether expressions read products of variables and their scales instead of the variables.

    Returns
    -------
    Groups
    """
    sources = row_sources(model, observed_vars)
    graph = Graph()
    columns = Columns(graph, "column")
    parts = [columns.part(k) for k in range(len(sources))]
    found = group_expressions(model, factor, sources, columns, parts, held=held, centring=centring)
    order, first = sorted_by_level(np.concatenate(factor.levels), factor.n_levels)
    shared = shared_array((max(1, len(found.row_columns)), order.size + ROWS_BEYOND))
    draft = None if shared is None else shared.draft()
    rows = _row_data(found.row_columns, [s.n_rows for s in sources], order, draft)
    groups = found.groups(rows, first, order)
    return groups if shared is None else replace(groups, rows=shared.data, shared=shared)


def sorted_by_level(levels: np.ndarray, n_levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the stable order (N,) of rows by level, and the first row (G + 1,) of each level."""
    counts = np.bincount(levels, minlength=n_levels)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return np.argsort(levels, kind="stable"), first


def group_expressions(
    model,
    factor: Factor,
    sources: Sequence[RowLogp],
    columns: Columns,
    parts: Sequence[Columns],
    *,
    held: Sequence[str] = (),
    centring: bool = True,
    arrays: Sequence[np.ndarray] | None = None,
) -> GroupExpressions:
    """Return expressions of a model with the effects of one factor integrated out.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor from :func:`find_factors` with an empty ``reason``.
    sources : sequence of RowLogp
        Rows of each observed variable.
    columns : Columns
        Columns of all rows.
    parts : sequence of Columns
        Columns of each source.
    held : sequence of str
        Value variables to treat as data instead of parameters.
    centring : bool
        As for :func:`take_groups`.
    arrays : sequence of arrays, optional
        Data that replace those of the only source, as for :func:`row_expression`.

    Returns
    -------
    GroupExpressions

    Raises
    ------
    ValueError
        If the factor cannot be integrated out.
    NotScalar
        If a row cannot be written as one expression.
    """
    if factor.reason:
        raise ValueError(f"{factor.label} cannot be integrated out: {factor.reason}")
    whole = sources[0].layout
    chosen = chosen_by_data(model, sources, factor)
    kept = [n for n in whole.names if n not in {*factor.names, *held}]
    # Variables with levels come last: the places of others do not depend on the number of levels.
    sizes = dict(zip(whole.names, whole.sizes))
    kept.sort(key=lambda name: name in chosen and sizes[name] > 1)
    layout, data = whole.part(kept), Held(whole.part(held)) if held else None
    graph, group_columns = columns.graph, Columns(columns.graph, "group")
    leaves = _Leaves(graph, layout, local_slots(factor, model), data)
    outputs = [
        row_expression(s, graph, c, leaves.of(c), arrays)
        for s, c in zip(sources, parts, strict=True)
    ]
    level = leaves.levels[0]
    row = _chosen_by_source(graph, outputs, columns, sources)
    prior = prior_expression(factor, model, graph, group_columns, leaves.of)
    scales = find_scales(graph, [row, prior], leaves.entries) if centring else {}
    row, prior = _with_effects(graph, [row, prior], leaves.entries, scales)
    reads = _reads(graph, [row, prior], leaves.entries, layout)
    (row,), row_data = columns.used(columns.with_codes([row]))
    (prior,), group_data = group_columns.used([prior])
    discrete = not whole.is_continuous(factor.names[0])
    return GroupExpressions(
        factor=factor,
        layout=layout,
        program=GroupProgram(graph, row, prior, factor.n_effects, discrete, max(1, len(row_data))),
        reads=reads,
        centring=Centring(graph, layout, scales),
        observed_vars=tuple(n for s in sources for n in s.observed_vars),
        states=states_of_effects(model, factor) if discrete else None,
        held=data,
        row_columns=tuple(row_data),
        group_columns=tuple(group_data),
        level=level,
    )


class _Leaves:
    """Elements of variables: local effects, data if a variable is held, else entries of eta.

    ``entries`` holds the variable of each entry, ``levels`` the nodes by which rows and groups index
    local effects.
    """

    def __init__(self, graph: Graph, layout: FlatLayout, slots: dict, held: Held | None):
        self.graph, self.slots, self.held = graph, slots, held
        self.layout, self.entries = layout, dict[int, str]()
        self.levels: list[int] = []

    def of(self, columns: Columns):
        """Return a function ``(name, index) -> node`` for expressions that read these columns."""
        entry = parameter_leaf(self.graph, self.layout, columns=[columns])
        return partial(self._leaf, columns, entry)

    def _leaf(self, columns: Columns, entry, name: str, index: Index) -> int:
        if name in self.slots:
            self.levels.append(index[0])
            return self.slots[name](self.graph, index)
        if self.held is not None and name in self.held.names:
            return columns.held(self.held.layout, name, index)
        node = entry(name, index)
        self.entries[node] = name
        return node


def _held_columns(columns: Sequence[Column], data: np.ndarray) -> tuple[HeldColumn, ...]:
    """Return the columns of held variables; the data (C, N) must still hold positions."""
    return tuple(
        HeldColumn(k, data[k].astype(np.int32)) for k, column in enumerate(columns) if column.held
    )


def _with_effects(graph: Graph, outputs, entries, scales: dict[str, int]) -> list[int]:
    """Replace products of variables and their scales in expressions by entries."""
    change = {
        graph.make("mul", *pair): entry
        for entry, name in entries.items()
        if name in scales
        for pair in ((entry, scales[name]), (scales[name], entry))
    }
    return graph.replaced(outputs, change)


def _reads(graph: Graph, outputs, entries, layout: FlatLayout) -> tuple[str, ...]:
    """Return the names of the variables that expressions read."""
    names = {entries[n] for n in graph.leaves(outputs, "entry") if n in entries}
    firsts = [graph.nodes[n].value[1] for n in graph.leaves(outputs, "dot")]
    names |= {n for n, s in layout.slices.items() for k in firsts if s.start <= k < s.stop}
    return tuple(n for n in layout.names if n in names)


def _chosen_by_source(graph: Graph, outputs, columns: Columns, sources) -> int:
    """Combine the expressions of several observed variables into one for all rows."""
    if len(outputs) == 1:
        return outputs[0]
    which = columns.part(None).node(
        ("source",), lambda: np.repeat(np.arange(len(sources)), [s.n_rows for s in sources])
    )
    out = outputs[-1]
    for k in reversed(range(len(outputs) - 1)):
        out = graph.make("switch", graph.make("eq", which, graph.const(k)), outputs[k], out)
    return out


def _row_data(columns, n_rows: Sequence[int], order, out: np.ndarray | None) -> np.ndarray:
    """Return columns (C, N + 16) of the ordered rows, in ``out`` if it is given.

    Columns of one source are zero in rows of others.
    """
    starts = np.concatenate([[0], np.cumsum(n_rows)])
    n = int(starts[-1])
    out = np.zeros((max(1, len(columns)), n + ROWS_BEYOND)) if out is None else out
    for k, (source, array, held) in enumerate(columns):
        begin = 0 if source is None else int(starts[source])
        if held:
            array = np.broadcast_to(array, n if source is None else n_rows[source])
        if len(array) == n:
            out[k, :n] = array[order]
        else:
            whole = np.zeros(n)
            whole[begin : begin + len(array)] = array
            out[k, :n] = whole[order]
    out[:, n:] = out[:, n - 1 : n]
    return out


def _group_data(columns: Sequence[Column], n_groups: int) -> np.ndarray:
    """Stack columns side by side, (G, B)."""
    if not columns:
        return np.zeros((n_groups, 1))
    each = [np.broadcast_to(column.values, n_groups) for column in columns]
    return np.ascontiguousarray(np.stack(each, axis=1), dtype=float)
