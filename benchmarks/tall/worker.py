"""One method on one problem, in a process of its own."""

from __future__ import annotations

import time

from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np

from benchmarks.harness.jobs import Result
from benchmarks.tall import grouped_samplers, hmcecs, samplers
from benchmarks.tall.outcomes import Outcome, describe, peak_mb, pin
from benchmarks.tall.problems import Data, Job, Problem, laplace

SAMPLERS: dict[str, Callable[..., Outcome]] = {
    "racing": samplers.racing, "gibbs": samplers.gibbs, "pymc_gibbs": samplers.pymc_gibbs,
    "metropolis": samplers.metropolis, "nuts": samplers.nuts, "hmcecs": hmcecs.hmcecs,
}  # fmt: skip


def run(problems: Mapping[str, Problem], job: Job) -> Result:
    """Sample a problem as the job says and sum up."""
    pin(job.cores)
    problem = problems[job.problem]
    if job.family == "laplace":
        return {**asdict(job), **laplace_reference(problem, job)}
    known = SAMPLERS | grouped_samplers.SAMPLERS if problem.grouped else SAMPLERS
    return result_of(problem, job, known[job.family](problem, job))


def result_of(problem: Problem, job: Job, outcome: Outcome) -> Result:
    """All that is known of a run, without its draws."""
    first = next(iter(outcome.draws.values()), np.empty((0, 0)))
    none = {} if not outcome.draws else describe(problem, outcome.draws)
    return {
        **asdict(job), "status": outcome.status, "draws": int(first.shape[0] * first.shape[1]),
        "setup_s": outcome.setup_s, "warmup_s": outcome.warmup_s, "sample_s": outcome.sample_s,
        "rows_share": outcome.rows_share, **outcome.extra, "peak_mb": peak_mb(),
        "parameters": outcome.parameters or none,
    }  # fmt: skip


def laplace_reference(problem: Problem, job: Job) -> Result:
    """Laplace approximation at the posterior mode, in the form of a result."""
    if not problem.logistic:
        raise NotImplementedError("The Laplace reference is written for logistic problems")
    data: Data = problem.make_data(job.n_rows, job.seed)
    begin = time.perf_counter()
    found = laplace(data)
    mean, sd = found.mode, np.sqrt(np.diag(found.covariance))
    zeros = np.zeros(mean.size).tolist()
    return {
        "status": "finished",
        "draws": 0,
        "sample_s": time.perf_counter() - begin,
        "parameters": {
            "label": [f"beta[{k}]" for k in range(mean.size)],
            "mean": mean.tolist(),
            "sd": sd.tolist(),
            "mcse_mean": zeros,
            "mcse_sd": zeros,
            "ess_bulk": [],
            "ess_tail": [],
        },
    }
