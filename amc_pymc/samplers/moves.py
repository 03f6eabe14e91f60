"""Proposals of Metropolis steps, and their adaptation during tuning.

To add a kind of proposal, add a number below, its settings in :mod:`~amc_pymc.samplers.settings`, a field
of :class:`Moves` for its arguments, two functions (``_propose_...``, compiled, and ``_adapt_...``), a
branch in :func:`propose`, a line in :func:`first_moves` and an entry in :data:`KINDS`, in order.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.jit import njit
from amc_pymc.proposals import (
    conditional_mean,
    gaussian_log_ratio,
    propose_gaussian,
    propose_random_walk,
    propose_student,
    student_log_ratio,
)
from amc_pymc.proxies import gaussian_factor
from amc_pymc.samplers.adaptation import Moments, proposal_weights
from amc_pymc.samplers.compiled import Densities, put
from amc_pymc.samplers.nested import Nested, no_nested, propose_nested
from amc_pymc.samplers.preparation import GaussianFit, Preparation
from amc_pymc.samplers.settings import (
    GaussianProposal,
    NestedProposal,
    Proposal,
    RandomWalkProposal,
)

__all__ = [
    "GAUSSIAN",
    "KINDS",
    "NAMES",
    "NESTED",
    "RANDOM_WALK",
    "Kind",
    "Moves",
    "Normal",
    "Past",
    "first_moves",
    "kinds_of",
    "propose",
]

RANDOM_WALK, GAUSSIAN, NESTED = 0, 1, 2
#: Weight of the previous covariance, in draws, when a new one is estimated.
_SHRINKAGE = 10.0
#: Acceptance rate of Gaussian moves below which chains may get stuck in heavy tails.
_FITS_WELL = 0.9


class Normal(NamedTuple):
    """Gaussian approximation of the active coordinates given the others.

    ``mean`` is (D,), ``gain`` (A, D), ``chol`` and its inverse (A, A). If ``freedom`` is finite, moves
    are those of a Student t with this many degrees of freedom.
    """

    mean: np.ndarray
    gain: np.ndarray
    chol: np.ndarray
    chol_inverse: np.ndarray
    freedom: float = math.inf


class Moves(NamedTuple):
    """State of all kinds of proposals.

    ``weights`` (K,) are the probabilities of the kinds in ``KINDS``, ``scales`` (K,) their scales,
    ``active`` (A,) the coordinates moved. ``normal`` is the approximation for Gaussian
    moves and for lengths of jumps, ``walk`` (A, A) the random walk's factor, ``nested`` the reference
    of nested moves.
    """

    weights: np.ndarray
    scales: np.ndarray
    active: np.ndarray
    normal: Normal
    walk: np.ndarray
    nested: Nested


# --- proposing ------------------------------------------------------------------------------------
# Each function writes x' to points[1], which initially holds x, and returns
# log q(x | x') - log q(x' | x) and the number of units read.


@njit(cache=True, inline="always")
def propose(
    kind: int,
    points: np.ndarray,
    densities: Densities,
    moves: Moves,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """Propose a move of one kind."""
    points[1] = points[0]
    scale = moves.scales[kind]
    if kind == RANDOM_WALK:
        return _propose_walk(points, scale, moves, rng)
    if kind == GAUSSIAN:
        return _propose_gaussian(points, scale, moves, rng)
    return propose_nested(points, scale, moves.nested, densities.hyper, rng), 0


@njit(cache=True)
def _propose_walk(
    points: np.ndarray, scale: float, moves: Moves, rng: np.random.Generator
) -> tuple[float, int]:
    active = moves.active
    put(points[1], active, propose_random_walk(points[0][active], moves.walk, scale, rng))
    return 0.0, 0


@njit(cache=True)
def _propose_gaussian(
    points: np.ndarray, scale: float, moves: Moves, rng: np.random.Generator
) -> tuple[float, int]:
    active, normal = moves.active, moves.normal
    mean = conditional_mean(points[0], normal.mean, active, normal.gain)
    w = normal.chol_inverse @ (points[0][active] - mean)
    if math.isinf(normal.freedom):
        w_new = propose_gaussian(w, scale, rng)
        log_ratio = gaussian_log_ratio(w, w_new)
    else:
        w_new = propose_student(w, scale, normal.freedom, rng)
        log_ratio = student_log_ratio(w, w_new, normal.freedom)
    put(points[1], active, mean + normal.chol @ w_new)
    return log_ratio, 0


# --- adaptation -----------------------------------------------------------------------------------
# Each function returns new moves and the Gaussian fit that they are based on.


class Past(NamedTuple):
    """History of a chain that is being tuned.

    ``moments`` are the moments of its points, ``accepted`` is the acceptance rate of one kind of
    proposal since the last adaptation, NaN if that kind was not proposed.
    """

    moments: Moments
    accepted: float


def _adapt_walk(
    moves: Moves, fit: GaussianFit | None, past: Past, prepared: Preparation, setting: Any
) -> tuple[Moves, GaussianFit | None]:
    """Set the random walk's covariance to that of the chain."""
    size, moments = moves.active.size, past.moments
    if moments.count > 2 * size + 10:
        walk = moments.factor(moves.active, moves.normal.chol, _SHRINKAGE + size)
        moves = moves._replace(walk=walk)
    return moves, fit


