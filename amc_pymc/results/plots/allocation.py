"""Plot of the allocation of draws to combined estimators, and of the resulting estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.results.common import result_group, with_error
from amc_pymc.results.plots.painting import COLOURS, GREY, log_axis, marker_of_rounds, panels
from amc_pymc.results.tables import ARMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SOURCE = "amc_pymc.combine_estimators"


def plot_allocation(dt: xr.DataTree, **figure_kwargs: Any) -> Figure:
    """Plot the allocation of draws to combined estimators, and the resulting estimate.

    The first plot shows the draws of each arm against those of all arms. If the costs of draws differ, a
    second plot shows the cost of each arm. The last plot shows the running estimate after each round with a
    band of two standard errors to either side, and the final estimate with its interval.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.combine_estimators`. Of more than eight arms, those with the largest cost are shown.
    **figure_kwargs
        Passed to :func:`matplotlib.pyplot.figure`.

    Returns
    -------
    Figure

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> found = amc.combine_estimators(
    ...     {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)},
    ...     draws=1000,
    ...     random_seed=1,
    ...     progressbar=False,
    ... )
    >>> figure = amc.plot_allocation(found)
    >>> figure.axes[0].get_title()
    'Draws by arm'
    """
    pulls = result_group(dt, "pulls", ("arm", "round", "cost"), _SOURCE)
    names = [str(name) for name in result_group(dt, "arms", ("draws",), _SOURCE)["arm"].values]
    by_arm = np.bincount(pulls["arm"].values, pulls["cost"].values, len(names))
    shown = np.sort(np.argsort(-by_arm, kind="stable")[: len(COLOURS)])
    cost = "CPU time (s)" if dt.attrs.get("cost") == "cpu" else "cost"
    quantities = {ARMS["draws"].unit: np.ones(pulls.sizes["pull"])}
    if np.ptp(pulls["cost"].values) > 0.0:
        quantities[cost] = pulls["cost"].values
    number = len(quantities) + 1
    figure, axes = panels(number, (5.4 * number + 1.0, 3.9), figure_kwargs)
    for one, (what, amounts) in zip(axes, quantities.items()):
        totals = _totals(pulls, len(names), amounts)
        spent = totals.sum(axis=1)
        for colour, k in zip(COLOURS, shown.tolist()):
            y = np.where(totals[:, k] > 0.0, totals[:, k], np.nan)  # because of the log axis
            marker = marker_of_rounds(len(y))
            one.plot(spent, y, color=colour, marker=marker, markersize=4, label=names[k])
        log_axis(one, "x", spent)
        log_axis(one, "y", totals[:, shown])
        one.set(
            title=f"{what[0].upper()}{what[1:]} by arm",
            xlabel=f"{what}, all arms",
            ylabel=f"{what}, one arm",
        )
    _draw_estimate(axes[-1], dt, list(quantities)[-1], by_cost=len(quantities) > 1)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _totals(pulls: xr.Dataset, n_arms: int, amounts: np.ndarray) -> np.ndarray:
    """Return running totals (R, K) of arms at the ends of rounds, including an incomplete last one."""
    n_rounds = int(pulls["round"].values.max()) + 1
    cells = pulls["round"].values * n_arms + pulls["arm"].values
    return np.bincount(cells, amounts, n_rounds * n_arms).reshape(n_rounds, -1).cumsum(axis=0)


def _draw_estimate(axes: Axes, dt: xr.DataTree, what: str, *, by_cost: bool) -> None:
    """Draw the running estimate with its band, and the final one, against draws or cost."""
    log = dt.attrs.get("scale") == "log"
    mean, error = ("log_mean", "log_mean_mcse") if log else ("mean", "mcse")
    running = f"running_{mean}", f"running_{error}"
    rounds = result_group(dt, "rounds", ("draws", "cost", *running), _SOURCE)
    final = result_group(dt, "estimate", (mean, error), _SOURCE).sel(weights="predictable")
    x = (rounds["cost"] if by_cost else rounds["draws"].sum("arm")).values.cumsum()
    centre, half = (rounds[name].sel(weights="predictable").values for name in running)
    known = np.isfinite(centre) & np.isfinite(half)
    x, centre, half = x[known], centre[known], 2.0 * half[known]
    axes.fill_between(x, centre - half, centre + half, color=COLOURS[0], alpha=0.25, linewidth=0)
    axes.plot(x, centre, color=COLOURS[0])
    level, spread = float(final[mean]), 2.0 * float(final[error])
    if np.isfinite([level, spread]).all():
        end = float(dt["pulls"]["cost"].sum()) if by_cost else float(dt["pulls"].sizes["pull"])
        axes.axhline(level, color=GREY, linewidth=1, linestyle="--")
        axes.errorbar(end, level, spread, fmt="o", color="black", markersize=4)
        # Limits fit the last two thirds of the run on the log scale, and show part of the earlier estimates.
        late = x >= x.min(initial=end) ** (1 / 3) * end ** (2 / 3)
        low = (centre - half)[late].min(initial=level - spread)
        high = (centre + half)[late].max(initial=level + spread)
        if low < high:
            axes.set_ylim(1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low)
    log_axis(axes, "x", x)
    title = f"{'Log of estimate' if log else 'Estimate'}: {with_error(level, 0.5 * spread)}"
    if dt.attrs.get("stopped"):
        title += ", cut short"
    label = f"{'log of ' if log else ''}predictable estimate, ± 2 errors"
    axes.set(title=title, xlabel=f"{what}, all arms", ylabel=label)
