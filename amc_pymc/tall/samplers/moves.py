"""Kinds of proposals of Metropolis steps, and their adaptation during tuning."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.records import record
from amc_pymc.tall.refresh import Refresh, move_of, no_refresh
from amc_pymc.tall.samplers.adaptation import Moments, proposal_weights
from amc_pymc.tall.samplers.preparation import GaussianFit, Preparation
from amc_pymc.tall.samplers.settings import Proposal, RandomWalkProposal, SurrogateProposal
from amc_pymc.tall.samplers.surface import fit_to_moments

__all__ = [
    "KINDS",
    "NAMES",
    "RANDOM_WALK",
    "SURROGATE",
    "Kind",
    "Moves",
    "first_moves",
    "kinds_of",
    "learned",
    "propose",
]

RANDOM_WALK, SURROGATE = 0, 1
#: Weight of the first covariance, in draws, when a new one is estimated.
_SHRINKAGE = 10.0
#: Scale below which moves on a Gaussian surrogate fit badly.
_FITS_BADLY = 0.5


@record
class Moves(NamedTuple):
    """State of all kinds of proposals.

    Attributes
    ----------
    weights, scales : (K,) arrays
        Probabilities of the kinds in ``KINDS``, and their scales.
    active : (A,) int array
        Coordinates that are moved.
    whiten : (A, A) array
        Turns differences of active coordinates into standard deviations, in which jumps are measured.
    walk : (A, A) array
        Factor of the random walk's covariance.
    refresh : Refresh
        Moves on prior times surrogate.
    move : first-class function
        See :func:`amc_pymc.tall.refresh.move_of`.
    """

    weights: np.ndarray
    scales: np.ndarray
    active: np.ndarray
    whiten: np.ndarray
    walk: np.ndarray
    refresh: Refresh
    move: Callable[..., tuple[float, float]]

    def on(self, refresh: Refresh) -> Moves:
        """Return the same with other moves on prior times surrogate."""
        return self._replace(refresh=refresh, move=move_of(refresh))


@njit(cache=True)
def propose(kind: int, points: np.ndarray, moves: Moves, rng: np.random.Generator) -> float:
    """Write x' to points[1]; return log q(x | x') - log q(x' | x), or the log ratio of pi~ at x and x'."""
    fill(points[1], points[0])
    scale, active = moves.scales[kind], moves.active
    if kind == SURROGATE:
        return moves.move(points, scale, moves.refresh, rng)[0]
    z = np.empty(active.size)
    for a in range(z.size):
        z[a] = rng.standard_normal()
    step = moves.walk @ z
    for a in range(z.size):
        points[1, active[a]] = points[0, active[a]] + scale * step[a]
    return 0.0


class Kind(NamedTuple):
    """A kind of proposal.

    ``first_scale`` maps the number of coordinates moved to the initial scale, ``most_scale`` is the
    largest scale in tuning.
    """

    name: str
    settings: type
    first_scale: Callable[[int], float]
    most_scale: float


KINDS = (
    Kind("random_walk", RandomWalkProposal, lambda a: 2.38 / math.sqrt(a), np.inf),
    Kind("surrogate", SurrogateProposal, lambda a: 1.0, 1.0),
)
NAMES = tuple(kind.name for kind in KINDS)


def kinds_of(proposals: Sequence[Proposal]) -> tuple[int, ...]:
    """Return the positions in ``KINDS`` of proposal settings."""
    settings = [kind.settings for kind in KINDS]
    return tuple(settings.index(type(p)) for p in proposals)


def first_moves(prepared: Preparation, active: np.ndarray, proposals: Sequence[Proposal]) -> Moves:
    """Return the moves of a new chain."""
    a = active.size
    if prepared.fit is not None:
        factor, _ = prepared.fit.moves(active)
    else:
        factor = np.eye(a) / np.sqrt(prepared.densities.n_units)
    guess = np.zeros(len(KINDS))
    guess[SURROGATE] = 1.0  # preferred if there are both
    refresh = prepared.surface.moves() if prepared.surface is not None else no_refresh()
    return Moves(
        weights=proposal_weights(kinds_of(proposals), guess),
        scales=np.array([kind.first_scale(a) for kind in KINDS]),
        active=active,
        whiten=np.linalg.inv(factor),
        walk=factor.copy(),
        refresh=refresh,
        move=move_of(refresh),
    )


def learned(
    moves: Moves, fit: GaussianFit | None, moments: Moments, kinds: Sequence[int]
) -> tuple[Moves, GaussianFit | None]:
    """Adapt moves to the moments of a chain; return also the Gaussian that they are based on.

    The random walk gets the chain's covariance. If a Gaussian surrogate without hyperparameters or indicators fits
    badly, the chain's mean and covariance take its place.
    """
    size = moves.active.size
    if RANDOM_WALK in kinds and moments.count > 2 * size + 10:
        first = np.linalg.inv(moves.whiten)
        moves = moves._replace(walk=moments.factor(moves.active, first, _SHRINKAGE + size))
    refresh = moves.refresh
    plain = not (refresh.phi.size or refresh.binary.size)
    bad = plain and SURROGATE in kinds and moves.scales[SURROGATE] < _FITS_BADLY
    if not bad or fit is None or moments.count <= 10 * size + 50:
        return moves, fit
    found = fit_to_moments(moments, fit.coordinates, moves.active, refresh.freedom[0])
    if found is None:
        return moves, fit
    scales = moves.scales.copy()
    scales[SURROGATE] = 1.0
    return moves._replace(scales=scales).on(found[1].moves()), found[0]
