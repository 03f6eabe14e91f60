"""Annealing along a path of densities: pilot runs, annealed importance sampling, sequential Monte Carlo, schedules."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.mcmc import (
    Counted,
    Kernel,
    Particles,
    Path,
    Tuning,
    scale_of,
    start,
    tune,
)
from amc_pymc.logweights import effective_share, log_mean_exp, systematic

#: Effective share of the particles after each step of a pilot run.
_KEPT = 0.6
#: Maximum number of coordinates for which kernels use a dense covariance.
_DENSE = 64
#: Moves at each temperature of a pilot run, after tuning.
_MOVES = 2
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
    spent : array (2,)
        Numbers of points evaluated without and with gradients.
    possible : float
        Share of the draws from the base at which the density of the end is positive. The barrier is computed
        from these draws only, because no schedule helps the others.
    per_move : float
        Mean cost of a move of a particle, without tuning; a gradient counts as two evaluations.
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
    spent: np.ndarray
    possible: float
    per_move: float
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
    path = Counted(path)
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    possible = float((particles.terms[1] > -np.inf).mean())
    if possible == 0.0:
        raise ValueError(
            f"The likelihood is zero at all of {len(x):,} draws from the reference: data and model do not "
            "fit together, or the reference is far too wide."
        )
    betas, heights, log_z = [0.0], [0.0], 0.0
    by_moves = 0
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
        tuning, particles = tune(
            kernel, path, particles, beta, rng,
            scale=_scale(kernel, particles.x), size=tunings[-1].size if len(betas) > 2 else None,
            n_moves=4,
        )  # fmt: skip
        tunings.append(tuning)
        before = path.cost
        particles = _moved(kernel, path, particles, beta, tuning, rng, n_moves)
        by_moves += path.cost - before
    tunings[0] = tunings[1]
    moves = max(n_moves * (len(betas) - 1) * len(particles.x), 1)
    families = np.unique(ancestors, return_counts=True)[1]
    return Ladder(
        np.array(betas),
        np.array(heights),
        tuple(tunings),
        log_z,
        particles,
        path.spent,
        possible,
        by_moves / moves,
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
) -> np.ndarray:
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

    Returns
    -------
    array (P, D)
        Particles at the largest inverse temperature.
    """
    particles, beta = ladder.particles, 1.0
    size = ladder.tunings[-1].size
    while beta < coldest:
        step = _longest_step(particles.terms[1], 2.0 * beta, kept=0.2)
        step = min(max(step, 0.05 * beta), coldest - beta)
        beta += step
        particles = taken(particles, resample(step * particles.terms[1], len(particles.x), rng))
        scale = _scale(kernel, particles.x)
        tuning, particles = tune(
            kernel, path, particles, beta, rng, scale=scale, size=size, n_moves=2
        )
        size = tuning.size
        particles = _moved(kernel, path, particles, beta, tuning, rng, _MOVES)
    return particles.x


def _moved(
    kernel: Kernel, path: Path, particles: Particles, beta: float, tuning: Tuning,
    rng: np.random.Generator, n_moves: int,
) -> Particles:  # fmt: skip
    """Move particles some times."""
    for _ in range(n_moves):
        particles, _ = kernel.step(path, particles, beta, tuning, rng)
    return particles


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


class Annealed(NamedTuple):
    """P independent annealing runs.

    Attributes
    ----------
    x : array (P, D)
        Last points.
    log_weights : array (P,)
        Natural logarithms, -inf for zero.
    log_likelihood : array (P,)
        Slope at the last points.
    paths : array (n, T)
        Cumulative log-weights of the first n particles after each factor.
    log_sums : array (2, T)
        Logarithms of the sums of the cumulative weights and of their squares.
    acceptance : array (T - 1,)
        Mean acceptance probability at each inverse temperature strictly between 0 and 1.
    spent : array (2,)
        Numbers of points evaluated without and with gradients.
    """

    x: np.ndarray
    log_weights: np.ndarray
    log_likelihood: np.ndarray
    paths: np.ndarray
    log_sums: np.ndarray
    acceptance: np.ndarray
    spent: np.ndarray


def anneal(
    path: Path,
    x: np.ndarray,
    betas: np.ndarray,
    kernel: Kernel,
    tuning_at: Callable[[float], Tuning],
    rng: np.random.Generator,
    *,
    n_paths: int = 0,
) -> Annealed:
    r"""Anneal particles from the base of a path to its end, or back (Neal 2001).

    .. math::
        \log w = \sum_{t=1}^{T} (\beta_t - \beta_{t-1})\, s(x_{t-1}), \qquad
        x_t \sim K_{\beta_t}(x_{t-1}, \cdot),

    with the slope s and x_0 from the normalised base. The expectation of w is the normalising constant of
    the end, for any schedule and any kernel that leaves :math:`f_\beta` invariant, provided both are
    fixed beforehand.

    With falling temperatures and exact draws from the end, the weights have expectation 1 / Z, times the probability
    under the base that the density of the end is positive. The expectation of :math:`-\log \bar w` is therefore
    above log Z (Grosse, Ghahramani & Adams 2015, arXiv:1511.02543).

    Parameters
    ----------
    path : Path
    x : array (P, D)
        Independent draws from the density at the first temperature.
    betas : array (T + 1,)
        Inverse temperatures from 0 to 1, or from 1 to 0.
    kernel : Kernel
    tuning_at : callable
        Function that returns the tuning at an inverse temperature, such as :meth:`Ladder.at`.
    rng : numpy.random.Generator
    n_paths : int
        Number of particles whose cumulative weights are kept.

    Returns
    -------
    Annealed

    References
    ----------
    Neal (2001), Annealed importance sampling, doi:10.1023/A:1008923215028.
    """
    path = Counted(path)
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    log_w = np.zeros(len(x))
    n_paths, n_factors = min(n_paths, len(x)), len(betas) - 1
    paths, log_sums = np.empty((n_paths, n_factors)), np.empty((2, n_factors))
    acceptance = np.empty(n_factors - 1)
    for t in range(n_factors):
        log_w += (betas[t + 1] - betas[t]) * particles.terms[1]
        paths[:, t], log_sums[:, t] = log_w[:n_paths], _log_sums(log_w)
        if t == n_factors - 1:
            break
        beta = betas[t + 1]
        particles, accepted = kernel.step(path, particles, beta, tuning_at(beta), rng)
        acceptance[t] = accepted.mean()
    return Annealed(particles.x, log_w, particles.terms[1], paths, log_sums, acceptance, path.spent)


