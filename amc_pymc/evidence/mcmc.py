"""Kernels that move P particles at once: Hamiltonian Monte Carlo, slices, Metropolis of discrete variables; tuning.

A scale is standard deviations (D,), or the Cholesky factor L (D, D) of a covariance. A step is size L z with z standard
normal. Rows are particles, so L z is ``z @ L.T``.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from numpy.typing import ArrayLike
from scipy.special import ndtri

from amc_pymc.arguments import positive_int


class Path(Protocol):
    """Unnormalised densities f_beta(x) = exp(base(x) + beta slope(x)) on R^D, 0 <= beta <= 1.

    Both terms are natural logarithms, may be -inf and are never nan or +inf. Each call returns new
    arrays, because kernels keep them and write to them. P varies between calls and is never zero.
    """

    @property
    def n_dim(self) -> int:
        """Dimension D."""

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return base and slope (2, P) at the points x (P, D)."""

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both terms (2, P) and their gradients (2, P, D), arbitrary where a term is -inf."""


class Particles(NamedTuple):
    """Points with the terms of the path and their gradients.

    Attributes
    ----------
    x : array (P, D)
    terms : array (2, P)
        Base and slope.
    gradients : array (2, P, D) or None
        Gradients of base and slope, if the kernel needs them.
    """

    x: np.ndarray
    terms: np.ndarray
    gradients: np.ndarray | None = None


class Tuning(NamedTuple):
    """Tuning parameters of a kernel, fixed after tuning.

    Attributes
    ----------
    size : float
        Step size, in units of `scale`.
    scale : array (D,) or (D, D)
        Standard deviations of the target, or the lower Cholesky factor of its covariance, for the
        coordinates that the kernel moves.
    """

    size: float
    scale: np.ndarray


class Counted:
    """Path that counts the points at which it is evaluated.

    Attributes
    ----------
    spent : array (2,)
        Numbers of points without and with gradients.
    """

    def __init__(self, path: Path):
        self.path, self.n_dim, self.spent = path, path.n_dim, np.zeros(2, np.int64)

    @property
    def cost(self) -> int:
        """Number of evaluations, where a gradient counts as two."""
        return int(self.spent @ (1, 2))

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return base and slope (2, P) at the points x (P, D)."""
        self.spent[0] += len(x)
        return self.path.values(x)

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both terms (2, P) and their gradients (2, P, D)."""
        self.spent[1] += len(x)
        return self.path.gradients(x)


@runtime_checkable
class Kernel(Protocol):
    """A Markov kernel that leaves f_beta invariant for any path, beta and tuning.

    A particle at density zero accepts any proposal with positive density; the reverse move never
    happens. A kernel may have a `max_size`, in units of the scale, which `tune` does not exceed.
    """

    @property
    def name(self) -> str:
        """Name of the kernel in tables and for `make_kernel`."""

    @property
    def needs_gradient(self) -> bool:
        """Whether particles must come with gradients."""

    @property
    def target_acceptance(self) -> float:
        """Mean acceptance probability that `tune` aims at; one if there is nothing to tune."""

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, np.ndarray]:
        """Move all particles once; return them and their acceptance probabilities (P,), one for slice sampling.

        The arguments are not changed.
        """


def start(path: Path, x: np.ndarray, *, with_gradient: bool) -> Particles:
    """Evaluate the path at new points (P, D)."""
    if with_gradient:
        return Particles(x, *path.gradients(x))
    return Particles(x, path.values(x))


def log_target(terms: np.ndarray, beta: float) -> np.ndarray:
    """Return the log density (P,) of f_beta, or its gradient (P, D); the slope may be -inf at beta = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import log_target
    >>> log_target(np.array([[0.0, -1.0], [-np.inf, 2.0]]), 0.0)
    array([ 0., -1.])
    """
    base, slope = terms
    return base.copy() if beta == 0.0 else base + beta * slope


def columns(coordinates: tuple[int, ...] | None) -> slice | np.ndarray:
    """Return the index of the columns of points that a kernel moves."""
    return slice(None) if coordinates is None else np.array(coordinates)


def acceptance(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the acceptance probability min(1, exp(new - old)), zero unless `new` is finite.

    Parameters
    ----------
    new, old : array (P,)
        Log densities (or negative energies) of proposals and of current points. If `old` is -inf,
        any finite `new` is accepted.

    Examples
    --------
    >>> import numpy as np

    >>> acceptance(
    ...     np.array([0.0, 2.0, -np.inf, np.nan]), np.array([np.log(2), -np.inf, -np.inf, 0])
    ... )
    array([0.5, 1. , 0. , 0. ])
    """
    with np.errstate(invalid="ignore"):
        ratio = new - old
    ratio[~np.isfinite(new)] = -np.inf
    return np.exp(np.minimum(ratio, 0.0, out=ratio), out=ratio)


