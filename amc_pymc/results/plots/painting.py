"""Shared parts of all plots: colours, figures, rows of intervals, logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Colours that people with colour vision deficiencies can tell apart; Okabe & Ito (2008).
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#666666",
)  # fmt: skip
GREY = "#888888"
#: Maximum number of rounds drawn with dots.
_MOST_DOTS = 40


def panels(
    number: int,
    size: tuple[float, float],
    options: Mapping[str, Any],
    *,
    columns: int | None = None,
    **layout: Any,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with some plots.

    Parameters
    ----------
    number : int
    size : (float, float)
        Default width and height in inches.
    options : mapping
        Options of the figure, by the user.
    columns : int, optional
        Maximum number of plots side by side, by default all.
    **layout
        Passed to :meth:`matplotlib.figure.Figure.subplots`.
    """
    import matplotlib.pyplot as plt

    figure = plt.figure(**{"figsize": size, "layout": "constrained", **options})
    columns = min(number, columns or number)
    axes = figure.subplots(-(-number // columns), columns, squeeze=False, **layout).ravel()
    for spare in axes[number:]:
        spare.remove()
    return figure, list(axes[:number])


def draw_rows(
    axes: Axes,
    names: Sequence[str],
    centre: np.ndarray,
    bounds: np.ndarray,
    notes: Sequence[str],
) -> np.ndarray:
    """Draw points (R,) with intervals (R, 2) in rows from top to bottom, and notes to the right of the axes.

    Returns the heights (R,) of the rows.
    """
    heights = np.arange(len(names), dtype=float)[::-1]
    known = np.isfinite(bounds).all(axis=1)
    axes.hlines(heights[known], *bounds[known].T, color=COLOURS[0], linewidth=2)
    axes.plot(centre, heights, "o", color=COLOURS[0])
    axes.set(yticks=heights, yticklabels=names, ylim=(-0.7, len(names) - 0.3))
    for height, note in zip(heights, notes, strict=True):
        axes.text(1.02, height, note, transform=axes.get_yaxis_transform(), va="center")
    return heights


def log_axis(axes: Axes, axis: str, values: Any) -> None:
    """Make the axis "x" or "y" logarithmic, unless the positive values span less than a factor of three."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    values = np.asarray(values, float)
    values = values[np.isfinite(values) & (values > 0.0)]
    if values.size == 0 or values.max() < 3.0 * values.min():
        return
    axes.set(**{f"{axis}scale": "log"})
    if values.max() < 200.0 * values.min():
        ticks = getattr(axes, f"{axis}axis")
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        ticks.set_minor_formatter(NullFormatter())


def marker_of_rounds(number: int) -> str:
    """Return the marker of the ends of rounds: dots if there are few."""
    return "o" if number <= _MOST_DOTS else ""
