"""Fit mixtures of Student t distributions to a posterior and assess them."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.discrete_proposal import AdaptedDiscreteProposal, DiscreteProposal
from amc_pymc.evidence.joint import Joint, PriorPath
from amc_pymc.evidence.mcmc import Particles
from amc_pymc.evidence.settings import DEFAULTS, DEFENSIVE_SHARE, PilotSettings
from amc_pymc.importance import (
    AdaptedMixture,
    StudentTMixture,
    adapt_mixture,
    log_mixture_density,
)
from amc_pymc.logweights import log_mean_exp

__all__ = ["adapted_to", "best_share", "joined", "laplace_fit", "moment", "widened"]


def adapted_to(
    joint: Joint,
    path: PriorPath,
    mixture: StudentTMixture,
    rng: np.random.Generator,
    settings: PilotSettings = DEFAULTS,
    rounds: int | None = None,
) -> AdaptedMixture:
    """Adapt a mixture by importance sampling; with one round it is only assessed."""
    if rounds is None:
        rounds = settings.rounds if path.n_dim <= settings.many else settings.fewer_rounds
    return adapt_mixture(
        joint.log_density,
        joint.log_prior,
        path.draw_prior,
        mixture,
        rng,
        rounds=rounds,
        n_per_round=max(500, 100 * path.n_dim),
        share=DEFENSIVE_SHARE,
        enough=settings.enough,
        max_components=min(mixture.components + 4, settings.components),
        images=joint.images,
    )


def laplace_fit(
    joint: Joint,
    path: PriorPath,
    mixture: StudentTMixture,
    rng: np.random.Generator,
    settings: PilotSettings = DEFAULTS,
) -> AdaptedMixture | None:
    """Return the Laplace mixture if it is close enough to the posterior to need no adaptation, else None."""
    important = important_part(mixture, settings)
    for dof in settings.laplace_dofs:
        other = StudentTMixture(important.weights, important.means, important.choleskys, dof)
        found = adapted_to(joint, path, other, rng, settings, rounds=1)
        if found.relative_variance <= settings.laplace_enough:
            return found
        if found.relative_variance > settings.laplace_hopeless:
            return None
    return None


def joined(
    rough: StudentTMixture, modes: StudentTMixture | None, settings: PilotSettings = DEFAULTS
) -> StudentTMixture:
    """Combine the mixtures of the particles and of the modes with equal weights."""
    if modes is None:
        return rough
    modes = important_part(modes, settings)
    return StudentTMixture(
        np.concatenate([0.5 * rough.weights, 0.5 * modes.weights]),
        np.concatenate([rough.means, modes.means]),
        np.concatenate([rough.choleskys, modes.choleskys]),
        rough.dof,
    )


def widened(mixture: StudentTMixture, settings: PilotSettings = DEFAULTS) -> StudentTMixture:
    """Add a wider copy of each component, with a share of its weight."""
    factor = 1.0 + settings.wider / math.sqrt(mixture.n_dim)
    return StudentTMixture(
        np.concatenate(
            [(1.0 - settings.wide_share) * mixture.weights, settings.wide_share * mixture.weights]
        ),
        np.concatenate([mixture.means, mixture.means]),
        np.concatenate([mixture.choleskys, factor * mixture.choleskys]),
        mixture.dof,
    )


def important_part(mixture: StudentTMixture, settings: PilotSettings = DEFAULTS) -> StudentTMixture:
    """Remove components of negligible weight."""
    keep = mixture.weights > mixture.weights.max() * math.exp(-settings.negligible)
    weights = mixture.weights[keep] / mixture.weights[keep].sum()
    return StudentTMixture(weights, mixture.means[keep], mixture.choleskys[keep], mixture.dof)


def moment(
    rough: Particles, mixture: StudentTMixture | DiscreteProposal | None, share: float, log_z: float
) -> float:
    """Estimate the second moment of weights over their squared mean from posterior draws: E[f / g] / Z."""
    log_f, log_g = rough.terms.sum(axis=0), rough.terms[0]
    if mixture is not None:
        log_g = log_mixture_density(mixture.log_density(rough.x), log_g, share)
    return math.exp(min(float(log_mean_exp(log_f - log_g)) - log_z, 700.0))


def best_share(
    rough: Particles,
    adapted: AdaptedMixture | AdaptedDiscreteProposal,
    settings: PilotSettings = DEFAULTS,
) -> tuple[float, float]:
    """Choose the share of the prior in the proposal; also return the relative variance of the weights."""
    usual, larger = (
        max(moment(rough, adapted.mixture, share, adapted.log_mean) - 1.0, 0.0)
        for share in (DEFENSIVE_SHARE, settings.larger_share)
    )
    if larger < settings.gain * usual:
        return settings.larger_share, larger
    return DEFENSIVE_SHARE, adapted.relative_variance
