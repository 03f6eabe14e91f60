"""Grouping factors of a model, whose local effects can be integrated out, and the states of discrete variables."""

from __future__ import annotations

import logging
import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from amc_pymc.engine import Graph
from amc_pymc.reading.graphs import (
    initial_point_of,
    interpreted_function,
    log_densities,
    remembering,
    stabilised,
)
from amc_pymc.reading.rows import (
    NotRowFactorised,
    RowLogp,
    extract_rows,
    with_constants,
)
from amc_pymc.reading.scalars import Columns, ElementReader, Index, NotScalar, ParameterLeaves

# --- states of discrete variables ------------------------------------------------------------------


#: Distributions on 0, 1, 2, ... that are bounded once they are truncated from above.
_COUNTS = (pm.Poisson.rv_type, pm.NegativeBinomial.rv_type, pm.Geometric.rv_type)


def element_states(model, value_var, *, max_states: int = 1000) -> list[np.ndarray]:
    """Return the states of every element of a discrete variable.

    Parameters
    ----------
    model : pm.Model
    value_var : variable
        Discrete value variable of the model.
    max_states : int
        Largest number of states that is accepted.

    Returns
    -------
    list of (K,) int64 arrays, increasing
        One for each element, in C order.

    Raises
    ------
    ValueError
        If the support is unbounded, unknown, depends on other variables or is too large.

    Examples
    --------
    >>> import pymc as pm
    >>> from amc_pymc.reading.factors import element_states
    >>> with pm.Model() as model:
    ...     k = pm.DiscreteUniform("k", lower=[0, 3], upper=[1, 5])
    >>> [s.tolist() for s in element_states(model, model.rvs_to_values[k])]
    [[0, 1], [3, 4, 5]]
    """
    name = value_var.name
    shape = np.shape(initial_point_of(model)[name])
    low, high = _bounds(model, model.values_to_rvs[value_var])
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise ValueError(
            f"{name!r} has infinitely many states, or unknown ones; RacingGibbs evaluates each of "
            "them. Truncate it (pm.Truncated), write it as a function of pm.Categorical, or leave it "
            "to pm.Metropolis."
        )
    ends = [np.broadcast_to(v, shape).ravel().astype(int) for v in (np.ceil(low), np.floor(high))]
    for a, b in zip(*ends):
        if b - a >= max_states:
            raise ValueError(
                f"{name!r} has {b - a + 1:,} states ({a} to {b}), more than max_states="
                f"{max_states:,}; each of them is evaluated at every draw. Cut it into fewer states, "
                "raise max_states=, or leave it to pm.Metropolis."
            )
        if b < a:
            raise ValueError(f"{name!r} has no state: its bounds are {a} and {b}")
    return [np.arange(a, b + 1) for a, b in zip(*ends)]


def _bounds(model, rv) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest value of a random variable."""
    op, zero = rv.owner.op, np.zeros(())
    if isinstance(op, TruncatedRV):
        low, high = (_known(model, rv, bound) for bound in rv.owner.inputs[-2:])
        least = 0.0 if isinstance(op.base_rv_op, _COUNTS) else -np.inf
        return np.maximum(low, least), high
    parameters: list[Any] = op.dist_params(rv.owner) if hasattr(op, "dist_params") else []
    if isinstance(op, pm.Bernoulli.rv_type):
        return zero, np.ones(())
    if isinstance(op, pm.Categorical.rv_type):
        return zero, _known(model, rv, parameters[0].shape[-1], shape_only=True) - 1
    if isinstance(op, pm.DiscreteUniform.rv_type):
        low, high = (_known(model, rv, bound) for bound in parameters)
        return low, high
    if isinstance(op, pm.Binomial.rv_type | pm.BetaBinomial.rv_type):
        return zero, _known(model, rv, parameters[0])
    if isinstance(op, pm.HyperGeometric.rv_type):
        return zero, _known(model, rv, sum(parameters[:2]))
    return zero - np.inf, zero + np.inf


def _known(model, rv, expression, shape_only: bool = False) -> np.ndarray:
    """Evaluate a bound, which must not depend on free variables."""
    free = set(model.free_RVs)
    used = [] if shape_only else [v.name for v in ancestors([expression]) if v in free]
    if used:
        raise ValueError(
            f"The bounds of {rv.name!r} depend on {', '.join(used)}; RacingGibbs needs states that "
            "stay the same. Leave it to pm.Metropolis."
        )
    (expression,) = model.replace_rvs_by_values([expression])
    point = initial_point_of(model)
    inputs = [v for v in model.value_vars if v in set(ancestors([expression]))]
    fn = interpreted_function(inputs, expression, plain=True)
    return np.asarray(fn(*(point[v.name] for v in inputs)), dtype=float)


# --- grouping factors ------------------------------------------------------------------------------


_log = logging.getLogger("amc_pymc")

#: Largest number of local effects per group for product quadrature.
_MOST_EFFECTS = 3

#: Search for kinks: rows, number of halves, and smallest jump of a derivative relative to its values.
_SOME_ROWS, _HALVES, _JUMP = 200, 45, 1e-3
#: Share of rows with a kink near their effect from which the effects are not integrated out.
_KINKED = 0.01


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
    levels : (N,) int64 array
        The level of each row.
    variables : tuple of str
        Names of the same variables in the user's model.
    reason : str
        Why the effects cannot be integrated out; empty if they can.
    """

    names: tuple[str, ...]
    n_levels: int
    n_effects: int
    levels: np.ndarray
    variables: tuple[str, ...]
    reason: str = ""

    def __getstate__(self):
        # Unpickled factors are used with rows that are already sorted.
        return self.__dict__ | {"levels": self.levels[:0]}

    @property
    def label(self) -> str:
        """Names of the variables for messages."""
        return ", ".join(self.variables)


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
    try:
        reads = _Reads(extract_rows(model, observed_vars))
    except (NotRowFactorised, NotScalar) as error:
        _log.debug("No groups: %s", error)
        return []
    except IndexError as error:
        raise ValueError(
            f"An index in the data is out of range: {error}. Groups are numbered from 0; "
            "pandas.factorize gives such numbers."
        ) from error
    found: dict[tuple[int, int], list[str]] = {}
    shapes = dict(zip(reads.rows.layout.names, reads.rows.layout.shapes))
    for name, shape in shapes.items():
        node = reads.level_of(name)
        if node is not None:
            found.setdefault((node, shape[0]), []).append(name)
    out = []
    for (node, n_levels), names in found.items():
        effects = sum(math.prod(shapes[n][1:]) for n in names)
        levels = reads.levels(node, n_levels)
        factor = Factor(tuple(names), n_levels, effects, levels, _user_names(names, model))
        out.append(replace(factor, reason=_reason(factor, model, reads)))
    return sorted(out, key=lambda f: -f.n_levels)


