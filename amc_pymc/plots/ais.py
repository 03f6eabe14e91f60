"""Plot of the weights of annealed importance sampling along the temperatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.logweights import log_mean_exp
from amc_pymc.plots.combinations import (
    colour_by,
    log_axis,
    plot_backend,
    side_by_side,
    visual_options,
)
from amc_pymc.plots.evidence import LARGEST_ERROR, evidence_group, number_with_error

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_ais"]

Against = Literal["step", "beta"]

_VISUALS = (
    "paths", "mean", "level", "final", "final_interval", "shares", "ticks", "title", "xlabel",
    "ylabel", "legend",
)  # fmt: skip
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
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
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
    In results without ``log_mean_weight``, the line is computed from the stored paths and may not end at the
    log evidence. Paths end where their weight becomes zero. The lowest twentieth of the other paths may
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
    ...         "evidence": xr.Dataset({"log_evidence": -0.55, "log_evidence_mcse": 0.1}),
    ...         "annealing": xr.Dataset(
    ...             {
    ...                 "beta": ("temperature", beta),
    ...                 "log_weight_path": (("path", "temperature"), paths),
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
    from arviz_plots import PlotCollection
    from arviz_plots import visuals as draw

    options = visual_options(visuals, _VISUALS)
    if against not in get_args(Against):
        raise ValueError(f"against must be one of {', '.join(get_args(Against))}, got {against!r}.")
    annealing = evidence_group(
        dt, "annealing", ("beta", "log_weight_path", "ess", "accept"), "dt", _SOURCE
    )
    found = evidence_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), "dt", _SOURCE)
    flags = str(found.attrs.get("flags", dt.attrs.get("flags", "")))
    kept = _thinned(annealing.sizes["temperature"])
    beta = annealing["beta"].values
    x = (np.arange(beta.size) if against == "step" else beta).astype(float)
    paths, mean = _weights(annealing, kept)
    final = _final(found, float(x[-1]))
    if relative:
        paths, mean, final = _relative(paths, mean, final)
    shares = _shares(annealing, x, kept)
    backend = plot_backend(backend, plot_collection)

    if plot_collection is None:
        pc_kwargs = side_by_side(pc_kwargs, backend, 2, legend=options["legend"] is not False)
        layout = xr.Dataset({"log_weight": paths, "share": shares})
        plot_collection = PlotCollection.wrap(layout, backend=backend, **pc_kwargs)
    if "color" not in plot_collection.aes_set:
        colour_by(plot_collection, "quantity", list(_SHARES))

    def paint(
        visual: Callable[..., Any],
        key: str,
        data: xr.Dataset,
        ignore_aes: Any = "all",
        **defaults: Any,
    ) -> None:
        if options[key] is not False:
            plot_collection.map(
                visual, key, data=data, ignore_aes=ignore_aes, **{**defaults, **options[key]}
            )

    paint(draw.multiple_lines, "paths", xr.Dataset({"log_weight": paths}),
          x_dim="temperature", xvalues=x[kept], color="#888888", alpha=0.35, width=0.7)  # fmt: skip
    level = final.sel(plot_axis="y", drop=True)
    paint(draw.hline, "level", xr.Dataset({"log_weight": level}), color="#888888", width=1)
    paint(draw.line_xy, "mean", xr.Dataset({"log_weight": _line(x[kept], mean)}),
          color="C0", width=2.5)  # fmt: skip
    limits = {"log_weight": _limits(paths.values, mean, final.values[1:, 0]), "share": (0.0, 1.05)}
    if limits["log_weight"] is not None:
        final = xr.where(final["plot_axis"] == "x", final, final.clip(*limits["log_weight"]))
    paint(draw.ci_line_y, "final_interval", xr.Dataset({"log_weight": final}), color="B1")
    paint(draw.scatter_xy, "final", xr.Dataset({"log_weight": final}), color="B1", size=20)

    if (annealing["ess"].values < _SMALL).any():
        limits["share"] = None
        plot_collection.map(
            log_axis, data=xr.Dataset({"share": shares}), ignore_aes="all", store_artist=False,
            axis="y",
        )  # fmt: skip
        shares = shares.where(shares.sel(plot_axis="y", drop=True) > 0.0)
    paint(draw.line_xy, "shares", xr.Dataset({"share": shares}), frozenset())

    for name, texts in _texts(found, annealing, against, relative, flags).items():
        one = xr.Dataset({name: 0.0})
        if limits[name] is not None:
            plot_collection.map(
                draw.set_ylim, data=one, ignore_aes="all", store_artist=False, limits=limits[name]
            )
        if against == "step":
            steps = np.unique(np.linspace(0, beta.size - 1, min(6, beta.size)).round().astype(int))
            paint(draw.set_xticks, "ticks", one, store_artist=False, values=x[steps],
                  labels=[f"{beta[i]:.2g}" for i in steps])  # fmt: skip
        for key, visual in (
            ("title", draw.labelled_title),
            ("xlabel", draw.labelled_x),
            ("ylabel", draw.labelled_y),
        ):
            paint(visual, key, one, text=texts[key])
    mapped = plot_collection.aes["color"].dataset if "color" in plot_collection.aes_set else {}
    if options["legend"] is not False and "quantity" in getattr(mapped, "dims", ()):
        plot_collection.add_legend("quantity", **options["legend"])
    return plot_collection


def _thinned(n: int) -> np.ndarray:
    """Return the indices of the temperatures drawn, including the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_POINTS)).round().astype(int))


