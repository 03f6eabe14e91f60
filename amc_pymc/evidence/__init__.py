"""Estimators of model evidence: a pilot run, and arms for a bandit made from what it found."""

from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
)
from amc_pymc.evidence.pilot import Pilot, explore
from amc_pymc.evidence.portfolio import ARMS, Portfolio, make_portfolio

__all__ = [
    "ARMS",
    "GRADIENT_COST",
    "AnnealingArm",
    "ImportanceArm",
    "Pilot",
    "Portfolio",
    "QuasiArm",
    "SequentialArm",
    "explore",
    "make_portfolio",
]
