"""How close to the evidence, how soon, and how honest: estimate_evidence and its peers where log Z is known.

    python benchmarks/evidence_suite.py --quick                     # three problems, two minutes
    python benchmarks/evidence_suite.py                             # all problems and methods: hours
    python benchmarks/evidence_suite.py --problems hard real        # the newer ones of models/evidence_suite.py
    python benchmarks/evidence_suite.py --coverage --targets 0.05   # intervals over 500 seeds
    python benchmarks/evidence_suite.py --speed                     # densities and moves, by hand and ours
    python benchmarks/evidence_suite.py --aim                       # three problems to an error of 0.01
    python benchmarks/evidence_suite.py --resume ...                # go on with what was interrupted

Methods are a family and its option: ``estimate_evidence:0.05`` (target; without one, all of
``--targets``), ``bridge:0.05`` (target; ours on the draws of nutpie), ``sample_smc:1000`` (draws of each of
two chains, combined by the mean of their evidences), ``dynesty:500`` and ``nautilus:1000`` (live points of
nested samplers) and ``morphz:2_group`` (kind of approximation, on the draws of nutpie). Runs of one
problem share a process; its first call is not counted. Every run is a line of evidence_suite.jsonl as soon
as it is done, from which tables in Markdown, JSON and CSV are made.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import json
import logging
import math
import os
import platform
import signal
import sys
import time
import warnings

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common, evidence_peers
from benchmarks.common import Result, number, percent
from benchmarks.evidence_honesty import SLACK, WRONG, honesty_table, unfinished_table

_NAME = "evidence_suite"
_MODULE = f"benchmarks.{_NAME}"
#: The library of each family, whose import is a part of a cold start.
LIBRARIES = {
    "estimate_evidence": "amc_pymc",
    "bridge": "nutpie",
    "sample_smc": "pymc",
    "dynesty": "dynesty",
    "nautilus": "nautilus",
    "morphz": "morphZ",
}
#: What pip calls libraries whose name it does not know.
_PIP = {"nautilus": "nautilus-sampler", "morphZ": "morphz"}
_DEFAULTS = {"sample_smc": "1000", "dynesty": "500", "nautilus": "1000", "morphz": "2_group"}
#: Families whose option is the error aimed at, and those that know continuous variables only.
_AIMING = ("estimate_evidence", "bridge")
_CONTINUOUS = ("bridge", "dynesty", "nautilus", "morphz")
#: Seeds of a comparison where a run takes less than a second, and where it takes more.
_SEEDS = {"estimate_evidence": (100, 20), "bridge": (20, 20), "sample_smc": (20, 20)}
_FEW_SEEDS = (10, 10)
_COVERAGE_SEEDS = (500, 50)
_CHEAP = 1.0
#: Runs after which it is known which, or that all take too long.
_STOPPED = 3
#: Reported errors beyond which an estimate without a flag is a failure.
_FAILURE = 5.0
#: Largest share of the reported error that a reference's own may have where coverage is pooled.
_KNOWN = 0.2
#: Runs of ours from which coverage is told without being asked for.
_MANY = 30
_AIM_PROBLEMS = ("linear_regression_100", "logistic_regression", "two_modes_10")
_AIM_TARGET = 0.01
_AIM_STARTS = 3
_QUICK: dict[str, Any] = {
    "problems": list(_AIM_PROBLEMS),
    "methods": ["estimate_evidence", "bridge", "sample_smc", "dynesty:50"],
    "targets": [0.01],
    "seeds": 3,
}


# --- methods -------------------------------------------------------------------------------------


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
            "log_evidence": float(found["log_evidence"]),
            "mcse": float(found["log_evidence_mcse"]),
            "lower": float(found["log_evidence_lower"]),
            "upper": float(found["log_evidence_upper"]),
            "cpu_s": float(found["cpu_seconds"]),
            "setup_s": whole - float(found["cpu_seconds"]),
            "evaluations": int(found["n_likelihood"]),
            "gradients": int(found["n_gradient"]),
            "flags": [flag for flag in found.attrs["flags"].split("; ") if flag],
            "weights": ", ".join(used),
            "log_evidence_iv": float(found["log_evidence_iv"]),
            "mcse_iv": float(found["log_evidence_iv_mcse"]),
            "pareto_k": float(found["pareto_k"]),
        }

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
        return {
            "log_evidence": float(top + np.log(np.exp(chains - top).mean())),
            "mcse": float(chains.std(ddof=1) / math.sqrt(len(chains))),
            "cpu_s": record.seconds,
            "setup_s": whole - record.seconds,
            "evaluations": record.evaluations,
            "gradients": 0,
            "flags": [],
        }

    return call


@dataclass
class Stages:
    """What the chains of a run of sequential Monte Carlo took and found."""

    seconds: float = 0.0
    evaluations: int = 0
    log_evidences: list[float] = field(default_factory=list)


def measured_kernel(base, record: Stages):
    """A kernel of ``pm.sample_smc`` that notes its work and is otherwise as it was."""

    @contextlib.contextmanager
    def timed(sign: float = 1.0) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            record.seconds += sign * (time.process_time() - begin)

    class Measured(base):
        def initialize_population(self):
            with timed(-1.0):
                return super().initialize_population()

        def _initialize_kernel(self):
            with timed():
                super()._initialize_kernel()
            record.evaluations += self.draws

        def update_beta_and_weights(self):
            with timed():
                super().update_beta_and_weights()

        def step(self):
            with timed():
                stats = super().step()
            record.evaluations += (self.n_steps - 1) * self.draws
            return stats

        def sample_settings(self):
            record.log_evidences.append(float(self.log_marginal_likelihood))
            return super().sample_settings()

    return Measured


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
        return {
            "log_evidence": float(found.logz[-1]),
            "mcse": float(found.logzerr[-1]),
            "cpu_s": time.process_time() - begin,
            "setup_s": 0.0,
            "evaluations": int(np.sum(found.ncall)),
            "gradients": 0,
            "flags": [],
        }

    return call


PREPARE = {
    "estimate_evidence": prepare_estimate_evidence,
    "sample_smc": prepare_sample_smc,
    "dynesty": prepare_dynesty,
    "bridge": evidence_peers.prepare_bridge,
    "nautilus": evidence_peers.prepare_nautilus,
    "morphz": evidence_peers.prepare_morphz,
}


class OutOfTime(BaseException):
    """A run has had its CPU seconds; no handler of errors is to catch this."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this thread after so many CPU seconds of the process."""

    def stop(signum, frame):
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


