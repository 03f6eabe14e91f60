"""Adaptive Monte Carlo for PyMC: samplers that allocate their computing time while they run."""

import logging

from typing import TYPE_CHECKING

from amc_pymc.lazy import attach

if TYPE_CHECKING:
    from amc_pymc.bandits.arms import ArmError
    from amc_pymc.bandits.combine_estimators import combine_estimators
    from amc_pymc.evidence.estimate_evidence import estimate_evidence
    from amc_pymc.evidence.sample_ais import sample_ais
    from amc_pymc.likelihood_free.find_map_tree import find_MAP_tree
    from amc_pymc.likelihood_free.learning import TreeProposal
    from amc_pymc.likelihood_free.sample_abc_tree import sample_abc_rejection, sample_abc_tree
    from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
    from amc_pymc.reading import NotRowFactorised
    from amc_pymc.results import compare_evidence, decision_error
    from amc_pymc.results.plots import (
        plot_abc,
        plot_allocation,
        plot_evidence,
        plot_race,
    )
    from amc_pymc.rows import Rows
    from amc_pymc.steps.product_space import sample_product_space
    from amc_pymc.steps.racing_forecast import RacingForecast, racing_forecast
    from amc_pymc.steps.racing_gibbs import RacingGibbs
    from amc_pymc.steps.racing_metropolis import RacingMetropolis
    from amc_pymc.steps.recover_marginals import recover_marginals
    from amc_pymc.steps.settings import TaylorProxy
    from amc_pymc.tall.racing import BernsteinRace, ExactRace, NormalRace
    from amc_pymc.tall.samplers.tuning import Audits

__version__ = "0.1.0"

__all__ = [
    "ArmError",
    "Audits",
    "BernsteinRace",
    "ExactRace",
    "NormalRace",
    "NotRowFactorised",
    "RacingForecast",
    "RacingGibbs",
    "RacingMetropolis",
    "Rows",
    "SimulatorProblem",
    "TaylorProxy",
    "TreeProposal",
    "__version__",
    "combine_estimators",
    "compare_evidence",
    "decision_error",
    "estimate_evidence",
    "find_MAP_tree",
    "plot_abc",
    "plot_allocation",
    "plot_evidence",
    "plot_race",
    "racing_forecast",
    "recover_marginals",
    "sample_abc_rejection",
    "sample_abc_tree",
    "sample_ais",
    "sample_product_space",
]

#: Public names by module; a module is imported when one of its names is first used.
_PLACES = {
    "bandits.arms": ("ArmError",),
    "results": ("compare_evidence", "decision_error"),
    "reading": ("NotRowFactorised",),
    "bandits.combine_estimators": ("combine_estimators",),
    "evidence.estimate_evidence": ("estimate_evidence",),
    "likelihood_free.find_map_tree": ("find_MAP_tree",),
    "steps.product_space": ("sample_product_space",),
    "steps.racing_forecast": ("RacingForecast", "racing_forecast"),
    "steps.recover_marginals": ("recover_marginals",),
    "likelihood_free.sample_abc_tree": ("sample_abc_rejection", "sample_abc_tree"),
    "evidence.sample_ais": ("sample_ais",),
    "likelihood_free.simulator_problem": ("SimulatorProblem",),
    "likelihood_free.learning": ("TreeProposal",),
    "results.plots": (
        "plot_abc",
        "plot_allocation",
        "plot_evidence",
        "plot_race",
    ),
    "rows": ("Rows",),
    "steps.racing_gibbs": ("RacingGibbs",),
    "steps.racing_metropolis": ("RacingMetropolis",),
    "steps.settings": ("TaylorProxy",),
    "tall.racing": ("BernsteinRace", "ExactRace", "NormalRace"),
    "tall.samplers.tuning": ("Audits",),
}
__getattr__, __dir__ = attach(
    __name__, globals(), {n: f"{__name__}.{m}" for m, names in _PLACES.items() for n in names}
)

# Messages are shown without any configuration, as those of PyMC are.
_log = logging.getLogger("amc_pymc")
if not logging.root.handlers:
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        _log.addHandler(logging.StreamHandler())
