"""Methods of :mod:`benchmarks.evidence.suite`, each a function of an option and a seed."""

from __future__ import annotations

import importlib.util
import math
import time

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.evidence import peers
from benchmarks.evidence.runs import figures_of, peer_figures
from benchmarks.harness.jobs import Result, say
from benchmarks.harness.smc import Stages, measured_kernel

#: The library of each family.
LIBRARIES = {
    "estimate_evidence": "amc_pymc", "bridge": "nutpie", "sample_smc": "pymc", "dynesty": "dynesty",
    "nautilus": "nautilus", "morphz": "morphZ",
}  # fmt: skip
#: What pip calls libraries whose name it does not know.
_PIP = {"nautilus": "nautilus-sampler", "morphZ": "morphz"}
_DEFAULTS = {"sample_smc": "1000", "dynesty": "500", "nautilus": "1000", "morphz": "2_group"}
#: Families whose option is the error aimed at, and those that know continuous variables only.
_AIMING = ("estimate_evidence", "bridge")
CONTINUOUS = ("bridge", "dynesty", "nautilus", "morphz")


def prepare_estimate_evidence(problem) -> Callable[[str, int], Result]:
    """Ours: the option is the error aimed at."""
    import amc_pymc as amc

    model = problem.build()

    def call(option: str, seed: int) -> Result:
        begin = time.process_time()
        tree = amc.estimate_evidence(
            target_mcse=float(option), model=model, random_seed=seed, progressbar=False
        )
        whole = time.process_time() - begin
        found, arms = tree["evidence"], tree["arms"]
        weights = arms["weight"].values
        used = [f"{arms['arm'].values[k]} {weights[k]:.3g}" for k in np.flatnonzero(weights)]
        return {
            **figures_of(tree), "setup_s": whole - float(found["cpu_seconds"]),
            "weights": ", ".join(used), "log_evidence_iv": float(found["log_evidence_iv"]),
            "mcse_iv": float(found["log_evidence_iv_mcse"]), "pareto_k": float(found["pareto_k"]),
        }  # fmt: skip

    return call


def prepare_sample_smc(problem) -> Callable[[str, int], Result]:
    """PyMC's sequential Monte Carlo with its own kernel; the option is the number of draws.

    Its set-up is what is neither the likelihood of the first particles nor a stage: compiling, drawing
    from the prior, converting and checking the trace.
    """
    import pymc as pm

    model = problem.build()

    def call(option: str, seed: int) -> Result:
        record = Stages()
        begin = time.process_time()
        pm.sample_smc(
            draws=int(option), kernel=measured_kernel(pm.smc.IMH, record), chains=2, cores=1,
            model=model, random_seed=seed, progressbar=False,
        )  # fmt: skip
        whole = time.process_time() - begin
        chains = np.array(record.log_evidences)
        top = chains.max()
        mean, mcse = np.exp(chains - top).mean(), chains.std(ddof=1) / math.sqrt(len(chains))
        return peer_figures(
            begin, top + np.log(mean), mcse, record.evaluations, cpu_s=record.seconds,
            setup_s=whole - record.seconds,
        )  # fmt: skip

    return call


def prepare_dynesty(problem) -> Callable[[str, int], Result]:
    """Static nested sampling as it comes; the option is the number of live points."""
    import dynesty

    from amc_pymc.rng import as_generator

    def call(option: str, seed: int) -> Result:
        begin = time.process_time()
        sampler = dynesty.NestedSampler(
            problem.log_likelihood, problem.prior_transform, problem.n_dim,
            nlive=int(option), rstate=as_generator(seed),
        )  # fmt: skip
        sampler.run_nested(print_progress=False)
        found = sampler.results
        return peer_figures(begin, found.logz[-1], found.logzerr[-1], np.sum(found.ncall))

    return call


PREPARE = {
    "estimate_evidence": prepare_estimate_evidence, "sample_smc": prepare_sample_smc,
    "dynesty": prepare_dynesty, "bridge": peers.prepare_bridge, "nautilus": peers.prepare_nautilus,
    "morphz": peers.prepare_morphz,
}  # fmt: skip


def expand(methods: Sequence[str], targets: Sequence[float]) -> list[str]:
    """Methods with their options."""
    out: list[str] = []
    for method in methods:
        family, _, given = method.partition(":")
        if given or family not in _AIMING:
            out.append(f"{family}:{given or _DEFAULTS[family]}")
        else:
            out += [f"{family}:{target:g}" for target in targets]
    return list(dict.fromkeys(out))


def installed(methods: Sequence[str]) -> list[str]:
    """Methods whose library is there; says which are not."""
    out = []
    for method in methods:
        name = method.partition(":")[0]
        if name not in LIBRARIES:
            raise SystemExit(f"--methods must be among {', '.join(LIBRARIES)}, got {method!r}")
        library = LIBRARIES[name]
        if importlib.util.find_spec(library) is None:
            say(
                f"{name} is not installed and left out; pip install {_PIP.get(library, library)}, or "
                "choose others by --methods."
            )
        else:
            out.append(method)
    return out
