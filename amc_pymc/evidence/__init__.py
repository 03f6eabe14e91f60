"""Estimators of model evidence: a pilot run, and arms for a bandit made from what it found."""

from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
)
from amc_pymc.evidence.pilot import Pilot, explore, overlooked
from amc_pymc.evidence.portfolio import ARMS, Portfolio, make_portfolio
from amc_pymc.evidence.watch import Watch

__all__ = [
    "ARMS",
    "GRADIENT_COST",
    "AnnealingArm",
    "ImportanceArm",
    "Pilot",
    "Portfolio",
    "QuasiArm",
    "SequentialArm",
    "Watch",
    "explore",
    "make_portfolio",
    "overlooked",
]
