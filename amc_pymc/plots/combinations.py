"""Shared functions of the plots of combined estimators: reading results, axes, legends."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = [
    "RoundEnds",
    "colour_by",
    "cost_unit",
    "dataset_of",
    "log_axis",
    "log_spaced",
    "plot_backend",
    "round_ends",
    "side_by_side",
    "visual_options",
]

#: Maximum number of points drawn, and of rounds drawn with dots.
MOST_POINTS, MOST_DOTS = 300, 40


class RoundEnds(NamedTuple):
    """Running totals at the ends of rounds, including an incomplete last round.

    Attributes
    ----------
    draws, good : array (R, G)
        Number of draws of each of G groups of arms, and of draws that did not fail.
    cost : array (R, G)
    numbers : array (R,)
        Numbers of the rounds.
    """

    draws: np.ndarray
    good: np.ndarray
    cost: np.ndarray
    numbers: np.ndarray


def dataset_of(dt: xr.DataTree, group: str, variables: tuple[str, ...], name: str) -> xr.Dataset:
    """Return a group of a result after checking that it has the required variables."""
    if not isinstance(dt, xr.DataTree):
        raise TypeError(
            f"{name} must be the xarray.DataTree that amc_pymc.combine_estimators returns, "
            f"got {type(dt).__name__}."
        )
    if group not in dt.children:
        raise ValueError(
            f"{name} has no group {group!r}, only {sorted(map(str, dt.children))}; pass what "
            "amc_pymc.combine_estimators returned, with all its groups."
        )
    data = dt[group].to_dataset()
    missing = [v for v in variables if v not in data]
    if missing:
        raise ValueError(
            f"group {group!r} of {name} has no {', '.join(missing)}; pass what "
            "amc_pymc.combine_estimators returned."
        )
    return data


def round_ends(pulls: xr.Dataset, group_of: np.ndarray, most: int = MOST_POINTS) -> RoundEnds:
    """Compute running totals of groups of arms at the ends of rounds.

    Parameters
    ----------
    pulls : Dataset
        Group ``pulls`` of a result.
    group_of : array of int (K,)
        Group of each arm, from 0 to G - 1.
    most : int
        Approximate maximum number of rounds, evenly spaced on a log scale, including the first and the last.
    """
    rounds, costs = pulls["round"].values, pulls["cost"].values
    n_rounds, n_groups = int(rounds.max()) + 1, int(group_of.max()) + 1
    kept = log_spaced(n_rounds, most)
    # Rounds up to kept[i] and after kept[i - 1] fall into bin i.
    cells = np.searchsorted(kept, rounds) * n_groups + group_of[pulls["arm"].values]

    def totals(weights: np.ndarray | None) -> np.ndarray:
        sums = np.bincount(cells, weights, kept.size * n_groups)
        return sums.reshape(kept.size, n_groups).cumsum(axis=0)

    return RoundEnds(totals(None), totals(1.0 * ~pulls["failed"].values), totals(costs), kept)


def log_spaced(n: int, most: int = MOST_POINTS) -> np.ndarray:
    """Return all of 0, ..., n - 1 if they are few, else about `most` of them, evenly spaced on a log scale."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.geomspace(1, n, most).round().astype(int)) - 1


def plot_backend(backend: str | None, plot_collection: PlotCollection | None) -> str:
    """Return the plotting library: `backend` if given, else that of the collection, else the default of ArviZ."""
    from arviz_base import rcParams

    if backend is not None:
        return backend
    found: str = rcParams["plot.backend"] if plot_collection is None else plot_collection.backend
    return found


def visual_options(
    visuals: Mapping[str, Mapping[str, Any] | bool] | None, known: tuple[str, ...]
) -> dict[str, Any]:
    """Return the options of every visual, False for disabled ones."""
    visuals = {} if visuals is None else dict(visuals)
    unknown = [key for key in visuals if key not in known]
    if unknown:
        raise ValueError(f"visuals has the keys {unknown}; known are {', '.join(known)}.")

    def options(value: Mapping[str, Any] | bool) -> dict[str, Any] | bool:
        if isinstance(value, Mapping):
            return dict(value)
        return {} if value else False

    return {key: options(visuals.get(key, True)) for key in known}


def colour_by(
    plot_collection: PlotCollection, dim: str, labels: list[str], plain: str | None = None
) -> None:
    """Map colours to the values of a dimension; the value `plain` gets the text colour."""
    backend = import_module(f"arviz_plots.backend.{plot_collection.backend}")
    found = backend.get_default_aes("color", len(labels))
    colours = np.empty(len(labels), object)  # some libraries use triples as colours
    for i, label in enumerate(labels):
        colours[i] = "B1" if label == plain else found[i]
    mapping = xr.Dataset({"mapping": (dim, colours)}, {dim: labels})
    plot_collection.update_aes_from_dataset("color", mapping)


def log_axis(da: xr.DataArray, target: Any, *, axis: str) -> None:
    """Make the axis "x" or "y" of a plot logarithmic, unless the data span less than a factor of three.

    This is a visual for ``PlotCollection.map`` and works with all plotting libraries.
    """
    from arviz_plots.plot_collection import backend_from_object

    values = da.sel(plot_axis=axis).values
    values = values[np.isfinite(values) & (values > 0.0)]
    if values.size == 0 or values.max() < 3.0 * values.min():
        return
    name = backend_from_object(target, return_module=False)
    if name == "plotly":
        getattr(target, f"update_{axis}axes")(type="log")
    elif name == "bokeh":
        from bokeh.models import LogAxis, LogScale

        setattr(target, f"{axis}_scale", LogScale())
        setattr(target, "below" if axis == "x" else "left", [LogAxis()])
    else:
        backend = import_module(f"arviz_plots.backend.{name}")
        getattr(backend, f"{axis}scale")(target, "log")
        if name == "matplotlib" and values.max() < 200.0 * values.min():
            from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

            ticks = getattr(target, f"{axis}axis")
            ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ticks.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
            ticks.set_minor_formatter(NullFormatter())


def cost_unit(dt: xr.DataTree) -> str:
    """Return the axis label for the unit of costs."""
    return "CPU time (s)" if dt.attrs.get("cost") == "cpu" else "cost"


def side_by_side(
    pc_kwargs: dict[str, Any], backend: str, n_plots: int, *, legend: bool
) -> dict[str, Any]:
    """Return collection options for one plot per variable, side by side, with room for the legend."""
    module = import_module(f"arviz_plots.backend.{backend}")
    figure = dict(pc_kwargs.get("figure_kwargs", {}))
    if "figsize" not in figure:
        width = 0.85 * module.scale_fig_size(None, rows=1, cols=1)[0]
        figsize = ((n_plots + 0.2 * legend) * width, 0.72 * width)
        figure |= {"figsize": figsize, "figsize_units": "dots"}
    if backend == "matplotlib":
        figure.setdefault("layout", "constrained")
    return {"cols": ["__variable__"], **pc_kwargs, "figure_kwargs": figure}
