"""Tuning of step sizes and scales in a pilot run."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike
from scipy.special import ndtri

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.mcmc.target import Kernel, Particles, Path, Tuning, log_target

#: Bounds of step sizes.
_SMALLEST, _LARGEST = 1e-6, 1e3
#: Minimum number of acceptance probabilities averaged per step size.
_MIN_SEEN = 100
#: Change of the log size below which tuning stops, and the largest change per iteration.
_SMALL_CHANGE, _LARGEST_CHANGE = 0.05, math.log(10.0)
#: Bounds beyond which mean acceptance probabilities are not distinguished.
_NEVER, _ALWAYS = 1e-3, 0.999
#: Default width of slices, in standard deviations.
_SLICE_SIZE = 2.0
#: Minimum shrinkage of correlations for a Cholesky factor.
_MIN_SHRINK = 1e-6
#: Standard deviation assigned to a constant coordinate, relative to its value.
_CONSTANT = 1e-6


class Tuned(NamedTuple):
    """Result of tuning.

    Attributes
    ----------
    tuning : Tuning
    particles : Particles
        Particles after the moves.
    evaluations, gradients : int
        Evaluations by the moves, without and with gradients.
    """

    tuning: Tuning
    particles: Particles
    evaluations: int
    gradients: int


def tune(
    kernel: Kernel,
    path: Path,
    particles: Particles,
    beta: float,
    rng: np.random.Generator,
    *,
    scale: np.ndarray,
    size: float | None = None,
    n_moves: int = 12,
) -> Tuned:
    r"""Find the step size at which the mean acceptance probability of a kernel is its target.

    The acceptance rate of proposals of size s in many dimensions is
    :math:`a(s) = 2 \Phi(-c s^r)`, with r = 1 for random walks, 2 for long and 3 for single
    leapfrog steps (Roberts & Rosenthal 2001, doi:10.1214/ss/1015346320; Beskos et al. 2013,
    doi:10.3150/12-BEJ414). So :math:`\log(-\Phi^{-1}(a / 2))` is linear in :math:`\log s`, and the
    target is found by the secant method, with slopes between 1/4 and 3, initially 2. To reduce noise,
    steps are divided by one plus the number of changes of direction (Kesten 1958, Annals of
    Mathematical Statistics 29:41-59). The mean is over the particles with positive density.

    Parameters
    ----------
    kernel : Kernel
    path : Path
    particles : Particles
        P particles, approximately from f_beta.
    beta : float
    rng : numpy.random.Generator
    scale : array (D,) or (D, D)
        Scale of the coordinates that the kernel moves, see :func:`scale_of`.
    size : float, optional
        Initial size, by default 1, or 2 for kernels without tuning.
    n_moves : int, default 12
        Maximum number of sizes tried, each with one move, or with as many as needed for 100 acceptance
        probabilities if there are fewer particles. Tuning stops early if the size has converged.

    Returns
    -------
    Tuned
        The size is between 1e-6 and 1e3, and at most the `max_size` of the kernel, if any. Kernels
        without tuning make no move and keep the given size.

    Raises
    ------
    ValueError
        If `size` is not positive and finite, or the scale does not match the kernel's coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import HMC, start, tune
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 1
    ...
    ...     def gradients(self, x):
    ...         terms = np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    ...         return terms, np.array([-x, np.zeros_like(x)])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, rng.standard_normal((1000, 1)), with_gradient=True)
    >>> tuned = tune(HMC(1), path, particles, 1.0, rng, scale=np.ones(1), size=1e-3)
    >>> bool(1 < tuned.tuning.size < 2)
    True
    """
    n_moves = positive_int("n_moves", n_moves)
    fixed = kernel.target_acceptance >= 1.0
    if size is None:
        size = _SLICE_SIZE if fixed else 1.0
    if not (math.isfinite(size) and size > 0.0):
        raise ValueError(f"size must be positive and finite, got {size!r}")
    if fixed:
        return Tuned(Tuning(float(size), scale), particles, 0, 0)
    low, high = math.log(_SMALLEST), math.log(min(_LARGEST, getattr(kernel, "max_size", _LARGEST)))
    log_size = min(max(math.log(size), low), high)
    evaluations = gradients = turns = 0
    slope, wanted = 2.0, _bend(kernel.target_acceptance)
    tried: list[tuple[float, float]] = []
    last = 0.0
    for _ in range(n_moves):
        tuning = Tuning(math.exp(log_size), scale)
        mean, particles, evaluated, differentiated = _try(
            kernel, path, particles, beta, tuning, rng
        )
        evaluations += evaluated
        gradients += differentiated
        if math.isnan(mean):
            continue
        tried.append((log_size, _bend(mean)))
        slope = _slope(tried, slope)
        change = (wanted - tried[-1][1]) / slope
        if not _NEVER < mean < _ALWAYS:
            change = math.copysign(math.inf, change)
        change = min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE)
        turns += change * last < 0.0
        last = change
        new = min(max(log_size + change / (1 + turns), low), high)
        settled = abs(change) < _SMALL_CHANGE or new == log_size
        log_size = new
        if settled:
            break
    return Tuned(Tuning(math.exp(log_size), scale), particles, evaluations, gradients)


def _try(
    kernel: Kernel,
    path: Path,
    particles: Particles,
    beta: float,
    tuning: Tuning,
    rng: np.random.Generator,
) -> tuple[float, Particles, int, int]:
    """Return the mean acceptance at positive densities (nan if none), particles and cost of moves."""
    total, seen, evaluations, gradients = 0.0, 0, 0, 0
    for _ in range(-(-_MIN_SEEN // len(particles.x))):
        somewhere = log_target(particles.terms, beta) > -np.inf
        particles, move = kernel.step(path, particles, beta, tuning, rng)
        total += float(move.acceptance[somewhere].sum())
        seen += int(somewhere.sum())
        evaluations += move.evaluations
        gradients += move.gradients
    return (total / seen if seen else math.nan), particles, evaluations, gradients


def _bend(acceptance: float) -> float:
    """Return log(-Phi^-1(a / 2)), which is linear in the log size in many dimensions."""
    return math.log(-ndtri(0.5 * min(max(acceptance, _NEVER), _ALWAYS)))


def _slope(tried: list[tuple[float, float]], last: float) -> float:
    """Estimate the slope of that line from the last two sizes, if they are informative."""
    if len(tried) < 2:
        return last
    (size, level), (size_before, level_before) = tried[-1], tried[-2]
    sure = min(level, level_before) > _bend(_ALWAYS) and max(level, level_before) < _bend(_NEVER)
    if abs(size - size_before) < 0.2 or not sure:
        return last
    return min(max((level - level_before) / (size - size_before), 0.25), 3.0)


def scale_of(x: ArrayLike, *, dense: bool, shrink: float | None = None) -> np.ndarray:
    """Estimate the scale of a kernel from points: standard deviations or a Cholesky factor.

    The correlations of the covariance are multiplied by 1 - `shrink`; variances are not shrunk. The
    default shrinkage minimises the mean squared error (Schäfer & Strimmer 2005,
    doi:10.2202/1544-6115.1175). It is at least 1e-6, so the factor exists for any points.

    Parameters
    ----------
    x : array_like (P, D)
        Points. A coordinate that is constant up to rounding gets 1e-6 times its value as its standard
        deviation; if zero, 1e-6 times the median of the other standard deviations, or 1e-6.
    dense : bool
        Whether to estimate correlations.
    shrink : float, optional
        Shrinkage of the correlations, between 0 and 1.

    Returns
    -------
    array (D,) or (D, D)
        Scale for :class:`Tuning`.

    Raises
    ------
    ValueError
        If x is not of shape (P, D), empty or not finite, or `shrink` is not in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import scale_of
    >>> x = np.array([[0.0, 0.0], [2.0, 6.0], [4.0, 6.0]])
    >>> scale_of(x, dense=False).round(3)
    array([2.   , 3.464])
    >>> chol = scale_of(x, dense=True, shrink=0.5)
    >>> (chol @ chol.T).round(3)
    array([[ 4.,  3.],
           [ 3., 12.]])
    """
    x = np.asarray(x, float)
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"x must be points of shape (P, D), got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("x must be finite")
    if shrink is not None and not 0.0 <= shrink <= 1.0:
        raise ValueError(f"shrink must be between 0 and 1, got {shrink!r}")
    n, n_dim = x.shape
    mean = x.mean(axis=0)
    spread = x.std(axis=0, ddof=1) if n > 1 else np.zeros(n_dim)
    varies = spread > 1e-14 * np.abs(x).max(axis=0)
    typical = float(np.median(spread[varies])) if varies.any() else 1.0
    sds = np.where(varies, spread, _CONSTANT * np.where(mean == 0.0, typical, np.abs(mean)))
    if not dense:
        return sds
    z = np.where(varies, (x - mean) / sds, 0.0)
    return sds[:, None] * np.linalg.cholesky(_shrunk_correlation(z, shrink))


def _shrunk_correlation(z: np.ndarray, shrink: float | None) -> np.ndarray:
    """Return the correlation matrix of standardised points (P, D), shrunk to the identity."""
    n = len(z)
    correlation = z.T @ z / max(n - 1, 1)
    np.fill_diagonal(correlation, 0.0)
    if shrink is None:
        shrink = _best_shrinkage(z, correlation)
    correlation *= 1.0 - max(shrink, _MIN_SHRINK)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _best_shrinkage(z: np.ndarray, correlation: np.ndarray) -> float:
    """Return the summed variances of the correlations (zero diagonal) over their summed squares."""
    n = len(z)
    squares = float(np.sum(correlation**2))
    if n < 3 or squares == 0.0:
        return 1.0
    products = (z**2).T @ z**2 - n * (correlation * (n - 1) / n) ** 2
    np.fill_diagonal(products, 0.0)
    variance = n / (n - 1.0) ** 3 * float(np.sum(products))
    return min(max(variance / squares, 0.0), 1.0)
