"""Plot of the weights of annealed importance sampling along the temperatures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.plots.evidence_rows import number_with_error, shown_interval
from amc_pymc.plots.painting import Painter, one_of, panel, percent, sized, xy
from amc_pymc.results import result_group
from amc_pymc.results.tables import ANNEALING

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_ais"]

Against = Literal["step", "beta"]
Visual = Literal[
    "paths", "mean", "level", "final", "final_interval", "shares", "ticks", "title", "xlabel",
    "ylabel", "legend",
]  # fmt: skip
_ANNEALING = ("beta", "log_weight_path", "log_mean_weight", "ess", "accept")
_EVIDENCE = ("log_evidence", "log_evidence_mcse", "log_evidence_lower", "log_evidence_upper")
_SHARES = ("effective draws", "acceptance")
#: Maximum number of temperatures drawn.
_MOST_POINTS = 400
#: Effective share of the draws below which the axis is logarithmic.
_SMALL = 0.1
_SOURCE = "amc_pymc.sample_ais"


def plot_ais(
    dt: xr.DataTree,
    *,
    against: Against = "step",
    relative: bool = True,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[Visual, Iterable[str]] | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot how the weights of annealed importance sampling change along the temperatures.

    The first plot shows cumulative log-weights of some particles as paths, the log of the mean weight of
    all particles as a thick line, and the log evidence, where that line ends, with its 95 % interval. The
    line should run within the paths; if it follows the highest ones, few particles dominate the estimate.
    The second plot shows the effective share of the draws and the acceptance probability.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.sample_ais`.
    against : {"step", "beta"}, default "step"
        Horizontal axis: "step" for equally spaced temperatures labelled with their values, which suits
        schedules that are dense near zero, or "beta" for temperatures to scale.
    relative : bool, default True
        Whether to show log-weights as differences from the thick line, which makes their spread visible.
        Otherwise they are shown as they are, so the line ends at the log evidence.
    plot_collection : PlotCollection, optional
        Collection to draw in, with plots for the variables "log_weight" and "share".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Aesthetics of `plot_collection` that each visual uses. By default "shares" uses all, the others none.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * paths -> passed to :func:`~arviz_plots.visuals.multiple_lines`
        * mean, the thick line -> passed to :func:`~arviz_plots.visuals.line_xy`
        * level, a line at the log evidence -> passed to :func:`~arviz_plots.visuals.hline`
        * final -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * final_interval -> passed to :func:`~arviz_plots.visuals.ci_line_y`
        * shares, effective draws and acceptance -> passed to :func:`~arviz_plots.visuals.line_xy`
        * ticks -> passed to :func:`~arviz_plots.visuals.set_xticks`
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

    Notes
    -----
    At temperature :math:`t` the mean weight estimates the normalising constant of the annealed density, so
    the thick line estimates its logarithm at all temperatures; it is unreliable if few draws are effective.
    Paths end where their weight becomes zero. The lowest twentieth of the other paths may
    leave the plot, and so may a very long interval; one across the whole plot means an unknown error. If
    there are very many temperatures, only evenly spaced ones are drawn.

    See Also
    --------
    amc_pymc.plot_evidence : estimates with their intervals.

    Examples
    --------
    Paths of a Gaussian without moves, which make the effective draws decline:

    >>> import numpy as np, xarray as xr
    >>> from amc_pymc.plots.ais import plot_ais
    >>> from amc_pymc.rng import as_generator
    >>> beta = np.linspace(0.0, 1.0, 11) ** 4
    >>> paths = -np.outer(as_generator(1).normal(size=20) ** 2, beta)
    >>> dt = xr.DataTree.from_dict(
    ...     {
    ...         "evidence": xr.Dataset(
    ...             {
    ...                 "log_evidence": -0.55,
    ...                 "log_evidence_mcse": 0.1,
    ...                 "log_evidence_lower": -0.75,
    ...                 "log_evidence_upper": -0.35,
    ...             }
    ...         ),
    ...         "annealing": xr.Dataset(
    ...             {
    ...                 "beta": ("temperature", beta),
    ...                 "log_weight_path": (("path", "temperature"), paths),
    ...                 "log_mean_weight": ("temperature", np.log(np.exp(paths).mean(axis=0))),
    ...                 "ess": ("temperature", 1.0 - 0.4 * beta),
    ...                 "accept": ("temperature", np.full(11, 0.8)),
    ...             }
    ...         ),
    ...     }
    ... )
    >>> pc = plot_ais(dt, backend="none")
    >>> pc.get_viz("title", "share")["string"]
    'Effective draws 60 %, acceptance 0.80'
    """
    from arviz_plots import visuals as draw

    paint = Painter(plot_collection, backend, visuals, aes_by_visuals, get_args(Visual), pc_kwargs)
    one_of("against", against, get_args(Against))
    annealing = result_group(dt, "annealing", _ANNEALING, _SOURCE)
    found = result_group(dt, "evidence", _EVIDENCE, _SOURCE)
    flags = str(found.attrs.get("flags", dt.attrs.get("flags", "")))
    kept = _thinned(annealing.sizes["temperature"])
    beta = annealing["beta"].values
    x = (np.arange(beta.size) if against == "step" else beta).astype(float)
    paths, mean = _weights(annealing, kept)
    final = _final(found, float(x[-1]))
    if relative:
        paths, mean, final = _relative(paths, mean, final)
    shares = _shares(annealing, x, kept)

    layout = xr.Dataset({"log_weight": paths, "share": shares})
    width = 2.0 + 0.2 * paint.wants("legend")
    paint.open(layout, sized(pc_kwargs, paint.backend, 0.85 * width, 0.61))
    paint.colour_by("quantity", list(_SHARES))

    paint(draw.multiple_lines, "paths", xr.Dataset({"log_weight": paths}),
          x_dim="temperature", xvalues=x[kept], color="#888888", alpha=0.35, width=0.7)  # fmt: skip
    level = final.sel(plot_axis="y", drop=True)
    paint(draw.hline, "level", xr.Dataset({"log_weight": level}), color="#888888", width=1)
    paint(draw.line_xy, "mean", xr.Dataset({"log_weight": xy(x[kept], mean)}),
          color="C0", width=2.5)  # fmt: skip
    limits = {"log_weight": _limits(paths.values, mean, final.values[1:, 0]), "share": (0.0, 1.05)}
    if limits["log_weight"] is not None:
        final = xr.where(final["plot_axis"] == "x", final, final.clip(*limits["log_weight"]))
    paint(draw.ci_line_y, "final_interval", xr.Dataset({"log_weight": final}), color="B1")
    paint(draw.scatter_xy, "final", xr.Dataset({"log_weight": final}), color="B1", size=20)

    if (annealing["ess"].values < _SMALL).any():
        limits["share"] = None
        paint.log(xr.Dataset({"share": shares}), "y")
        shares = shares.where(shares.sel(plot_axis="y", drop=True) > 0.0)
    paint(draw.line_xy, "shares", xr.Dataset({"share": shares}), "all")

    steps = np.unique(np.linspace(0, beta.size - 1, min(6, beta.size)).round().astype(int))
    for name in map(str, layout):
        if limits[name] is not None:
            paint.set(draw.set_ylim, panel(name), limits=limits[name])
        if against == "step":
            labels = [f"{beta[i]:.2g}" for i in steps]
            paint.ticks(draw.set_xticks, "ticks", name, x[steps], labels)
    paint.label(_texts(found, annealing, against, relative, flags))
    paint.legend("quantity")
    return paint.collection