class _Logged(logging.Handler):
    """Keeps what libraries log as warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def attempt(call: Callable[[], Result], cap: float) -> Result:
    """One run with its wall time, status and warnings; an error becomes a status."""
    logged, root = _Logged(), logging.getLogger()
    pymc, begin = logging.getLogger("pymc"), time.perf_counter()
    root.addHandler(logged)
    pymc.addHandler(logged)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with cpu_limit(cap):
                    row = {"status": "finished", **call()}
            except OutOfTime:
                row = {"status": f"stopped after {cap:g} CPU s"}
            except Exception as error:
                row = {"status": f"failed: {type(error).__name__}: {error}"[:300]}
    finally:
        root.removeHandler(logged)
        pymc.removeHandler(logged)
    # Floating-point and deprecation warnings say nothing about the estimate. estimate_evidence warns of
    # each of its flags, which are there already.
    said = [str(w.message) for w in caught if w.category is UserWarning]
    others = [s for s in [*logged.messages, *said] if not s.startswith("Model evidence: ")]
    row["flags"] = [*row.get("flags", []), *dict.fromkeys(others)]
    row["wall_s"] = time.perf_counter() - begin
    return row


# --- workers -------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """Seeds of one method: so many if a run is cheap, so many if it is dear, without those done."""

    method: str
    cheap: int
    dear: int
    done: Sequence[int] = ()


@dataclass(frozen=True)
class Job:
    """Work for one process: runs of methods of one family on one problem, or measurements of speed.

    Without methods' seeds it only starts: imports, builds, estimates once. Rows go to the file
    `rows`; `cap` is what the whole job may take.
    """

    problem: str
    family: str
    wanted: Sequence[Wanted]
    rows: str
    cap: float
    run_cap: float
    seed: int = 1
    caches: str = "warm"
    cores: int = 1


def work(job: Job) -> Result:
    """Do a job in this process and append its rows."""
    if job.family == "speed":
        keep(job.rows, speed(job.problem))
        return {"status": "finished"}
    wanted, parent = [Wanted(*w) for w in job.wanted], os.getppid()
    begin, cpu = time.perf_counter(), time.process_time()
    importlib.import_module(LIBRARIES[job.family])
    imported, import_cpu = time.perf_counter() - begin, time.process_time() - cpu
    from models.evidence_suite import PROBLEMS

    problem = PROBLEMS[job.problem]()
    about = {
        "problem": job.problem,
        "truth": problem.log_evidence,
        "reference_error": problem.error,
        "n_dim": problem.n_dim,
        "easy": problem.easy,
    }
    if job.family in _CONTINUOUS and problem.prior_transform is None:
        rows = [{"kind": "run", "method": w.method, "status": "not for discrete"} for w in wanted]
        keep(job.rows, [{**about, "seed": job.seed, **row} for row in rows])
        return {"status": "finished"}
    files = cache_files()
    begin, cpu = time.perf_counter(), time.process_time()
    call = PREPARE[job.family](problem)
    built, build_cpu = time.perf_counter() - begin, time.process_time() - cpu
    method, cpu = wanted[0].method, time.process_time()
    first = attempt(lambda: call(option(method), job.seed - 1), job.run_cap)
    first_cpu = time.process_time() - cpu
    new = len(cache_files() - files)
    start = {
        "kind": "start",
        "method": method,
        "seed": job.seed,
        "status": first["status"],
        "caches": "filled" if new and job.caches == "warm" else job.caches,
        "import_s": imported,
        "build_s": built,
        "first_s": first["wall_s"],
        "first_cpu_s": first_cpu,
        "start_cpu_s": import_cpu + build_cpu + first_cpu,
    }
    keep(job.rows, [{**about, **start}])
    for w in wanted:
        mine: list[Result] = []
        for seed in range(job.seed, job.seed + max(w.cheap, w.dear)):
            if seed in w.done:
                continue
            if not w.done and len(mine) >= enough(mine, w.cheap, w.dear):
                break
            row = attempt(lambda: call(option(w.method), seed), job.run_cap)
            row = {"kind": "run", **about, "method": w.method, "seed": seed, **row}
            keep(job.rows, [row])
            mine.append(row)
            if os.getppid() != parent:
                return {"status": "nobody waits for this any more"}
    return {"status": "finished"}


def enough(rows: Sequence[Result], cheap: int, dear: int) -> int:
    """How many runs a method is to have: fewer if they are dear, no more if three ran out of time."""
    if sum(r["status"].startswith("stopped") for r in rows) >= _STOPPED:
        return len(rows)
    costs = [r.get("cpu_s", math.inf) for r in rows]
    return dear if len(costs) >= _STOPPED and np.median(costs) >= _CHEAP else cheap


def option(method: str) -> str:
    """What follows a family's name."""
    return method.partition(":")[2]


def cache_files() -> set[str]:
    """Files of the compilers' caches that this process uses."""
    flags = os.environ.get("PYTENSOR_FLAGS", "").partition("base_compiledir=")[2].split(",")[0]
    folders = [f for f in (os.environ.get("NUMBA_CACHE_DIR", ""), flags) if f]
    return {str(p) for f in folders for p in Path(f).rglob("*.nb?")}


