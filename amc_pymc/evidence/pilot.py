"""Look around before estimating: where the posterior is, how far from the prior, how many modes it has."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from amc_pymc.annealing import Ladder, climb, cool
from amc_pymc.evidence.conditionals import AdaptedConditionals, Conditionals, adapt_conditionals
from amc_pymc.evidence.watch import Watch
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
from amc_pymc.kernels import DiscreteMetropolis, Kernel, Particles, Path
from amc_pymc.logweights import log_mean_exp

__all__ = ["DEFENSIVE_SHARE", "Pilot", "PriorPath", "explore", "overlooked"]

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
_SCANNED, _SCANNED_DIMENSIONS, _SCAN_SCALES = 24_576, 10, (0.5, 0.35, 0.25, 0.18)
#: Points of these looked at together, and the residual that is noise beside what attracts a search.
_SCAN_BLOCK, _FAINT = 16_384, 0.02
#: Points scattered about components of the reference in a second look (as above), the range of scales,
#: and the share of them that are prior draws moved towards the components.
_SECOND, _SECOND_SCALES, _SECOND_PRIOR = 8192, (0.1, 0.7), 0.25
#: Draws by which the mass of modes that a second look finds is estimated, for each dimension and at least.
_WEIGHED, _WEIGHED_LEAST = 50, 1000
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
    missed : float
        Log evidence of modes that a second look found and the mixture does not cover.
    conditionals : Conditionals or None
        Where some coordinates are discrete, a density that draws one after the other; the proposal of
        importance sampling there.
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
    missed: float = -math.inf
    conditionals: Conditionals | None = None

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
    adapted by importance sampling. Where coordinates are discrete, regressions of each on those before
    it are fitted to the particles and adapted instead.

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
    seen = Watch(path)
    ladder = climb(
        seen if fitted else path, x, kernel, rng,
        n_moves=n_moves, n_particles=n_particles, report=report,
    )  # fmt: skip
    evaluations, gradients = ladder.evaluations + len(x), ladder.gradients
    none = np.empty((0, path.n_dim))
    if not fitted:
        nothing = Pilot(ladder, None, None, none, np.empty(0), 0.0, evaluations, gradients)
        return _with_conditionals(nothing, path, kernel, rng)
    joint = _Joint(seen)
    cold, evaluated, differentiated = cool(seen, ladder, kernel, rng)
    evaluations += evaluated
    gradients += differentiated
    sources = (
        _spread(ladder.particles.x, 3 * _STARTS, rng),
        _spread(cold, _STARTS, rng),
        _spread(path.draw_prior(4 * _STARTS, rng), 2 * _STARTS, rng),
        seen.highest(_STARTS // 2)[0],
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
    uncovered, unseen, missed = 0.0, -math.inf, none
    if adapted is not None:
        uncovered, missed = _missed(joint, path, rough, adapted, rng)
        if not len(missed):
            unseen, missed = _second_look(joint, seen, adapted, mixture, rng)
    if adapted is None or len(missed):
        current = choose_mixture(rough.x, None, rng, max_components=6)
        close = _moment(rough, None, 1.0, ladder.log_z) < _CLOSE
        attempts = 1 if close else _ATTEMPTS
        # One attempt more is left for what the second look finds at the last one.
        while adapted is None or (attempts >= 0 and len(missed)):
            attempts -= 1
            if len(missed):
                starts = np.concatenate([modes, missed])
                mixture, modes, log_evidence = _modes_and_mixture(joint, starts)
            adapted = _adapted(joint, path, _joined(current, mixture), rng)
            current = adapted.mixture
            uncovered, missed = _missed(joint, path, rough, adapted, rng)
            if attempts <= 0 or not len(missed):
                unseen, missed = _second_look(joint, seen, adapted, mixture, rng)
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
        unseen,
    )


def overlooked(seen: Watch, found: Pilot, rng: np.random.Generator) -> float:
    """Log evidence of modes that evaluations after a pilot run came across and it does not cover.

    Searches start from the highest of these points, where they are far above the fitted mixture: mostly none,
    and then nothing is evaluated.

    Parameters
    ----------
    seen : Watch
        What evaluated the points.
    found : Pilot
    rng : numpy.random.Generator

    Returns
    -------
    float
        -inf if there are none, or they hold less than a hundredth of the evidence.
    """
    if found.adapted is None or found.adapted.log_mean == -math.inf:
        return -math.inf
    x, terms = seen.highest()
    starts = _heaviest(found.adapted, x, terms)
    if not len(starts):
        return -math.inf
    return _search_again(_Joint(seen), found.adapted, found.laplace, starts, rng)[0]


def _with_conditionals(
    found: Pilot, path: PriorPath, kernel: Kernel, rng: np.random.Generator
) -> Pilot:
    """A proposal for discrete coordinates beside what was found, if the kernel moves some."""
    discrete = getattr(kernel, "discrete", kernel)
    if not isinstance(discrete, DiscreteMetropolis):
        return found
    rough = found.ladder.particles
    adapted = adapt_conditionals(
        path, rough.x, discrete.coordinates, discrete.states, rng, share=DEFENSIVE_SHARE
    )
    share, variance = _best_share(rough, adapted)
    if share == DEFENSIVE_SHARE:  # rough draws know of what the last fit may have lost
        seen = _moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0
        variance = max(variance, seen)
    return replace(
        found,
        conditionals=adapted.mixture,
        evaluations=found.evaluations + adapted.evaluations,
        share=share,
        relative_variance=variance,
    )


def _best_share(
    rough: Particles, adapted: AdaptedMixture | AdaptedConditionals
) -> tuple[float, float]:
    """Share of the prior beside the mixture, and relative variance of the weights."""
    usual, larger = (
        _moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0
        for share in (DEFENSIVE_SHARE, _LARGER_SHARE)
    )
    if larger < _GAIN * usual:
        return _LARGER_SHARE, larger
    return DEFENSIVE_SHARE, adapted.relative_variance


def _moment(
    rough: Particles, mixture: StudentTMixture | Conditionals | None, share: float, log_z: float
) -> float:
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

    @property
    def n_dim(self) -> int:
        return self._path.n_dim

    def terms(self, x: np.ndarray) -> np.ndarray:
        self.evaluations += len(x)
        return self._path.values(x)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        terms = self.terms(x)
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
    x, values, curvature = _ends(joint, *_searched(joint, starts))
    if not len(x):
        return none
    keep = distinct_modes(x, values, -curvature)[:_MODES]
    mixture = laplace_components(joint.with_gradient, x[keep], curvatures=curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    log_evidence = values[keep] + _log_volumes(mixture)
    return mixture, x[keep], log_evidence


def _searched(joint: _Joint, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where searches ended, and values."""
    found = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(found.values) & np.isfinite(found.x).all(axis=1)
    return found.x[good], found.values[good]


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
    on a fraction of its scale, where those close to the peak are least rare. Half of those returned are
    the highest above the approximation, half of them above a polynomial fitted to what it leaves.
    """
    parts, residual, excess = [], [], []
    scanned = _SCANNED * max(mixture.n_dim, _SCANNED_DIMENSIONS) // _SCANNED_DIMENSIONS
    n = scanned // (mixture.components * len(_SCAN_SCALES))
    tops = log_evidence - _log_volumes(mixture)
    for top, mean, chol in zip(tops, mixture.means, mixture.choleskys, strict=True):
        for scale in _SCAN_SCALES:
            for i in range(0, n, _SCAN_BLOCK):
                z = scale * rng.standard_normal((min(_SCAN_BLOCK, n - i), mixture.n_dim))
                near = mean + z @ chol.T
                above = joint.log_density(near) - top + 0.5 * np.vecdot(z, z)
                odd = _unexplained(z, above)
                best = _best_of_both(above, odd)
                parts.append(near[best])
                residual.append(above[best])
                excess.append(odd[best])
    x = np.concatenate(parts)
    return x[_best_of_both(np.concatenate(residual), np.concatenate(excess))]


def _best_of_both(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Indices of the largest of two kinds, each once."""
    half = _STARTS // 2
    return np.union1d(np.argsort(-one)[:half], np.argsort(-other)[:half])