class _Reads:
    """Elements of variables that rows read."""

    def __init__(self, rows: RowLogp):
        self.rows = rows
        self.graph = Graph()
        self.columns = Columns(self.graph, "column")
        self._leaves = ParameterLeaves(self.graph, rows.layout)
        self._row = rows.expression(self.graph, self.columns, self._leaves)

    def level_of(self, name: str) -> int | None:
        """Return the one column by which rows index the levels of a variable, or None."""
        found = [index for other, index in self._leaves.read if other == name and index]
        if len({first for first, *_ in found}) != 1:
            return None
        node = found[0][0]
        is_data = self.graph.numbers[node] is None and not self.graph.leaves([node], "entry")
        plain = all(self.graph.numbers[i] is not None for _, *rest in found for i in rest)
        return node if is_data and plain else None

    def levels(self, node: int, n_levels: int) -> np.ndarray:
        """Return the level of each row."""
        (values,) = self.graph.evaluate([node], row=self.columns.arrays)
        values = np.broadcast_to(values, self.rows.n_rows).astype(np.int64)
        return np.where(values < 0, values + n_levels, values)

    def kinked(self, slots: dict, x: np.ndarray, centre: np.ndarray, half: np.ndarray) -> bool:
        """Whether derivatives of rows by local effects jump within ``half`` (q,) of a centre (q,), at x.

        Half by half, the interval over which a derivative changes most is looked for in some rows.
        """
        g, number = self.graph, self.rows.n_rows
        read = self._leaves.read
        local = {n: slots[k](g, index) for (k, index), n in read.items() if k in slots}
        (row,) = g.replaced([self._row], local)
        some = np.unique(np.linspace(0, number - 1, _SOME_ROWS).astype(int))
        columns = [np.broadcast_to(a, number)[some] for a in self.columns.arrays]
        for j in range(centre.size):
            slope = g.derivative(row, g.make("local", value=j))

            def at(u: np.ndarray, j: int = j, slope: int = slope) -> np.ndarray:
                effects = [u if k == j else other for k, other in enumerate(centre)]
                (out,) = g.evaluate([slope], row=columns, local=effects, eta=x)
                return np.broadcast_to(out, some.size)

            ends = np.tile(centre[j] + half[j] * np.array([[-1.0], [1.0]]), some.size)
            slopes = np.stack([at(u) for u in ends])
            least = _JUMP * np.abs(slopes).sum(axis=0)
            for _ in range(_HALVES):
                between = ends.mean(axis=0)
                there = at(between)
                moved = (np.abs(slopes[1] - there) < np.abs(there - slopes[0])).astype(int)
                each = moved, np.arange(some.size)
                ends[each], slopes[each] = between, there
            if np.mean(np.abs(slopes[1] - slopes[0]) > least) > _KINKED:
                return True
        return False


