"""Priors of many coefficients on tall data: RacingMetropolis against nutpie.

    python -m benchmarks.tall.priors                              # all models of models/priors.py
    python -m benchmarks.tall.priors --problems horseshoe_40 spline
    python -m benchmarks.tall.priors --quick                      # three models, some minutes

Prints tables in Markdown and writes them, JSON and CSV into results/. What the columns
and methods mean: benchmarks/README.md.
"""

from __future__ import annotations

import math

from functools import partial
from typing import ClassVar

from benchmarks.harness.jobs import Result
from benchmarks.harness.options import Option
from benchmarks.harness.tables import number, times_faster
from benchmarks.tall import bench, worker
from benchmarks.tall.problems import Job, Problem
from models.priors import EXAMPLES

_NAME = "tall_priors"
METHODS = ("racing", "nuts")
_PEER = "nuts"
#: Models with indicators, which NUTS does not sample.
_DISCRETE = ("spike_slab_30", "spike_slab_200")
#: Draws and tuning; NUTS, of which a draw takes hundreds of passes over the rows here, makes fewer.
_SIZES = {"racing": {"draws": 4_000, "tune": 1_000}, "nuts": {"draws": 500, "tune": 300}}


class PriorProblem(Problem):
    """A model of ``models/priors.py``; RacingMetropolis decides whether to integrate a factor out."""

    grouped: ClassVar[bool] = True
    forecast: ClassVar[bool] = True


PROBLEMS = {
    name: PriorProblem(name, e.title, e.simulate, e.model, e.variables, False)
    for name, e in EXAMPLES.items()
}


def main(runs: bench.Bench) -> None:
    """Run all problems and methods, print and save the tables."""
    o = runs.options

    def no_nuts(job: Job) -> str:
        return "discrete variables" if job.method == _PEER and job.problem in _DISCRETE else ""

    def finished_nuts(problem: str, n_rows: int, found: dict[str, Result]) -> Result:
        peer = found.get(_PEER, {})
        return peer if peer.get("status") == "finished" else {}

    runs.compare(
        _NAME, [(problem, o.rows or EXAMPLES[problem].n_rows) for problem in o.problems], COLUMNS,
        partial(report, options=o), skip=no_nuts, reference=finished_nuts,
        job=lambda problem, method, n_rows: runs.job(problem, method, n_rows, **_SIZES[method]),
    )  # fmt: skip


def report(rows: list[Result], options) -> str:
    """All tables."""
    how = (
        f"{bench.conditions(options)} Times are CPU seconds; set-up is compilation and, for racing, the search of the mode. "
        "Effective draws are those of the variable with fewest, bulk or tail. Mean errors are against NUTS of the same run, where it has finished. "
        "The advice is the forecast's before sampling, with its doubts."
    )
    problems = [PROBLEMS[k] for k in options.problems]
    title, against = "Priors of many coefficients", against_peer(rows)
    return bench.report(title, problems, how, COLUMNS, rows, "NUTS", against)


COLUMNS = bench.columns(
    ("problem", "method", "N", "draws", "set-up s", "warm-up s", "sample s", "ESS min", "of", "R-hat", "accepted",
     "ESS/s sampling", "max mean error / sd", "peak MB", "run"),
    {
        "set-up s": bench.shown("setup_cpu_s"),
        "warm-up s": bench.shown("warmup_cpu_s"),
        "sample s": bench.shown("sample_cpu_s"),
        "ESS min": bench.shown("ess_min"),
        "of": lambda row: row["ess_min_of"],
        "R-hat": bench.shown("r_hat", 4),
        "accepted": bench.shown("accepted"),
        "ESS/s sampling": bench.shown("ess_per_cpu_s"),
        "max mean error / sd": bench.mean_error,
    },
)  # fmt: skip


def seconds_to_1000(row: Result) -> float:
    """CPU seconds to a thousand effective draws, warm-up but not set-up included."""
    rate = row["ess_per_cpu_s"]
    return row.get("warmup_cpu_s", math.nan) + 1000.0 / rate if rate > 0 else math.nan


def advice(row: Result) -> str:
    """What the forecast says."""
    pays = {True: "racing", False: "NUTS"}.get(row.get("pays"), "")
    return ", ".join([pays, *row.get("doubts", [])])


def against_peer(rows: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Effective draws per CPU second beside those of NUTS."""
    headers = [
        "problem", "N", "racing ESS/s", "NUTS ESS/s", "sampling", "time to 1000 ESS", "R-hat", "forecast: racing", "NUTS",
        "advice",
    ]  # fmt: skip
    out = []
    for row in rows:
        if row["method"] == _PEER:
            continue
        peer = bench.peer_of(rows, row, _PEER)
        rates = row["ess_per_cpu_s"], peer.get("ess_per_cpu_s", math.nan)
        out.append(
            [
                row["problem"],
                f"{row['n_rows']:,}",
                number(rates[0]),
                number(rates[1]) if rates[1] > 0 else peer.get("status", "-"),
                times_faster(rates[0] / rates[1]) if rates[1] > 0 else "",
                times_faster(seconds_to_1000(peer) / seconds_to_1000(row)) if rates[1] > 0 else "",
                number(row["r_hat"], 4),
                number(row.get("forecast_ess_per_cpu_s"), 2),
                number(row.get("forecast_nuts_ess_per_cpu_s"), 2),
                advice(row),
            ]
        )
    return headers, out


if __name__ == "__main__":
    bench.start(
        "benchmarks.tall.priors", __doc__, main, partial(worker.run, PROBLEMS),
        {"rows": 10_000, "cap": 20.0, "problems": ["horseshoe_40", "crossed", "spline"]},
        problems=Option(list(PROBLEMS), choices=PROBLEMS), methods=list(METHODS), cap=240.0,
        rows=Option(0, "number of rows, 0 for that of each model"),
    )  # fmt: skip
