"""Modes of a log density: settings of the search, searches from dispersed points, scans, Laplace mixtures."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.evidence.paths import PriorPath
from amc_pymc.evidence.symmetry import Images, Symmetries
from amc_pymc.mixtures import StudentTMixture


@dataclass(frozen=True)
class PilotSettings:
    """Settings of a pilot run: annealing from the prior, search for modes, fit and check of a mixture.

    Attributes
    ----------
    particles, moves : int
        Number of particles annealed from the prior, and moves of each at each temperature.
    few_particles, few_moves : int
        The same if chains are allowed and there are more than `most_fitted` dimensions.
    most_fitted : int
        Number of dimensions above which, if chains are allowed, the only mixture tried is the Laplace
        approximation.
    starts : int
        Searches from each source of starting points: twice as many from the prior, three times from particles.
    few_starts : int
        The same if chains are allowed and there are more than `most_fitted` dimensions.
    modes : int
        Maximum number of modes kept.
    search_cost : float
        Gradients per search in one dimension; the number grows with the square root of the dimension.
    same : float
        Distance in standard deviations within which two searches count as ending at the same mode.
    scanned : int
        Number of points scattered around modes; proportional to D above `few_dimensions`.
    scan_scales : tuple of float
        Scales of the scattered points, as fractions of those of the modes.
    block : int
        Number of scattered points or prior draws evaluated at once.
    components : int
        Maximum number of components of a mixture.
    enough, laplace_enough : float
        Relative variance at which a mixture is good enough, and at which a Laplace mixture is not adapted.
    laplace_dofs : tuple of float
        Degrees of freedom tried for the Laplace mixture; many dimensions need many.
    unfit : float
        Relative variance of weights above which a mixture is not trusted on its own.
    thin : float
        Log ratio of posterior to proposal above which the proposal is too low.
    checked : int
        Number of prior draws used to check a mixture.
    covered : float
        Share of the posterior that a mixture may miss.
    attempts : int
        Maximum number of refits of a mixture that misses something.
    second : int
        Number of points scattered around the components in the second look; proportional to D above `few_dimensions`.
    few_dimensions : int
        Number of dimensions up to which these numbers of points are constant.
    second_scales : tuple of float
        Range of the scales of these points.
    second_prior : float
        Share of these points that are prior draws moved towards the components.
    weighed, weighed_least : int
        Draws used to estimate the mass of modes found by the second look: per dimension, and at least.
    """

    particles: int = 512
    moves: int = 3
    few_particles: int = 128
    few_moves: int = 1
    most_fitted: int = 40
    starts: int = 32
    few_starts: int = 4
    modes: int = 32
    search_cost: float = 10.0
    same: float = 0.05
    scanned: int = 24_576
    scan_scales: tuple[float, ...] = (0.5, 0.35, 0.25, 0.18)
    block: int = 16_384
    components: int = 40
    enough: float = 0.5
    laplace_enough: float = 0.3
    laplace_dofs: tuple[float, ...] = (20.0, 100.0, 300.0)
    unfit: float = 50.0
    thin: float = math.log(20.0)
    checked: int = 4096
    covered: float = 0.01
    attempts: int = 3
    second: int = 8192
    few_dimensions: int = 10
    second_scales: tuple[float, float] = (0.1, 0.7)
    second_prior: float = 0.25
    weighed: int = 50
    weighed_least: int = 1000


#: Default settings.
DEFAULTS = PilotSettings()


#: Number of points recorded per call.
_EACH = 4


class Joint:
    """Log of prior times likelihood, as searches for its modes use it, which records where it was highest.

    Samplers discard most points at which they evaluate a density, such as leapfrog steps and rejected
    proposals. A trajectory that crosses a narrow peak with steps tuned for a wide one is rejected, although
    it has found the peak.

    Parameters
    ----------
    path : PriorPath
    settings : PilotSettings
        Effort and thresholds of the searches.
    kept : int, default 1024
        Maximum number of points that are recorded; up to twice as many are held between calls.

    Attributes
    ----------
    symmetries : Symmetries or None
        Labels and signs that can be exchanged.
    images : Images or None
        Exchanges that lead to all copies of the modes found so far.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import Joint
    >>> class Peak:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.stack([0.0 * x[:, 0], -(x[:, 0] ** 2)])
    >>> joint = Joint(Peak())
    >>> joint.values(np.array([[3.0], [0.5], [-1.0]])).shape
    (2, 3)
    >>> joint.highest(2)[0].ravel()
    array([ 0.5, -1. ])
    """

    def __init__(self, path: PriorPath, settings: PilotSettings = DEFAULTS, kept: int = 1024):
        self.path, self.n_dim, self.settings, self.kept = path, int(path.n_dim), settings, kept
        self.symmetries: Symmetries | None = None
        self.images: Images | None = None
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self._x: list[np.ndarray] = [np.empty((0, self.n_dim))]
        self._terms: list[np.ndarray] = [np.empty((2, 0))]
        self._n, self._floor = 0, -np.inf

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""
        return self.path.draw_prior(n, rng)

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior and log likelihood (2, P) at points (P, D)."""
        terms = self.path.values(x)
        self._record(x, terms)
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate log prior and log likelihood (2, P) and their gradients (2, P, D)."""
        terms, gradients = self.path.gradients(x)
        self._record(x, terms)
        return terms, gradients

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior plus log likelihood (P,)."""
        terms = self.values(x)
        self._last = x, terms[0]
        return terms.sum(axis=0)

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        """Return the log prior (P,), cached for the points of the last `log_density`."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        return self.values(x)[0]

    def with_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate log density (P,) and gradient (P, D)."""
        terms, gradients = self.gradients(x)
        return terms.sum(axis=0), gradients.sum(axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the gradient (P, D) of the log density."""
        return self.with_gradient(x)[1]

    def highest(self, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return distinct points (n, D) and their terms (2, n), the highest first; by default all recorded points."""
        self._prune()
        x, first = np.unique(np.concatenate(self._x), axis=0, return_index=True)
        terms = np.concatenate(self._terms, axis=1)[:, first]
        order = np.argsort(-terms.sum(axis=0), kind="stable")[:n]
        return x[order], terms[:, order]

    def _record(self, x: np.ndarray, terms: np.ndarray) -> None:
        """Record the highest few of the points x (P, D) with their terms (2, P)."""
        log_f = terms.sum(axis=0)
        best = np.arange(len(x))
        if len(x) > _EACH:
            best = np.argpartition(-log_f, _EACH)[:_EACH]
        best = best[log_f[best] > self._floor]
        if best.size:
            self._x.append(x[best])
            self._terms.append(terms[:, best])
            self._n += best.size
        if self._n > 2 * self.kept:
            self._prune()

    def _prune(self) -> None:
        """Keep only the highest points."""
        if self._n <= self.kept:
            return
        x, terms = np.concatenate(self._x), np.concatenate(self._terms, axis=1)
        log_f = terms.sum(axis=0)
        kept = np.argpartition(-log_f, self.kept)[: self.kept]
        self._x, self._terms = [x[kept]], [terms[:, kept]]
        self._n, self._floor = self.kept, float(log_f[kept].min())


type ValueAndGradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

#: Weak Wolfe conditions: minimum gain of a step as a share of the linear prediction, and maximum share of
#: the slope that may remain.
_GAIN, _SLOPE = 1e-4, 0.5
#: Trials of a step length after which any gain is accepted, and after which the search gives up.
_PATIENT, _HOPELESS = 15, 40
#: Maximum number of entries in the inverse Hessians of a group of searches.
_GROUP = 2**23
#: Standard deviations within which two maxima are the same mode.
_RADIUS = 0.5
#: Degrees of freedom of the Laplace mixture, and smallest eigenvalue of a scaled Hessian relative to the largest.
_DOF, _FLOOR = 5.0, 1e-8
#: Gain in nats below which three successive steps end a search.
_SETTLED = 1e-6
#: Size in nats of residuals that count as noise in a scan.
_FAINT = 0.02
#: Relative rounding error of a log density.
_ROUNDING = 1e-13


class _Search:
    """State of P searches: points, inverse Hessians, directions and step lengths."""

    def __init__(self, x: np.ndarray, values: np.ndarray, gradients: np.ndarray):
        p, d = x.shape
        self.x, self.values, self.gradients = x, values, gradients
        self.inverse = np.broadcast_to(np.eye(d), (p, d, d)).copy()
        self.fresh = np.ones(p, bool)
        self.direction, self.slope = np.zeros((p, d)), np.zeros(p)
        self.low, self.high, self.step = np.zeros(p), np.full(p, math.inf), np.ones(p)
        self.trials = np.zeros(p, int)
        self.quiet = np.zeros(p, int)
        self.active = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        self.aim(np.flatnonzero(self.active))

    def aim(self, rows: np.ndarray) -> None:
        """Set directions and unit step lengths; the first direction has at most unit length."""
        g = self.gradients[rows]
        d = np.matmul(self.inverse[rows], g[:, :, None])[:, :, 0]
        d[self.fresh[rows]] /= np.maximum(np.sqrt(_dot(g, g)), 1.0)[self.fresh[rows], None]
        self.direction[rows], self.slope[rows] = d, _dot(g, d)
        self.low[rows], self.high[rows], self.step[rows] = 0.0, math.inf, 1.0
        self.trials[rows] = 0

    def accept(self, rows: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> None:
        """Move, update the inverse Hessians and check convergence."""
        s = self.step[rows, None] * self.direction[rows]
        self._learn(rows, s, self.gradients[rows] - gradients)
        gained = values - self.values[rows]
        self.x[rows] += s
        self.values[rows], self.gradients[rows] = values, gradients
        self.aim(rows)
        small = np.maximum(gained, 0.5 * self.slope[rows]) < _SETTLED
        self.quiet[rows] = np.where(small, self.quiet[rows] + 1, 0)
        self.active[rows[(self.quiet[rows] > 2) | (self.slope[rows] <= 0.0)]] = False

    def _learn(self, rows: np.ndarray, s: np.ndarray, y: np.ndarray) -> None:
        """Apply the BFGS update, except where the step shows no positive curvature."""
        sy = _dot(s, y)
        curved = sy > 1e-12 * np.sqrt(_dot(s, s) * _dot(y, y))
        rows, s, y, sy = rows[curved], s[curved], y[curved], sy[curved]
        first = self.fresh[rows]
        self.inverse[rows[first]] *= (sy / _dot(y, y))[first, None, None]
        self.fresh[rows] = False
        inverse = self.inverse[rows]
        t = np.matmul(inverse, y[:, :, None])[:, :, 0]
        left = s * (0.5 * (1.0 + _dot(y, t) / sy) / sy)[:, None] - t / sy[:, None]
        update = left[:, :, None] * s[:, None, :]
        inverse += update
        inverse += update.transpose(0, 2, 1)
        self.inverse[rows] = inverse

    def give_up(self, rows: np.ndarray) -> None:
        """Restart once from steepest ascent, then stop."""
        self.active[rows[(self.slope[rows] < _SETTLED) | self.fresh[rows]]] = False
        again = rows[self.active[rows]]
        self.inverse[again] = np.eye(self.x.shape[1])
        self.fresh[again] = True
        self.aim(again)


def maximise(
    value_and_gradient: ValueAndGradient, starts: np.ndarray, *, max_iter: int = 300
) -> tuple[np.ndarray, np.ndarray]:
    """Maximise a log density from P starts at once by BFGS.

    Every search has its own inverse Hessian, direction and step length, found by bracketing until
    the weak Wolfe conditions hold (Lewis & Overton 2013, Mathematical Programming 141:135-163,
    doi:10.1007/s10107-012-0514-2). All active searches are evaluated together. In high dimensions,
    the starts are processed in groups to limit the memory for the inverse Hessians.

    Parameters
    ----------
    value_and_gradient : callable
        Function of points (p, D), p <= P, that returns log densities (p,) and gradients (p, D). A step
        to a value or gradient that is not finite is shortened.
    starts : array (P, D)
    max_iter : int, default 300
        Maximum number of evaluations per start.

    Returns
    -------
    x : array (P, D)
        End points. A search ends when the actual gain and that predicted by a quadratic model are below 1e-6 nats for
        three successive steps.
    values : array (P,)
        Log densities; -inf if the density is zero at the start.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import maximise
    >>> def two_peaks(x):
    ...     return -((x[:, 0] ** 2 - 4.0) ** 2), -4.0 * x * (x**2 - 4.0)
    >>> x, _ = maximise(two_peaks, np.array([[-5.0], [0.3], [1.0]]))
    >>> np.round(x[:, 0], 3)
    array([-2.,  2.,  2.])
    """
    x = np.array(starts, float, order="C")
    size = max(_GROUP // x.shape[1] ** 2, 1)
    groups = range(0, len(x), size)
    values = [_maximise_group(value_and_gradient, x[i : i + size], max_iter) for i in groups]
    return x, np.concatenate(values)


def _maximise_group(
    value_and_gradient: ValueAndGradient, x: np.ndarray, max_iter: int
) -> np.ndarray:
    """Move points (P, D) to maxima, in place; return the log densities (P,) there."""
    values, gradients = (np.array(v, float) for v in value_and_gradient(x.copy()))
    search = _Search(x, values, gradients)
    for _ in range(max_iter - 1):
        rows = np.flatnonzero(search.active)
        if rows.size == 0:
            break
        trial = x[rows] + search.step[rows, None] * search.direction[rows]
        new_values, new_gradients = value_and_gradient(trial)
        _judge(search, rows, np.asarray(new_values), np.asarray(new_gradients))
    values[~np.isfinite(values)] = -math.inf
    return values


def _judge(
    search: _Search,
    rows: np.ndarray,
    values: np.ndarray,
    gradients: np.ndarray,
) -> None:
    """Accept steps that satisfy the Wolfe conditions, and lengthen or shorten the others."""
    t, slope, before = search.step[rows], search.slope[rows], search.values[rows]
    finite = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
    values = np.where(finite, values, -1e300)
    gradients = np.where(finite[:, None], gradients, 0.0)
    search.trials[rows] += 1
    trials = search.trials[rows]
    gained = values - before
    left = _dot(gradients, search.direction[rows])
    enough = finite & (gained >= _GAIN * t * slope - _ROUNDING * np.abs(before))
    good = enough & ((left <= _SLOPE * slope) | (trials >= _PATIENT))
    short, far = enough & ~good, ~enough
    low, high = search.low[rows], search.high[rows]
    low, high = np.where(short, t, low), np.where(far, t, high)
    with np.errstate(over="ignore"):
        secant = t * slope / np.maximum(slope - left, 1e-300)
        vertex = 0.5 * t * slope / np.maximum(slope - gained / t, 1e-300)
    longer = np.where(np.isinf(high), np.clip(secant, 2.0 * t, 10.0 * t), 0.5 * (low + high))
    shorter = np.where(
        low > 0.0, 0.5 * (low + high), np.where(finite, np.clip(vertex, 0.1 * t, 0.5 * t), 0.2 * t)
    )
    search.low[rows], search.high[rows] = low, high
    search.step[rows] = np.where(good, t, np.where(short, longer, shorter))
    search.accept(rows[good], values[good], gradients[good])
    search.give_up(rows[far & (trials >= _HOPELESS)])


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("pd,pd->p", a, b)


def hessians(gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Compute Hessians by central differences of gradients, in two batches.

    Parameters
    ----------
    gradient : callable
        Function of points (p, D) that returns gradients (p, D).
    x : array (M, D)
        Points. Half widths of the differences are a thousandth of the standard deviation of each coordinate, which is
        estimated in a first batch.

    Returns
    -------
    array (M, D, D)
        Symmetric Hessians; nan where a gradient is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import hessians
    >>> precision = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> np.round(hessians(lambda x: -x @ precision, np.zeros((1, 2))), 6)
    array([[[-2., -1.],
            [-1., -3.]]])
    """
    size = np.maximum(np.abs(x), 1.0)
    first = np.diagonal(_differences(gradient, x, 1e-5 * size), axis1=1, axis2=2)
    with np.errstate(divide="ignore"):
        h = np.where(np.isfinite(first), 1e-3 / np.sqrt(np.abs(first)), 1e-7 * size)
    return _differences(gradient, x, np.clip(h, 1e-9 * size, 1e-2 * size))


def _differences(
    gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, h: np.ndarray
) -> np.ndarray:
    m, d = x.shape
    moved = h[:, :, None] * np.eye(d)
    points = np.stack([x[:, None] + moved, x[:, None] - moved])
    g = np.asarray(gradient(points.reshape(-1, d)), float).reshape(2, m, d, d)
    # Actual widths after rounding.
    width = np.einsum("mjj->mj", points[0] - points[1])
    with np.errstate(invalid="ignore"):
        out = (g[0] - g[1]) / width[:, :, None]
    return 0.5 * (out + out.transpose(0, 2, 1))


def distinct_modes(x: np.ndarray, values: np.ndarray, precisions: np.ndarray) -> np.ndarray:
    """Return the indices of distinct modes among maxima, the highest first.

    From the highest value down, a point is kept unless it is within half a standard deviation of a
    kept one, by the curvature of both, ignoring directions in which the density is flat or curves
    upward.

    Parameters
    ----------
    x : array (P, D)
    values : array (P,)
        Log densities; points with -inf or nan are ignored.
    precisions : array (P, D, D)
        Negative Hessian of each point.

    Returns
    -------
    array of int (M,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import distinct_modes
    >>> x = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 0.1], [0.0, 90.0]])
    >>> distinct_modes(x, np.array([0.0, -1.0, -0.1, 0.0]), np.array(4 * [np.diag([1.0, 1e-6])]))
    array([0, 1])
    """
    roots: dict[int, np.ndarray] = {}  # of the points that are kept
    for i in np.argsort(-values, kind="stable").tolist():
        if not np.isfinite(values[i]) or not np.isfinite(precisions[i]).all():
            continue
        root = _root(precisions[i])
        pairs = ((root @ (x[i] - x[k]), other @ (x[i] - x[k])) for k, other in roots.items())
        if not any(max(map(np.linalg.norm, pair)) <= _RADIUS for pair in pairs):
            roots[i] = root
    return np.array([*roots], int)


def _root(precision: np.ndarray) -> np.ndarray:
    """Return R, with R^T R the precision without flat and upward directions."""
    scale = np.sqrt(np.abs(np.diagonal(precision)))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
    used = values > 1e-10 * max(values.max(), 0.0)
    root: np.ndarray = (np.sqrt(np.where(used, values, 0.0)) * vectors).T * scale
    return root


def laplace_components(
    value_and_gradient: ValueAndGradient,
    x: np.ndarray,
    curvatures: np.ndarray,
) -> StudentTMixture:
    r"""Make a mixture with a component at each mode, weighted by its Laplace evidence.

    .. math:: \log Z_k = \log f(x_k) + \tfrac{D}{2} \log 2\pi - \tfrac12 \log |-H_k|,
              \qquad \pi_k \propto Z_k, \quad S_k = (-H_k)^{-1} .

    If a Hessian is not negative definite, its eigenvalues, scaled to a unit diagonal, are replaced by
    their absolute values, and by 1e-8 times the largest one if they are smaller.

    Parameters
    ----------
    value_and_gradient : callable
        As in :func:`maximise`.
    x : array (M, D)
        Modes.
    curvatures : array (M, D, D)
        Their Hessians.

    Returns
    -------
    StudentTMixture
        Mixture of the modes at which value and Hessian are finite.

    Raises
    ------
    ValueError
        If no mode has a finite value and Hessian.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import laplace_components
    >>> def gaussian(x):
    ...     return -2.0 * (x[:, 0] - 1.0) ** 2, -4.0 * (x - 1.0)
    >>> found = laplace_components(gaussian, np.array([[1.0]]), np.array([[[-4.0]]]))
    >>> np.round(found.choleskys[0], 3)
    array([[0.5]])
    """
    values = np.asarray(value_and_gradient(x)[0], float)
    factors, evidence = np.empty(curvatures.shape), np.full(len(x), -math.inf)
    for k, hessian in enumerate(curvatures):
        if np.isfinite(values[k]) and np.isfinite(hessian).all() and hessian.any():
            factors[k], log_det = _inverse_factor(-hessian)
            evidence[k] = values[k] + 0.5 * x.shape[1] * math.log(2.0 * math.pi) + log_det
    good = evidence > -math.inf
    if not good.any():
        raise ValueError("no mode has a finite value and a finite Hessian that is not zero.")
    weights = np.exp(evidence[good] - evidence[good].max())
    return StudentTMixture(weights / weights.sum(), x[good], factors[good], _DOF)


def _inverse_factor(precision: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lower factor of the inverse of a regularised precision, and the log of its determinant."""
    diagonal = np.abs(np.diagonal(precision))
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, diagonal.max() or 1.0))
    values, vectors = np.linalg.eigh(precision * np.outer(scale, scale))
    values = np.maximum(np.abs(values), _FLOOR * np.abs(values).max())
    # L L^T = (V / sqrt(values)) (...)^T without forming the product.
    upper = np.linalg.qr((vectors / np.sqrt(values)).T, mode="r")
    lower = np.tril(upper.T * np.sign(np.diagonal(upper)))
    factor = scale[:, None] * lower
    return factor, float(np.log(np.diagonal(factor)).sum())


