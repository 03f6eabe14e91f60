"""How each method samples a problem, inside a worker: timings, rows read, memory, summaries."""

from __future__ import annotations

import os
import re
import resource
import time

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Job, Result
from benchmarks.problems import PRIOR_SD, Data, Problem, laplace

_RACING_DRAWS, _RACING_TUNE = 20_000, 1_000
#: Where crossed factors take turns, a draw takes passes over the data and is nearly independent.
_TURNS_TUNE = 60
_NUTS_DRAWS, _NUTS_TUNE = 2_000, 400
_METROPOLIS_DRAWS, _METROPOLIS_TUNE = 50_000, 5_000
_TAILS = (0.05, 0.95)
_EXACT_DRAWS, _EXACT_TUNE = 2_000, 100
_GIBBS_DRAWS, _GIBBS_TUNE = 5_000, 200
#: HMCECS: rows of a subsample, blocks it is renewed in, warm-up, draws, draws between looks at the
#: clock.
_ECS_ROWS, _ECS_BLOCKS, _ECS_TUNE, _ECS_DRAWS, _ECS_CHUNK = 200, 10, 500, 20_000, 50


@dataclass
class Outcome:
    """What a sampler hands back; draws are (chain, draw, ...) by variable."""

    draws: dict[str, np.ndarray]
    setup_s: float
    warmup_s: float
    sample_s: float
    rows_share: float
    status: str = "finished"
    extra: Result = field(default_factory=dict)
    #: Summaries of the parameters, of methods that do not draw.
    parameters: Result | None = None


class Stopwatch:
    """Wall and CPU seconds from its start until it is stopped."""

    def __init__(self):
        self._begin = time.perf_counter(), cpu_seconds()
        self.wall_s = self.cpu_s = np.nan

    def stop(self) -> Stopwatch:
        """Note both times."""
        self.wall_s = time.perf_counter() - self._begin[0]
        self.cpu_s = cpu_seconds() - self._begin[1]
        return self


def cpu_figures(setup_s: float, run: Stopwatch, warm: float, rest: float) -> Result:
    """CPU seconds of set-up, warm-up and sampling; the run's are shared out as its wall time is."""
    per_s = run.cpu_s / run.wall_s
    return {
        "setup_cpu_s": setup_s + per_s * max(0.0, run.wall_s - warm - rest),
        "warmup_cpu_s": per_s * min(warm, run.wall_s),
        "sample_cpu_s": per_s * min(rest, run.wall_s),
    }


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(problem: Problem, job: Job) -> Result:
    """Sample a problem as the job says and sum up."""
    pin(job.cores)
    samplers: dict[str, Callable[[Problem, Job], Outcome]] = {
        "racing": racing,
        "gibbs": gibbs,
        "pymc_gibbs": pymc_gibbs,
        "metropolis": metropolis,
        "nuts": nuts,
        "hmcecs": hmcecs,
    }
    if job.family == "laplace":
        return {**asdict(job), **laplace_reference(problem, job)}
    if problem.grouped:
        from benchmarks.grouped_samplers import SAMPLERS

        samplers |= SAMPLERS
    outcome = samplers[job.family](problem, job)
    first = next(iter(outcome.draws.values()), np.empty((0, 0)))
    return {
        **asdict(job),
        "status": outcome.status,
        "draws": int(first.shape[0] * first.shape[1]),
        "setup_s": outcome.setup_s,
        "warmup_s": outcome.warmup_s,
        "sample_s": outcome.sample_s,
        "rows_share": outcome.rows_share,
        **outcome.extra,
        "peak_mb": peak_mb(),
        "parameters": outcome.parameters or describe(problem, outcome.draws),
    }


# --- processes -----------------------------------------------------------------------------------


def pin(cores: int) -> None:
    """Keep this process and its children on the given number of cores, the idlest ones."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cores >= len(allowed):
        return
    import psutil

    load = psutil.cpu_percent(interval=0.2, percpu=True)
    os.sched_setaffinity(0, sorted(allowed, key=lambda cpu: load[cpu])[:cores])


def peak_mb() -> float:
    """Largest resident memory of this process or any of its children, in MB.

    Linux keeps in ru_maxrss what the parent had before ``exec``; VmHWM starts afresh.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        own = int(found.group(1)) if found else own
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * 1024 / 1e6


