"""Paths of densities from a reference to the posterior, and samplers along them."""

from amc_pymc.annealing.ais import Annealed, anneal, anneal_back, by_temperature, effective_shares
from amc_pymc.annealing.ladder import Ladder, climb, cool, taken
from amc_pymc.annealing.paths import ReferencePath
from amc_pymc.annealing.schedules import Schedule, make_schedule
from amc_pymc.annealing.smc import Resampled, resample, sequential
from amc_pymc.annealing.whitened import WhitenedPath

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
