"""Samplers whose decisions are races, as functions ``init`` and ``step`` over the state of a chain.

One module each: :mod:`~amc_pymc.samplers.metropolis`, :mod:`~amc_pymc.samplers.gibbs`,
:mod:`~amc_pymc.samplers.slice`, and :mod:`~amc_pymc.samplers.index` for the index of a product space.
Its ``init(sampler, rng, tune=, draws=)`` makes a chain, ``step(sampler, chain, x, rng, tuning=)`` draws
once and returns the new point with what was counted, and :func:`~amc_pymc.samplers.chain.report` audits
and turns counts into statistics. A sampler is a value: a
:class:`~amc_pymc.samplers.preparation.Preparation` of a model and settings.
"""

from amc_pymc.samplers import gibbs, index, metropolis, slice
from amc_pymc.samplers.chain import Chain, Sampler, report
from amc_pymc.samplers.preparation import GaussianFit, Preparation
from amc_pymc.samplers.raced import Raced, RacedModel
from amc_pymc.samplers.settings import (
    Audits,
    GaussianProposal,
    LangevinProposal,
    NestedProposal,
    Proposal,
    RandomWalkProposal,
)
from amc_pymc.samplers.surrogate import Surrogate

__all__ = [
    "Audits",
    "Chain",
    "GaussianFit",
    "GaussianProposal",
    "LangevinProposal",
    "NestedProposal",
    "Preparation",
    "Proposal",
    "Raced",
    "RacedModel",
    "RandomWalkProposal",
    "Sampler",
    "Surrogate",
    "gibbs",
    "index",
    "metropolis",
    "report",
    "slice",
]
