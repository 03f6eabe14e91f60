"""Races over a finite population of rows."""

from amc_pymc.racing.population import Population, make_population
from amc_pymc.racing.race import DECIDED, NOT_FINITE, REWARDS, RaceResult, RaceRule, race

__all__ = [
    "DECIDED",
    "NOT_FINITE",
    "REWARDS",
    "Population",
    "RaceResult",
    "RaceRule",
    "make_population",
    "race",
]