def settle(proposed: Particles, old: Particles, accepted: np.ndarray) -> Particles:
    """Restore the old state of rejected particles in ``proposed``, in place, and return it."""
    back = np.flatnonzero(~accepted)
    proposed.x[back] = old.x[back]
    proposed.terms[:, back] = old.terms[:, back]
    if proposed.gradients is not None and old.gradients is not None:
        proposed.gradients[:, back] = old.gradients[:, back]
    return proposed


#: Bounds of step sizes.
_SMALLEST, _LARGEST = 1e-6, 1e3
#: Minimum number of acceptance probabilities averaged per step size.
_MIN_SEEN = 100
#: Change of the log size below which tuning stops, and the largest change per iteration.
_SMALL_CHANGE, _LARGEST_CHANGE = 0.05, math.log(10.0)
#: Bounds beyond which mean acceptance probabilities are not distinguished.
_NEVER, _ALWAYS = 1e-3, 0.999
#: Decrease of the log size that is judged, and slope below which it was in vain; in theory slopes are 1 to 3.
_MUCH, _FLAT = 0.5, 0.5
#: Default width of slices, in standard deviations.
_SLICE_SIZE = 2.0
#: Minimum shrinkage of correlations for a Cholesky factor.
_MIN_SHRINK = 1e-6
#: Standard deviation assigned to a constant coordinate, relative to its value.
_CONSTANT = 1e-6


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
) -> tuple[Tuning, Particles]:
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
    Tuning
        The size is between 1e-6 and 1e3, and at most the `max_size` of the kernel, if any. Kernels
        without tuning make no move and keep the given size.
    Particles
        Particles after the moves.

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
    >>> tuning, _ = tune(HMC(1), path, particles, 1.0, rng, scale=np.ones(1), size=1e-3)
    >>> bool(1 < tuning.size < 2)
    True
    """
    n_moves = positive_int("n_moves", n_moves)
    fixed = kernel.target_acceptance >= 1.0
    if size is None:
        size = _SLICE_SIZE if fixed else 1.0
    if fixed:
        return Tuning(float(size), scale), particles
    low, high = math.log(_SMALLEST), math.log(min(_LARGEST, getattr(kernel, "max_size", _LARGEST)))
    log_size = min(max(math.log(size), low), high)
    turns, slope, wanted = 0, 2.0, _bend(kernel.target_acceptance)
    tried: list[tuple[float, float]] = []
    last = 0.0
    for _ in range(n_moves):
        tuning = Tuning(math.exp(log_size), scale)
        mean, particles = _try(kernel, path, particles, beta, tuning, rng)
        if math.isnan(mean):
            continue
        tried.append((log_size, _bend(mean)))
        if _in_vain(tried):
            log_size = tried[-2][0]
            break
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
    return Tuning(math.exp(log_size), scale), particles


def _try(
    kernel: Kernel,
    path: Path,
    particles: Particles,
    beta: float,
    tuning: Tuning,
    rng: np.random.Generator,
) -> tuple[float, Particles]:
    """Return the mean acceptance at positive densities (nan if none), and the moved particles."""
    total, seen = 0.0, 0
    for _ in range(-(-_MIN_SEEN // len(particles.x))):
        somewhere = log_target(particles.terms, beta) > -np.inf
        particles, accepted = kernel.step(path, particles, beta, tuning, rng)
        total += float(accepted[somewhere].sum())
        seen += int(somewhere.sum())
    return (total / seen if seen else math.nan), particles


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


def _in_vain(tried: list[tuple[float, float]]) -> bool:
    """Whether most moves were accepted, and hardly more of a much smaller size: some particles are stuck at any size."""
    if len(tried) < 2:
        return False
    (size, level), (size_before, level_before) = tried[-1], tried[-2]
    smaller = size_before - size
    often = level_before < _bend(0.5)
    return often and smaller > _MUCH and level_before - level < _FLAT * smaller


def scale_of(x: ArrayLike, *, dense: bool) -> np.ndarray:
    """Estimate the scale of a kernel from points: standard deviations or a Cholesky factor.

    The correlations of the covariance are shrunk so that their mean squared error is smallest (Schäfer & Strimmer
    2005, doi:10.2202/1544-6115.1175), and by at least 1e-6, so the factor exists for any points. Variances are not
    shrunk.

    Parameters
    ----------
    x : array_like (P, D)
        Points. A coordinate that is constant up to rounding gets 1e-6 times its value as its standard
        deviation; if zero, 1e-6 times the median of the other standard deviations, or 1e-6.
    dense : bool
        Whether to estimate correlations.

    Returns
    -------
    array (D,) or (D, D)
        Scale for :class:`Tuning`.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import scale_of
    >>> x = np.array([[0.0, 0.0], [2.0, 6.0], [4.0, 6.0]])
    >>> scale_of(x, dense=False).round(3)
    array([2.   , 3.464])
    >>> chol = scale_of(x, dense=True)
    >>> np.diagonal(chol @ chol.T).round(3)
    array([ 4., 12.])
    """
    x = np.asarray(x, float)
    n, n_dim = x.shape
    mean = x.mean(axis=0)
    spread = x.std(axis=0, ddof=1) if n > 1 else np.zeros(n_dim)
    varies = spread > 1e-14 * np.abs(x).max(axis=0)
    typical = float(np.median(spread[varies])) if varies.any() else 1.0
    sds = np.where(varies, spread, _CONSTANT * np.where(mean == 0.0, typical, np.abs(mean)))
    if not dense:
        return sds
    z = np.where(varies, (x - mean) / sds, 0.0)
    return sds[:, None] * np.linalg.cholesky(_shrunk_correlation(z))


def _shrunk_correlation(z: np.ndarray) -> np.ndarray:
    """Return the correlation matrix of standardised points (P, D), shrunk to the identity.

    The shrinkage is the sum of the variances of the correlations over the sum of their squares.
    """
    n, shrinkage = len(z), 1.0
    correlation = z.T @ z / max(n - 1, 1)
    np.fill_diagonal(correlation, 0.0)
    squares = float(np.sum(correlation**2))
    if n > 2 and squares != 0.0:
        products = (z**2).T @ z**2 - n * (correlation * (n - 1) / n) ** 2
        np.fill_diagonal(products, 0.0)
        variance = n / (n - 1.0) ** 3 * float(np.sum(products))
        shrinkage = min(max(variance / squares, _MIN_SHRINK), 1.0)
    correlation *= 1.0 - shrinkage
    np.fill_diagonal(correlation, 1.0)
    return correlation


@dataclass(frozen=True)
class HMC:
    r"""Hamiltonian Monte Carlo with new velocities in each move.

    With mass matrix :math:`M = (L L^T)^{-1}`, the inverse of the covariance given by the scale, and :math:`v = L^T p`,
    which is standard normal for a momentum p ~ N(0, M), a leapfrog step is

    .. math::
        v \leftarrow v + \tfrac{\epsilon}{2} L^T \nabla \log f(x), \qquad
        x \leftarrow x + \epsilon L v, \qquad
        v \leftarrow v + \tfrac{\epsilon}{2} L^T \nabla \log f(x),

    so no linear system is solved. The energy is :math:`|v|^2 / 2 - \log f(x)`.

    A trajectory with a position, gradient or energy that is not finite is rejected, and so is its
    reverse. A particle with positive density but no finite gradient therefore does not move. A
    particle at density zero moves in a straight line where the gradient is not finite.

    See Duane et al. (1987, doi:10.1016/0370-2693(87)91197-X) and Neal (2011, arXiv:1206.1901).

    Parameters
    ----------
    n_leapfrog : int, default 3
        Leapfrog steps of a trajectory, one gradient each.
    jitter : float, default 0.3
        Step sizes of the particles are uniform between 1 - jitter and 1 + jitter times the size,
        drawn in each move, because a trajectory of fixed length may return to its start.
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If `n_leapfrog` is not a positive integer, or `jitter` is not in [0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import HMC, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def gradients(self, x):
    ...         terms = np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    ...         return terms, np.array([-x, np.zeros_like(x)])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, rng.standard_normal((500, 2)), with_gradient=True)
    >>> particles, accepted = HMC().step(path, particles, 1.0, Tuning(0.5, np.ones(2)), rng)
    >>> bool(accepted.mean() > 0.95)
    True
    """

    n_leapfrog: int = 3
    jitter: float = 0.3
    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "hmc"
    needs_gradient: ClassVar[bool] = True
    target_acceptance: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_leapfrog", positive_int("n_leapfrog", self.n_leapfrog))
        if not 0.0 <= self.jitter < 1.0:
            raise ValueError(f"jitter must be at least 0 and below 1, got {self.jitter!r}")

    @property
    def max_size(self) -> float:
        """Step size at which a trajectory on a Gaussian of known scale is independent of its start.

        Longer trajectories turn back: at the size with acceptance 0.8 in ten dimensions, most of the
        energy is still remembered after three moves.
        """
        return 2.0 * math.sin(0.25 * math.pi / self.n_leapfrog)

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, np.ndarray]:
        """Move all particles once; they have gradients afterwards."""
        if particles.gradients is None:
            raise ValueError("particles have no gradients; start them with with_gradient=True")
        at, scale, n = columns(self.coordinates), tuning.scale, len(particles.x)
        old = log_target(particles.terms, beta)
        nowhere = np.flatnonzero(old == -np.inf)
        lost = np.zeros(n, bool)

        x = particles.x.copy()
        v = rng.standard_normal((n, len(scale)))
        size = np.full((n, 1), float(tuning.size))
        if self.jitter:
            size *= rng.uniform(1.0 - self.jitter, 1.0 + self.jitter, (n, 1))
        chol = scale if scale.ndim == 2 else None
        reach = size * scale if chol is None else size
        half_reach = 0.5 * reach
        old -= 0.5 * np.vecdot(v, v)

        gradients = particles.gradients
        for k in range(self.n_leapfrog):
            with np.errstate(over="ignore", invalid="ignore"):
                kick = _force(gradients, beta, at, chol, nowhere)
                kick *= reach if k else half_reach
                v += kick
                drift = v * reach
                x[:, at] += drift if chol is None else drift @ chol.T
            if not np.isfinite(x).all():
                strayed = ~np.isfinite(x).all(axis=1)
                lost |= strayed
                x[strayed] = particles.x[strayed]
                v[strayed] = 0.0
            terms, gradients = path.gradients(x)
        with np.errstate(over="ignore", invalid="ignore"):
            kick = _force(gradients, beta, at, chol, nowhere[:0])
            kick *= half_reach
            v += kick
            new = log_target(terms, beta)
            new -= 0.5 * np.vecdot(v, v)
        new[lost] = -np.inf
        probability = acceptance(new, old)
        accepted = rng.random(n) < probability
        moved = settle(Particles(x, terms, gradients), particles, accepted)
        return moved, probability


def _force(
    gradients: np.ndarray,
    beta: float,
    at: slice | np.ndarray,
    chol: np.ndarray | None,
    nowhere: np.ndarray,
) -> np.ndarray:
    """Return L^T (if dense) times the gradient; zero for ``nowhere`` particles where not finite."""
    force = log_target(gradients[:, :, at], beta)
    if chol is not None:
        force = force @ chol
    if nowhere.size:
        undefined = ~np.isfinite(force[nowhere]).all(axis=1)
        force[nowhere[undefined]] = 0.0
    return force


#: Maximum number of points tried on a slice. The interval has then shrunk to floating-point
#: resolution, and the particle does not move.
_MAX_TRIES = 200


@dataclass(frozen=True)
class Slice:
    """Univariate slice sampling by stepping out and shrinkage (Neal 2003, doi:10.1214/aos/1056562461).

    Coordinates are updated in turn. A level is drawn uniformly below the density. An interval of width
    w = size sd is placed at random around the point and extended in steps of w until its ends are below
    the level. Points are drawn uniformly from the interval, which shrinks to each point below the level,
    until one is above. At most `max_widths` - 1 steps are made, split at random between the two ends
    beforehand, as in figure 3 of the paper. Particles differ in their number of evaluations.

    A particle at density zero gets the longest interval and tries one point per coordinate, which is
    accepted if its density is positive.

    Parameters
    ----------
    max_widths : int, default 10
        Maximum length of an interval, in widths w; 1 disables stepping out.
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If `max_widths` is not a positive integer.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import Slice, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def values(self, x):
    ...         return np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, np.full((500, 2), 5.0), with_gradient=False)
    >>> for _ in range(8):
    ...     particles, _ = Slice().step(path, particles, 1.0, Tuning(2.0, np.ones(2)), rng)
    >>> bool(np.abs(particles.x.mean(axis=0)).max() < 0.2)
    True
    """

    max_widths: int = 10
    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "slice"
    needs_gradient: ClassVar[bool] = False
    target_acceptance: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_widths", positive_int("max_widths", self.max_widths))

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, np.ndarray]:
        """Move all particles along each coordinate once."""
        scale = tuning.scale
        sds = scale if scale.ndim == 1 else np.sqrt(np.einsum("ij,ij->i", scale, scale))
        widths = tuning.size * sds
        now = Particles(particles.x.copy(), particles.terms.copy())
        moved = np.arange(now.x.shape[1])[columns(self.coordinates)]
        for d, width in zip(moved.tolist(), widths.tolist(), strict=True):
            _move_along(_Line(path, now, beta, d), width, self.max_widths, rng)
        return now, np.ones(len(now.x))


class _Line(NamedTuple):
    """Densities of particles along coordinate d."""

    path: Path
    particles: Particles
    beta: float
    d: int

    def terms(self, rows: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return terms (2, A) of A particles with the coordinate set to the given points."""
        x = self.particles.x.take(rows, axis=0)
        x[:, self.d] = points
        return self.path.values(x)