def end_last_line(path: Path) -> None:
    """Give a file whose last line was cut off a line of its own for what comes."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        path.write_bytes(text + b"\n")


def keep(path: str, rows: Sequence[Result]) -> None:
    """Append rows to a file, each in one piece."""
    with open(path, "a") as sink:
        for row in rows:
            sink.write(json.dumps(row) + "\n")


# --- by hand -------------------------------------------------------------------------------------


class NumpyLogistic:
    """The logistic regression of the suite as one would write it in NumPy: a path as kernels take it.

    Parameters
    ----------
    X, y : array (N, D), (N,)
    scale : float
        Prior standard deviation.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, scale: float = 2.5):
        self.signed = np.ascontiguousarray((1.0 - 2.0 * y)[:, None] * X)
        self.scale = scale
        self.constant = -X.shape[1] * (math.log(scale) + 0.5 * math.log(2.0 * math.pi))

    @property
    def n_dim(self) -> int:
        """D."""
        return self.signed.shape[1]

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""
        return self.scale * rng.standard_normal((n, self.n_dim))

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P)."""
        return self._terms(x)[0]

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same and their gradients (2, P, D)."""
        terms, u, t = self._terms(x)
        share = np.where(u > 0.0, 1.0, t)
        t += 1.0
        share /= t
        gradients = np.empty((2, *x.shape))
        np.divide(x, -(self.scale**2), out=gradients[0])
        np.matmul(share, -self.signed, out=gradients[1])
        return terms, gradients

    def _terms(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = x @ self.signed.T
        t = np.abs(u)
        np.negative(t, out=t)
        np.exp(t, out=t)
        terms = np.empty((2, len(x)))
        terms[0] = self.constant - 0.5 * np.vecdot(x, x) / self.scale**2
        terms[1] = -(np.log1p(t) + np.maximum(u, 0.0)).sum(axis=1)
        return terms, u, t


class NumbaLogistic(NumpyLogistic):
    """The same in compiled loops, with one logarithm for many rows."""

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P)."""
        terms = np.empty((2, len(x)))
        _loops()(x, self.signed, self.scale, self.constant, terms, np.empty((2, 0, 0)))
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same and their gradients (2, P, D)."""
        terms, gradients = np.empty((2, len(x))), np.empty((2, *x.shape))
        _loops()(x, self.signed, self.scale, self.constant, terms, gradients)
        return terms, gradients


@cache
def _loops():
    from numba import njit

    @njit(error_model="numpy")
    def logistic(x, signed, scale, constant, terms, gradients):
        n_points, d = x.shape
        with_gradients = gradients.shape[1] > 0
        for i in range(n_points):
            square, likelihood, product = 0.0, 0.0, 1.0
            for j in range(d):
                square += x[i, j] * x[i, j]
                if with_gradients:
                    gradients[0, i, j] = -x[i, j] / (scale * scale)
                    gradients[1, i, j] = 0.0
            for r in range(len(signed)):
                u = 0.0
                for j in range(d):
                    u += signed[r, j] * x[i, j]
                t = math.exp(-abs(u))
                likelihood -= max(u, 0.0)
                product *= 1.0 + t  # at most 2, so 512 of them do not overflow
                if r % 512 == 511:
                    likelihood -= math.log(product)
                    product = 1.0
                if with_gradients:
                    share = (1.0 if u > 0.0 else t) / (1.0 + t)
                    for j in range(d):
                        gradients[1, i, j] -= share * signed[r, j]
            terms[0, i] = constant - 0.5 * square / (scale * scale)
            terms[1, i] = likelihood - math.log(product)

    return logistic


def anneal_by_hand(
    path, x: np.ndarray, betas: np.ndarray, tunings: Sequence, rng: np.random.Generator,
    n_leapfrog: int = 3, jitter: float = 0.3,
) -> np.ndarray:  # fmt: skip
    """Log-weights (P,) of annealed importance sampling with HMC, as one would write it in NumPy."""
    terms, gradients = path.gradients(x)
    log_w = np.zeros(len(x))
    for t, tuning in enumerate(tunings, start=1):
        log_w += (betas[t] - betas[t - 1]) * terms[1]
        beta, chol = betas[t], tuning.scale
        size = tuning.size * rng.uniform(1.0 - jitter, 1.0 + jitter, (len(x), 1))
        v = rng.standard_normal(x.shape)
        energy = 0.5 * (v * v).sum(axis=1) - terms[0] - beta * terms[1]
        new_x, new_terms, new_gradients = x, terms, gradients
        v = v + 0.5 * size * ((gradients[0] + beta * gradients[1]) @ chol)
        for k in range(n_leapfrog):
            new_x = new_x + size * (v @ chol.T)
            new_terms, new_gradients = path.gradients(new_x)
            part = 1.0 if k < n_leapfrog - 1 else 0.5
            v = v + part * size * ((new_gradients[0] + beta * new_gradients[1]) @ chol)
        energy += new_terms[0] + beta * new_terms[1] - 0.5 * (v * v).sum(axis=1)
        accepted = np.log(rng.random(len(x))) < energy
        x = np.where(accepted[:, None], new_x, x)
        terms = np.where(accepted, new_terms, terms)
        gradients = np.where(accepted[:, None], new_gradients, gradients)
    return log_w + (betas[-1] - betas[-2]) * terms[1]


# --- speed ---------------------------------------------------------------------------------------

_PARTICLES, _STEPS = 1000, 20
_COMPILED = "pm.Model, compiled"
_LOGISTIC = {"logistic n=50 p=8": (50, 8), "logistic n=768 p=8": (768, 8)}


