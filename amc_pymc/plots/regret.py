"""Plot of the regret from draws of suboptimal arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.diagnostics import regret
from amc_pymc.plots.painting import MOST_DOTS, Painter, sized

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_regret"]

Visual = Literal["regret", "rounds", "title", "xlabel", "ylabel", "legend"]


def plot_regret(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    best: str | None = None,
    variances: Mapping[str, float] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[Visual, Iterable[str]] | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the cumulative regret of one or several runs against their cost.

    Regret, computed by :func:`amc_pymc.diagnostics.regret`, is the loss from draws of arms other than the best
    one, in draws of the best arm. The curve of a policy that learns flattens.

    Parameters
    ----------
    dt : DataTree or mapping of names to DataTree
        Result of :func:`amc_pymc.combine_estimators`. Several runs of the same arms, for example with
        different policies, are drawn together and share costs and variances.
    best, variances
        As for :func:`amc_pymc.diagnostics.regret`.
    plot_collection : PlotCollection, optional
        Collection to draw in, with a plot for the variable "regret".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Aesthetics of `plot_collection` that each visual uses. By default "regret" and "rounds" use all, the others
        none.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * regret -> passed to :func:`~arviz_plots.visuals.line_xy`
        * rounds, dots at the ends of rounds if there are few
          -> passed to :func:`~arviz_plots.visuals.scatter_xy`
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
        If `dt` is not such a result or lacks a group, runs have different arms, a variance is neither
        known nor estimable, or an option is unknown.

    See Also
    --------
    amc_pymc.diagnostics.regret : the curves.
    plot_allocation : draws of each arm.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> arms = {
    ...     "sharp": lambda rng: rng.normal(1.0, 0.1),
    ...     "vague": lambda rng: rng.normal(1.0, 5.0),
    ... }
    >>> runs = {
    ...     policy: amc.combine_estimators(
    ...         arms, policy=policy, draws=1000, random_seed=1, progressbar=False
    ...     )
    ...     for policy in ("lcb", "random")
    ... }
    >>> pc = amc.plot_regret(runs, variances={"sharp": 0.01, "vague": 25.0}, backend="none")
    >>> pc.data["run"].values.tolist()
    ['lcb', 'random']
    """
    from arviz_plots import visuals as draw

    paint = Painter(plot_collection, backend, visuals, aes_by_visuals, get_args(Visual), pc_kwargs)
    found = regret(dt, best=best, variances=variances)
    runs = found["run"].values.tolist()
    curves = xr.concat([found["cost"], found["regret"]], "plot_axis").rename("regret")
    data = curves.transpose("run", "plot_axis", "round").to_dataset()
    data = data.assign_coords(plot_axis=["x", "y"])
    width = 1.0 + 0.2 * (len(runs) > 1 and paint.wants("legend"))
    paint.open(data, sized(pc_kwargs, paint.backend, 0.85 * width, 0.61))
    paint.colour_by("run", runs)

    y = found["regret"].values
    positive = bool((y[np.isfinite(y)] >= 0.0).all() and (y > 0.0).any())
    if positive:
        data = data.where(data["regret"].sel(plot_axis="y", drop=True) > 0.0)
    paint.log(data, *(("x", "y") if positive else ("x",)))
    paint(draw.line_xy, "regret", data, "all")
    if data.sizes["round"] <= MOST_DOTS:
        paint(draw.scatter_xy, "rounds", data, "all", size=12)
    texts = {
        "title": f"Regret against {found.attrs['best']!r}",
        "xlabel": f"{found.attrs['unit']}, all arms",
        "ylabel": "regret, draws of the best arm",
    }
    paint.label({"regret": texts})
    if len(runs) > 1:
        paint.legend("run")
    return paint.collection
