"""Plot of the evidence of several models, or of the arms of one estimate."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.results.common import normal_interval
from amc_pymc.results.plots.evidence_rows import EvidenceRows, evidence_rows, number_with_error
from amc_pymc.results.plots.painting import COLOURS, GREY, Painter, panel, sized, write, y_ticks

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_evidence"]

Visual = Literal[
    "bar", "band", "reference", "interval", "point", "value", "names", "ticks", "title", "xlabel"
]
#: Range of differences in nats above which the axis becomes logarithmic.
_LINEAR_RANGE = 20.0
#: Horizontal position of the numbers beside probabilities.
_NOTES = 1.08
#: Ratio of the range of the axis to an interval above which the interval is too short to see.
_SHORT = 60.0


def plot_evidence(
    dt: pd.DataFrame | xr.DataTree | Mapping[str, xr.DataTree | tuple[float, float]],
    *,
    backend: str | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the evidence of several models, or the estimates from the arms of one result.

    For several models, the first plot shows log evidences with 95 % intervals, as differences from the
    best, and as numbers with standard errors. The second shows posterior probabilities.

    For one result with several arms, the first plot shows the estimate of each arm, with the 95 % interval
    of the combined estimate as a band. The second shows the weights of the arms.

    If a linear axis would hide differences close to zero, it is linear near zero and logarithmic beyond:
    for models beyond one nat if differences exceed 20 nats, for arms beyond about three times the
    shortest interval if that would be too short to see.

    Parameters
    ----------
    dt : DataFrame, mapping of {str : DataTree or (float, float)} or DataTree
        Table from :func:`amc_pymc.compare_evidence`, drawn in its order; a mapping that it makes a table of; or a
        single result of :func:`amc_pymc.sample_ais` or :func:`amc_pymc.estimate_evidence`.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * bar, from zero to a probability or weight
          -> passed to :func:`~arviz_plots.visuals.fill_between_y`
        * band -> passed to :func:`~arviz_plots.visuals.vspan`
        * reference, a line at the best model or combined estimate
          -> passed to :func:`~arviz_plots.visuals.vline`
        * interval -> passed to :func:`~arviz_plots.visuals.line_x`
        * point -> passed to :func:`~arviz_plots.visuals.scatter_x`
        * value, the numbers -> passed to :func:`~arviz_plots.visuals.annotate_xy`
        * names (of the rows) and ticks -> passed to functions ``yticks`` and ``xticks`` of the library
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
        If `dt` is none of these or lacks a group or column, or an option is unknown.

    Notes
    -----
    Names followed by (!) mark estimates that are flagged or have an error that is unknown or above one
    nat, and arms with a few dominant weights (Pareto k above 0.7). Their intervals are not reliable.

    For unequal prior probabilities, use :func:`amc_pymc.compare_evidence`.

    See Also
    --------
    amc_pymc.compare_evidence : table of evidences and probabilities.

    Examples
    --------
    >>> import xarray as xr
    >>> from amc_pymc.results.plots.evidence import plot_evidence
    >>> found = {
    ...     name: xr.DataTree.from_dict(
    ...         {"evidence": xr.Dataset({"log_evidence": value, "log_evidence_mcse": 0.1})}
    ...     )
    ...     for name, value in {"linear": -14.1, "quadratic": -12.0}.items()
    ... }
    >>> pc = plot_evidence(found, backend="none")
    >>> pc.get_viz("value", "log_evidence", model="linear")["string"]
    '−14.10 ± 0.10'

    Numbers from elsewhere:

    >>> pc = plot_evidence(
    ...     {"linear": (-14.1, 0.1), "quadratic": found["quadratic"]}, backend="none"
    ... )
    >>> pc.get_viz("value", "log_evidence", model="quadratic")["string"]
    '−12.00 ± 0.10'
    """
    from arviz_plots import visuals as draw

    paint = Painter(backend, visuals, get_args(Visual))
    rows = evidence_rows(dt)
    scale = _scale(rows)
    points, intervals, texts, text_x = _layers(rows, scale)
    labels = [
        f"{name} (!)" if bad else name for name, bad in zip(rows.names, rows.bad, strict=True)
    ]
    paint.open(points, _sized(pc_kwargs, paint.backend, labels, two=len(points) > 1))
    heights = paint.rows(rows.dim, rows.names)

    if rows.band is not None:
        band = xr.Dataset({"log_evidence": ("bound", scale(np.array(rows.band)))})
        paint(draw.vspan, "band", band, color=COLOURS[0], alpha=0.2)
    paint(draw.vline, "reference", panel("log_evidence"), color=GREY, width=1)
    if rows.share is not None:
        paint(
            draw.fill_between_y, "bar", _bars(rows, rows.share), "all", color=COLOURS[0], alpha=0.35
        )
    paint(draw.line_x, "interval", intervals, "all", color=COLOURS[0], width=2)
    paint(draw.scatter_x, "point", points, "all", color=COLOURS[0])
    paint(write, "value", points.fillna(0.0), "all", text=texts, x=text_x, horizontal_align="left")

    limits = {"log_evidence": _limits(rows, scale, texts)}
    ticks = {"log_evidence": _ticks(rows, scale, limits["log_evidence"])}
    if rows.share_name in points:
        letters = max(map(len, rows.notes))
        limits[rows.share_name] = (-0.03, _NOTES + 0.04 * letters)
        ticks[rows.share_name] = (np.array([0.0, 0.5, 1.0]), ["0", "0.5", "1"])
    for column, name in enumerate(map(str, points)):
        paint.set(draw.set_xlim, panel(name), limits=limits[name])
        paint.set(draw.set_ylim, panel(name), limits=(-0.7, len(labels) - 0.3))
        paint.ticks(y_ticks, "names", name, heights, [""] * len(labels) if column else labels)
        paint.ticks(draw.set_xticks, "ticks", name, *ticks[name])
        log = scale.unit is not None and not column
        suffix = f" (log beyond {scale.unit:g})" if log else ""
        paint.label({name: {"title": rows.titles[name], "xlabel": rows.xlabels[name] + suffix}})
    return paint.collection


