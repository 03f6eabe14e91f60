"""Races over a finite population of rows."""

from amc_pymc.tall.racing.lil_ucb import LilParameters
from amc_pymc.tall.racing.population import Population, make_population
from amc_pymc.tall.racing.race import (
    BY_ROUNDS,
    DECIDED,
    NOT_FINITE,
    REWARDS,
    RaceResult,
    RaceRule,
    race,
    race_of,
)
from amc_pymc.tall.racing.rules import (
    bernstein_rule,
    exact_rule,
    lil_rule,
    normal_rule,
)
from amc_pymc.tall.racing.settings import (
    AutoRace,
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
    Race,
    as_race,
)

__all__ = [
    "BY_ROUNDS",
    "DECIDED",
    "NOT_FINITE",
    "REWARDS",
    "AutoRace",
    "BernsteinRace",
    "ExactRace",
    "LilParameters",
    "LilUCBRace",
    "NormalRace",
    "Population",
    "Race",
    "RaceResult",
    "RaceRule",
    "as_race",
    "bernstein_rule",
    "exact_rule",
    "lil_rule",
    "make_population",
    "normal_rule",
    "race",
    "race_of",
]