def speed(name: str) -> list[Result]:
    """Microseconds for a particle: of the compiled density, by hand, and of a step of annealing."""
    from amc_pymc.annealing import anneal, climb, make_schedule
    from amc_pymc.extract.particles import extract_particles
    from amc_pymc.kernels import HMC
    from amc_pymc.rng import as_generator
    from models.evidence_suite import PROBLEMS
    from models.logistic_regression import logistic_regression, simulate

    rng = as_generator(1)
    if name not in _LOGISTIC:
        densities = extract_particles(PROBLEMS[name]().build())
        x = densities.draw_prior(_PARTICLES, rng)
        return [
            _speed_row(name, _COMPILED, "values", lambda: densities.values(x)),
            _speed_row(name, _COMPILED, "gradients", lambda: densities.gradients(x)),
        ]
    X, y = simulate(*_LOGISTIC[name])
    problem = logistic_regression(*_LOGISTIC[name])
    paths = {
        _COMPILED: extract_particles(problem.build()),
        "NumPy by hand": NumpyLogistic(X, y),
        "Numba by hand": NumbaLogistic(X, y),
    }
    compiled = paths[_COMPILED]
    kernel, betas = HMC(n_leapfrog=3), make_schedule(("power", 4.0), _STEPS)
    ladder = climb(compiled, compiled.draw_prior(_PARTICLES, rng), kernel, rng)
    tunings = [ladder.at(beta) for beta in betas[1:-1]]
    x, rows = ladder.particles.x, []
    for implementation, path in paths.items():
        rows += [
            _speed_row(name, implementation, "values", lambda: path.values(x)),
            _speed_row(name, implementation, "gradients", lambda: path.gradients(x)),
        ]

    def ours(path):
        begin = path.draw_prior(_PARTICLES, rng)
        return anneal(path, begin, betas, kernel, ladder, rng).log_weights

    def by_hand(path):
        return anneal_by_hand(path, path.draw_prior(_PARTICLES, rng), betas, tunings, rng)

    for label, run, path in (
        (_COMPILED + "; amc_pymc.annealing", ours, compiled),
        ("Numba by hand; amc_pymc.annealing", ours, paths["Numba by hand"]),
        ("NumPy by hand; NumPy by hand", by_hand, paths["NumPy by hand"]),
        ("Numba by hand; NumPy by hand", by_hand, paths["Numba by hand"]),
    ):
        step = _speed_row(name, label, "step of HMC(3)", lambda: run(path), _STEPS - 1)
        rows.append(step)
    return rows


def _speed_row(problem: str, implementation: str, what: str, run: Callable, steps=1) -> Result:
    """Median of three measurements after a call that does not count."""
    run()
    seconds = []
    for _ in range(3):
        n, begin = 0, time.process_time()
        while time.process_time() - begin < 0.1:
            run()
            n += 1
        seconds.append((time.process_time() - begin) / n)
    us = 1e6 * float(np.median(seconds)) / _PARTICLES / steps
    return {
        "kind": "speed",
        "problem": problem,
        "method": implementation,
        "seed": what,
        "status": "finished",
        "us": us,
    }


# --- the book ------------------------------------------------------------------------------------


class Book:
    """All rows of a benchmark, on disk as they come."""

    def __init__(self, out: Path, *, resume: bool):
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"{_NAME}.jsonl"
        if self.path.exists() and not resume:
            old = (self.path.with_suffix(f".{k}.jsonl") for k in itertools.count(1))
            self.path.replace(next(p for p in old if not p.exists()))
        end_last_line(self.path)

    def rows(self) -> list[Result]:
        """Rows by kind, problem, method, seed and caches; of several the last, and none cut off."""
        found: dict[tuple, Result] = {}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                names = ("kind", "problem", "method", "seed", "caches")
                found[tuple(row.get(name) for name in names)] = row
        return list(found.values())

    def left(self, problem: str, wanted: Wanted, first: int) -> Wanted | None:
        """What is still to be run of a method, None if nothing."""
        rows = [
            r
            for r in self.rows()
            if (r["kind"], r["problem"], r["method"]) == ("run", problem, wanted.method)
            and not r["status"].startswith("failed")
        ]
        if any(r["status"] == "not for discrete" for r in rows):
            return None
        if len(rows) < _STOPPED:
            return wanted._replace(done=())
        n = enough(rows, wanted.cheap, wanted.dear)
        done = tuple(r["seed"] for r in rows)
        if len(rows) >= n or all(first + i in done for i in range(n)):
            return None
        return Wanted(wanted.method, n, n, done)


# --- summaries -----------------------------------------------------------------------------------


@np.errstate(divide="ignore", invalid="ignore")  # an estimate may be minus infinity
def summarise(rows: Sequence[Result]) -> Result:
    """What the runs of one method on one problem come to."""
    done = [r for r in rows if r["status"] == "finished"]
    out: Result = {
        "problem": rows[0]["problem"],
        "method": rows[0]["method"],
        "runs": len(done),
        "planned": len(rows),
        "easy": rows[0]["easy"],
        "status": "" if len(done) == len(rows) else _what_happened(rows),
    }
    if not done:
        return out
    off = np.array([r["log_evidence"] - r["truth"] for r in done])
    mcse = np.array([r["mcse"] for r in done])
    cpu = np.array([r["cpu_s"] for r in done])
    flagged = np.array([bool(r["flags"]) for r in done])
    errors = np.hypot(mcse, done[0]["reference_error"])
    z = np.where(off == 0.0, 0.0, off / errors)
    squares = off**2
    rmse = math.sqrt(squares.mean())
    root = math.sqrt(len(done))
    spread = off.std(ddof=1) if len(done) > 1 else math.nan
    return out | {
        "bias": float(off.mean()),
        "bias_error": float(spread / root),
        "rmse": rmse,
        "rmse_error": float(squares.std() / root / (2.0 * rmse)) if rmse > 0.0 else 0.0,
        "reported": float(np.median(mcse)),
        "cpu_s": float(cpu.mean()),
        "cpu_median_s": float(np.median(cpu)),
        "setup_s": float(np.median([r["setup_s"] for r in done])),
        "evaluations": float(np.median([r["evaluations"] for r in done])),
        "gradients": float(np.median([r["gradients"] for r in done])),
        "fom": float(cpu.mean() * squares.mean()),
        "largest_z": float(np.max(np.abs(z))),
        "sd_z": float(z.std(ddof=1)) if len(done) > 1 else math.nan,
        "failures": int(np.sum(~(np.abs(off) <= _FAILURE * errors) & ~flagged)),
        "flagged": float(flagged.mean()),
        "whole_s": float(np.median([r["cpu_s"] + r["setup_s"] for r in done])),
    }


