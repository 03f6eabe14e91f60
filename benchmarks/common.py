"""What the benchmark scripts share: jobs in processes of their own, summaries, tables, options.

The process that hands out jobs imports neither PyMC nor JAX; every method starts in a fresh
interpreter, so that its compile time and its peak of memory are its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problems import Problem

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"
#: Rows of the run that fills the compilers' caches before anything is timed.
_PRIME_ROWS = 2_000
_SETUP_LIMIT = 1_800.0
#: Seconds between two looks at a process that is watched.
_LOOK = 0.25

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One method on one data set, to be run by a worker.

    ``method`` is a family and its options, joined by colons: ``racing:10`` (transitions per draw),
    ``racing:noproxy``, ``racing:exact``, ``hmcecs:300`` (rows of a subsample), ``nuts``,
    ``nuts:lowrank``, ``metropolis``, ``laplace``.
    ``cap`` bounds warm-up and sampling together, in seconds. ``draws`` and ``tune`` are per chain;
    None leaves them to the method.
    """

    problem: str
    method: str
    n_rows: int
    seed: int
    cap: float
    chains: int = 1
    cores: int = 1
    draws: int | None = None
    tune: int | None = None

    @property
    def family(self) -> str:
        """The sampler."""
        return self.method.split(":")[0]

    @property
    def options(self) -> tuple[str, ...]:
        """What follows the sampler's name."""
        return tuple(self.method.split(":")[1:])


# --- jobs in processes of their own --------------------------------------------------------------


def run_job(
    script: str,
    job: Job,
    caches: str | None = None,
    limit: float = _SETUP_LIMIT,
    watch: Callable[[int], None] | None = None,
) -> Result:
    """Run a job in a fresh interpreter; a failure becomes a result with a status that says so.

    `limit` is in seconds, for all that is not warm-up or sampling; `watch` is as in `run_command`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "result.json"
        command = [sys.executable, "-m", script, "--worker", json.dumps(asdict(job)), str(target)]
        env = worker_environment(job.cores, caches or str(Path(scratch) / "caches"))
        log = Path(scratch) / "log"
        status = run_command(command, env, log, limit + 1.5 * job.cap, watch)
        if target.exists():
            return json.loads(target.read_text())
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        return {**asdict(job), "status": f"failed ({status}): {' '.join(tail)[:300]}"}


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    limit: float,
    watch: Callable[[int], None] | None = None,
) -> str:
    """Run a command for so many seconds at most, its output in a file, and say how it ended.

    `watch` is called with the process's number every quarter of a second.
    """
    deadline = time.monotonic() + limit
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0.0:
                    return f"stopped after {limit:.0f} s"
                try:
                    wait = min(left, _LOOK) if watch else left
                    return f"exit code {process.wait(timeout=wait)}"
                except subprocess.TimeoutExpired:
                    if watch:
                        watch(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def worker_environment(cores: int, caches: str) -> dict[str, str]:
    """One thread per core for every library, and caches of the benchmarks' own."""
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
    )
    xla = f"--xla_cpu_multi_thread_eigen={'true' if cores > 1 else 'false'}"
    return {
        **os.environ,
        **threads,
        "XLA_FLAGS": xla,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "AMC_PYMC_CACHE": f"{caches}/models",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
    }


def serve(problems: Mapping[str, Problem], arguments: Sequence[str]) -> None:
    """Be the worker: ``--worker JOB RESULT``."""
    from benchmarks.samplers import run

    job = Job(**json.loads(arguments[0]))
    Path(arguments[1]).write_text(json.dumps(run(problems[job.problem], job)))


