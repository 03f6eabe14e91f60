"""Posterior draws of equal weight beside an estimate of the evidence."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.annealing import resample, taken
from amc_pymc.evidence.arms import ImportanceArm
from amc_pymc.evidence.pilot import Pilot, PriorPath
from amc_pymc.kernels import Kernel, Particles

__all__ = ["PosteriorDraws", "posterior_draws"]

#: Relative variance of weights up to which draws are taken from importance sampling.
_USABLE = 20.0
#: Weighted draws for each draw of equal weight, times one and the relative variance.
_WEIGHED = 1.5
#: Share of the draws that must be different where weighted draws are resampled.
_DISTINCT = 0.75
#: Correlation with where copies of a particle began at which they have moved enough, and the most moves made.
_MOVED, _MOST_MOVES = 0.3, 16


class PosteriorDraws(NamedTuple):
    """Draws of equal weight, copies of one point and descendants of one particle next to each other.

    Attributes
    ----------
    x : array (n, D)
        Unconstrained.
    distinct : int
        Different ones; of discrete variables alone, particles they descend from.
    source : str
        How they were made.
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
    """Draw from the posterior, as a pilot run knows it.

    Where importance weights under the fitted reference are even enough, so many draws are weighted that
    hardly any must be taken more than once. Elsewhere the particles of the pilot run, which went by annealing from the
    prior, are copied and moved at the posterior until the copies have left their common ancestor.

    Parameters
    ----------
    path : PriorPath
    pilot : Pilot
    kernel : Kernel
        That of the pilot run.
    n : int
        Number of draws.
    rng : numpy.random.Generator
    discrete : array of bool (D,), optional
        Coordinates that are discrete.

    Returns
    -------
    PosteriorDraws
        In an order in which the autocorrelation of a chain cut from them tells of copies: a sampler's diagnostics
        such as ``az.ess`` do not take them for independent.
    """
    found = _resampled(path, pilot, n, rng)
    return _moved(path, pilot, kernel, n, rng, discrete) if found is None else found


def _resampled(
    path: PriorPath, pilot: Pilot, n: int, rng: np.random.Generator
) -> PosteriorDraws | None:
    """Draws by sampling importance resampling; None where too many would be copies."""
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
    """Draws by moving copies of the particles of the pilot run."""
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
    """Number of particles that are not copies."""
    if not continuous.any():
        return len(np.unique(ancestors))
    return len(np.unique(particles.x[:, continuous], axis=0))


def _remembered(begin: np.ndarray, now: np.ndarray) -> float:
    """Largest correlation of a coordinate with where it began; that of one that never varies is 0."""
    a, b = begin - begin.mean(axis=0), now - now.mean(axis=0)
    size = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return float(np.max((a * b).sum(axis=0) / np.where(size > 0.0, size, np.inf)))
