"""Plot of the allocation of draws to combined estimators, and of the resulting estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from amc_pymc.results.common import result_group
from amc_pymc.results.plots.painting import (
    COLOURS,
    GREY,
    MOST_DOTS,
    Painter,
    one_of,
    panel,
    sized,
    xy,
)
from amc_pymc.results.tables import ARMS

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_allocation"]

Visual = Literal[
    "arms", "rounds", "estimate", "band", "level", "final", "final_interval", "title", "xlabel",
    "ylabel", "legend",
]  # fmt: skip
_SOURCE = "amc_pymc.combine_estimators"
#: Minimum share of the cost for an arm to have its own line, if there are many arms.
_SMALL = 1e-3
#: Maximum number of rounds that are drawn.
_MOST_ROUNDS = 300


def plot_allocation(
    dt: xr.DataTree,
    *,
    weights: str | None = None,
    max_arms: int = 10,
    backend: str | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the allocation of draws to combined estimators, and the resulting estimate.

    The first plot shows the draws of each arm against those of all arms. If the costs of draws differ, a
    second plot shows the cost of each arm. The last plot shows the running estimate after each round with a
    band of two standard errors to either side, and the final estimate with its interval.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.combine_estimators`.
    weights : {"predictable", "inverse_variance", "uniform"}, optional
        Weights of the estimate to show; by default those of the main estimate of the run.
    max_arms : int, default 10
        Maximum number of lines. If there are more arms, those with the largest cost, and at least a
        thousandth of the total, have their own line; the others share one.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * arms -> passed to :func:`~arviz_plots.visuals.line_xy`
        * rounds, dots at the ends of rounds if there are few
          -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * estimate -> passed to :func:`~arviz_plots.visuals.line_xy`
        * band -> passed to :func:`~arviz_plots.visuals.fill_between_y`
        * level, a line at the final estimate -> passed to :func:`~arviz_plots.visuals.hline`
        * final -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * final_interval -> passed to :func:`~arviz_plots.visuals.ci_line_y`
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel, ylabel -> passed to :func:`~arviz_plots.visuals.labelled_x` and
          :func:`~arviz_plots.visuals.labelled_y`
        * legend -> passed to :meth:`arviz_plots.PlotCollection.add_legend`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group, or an option is unknown.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> found = amc.combine_estimators(
    ...     {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)},
    ...     draws=1000,
    ...     random_seed=1,
    ...     progressbar=False,
    ... )
    >>> pc = amc.plot_allocation(found, backend="none")
    >>> sorted(pc.viz["plot"].data_vars)
    ['draws', 'estimate']
    """
    from arviz_plots import visuals as draw

    paint = Painter(backend, visuals, get_args(Visual))
    weights = _weights(dt, weights)
    lines, labels, others = _arm_lines(dt, _checked_arms(max_arms))
    estimate = _estimate(dt, weights, by_cost="cost" in lines)
    layout = lines.assign(estimate=estimate["running"])
    width = len(layout) + 0.2 * paint.wants("legend")
    paint.open(layout, sized(pc_kwargs, paint.backend, 5.4 * width, 3.9))
    paint.colour_by("arm", labels, plain=others)

    paint.log(layout, "x")
    paint.log(lines, "y")
    paint(draw.line_xy, "arms", lines, "all")
    if lines.sizes["step"] <= MOST_DOTS:
        paint(draw.scatter_xy, "rounds", lines, "all", size=12)

    running, final = (xr.Dataset({"estimate": estimate[k]}) for k in ("running", "final"))
    if running.sizes["point"]:
        band = running.rename(plot_axis="kwarg")
        paint(draw.fill_between_y, "band", band.sel(kwarg=["x", "y_bottom", "y_top"]),
              color=COLOURS[0], alpha=0.25)  # fmt: skip
        paint(draw.line_xy, "estimate", running, color=COLOURS[0])
    if np.isfinite(final["estimate"]).all():
        level = final["estimate"].sel(plot_axis="y", drop=True)
        paint(draw.hline, "level", xr.Dataset({"estimate": level}),
              color=GREY, width=1, linestyle=paint.dashes[1])  # fmt: skip
        paint(draw.ci_line_y, "final_interval", final, color="B1")
        paint(draw.scatter_xy, "final", final, color="B1", size=20)
    limits = _limits(estimate["running"], estimate["final"])
    if limits is not None:
        paint.set(draw.set_ylim, panel("estimate"), limits=limits)
    paint.label(_texts(dt, weights, list(map(str, layout)), estimate["final"]))
    paint.legend("arm")
    return paint.collection


