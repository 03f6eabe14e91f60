"""Plot of the step posterior on the boxes of a likelihood-free run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.results.common import listed, result_group
from amc_pymc.results.plots.abc import ABC_SOURCE
from amc_pymc.results.plots.painting import COLOURS, GREY, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Maximum number of coordinates shown.
_MOST = 6
#: Maximum number of draws in a plot.
_MOST_DRAWS = 1000
#: Absolute value above which bounds count as infinite, and margin around the draws, relative to their range.
_HUGE, _MARGIN = 1e300, 0.06


def plot_partition(
    dt: xr.DataTree, *, var_names: str | Sequence[str] | None = None, **figure_kwargs: Any
) -> Figure:
    """Plot the marginal step densities of a likelihood-free run, and its boxes with draws.

    There is a plot of the marginal density of each coordinate, with draws below it, and for a problem of two
    coordinates one of the outlines of the boxes, with draws. In the range of the draws, boxes are small where the
    posterior is high.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.sample_abc_tree` or :func:`amc_pymc.sample_abc_rejection`.
    var_names : str or sequence of str, optional
        At most six coordinates such as "mu[0]", or variables, which stand for all their coordinates. By
        default the first six coordinates.
    **figure_kwargs
        Passed to :func:`matplotlib.pyplot.figure`.

    Returns
    -------
    Figure

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group, or a coordinate is unknown or named twice.

    Notes
    -----
    In each box the posterior is constant relative to the prior, that is, in the unit cube. On the scale of the
    parameters, the density of a cell between adjacent bounds of boxes is its mass over its size, which is exact on
    average over the cell. Infinite bounds are cut at the range of the draws; the part that remains has all the
    mass. Coordinates are shown in the cube, without draws, if the scale of the parameters is unknown: for priors
    that have no quantiles, are discrete, or depend on other parameters.

    In a run with ``adjust="linear"``, the draws are adjusted, but the boxes are not.

    See Also
    --------
    plot_abc : progress of the run.

    Examples
    --------
    Two boxes, one of them with most of the mass:

    >>> import numpy as np, xarray as xr
    >>> from amc_pymc.results.plots import plot_partition
    >>> dt = xr.DataTree.from_dict(
    ...     {
    ...         "posterior": xr.Dataset({"mu": (("chain", "draw"), np.linspace(0, 4, 9)[None])}),
    ...         "step_posterior": xr.Dataset(
    ...             {
    ...                 "lower": (("box", "coordinate"), [[0.0], [0.5]]),
    ...                 "upper": (("box", "coordinate"), [[0.5], [1.0]]),
    ...                 "theta_lower": (("box", "coordinate"), [[0.0], [2.0]]),
    ...                 "theta_upper": (("box", "coordinate"), [[2.0], [4.0]]),
    ...                 "mass": ("box", [0.9, 0.1]),
    ...             },
    ...             {"coordinate": ["mu"]},
    ...         ),
    ...     }
    ... )
    >>> figure = plot_partition(dt)
    >>> density, edges, _ = figure.axes[0].patches[0].get_data()
    >>> density.tolist(), edges.tolist()
    ([0.45, 0.05], [0.0, 2.0, 4.0])
    """
    steps = result_group(dt, "step_posterior", ("lower", "upper", "mass"), ABC_SOURCE)
    if "coordinate" not in steps.coords or not steps.sizes.get("box", 0):
        raise ValueError(
            "Group 'step_posterior' of dt must have boxes and coordinates (dims box, coordinate), got "
            f"{dict(steps.sizes)}."
        )
    known = [str(name) for name in steps["coordinate"].values]
    names = known[:_MOST] if var_names is None else _expanded(var_names, known)
    draws = _draws(result_group(dt, "posterior", (), ABC_SOURCE), names)
    two = len(known) == 2 == len(names)
    number = len(names) + two
    size = 4.4 * min(number, 3), 3.6 * -(-number // 3)
    figure, axes = panels(number, size, figure_kwargs, columns=3)
    mass = steps["mass"].values / float(steps["mass"].sum())
    sides = [_side(steps.sel(coordinate=name), draws.get(name)) for name in names]
    for one, name, side in zip(axes, names, sides):
        _draw_marginal(one, mass, *side)
        shown = side[2] is not None
        one.set(
            xlim=_view(*side), xlabel=name if shown else f"{name}, unit cube",
            ylabel=f"density per unit of {name}" if shown else "density",
        )  # fmt: skip
    axes[0].set_title(_title(dt, steps))
    if two:
        _draw_boxes(axes[-1], *sides)
        axes[-1].set(xlabel=names[0], ylabel=names[1], xlim=_view(*sides[0]), ylim=_view(*sides[1]))
    return figure


def _expanded(var_names: str | Sequence[str], known: list[str]) -> list[str]:
    """Expand names of variables to their coordinates."""
    given = [var_names] if isinstance(var_names, str) else var_names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"var_names must be a string or a sequence of strings, got {var_names!r}.")
    names: list[str] = []
    for name in given:
        found = [k for k in known if k == name] or [k for k in known if k.startswith(f"{name}[")]
        if not found:
            raise ValueError(
                f"var_names names {name!r}; known are the coordinates {listed(known)}."
            )
        names += found
    if not 1 <= len(names) <= _MOST or len(set(names)) < len(names):
        raise ValueError(f"var_names must name 1 to {_MOST} coordinates, each once, got {names}.")
    return names


def _draws(posterior: xr.Dataset, names: list[str]) -> dict[str, np.ndarray]:
    """Return at most 1000 draws of the coordinates that have draws, on the scale of the parameters."""
    found = {}
    for name in names:
        variable, _, place = name.partition("[")
        if variable in posterior and {"chain", "draw"} <= set(posterior[variable].dims):
            values = posterior[variable].transpose("chain", "draw", ...).values
            at = tuple(int(i) for i in place.rstrip("]").split(",")) if place else ()
            if values.ndim == 2 + len(at):
                place_of: Any = (slice(None), slice(None), *at)
                found[name] = values[place_of].ravel().astype(float)
    if not found:
        return {}
    size = next(iter(found.values())).size
    some = np.linspace(0, size - 1, min(size, _MOST_DRAWS)).round().astype(int)
    good = np.all([np.isfinite(v[some]) for v in found.values()], axis=0)
    return {name: v[some][good] for name, v in found.items()} if good.any() else {}


#: Lower and upper bounds (K,) of boxes along a coordinate, and draws.
type _Side = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _side(steps: xr.Dataset, draws: np.ndarray | None) -> _Side:
    """Return the lower and upper bounds (K,) of boxes along a coordinate, and draws.

    They are in the unit cube, without draws, if bounds on the scale of the parameter are missing or do not rise with
    those in the cube. Infinite ones are cut at the range of the draws.
    """
    lower, upper = steps["lower"].values, steps["upper"].values
    if draws is None or "theta_lower" not in steps or "theta_upper" not in steps:
        return lower, upper, None
    theta = np.concatenate([steps["theta_lower"].values, steps["theta_upper"].values])
    _, first, place = np.unique(
        np.concatenate([lower, upper]), return_index=True, return_inverse=True
    )
    at = theta[first]
    inner = at[np.abs(at) < _HUGE]
    if not (np.diff(at) > 0.0).all() or not np.allclose(at[place], theta, rtol=1e-9, atol=0.0):
        return lower, upper, None
    low, high = min([draws.min(), *inner]), max([draws.max(), *inner])
    margin = _MARGIN * (float(np.ptp(draws)) or 1.0)
    at = np.where(at < -_HUGE, low - margin, np.where(at > _HUGE, high + margin, at))
    return at[place][: lower.size], at[place][lower.size :], draws


def _view(lower: np.ndarray, upper: np.ndarray, draws: np.ndarray | None) -> tuple[float, float]:
    """Return the range of the draws with a margin, or that of the boxes."""
    low, high = float(lower.min()), float(upper.max())
    if draws is None:
        return low, high
    margin = _MARGIN * (float(np.ptp(draws)) or high - low)
    return max(low, float(draws.min()) - margin), min(high, float(draws.max()) + margin)


def _draw_marginal(
    axes: Axes, mass: np.ndarray, lower: np.ndarray, upper: np.ndarray, draws: np.ndarray | None
) -> None:
    """Draw a marginal density as a step function with the area below it, and a rug of draws."""
    edges = np.unique(np.concatenate([lower, upper]))
    inside = np.diff(np.clip(edges, lower[:, None], upper[:, None]), axis=1)
    density = mass / (upper - lower) @ inside / np.diff(edges)
    axes.stairs(density, edges, fill=True, color=COLOURS[0], alpha=0.25)
    axes.stairs(density, edges, color=COLOURS[0], linewidth=1.5)
    if draws is not None:
        height = np.full_like(draws, -0.03 * float(density.max()))
        axes.plot(draws, height, "|", color=COLOURS[1], alpha=0.25)


def _draw_boxes(axes: Axes, across: _Side, along: _Side) -> None:
    """Draw the outlines of boxes, and draws."""
    from matplotlib.collections import PolyCollection

    (left, right, x), (bottom, top, y) = across, along
    corners = np.stack([left, bottom, right, bottom, right, top, left, top], axis=1)
    width = min(4.0 / len(left) ** 0.5, 0.8)
    outlines = PolyCollection(
        list(corners.reshape(-1, 4, 2)), facecolor="none", edgecolor=GREY, linewidth=width
    )
    axes.add_collection(outlines)
    if x is not None and y is not None:
        axes.plot(x, y, ".", color=COLOURS[1], alpha=0.5, markersize=4, markeredgewidth=0)


def _title(dt: xr.DataTree, steps: xr.Dataset) -> str:
    """Summarise the run in a title."""
    n, attrs = steps.sizes["box"], dt["posterior"].attrs
    parts = [f"{n:,} box{'es' if n != 1 else ''}"]
    if "tolerance" in attrs:
        parts.append(f"tolerance {float(attrs['tolerance']):.3g}")
    if "effective_draws" in attrs:
        parts.append(f"{float(attrs['effective_draws']):,.0f} effective draws")
    return ", ".join(parts)
