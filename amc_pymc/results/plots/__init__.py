"""Plots of results, made with matplotlib.

All return the :class:`~matplotlib.figure.Figure`, whose ``axes`` are the plots, and pass further arguments, such as
``figsize``, to :func:`matplotlib.pyplot.figure`.
"""

from amc_pymc.results.plots.abc import plot_abc
from amc_pymc.results.plots.allocation import plot_allocation
from amc_pymc.results.plots.evidence import plot_evidence
from amc_pymc.results.plots.race import plot_race

__all__ = [
    "plot_abc",
    "plot_allocation",
    "plot_evidence",
    "plot_race",
]
