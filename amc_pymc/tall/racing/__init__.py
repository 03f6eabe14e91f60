"""Races over a finite population of rows."""

from amc_pymc.tall.racing.race import REWARDS, RaceRule, make_population, race
from amc_pymc.tall.racing.rules import ExactRace, NormalRace, b_normal

__all__ = [
    "REWARDS",
    "ExactRace",
    "NormalRace",
    "RaceRule",
    "b_normal",
    "make_population",
    "race",
]
