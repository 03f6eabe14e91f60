"""Slice sampling in which races compare points with the slice's height.

Along a direction v, a height log f(x) + log u is drawn. An interval around x is stepped out until its
ends are below the height. Points are drawn in it, and each point below the height shrinks it, until
one is above (Neal 2003). "Above" is the decision of a Metropolis step with the slice's u (DuBois,
Korattikara, Welling & Smyth 2014).
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.jit import njit
from amc_pymc.racing import NOT_FINITE
from amc_pymc.samplers.auditing import MoveDecisions
from amc_pymc.samplers.chain import Chain, Sampler, learns_now, moments_of, recentre, see
from amc_pymc.samplers.compiled import Races, decide
from amc_pymc.samplers.counts import SliceCounts, add_counts
from amc_pymc.samplers.logs import MoveLog, log_move
from amc_pymc.samplers.raced import finite_or_raise
from amc_pymc.streams import Stream, generator_of, stream_of

__all__ = ["Slice", "SliceChain", "Slices", "init", "learn", "run_slices", "step"]

_MOST_SHRINKS = 100
#: Weight of the previous directions, in draws, when new ones are estimated.
_SHRINKAGE = 10.0


class Slices(NamedTuple):
    """Directions (A, A), one per row, over the ``active`` (A,) coordinates.

    The initial interval is ``width`` times a direction long; an interval spans at most
    ``most_steps`` of these lengths.
    """

    active: np.ndarray
    directions: np.ndarray
    width: float
    most_steps: int


@dataclass(kw_only=True, eq=False)
class Slice(Sampler):
    """Slice sampler that sweeps along directions over the coordinates ``active``."""

    width: float
    max_steps: int


@dataclass(kw_only=True)
class SliceChain(Chain):
    """State of a chain of slice sweeps."""

    slices: Slices


def init(sampler: Slice, rng: np.random.Generator, *, tune: int = 0, draws: int = 0) -> SliceChain:
    """Start a chain with ``tune`` tuning draws and ``draws`` audited draws."""
    prepared, active = sampler.prepared, sampler.active
    factor = np.eye(active.size) if prepared.fit is None else prepared.fit.moves(active)[0]
    directions, size = np.ascontiguousarray(factor.T), prepared.start.size
    return SliceChain(
        **sampler.begin(rng, tune, draws, lambda capacity: MoveDecisions(capacity, size)),
        **moments_of(prepared),
        totals=SliceCounts.zeros(),
        slices=Slices(active, directions, sampler.width, sampler.max_steps),
    )


def step(
    sampler: Slice,
    chain: SliceChain,
    x: np.ndarray,
    rng: np.random.Generator,
    *,
    tuning: bool = False,
) -> tuple[np.ndarray, SliceCounts]:
    """Make one draw: the sampler's sweeps from x (D,).

    Returns the point reached and the counts. The chain is changed in place.

    Raises
    ------
    ValueError
        If a unit that had not been read before is not finite at the current point.
    """
    points, counts = np.stack([x, x]), SliceCounts.zeros()
    streams = stream_of(rng), stream_of(chain.audit_rng)
    args = sampler.races(chain), chain.slices, streams[0], chain.log(tuning), streams[1], counts
    bad = sampler.run(run_slices, sampler.transitions, points, *args)
    if bad >= 0:
        finite_or_raise(sampler.prepared.densities, points[0], bad)
    chain.draw += 1
    if tuning:
        add_counts(chain.totals, counts)
        see(chain, sampler.prepared, points[0])
        if learns_now(chain):
            learn(sampler, chain)
    return points[0], counts


def learn(sampler: Slice, chain: SliceChain) -> None:
    """Adapt directions and expansion point to the chain's history."""
    active, moments, totals = sampler.active, chain.moments, chain.totals
    if sampler.prepared.fit is None and moments.count > 2 * active.size + 10:
        prior = np.ascontiguousarray(chain.slices.directions.T)
        factor = moments.factor(active, prior, _SHRINKAGE)
        chain.slices = chain.slices._replace(directions=np.ascontiguousarray(factor.T))
    recentre(chain, sampler.prepared, totals.read[0], totals.decisions[0])
    chain.totals = SliceCounts.zeros()


# --- the compiled loop ----------------------------------------------------------------------------


class _Line(NamedTuple):
    """A direction through x (D,), the rest of the log density at x, and log u."""

    direction: np.ndarray
    active: np.ndarray
    rest: float
    log_u: float


@njit(cache=True)
def _above(
    t: float,
    points: np.ndarray,
    arms: np.ndarray,
    line: _Line,
    races: Races,
    rng: np.random.Generator,
    log: MoveLog,
    log_rng: np.random.Generator,
    counts: SliceCounts,
) -> tuple[bool, int]:
    """Decide whether x + t v, written to points[1], is above the slice's height.

    Also returns a unit that is not finite there, which counts as below, else -1.
    """
    points[1] = points[0]
    for a in range(line.active.size):
        points[1, line.active[a]] += t * line.direction[a]
    counts.decisions[0] += 1
    known = races.densities.rest(points[1]) - line.rest - line.log_u
    if not known > -np.inf:
        return False, -1
    arms[1] = races.densities.parameters(points[1])
    verdict = decide(known, arms, races, rng)
    counts.rounds[0] += verdict.rounds
    counts.read[0] += verdict.raced + verdict.exact
    if verdict.status == NOT_FINITE:
        return False, verdict.unit
    log_move(log, points, known, verdict.accepted, verdict.raced, log_rng)
    return verdict.accepted, -1


@njit(cache=True)
def run_slices(
    n: int,
    points: np.ndarray,
    races: Races,
    slices: Slices,
    stream: Stream,
    log: MoveLog,
    log_stream: Stream,
    counts: SliceCounts,
) -> int:
    """Make ``n`` sweeps over all directions in turn from points[0] (points is (2, D), overwritten).

    Adds to ``counts``. Returns the last unit that was not finite at a trial point, else -1.
    """
    rng, log_rng = generator_of(stream), generator_of(log_stream)
    densities, active, width = races.densities, slices.active, slices.width
    arms = np.empty((2, densities.parameters(points[0]).size))
    bad = -1
    for sweep in range(n):
        for j in range(active.size):
            arms[0] = densities.parameters(points[0])
            rest = densities.rest(points[0])
            line = _Line(slices.directions[j], active, rest, math.log(1.0 - rng.random()))
            low = -width * rng.random()
            high = low + width
            lefts = np.int64(rng.random() * slices.most_steps)
            rights = slices.most_steps - 1 - lefts
            for side in range(2):
                left = lefts if side == 0 else rights
                while left > 0:
                    t = low if side == 0 else high
                    above, unit = _above(t, points, arms, line, races, rng, log, log_rng, counts)
                    bad = unit if unit >= 0 else bad
                    if not above:
                        break
                    left -= 1
                    if side == 0:
                        low -= width
                    else:
                        high += width
            for _ in range(_MOST_SHRINKS):
                t = low + (high - low) * rng.random()
                above, unit = _above(t, points, arms, line, races, rng, log, log_rng, counts)
                bad = unit if unit >= 0 else bad
                if above:
                    points[0] = points[1]
                    break
                if t < 0.0:
                    low = t
                else:
                    high = t
    return bad
