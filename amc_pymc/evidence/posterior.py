"""Equally weighted posterior draws from an evidence run."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.evidence.annealing import resample, taken
from amc_pymc.evidence.arms import ImportanceArm
from amc_pymc.evidence.mcmc import Kernel, Particles
from amc_pymc.evidence.pilot import Pilot, PriorPath

__all__ = ["PosteriorDraws", "posterior_draws"]

#: Largest relative variance of weights at which draws are taken from importance sampling.
_USABLE = 20.0
#: Weighted draws per posterior draw, in multiples of one plus the relative variance.
_WEIGHED = 1.5
#: Minimum share of distinct draws after resampling weighted draws.
_DISTINCT = 0.75
#: Correlation with the starting points below which copies have moved enough, and the maximum number of moves.
_MOVED, _MOST_MOVES = 0.3, 16


class PosteriorDraws(NamedTuple):
    """Equally weighted draws; copies of a point and descendants of a particle are adjacent.

    Attributes
    ----------
    x : array (n, D)
        Draws on the unconstrained scale.
    distinct : int
        Number of distinct draws; if all variables are discrete, number of distinct ancestors.
    source : str
        Description of the method that made the draws.
    """

    x: np.ndarray
    distinct: int
    source: str


def posterior_draws(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    discrete: np.ndarray | None = None,
) -> PosteriorDraws:
    """Draw from the posterior with the results of a pilot run.

    If importance weights under the fitted reference are even enough, enough weighted draws are made to resample
    them with hardly any copies. Otherwise the particles of the pilot run, which were annealed from the prior, are
    copied and moved by the kernel until the copies are nearly uncorrelated with their starting points.

    Parameters
    ----------
    path : PriorPath
    pilot : Pilot
    kernel : Kernel
        Kernel of the pilot run.
    n : int
        Number of draws.
    rng : numpy.random.Generator
    discrete : array of bool (D,), optional
        Whether each coordinate is discrete.

    Returns
    -------
    PosteriorDraws
        Copies are adjacent, so chains cut from the draws are autocorrelated, and diagnostics such as ``az.ess``
        do not treat copies as independent.
    """
    found = _resampled(path, pilot, n, rng)
    return _moved(path, pilot, kernel, n, rng, discrete) if found is None else found


def _resampled(
    path: PriorPath, pilot: Pilot, n: int, rng: np.random.Generator
) -> PosteriorDraws | None:
    """Draw by sampling importance resampling; None if too many draws would be copies."""
    reference = pilot.reference or pilot.discrete_proposal
    if reference is None or not pilot.relative_variance < _USABLE:
        return None
    weighted = n * math.ceil(_WEIGHED * (1.0 + pilot.relative_variance))
    log_w, x = ImportanceArm(path, reference, pilot.share).weigh(weighted, rng)
    if log_w.max() == -np.inf:
        return None
    chosen = resample(log_w, n, rng)
    distinct = len(np.unique(chosen))
    if distinct < _DISTINCT * n:
        return None
    return PosteriorDraws(
        x[chosen], distinct, "sampling importance resampling from the fitted reference"
    )


def _moved(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    discrete: np.ndarray | None,
) -> PosteriorDraws:
    """Draw by moving copies of the particles of the pilot run."""
    ladder = pilot.ladder
    size = len(ladder.particles.x)
    ancestors = np.sort(rng.permutation(size)[np.arange(n) % size])
    particles = taken(ladder.particles, ancestors)
    begin, tuning = particles.x, ladder.tunings[-1]
    for _ in range(_MOST_MOVES):
        particles, _ = kernel.step(path, particles, 1.0, tuning, rng)
        if _remembered(begin, particles.x) < _MOVED:
            break
    continuous = np.ones(path.n_dim, bool) if discrete is None else ~discrete
    return PosteriorDraws(
        particles.x,
        _different(particles, ancestors, continuous),
        "particles of the pilot run, annealed from the prior, copied and moved",
    )


def _different(particles: Particles, ancestors: np.ndarray, continuous: np.ndarray) -> int:
    """Count the distinct particles."""
    if not continuous.any():
        return len(np.unique(ancestors))
    return len(np.unique(particles.x[:, continuous], axis=0))


def _remembered(begin: np.ndarray, now: np.ndarray) -> float:
    """Return the largest correlation of a coordinate with its starting values; constant coordinates count as 0."""
    a, b = begin - begin.mean(axis=0), now - now.mean(axis=0)
    size = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return float(np.max((a * b).sum(axis=0) / np.where(size > 0.0, size, np.inf)))
