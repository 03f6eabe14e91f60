"""Steps of expectation-maximisation for mixtures of Student t distributions."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.special import logsumexp

from amc_pymc.importance.small_fits import climb, nearest_after_moves, squares
from amc_pymc.importance.student_t import StudentTMixture

__all__ = [
    "MixtureShape",
    "WeightedDraws",
    "as_dofs",
    "checked_draws",
    "components_subset",
    "iterate",
    "mixture_of_labels",
    "seeded_labels",
    "used_draws",
    "variance_floor",
    "with_dof",
]


#: Weight below which a component is dropped, regardless of its number of draws.
_LEAST_SHARE = 1e-6

#: Number of iterations of Lloyd's algorithm after seeding.
_LLOYD = 5

#: Number of candidates for each further centre.
_CANDIDATES = 4


class WeightedDraws(NamedTuple):
    """Finite draws and their normalised weights."""

    x: np.ndarray
    w: np.ndarray

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return 1.0 / float(self.w @ self.w)


class MixtureShape(NamedTuple):
    """Shrinkage target of the scale matrices: Cholesky factors (K, D, D), or None for the pooled matrix."""

    factors: np.ndarray | None
    strength: float
    floor: np.ndarray


def used_draws(x: np.ndarray, log_weights: np.ndarray | None) -> np.ndarray:
    """Return a mask (n,) of the draws whose weight is not negligible."""
    if log_weights is None:
        return np.ones(len(x), bool)
    lw = np.asarray(log_weights, float)
    # Together, the draws left out have at most 1e-10 of the total weight.
    return lw > logsumexp(lw) + math.log(1e-10 / len(lw))


def checked_draws(x: np.ndarray, log_weights: np.ndarray | None) -> WeightedDraws:
    """Return draws with normalised weights, or raise an error."""
    x = np.asarray(x, float)
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"x must have shape (n, D), got {x.shape}.")
    if log_weights is None:
        if not np.isfinite(x).all():
            raise ValueError("x must be finite.")
        return WeightedDraws(x, np.full(len(x), 1.0 / len(x)))
    lw = np.asarray(log_weights, float)
    if lw.shape != (len(x),):
        raise ValueError(f"log_weights must have shape ({len(x)},), got {lw.shape}.")
    if np.isnan(lw).any() or (lw == math.inf).any():
        raise ValueError("log_weights must be numbers or -inf, got nan or inf.")
    if not (lw > -math.inf).any():
        raise ValueError("log_weights are all -inf: there is nothing to fit.")
    used = used_draws(x, lw)
    x, lw = x[used], lw[used]
    if not np.isfinite(x).all():
        raise ValueError("x must be finite where weights are positive.")
    w = np.exp(lw - lw.max())
    return WeightedDraws(x, w / w.sum())


def as_dofs(
    dof: float | Sequence[float] | None, start: StudentTMixture | None
) -> tuple[float, ...]:
    """Return the degrees of freedom among which the fit chooses."""
    if dof is None:
        return (start.dof if start is not None else 5.0,)
    found = tuple(float(v) for v in np.atleast_1d(np.asarray(dof, float)))
    if not found or not all(v > 0.0 for v in found):
        raise ValueError(f"dof must be positive, got {dof!r}.")
    return found


def with_dof(mixture: StudentTMixture, dof: float) -> StudentTMixture:
    """Return the mixture with other degrees of freedom."""
    return StudentTMixture(mixture.weights, mixture.means, mixture.choleskys, dof)


def variance_floor(draws: WeightedDraws) -> np.ndarray:
    """Return variances (D,) that count as zero: roughly the squared rounding error of a draw."""
    mean = draws.w @ draws.x
    spread = draws.w @ (draws.x - mean) ** 2
    return np.where((mean != 0.0) | (spread > 0.0), 1e-18 * mean**2, 1e-18)


def seeded_labels(draws: WeightedDraws, k: int, rng: np.random.Generator | None) -> np.ndarray:
    """Assign components (n,) by weighted k-means++ and a few iterations of Lloyd's algorithm."""
    x, w = draws
    if k == 1:
        return np.zeros(len(x), int)
    assert rng is not None
    spread = w @ (x - w @ x) ** 2
    z = (x - w @ x) / np.sqrt(np.maximum(spread, variance_floor(draws)))
    centres = z[_draw(w, rng)]
    nearest = squares(z, centres)[0]
    while len(centres) < k and (w @ nearest) > 0.0:
        # Greedy k-means++: of a few candidates, keep the one with the smallest remaining distances.
        tries = z[_draw(w * nearest, rng, _CANDIDATES)]
        left = np.minimum(nearest, squares(z, tries))
        best = (left @ w).argmin()
        centres, nearest = np.vstack([centres, tries[best]]), left[best]
    return nearest_after_moves(z, w, centres, _LLOYD)


