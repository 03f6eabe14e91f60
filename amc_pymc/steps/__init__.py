"""Step methods for ``pm.sample`` that read a few rows of tall data per step."""

from amc_pymc.steps.racing_gibbs import RacingGibbs
from amc_pymc.steps.racing_metropolis import RacingMetropolis
from amc_pymc.steps.settings import TaylorProxy
from amc_pymc.tall.racing import (
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
)
from amc_pymc.tall.samplers import (
    Audits,
    RandomWalkProposal,
    SurrogateProposal,
)

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