class Clock:
    """Callback of ``pm.sample``: times the phases of every chain and enforces the cap."""

    def __init__(self, cap: float):
        self.cap = cap
        self.begin: dict[int, float] = {}
        self.tuned: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.capped = False

    def __call__(self, trace, draw) -> None:
        """Note the time after a draw."""
        now = time.perf_counter()
        self.begin.setdefault(draw.chain, now)
        if draw.tuning:
            self.tuned[draw.chain] = now
        self.end[draw.chain] = now
        if now - min(self.begin.values()) > self.cap:
            self.capped = True
            raise KeyboardInterrupt

    def phases(self, lanes: int) -> tuple[float, float]:
        """Wall time of warm-up and of sampling, of chains that share the lanes evenly."""
        warm = sum(self.tuned.get(c, b) - b for c, b in self.begin.items())
        rest = sum(e - self.tuned.get(c, self.begin[c]) for c, e in self.end.items())
        return warm / lanes, rest / lanes

    @property
    def status(self) -> str:
        """Whether the cap ended the run."""
        return f"stopped at {self.cap:.0f} s" if self.capped else "finished"


def lanes(job: Job) -> int:
    """Chains that run side by side."""
    return max(1, min(job.cores, job.chains))


# --- summaries -----------------------------------------------------------------------------------


