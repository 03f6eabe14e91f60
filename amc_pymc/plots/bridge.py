"""Plot of the bridge between a Gaussian and posterior draws, by its number of annealing steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.plots.evidence_rows import number_with_error, shown_interval
from amc_pymc.plots.painting import Painter, panel, percent, sized, xy
from amc_pymc.results import normal_interval, result_group
from amc_pymc.results.tables import ARMS

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_bridge"]

Visual = Literal[
    "interval", "point", "halves", "level", "overlap", "stages", "ticks", "title", "xlabel",
    "ylabel",
]  # fmt: skip
_SOURCE = "amc_pymc.estimate_evidence with idata="
_ARMS = ("log_evidence", "log_evidence_mcse", "log_evidence_half", "overlap", "n_steps")


def plot_bridge(
    dt: xr.DataTree,
    *,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[Visual, Iterable[str]] | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the evidence from posterior draws by the number of annealing steps of its bridge.

    The first plot shows the estimate after each number of steps with its 95 % interval, and the estimates from the
    halves of the draws, as differences from the last one. The second shows the overlap of the fitted Gaussian,
    annealed by these steps, with the posterior. Estimates should agree within their intervals, and the last overlap
    should not be small.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.estimate_evidence` with `idata`, or with a bridge to chains of its own.
    plot_collection : PlotCollection, optional
        Collection to draw in, with plots for the variables "log_evidence" and "overlap".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Aesthetics of `plot_collection` that each visual uses, by default none.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * interval -> passed to :func:`~arviz_plots.visuals.ci_line_y`
        * point -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * halves, estimates from halves of the draws -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * level, a line at the last estimate -> passed to :func:`~arviz_plots.visuals.hline`
        * overlap -> passed to :func:`~arviz_plots.visuals.line_xy`
        * stages, dots on that line -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * ticks -> passed to :func:`~arviz_plots.visuals.set_xticks`
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel, ylabel -> passed to :func:`~arviz_plots.visuals.labelled_x` and
          :func:`~arviz_plots.visuals.labelled_y`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group, or an option is unknown.

    See Also
    --------
    amc_pymc.plot_evidence : the same estimates as rows, with their numbers.

    Examples
    --------
    >>> import xarray as xr
    >>> from amc_pymc.plots import plot_bridge
    >>> columns = {
    ...     "log_evidence": [-8.1, -8.3],
    ...     "log_evidence_mcse": [0.2, 0.02],
    ...     "overlap": [0.3, 0.8],
    ...     "n_steps": [1, 8],
    ... }
    >>> arms = xr.Dataset({k: ("arm", v) for k, v in columns.items()})
    >>> arms["log_evidence_half"] = ("arm", "half"), [[-8.0, -8.2], [-8.29, -8.31]]
    >>> pc = plot_bridge(xr.DataTree.from_dict({"arms": arms}), backend="none")
    >>> pc.get_viz("title", "overlap")["string"]
    'Overlap 80 % in the end'
    """
    from arviz_plots import visuals as draw

    paint = Painter(plot_collection, backend, visuals, aes_by_visuals, get_args(Visual), pc_kwargs)
    arms = result_group(dt, "arms", _ARMS, _SOURCE)
    if not arms.sizes.get("arm", 0):
        raise ValueError("Group 'arms' of dt must have at least one stage, got none.")
    centre, error = arms["log_evidence"].values, arms["log_evidence_mcse"].values
    reference = centre[-1] if np.isfinite(centre[-1]) else 0.0
    at = np.arange(len(centre), dtype=float)
    bounds = shown_interval(error, *normal_interval(centre, error))
    points = xr.Dataset({"log_evidence": xy(at, *(v - reference for v in (centre, *bounds)))})
    points = points.where(np.isfinite(points))
    overlap = xr.Dataset({"overlap": xy(at, arms["overlap"].values)})
    halves = arms["log_evidence_half"].transpose("arm", "half").values - reference
    of_halves = xy(np.repeat(at, halves.shape[1]) + 0.12, halves.ravel())

    layout = xr.merge([points, overlap], join="outer")
    paint.open(layout, sized(pc_kwargs, paint.backend, 1.7, 0.61))
    paint(draw.hline, "level", panel("log_evidence"), color="#888888", width=1)
    paint(draw.ci_line_y, "interval", points, color="C0")
    paint(draw.scatter_xy, "halves", xr.Dataset({"log_evidence": of_halves}),
          color="#888888", size=14)  # fmt: skip
    paint(draw.scatter_xy, "point", points, color="C0", size=25)
    paint(draw.line_xy, "overlap", overlap, color="C0")
    paint(draw.scatter_xy, "stages", overlap, color="C0", size=25)
    paint.set(draw.set_ylim, panel("overlap"), limits=(0.0, 1.05))
    labels = [f"{n:,}" for n in arms["n_steps"].values]
    for name in ("log_evidence", "overlap"):
        paint.set(draw.set_xlim, panel(name), limits=(-0.4, at[-1] + 0.4))
        paint.ticks(draw.set_xticks, "ticks", name, at, labels)
    paint.label(_texts(centre[-1], error[-1], float(arms["overlap"][-1])))
    return paint.collection


def _texts(centre: float, error: float, overlap: float) -> dict[str, dict[str, str]]:
    """Return the title and labels of each plot."""
    steps = "annealing steps (1: none)"
    return {
        "log_evidence": {
            "title": f"Log evidence {number_with_error(centre, error)}",
            "xlabel": steps,
            "ylabel": "difference from the last, 95 % intervals",
        },
        "overlap": {
            "title": f"Overlap {percent(overlap)} in the end",
            "xlabel": steps,
            "ylabel": ARMS["overlap"].label,
        },
    }
