"""Look around before estimating: where the posterior is, how far from the prior, how many modes it has."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from amc_pymc.annealing import Ladder, climb, cool
from amc_pymc.evidence.agreement import error_of, less_than_climb
from amc_pymc.evidence.check import heaviest, missed_by, search_again, second_look
from amc_pymc.evidence.discrete_proposal import DiscreteProposal, adapt_discrete_proposal
from amc_pymc.evidence.fit import adapted_to, best_share, joined, laplace_fit, moment, widened
from amc_pymc.evidence.joint import Joint, PriorPath
from amc_pymc.evidence.recording_path import RecordingPath
from amc_pymc.evidence.search import (
    finite,
    modes_and_mixture,
    prior_searches,
    prior_summits,
    scan,
    spread,
)
from amc_pymc.evidence.settings import DEFAULTS, DEFENSIVE_SHARE, PilotSettings
from amc_pymc.importance import AdaptedMixture, StudentTMixture, choose_mixture
from amc_pymc.kernels import DiscreteMetropolis, Kernel

__all__ = ["DEFENSIVE_SHARE", "Pilot", "PriorPath", "explore", "overlooked"]


class Modes(NamedTuple):
    """Modes (M, D), a mixture with a component at each, and their Laplace evidences (M,)."""

    mixture: StudentTMixture | None
    x: np.ndarray
    log_evidence: np.ndarray


class Fit(NamedTuple):
    """A mixture, the modes it was made from, and what checks say that it misses."""

    adapted: AdaptedMixture | None
    modes: Modes
    uncovered: float
    unseen: float


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
    discrete_proposal : DiscreteProposal or None
        Where some coordinates are discrete, a density that draws one after the other; the proposal of
        importance sampling there.
    unfit : bool
        Whether no fitted mixture is close enough to the posterior for importance sampling to be trusted, or
        the climb from the prior has found clearly more evidence than the mixture.
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
    discrete_proposal: DiscreteProposal | None = None
    unfit: bool = False

    @cached_property
    def reference(self) -> StudentTMixture | None:
        """The fitted mixture, a part of it on a wider scale: posteriors have longer tails than fits."""
        return None if self.adapted is None else widened(self.adapted.mixture)


def explore(
    path: PriorPath,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    settings: PilotSettings = DEFAULTS,
    fitted: bool = True,
    chains: bool = False,
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
    settings : PilotSettings, optional
    fitted : bool
        Whether to look for modes and to fit a mixture: not where coordinates are discrete.
    chains : bool
        Whether chains may give the answer. In many dimensions a shorter climb and Laplace's approximation are then
        all that is tried.
    report : callable, optional
        Called now and then.

    Returns
    -------
    Pilot
    """
    many = chains and path.n_dim > settings.most_fitted
    n = settings.few_particles if many else settings.particles
    x = _enough_draws(path, n, rng, settings)
    seen = RecordingPath(path)
    ladder = climb(
        seen if fitted else path, x, kernel, rng,
        n_moves=settings.few_moves if many else settings.moves, n_particles=n, report=report,
    )  # fmt: skip
    evaluations, gradients = ladder.evaluations + len(x), ladder.gradients
    none = np.empty((0, path.n_dim))
    if not fitted:
        nothing = Pilot(ladder, None, None, none, np.empty(0), 0.0, evaluations, gradients)
        return _with_conditionals(nothing, path, kernel, rng, settings)
    joint = Joint(seen)
    if many:
        starts = _few_starts(path, ladder, rng, settings)
    else:
        cold, evaluated, differentiated = cool(seen, ladder, kernel, rng)
        evaluations += evaluated
        gradients += differentiated
        starts = _starts(joint, seen, ladder, cold, rng, settings)
    modes = Modes(*modes_and_mixture(joint, starts, settings))
    if modes.mixture is not None and not many:
        odd = scan(joint, modes.mixture, modes.log_evidence, rng, settings)
        modes = Modes(*modes_and_mixture(joint, np.concatenate([modes.x, odd]), settings))
    if report is not None:
        report()
    if many:
        fit = _laplace_only(joint, path, modes, rng, settings)
    else:
        fit = _mended(joint, seen, path, ladder, modes, rng, settings)
    share, variance = DEFENSIVE_SHARE, math.inf
    if fit.adapted is not None:
        share, variance = best_share(ladder.particles, fit.adapted, settings)
    return Pilot(
        ladder,
        fit.adapted,
        fit.modes.mixture,
        fit.modes.x,
        fit.modes.log_evidence,
        fit.uncovered,
        evaluations + joint.evaluations,
        gradients + joint.gradients,
        share,
        variance,
        fit.unseen,
        unfit=_unfit(fit.adapted, ladder, settings),
    )


