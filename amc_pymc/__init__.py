"""Adaptive Monte Carlo for PyMC: samplers that decide as they go where the computing time is spent."""

import logging

from amc_pymc.abc_tree import SimulatorProblem
from amc_pymc.combination import ArmError, FailedPull
from amc_pymc.diagnostics import decision_error
from amc_pymc.extract import NotRowFactorised
from amc_pymc.inference import (
    RacingOutlook,
    combine_estimators,
    compare_evidence,
    estimate_evidence,
    find_MAP_tree,
    racing_outlook,
    recover_marginals,
    sample_abc_rejection,
    sample_abc_tree,
    sample_ais,
    sample_product_space,
    step_density,
)
from amc_pymc.plots import (
    plot_abc,
    plot_ais,
    plot_allocation,
    plot_evidence,
    plot_partition,
    plot_regret,
)
from amc_pymc.proxies import DataProxy
from amc_pymc.step_methods import (
    Audits,
    BardenetRace,
    BernsteinRace,
    ExactRace,
    GaussianProposal,
    LangevinProposal,
    LilUCBRace,
    NestedProposal,
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
    "ArmError",
    "Audits",
    "BardenetRace",
    "BernsteinRace",
    "DataProxy",
    "ExactRace",
    "FailedPull",
    "GaussianProposal",
    "LangevinProposal",
    "LilUCBRace",
    "NestedProposal",
    "NormalRace",
    "NotRowFactorised",
    "RacingGibbs",
    "RacingMetropolis",
    "RacingOutlook",
    "RacingSlice",
    "RandomWalkProposal",
    "SimulatorProblem",
    "TTestRace",
    "TaylorProxy",
    "__version__",
    "combine_estimators",
    "compare_evidence",
    "decision_error",
    "estimate_evidence",
    "find_MAP_tree",
    "plot_abc",
    "plot_ais",
    "plot_allocation",
    "plot_evidence",
    "plot_partition",
    "plot_regret",
    "racing_outlook",
    "recover_marginals",
    "sample_abc_rejection",
    "sample_abc_tree",
    "sample_ais",
    "sample_product_space",
    "step_density",
]

# Messages are seen without any configuration, as PyMC's are.
_log = logging.getLogger("amc_pymc")
if not logging.root.handlers:
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        _log.addHandler(logging.StreamHandler())