def _checked_arms(max_arms: int) -> int:
    if isinstance(max_arms, bool) or not isinstance(max_arms, int | np.integer):
        raise TypeError(f"max_arms must be an integer, got {max_arms!r}.")
    if max_arms < 2:
        raise ValueError(f"max_arms must be at least 2, got {max_arms}.")
    return int(max_arms)


def _weights(dt: xr.DataTree, weights: str | None) -> str:
    """Return the name of the weights to show."""
    known = result_group(dt, "estimate", ("mean", "mcse"), _SOURCE)["weights"].values.tolist()
    if weights is None:
        weights = dt.attrs.get("weights", known[0])
    one_of("weights", weights, known)
    return str(weights)


def _arm_lines(dt: xr.DataTree, max_arms: int) -> tuple[xr.Dataset, list[str], str | None]:
    """Return the lines of the arms, their labels, and the label of the line shared by small arms."""
    pulls = result_group(dt, "pulls", ("arm", "round", "cost", "failed"), _SOURCE)
    names = [str(name) for name in result_group(dt, "arms", ("draws",), _SOURCE)["arm"].values]
    group_of, labels, others = _groups(pulls, names, max_arms)
    ends = _totals(pulls, group_of)
    costs = pulls["cost"].values
    columns = {"draws": _lines(ends.draws, labels)}
    if costs.min() < costs.max():
        columns["cost"] = _lines(ends.cost, labels)
    return xr.Dataset(columns), labels, others


def _groups(
    pulls: xr.Dataset, names: list[str], max_arms: int
) -> tuple[np.ndarray, list[str], str | None]:
    """Return the group of each arm (K,), where arms with the largest cost have their own, and the labels."""
    n_arms = len(names)
    if n_arms <= max_arms:
        return np.arange(n_arms), names, None
    spent = np.bincount(pulls["arm"].values, pulls["cost"].values, n_arms)
    largest = np.argsort(-spent, kind="stable")[: max_arms - 1]
    shown = np.sort(largest[spent[largest] >= _SMALL * spent.sum()])
    group_of = np.full(n_arms, shown.size)
    group_of[shown] = np.arange(shown.size)
    others = f"{n_arms - shown.size:,} others"
    return group_of, [*(names[k] for k in shown), others], others


def _lines(totals: np.ndarray, labels: list[str]) -> xr.DataArray:
    """Return running totals (R, G) as lines against their sum, with nan for zeros because of the log axis."""
    y = np.where(totals > 0, totals, np.nan).T
    x = np.broadcast_to(totals.sum(axis=1), y.shape)
    return xr.DataArray(
        np.stack([x, y], axis=1),
        dims=("arm", "plot_axis", "step"),
        coords={"arm": labels, "plot_axis": ["x", "y"]},
    )


def _estimate(dt: xr.DataTree, weights: str, *, by_cost: bool) -> dict[str, xr.DataArray]:
    """Return the running estimate with its band, and the final one, against draws or cost."""
    prefix = "log_" if dt.attrs.get("scale") == "log" else ""
    mean, error = f"{prefix}mean", "log_mean_mcse" if prefix else "mcse"
    running = f"running_{mean}", f"running_{error}"
    rounds = result_group(dt, "rounds", ("draws", "cost", *running), _SOURCE)
    final = result_group(dt, "estimate", (mean, error), _SOURCE).sel(weights=weights)
    pulls = dt["pulls"].to_dataset()
    per_round = rounds["cost"] if by_cost else rounds["draws"].sum("arm")
    x = per_round.values.cumsum()
    centre = rounds[running[0]].sel(weights=weights).values
    half = 2.0 * rounds[running[1]].sel(weights=weights).values
    known = np.flatnonzero(np.isfinite(centre) & np.isfinite(half))
    known = known[_log_spaced(known.size)]
    end = float(pulls["cost"].sum()) if by_cost else float(pulls.sizes["pull"])
    return {
        "running": _band(x[known], centre[known], half[known]),
        "final": _band(np.array([end]), final[mean].values[None], 2.0 * final[error].values[None]),
    }


