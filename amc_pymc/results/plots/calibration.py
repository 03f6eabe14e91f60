"""Plot of the calibration of posterior intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.results.common import listed, result_group
from amc_pymc.results.plots.painting import GREY, Painter, sized

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_calibration"]

Visual = Literal[
    "chance", "reference", "coverage", "width", "levels", "title", "xlabel", "ylabel", "legend"
]
_SOURCE = "amc_pymc.results.calibration"


def plot_calibration(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    var_names: str | Iterable[str] | None = None,
    filter_vars: Literal["like", "regex"] | None = None,
    coords: Mapping[str, Any] | None = None,
    backend: str | None = None,
    labeller: Any = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the coverage and the width of posterior intervals against their level.

    For each element of each variable, the first plot shows the share of experiments whose interval holds the true
    value, with a band that holds the coverage of exact intervals with a probability of 95 %, and a line where
    coverage is equal to the level. The second shows the mean width of the intervals.

    Parameters
    ----------
    dt : DataTree or mapping of {str : DataTree}
        Result of :func:`amc_pymc.results.calibration`. Several results, for example with different options, are
        drawn together; the band is that of the first.
    var_names, filter_vars, coords : optional
        Variables and coordinates to plot, as for the plots of ArviZ.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Makes the titles; by default :class:`arviz_base.labels.BaseLabeller`.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * chance -> passed to :func:`~arviz_plots.visuals.fill_between_y`
        * reference -> passed to :func:`~arviz_plots.visuals.line_xy`
        * coverage, width -> passed to :func:`~arviz_plots.visuals.line_xy`
        * levels, dots on both -> passed to :func:`~arviz_plots.visuals.scatter_xy`
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
    TypeError, ValueError, KeyError
        If `dt` is not such a result or lacks a group, results have other levels or variables, a variable or
        coordinate is not there, or an option is unknown.

    See Also
    --------
    amc_pymc.results.calibration : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from arviz_base import from_dict
    >>> from amc_pymc.results.calibration import calibration
    >>> from amc_pymc.results.plots import plot_calibration
    >>> rng = np.random.default_rng(1)
    >>> truths = [{"mu": m} for m in rng.normal(size=20)]
    >>> posteriors = [
    ...     from_dict({"posterior": {"mu": t["mu"] + rng.normal(size=(1, 200)) + rng.normal()}})
    ...     for t in truths
    ... ]
    >>> pc = plot_calibration(calibration(posteriors, truths), backend="none")
    >>> pc.viz["plot"]["mu"].sizes["quantity"]
    2
    """
    from arviz_base.labels import BaseLabeller
    from arviz_plots import visuals as draw

    paint = Painter(backend, visuals, get_args(Visual))
    runs = dict(dt) if isinstance(dt, Mapping) and not isinstance(dt, xr.DataTree) else {"": dt}
    lines = _lines(runs, var_names, filter_vars, coords)
    first = next(iter(runs.values()))
    chance = result_group(first, "chance", ("lower", "upper"), _SOURCE)
    several = len(runs) > 1
    facets = [d for d in lines.dims if d not in ("run", "plot_axis", "point", "quantity")]
    n_plots = max(
        1, sum(int(np.prod(v.shape)) for v in lines.isel(run=0, plot_axis=0, point=0).values())
    )
    width = 5.4 * (2.0 + 0.2 * (several and paint.wants("legend")))
    options = sized(
        pc_kwargs, paint.backend, width, 3.9 * n_plots / 2.0,
        cols=["__variable__", *facets, "quantity"], col_wrap=2,
    )  # fmt: skip
    paint.open(lines, options)
    paint.colour_by("run", list(map(str, runs)))

    coverage = lines.sel(quantity=["coverage"])
    like = coverage.isel(run=0, plot_axis=0, point=0, drop=True)
    level = chance["level"].values
    band = xr.DataArray(
        [level, chance["lower"].values, chance["upper"].values],
        {"kwarg": ["x", "y_bottom", "y_top"]}, ("kwarg", "point"),
    )  # fmt: skip
    paint(draw.fill_between_y, "chance", xr.zeros_like(like) + band, color=GREY, alpha=0.25)
    diagonal = xr.DataArray([[0.0, 1.0]] * 2, {"plot_axis": ["x", "y"]}, ("plot_axis", "point"))
    paint(draw.line_xy, "reference", xr.zeros_like(like) + diagonal, color=GREY, width=1)
    for key in ("coverage", "width"):
        paint(draw.line_xy, key, lines.sel(quantity=[key]), "all")
    paint(draw.scatter_xy, "levels", lines, "all", size=14)
    labeller = BaseLabeller() if labeller is None else labeller
    plots = lines.isel(run=0, plot_axis=0, point=0, drop=True)
    words = [f"share of {first.attrs['experiments']:,} experiments", "mean width"]
    text = xr.DataArray(words, {"quantity": ["coverage", "width"]}, ("quantity",))
    paint(draw.labelled_title, "title", plots, labeller=labeller, subset_info=True)
    paint(_y_label, "ylabel", plots, text=text)
    paint(draw.labelled_x, "xlabel", plots, text="level of the interval")
    if several:
        paint.legend("run", title="")
    return paint.collection


def _y_label(da: xr.DataArray, target: Any, *, text: Any, **kwargs: Any) -> Any:
    """Label the vertical axis by a text of each plot (a visual)."""
    from arviz_plots.visuals import labelled_y

    return labelled_y(da, target, text=str(getattr(text, "values", text)), **kwargs)


def _lines(
    runs: Mapping[str, xr.DataTree], var_names: Any, filter_vars: Any, coords: Any
) -> xr.Dataset:
    """Return lines (run, ..., quantity, plot_axis, point) against the level."""
    from arviz_plots.plots.utils import process_group_variables_coords

    if not runs:
        raise ValueError("dt must hold at least one result, got an empty mapping.")
    found = []
    for run, dt in runs.items():
        name = f"dt[{run!r}]" if run else "dt"
        for group in ("coverage", "width"):
            result_group(dt, group, (), _SOURCE, name=name)
        parts = [
            process_group_variables_coords(dt, group, var_names, filter_vars, coords)
            for group in ("coverage", "width")
        ]
        found.append(
            xr.concat(parts, xr.DataArray(["coverage", "width"], dims="quantity", name="quantity"))
        )
    first, *others = found
    for run, other in zip(list(runs)[1:], others, strict=True):
        same = first.sizes == other.sizes and np.array_equal(first["level"], other["level"])
        if not same or set(first) != set(other):
            raise ValueError(
                f"Results must have the same variables and levels: {next(iter(runs))!r} has {listed(first)}, "
                f"{run!r} has {listed(other)}."
            )
    y = xr.concat(found, xr.DataArray(list(map(str, runs)), dims="run", name="run"))
    x = xr.zeros_like(y) + y["level"]
    lines = xr.concat([x, y], xr.DataArray(["x", "y"], dims="plot_axis", name="plot_axis"))
    renamed: xr.Dataset = lines.drop_vars("level").rename(level="point")
    return renamed.transpose(..., "quantity", "plot_axis", "point")
