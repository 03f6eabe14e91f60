"""Samplers with racing decisions, as functions ``init`` and ``step`` over the state of a chain.

Each sampler has a module: :mod:`~amc_pymc.tall.samplers.metropolis`, :mod:`~amc_pymc.tall.samplers.gibbs`,
and :mod:`~amc_pymc.tall.samplers.index` for the index of a product space.
``init(sampler, rng, tune=, draws=)`` creates a chain. ``step(sampler, chain, x, rng, tuning=)`` makes one
draw and returns the new point and counts. :func:`~amc_pymc.tall.samplers.chain.report` runs audits and
returns statistics. A sampler consists of a :class:`~amc_pymc.tall.samplers.preparation.Preparation` of a
model and settings.
"""

from amc_pymc.tall.samplers import gibbs, index, metropolis
from amc_pymc.tall.samplers.chain import Chain, Sampler, report
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.raced import GaussianFit, Raced, RacedModel, Surrogate
from amc_pymc.tall.samplers.tuning import (
    Audits,
    Proposal,
    RandomWalkProposal,
    SurrogateProposal,
)

__all__ = [
    "Audits",
    "Chain",
    "GaussianFit",
    "Preparation",
    "Proposal",
    "Raced",
    "RacedModel",
    "RandomWalkProposal",
    "Sampler",
    "Surrogate",
    "SurrogateProposal",
    "gibbs",
    "index",
    "metropolis",
    "report",
]
