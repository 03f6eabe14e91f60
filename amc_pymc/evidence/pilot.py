"""Look around before estimating: where the posterior is, how far from the prior, how many modes it has."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from amc_pymc.annealing import Ladder, climb, cool
from amc_pymc.importance import (
    AdaptedMixture,
    StudentTMixture,
    adapt_mixture,
    choose_mixture,
    distinct_modes,
    hessians,
    laplace_components,
    log_mixture_density,
    maximise,
)
from amc_pymc.kernels import Kernel, Particles, Path
from amc_pymc.logweights import log_mean_exp

__all__ = ["DEFENSIVE_SHARE", "Pilot", "PriorPath", "explore"]

#: Share of the prior in every fitted proposal: it bounds weights by ten times the largest likelihood.
DEFENSIVE_SHARE = 0.1
#: Share of the particles that must begin where the likelihood is positive, and how many times the
#: number of particles may be drawn to find them.
_POSSIBLE, _MOST_DRAWN = 0.25, 128
#: Points from each source that optimisation starts from, and the most modes that are kept.
_STARTS, _MODES = 32, 32
#: Standard deviations within which two searches have ended at the same place.
_SAME = 0.05
#: Share of the prior that is tried beside this, taken if the variance falls below this part.
_LARGER_SHARE, _GAIN = 0.5, 0.7
#: Second moment of the likelihood over the prior below which a mixture need not cover every tail.
_CLOSE = 5.0
#: Points scattered about modes, in up to so many dimensions (in proportion to them in more), and on which
#: fractions of their scales.
_SCANNED, _SCANNED_DIMENSIONS, _SCAN_SCALES = 32_768, 10, (0.5, 0.35, 0.25, 0.18)
#: Prior draws by which a mixture is checked, the share of the posterior it may miss, and how often it
#: is mended.
_CHECKED, _COVERED, _ATTEMPTS = 4096, 0.01, 3
#: Share of the reference on a wider scale, and how much wider: by this over the root of D.
_WIDE_SHARE, _WIDER = 0.15, 1.5
#: Logarithm of posterior over proposal beyond which the proposal is too thin.
_THIN = math.log(20.0)
#: Components that a reference has at most.
_COMPONENTS = 40
#: Relative variance at which a mixture is good enough, and at which Laplace's need not be adapted.
_ENOUGH, _LAPLACE_ENOUGH = 0.5, 0.3
#: Degrees of freedom that Laplace's mixture is tried with: many dimensions need many.
_LAPLACE_DOFS = (20.0, 100.0, 300.0)
#: Relative variance at the first of these beyond which the others are not tried.
_HOPELESS = 5.0
#: Rounds of adaptation, and of those where fits are dear because there are more dimensions than this.
_ROUNDS, _FEWER_ROUNDS, _MANY = 10, 5, 60
#: Modes whose Laplace evidence is below this many nats under the largest one are left out.
_NEGLIGIBLE = 10.0


class PriorPath(Path, Protocol):
    """A path from the prior to the posterior, with draws from the prior."""

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot run found. Nothing of it enters an unbiased estimate but by being frozen.

    Attributes
    ----------
    ladder : Ladder
        Of the path from the prior.
    adapted : AdaptedMixture or None
        A mixture fitted to the posterior; None where some coordinates are discrete.
    laplace : StudentTMixture or None
        A component at each mode.
    modes : array (M, D)
    mode_log_evidence : array (M,)
        Laplace approximations.
    uncovered : float
        Share of the posterior where the prior's tenth of the proposal is more than the mixture's nine
        tenths: what the mixture has missed and prior draws have seen.
    evaluations, gradients : int
    share : float
        Of the prior in proposals of importance sampling.
    relative_variance : float
        Expected of their weights.
    """

    ladder: Ladder
    adapted: AdaptedMixture | None
    laplace: StudentTMixture | None
    modes: np.ndarray
    mode_log_evidence: np.ndarray
    uncovered: float
    evaluations: int
    gradients: int
    share: float = DEFENSIVE_SHARE
    relative_variance: float = math.inf

    @cached_property
    def reference(self) -> StudentTMixture | None:
        """The fitted mixture, a part of it on a wider scale: posteriors have longer tails than fits."""
        return None if self.adapted is None else _widened(self.adapted.mixture)