def _adapt_gaussian(
    moves: Moves, fit: GaussianFit | None, past: Past, prepared: Preparation, setting: Any
) -> tuple[Moves, GaussianFit | None]:
    """Switch to a Student t, if allowed, once the acceptance rate of Gaussian moves is low."""
    normal = moves.normal
    if past.accepted < _FITS_WELL and math.isinf(normal.freedom):
        moves = moves._replace(normal=normal._replace(freedom=setting.freedom))
    return _adapt_normal(moves, fit, past, prepared, setting)


def _adapt_normal(
    moves: Moves, fit: GaussianFit | None, past: Past, prepared: Preparation, setting: Any
) -> tuple[Moves, GaussianFit | None]:
    """Refit the Gaussian to the moments of the chain if the fit at the mode performs poorly."""
    freedom, moments = moves.normal.freedom, past.moments
    does_well = fit is not None and math.isinf(freedom) and moves.scales[GAUSSIAN] >= 0.5
    if does_well or moments.count <= 10 * moves.active.size + 50:
        return moves, fit
    layout = prepared.densities.layout
    continuous = layout.indices([n for n in layout.names if layout.is_continuous(n)])
    inside = np.ix_(continuous, continuous)
    factor, definite = gaussian_factor(moments.covariance()[inside])
    if not definite:
        return moves, fit
    precision = np.zeros((layout.size, layout.size))
    precision[inside] = factor @ factor.T
    fit = GaussianFit(moments.mean.copy(), precision, continuous)
    chol, gain = fit.moves(moves.active)
    scales = moves.scales.copy()
    scales[GAUSSIAN] = 1.0
    normal = Normal(fit.mean, gain, chol, np.linalg.inv(chol), freedom)
    return moves._replace(scales=scales, normal=normal), fit


def _adapt_nested(
    moves: Moves, fit: GaussianFit | None, past: Past, prepared: Preparation, setting: Any
) -> tuple[Moves, GaussianFit | None]:
    """Set the proposal of hyperparameters to the chain's mean and covariance."""
    nested, moments = moves.nested, past.moments
    outer = nested.outer
    if moments.count <= 10 * outer.size + 50:
        return moves, fit
    factor = moments.factor(outer, nested.factor, _SHRINKAGE + outer.size)
    nested = nested._replace(mode=moments.mean[outer], factor=factor, inverse=np.linalg.inv(factor))
    return moves._replace(nested=nested), fit


# --- the kinds ------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of proposal.

    ``first_scale`` maps the number of coordinates moved to the initial scale, ``most_scale`` is the
    largest scale in tuning, ``adapt`` is called at the end of a tuning window.
    """

    name: str
    settings: type
    first_scale: Callable[[int], float]
    most_scale: float
    adapt: Callable[..., tuple[Moves, GaussianFit | None]]


KINDS = (
    Kind("random_walk", RandomWalkProposal, lambda a: 2.38 / math.sqrt(a), np.inf, _adapt_walk),
    Kind("gaussian", GaussianProposal, lambda a: 1.0, 1.0, _adapt_gaussian),
    Kind("nested", NestedProposal, lambda a: 1.0, 1.0, _adapt_nested),
)
NAMES = tuple(kind.name for kind in KINDS)


def kinds_of(proposals: Sequence[Proposal]) -> tuple[int, ...]:
    """Return the positions in ``KINDS`` of proposal settings."""
    settings = [kind.settings for kind in KINDS]
    return tuple(settings.index(type(p)) for p in proposals)


def first_moves(prepared: Preparation, active: np.ndarray, proposals: Sequence[Proposal]) -> Moves:
    """Return the moves of a new chain."""
    a, d = active.size, prepared.densities.layout.size
    if prepared.fit is not None:
        factor, gain = prepared.fit.moves(active)
        mean = prepared.fit.mean
    else:
        factor = np.eye(a) / np.sqrt(prepared.densities.n_units)
        gain, mean = np.zeros((a, d)), np.zeros(d)
    guess = np.zeros(len(KINDS))
    guess[[GAUSSIAN, NESTED]] = 1.0  # preferred if there are several kinds
    return Moves(
        weights=proposal_weights(kinds_of(proposals), guess),
        scales=np.array([kind.first_scale(a) for kind in KINDS]),
        active=active,
        normal=Normal(mean, gain, factor, np.linalg.inv(factor)),
        walk=factor.copy(),
        nested=prepared.nested.compiled() if prepared.nested is not None else no_nested(),
    )
