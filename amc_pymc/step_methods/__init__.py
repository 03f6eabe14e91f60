"""Step methods for ``pm.sample`` that read a few rows of tall data per step."""

from amc_pymc.step_methods.racing_metropolis import RacingMetropolis
from amc_pymc.step_methods.settings import (
    Audits,
    ExactRace,
    GaussianProposal,
    LangevinProposal,
    NormalRace,
    RandomWalkProposal,
    TaylorProxy,
)

__all__ = [
    "Audits",
    "ExactRace",
    "GaussianProposal",
    "LangevinProposal",
    "NormalRace",
    "RacingMetropolis",
    "RandomWalkProposal",
    "TaylorProxy",
]
