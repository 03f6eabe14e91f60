"""Marginal log-likelihoods of groups: as the units of races, summed at many points, and the number of their nodes."""

from __future__ import annotations

import copy

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from amc_pymc.engine.jit import FirstClassFunction
from amc_pymc.logweights import log_mean_exp
from amc_pymc.reading.densities import RestDensities
from amc_pymc.reading.factors import effects_at
from amc_pymc.reading.graphs import FlatLayout, WithoutCaches
from amc_pymc.reading.groups import Groups
from amc_pymc.rng import as_generator
from amc_pymc.tall import groups as loops
from amc_pymc.tall.groups import Nodes, hermite_nodes, printed_groups, wide_nodes
from amc_pymc.tall.racing import REWARDS

#: Initial number of nodes along each axis, by the number of effects.
_FIRST = {1: 7, 2: 5, 3: 5}
#: Range over held nodes of the change of the log integrand, in nats, above which nodes are moved.
_MOST_SPREAD = 1.0
#: Change of the log-likelihood in nats below which proposals are rejected whatever the quadrature error.
_HOPELESS = -20.0


class GroupDensities(WithoutCaches):
    """Marginal log-likelihoods of groups, with the interface of row densities.

    Parameters
    ----------
    groups : Groups
    n_nodes : int, optional
        Number of quadrature nodes along each axis.
    curved : bool
        Whether second derivatives are needed.

    Notes
    -----
    ``modes`` (G, q) and ``factors`` (G, q, q) locate the nodes at the point where :meth:`settle` was
    last called. Mode searches start there, and control variates use these nodes.

    Population sums of control variates use all ``nodes``, as many as the likelihood needs. A race
    samples only residuals, for which fewer ``held_nodes``, fixed where they are stored, are enough.
    Let L_K be the likelihood by K held nodes, h_K the second-order Taylor polynomial of its logarithm
    around the centre, and h the polynomial for all nodes. A race decides by

        sum_g h_g + sum_g (log L_K,g - h_K,g).

    The error of using fewer nodes therefore enters only through third derivatives.
    """

    #: Name of a unit in messages.
    unit = "group"

    def __init__(self, groups: Groups, n_nodes: int | None = None, *, curved: bool = True):
        self.groups, self.curved = groups, curved
        self.layout, self.factor = groups.layout, groups.factor
        self.n_units, self.n_rows = groups.factor.n_levels, groups.n_rows
        self.store = groups.rows
        #: Names of the observed variables whose rows are in the groups.
        self.observed_vars = groups.observed_vars
        #: Coordinates of x that groups depend on.
        self.reads = self.layout.indices(groups.reads)
        q = groups.program.n_local
        continuous = [n for n in groups.reads if n in self.layout.continuous]
        self.expand = self.layout.indices(continuous)
        self.mask = np.isin(np.arange(self.layout.size), self.expand).astype(float)
        #: ``_MOST_SPREAD`` if races hold nodes, else zero.
        self.most_spread = np.zeros(1)
        self.set_nodes(n_nodes or _FIRST[q])
        self.modes = np.zeros((self.n_units, q))
        self.factors = np.tile(np.eye(q), (self.n_units, 1, 1))
        #: Whether all nodes are stored; false makes the next expansion move them to the modes at its centre.
        self.settled = False
        #: Number of rows of groups read so far.
        self.counter = np.zeros(1, np.int64)
        #: Cost of full passes so far, in log-likelihoods of one row.
        self.rows_evaluated = 0
        #: Largest change so far of a decision's log ratio by taking twice the nodes.
        self.approximation_error = 0.0

    @cached_property
    def program(self) -> np.ndarray:
        """Addresses of the model's compiled functions, which :mod:`amc_pymc.tall.groups` call."""
        return printed_groups(self.groups.program, curved=self.curved).arrays[0]

    # --- nodes ----------------------------------------------------------------------------------

    def set_nodes(self, number: int) -> None:
        """Set the number of nodes along each axis, all moved to the modes; audits use twice as many."""
        self.n_nodes, q = number, self.groups.program.n_local
        self.nodes, self.finer = (hermite_nodes(n, q) for n in (number, 2 * number + 1))
        self.hold_nodes(None)

    def hold_nodes(self, number: int | None) -> None:
        """Let races hold ``number`` nodes along each axis; None moves all nodes to the modes."""
        q = self.groups.program.n_local
        self.held_nodes = self.nodes if number is None else hermite_nodes(number, q)
        self.most_spread[0] = 0.0 if number is None else _MOST_SPREAD
        self.__dict__.pop("rewards", None)  # bound to the nodes of before

    # --- numbers and costs ------------------------------------------------------------------------

    @property
    def race_cost(self) -> float:
        """Cost of racing one group, in log-likelihoods of one row; measured."""
        a_row = (12.0 if self.most_spread[0] else 13.0) + 3.5 * len(self.held_nodes.log_weights)
        return self.n_rows / self.n_units * a_row

    @property
    def audit_cost(self) -> float:
        """Cost per group of auditing a decision, in log-likelihoods of one row; measured."""
        a_row = 12.0 + 3.0 * len(self.finer.log_weights)
        return self.race_cost + self.n_rows / self.n_units * a_row

    @property
    def rows_read(self) -> int:
        """Number of rows read so far."""
        return int(self.counter[0])

    # --- for compiled loops ---------------------------------------------------------------------

    @property
    def places(self) -> list[Any]:
        """Rows, and where the nodes of each group are."""
        g = self.groups
        return [g.rows.data, g.first, g.group_data, self.modes, self.factors]

    @property
    def _races(self) -> list[Any]:
        held = [*self.held_nodes, self.most_spread]
        return [self.mask, *self.places, *held, *self.nodes, self.counter, self.program]

    @cached_property
    def rewards(self) -> Any:
        """First-class ``(points (2, E), centre, groups (m,)) -> (2, m)``; row 0 is zero."""
        return FirstClassFunction(loops.rewards, REWARDS, self._races)

    @property
    def state_rewards(self) -> Any:
        """Not available: no sampler needs residuals of groups at several points."""
        raise NotImplementedError

    def raced(self, x, x_new, centre: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the changes of residuals (m,) of some groups from x to x_new, which races sample."""
        self.rows_evaluated += int(idx.size * self.race_cost / 4)
        return loops.rewards(np.stack([x, x_new]), centre, idx, *self._races)[1]

    def raced_change(self, x, x_new, surrogate, idx: np.ndarray) -> float:
        """Return the change of some groups' summed log-likelihood as approximated in races."""
        rest = self.raced(x, x_new, surrogate[0], idx).sum()
        return float(rest + self.expanded_change(x, x_new, surrogate))

    def expanded_change(self, x, x_new, surrogate) -> float:
        """Return the change of the summed control variates of a surrogate (centre, gradient, Hessian)."""
        centre, gradient, hessian = surrogate
        u, v = self.mask * (x_new - x), self.mask * (x_new + x - 2.0 * centre)
        return float(gradient @ u + 0.5 * u @ hessian @ v)

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray, nodes: Nodes | None = None, keep=False):
        """Return the marginal log-likelihoods (m,) of some groups at x.

        ``nodes`` replace those in use; ``keep`` stores where they were moved to.
        """
        arrays = [*self.places, *(nodes or self.nodes), keep, self.counter, self.program]
        return loops.values(x, idx, *arrays)

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return the marginal log-likelihoods (G,) of all groups at x."""
        self.rows_evaluated += self.n_rows * len(self.nodes.log_weights)
        return self.values(x, np.arange(self.n_units))

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield :meth:`all_values` in one piece."""
        yield self.all_values(x)

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the change of the summed log-likelihood from x to x_new, with twice the nodes.

        ``surrogate`` (centre, gradient, Hessian) defines the control variates of races. The change is
        compared with that of a race over all groups to update :attr:`approximation_error`.
        """
        units = np.arange(self.n_units)
        if surrogate is None:
            coarse = float(np.sum(self.all_values(x_new) - self.all_values(x)))
        else:
            coarse = self.raced_change(x, x_new, surrogate, units)
        fine = float(
            np.sum(self.values(x_new, units, self.finer) - self.values(x, units, self.finer))
        )
        if fine > _HOPELESS:
            self.approximation_error = max(self.approximation_error, abs(fine - coarse))
        return fine

    def settle(self, x: np.ndarray, idx: np.ndarray | None = None) -> None:
        """Move the stored nodes of some groups (default all) to the modes at x."""
        self.settled = idx is None
        self.values(x, np.arange(self.n_units) if idx is None else idx, keep=True)

    def value_and_gradient(self, x: np.ndarray, idx: np.ndarray | None = None):
        """Return the summed log-likelihood of some groups (default all) and its gradient (E,)."""
        total, gradient, _ = self.sums(x[None], 1, idx)
        return float(total[0]), gradient[0]

    def hessian(self, x: np.ndarray, idx: np.ndarray | None = None) -> np.ndarray:
        """Return the Hessian (E, E) of the summed log-likelihood."""
        return self.sums(x[None], 2, idx)[2][0]

    def expansion(
        self, x: np.ndarray, idx: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient (E,) and Hessian (E, E) of some or all groups' control variates around x.

        The sums use the stored nodes, which the first call for all groups moves to the modes at x.
        """
        if idx is None and not self.settled:
            self.settle(x)
        _, gradient, hessian = self.sums(x[None], 2, idx, climbs=False)
        return gradient[0], hessian[0]

    def sums(self, xs: np.ndarray, order: int, idx: np.ndarray | None = None, climbs: bool = True):
        """Return sums (P,) of some groups at points (P, E), and derivatives up to an order.

        Gradients are (P, E), Hessians (P, E, E). Unless ``climbs``, nodes are the stored ones.
        """
        idx = np.arange(self.n_units) if idx is None else np.asarray(idx, np.int64)
        share = idx.size / self.n_units * len(xs)
        self.rows_evaluated += int(3 * share * self.n_rows * len(self.nodes.log_weights))
        arrays = [*self.places, *self.nodes, climbs, order, self.counter, self.program]
        return loops.sums(xs, idx, *arrays)

    # --- local effects --------------------------------------------------------------------------

    def complete(self, x: np.ndarray, effects: np.ndarray) -> float:
        """Return the log density of all rows and local effects (G, q)."""
        arrays = [*self.places[:3], self.program]
        return float(loops.complete(x, effects, *arrays))

    def draw_effects(self, x: np.ndarray, effects: np.ndarray, tries: int, rng) -> float:
        """Draw local effects (G, q) given x, in place, and return the acceptance rate."""
        arrays = [*self.places, self.counter, self.program]
        return loops.draw_effects(x, effects, tries, rng, *arrays)


