"""Student t mixtures fitted to weighted draws by expectation-maximisation."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from amc_pymc.mixtures.student_t import StudentTMixture

#: Number of successive fits without improvement after which more components are not tried.
_PATIENCE = 2
#: Penalty per parameter, in nats.
_PENALTY = 2.0


def fit_student_t_mixture(
    x: np.ndarray,
    log_weights: np.ndarray | None = None,
    *,
    n_components: int = 1,
    start: StudentTMixture | None = None,
    labels: np.ndarray | None = None,
    rng: np.random.Generator | None = None,
    dof: float | Sequence[float] | None = None,
    n_iter: int = 50,
    tolerance: float = 1e-3,
    ridge: float = 1.0,
    min_draws: float = 2.0,
) -> StudentTMixture:
    r"""Fit a Student t mixture to weighted draws by expectation-maximisation.

    With responsibilities :math:`r_{ik}` and precision factors
    :math:`u_{ik} = (\nu + D) / (\nu + \delta_{ik})` at squared Mahalanobis distances :math:`\delta`,
    an iteration sets

    .. math::
        \pi_k = \sum_i w_i r_{ik}, \quad
        m_k = \frac{\sum_i w_i r_{ik} u_{ik} x_i}{\sum_i w_i r_{ik} u_{ik}}, \quad
        S_k = \frac{\sum_i w_i r_{ik} u_{ik} (x_i - m_k)(x_i - m_k)^T}{\sum_i w_i r_{ik} u_{ik}}

    (Peel & McLachlan 2000, Statistics and Computing 10:339-348, doi:10.1023/A:1008981510081; the
    divisor of S is that of Kent, Tyler & Vardi 1994, which has the same fixed points and converges
    faster). S is then shrunk with a weight of :math:`\rho (D + 1)` draws, where rho is the `ridge`:
    towards the initial scale matrix of the component, rescaled to its size, or without `start`
    towards the pooled matrix, itself shrunk to its diagonal. The number of draws of a component is
    :math:`n_k = (\sum_i w_i r_{ik})^2 / \sum_i (w_i r_{ik})^2`.

    Parameters
    ----------
    x : array (n, D)
    log_weights : array (n,), optional
        Log-weights, -inf for zero; by default all are equal. Only differences matter.
    n_components : int, default 1
        Number of components K, initialised by weighted k-means++ (Arthur & Vassilvitskii 2007) in
        coordinates scaled to unit variance.
    start : StudentTMixture, optional
        Initial mixture, instead of `n_components`.
    labels : array of int (n,), optional
        Initial components 0, 1, ... of the draws, instead of `n_components`.
    rng : numpy.random.Generator, optional
        Generator for k-means++; required only if `n_components` is above one.
    dof : float or sequence of float, optional
        Degrees of freedom. If several are given, the one with the highest likelihood is chosen after
        convergence. The default is that of `start`, or 5.
    n_iter : int, default 50
        Maximum number of iterations.
    tolerance : float, default 1e-3
        Gain of the mean log density per draw below which iterations stop.
    ridge : float, default 1.0
        Strength rho of the shrinkage. With zero, the likelihood never decreases, and only singular
        matrices are regularised.
    min_draws : float, default 2.0
        A component is dropped if both n_k and its share of the total effective sample size are below this.

    Returns
    -------
    StudentTMixture
        Mixture with at most the requested number of components.

    Raises
    ------
    ValueError
        If draws or weights are not numbers, or all weights are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures.student_t import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> q = StudentTMixture([0.3, 0.7], [[-3.0], [3.0]], [[[1.0]], [[0.5]]], 5.0)
    >>> fitted = fit_student_t_mixture(q.sample(4000, rng), n_components=2, rng=rng)
    >>> order = np.argsort(fitted.means[:, 0])
    >>> np.round(fitted.weights[order], 1), np.round(fitted.means[order, 0])
    (array([0.3, 0.7]), array([-3.,  3.]))
    """
    draws = checked_draws(x, log_weights)
    if dof is None:
        dof = 5.0 if start is None else start.dof
    dofs = np.atleast_1d(np.asarray(dof, float))
    strength = ridge * (draws.x.shape[1] + 1.0)
    if start is not None:
        mixture = start.with_dof(dofs[np.abs(1.0 / dofs - 1.0 / start.dof).argmin()])
    else:
        if labels is None:
            labels = seeded_labels(draws, n_components, rng)
        elif log_weights is not None:
            labels = labels[used_draws(log_weights)]
        member = np.where(labels == np.unique(labels)[:, None], draws.w, 0.0)
        middle = dofs[len(dofs) // 2]
        mixture = _maximised(draws, member, *_draws_of(member), middle, None, strength)
    target = None if start is None else start.choleskys
    x, w = draws
    last = -math.inf
    for _ in range(n_iter):
        distances = mixture.distances(x)
        member, value = _members(mixture, distances, w)
        share, counts = _draws_of(member)
        keep = (np.maximum(counts, share * draws.ess) >= min_draws) & (share > _LEAST_SHARE)
        keep[share.argmax()] = True
        if not keep.all():
            mixture = mixture.part(keep)
            target = None if target is None else target[keep]
            last = -math.inf
            continue
        if value - last < tolerance:
            values = [_members(mixture.with_dof(v), distances, w)[1] for v in dofs]
            best = dofs[int(np.argmax(values))]
            if len(dofs) == 1 or best == mixture.dof:
                break
            mixture, last = mixture.with_dof(best), -math.inf
            continue
        last = value
        if math.isfinite(mixture.dof):  # common factors of the precision do not matter
            member = member / (mixture.dof + distances)
        mixture = _maximised(draws, member, share, counts, mixture.dof, target, strength)
    return mixture


def choose_mixture(
    x: np.ndarray,
    log_weights: np.ndarray | None,
    rng: np.random.Generator,
    *,
    max_components: int = 6,
) -> StudentTMixture:
    """Fit mixtures of one, two, ... components and keep the best by :func:`information_criterion`.

    Parameters
    ----------
    x : array (n, D)
    log_weights : array (n,) or None
        Log-weights, -inf for zero; None if all are equal.
    rng : numpy.random.Generator
        Generator for k-means++.
    max_components : int, default 6
        Maximum number of components. The search also ends after two successive fits without improvement.

    Returns
    -------
    StudentTMixture

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures.student_t import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> q = StudentTMixture([0.3, 0.7], [[-3.0], [3.0]], [[[1.0]], [[0.5]]], 5.0)
    >>> choose_mixture(q.sample(1000, rng), None, rng).components
    2
    """
    draws = checked_draws(x, log_weights)
    best, best_score, waited = None, -math.inf, 0
    for k in range(1, max_components + 1):
        fitted = fit_student_t_mixture(draws.x, np.log(draws.w), n_components=k, rng=rng, n_iter=30)
        score = information_criterion(fitted, draws.x, draws.w)
        waited += 1
        if best is None or score > best_score:
            best, best_score, waited = fitted, score, 0
        elif waited == _PATIENCE:
            break
    assert best is not None
    return best


def split_component(
    mixture: StudentTMixture,
    x: np.ndarray,
    log_weights: np.ndarray,
    excess: np.ndarray,
    rng: np.random.Generator,
    **settings: Any,
) -> StudentTMixture:
    """Fit a mixture with one more component, by splitting the one with the largest sum of `excess`.

    Draws are assigned to their most probable component; those of the component to split are divided by
    k-means++.

    Parameters
    ----------
    mixture : StudentTMixture
    x : array (n, D)
    log_weights : array (n,)
        Log-weights, -inf for zero.
    excess : array (n,)
        Non-negative contribution of each draw to what the split should reduce, on the natural scale.
    rng : numpy.random.Generator
    **settings
        Further arguments of :func:`fit_student_t_mixture`.

    Returns
    -------
    StudentTMixture
        The given mixture if fewer than two draws belong to the component.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures.student_t import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> q = StudentTMixture([0.5, 0.5], [[-3.0], [3.0]], [[[1.0]], [[1.0]]], 5.0)
    >>> one = StudentTMixture([1.0], [[0.0]], [[[3.0]]], 5.0)
    >>> x, even = q.sample(1000, rng), np.zeros(1000)
    >>> np.round(np.sort(split_component(one, x, even, even, rng).means[:, 0]))
    array([-3.,  3.])
    """
    labels = mixture.log_terms(x).argmax(axis=0)
    worst = int(np.bincount(labels, excess, minlength=mixture.components).argmax())
    rows = np.flatnonzero((labels == worst) & (log_weights > -math.inf))
    if rows.size < 2:
        return mixture
    w = np.exp(log_weights[rows] - log_weights[rows].max())
    halves = seeded_labels(WeightedDraws(x[rows], w / w.sum()), 2, rng)
    labels[rows[halves == 1]] = mixture.components
    return fit_student_t_mixture(x, log_weights, labels=labels, **settings)


def drop_component(
    mixture: StudentTMixture, x: np.ndarray, w: np.ndarray
) -> tuple[StudentTMixture, float]:
    r"""Drop the component whose removal costs the least log density.

    Without component j, the weighted mean log density decreases by

    .. math:: \log(1 - \pi_j) - \sum_i w_i \log(1 - r_{ij})

    with responsibilities r.

    Parameters
    ----------
    mixture : StudentTMixture
        Mixture of at least two components.
    x : array (n, D)
    w : array (n,)
        Weights on the natural scale, which sum to one.

    Returns
    -------
    mixture : StudentTMixture
        Mixture of the other K - 1 components.
    loss : float
        Decrease in nats; inf if the density would be zero at a draw.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures.student_t import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> q = StudentTMixture([0.3, 0.3, 0.4], [[0.0], [0.0], [5.0]], np.ones((3, 1, 1)), 5.0)
    >>> x = q.sample(1000, as_generator(1))
    >>> fewer, loss = drop_component(q, x, np.full(1000, 1e-3))
    >>> fewer.means.ravel(), bool(loss < 0.1)
    (array([0., 5.]), True)
    """
    terms = mixture.log_terms(x)
    used = (w > 0.0) & (terms.max(axis=0) > -math.inf)
    terms, w = terms[:, used], w[used]
    total = np.logaddexp.reduce(terms)
    k = mixture.components
    losses = np.full(k, math.inf)
    for j in np.flatnonzero(mixture.weights < 1.0):
        left = np.logaddexp.reduce(np.delete(terms, j, axis=0))
        losses[j] = w @ (total - left) + math.log1p(-mixture.weights[j])
    idle = int(losses.argmin())
    return mixture.part(np.arange(k) != idle), float(losses[idle])


def information_criterion(mixture: StudentTMixture, x: np.ndarray, w: np.ndarray) -> float:
    r"""Return the log likelihood of the effective draws less two per parameter; larger is better.

    .. math::
        n_\mathrm{eff} \sum_i w_i \log q(x_i) - 2 p, \qquad n_\mathrm{eff} = 1 / \textstyle\sum_i w_i^2,

    with p = K (1 + D + D (D + 1) / 2) - 1. The penalty is twice that of Akaike's criterion, because weighted
    draws are worth fewer than n_eff if weights correlate with log q, and because a proposal should be as
    simple as possible. In ten dimensions, the logarithm in BIC would require more draws for a second
    component than its absence costs in variance.

    Parameters
    ----------
    mixture : StudentTMixture
    x : array (n, D)
    w : array (n,)
        Weights on the natural scale, which sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures.student_t import StudentTMixture
    >>> q = StudentTMixture([1.0], [[0.0]], [[[1.0]]], np.inf)
    >>> round(information_criterion(q, np.zeros((10, 1)), np.full(10, 0.1)), 3)
    -13.189
    """
    k, d = mixture.components, mixture.n_dim
    parameters = k * (1.0 + d + 0.5 * d * (d + 1.0)) - 1.0
    used = w > 0.0
    return float(w[used] @ mixture.log_density(x[used])) / float(w @ w) - _PENALTY * parameters


#: Weight below which a component is dropped, regardless of its number of draws.
_LEAST_SHARE = 1e-6
#: Smallest square of a pivot of a scaled matrix that counts as regular, and the first addition to its diagonal.
_LEAST_PIVOT, _LIFT = 1e-16, 1e-14
#: Squared distance in the place of an infinite one.
_FAR = 1e300
#: Number of candidates for each further centre of k-means++, and of iterations of Lloyd's algorithm.
_CANDIDATES, _LLOYD = 4, 5


def _members(
    mixture: StudentTMixture, distances: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return responsibilities times weights of draws (K, n), and the mean log density.

    A draw infinitely far from all components belongs to the heaviest; its distances are made finite.
    """
    terms = mixture.terms_at(distances)
    lost = terms.max(axis=0) == -math.inf
    if lost.any():
        distances[:, lost] = _FAR
        heaviest = mixture.weights == mixture.weights.max()
        terms[:, lost] = np.where(heaviest, 0.0, -math.inf)[:, None]
    if len(terms) == 1:
        return w[None], float(w @ terms[0])
    total = logsumexp(terms, axis=0)
    return w * np.exp(terms - total), float(w @ total)


