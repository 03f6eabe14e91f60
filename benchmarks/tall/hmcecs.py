"""NumPyro's HMC with energy-conserving subsampling, timed as the other methods are."""

from __future__ import annotations

import time

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.jobs import Stopwatch
from benchmarks.tall.outcomes import Outcome, cpu_figures, lanes
from benchmarks.tall.problems import PRIOR_SD, Job, Problem, laplace

#: Rows of a subsample, blocks it is renewed in, warm-up, draws, draws between looks at the clock.
ROWS, BLOCKS, TUNE, DRAWS, _CHUNK = 200, 10, 500, 20_000, 50


def hmcecs(problem: Problem, job: Job) -> Outcome:
    """NumPyro's HMC with energy-conserving subsampling, its proxy expanded at the mode.

    Chains run one after the other and are timed as if they had run side by side.
    """
    if not problem.logistic:
        raise NotImplementedError("HMCECS is set up for the logistic problems only")
    import jax

    size = min(job.count(ROWS), job.n_rows)
    data = problem.make_data(job.n_rows, job.seed)
    built = Stopwatch()
    mode = laplace(data).mode
    kernel = ecs_kernel(mode, job.n_rows, size)
    arrays = (jax.numpy.asarray(data["X"]), jax.numpy.asarray(data["y"]))
    del data
    return ecs_outcome(kernel, {"beta": mode}, arrays, job, size, built)


def ecs_outcome(
    kernel, mode, arrays, job: Job, size: int, built: Stopwatch, read=lambda z: {"beta": z["beta"]}
) -> Outcome:
    """Compile and run the chains of HMCECS and put their draws and figures together.

    `read` picks what is kept from a state's variables.
    """
    import jax

    tune, wanted = job.tune or TUNE, job.draws or DRAWS
    state = kernel.init(jax.random.key(job.seed), tune, mode, arrays, {})
    advance = ecs_chunk(kernel, state, arrays, read)
    built.stop()
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
    return HMCECS(NUTS(model), num_blocks=min(BLOCKS, size), proxy=proxy)


def ecs_chunk(kernel, state, arrays, read):
    """Compile a function that makes a few draws; compiled ahead, so that it can be timed."""
    import jax

    def one(state, _):
        state = kernel.sample(state, arrays, {})
        return state, (read(state.z), state.hmc_state.num_steps, state.accept_prob)

    def chunk(state):
        return jax.lax.scan(one, state, None, length=_CHUNK)

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
        made += _CHUNK
    warm = time.perf_counter()
    kept: list[Any] = []
    while len(kept) * _CHUNK < wanted and time.perf_counter() < deadline:
        state, out = jax.block_until_ready(advance(state))
        kept.append(jax.tree.map(np.asarray, out))
    end = time.perf_counter()
    if not kept:
        none = {name: value[:0] for name, value in out[0].items()}
        return EcsChain(none, warm - begin, end - warm, np.nan, np.nan, True)
    draws, steps, swaps = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
    capped = len(steps) < wanted
    return EcsChain(draws, warm - begin, end - warm, steps.mean(), swaps.mean(), capped)
