"""Tall data that are hard on subsampling: bias against a long NUTS run, decision errors, rows read.

    python -m benchmarks.tall.hard                                  # five problems, N = 1e5
    python -m benchmarks.tall.hard --problems rare --methods racing racing:noproxy nuts
    python -m benchmarks.tall.hard --quick                          # N = 1e4, a few minutes

Rare events (0.2 % positives), covariates with heavy tails, Student-t errors with outliers, a
posterior with weakly identified directions, and a quantile regression, whose log-likelihoods have kinks. What the columns and methods mean:
benchmarks/README.md.
"""

from __future__ import annotations

from benchmarks.harness import results
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import number, with_error
from benchmarks.tall.bench import Bench, columns, compare, figures, parser, start, table
from benchmarks.tall.problems import (
    Job,
    heavy_tails_data,
    logistic_problem,
    outlier_data,
    quantile_problem,
    rare_events_data,
    student_problem,
    weak_data,
)

_NAME = "tall_hard"
PROBLEMS = {
    p.name: p
    for p in (
        logistic_problem("rare", "Rare events: 0.2 % positives", rare_events_data),
        logistic_problem("heavy", "Heavy-tailed covariates: t with 2 df", heavy_tails_data),
        student_problem("outliers", "Student-t errors, 1 % outliers", outlier_data),
        logistic_problem("weak", "Weakly identified: collinear, separated", weak_data),
        quantile_problem("kinks", "Quantile regression, 1 % outliers", outlier_data),
    )
}
METHODS = ("racing", "racing:10", "nuts", "hmcecs")


def main(bench: Bench) -> None:
    """Run all problems and methods, print and save the tables."""
    options = bench.options
    rows: list[Result] = []
    parts = [f"# Tall data that are hard on subsampling, N = {int(float(options.rows)):,}"]
    for name in options.problems:
        found, text = run_problem(bench, name, int(float(options.rows)))
        rows += found
        parts.append(text)
    text = "\n\n".join(parts)
    print(text)
    results.save(options, _NAME, rows, text)


def run_problem(bench: Bench, name: str, n_rows: int) -> tuple[list[Result], str]:
    """All methods on one problem."""
    reference = bench.long_nuts(name, n_rows, "nuts:lowrank")
    rows = []
    for method in bench.options.methods:
        job = bench.job(name, method, n_rows)
        result = bench.run(job) if expressible(job) else {**vars(job), "status": "-"}
        rows.append({**figures(result), **compare(result, reference)})
    ess = figures(reference)
    text = (
        f"## {PROBLEMS[name].title}\n\nReference: NUTS, {number(ess['draws'], 7)} draws, "
        f"ESS {number(ess['ess_bulk'])} (bulk), {number(ess['ess_tail'])} (tail), "
        f"{reference['status']}.\n\n"
    )
    return rows, text + table(COLUMNS, rows)


def expressible(job: Job) -> bool:
    """Whether a method has been set up for a problem."""
    return job.family != "hmcecs" or PROBLEMS[job.problem].logistic


def bias(row: Result, kind: str) -> str:
    """The largest bias with its Monte Carlo error and the parameter that has it."""
    keys = (f"bias_{kind}", f"bias_{kind}_mcse", f"bias_{kind}_of")
    return with_error(*(row.get(key) for key in keys))


COLUMNS = columns(
    ("method", "draws", "set-up s", "warm-up s", "sample s", "ESS min", "ESS/s sampling",
     "bias of mean, reference sds", "bias of sd, relative", "largest bias / MCSE (mean, sd)",
     "decision error [95 % CI]", "rows read per step", "audits' rows per step", "peak MB", "run"),
    {
        "ESS min": lambda row: number(min(row["ess_bulk"], row["ess_tail"])),
        "bias of mean, reference sds": lambda row: bias(row, "mean"),
        "bias of sd, relative": lambda row: bias(row, "sd"),
        "largest bias / MCSE (mean, sd)": lambda row: ", ".join(
            number(row.get(f"bias_{kind}_max_z"), 2) for kind in ("mean", "sd")
        ),
    },
)  # fmt: skip


def options():
    """Options of this script."""
    p = parser(__doc__, METHODS, list(PROBLEMS))
    p.add_argument("--rows", default="1e5", help="N")
    return p


if __name__ == "__main__":
    quick = {"rows": "1e4", "cap": 20.0, "reference_cap": 60.0}
    start("benchmarks.tall.hard", PROBLEMS, options(), main, quick)