def _draws_of(member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of weights and the effective number of draws (K,) of each component."""
    share, squares = member.sum(axis=1), np.vecdot(member, member)
    return share, np.divide(share**2, squares, out=np.zeros(len(share)), where=squares > 0.0)


def _maximised(
    draws: WeightedDraws,
    member: np.ndarray,
    share: np.ndarray,
    counts: np.ndarray,
    dof: float,
    target: np.ndarray | None,
    strength: float,
) -> StudentTMixture:
    """Return the mixture of the means and shrunk scatter matrices with weights proportional to rows of `member`."""
    parts = member / member.sum(axis=1, keepdims=True)
    means, d, floor = parts @ draws.x, draws.x.shape[1], draws.variance_floor
    scatter = np.empty((len(parts), d, d))
    for j, part in enumerate(parts):
        root = (draws.x - means[j]) * np.sqrt(part)[:, None]
        scatter[j] = root.T @ root
    share = share / share.sum()
    if target is None:  # the pooled matrix, shrunk towards its diagonal
        pooled = np.tensordot(share, scatter, 1)
        diagonal = np.maximum(pooled.diagonal(), floor)
        goals = (draws.ess * pooled + strength * np.diag(diagonal)) / (draws.ess + strength)
        goals = np.broadcast_to(goals + np.diag(floor), scatter.shape)
    else:
        # The size uses all d coordinates, so it is shrunk d + 1 times less. One draw does not determine it.
        few = strength / (d + 1.0)
        sizes = np.ones(len(target))
        if few > 0.0:
            own = [
                np.trace(solve_triangular(g, solve_triangular(g, s, lower=True).T, lower=True)) / d
                for g, s in zip(target, scatter)
            ]
            sizes = (counts * own + few) / (np.maximum(counts - 1.0, 0.0) + few)
        goals = sizes[:, None, None] * (target @ target.transpose(0, 2, 1))
    n = counts[:, None, None]
    shrunk = (n * scatter + strength * goals) / (n + strength)
    return StudentTMixture(share, means, np.stack([_factor(m, floor) for m in shrunk]), dof)


def _factor(matrix: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor (D, D), after adding to the scaled diagonal if the matrix is singular."""
    scale = np.sqrt(np.maximum(matrix.diagonal(), floor))
    unit, lift = matrix / np.outer(scale, scale), 0.0
    while True:
        try:
            factor = np.linalg.cholesky(unit + lift * np.eye(len(unit)))
        except np.linalg.LinAlgError:
            factor = np.zeros_like(unit)
        if factor.diagonal().min() ** 2 > _LEAST_PIVOT:
            return scale[:, None] * factor
        lift = max(10.0 * lift, _LIFT)


def seeded_labels(draws: WeightedDraws, k: int, rng: np.random.Generator | None) -> np.ndarray:
    """Assign components (n,) by weighted k-means++ and a few iterations of Lloyd's algorithm."""
    x, w = draws
    if k == 1:
        return np.zeros(len(x), int)
    assert rng is not None
    spread = w @ (x - w @ x) ** 2
    z = (x - w @ x) / np.sqrt(np.maximum(spread, draws.variance_floor))
    centres = z[_draw(w, rng)]
    nearest = _squares(z, centres)[0]
    while len(centres) < k and (w @ nearest) > 0.0:
        # Greedy k-means++: of a few candidates, keep the one with the smallest remaining distances.
        tries = z[_draw(w * nearest, rng, _CANDIDATES)]
        left = np.minimum(nearest, _squares(z, tries))
        best = (left @ w).argmin()
        centres, nearest = np.vstack([centres, tries[best]]), left[best]
    labels = _squares(z, centres).argmin(axis=0)
    for _ in range(_LLOYD):
        for j in np.unique(labels):
            own = labels == j
            centres[j] = w[own] @ z[own] / w[own].sum()
        labels = _squares(z, centres).argmin(axis=0)
    return labels


def _draw(mass: np.ndarray, rng: np.random.Generator, n: int = 1) -> np.ndarray:
    """Draw indices (n,) in proportion to a mass."""
    total = np.cumsum(mass)
    found = np.searchsorted(total, rng.random(n) * total[-1], side="right")
    return np.minimum(found, len(mass) - 1)


def _squares(z: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return squared distances (K, n) of points (n, D) from centres (K, D)."""
    return np.stack([np.square(z - c).sum(axis=1) for c in centres])


class WeightedDraws(NamedTuple):
    """Finite draws (n, D) and their normalised weights (n,)."""

    x: np.ndarray
    w: np.ndarray

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return 1.0 / float(self.w @ self.w)

    @property
    def variance_floor(self) -> np.ndarray:
        """Variances (D,) that count as zero: roughly the squared rounding error of a draw."""
        mean = self.w @ self.x
        spread = self.w @ (self.x - mean) ** 2
        return np.where((mean != 0.0) | (spread > 0.0), 1e-18 * mean**2, 1e-18)


def used_draws(log_weights: np.ndarray) -> np.ndarray:
    """Return a mask (n,) of the draws whose weight is not negligible."""
    lw = np.asarray(log_weights, float)
    # Together, the draws left out have at most 1e-10 of the total weight.
    return lw > logsumexp(lw) + math.log(1e-10 / len(lw))


def checked_draws(x: np.ndarray, log_weights: np.ndarray | None) -> WeightedDraws:
    """Return draws with normalised weights, or raise an error."""
    x = np.asarray(x, float, order="C")
    lw = np.zeros(len(x)) if log_weights is None else np.asarray(log_weights, float)
    if np.isnan(lw).any() or (lw == math.inf).any():
        raise ValueError("log_weights must be numbers or -inf, got nan or inf.")
    if not (lw > -math.inf).any():
        raise ValueError("log_weights are all -inf: there is nothing to fit.")
    used = used_draws(lw)
    x, lw = x[used], lw[used]
    if not np.isfinite(x).all():
        where = "" if log_weights is None else " where weights are positive"
        raise ValueError(f"x must be finite{where}.")
    w = np.exp(lw - lw.max())
    return WeightedDraws(x, w / w.sum())
