"""Step methods for ``pm.sample`` that read a few rows of tall data per step."""

from amc_pymc.racing import (
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
)
from amc_pymc.samplers import (
    Audits,
    RandomWalkProposal,
    SurrogateProposal,
)
from amc_pymc.step_methods.racing_gibbs import RacingGibbs
from amc_pymc.step_methods.racing_metropolis import RacingMetropolis
from amc_pymc.step_methods.settings import TaylorProxy

__all__ = [
    "Audits",
    "BernsteinRace",
    "ExactRace",
    "LilUCBRace",
    "NormalRace",
    "RacingGibbs",
    "RacingMetropolis",
    "RandomWalkProposal",
    "SurrogateProposal",
    "TaylorProxy",
]