class _Scale(NamedTuple):
    """Scale of the axis of differences: linear, or linear up to a unit and logarithmic beyond."""

    unit: float | None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, float)
        return x if self.unit is None else np.sign(x) * np.log10(1.0 + np.abs(x) / self.unit)


def _scale(rows: EvidenceRows) -> _Scale:
    low, high = _extremes(rows)
    if rows.dim == "model":
        return _Scale(1.0 if high - low > _LINEAR_RANGE else None)
    half = 0.5 * (rows.bounds[:, 1] - rows.bounds[:, 0])
    half = half[half > 0.0]
    if half.size == 0 or high - low < _SHORT * half.min():
        return _Scale(None)
    return _Scale(10.0 ** round(math.log10(3.0 * half.min())))


def _extremes(rows: EvidenceRows) -> tuple[float, float]:
    shown = [rows.centre, rows.bounds.ravel(), np.array([0.0])]
    if rows.band is not None:
        shown.append(np.array(rows.band))
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    return float(values.min()), float(values.max())


def _layers(
    rows: EvidenceRows, scale: _Scale
) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset, xr.Dataset]:
    """Return the points, intervals, texts and positions of the texts for each plot."""
    low, high = (float(scale(np.array(x))) for x in _extremes(rows))
    points = {"log_evidence": scale(rows.centre)}
    bounds = {"log_evidence": scale(rows.bounds)}
    texts = {
        "log_evidence": [
            number_with_error(c + rows.reference, e)
            for c, e in zip(rows.centre, rows.error, strict=True)
        ]
    }
    places = {"log_evidence": high + 0.05 * _width(low, high)}
    if rows.share is not None and rows.share_error is not None:
        ends = np.stack(normal_interval(rows.share, rows.share_error), axis=1)
        points[rows.share_name] = rows.share
        bounds[rows.share_name] = np.where(np.isfinite(ends), np.clip(ends, 0.0, 1.0), np.nan)
        texts[rows.share_name] = rows.notes
        places[rows.share_name] = _NOTES

    def dataset(columns: Mapping[str, Any], *dims: str) -> xr.Dataset:
        return xr.Dataset(
            {k: (dims, v) for k, v in columns.items()}, {rows.dim: rows.names} if dims else None
        )

    return (
        dataset(points, rows.dim), dataset(bounds, rows.dim, "bound"), dataset(texts, rows.dim),
        dataset(places),
    )  # fmt: skip


def _width(low: float, high: float) -> float:
    return high - low if high > low else 1.0


def _limits(rows: EvidenceRows, scale: _Scale, texts: xr.Dataset) -> tuple[float, float]:
    """Return the limits of the axis of differences, with room for the numbers on the right."""
    low, high = (float(scale(np.array(x))) for x in _extremes(rows))
    width = _width(low, high)
    letters = max(len(text) for text in texts["log_evidence"].values)
    return low - 0.06 * width, high + (0.05 + 0.028 * letters) * width


def _ticks(
    rows: EvidenceRows, scale: _Scale, limits: tuple[float, float]
) -> tuple[np.ndarray, list[str]]:
    """Return positions and labels of ticks, outside the room for the numbers."""
    low, high = _extremes(rows)
    if scale.unit is None:
        step = _width(low, high) / 6.0
        power = 10.0 ** math.floor(math.log10(step))
        step = power * next(m for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * (1 - 1e-9))
        values = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    else:
        decades = math.floor(math.log10(max(-low, high) / scale.unit))
        powers = scale.unit * np.power(10.0, np.arange(decades, -1, -1))
        sizes = np.concatenate([powers, 3.0 * powers])
        values = np.concatenate([[0.0], np.stack([-sizes, sizes], axis=1).ravel()])
    values = values[(values >= low) & (values <= high)]
    # Keep ticks in the order of their importance if their labels do not overlap.
    letter = 0.016 * (limits[1] - limits[0])
    places: list[float] = []
    labels: list[str] = []
    for place, value in zip(scale(values).tolist(), values.tolist(), strict=True):
        label = f"{value:,.6g}".replace("-", "−")
        if all(
            abs(place - p) > 0.5 * letter * (len(label) + len(other) + 1)
            for p, other in zip(places, labels, strict=True)
        ):
            places.append(place)
            labels.append(label)
    return np.array(places), labels


def _bars(rows: EvidenceRows, share: np.ndarray) -> xr.Dataset:
    """Return bars from zero to the shares, as areas around height zero."""
    ends = np.stack([np.zeros_like(share), share], axis=1)
    half = np.full_like(ends, 0.14)
    return xr.Dataset(
        {rows.share_name: ((rows.dim, "kwarg", "end"), np.stack([ends, -half, half], axis=1))},
        {rows.dim: rows.names, "kwarg": ["x", "y_bottom", "y_top"]},
    )


def _sized(
    pc_kwargs: dict[str, Any], backend: str, labels: list[str], *, two: bool
) -> dict[str, Any]:
    """Return collection options with a figure height that depends on the number of rows."""
    width = 5.2 + 0.08 * max(map(len, labels)) + 4.0 * two
    height = 1.3 + 0.38 * max(len(labels), 2)
    figure = {"width_ratios": [1.4, 1.0]} if two else {}
    return sized(pc_kwargs, backend, width, height, figure_kwargs=figure)
