"""Exact decisions by thinning beside races and NUTS: logistic, Poisson, negative binomial and ordered regression.

    python -m benchmarks.tall.exact                                        # an hour
    python -m benchmarks.tall.exact --models logistic --columns 10 --sizes 1e4 1e6
    python -m benchmarks.tall.exact --quick                                # two minutes

Every measurement in a process of its own, with one thread and one chain. ``loop`` is the compiled loop, ``sample`` is
``pm.sample``. Writes a table in Markdown, JSON and CSV into results/.
"""

from __future__ import annotations

import argparse
import sys

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.harness import results
from benchmarks.harness.jobs import Result, Stopwatch, run_job, say, serve
from benchmarks.harness.options import parse, parser
from benchmarks.harness.tables import markdown, number
from benchmarks.tall import bench, samplers
from benchmarks.tall.outcomes import Outcome, cpu_figures, pin
from benchmarks.tall.problems import Data, Job, Problem, correlated_normal
from benchmarks.tall.worker import result_of

_SCRIPT = "benchmarks.tall.exact"
MODELS = ("logistic", "poisson", "negative_binomial", "ordered")
METHODS = ("loop:exact", "loop:normal", "sample:exact", "sample:normal", "nuts")
#: Tuning and other draws, of NUTS a share of them, and rows of the run that fills caches.
_TUNE, _DRAWS, _FEWER, _PRIME_ROWS = 1_000, 20_000, 20, 2_000
HEADERS = (
    "model", "D", "N", "method", "rows per step", "accepted", "steps/s", "ESS/s", "set-up CPU s", "run",
)  # fmt: skip


def data_of(kind: str, columns: int, n_rows: int, seed: int) -> Data:
    """Rows of a model; the first column of X is the intercept's."""
    rng = np.random.default_rng([seed, columns, n_rows])
    X = np.column_stack([np.ones(n_rows), correlated_normal(rng, n_rows, columns - 1)])
    eta = X @ (np.linspace(-0.4, 0.4, columns) * np.sqrt(10.0 / columns))
    if kind in ("logistic", "ordered"):
        y = np.digitize(rng.logistic(eta), [0.0] if kind == "logistic" else [-1.0, 0.0, 1.0])
    else:
        mean = np.exp(eta)
        y = rng.poisson(mean if kind == "poisson" else mean * rng.gamma(2.0, 0.5, n_rows))
    return {"X": X, "y": y}


def model_of(kind: str, data: Data):
    """The model as its users write it."""
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=data["X"].shape[1] - (kind == "ordered"))
        mean = data["X"][:, -beta.type.shape[0] :] @ beta
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=mean, observed=data["y"])
        elif kind == "poisson":
            pm.Poisson("y", pm.math.exp(mean), observed=data["y"])
        elif kind == "negative_binomial":
            alpha = pm.Gamma("alpha", 2.0, 0.5)
            pm.NegativeBinomial("y", mu=pm.math.exp(mean), alpha=alpha, observed=data["y"])
        else:
            ordered = pm.distributions.transforms.ordered
            start = [-1.0, 0.0, 1.0]
            cuts = pm.Normal("cuts", 0.0, 2.5, shape=3, initval=start, transform=ordered)
            pm.OrderedLogistic("y", eta=mean, cutpoints=cuts, observed=data["y"])
    return model


def problem_of(job: Job) -> Problem:
    """The problem that a job names, such as ``logistic-10``."""
    kind, columns = job.problem.split("-")
    extra = {"negative_binomial": ("alpha",), "ordered": ("cuts",)}.get(kind, ())
    return Problem(
        job.problem, job.problem, lambda n_rows, seed: data_of(kind, int(columns), n_rows, seed),
        lambda data: model_of(kind, data), ("beta", *extra), kind == "logistic",
    )  # fmt: skip


# --- methods --------------------------------------------------------------------------------------


def run(job: Job) -> Result:
    """Figures of a job."""
    pin(job.cores)
    problem = problem_of(job)
    if job.family == "nuts":
        return result_of(problem, job, samplers.nuts(problem, job))
    import amc_pymc as amc

    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    built = Stopwatch()
    with model:
        step = amc.RacingMetropolis(race=job.options[0], audits=0, progressbar=False)
    built.stop()
    draws = job.draws or _DRAWS
    if job.family == "sample":
        outcome, idata = samplers.sample_steps(problem, job, model, step, draws, _TUNE, built)
        outcome = samplers.race_figures(outcome, idata, job.n_rows)
    else:
        problem = replace(problem, variables=("beta",))  # which is not transformed
        outcome = compiled(job, step, draws, built)
    return result_of(problem, job, outcome)