def explore(
    path: PriorPath,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    n_particles: int = 512,
    n_moves: int = 3,
    fitted: bool = True,
    report: Callable[[], None] | None = None,
) -> Pilot:
    """Find the posterior, its modes, and a mixture close to it.

    Particles climb from the prior to the posterior by adaptive sequential Monte Carlo and are then
    cooled further, in search of narrow peaks. Where they end, and from prior draws, modes are
    searched for; a mixture of Student t distributions at the modes and of the particles is then
    adapted by importance sampling.

    Parameters
    ----------
    path : PriorPath
    kernel : Kernel
    rng : numpy.random.Generator
    n_particles, n_moves : int
        Of the climb.
    fitted : bool
        Whether to look for modes and to fit a mixture: not where coordinates are discrete.
    report : callable, optional
        Called now and then.

    Returns
    -------
    Pilot
    """
    x = _enough_draws(path, n_particles, rng)
    ladder = climb(path, x, kernel, rng, n_moves=n_moves, n_particles=n_particles, report=report)
    evaluations, gradients = ladder.evaluations + len(x), ladder.gradients
    none = np.empty((0, path.n_dim))
    if not fitted:
        return Pilot(ladder, None, None, none, np.empty(0), 0.0, evaluations, gradients)
    joint = _Joint(path)
    cold, evaluated, differentiated = cool(path, ladder, kernel, rng)
    evaluations += evaluated
    gradients += differentiated
    sources = (
        _spread(ladder.particles.x, 3 * _STARTS, rng),
        _spread(cold, _STARTS, rng),
        _spread(path.draw_prior(4 * _STARTS, rng), 2 * _STARTS, rng),
    )
    starts = np.concatenate(sources)
    mixture, modes, log_evidence = _modes_and_mixture(joint, starts)
    if mixture is not None:
        odd = _scan(joint, mixture, log_evidence, rng)
        mixture, modes, log_evidence = _modes_and_mixture(joint, np.concatenate([modes, odd]))
    if report is not None:
        report()
    rough = ladder.particles
    adapted = None if mixture is None else _laplace(joint, path, mixture, rng)
    uncovered, missed = 0.0, none
    if adapted is not None:
        uncovered, missed = _missed(joint, path, rough, adapted, rng)
    if adapted is None or len(missed):
        current = choose_mixture(rough.x, None, rng, max_components=6)
        close = _moment(rough, None, 1.0, ladder.log_z) < _CLOSE
        for _ in range(1 if close else _ATTEMPTS):
            if len(missed):
                starts = np.concatenate([modes, missed])
                mixture, modes, log_evidence = _modes_and_mixture(joint, starts)
            adapted = _adapted(joint, path, _joined(current, mixture), rng)
            current = adapted.mixture
            uncovered, missed = _missed(joint, path, rough, adapted, rng)
            if not len(missed):
                break
    assert adapted is not None
    share, variance = _best_share(rough, adapted)
    return Pilot(
        ladder,
        adapted,
        mixture,
        modes,
        log_evidence,
        uncovered,
        evaluations + joint.evaluations,
        gradients + joint.gradients,
        share,
        variance,
    )


def _best_share(rough: Particles, adapted: AdaptedMixture) -> tuple[float, float]:
    """Share of the prior beside the mixture, and relative variance of the weights."""
    usual, larger = (
        _moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0
        for share in (DEFENSIVE_SHARE, _LARGER_SHARE)
    )
    if larger < _GAIN * usual:
        return _LARGER_SHARE, larger
    return DEFENSIVE_SHARE, adapted.relative_variance


def _moment(rough: Particles, mixture: StudentTMixture | None, share: float, log_z: float) -> float:
    """Second moment of weights over the square of their mean, from posterior draws: E[f / g] / Z."""
    log_f, log_g = rough.terms.sum(axis=0), rough.terms[0]
    if mixture is not None:
        log_g = log_mixture_density(mixture.log_density(rough.x), log_g, share)
    return math.exp(min(float(log_mean_exp(log_f - log_g)) - log_z, 700.0))


def _adapted(
    joint: _Joint,
    path: PriorPath,
    mixture: StudentTMixture,
    rng: np.random.Generator,
    rounds: int | None = None,
) -> AdaptedMixture:
    """A mixture adapted by importance sampling; with one round it is only judged."""
    if rounds is None:
        rounds = _ROUNDS if path.n_dim <= _MANY else _FEWER_ROUNDS
    return adapt_mixture(
        joint.log_density,
        joint.log_prior,
        path.draw_prior,
        mixture,
        rng,
        rounds=rounds,
        n_per_round=max(500, 100 * path.n_dim),
        share=DEFENSIVE_SHARE,
        enough=_ENOUGH,
        max_components=min(mixture.components + 4, _COMPONENTS),
    )


