"""Plots of results, made with arviz_plots."""

from amc_pymc.plots.abc import plot_abc
from amc_pymc.plots.ais import plot_ais
from amc_pymc.plots.allocation import plot_allocation
from amc_pymc.plots.evidence import plot_evidence
from amc_pymc.plots.partition import plot_partition
from amc_pymc.plots.regret import plot_regret

__all__ = [
    "plot_abc",
    "plot_ais",
    "plot_allocation",
    "plot_evidence",
    "plot_partition",
    "plot_regret",
]
