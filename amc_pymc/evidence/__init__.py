"""Estimators of the model evidence: a pilot run, and bandit arms built from its results."""

from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
)
from amc_pymc.evidence.bridge import Bridge, bridge
from amc_pymc.evidence.chains import Chains, ChainSettings, run_chains
from amc_pymc.evidence.coverage import effective_beside
from amc_pymc.evidence.draws_bridge import Stage, bridge_draws
from amc_pymc.evidence.from_chains import BridgedChains, bridge_chains, missing_evidence
from amc_pymc.evidence.pilot import Pilot, explore, overlooked
from amc_pymc.evidence.portfolio import ARMS, Portfolio, make_portfolio
from amc_pymc.evidence.posterior import PosteriorDraws, posterior_draws
from amc_pymc.evidence.recording_path import Highest, RecordingPath, collected
from amc_pymc.evidence.settings import PilotSettings

__all__ = [
    "ARMS",
    "GRADIENT_COST",
    "AnnealingArm",
    "Bridge",
    "BridgedChains",
    "ChainSettings",
    "Chains",
    "Highest",
    "ImportanceArm",
    "Pilot",
    "PilotSettings",
    "Portfolio",
    "PosteriorDraws",
    "QuasiArm",
    "RecordingPath",
    "SequentialArm",
    "Stage",
    "bridge",
    "bridge_chains",
    "bridge_draws",
    "collected",
    "effective_beside",
    "explore",
    "make_portfolio",
    "missing_evidence",
    "overlooked",
    "posterior_draws",
    "run_chains",
]