class GroupedModel(GroupDensities, RestDensities):
    """Densities of the groups and the rest of a model whose local effects are integrated out.

    Parameters
    ----------
    groups
        As for :class:`GroupDensities`.
    rest, value_vars
        As for :class:`~amc_pymc.reading.densities.RestDensities`.
    """

    def __init__(self, groups: Groups, rest: Sequence[Any], value_vars):
        GroupDensities.__init__(self, groups)
        RestDensities.__init__(self, rest, value_vars, self.layout, groups.centring)

    def effects(self, point) -> np.ndarray:
        """Return the local effects (G, q) at a point of the whole model."""
        return effects_at(self.factor, point)

    def as_point(self, effects: np.ndarray, like) -> dict[str, np.ndarray]:
        """Return local effects (G, q) as variables with the shapes and dtypes of the point ``like``."""
        out, start = {}, 0
        for name in self.factor.names:
            old = np.asarray(like[name])
            width = int(np.prod(old.shape[1:]))
            part = effects[:, start : start + width].reshape(old.shape)
            out[name] = part.astype(old.dtype)
            start += width
        return out


# --- sums at many points ---------------------------------------------------------------------------


#: Numbers of Gauss-Hermite nodes along each axis that are tried before the wide rule, by the number of effects.
_TRIED = {1: (2, 3, 5, 7, 11, 15, 21, 31), 2: (2, 3, 5, 7, 11, 15), 3: (2, 3, 5, 7, 11)}
#: Largest factor by which the spacing of the wide rule may be refined, by the number of effects.
_FINEST = {1: 4, 2: 2, 3: 1}
#: Log-likelihoods of rows that a check may evaluate, and numbers of points at which nodes are chosen and their
#: error is measured.
_WORK, _CHOSEN_AT, _MEASURED_AT = 1e8, 8, 64
#: Difference in nats up to which two nodes are considered as accurate as more.
_SAME = 1e-7
_SEED = 20241


