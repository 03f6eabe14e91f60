"""Tables of the rows that :mod:`benchmarks.abc.peers` writes."""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np

from scipy.stats import chi2

from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import grouped, markdown, number, percent

#: Problems with exact draws of another posterior.
_NEAR = ("ma2", "ar_series")
#: Ranks of the truth are among so many draws.
RANKS = 99


def row_key(row: Result) -> tuple:
    """What tells a row from others."""
    return tuple(row[k] for k in ("kind", "problem", "observation", "budget", "method", "seed"))


#: Columns that are means over runs: heading, name, and how many digits.
_COLUMNS = (
    ("simulations", "simulations", 3), ("tolerance", "tolerance", 3),
    ("effective draws", "effective", 3), ("C2ST published", "c2st_published", 3),
    ("C2ST trees", "c2st", 3), ("±", "c2st_error", 1), ("not smoothed", "c2st_raw", 3),
    ("as returned", "c2st_returned", 3),
    ("us over simulator", "overhead_us", 2), ("set-up s", "setup_s", 2),
)  # fmt: skip


def by_observation(rows: Sequence[Result], name: str) -> dict[int, np.ndarray]:
    """A figure of each observation's runs."""
    groups = grouped([r for r in rows if name in r], "observation")
    return {key[0]: np.array([r[name] for r in group]) for key, group in groups.items()}


def mean_and_error(values: dict[int, np.ndarray]) -> tuple[float, float]:
    """Mean over observations, and its error by the spread of runs about the mean of their own observation."""
    if not values:
        return math.nan, math.nan
    mean = float(np.mean([v.mean() for v in values.values()]))
    free = sum(len(v) - 1 for v in values.values())
    if not free:
        return mean, math.nan
    variance = sum(((v - v.mean()) ** 2).sum() for v in values.values()) / free
    return mean, math.sqrt(sum(variance / len(v) for v in values.values())) / len(values)


def summary(rows: Sequence[Result]) -> Result:
    """What the runs of one method with one budget come to."""
    done = [r for r in rows if r["status"] == "finished"]
    out: Result = {"runs": f"{len(done)}/{len(rows)}"}
    for _, name, _ in _COLUMNS:
        out[name] = mean_and_error(by_observation(done, name))[0]
    out["c2st_error"] = mean_and_error(by_observation(done, "c2st"))[1]
    out["per_simulation"] = float(
        np.mean([r["effective"] / r["simulations"] for r in done] or math.nan)
    )
    out["acceptance"] = mean_and_error(by_observation(done, "acceptance"))[0]
    return out


def run_tables(rows: Sequence[Result]) -> str:
    """A table for each problem and budget."""
    text = []
    for (problem, budget), group in grouped(rows, "problem", "budget").items():
        headings = ["method", "runs", "acceptance", "effective per simulation"]
        lines = []
        for (method,), runs in grouped(group, "method").items():
            found = summary(runs)
            shown = [
                method, found["runs"], percent(found["acceptance"]),
                number(found["per_simulation"]),
            ]  # fmt: skip
            lines.append(shown + [number(found[name], digits) for _, name, digits in _COLUMNS])
        table = markdown([*headings, *(heading for heading, _, _ in _COLUMNS)], lines)
        note = (
            "Exact draws are of the posterior given the whole series, which no sampler of summaries reaches.\n\n"
            if problem in _NEAR
            else ""
        )
        text.append(f"### {problem}, {budget:,} simulations\n\n{note}{table}")
    return "\n\n".join(text)


def published_table(rows: Sequence[Result]) -> str:
    """Accuracies of the network of the published protocol: means over observations, and their range."""
    lines = []
    for (problem, budget), group in grouped(rows, "problem", "budget").items():
        for (method,), runs in grouped(group, "method").items():
            found = by_observation(runs, "c2st_published")
            if not found:
                continue
            means = [float(v.mean()) for v in found.values()]
            seeds = sorted({len(v) for v in found.values()})
            lines.append([
                problem, f"{budget:,}", method, str(len(means)), "-".join(map(str, seeds)),
                f"{np.mean(means):.2f}", f"{min(means):.2f} - {max(means):.2f}",
            ])  # fmt: skip
    if not lines:
        return ""
    headings = ["problem", "simulations", "method", "observations", "seeds", "C2ST", "range"]
    return "### Published protocol\n\n" + markdown(headings, lines)


#: What a run says of errors of its means: heading, and the statistics whose root of the sum of squares is meant.
_STATED = (("Monte Carlo", ("mcse",)), ("in all", ("error",)))
#: What the flag says that is of the bias by the tolerance.
_TOLERANCE_FLAG = "may shift posterior means"


