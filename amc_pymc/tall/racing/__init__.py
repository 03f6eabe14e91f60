"""Races over a finite population of rows."""

from amc_pymc.tall.racing.race import (
    BY_ROUNDS,
    DECIDED,
    NOT_FINITE,
    REWARDS,
    LilParameters,
    Population,
    RaceResult,
    RaceRule,
    make_population,
    race,
    race_of,
)
from amc_pymc.tall.racing.rules import (
    AutoRace,
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
    Race,
    as_race,
    b_normal,
    bernstein_serfling,
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
    "b_normal",
    "bernstein_serfling",
    "make_population",
    "race",
    "race_of",
]
