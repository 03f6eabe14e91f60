"""Plot of the decision errors of racing steps and of the rows that they read."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.results.decision_error import decision_error
from amc_pymc.results.plots.painting import COLOURS, Painter, one_of, panel, sized, write, y_ticks
from amc_pymc.results.tables import RACE_STATS

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_race"]

By = Literal["chain", "step"]
Visual = Literal["interval", "point", "bound", "value", "names", "title", "xlabel"]
#: Ratio of the largest to the smallest number of rows above which their axis is logarithmic.
_LOG = 20.0


def plot_race(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    by: By = "step",
    backend: str | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the decision errors of racing steps, and the rows that they read.

    The first plot shows the share of audited decisions that all rows would have made otherwise, with its 95 %
    interval, and the bound `delta` of the error as an upright stroke. The second shows the mean number of rows
    that a draw read, and the range that holds 90 % of the draws.

    Parameters
    ----------
    dt : DataTree or mapping of {str : DataTree}
        Result of :func:`pymc.sample` with racing steps, or of :func:`amc_pymc.sample_product_space`. Several results
        are drawn together, in one row each.
    by : {"step", "chain"}, default "step"
        Rows of a single result, as for :func:`amc_pymc.decision_error`.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * interval -> passed to :func:`~arviz_plots.visuals.line_x`
        * point -> passed to :func:`~arviz_plots.visuals.scatter_x`
        * bound, the stroke at delta -> passed to :func:`~arviz_plots.visuals.scatter_x`
        * value, the numbers -> passed to :func:`~arviz_plots.visuals.annotate_xy`
        * names, of the rows -> passed to the function ``yticks`` of the library
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel -> passed to :func:`~arviz_plots.visuals.labelled_x`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or has no race statistics, or an option is unknown.

    See Also
    --------
    amc_pymc.decision_error : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from arviz_base import from_dict
    >>> from amc_pymc.results.plots import plot_race
    >>> stats = {
    ...     "race_delta": np.full((2, 100), 0.05),
    ...     "race_audited": np.ones((2, 100), dtype=int),
    ...     "race_wrong": np.repeat([[0], [1]], 100, axis=1) * (np.arange(100) < 3),
    ...     "race_rows": np.full((2, 100), 200),
    ...     "race_audit_rows": np.full((2, 100), 10_000),
    ... }
    >>> pc = plot_race(from_dict({"sample_stats": stats}), by="chain", backend="none")
    >>> pc.get_viz("value", "error", row="all")["string"]
    '3 of 200'
    """
    from arviz_plots import visuals as draw

    paint = Painter(backend, visuals, get_args(Visual))
    one_of("by", by, get_args(By))
    table = _table(dt, by)
    names = list(map(str, table.index))
    points, intervals, values = _layers(table, names)
    notes = {"error": _audits(table), "rows": [f"{n:,.0f}" for n in table["rows"]]}
    log = bool(intervals["rows"].max() > _LOG * intervals["rows"].min() > 0.0)
    limits: dict[str, tuple[float, float]] = {}
    places: dict[str, float] = {}
    for name, logarithmic in (("error", False), ("rows", log)):
        spanned = np.append(values[name], [] if logarithmic else [0.0])
        letters = max(map(len, notes[name]))
        limits[name], places[name] = _room(spanned, letters, logarithmic)

    width = 7.2 + 0.08 * max(map(len, names))
    height = 1.5 + 0.38 * max(len(names), 2)
    paint.open(points, sized(pc_kwargs, paint.backend, width, height))
    heights = paint.rows("row", names)
    if log:
        spanned = values["rows"][None]
        paint.log(
            xr.Dataset({"rows": (("plot_axis", "point"), spanned)}, {"plot_axis": ["x"]}), "x"
        )
        if paint.backend == "plotly":  # which takes limits of logarithmic axes as powers of ten
            limits["rows"] = (math.log10(limits["rows"][0]), math.log10(limits["rows"][1]))
    shown = intervals.clip(max=limits["error"][1])
    paint(
        draw.line_x,
        "interval",
        intervals.assign(error=shown["error"]),
        "all",
        color=COLOURS[0],
        width=2,
    )
    paint(draw.scatter_x, "point", points, "all", color=COLOURS[0], size=25)
    bound = xr.Dataset({"error": ("row", table["delta"].to_numpy())}, {"row": names})
    paint(draw.scatter_x, "bound", bound, "all", color="B1", marker="|", size=180)
    texts = xr.Dataset({k: ("row", v) for k, v in notes.items()}, {"row": names})
    paint(write, "value", points.fillna(0.0), "all", text=texts, x=xr.Dataset(places),
          horizontal_align="left")  # fmt: skip
    for column, name in enumerate(("error", "rows")):
        paint.set(draw.set_xlim, panel(name), limits=limits[name])
        paint.set(draw.set_ylim, panel(name), limits=(-0.7, len(names) - 0.3))
        paint.ticks(y_ticks, "names", name, heights, [""] * len(names) if column else names)
    paint.label(
        {
            "error": {
                "title": "Wrong decisions, with their bound",
                "xlabel": "share of the audited decisions",
            },
            "rows": {
                "title": "Rows read per draw",
                "xlabel": f"{RACE_STATS['race_rows'].unit}: mean, and 90 % of the draws",
            },
        }
    )
    return paint.collection