def finite(x: np.ndarray) -> np.ndarray:
    """Return the finite points among x (P, D)."""
    return x[np.isfinite(x).all(axis=1)]


def spread(x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Choose n points far from each other; each next one is the furthest from those chosen."""
    x = np.unique(finite(x), axis=0)
    if len(x) <= n:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    chosen = [int(rng.integers(len(x)))]
    distance = np.full(len(x), math.inf)
    for _ in range(n - 1):
        distance = np.minimum(distance, ((z - z[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(distance.argmax()))
    return x[chosen]


class Modes(NamedTuple):
    """Modes (M, D), a mixture with a component at each, and their log Laplace evidence (M,)."""

    mixture: StudentTMixture | None
    x: np.ndarray
    log_evidence: np.ndarray


def modes_and_mixture(joint: Joint, starts: np.ndarray) -> Modes:
    """Search for modes, and make a mixture with a component at each main one."""
    x, values, curvature = distinct_ends(joint, *searched(joint, starts))
    if not len(x):
        return Modes(None, np.empty((0, starts.shape[1])), np.empty(0))
    if joint.symmetries is not None:
        # A narrow mode can break what holds at all particles.
        joint.symmetries = joint.symmetries.holding(joint.log_density, x)
        joint.images = joint.symmetries.images(x, -curvature)
    x, values, curvature = distinct_ends(joint, x, values)
    keep = distinct_modes(x, values, -curvature)[: joint.settings.modes]
    mixture = laplace_components(joint.with_gradient, x[keep], curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    return Modes(mixture, x[keep], values[keep] + log_volumes(mixture))


def searched(joint: Joint, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximise from the starts; return the end points of successful searches and their log densities."""
    x, values = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(values) & np.isfinite(x).all(axis=1)
    return x[good], values[good]


def distinct_ends(
    joint: Joint, x: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distinct end points of searches, the highest first, with log densities and Hessians.

    Most searches end at the same modes or at copies of them. These are removed before their Hessians are computed;
    they would otherwise crowd out lower modes.
    """
    left = np.argsort(-values)
    kept: list[int] = []
    curvatures: list[np.ndarray] = []
    while left.size and len(kept) < 3 * joint.settings.modes:
        i, left = left[0], left[1:]
        curvature = hessians(joint.gradient, x[[i]])[0]
        if not np.isfinite(curvature).all() or not curvature.any():
            continue
        kept.append(i)
        curvatures.append(curvature)
        eigenvalues, vectors = np.linalg.eigh(curvature)
        copies = x[left][None] if joint.images is None else joint.images.every(x[left])
        away = (copies - x[i]) @ vectors * np.sqrt(np.abs(eigenvalues))
        left = left[np.linalg.norm(away, axis=2).min(axis=0) > joint.settings.same]
    d = x.shape[1]
    return x[kept], values[kept], np.array(curvatures).reshape(-1, d, d)


def scan(
    joint: Joint,
    mixture: StudentTMixture,
    log_evidence: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return points near modes with a density far above the Gaussian approximation, which suggests another mode.

    Searches rarely end at a narrow peak close to a wide mode. Points are therefore scattered around each mode
    on a fraction of its scale, where the chance to hit such a peak is largest. Half of the points returned
    have the largest residuals from the approximation, half the largest ones from a polynomial fitted to these.
    """
    settings, half = joint.settings, joint.settings.starts // 2
    parts, residual, excess = [], [], []
    few, parts_of = settings.few_dimensions, mixture.components * len(settings.scan_scales)
    n = settings.scanned * max(mixture.n_dim, few) // few // parts_of
    tops = log_evidence - log_volumes(mixture)
    for top, mean, chol in zip(tops, mixture.means, mixture.choleskys, strict=True):
        for scale in settings.scan_scales:
            z = scale * rng.standard_normal((n, mixture.n_dim))
            near = mean + z @ chol.T
            above = joint.log_density(near) - top + 0.5 * np.vecdot(z, z)
            odd = unexplained_residuals(z, above)
            best = _best_of_both(above, odd, half)
            parts.append(near[best])
            residual.append(above[best])
            excess.append(odd[best])
    x = np.concatenate(parts)
    return x[_best_of_both(np.concatenate(residual), np.concatenate(excess), half)]


def _best_of_both(one: np.ndarray, other: np.ndarray, half: int) -> np.ndarray:
    """Return the indices of the largest values of both arrays, without duplicates."""
    return np.union1d(np.argsort(-one)[:half], np.argsort(-other)[:half])


def unexplained_residuals(z: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Subtract a polynomial in the coordinates z (n, D) from residuals (n,), and divide by their typical size.

    The residuals of a smooth log density that is not quadratic can hide those of a peak. The result is -inf at
    points of density zero, and everywhere if there are too few points for a fit.
    """
    good = np.flatnonzero(residual > -np.inf)
    out = np.full(len(z), -np.inf)
    n_terms = 3 * z.shape[1] + 2
    low, high = np.quantile(residual[good], [0.01, 0.99]) if good.size else (0.0, 0.0)
    usual = good[(residual[good] >= low) & (residual[good] <= high)][: 10 * n_terms]
    if usual.size < 4 * n_terms:
        return out
    squares = z * z
    radius = squares.mean(axis=1, keepdims=True)
    terms = np.hstack([np.ones_like(radius), squares, squares * z, squares**2, radius**2])
    fitted = terms[usual]
    scale = np.maximum(np.sqrt(np.vecdot(fitted.T, fitted.T)), 1e-300)
    fitted = fitted / scale
    coefficients = np.linalg.lstsq(fitted.T @ fitted, fitted.T @ residual[usual])[0] / scale
    left = residual[good] - terms[good] @ coefficients
    out[good] = left / (_FAINT + np.quantile(np.abs(left), 0.9))
    return out


def log_volumes(mixture: StudentTMixture) -> np.ndarray:
    """Return the logarithms (K,) of (2 pi)^(D/2) |S|^(1/2)."""
    diagonals = np.diagonal(mixture.choleskys, axis1=1, axis2=2)
    return np.log(diagonals).sum(axis=1) + 0.5 * mixture.n_dim * math.log(2.0 * math.pi)
