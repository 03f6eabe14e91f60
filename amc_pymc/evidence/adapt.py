"""Fit a mixture to the posterior by adaptive importance sampling, and check what the mixture misses."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scipy.special import logsumexp

from amc_pymc.evidence.annealing import Ladder
from amc_pymc.evidence.mcmc import Particles
from amc_pymc.evidence.modes import (
    DEFAULTS,
    Joint,
    distinct_ends,
    distinct_modes,
    finite,
    laplace_components,
    searched,
    spread,
)
from amc_pymc.evidence.paths import PriorPath, importance_log_weights
from amc_pymc.evidence.symmetry import Images
from amc_pymc.logweights import effective_share, log_mean_exp
from amc_pymc.mixtures import (
    DEFENSIVE_SHARE,
    StudentTMixture,
    choose_mixture,
    drop_component,
    fit_student_t_mixture,
    information_criterion,
    log_mixture_density,
    split_component,
)

type LogDensity = Callable[[np.ndarray], np.ndarray]
type Draws = Callable[[int, np.random.Generator], np.ndarray]

#: Degrees of freedom to choose from.
_DOFS = (3.0, 5.0, 10.0, 20.0, 40.0)
#: Effective sample size, as a multiple of D + 1, below which weights are tempered.
_LEAST = 2.0
#: Share of the draws of a round that is spread evenly over the components.
_EVEN = 0.3
#: Largest loss of mean log density, in nats, at which removing a component is tried.
_MOST = 0.5
#: Maximum number of iterations of one fit, the gain in nats below which they stop, and the strength of the shrinkage
#: towards the last mixture.
_FIT: dict[str, Any] = {"n_iter": 30, "tolerance": 5e-3, "ridge": 3.0}
#: Smallest reduction of the variance that is progress.
_PROGRESS = 0.1
#: Number of rounds without progress after which adaptation ends.
_PATIENCE = 3
#: Relative variance above which lack of progress does not end the adaptation.
_WILD = 5.0


class AdaptedMixture(NamedTuple):
    """Result of :func:`adapt_mixture`.

    Attributes
    ----------
    mixture : StudentTMixture
        Best mixture among those that were sampled; with images, that of all of them.
    relative_variance : float
        Relative variance of the weights under the defensive mixture: the larger of the estimates from the draws
        of its own round, which were not used in its fit, and from all draws. inf if no draw has positive density.
    ess : float
        Effective sample size of all draws.
    log_mean : float
        Estimate of log Z from all draws; consistent but biased, because proposals were fitted to earlier draws.
    relative_variances : array (rounds,)
        Relative variances for the mixtures of all rounds, estimated at the end.
    folded : StudentTMixture or None
        With images, the mixture that they are images of; else None or the mixture itself.
    """

    mixture: StudentTMixture
    relative_variance: float
    ess: float
    log_mean: float
    relative_variances: np.ndarray
    folded: StudentTMixture | None = None

    @property
    def one_copy(self) -> StudentTMixture:
        """The mixture without its images."""
        return self.mixture if self.folded is None else self.folded


class Record:
    """All draws so far, with the log densities of the tested mixtures and of the sources drawn from.

    A source is a tested mixture with more even weights. Both are defensive: they contain a share of the
    prior.
    """

    def __init__(self, n_dim: int, share: float, prior_log_density: LogDensity):
        self.share, self.prior_log_density = share, prior_log_density
        self.tested: list[StudentTMixture] = []
        self.sources: list[StudentTMixture] = []
        self.counts: list[int] = []
        self.own: list[float] = []
        self.x = np.empty((0, n_dim))
        self.log_target, self.log_prior = np.empty(0), np.empty(0)
        self.log_tested, self.log_sources = np.empty((2, 0, 0))

    def log_defensive(self, mixture: StudentTMixture, rows: slice = slice(None)) -> np.ndarray:
        """Evaluate the log density of a mixture with its share of the prior at the draws."""
        log_q = mixture.log_density(self.x[rows])
        return log_mixture_density(log_q, self.log_prior[rows], self.share)

    def add(
        self,
        tested: StudentTMixture,
        source: StudentTMixture,
        x: np.ndarray,
        log_target: np.ndarray,
    ) -> None:
        """Add the draws of a source."""
        old, new = slice(0, len(self.x)), slice(len(self.x), len(self.x) + len(x))
        self.x = np.concatenate([self.x, x])
        self.log_target = np.concatenate([self.log_target, log_target])
        self.log_prior = np.concatenate([self.log_prior, self.prior_log_density(x)])
        self.tested.append(tested)
        self.sources.append(source)
        self.counts.append(len(x))
        rounds = len(self.counts)
        log_tested, log_sources = np.empty((2, rounds, len(self.x)))
        log_tested[:-1, old], log_sources[:-1, old] = self.log_tested, self.log_sources
        for k in range(rounds):
            rows = slice(None) if k == rounds - 1 else new
            log_tested[k, rows] = self.log_defensive(self.tested[k], rows)
            log_sources[k, rows] = log_tested[k, rows]
            if self.sources[k] is not self.tested[k]:
                log_sources[k, rows] = self.log_defensive(self.sources[k], rows)
        self.log_tested, self.log_sources = log_tested, log_sources
        self.own.append(
            _relative_variance(log_target - log_sources[-1, new], log_target - log_tested[-1, new])
        )

    def log_drawn(self) -> np.ndarray:
        """Return the log density (N,) of the mixture of all sources (balance heuristic)."""
        shares = np.array(self.counts)[:, None] / len(self.x)
        return logsumexp(self.log_sources, axis=0, b=shares)

    def relative_variances(self, log_weights: np.ndarray) -> np.ndarray:
        """Return the relative variance (rounds,) for each tested mixture, from its own draws or all, if larger."""
        by_all = [_relative_variance(log_weights, self.log_target - g) for g in self.log_tested]
        if log_weights.max() == -math.inf:
            return np.full(len(by_all), math.inf)
        return np.maximum(by_all, np.where(np.isfinite(self.own), self.own, 0.0))


def adapt_mixture(
    log_target: LogDensity,
    prior_log_density: LogDensity,
    prior_draws: Draws,
    mixture: StudentTMixture,
    rng: np.random.Generator,
    *,
    rounds: int = 10,
    n_per_round: int = 1000,
    share: float = 0.1,
    max_components: int = 6,
    enough: float = 0.2,
    images: Images | None = None,
) -> AdaptedMixture:
    r"""Fit a Student t mixture to a posterior by adaptive multiple importance sampling.

    Round t draws from :math:`g_t = (1 - s) q_t + s\,p` with a share s of the prior p. The draws of all
    rounds are weighted by the mixture of all proposals,

    .. math:: w_i = f(x_i) \Big/ \sum_t \frac{n_t}{N}\, g_t(x_i),

    (adaptive multiple importance sampling, Cornuet, Marin, Mira & Robert 2012, Scandinavian Journal of
    Statistics 39:798-812, doi:10.1111/j.1467-9469.2011.00756.x; Owen & Zhou 2000). The next mixture is
    fitted to them by :func:`fit_student_t_mixture`, starting from the last one, with weights truncated at
    :math:`\sqrt N` times their mean (Ionides 2008, doi:10.1198/106186008X320456). If the effective sample
    size is below 2 (D + 1), the mixture is fitted to :math:`f^\gamma q_t^{1 - \gamma}` instead, with the
    largest gamma that reaches it, so a mixture far from the posterior approaches it in steps. Once gamma
    is one, redundant components are dropped, and the one that adds most to the variance is split, as long
    as :func:`information_criterion` improves. Part of a round is spread evenly over the components to
    detect components with far too little weight.

    Parameters
    ----------
    log_target : callable
        Function of points (n, D) that returns log f (n,), the log of prior times likelihood; may be -inf.
    prior_log_density : callable
        Function of points (n, D) that returns the log density (n,) of the prior.
    prior_draws : callable
        Function ``(n, rng)`` that returns independent prior draws (n, D); not used if `share` is zero. Draws that
        are not finite have weight zero.
    mixture : StudentTMixture
        Initial mixture, such as :func:`laplace_components`.
    rng : numpy.random.Generator
    rounds : int, default 10
        Maximum number of rounds; the last one is only a check.
    n_per_round : int, default 1000
        Draws per round; 100 D are recommended above ten dimensions.
    share : float, default 0.1
        Share s of the prior in each round and in the weights whose variance is estimated; rounded to a number
        of draws, at least one unless it is zero.
    max_components : int, default 6
        Maximum number of components after splits; the initial mixture may have more.
    enough : float, default 0.2
        Relative variance at which adaptation ends. A perfect q has s / (1 - s). It also ends after three successive
        rounds that do not reduce the variance by a tenth.
    images : Images, optional
        Symmetries of f. Draws are made from the images of the mixture, which is fitted to one image of each draw.

    Returns
    -------
    AdaptedMixture

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> prior = lambda x: -0.5 * (x[:, 0] / 10.0) ** 2 - np.log(10.0 * np.sqrt(2.0 * np.pi))
    >>> likelihood = lambda x: 3.0 * x[:, 0] - np.exp(x[:, 0])
    >>> start = StudentTMixture([1.0], [[3.0]], [[[1.0]]], 5.0)
    >>> found = adapt_mixture(
    ...     lambda x: prior(x) + likelihood(x),
    ...     prior,
    ...     lambda n, rng: 10.0 * rng.standard_normal((n, 1)),
    ...     start,
    ...     as_generator(1),
    ... )
    >>> bool(abs(found.mixture.means[0, 0] - 1.0) < 0.3), bool(found.relative_variance < 0.25)
    (True, True)
    """
    from_prior = min(max(round(share * n_per_round), 1), n_per_round - 1) if share > 0.0 else 0
    record = Record(mixture.n_dim, from_prior / n_per_round, prior_log_density)
    spread = (lambda q: q) if images is None else images.spread
    waited, tested = 0, list[StudentTMixture]()
    for number in range(rounds):
        whole = spread(mixture)
        source = whole
        if number < rounds - 1 and mixture.components > 1:
            weights = (1.0 - _EVEN) * mixture.weights + _EVEN / mixture.components
            source = spread(replace(mixture, weights=weights))
        x = source.sample(n_per_round - from_prior, rng)
        if from_prior:
            x = np.concatenate([np.asarray(prior_draws(from_prior, rng), float), x])
        lost = ~np.isfinite(x).all(axis=1)
        x[lost] = mixture.means[0]  # arbitrary place, because the weight is zero
        values = np.where(lost, -math.inf, log_target(x))
        record.add(whole, source, x, values)
        tested.append(mixture)
        log_drawn = record.log_drawn()
        log_weights = record.log_target - log_drawn
        variances = record.relative_variances(log_weights)
        best = float(variances.min())
        least = (1.0 - _PROGRESS) * variances[:-1].min(initial=math.inf)
        waited = 0 if best > _WILD or variances[-1] < least else waited + 1
        if number == rounds - 1 or waited == _PATIENCE or best <= enough:
            break
        if best < math.inf:
            mixture = _refitted(record, log_drawn, mixture, max_components, rng, images)
    at, ess = int(variances.argmin()), _ess(log_weights)
    log_mean = float(logsumexp(log_weights)) - math.log(len(log_weights))
    return AdaptedMixture(record.tested[at], best, ess, log_mean, variances, tested[at])


def _relative_variance(log_weights: np.ndarray, log_ratio: np.ndarray) -> float:
    """Estimate E_g[(f/g)^2] / Z^2 - 1 = E[w f/g] / E[w]^2 - 1, with w = f over the density of the draws."""
    if log_weights.max() == -math.inf:
        return math.inf
    moment = float(logsumexp(log_weights + log_ratio)) + math.log(len(log_weights))
    return math.expm1(min(moment - 2.0 * float(logsumexp(log_weights)), 700.0))


def _refitted(
    record: Record,
    log_drawn: np.ndarray,
    mixture: StudentTMixture,
    max_components: int,
    rng: np.random.Generator,
    images: Images | None,
) -> StudentTMixture:
    x = record.x if images is None else images.folded(record.x, mixture)
    log_weights = record.log_target - log_drawn
    least = min(_LEAST * (x.shape[1] + 1.0), 0.25 * np.count_nonzero(log_weights > -math.inf))
    lw, gamma = temper_weights(log_weights, record.log_sources[-1] - log_drawn, least)
    if gamma < 1.0:
        return fit_student_t_mixture(x, lw, start=mixture, **_FIT)
    spread = (lambda q: q) if images is None else images.spread
    w = np.exp(lw - logsumexp(lw))
    fitted = fit_student_t_mixture(x, lw, start=mixture, dof=_DOFS, **_FIT)
    new = _thinned(fitted, x, lw, w)
    # The number of components whose covariances can be estimated from this effective sample size.
    d = x.shape[1]
    most = min(max_components, int(_ess(lw) / (0.5 * (d + 1) * (d + 2))))
    while new.components < most:
        gap = lw + np.where(
            lw > -math.inf, record.log_target - record.log_defensive(spread(new)), 0.0
        )
        added = np.exp(gap - gap.max())
        other = split_component(new, x, lw, added, rng, dof=_DOFS, **_FIT)
        if information_criterion(other, x, w) <= information_criterion(new, x, w):
            break
        new = other
    return new


def _thinned(
    mixture: StudentTMixture, x: np.ndarray, lw: np.ndarray, w: np.ndarray
) -> StudentTMixture:
    """Drop redundant components, but keep those of small distant modes."""
    while mixture.components > 1:
        score = information_criterion(mixture, x, w)
        fewer, loss = drop_component(mixture, x, w)
        if loss > _MOST:
            break
        if information_criterion(fewer, x, w) <= score:
            fewer = fit_student_t_mixture(x, lw, start=fewer, dof=_DOFS, **_FIT)
        if information_criterion(fewer, x, w) <= score:
            break
        mixture = fewer
    return mixture


def temper_weights(
    log_weights: np.ndarray, log_current: np.ndarray, least: float
) -> tuple[np.ndarray, float]:
    """Return truncated log-weights (N,) for f^gamma q^(1-gamma), with the largest gamma that has an ESS of `least`.

    `log_current` are the log-weights for q, the density of the last round.
    """
    lw = truncate_weights(log_weights)
    if _ess(lw) >= least:
        return lw, 1.0
    low, high = 0.0, 1.0
    best = truncate_weights(log_current)
    for _ in range(12):
        gamma = 0.5 * (low + high)
        lw = truncate_weights(gamma * log_weights + (1.0 - gamma) * log_current)
        if _ess(lw) >= least:
            low, best = gamma, lw
        else:
            high = gamma
    return best, low


def truncate_weights(log_weights: np.ndarray) -> np.ndarray:
    r"""Return log-weights (N,) that are at most :math:`\sqrt N` times their mean (Ionides 2008, doi:10.1198/106186008X320456)."""
    return np.minimum(log_weights, logsumexp(log_weights) - 0.5 * math.log(len(log_weights)))


def _ess(log_weights: np.ndarray) -> float:
    return effective_share(log_weights) * len(log_weights)


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
    log_alone = _beside(adapted, x, joint.values(x))
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
    return _ess(log_w[log_w > -np.inf])


def _beside(adapted: AdaptedMixture, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return log-weights (P,) of prior draws at which the prior dominates the proposal, elsewhere -inf."""
    log_q = adapted.mixture.log_density(x)
    log_odds = math.log(DEFENSIVE_SHARE / (1.0 - DEFENSIVE_SHARE))
    log_w = importance_log_weights(log_q, terms, DEFENSIVE_SHARE)
    return np.where(terms[0] + log_odds > log_q, log_w, -np.inf)


