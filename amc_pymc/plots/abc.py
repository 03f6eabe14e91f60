"""Plot of the progress of a likelihood-free run by rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.plots.combinations import (
    MOST_DOTS,
    colour_by,
    log_axis,
    plot_backend,
    side_by_side,
    visual_options,
)
from amc_pymc.plots.evidence import evidence_group
from amc_pymc.plots.partition import ABC_SOURCE

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_abc"]

_VISUALS = ("lines", "rounds", "rejection", "ticks", "title", "xlabel", "ylabel", "legend")
_OWN, _FINAL, _REJECTION = "tolerance of the round", "final tolerance", "rejection"
_QUANTITIES = [_OWN, _FINAL, _REJECTION]
_NEEDED = (
    "tolerance", "simulations", "acceptance", "final_acceptance", "ess", "final_tolerance",
    "prior_acceptance",
)  # fmt: skip


def plot_abc(
    data: xr.DataTree,
    *,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    r"""Plot the progress of a likelihood-free run against the number of simulations.

    The first plot shows the tolerance of each round, the second the share of its simulations accepted
    at that tolerance and at the final one, the third its effective draws per simulation at the final
    tolerance, and the last the effective draws of all rounds so far. Dashed lines show rejection sampling
    at the final tolerance, which an adaptive run should exceed.

    Parameters
    ----------
    data : DataTree
        Result of :func:`amc_pymc.sample_abc_tree` or :func:`amc_pymc.sample_abc_rejection`.
    plot_collection : PlotCollection, optional
        Collection to draw in, with plots for the variables "tolerance", "acceptance", "efficiency" and
        "draws".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * lines -> passed to :func:`~arviz_plots.visuals.line_xy`
        * rounds, dots at the ends of rounds if there are few
          -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * rejection -> passed to :func:`~arviz_plots.visuals.line_xy`
        * ticks, of the last plot -> passed to :func:`~arviz_plots.visuals.set_xticks`
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
        If `data` is not such a result or lacks a group, or an option is unknown.

    Notes
    -----
    Effective draws are Kish's effective sample size, :math:`(\sum w)^2 / \sum w^2`, of the accepted
    simulations of a round with the weights of that round alone, or of all rounds so far. For rejection,
    they are its acceptance probability, estimated from all rounds, times the number of simulations.
    Infinite tolerances and shares of zero cannot be shown on a log axis and are omitted.

    See Also
    --------
    plot_partition : final boxes.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> from scipy import stats
    >>> problem = amc.SimulatorProblem(
    ...     {"mu": stats.norm(0.0, 3.0)}, lambda rng, mu: rng.normal(mu, 1.0), observed=2.0
    ... )
    >>> found = amc.sample_abc_rejection(
    ...     max_simulations=10_000, model=problem, batched=True, random_seed=1, progressbar=False
    ... )
    >>> pc = amc.plot_abc(found, backend="none")
    >>> pc.get_viz("title", "draws")["string"]
    '150 effective draws, rejection 150'
    """
    from arviz_plots import PlotCollection
    from arviz_plots import visuals as draw

    options = visual_options(visuals, _VISUALS)
    found = evidence_group(data, "abc", _NEEDED, "data", ABC_SOURCE)
    weighted = evidence_group(
        data, "weighted_posterior", ("log_weight", "round"), "data", ABC_SOURCE
    )
    if not found.sizes.get("round", 0):
        raise ValueError("Group 'abc' of data must have at least one round, got none.")
    draws = _draws_so_far(weighted, found.sizes["round"])
    lines = _lines(found, draws)
    backend = plot_backend(backend, plot_collection)
    if plot_collection is None:
        pc_kwargs = _sized(pc_kwargs, backend, legend=options["legend"] is not False)
        plot_collection = PlotCollection.wrap(lines, backend=backend, **pc_kwargs)
    if "color" not in plot_collection.aes_set:
        colour_by(plot_collection, "quantity", _QUANTITIES, plain=_REJECTION)
    if "linestyle" not in plot_collection.aes_set:
        _dash(plot_collection, _REJECTION)

    def paint(
        visual: Callable[..., Any],
        key: str,
        data: xr.Dataset,
        ignore_aes: Any = frozenset(),
        **defaults: Any,
    ) -> None:
        if options[key] is not False:
            plot_collection.map(
                visual, key, data=data, ignore_aes=ignore_aes, **{**defaults, **options[key]}
            )

    on_log = lines[["tolerance", "acceptance", "efficiency"]]
    for axis in ("x", "y"):
        plot_collection.map(log_axis, data=on_log, ignore_aes="all", store_artist=False, axis=axis)
    own = lines.sel(quantity=_QUANTITIES[:2])
    paint(draw.line_xy, "rejection", lines.sel(quantity=[_REJECTION]), width=1.2)
    paint(draw.line_xy, "lines", own)
    if found.sizes["round"] <= MOST_DOTS:
        level = (own["quantity"] == _FINAL) & (own["tolerance"] > 0.0)
        dots = own.assign(tolerance=own["tolerance"].where(~level))
        paint(draw.scatter_xy, "rounds", dots, plot_collection.aes_set - {"color"}, size=14)
    ticks = _ticks(float(found["simulations"].sum()))
    paint(draw.set_xticks, "ticks", xr.Dataset({"draws": 0.0}), "all", store_artist=False,
          values=ticks, labels=[f"{t:,.0f}" for t in ticks])  # fmt: skip
    for name, texts in _texts(found, draws[-1]).items():
        for key, visual in (
            ("title", draw.labelled_title),
            ("xlabel", draw.labelled_x),
            ("ylabel", draw.labelled_y),
        ):
            paint(visual, key, xr.Dataset({name: 0.0}), "all", text=texts[key])
    mapped = plot_collection.aes["color"].dataset if "color" in plot_collection.aes_set else {}
    if options["legend"] is not False and "quantity" in getattr(mapped, "dims", ()):
        plot_collection.add_legend("quantity", **{"title": "", **options["legend"]})
    return plot_collection


def _dash(plot_collection: PlotCollection, quantity: str) -> None:
    """Use a dashed line for one of the quantities."""
    module = import_module(f"arviz_plots.backend.{plot_collection.backend}")
    solid, dashed = module.get_default_aes("linestyle", 2)
    styles = [dashed if q == quantity else solid for q in _QUANTITIES]
    mapping = xr.Dataset({"mapping": ("quantity", styles)}, {"quantity": _QUANTITIES})
    plot_collection.update_aes_from_dataset("linestyle", mapping)


def _draws_so_far(weighted: xr.Dataset, n_rounds: int) -> np.ndarray:
    """Return the effective draws (R,) at the final tolerance of all rounds up to each one."""
    log_weight = weighted["log_weight"].values.reshape(-1)
    number = weighted["round"].values.reshape(-1)
    if not np.isfinite(log_weight).all() or not len(log_weight):
        raise ValueError(
            "log_weight in group 'weighted_posterior' of data must be finite, and at least one."
        )
    if number.min() < 0 or number.max() >= n_rounds:
        raise ValueError(
            f"round in group 'weighted_posterior' of data must be from 0 to {n_rounds - 1}, as in group 'abc', "
            f"got {number.min()} to {number.max()}."
        )
    w = np.exp(log_weight - log_weight.max())
    total, squares = (np.bincount(number, v, n_rounds).cumsum() for v in (w, w**2))
    ess: np.ndarray = np.divide(total**2, squares, out=np.zeros(n_rounds), where=squares > 0.0)
    return ess


def _lines(found: xr.Dataset, draws: np.ndarray) -> xr.Dataset:
    """Return lines (quantity, plot_axis, round) against simulations; nan for missing values."""
    size = found["simulations"].values.astype(float)
    spent = size.cumsum()
    of_rejection = float(found["prior_acceptance"])
    none, alone = np.full(len(size), np.nan), np.full(len(size), of_rejection)
    y = {
        "tolerance": (found["tolerance"], np.full(len(size), found["final_tolerance"]), none),
        "acceptance": (found["acceptance"], found["final_acceptance"], alone),
        "efficiency": (none, found["ess"].values / size, alone),
        "draws": (none, draws, of_rejection * spent),
    }
    return xr.Dataset(
        {
            k: (("quantity", "plot_axis", "step"), _stacked(spent, v, k != "draws"))
            for k, v in y.items()
        },
        {"quantity": _QUANTITIES, "plot_axis": ["x", "y"]},
    )


def _stacked(x: np.ndarray, lines: tuple[Any, ...], on_log: bool) -> np.ndarray:
    """Stack lines (quantity, 2, round); on a log axis, values that are not positive become nan."""
    y = np.stack([np.asarray(line, float) for line in lines])
    usable = np.isfinite(y) & ((y > 0.0) | (not on_log))
    return np.where(usable[:, None], np.stack([np.broadcast_to(x, y.shape), y], axis=1), np.nan)


def _texts(found: xr.Dataset, draws: float) -> dict[str, dict[str, str]]:
    """Return the title and labels of each plot."""
    rate = float(found["prior_acceptance"])
    n = float(found["simulations"].sum())
    times = f", {_digits(draws / (n * rate))} × rejection" if rate > 0.0 else ""
    titles = {
        "tolerance": f"Tolerance {float(found['final_tolerance']):.3g} in the end",
        "acceptance": f"Acceptance {_percent(float(found['final_acceptance'][-1]))} in the last round",
        "efficiency": f"Effective draws per simulation{times}",
        "draws": f"{draws:,.0f} effective draws, rejection {n * rate:,.0f}",
    }
    labels = {
        "tolerance": "tolerance",
        "acceptance": "share accepted",
        "efficiency": "effective draws per simulation",
        "draws": "effective draws so far",
    }
    return {k: {"title": titles[k], "xlabel": "simulations", "ylabel": labels[k]} for k in titles}


def _ticks(largest: float) -> np.ndarray:
    """Return at most six round numbers from zero.

    Examples
    --------
    >>> _ticks(30_000.0)
    array([    0., 10000., 20000., 30000.])
    """
    unit = 10.0 ** np.floor(np.log10(largest))
    step = next(s * unit for s in (0.1, 0.2, 0.5, 1.0, 2.0) if largest <= 5.0 * s * unit)
    return np.arange(0.0, largest * (1.0 + 1e-9), step)


def _digits(x: float) -> str:
    """Format a number to two significant digits, without an exponent."""
    return f"{x:,.0f}" if x >= 10.0 else f"{x:.2g}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %" if share >= 0.1 else f"{100.0 * share:.2g} %"


def _sized(pc_kwargs: dict[str, Any], backend: str, *, legend: bool) -> dict[str, Any]:
    """Return collection options for two rows of two plots."""
    figure = dict(pc_kwargs.get("figure_kwargs", {}))
    if "figsize" not in figure:
        module = import_module(f"arviz_plots.backend.{backend}")
        width = 0.78 * module.scale_fig_size(None, rows=1, cols=1)[0]
        figure |= {"figsize": ((2.0 + 0.5 * legend) * width, 1.3 * width), "figsize_units": "dots"}
    return side_by_side(
        {"col_wrap": 2, **pc_kwargs, "figure_kwargs": figure}, backend, 2, legend=False
    )
