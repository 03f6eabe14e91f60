"""Gibbs sweeps over discrete elements, with draws decided by races.

The state k with the highest log p(x_k) + eps_k, eps_k standard Gumbel noise, is an exact draw from
the full conditional of an element with K states (Papandreou & Yuille 2011; Chen & Ghahramani 2016,
eq. 2). Each state is an arm; its rewards are the units' log-likelihoods minus a control variate.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit, record
from amc_pymc.tall.decisions import Races, of_exact
from amc_pymc.tall.racing import DECIDED, NOT_FINITE, RaceResult, RaceRule, race
from amc_pymc.tall.samplers.chain import (
    Chain,
    Log,
    Sampler,
    add_counts,
    learns_now,
    log_decision,
    past_start,
    recentre,
)
from amc_pymc.tall.surrogate import Surrogate, surrogate_total

#: Further statuses of a sweep: no state has a positive density; the rest of the log density is
#: NaN or +inf; the control variate is invalid in a state.
_NO_STATE, _REST_NOT_FINITE, _NOT_EXPANDABLE = 11, 12, 13


@record
class Elements(NamedTuple):
    """J discrete elements to be drawn.

    ``coordinate`` (J,) are their positions in x, ``first`` (J + 1,) the start of each element's states
    in ``states``, ``raced`` (J,) whether units depend on it.
    """

    coordinate: np.ndarray
    first: np.ndarray
    states: np.ndarray
    raced: np.ndarray

    def states_of(self, element: int | np.integer) -> np.ndarray:
        """Return the states (K,) of one element."""
        return self.states[slice(*self.first[element : element + 2])]

    @property
    def most_states(self) -> int:
        """Largest number of states of an element."""
        return int(np.diff(self.first).max(initial=0))


def elements_of(
    coordinate: Sequence[int], states: Sequence[np.ndarray], raced: Sequence[bool]
) -> Elements:
    """Build elements from their coordinates, their states and whether units depend on them."""
    sizes = np.array([s.size for s in states])
    return Elements(
        np.array(coordinate, dtype=np.int64),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.concatenate(states).astype(np.float64),
        np.array(raced),
    )


class GibbsCounts(NamedTuple):
    """Counts of draws of discrete elements.

    Elements ``drawn`` and ``changed``, ``races``, ``raced`` and ``other`` units
    read, ``arms_left`` after the first round, and ``rewards``, evaluations of one unit in one state.
    All are (1,).
    """

    drawn: np.ndarray
    changed: np.ndarray
    races: np.ndarray
    raced: np.ndarray
    other: np.ndarray
    arms_left: np.ndarray
    rewards: np.ndarray

    @classmethod
    def zeros(cls) -> GibbsCounts:
        """Return zero counts."""
        return cls(*np.zeros((7, 1)))

    def stats(self) -> dict[str, float]:
        """Return the statistics of one draw."""
        races = self.races[0]
        return {
            "race_rows": float(self.raced[0] + self.other[0]),
            "race_moved": float(self.changed[0] / max(1.0, self.drawn[0])),
            "race_arms_left": float(self.arms_left[0] / races) if races else 1.0,
        }


@dataclass(kw_only=True, eq=False)
class Gibbs(Sampler):
    """Gibbs sampler of discrete elements."""

    elements: Elements

    def rewards_and_rule(self, n_raced: int) -> tuple[Any, RaceRule]:
        """Return what decides between states: the rule for the largest number holds for fewer, too."""
        arms, raced = max(2, self.elements.most_states), self.prepared.raced
        rule = self.race.rule(n_raced, arms, zero_sd_decides=self.prepared.rounding_only)
        return raced.state_rewards, rule

    def passes(self, log: Log, k: int) -> int:
        """Return the number of states, each of which takes a pass."""
        return self.elements.states_of(int(log.subject[k])).size

    def confirmed(self, log: Log, k: int, surrogate: Surrogate | None) -> bool:
        """Whether the state drawn has the highest score on all units."""
        element, drawn = int(log.subject[k]), int(log.outcome[k])
        densities = self.prepared.densities
        states = self.elements.states_of(element)
        points = np.repeat(log.x[k][None, :], states.size, axis=0)
        points[:, self.elements.coordinate[element]] = states
        scores = log.other[k, : states.size].copy()
        for a, x in enumerate(points):
            scores[a] += densities.rest_value_and_gradient(x)[0]
            if a != drawn and scores[a] > -np.inf:
                scores[a] += densities.change(points[drawn], x)
        return not np.any(scores > scores[drawn])


def init(sampler: Gibbs, rng: np.random.Generator, *, tune: int = 0, draws: int = 0) -> Chain:
    """Start a chain with ``tune`` tuning draws and ``draws`` audited draws."""
    noise = sampler.elements.most_states
    return Chain(**sampler.begin(rng, tune, draws, noise), totals=GibbsCounts.zeros())


def step(
    sampler: Gibbs, chain: Chain, x: np.ndarray, rng: np.random.Generator, *, tuning: bool = False
) -> tuple[np.ndarray, GibbsCounts]:
    """Make one draw: the sampler's sweeps from x (D,).

    Returns the point reached and the counts. The chain is changed in place.

    Raises
    ------
    ValueError
        If no state of an element is possible, or if a log density is not finite or the control
        variate is invalid in a state.
    """
    x, counts = x.copy(), GibbsCounts.zeros()
    races = sampler.races._replace(surrogate=chain.surrogate)
    log = chain.auditor.no_log if tuning else chain.auditor.log
    args = sampler.elements, races, rng, log, chain.audit_rng, counts
    status, element, where = sampler.run(run_sweeps, sampler.transitions, x, *args)
    if status != DECIDED:
        _raise_bad(sampler, status, element, where)
    chain.draw += 1
    if tuning:
        add_counts(chain.totals, counts)
        if past_start(chain) and not sampler.prepared.no_proxy:
            chain.visited.add(sampler.prepared.eta(x))
        if learns_now(chain):
            learn(sampler, chain)
    return x, counts


def learn(sampler: Gibbs, chain: Chain) -> None:
    """Adapt the expansion point to the chain's history."""
    recentre(chain, sampler.prepared, chain.totals.raced[0], chain.totals.races[0])
    chain.totals = GibbsCounts.zeros()


