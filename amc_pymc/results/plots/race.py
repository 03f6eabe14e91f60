"""Plot of the decision errors of racing steps and of the rows that they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import xarray as xr

from amc_pymc.results.decision_error import decision_error
from amc_pymc.results.plots.painting import draw_rows, log_axis, panels
from amc_pymc.results.tables import RACE_STATS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Ratio of the largest to the smallest number of rows above which their axis is logarithmic.
_LOG = 20.0


def plot_race(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    by: Literal["chain", "step"] = "step",
    **figure_kwargs: Any,
) -> Figure:
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
    **figure_kwargs
        Passed to :func:`matplotlib.pyplot.figure`.

    Returns
    -------
    Figure

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or has no race statistics, or `by` is unknown.

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
    >>> figure = plot_race(from_dict({"sample_stats": stats}), by="chain")
    >>> figure.axes[0].texts[-1].get_text()
    '3 of 200'
    """
    table = _table(dt, by)
    names = list(map(str, table.index))
    size = 7.2 + 0.08 * max(map(len, names)), 1.5 + 0.38 * max(len(names), 2)
    figure, (left, right) = panels(2, size, figure_kwargs)
    ends = {"error": ["ci_low", "ci_high"], "rows": ["rows_low", "rows_high"]}
    bounds = {k: table[v].to_numpy(float) for k, v in ends.items()}
    delta, audited = (table[k].to_numpy(float) for k in ("delta", "audited"))
    notes = [
        f"{wrong:,.0f} of {tried:,.0f}" if tried else "no audits"
        for wrong, tried in zip(table["wrong"], audited, strict=True)
    ]
    heights = draw_rows(left, names, table["error"].to_numpy(float), bounds["error"], notes)
    left.plot(delta, heights, "|", color="black", markersize=14)
    # Intervals of rows without audits reach to one.
    reach = max(bounds["error"][audited > 0.0].max(initial=0.0), delta.max()) or 1.0
    left.set(
        title="Wrong decisions, with their bound", xlabel="share of the audited decisions",
        xlim=(-0.04 * reach, 1.06 * reach),
    )  # fmt: skip
    rows = [f"{n:,.0f}" for n in table["rows"]]
    draw_rows(right, [""] * len(names), table["rows"].to_numpy(float), bounds["rows"], rows)
    if bounds["rows"].max() > _LOG * bounds["rows"].min() > 0.0:
        log_axis(right, "x", bounds["rows"])
    else:
        right.set_xlim(left=0.0)
    unit = RACE_STATS["race_rows"].unit
    right.set(title="Rows read per draw", xlabel=f"{unit}: mean, and 90 % of the draws")
    return figure


def _table(
    dt: xr.DataTree | Mapping[str, xr.DataTree], by: Literal["chain", "step"]
) -> pd.DataFrame:
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
