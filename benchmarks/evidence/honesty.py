"""Are stated errors and flags of evidences to be believed: what runs on problems of known evidence say.

A run is *right* if it is off by no more than `WRONG` standard errors, its own and the reference's together, or
by no more than `SLACK` nats, and *wrong* otherwise. A wrong run without a flag is what must not happen.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np

from benchmarks.harness.intervals import Z95
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import grouped, markdown, number, percent

#: Standard errors by which a wrong run is off.
WRONG = 4.0
#: Nats that nobody minds.
SLACK = 1e-3
HEADERS = (
    "problem", "method", "D", "runs", "RMSE", "mean stated error", "covered", "wrong without a flag",
    "right with a flag", "wrong with a flag", "evaluations", "gradients", "CPU s",
)  # fmt: skip


def is_wrong(row: Result) -> bool:
    """Whether a finished run is off by more than its error explains; not a number is wrong."""
    off = abs(row["log_evidence"] - row["truth"])
    return not (off <= WRONG * math.hypot(row["mcse"], row["reference_error"]) or off <= SLACK)


def is_covered(row: Result) -> bool:
    """Whether the 95 % interval, widened by the reference's error, holds the reference."""
    half = Z95 * math.hypot(row["mcse"], row["reference_error"])
    low, high = row["log_evidence"] - half, row["log_evidence"] + half
    if "lower" in row:
        low, high = min(low, row["lower"]), max(high, row["upper"])
    return bool(low <= row["truth"] <= high)


def honesty(rows: Sequence[Result]) -> list[Result]:
    """One record for every problem and method that has finished runs, and a total for every method."""
    done = [r for r in rows if r["kind"] == "run" and r["status"] == "finished"]
    groups = grouped(done, "method", "problem")
    out = []
    for method in dict.fromkeys(method for method, _ in groups):
        mine = [group for (m, _), group in groups.items() if m == method]
        out += [_record(group, group[0]["problem"], group[0]["n_dim"]) for group in mine]
        out.append(_record([row for group in mine for row in group], "all", None))
    return out


def _record(rows: Sequence[Result], problem: str, n_dim: int | None) -> Result:
    off = np.array([r["log_evidence"] - r["truth"] for r in rows])
    wrong = np.array([is_wrong(r) for r in rows])
    flagged = np.array([bool(r["flags"]) for r in rows])
    return {
        "problem": problem,
        "method": rows[0]["method"],
        "n_dim": n_dim,
        "runs": len(rows),
        "rmse": float(np.sqrt(np.mean(off**2))),
        "mcse": float(np.mean([r["mcse"] for r in rows])),
        "covered": float(np.mean([is_covered(r) for r in rows])),
        "missed": float(np.mean(wrong & ~flagged)),
        "needless": float(np.mean(~wrong & flagged)),
        "noticed": float(np.mean(wrong & flagged)),
        "seeds": [r["seed"] for r, bad in zip(rows, wrong & ~flagged, strict=True) if bad],
        "evaluations": float(np.median([r["evaluations"] for r in rows])),
        "gradients": float(np.median([r["gradients"] for r in rows])),
        "cpu_s": float(np.median([r["cpu_s"] for r in rows])),
    }


def honesty_table(rows: Sequence[Result]) -> str:
    """The records as a table, and the seeds of runs that were wrong without a flag."""
    records = honesty(rows)
    lines = [
        [
            r["problem"], r["method"], "" if r["n_dim"] is None else str(r["n_dim"]), str(r["runs"]),
            number(r["rmse"], 2), number(r["mcse"], 2), percent(r["covered"]), percent(r["missed"]),
            percent(r["needless"]), percent(r["noticed"]), f"{r['evaluations']:,.0f}",
            f"{r['gradients']:,.0f}", number(r["cpu_s"], 2),
        ]
        for r in records
    ]  # fmt: skip
    text = markdown(HEADERS, lines)
    missed = [r for r in records if r["n_dim"] is not None and r["seeds"]]
    if missed:
        seeds = (
            f"{r['problem']} ({r['method']}): {', '.join(map(str, r['seeds']))}" for r in missed
        )
        text += "\n\nSeeds of runs that were wrong without a flag: " + "; ".join(seeds) + "."
    return text


def unfinished_table(rows: Sequence[Result]) -> str:
    """Runs that did not end with a number, and why; empty if there are none."""
    bad = [r for r in rows if r["kind"] == "run" and r["status"] != "finished"]
    groups = grouped(bad, "problem", "method", "status")
    lines = [[problem, method, str(len(of)), why] for (problem, method, why), of in groups.items()]
    return markdown(["problem", "method", "runs", "why"], lines) if lines else ""


def comparison_table(rows: Sequence[Result]) -> str:
    """Root mean square error in nats and median CPU seconds, a line for every problem and a column for every method."""
    records = {(r["problem"], r["method"]): r for r in honesty(rows) if r["n_dim"] is not None}
    methods = list(dict.fromkeys(method for _, method in records))
    lines = []
    for problem in dict.fromkeys(problem for problem, _ in records):
        mine = [records.get((problem, method)) for method in methods]
        cells = [f"{number(r['rmse'], 2)}, {number(r['cpu_s'], 2)} s" if r else "-" for r in mine]
        lines.append([problem, *cells])
    return markdown(["problem", *methods], lines)


def report(rows: Sequence[Result]) -> str:
    """All tables."""
    parts = [
        "# Evidence where it is known\n\nRoot mean square error, and median CPU seconds after compiling.",
        comparison_table(rows),
        f"## Honesty\n\nWrong: off by more than {WRONG:g} standard errors, the reference's included, and "
        f"by more than {SLACK:g} nat. Covered: 95 % intervals, widened by the reference's error. "
        "Evaluations, gradients and CPU s are medians; those of `bridge` include NUTS.",
        honesty_table(rows),
        unfinished_table(rows),
    ]
    return "\n\n".join(filter(None, parts))