def _draw(mass: np.ndarray, rng: np.random.Generator, n: int = 1) -> np.ndarray:
    """Draw indices (n,) in proportion to a mass."""
    total = np.cumsum(mass)
    found = np.searchsorted(total, rng.random(n) * total[-1], side="right")
    return np.minimum(found, len(mass) - 1)


def mixture_of_labels(
    draws: WeightedDraws, labels: np.ndarray, shape: MixtureShape, dofs: tuple[float, ...]
) -> StudentTMixture:
    """Fit one component to the draws of each label."""
    _, labels = np.unique(labels, return_inverse=True)
    resp = (labels == np.arange(labels.max() + 1)[:, None]).astype(float)
    return _maximised(draws, resp, resp, shape, dofs[len(dofs) // 2])


def iterate(
    draws: WeightedDraws,
    mixture: StudentTMixture,
    shape: MixtureShape,
    dofs: tuple[float, ...],
    n_iter: int,
    tolerance: float,
    min_draws: float,
) -> StudentTMixture:
    """Repeat steps of expectation-maximisation until the log likelihood hardly increases."""
    done = 0
    if shape.factors is None and dofs == (mixture.dof,) and math.isfinite(mixture.dof):
        regular, done, mixture = _climbed(draws, mixture, shape, n_iter, tolerance, min_draws)
        if regular:
            return mixture
    last = -math.inf
    for _ in range(done, n_iter):
        terms, distances = mixture.log_terms(draws.x)
        top = terms.max(axis=0)
        # A draw infinitely far from all components belongs to the one of highest weight.
        lost = top == -math.inf
        if lost.any():
            nearest = np.where(mixture.weights == mixture.weights.max(), 0.0, -math.inf)
            terms[:, lost], distances[:, lost], top[lost] = nearest[:, None], 1e300, 0.0
        resp = np.exp(terms - top)
        total = resp.sum(axis=0)
        resp /= total
        keep = _kept(draws, resp, min_draws)
        if not keep.all():
            mixture, shape = components_subset(mixture, keep), _subset_shape(shape, keep)
            last = -math.inf
            continue
        value = float(draws.w @ (np.log(total) + top))
        if value - last < tolerance:
            other = _likeliest_dof(draws, mixture, distances, dofs)
            if other.dof == mixture.dof:
                break
            mixture, last = other, -math.inf
            continue
        last = value
        mixture = _maximised(draws, resp, mixture.shrinkage(distances), shape, mixture.dof)
    return mixture


def _climbed(
    draws: WeightedDraws, mixture: StudentTMixture, shape: MixtureShape, n_iter: int, tolerance: float,
    min_draws: float,
) -> tuple[bool, int, StudentTMixture]:  # fmt: skip
    """Iterate by compiled code; return whether all was regular, the number of iterations, and the mixture."""
    regular, done, weights, means, factors = climb(
        np.ascontiguousarray(draws.x), draws.w, mixture.weights, mixture.means, mixture.choleskys, mixture.dof,
        mixture.log_peak, shape.strength, shape.floor, draws.ess, n_iter, tolerance, min_draws, _LEAST_SHARE,
    )  # fmt: skip
    return regular, done, StudentTMixture(weights, means, factors, mixture.dof)


def _kept(draws: WeightedDraws, resp: np.ndarray, min_draws: float) -> np.ndarray:
    """Return a mask (K,) of the components with enough draws; the heaviest is always kept."""
    member = resp * draws.w
    share = member.sum(axis=1)
    squares = np.einsum("kn,kn->k", member, member)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(squares > 0.0, share**2 / squares, 0.0)
    keep = np.maximum(own, share * draws.ess) >= min_draws
    keep &= share > _LEAST_SHARE
    keep[share.argmax()] = True
    return keep


def components_subset(mixture: StudentTMixture, keep: np.ndarray) -> StudentTMixture:
    """Return the mixture of some of its components."""
    weights = mixture.weights[keep]
    total = weights.sum()
    weights = weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))
    return StudentTMixture(weights, mixture.means[keep], mixture.choleskys[keep], mixture.dof)


