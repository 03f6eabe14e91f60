"""Groups in a model: variables with a value per group, and rows that read the value of their group.

A free variable is *local* if every row reads one of its entries, selected by an index in the data, if
its prior is a product over groups given other variables, and if nothing else in the model depends
on it. Given everything else, the local effects of different groups are then independent, and can be
integrated out one group at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from amc_pymc.engine import Graph
from amc_pymc.reading.factors import Factor, local_slots, prior_expression
from amc_pymc.reading.graphs import FlatLayout, log_densities, lowered, remembering
from amc_pymc.reading.packed_rows import packed_columns
from amc_pymc.reading.rows import extract_rows
from amc_pymc.reading.scalars import Columns, ParameterLeaves
from amc_pymc.rows import InMemory
from amc_pymc.tall.groups import ROWS_BEYOND, GroupProgram

# --- centred effects -------------------------------------------------------------------------------
# Rows of a model with ``effect = sd * z``, z standard normal, depend on z and sd only through their
# product. Given sd, the posterior of the effect is nearly Gaussian, while z and sd are strongly dependent
# given the data. A sampler therefore moves the effect e = sd z instead of z. A Jacobian of 1 / sd for each
# entry keeps the posterior unchanged.


#: PyTensor function for each operation of an expression.
_SYMBOLIC = {"div": pt.true_div} | {
    op: getattr(pt, op) for op in "add sub mul neg exp log log1p sqrt softplus sigmoid pow".split()
}


def find_scales(graph: Graph, outputs: Sequence[int], entries: Mapping[int, str]) -> dict[str, int]:
    """Return variables that enter some expressions only in a product with one scale, and their scales.

    Parameters
    ----------
    graph : Graph
    outputs : sequence of int
    entries : mapping of int to str
        Name of the variable that each entry of the parameters belongs to.

    Returns
    -------
    dict of str to int
        Scale of each variable: an expression of other parameters, the same for all its entries.
    """
    found: dict[str, set[int | None]] = defaultdict(set)
    for n in graph.upstream(outputs):
        if n in entries and n in outputs:
            found[entries[n]].add(None)
        for a in entries.keys() & set(graph.nodes[n].args):
            found[entries[a]].add(_scale(graph, a, n))
    scales = {n: s for n, (s, *more) in found.items() if not more and s is not None}
    below = set(scales)
    return {
        name: scale
        for name, scale in scales.items()
        if not below & {entries.get(e, "") for e in graph.leaves([scale], "entry")}
        and all(graph.nodes[n].op in _SYMBOLIC or not graph.nodes[n].args
                or graph.nodes[n].op == "entry" for n in graph.upstream([scale]))
    }  # fmt: skip


def _scale(graph: Graph, entry: int, user: int) -> int | None:
    """Return the other factor of a product if it depends on parameters only, else None."""
    node = graph.nodes[user]
    if node.op != "mul" or node.args[0] == node.args[1]:
        return None
    (other,) = (a for a in node.args if a != entry)
    plain = graph.depends[other] == 0 and graph.numbers[other] is None
    return other if plain else None


@dataclass(frozen=True, eq=False)
class Centring:
    """Map from points x of a model to points t that hold effects in place of scaled variables.

    Attributes
    ----------
    graph : Graph
    layout : FlatLayout
        Layout of x and of t (D,).
    scales : dict of str to int
        Scales from :func:`find_scales`; the entries that they read are equal in x and t.
    """

    graph: Graph
    layout: FlatLayout
    scales: dict[str, int] = field(default_factory=dict)

    def _factors(self, x: np.ndarray) -> np.ndarray:
        """Return the scale (D,) of each entry."""
        out = np.ones(x.size)
        for name, scale in self.scales.items():
            out[self.layout.slices[name]] = self.graph.evaluate([scale], eta=x)[0]
        return out

    def effects(self, x: np.ndarray) -> np.ndarray:
        """Return the point t (D,) of a point x."""
        return x * self._factors(x) if self.scales else x

    def plain(self, t: np.ndarray) -> np.ndarray:
        """Return the point x (D,) of a point t."""
        return t / self._factors(t) if self.scales else t

    def log_jacobian(self, t: np.ndarray) -> float:
        """Return the logarithm of |dx / dt| at a point t (D,)."""
        return -float(np.log(np.abs(self._factors(t))).sum())

    def symbolic_plain(self, t):
        """Return the symbolic x at the symbolic point t, and the logarithm of |dx / dt|."""
        x, log_jacobian, known = t, pt.constant(0.0), dict[int, Any]()
        for n in self.graph.upstream(list(self.scales.values())):
            node = self.graph.nodes[n]
            if node.op == "const":
                known[n] = pt.constant(self.graph.numbers[n])
            elif node.op == "entry":
                known[n] = t[int(self.graph.numbers[node.args[0]])]
            else:
                known[n] = _SYMBOLIC[node.op](*(known[a] for a in node.args))
        for name, scale in self.scales.items():
            where = self.layout.slices[name]
            x = pt.set_subtensor(x[where], t[where] / known[scale])
            log_jacobian -= (where.stop - where.start) * pt.log(pt.abs(known[scale]))
        return x, log_jacobian


# --- groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Groups:
    """Data and expressions of a model whose local effects are integrated out.

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
    rows : InMemory
        Columns (C, N + 16) of the rows, sorted by group and padded with copies of the last row.
    first : (G + 1,) int64 array
        First row of each group, and the number of rows.
    group_data : (G, B) array
        Columns that the priors of local effects read.
    """

    factor: Factor
    layout: FlatLayout
    program: GroupProgram
    reads: tuple[str, ...]
    centring: Centring
    observed_vars: tuple[str, ...]
    rows: InMemory
    first: np.ndarray
    group_data: np.ndarray

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return int(self.first[-1])


# --- extraction ---------------------------------------------------------------------------------


@remembering()
def take_groups(
    model, factor: Factor, observed_vars: Sequence[Any] | None = None, centring: bool = True
) -> Groups:
    """Return data and expressions of a model with the effects of one factor integrated out.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor from :func:`find_factors` with an empty ``reason``.
    observed_vars : sequence of str or variables, optional
        As for :func:`find_factors`.
    centring : bool
        Whether expressions read products of variables and their scales instead of the variables.

    Returns
    -------
    Groups

    Raises
    ------
    ValueError
        If the factor cannot be integrated out.
    NotScalar
        If a row cannot be written as one expression.
    """
    if factor.reason:
        raise ValueError(f"{factor.label} cannot be integrated out: {factor.reason}")
    source = extract_rows(model, observed_vars)
    graph = Graph()
    columns, group_columns = Columns(graph, "column"), Columns(graph, "group")
    whole = source.layout
    layout = _layout(model, factor, whole, source.observed_vars)
    slots = local_slots(factor, model)
    leaves = [ParameterLeaves(graph, layout, c, slots) for c in (columns, group_columns)]
    row = source.expression(graph, columns, leaves[0])
    prior = prior_expression(factor, model, leaves[1])
    entries = {node: name for leaf in leaves for (name, _), node in leaf.read.items()}
    scales = find_scales(graph, [row, prior], entries) if centring else {}
    row, prior = _with_effects(graph, [row, prior], entries, scales)
    reads = _reads(graph, [row, prior], entries, layout)
    (row,), row_data = columns.used([row])
    (prior,), group_data = group_columns.used([prior])
    order = np.argsort(factor.levels, kind="stable")
    ends = np.cumsum(np.bincount(factor.levels, minlength=factor.n_levels))
    shape = max(1, len(row_data)), order.size + ROWS_BEYOND
    rows = InMemory(shape, lambda out: _write_rows(row_data, order, out))
    return Groups(
        factor=factor,
        layout=layout,
        program=GroupProgram(graph, row, prior, factor.n_effects, shape[0]),
        reads=reads,
        centring=Centring(graph, layout, scales),
        observed_vars=source.observed_vars,
        rows=rows,
        first=np.concatenate([[0], ends]).astype(np.int64),
        group_data=packed_columns(group_data, factor.n_levels),
    )


def _layout(model, factor: Factor, whole: FlatLayout, observed: Sequence[str]) -> FlatLayout:
    """Return the layout of the variables that are no effects of the factor.

    Those with levels come last: the places of others do not depend on the number of levels.
    """
    readers = {*factor.variables, *observed}
    densities = log_densities(model, [rv for rv in model.basic_RVs if rv.name in readers])
    above: set[Variable] = set()  # what data index, and what this is a function of
    for node in toposort(lowered(densities)):
        if isinstance(node.op, AdvancedSubtensor):
            above |= set(ancestors([node.inputs[0]]))
    chosen = {v.name for v in model.value_vars if v in above}
    kept = [n for n in whole.names if n not in factor.names]
    sizes = dict(zip(whole.names, whole.sizes))
    kept.sort(key=lambda name: name in chosen and sizes[name] > 1)
    return whole.part(kept)


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


def _write_rows(columns: Sequence[np.ndarray], order: np.ndarray, out: np.ndarray) -> None:
    """Write columns (C, N + 16) of the ordered rows."""
    n = order.size
    for k, column in enumerate(columns):
        out[k, :n] = column[order]
    out[:, n:] = out[:, n - 1 : n]