def _unexplained(z: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Residuals (n,) less a polynomial in the coordinates z (n, D), over their usual size.

    A log density that is smooth but not quadratic has residuals that hide those of a peak. Points without
    density have -inf; so have all where there are too few points for a fit.
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
    """Powers of the coordinates and of the radius (n, 3 D + 2)."""
    squares = z * z
    radius = squares.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(radius), squares, squares * z, squares**2, radius**2])


def _second_look(
    joint: _Joint,
    seen: Watch,
    adapted: AdaptedMixture,
    laplace: StudentTMixture | None,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Log evidence of modes that a mixture does not cover, and these, by all points seen and new ones."""
    if adapted.log_mean == -math.inf:
        return -math.inf, np.empty((0, joint.n_dim))
    near = _scattered(seen, adapted.mixture, rng)
    blocks = [near[i : i + _SCAN_BLOCK] for i in range(0, len(near), _SCAN_BLOCK)]
    x, terms = seen.highest()
    x = np.concatenate([x, near])
    terms = np.concatenate([terms, *(joint.terms(block) for block in blocks)], axis=1)
    starts = np.concatenate([_heaviest(adapted, x, terms), seen.draw_prior(_STARTS, rng)])
    return _search_again(joint, adapted, laplace, starts, rng)


def _scattered(path: PriorPath, mixture: StudentTMixture, rng: np.random.Generator) -> np.ndarray:
    """Points about the components, each on a part of its scale or of the prior's, (n, D)."""
    d = mixture.n_dim
    n = _SECOND * max(d, _SCANNED_DIMENSIONS) // (_SCANNED_DIMENSIONS * mixture.components)
    from_prior = round(_SECOND_PRIOR * n)
    parts = []
    for mean, chol in zip(mixture.means, mixture.choleskys, strict=True):
        away = rng.standard_normal((n, d)) @ chol.T
        if from_prior:
            away[:from_prior] = path.draw_prior(from_prior, rng) - mean
        low, high = np.log(_SECOND_SCALES)
        scale = np.exp(rng.uniform(low, high, (n, 1)))
        parts.append(mean + scale * away)
    return np.concatenate(parts)


def _search_again(
    joint: _Joint,
    adapted: AdaptedMixture,
    laplace: StudentTMixture | None,
    starts: np.ndarray,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Log evidence of modes that are neither known nor covered, and these (M, D); none if negligible.

    Of the modes that searches find, those count where a weight would be large; what the region around them
    holds where weights are large is estimated by importance sampling from Laplace's approximation.
    """
    none = -math.inf, np.empty((0, joint.n_dim))
    ends, values = _searched(joint, starts)
    if not len(ends):
        return none
    thin = _log_weights(adapted, ends, joint.terms(ends)) > _THIN
    ends, values, curvatures = _ends(joint, ends[thin], values[thin])
    if laplace is not None and len(ends):
        new = _unknown(laplace, ends, curvatures)
        ends, values, curvatures = ends[new], values[new], curvatures[new]
    if not len(ends):
        return none
    mixture = laplace_components(joint.with_gradient, ends, curvatures=curvatures)
    weights = 0.5 * mixture.weights + 0.5 / mixture.components
    mixture = StudentTMixture(weights, mixture.means, mixture.choleskys, mixture.dof)
    y = mixture.sample(max(_WEIGHED_LEAST, _WEIGHED * joint.n_dim), rng)
    terms = joint.terms(y)
    thin = _log_weights(adapted, y, terms) > _THIN
    log_mass = log_mean_exp(np.where(thin, terms.sum(axis=0) - mixture.log_density(y), -np.inf))
    if log_mass - adapted.log_mean < math.log(_COVERED):
        return none
    return float(log_mass), mixture.means


def _heaviest(adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Those of some points where weights would be large."""
    log_w = _log_weights(adapted, x, terms)
    order = np.argsort(-log_w)[:_STARTS]
    return x[order[log_w[order] > _THIN]]


def _log_weights(adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Logarithms of weights over the evidence, under a mixture with its share of the prior."""
    log_q = adapted.mixture.log_density(x)
    log_f = terms.sum(axis=0)
    possible = log_f > -np.inf
    log_w = np.full(len(x), -np.inf)
    log_g = log_mixture_density(log_q, terms[0], DEFENSIVE_SHARE)
    log_w[possible] = log_f[possible] - log_g[possible] - adapted.log_mean
    return log_w


def _unknown(known: StudentTMixture, x: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """Indices of maxima that are none of the known ones."""
    inverse = np.linalg.inv(known.choleskys)
    precisions = np.concatenate([inverse.transpose(0, 2, 1) @ inverse, -curvatures])
    first = np.zeros(known.components + len(x))
    first[: known.components] = 1.0
    distinct = distinct_modes(np.concatenate([known.means, x]), first, precisions)
    return distinct[distinct >= known.components] - known.components


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
