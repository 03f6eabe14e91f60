"""Groups in a model: variables with a value per group, and rows that read the value of their group.

A free variable is *local* if every row reads one of its entries, selected by an index in the data, if
its prior is a product over groups given other variables, and if nothing else in the model depends
on it. Given everything else, the local effects of different groups are then independent, and can be
integrated out one group at a time.
"""

from __future__ import annotations

import logging

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from amc_pymc.execution import raise_if_signalled
from amc_pymc.expressions import Graph
from amc_pymc.extract.centring import Centring, find_scales
from amc_pymc.extract.graphs import initial_point_of, lowered, rebuilt
from amc_pymc.extract.held import Held, HeldColumn
from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.log_density import log_densities
from amc_pymc.extract.memo import remembering
from amc_pymc.extract.near_groups import Read, near_groups
from amc_pymc.extract.row_program import (
    Column,
    Columns,
    element_reader,
    parameter_leaf,
    row_expression,
)
from amc_pymc.extract.rows import (
    NotRowFactorised,
    RowLogp,
    choose_observed,
    constant_data,
    extract_rows,
    row_count,
)
from amc_pymc.extract.scalars import Index, NotScalar, stabilised
from amc_pymc.extract.support import element_states
from amc_pymc.marginals import ROWS_BEYOND, GroupProgram
from amc_pymc.row_store import RowStore, SharedArray, shared_array

__all__ = [
    "Factor",
    "GroupExpressions",
    "Groups",
    "effects_at",
    "find_factors",
    "group_expressions",
    "sorted_by_level",
    "take_groups",
]

_log = logging.getLogger("amc_pymc")
#: Largest number of local effects per group for product quadrature.
_MOST_EFFECTS = 3
_MOST_STATES = 64


@dataclass(frozen=True, eq=False)
class Factor:
    """Variables with a value for each level of one grouping factor.

    Attributes
    ----------
    names : tuple of str
        Names of the value variables.
    n_levels : int
        Number of levels G.
    n_effects : int
        Number q of local effects per level.
    levels : tuple of (N_p,) int64 arrays
        The level of each row, one array for each observed variable.
    variables : tuple of str
        Names of the same variables in the user's model.
    reason : str
        Why the effects cannot be integrated out; empty if they can.
    stored : bool
        Whether the rows lie in a store; ``levels`` then covers only some rows.
    """

    names: tuple[str, ...]
    n_levels: int
    n_effects: int
    levels: tuple[np.ndarray, ...]
    variables: tuple[str, ...]
    reason: str = ""
    stored: bool = False

    def __getstate__(self):
        # Unpickled factors are used with rows that are already sorted.
        return self.__dict__ | {"levels": ()}

    @property
    def label(self) -> str:
        """Names of the variables for messages."""
        return ", ".join(self.variables)


@dataclass(frozen=True, eq=False)
class Groups:
    """Data and expressions of a model whose local effects are integrated out.

    Attributes
    ----------
    factor : Factor
    layout : FlatLayout
        Layout of the other value variables, eta (E,).
    program : GroupProgram
    rows : (C, N + 16) array
        Columns of the rows, sorted by group and padded with copies of the last row.
    first : (G + 1,) int64 array
        First row of each group, and the number of rows.
    groups : (G, B) array
        Columns that the priors of local effects read.
    reads : tuple of str
        Names of the value variables that groups depend on.
    centring : Centring
        Map between these variables and the coordinates that expressions read.
    observed_vars : tuple of str
    sources : tuple of RowLogp
        Rows of each observed variable.
    states : (K, q) array or None
        States of discrete local effects.
    order : (N,) int64 array
        Position in the data of each sorted row.
    held : Held or None
        Values of variables that are treated as data.
    held_rows, held_groups : tuple of HeldColumn
        Columns of held variables in ``rows`` and ``groups``.
    shared : SharedArray or None
        Shared memory of ``rows``, if processes share them.
    store : RowStore or None
        Store of the rows (N + 16, C) if they are not in memory; ``rows`` then holds none of them.
    """

    factor: Factor
    layout: FlatLayout
    program: GroupProgram
    rows: np.ndarray
    first: np.ndarray
    groups: np.ndarray
    reads: tuple[str, ...]
    centring: Centring
    observed_vars: tuple[str, ...]
    sources: tuple[RowLogp, ...]
    states: np.ndarray | None = None
    order: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    held: Held | None = None
    held_rows: tuple[HeldColumn, ...] = ()
    held_groups: tuple[HeldColumn, ...] = ()
    shared: SharedArray | None = None
    store: RowStore | None = None

    def __getstate__(self):
        # Unsorted data are not needed after unpickling.
        state = self.__dict__ | {
            "sources": tuple(s.without_data() for s in self.sources),
            "order": np.empty(0, np.int64),
        }
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


