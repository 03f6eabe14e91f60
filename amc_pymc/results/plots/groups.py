"""Plot of the effects of many groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.results.common import listed, result_group
from amc_pymc.results.plots.painting import COLOURS, Painter, sized

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_groups"]

Visual = Literal["interval", "point", "names", "title", "xlabel", "ylabel"]
_SOURCE = "amc_pymc.recover_marginals or pymc.sample"
#: Number of groups above which intervals form a band and points a line.
_SINGLE = 60
#: Number of letters that fit below a plot.
_LETTERS = 40


def plot_groups(
    dt: xr.DataTree,
    *,
    var_names: str | Iterable[str] | None = None,
    filter_vars: Literal["like", "regex"] | None = None,
    group: str = "posterior",
    coords: Mapping[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    ci_prob: float | None = None,
    backend: str | None = None,
    labeller: Any = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the posterior of the effects of groups, sorted by their means.

    Each plot shows one effect of all groups: means, and equal-tailed intervals, as single lines or, for more than 60
    groups, as a band. The title says which effects were integrated out while sampling. Flat curves with wide
    intervals are effects that the data do not tell apart.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.recover_marginals`, or of :func:`pymc.sample` with draws of the effects.
    var_names : str or list of str, optional
        Variables with a value for each group, which is their first dimension beside `sample_dims`; a plot is made
        for each position along further ones. Default: those that :func:`amc_pymc.recover_marginals` has drawn.
    filter_vars : {None, "like", "regex"}, optional
        How `var_names` are matched, as for the plots of ArviZ.
    group : str, default "posterior"
    coords : mapping, optional
        Coordinates to plot.
    sample_dims : str or sequence of hashable, optional
        By default ``rcParams["data.sample_dims"]`` of ArviZ.
    ci_prob : float, optional
        Probability of the intervals. By default ``rcParams["stats.ci_prob"]``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Makes the titles; by default :class:`arviz_base.labels.BaseLabeller`.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * interval -> passed to :func:`~arviz_plots.visuals.ci_line_y` or, for many groups,
          :func:`~arviz_plots.visuals.fill_between_y`
        * point -> passed to :func:`~arviz_plots.visuals.scatter_xy` or, for many groups,
          :func:`~arviz_plots.visuals.line_xy`
        * names of groups, if there is room -> passed to :func:`~arviz_plots.visuals.set_xticks`
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel, ylabel -> passed to :func:`~arviz_plots.visuals.labelled_x` and
          :func:`~arviz_plots.visuals.labelled_y`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError, KeyError
        If `dt` is not such a result, no variable is named and none was integrated out, a variable has no value for
        each group or no draws, or an option is unknown.

    See Also
    --------
    amc_pymc.recover_marginals : draws effects that were integrated out.
    arviz_plots.plot_forest : rows of few effects.

    Examples
    --------
    >>> import numpy as np
    >>> from arviz_base import from_dict
    >>> from amc_pymc.results.plots import plot_groups
    >>> effect = np.random.default_rng(1).normal([3.0, 1.0, 2.0], 0.1, size=(2, 100, 3))
    >>> idata = from_dict({"posterior": {"effect": effect}})
    >>> pc = plot_groups(idata, var_names="effect", backend="none")
    >>> pc.get_viz("point", "effect")["y"].round().tolist()
    [1.0, 2.0, 3.0]
    """
    from arviz_base.labels import BaseLabeller
    from arviz_base.validate import validate_ci_prob, validate_sample_dims
    from arviz_plots import visuals as draw
    from arviz_plots.plots.utils import process_group_variables_coords

    paint = Painter(backend, visuals, get_args(Visual))
    given = result_group(dt, group, (), _SOURCE)
    wanted = _integrated_out(given) if var_names is None else var_names
    draws = process_group_variables_coords(dt, group, wanted, filter_vars, coords)
    reduced = validate_sample_dims(sample_dims, data=draws)
    prob = validate_ci_prob(ci_prob)
    of_groups = {str(name): _group_dim(da, reduced) for name, da in draws.items()}
    curves = xr.Dataset(
        {name: _curve(draws[name], dim, reduced, prob) for name, dim in of_groups.items()}
    )
    facets = [d for d in curves.dims if d != "plot_axis" and not str(d).endswith(" rank")]
    n_plots = sum(v.isel(plot_axis=0).size // v.sizes[f"{k} rank"] for k, v in curves.items())
    columns = min(n_plots, 3)
    rows = -(-n_plots // columns)
    options = sized(
        pc_kwargs, paint.backend, max(5.4 * columns, 6.4), 3.9 * rows, cols=["__variable__", *facets], col_wrap=3
    )  # fmt: skip
    paint.open(curves, options)
    labeller = BaseLabeller() if labeller is None else labeller
    for name, da in curves.items():
        one, n = da.to_dataset(), da.sizes[f"{name} rank"]
        if n <= _SINGLE:
            paint(draw.ci_line_y, "interval", one, "all", color=COLOURS[0])
            paint(draw.scatter_xy, "point", one, "all", color=COLOURS[0], size=20)
        else:
            band = one.rename(plot_axis="kwarg").sel(kwarg=["x", "y_bottom", "y_top"])
            paint(draw.fill_between_y, "interval", band, "all", color=COLOURS[0], alpha=0.3)
            paint(draw.line_xy, "point", one, "all", color=COLOURS[0])
        plots = da.isel({"plot_axis": 0, f"{name} rank": 0}, drop=True).to_dataset()
        text = f"{n:,} groups" + ", integrated out" * ("integrated_out" in given[name].attrs)
        paint(draw.labelled_title, "title", plots, text=text, labeller=labeller, subset_info=True)
        paint(draw.labelled_y, "ylabel", plots, text=f"effect, {100.0 * prob:.0f} % intervals")
        paint(draw.labelled_x, "xlabel", plots, text=f"{of_groups[str(name)]}, sorted")
        if da.ndim == 2:
            names = _names(draws[name], of_groups[str(name)], reduced)
            if sum(len(k) + 2 for k in names) <= _LETTERS:
                paint.ticks(draw.set_xticks, "names", str(name), np.arange(n), names)
    return paint.collection


def _integrated_out(posterior: xr.Dataset) -> list[str]:
    """Return the variables that were integrated out while sampling."""
    found = [str(k) for k, v in posterior.items() if "integrated_out" in v.attrs]
    if not found:
        raise ValueError(
            "var_names must name the effects of groups, because dt does not say which variables were integrated out "
            f"(amc_pymc.recover_marginals does); dt has {listed(posterior)}."
        )
    return found


def _group_dim(da: xr.DataArray, reduced: list[str]) -> str:
    """Return the dimension of a variable along which its groups are."""
    dims = [str(d) for d in da.dims if d not in reduced]
    if not dims:
        raise ValueError(
            f"var_names names {da.name!r}, which has a single value and not one for each group."
        )
    if bool(da.isnull().any()):
        raise ValueError(
            f"{da.name!r} has draws that are nan; draw it with amc_pymc.recover_marginals first."
        )
    return dims[0]


def _sorted(da: xr.DataArray, dim: str, reduced: list[str]) -> tuple[xr.DataArray, xr.DataArray]:
    """Return posterior means, and the order of the groups by them."""
    mean = da.mean(reduced)
    order = xr.apply_ufunc(np.argsort, mean, input_core_dims=[[dim]], output_core_dims=[[dim]])
    return mean, order


def _curve(da: xr.DataArray, dim: str, reduced: list[str], prob: float) -> xr.DataArray:
    """Return ranks, means and bounds (plot_axis, ..., rank) of the groups, sorted by their means."""
    mean, order = _sorted(da, dim, reduced)
    bounds = da.azstats.eti(prob=prob, dim=reduced)
    parts = [mean, bounds.sel(ci_bound="lower", drop=True), bounds.sel(ci_bound="upper", drop=True)]
    rank = f"{da.name} rank"
    places = xr.DataArray(np.arange(da.sizes[dim]), dims=rank)
    at = order.drop_vars(dim, errors="ignore").rename({dim: rank})
    sorted_parts = [p.isel({dim: at}).drop_vars(dim, errors="ignore") for p in parts]
    whole: xr.DataArray = xr.concat(
        [xr.zeros_like(sorted_parts[0]) + places, *sorted_parts], "plot_axis"
    )
    whole = whole.assign_coords(plot_axis=["x", "y", "y_bottom", "y_top"])
    return whole.rename(da.name)


def _names(da: xr.DataArray, dim: str, reduced: list[str]) -> list[str]:
    """Return the names of the groups in the order of their means."""
    _, order = _sorted(da, dim, reduced)
    return [str(v) for v in da[dim].values[order.values]]