def _table(dt: xr.DataTree | Mapping[str, xr.DataTree], by: By) -> pd.DataFrame:
    """Return the table of decision errors, a row for each chain, step or result."""
    if not isinstance(dt, xr.DataTree | Mapping):
        raise TypeError(
            "dt must be the xarray.DataTree that pm.sample returns, or a mapping of names to such results, "
            f"got {type(dt).__name__}."
        )
    if isinstance(dt, xr.DataTree):
        table = decision_error(dt, by=by)
        table = table.iloc[:-1] if len(table) == 2 else table
        return table.rename(lambda k: f"{by} {k}" if isinstance(k, int) else k)
    if not dt:
        raise ValueError("dt must hold at least one result, got an empty mapping.")
    return pd.DataFrame({name: decision_error(run).loc["all"] for name, run in dt.items()}).T


def _layers(
    table: pd.DataFrame, names: list[str]
) -> tuple[xr.Dataset, xr.Dataset, dict[str, np.ndarray]]:
    """Return the points (row), intervals (row, bound), and all values that the axes should show."""
    ends = {"error": ["ci_low", "ci_high"], "rows": ["rows_low", "rows_high"]}
    bounds = {k: table[v].to_numpy(float) for k, v in ends.items()}
    points = {k: table[k].to_numpy(float) for k in ends}
    known = table["audited"].to_numpy() > 0
    values = {
        "error": np.append(bounds["error"][known], table["delta"].to_numpy(float)),
        "rows": np.append(bounds["rows"], points["rows"]),
    }
    at = {"row": names}
    return (
        xr.Dataset({k: ("row", v) for k, v in points.items()}, at),
        xr.Dataset({k: (("row", "bound"), v) for k, v in bounds.items()}, at),
        values,
    )


def _audits(table: pd.DataFrame) -> list[str]:
    """Return the numbers of wrong and of audited decisions as texts."""
    return [
        f"{wrong:,.0f} of {audited:,.0f}" if audited else "no audits"
        for wrong, audited in zip(table["wrong"], table["audited"], strict=True)
    ]


def _room(values: np.ndarray, letters: int, log: bool) -> tuple[tuple[float, float], float]:
    """Return the limits of an axis with room for texts on the right, and the place of the texts."""
    scaled = np.log(values) if log else values
    low, high = float(scaled.min()), float(scaled.max())
    width = high - low if high > low else 1.0
    ends = np.array(
        [low - 0.04 * width, high + (0.08 + 0.045 * letters) * width, high + 0.05 * width]
    )
    left, right, place = (np.exp(ends) if log else ends).tolist()
    return (left, right), place