@remembering()
def find_factors(model, observed_vars: Sequence[Any] | None = None) -> list[Factor]:
    """Return the grouping factors of a model, those with the most levels first.

    Parameters
    ----------
    model : pm.Model
    observed_vars : sequence of str or variables, optional
        Observed variables to race; by default those with the most rows.

    Returns
    -------
    list of Factor
        ``reason`` says why a factor cannot be integrated out, and is empty if it can.
    """
    if not _may_have_groups(model, observed_vars):
        return []
    try:
        sources = _sources(model, observed_vars)
        reads = [_Reads(s) for s in sources]
    except NotRowFactorised as error:
        _log.debug("No groups: %s", error)
        return []
    except IndexError as error:
        raise ValueError(
            f"An index in the data is out of range: {error}. Groups are numbered from 0; "
            "pandas.factorize gives such numbers."
        ) from error
    found: dict[tuple, list[str]] = {}
    whole = not any(r.problem for r in reads)
    for name in sources[0].layout.names if whole else ():
        key = tuple(r.level_of(name) for r in reads)
        if any(k is not None for k in key) and not any(r.otherwise(name) for r in reads):
            found.setdefault(key, []).append(name)
    shapes = dict(zip(sources[0].layout.names, sources[0].layout.shapes))
    out = []
    for key, names in found.items():
        sizes = {shapes[n][0] for n in names}
        for n_levels in sizes:
            here = tuple(n for n in names if shapes[n][0] == n_levels)
            effects = sum(int(np.prod(shapes[n][1:])) for n in here)
            levels = tuple(r.levels(k, here[0]) for r, k in zip(reads, key))
            factor = Factor(here, n_levels, effects, levels, _user_names(here, model))
            out.append(replace(factor, reason=_reason(factor, model, sources)))
    out += _near_factors(model, choose_observed(model, observed_vars), reads, out)
    return sorted(out, key=lambda f: -f.n_levels)


def _near_factors(model, observed, reads: Sequence[_Reads], factors) -> list[Factor]:
    """Return variables that rows index in unsupported ways, each as a factor with a reason."""
    taken = {n for f in factors for n in f.names}
    ways = [Read(str(rv.name), r.graph, r.found, r.problem) for rv, r in zip(observed, reads)]
    shapes = dict(zip(*_names_and_shapes(model)))
    levels = tuple(np.full(r.rows.n_rows, -1, np.int64) for r in reads)
    out = []
    for name, n_levels, reason in near_groups(model, observed, ways, taken):
        effects = int(np.prod(shapes[name][1:]))
        names = _user_names((name,), model)
        out.append(Factor((name,), n_levels, effects, levels, names, reason))
    return out


def _may_have_groups(model, observed_vars) -> bool:
    """Whether rows index a variable by data, or a variable has an entry for each row.

    Only the graph is inspected, because extracting rows takes several passes over the data.
    """
    try:
        observed = choose_observed(model, observed_vars)
        logps = lowered(log_densities(model, observed))
        lengths = {row_count(model, [rv]) for rv in observed}
    except Exception as error:  # extracting the rows reports the error
        raise_if_signalled(error)
        return True
    values = set(model.value_vars)
    if any(shape[:1] and shape[0] in lengths for shape in _names_and_shapes(model)[1]):
        return True
    return any(
        isinstance(node.op, AdvancedSubtensor) and values & set(ancestors([node.inputs[0]]))
        for node in toposort(logps)
    )


def _sources(model, observed_vars) -> tuple[RowLogp, ...]:
    """Return the rows of each observed variable that is raced."""
    return tuple(extract_rows(model, [rv]) for rv in choose_observed(model, observed_vars))


class _Reads:
    """Elements of variables that the rows of an observed variable read.

    ``problem`` says why the rows could not be read completely, and is empty otherwise.
    """

    def __init__(self, rows: RowLogp):
        self.rows = rows
        self.graph = Graph()
        self.columns = Columns(self.graph, "column")
        self.found: dict[str, set[Index]] = {}
        plain = parameter_leaf(self.graph, rows.layout)

        def leaf(name: str, index: Index) -> int:
            self.found.setdefault(name, set()).add(index)
            return plain(name, index)

        self.problem = ""
        try:
            row_expression(rows, self.graph, self.columns, leaf)
        except NotScalar as error:
            self.problem = str(error)
            _log.debug("No groups: %s", error)

    def level_of(self, name: str) -> int | None:
        """Return the one column by which rows index the levels of a variable, or None."""
        first = {index[0] for index in self.found.get(name, ()) if index}
        if len(first) != 1:
            return None
        (node,) = first
        is_data = self.graph.number(node) is None and not self.graph.leaves([node], "entry")
        rest = [i for index in self.found[name] for i in index[1:]]
        plain = all(self.graph.number(i) is not None for i in rest)
        return node if is_data and plain else None

    def otherwise(self, name: str) -> bool:
        """Whether rows read a variable other than by its levels."""
        return name in self.found and self.level_of(name) is None

    def levels(self, node: int | None, name: str) -> np.ndarray:
        """Return the level of each row; -1 if ``node`` is None."""
        if node is None:
            return np.full(self.rows.n_rows, -1, np.int64)
        (values,) = self.graph.evaluate([node], row=self.columns.arrays)
        values = np.broadcast_to(values, self.rows.n_rows).astype(np.int64)
        n = dict(zip(self.rows.layout.names, self.rows.layout.shapes))[name][0]
        return np.where(values < 0, values + n, values)


