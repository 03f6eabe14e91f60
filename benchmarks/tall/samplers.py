"""Racing, PyMC's own steps and NUTS, each as a function of a problem and a job."""

from __future__ import annotations

import time

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.jobs import Stopwatch
from benchmarks.tall.outcomes import Clock, Outcome, cpu_figures, flat_draws, lanes, posterior
from benchmarks.tall.problems import Job, Problem

_RACING_DRAWS, _RACING_TUNE = 20_000, 1_000
_NUTS_DRAWS, _NUTS_TUNE = 2_000, 400
_METROPOLIS_DRAWS, _METROPOLIS_TUNE = 50_000, 5_000
_EXACT_DRAWS, _EXACT_TUNE = 2_000, 100
_GIBBS_DRAWS, _GIBBS_TUNE = 5_000, 200


def timed_step(model, make: Callable[[], Any]) -> tuple[Any, Stopwatch]:
    """A step made in the model's context, and what that took."""
    watch = Stopwatch()
    with model:
        step = make()
    return step, watch.stop()


def racing(problem: Problem, job: Job) -> Outcome:
    """RacingMetropolis; its construction compiles and finds the mode.

    In groups, effects are drawn with every stored draw, and it says how many transitions it makes
    between two; ``racing:population`` leaves effects out and stores every transition.
    """
    import amc_pymc as amc

    exact, population = "exact" in job.options, "population" in job.options
    usual = "auto" if problem.grouped and not population else 1
    transitions = job.count(usual)
    settings: dict[str, Any] = {"transitions_per_draw": transitions, "recover": not population}
    if exact:
        settings |= {"race": "exact", "audits": 0}
    model = problem.model(problem.make_data(job.n_rows, job.seed))
    step, built = timed_step(model, lambda: amc.RacingMetropolis(**settings))
    draws = job.draws or (_EXACT_DRAWS if exact else _RACING_DRAWS)
    tune = job.tune or (_EXACT_TUNE if exact else _RACING_TUNE)
    outcome, idata = sample_steps(problem, job, model, step, draws, tune, built)
    outcome = race_figures(outcome, idata, job.n_rows * step.sampler.transitions)
    if problem.forecast:
        forecast = amc.racing_forecast(model=model, progressbar=False)
        outcome.extra |= {
            "forecast_ess_per_cpu_s": forecast.effective_draws,
            "forecast_nuts_ess_per_cpu_s": forecast.nuts_effective_draws, "pays": forecast.pays,
            "doubts": [flag.name for flag in forecast.flags],
        }  # fmt: skip
    return outcome


def gibbs(problem: Problem, job: Job) -> Outcome:
    """RacingGibbs; its construction compiles and finds the centre of the control variate."""
    import amc_pymc as amc

    exact = "exact" in job.options
    settings: dict[str, Any] = {"race": "exact", "audits": 0} if exact else {}
    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    step, built = timed_step(model, lambda: amc.RacingGibbs(**settings))
    draws, tune = job.draws or (_EXACT_DRAWS if exact else _GIBBS_DRAWS), job.tune or _GIBBS_TUNE
    if exact:
        draws, tune = affordable(step, model, job, draws, tune)
    elements = step.sampler.elements.coordinate.size
    outcome, idata = sample_steps(problem, job, model, step, draws, tune, built)
    outcome = race_figures(outcome, idata, job.n_rows * elements)
    stats = idata["sample_stats"]
    if stats.sizes.get("draw"):
        outcome.extra |= {
            "rows_per_element": float(stats["race_rows"].mean()) / elements,
            "arms_left": float(stats["race_arms_left"].mean()),
        }
    return outcome


def pymc_gibbs(problem: Problem, job: Job) -> Outcome:
    """pm.BinaryGibbsMetropolis or pm.CategoricalGibbsMetropolis, as fits the variables."""
    import pymc as pm

    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    binary = all(rv.owner.op.name == "bernoulli" for rv in model.free_RVs)
    kind = pm.BinaryGibbsMetropolis if binary else pm.CategoricalGibbsMetropolis
    step, built = timed_step(model, lambda: kind(model.free_RVs))
    draws, tune = affordable(step, model, job, job.draws or _GIBBS_DRAWS, job.tune or _GIBBS_TUNE)
    outcome, _ = sample_steps(problem, job, model, step, draws, tune, built)
    return outcome


