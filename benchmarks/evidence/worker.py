"""The process that runs methods of one family on one problem of the suite."""

from __future__ import annotations

import importlib
import math
import os
import time

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.evidence.methods import CONTINUOUS, LIBRARIES, PREPARE, option
from benchmarks.evidence.runs import attempt
from benchmarks.evidence.speed import speed
from benchmarks.harness import jobs
from benchmarks.harness.jobs import Result
from benchmarks.harness.results import Book

_CHEAP = 1.0
#: Runs after which it is known which, or that all take too long.
STOPPED = 3


def open_book(path: Path) -> Book:
    """Rows told apart by kind, problem, method, seed and caches."""
    names = ("kind", "problem", "method", "seed", "caches")
    return Book(path, lambda row: tuple(row.get(name) for name in names))


class Wanted(NamedTuple):
    """Seeds of one method: so many if a run is cheap, so many if it is dear, without those done."""

    method: str
    cheap: int
    dear: int
    done: Sequence[int] = ()


@dataclass(frozen=True)
class Job(jobs.Job):
    """Work for one process: runs of methods of one family on one problem, or measurements of speed.

    ``method`` is the family, or "speed".

    Without methods' seeds it only starts: imports, builds, estimates once. Rows go to the file
    `rows`; `cap` is what the whole job may take.
    """

    wanted: Sequence[Wanted]
    rows: str
    cap: float
    run_cap: float
    seed: int = 1
    caches: str = "warm"
    cores: int = 1


def work(job: Job) -> Result:
    """Do a job in this process and append its rows."""
    book = open_book(Path(job.rows))
    if job.family == "speed":
        book.add(*speed(job.problem))
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
    if job.family in CONTINUOUS and problem.prior_transform is None:
        rows = [{"kind": "run", "method": w.method, "status": "not for discrete"} for w in wanted]
        book.add(*({**about, "seed": job.seed, **row} for row in rows))
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
    book.add({**about, **start})
    for w in wanted:
        mine: list[Result] = []
        for seed in range(job.seed, job.seed + max(w.cheap, w.dear)):
            if seed in w.done:
                continue
            if not w.done and len(mine) >= enough(mine, w.cheap, w.dear):
                break
            row = attempt(lambda: call(option(w.method), seed), job.run_cap)
            row = {"kind": "run", **about, "method": w.method, "seed": seed, **row}
            book.add(row)
            mine.append(row)
            if os.getppid() != parent:
                return {"status": "nobody waits for this any more"}
    return {"status": "finished"}


def enough(rows: Sequence[Result], cheap: int, dear: int) -> int:
    """How many runs a method is to have: fewer if they are dear, no more if three ran out of time."""
    if sum(r["status"].startswith("stopped") for r in rows) >= STOPPED:
        return len(rows)
    costs = [r.get("cpu_s", math.inf) for r in rows]
    return dear if len(costs) >= STOPPED and np.median(costs) >= _CHEAP else cheap


def left(book: Book, problem: str, wanted: Wanted, first: int) -> Wanted | None:
    """What is still to be run of a method, None if nothing."""
    rows = [
        r
        for r in book.rows()
        if (r["kind"], r["problem"], r["method"]) == ("run", problem, wanted.method)
        and not r["status"].startswith("failed")
    ]
    if any(r["status"] == "not for discrete" for r in rows):
        return None
    if len(rows) < STOPPED:
        return wanted._replace(done=())
    n = enough(rows, wanted.cheap, wanted.dear)
    done = tuple(r["seed"] for r in rows)
    if len(rows) >= n or all(first + i in done for i in range(n)):
        return None
    return Wanted(wanted.method, n, n, done)


def cache_files() -> set[str]:
    """Files of the compilers' caches that this process uses."""
    flags = os.environ.get("PYTENSOR_FLAGS", "").partition("base_compiledir=")[2].split(",")[0]
    folders = [f for f in (os.environ.get("AMC_PYMC_CACHE", ""), flags) if f]
    kinds = {".kernel", ".nbc", ".nbi"}
    return {str(p) for f in folders for p in Path(f).rglob("*") if p.suffix in kinds}
