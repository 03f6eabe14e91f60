"""Paths of densities from a reference to the posterior, and samplers along them."""

from amc_pymc.evidence.annealing.ais import (
    Annealed,
    anneal,
    anneal_back,
    by_temperature,
    effective_shares,
)
from amc_pymc.evidence.annealing.ladder import Ladder, climb, cool, taken
from amc_pymc.evidence.annealing.paths import ReferencePath
from amc_pymc.evidence.annealing.schedules import Schedule, make_schedule
from amc_pymc.evidence.annealing.smc import Resampled, resample, sequential
from amc_pymc.evidence.annealing.whitened import WhitenedPath

__all__ = [
    "Annealed",
    "Ladder",
    "ReferencePath",
    "Resampled",
    "Schedule",
    "WhitenedPath",
    "anneal",
    "anneal_back",
    "by_temperature",
    "climb",
    "cool",
    "effective_shares",
    "make_schedule",
    "resample",
    "sequential",
    "taken",
]