def _weights(annealing: xr.Dataset, kept: np.ndarray) -> tuple[xr.DataArray, np.ndarray]:
    """Return log-weights (path, temperature), nan for weight zero, and the log of the mean weight."""
    annealing = annealing.isel(temperature=kept)
    paths = annealing["log_weight_path"].transpose("path", "temperature").astype(float)
    paths = paths.drop_vars(list(paths.coords))
    if "log_mean_weight" in annealing:
        mean = annealing["log_mean_weight"].values
    else:
        mean = np.asarray(log_mean_exp(paths.fillna(-np.inf).values, axis=0))
    return paths.where(np.isfinite(paths)), np.where(np.isfinite(mean), mean, np.nan)


def _relative(
    paths: xr.DataArray, mean: np.ndarray, final: xr.DataArray
) -> tuple[xr.DataArray, np.ndarray, xr.DataArray]:
    """Return paths, their mean and the final estimate as differences from the mean."""
    shift = xr.where(final["plot_axis"] == "x", 0.0, mean[-1])
    return paths - mean, mean - mean, final - shift


def _line(x: np.ndarray, y: np.ndarray) -> xr.DataArray:
    return xr.DataArray(
        np.stack([x, y]), dims=("plot_axis", "point"), coords={"plot_axis": ["x", "y"]}
    )


def _shares(annealing: xr.Dataset, x: np.ndarray, kept: np.ndarray) -> xr.DataArray:
    """Return effective draws and acceptance against temperature, (quantity, plot_axis, point)."""
    lines = [_line(x[kept], annealing[key].values[kept]) for key in ("ess", "accept")]
    return xr.concat(lines, "quantity").assign_coords(quantity=list(_SHARES))


def _final(found: xr.Dataset, x: float) -> xr.DataArray:
    """Return the log evidence and its 95 % interval, infinite if unknown, at the last temperature."""
    centre, error = float(found["log_evidence"]), float(found["log_evidence_mcse"])
    low, high = -np.inf, np.inf
    if error <= LARGEST_ERROR:
        low = float(found.get("log_evidence_lower", centre - 1.96 * error))
        high = float(found.get("log_evidence_upper", centre + 1.96 * error))
    return xr.DataArray(
        [[x], [centre], [low], [high]],
        dims=("plot_axis", "point"),
        coords={"plot_axis": ["x", "y", "y_bottom", "y_top"]},
    )


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
    shares = f"Effective draws {_percent(float(annealing['ess'][-1]))}"
    accept = annealing["accept"].values
    if np.isfinite(accept).any():
        shares += f", acceptance {np.nanmean(accept):.2f}"
    xlabel = "inverse temperature" + (", steps evenly spaced" if against == "step" else "")
    ylabel = "log of weight / mean weight" if relative else "cumulative log-weight"
    return {
        "log_weight": {"title": title, "xlabel": xlabel, "ylabel": ylabel},
        "share": {"title": shares, "xlabel": xlabel, "ylabel": "share"},
    }


def _percent(share: float) -> str:
    if not np.isfinite(share):
        return "unknown"
    return f"{100.0 * share:.0f} %" if share >= 0.1 else f"{100.0 * share:.2g} %"