def _what_happened(rows: Sequence[Result]) -> str:
    return next(r["status"] for r in rows if r["status"] != "finished")


def grouped(rows: Sequence[Result], kind: str) -> dict[tuple[str, str], list[Result]]:
    """Rows of a kind by problem and method."""
    out: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        if row["kind"] == kind:
            out.setdefault((row["problem"], row["method"]), []).append(row)
    return out


def summaries(rows: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """Runs and starts of every method on every problem, and the figure of merit over ours."""
    found = {key: summarise(group) for key, group in grouped(rows, "run").items()}
    starts = [r for r in rows if r["kind"] == "start" and r["status"] == "finished"]
    for (problem, method), row in found.items():
        mine = [r for r in starts if r["problem"] == problem and _family(r) == _family(row)]
        for caches in ("warm", "cold"):
            these = [r for r in mine if r["caches"] == caches]
            if these:
                seconds = [r["import_s"] + r["build_s"] + r["first_s"] for r in these]
                row[f"{caches}_start_s"] = float(np.median(seconds))
                row[f"{caches}_import_s"] = float(np.median([r["import_s"] for r in these]))
                row[f"{caches}_start_cpu_s"] = float(np.median([r["start_cpu_s"] for r in these]))
                same = [r["first_cpu_s"] for r in these if r["method"] == method]
                if same and "whole_s" in row:
                    row[f"{caches}_compile_s"] = float(np.median(same)) - row["whole_s"]
        ours = yardstick(found, problem)
        if ours is not None and "fom" in row:
            row["ratio"] = row["fom"] / ours if ours > 0.0 else math.inf
    return found


def yardstick(found: dict[tuple[str, str], Result], problem: str) -> float | None:
    """Our figure of merit on a problem, at the smallest target that was run."""
    ours = [
        (float(option(method)), row["fom"])
        for (p, method), row in found.items()
        if p == problem and _family(row) == "estimate_evidence" and "fom" in row
    ]
    return min(ours)[1] if ours else None


def _family(row: Result) -> str:
    return row["method"].partition(":")[0]


@np.errstate(divide="ignore", invalid="ignore")
def coverage(rows: Sequence[Result]) -> list[Result]:
    """Coverage of our 95 % intervals, their width, and the mean of Z over its true value."""
    out = []
    for (problem, method), group in grouped(rows, "run").items():
        done = [r for r in group if r["status"] == "finished" and "lower" in r]
        if not done:
            continue
        truth, reference = done[0]["truth"], done[0]["reference_error"]
        lower = np.array([r["lower"] for r in done])
        upper = np.array([r["upper"] for r in done])
        off = np.array([r["log_evidence"] for r in done]) - truth
        mcse = np.array([r["mcse"] for r in done])
        covered = int(np.sum((lower <= truth) & (truth <= upper)))
        low, high = clopper_pearson(covered, len(done))
        rmse = math.sqrt(np.mean(off**2))
        share = np.exp(off)
        row = {
            "problem": problem,
            "method": method,
            "runs": len(done),
            "covered": covered,
            "low": low,
            "high": high,
            "sd_z": float(np.std(off / np.hypot(mcse, reference), ddof=1))
            if len(done) > 1
            else math.nan,
            "width": float(np.median(upper - lower)) / (2.0 * 1.959964 * rmse)
            if rmse > 0.0
            else math.nan,
            "known": reference <= _KNOWN * float(np.median(mcse)),
            "flagged": float(np.mean([bool(r["flags"]) for r in done])),
        }
        if reference == 0.0 and len(done) > 1:
            row["mean"] = float(share.mean())
            row["mean_error"] = float(share.std(ddof=1)) / math.sqrt(len(done))
        out.append(row)
    return out


def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Interval for a probability from k of n."""
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def pooled(rows: Sequence[Result], level: float = 0.95) -> Result | None:
    """All problems together, and a two-sided test of the promised share."""
    from scipy.stats import binomtest

    known = [r for r in rows if r["known"]]
    n = sum(r["runs"] for r in known)
    if not n:
        return None
    k = sum(r["covered"] for r in known)
    low, high = clopper_pearson(k, n)
    return {
        "covered": k,
        "runs": n,
        "low": low,
        "high": high,
        "p": float(binomtest(k, n, level).pvalue),
    }


# --- tables --------------------------------------------------------------------------------------


def comparison_table(found: dict[tuple[str, str], Result]) -> str:
    """One line for every problem and method."""
    headers = [
        "problem", "method", "runs", "bias", "RMSE", "median reported error", "CPU s", "cold start s",
        "evaluations (gradients)", "FoM s nat²", "FoM / ours", "largest \\|z\\|", "unflagged failures",
        "runs with flags",
    ]  # fmt: skip
    lines = []
    for row in ordered(found):
        runs = f"{row['runs']}" + (
            f" of {row['planned']}: {row['status']}" if row["status"] else ""
        )
        if "rmse" not in row:
            lines.append([row["problem"], row["method"], runs, *["-"] * (len(headers) - 3)])
            continue
        lines.append([
            row["problem"], row["method"], runs,
            f"{signed(row['bias'])} ± {number(row['bias_error'], 2)}",
            f"{number(row['rmse'])} ± {number(row['rmse_error'], 2)}",
            number(row["reported"]),
            number(row["cpu_median_s"]),
            number(row.get("cold_start_s")),
            evaluations(row),
            scientific(row["fom"]),
            number(row.get("ratio")),
            number(row["largest_z"]),
            str(row["failures"]),
            percent(row["flagged"]),
        ])  # fmt: skip
    return common.markdown(headers, lines)


def ordered(found: dict[tuple[str, str], Result]) -> list[Result]:
    """Summaries by problem, as they came, ours first."""
    problems = list(dict.fromkeys(problem for problem, _ in found))
    families = list(LIBRARIES)
    return sorted(
        found.values(),
        key=lambda r: (problems.index(r["problem"]), families.index(_family(r)), r["method"]),
    )


def signed(value: float) -> str:
    """Two digits and a sign."""
    return f"{value:+.2g}" if math.isfinite(value) else "-"


def scientific(value: float) -> str:
    """Three digits and a power of ten."""
    return f"{value:.2e}" if math.isfinite(value) else "-"


def evaluations(row: Result) -> str:
    """Of the likelihood, and how many of them with gradients."""
    some = f" ({row['gradients']:,.0f})" if row["gradients"] else ""
    return f"{row['evaluations']:,.0f}{some}"


def overall_table(found: dict[tuple[str, str], Result]) -> str:
    """One line for every method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in ordered(found)):
        mine = [r for r in found.values() if r["method"] == method and "rmse" in r]
        if not mine:
            continue
        ratios = [r["ratio"] for r in mine if 0.0 < r.get("ratio", 0.0) < math.inf]
        mean = math.exp(np.mean(np.log(ratios))) if ratios else math.nan
        runs = sum(r["runs"] for r in mine)
        flags = [
            np.average([r["flagged"] for r in group], weights=[r["runs"] for r in group])
            if (group := [r for r in mine if r["easy"] is easy])
            else math.nan
            for easy in (True, False)
        ]
        span = f"{number(min(ratios))} ... {number(max(ratios))}" if ratios else "-"
        failures = sum(r["failures"] for r in mine)
        lines.append(
            [method, str(len(mine)), str(runs), number(mean), span, str(failures)]
            + [percent(share) for share in flags]
        )
    headers = [
        "method", "problems", "runs", "FoM / ours, geometric mean", "from ... to", "unflagged failures",
        "flagged runs, easy problems", "flagged runs, hard problems",
    ]  # fmt: skip
    return common.markdown(headers, lines)