def compiled(job: Job, step, draws: int, built: Stopwatch) -> Outcome:
    """Draws of the compiled loop, one transition each, after tuning by the step itself."""
    from amc_pymc.tall.samplers import metropolis
    from amc_pymc.tall.samplers.tuning import KINDS

    sampler, rng = step.sampler, np.random.default_rng(job.seed)
    chain = metropolis.init(sampler, rng, tune=_TUNE, draws=draws)
    x = step.prepared.start if step.prepared.fit is None else step.prepared.fit.mean.copy()
    for _ in range(_TUNE):
        x, _ = metropolis.step(sampler, chain, x, rng, tuning=True)
    out, counts = np.empty((draws, x.size)), metropolis.MetropolisCounts.zeros(len(KINDS), draws)
    state = sampler.races(chain), chain.moves, rng, chain.log(True), rng
    decision = metropolis.decision_of(sampler.thinning)
    watch = Stopwatch()
    sampler.run(metropolis.run_draws, 0, 1, 1, np.stack([x, x]), decision, *state, out, counts)
    watch.stop()
    extra = cpu_figures(built.cpu_s, watch, 0.0, watch.wall_s)
    extra["accepted"] = float(counts.accepted.sum() / draws)
    share = float((counts.raced.sum() + counts.other.sum()) / draws / job.n_rows)
    drawn = {"beta": out[None, :, step.prepared.densities.layout.slices["beta"]]}
    return Outcome(drawn, built.wall_s, 0.0, watch.wall_s, share, extra=extra)


# --- the report -----------------------------------------------------------------------------------


def main(options: argparse.Namespace) -> None:
    """Measure everything, print and save the tables of each model."""
    for kind in options.models:
        rows: list[Result] = []
        caches, primed = f"{options.out}/caches", set()
        for job in jobs(kind, options):
            if (job.problem, job.method) not in primed:  # so that compilers' caches are warm
                primed.add((job.problem, job.method))
                run_job(_SCRIPT, replace(job, n_rows=_PRIME_ROWS, draws=200), caches, options.limit)
            say(f"... {job.problem} N={job.n_rows:,} {job.method}")
            rows.append(figures(run_job(_SCRIPT, job, caches, options.limit)))
            print(markdown(HEADERS, [line(rows[-1])]), flush=True)
            results.save(options, f"tall_exact_{kind}", rows, report(rows))
        print(report(rows))


def jobs(kind: str, options: argparse.Namespace) -> Iterator[Job]:
    """All measurements of a model."""
    o = options
    for columns, size, method in product(o.columns, o.sizes, o.methods):
        draws = o.draws // _FEWER if method == "nuts" else o.draws
        yield Job(f"{kind}-{columns}", method, int(float(size)), o.seed, o.cap, draws=draws)


def figures(result: Result) -> Result:
    """What the table shows."""
    row = bench.figures(result)
    row["kind"], row["columns"] = result["problem"].split("-")
    row["steps_per_s"] = row["draws"] / (row.get("sample_cpu_s") or np.nan)
    row["rows_per_step"] = row["rows_share"] * row["n_rows"] if row["family"] != "nuts" else np.nan
    return row


def report(rows: Sequence[Result]) -> str:
    """The table with its title."""
    how = (
        "Steps and effective draws per CPU second while sampling; `exact` thins decisions, or reads all rows where "
        "remainders have no bounds, `normal` races. `loop` is the compiled loop, `sample` is `pm.sample`."
    )
    table = markdown(HEADERS, map(line, rows))
    return "\n\n".join(
        ["# Exact decisions", how, table, "## Beside NUTS", markdown(*beside_nuts(rows))]
    )


def beside_nuts(rows: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Effective draws per CPU second of each method, and rows of an exact decision."""
    shown = ["loop:exact", "sample:exact", "sample:normal", "nuts"]
    problems: dict[tuple[int, int], dict[str, Result]] = {}
    for row in rows:
        problems.setdefault((int(row["columns"]), row["n_rows"]), {})[row["method"]] = row
    lines = []
    for (columns, n_rows), found in sorted(problems.items()):
        if set(shown) <= set(found):
            read = number(found["loop:exact"]["rows_per_step"])
            cells = [number(found[m]["ess_per_cpu_s"]) for m in shown]
            if cells[-1] == "-":
                cells[-1] = found["nuts"]["status"]
            lines.append([str(columns), f"{n_rows:,}", read, *cells])
    return ["D", "N", "rows", *shown], lines


def line(row: Result) -> list[str]:
    """One method on one problem."""
    return [
        row["kind"], row["columns"], f"{row['n_rows']:,}", row["method"], number(row["rows_per_step"]),
        number(row.get("accepted")), number(row["steps_per_s"]), number(row["ess_per_cpu_s"]),
        number(row.get("setup_cpu_s")), row["status"],
    ]  # fmt: skip


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of this script."""
    p = parser(__doc__)
    p.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    p.add_argument("--columns", nargs="+", type=int, default=[3, 10, 50], help="D")
    p.add_argument("--sizes", nargs="+", default=["1e3", "1e4", "1e5", "1e6"], help="N")
    p.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    p.add_argument("--draws", type=int, default=_DRAWS)
    p.add_argument("--cap", type=float, default=60.0, help="seconds of warm-up and sampling")
    p.add_argument("--limit", type=float, default=900.0, help="seconds of a measurement's set-up")
    quick = {"models": ["logistic"], "columns": [3], "sizes": ["2e3"], "draws": 2_000, "cap": 10.0}
    return parse(p, argv, quick)


if __name__ == "__main__" and not serve(sys.argv[1:], lambda job: run(Job(**job))):
    main(arguments())
