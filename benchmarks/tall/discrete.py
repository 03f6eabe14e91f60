"""Discrete variables on tall data, N = 1e4 ... 1e6: RacingGibbs against PyMC's own Gibbs steps.

    python -m benchmarks.tall.discrete                            # all sizes and problems
    python -m benchmarks.tall.discrete --sizes 1e6 --problems grid
    python -m benchmarks.tall.discrete --quick                    # N = 1e4, some minutes

Prints tables in Markdown and writes them, JSON and CSV into results/. What the columns
and methods mean: benchmarks/README.md.
"""

from __future__ import annotations

import math

from functools import partial
from itertools import product

from benchmarks.harness.jobs import Result
from benchmarks.harness.options import Option
from benchmarks.harness.tables import decision_error_cell, number, percent, times_faster
from benchmarks.tall import bench, worker
from benchmarks.tall.discrete_problems import PROBLEMS

_NAME = "tall_discrete"
METHODS = ("gibbs", "gibbs:exact", "pymc_gibbs")
_PEER = "pymc_gibbs"


def main(runs: bench.Bench) -> None:
    """Run all problems, sizes and methods, print and save the tables."""
    o = runs.options
    runs.compare(
        _NAME, product(o.problems, o.sizes), COLUMNS, partial(report, options=o),
        reference=lambda problem, n_rows, found: found.get("gibbs:exact", {}),
    )  # fmt: skip


def report(rows: list[Result], options) -> str:
    """All tables."""
    how = (
        f"{bench.conditions(options)} A draw is a sweep over all elements. Mean errors are "
        "against the exact Gibbs sampler of the same run."
    )
    problems = [PROBLEMS[k] for k in options.problems]
    against = "PyMC's Gibbs steps, at the same N", against_peer(rows)
    return bench.report("Discrete variables on tall data", problems, how, COLUMNS, rows, *against)


def bulk_rate(row: Result) -> float:
    """Effective draws per second of sampling; tails of discrete variables say little."""
    return row["ess_bulk"] / row["sample_s"] if row["sample_s"] > 0 else math.nan


def seconds_to_1000(row: Result) -> float:
    """Set-up and warm-up plus the time of 1000 effective draws."""
    rate = bulk_rate(row)
    return row["fixed_s"] + 1000.0 / rate if rate > 0 else math.nan


COLUMNS = bench.columns(
    ("problem", "method", "N", "draws", "set-up s", "sample s", "draws/s", "ESS bulk min", "ESS/s sampling",
     "s to 1000 ESS", "max mean error / sd", "rows read per element", "states left after a batch",
     "same-noise disagreement [95 % CI]", "peak MB", "run"),
    {
        "set-up s": lambda row: number(row["setup_s"] + row["warmup_s"]),
        "draws/s": lambda row: number(over(row["draws"], row["sample_s"])),
        "ESS/s sampling": lambda row: number(bulk_rate(row)),
        "s to 1000 ESS": lambda row: number(seconds_to_1000(row)),
        "max mean error / sd": bench.mean_error,
        "rows read per element": bench.shown("rows_per_element", 4),
        "states left after a batch": bench.shown("arms_left"),
        "same-noise disagreement [95 % CI]": decision_error_cell,
    },
)  # fmt: skip


def over(a: float, b: float) -> float:
    """Quotient, nan where a method hardly moved."""
    return a / b if b > 0.0 else math.nan


def against_peer(rows: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Ratios of speed to PyMC's step."""
    headers = ["problem", "method", "N", "draws/s", "ESS/s sampling", "time to 1000 ESS", "rows"]
    out = []
    for row in rows:
        peer = bench.peer_of(rows, row, _PEER)
        if row["method"] == _PEER or not peer:
            continue
        draws = row["draws"] / row["sample_s"], peer["draws"] / peer["sample_s"]
        ratios = (
            over(*draws),
            over(bulk_rate(row), bulk_rate(peer)),
            over(seconds_to_1000(peer), seconds_to_1000(row)),
        )
        share = percent(row.get("rows_per_element", math.nan) / row["n_rows"])
        names = [row["problem"], row["method"], f"{row['n_rows']:,}"]
        out.append([*names, *map(times_faster, ratios), share])
    return headers, out


if __name__ == "__main__":
    bench.start(
        "benchmarks.tall.discrete", __doc__, main, partial(worker.run, PROBLEMS),
        {"sizes": [10_000], "cap": 20.0, "problems": ["grid"]},
        problems=Option(list(PROBLEMS), choices=PROBLEMS), methods=list(METHODS),
        sizes=[10_000, 100_000, 1_000_000],
    )  # fmt: skip