def starts_table(found: dict[tuple[str, str], Result]) -> str:
    """What comes before the first answer, and again with every call."""
    lines = [
        [row["problem"], row["method"]]
        + [number(row.get(f"warm_{k}_s")) for k in ("import", "start", "start_cpu", "compile")]
        + [number(row.get(f"cold_{k}_s")) for k in ("start", "start_cpu", "compile")]
        + [number(row["setup_s"]), percent(row["setup_s"] / row["whole_s"])]
        for row in ordered(found)
        if "rmse" in row
    ]
    headers = [
        "problem", "method", "import s", "start s, warm", "its CPU s", "compiling CPU s, warm",
        "start s, cold", "its CPU s", "compiling CPU s, cold", "set-up of each later call, CPU s",
        "share of such a call",
    ]  # fmt: skip
    return common.markdown(headers, lines)


def problems_table(rows: Sequence[Result]) -> str:
    """Sizes and references of the problems."""
    seen = {r["problem"]: r for r in rows if r["kind"] == "run"}
    lines = [
        [p, str(r["n_dim"]), f"{r['truth']:.5f}", number(r["reference_error"], 2) if
         r["reference_error"] else "exact", "yes" if r["easy"] else "no"]
        for p, r in seen.items()
    ]  # fmt: skip
    return common.markdown(["problem", "D", "log Z", "its error", "easy"], lines)


def coverage_table(rows: Sequence[Result]) -> str:
    """One line for every problem, and all together."""
    headers = [
        "problem", "method", "runs", "covered by 95 % intervals", "sd of z", "width / oracle's",
        "mean of Z / true Z", "runs with flags",
    ]  # fmt: skip
    lines = [
        [
            r["problem"] + ("" if r["known"] else " *"), r["method"], str(r["runs"]), covered(r),
            number(r["sd_z"]), number(r["width"]),
            f"{r['mean']:.5f} ± {number(r['mean_error'], 2)}" if "mean" in r else "-",
            percent(r["flagged"]),
        ]
        for r in rows
    ]  # fmt: skip
    text = common.markdown(headers, lines)
    for method in dict.fromkeys(r["method"] for r in rows):
        everything = pooled([r for r in rows if r["method"] == method])
        if everything is not None:
            text += (
                f"\n\n`{method}`, all problems: {covered(everything)} of {everything['runs']:,} runs; "
                f"two-sided binomial test of 95 %: p = {everything['p']:.3g}."
            )
    if not all(r["known"] for r in rows):
        text += (
            "\n\n\\* the reference's own error is too large beside the reported one: not pooled."
        )
    return text


def covered(row: Result) -> str:
    """A share of runs with its Clopper-Pearson interval."""
    parts = [100.0 * row["covered"] / row["runs"], 100.0 * row["low"], 100.0 * row["high"]]
    return "{:.1f} % [{:.1f}, {:.1f}]".format(*parts)


def speed_table(rows: Sequence[Result]) -> str:
    """Microseconds for a particle, and over those of ours."""
    these = [r for r in rows if r["kind"] == "speed"]
    ours = {(r["problem"], r["seed"]): r["us"] for r in these if r["method"].startswith(_COMPILED)}
    lines = [
        [
            r["problem"],
            r["seed"],
            r["method"],
            number(r["us"]),
            number(r["us"] / ours[r["problem"], r["seed"]]),
        ]
        for r in sorted(these, key=lambda r: (r["problem"], r["seed"]))
    ]
    headers = ["problem", "what", "density; move", "us", "over ours"]
    return common.markdown(headers, lines)