def effective_shares(log_sums: np.ndarray, n: int) -> np.ndarray:
    """Return effective shares (T,) of n weights from the logarithms (2, T) of their sums and sums of squares."""
    out = np.zeros(log_sums.shape[1])
    some = log_sums[0] > -np.inf
    out[some] = np.exp(2.0 * log_sums[0, some] - log_sums[1, some]) / n
    return out


def by_temperature(runs: Sequence[Annealed]) -> dict[str, np.ndarray]:
    """Return statistics (T,) of all particles: log mean weight, effective share, and acceptance of moves."""
    sizes = [len(r.x) for r in runs]
    sums = np.logaddexp.reduce([r.log_sums for r in runs])
    acceptance = np.average([r.acceptance for r in runs], axis=0, weights=sizes)
    return {
        "log_mean_weight": sums[0] - math.log(sum(sizes)),
        "ess": effective_shares(sums, sum(sizes)),
        "accept": np.append(acceptance, np.nan),
    }


def _log_sums(log_weights: np.ndarray) -> tuple[float, float]:
    top = float(log_weights.max())
    if top == -np.inf:
        return top, top
    w = np.exp(log_weights - top)
    return top + math.log(float(w.sum())), 2.0 * top + math.log(float(w @ w))


#: Effective share below which particles are resampled.
_THRESHOLD = 0.5


def sequential(
    path: Path,
    x: np.ndarray,
    betas: np.ndarray,
    kernel: Kernel,
    ladder: Ladder,
    rng: np.random.Generator,
    *,
    n_moves: int = 1,
) -> tuple[float, int]:
    r"""Move particles along a path and resample them when their weights become uneven.

    The estimate :math:`\prod_r \bar w_r` over the stages between resampling is unbiased for Z if schedule and
    kernels are fixed beforehand. This also holds if particles are resampled only when the effective share falls
    below one half (Del Moral, Doucet & Jasra 2006, doi:10.1111/j.1467-9868.2006.00553.x).

    Parameters
    ----------
    path, x, betas, kernel, ladder, rng
        As for :func:`amc_pymc.evidence.annealing.anneal`.
    n_moves : int
        Moves at each inverse temperature.

    Returns
    -------
    log_z : float
        Natural logarithm of an unbiased estimate of the normalising constant.
    cost : int
        Number of evaluations, where a gradient counts as two.
    """
    path = Counted(path)
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    log_z, log_w = 0.0, np.zeros(len(x))
    for t in range(1, len(betas)):
        log_w += (betas[t] - betas[t - 1]) * particles.terms[1]
        if t == len(betas) - 1:
            break
        if effective_share(log_w) < _THRESHOLD:
            mean = float(log_mean_exp(log_w))
            if mean == -math.inf:
                break
            log_z += mean
            particles = taken(particles, resample(log_w, len(x), rng))
            log_w = np.zeros(len(x))
        particles = _moved(kernel, path, particles, betas[t], ladder.at(betas[t]), rng, n_moves)
    return log_z + float(log_mean_exp(log_w)), path.cost


def power_schedule(n_steps: int, power: float = 4.0) -> np.ndarray:
    r"""Return inverse temperatures (T + 1,) from 0 to 1, :math:`(t / T)^c` for t = 0, ..., T.

    Examples
    --------
    >>> from amc_pymc.evidence.annealing import power_schedule
    >>> power_schedule(4, 2)
    array([0.    , 0.0625, 0.25  , 0.5625, 1.    ])
    """
    betas: np.ndarray = np.linspace(0.0, 1.0, positive_int("n_steps", n_steps) + 1) ** power
    return betas


def barrier_schedule(n_steps: int, ladder: Ladder) -> np.ndarray:
    """Return inverse temperatures (T + 1,) that divide the barrier measured by a pilot run into equal steps.

    See Syed, Bouchard-Côté, Deligiannidis & Doucet (2022), doi:10.1111/rssb.12464.
    """
    heights = np.linspace(0.0, ladder.heights[-1], positive_int("n_steps", n_steps) + 1)
    betas = np.interp(heights, ladder.heights, ladder.betas)
    betas[0], betas[-1] = 0.0, 1.0
    return betas
