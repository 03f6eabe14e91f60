"""Rows of plots of evidence: values, intervals, labels and notes."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.results import compare_evidence
from amc_pymc.results.common import LARGEST_K, normal_interval, result_group
from amc_pymc.results.tables import ARMS, SPACE

__all__ = ["EvidenceRows", "evidence_rows", "number_with_error", "shown_interval"]

#: Standard error in nats above which it is shown as unknown.
LARGEST_ERROR = 100.0

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


def number_with_error(centre: float, error: float) -> str:
    """Format a number and its standard error to two digits; errors above 100 nats count as unknown.

    Examples
    --------
    >>> number_with_error(-1234.5678, 0.0321), number_with_error(-2.5, float("nan"))
    ('−1234.568 ± 0.032', '−2.500 ± ?')
    """
    if not math.isfinite(centre):
        return "no estimate"
    if not error <= LARGEST_ERROR:
        return f"{centre:.3f} ± ?".replace("-", "−")
    digits = 3 if error <= 0.0 else min(max(1 - math.floor(math.log10(error)), 0), 6)
    return f"{centre:.{digits}f} ± {error:.{digits}f}".replace("-", "−")


class EvidenceRows(NamedTuple):
    """Data of the plot, in rows from top to bottom.

    Attributes
    ----------
    dim : str
    names : list of str (R,)
    centre, error : array (R,)
        Log evidences relative to `reference`, and standard errors.
    bounds : array (R, 2)
        Bounds of intervals, relative to `reference`.
    bad : list of bool (R,)
        Whether an estimate is flagged.
    reference : float
        Log evidence at zero of the axis.
    band : (float, float) or None
        Interval of the combined estimate, relative to `reference`.
    share_name : str
    share, share_error : array (R,) or None
        Probabilities or weights.
    notes : list of str (R,)
        Text beside the probabilities or weights.
    titles, xlabels : dict of {str : str}
    """

    dim: str
    names: list[str]
    centre: np.ndarray
    error: np.ndarray
    bounds: np.ndarray
    bad: list[bool]
    reference: float
    band: tuple[float, float] | None
    share_name: str
    share: np.ndarray | None
    share_error: np.ndarray | None
    notes: list[str]
    titles: dict[str, str]
    xlabels: dict[str, str]


def evidence_rows(
    dt: pd.DataFrame | xr.DataTree | _Several,
) -> EvidenceRows:
    """Return the rows of a plot of evidence."""
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


def shown_interval(error: Any, lower: Any, upper: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of intervals, nan where the error is too large to be shown."""
    known = np.asarray(error, float) <= LARGEST_ERROR
    return np.where(known, lower, np.nan), np.where(known, upper, np.nan)


class _Own(NamedTuple):
    """Log evidence of one result, with error, interval and flags."""

    log_evidence: float
    error: float
    lower: float
    upper: float
    flags: str


def _own(dt: xr.DataTree) -> _Own:
    result_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), _SOURCE)
    table = compare_evidence({"dt": dt}).loc["dt"]
    centre, error = table["log_evidence"], table["log_evidence_mcse"]
    lower, upper = shown_interval(error, table["log_evidence_lower"], table["log_evidence_upper"])
    return _Own(centre, error, float(lower), float(upper), table["flags"])


def _of_models(table: pd.DataFrame) -> EvidenceRows:
    missing = [column for column in _NEEDED if column not in table]
    if missing:
        raise ValueError(
            f"dt has no column {', '.join(missing)}; pass the table of amc_pymc.compare_evidence."
        )
    if table.empty:
        raise ValueError("dt must hold at least one model, got an empty table.")
    centre, error, lower, upper, share, share_error = (table[c].to_numpy(float) for c in _NEEDED)
    reference = float(centre.max())
    bounds = np.stack(shown_interval(error, lower, upper), axis=1)
    flags = table["flags"] if "flags" in table else [""] * len(table)
    bad = [
        any(flag.strip() and not flag.strip().startswith(_NO_WARNING) for flag in text.split(";"))
        for text in flags
    ]
    several = len(table) > 1
    return EvidenceRows(
        "model", list(map(str, table.index)), centre - reference, error, bounds - reference, bad,
        reference, None, "prob", share if several else None, share_error if several else None,
        [_probability(p, e) for p, e in zip(share, share_error, strict=True)],
        {"log_evidence": _title("Log evidence ± standard error", bad),
         "prob": "Posterior probability"},
        {"log_evidence": f"difference from the {'best' if several else 'estimate'}, 95 % intervals", "prob": SPACE["prob"].label},
    )  # fmt: skip


