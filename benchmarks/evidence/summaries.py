"""What the runs of the suite come to: errors, costs, figures of merit, coverage."""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np

from benchmarks.evidence.methods import family, option
from benchmarks.harness.intervals import clopper_pearson
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import grouped

#: Reported errors beyond which an estimate without a flag is a failure.
FAILURE = 5.0
#: Largest share of the reported error that a reference's own may have where coverage is pooled.
_KNOWN = 0.2


@np.errstate(divide="ignore", invalid="ignore")  # an estimate may be minus infinity
def summarise(rows: Sequence[Result]) -> Result:
    """What the runs of one method on one problem come to."""
    done = [r for r in rows if r["status"] == "finished"]
    out: Result = {
        "problem": rows[0]["problem"],
        "method": rows[0]["method"],
        "runs": len(done),
        "planned": len(rows),
        "easy": rows[0]["easy"],
        "status": "" if len(done) == len(rows) else _what_happened(rows),
    }
    if not done:
        return out
    off = np.array([r["log_evidence"] - r["truth"] for r in done])
    mcse = np.array([r["mcse"] for r in done])
    cpu = np.array([r["cpu_s"] for r in done])
    flagged = np.array([bool(r["flags"]) for r in done])
    errors = np.hypot(mcse, done[0]["reference_error"])
    z = np.where(off == 0.0, 0.0, off / errors)
    squares = off**2
    rmse = math.sqrt(squares.mean())
    root = math.sqrt(len(done))
    spread = off.std(ddof=1) if len(done) > 1 else math.nan
    return out | {
        "bias": float(off.mean()),
        "bias_error": float(spread / root),
        "rmse": rmse,
        "rmse_error": float(squares.std() / root / (2.0 * rmse)) if rmse > 0.0 else 0.0,
        "reported": float(np.median(mcse)),
        "cpu_s": float(cpu.mean()),
        "cpu_median_s": float(np.median(cpu)),
        "setup_s": float(np.median([r["setup_s"] for r in done])),
        "evaluations": float(np.median([r["evaluations"] for r in done])),
        "gradients": float(np.median([r["gradients"] for r in done])),
        "fom": float(cpu.mean() * squares.mean()),
        "largest_z": float(np.max(np.abs(z))),
        "sd_z": float(z.std(ddof=1)) if len(done) > 1 else math.nan,
        "failures": int(np.sum(~(np.abs(off) <= FAILURE * errors) & ~flagged)),
        "flagged": float(flagged.mean()),
        "whole_s": float(np.median([r["cpu_s"] + r["setup_s"] for r in done])),
    }


def _what_happened(rows: Sequence[Result]) -> str:
    return next(r["status"] for r in rows if r["status"] != "finished")


def by_method(rows: Sequence[Result], kind: str) -> dict[tuple, list[Result]]:
    """Rows of a kind by problem and method."""
    return grouped((r for r in rows if r["kind"] == kind), "problem", "method")


def summaries(rows: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """Runs and starts of every method on every problem, and the figure of merit over ours."""
    found = {key: summarise(group) for key, group in by_method(rows, "run").items()}
    starts = [r for r in rows if r["kind"] == "start" and r["status"] == "finished"]
    for (problem, method), row in found.items():
        mine = [r for r in starts if r["problem"] == problem and family(r) == family(row)]
        for caches in ("warm", "cold"):
            these = [r for r in mine if r["caches"] == caches]
            if these:
                seconds = [r["import_s"] + r["build_s"] + r["first_s"] for r in these]
                row[f"{caches}_start_s"] = float(np.median(seconds))
                row[f"{caches}_import_s"] = float(np.median([r["import_s"] for r in these]))
                row[f"{caches}_start_cpu_s"] = float(np.median([r["start_cpu_s"] for r in these]))
                same = [r["first_cpu_s"] for r in these if r["method"] == method]
                if same and "whole_s" in row:
                    row[f"{caches}_compile_s"] = float(np.median(same)) - row["whole_s"]
        ours = yardstick(found, problem)
        if ours is not None and "fom" in row:
            row["ratio"] = row["fom"] / ours if ours > 0.0 else math.inf
    return found


def yardstick(found: dict[tuple[str, str], Result], problem: str) -> float | None:
    """Our figure of merit on a problem, at the smallest target that was run."""
    ours = [
        (float(option(method)), row["fom"])
        for (p, method), row in found.items()
        if p == problem and family(row) == "estimate_evidence" and "fom" in row
    ]
    return min(ours)[1] if ours else None


@np.errstate(divide="ignore", invalid="ignore")
def coverage(rows: Sequence[Result]) -> list[Result]:
    """Coverage of our 95 % intervals, their width, and the mean of Z over its true value."""
    out = []
    for (problem, method), group in by_method(rows, "run").items():
        done = [r for r in group if r["status"] == "finished" and "lower" in r]
        if not done:
            continue
        truth, reference = done[0]["truth"], done[0]["reference_error"]
        lower = np.array([r["lower"] for r in done])
        upper = np.array([r["upper"] for r in done])
        off = np.array([r["log_evidence"] for r in done]) - truth
        mcse = np.array([r["mcse"] for r in done])
        covered = int(np.sum((lower <= truth) & (truth <= upper)))
        low, high = clopper_pearson(covered, len(done))
        rmse = math.sqrt(np.mean(off**2))
        share = np.exp(off)
        row = {
            "problem": problem,
            "method": method,
            "runs": len(done),
            "covered": covered,
            "low": low,
            "high": high,
            "sd_z": float(np.std(off / np.hypot(mcse, reference), ddof=1))
            if len(done) > 1
            else math.nan,
            "width": float(np.median(upper - lower)) / (2.0 * 1.959964 * rmse)
            if rmse > 0.0
            else math.nan,
            "known": reference <= _KNOWN * float(np.median(mcse)),
            "flagged": float(np.mean([bool(r["flags"]) for r in done])),
        }
        if reference == 0.0 and len(done) > 1:
            row["mean"] = float(share.mean())
            row["mean_error"] = float(share.std(ddof=1)) / math.sqrt(len(done))
        out.append(row)
    return out


def pooled(rows: Sequence[Result], level: float = 0.95) -> Result | None:
    """All problems together, and a two-sided test of the promised share."""
    from scipy.stats import binomtest

    known = [r for r in rows if r["known"]]
    n = sum(r["runs"] for r in known)
    if not n:
        return None
    k = sum(r["covered"] for r in known)
    low, high = clopper_pearson(k, n)
    return {
        "covered": k,
        "runs": n,
        "low": low,
        "high": high,
        "p": float(binomtest(k, n, level).pvalue),
    }
