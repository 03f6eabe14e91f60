"""Pilot run along a path, which finds temperatures, tunings and rough draws."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from amc_pymc.evidence.mcmc import Kernel, Particles, Path, Tuning, scale_of, start, tune
from amc_pymc.logweights import effective_share, log_mean_exp, systematic

__all__ = ["Ladder", "climb", "cool", "resample", "taken"]

#: Effective share of the particles after each step of a pilot run.
_KEPT = 0.6
#: Maximum number of coordinates for which kernels use a dense covariance.
_DENSE = 64
#: Minimum step of the inverse temperature; smaller steps indicate an unbounded likelihood.
_SMALLEST_STEP = 1e-12
_MOST_STEPS = 500


@dataclass(frozen=True)
class Ladder:
    """Schedule, tunings and rough draws from a pilot run along a path.

    Attributes
    ----------
    betas : array (S,)
        Inverse temperatures from 0 to 1.
    heights : array (S,)
        Barrier up to each temperature: the integral of the standard deviation of the slope.
    tunings : tuple of Tuning (S,)
        Tuning of the kernel at each temperature.
    log_z : float
        Rough, biased estimate of the log normalising constant.
    particles : Particles
        Rough draws from the end of the path.
    evaluations, gradients : int
        Cost of the run.
    possible : float
        Share of the draws from the base at which the density of the end is positive. The barrier is computed
        from these draws only, because no schedule helps the others.
    per_move : tuple of float
        Mean evaluations and gradients per move of a particle, without tuning.
    drawn : int
        Number of draws from the base, 0 if unknown.
    lineages : float
        Effective number of draws from the base that have descendants among the particles. One over it is an estimate
        of the relative variance of the normalising constant (Lee & Whiteley 2018, doi:10.1093/biomet/asy028).
    """

    betas: np.ndarray
    heights: np.ndarray
    tunings: tuple[Tuning, ...]
    log_z: float
    particles: Particles
    evaluations: int
    gradients: int
    possible: float
    per_move: tuple[float, float]
    drawn: int = 0
    lineages: float = math.inf

    @property
    def barrier(self) -> float:
        """Barrier of the whole path; with T annealing steps, log w has a variance of 1 to 2 times its square / T."""
        return float(self.heights[-1])

    def at(self, beta: float) -> Tuning:
        """Return the tuning at the next higher inverse temperature of the pilot run, or at the last one."""
        k = int(np.searchsorted(self.betas, beta * (1.0 - 1e-12)))
        return self.tunings[min(max(k, 1), len(self.tunings) - 1)]


def resample(log_weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n indices by systematic resampling, each with its expected count rounded up or down.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.annealing import resample
    >>> from amc_pymc.rng import as_generator
    >>> resample(np.log([0.5, 0.25, 0.25]), 4, as_generator(1)).tolist()
    [0, 0, 1, 2]
    """
    return systematic(np.exp(log_weights - log_weights.max()), n, rng)


