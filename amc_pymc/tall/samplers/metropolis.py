"""Metropolis-Hastings transitions with a two-arm race as the accept step.

Arm 0 is the current point x, arm 1 the proposal x' (Chen & Ghahramani 2016, eq. 12).
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit, record
from amc_pymc.tall.decisions import BROKEN, Races, decide
from amc_pymc.tall.mode import GaussianFit, Moments
from amc_pymc.tall.racing import DECIDED
from amc_pymc.tall.refresh import Refresh, propose_with_tails
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
from amc_pymc.tall.samplers.fit import fit_to_moments
from amc_pymc.tall.surrogate import Surrogate

# --- proposals -------------------------------------------------------------------------------------


#: Kinds of proposals, in the order of arrays with one number for each: a Gaussian random walk with covariance and scale
#: adapted during tuning, and moves that are reversible for prior times surrogate, with a scale adapted in (0, 1].
KINDS = RANDOM_WALK, SURROGATE = 0, 1
#: Share of the moves that the kind with the smaller jumps makes.
_SEARCH_SHARE = 0.1
#: Weight of the first covariance, in draws, when a new one is estimated.
_SHRINKAGE = 10.0
#: Scale below which moves on a Gaussian surrogate fit badly.
_FITS_BADLY = 0.5


@record
class Moves(NamedTuple):
    """State of both kinds of proposals.

    Attributes
    ----------
    weights, scales : (K,) arrays
        Probabilities of the kinds, and their scales.
    active : (A,) int array
        Coordinates that are moved.
    whiten : (A, A) array
        Turns differences of active coordinates into standard deviations, in which jumps are measured.
    walk : (A, A) array
        Factor of the random walk's covariance.
    refresh : Refresh
        Moves on prior times surrogate.
    """

    weights: np.ndarray
    scales: np.ndarray
    active: np.ndarray
    whiten: np.ndarray
    walk: np.ndarray
    refresh: Refresh


@njit(cache=True)
def propose(kind: int, points: np.ndarray, moves: Moves, rng: np.random.Generator) -> float:
    """Write x' to points[1]; return log q(x | x') - log q(x' | x), or the log ratio of pi~ at x and x'."""
    fill(points[1], points[0])
    scale, active = moves.scales[kind], moves.active
    if kind == SURROGATE:
        return propose_with_tails(points, scale, moves.refresh, rng)[0]
    z = np.empty(active.size)
    for a in range(z.size):
        z[a] = rng.standard_normal()
    step = moves.walk @ z
    for a in range(z.size):
        points[1, active[a]] = points[0, active[a]] + scale * step[a]
    return 0.0


def proposal_weights(jumps: np.ndarray) -> np.ndarray:
    """Return probabilities (K,) of the kinds of proposals from their mean squared jumps.

    The kind with the larger jumps gets nine tenths. The other gets the rest, because each kind
    may reach points that another cannot.
    """
    weights = np.full(len(KINDS), _SEARCH_SHARE)
    weights[np.argmax(jumps)] = 1.0 - _SEARCH_SHARE
    return weights


def learned(moves: Moves, fit: GaussianFit, moments: Moments) -> Moves:
    """Adapt moves to the moments of a chain; ``fit`` is the Gaussian that they were first based on.

    The random walk gets the chain's covariance. If a Gaussian surrogate without hyperparameters or indicators fits
    badly, the chain's mean and covariance take its place.
    """
    size = moves.active.size
    if moments.count > 2 * size + 10:
        first = np.linalg.inv(moves.whiten)
        moves = moves._replace(walk=moments.factor(moves.active, first, _SHRINKAGE + size))
    refresh = moves.refresh
    plain = not (refresh.phi.size or refresh.binary.size)
    bad = plain and moves.scales[SURROGATE] < _FITS_BADLY
    if not bad or moments.count <= 10 * size + 50:
        return moves
    surface = fit_to_moments(moments, fit.coordinates, moves.active, refresh.freedom[0])
    if surface is None:
        return moves
    scales = moves.scales.copy()
    scales[SURROGATE] = 1.0
    return moves._replace(scales=scales, refresh=surface.moves())


# --- what the loop writes ----------------------------------------------------------------------


class MetropolisCounts(NamedTuple):
    """Counts of Metropolis-Hastings transitions.

    By kind: proposals (``tries``), those ``accepted``, sums of estimated acceptance probabilities
    (``acceptance``) and of squared jumps in standard deviations (``jumps``). Over all kinds: ``raced``
    units read, ``other`` units read, ``unsure`` decisions, which may be wrong.
    """

    tries: np.ndarray
    accepted: np.ndarray
    acceptance: np.ndarray
    jumps: np.ndarray
    raced: np.ndarray
    other: np.ndarray
    unsure: np.ndarray

    @classmethod
    def zeros(cls, *draws: int) -> MetropolisCounts:
        """Return zero counts of one draw, or of B draws: arrays (B, K) and (B, 1)."""
        return cls(*np.zeros((4, *draws, len(KINDS))), *np.zeros((3, *draws, 1)))

    def stats(self) -> dict[str, float]:
        """Return the statistics of one draw."""
        tries = float(sum(self.tries)) or math.nan
        return {
            "accept": float(sum(self.acceptance)) / tries,
            "accepted": float(sum(self.accepted)) / tries,
            "race_rows": float(self.raced[0] + self.other[0]),
            "race_exact": float(self.unsure[0] == 0.0),
        }


#: Maximum number of draws in a batch.
_DRAWS = 64


# --- batches --------------------------------------------------------------------------------------
# Entering a compiled loop takes longer than a transition. A chain that is neither tuned nor moved by another step may
# therefore run ahead of the caller. The draws are the same as if made one at a time.


@dataclass
class Ahead:
    """A batch of draws with their counts.

    Parameters
    ----------
    points : (B, D) array
        Points reached.
    counts : list of B MetropolisCounts
        Counts of each draw.
    units : float
        Units read by all draws.
    """

    points: np.ndarray
    counts: list[MetropolisCounts]
    units: float
    handed_out: int = 0

    def continues(self, x: np.ndarray) -> bool:
        """Whether draws are left and the next one starts at x (D,)."""
        return self.handed_out < len(self.points) and self.ends_at(x)

    def ends_at(self, x: np.ndarray) -> bool:
        """Whether x (D,) is the point of the last draw returned."""
        return self.points[self.handed_out - 1].tobytes() == x.tobytes()

    def following(self, x: np.ndarray, units: int, most: int) -> int:
        """Return the number of draws in the next batch from x (D,), at most ``most``.

        The size doubles while a batch is expected to read at most ``units`` units. It is one if the
        caller has moved the chain, for example by rounding x, because draws made ahead are then lost.
        """
        if not self.ends_at(x):
            return 1
        made = len(self.points)
        affordable = int(units * made / max(self.units, 1.0))
        return max(1, min(2 * made, affordable, _DRAWS, most))


# --- transitions -----------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class Metropolis(Sampler):
    """Metropolis-Hastings sampler of the coordinates ``active``.

    A chain that no other step moves may make draws in batches that read up to ``ahead`` units.
    """

    ahead: int = 0

    def confirmed(self, log: Log, k: int, surrogate: Surrogate | None) -> bool:
        """Whether the sign of the log ratio on all units agrees with the outcome."""
        change = self.prepared.densities.change(log.x[k], log.other[k], surrogate)
        return bool(log.subject[k] + change > 0.0) == bool(log.outcome[k])


@dataclass(kw_only=True)
class MetropolisChain(Chain):
    """State of a Metropolis-Hastings chain.

    ``moments`` are those of the points x, the same object as ``visited`` if eta is x.
    ``start_replaced`` is set if the chain does not begin at the point that its user gave.
    ``made`` is the latest batch of draws.
    """

    moments: Moments
    moves: Moves
    start_replaced: bool = False
    made: Ahead | None = None

    def stats(self) -> dict[str, float]:
        """Return statistics of the chain's state."""
        weights = self.moves.weights.tolist()
        scaling = self.moves.scales[weights.index(max(weights))]
        return super().stats() | {"scaling": float(scaling)}


def init(
    sampler: Metropolis, rng: np.random.Generator, *, tune: int = 0, draws: int = 0
) -> MetropolisChain:
    """Start a chain with ``tune`` tuning draws and ``draws`` audited draws."""
    prepared, active = sampler.prepared, sampler.active
    assert prepared.fit is not None and prepared.surface is not None
    size, factor = prepared.start.size, prepared.fit.factor(active)
    started = sampler.begin(rng, tune, draws, size)
    moves = Moves(
        weights=proposal_weights(np.array([0.0, 1.0])),
        scales=np.array([2.38 / math.sqrt(active.size), 1.0]),
        active=active,
        whiten=np.linalg.inv(factor),
        walk=factor.copy(),
        refresh=prepared.surface.moves(),
    )
    moments = started["visited"] if prepared.cut is None else Moments()
    return MetropolisChain(**started, moments=moments, totals=MetropolisCounts.zeros(), moves=moves)


def step(
    sampler: Metropolis,
    chain: MetropolisChain,
    x: np.ndarray,
    rng: np.random.Generator,
    *,
    tuning: bool = False,
) -> tuple[np.ndarray, MetropolisCounts]:
    """Make one draw: the sampler's transitions from x (D,).

    Returns the point reached and the counts. The chain is changed in place. If the sampler runs
    ahead, draws are made in batches; a batch is discarded if x is not the point of the previous draw.

    Raises
    ------
    ValueError
        If a unit that had not been read before is not finite at the current point.
    """
    made, model = chain.made, sampler.prepared.densities
    if tuning or made is None or not made.continues(x):
        number, each = 1, sampler.transitions
        if sampler.ahead and made is not None and not tuning:
            number = made.following(x, sampler.ahead, chain.auditor.until_due())
        points, draws = np.stack([x, x]), np.empty((number, x.size))
        found = MetropolisCounts.zeros(number)
        races = sampler.races._replace(surrogate=chain.surrogate)
        log = chain.auditor.no_log if tuning else chain.auditor.log
        state = points, races, chain.moves, rng, log, chain.audit_rng
        k, left, status, unit = sampler.run(run_draws, 0, each, each, *state, draws, found)
        while status != DECIDED:
            if status == BROKEN:
                raise RuntimeError(
                    f"row {unit} changed more than its bound allows; please report this as a bug. "
                    "Use step.replace(race=amc.NormalRace()) until it is corrected."
                )
            # A unit that is not finite at a proposal is a rejection, at the current point an error.
            value = float(model.values(points[0], np.array([unit]))[0])
            if not np.isfinite(value):
                raise ValueError(
                    f"The log-likelihood of {', '.join(model.observed_vars)} is {value} in "
                    f"{model.unit} {unit} at the current point of the chain: a {model.unit} that had not "
                    "been read when the chain moved there. Use race='exact', or a likelihood that is "
                    "positive everywhere."
                )
            k, left, status, unit = sampler.run(run_draws, k, left, each, *state, draws, found)
        # A list is faster to create than a view of a row, and is read in the same way.
        every = [MetropolisCounts(*each) for each in zip(*(part.tolist() for part in found))]
        made = chain.made = Ahead(draws, every, float(found.raced.sum() + found.other.sum()))
    x, counts = made.points[made.handed_out].copy(), made.counts[made.handed_out]
    made.handed_out += 1
    chain.draw += 1
    if tuning:
        _tune(sampler, chain, counts, x)
    return x, counts


# --- the compiled loop ----------------------------------------------------------------------------


@njit(cache=True)
def run_draws(
    k: int,
    left: int,
    each: int,
    points: np.ndarray,
    races: Races,
    moves: Moves,
    rng: np.random.Generator,
    log: Log,
    log_rng: np.random.Generator,
    draws: np.ndarray,
    counts: MetropolisCounts,
) -> tuple[int, int, int, int]:
    """Fill draws[k:] (B, D) from points[0], draw k by ``left`` and later ones by ``each`` transitions.

    ``points`` (2, D) is overwritten. Adds to ``counts``, arrays (B, ...). Returns the draw at which it stopped, the
    transitions left for that draw, the status and the offending unit. With status ``NOT_FINITE`` the last transition
    was not made; points[1] holds its proposal.
    """
    densities, active = races.densities, moves.active
    thinned = races.thinning.radii.shape[0] > 0
    rest = densities.rest(points[0])
    here = densities.parameters(points[0])
    arms, moved = np.empty((2, here.size)), np.empty(active.size)
    while k < draws.shape[0]:
        while left > 0:
            left -= 1
            kind = RANDOM_WALK if rng.random() < moves.weights[RANDOM_WALK] else SURROGATE
            log_q = propose(kind, points, moves, rng)
            rest_new = densities.rest(points[1])
            counts.tries[k, kind] += 1
            log_u = math.log(1.0 - rng.random())
            known = rest_new - rest + log_q - log_u
            if not known > -np.inf:
                continue
            fill(arms[0], here)
            fill(arms[1], densities.parameters(points[1]))
            verdict = decide(known, arms, races, rng)
            counts.raced[k, 0] += verdict.raced
            counts.other[k, 0] += verdict.exact
            counts.unsure[k, 0] += not verdict.sure
            if verdict.status != DECIDED:
                return k, left, verdict.status, verdict.unit
            counts.accepted[k, kind] += verdict.accepted
            counts.acceptance[k, kind] += math.exp(min(0.0, verdict.gap + log_u))
            if not (thinned and verdict.sure):
                outcome = known, verdict.accepted, verdict.raced
                log_decision(log, points[0], points[1], *outcome, log_rng)
            if verdict.accepted:
                for a in range(active.size):
                    moved[a] = points[1, active[a]] - points[0, active[a]]
                jump = moves.whiten @ moved
                counts.jumps[k, kind] += np.dot(jump, jump)
                fill(points[0], points[1])
                here = arms[1].copy()
                rest = rest_new
        fill(draws[k], points[0])
        left = each
        k += 1
    return k, 0, DECIDED, -1


# --- tuning ---------------------------------------------------------------------------------------


def _tune(
    sampler: Metropolis, chain: MetropolisChain, counts: MetropolisCounts, x: np.ndarray
) -> None:
    """Adapt after a draw that ended in x."""
    add_counts(chain.totals, counts)
    scales = chain.moves.scales
    # Rejections cost thinned decisions little, and moves of full scale make draws independent.
    targets = (0.25, 0.5 if sampler.prepared.thinning is None else 0.25)
    for kind in KINDS:
        tries = counts.tries[kind]
        if tries:
            # A Robbins-Monro step of the logarithm.
            gain = min(0.5, 3.0 / (chain.totals.tries[kind] + 1.0) ** 0.6)
            excess = counts.acceptance[kind] / tries - targets[kind]
            most = 1.0 if kind == SURROGATE else math.inf
            scales[kind] = min(most, scales[kind] * math.exp(gain * excess))
    if past_start(chain):
        chain.moments.add(x)
        if chain.visited is not chain.moments:
            chain.visited.add(sampler.prepared.eta(x))
    if learns_now(chain):
        learn(sampler, chain)


def learn(sampler: Metropolis, chain: MetropolisChain) -> None:
    """Adapt covariance, proposal weights and expansion point to the chain's history."""
    totals, prepared, fit = chain.totals, sampler.prepared, sampler.prepared.fit
    assert fit is not None
    moves = learned(chain.moves, fit, chain.moments)
    weights = proposal_weights(totals.jumps / np.maximum(totals.tries, 1.0))
    chain.moves = moves._replace(weights=weights)
    if not sampler.races.thinning.radii.size:  # whose bounds hold around one centre
        recentre(chain, prepared, totals.raced[0], totals.tries.sum())
    chain.totals = MetropolisCounts.zeros()