def affordable(step, model, job: Job, draws: int, tune: int) -> tuple[int, int]:
    """As many draws as a timed pilot says the cap allows, at most those asked for."""
    per_step = pilot(step, model.initial_point(), min(10.0, 0.1 * job.cap))
    most = max(10, int(0.95 * job.cap * lanes(job) / job.chains / per_step))
    tune = min(tune, most // 4)
    return min(draws, most - tune), tune


def race_figures(outcome: Outcome, idata, rows_of_draw: int) -> Outcome:
    """Rows read and measured decision error of a racing chain."""
    from amc_pymc import decision_error

    if not idata["posterior"].sizes.get("draw"):
        return outcome
    stats = idata["sample_stats"]
    table = decision_error(idata).loc["all"]
    outcome.rows_share = float(table["rows"]) / rows_of_draw
    outcome.extra |= {
        "audit_share": float(table["audit_rows"]) / rows_of_draw,
        "audited": int(table["audited"]),
        "wrong": int(table["wrong"]),
        "error": float(table["error"]),
        "error_low": float(table["ci_low"]),
        "error_high": float(table["ci_high"]),
        "delta": float(table["delta"]),
        "accepted": float(stats["accepted"].mean()) if "accepted" in stats else np.nan,
        "recentred": float(stats["race_recentred"].max()),
    }
    return outcome


def metropolis(problem: Problem, job: Job) -> Outcome:
    """pm.Metropolis with as many draws as a timed pilot says the cap allows.

    A step visits the coordinates one by one (PyMC's default) and evaluates two log densities each.
    """
    import pymc as pm

    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    step, built = timed_step(model, pm.Metropolis)
    wanted = job.draws or _METROPOLIS_DRAWS
    draws, tune = affordable(step, model, job, wanted, job.tune or _METROPOLIS_TUNE)
    outcome, idata = sample_steps(problem, job, model, step, draws, tune, built)
    if draws < wanted:
        outcome.status = f"as many draws as {job.cap:.0f} s allow"
    steps = getattr(step, "methods", [step])  # several, if there are several variables
    outcome.rows_share = 2.0 * sum(len(s.enum_dims) for s in steps)
    if idata["posterior"].sizes.get("draw"):
        outcome.extra["accepted"] = float(idata["sample_stats"]["accepted"].mean())
    return outcome


def pilot(step, point: dict[str, np.ndarray], limit: float) -> float:
    """Seconds a step takes, after a first one that may compile."""
    point, _ = step.step(point)
    count, begin = 0, time.perf_counter()
    while count < 3 or (count < 500 and time.perf_counter() - begin < limit):
        point, _ = step.step(point)
        count += 1
    return (time.perf_counter() - begin) / count


def sample_steps(problem, job: Job, model, step, draws: int, tune: int, built: Stopwatch):
    """pm.sample with a given step; what is neither warm-up nor sampling counts as set-up."""
    import pymc as pm

    clock = Clock(job.cap)
    watch = Stopwatch()
    with model:
        idata = pm.sample(
            draws, tune=tune, step=step, var_names=list(problem.variables), chains=job.chains,
            cores=lanes(job), random_seed=job.seed, callback=clock, progressbar=False, quiet=True,
            compute_convergence_checks=False,
        )  # fmt: skip
    watch.stop()
    warm, rest = clock.phases(lanes(job))
    setup = built.wall_s + max(0.0, watch.wall_s - warm - rest)
    cpu = cpu_figures(built.cpu_s, watch, warm, rest)
    drawn = posterior(problem, idata)
    return Outcome(drawn, setup, warm, rest, 1.0, clock.status, cpu), idata


# --- NUTS ----------------------------------------------------------------------------------------


class NutsProgress:
    """Callback of nutpie: run times of every chain at the end of warm-up and now."""

    def __init__(self):
        self.warm: dict[int, float] = {}
        self.now: dict[int, float] = {}

    def __call__(self, chains: Sequence[Any]) -> None:
        """Note the chains' own clocks."""
        for k, chain in enumerate(chains):
            self.now[k] = chain.runtime_ms / 1e3
            if chain.tuning:
                self.warm[k] = chain.runtime_ms / 1e3

    def phases(self, whole: float, lanes: int) -> tuple[float, float]:
        """Share out the wall time of the run by the chains' clocks."""
        total = sum(self.now.values())
        share = sum(self.warm.values()) / total if total > 0.0 else 1.0
        return whole * share, whole * (1.0 - share)


def nuts(problem: Problem, job: Job) -> Outcome:
    """NUTS by nutpie, aborted at the cap; ``nuts:lowrank`` adapts to correlations."""
    import nutpie

    model = problem.model(problem.make_data(job.n_rows, job.seed), job.options)
    built = Stopwatch()
    compiled = nutpie.compile_pymc_model(model, var_names=problem.variables)
    built.stop()
    progress = NutsProgress()
    watch = Stopwatch()
    running = nutpie.sample(
        compiled, draws=job.draws or _NUTS_DRAWS, tune=job.tune or _NUTS_TUNE, chains=job.chains,
        cores=lanes(job), seed=job.seed,
        adaptation="low_rank" if "lowrank" in job.options else "diag", progress_bar=False,
        progress_callback=progress, progress_rate=20, blocking=False,
    )  # fmt: skip
    idata, capped = wait(running, job.cap)
    watch.stop()
    warm, rest = progress.phases(watch.wall_s, lanes(job))
    drawn = even_draws(posterior(problem, idata))
    status = f"stopped at {job.cap:.0f} s" if capped else "finished"
    extra = cpu_figures(built.cpu_s, watch, warm, rest)
    if not next(iter(drawn.values())).shape[1]:
        status = f"{status}, in warm-up"
        return Outcome(drawn, built.wall_s, warm, rest, np.nan, status, extra)
    gradients = float(np.nanmean(idata["sample_stats"]["n_steps"].values))
    extra["gradients"] = gradients
    return Outcome(drawn, built.wall_s, warm, rest, gradients, status, extra)


def wait(running, cap: float):
    """The trace of a running sampler, and whether the cap cut it short."""
    try:
        return running.wait(timeout=cap), False
    except TimeoutError:
        return running.abort(), True


def even_draws(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut chains that were stopped to the length of the shortest."""
    first = next(iter(draws.values()))
    known = np.isfinite(flat_draws(first)).all(axis=-1)
    length = int(known.sum(axis=1).min())
    return {name: values[:, :length] for name, values in draws.items()}
