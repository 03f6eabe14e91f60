"""Check which parts of the posterior a fitted mixture misses, and whether estimates agree within their errors."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.adapt import AdaptedMixture
from amc_pymc.evidence.annealing import Ladder
from amc_pymc.evidence.mcmc import Particles
from amc_pymc.evidence.modes import (
    distinct_ends,
    distinct_modes,
    finite,
    laplace_components,
    searched,
    spread,
)
from amc_pymc.evidence.paths import Joint, PriorPath
from amc_pymc.evidence.settings import DEFAULTS, DEFENSIVE_SHARE
from amc_pymc.logweights import effective_share, log_mean_exp
from amc_pymc.mixtures import StudentTMixture, choose_mixture, log_mixture_density


def missed_by(
    joint: Joint, rough: Particles, adapted: AdaptedMixture, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Estimate the share of the posterior that a mixture misses; also return points where it is too low, if any."""
    uncovered, alone = share_uncovered(joint, adapted, rng)
    x, first = np.unique(rough.x, axis=0, return_index=True)
    thin = heaviest(joint, adapted, x, rough.terms[:, first])
    covered = uncovered < joint.settings.covered
    return uncovered, np.concatenate([alone[:0] if covered else alone, thin])


def share_uncovered(
    joint: Joint, adapted: AdaptedMixture, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Estimate the share of the posterior where the prior dominates the proposal; also return points there."""
    drawn = joint.draw_prior(joint.settings.checked, rng)
    x = finite(drawn)  # other draws have density zero
    log_alone = _beside(adapted, x, joint.terms(x))
    if log_alone.max(initial=-math.inf) == -math.inf:
        return 0.0, x[:0]
    log_share = math.log(DEFENSIVE_SHARE) + float(log_mean_exp(log_alone)) - adapted.log_mean
    log_share += math.log(len(x) / len(drawn))
    order = np.argsort(-log_alone)[: joint.settings.starts]
    return math.exp(min(log_share, 0.0)), x[order[log_alone[order] > -math.inf]]


def effective_beside(
    path: PriorPath, adapted: AdaptedMixture | None, rng: np.random.Generator
) -> float:
    """Return the effective number of 4,096 prior draws in the regions that a fitted mixture misses.

    Importance sampling proposals contain a share of the prior. If many prior draws reach the missed regions, the
    weights there are even, and the standard error accounts for these regions. If few do, it may be too small.

    Returns
    -------
    float
        Between 0 and 4,096; 0 if there is no mixture.
    """
    if adapted is None:
        return 0.0
    x = path.draw_prior(DEFAULTS.checked, rng)
    log_w = _beside(adapted, x, path.values(x))
    log_w = log_w[log_w > -np.inf]
    return effective_share(log_w) * log_w.size if log_w.size else 0.0


def _beside(adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return log-weights (P,) of prior draws at which the prior dominates the proposal, elsewhere -inf."""
    log_q, log_f = adapted.mixture.log_density(x), terms.sum(axis=0)
    log_odds = math.log(DEFENSIVE_SHARE / (1.0 - DEFENSIVE_SHARE))
    alone = (terms[0] + log_odds > log_q) & (log_f > -np.inf)
    log_w = np.full(len(x), -np.inf)
    log_g = log_mixture_density(log_q[alone], terms[0, alone], DEFENSIVE_SHARE)
    log_w[alone] = log_f[alone] - log_g
    return log_w


def second_look(
    joint: Joint,
    adapted: AdaptedMixture,
    laplace: StudentTMixture | None,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Search for modes that a mixture misses, from past and new points; return their log evidence and locations."""
    if adapted.log_mean == -math.inf:
        return -math.inf, np.empty((0, joint.n_dim))
    near, size = _scattered(joint, adapted.one_copy, rng), joint.settings.scan_block
    blocks = [near[i : i + size] for i in range(0, len(near), size)]
    x, terms = joint.path.highest()
    x = np.concatenate([x, near])
    terms = np.concatenate([terms, *(joint.terms(block) for block in blocks)], axis=1)
    drawn = finite(joint.draw_prior(joint.settings.starts, rng))
    starts = np.concatenate([heaviest(joint, adapted, x, terms), drawn])
    return search_again(joint, adapted, laplace, starts, rng)


def _scattered(joint: Joint, mixture: StudentTMixture, rng: np.random.Generator) -> np.ndarray:
    """Draw points (n, D) around the components, on a fraction of their scale or of that of the prior."""
    d, settings = mixture.n_dim, joint.settings
    n = (
        settings.second
        * max(d, settings.scanned_dimensions)
        // (settings.scanned_dimensions * mixture.components)
    )
    from_prior = round(settings.second_prior * n)
    parts = []
    for mean, chol in zip(mixture.means, mixture.choleskys, strict=True):
        away = rng.standard_normal((n, d)) @ chol.T
        if from_prior:
            drawn = finite(joint.draw_prior(from_prior, rng))
            away[: len(drawn)] = drawn - mean
        low, high = np.log(settings.second_scales)
        scale = np.exp(rng.uniform(low, high, (n, 1)))
        parts.append(mean + scale * away)
    return np.concatenate(parts)


def search_again(
    joint: Joint,
    adapted: AdaptedMixture,
    laplace: StudentTMixture | None,
    starts: np.ndarray,
    rng: np.random.Generator,
    *,
    share: float = DEFENSIVE_SHARE,
) -> tuple[float, np.ndarray]:
    """Return the log evidence of modes that are neither known nor covered, and the modes (M, D); none if negligible.

    Only modes with a large importance weight count. The mass of the region around them where weights are large is
    estimated by importance sampling from the Laplace approximation.
    """
    none, settings = (-math.inf, np.empty((0, joint.n_dim))), joint.settings
    ends, values = searched(joint, starts)
    if not len(ends):
        return none
    thin = log_weights(adapted, ends, joint.terms(ends), share) > settings.thin
    ends, values, curvatures = distinct_ends(joint, ends[thin], values[thin])
    if laplace is not None and len(ends):
        new = _unknown(laplace, ends, curvatures)
        ends, values, curvatures = ends[new], values[new], curvatures[new]
    if not len(ends):
        return none
    mixture = laplace_components(joint.with_gradient, ends, curvatures)
    weights = 0.5 * mixture.weights + 0.5 / mixture.components
    mixture = StudentTMixture(weights, mixture.means, mixture.choleskys, mixture.dof)
    y = mixture.sample(max(settings.weighed_least, settings.weighed * joint.n_dim), rng)
    terms = joint.terms(y)
    thin = log_weights(adapted, y, terms, share) > settings.thin
    log_mass = log_mean_exp(np.where(thin, terms.sum(axis=0) - mixture.log_density(y), -np.inf))
    if log_mass - adapted.log_mean < math.log(settings.covered):
        return none
    return float(log_mass), mixture.means


def unvisited(joint: Joint, draws: np.ndarray, log_z: float, rng: np.random.Generator) -> float:
    """Return the log evidence of modes that draws (P, D) with log evidence `log_z` have not visited; -inf if none.

    Searches start from prior draws. What they find counts if a mixture fitted to some draws is far below the posterior
    there, and if few of all draws lie at such points.
    """
    settings = joint.settings
    few = draws[np.linspace(0, len(draws) - 1, settings.weighed_least).astype(int)]
    mixture = choose_mixture(few, None, rng, max_components=6)
    known = AdaptedMixture(mixture, math.inf, 0.0, log_z, np.empty(0))
    starts = spread(joint.draw_prior(4 * settings.starts, rng), settings.starts, rng)
    log_mass, _ = search_again(joint, known, None, starts, rng, share=0.0)
    if log_mass == -math.inf:
        return -math.inf
    there = log_weights(known, few, joint.terms(few), 0.0) > settings.thin
    return log_mass if 3.0 * there.mean() < math.exp(min(log_mass - log_z, 0.0)) else -math.inf


def heaviest(joint: Joint, adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return the points with large importance weights, the largest first."""
    log_w = log_weights(adapted, x, terms)
    order = np.argsort(-log_w)[: joint.settings.starts]
    return x[order[log_w[order] > joint.settings.thin]]


def log_weights(
    adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray, share: float = DEFENSIVE_SHARE
) -> np.ndarray:
    """Return log-weights less the log evidence, for the mixture with a share of the prior as the proposal."""
    log_q = adapted.mixture.log_density(x)
    log_f = terms.sum(axis=0)
    possible = log_f > -np.inf
    log_w = np.full(len(x), -np.inf)
    log_g = log_mixture_density(log_q, terms[0], share)
    log_w[possible] = log_f[possible] - log_g[possible] - adapted.log_mean
    return log_w


def _unknown(known: StudentTMixture, x: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """Return the indices of maxima that are not known yet."""
    inverse = np.linalg.inv(known.choleskys)
    precisions = np.concatenate([inverse.transpose(0, 2, 1) @ inverse, -curvatures])
    first = np.zeros(known.components + len(x))
    first[: known.components] = 1.0
    distinct = distinct_modes(np.concatenate([known.means, x]), first, precisions)
    return distinct[distinct >= known.components] - known.components


#: Relative variance of the weights in one step of a pilot run, and the factor by which the errors of pilot runs
#: exceed the sum of these steps.
PER_STEP, _CORRELATED = 1.0 / 0.6 - 1.0, 1.6
#: Effective number of prior draws with descendants below which a pilot run says nothing of the evidence.
_FEWEST = 2.0
#: Largest difference between estimates that agree: standard errors, plus nats.
_ERRORS, _NATS = 3.0, 0.1


def clearly_more(
    log_z: float, error: float, other: float, other_error: float, errors: float = _ERRORS
) -> float:
    """Return by how many nats one log evidence exceeds another; 0 if their errors explain the difference."""
    gap = log_z - other
    return gap if gap > errors * math.hypot(error, other_error) + _NATS else 0.0


def less_than_climb(log_z: float, error: float, ladder: Ladder) -> float:
    """Return by how many nats a pilot run from the prior exceeds an estimate; 0 if the errors explain it."""
    return clearly_more(ladder.log_z, prior_error(ladder), log_z, error)


def prior_error(ladder: Ladder) -> float:
    """Return a rough standard error of the log evidence from a pilot run that starts at the prior."""
    steps, particles = len(ladder.betas) - 1, len(ladder.particles.x)
    return math.hypot(_CORRELATED * math.sqrt(PER_STEP * steps / particles), share_error(ladder))


def share_error(ladder: Ladder) -> float:
    """Return the standard error of the logarithm of the share of prior draws with a positive likelihood.

    It is infinite if nearly all particles descend from one draw: this one may have come near a narrow peak by chance, and
    the pilot run then exceeds the evidence by far.
    """
    if ladder.lineages < _FEWEST:
        return math.inf
    return math.sqrt((1.0 / ladder.possible - 1.0) / ladder.drawn) if ladder.drawn else 0.0


def error_of(adapted: AdaptedMixture) -> float:
    """Return the standard error of the log evidence from an adapted mixture; inf if all weights are zero."""
    return 1.0 / math.sqrt(adapted.ess) if adapted.ess > 0.0 else math.inf
