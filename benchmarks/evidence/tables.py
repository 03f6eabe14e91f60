"""Tables of the suite."""

from __future__ import annotations

import argparse
import math

from collections.abc import Sequence

import numpy as np

from benchmarks.evidence.honesty import SLACK, WRONG, honesty_table, unfinished_table
from benchmarks.evidence.methods import LIBRARIES, family
from benchmarks.evidence.speed import PARTICLES, STEPS, speed_table
from benchmarks.evidence.summaries import FAILURE, coverage, pooled, summaries
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import markdown, number, percent

#: Runs of ours from which coverage is told without being asked for.
_MANY = 30
AIM_PROBLEMS = ("linear_regression_100", "logistic_regression", "two_modes_10")
AIM_TARGET = 0.01


def comparison_table(found: dict[tuple[str, str], Result]) -> str:
    """One line for every problem and method."""
    headers = [
        "problem", "method", "runs", "bias", "RMSE", "median reported error", "CPU s", "cold start s",
        "evaluations (gradients)", "FoM s nat²", "FoM / ours", "largest \\|z\\|", "unflagged failures",
        "runs with flags",
    ]  # fmt: skip
    lines = []
    for row in ordered(found):
        runs = f"{row['runs']}" + (
            f" of {row['planned']}: {row['status']}" if row["status"] else ""
        )
        if "rmse" not in row:
            lines.append([row["problem"], row["method"], runs, *["-"] * (len(headers) - 3)])
            continue
        lines.append([
            row["problem"], row["method"], runs,
            f"{signed(row['bias'])} ± {number(row['bias_error'], 2)}",
            f"{number(row['rmse'])} ± {number(row['rmse_error'], 2)}",
            number(row["reported"]),
            number(row["cpu_median_s"]),
            number(row.get("cold_start_s")),
            evaluations(row),
            scientific(row["fom"]),
            number(row.get("ratio")),
            number(row["largest_z"]),
            str(row["failures"]),
            percent(row["flagged"]),
        ])  # fmt: skip
    return markdown(headers, lines)


def ordered(found: dict[tuple[str, str], Result]) -> list[Result]:
    """Summaries by problem, as they came, ours first."""
    problems = list(dict.fromkeys(problem for problem, _ in found))
    families = list(LIBRARIES)
    return sorted(
        found.values(),
        key=lambda r: (problems.index(r["problem"]), families.index(family(r)), r["method"]),
    )


def signed(value: float) -> str:
    """Two digits and a sign."""
    return f"{value:+.2g}" if math.isfinite(value) else "-"


def scientific(value: float) -> str:
    """Three digits and a power of ten."""
    return f"{value:.2e}" if math.isfinite(value) else "-"


def evaluations(row: Result) -> str:
    """Of the likelihood, and how many of them with gradients."""
    some = f" ({row['gradients']:,.0f})" if row["gradients"] else ""
    return f"{row['evaluations']:,.0f}{some}"


