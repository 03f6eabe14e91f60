"""Rows of plots of evidence: values, intervals, labels and notes."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import xarray as xr

__all__ = [
    "LARGEST_ERROR",
    "Z95",
    "EvidenceRows",
    "evidence_group",
    "evidence_rows",
    "number_with_error",
]


_Several = Mapping[str, xr.DataTree | tuple[float, float]]

#: Half width of a 95 % interval in standard errors.
Z95 = 1.96

#: Pareto k above which a few weights dominate the sum.
_LARGEST_K = 0.7

#: Standard error in nats above which estimates are flagged, as in compare_evidence.
_ROUGH = 1.0

#: Standard error in nats above which it is shown as unknown.
LARGEST_ERROR = 100.0

#: Start of the flag of compare_evidence that is not a warning.
_NO_WARNING = "not separated from "


def evidence_group(
    dt: xr.DataTree, group: str, variables: tuple[str, ...], name: str, source: str
) -> xr.Dataset:
    """Return a group of a result after checking that it has the required variables."""
    if not isinstance(dt, xr.DataTree):
        raise TypeError(
            f"{name} must be the xarray.DataTree that {source} returns, got {type(dt).__name__}."
        )
    if group not in dt.children:
        raise ValueError(
            f"{name} has no group {group!r}, only {sorted(map(str, dt.children))}; pass what "
            f"{source} returned."
        )
    data = dt[group].to_dataset()
    missing = [v for v in variables if v not in data]
    if missing:
        raise ValueError(
            f"Group {group!r} of {name} has no {', '.join(missing)}; pass what {source} returned."
        )
    return data


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


def evidence_rows(data: pd.DataFrame | xr.DataTree | _Several) -> EvidenceRows:
    """Return the rows of a plot of evidence."""
    if isinstance(data, pd.DataFrame):
        return _of_models(data)
    if isinstance(data, xr.DataTree):
        return _of_arms(data) if "arms" in data.children else _of_runs(data)
    if isinstance(data, Mapping):
        if not data:
            raise ValueError("data must hold at least one model, got an empty mapping.")
        return _of_models(_table(cast(_Several, data)))
    raise TypeError(
        "data must be a table of amc_pymc.compare_evidence, a result of amc_pymc.sample_ais or "
        f"amc_pymc.estimate_evidence, or a mapping of names to results or pairs, got {type(data).__name__}."
    )


def _table(results: _Several) -> pd.DataFrame:
    """Make a table of several results with equal prior probabilities, the best first."""
    found = {name: _own(dt, f"data[{name!r}]") for name, dt in results.items()}
    table = pd.DataFrame(found.values(), index=list(found), columns=[*_Own._fields])
    table = table.sort_values("log_evidence", ascending=False, kind="stable")
    p = np.exp((table["log_evidence"] - table["log_evidence"].max()).to_numpy())
    p /= p.sum()
    slopes = np.diag(p) - np.outer(p, p)
    mcse = table["log_evidence_mcse"].to_numpy()
    parts = np.where(slopes == 0.0, 0.0, slopes * mcse)
    return table.assign(prob=p, prob_mcse=np.sqrt(np.sum(parts**2, axis=1)))


class _Own(NamedTuple):
    """Log evidence of one result, with error, interval and flags."""

    log_evidence: float
    log_evidence_mcse: float
    lower: float
    upper: float
    flags: str


def _own(dt: xr.DataTree | tuple[float, float], name: str) -> _Own:
    if isinstance(dt, tuple | list):
        centre, error = _pair(dt, name)
        return _checked(centre, error, centre - Z95 * error, centre + Z95 * error, "", name)
    source = "amc_pymc.sample_ais or amc_pymc.estimate_evidence"
    if isinstance(dt, xr.DataTree) and "evidence" not in dt.children:
        source += ", or the table that amc_pymc.compare_evidence makes of other results,"
    group = evidence_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), name, source)
    centre, error = float(group["log_evidence"]), float(group["log_evidence_mcse"])
    flags = str(group.attrs.get("flags", dt.attrs.get("flags", "")))
    lower = float(group.get("log_evidence_lower", centre - Z95 * error))
    upper = float(group.get("log_evidence_upper", centre + Z95 * error))
    return _checked(centre, error, lower, upper, flags, name)


def _pair(pair: tuple[Any, ...] | list[Any], name: str) -> tuple[float, float]:
    """Check and return a pair of log evidence and standard error, as for compare_evidence."""
    try:
        centre, error = (float(value) for value in pair)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a result, or a tuple (log_evidence, mcse) of numbers, got {pair!r}."
        ) from None
    if error < 0.0:
        raise ValueError(f"The standard error of {name} must not be negative, got {error}.")
    return centre, error


def _checked(
    centre: float, error: float, lower: float, upper: float, flags: str, name: str
) -> _Own:
    """Check a log evidence, and flag it if its error is unknown or large."""
    if not math.isfinite(centre):
        raise ValueError(f"The log evidence of {name} must be finite, got {centre}.")
    if not error <= _ROUGH:
        flags = f"{flags}; error unknown or above {_ROUGH:g} nat".removeprefix("; ")
    if not error <= LARGEST_ERROR:
        return _Own(centre, math.nan, math.nan, math.nan, flags)
    return _Own(centre, error, lower, upper, flags)


def _of_models(table: pd.DataFrame) -> EvidenceRows:
    needed = ["log_evidence", "log_evidence_mcse", "prob", "prob_mcse"]
    missing = [column for column in needed if column not in table]
    if missing:
        raise ValueError(
            f"data has no column {', '.join(missing)}; pass the table of amc_pymc.compare_evidence."
        )
    if table.empty:
        raise ValueError("data must hold at least one model, got an empty table.")
    centre, error, share, share_error = (table[column].to_numpy(float) for column in needed)
    reference = float(centre.max())
    half = Z95 * np.where(error <= LARGEST_ERROR, error, np.nan)
    bounds = np.stack([centre - half, centre + half], axis=1)
    if "lower" in table:
        bounds = table[["lower", "upper"]].to_numpy(float)
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
        {"log_evidence": f"difference from the {'best' if several else 'estimate'}, 95 % intervals", "prob": "probability"},
    )  # fmt: skip


def _of_arms(dt: xr.DataTree) -> EvidenceRows:
    source = "amc_pymc.estimate_evidence"
    combined = _own(dt, "data")
    arms = evidence_group(dt, "arms", ("log_evidence", "log_evidence_mcse"), "data", source)
    names = list(map(str, arms["arm"].values))
    centre, error = arms["log_evidence"].values, arms["log_evidence_mcse"].values
    reference = combined.log_evidence
    centre = np.where(np.isfinite(centre), centre, np.nan) - reference
    half = Z95 * np.where(error <= LARGEST_ERROR, error, np.nan)
    nothing = np.full(len(names), np.nan)
    k = arms["pareto_k"].values if "pareto_k" in arms else nothing
    share = arms["weight"].values.astype(float) if "weight" in arms else None
    notes = [""] * len(names) if share is None else [f"{w:.3f}" for w in share]
    if "draws" in arms:
        notes = [f"{w}, {n:,.0f} draws" for w, n in zip(notes, arms["draws"].values, strict=True)]
    bad = [bool(x > _LARGEST_K) for x in k]
    title = f"Log evidence: {number_with_error(reference, combined.log_evidence_mcse)}"
    if combined.flags.strip():
        title += ", flagged"
    return EvidenceRows(
        "arm", names, centre, error, np.stack([centre - half, centre + half], axis=1), bad,
        reference, (combined.lower - reference, combined.upper - reference),
        "weight", share, nothing if share is not None else None, notes,
        {"log_evidence": _title(title, bad, "heavy tail"), "weight": "Weight of the arm"},
        {"log_evidence": "difference from combined, 95 % intervals",
         "weight": "weight"},
    )  # fmt: skip


def _of_runs(dt: xr.DataTree) -> EvidenceRows:
    """Make rows of a result without arms: its estimate, and that of reverse runs if present."""
    own = _own(dt, "data")
    group = dt["evidence"].to_dataset()
    names, centre, error = ["estimate"], [own.log_evidence], [own.log_evidence_mcse]
    bounds = [[own.lower, own.upper]]
    if "reverse_log_evidence" in group:
        names = ["forward", "reverse"]
        centre.append(float(group["reverse_log_evidence"]))
        error.append(float(group.get("reverse_log_evidence_mcse", math.nan)))
        bounds.append([centre[1] - Z95 * error[1], centre[1] + Z95 * error[1]])
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
