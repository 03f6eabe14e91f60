"""Pilot run before estimation: locate the posterior and its modes, and measure its distance from the prior.

Modes far from those that are known are looked for from prior draws whose gradients lead elsewhere.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scipy.special import logsumexp, softmax

from amc_pymc.evidence.adapt import (
    AdaptedMixture,
    adapt_mixture,
    clearly_more,
    error_of,
    less_than_climb,
    missed_by,
    second_look,
)
from amc_pymc.evidence.annealing import Ladder, climb, cool
from amc_pymc.evidence.mcmc import Kernel, Particles
from amc_pymc.evidence.modes import (
    DEFAULTS,
    Joint,
    Modes,
    PilotSettings,
    finite,
    log_volumes,
    modes_and_mixture,
    scan,
    spread,
)
from amc_pymc.evidence.paths import PriorPath
from amc_pymc.evidence.symmetry import Images, Variables, find_symmetries
from amc_pymc.logweights import log_mean_exp
from amc_pymc.mixtures import DEFENSIVE_SHARE, StudentTMixture, choose_mixture, log_mixture_density

#: Minimum share of the particles that start with a positive likelihood, and maximum number of prior draws made to find
#: them, as a multiple of the number of particles.
_POSSIBLE, _MOST_DRAWN = 0.25, 128
#: Second moment of the likelihood under the prior, over its squared mean, below which a fit is tried once.
_CLOSE = 5.0
#: Rounds of adaptation, and in more dimensions, where fits are expensive.
_ROUNDS, _FEWER_ROUNDS, _MANY = 10, 5, 60
#: Relative variance above which no further degrees of freedom of the Laplace mixture are tried.
_HOPELESS = 5.0
#: Gap in nats to the largest Laplace evidence beyond which modes are ignored.
_NEGLIGIBLE = 10.0
#: Share of the reference on a wider scale, which is 1 + 1.5 / sqrt(D) times as wide.
_WIDE_SHARE, _WIDER = 0.15, 1.5
#: Relative variance of a single weight above which importance sampling is not expected to work.
WILD = 1e3
#: Share of the prior in the proposal that is tried as an alternative to one tenth, and factor by which it must reduce
#: the variance to be used.
_LARGER_SHARE, _GAIN = 0.5, 0.7


class PilotInterrupted(KeyboardInterrupt):
    """Ctrl-C after the posterior was reached; carries the pilot run without a fit."""

    def __init__(self, pilot: Pilot):
        super().__init__("interrupted during the pilot run")
        self.pilot = pilot


@dataclass(frozen=True)
class Pilot:
    """Results of a pilot run. They must be frozen before they are used in an unbiased estimate.

    Attributes
    ----------
    ladder : Ladder
        Pilot run along the path from the prior.
    adapted : AdaptedMixture or None
        A mixture fitted to the posterior; None if some coordinates are discrete.
    laplace : StudentTMixture or None
        Mixture with a component at each mode.
    modes : array (M, D)
    mode_log_evidence : array (M,)
        Log evidence of each mode by the Laplace approximation.
    uncovered : float
        Share of the posterior where the prior part of the proposal (one tenth) exceeds the mixture part: regions
        that the mixture misses and prior draws reach.
    share : float
        Share of the prior in importance sampling proposals.
    relative_variance : float
        Expected relative variance of the importance weights.
    missed : float
        Log evidence of modes that the second look found and the mixture does not cover.
    rare : float
        Share of the evidence of modes that few prior draws lead to.
    images : Images or None
        Exchanges of labels and signs that lead to all copies of the modes; None if modes have no copies.
    unfit : bool
        Whether no fitted mixture is close enough to the posterior for reliable importance sampling, annealed particles
        are where it is far too low, or annealing from the prior found significantly more evidence than the mixture.
    """

    ladder: Ladder
    adapted: AdaptedMixture | None
    laplace: StudentTMixture | None
    modes: np.ndarray
    mode_log_evidence: np.ndarray
    uncovered: float
    share: float = DEFENSIVE_SHARE
    relative_variance: float = math.inf
    missed: float = -math.inf
    unfit: bool = False
    rare: float = 0.0
    images: Images | None = None

    @cached_property
    def reference(self) -> StudentTMixture | None:
        """Fitted mixture with a share on a wider scale, because posteriors have heavier tails than fits."""
        return None if self.adapted is None else widened(self.adapted.mixture)

    def gaps(self, log_z: float, error: float) -> tuple[float, float]:
        """Return by how many nats annealing and the mixture exceed a log evidence; 0 if errors explain it.

        Annealing from the prior does not depend on a fitted reference, so evidence that only it finds is missing
        from the reference. Lower values do not indicate a problem: they are common after too few moves.
        """
        if not math.isfinite(log_z):
            return 0.0, 0.0
        gap = less_than_climb(log_z, error, self.ladder)
        if self.adapted is None:
            return gap, 0.0
        return gap, clearly_more(self.adapted.log_mean, error_of(self.adapted), log_z, error)

    def exceeds(self, log_z: float, error: float) -> float:
        """Return the larger of the :meth:`gaps`."""
        return max(self.gaps(log_z, error))


def explore(
    path: PriorPath,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    settings: PilotSettings = DEFAULTS,
    fitted: bool = True,
    chains: bool = False,
    variables: Variables | None = None,
    report: Callable[[str], None] = lambda text: None,
    over: Callable[[], bool] = lambda: False,
) -> Pilot:
    """Find the posterior, its modes, and a mixture close to it.

    Particles are moved from the prior to the posterior by adaptive sequential Monte Carlo and then
    cooled further to find narrow peaks. Searches for modes start from the particles and from prior
    draws. A mixture of Student t distributions, fitted to the modes and the particles, is then adapted
    by importance sampling.

    Parameters
    ----------
    path : PriorPath
    kernel : Kernel
    rng : numpy.random.Generator
    settings : PilotSettings, optional
    fitted : bool
        Whether to search for modes and fit a mixture. Must be false if coordinates are discrete.
    chains : bool
        Whether the evidence may be estimated from chains. In many dimensions, the pilot run is then limited to
        fewer particles and the Laplace approximation.
    variables : Variables, optional
        Variables among which labels and signs that can be exchanged are looked for; by default there are none.
    report : callable, optional
        Function called with a text at each stage.
    over : callable, optional
        Whether a time limit has passed, after which no further modes are looked for at prior draws.

    Returns
    -------
    Pilot

    Raises
    ------
    PilotInterrupted
        At Ctrl-C after the annealing.
    """
    many = chains and path.n_dim > settings.most_fitted
    n = settings.few_particles if many else settings.particles
    x = _enough_draws(path, n, rng)
    joint = Joint(path, settings)
    ladder = climb(
        joint, x, kernel, rng,
        n_moves=settings.few_moves if many else settings.moves, n_particles=n, report=report,
    )  # fmt: skip
    nothing = Pilot(ladder, None, None, x[:0], np.empty(0), 0.0, unfit=fitted)
    if not fitted:
        return nothing
    try:
        return _fitted(joint, ladder, kernel, rng, many, variables, report, over)
    except KeyboardInterrupt as error:
        raise PilotInterrupted(nothing) from error


def _fitted(
    joint: Joint,
    ladder: Ladder,
    kernel: Kernel,
    rng: np.random.Generator,
    many: bool,
    variables: Variables | None,
    report: Callable[[str], None],
    over: Callable[[], bool],
) -> Pilot:
    """Search for modes, and fit a mixture."""
    report("modes")
    if variables is not None:
        some = np.unique(ladder.particles.x, axis=0)[:: max(len(ladder.particles.x) // 4, 1)]
        joint.symmetries = find_symmetries(joint.values, variables, some)
    cold = None if many else cool(joint, ladder, kernel, rng)
    modes = modes_and_mixture(joint, _starts(joint, ladder, cold, rng))
    if modes.mixture is not None and not many:
        odd = scan(joint, modes.mixture, modes.log_evidence, rng)
        modes = modes_and_mixture(joint, np.concatenate([modes.x, odd]))
    rare = 0.0
    if modes.mixture is not None and joint.images is None and not many:
        modes, rare = find_far_modes(joint, modes, int(ladder.spent.sum()), rng, over)
    report("fit")
    adapted = None if modes.mixture is None else laplace_fit(joint, modes.mixture, rng)
    uncovered, unseen = 0.0, -math.inf
    if not many:
        adapted, modes, uncovered, unseen = _mended(joint, ladder, modes, adapted, rng)
    share, variance = DEFENSIVE_SHARE, math.inf
    if adapted is not None:
        share, variance = best_share(ladder.particles, adapted)
    return Pilot(
        ladder, adapted, modes.mixture, modes.x, modes.log_evidence, uncovered, share, variance, unseen,
        unfit=is_unfit(adapted, variance, ladder, joint.settings),
        rare=rare, images=joint.images,
    )  # fmt: skip


def _starts(
    joint: Joint, ladder: Ladder, cold: np.ndarray | None, rng: np.random.Generator
) -> np.ndarray:
    """Choose starts of searches: particles, prior draws and, if there are cold particles, these and the highest points."""
    n = joint.settings.few_starts if cold is None else joint.settings.starts
    sources = [spread(ladder.particles.x, 3 * n, rng)]
    if cold is not None:
        sources.append(spread(cold, n, rng))
    sources.append(spread(joint.draw_prior(4 * n, rng), n if cold is None else 2 * n, rng))
    if cold is not None:
        sources.append(joint.highest(n // 2)[0])
    return np.concatenate(sources)


def _mended(
    joint: Joint,
    ladder: Ladder,
    modes: Modes,
    adapted: AdaptedMixture | None,
    rng: np.random.Generator,
) -> tuple[AdaptedMixture, Modes, float, float]:
    """Fit a mixture and adapt it again as long as checks find that it misses something.

    Return also the modes it was made from, and estimates of what it does not cover and of what it has not seen.
    """
    rough = ladder.particles
    uncovered, unseen, missed = 0.0, -math.inf, np.empty((0, joint.n_dim))
    if adapted is not None:
        uncovered, missed = missed_by(joint, rough, adapted, rng)
        if not len(missed):
            unseen, missed = second_look(joint, adapted, modes.mixture, rng)
            if not len(missed):
                return adapted, modes, uncovered, unseen
    x = rough.x
    if joint.images is not None and modes.mixture is not None:
        x = joint.images.folded(x, modes.mixture)
    current = choose_mixture(x, None, rng, max_components=6)
    close = moment(rough, None, 1.0, ladder.log_z) < _CLOSE
    attempts = 1 if close else joint.settings.attempts
    # One more attempt is left for what the second look finds in the last one.
    while adapted is None or (attempts >= 0 and len(missed)):
        attempts -= 1
        if len(missed):
            modes = modes_and_mixture(joint, np.concatenate([modes.x, missed]))
        if modes.mixture is not None:  # with equal weights
            current = current.joined(important_part(modes.mixture), 0.5)
        adapted = adapted_to(joint, current, rng)
        current = adapted.one_copy
        uncovered, missed = missed_by(joint, rough, adapted, rng)
        if attempts <= 0 or not len(missed):
            unseen, missed = second_look(joint, adapted, modes.mixture, rng)
    return adapted, modes, uncovered, unseen


def is_unfit(
    adapted: AdaptedMixture | None, variance: float, ladder: Ladder, settings: PilotSettings
) -> bool:
    """Whether no mixture is close to the posterior.

    The weights vary too much at draws of the mixture or, by the `variance` of :func:`best_share`, at annealed
    particles, which can be where the mixture is far too low; or annealing from the prior found more evidence.
    """
    if adapted is None or adapted.relative_variance > settings.unfit or variance >= WILD:
        return True
    return less_than_climb(adapted.log_mean, error_of(adapted), ladder) > 0.0


def _enough_draws(path: PriorPath, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n points from the prior, or more if the likelihood is zero at most of them."""
    x, possible = np.empty((0, path.n_dim)), 0
    while possible < _POSSIBLE * n and len(x) < _MOST_DRAWN * n:
        more = path.draw_prior(max(len(x), n), rng)
        possible += int(np.count_nonzero(path.values(more)[1] > -np.inf))
        x = np.concatenate([x, more])
    return x


