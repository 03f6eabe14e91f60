"""Expectation-maximisation for mixtures of Student t distributions, and its start by weighted k-means."""

from __future__ import annotations

import math

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from amc_pymc.importance.student_t import StudentTMixture
from amc_pymc.importance.weighted_draws import WeightedDraws

__all__ = ["iterate", "labelled", "seeded_labels"]

#: Weight below which a component is dropped, regardless of its number of draws.
_LEAST_SHARE = 1e-6
#: Smallest square of a pivot of a scaled matrix that counts as regular, and the first addition to its diagonal.
_LEAST_PIVOT, _LIFT = 1e-16, 1e-14
#: Squared distance in the place of an infinite one.
_FAR = 1e300
#: Number of candidates for each further centre of k-means++, and of iterations of Lloyd's algorithm.
_CANDIDATES, _LLOYD = 4, 5


def iterate(
    draws: WeightedDraws,
    mixture: StudentTMixture,
    dofs: np.ndarray,
    *,
    target: np.ndarray | None,
    strength: float,
    n_iter: int,
    tolerance: float,
    min_draws: float,
) -> StudentTMixture:
    """Repeat steps of expectation-maximisation until the log likelihood hardly increases.

    Parameters
    ----------
    draws : WeightedDraws
    mixture : StudentTMixture
        Initial mixture.
    dofs : array (M,)
        Degrees of freedom to choose from after convergence.
    target : array (K, D, D) or None
        Cholesky factors towards which scale matrices are shrunk, each rescaled; None for the pooled matrix.
    strength : float
        Number of draws that the target is worth.
    n_iter : int
        Maximum number of iterations.
    tolerance : float
        Gain of the mean log density per draw below which iterations stop.
    min_draws : float
        Number of draws below which a component is dropped.

    Returns
    -------
    StudentTMixture
        The mixture, possibly with fewer components.
    """
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


def labelled(
    draws: WeightedDraws, labels: np.ndarray, dof: float, strength: float
) -> StudentTMixture:
    """Return the mixture with a component for the draws of each label 0, 1, ..., K - 1."""
    member = np.where(labels == np.arange(labels.max() + 1)[:, None], draws.w, 0.0)
    return _maximised(draws, member, *_draws_of(member), dof, None, strength)


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
    means = parts @ draws.x
    scatter = np.empty((len(parts), *2 * (draws.x.shape[1],)))
    for j, part in enumerate(parts):
        root = (draws.x - means[j]) * np.sqrt(part)[:, None]
        scatter[j] = root.T @ root
    share = share / share.sum()
    factors = _shrunk(scatter, counts, share, draws, target, strength)
    return StudentTMixture(share, means, factors, dof)


def _shrunk(
    scatter: np.ndarray,
    counts: np.ndarray,
    share: np.ndarray,
    draws: WeightedDraws,
    target: np.ndarray | None,
    strength: float,
) -> np.ndarray:
    """Return Cholesky factors (K, D, D) of scatter matrices shrunk towards the target."""
    d, floor = scatter.shape[1], draws.variance_floor
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
    return np.stack([_factor(m, floor) for m in (n * scatter + strength * goals) / (n + strength)])


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
