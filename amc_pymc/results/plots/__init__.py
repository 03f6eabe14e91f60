"""Plots of results, made with arviz_plots.

All take

* `backend`, {"matplotlib", "bokeh", "plotly", "none"}, by default ``rcParams["plot.backend"]`` of ArviZ,
* `visuals`, a mapping of names of visuals to options of each, or to False to omit it,
* further arguments, passed to :meth:`arviz_plots.PlotCollection.wrap`,

and return the :class:`~arviz_plots.PlotCollection`.
"""

from amc_pymc.results.plots.abc import plot_abc
from amc_pymc.results.plots.allocation import plot_allocation
from amc_pymc.results.plots.evidence import plot_evidence
from amc_pymc.results.plots.partition import plot_partition
from amc_pymc.results.plots.race import plot_race

__all__ = [
    "plot_abc",
    "plot_allocation",
    "plot_evidence",
    "plot_partition",
    "plot_race",
]
