"""Plots of results, made with arviz_plots."""

from amc_pymc.plots.abc import plot_abc
from amc_pymc.plots.ais import plot_ais
from amc_pymc.plots.allocation import plot_allocation
from amc_pymc.plots.bridge import plot_bridge
from amc_pymc.plots.calibration import plot_calibration
from amc_pymc.plots.evidence import plot_evidence
from amc_pymc.plots.groups import plot_groups
from amc_pymc.plots.partition import plot_partition
from amc_pymc.plots.race import plot_race
from amc_pymc.plots.regret import plot_regret

__all__ = [
    "plot_abc",
    "plot_ais",
    "plot_allocation",
    "plot_bridge",
    "plot_calibration",
    "plot_evidence",
    "plot_groups",
    "plot_partition",
    "plot_race",
    "plot_regret",
]