def within(row: Result, statistics: Sequence[str]) -> np.ndarray | None:
    """Which exact means (D,) are within 1.96 stated errors; None if these are not stated."""
    if any(f"stated_{s}" not in row for s in statistics):
        return None
    squares = sum(np.square(row[f"stated_{s}"]) for s in statistics)
    return np.abs(row["mean_errors"]) <= 1.96 * np.sqrt(squares)


def share_and_error(shares: np.ndarray) -> str:
    """Mean (n,) and its standard error, with runs as independent."""
    error = shares.std(ddof=1) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return f"{number(float(shares.mean()), 2)} ± {number(float(error), 1)}"


def error_table(rows: Sequence[Result]) -> str:
    """Stated errors of posterior means against true ones, in posterior standard deviations."""
    lines = []
    for (problem, budget, method), group in grouped(rows, "problem", "budget", "method").items():
        done = [r for r in group if "mean_errors" in r]
        if not done:
            continue
        shown = [problem, f"{budget:,}", method, str(len(done))]
        shown.append(
            number(math.sqrt(np.mean([np.square(r["mean_errors"]).mean() for r in done])), 2)
        )
        flagged = np.array([_TOLERANCE_FLAG in r["flags"] for r in done])
        for _, statistics in _STATED:
            inside = [within(r, statistics) for r in done]
            if any(found is None for found in inside):
                shown += ["-"] * 3
                continue
            stated = [
                np.square([r[f"stated_{s}"] for s in statistics]).sum(axis=0).mean() for r in done
            ]
            shown.append(number(math.sqrt(np.mean(stated)), 2))
            shown.append(share_and_error(np.array([found.mean() for found in inside])))
            fine = [1.0 if f else found.mean() for f, found in zip(flagged, inside, strict=True)]
            shown.append(share_and_error(np.array(fine)))
        lines.append([*shown, percent(float(flagged.mean()))])
    if not lines:
        return ""
    each = [h for name, _ in _STATED for h in (f"stated, {name}", "covered", "or flagged")]
    headings = ["problem", "budget", "method", "runs", "error of means", *each, "flagged"]
    return "### Errors of posterior means\n\n" + markdown(headings, lines)


def uniformity(ranks: np.ndarray, n_bins: int = 10) -> float:
    """P-value of the chi-squared test of ranks (n,) among 99 draws for equal chances."""
    counts = np.bincount(ranks * n_bins // (RANKS + 1), minlength=n_bins)
    expected = len(ranks) / n_bins
    return float(chi2.sf(((counts - expected) ** 2).sum() / expected, n_bins - 1))


def covered(ranks: np.ndarray, level: float) -> float:
    """Share of ranks in the central part of so much probability."""
    return float((np.abs((ranks + 0.5) / (RANKS + 1) - 0.5) < 0.5 * level).mean())


def rank_table(rows: Sequence[Result]) -> str:
    """How often central intervals of the posterior hold the truth, by problem and method."""
    lines = []
    for (problem, budget, method), group in grouped(rows, "problem", "budget", "method").items():
        done = [r for r in group if r["status"] == "finished"]
        if not done:
            lines.append([problem, f"{budget:,}", method, f"0/{len(group)}", *["-"] * 6])
            continue
        ranks = np.array([r["ranks"] for r in done])
        p = [uniformity(column) for column in ranks.T]
        lines.append([
            problem, f"{budget:,}", method, f"{len(done)}/{len(group)}",
            number(float(np.median([r["tolerance"] for r in done]))),
            number(float(np.median([r["effective"] for r in done]))),
            percent(covered(ranks, 0.5)), percent(covered(ranks, 0.9)),
            number(float(ranks.mean()) / RANKS), number(min(1.0, len(p) * min(p)), 2),
        ])  # fmt: skip
    headings = [
        "problem", "budget", "method", "data sets", "tolerance", "effective draws", "in 50 %", "in 90 %",
        "mean rank", "p of equal ranks",
    ]  # fmt: skip
    return "### Ranks of the truth\n\n" + markdown(headings, lines)


def tables(rows: Sequence[Result]) -> str:
    """All tables of a book."""
    runs = [r for r in rows if r["kind"] == "run"]
    ranks = [r for r in rows if r["kind"] == "rank"]
    failed = sorted(
        {
            f"{r['method']} on {r['problem']} {r['status']}"
            for r in rows
            if r["status"] != "finished"
        }
    )
    parts = [
        run_tables(runs) if runs else "", published_table(runs), error_table(runs),
        rank_table(ranks) if ranks else "", "\n".join(failed),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)