def effects_at(factor: Factor, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the local effects (G, q) at a point of the whole model."""
    parts = [np.asarray(point[n]) for n in factor.names]
    return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1).astype(float)


# --- can it be integrated out? ------------------------------------------------------------------


def _user_names(names: Sequence[str], model) -> tuple[str, ...]:
    """Return the names of the random variables of value variables."""
    return tuple(str(model.values_to_rvs[v].name) for v in model.value_vars if v.name in names)


def _reason(factor: Factor, model, sources) -> str:
    continuous = {sources[0].layout.is_continuous(n) for n in factor.names}
    if len(continuous) > 1:
        return "it has continuous and discrete effects"
    if factor.n_effects > _MOST_EFFECTS:
        return f"it has {factor.n_effects} effects a level, and at most {_MOST_EFFECTS} can be"
    without = [
        s.observed_vars[0] for s, levels in zip(sources, factor.levels) if np.any(levels < 0)
    ]
    if without:
        return _rows_without_levels(without, factor, sources)
    improper = [n for n in factor.names if _improper(n, model)]
    if improper:
        shown = ", ".join(_user_names(improper, model))
        return f"the prior of {shown} is improper; give it a proper one"
    used = _used_elsewhere(factor, model, [n for s in sources for n in s.observed_vars])
    if used:
        return used
    try:
        graph = Graph()
        _prior_expression(factor, model, graph, Columns(graph, "group"))
    except (NotScalar, NotRowFactorised) as error:
        return f"its prior is not a product over levels ({error})"
    if continuous == {False}:
        try:
            _states(model, factor)
        except (NotScalar, ValueError) as error:
            return f"its states cannot be listed ({error})"
    return ""


def _rows_without_levels(without: Sequence[str], factor: Factor, sources) -> str:
    others = [n for s in sources for n in s.observed_vars if n not in without]
    advice = f"; pass observed_vars={others} to race the others alone" if others else ""
    return f"rows of {' and '.join(without)} do not belong to a level{advice}"


def _improper(name: str, model) -> bool:
    """Whether a variable's prior is flat; the integral over the variable may then not exist."""
    node = next(model.values_to_rvs[v] for v in model.value_vars if v.name == name).owner
    return node is not None and isinstance(node.op, FlatRV | HalfFlatRV)


def _used_elsewhere(factor: Factor, model, raced: Sequence[str]) -> str:
    """Return a message about other parts of the model that depend on local effects, if any do."""
    values = {v for v in model.value_vars if v.name in factor.names}
    own = {model.values_to_rvs[v] for v in values}
    used = []
    for part in [*model.basic_RVs, *model.potentials]:
        if part in own or part.name in raced:
            continue
        (logp,) = log_densities(model, [part])
        if values & set(ancestors([logp])):
            used.append(str(part.name))
    if not used:
        return ""
    verb = "depends" if len(used) == 1 else "depend"
    advice = ""
    if set(used) <= {rv.name for rv in model.observed_RVs}:
        every = [str(rv.name) for rv in model.observed_RVs if rv.name in {*raced, *used}]
        advice = f"; pass observed_vars={every} to race the rows of all of them"
    return f"{' and '.join(used)} {verb} on it too{advice}"


def _prior_expression(factor: Factor, model, graph: Graph, columns: Columns, leaf=None) -> int:
    """Return the log density of one group's local effects, adding the columns that it reads.

    ``leaf(columns)`` returns a function ``(name, index) -> node`` for elements of other variables.
    """
    number = columns.node(("group",), lambda: np.arange(factor.n_levels))
    slots = local_slots(factor, model)
    other = leaf(columns) if leaf else (lambda name, index: graph.entry("eta", graph.const(0)))

    def element(name: str, index: Index) -> int:
        if name not in slots:
            if number in index:
                raise NotScalar(f"{_user_names((name,), model)[0]} has a value for each level too")
            return other(name, index)
        if index[0] != number:
            raise NotScalar("levels depend on each other")
        return slots[name](graph, index)

    total = graph.const(0.0)
    for value in model.value_vars:
        if value.name not in factor.names:
            continue
        (logp,) = lowered(log_densities(model, [model.values_to_rvs[value]]))
        logp, leaves = _with_known_shapes(logp, model, element)
        if not logp.type.ndim or logp.type.shape[0] not in (factor.n_levels, None):
            raise NotScalar("its log density is not one number for each level")
        reader = element_reader(graph, leaves, columns)
        rest = [range(n) for n in reader.shape(logp)[1:]]
        for index in np.ndindex(*(len(r) for r in rest)):
            at = (number, *(graph.const(int(k)) for k in index))
            total = graph.make("add", total, reader.element(logp, at))
    return total


def local_slots(factor: Factor, model) -> dict:
    """Return for each local variable a function ``(graph, index) -> node`` of its effects."""
    point_shapes = dict(zip(*_names_and_shapes(model)))
    out, start = {}, 0
    for value in model.value_vars:
        if value.name not in factor.names:
            continue
        shape = point_shapes[value.name][1:]
        kind = "f" if value.dtype.startswith("float") else "i"
        out[value.name] = _slot(start, shape, kind)
        start += int(np.prod(shape))
    return out


def _slot(start: int, shape: tuple[int, ...], kind: str):
    def node(graph: Graph, index: Index) -> int:
        at = [graph.number(i) for i in index[1:]]
        if None in at:
            raise NotScalar("its effects are chosen by data")
        place = int(np.ravel_multi_index(at, shape)) if shape else 0
        return graph.leaf("local", start + place, kind)

    return node


def _names_and_shapes(model):
    point = initial_point_of(model)
    names = [v.name for v in model.value_vars]
    return names, [np.shape(point[n]) for n in names]


def _with_known_shapes(logp: Variable, model, element):
    """Return the graph with evaluated data and value variables of known shape, and its leaves."""
    memo = constant_data(logp, model.value_vars, "prior")
    leaves = {}
    for value, shape in zip(model.value_vars, _names_and_shapes(model)[1]):
        new = value.type.clone(shape=shape)(value.name)
        memo[value] = new
        leaves[new] = lambda index, name=value.name: element(name, index)
    (out,) = rebuilt([logp], memo)
    return stabilised(out), leaves


def _chosen_by_data(model, sources, factor: Factor) -> set[str]:
    """Return the names of variables that data index, directly or through functions of them."""
    names = {*factor.variables, *(n for s in sources for n in s.observed_vars)}
    readers = [rv for rv in model.basic_RVs if rv.name in names]
    above: set[Variable] = set()
    for node in toposort(lowered(log_densities(model, readers))):
        if isinstance(node.op, AdvancedSubtensor):
            above |= set(ancestors([node.inputs[0]]))
    return {v.name for v in model.value_vars if v in above}


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
    sources = _sources(model, observed_vars)
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


@dataclass(frozen=True, eq=False)
class GroupExpressions:
    """Expressions of rows and priors of groups, and the columns that they read.

    Attributes
    ----------
    factor, layout, program, reads, centring, sources, states, held
        As for :class:`Groups`.
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
    sources: tuple[RowLogp, ...]
    states: np.ndarray | None
    held: Held | None
    row_columns: tuple[Column, ...]
    group_columns: tuple[Column, ...]
    level: int

    def groups(self, rows: np.ndarray, first: np.ndarray, order: np.ndarray) -> Groups:
        """Create the groups of rows that are sorted by level."""
        groups = _group_data(self.group_columns, self.factor.n_levels)
        return Groups(
            factor=self.factor,
            layout=self.layout,
            program=self.program,
            rows=rows,
            first=first,
            groups=groups,
            reads=self.reads,
            centring=self.centring,
            observed_vars=tuple(n for s in self.sources for n in s.observed_vars),
            sources=self.sources,
            states=self.states,
            order=order,
            held=self.held,
            held_rows=_held_columns(self.row_columns, rows),
            held_groups=_held_columns(self.group_columns, groups.T),
        )


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
    chosen = _chosen_by_data(model, sources, factor)
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
    prior = _prior_expression(factor, model, graph, group_columns, leaves.of)
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
        sources=tuple(sources),
        states=_states(model, factor) if discrete else None,
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


def _states(model, factor: Factor) -> np.ndarray:
    """Return the states (K, q) of discrete effects."""
    each = []
    for value in model.value_vars:
        if value.name not in factor.names:
            continue
        states = element_states(model, value, max_states=_MOST_STATES)
        size = len(states) // factor.n_levels
        for slot in range(size):
            own = states[slot::size]
            if any(not np.array_equal(s, own[0]) for s in own):
                raise NotScalar("its states differ between levels")
            each.append(own[0])
    grid = np.meshgrid(*each, indexing="ij")
    return np.stack([a.ravel() for a in grid], axis=1).astype(float)