def aim_table(found: dict[tuple[str, str], Result]) -> str:
    """Seconds to an error of a hundredth.

    Of ours the measured ones, more if the error is larger; of the others FoM over the squared error.
    """
    headers = [
        "problem", "method", "runs", "CPU s of a run", "RMSE", "FoM s nat²", "CPU s to an error of 0.01",
        "times ours", "s from import to the first answer, warm", "its CPU s",
    ]  # fmt: skip
    lines = []
    for problem in _AIM_PROBLEMS:
        ours = found.get((problem, f"estimate_evidence:{_AIM_TARGET:g}"))
        reached = math.nan
        if ours and "rmse" in ours:
            reached = max(ours["cpu_s"], ours["fom"] / _AIM_TARGET**2)
        for row in ordered(found):
            if row["problem"] != problem or "rmse" not in row:
                continue
            if _family(row) == "estimate_evidence" and row is not ours:
                continue
            needed = reached if row is ours else row["fom"] / _AIM_TARGET**2
            lines.append([
                problem, row["method"], str(row["runs"]), number(row["cpu_s"]),
                f"{number(row['rmse'])} ± {number(row['rmse_error'], 2)}", scientific(row["fom"]),
                number(needed), number(needed / reached), number(row.get("warm_start_s")),
                number(row.get("warm_start_cpu_s")),
            ])  # fmt: skip
    return common.markdown(headers, lines)


def report(rows: Sequence[Result], options: argparse.Namespace) -> str:
    """All tables that were asked for."""
    found, covers = summaries(rows), coverage(rows)
    some = options.resume  # then all tables that there are rows for
    parts = ["# Evidence where it is known"]
    if found and (options.compare or some):
        parts += [
            "CPU s: after compilation, the pilot run included. z: error over the reported one, of "
            "`sample_smc` half the difference of its two chains, with the reference's. FoM: mean CPU s "
            "times mean squared error; over ours at the smallest target. Unflagged failures: runs off by "
            f"more than {_FAILURE:g} reported errors without any warning.",
            overall_table(found),
            comparison_table(found),
            f"## Honesty\n\nWrong: off by more than {WRONG:g} standard errors, the reference's included, and "
            f"by more than {SLACK:g} nat. Covered: 95 % intervals, widened by the reference's error. "
            "Evaluations, gradients and CPU s are medians; those of `bridge` include NUTS.",
            honesty_table(rows),
            unfinished_table(rows),
            "## Starts\n\nFrom the import of the library to the first answer in a fresh process, with "
            "warm and with cold caches of the compilers; compiling is the first call less a later one. "
            "Set-up: what later calls compile or load again.",
            starts_table(found),
            "## Problems",
            problems_table(rows),
        ]
    if not options.coverage:
        covers = [r for r in covers if some and r["runs"] >= _MANY]
    if covers:
        parts += ["## Coverage", coverage_table(covers)]
    if options.speed or (some and any(r["kind"] == "speed" for r in rows)):
        parts += [
            f"## Speed\n\nMicroseconds of CPU for one of {_PARTICLES:,} particles; a step is that of "
            f"{_STEPS} temperatures, one move of three leapfrogs.",
            speed_table(rows),
        ]
    if options.aim:
        parts += [
            f"## To an error of {_AIM_TARGET:g}\n\nOf ours the mean CPU s of a run with that target, the "
            "pilot included (more if its RMSE is larger than that); of the others FoM over the squared "
            "error.",
            aim_table(found),
        ]
    return "\n\n".join(filter(None, parts))


# --- plan ----------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One family on one problem."""

    problem: str
    family: str
    wanted: dict[str, tuple[int, int]]
    starts: int


def plan(options: argparse.Namespace, problems: Sequence[str]) -> list[Task]:
    """What the tables need."""
    tasks: dict[tuple[str, str], Task] = {}

    def want(problem: str, method: str, seeds: tuple[int, int], starts: int) -> None:
        family = method.partition(":")[0]
        task = tasks.get((problem, family), Task(problem, family, {}, 0))
        if options.seeds is not None:
            seeds = (options.seeds, options.seeds)
        before = task.wanted.get(method, (0, 0))
        task.wanted[method] = max(before[0], seeds[0]), max(before[1], seeds[1])
        tasks[problem, family] = task._replace(starts=max(task.starts, starts))

    methods = expand(options.methods, options.targets)
    for problem in problems:
        for method in methods:
            family = method.partition(":")[0]
            if options.compare:
                want(problem, method, _SEEDS.get(family, _FEW_SEEDS), options.starts)
            if options.coverage and family == "estimate_evidence":
                want(problem, method, _COVERAGE_SEEDS, 0)
    if options.aim:
        for problem in _AIM_PROBLEMS:
            for method in expand(options.methods, [_AIM_TARGET]):
                family = method.partition(":")[0]
                want(problem, method, _SEEDS.get(family, _FEW_SEEDS), _AIM_STARTS)
    return list(tasks.values())


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


