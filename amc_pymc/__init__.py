"""Adaptive Monte Carlo for PyMC: samplers that allocate their computing time while they run."""

import importlib
import logging

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_pymc.bandits.arms import ArmError as ArmError
    from amc_pymc.bandits.combine_estimators import combine_estimators as combine_estimators
    from amc_pymc.evidence.estimate_evidence import estimate_evidence as estimate_evidence
    from amc_pymc.evidence.sample_ais import sample_ais as sample_ais
    from amc_pymc.likelihood_free.find_map_tree import find_MAP_tree as find_MAP_tree
    from amc_pymc.likelihood_free.learning import TreeProposal as TreeProposal
    from amc_pymc.likelihood_free.sample_abc_tree import sample_abc_tree as sample_abc_tree
    from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem as SimulatorProblem
    from amc_pymc.reading import NotRowFactorised as NotRowFactorised
    from amc_pymc.results import compare_evidence as compare_evidence
    from amc_pymc.results import decision_error as decision_error
    from amc_pymc.results.plots import plot_abc as plot_abc
    from amc_pymc.results.plots import plot_allocation as plot_allocation
    from amc_pymc.results.plots import plot_evidence as plot_evidence
    from amc_pymc.results.plots import plot_race as plot_race
    from amc_pymc.rows import Rows as Rows
    from amc_pymc.steps.product_space import sample_product_space as sample_product_space
    from amc_pymc.steps.racing_forecast import RacingForecast as RacingForecast
    from amc_pymc.steps.racing_forecast import racing_forecast as racing_forecast
    from amc_pymc.steps.racing_gibbs import RacingGibbs as RacingGibbs
    from amc_pymc.steps.racing_metropolis import RacingMetropolis as RacingMetropolis
    from amc_pymc.steps.recover_marginals import recover_marginals as recover_marginals
    from amc_pymc.tall.racing import ExactRace as ExactRace
    from amc_pymc.tall.racing import NormalRace as NormalRace
    from amc_pymc.tall.samplers.chain import Audits as Audits

__version__ = "0.1.0"

#: Public names by module.
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
    "likelihood_free.sample_abc_tree": ("sample_abc_tree",),
    "evidence.sample_ais": ("sample_ais",),
    "likelihood_free.simulator_problem": ("SimulatorProblem",),
    "likelihood_free.learning": ("TreeProposal",),
    "results.plots": ("plot_abc", "plot_allocation", "plot_evidence", "plot_race"),
    "rows": ("Rows",),
    "steps.racing_gibbs": ("RacingGibbs",),
    "steps.racing_metropolis": ("RacingMetropolis",),
    "tall.racing": ("ExactRace", "NormalRace"),
    "tall.samplers.chain": ("Audits",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


# Type checkers, which cannot read this list, export the names imported above.
globals()["__all__"] = sorted({"__version__"}.union(*_PLACES.values()))

# Messages are shown without any configuration, as those of PyMC are.
_log = logging.getLogger("amc_pymc")
if not logging.root.handlers:
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        _log.addHandler(logging.StreamHandler())