def _of_arms(dt: xr.DataTree) -> EvidenceRows:
    combined = _own(dt)
    arms = result_group(
        dt, "arms", ("log_evidence", "log_evidence_mcse"), "amc_pymc.estimate_evidence"
    )
    names = list(map(str, arms["arm"].values))
    centre, error = arms["log_evidence"].values, arms["log_evidence_mcse"].values
    reference = combined.log_evidence
    bounds = np.stack(shown_interval(error, *normal_interval(centre, error)), axis=1) - reference
    centre = np.where(np.isfinite(centre), centre, np.nan) - reference
    nothing = np.full(len(names), np.nan)
    k = arms["pareto_k"].values if "pareto_k" in arms else nothing
    share = arms["weight"].values.astype(float) if "weight" in arms else None
    notes = [""] * len(names) if share is None else [f"{w:.3f}" for w in share]
    if "draws" in arms:
        notes = [f"{w}, {n:,.0f} draws" for w, n in zip(notes, arms["draws"].values, strict=True)]
    bad = [bool(x > LARGEST_K) for x in k]
    title = f"Log evidence: {number_with_error(reference, combined.error)}"
    if combined.flags.strip():
        title += ", flagged"
    return EvidenceRows(
        "arm", names, centre, error, bounds, bad, reference, (combined.lower - reference, combined.upper - reference),
        "weight", share, nothing if share is not None else None, notes,
        {"log_evidence": _title(title, bad, "heavy tail"), "weight": "Weight of the arm"},
        {"log_evidence": "difference from combined, 95 % intervals",
         "weight": ARMS["weight"].label},
    )  # fmt: skip


def _of_runs(dt: xr.DataTree) -> EvidenceRows:
    """Make rows of a result without arms: its estimate, and that of reverse runs if present."""
    own = _own(dt)
    group = dt["evidence"].to_dataset()
    names, centre, error = ["estimate"], [own.log_evidence], [own.error]
    bounds = [[own.lower, own.upper]]
    if "reverse_log_evidence" in group:
        names = ["forward", "reverse"]
        centre.append(float(group["reverse_log_evidence"]))
        error.append(float(group.get("reverse_log_evidence_mcse", math.nan)))
        lower, upper = shown_interval(error[1], *normal_interval(centre[1], error[1]))
        bounds.append([float(lower), float(upper)])
    bad = [bool(own.flags.strip())] + [False] * (len(names) - 1)
    reference = own.log_evidence
    return EvidenceRows(
        "run", names, np.array(centre) - reference, np.array(error), np.array(bounds) - reference,
        bad, reference, None, "weight", None, None, [],
        {"log_evidence": _title("Log evidence ± standard error", bad)},
        {"log_evidence": "difference from the estimate, 95 % intervals"},
    )  # fmt: skip


def _title(text: str, bad: list[bool], why: str = "flagged") -> str:
    return f"{text}; (!) {why}" if any(bad) else text


def _probability(p: float, error: float) -> str:
    if p < 1e-4:
        return "< 0.0001"
    if p > 1.0 - 1e-4:
        return "> 0.9999"
    if not error <= 0.5:
        return f"{p:.4f} ± ?"
    if error < 1e-5:
        return f"{p:.4f}"
    digits = min(max(1 - math.floor(math.log10(error)), 2), 5)
    return f"{p:.{digits}f} ± {error:.{digits}f}"
