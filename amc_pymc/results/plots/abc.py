"""Plot of the progress of a likelihood-free run by rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.results.common import result_group
from amc_pymc.results.plots.painting import MOST_DOTS, Painter, percent, sized
from amc_pymc.results.tables import ABC

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["ABC_SOURCE", "plot_abc"]

ABC_SOURCE = "amc_pymc.sample_abc_tree or amc_pymc.sample_abc_rejection"
Visual = Literal["lines", "rounds", "rejection", "ticks", "title", "xlabel", "ylabel", "legend"]
_OWN, _FINAL, _REJECTION = "tolerance of the round", "final tolerance", "rejection"
_QUANTITIES = [_OWN, _FINAL, _REJECTION]
_NEEDED = (
    "tolerance", "simulations", "acceptance", "final_acceptance", "ess", "ess_so_far",
    "final_tolerance", "prior_acceptance",
)  # fmt: skip


def plot_abc(
    dt: xr.DataTree,
    *,
    backend: str | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    r"""Plot the progress of a likelihood-free run against the number of simulations.

    The first plot shows the tolerance of each round, the second the share of its simulations accepted
    at that tolerance and at the final one, the third its effective draws per simulation at the final
    tolerance, and the last the effective draws of all rounds so far. Dashed lines show rejection sampling
    at the final tolerance, which an adaptive run should exceed.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.sample_abc_tree` or :func:`amc_pymc.sample_abc_rejection`.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
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
        If `dt` is not such a result or lacks a group, or an option is unknown.

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
    '149 effective draws, rejection 149'
    """
    from arviz_plots import visuals as draw

    paint = Painter(backend, visuals, get_args(Visual))
    found = result_group(dt, "abc", _NEEDED, ABC_SOURCE)
    if not found.sizes.get("round", 0):
        raise ValueError("Group 'abc' of dt must have at least one round, got none.")
    lines = _lines(found)
    paint.open(lines, sized(pc_kwargs, paint.backend, 10.0, 7.2, col_wrap=2))
    paint.colour_by("quantity", _QUANTITIES, plain=_REJECTION)
    solid, dashes = paint.dashes
    paint.map_aes("linestyle", "quantity", (solid, solid, dashes), _QUANTITIES)
    paint.log(lines[["tolerance", "acceptance", "efficiency"]], "x", "y")
    own = lines.sel(quantity=_QUANTITIES[:2])
    paint(draw.line_xy, "rejection", lines.sel(quantity=[_REJECTION]), "all", width=1.2)
    paint(draw.line_xy, "lines", own, "all")
    if found.sizes["round"] <= MOST_DOTS:
        level = (own["quantity"] == _FINAL) & (own["tolerance"] > 0.0)
        dots = own.assign(tolerance=own["tolerance"].where(~level))
        paint(draw.scatter_xy, "rounds", dots, ["color"], size=14)
    ticks = _ticks(float(found["simulations"].sum()))
    paint.ticks(draw.set_xticks, "ticks", "draws", ticks, [f"{t:,.0f}" for t in ticks])
    paint.label(_texts(found))
    paint.legend("quantity", title="", **_below(paint.backend))
    return paint.collection


def _below(backend: str) -> dict[str, Any]:
    """Return options that put a legend below the plots, where it takes no width from them."""
    return {"loc": "outside lower center", "ncols": 3} if backend == "matplotlib" else {}


def _lines(found: xr.Dataset) -> xr.Dataset:
    """Return lines (quantity, plot_axis, round) against simulations; nan for missing values."""
    size = found["simulations"].values.astype(float)
    spent = size.cumsum()
    of_rejection = float(found["prior_acceptance"])
    none, alone = np.full(len(size), np.nan), np.full(len(size), of_rejection)
    y = {
        "tolerance": (found["tolerance"], np.full(len(size), found["final_tolerance"]), none),
        "acceptance": (found["acceptance"], found["final_acceptance"], alone),
        "efficiency": (none, found["ess"].values / size, alone),
        "draws": (none, found["ess_so_far"], of_rejection * spent),
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


def _texts(found: xr.Dataset) -> dict[str, dict[str, str]]:
    """Return the title and labels of each plot."""
    draws = float(found["ess_so_far"][-1])
    rate = float(found["prior_acceptance"])
    n = float(found["simulations"].sum())
    times = f", {_digits(draws / (n * rate))} × rejection" if rate > 0.0 else ""
    titles = {
        "tolerance": f"Tolerance {float(found['final_tolerance']):.3g} in the end",
        "acceptance": f"Acceptance {percent(float(found['final_acceptance'][-1]))} in the last round",
        "efficiency": f"Effective draws per simulation{times}",
        "draws": f"{draws:,.0f} effective draws, rejection {n * rate:,.0f}",
    }
    labels = {
        "tolerance": ABC["tolerance"].label,
        "acceptance": ABC["acceptance"].label,
        "efficiency": "per simulation",
        "draws": ABC["ess_so_far"].label,
    }
    simulations = ABC["simulations"].unit
    return {k: {"title": titles[k], "xlabel": simulations, "ylabel": labels[k]} for k in titles}


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