def adapted_to(
    joint: Joint, mixture: StudentTMixture, rng: np.random.Generator, rounds: int | None = None
) -> AdaptedMixture:
    """Adapt a mixture by importance sampling; with one round it is only assessed."""
    if rounds is None:
        rounds = _ROUNDS if joint.n_dim <= _MANY else _FEWER_ROUNDS
    return adapt_mixture(
        joint.log_density,
        joint.log_prior,
        joint.draw_prior,
        mixture,
        rng,
        rounds=rounds,
        n_per_round=max(500, 100 * joint.n_dim),
        share=DEFENSIVE_SHARE,
        enough=joint.settings.enough,
        max_components=min(mixture.components + 4, joint.settings.components),
        images=joint.images,
    )


def laplace_fit(
    joint: Joint, mixture: StudentTMixture, rng: np.random.Generator
) -> AdaptedMixture | None:
    """Return the Laplace mixture if it is close enough to the posterior to need no adaptation, else None."""
    important = important_part(mixture)
    for dof in joint.settings.laplace_dofs:
        found = adapted_to(joint, important.with_dof(dof), rng, rounds=1)
        if found.relative_variance <= joint.settings.laplace_enough:
            return found
        if found.relative_variance > _HOPELESS:
            return None
    return None


def widened(mixture: StudentTMixture) -> StudentTMixture:
    """Add a wider copy of each component, with a share of its weight."""
    factor = 1.0 + _WIDER / math.sqrt(mixture.n_dim)
    return mixture.joined(replace(mixture, choleskys=factor * mixture.choleskys), _WIDE_SHARE)