def _raise_bad(sampler: Gibbs, status: int, element: int | np.integer, where: int) -> None:
    model = sampler.prepared.densities
    coordinate = sampler.elements.coordinate[element]
    label = model.layout.labels()[coordinate]
    states = sampler.elements.states_of(element)
    if status == _NO_STATE:
        raise ValueError(
            f"No state of {label} has a positive density given the other variables; look at "
            f"its prior and at the {model.unit}s' likelihood in each state."
        )
    if status == _NOT_EXPANDABLE:
        raise ValueError(
            f"The control variate does not hold at {label} = {states[where]:g}, where the "
            f"{model.unit}s read a quantity that is not finite; race='exact' needs none."
        )
    what = f"The log density besides the {model.unit}s"
    if status == NOT_FINITE:
        what = f"The log-likelihood of {', '.join(model.observed_vars)} in {model.unit} {where}"
    raise ValueError(f"{what} is not finite in a state of {label}.")


# --- the compiled loop ----------------------------------------------------------------------------


@njit(cache=True)
def race_states(
    x: np.ndarray,
    coordinate: int,
    states: np.ndarray,
    scores: np.ndarray,
    races: Races,
    rng: np.random.Generator,
) -> RaceResult:
    """Race the states with a finite score; the result's winner is a position in ``states``."""
    exact, rewards, centre = races.population.exact, races.densities.rewards, races.surrogate.centre
    points, bias, old = np.zeros((states.size, centre.size)), scores.copy(), x[coordinate]
    for a in range(states.size):
        if scores[a] == -np.inf:
            continue
        x[coordinate] = states[a]
        fill(points[a], races.densities.parameters(x))
        x[coordinate] = old
        if not np.all(np.isfinite(points[a])):
            return RaceResult(a, 0, 0, 0.0, _NOT_EXPANDABLE, -1, 0, 0)
        bias[a] += surrogate_total(points[a], races.surrogate)
        more, bad = of_exact(points[a : a + 1], centre, exact, races.densities)
        if bad >= 0:
            return RaceResult(a, 0, 0, 0.0, NOT_FINITE, bad, 0, 0)
        bias[a] += more
        if not np.isfinite(bias[a]):  # a control variate that overflows far from its centre
            bias[a] = -np.inf
    if bias.max() > -np.inf:
        bias = (bias - bias.max()) / max(1, races.population.n_raced)
    return race(rewards, points, centre, bias, races.population, races.rule, rng)


@njit(cache=True)
def run_sweeps(
    n: int,
    x: np.ndarray,
    elements: Elements,
    races: Races,
    rng: np.random.Generator,
    log: Log,
    log_rng: np.random.Generator,
    counts: GibbsCounts,
) -> tuple[int, int | np.integer, int]:
    """Make ``n`` sweeps over all elements in random order, overwriting x (D,).

    Adds to ``counts``. Returns the status, the element at which the sweep stopped, and the offending
    unit or the position of the offending state.
    """
    order = np.arange(elements.coordinate.size)
    for _ in range(n):
        for i in range(order.size - 1, 0, -1):
            j = np.int64(rng.random() * (i + 1))
            order[i], order[j] = order[j], order[i]
        for e in order:
            coordinate = elements.coordinate[e]
            states = elements.states[elements.first[e] : elements.first[e + 1]]
            noise = np.empty(states.size)
            for k in range(states.size):
                noise[k] = -math.log(-math.log(1.0 - rng.random()))
            scores, old = np.empty(states.size), x[coordinate]
            bad, possible = False, 0
            for k in range(states.size):
                x[coordinate] = states[k]
                rest = races.densities.rest(x)
                bad = bad or np.isnan(rest) or rest == np.inf
                possible += rest > -np.inf
                scores[k] = rest + noise[k]
            x[coordinate] = old
            if bad:
                return _REST_NOT_FINITE, e, -1
            if possible == 0:
                return _NO_STATE, e, -1
            if possible == 1 or not elements.raced[e]:
                winner: int | np.integer = np.argmax(scores)
            else:
                result = race_states(x, coordinate, states, scores, races, rng)
                if result.status == _NOT_EXPANDABLE:
                    return _NOT_EXPANDABLE, e, result.winner
                if result.status != DECIDED:
                    return result.status, e, result.row
                if result.winner < 0:
                    return _NO_STATE, e, -1
                winner = result.winner
                counts.races[0] += 1
                counts.raced[0] += result.rows
                counts.other[0] += races.population.exact.size
                counts.arms_left[0] += result.arms_left
                counts.rewards[0] += result.rewards
                log_decision(log, x, noise, int(e), winner, result.rewards / possible, log_rng)
            counts.drawn[0] += 1
            counts.changed[0] += states[winner] != old
            x[coordinate] = states[winner]
    return DECIDED, -1, -1