def effects_at(factor: Factor, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the local effects (G, q) at a point of the whole model."""
    parts = [np.asarray(point[n]) for n in factor.names]
    return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1).astype(float)


def _effects(factor: Factor, model) -> list[Variable]:
    """Return the value variables with local effects."""
    return [v for v in model.value_vars if v.name in factor.names]


def _user_names(names: Sequence[str], model) -> tuple[str, ...]:
    """Return the names of the random variables of value variables."""
    return tuple(str(model.values_to_rvs[v].name) for v in model.value_vars if v.name in names)


def _reason(factor: Factor, model, reads: _Reads) -> str:
    layout, observed = reads.rows.layout, reads.rows.observed_vars
    if not set(factor.names) <= set(layout.continuous):
        return (
            "it has discrete effects; sum them out (pm.Mixture, or pm.Potential and NUTS), or leave "
            "them to a step of PyMC"
        )
    if factor.n_effects > _MOST_EFFECTS:
        return f"it has {factor.n_effects} effects a level, and at most {_MOST_EFFECTS} can be"
    own = [model.values_to_rvs[v] for v in _effects(factor, model)]
    # The integral over a variable with a flat prior may not exist.
    improper = ", ".join(rv.name for rv in own if isinstance(rv.owner.op, FlatRV | HalfFlatRV))
    if improper:
        return f"the prior of {improper} is improper; give it a proper one"
    used = _used_elsewhere(factor, model, observed)
    if used:
        return used
    graph, slots = Graph(), local_slots(factor, model)
    columns = Columns(graph, "group")
    try:
        prior = prior_expression(factor, model, ParameterLeaves(graph, layout, columns, slots))
    except (NotScalar, NotRowFactorised) as error:
        return f"its prior is not a product over levels ({error})"
    point = initial_point_of(model)
    x, effects = layout.ravel(point), effects_at(factor, point)
    with np.errstate(all="ignore"):
        local = [graph.make("local", value=j) for j in range(factor.n_effects)]
        twice = [graph.derivative(graph.derivative(prior, u), u) for u in local]
        found = graph.evaluate(twice, group=columns.arrays, local=list(effects.T), eta=x)
        half = np.array([3.0 / np.sqrt(np.nanmedian(np.abs(c))) for c in found])
        half[~np.isfinite(half)] = 3.0
        if reads.kinked(slots, x, np.median(effects, axis=0), half):
            return "log-likelihoods of its rows have kinks, which quadrature does not resolve (use NUTS)"
    return ""


def _used_elsewhere(factor: Factor, model, raced: Sequence[str]) -> str:
    """Return a message about other parts of the model that depend on local effects, if any do."""
    values = set(_effects(factor, model))
    own = {model.values_to_rvs[v] for v in values}
    others = [p for p in [*model.basic_RVs, *model.potentials] if p not in own]
    used = [
        str(part.name)
        for part in others
        if part.name not in raced and values & set(ancestors(log_densities(model, [part])))
    ]
    if not used:
        return ""
    verb = "depends" if len(used) == 1 else "depend"
    return f"{' and '.join(used)} {verb} on it too"


def prior_expression(factor: Factor, model, leaf: ParameterLeaves) -> int:
    """Return the log density of one group's local effects, the slots of ``leaf``."""
    graph, columns, shapes = leaf.graph, leaf.columns, _shapes(model)
    assert columns is not None
    number = columns.node("group", partial(np.arange, factor.n_levels))

    def element(name: str, index: Index) -> int:
        if name in leaf.slots and index[0] != number:
            raise NotScalar("levels depend on each other")
        if name not in leaf.slots and number in index:
            raise NotScalar(f"{_user_names((name,), model)[0]} has a value for each level too")
        return leaf(name, index)

    total = graph.const(0.0)
    for value in _effects(factor, model):
        (logp,) = log_densities(model, [model.values_to_rvs[value]])
        logp, inputs = with_constants(logp, {v: shapes[v.name] for v in model.value_vars})
        logp, leaves = stabilised(logp), {v: partial(element, v.name) for v in inputs}
        if not logp.type.ndim or logp.type.shape[0] not in (factor.n_levels, None):
            raise NotScalar("its log density is not one number for each level")
        reader = ElementReader(graph, leaves, columns)
        for rest in np.ndindex(*reader.shape(logp)[1:]):
            at = number, *map(graph.const, rest)
            total = graph.make("add", total, reader.element(logp, at))
    return total


def local_slots(factor: Factor, model) -> dict:
    """Return for each local variable a function ``(graph, index) -> node`` of its effects."""
    shapes, out, start = _shapes(model), {}, 0
    for value in _effects(factor, model):
        out[value.name] = partial(_slot, start, shapes[value.name][1:])
        start += int(np.prod(shapes[value.name][1:]))
    return out


def _slot(start: int, shape: tuple[int, ...], graph: Graph, index: Index) -> int:
    at = [graph.numbers[i] for i in index[1:]]
    if None in at:
        raise NotScalar("its effects are chosen by data")
    place = int(np.ravel_multi_index(at, shape)) if shape else 0
    return graph.make("local", value=start + place)


def _shapes(model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of value variables."""
    return {name: np.shape(value) for name, value in initial_point_of(model).items()}
