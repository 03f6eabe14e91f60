"""Plot of the evidence of models."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.results.common import normal_interval, result_group, with_error
from amc_pymc.results.compare_evidence import compare_evidence, flag_parts
from amc_pymc.results.plots.painting import COLOURS, GREY, draw_rows, panels
from amc_pymc.results.tables import SPACE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Range of differences in nats above which the axis becomes logarithmic.
_LINEAR_RANGE = 20.0
#: Standard error in nats above which it is shown as unknown.
_LARGEST_ERROR = 100.0
#: Start of the flag of compare_evidence that is not a warning.
_NO_WARNING = "not separated from "
#: Columns of the table of compare_evidence.
_NEEDED = (
    "log_evidence", "log_evidence_mcse", "log_evidence_lower", "log_evidence_upper", "prob", "prob_mcse",
)  # fmt: skip
_SOURCE = (
    "amc_pymc.sample_ais or amc_pymc.estimate_evidence, or the table that amc_pymc.compare_evidence makes of other "
    "results,"
)


def plot_evidence(
    dt: pd.DataFrame | xr.DataTree | Mapping[str, xr.DataTree | tuple[float, float]],
    **figure_kwargs: Any,
) -> Figure:
    """Plot the evidence of models.

    The first plot shows log evidences with 95 % intervals, as differences from the best, and as numbers with
    standard errors. The second shows posterior probabilities, if there are several models. If differences exceed
    20 nats, the axis is linear up to one nat and logarithmic beyond.

    Parameters
    ----------
    dt : DataFrame, mapping of {str : DataTree or (float, float)} or DataTree
        Table from :func:`amc_pymc.compare_evidence`, drawn in its order; a mapping that it makes a table of; or a
        single result of :func:`amc_pymc.sample_ais` or :func:`amc_pymc.estimate_evidence`.
    **figure_kwargs
        Passed to :func:`matplotlib.pyplot.figure`.

    Returns
    -------
    Figure

    Raises
    ------
    TypeError, ValueError
        If `dt` is none of these or lacks a group or column.

    Notes
    -----
    Names followed by (!) mark estimates that are flagged or have an error that is unknown or above one
    nat. Their intervals are not reliable.
    For unequal prior probabilities, use :func:`amc_pymc.compare_evidence`.

    See Also
    --------
    amc_pymc.compare_evidence : table of evidences and probabilities.

    Examples
    --------
    >>> import xarray as xr
    >>> from amc_pymc.results.plots.evidence import plot_evidence
    >>> found = xr.Dataset({"log_evidence": -12.0, "log_evidence_mcse": 0.1})
    >>> result = xr.DataTree.from_dict({"evidence": found})
    >>> figure = plot_evidence({"linear": (-14.1, 0.1), "quadratic": result})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['−12.00 ± 0.10', '−14.10 ± 0.10']
    """
    table = _table(dt)
    z, error, lower, upper, prob, prob_error = (table[c].to_numpy(float) for c in _NEEDED)
    best, several = float(z.max()), len(table) > 1
    flags = table["flags"] if "flags" in table else [""] * len(table)
    flagged = [any(not p.startswith(_NO_WARNING) for p in flag_parts(text)) for text in flags]
    names = [f"{k} (!)" if bad else str(k) for k, bad in zip(table.index, flagged, strict=True)]
    size = 5.2 + 0.08 * max(map(len, names)) + 4.0 * several, 1.3 + 0.38 * max(len(names), 2)
    ratios = [1.4, 1.0][: 1 + several]
    figure, axes = panels(1 + several, size, figure_kwargs, width_ratios=ratios)
    known = (error <= _LARGEST_ERROR)[:, None]
    bounds = np.where(known, np.stack([lower, upper], axis=1) - best, np.nan)
    axes[0].axvline(0.0, color=GREY, linewidth=1)
    draw_rows(axes[0], names, z - best, bounds, [*map(_number, z, error)])
    what = f"difference from the {'best' if several else 'estimate'}, 95 % intervals"
    axes[0].set(
        title="Log evidence ± standard error" + ("; (!) flagged" if any(flagged) else ""),
        xlabel=what + _scaled(axes[0], np.concatenate([z - best, bounds.ravel()])),
    )
    if several:
        ends = np.stack(normal_interval(prob, prob_error), axis=1)
        ends = np.where(np.isfinite(ends), ends.clip(0.0, 1.0), np.nan)
        texts = [*map(_probability, prob, prob_error)]
        heights = draw_rows(axes[1], [""] * len(names), prob, ends, texts)
        axes[1].barh(heights, prob, 0.28, color=COLOURS[0], alpha=0.35)
        axes[1].set(title="Posterior probability", xlabel=SPACE["prob"].label, xlim=(-0.03, 1.03))
    return figure


def _table(dt: Any) -> pd.DataFrame:
    """Return the table of compare_evidence, with at least one row."""
    if isinstance(dt, xr.DataTree):
        result_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), _SOURCE)
        return compare_evidence({"estimate": dt})
    if isinstance(dt, Mapping):
        return compare_evidence(dt)
    if not isinstance(dt, pd.DataFrame):
        raise TypeError(
            "dt must be a table of amc_pymc.compare_evidence, a result of amc_pymc.sample_ais or "
            f"amc_pymc.estimate_evidence, or a mapping of names to results or pairs, got {type(dt).__name__}."
        )
    missing = [column for column in _NEEDED if column not in dt]
    if missing or dt.empty:
        raise ValueError(
            f"dt has no {f'column {", ".join(missing)}' if missing else 'row'}; pass the table of "
            "amc_pymc.compare_evidence."
        )
    return dt


def _number(z: float, error: float) -> str:
    """Format a log evidence; errors above 100 nats count as unknown."""
    if not math.isfinite(z):
        return "no estimate"
    return with_error(z, error if error <= _LARGEST_ERROR else math.nan).replace("-", "−")


def _probability(p: float, error: float) -> str:
    return "< 0.0001" if p < 1e-4 else with_error(p, error if error <= 0.5 else math.nan, 2)


def _scaled(axes: Axes, ends: np.ndarray) -> str:
    """Make the axis logarithmic beyond a nat if it is long; return what its label says of it."""
    if float(np.ptp(ends[np.isfinite(ends)])) <= _LINEAR_RANGE:
        return ""
    axes.set_xscale("symlog", linthresh=1.0)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    return " (log beyond 1)"