def important_part(mixture: StudentTMixture) -> StudentTMixture:
    """Remove components of negligible weight."""
    return mixture.part(mixture.weights > mixture.weights.max() * math.exp(-_NEGLIGIBLE))


def moment(rough: Particles, mixture: StudentTMixture | None, share: float, log_z: float) -> float:
    """Estimate the second moment of weights over their squared mean from posterior draws: E[f / g] / Z."""
    log_f, log_g = rough.terms.sum(axis=0), rough.terms[0]
    if mixture is not None:
        log_g = log_mixture_density(mixture.log_density(rough.x), log_g, share)
    return math.exp(min(float(log_mean_exp(log_f - log_g)) - log_z, 700.0))


def best_share(rough: Particles, adapted: AdaptedMixture) -> tuple[float, float]:
    """Choose the share of the prior in the proposal; also return the relative variance of the weights."""
    usual, larger = (
        max(moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0, 0.0)
        for share in (DEFENSIVE_SHARE, _LARGER_SHARE)
    )
    if larger < _GAIN * usual:
        return _LARGER_SHARE, larger
    return DEFENSIVE_SHARE, adapted.relative_variance


#: Draws of a round as a share of what annealing from the prior cost, and most rounds.
_SHARE, _SCANS = 0.25, 50
#: Rounds without an important new mode that end the search: with one mode, with several, and with several of which one
#: is reached by less than a 64th of the draws.
_ONE, _SEVERAL, _UNEQUAL, _SELDOM = 2, 8, 25, 1.0 / 64.0
#: Share of the gradient that leads to a known mode, below which a search starts, and searches per round.
_STRAY, _SEARCHES = 0.8, 256
#: Share of draws that lead to no known mode, above which the posterior is not made of nearly normal modes.
_MOST = 0.05
#: Slope at a point over that of the normal approximation, above which it leads to another, narrower mode.
_STEEP = 10.0
#: Draws that reach a mode, below which others like it may be unseen.
_RARE = 30


