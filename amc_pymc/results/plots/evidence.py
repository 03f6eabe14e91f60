"""Plot of the evidence of several models, or of the arms of one estimate."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.results.common import LARGEST_K, normal_interval, result_group, with_error
from amc_pymc.results.compare_evidence import compare_evidence
from amc_pymc.results.plots.painting import COLOURS, GREY, draw_rows, panels
from amc_pymc.results.tables import ARMS, SPACE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Range of differences in nats above which the axis becomes logarithmic, and the ratio of the range to the shortest
#: interval of an arm above which it does.
_LINEAR_RANGE, _SHORT = 20.0, 60.0
#: Standard error in nats above which it is shown as unknown.
_LARGEST_ERROR = 100.0
#: Start of the flag of compare_evidence that is not a warning.
_NO_WARNING = "not separated from "
_Several = Mapping[str, xr.DataTree | tuple[float, float]]
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
    nat, and arms with a few dominant weights (Pareto k above 0.7). Their intervals are not reliable.
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
    rows = _rows(dt)
    names = [f"{name} (!)" if bad else name for name, bad in zip(rows.names, rows.bad, strict=True)]
    two = rows.share is not None
    size = 5.2 + 0.08 * max(map(len, names)) + 4.0 * two, 1.3 + 0.38 * max(len(names), 2)
    figure, axes = panels(1 + two, size, figure_kwargs, width_ratios=[1.4, 1.0][: 1 + two])
    left = axes[0]
    if rows.band is not None:
        left.axvspan(*rows.band, color=COLOURS[0], alpha=0.2, linewidth=0)
    left.axvline(0.0, color=GREY, linewidth=1)
    numbers = [_number(x + rows.reference, e) for x, e in zip(rows.centre, rows.error, strict=True)]
    draw_rows(left, names, rows.centre, rows.bounds, numbers)
    suffix = _scaled(left, rows)
    left.set(title=rows.titles[0], xlabel=rows.xlabels[0] + suffix)
    if rows.share is not None:
        bounds = np.stack(normal_interval(rows.share, rows.share_error), axis=1)
        bounds = np.where(np.isfinite(bounds), bounds.clip(0.0, 1.0), np.nan)
        heights = draw_rows(axes[1], [""] * len(names), rows.share, bounds, rows.notes)
        axes[1].barh(heights, rows.share, 0.28, color=COLOURS[0], alpha=0.35)
        axes[1].set(title=rows.titles[1], xlabel=rows.xlabels[1], xlim=(-0.03, 1.03))
    return figure


def _number(centre: float, error: float) -> str:
    """Format a log evidence; errors above 100 nats count as unknown."""
    if not math.isfinite(centre):
        return "no estimate"
    return with_error(centre, error if error <= _LARGEST_ERROR else math.nan).replace("-", "−")


def _probability(p: float, error: float) -> str:
    return "< 0.0001" if p < 1e-4 else with_error(p, error if error <= 0.5 else math.nan, 2)


class _Rows(NamedTuple):
    """Data of the plots, in rows from top to bottom.

    Attributes
    ----------
    names : list of str (R,)
    centre, error : array (R,)
        Log evidences relative to `reference`, and standard errors.
    bounds : array (R, 2)
        Bounds of intervals, relative to `reference`; nan where the error is too large to be shown.
    bad : list of bool (R,)
        Whether an estimate is flagged.
    reference : float
        Log evidence at zero of the axis.
    titles, xlabels : tuple of str
        Of both plots.
    share, share_error : array (R,) or None
        Probabilities or weights.
    notes : list of str (R,)
        Text beside the probabilities or weights.
    band : (float, float) or None
        Interval of the combined estimate of arms, relative to `reference`.
    """

    names: list[str]
    centre: np.ndarray
    error: np.ndarray
    bounds: np.ndarray
    bad: list[bool]
    reference: float
    titles: tuple[str, ...]
    xlabels: tuple[str, ...]
    share: np.ndarray | None = None
    share_error: Any = math.nan
    notes: list[str] = []
    band: tuple[float, float] | None = None


def _rows(dt: pd.DataFrame | xr.DataTree | _Several) -> _Rows:
    if isinstance(dt, pd.DataFrame):
        return _of_models(dt)
    if isinstance(dt, xr.DataTree):
        return _of_arms(dt) if "arms" in dt.children else _of_runs(dt)
    if isinstance(dt, Mapping):
        if not dt:
            raise ValueError("dt must hold at least one model, got an empty mapping.")
        return _of_models(compare_evidence(cast(_Several, dt)))
    raise TypeError(
        "dt must be a table of amc_pymc.compare_evidence, a result of amc_pymc.sample_ais or "
        f"amc_pymc.estimate_evidence, or a mapping of names to results or pairs, got {type(dt).__name__}."
    )


def _bounds(error: np.ndarray, lower: Any, upper: Any) -> np.ndarray:
    known = (error <= _LARGEST_ERROR)[:, None]
    return np.where(known, np.stack([lower, upper], axis=1), np.nan)


def _of_models(table: pd.DataFrame) -> _Rows:
    missing = [column for column in _NEEDED if column not in table]
    if missing:
        raise ValueError(
            f"dt has no column {', '.join(missing)}; pass the table of amc_pymc.compare_evidence."
        )
    if table.empty:
        raise ValueError("dt must hold at least one model, got an empty table.")
    centre, error, lower, upper, share, share_error = (table[c].to_numpy(float) for c in _NEEDED)
    reference, several = float(centre.max()), len(table) > 1
    flags = table["flags"] if "flags" in table else [""] * len(table)
    bad = [
        any(flag.strip() and not flag.strip().startswith(_NO_WARNING) for flag in text.split(";"))
        for text in flags
    ]
    return _Rows(
        list(map(str, table.index)), centre - reference, error, _bounds(error, lower, upper) - reference, bad,
        reference,
        (_title("Log evidence ± standard error", bad), "Posterior probability"),
        (f"difference from the {'best' if several else 'estimate'}, 95 % intervals", SPACE["prob"].label),
        share if several else None, share_error,
        [_probability(p, e) for p, e in zip(share, share_error, strict=True)],
    )  # fmt: skip


def _own(dt: xr.DataTree) -> pd.DataFrame:
    """Return the row of a result in the table of compare_evidence."""
    result_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), _SOURCE)
    return compare_evidence({"estimate": dt})


def _of_arms(dt: xr.DataTree) -> _Rows:
    own = _own(dt).iloc[0]
    arms = result_group(
        dt, "arms", ("log_evidence", "log_evidence_mcse"), "amc_pymc.estimate_evidence"
    )
    centre, error = arms["log_evidence"].values, arms["log_evidence_mcse"].values
    reference = own["log_evidence"]
    share = arms["weight"].values.astype(float) if "weight" in arms else None
    notes = [""] * len(error) if share is None else [f"{w:.3f}" for w in share]
    if "draws" in arms:
        notes = [f"{w}, {n:,.0f} draws" for w, n in zip(notes, arms["draws"].values, strict=True)]
    bad = [bool(k > LARGEST_K) for k in arms["pareto_k"].values] if "pareto_k" in arms else []
    bad = bad or [False] * len(error)
    title = f"Log evidence: {_number(reference, own['log_evidence_mcse'])}"
    if own["flags"].strip():
        title += ", flagged"
    return _Rows(
        list(map(str, arms["arm"].values)), np.where(np.isfinite(centre), centre, np.nan) - reference, error,
        _bounds(error, *normal_interval(centre, error)) - reference, bad, reference,
        (_title(title, bad, "heavy tail"), "Weight of the arm"),
        ("difference from combined, 95 % intervals", ARMS["weight"].label),
        share, np.full(len(error), np.nan), notes,
        (own["log_evidence_lower"] - reference, own["log_evidence_upper"] - reference),
    )  # fmt: skip


def _of_runs(dt: xr.DataTree) -> _Rows:
    """Make the row of a result without arms."""
    return _of_models(_own(dt))


def _title(text: str, bad: list[bool], why: str = "flagged") -> str:
    return f"{text}; (!) {why}" if any(bad) else text


def _scaled(axes: Axes, rows: _Rows) -> str:
    """Make the axis logarithmic beyond a unit if small differences would be hidden; return what its label says of that."""
    ends = np.concatenate([rows.centre, rows.bounds.ravel(), [0.0], rows.band or []])
    reach = float(np.ptp(ends[np.isfinite(ends)]))
    if rows.band is None:
        unit = 1.0 if reach > _LINEAR_RANGE else None
    else:
        half = 0.5 * (rows.bounds[:, 1] - rows.bounds[:, 0])
        least = half[half > 0.0].min(initial=math.inf)
        unit = 10.0 ** round(math.log10(3.0 * least)) if reach >= _SHORT * least else None
    if unit is None:
        return ""
    axes.set_xscale("symlog", linthresh=unit)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    return f" (log beyond {unit:g})"