def second_look(
    joint: Joint,
    adapted: AdaptedMixture,
    laplace: StudentTMixture | None,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Search for modes that a mixture misses, from past and new points; return their log evidence and locations."""
    if adapted.log_mean == -math.inf:
        return -math.inf, np.empty((0, joint.n_dim))
    near, size = _scattered(joint, adapted.one_copy, rng), joint.settings.block
    x, terms = joint.highest()
    parts = [joint.values(near[i : i + size]) for i in range(0, len(near), size)]
    x, terms = np.concatenate([x, near]), np.concatenate([terms, *parts], axis=1)
    drawn = finite(joint.draw_prior(joint.settings.starts, rng))
    starts = np.concatenate([heaviest(joint, adapted, x, terms), drawn])
    return search_again(joint, adapted, laplace, starts, rng)


def _scattered(joint: Joint, mixture: StudentTMixture, rng: np.random.Generator) -> np.ndarray:
    """Draw points (n, D) around the components, on a fraction of their scale or of that of the prior."""
    d, settings = mixture.n_dim, joint.settings
    few = settings.few_dimensions
    n = settings.second * max(d, few) // (few * mixture.components)
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
    thin = log_weights(adapted, ends, joint.values(ends), share) > settings.thin
    ends, values, curvatures = distinct_ends(joint, ends[thin], values[thin])
    if laplace is not None and len(ends):
        new = _unknown(laplace, ends, curvatures)
        ends, values, curvatures = ends[new], values[new], curvatures[new]
    if not len(ends):
        return none
    mixture = laplace_components(joint.with_gradient, ends, curvatures)
    weights = 0.5 * mixture.weights + 0.5 / mixture.components
    mixture = replace(mixture, weights=weights)
    y = mixture.sample(max(settings.weighed_least, settings.weighed * joint.n_dim), rng)
    terms = joint.values(y)
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
    there = log_weights(known, few, joint.values(few), 0.0) > settings.thin
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
    return importance_log_weights(log_q, terms, share, adapted.log_mean)


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
    """Return a rough standard error of the log evidence from a pilot run that starts at the prior.

    It includes that of the share of prior draws with a positive likelihood. It is infinite if nearly all particles
    descend from one draw: this one may have come near a narrow peak by chance, and the pilot run then exceeds the
    evidence by far.
    """
    if ladder.lineages < _FEWEST:
        return math.inf
    steps, particles = len(ladder.betas) - 1, len(ladder.particles.x)
    share = (1.0 / ladder.possible - 1.0) / ladder.drawn if ladder.drawn else 0.0
    return math.hypot(_CORRELATED * math.sqrt(PER_STEP * steps / particles), math.sqrt(share))


def error_of(adapted: AdaptedMixture) -> float:
    """Return the standard error of the log evidence from an adapted mixture; inf if all weights are zero."""
    return 1.0 / math.sqrt(adapted.ess) if adapted.ess > 0.0 else math.inf