class Runner:
    """Hands out jobs."""

    def __init__(self, options: argparse.Namespace, book: Book):
        self.options, self.book = options, book
        self.caches = str(Path(options.out).resolve() / "caches")

    def task(self, task: Task) -> None:
        """Runs first, which fills the caches, then starts with warm and with cold ones."""
        o = self.options
        wanted = [
            left
            for method, (cheap, dear) in task.wanted.items()
            if (left := self.book.left(task.problem, Wanted(method, cheap, dear), o.seed))
        ]
        if wanted:
            self._job(task, wanted)
        first = [Wanted(next(iter(task.wanted)), 0, 0)]
        rows = [r for r in self.book.rows() if r["problem"] == task.problem]
        if any(r["kind"] == "run" and r["status"] == "not for discrete" and _family(r) == task.family
               for r in rows):  # fmt: skip
            return
        for caches, n in (("warm", task.starts), ("cold", 1 if o.cold and task.starts else 0)):
            have = sum(
                r["kind"] == "start" and r["caches"] == caches and r["method"] == first[0].method
                for r in rows
            )
            for k in range(have, n):
                self._job(task, first, caches=caches, seed=o.seed + k)

    def speed(self, name: str) -> None:
        """Measure densities."""
        self._job(Task(name, "speed", {}, 0), [])

    def _job(
        self, task: Task, wanted: Sequence[Wanted], *, caches: str = "warm", seed=None
    ) -> None:
        o = self.options
        runs = 1 + sum(max(w.cheap, w.dear) for w in wanted)
        job = Job(
            problem=task.problem, family=task.family, wanted=wanted, rows=str(self.book.path.resolve()),
            cap=runs * o.cap, run_cap=o.cap, seed=o.seed if seed is None else seed, caches=caches,
        )  # fmt: skip
        what = f"{task.problem} {task.family}" + (
            f", {caches} start" if runs == 1 < len(wanted) + 1 else ""
        )
        begin = time.perf_counter()
        result = common.run_job(_MODULE, job, self.caches if caches == "warm" else None)  # type: ignore[arg-type]
        took = time.perf_counter() - begin
        print(f"... {what}: {result['status']}, {took:.0f} s", file=sys.stderr, flush=True)
        if result["status"] != "finished":
            broken = {
                "kind": "run" if runs > 1 else "start", "problem": task.problem, "seed": None,
                "status": result["status"], "truth": math.nan, "reference_error": math.nan, "n_dim": 0,
                "easy": False, "caches": caches,
            }  # fmt: skip
            keep(job.rows, [{**broken, "method": w.method} for w in wanted])


def installed(methods: Sequence[str]) -> list[str]:
    """Methods whose library is there; says which are not."""
    out = []
    for method in methods:
        family = method.partition(":")[0]
        if family not in LIBRARIES:
            raise SystemExit(f"--methods must be among {', '.join(LIBRARIES)}, got {method!r}")
        library = LIBRARIES[family]
        if importlib.util.find_spec(library) is None:
            print(
                f"{family} is not installed and left out; pip install {_PIP.get(library, library)}, or "
                "choose others by --methods.",
                file=sys.stderr,
            )
        else:
            out.append(method)
    return out


def versions() -> Result:
    """What was measured, and on what."""
    names = (
        "amc-pymc", "pymc", "pytensor", "numba", "numpy", "nutpie", "dynesty", "nautilus-sampler",
        "morphz",
    )  # fmt: skip
    out: Result = {"python": platform.python_version(), "machine": platform.processor()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


def parser() -> argparse.ArgumentParser:
    """Options of this script."""
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--compare", action="store_true", help="the comparison; default without others")
    p.add_argument("--coverage", action="store_true", help="of our intervals, over many seeds")
    p.add_argument("--speed", action="store_true", help="of densities and moves")
    p.add_argument("--aim", action="store_true", help="three problems to an error of 0.01")
    p.add_argument("--problems", nargs="+", help="names, or classic, hard, real; default: all")
    p.add_argument("--methods", nargs="+", default=list(LIBRARIES), help="family or family:option")
    p.add_argument("--targets", nargs="+", type=float, default=[0.05, 0.01], help="of ours")
    p.add_argument(
        "--seeds",
        type=int,
        help="runs of a method and problem; by default 100 of ours (20 if a run takes a second), 20 of "
        "bridge and sample_smc, 10 of the others; for --coverage 500 (50)",
    )
    p.add_argument("--seed", type=int, default=1, help="the first; the next ones follow")
    p.add_argument("--cap", type=float, default=600.0, help="CPU seconds of one run")
    p.add_argument("--cold", action="store_true", help="measure starts with empty caches, too")
    p.add_argument(
        "--starts", type=int, default=1, help="of each method and problem, measured apart"
    )
    p.add_argument("--cores", type=int, default=1, help="jobs side by side, each on one core")
    p.add_argument("--resume", action="store_true", help="keep finished rows and do the others")
    p.add_argument("--out", default=str(common.RESULTS), help="folder of the results")
    p.add_argument("--quick", action="store_true", help="a small run that shows that it works")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save; be a worker if asked to."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--worker"]:
        done = work(Job(**json.loads(arguments[1])))
        Path(arguments[2]).write_text(json.dumps(done))
        return
    p = parser()
    if "--quick" in arguments:
        p.set_defaults(**_QUICK)
    options = p.parse_args(arguments)
    options.compare |= not (options.coverage or options.speed or options.aim)
    options.methods = installed(options.methods)
    problems = named(options.problems)
    book = Book(Path(options.out), resume=options.resume)
    runner = Runner(options, book)
    names = (
        [*_LOGISTIC, *(problems if options.problems else _AIM_PROBLEMS)] if options.speed else []
    )
    try:
        each(runner.task, plan(options, problems), options.cores)
        each(runner.speed, names, 1)
    finally:
        finish(book.rows(), options)


def each(do: Callable[[Any], None], items: Sequence[Any], cores: int) -> None:
    """Do all, some side by side; where that is interrupted, what is under way is waited for."""
    if cores == 1:
        for item in items:
            do(item)
        return
    with ThreadPoolExecutor(cores) as pool:
        futures = [pool.submit(do, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def named(problems: Sequence[str] | None) -> list[str]:
    """Names of problems that there are."""
    from models.evidence_suite import CLASSIC, HARD, PROBLEMS, REAL

    groups = {"classic": CLASSIC, "hard": HARD, "real": REAL}
    chosen: list[str] = []
    for name in PROBLEMS if problems is None else problems:
        if name not in PROBLEMS and name not in groups:
            known = ", ".join([*groups, *PROBLEMS])
            raise SystemExit(f"--problems must be among {known}, got {name!r}")
        chosen += groups.get(name, [name])
    return list(dict.fromkeys(chosen))


def finish(rows: Sequence[Result], options: argparse.Namespace) -> None:
    """Print and save the tables of what there is."""
    if not rows:
        return
    text = report(rows, options)
    print(text)
    flat = [{k: "; ".join(v) if k == "flags" else v for k, v in row.items()} for row in rows]
    common.save(Path(options.out), _NAME, flat, text, {**vars(options), **versions()})


if __name__ == "__main__":
    main()