def find_far_modes(
    joint: Joint,
    modes: Modes,
    spent: int,
    rng: np.random.Generator,
    over: Callable[[], bool] = lambda: False,
) -> tuple[Modes, float]:
    """Look for modes from prior draws.

    A narrow mode beside a wide one is reached from few prior draws. Most draws lead to known modes, which one gradient
    shows; searches start from the others. Rounds end when several in succession find no mode that holds a
    hundredth of the evidence, or if gradients do not tell modes apart because these are far from normal.

    Parameters
    ----------
    joint : Joint
    modes : Modes
        Those that are known, at least one.
    spent : int
        Evaluations and gradients of the annealing, which limit the number of draws.
    rng : numpy.random.Generator
    over : callable, optional
        Whether a time limit has passed, which ends the search after a round.

    Returns
    -------
    modes : Modes
        The known ones and those found.
    rare : float
        Share of the evidence, by the Laplace approximation, of modes that fewer than 30 draws have reached since the last
        mode was found. Others that are somewhat rarer may be unseen (Good 1953, doi:10.1093/biomet/40.3-4.237).
    """
    n = max(int(_SHARE * spent), 1)
    reached, quiet = np.zeros(len(modes.x), int), 0
    for _ in range(_SCANS):
        assert modes.mixture is not None
        strays, counts, lost = scan_prior(joint, modes.mixture, n, rng)
        reached, quiet = reached + counts, quiet + 1
        if len(strays):
            more = modes_and_mixture(joint, np.concatenate([modes.x, strays]))
            gain = logsumexp(more.log_evidence) - logsumexp(modes.log_evidence)
            if gain > joint.settings.covered:
                modes, reached, quiet = more, np.zeros(len(more.x), int), 0
        if lost > _MOST * (lost + counts.sum()):
            return modes, 0.0
        if quiet >= _quiet_rounds(reached[~nested(joint, modes)]) or over():
            break
    rare = softmax(modes.log_evidence)[(reached < _RARE) & ~nested(joint, modes)].sum()
    return modes, float(rare) if len(modes.x) > 1 else 0.0


