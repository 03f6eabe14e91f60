"""Modes of a log density: searches from dispersed points, scans for unexpectedly high density, Laplace mixtures."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.spatial import cKDTree

from amc_pymc.evidence.paths import Joint
from amc_pymc.evidence.settings import DEFAULTS, PilotSettings
from amc_pymc.mixtures import StudentTMixture

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


class Maxima(NamedTuple):
    """End points of searches from P starts.

    Attributes
    ----------
    x : array (P, D)
    values : array (P,)
        Log densities; -inf if the density is zero at the start.
    gradients : array (P, D)
    converged : array of bool (P,)
    """

    x: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    converged: np.ndarray


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
        self.converged = np.zeros(p, bool)
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
        self._finish(rows[(self.quiet[rows] > 2) | (self.slope[rows] <= 0.0)])

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
        self._finish(rows[self.slope[rows] < _SETTLED])
        self.active[rows[self.fresh[rows]]] = False
        again = rows[self.active[rows]]
        self.inverse[again] = np.eye(self.x.shape[1])
        self.fresh[again] = True
        self.aim(again)

    def _finish(self, rows: np.ndarray) -> None:
        self.active[rows] = False
        self.converged[rows] = True


def maximise(
    value_and_gradient: ValueAndGradient,
    starts: np.ndarray,
    *,
    max_iter: int = 300,
) -> Maxima:
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
    Maxima
        A search has converged when the actual gain and that predicted by a quadratic model are below 1e-6 nats for
        three successive steps.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.modes import maximise
    >>> def two_peaks(x):
    ...     return -((x[:, 0] ** 2 - 4.0) ** 2), -4.0 * x * (x**2 - 4.0)
    >>> found = maximise(two_peaks, np.array([[-5.0], [0.3], [1.0]]))
    >>> np.round(found.x[:, 0], 3), found.converged
    (array([-2.,  2.,  2.]), array([ True,  True,  True]))
    """
    x = np.array(starts, float, order="C")
    size = max(_GROUP // x.shape[1] ** 2, 1)
    groups = [
        _maximise_group(value_and_gradient, x[i : i + size], max_iter)
        for i in range(0, len(x), size)
    ]
    return Maxima(
        np.concatenate([g.x for g in groups]),
        np.concatenate([g.values for g in groups]),
        np.concatenate([g.gradients for g in groups]),
        np.concatenate([g.converged for g in groups]),
    )


def _maximise_group(value_and_gradient: ValueAndGradient, x: np.ndarray, max_iter: int) -> Maxima:
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
    return Maxima(x, values, gradients, search.converged)


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
    kept: list[int] = []
    roots: dict[int, np.ndarray] = {}
    for i in np.argsort(-values, kind="stable"):
        if not np.isfinite(values[i]) or not np.isfinite(precisions[i]).all():
            continue
        root = _root(precisions[i])
        for k in kept:
            apart = x[i] - x[k]
            if max(np.linalg.norm(r @ apart) for r in (root, roots[k])) <= _RADIUS:
                break
        else:
            kept.append(int(i))
            roots[int(i)] = root
    return np.array(kept, int)


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


def modes_and_mixture(
    joint: Joint, starts: np.ndarray
) -> tuple[StudentTMixture | None, np.ndarray, np.ndarray]:
    """Return a mixture with a component at each main mode found, these modes, and their log Laplace evidence."""
    none = None, np.empty((0, starts.shape[1])), np.empty(0)
    x, values, curvature = distinct_ends(joint, *searched(joint, starts))
    if not len(x):
        return none
    joint.find_images(x, curvature)
    x, values, curvature = distinct_ends(joint, x, values)
    keep = distinct_modes(x, values, -curvature)[: joint.settings.modes]
    mixture = laplace_components(joint.with_gradient, x[keep], curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    log_evidence = values[keep] + _log_volumes(mixture)
    return mixture, x[keep], log_evidence


def searched(joint: Joint, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximise from the starts; return the end points of successful searches and their log densities."""
    found = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(found.values) & np.isfinite(found.x).all(axis=1)
    return found.x[good], found.values[good]


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


def prior_searches(n_dim: int, spent: float, settings: PilotSettings = DEFAULTS) -> int:
    """Return the number of searches from prior draws, limited to a fraction of the cost of the pilot run."""
    affordable = settings.search_share * spent / (settings.search_cost * math.sqrt(n_dim))
    most = max(
        settings.most_searches // max(n_dim // settings.cheap_dimensions, 1), 2 * settings.starts
    )
    return int(min(max(affordable, 2 * settings.starts), most))


def prior_summits(joint: Joint, x: np.ndarray) -> np.ndarray:
    """Return the local maxima among points (P, D) that stand out most, those furthest above all their neighbours.

    A narrow mode far from a wide one is lower than the slopes of the wide one nearly everywhere, but the point
    closest to it is much higher than its neighbours.
    """
    x = finite(x)
    log_f = joint.log_density(x)
    x, log_f = x[log_f > -np.inf], log_f[log_f > -np.inf]
    n_neighbours = joint.settings.neighbours * joint.n_dim + 1
    if len(x) <= n_neighbours:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    _, near = cKDTree(z).query(z, k=n_neighbours)
    prominence = log_f - log_f[near[:, 1:]].max(axis=1)
    summits = np.flatnonzero(prominence >= 0.0)
    return x[summits[np.argsort(-prominence[summits])][: 2 * joint.settings.starts]]


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
    scanned = (
        settings.scanned
        * max(mixture.n_dim, settings.scanned_dimensions)
        // settings.scanned_dimensions
    )
    n = scanned // (mixture.components * len(settings.scan_scales))
    tops = log_evidence - _log_volumes(mixture)
    for top, mean, chol in zip(tops, mixture.means, mixture.choleskys, strict=True):
        for scale in settings.scan_scales:
            for i in range(0, n, settings.scan_block):
                z = scale * rng.standard_normal((min(settings.scan_block, n - i), mixture.n_dim))
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
    terms = _polynomial(z)
    fitted = terms[usual]
    scale = np.maximum(np.sqrt(np.vecdot(fitted.T, fitted.T)), 1e-300)
    fitted = fitted / scale
    coefficients = np.linalg.lstsq(fitted.T @ fitted, fitted.T @ residual[usual])[0] / scale
    left = residual[good] - terms[good] @ coefficients
    out[good] = left / (_FAINT + np.quantile(np.abs(left), 0.9))
    return out


def _polynomial(z: np.ndarray) -> np.ndarray:
    """Return powers of the coordinates and of the radius (n, 3 D + 2)."""
    squares = z * z
    radius = squares.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(radius), squares, squares * z, squares**2, radius**2])


def _log_volumes(mixture: StudentTMixture) -> np.ndarray:
    """Return the logarithms (K,) of (2 pi)^(D/2) |S|^(1/2)."""
    diagonals = np.diagonal(mixture.choleskys, axis1=1, axis2=2)
    return np.log(diagonals).sum(axis=1) + 0.5 * mixture.n_dim * math.log(2.0 * math.pi)
