"""Races over a finite population of rows."""

from amc_pymc.tall.racing.race import (
    DECIDED,
    NOT_FINITE,
    RACE,
    REWARDS,
    Population,
    RaceResult,
    RaceRule,
    make_population,
    race,
)
from amc_pymc.tall.racing.rules import (
    AutoRace,
    BernsteinRace,
    ExactRace,
    NormalRace,
    Race,
    as_race,
    b_normal,
    bernstein_serfling,
)

__all__ = [
    "DECIDED",
    "NOT_FINITE",
    "RACE",
    "REWARDS",
    "AutoRace",
    "BernsteinRace",
    "ExactRace",
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
]