class GroupTotals:
    """Sum over groups of log L_g, integrated by one quadrature rule.

    Parameters
    ----------
    groups : Groups
        Groups that were extracted without centring.
    layout : FlatLayout
        Layout of the points x (D,), with the variables of ``groups.layout`` in any order.

    Attributes
    ----------
    factor : Factor
        Factor whose effects are integrated out.
    rule : str
        Description of the quadrature rule.
    """

    def __init__(self, groups: Groups, layout: FlatLayout):
        self.factor, self._groups = groups.factor, GroupDensities(groups, curved=False)
        places = [np.arange(layout.size)[layout.slices[n]] for n in groups.layout.names]
        self._order = np.concatenate(places)
        self._discrete, self._n_local = layout.discrete, groups.program.n_local
        self._finer = 1
        self._take(self._groups.n_nodes)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return values (P,) at points (P, D)."""
        return self._groups.sums(self._etas(xs), 0)[0]

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values (P,) and gradients (P, D), zero at discrete coordinates."""
        values, slopes, _ = self._groups.sums(self._etas(xs), 1)
        out = np.empty(slopes.shape)
        out[:, self._order] = slopes
        out[:, self._discrete] = 0.0
        return values, out

    def complete(self, x: np.ndarray, effects: np.ndarray) -> float:
        """Return the log density of all rows and local effects (G, q) at a point (D,)."""
        return self._groups.complete(x[self._order], effects)

    def simplified(self, xs: np.ndarray) -> GroupTotals:
        """Return a copy with two nodes, or self if that makes a difference at points (P, D).

        Two nodes are enough if effects are Gaussian given rows and parameters.
        """
        if not len(xs):
            return self
        found = self._sampled(xs, hermite_nodes(2, self._n_local))
        if not np.all(np.abs(found - self._sampled(xs, self._groups.nodes)) <= _SAME):
            return self
        out = self._copy()
        out._take(2)
        return out

    def refined(self, xs: np.ndarray, tolerance: float) -> GroupTotals:
        """Return a copy with as many nodes as the sum needs at posterior points (P, D).

        These are the fewest whose error is at most a tolerance in nats at every point. Mode searches start
        at the modes of the points' mean.
        """
        found = self._copy()
        found._groups.settle(xs.mean(axis=0)[self._order])
        xs = _some(xs, _CHOSEN_AT)
        wanted, found._finer = found._reference(xs, tolerance)
        for number in (*_TRIED[self._n_local], None):  # the wide rule if all others fail
            found._take(number)
            error = found._sampled(xs, found._groups.nodes) - wanted
            if np.abs(error).max() <= tolerance:
                break
        return found

    def error(self, xs: np.ndarray) -> float:
        """Return the quadrature error of the log evidence, in nats, from posterior points (P, D).

        The ratio of two evidences is the posterior mean of the ratio of their likelihoods. The rule in use
        is compared with the wide rule, and the wide rule itself with one of half its spacing.
        """
        xs = _some(xs, _MEASURED_AT)
        nodes, finer = self._groups.nodes, self._finer * (2 if self._wide else 1)
        best = self._sampled(xs, wide_nodes(self._n_local, finer))
        return -float(log_mean_exp(best - self._sampled(xs, nodes)))

    def _reference(self, xs: np.ndarray, tolerance: float) -> tuple[np.ndarray, int]:
        """Return sums (P,) by the wide rule, and the refinement of its spacing that they need."""
        finer, found = 1, self._sampled(xs, wide_nodes(self._n_local))
        while finer < _FINEST[self._n_local]:
            better = self._sampled(xs, wide_nodes(self._n_local, 2 * finer))
            if np.abs(better - found).max() <= tolerance:
                break
            finer, found = 2 * finer, better
        return found, finer

    # --- rules ------------------------------------------------------------------------------------

    def _etas(self, xs: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(xs[:, self._order])

    def _take(self, number: int | None) -> None:
        """Use ``number`` Gauss-Hermite nodes along each axis, or the wide rule if None."""
        self._wide = number is None
        nodes = wide_nodes(self._n_local, self._finer)
        self._groups.nodes = nodes if number is None else hermite_nodes(number, self._n_local)
        kind = "trapezoidal rule" if self._wide else "adaptive Gauss-Hermite"
        self.rule = f"{kind}, {len(self._groups.nodes.log_weights)} nodes"

    def _copy(self) -> GroupTotals:
        """Return a copy with its own nodes and modes."""
        found = copy.copy(self)
        found._groups = copy.copy(self._groups)
        found._groups.modes = self._groups.modes.copy()
        found._groups.factors = self._groups.factors.copy()
        return found

    def _sampled(self, xs: np.ndarray, nodes: Nodes) -> np.ndarray:
        """Estimate sums (P,) with given nodes from as many groups as a check may evaluate."""
        d = self._groups
        most = _WORK / (len(nodes.log_weights) * max(1, len(xs)) * max(1, d.n_rows) / d.n_units)
        number = int(np.clip(most, 1, d.n_units))
        some = np.sort(as_generator(_SEED).permutation(d.n_units)[:number])
        return _totals(d, self._etas(xs), some, nodes)


def _some(xs: np.ndarray, number: int) -> np.ndarray:
    """Return at most ``number`` points, evenly spaced."""
    places = np.linspace(0, len(xs) - 1, min(number, len(xs))).astype(int)
    return xs[places]


# --- number of nodes of races ----------------------------------------------------------------------


#: Numbers of nodes along each axis that are tried, by the number of effects. One node would suffice for Gaussian
#: groups, but their second derivatives by log standard deviations are fourth moments, which need three.
NODES = {1: (3, 5, 7, 11, 15, 21), 2: (3, 5, 7, 11), 3: (3, 5, 7)}
#: Numbers of fixed nodes along each axis that races may use, by the number of effects.
_HELD = {1: (2, 3, 5, 7), 2: (2, 3, 5), 3: (2, 3)}
#: Largest standard deviation of the quadrature error over points of a posterior, in nats.
TOLERANCE = 0.03
#: Number of rows on which the quadrature error is measured.
_SAMPLE = 200_000
#: Conditions for fixed nodes in races: smallest number of groups (with few groups, a standard
#: deviation varies widely), largest relative cost of a decision, and bound on its error, in nats.
_MANY_GROUPS, _CHEAPER, HELD_TOLERANCE = 250, 0.85, 0.1
#: Simulation of the cost of decisions: groups in the first batch, half-width in standard errors,
#: largest distance of a log ratio from its threshold, pairs of points, decisions per pair, and
#: factor by which distances of points from the centre are shrunk.
_FIRST_BATCH, _HALF_WIDTH, _FARTHEST, _PAIRS, _TRIALS, _NEARER = 20, 2.6, 2.0, 8, 40, 2 / 3
_COST_SEED = 20161


def choose_nodes(
    densities: GroupDensities, points: Sequence[np.ndarray], rng: np.random.Generator
) -> float:
    """Set the smallest number of nodes whose error hardly varies over points of the posterior.

    A constant error of the log-likelihood does not affect a sampler. If no number is accurate enough,
    the largest is set.

    Parameters
    ----------
    densities : GroupDensities
        Densities whose nodes are set; ``settle`` must be called again.
    points : sequence of (D,) arrays
        The first is the centre of control variates.
    rng : numpy.random.Generator
        Draws a sample of the groups.

    Returns
    -------
    float
        Standard deviation over the points of the error of moved (not fixed) nodes, in nats, for the
        smallest number that is accurate enough. If it is not below ``TOLERANCE``, no number is, and it
        is the error of the largest, compared with twice as many nodes.
    """
    n_units = densities.n_units
    number = max(1, int(min(1.0, _SAMPLE / max(1, densities.n_rows)) * n_units))
    some = np.sort(rng.choice(n_units, size=number, replace=False))
    choices = NODES[densities.groups.program.n_local]
    densities.set_nodes(choices[-1])
    best = _totals(densities, points, some, densities.nodes)
    for k in choices:
        densities.set_nodes(k)
        nodes = densities.finer if k == choices[-1] else densities.nodes
        error = float(np.std(_totals(densities, points, some, nodes) - best))
        if error < TOLERANCE:
            break
    enough = [k for k in choices if k >= densities.n_nodes]
    _choose_held(densities, enough, points, some, best - best[0])
    densities.settled = False
    return error


def _totals(densities: GroupDensities, points, some: np.ndarray, nodes: Nodes) -> np.ndarray:
    """Estimate the total log-likelihood at points from some groups."""
    densities.rows_evaluated += some.size * len(points) * len(nodes.log_weights)
    scale = densities.n_units / some.size
    return scale * np.array([densities.values(x, some, nodes).sum() for x in points])


def _choose_held(
    densities: GroupDensities, choices: Sequence[int], points, some: np.ndarray, changes: np.ndarray
) -> None:
    """Let races use fixed nodes if this makes them cheaper and is accurate enough.

    ``choices`` are candidate numbers of moved nodes, the first of which is accurate enough by
    itself; ``changes`` are those of the log-likelihood from the first point.
    """
    if densities.n_units < _MANY_GROUPS:
        return
    centre, scale = points[0], densities.n_units / some.size
    expanded = {}
    for number in choices[:3]:
        densities.set_nodes(number)
        densities.settle(centre, some)
        surrogate = centre, *densities.expansion(centre, some)
        expanded[number] = [densities.expanded_change(centre, x, surrogate) for x in points]
    densities.set_nodes(choices[0])
    most = _CHEAPER * _decision_cost(densities, points, some)
    for held in _HELD[densities.groups.program.n_local]:
        densities.hold_nodes(held)
        if _decision_cost(densities, points, some) > most:
            continue
        rest = [densities.raced(centre, x, centre, some).sum() for x in points]
        for number, known in expanded.items():
            if np.ptp(scale * (np.array(known) + rest) - changes) < HELD_TOLERANCE:
                densities.set_nodes(number)
                densities.hold_nodes(held)
                return
    densities.hold_nodes(None)


def _decision_cost(densities: GroupDensities, points, some: np.ndarray) -> float:
    """Estimate the cost of a decision, in log-likelihoods of one row, where chains will be.

    Chains are nearer to the centre than the points, which serve to measure errors.
    """
    rng, centre = as_generator(_COST_SEED), points[0]
    near = [centre + _NEARER * (x - centre) for x in points[1 : _PAIRS + 2]]
    residuals = [densities.raced(x, y, centre, some) for x, y in pairwise(near)]
    n_units = densities.n_units
    needed = [_groups_needed(r, n_units, rng) for r in residuals for _ in range(_TRIALS)]
    return float(np.mean(needed) * densities.race_cost)


def _groups_needed(residuals: np.ndarray, n_units: int, rng: np.random.Generator) -> int:
    """Simulate how many of ``n_units`` groups a race reads, given residuals (m,) of a sample.

    The distance of the log ratio from its threshold is uniform. A batch decides if its half-width
    is smaller and no group contributes more than half of the sum of squares.
    """
    distance, size = _FARTHEST * rng.random(), _FIRST_BATCH
    order = rng.permutation(residuals.size)
    while size < residuals.size:
        batch = residuals[order[:size]]
        squares = (batch - batch.mean()) ** 2
        width = _HALF_WIDTH * n_units * np.sqrt(squares.mean() / size)
        if width < distance and squares.max() <= 0.5 * squares.sum():
            return size
        size *= 2
    return n_units
