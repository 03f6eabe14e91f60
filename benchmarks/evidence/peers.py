"""Estimators of the evidence beside ours, each as a function of an option and a seed.

Nested sampling by nautilus, and estimates from the draws of NUTS: our bridge, and the bridge of MorphZ with
kernel densities. Libraries are imported when asked for; `benchmarks.evidence.suite` leaves out what is not
installed. NUTS is nutpie's, four chains of 1,000 draws after 1,000 to tune on one core, and its time and
gradients count.
"""

from __future__ import annotations

import math
import tempfile
import time

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.evidence.runs import figures_of, peer_figures
from benchmarks.harness.jobs import Result

DRAWS, TUNE, CHAINS = 1_000, 1_000, 4


class Draws(NamedTuple):
    """Draws of NUTS and what they took."""

    idata: Any
    cpu_s: float
    gradients: int


def nuts(compiled: Any, seed: int, *, draws: int = DRAWS, tune: int = TUNE) -> Draws:
    """Sample a model that nutpie has compiled."""
    import nutpie

    begin = time.process_time()
    idata = nutpie.sample(
        compiled, draws=draws, tune=tune, chains=CHAINS, cores=1, seed=seed, progress_bar=False,
        save_warmup=True, store_unconstrained=True,
    )  # fmt: skip
    seconds = time.process_time() - begin
    groups = [idata[name] for name in ("warmup_sample_stats", "sample_stats") if name in idata]
    gradients = sum(int(group["n_steps"].sum()) for group in groups)
    return Draws(idata, seconds, gradients)


def prepare_bridge(problem) -> Callable[[str, int], Result]:
    """Our bridge on the draws of NUTS; the option is the error aimed at."""
    import nutpie

    import amc_pymc as amc

    model = problem.build()
    compiled = nutpie.compile_pymc_model(model)

    def call(option: str, seed: int) -> Result:
        begin = time.process_time()
        drawn = nuts(compiled, seed)
        tree = amc.estimate_evidence(
            idata=drawn.idata, model=model, target_mcse=float(option), random_seed=seed,
            progressbar=False,
        )  # fmt: skip
        whole = time.process_time() - begin
        found = figures_of(tree)
        cpu = drawn.cpu_s + found["cpu_s"]
        return {
            **found, "cpu_s": cpu, "nuts_cpu_s": drawn.cpu_s, "setup_s": whole - cpu,
            "evaluations": found["evaluations"] + drawn.gradients,
            "gradients": found["gradients"] + drawn.gradients,
        }  # fmt: skip

    return call


def prepare_morphz(problem) -> Callable[[str, int], Result]:
    """MorphZ's bridge on the draws of NUTS; the option is the kind of its approximation.

    Its error is the relative root mean square error that it states.
    """
    import morphZ
    import nutpie

    from pymc.blocking import DictToArrayBijection, RaveledVars

    model = problem.build()
    compiled = nutpie.compile_pymc_model(model)
    log_density = model.compile_logp()
    layout = DictToArrayBijection.map(model.initial_point()).point_map_info
    counts = [0]

    def at(x: np.ndarray) -> float:
        counts[0] += 1
        return float(log_density(DictToArrayBijection.rmap(RaveledVars(np.asarray(x), layout))))

    def call(option: str, seed: int) -> Result:
        begin, counts[0] = time.process_time(), 0
        drawn = nuts(compiled, seed)
        stats = drawn.idata["sample_stats"]
        x = stats["unconstrained_draw"].values.reshape(-1, problem.n_dim)
        values = np.array([at(row) for row in x])
        np.random.seed(seed)
        with tempfile.TemporaryDirectory() as scratch:
            (found, *_) = morphZ.evidence(
                x, values, at, morph_type=option, output_path=scratch, n_resamples=len(x) // 2,
                param_names=[f"x{i}" for i in range(problem.n_dim)], show_progress=False,
            )  # fmt: skip
        return peer_figures(
            begin, *found[:2], counts[0] + drawn.gradients, gradients=drawn.gradients,
            nuts_cpu_s=drawn.cpu_s,
        )  # fmt: skip

    return call


def prepare_nautilus(problem) -> Callable[[str, int], Result]:
    """Nautilus as it comes; the option is the number of live points.

    It has no error; that of the importance weights, one over the root of their effective number, is its
    authors' advice.
    """
    import nautilus

    def call(option: str, seed: int) -> Result:
        begin = time.process_time()
        sampler = nautilus.Sampler(
            problem.prior_transform, problem.log_likelihood, n_dim=problem.n_dim,
            n_live=int(option), pass_dict=False, seed=seed,
        )  # fmt: skip
        sampler.run(verbose=False)
        mcse = 1.0 / math.sqrt(float(sampler.n_eff))
        return peer_figures(begin, sampler.log_z, mcse, sampler.n_like)

    return call