def nested(joint: Joint, modes: Modes) -> np.ndarray:
    """Whether each mode is so close to the centre of a wider one that it is found there (:func:`scan`), not by prior draws."""
    assert modes.mixture is not None
    volumes, reach = log_volumes(modes.mixture), max(joint.settings.scan_scales)
    near = modes.mixture.distances(modes.x) < reach**2 * joint.n_dim
    return (near & (volumes[:, None] > volumes)).any(axis=0)


def _quiet_rounds(reached: np.ndarray) -> int:
    """Return the number of rounds without a new mode that are enough if modes (K,) were reached by so many draws."""
    if len(reached) == 1:
        return _ONE
    return _UNEQUAL if reached.min() < _SELDOM * reached.sum() else _SEVERAL


def scan_prior(
    joint: Joint, mixture: StudentTMixture, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Follow the gradients at n prior draws.

    Returns
    -------
    strays : array (P, D)
        Draws whose gradients lead to no mode of the mixture, at most 256.
    counts : array of int (K,)
        Number of draws whose gradients lead to each mode.
    lost : int
        Number of draws whose gradients lead to none.
    """
    counts = np.zeros(mixture.components, int)
    strays, shares, size = [], [], joint.settings.block
    for i in range(0, n, size):
        x = finite(joint.draw_prior(min(size, n - i), rng))
        values, gradients = joint.with_gradient(x)
        possible = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        x, gradients = x[possible], gradients[possible]
        share, terms = uphill_shares(x, gradients, mixture)
        best = share.max(axis=0)
        stray = best < _STRAY
        reached = np.where(share >= _STRAY, terms, -np.inf)[:, ~stray].argmax(axis=0)
        counts += np.bincount(reached, minlength=mixture.components)
        strays.append(x[stray])
        shares.append(best[stray])
    lowest = np.argsort(np.concatenate(shares), kind="stable")[:_SEARCHES]
    lost = np.concatenate(strays)
    return lost[lowest], counts, len(lost)


def uphill_shares(
    x: np.ndarray, gradients: np.ndarray, mixture: StudentTMixture
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the share of the gradient at each point that leads to each mode, (K, P), and the log of normal terms (K, P).

    .. math:: r_k = \frac{\sum_j u_j v_j}{\sum_j |u_j v_j|} \min(1, 10 |v| / |u|),
              \qquad u = L_k^T g, \quad v = L_k^{-1} (\mu_k - x)

    In the region of a normal mode u = v and the share is 1; at points that a distant, narrow mode attracts, signs do not
    agree or the slope is larger. Signs remain if each coordinate of a mode with independent coordinates is transformed.
    """
    normal, z = mixture.with_dof(math.inf), np.empty((mixture.components, *x.shape))
    distances = normal.distances(x, z)
    shares = np.ones_like(distances)
    for share, away, squared, chol in zip(shares, z, distances, mixture.choleskys, strict=True):
        uphill = gradients @ chol
        terms = -away * uphill
        size = np.abs(terms).sum(axis=1)
        np.divide(terms.sum(axis=1), size, out=share, where=size > 0.0)
        slope, usual = np.linalg.norm(uphill, axis=1), _STEEP * np.sqrt(squared)
        share *= np.divide(usual, slope, out=np.ones(len(x)), where=slope > usual)
    return shares, normal.terms_at(distances)