def _starts(
    joint: Joint,
    seen: RecordingPath,
    ladder: Ladder,
    cold: np.ndarray,
    rng: np.random.Generator,
    settings: PilotSettings,
) -> np.ndarray:
    """Where searches for modes start (P, D): particles, prior draws, and the highest points seen."""
    n = prior_searches(seen.n_dim, ladder.evaluations + ladder.gradients, settings)
    first = 2 * settings.starts
    sources = [
        spread(ladder.particles.x, 3 * settings.starts, rng),
        spread(cold, settings.starts, rng),
        spread(seen.draw_prior(2 * first, rng), first, rng),
        finite(seen.draw_prior(n - first, rng)),
        seen.highest(settings.starts // 2)[0],
    ]
    if seen.n_dim <= settings.prior_scanned_dimensions:
        x = seen.draw_prior(settings.prior_scanned, rng)
        sources.append(prior_summits(joint, x, settings))
    return np.concatenate(sources)


def _few_starts(
    path: PriorPath, ladder: Ladder, rng: np.random.Generator, settings: PilotSettings
) -> np.ndarray:
    """The same in many dimensions, where searches are dear."""
    n = settings.few_starts
    return np.concatenate(
        [spread(ladder.particles.x, 3 * n, rng), spread(path.draw_prior(4 * n, rng), n, rng)]
    )


def _laplace_only(
    joint: Joint, path: PriorPath, modes: Modes, rng: np.random.Generator, settings: PilotSettings
) -> Fit:
    """Laplace's approximation, if it will do."""
    adapted = None
    if modes.mixture is not None:
        adapted = laplace_fit(joint, path, modes.mixture, rng, settings)
    return Fit(adapted, modes, 0.0, -math.inf)


def _mended(
    joint: Joint,
    seen: RecordingPath,
    path: PriorPath,
    ladder: Ladder,
    modes: Modes,
    rng: np.random.Generator,
    settings: PilotSettings,
) -> Fit:
    """A mixture that is adapted again as long as checks find that it misses something."""
    rough = ladder.particles
    adapted = None
    if modes.mixture is not None:
        adapted = laplace_fit(joint, path, modes.mixture, rng, settings)
    uncovered, unseen, missed = 0.0, -math.inf, np.empty((0, path.n_dim))
    if adapted is not None:
        uncovered, missed = missed_by(joint, path, rough, adapted, rng, settings)
        if not len(missed):
            unseen, missed = second_look(joint, seen, adapted, modes.mixture, rng, settings)
    if adapted is not None and not len(missed):
        return Fit(adapted, modes, uncovered, unseen)
    current = choose_mixture(rough.x, None, rng, max_components=6)
    close = moment(rough, None, 1.0, ladder.log_z) < settings.close
    attempts = 1 if close else settings.attempts
    # One attempt more is left for what the second look finds at the last one.
    while adapted is None or (attempts >= 0 and len(missed)):
        attempts -= 1
        if len(missed):
            starts = np.concatenate([modes.x, missed])
            modes = Modes(*modes_and_mixture(joint, starts, settings))
        adapted = adapted_to(joint, path, joined(current, modes.mixture, settings), rng, settings)
        current = adapted.mixture
        uncovered, missed = missed_by(joint, path, rough, adapted, rng, settings)
        if attempts <= 0 or not len(missed):
            unseen, missed = second_look(joint, seen, adapted, modes.mixture, rng, settings)
    return Fit(adapted, modes, uncovered, unseen)


def overlooked(
    seen: RecordingPath, found: Pilot, rng: np.random.Generator, settings: PilotSettings = DEFAULTS
) -> float:
    """Log evidence of modes that evaluations after a pilot run came across and it does not cover.

    Searches start from the highest of these points, where they are far above the fitted mixture: mostly none,
    and then nothing is evaluated.

    Parameters
    ----------
    seen : RecordingPath
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
    starts = heaviest(found.adapted, x, terms, settings)
    if not len(starts):
        return -math.inf
    return search_again(Joint(seen), found.adapted, found.laplace, starts, rng, settings)[0]


def _unfit(adapted: AdaptedMixture | None, ladder: Ladder, settings: PilotSettings) -> bool:
    """Whether weights under a mixture are hopeless, or tell less evidence than the climb from the prior."""
    if adapted is None or adapted.relative_variance > settings.unfit:
        return True
    return less_than_climb(adapted.log_mean, error_of(adapted), ladder) > 0.0


def _with_conditionals(
    found: Pilot,
    path: PriorPath,
    kernel: Kernel,
    rng: np.random.Generator,
    settings: PilotSettings = DEFAULTS,
) -> Pilot:
    """A proposal for discrete coordinates beside what was found, if the kernel moves some."""
    discrete = getattr(kernel, "discrete", kernel)
    if not isinstance(discrete, DiscreteMetropolis):
        return found
    rough = found.ladder.particles
    adapted = adapt_discrete_proposal(
        path, rough.x, discrete.coordinates, discrete.states, rng, share=DEFENSIVE_SHARE
    )
    share, variance = best_share(rough, adapted, settings)
    if share == DEFENSIVE_SHARE:  # rough draws know of what the last fit may have lost
        seen = moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0
        variance = max(variance, seen)
    return replace(
        found,
        discrete_proposal=adapted.mixture,
        evaluations=found.evaluations + adapted.evaluations,
        share=share,
        relative_variance=variance,
    )


def _enough_draws(
    path: PriorPath, n: int, rng: np.random.Generator, settings: PilotSettings = DEFAULTS
) -> np.ndarray:
    """Draws from the prior, n of them, or more where the likelihood is zero at most."""
    x = path.draw_prior(n, rng)
    possible = np.count_nonzero(path.values(x)[1] > -np.inf)
    while possible < settings.possible * n and len(x) < settings.most_drawn * n:
        more = path.draw_prior(len(x), rng)
        possible += np.count_nonzero(path.values(more)[1] > -np.inf)
        x = np.concatenate([x, more])
    return x