def _band(x: np.ndarray, centre: np.ndarray, half: np.ndarray) -> xr.DataArray:
    return xy(x, centre, centre - half, centre + half)


def _limits(running: xr.DataArray, final: xr.DataArray) -> tuple[float, float] | None:
    """Return axis limits that fit the last two thirds of the run on the log scale, without early errors."""
    shown = final
    if running.sizes["point"]:
        x = running.sel(plot_axis="x")
        late = x.values >= float(x.min()) ** (1 / 3) * float(x.max()) ** (2 / 3)
        late |= np.arange(late.size) == late.size - 1
        shown = xr.concat([running.isel(point=late), shown], "point")
    low, high = (
        float(shown.sel(plot_axis="y_bottom").min()),
        float(shown.sel(plot_axis="y_top").max()),
    )
    if not np.isfinite([low, high]).all() or low == high:
        return None
    # Double the range to show part of the earlier estimates while the end stays legible.
    margin = 0.5 * (high - low)
    return low - margin, high + margin


def _texts(
    dt: xr.DataTree, weights: str, panels: list[str], final: xr.DataArray
) -> dict[str, dict[str, str]]:
    """Return the title and labels of each plot."""
    unit = "CPU time (s)" if dt.attrs.get("cost") == "cpu" else "cost"
    log = dt.attrs.get("scale") == "log"
    centre = final.sel(plot_axis="y").item()
    error = 0.5 * (final.sel(plot_axis="y_top").item() - centre)
    found = "no estimate" if not np.isfinite(centre) else _with_error(centre, error)
    title = f"{'Log of estimate' if log else 'Estimate'}: {found}"
    if dt.attrs.get("stopped"):
        title += ", cut short"
    of = {"draws": ARMS["draws"].unit, "cost": unit}
    axis = of["cost"] if "cost" in panels else of["draws"]
    texts = {
        name: {"title": f"{what[0].upper()}{what[1:]} by arm", "xlabel": f"{what}, all arms",
               "ylabel": f"{what}, one arm"}
        for name, what in of.items() if name in panels
    }  # fmt: skip
    texts["estimate"] = {
        "title": title,
        "xlabel": f"{axis}, all arms",
        "ylabel": f"{'log of ' if log else ''}{weights.replace('_', '-')} estimate, ± 2 errors",
    }
    return texts


def _with_error(centre: float, error: float) -> str:
    """Format a number and its standard error to two digits."""
    if not (np.isfinite(error) and error > 0.0):
        return f"{centre:.4g}"
    digits = 1 - int(np.floor(np.log10(error)))
    if not 0 <= digits <= 8:
        return f"{centre:.4g} ({error:.2g})"
    return f"{centre:,.{digits}f} ± {error:.{digits}f}"


class _Totals(NamedTuple):
    """Running totals at the ends of rounds, including an incomplete last round.

    Attributes
    ----------
    draws, good : array (R, G)
        Number of draws of each of G groups of arms, and of draws that did not fail.
    cost : array (R, G)
    """

    draws: np.ndarray
    good: np.ndarray
    cost: np.ndarray


def _totals(pulls: xr.Dataset, group_of: np.ndarray) -> _Totals:
    """Compute running totals of groups of arms at the ends of rounds, from the group of each arm, (K,).

    Many rounds are thinned, evenly on a log scale.
    """
    rounds, costs = pulls["round"].values, pulls["cost"].values
    n_rounds, n_groups = int(rounds.max()) + 1, int(group_of.max()) + 1
    kept = _log_spaced(n_rounds)
    # Rounds up to kept[i] and after kept[i - 1] fall into bin i.
    cells = np.searchsorted(kept, rounds) * n_groups + group_of[pulls["arm"].values]

    def totals(weights: np.ndarray | None) -> np.ndarray:
        sums = np.bincount(cells, weights, kept.size * n_groups)
        return sums.reshape(kept.size, n_groups).cumsum(axis=0)

    return _Totals(totals(None), totals(1.0 * ~pulls["failed"].values), totals(costs))


def _log_spaced(n: int) -> np.ndarray:
    """Return all of 0, ..., n - 1 if they are few, else about 300 of them, evenly spaced on a log scale."""
    if n <= _MOST_ROUNDS:
        return np.arange(n)
    return np.unique(np.geomspace(1, n, _MOST_ROUNDS).round().astype(int)) - 1