def climb(
    path: Path,
    x: np.ndarray,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    n_moves: int = 4,
    n_particles: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Ladder:
    """Move particles from the base of a path to its end by adaptive sequential Monte Carlo.

    Each step keeps an effective share of 0.6 of the particles. The particles are then resampled, the
    kernel is tuned with their covariance, and moves them. The run itself gives no unbiased estimate, and
    schedules, tunings and references taken from it must be frozen before they are used in one.

    Parameters
    ----------
    path : Path
    x : array (P, D)
        Draws from the base.
    kernel : Kernel
    rng : numpy.random.Generator
    n_moves : int, default 4
        Moves at each step after tuning.
    n_particles : int, optional
        Particles after the first step, by default as many as there are draws.
    report : callable, optional
        Function called with a text before each step.

    Returns
    -------
    Ladder

    Raises
    ------
    ValueError
        If the density at the end is zero at all points, or the likelihood seems to be unbounded.
    """
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    evaluations, gradients = (0, len(x)) if kernel.needs_gradient else (len(x), 0)
    possible = float((particles.terms[1] > -np.inf).mean())
    if possible == 0.0:
        raise ValueError(
            f"The likelihood is zero at all of {len(x):,} draws from the reference: data and model do not "
            "fit together, or the reference is far too wide."
        )
    betas, heights, log_z = [0.0], [0.0], 0.0
    spent = np.zeros(2)
    tunings = [Tuning(1.0, _scale(kernel, particles.x))]
    ancestors = np.arange(len(x))
    while betas[-1] < 1.0:
        slope = particles.terms[1]
        step = _longest_step(slope, 1.0 - betas[-1])
        if step < _SMALLEST_STEP or len(betas) > _MOST_STEPS:
            raise ValueError(
                "The likelihood is unbounded, or nearly so: annealing does not get beyond the inverse "
                f"temperature {betas[-1]:.3g}."
            )
        beta = 1.0 if step >= 1.0 - betas[-1] else betas[-1] + step
        log_w = step * slope
        log_z += float(log_mean_exp(log_w))
        report(f"inverse temperature {beta:.2g}")
        betas.append(beta)
        heights.append(heights[-1] + max(_rise(slope, step), 1e-8))
        chosen = resample(log_w, n_particles or len(x), rng)
        particles, ancestors = taken(particles, chosen), ancestors[chosen]
        tuned = tune(
            kernel, path, particles, beta, rng,
            scale=_scale(kernel, particles.x), size=tunings[-1].size if len(betas) > 2 else None,
            n_moves=4,
        )  # fmt: skip
        particles = tuned.particles
        tunings.append(tuned.tuning)
        evaluations += tuned.evaluations
        gradients += tuned.gradients
        particles, moved = _moved(kernel, path, particles, beta, tuned.tuning, rng, n_moves)
        evaluations += int(moved[0])
        gradients += int(moved[1])
        spent += moved
    tunings[0] = tunings[1]
    moves = max(n_moves * (len(betas) - 1) * len(particles.x), 1)
    families = np.unique(ancestors, return_counts=True)[1]
    return Ladder(
        np.array(betas),
        np.array(heights),
        tuple(tunings),
        log_z,
        particles,
        evaluations,
        gradients,
        possible,
        (float(spent[0]) / moves, float(spent[1]) / moves),
        len(x),
        float(len(ancestors) ** 2 / (families @ families)),
    )


def cool(
    path: Path,
    ladder: Ladder,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    coldest: float = 64.0,
    n_moves: int = 2,
) -> tuple[np.ndarray, int, int]:
    """Continue beyond the end of a path, to inverse temperatures above one, to find narrow peaks.

    A narrow high peak may hold most of the evidence and still be missed on the way to the posterior,
    because it does not dominate a wide low peak at inverse temperatures up to one. Beyond one, it does.

    Parameters
    ----------
    path : Path
    ladder : Ladder
        Ladder from :func:`climb`.
    kernel : Kernel
    rng : numpy.random.Generator
    coldest : float, default 64
        Largest inverse temperature.
    n_moves : int, default 2
        Moves at each temperature after tuning.

    Returns
    -------
    x : array (P, D)
        Particles at the largest inverse temperature.
    evaluations, gradients : int
    """
    particles, beta = ladder.particles, 1.0
    evaluations = gradients = 0
    size = ladder.tunings[-1].size
    while beta < coldest:
        step = _longest_step(particles.terms[1], 2.0 * beta, kept=0.2)
        step = min(max(step, 0.05 * beta), coldest - beta)
        beta += step
        particles = taken(particles, resample(step * particles.terms[1], len(particles.x), rng))
        scale = _scale(kernel, particles.x)
        tuned = tune(kernel, path, particles, beta, rng, scale=scale, size=size, n_moves=2)
        particles, size = tuned.particles, tuned.tuning.size
        evaluations += tuned.evaluations
        gradients += tuned.gradients
        particles, moved = _moved(kernel, path, particles, beta, tuned.tuning, rng, n_moves)
        evaluations += int(moved[0])
        gradients += int(moved[1])
    return particles.x, evaluations, gradients


def _moved(
    kernel: Kernel, path: Path, particles: Particles, beta: float, tuning: Tuning,
    rng: np.random.Generator, n_moves: int,
) -> tuple[Particles, np.ndarray]:  # fmt: skip
    """Move particles some times; return also the numbers of evaluations and gradients (2,)."""
    spent = np.zeros(2, np.int64)
    for _ in range(n_moves):
        particles, move = kernel.step(path, particles, beta, tuning, rng)
        spent += move.evaluations, move.gradients
    return particles, spent


def _scale(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """Return the scale of the coordinates that a kernel moves."""
    inner = getattr(kernel, "continuous", kernel)
    coordinates = getattr(inner, "coordinates", None)
    moved = x if coordinates is None else x[:, list(coordinates)]
    moved = moved[np.isfinite(moved).all(axis=1)]  # other points have density zero
    return scale_of(moved, dense=moved.shape[1] <= _DENSE)


def taken(particles: Particles, chosen: np.ndarray) -> Particles:
    """Select particles by index."""
    gradients = particles.gradients
    return Particles(
        particles.x[chosen],
        particles.terms[:, chosen],
        None if gradients is None else gradients[:, chosen],
    )


def _rise(slope: np.ndarray, step: float) -> float:
    """Integrate the sd of the slope over a step by the midpoint rule, ignoring zero weights."""
    finite = slope[slope > -np.inf]
    w = np.exp(0.5 * step * (finite - finite.max()))
    w /= w.sum()
    return step * math.sqrt(w @ (finite - w @ finite) ** 2)


def _longest_step(slope: np.ndarray, longest: float, kept: float = _KEPT) -> float:
    """Return the largest step of the inverse temperature that keeps the given effective share of the particles.

    Zero weights are ignored, because they stay zero however short the step is.
    """
    finite = slope[slope > -np.inf]
    if effective_share(longest * finite) >= kept:
        return longest
    low, high = 0.0, longest
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective_share(middle * finite) >= kept else (low, middle)
        if high - low < 1e-3 * high:
            break
    return low
