"""Pictures of results, drawn with arviz_plots."""

from amc_pymc.plots.allocation import plot_allocation
from amc_pymc.plots.regret import plot_regret

__all__ = ["plot_allocation", "plot_regret"]
