"""Tall data that are hard on subsampling: bias against a long NUTS run, decision errors, rows read.

    python -m benchmarks.tall.hard                                  # five problems, N = 1e5
    python -m benchmarks.tall.hard --problems rare --methods racing nuts
    python -m benchmarks.tall.hard --quick                          # N = 1e4, a few minutes

Rare events (0.2 % positives), covariates with heavy tails, Student-t errors with outliers, a
posterior with weakly identified directions, and a quantile regression, whose log-likelihoods have kinks.
What the columns and methods mean: benchmarks/README.md.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness.jobs import Result
from benchmarks.harness.options import Option
from benchmarks.harness.tables import number, with_error
from benchmarks.tall import worker
from benchmarks.tall.bench import Bench, columns, conditions, figures, start, table
from benchmarks.tall.problems import (
    Job,
    Problem,
    heavy_tails_data,
    logistic_problem,
    outlier_data,
    quantile_model,
    rare_events_data,
    student_model,
    weak_data,
)

_NAME = "tall_hard"
PROBLEMS = {
    p.name: p
    for p in (
        logistic_problem("rare", "Rare events: 0.2 % positives", rare_events_data),
        logistic_problem("heavy", "Heavy-tailed covariates: t with 2 df", heavy_tails_data),
        Problem(
            "outliers", "Student-t errors, 1 % outliers", outlier_data, student_model,
            ("beta", "sigma", "nu"), False,
        ),
        logistic_problem("weak", "Weakly identified: collinear, separated", weak_data),
        Problem(
            "kinks", "Quantile regression, 1 % outliers", outlier_data, quantile_model,
            ("beta", "sigma"), False,
        ),
    )
}  # fmt: skip
METHODS = ("racing", "racing:10", "nuts", "hmcecs")


def main(bench: Bench) -> None:
    """Run all problems and methods, print and save the tables."""
    o = bench.options

    def reference(problem: str, n_rows: int, found: dict[str, Result]) -> Result:
        result = bench.long_nuts(problem, n_rows, "nuts:lowrank")
        ess = figures(result)
        label = f"{number(ess['draws'], 7)} draws, ESS {number(ess['ess_bulk'])} (bulk), "
        return result | {"label": f"{label}{number(ess['ess_tail'])} (tail), {result['status']}"}

    def report(rows: list[Result]) -> str:
        title = f"# Tall data that are hard on subsampling, N = {o.rows:,}"
        return "\n\n".join(
            [title, f"{conditions(o)} References are of NUTS.", table(COLUMNS, rows)]
        )

    cases = [(problem, o.rows) for problem in o.problems]
    bench.compare(_NAME, cases, COLUMNS, report, skip=not_expressible, reference=reference)


def not_expressible(job: Job) -> str:
    """Says that a method has not been set up for a problem."""
    known = job.family != "hmcecs" or PROBLEMS[job.problem].logistic
    return "" if known else "-"


def bias(row: Result, kind: str) -> str:
    """The largest bias with its Monte Carlo error and the parameter that has it."""
    keys = (f"bias_{kind}", f"bias_{kind}_mcse", f"bias_{kind}_of")
    return with_error(*(row.get(key) for key in keys))


COLUMNS = columns(
    ("problem", "method", "draws", "set-up s", "warm-up s", "sample s", "ESS min", "ESS/s sampling",
     "bias of mean, reference sds", "bias of sd, relative", "largest bias / MCSE (mean, sd)",
     "decision error [95 % CI]", "rows read per step", "audits' rows per step", "peak MB", "reference",
     "run"),
    {
        "ESS min": lambda row: number(min(row["ess_bulk"], row["ess_tail"])),
        "bias of mean, reference sds": lambda row: bias(row, "mean"),
        "bias of sd, relative": lambda row: bias(row, "sd"),
        "largest bias / MCSE (mean, sd)": lambda row: ", ".join(
            number(row.get(f"bias_{kind}_max_z"), 2) for kind in ("mean", "sd")
        ),
    },
)  # fmt: skip


if __name__ == "__main__":
    start(
        "benchmarks.tall.hard", __doc__, main, partial(worker.run, PROBLEMS),
        {"rows": 10_000, "cap": 20.0, "reference_cap": 60.0},
        problems=Option(list(PROBLEMS), choices=PROBLEMS), methods=list(METHODS), rows=100_000,
    )  # fmt: skip