def _subset_shape(shape: MixtureShape, keep: np.ndarray) -> MixtureShape:
    return shape if shape.factors is None else shape._replace(factors=shape.factors[keep])


def _likeliest_dof(
    draws: WeightedDraws, mixture: StudentTMixture, distances: np.ndarray, dofs: tuple[float, ...]
) -> StudentTMixture:
    if len(dofs) == 1:
        return mixture
    best, best_value = mixture, -math.inf
    for dof in dofs:
        candidate = with_dof(mixture, dof)
        value = float(draws.w @ candidate.log_density_at(distances))
        if value > best_value:
            best, best_value = candidate, value
    return best


def _maximised(
    draws: WeightedDraws, resp: np.ndarray, precision: np.ndarray, shape: MixtureShape, dof: float
) -> StudentTMixture:
    """Perform the M-step from responsibilities and precision factors (K, n)."""
    x, w = draws
    k, d = len(resp), x.shape[1]
    member = resp * w
    weights = member.sum(axis=1)
    counts = weights**2 / np.einsum("kn,kn->k", member, member)
    member *= precision
    mass = member.sum(axis=1)
    means = (member @ x) / mass[:, None]
    scatter = np.empty((k, d, d))
    for j in range(k):
        centred = x - means[j]
        weighted = centred * np.sqrt(member[j] / mass[j])[:, None]
        scatter[j] = weighted.T @ weighted
    factors = _shrunk_factors(scatter, counts, weights, shape, draws.ess)
    return StudentTMixture(weights / weights.sum(), means, factors, dof)


def _shrunk_factors(
    scatter: np.ndarray, counts: np.ndarray, weights: np.ndarray, shape: MixtureShape, ess: float
) -> np.ndarray:
    k, d, _ = scatter.shape
    extra = shape.strength
    if shape.factors is None:
        pooled = np.tensordot(weights / weights.sum(), scatter, 1)
        diagonal = np.diag(np.maximum(np.diagonal(pooled), shape.floor))
        target = (ess * pooled + extra * diagonal) / (ess + extra)
        target += np.diag(shape.floor)
    out = np.empty_like(scatter)
    for j in range(k):
        n = counts[j]
        if shape.factors is not None:
            factor = shape.factors[j]
            z = solve_triangular(factor, scatter[j], lower=True)
            size = float(np.trace(solve_triangular(factor, z.T, lower=True))) / d
            # The size uses all d coordinates, so it is shrunk d + 1 times less. One draw does not determine it.
            few = extra / (d + 1.0)
            size = (n * size + few) / (max(n - 1.0, 0.0) + few) if few > 0.0 else 1.0
            target = size * (factor @ factor.T)
        out[j] = _factor((n * scatter[j] + extra * target) / (n + extra), shape.floor)
    return out


def _factor(matrix: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
    """Return the Cholesky factor, after adding to the scaled diagonal if the matrix is singular."""
    diagonal = np.diagonal(matrix)
    scale = np.sqrt(diagonal if floor is None else np.maximum(diagonal, floor))
    unit = matrix / np.outer(scale, scale)
    lift = 0.0
    while True:
        try:
            found = cholesky(unit + lift * np.eye(len(unit)), lower=True, check_finite=False)
            if found.diagonal().min() > 1e-8:
                return scale[:, None] * found
        except LinAlgError:
            pass
        lift = max(10.0 * lift, 1e-14)
