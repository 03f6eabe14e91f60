"""Adaptive Monte Carlo for PyMC: samplers that decide as they go where the computing time is spent."""

import logging

from amc_pymc.diagnostics import decision_error
from amc_pymc.extract import NotRowFactorised
from amc_pymc.inference import RacingOutlook, racing_outlook
from amc_pymc.step_methods import (
    Audits,
    ExactRace,
    GaussianProposal,
    LangevinProposal,
    NormalRace,
    RacingMetropolis,
    RandomWalkProposal,
    TaylorProxy,
)

__version__ = "0.1.0"

__all__ = [
    "Audits",
    "ExactRace",
    "GaussianProposal",
    "LangevinProposal",
    "NormalRace",
    "NotRowFactorised",
    "RacingMetropolis",
    "RacingOutlook",
    "RandomWalkProposal",
    "TaylorProxy",
    "__version__",
    "decision_error",
    "racing_outlook",
]

_log = logging.getLogger("amc_pymc")
if not _log.handlers:
    _log.addHandler(logging.NullHandler())