def describe(problem: Problem, draws: dict[str, np.ndarray]) -> Result:
    """Moments, Monte Carlo errors and effective sample sizes of every parameter."""
    from arviz_stats.base import array_stats

    keys = ("label", "mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
    out: Result = {key: [] for key in keys}
    for label, x in scalars(problem, draws):
        enough = x.shape[1] >= 4 and x.std() > 0.0
        out["label"].append(label)
        out["mean"].append(float(x.mean()) if x.size else np.nan)
        out["sd"].append(float(x.std(ddof=1)) if x.size > 1 else np.nan)
        for kind in ("mean", "sd"):
            out[f"mcse_{kind}"].append(
                float(array_stats.mcse(x, method=kind)) if enough else np.nan
            )
        for kind, settings in (("bulk", {}), ("tail", {"prob": _TAILS})):
            ess = array_stats.ess(x, method=kind, **settings) if enough else 0.0
            out[f"ess_{kind}"].append(float(ess))
        out["r_hat"].append(float(array_stats.rhat(halves(x))) if enough else np.nan)
    return out


def halves(x: np.ndarray) -> np.ndarray:
    """Draws (chain, draw) as two chains if there is only one, so that R-hat can compare them."""
    return x if x.shape[0] > 1 else x[:, : 2 * (x.shape[1] // 2)].reshape(2, -1)


def scalars(problem: Problem, draws: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Label and draws (chain, draw) of every scalar parameter."""
    out = []
    for name in problem.variables:
        values = np.asarray(draws[name], dtype=float)
        flat = flat_draws(values)
        labels = [name] if values.ndim == 2 else [f"{name}[{k}]" for k in range(flat.shape[2])]
        out += [(label, flat[:, :, k]) for k, label in enumerate(labels)]
    return out


def flat_draws(values: np.ndarray) -> np.ndarray:
    """Draws (chain, draw, ...) as (chain, draw, scalar), also if there are none."""
    return values.reshape(*values.shape[:2], int(np.prod(values.shape[2:])))


def posterior(problem: Problem, idata) -> dict[str, np.ndarray]:
    """Draws of the parameters out of a DataTree."""
    return {name: idata["posterior"][name].values for name in problem.variables}


# --- PyMC's step methods -------------------------------------------------------------------------


def racing(problem: Problem, job: Job) -> Outcome:
    """RacingMetropolis; its construction compiles and finds the mode.

    In groups, effects are drawn with every stored draw, and it says how many transitions it makes
    between two; ``racing:population`` leaves effects out and stores every transition.
    """
    import amc_pymc as amc

    exact, population = "exact" in job.options, "population" in job.options
    usual = "auto" if getattr(problem, "grouped", False) and not population else 1
    transitions = next((int(o) for o in job.options if o.isdigit()), usual)
    settings: dict[str, Any] = {"transitions_per_draw": transitions, "recover": not population}
    if exact:
        settings |= {"race": "exact", "audits": 0}
    if "noproxy" in job.options:
        settings["proxy"] = None
    model = problem.model(problem.make_data(job.n_rows, job.seed))
    built = Stopwatch()
    with model:
        step = amc.RacingMetropolis(**settings)
    built.stop()
    draws = job.draws or (_EXACT_DRAWS if exact else _RACING_DRAWS)
    tune = job.tune or (_EXACT_TUNE if exact else _TURNS_TUNE if step.later else _RACING_TUNE)
    outcome, idata = sample_steps(problem, job, model, step, draws, tune, built)
    made = sum(part.sampler.transitions for part in (step, *step.later))
    return race_figures(outcome, idata, job.n_rows * made)


def gibbs(problem: Problem, job: Job) -> Outcome:
    """RacingGibbs; its construction compiles and finds the centre of the control variate."""
    import amc_pymc as amc

    exact = "exact" in job.options
    settings: dict[str, Any] = {"race": "exact", "audits": 0} if exact else {}
    if "noproxy" in job.options:
        settings["proxy"] = None
    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    built = Stopwatch()
    with model:
        step = amc.RacingGibbs(**settings)
    built.stop()
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
    built = Stopwatch()
    with model:
        binary = all(rv.owner.op.name == "bernoulli" for rv in model.free_RVs)
        kind = pm.BinaryGibbsMetropolis if binary else pm.CategoricalGibbsMetropolis
        step = kind(model.free_RVs)
    built.stop()
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
    built = Stopwatch()
    with model:
        step = pm.Metropolis()
    built.stop()
    per_step = pilot(step, model.initial_point(), min(10.0, 0.1 * job.cap))
    affordable = max(10, int(0.95 * job.cap * lanes(job) / job.chains / per_step))
    tune = min(job.tune or _METROPOLIS_TUNE, affordable // 4)
    draws = min(job.draws or _METROPOLIS_DRAWS, affordable - tune)
    outcome, idata = sample_steps(problem, job, model, step, draws, tune, built)
    if draws < (job.draws or _METROPOLIS_DRAWS):
        outcome.status = f"as many draws as {job.cap:.0f} s allow"
    outcome.rows_share = 2.0 * len(step.enum_dims)
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
            draws,
            tune=tune,
            step=step,
            var_names=list(problem.variables),
            chains=job.chains,
            cores=lanes(job),
            random_seed=job.seed,
            callback=clock,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
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
        compiled,
        draws=job.draws or _NUTS_DRAWS,
        tune=job.tune or _NUTS_TUNE,
        chains=job.chains,
        cores=lanes(job),
        seed=job.seed,
        adaptation="low_rank" if "lowrank" in job.options else "diag",
        progress_bar=False,
        progress_callback=progress,
        progress_rate=20,
        blocking=False,
    )
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


# --- HMCECS --------------------------------------------------------------------------------------


def hmcecs(problem: Problem, job: Job) -> Outcome:
    """NumPyro's HMC with energy-conserving subsampling, its proxy expanded at the mode.

    Chains run one after the other and are timed as if they had run side by side.
    """
    if not problem.logistic:
        raise NotImplementedError("HMCECS is set up for the logistic problems only")
    import jax

    size = next((int(o) for o in job.options if o.isdigit()), _ECS_ROWS)
    data = problem.make_data(job.n_rows, job.seed)
    size = min(size, job.n_rows)
    built = Stopwatch()
    mode, _ = laplace(data)
    kernel = ecs_kernel(mode, job.n_rows, size)
    arrays = (jax.numpy.asarray(data["X"]), jax.numpy.asarray(data["y"]))
    del data
    tune, wanted = job.tune or _ECS_TUNE, job.draws or _ECS_DRAWS
    state = kernel.init(jax.random.key(job.seed), tune, {"beta": mode}, arrays, {})
    advance = ecs_chunk(kernel, state, arrays)
    built.stop()
    return ecs_outcome(advance, state, tune, wanted, job, size, built)


def ecs_outcome(
    advance, state, tune: int, wanted: int, job: Job, size: int, built: Stopwatch
) -> Outcome:
    """Run the chains of HMCECS and put their draws and figures together."""
    watch = Stopwatch()
    chains = [ecs_chain(advance, state, tune, wanted, job, k) for k in range(job.chains)]
    watch.stop()
    length = min(chain.length for chain in chains)
    drawn = {
        name: np.stack([chain.draws[name][:length] for chain in chains]) for name in chains[0].draws
    }
    gradients = float(np.mean([chain.gradients for chain in chains]))
    capped = any(chain.capped for chain in chains)
    warm, rest = (sum(getattr(c, f"{k}_s") for c in chains) for k in ("warmup", "sample"))
    return Outcome(
        drawn,
        built.wall_s,
        warm / lanes(job),
        rest / lanes(job),
        gradients * size / job.n_rows,
        f"stopped at {job.cap:.0f} s" if capped else "finished",
        {
            "gradients": gradients,
            "subsample": size,
            "accepted": chains[0].swaps,
            **cpu_figures(built.cpu_s, watch, warm, rest),
        },
    )


def ecs_kernel(mode: np.ndarray, n_rows: int, size: int):
    """HMCECS over NUTS for the logistic problems."""
    import numpyro
    import numpyro.distributions as dist

    from numpyro.infer import HMCECS, NUTS

    def model(X, y):
        prior = dist.Normal(0.0, PRIOR_SD).expand([X.shape[1]]).to_event(1)
        beta = numpyro.sample("beta", prior)
        with numpyro.plate("rows", n_rows, subsample_size=size):
            x = numpyro.subsample(X, event_dim=1)
            numpyro.sample(
                "obs", dist.Bernoulli(logits=x @ beta), obs=numpyro.subsample(y, event_dim=0)
            )

    proxy = HMCECS.taylor_proxy({"beta": mode})
    return HMCECS(NUTS(model), num_blocks=min(_ECS_BLOCKS, size), proxy=proxy)


def ecs_chunk(kernel, state, arrays, read=lambda z: {"beta": z["beta"]}):
    """Compile a function that makes a few draws; compiled ahead, so that it can be timed.

    `read` picks what is kept from a state's variables.
    """
    import jax

    def one(state, _):
        state = kernel.sample(state, arrays, {})
        return state, (read(state.z), state.hmc_state.num_steps, state.accept_prob)

    def chunk(state):
        return jax.lax.scan(one, state, None, length=_ECS_CHUNK)

    return jax.jit(chunk).lower(state).compile()


@dataclass
class EcsChain:
    """Draws of one chain, its timings, gradients per draw and accepted subsamples."""

    draws: dict[str, np.ndarray]
    warmup_s: float
    sample_s: float
    gradients: float
    swaps: float
    capped: bool

    @property
    def length(self) -> int:
        """Number of draws."""
        return len(next(iter(self.draws.values())))


def ecs_chain(advance, state, tune: int, wanted: int, job: Job, chain: int) -> EcsChain:
    """Warm up, then draw until enough or out of time."""
    import jax

    hmc = state.hmc_state
    state = state._replace(
        rng_key=jax.random.fold_in(state.rng_key, chain),
        hmc_state=hmc._replace(rng_key=jax.random.fold_in(hmc.rng_key, chain)),
    )
    begin = time.perf_counter()
    deadline = begin + job.cap * lanes(job) / job.chains
    made = 0
    while made < tune and time.perf_counter() < deadline:
        state, out = jax.block_until_ready(advance(state))
        made += _ECS_CHUNK
    warm = time.perf_counter()
    kept: list[Any] = []
    while len(kept) * _ECS_CHUNK < wanted and time.perf_counter() < deadline:
        state, out = jax.block_until_ready(advance(state))
        kept.append(jax.tree.map(np.asarray, out))
    end = time.perf_counter()
    if not kept:
        none = {name: value[:0] for name, value in out[0].items()}
        return EcsChain(none, warm - begin, end - warm, np.nan, np.nan, True)
    draws, steps, swaps = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
    capped = len(steps) < wanted
    return EcsChain(draws, warm - begin, end - warm, steps.mean(), swaps.mean(), capped)


# --- references ----------------------------------------------------------------------------------


def laplace_reference(problem: Problem, job: Job) -> Result:
    """Laplace approximation at the posterior mode, in the form of a result."""
    if not problem.logistic:
        raise NotImplementedError("The Laplace reference is written for logistic problems")
    data: Data = problem.make_data(job.n_rows, job.seed)
    begin = time.perf_counter()
    mean, covariance = laplace(data)
    zeros = np.zeros(mean.size).tolist()
    return {
        "status": "finished",
        "draws": 0,
        "sample_s": time.perf_counter() - begin,
        "parameters": {
            "label": [f"beta[{k}]" for k in range(mean.size)],
            "mean": mean.tolist(),
            "sd": np.sqrt(np.diag(covariance)).tolist(),
            "mcse_mean": zeros,
            "mcse_sd": zeros,
            "ess_bulk": [],
            "ess_tail": [],
        },
    }