def _thinned(n: int) -> np.ndarray:
    """Return the indices of the temperatures drawn, including the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_POINTS)).round().astype(int))


def _weights(annealing: xr.Dataset, kept: np.ndarray) -> tuple[xr.DataArray, np.ndarray]:
    """Return log-weights (path, temperature), nan for weight zero, and the log of the mean weight."""
    annealing = annealing.isel(temperature=kept)
    paths = annealing["log_weight_path"].transpose("path", "temperature").astype(float)
    paths = paths.drop_vars(list(paths.coords))
    mean = annealing["log_mean_weight"].values
    return paths.where(np.isfinite(paths)), np.where(np.isfinite(mean), mean, np.nan)


def _relative(
    paths: xr.DataArray, mean: np.ndarray, final: xr.DataArray
) -> tuple[xr.DataArray, np.ndarray, xr.DataArray]:
    """Return paths, their mean and the final estimate as differences from the mean."""
    shift = xr.where(final["plot_axis"] == "x", 0.0, mean[-1])
    return paths - mean, mean - mean, final - shift


def _shares(annealing: xr.Dataset, x: np.ndarray, kept: np.ndarray) -> xr.DataArray:
    """Return effective draws and acceptance against temperature, (quantity, plot_axis, point)."""
    lines = [xy(x[kept], annealing[key].values[kept]) for key in ("ess", "accept")]
    return xr.concat(lines, "quantity").assign_coords(quantity=list(_SHARES))


def _final(found: xr.Dataset, x: float) -> xr.DataArray:
    """Return the log evidence and its 95 % interval, infinite if unknown, at the last temperature."""
    centre, error, low, high = (float(found[k]) for k in _EVIDENCE)
    low, high = map(float, shown_interval(error, low, high))
    return xy([x], [centre], [low if low == low else -np.inf], [high if high == high else np.inf])


def _limits(paths: np.ndarray, mean: np.ndarray, final: np.ndarray) -> tuple[float, float] | None:
    """Return axis limits for everything except the lowest twentieth of the paths.

    The interval, `final[1:]`, extends the limits to at most three times the range of the rest.
    """
    known = paths[np.isfinite(paths)]
    rest = np.r_[mean, final[0], np.quantile(known, [0.05, 1.0]) if known.size else []]
    rest = rest[np.isfinite(rest)]
    if rest.size == 0:
        return None
    low, high = rest.min(), rest.max()
    bounds = final[1:][np.isfinite(final[1:])]
    if high > low:
        bounds = bounds.clip(2.0 * low - high, 2.0 * high - low)
    low, high = min([low, *bounds]), max([high, *bounds])
    if low == high:
        return None
    margin = 0.05 * (high - low)
    return float(low - margin), float(high + margin)


def _texts(
    found: xr.Dataset, annealing: xr.Dataset, against: Against, relative: bool, flags: str
) -> dict[str, dict[str, str]]:
    """Return the title and labels of each plot."""
    title = "Log evidence " + number_with_error(
        float(found["log_evidence"]), float(found["log_evidence_mcse"])
    )
    if flags.strip():
        title += ", flagged"
    if "reverse_log_evidence" in found:
        title += "\nreverse " + number_with_error(
            float(found["reverse_log_evidence"]),
            float(found.get("reverse_log_evidence_mcse", np.nan)),
        )
    shares = f"Effective draws {percent(float(annealing['ess'][-1]))}"
    accept = annealing["accept"].values
    if np.isfinite(accept).any():
        shares += f", acceptance {np.nanmean(accept):.2f}"
    xlabel = "inverse temperature" + (", steps evenly spaced" if against == "step" else "")
    ylabel = "log of weight / mean weight" if relative else ANNEALING["log_weight_path"].label
    return {
        "log_weight": {"title": title, "xlabel": xlabel, "ylabel": ylabel},
        "share": {"title": shares, "xlabel": xlabel, "ylabel": "share"},
    }
