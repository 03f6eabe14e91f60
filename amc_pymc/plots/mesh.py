"""Visuals for coloured cells and a colour bar, which arviz_plots does not provide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["COLOURS", "colour_bar", "coloured_cells"]

#: RGB colours from the lowest to the highest density.
_ANCHORS = (
    (246, 248, 251), (222, 232, 242), (188, 212, 230), (140, 184, 214), (88, 148, 192),
    (46, 108, 164), (22, 70, 128), (10, 36, 84),
)  # fmt: skip


def _gradient(n: int) -> list[str]:
    at = np.linspace(0, len(_ANCHORS) - 1, n)
    rgb = [np.interp(at, np.arange(len(_ANCHORS)), channel) for channel in np.transpose(_ANCHORS)]
    return ["#{:02x}{:02x}{:02x}".format(*map(round, c)) for c in zip(*rgb, strict=True)]


COLOURS = _gradient(256)


def coloured_cells(
    da: xr.DataArray,
    target: Any,
    *,
    x: np.ndarray,
    y: np.ndarray,
    limits: tuple[float, float],
    colors: Sequence[str] = COLOURS,
    **kwargs: Any,
) -> Any:
    """Colour cells by the logarithm of positive values.

    This is a visual for ``PlotCollection.map`` and works with all plotting libraries.

    Parameters
    ----------
    da : DataArray (C_x, C_y)
    target : plot
    x, y : arrays (C_x + 1,), (C_y + 1,)
        Edges of the cells.
    limits : (float, float)
        Values of the first and the last colour; values outside are clipped.
    colors : sequence of str
        Colours "#rrggbb".
    **kwargs
        Passed to ``pcolormesh``, ``quad`` or ``Heatmap``.
    """
    from arviz_plots.plot_collection import backend_from_object

    values = np.clip(da.values, *limits)
    name = backend_from_object(target, return_module=False)
    if name == "matplotlib":
        from matplotlib.colors import ListedColormap, LogNorm

        options = {"norm": LogNorm(*limits), "cmap": ListedColormap(list(colors))}
        return target.pcolormesh(x, y, values.T, **{"rasterized": True, **options, **kwargs})
    if name == "bokeh":
        at = np.rint(_share(values, limits) * (len(colors) - 1)).astype(int)
        left, bottom = np.meshgrid(x[:-1], y[:-1], indexing="ij")
        right, top = np.meshgrid(x[1:], y[1:], indexing="ij")
        filled = np.asarray(colors, object)[at].ravel().tolist()
        return target.quad(
            left=left.ravel(), right=right.ravel(), bottom=bottom.ravel(), top=top.ravel(),
            **{"fill_color": filled, "line_color": None, **kwargs},
        )  # fmt: skip
    if name == "plotly":
        from plotly.graph_objects import Heatmap

        drawn = Heatmap(
            x=x, y=y, z=np.log10(values).T, zmin=np.log10(limits[0]), zmax=np.log10(limits[1]),
            **{"colorscale": _plotly(colors), "showscale": False, **kwargs},
        )  # fmt: skip
        target.add_trace(drawn)
        return drawn
    drawn = {"function": "cells", "x": x, "y": y, "z": values, "limits": limits, **kwargs}
    target.append(drawn)
    return drawn


def colour_bar(
    da: xr.DataArray,
    target: Any,
    *,
    limits: tuple[float, float],
    text: str,
    inside: bool,
    colors: Sequence[str] = COLOURS,
    **kwargs: Any,
) -> Any:
    """Draw a bar of the colours of :func:`coloured_cells`.

    Parameters
    ----------
    da : DataArray
        Not used.
    target : plot
    limits, colors
        As for :func:`coloured_cells`.
    text : str
    inside : bool
        Whether to draw the bar within the plot, which is empty, or beside it.
    **kwargs
        Passed to ``colorbar`` or ``ColorBar``.
    """
    from arviz_plots.plot_collection import backend_from_object

    name = backend_from_object(target, return_module=False)
    if name == "matplotlib":
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, LogNorm

        colours = ScalarMappable(LogNorm(*limits), ListedColormap(list(colors)))
        where = {"cax": target.inset_axes((0.3, 0.05, 0.08, 0.9))} if inside else {"ax": target}
        bar = target.figure.colorbar(colours, **where, **kwargs)
        bar.set_label(text)
        bar.outline.set_visible(False)
        return bar
    if name == "bokeh":
        from bokeh.models import ColorBar, LogColorMapper

        mapper = LogColorMapper(palette=list(colors), low=limits[0], high=limits[1])
        bar = ColorBar(color_mapper=mapper, title=text, **kwargs)
        target.add_layout(bar, "center" if inside else "right")
        return bar
    if name == "plotly":
        from plotly.graph_objects import Scatter

        low, high = np.log10(limits)
        ticks = np.arange(np.ceil(low - 1e-9), np.floor(high + 1e-9) + 1.0)
        bar = {
            "title": {"text": text, "side": "right"}, "tickvals": ticks,
            "ticktext": [f"{10.0**t:g}" for t in ticks], **kwargs,
        }  # fmt: skip
        marker = {"color": [low, high], "cmin": low, "cmax": high, "showscale": True}
        marker |= {"colorscale": _plotly(colors), "colorbar": bar, "opacity": 0.0}
        drawn = Scatter(x=[None, None], y=[None, None], mode="markers", marker=marker)
        drawn.showlegend = False
        target.add_trace(drawn)
        return drawn
    bar = {"function": "colour_bar", "limits": limits, "string": text, **kwargs}
    target.append(bar)
    return bar


def _share(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Return the position of values between the limits on a log scale, from 0 to 1."""
    low, high = np.log(limits)
    share: np.ndarray = (np.log(values) - low) / (high - low)
    return share


def _plotly(colors: Sequence[str]) -> list[list[Any]]:
    return [[float(s), c] for s, c in zip(np.linspace(0.0, 1.0, len(colors)), colors, strict=True)]
