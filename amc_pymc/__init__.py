"""Adaptive Monte Carlo for PyMC: samplers that decide as they go where the computing time is spent."""

import logging

from amc_pymc.diagnostics import decision_error
from amc_pymc.extract import NotRowFactorised
from amc_pymc.inference import RacingOutlook, racing_outlook, sample_product_space
from amc_pymc.proxies import DataProxy
from amc_pymc.step_methods import (
    Audits,
    BardenetRace,
    BernsteinRace,
    ExactRace,
    GaussianProposal,
    LangevinProposal,
    LilUCBRace,
    NormalRace,
    RacingGibbs,
    RacingMetropolis,
    RacingSlice,
    RandomWalkProposal,
    TaylorProxy,
    TTestRace,
)

__version__ = "0.1.0"

__all__ = [
    "Audits",
    "BardenetRace",
    "BernsteinRace",
    "DataProxy",
    "ExactRace",
    "GaussianProposal",
    "LangevinProposal",
    "LilUCBRace",
    "NormalRace",
    "NotRowFactorised",
    "RacingGibbs",
    "RacingMetropolis",
    "RacingOutlook",
    "RacingSlice",
    "RandomWalkProposal",
    "TTestRace",
    "TaylorProxy",
    "__version__",
    "decision_error",
    "racing_outlook",
    "sample_product_space",
]

_log = logging.getLogger("amc_pymc")
if not _log.handlers:
    _log.addHandler(logging.NullHandler())