def _laplace(
    joint: _Joint, path: PriorPath, mixture: StudentTMixture, rng: np.random.Generator
) -> AdaptedMixture | None:
    """Laplace's mixture, where the posterior is so close to it that nothing better need be fitted."""
    important = _important(mixture)
    for dof in _LAPLACE_DOFS:
        other = StudentTMixture(important.weights, important.means, important.choleskys, dof)
        found = _adapted(joint, path, other, rng, rounds=1)
        if found.relative_variance <= _LAPLACE_ENOUGH:
            return found
        if found.relative_variance > _HOPELESS:
            return None
    return None


class _Joint:
    """Log prior times likelihood; keeps the prior at the last points asked for."""

    def __init__(self, path: Path):
        self._path = path
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self.evaluations = self.gradients = 0

    def log_density(self, x: np.ndarray) -> np.ndarray:
        self.evaluations += len(x)
        terms = self._path.values(x)
        self._last = x, terms[0]
        return terms.sum(axis=0)

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        self.evaluations += len(x)
        return self._path.values(x)[0]

    def with_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        terms, gradients = self._path.gradients(x)
        self.gradients += len(x)
        return terms.sum(axis=0), gradients.sum(axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.with_gradient(x)[1]


def _enough_draws(path: PriorPath, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws from the prior, n of them, or more where the likelihood is zero at most."""
    x = path.draw_prior(n, rng)
    possible = np.count_nonzero(path.values(x)[1] > -np.inf)
    while possible < _POSSIBLE * n and len(x) < _MOST_DRAWN * n:
        more = path.draw_prior(len(x), rng)
        possible += np.count_nonzero(path.values(more)[1] > -np.inf)
        x = np.concatenate([x, more])
    return x


def _spread(x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Some points, far from each other: each next one is the furthest of those left."""
    x = np.unique(x[np.isfinite(x).all(axis=1)], axis=0)
    if len(x) <= n:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    chosen = [int(rng.integers(len(x)))]
    distance = np.full(len(x), math.inf)
    for _ in range(n - 1):
        distance = np.minimum(distance, ((z - z[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(distance.argmax()))
    return x[chosen]


def _modes_and_mixture(
    joint: _Joint, starts: np.ndarray
) -> tuple[StudentTMixture | None, np.ndarray, np.ndarray]:
    """Modes reached from the starts, the important ones as components, Laplace evidences of these."""
    none = None, np.empty((0, starts.shape[1])), np.empty(0)
    found = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(found.values) & np.isfinite(found.x).all(axis=1)
    if not good.any():
        return none
    x, values, curvature = _ends(joint, found.x[good], found.values[good])
    if not len(x):
        return none
    keep = distinct_modes(x, values, -curvature)[:_MODES]
    mixture = laplace_components(joint.with_gradient, x[keep], curvatures=curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    log_evidence = values[keep] + _log_volumes(mixture)
    return mixture, x[keep], log_evidence


def _ends(
    joint: _Joint, x: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where searches ended, the highest first, with values and Hessians; few of those at one place.

    Most searches end at the same modes. They are left out before their curvature is looked at, so that a
    lower mode is not crowded out by those that found a higher one.
    """
    left = np.argsort(-values)
    kept: list[int] = []
    curvatures: list[np.ndarray] = []
    while left.size and len(kept) < 3 * _MODES:
        i, left = left[0], left[1:]
        curvature = hessians(joint.gradient, x[[i]])[0]
        if not np.isfinite(curvature).all() or not curvature.any():
            continue
        kept.append(i)
        curvatures.append(curvature)
        eigenvalues, vectors = np.linalg.eigh(curvature)
        away = (x[left] - x[i]) @ vectors * np.sqrt(np.abs(eigenvalues))
        left = left[np.linalg.norm(away, axis=1) > _SAME]
    d = x.shape[1]
    return x[kept], values[kept], np.array(curvatures).reshape(-1, d, d)


def _scan(
    joint: _Joint, mixture: StudentTMixture, log_evidence: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Points near modes where the density is far above its Gaussian approximation: another mode's.

    A narrow peak close to a wide mode is on no search's way up. Points are scattered about each mode
    on a fraction of its scale, where those close to the peak are least rare.
    """
    x, residual = [], []
    scanned = _SCANNED * max(mixture.n_dim, _SCANNED_DIMENSIONS) // _SCANNED_DIMENSIONS
    n = scanned // (mixture.components * len(_SCAN_SCALES))
    tops = log_evidence - _log_volumes(mixture)
    for top, mean, chol in zip(tops, mixture.means, mixture.choleskys, strict=True):
        for scale in _SCAN_SCALES:
            z = scale * rng.standard_normal((n, mixture.n_dim))
            near = mean + z @ chol.T
            x.append(near)
            residual.append(joint.log_density(near) - top + 0.5 * np.vecdot(z, z))
    order = np.argsort(-np.concatenate(residual))[:_STARTS]
    return np.concatenate(x)[order]


def _missed(
    joint: _Joint, path: PriorPath, rough: Particles, adapted: AdaptedMixture, rng
) -> tuple[float, np.ndarray]:
    """Share of the posterior that a mixture misses, and points there; none if it is good enough."""
    uncovered, alone = _uncovered(joint, path, adapted, rng)
    thin = _thin(rough, adapted)
    return uncovered, np.concatenate([alone if uncovered >= _COVERED else alone[:0], thin])


def _uncovered(
    joint: _Joint, path: PriorPath, adapted: AdaptedMixture, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Share of the posterior that only the prior's part of the proposal reaches, and points there."""
    x = path.draw_prior(_CHECKED, rng)
    log_f = joint.log_density(x)
    log_prior, log_q = joint.log_prior(x), adapted.mixture.log_density(x)
    log_w = log_f - log_mixture_density(log_q, log_prior, DEFENSIVE_SHARE)
    log_odds = math.log(DEFENSIVE_SHARE / (1.0 - DEFENSIVE_SHARE))
    alone = (log_prior + log_odds > log_q) & (log_f > -np.inf)
    if not alone.any():
        return 0.0, x[:0]
    log_alone = np.where(alone, log_w, -np.inf)
    log_share = math.log(DEFENSIVE_SHARE) + float(log_mean_exp(log_alone)) - adapted.log_mean
    order = np.argsort(-log_alone)[: min(_STARTS, int(alone.sum()))]
    return math.exp(min(log_share, 0.0)), x[order]


def _widened(mixture: StudentTMixture) -> StudentTMixture:
    """Each component once more, wider, for a share of its weight."""
    factor = 1.0 + _WIDER / math.sqrt(mixture.n_dim)
    return StudentTMixture(
        np.concatenate([(1.0 - _WIDE_SHARE) * mixture.weights, _WIDE_SHARE * mixture.weights]),
        np.concatenate([mixture.means, mixture.means]),
        np.concatenate([mixture.choleskys, factor * mixture.choleskys]),
        mixture.dof,
    )


def _thin(rough: Particles, adapted: AdaptedMixture) -> np.ndarray:
    """Those of some rough posterior draws where the proposal is far below the posterior."""
    x, first = np.unique(rough.x, axis=0, return_index=True)
    log_f, log_prior = rough.terms.sum(axis=0)[first], rough.terms[0, first]
    log_q = adapted.mixture.log_density(x)
    log_w = log_f - log_mixture_density(log_q, log_prior, DEFENSIVE_SHARE) - adapted.log_mean
    order = np.argsort(-log_w)[:_STARTS]
    return x[order[log_w[order] > _THIN]]


def _log_volumes(mixture: StudentTMixture) -> np.ndarray:
    """Logarithms of (2 pi)^(D/2) |S|^(1/2), (K,)."""
    diagonals = np.diagonal(mixture.choleskys, axis1=1, axis2=2)
    return np.log(diagonals).sum(axis=1) + 0.5 * mixture.n_dim * math.log(2.0 * math.pi)


def _important(mixture: StudentTMixture) -> StudentTMixture:
    """Without components of no weight."""
    keep = mixture.weights > mixture.weights.max() * math.exp(-_NEGLIGIBLE)
    weights = mixture.weights[keep] / mixture.weights[keep].sum()
    return StudentTMixture(weights, mixture.means[keep], mixture.choleskys[keep], mixture.dof)


def _joined(rough: StudentTMixture, modes: StudentTMixture | None) -> StudentTMixture:
    """Half of the particles' mixture, half of the modes'."""
    if modes is None:
        return rough
    modes = _important(modes)
    return StudentTMixture(
        np.concatenate([0.5 * rough.weights, 0.5 * modes.weights]),
        np.concatenate([rough.means, modes.means]),
        np.concatenate([rough.choleskys, modes.choleskys]),
        rough.dof,
    )
