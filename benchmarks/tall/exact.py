"""Exact decisions by thinning beside races and NUTS: logistic, Poisson, negative binomial and ordered regression.

    python -m benchmarks.tall.exact                                        # an hour
    python -m benchmarks.tall.exact --models logistic --columns 10 --sizes 1e4 1e6
    python -m benchmarks.tall.exact --quick                                # two minutes

Every measurement in a process of its own, with one thread and one chain. ``loop`` is the compiled loop, ``sample`` is
``pm.sample``. Writes a table in Markdown, JSON and CSV into results/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.harness.jobs import Result, Stopwatch
from benchmarks.harness.options import Option
from benchmarks.harness.tables import grouped, markdown, number
from benchmarks.tall import bench, samplers
from benchmarks.tall.outcomes import Outcome, cpu_figures, pin
from benchmarks.tall.problems import Data, Job, Problem, correlated_normal
from benchmarks.tall.worker import result_of

MODELS = ("logistic", "poisson", "negative_binomial", "ordered")
METHODS = ("loop:exact", "loop:normal", "sample:exact", "sample:normal", "nuts")
#: Tuning and other draws, and of how many of them NUTS makes one.
_TUNE, _DRAWS, _FEWER = 1_000, 20_000, 20


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
    step, built = samplers.timed_step(
        model, lambda: amc.RacingMetropolis(race=job.options[0], audits=0, progressbar=False)
    )
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

    sampler, rng = step.sampler, np.random.default_rng(job.seed)
    chain = metropolis.init(sampler, rng, tune=_TUNE, draws=draws)
    x = step.prepared.fit.mean.copy()
    for _ in range(_TUNE):
        x, _ = metropolis.step(sampler, chain, x, rng, tuning=True)
    out, counts = np.empty((draws, x.size)), metropolis.MetropolisCounts.zeros(draws)
    state = sampler.races, chain.moves, rng, chain.auditor.no_log, rng
    watch = Stopwatch()
    sampler.run(metropolis.run_draws, 0, 1, 1, np.stack([x, x]), *state, out, counts)
    watch.stop()
    extra = cpu_figures(built.cpu_s, watch, 0.0, watch.wall_s)
    extra["accepted"] = float(counts.accepted.sum() / draws)
    share = float((counts.raced.sum() + counts.other.sum()) / draws / job.n_rows)
    drawn = {"beta": out[None, :, step.prepared.densities.layout.slices["beta"]]}
    return Outcome(drawn, built.wall_s, 0.0, watch.wall_s, share, extra=extra)


# --- the report -----------------------------------------------------------------------------------


def main(runs: bench.Bench) -> None:
    """Measure everything, print and save the tables of each model."""
    o = runs.options

    def job(problem: str, method: str, n_rows: int) -> Job:
        draws = o.draws // _FEWER if method == "nuts" else o.draws
        return runs.job(problem, method, n_rows, draws=draws)

    for kind in o.models:
        cases = product([f"{kind}-{columns}" for columns in o.columns], o.sizes)
        runs.compare(f"tall_exact_{kind}", cases, COLUMNS, report, job=job)


def rows_per_step(row: Result) -> float:
    """Rows that a decision reads; NUTS makes none."""
    return row["rows_share"] * row["n_rows"] if row["family"] != "nuts" else np.nan


COLUMNS = bench.columns(
    ("model", "D", "N", "method", "rows per step", "accepted", "steps/s", "ESS/s", "set-up CPU s", "run"),
    {
        "model": lambda row: row["problem"].split("-")[0],
        "D": lambda row: row["problem"].split("-")[1],
        "rows per step": lambda row: number(rows_per_step(row)),
        "accepted": bench.shown("accepted"),
        "steps/s": lambda row: number(row["draws"] / (row.get("sample_cpu_s") or np.nan)),
        "ESS/s": bench.shown("ess_per_cpu_s"),
        "set-up CPU s": bench.shown("setup_cpu_s"),
    },
)  # fmt: skip


def report(rows: Sequence[Result]) -> str:
    """The table with its title."""
    how = (
        "Steps and effective draws per CPU second while sampling; `exact` thins decisions, or reads all rows where "
        "remainders have no bounds, `normal` races. `loop` is the compiled loop, `sample` is `pm.sample`."
    )
    table = bench.table(COLUMNS, rows)
    return "\n\n".join(
        ["# Exact decisions", how, table, "## Beside NUTS", markdown(*beside_nuts(rows))]
    )


def beside_nuts(rows: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Effective draws per CPU second of each method, and rows of an exact decision."""
    shown = ["loop:exact", "sample:exact", "sample:normal", "nuts"]
    lines = []
    for (problem, n_rows), group in grouped(rows, "problem", "n_rows").items():
        found = {row["method"]: row for row in group}
        if set(shown) <= set(found):
            read = number(rows_per_step(found["loop:exact"]))
            cells = [number(found[m]["ess_per_cpu_s"]) for m in shown]
            if cells[-1] == "-":
                cells[-1] = found["nuts"]["status"]
            lines.append([problem.split("-")[1], f"{n_rows:,}", read, *cells])
    return ["D", "N", "rows", *shown], lines


if __name__ == "__main__":
    bench.start(
        "benchmarks.tall.exact", __doc__, main, run,
        {"models": ["logistic"], "columns": [3], "sizes": [2_000], "draws": 2_000, "cap": 10.0},
        models=Option(list(MODELS), choices=MODELS), columns=Option([3, 10, 50], "D"),
        sizes=[1_000, 10_000, 100_000, 1_000_000], methods=Option(list(METHODS), choices=METHODS),
        draws=_DRAWS, cap=60.0,
    )  # fmt: skip