class Bench:
    """Runs the jobs of a script, one after the other, and keeps what they return."""

    def __init__(self, script: str, options: argparse.Namespace):
        self.script = script
        self.options = options
        self.out = Path(options.out)
        self._caches = str(self.out / "caches") if options.caches == "warm" else None
        self._primed: set[tuple[str, str]] = set()

    def run(self, job: Job) -> Result:
        """Run one job and say so."""
        key = (job.problem, job.method)
        if self._caches and key not in self._primed:
            self._primed.add(key)
            prime = replace(job, n_rows=_PRIME_ROWS, cap=5.0, draws=200, tune=100)
            run_job(self.script, prime, self._caches)
        print(f"... {job.problem} N={job.n_rows:,} {job.method}", file=sys.stderr, flush=True)
        result = run_job(self.script, job, self._caches)
        print(f"    {result['status']}", file=sys.stderr, flush=True)
        return result

    def job(self, problem: str, method: str, n_rows: int, **changes) -> Job:
        """A job with the script's options."""
        o = self.options
        base = Job(problem, method, n_rows, o.seed, o.cap, chains=o.chains, cores=o.cores)
        return replace(base, **changes)

    def reference(self, problem: str, method: str, n_rows: int, **changes) -> Result:
        """Run a reference, or read it from disk if the same job has been run before."""
        job = self.job(problem, method, n_rows, **changes)
        name = f"{problem}-{method.replace(':', '_')}-{n_rows}-{job.seed}.json"
        path = self.out / "references" / name
        if path.exists():
            saved = json.loads(path.read_text())
            if saved["job"] == asdict(job):
                return saved["result"]
        result = self.run(job)
        if "parameters" in result:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"job": asdict(job), "result": result}))
        return result

    def long_nuts(self, problem: str, n_rows: int, method: str = "nuts") -> Result:
        """The long NUTS run that others are compared with, on all cores."""
        o = self.options
        draws, tune = (500, 300) if o.quick else (2_500, 1_000)
        return self.reference(
            problem,
            method,
            n_rows,
            chains=4,
            cores=os.cpu_count() or 1,
            draws=draws,
            tune=tune,
            cap=o.reference_cap,
        )


# --- figures -------------------------------------------------------------------------------------


def figures(result: Result) -> Result:
    """What the tables show of a worker's result, without its arrays."""
    row = {k: v for k, v in result.items() if k != "parameters"}
    row["family"] = row["method"].split(":")[0]
    for key in ("setup_s", "warmup_s", "sample_s", "peak_mb", "rows_share", "draws"):
        row[key] = _number(row.get(key))
    parameters = result.get("parameters", {})
    row["ess_bulk"] = _least(parameters.get("ess_bulk"))
    row["ess_tail"] = _least(parameters.get("ess_tail"))
    ess = min(row["ess_bulk"], row["ess_tail"])
    row["ess_per_s"] = ess / row["sample_s"] if row["sample_s"] > 0 else math.nan
    row["fixed_s"] = row["setup_s"] + row["warmup_s"]
    row["to_1000_s"] = row["fixed_s"] + 1000.0 / row["ess_per_s"] if ess > 0 else math.nan
    row["total_s"] = row["fixed_s"] + row["sample_s"]
    row["ess_min"], row["ess_min_of"] = _least_of(parameters)
    cpu = _number(row.get("sample_cpu_s"))
    row["ess_per_cpu_s"] = row["ess_min"] / cpu if cpu > 0 else math.nan
    row["r_hat"] = _largest(parameters.get("r_hat"))
    return row


def _least_of(parameters: Result) -> tuple[float, str]:
    """The smaller of bulk and tail ESS of the parameter where it is smallest, and which that is."""
    if not parameters.get("ess_bulk"):
        return math.nan, ""
    ess = np.minimum(parameters["ess_bulk"], parameters["ess_tail"])
    return float(ess.min()), parameters["label"][int(ess.argmin())]


def _largest(values: Sequence[float] | None) -> float:
    return float(np.max(values)) if values else math.nan


def compare(result: Result, reference: Result) -> Result:
    """Errors of a result's means and sds in the reference's sds, with Monte Carlo errors."""
    if "parameters" not in result or "parameters" not in reference:
        return {}
    got, ref = _arrays(result["parameters"]), _arrays(reference["parameters"])
    with np.errstate(divide="ignore", invalid="ignore"):  # a variable that never moved has no sd
        bias_mean = (got["mean"] - ref["mean"]) / ref["sd"]
        bias_sd = got["sd"] / ref["sd"] - 1.0
    if not np.all(np.isfinite(bias_mean) & np.isfinite(bias_sd)):
        return {}
    mcse_mean = np.hypot(got["mcse_mean"], ref["mcse_mean"]) / ref["sd"]
    mcse_sd = np.hypot(got["mcse_sd"], ref["mcse_sd"]) / ref["sd"]
    labels = result["parameters"]["label"]
    return {
        **_worst("mean", bias_mean, mcse_mean, labels),
        **_worst("sd", bias_sd, mcse_sd, labels),
        "sd_ratio_min": float(1.0 + bias_sd.min()),
        "sd_ratio_max": float(1.0 + bias_sd.max()),
    }


