"""Logistic regression with D = 10 and N = 1e4 ... 1e7 rows: RacingMetropolis against its peers.

    python -m benchmarks.tall.logistic                          # all sizes, an hour or three
    python -m benchmarks.tall.logistic --sizes 1e6 --cap 120    # one size, two minutes a method
    python -m benchmarks.tall.logistic --quick                  # N = 1e4, a few minutes

Prints tables in Markdown and writes them, JSON and CSV into results/. What the columns
and methods mean: benchmarks/README.md.
"""

from __future__ import annotations

import math

from functools import partial
from itertools import product

from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import number, times_faster
from benchmarks.tall import bench, worker
from benchmarks.tall.problems import logistic_problem, tall_logistic_data

_NAME = "tall_logistic"
PROBLEMS = {_NAME: logistic_problem(_NAME, "Logistic regression, D = 10", tall_logistic_data)}
METHODS = ("racing", "racing:10", "nuts", "metropolis", "hmcecs")
#: Largest N whose reference is a long NUTS run.
_NUTS_REFERENCE = 100_000


def main(runs: bench.Bench) -> None:
    """Run all sizes and methods, print and save the tables."""
    o = runs.options
    runs.compare(
        _NAME, product([_NAME], o.sizes), COLUMNS, partial(report, options=o),
        reference=lambda problem, n_rows, found: find_reference(runs, n_rows),
    )  # fmt: skip


def find_reference(runs: bench.Bench, n_rows: int) -> Result:
    """Long NUTS for small N, the Laplace approximation, checked by an exact race, for large N."""
    if n_rows <= _NUTS_REFERENCE:
        result = runs.long_nuts(_NAME, n_rows)
        return result | {"label": f"NUTS, ESS {number(bench.figures(result)['ess_bulk'])}"}
    result = runs.reference(_NAME, "laplace", n_rows)
    exact = runs.reference(_NAME, "racing:exact", n_rows, cap=runs.options.cap, chains=1, cores=1)
    return result | {"label": f"Laplace ({_check(exact, result)})"}


def _check(exact: Result, reference: Result) -> str:
    found = bench.compare(exact, reference)
    ess = bench.figures(exact)["ess_bulk"]
    if not found or not ess >= 100:
        return "exact race not affordable"
    return (
        f"exact race of ESS {number(ess)}: mean {found['bias_mean']:+.2f} sd, "
        f"sd ratio {found['sd_ratio_min']:.2f}..{found['sd_ratio_max']:.2f}"
    )


# --- the report ----------------------------------------------------------------------------------


def report(rows: list[Result], options) -> str:
    """All tables."""
    title, against = PROBLEMS[_NAME].title, against_nuts(rows)
    how = bench.conditions(options)
    return bench.report(title, (), how, COLUMNS, rows, "NUTS, at the same N", against)


def sd_ratio(row: Result) -> str:
    """Smallest and largest ratio of posterior sds to the reference's."""
    if "sd_ratio_min" not in row:
        return "-"
    return f"{row['sd_ratio_min']:.3f}..{row['sd_ratio_max']:.3f}"


COLUMNS = bench.columns(
    ("method", "N", "draws", "set-up s", "warm-up s", "sample s", "total s", "ESS bulk min", "ESS tail min",
     "ESS/s sampling", "s to 1000 ESS", "ESS/s total", "max mean error / sd", "sd ratio", "rows read per step",
     "audits' rows per step", "decision error [95 % CI]", "peak MB", "reference", "run"),
    {
        "ESS/s total": lambda row: number(1000.0 / row["to_1000_s"]),
        "max mean error / sd": lambda row: number(abs(row.get("bias_mean", math.nan)), 2),
        "sd ratio": sd_ratio,
    },
)  # fmt: skip


def against_nuts(rows: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Ratios of speed to NUTS and differences of memory to pm.Metropolis."""
    headers = ["method", "N", "ESS/s sampling", "time to 1000 ESS", "peak MB over pm.Metropolis"]
    return headers, [
        [
            row["method"],
            f"{row['n_rows']:,}",
            times_faster(speed_up(rows, row, "ess_per_s")),
            times_faster(speed_up(rows, row, "to_1000_s")),
            number(
                row["peak_mb"] - bench.peer_of(rows, row, "metropolis").get("peak_mb", math.nan)
            ),
        ]
        for row in rows
        if row["method"] != "nuts"
    ]


def speed_up(rows: list[Result], row: Result, key: str) -> float:
    """How many times faster than NUTS at the same N: a rate, or the inverse of a time."""
    theirs = bench.peer_of(rows, row, "nuts").get(key, math.nan)
    return row[key] / theirs if key == "ess_per_s" else theirs / row[key]


if __name__ == "__main__":
    bench.start(
        "benchmarks.tall.logistic", __doc__, main, partial(worker.run, PROBLEMS),
        {"sizes": [10_000], "cap": 20.0, "reference_cap": 60.0},
        methods=list(METHODS), sizes=[10_000, 100_000, 1_000_000, 10_000_000],
    )  # fmt: skip