def _move_along(line: _Line, width: float, max_widths: int, rng: np.random.Generator) -> None:
    """Move a coordinate of all particles, in place."""
    x, terms = line.particles.x[:, line.d], line.particles.terms
    log_now = log_target(terms, line.beta)
    level = log_now - rng.standard_exponential(log_now.size)
    left, right = _step_out(line, level, width, max_widths, rng)
    here, rows = x.copy(), np.arange(level.size)
    for tries in range(_MAX_TRIES):
        points = left + (right - left) * rng.random(rows.size)
        found = line.terms(rows, points)
        above = log_target(found, line.beta) > level
        done = rows[above]
        x[done] = points[above]
        terms[:, done] = found[:, above]
        below = ~above if tries else ~above & (level > -np.inf)
        state = np.array([left, right, here, level, points]).take(np.flatnonzero(below), axis=1)
        left, right, here, level, points = state
        rows = rows[below]
        if rows.size == 0:
            break
        to_the_left = points < here
        left = np.where(to_the_left, points, left)
        right = np.where(to_the_left, right, points)


def _step_out(
    line: _Line, level: np.ndarray, width: float, max_widths: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the left and right ends (2, P) of the intervals."""
    n = level.size
    left = line.particles.x[:, line.d] - width * rng.random(n)
    ends = np.concatenate([left, left + width])
    steps_left = rng.integers(max_widths, size=n)
    steps = np.concatenate([steps_left, max_widths - 1 - steps_left])
    outwards = np.repeat([-width, width], n)
    nowhere = np.tile(level == -np.inf, 2)
    ends[nowhere] += (steps * outwards)[nowhere]
    active = np.flatnonzero((steps > 0) & ~nowhere)
    while active.size:
        rows = active % n
        inside = log_target(line.terms(rows, ends[active]), line.beta) > level[rows]
        active = active[inside]
        ends[active] += outwards[active]
        steps[active] -= 1
        active = active[steps[active] > 0]
    return ends.reshape(2, n)


@dataclass(frozen=True)
class DiscreteMetropolis:
    """Metropolis kernel for coordinates with integer values of any dtype.

    Coordinates are updated in turn. With finitely many states, the proposal is uniform on the other
    states; without bounds it is x + g or x - g with equal probability, P(g = k) = 2^-k for k = 1, 2, ...
    Both proposals are symmetric. States outside the support of the path have density zero.

    Parameters
    ----------
    coordinates : tuple of int
    states : tuple of (array_like of int or None)
        States of each coordinate in increasing order, or None if unbounded. A coordinate with a single state is not
        updated and costs nothing.

    Raises
    ------
    ValueError
        In a step, if the value of a coordinate is not one of its states.

    Examples
    --------
    A fair coin and a Poisson variable of mean 3 + 4 coin:

    >>> import numpy as np
    >>> from scipy.special import gammaln
    >>> from amc_pymc.evidence.mcmc import DiscreteMetropolis, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class CoinAndCount:
    ...     n_dim = 2
    ...
    ...     def values(self, x):
    ...         coin, count = x.T
    ...         mean, possible = 3 + 4 * coin, np.maximum(count, 0)
    ...         density = possible * np.log(mean) - mean - gammaln(possible + 1)
    ...         return np.array([np.where(count < 0, -np.inf, density), np.zeros(len(x))])
    >>> path, rng = CoinAndCount(), as_generator(1)
    >>> kernel = DiscreteMetropolis((0, 1), ([0, 1], None))
    >>> particles = start(path, np.zeros((2000, 2)), with_gradient=False)
    >>> for _ in range(40):
    ...     particles, _ = kernel.step(path, particles, 1.0, Tuning(1.0, np.ones(2)), rng)
    >>> bool(np.abs(particles.x.mean(axis=0) - [0.5, 5.0]).max() < 0.3)
    True
    """

    coordinates: tuple[int, ...]
    states: tuple[Sequence[int] | np.ndarray | None, ...]

    name: ClassVar[str] = "discrete"
    needs_gradient: ClassVar[bool] = False
    target_acceptance: ClassVar[float] = 1.0

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, np.ndarray]:
        """Move each coordinate of all particles once; the acceptance is the mean over coordinates.

        The tuning is not used. The returned particles have no gradients.
        """
        n = len(particles.x)
        x, terms = particles.x.copy(), particles.terms.copy()
        log_now = log_target(terms, beta)
        total, moved = np.zeros(n), 0
        for d, states in zip(self.coordinates, self.states, strict=True):
            if states is not None and len(states) == 1:
                continue
            here = x[:, d].copy()
            x[:, d] = there = _propose(here, states, d, rng)
            proposed = path.values(x)
            log_new = log_target(proposed, beta)
            probability = acceptance(log_new, log_now)
            accepted = rng.random(n) < probability
            x[:, d] = np.where(accepted, there, here)
            terms = np.where(accepted, proposed, terms)
            log_now = np.where(accepted, log_new, log_now)
            total += probability
            moved += 1
        return Particles(x, terms), total / moved if moved else np.ones(n)


def _propose(
    now: np.ndarray,
    states: Sequence[int] | np.ndarray | None,
    d: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Propose a different state for each particle."""
    if states is None:
        sign = 2 * rng.integers(2, size=now.size) - 1
        return now + sign * rng.geometric(0.5, now.size)
    known = np.array(states)
    where = np.minimum(np.searchsorted(known, now), known.size - 1)
    if (wrong := known[where] != now).any():
        raise ValueError(f"coordinate {d} is {now[wrong][0]}, which is none of its states")
    if known.size == 2:
        return known[1 - where]
    return known[(where + rng.integers(1, known.size, now.size)) % known.size]


@dataclass(frozen=True)
class Mixed:
    """Kernel that moves the discrete coordinates, then the continuous ones given these.

    If the continuous kernel uses gradients, they are re-evaluated for particles whose discrete
    coordinates have changed. Tuning and acceptance are those of the continuous kernel.

    Parameters
    ----------
    continuous : HMC or Slice
        Its `coordinates` must be given and must not include discrete ones.
    discrete : DiscreteMetropolis

    Examples
    --------
    >>> from amc_pymc.evidence.mcmc import HMC, DiscreteMetropolis, Mixed
    >>> kernel = Mixed(HMC(coordinates=(0, 2)), DiscreteMetropolis((1,), ([0, 1],)))
    >>> kernel.needs_gradient, kernel.target_acceptance
    (True, 0.8)
    """

    continuous: HMC | Slice
    discrete: DiscreteMetropolis

    name: ClassVar[str] = "mixed"

    @property
    def needs_gradient(self) -> bool:
        """Whether the continuous kernel needs gradients."""
        return self.continuous.needs_gradient

    @property
    def target_acceptance(self) -> float:
        """Target acceptance of the continuous kernel."""
        return self.continuous.target_acceptance

    @property
    def max_size(self) -> float:
        """Largest step size of the continuous kernel."""
        return getattr(self.continuous, "max_size", math.inf)

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, np.ndarray]:
        """Move all particles once."""
        between, _ = self.discrete.step(path, particles, beta, tuning, rng)
        if self.needs_gradient and particles.gradients is not None:
            gradients = particles.gradients.copy()
            changed = np.flatnonzero((between.x != particles.x).any(axis=1))
            if changed.size:
                _, gradients[:, changed] = path.gradients(between.x[changed])
            between = between._replace(gradients=gradients)
        return self.continuous.step(path, between, beta, tuning, rng)


#: Kernels for continuous coordinates by name.
KERNELS: dict[str, type] = {cls.name: cls for cls in (HMC, Slice)}


def make_kernel(kernel: str | Kernel) -> Kernel:
    """Create a kernel with default settings from its name, or return a given kernel.

    Parameters
    ----------
    kernel : {"hmc", "slice"} or Kernel

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If `kernel` is neither a name nor a kernel.

    Examples
    --------
    >>> make_kernel("hmc")
    HMC(n_leapfrog=3, jitter=0.3, coordinates=None)
    """
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            names = ", ".join(map(repr, sorted(KERNELS)))
            raise ValueError(f"kernel must be one of {names}, or a kernel, got {kernel!r}")
        return KERNELS[kernel]()
    if isinstance(kernel, type):
        raise TypeError(
            f"kernel must be a name or a kernel, got the class; write {kernel.__name__}()"
        )
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a name or a kernel, got {kernel!r}")
    return kernel