def _worst(name, bias, mcse, labels) -> Result:
    k = int(np.argmax(np.abs(bias)))
    z = np.abs(bias) / np.where(mcse > 0.0, mcse, np.nan)
    return {
        f"bias_{name}": float(bias[k]),
        f"bias_{name}_mcse": float(mcse[k]),
        f"bias_{name}_of": labels[k],
        f"bias_{name}_max_z": float(np.nanmax(z)) if np.any(np.isfinite(z)) else math.nan,
    }


def _arrays(parameters: Result) -> dict[str, np.ndarray]:
    return {k: np.asarray(v, dtype=float) for k, v in parameters.items() if k != "label"}


def _least(values: Sequence[float] | None) -> float:
    return float(np.min(values)) if values else math.nan


def _number(value) -> float:
    return math.nan if value is None else float(value)


# --- tables --------------------------------------------------------------------------------------


def markdown(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table for people."""
    out = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    out += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(out)


def number(value: float | None, digits: int = 3) -> str:
    """Digits that matter, "-" for what is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0.0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """A share of one as a percentage."""
    return "-" if share is None or not math.isfinite(share) else f"{number(100.0 * share)} %"


def with_error(value: float | None, error: float | None, label: str = "") -> str:
    """A signed value with its standard error."""
    if value is None or not math.isfinite(value):
        return "-"
    of = f" ({label})" if label else ""
    return f"{value:+.3f} ± {number(error, 2)}{of}"


def ratio(value: float) -> str:
    """How many times faster, or slower, in the same words for everybody."""
    if not (math.isfinite(value) and value > 0.0):
        return "-"
    return f"{number(value)}x faster" if value >= 1.0 else f"{number(1.0 / value)}x slower"


def decision_error_cell(row: Result) -> str:
    """Measured decision error with its Clopper-Pearson interval, beside the promised one."""
    if not row.get("audited"):
        return "-"
    return (
        f"{percent(row['error'])} [{percent(row['error_low'])}, {percent(row['error_high'])}] "
        f"of {row['audited']}; promised {percent(row['delta'])}"
    )


def save(out: Path, name: str, rows: Sequence[Result], text: str, meta: Result) -> None:
    """Write rows as JSON and CSV and the printed text as Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps({"meta": meta, "rows": list(rows)}, indent=1))
    (out / f"{name}.md").write_text(text + "\n")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with (out / f"{name}.csv").open("w", newline="") as sink:
        writer = csv.DictWriter(sink, keys)
        writer.writeheader()
        writer.writerows(rows)


# --- options -------------------------------------------------------------------------------------


def parser(description: str, methods: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--methods", nargs="+", default=list(methods), help="see benchmarks/README.md")
    p.add_argument("--cap", type=float, default=600.0, help="seconds of warm-up and sampling")
    p.add_argument("--reference-cap", type=float, default=1_800.0, help="the same for references")
    p.add_argument("--chains", type=int, default=1)
    p.add_argument("--cores", type=int, default=1, help="cores that every method may use")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--caches",
        choices=("warm", "cold"),
        default="warm",
        help="compilers' caches on disk: filled by a small run first, or empty for every job",
    )
    p.add_argument("--out", default=str(RESULTS), help="folder of the results")
    p.add_argument("--quick", action="store_true", help="a small run that shows that it works")
    return p


def start(
    script: str,
    problems: Mapping[str, Problem],
    options: argparse.ArgumentParser,
    main: Callable[[Bench], None],
    argv: Sequence[str] | None = None,
    quick: Mapping[str, Any] | None = None,
) -> None:
    """Work on one job if asked to, else hand them out; `quick` holds the defaults of --quick."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--worker"]:
        serve(problems, arguments[1:])
        return
    if "--quick" in arguments:
        options.set_defaults(**(quick or {}))
    main(Bench(script, options.parse_args(arguments)))
