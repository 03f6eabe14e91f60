"""Jobs in processes of their own, with one thread, caches of their own, and a limit of time.

Only the standard library is imported here: the process that hands out jobs imports neither PyMC nor
JAX, and every method starts in a fresh interpreter, so that its compile time and its peak of memory
are its own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Seconds for all that is not warm-up or sampling.
SETUP_LIMIT = 3_600.0
#: Seconds between two looks at a process that is watched.
_LOOK = 0.25

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One method on one problem; benchmarks add what else a run is determined by.

    ``method`` is a family and its options, joined by colons: ``racing:10``, ``nuts:lowrank``,
    ``tree:adjust``. Jobs for :func:`run_job` also have ``cores`` and ``cap``, in seconds.
    """

    problem: str
    method: str

    @property
    def family(self) -> str:
        """What stands before the options of the method."""
        return self.method.split(":")[0]

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the method."""
        return tuple(self.method.split(":")[1:])

    def count(self, default: Any) -> Any:
        """The first option that is a whole number."""
        return next((int(o) for o in self.options if o.isdigit()), default)


def run_job(
    script: str, job: Any, caches: str | None = None, watch: Callable[[int], None] | None = None
) -> Result:
    """Run a job in a fresh interpreter; a failure becomes a result with a status that says so.

    `watch` is as in `run_command`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "result.json"
        command = [sys.executable, "-m", script, "--worker", json.dumps(asdict(job)), str(target)]
        env = worker_environment(job.cores, caches or str(Path(scratch) / "caches"))
        log = Path(scratch) / "log"
        status = run_command(command, env, log, SETUP_LIMIT + 1.5 * job.cap, watch)
        if target.exists():
            return json.loads(target.read_text())
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        return {**asdict(job), "status": f"failed ({status}): {' '.join(tail)[:300]}"}


def serve(arguments: Sequence[str], work: Callable[[Result], Result]) -> bool:
    """Be the worker that `run_job` starts, if the arguments are ``--worker JOB RESULT``."""
    if list(arguments[:1]) != ["--worker"]:
        return False
    Path(arguments[2]).write_text(json.dumps(work(json.loads(arguments[1]))))
    return True


def run_command(
    command: Sequence[str], env: Mapping[str, str], log: Path, limit: float,
    watch: Callable[[int], None] | None = None,
) -> str:  # fmt: skip
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
        **os.environ, **threads, "XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1",
        "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "NUMBA_CACHE_DIR": f"{caches}/numba",
        "AMC_PYMC_CACHE": f"{caches}/models",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
    }  # fmt: skip


class Stopwatch:
    """Wall and CPU seconds, those of children that have ended included, from its start until it is stopped."""

    def __init__(self):
        self._begin = time.perf_counter(), cpu_seconds()
        self.wall_s = self.cpu_s = math.nan

    def stop(self) -> Stopwatch:
        """Note both times."""
        self.wall_s = time.perf_counter() - self._begin[0]
        self.cpu_s = cpu_seconds() - self._begin[1]
        return self

    def read(self) -> dict[str, float]:
        """Both times so far."""
        self.stop()
        return {"cpu_s": self.cpu_s, "wall_s": self.wall_s}


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def say(text: str) -> None:
    """Tell how far a benchmark has come, on the standard error."""
    print(text, file=sys.stderr, flush=True)
