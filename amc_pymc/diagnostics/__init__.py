"""Diagnostics of results: what their numbers say together, in tables and datasets that plots draw."""

from amc_pymc.diagnostics.calibration import calibration
from amc_pymc.diagnostics.combination import Totals, regret, totals_by_round
from amc_pymc.diagnostics.compare_evidence import compare_evidence
from amc_pymc.diagnostics.decision_error import clopper_pearson, decision_error

__all__ = [
    "Totals",
    "calibration",
    "clopper_pearson",
    "compare_evidence",
    "decision_error",
    "regret",
    "totals_by_round",
]