def overall_table(found: dict[tuple[str, str], Result]) -> str:
    """One line for every method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in ordered(found)):
        mine = [r for r in found.values() if r["method"] == method and "rmse" in r]
        if not mine:
            continue
        ratios = [r["ratio"] for r in mine if 0.0 < r.get("ratio", 0.0) < math.inf]
        mean = math.exp(np.mean(np.log(ratios))) if ratios else math.nan
        runs = sum(r["runs"] for r in mine)
        flags = [
            np.average([r["flagged"] for r in group], weights=[r["runs"] for r in group])
            if (group := [r for r in mine if r["easy"] is easy])
            else math.nan
            for easy in (True, False)
        ]
        span = f"{number(min(ratios))} ... {number(max(ratios))}" if ratios else "-"
        failures = sum(r["failures"] for r in mine)
        lines.append(
            [method, str(len(mine)), str(runs), number(mean), span, str(failures)]
            + [percent(share) for share in flags]
        )
    headers = [
        "method", "problems", "runs", "FoM / ours, geometric mean", "from ... to", "unflagged failures",
        "flagged runs, easy problems", "flagged runs, hard problems",
    ]  # fmt: skip
    return markdown(headers, lines)


def starts_table(found: dict[tuple[str, str], Result]) -> str:
    """What comes before the first answer, and again with every call."""
    lines = [
        [row["problem"], row["method"]]
        + [number(row.get(f"warm_{k}_s")) for k in ("import", "start", "start_cpu", "compile")]
        + [number(row.get(f"cold_{k}_s")) for k in ("start", "start_cpu", "compile")]
        + [number(row["setup_s"]), percent(row["setup_s"] / row["whole_s"])]
        for row in ordered(found)
        if "rmse" in row
    ]
    headers = [
        "problem", "method", "import s", "start s, warm", "its CPU s", "compiling CPU s, warm",
        "start s, cold", "its CPU s", "compiling CPU s, cold", "set-up of each later call, CPU s",
        "share of such a call",
    ]  # fmt: skip
    return markdown(headers, lines)


def problems_table(rows: Sequence[Result]) -> str:
    """Sizes and references of the problems."""
    seen = {r["problem"]: r for r in rows if r["kind"] == "run"}
    lines = [
        [p, str(r["n_dim"]), f"{r['truth']:.5f}", number(r["reference_error"], 2) if
         r["reference_error"] else "exact", "yes" if r["easy"] else "no"]
        for p, r in seen.items()
    ]  # fmt: skip
    return markdown(["problem", "D", "log Z", "its error", "easy"], lines)


def coverage_table(rows: Sequence[Result]) -> str:
    """One line for every problem, and all together."""
    headers = [
        "problem", "method", "runs", "covered by 95 % intervals", "sd of z", "width / oracle's",
        "mean of Z / true Z", "runs with flags",
    ]  # fmt: skip
    lines = [
        [
            r["problem"] + ("" if r["known"] else " *"), r["method"], str(r["runs"]), covered(r),
            number(r["sd_z"]), number(r["width"]),
            f"{r['mean']:.5f} ± {number(r['mean_error'], 2)}" if "mean" in r else "-",
            percent(r["flagged"]),
        ]
        for r in rows
    ]  # fmt: skip
    text = markdown(headers, lines)
    for method in dict.fromkeys(r["method"] for r in rows):
        everything = pooled([r for r in rows if r["method"] == method])
        if everything is not None:
            text += (
                f"\n\n`{method}`, all problems: {covered(everything)} of {everything['runs']:,} runs; "
                f"two-sided binomial test of 95 %: p = {everything['p']:.3g}."
            )
    if not all(r["known"] for r in rows):
        text += (
            "\n\n\\* the reference's own error is too large beside the reported one: not pooled."
        )
    return text


def covered(row: Result) -> str:
    """A share of runs with its Clopper-Pearson interval."""
    parts = [100.0 * row["covered"] / row["runs"], 100.0 * row["low"], 100.0 * row["high"]]
    return "{:.1f} % [{:.1f}, {:.1f}]".format(*parts)


def aim_table(found: dict[tuple[str, str], Result]) -> str:
    """Seconds to an error of a hundredth.

    Of ours the measured ones, more if the error is larger; of the others FoM over the squared error.
    """
    headers = [
        "problem", "method", "runs", "CPU s of a run", "RMSE", "FoM s nat²", "CPU s to an error of 0.01",
        "times ours", "s from import to the first answer, warm", "its CPU s",
    ]  # fmt: skip
    lines = []
    for problem in AIM_PROBLEMS:
        ours = found.get((problem, f"estimate_evidence:{AIM_TARGET:g}"))
        reached = math.nan
        if ours and "rmse" in ours:
            reached = max(ours["cpu_s"], ours["fom"] / AIM_TARGET**2)
        for row in ordered(found):
            if row["problem"] != problem or "rmse" not in row:
                continue
            if family(row) == "estimate_evidence" and row is not ours:
                continue
            needed = reached if row is ours else row["fom"] / AIM_TARGET**2
            lines.append([
                problem, row["method"], str(row["runs"]), number(row["cpu_s"]),
                f"{number(row['rmse'])} ± {number(row['rmse_error'], 2)}", scientific(row["fom"]),
                number(needed), number(needed / reached), number(row.get("warm_start_s")),
                number(row.get("warm_start_cpu_s")),
            ])  # fmt: skip
    return markdown(headers, lines)


def report(rows: Sequence[Result], options: argparse.Namespace) -> str:
    """All tables that were asked for."""
    found, covers = summaries(rows), coverage(rows)
    some = options.resume  # then all tables that there are rows for
    parts = ["# Evidence where it is known"]
    if found and (options.compare or some):
        parts += [
            "CPU s: after compilation, the pilot run included. z: error over the reported one, of "
            "`sample_smc` half the difference of its two chains, with the reference's. FoM: mean CPU s "
            "times mean squared error; over ours at the smallest target. Unflagged failures: runs off by "
            f"more than {FAILURE:g} reported errors without any warning.",
            overall_table(found),
            comparison_table(found),
            f"## Honesty\n\nWrong: off by more than {WRONG:g} standard errors, the reference's included, and "
            f"by more than {SLACK:g} nat. Covered: 95 % intervals, widened by the reference's error. "
            "Evaluations, gradients and CPU s are medians; those of `bridge` include NUTS.",
            honesty_table(rows),
            unfinished_table(rows),
            "## Starts\n\nFrom the import of the library to the first answer in a fresh process, with "
            "warm and with cold caches of the compilers; compiling is the first call less a later one. "
            "Set-up: what later calls compile or load again.",
            starts_table(found),
            "## Problems",
            problems_table(rows),
        ]
    if not options.coverage:
        covers = [r for r in covers if some and r["runs"] >= _MANY]
    if covers:
        parts += ["## Coverage", coverage_table(covers)]
    if options.speed or (some and any(r["kind"] == "speed" for r in rows)):
        parts += [
            f"## Speed\n\nMicroseconds of CPU for one of {PARTICLES:,} particles; a step is that of "
            f"{STEPS} temperatures, one move of three leapfrogs.",
            speed_table(rows),
        ]
    if options.aim:
        parts += [
            f"## To an error of {AIM_TARGET:g}\n\nOf ours the mean CPU s of a run with that target, the "
            "pilot included (more if its RMSE is larger than that); of the others FoM over the squared "
            "error.",
            aim_table(found),
        ]
    return "\n\n".join(filter(None, parts))
