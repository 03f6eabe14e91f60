"""The process that runs methods of one family on one problem of the suite."""

from __future__ import annotations

import os

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.evidence.methods import CONTINUOUS, PREPARE
from benchmarks.evidence.runs import attempt
from benchmarks.harness import jobs
from benchmarks.harness.jobs import Result
from benchmarks.harness.results import Book

#: Runs that may run out of time before a method is given up.
STOPPED = 3


def open_book(path: Path) -> Book:
    """Rows told apart by problem, method and seed."""
    return Book(path, lambda row: tuple(row.get(name) for name in ("problem", "method", "seed")))


class Wanted(NamedTuple):
    """A method, and the seeds of its runs."""

    method: str
    seeds: Sequence[int]


@dataclass(frozen=True)
class Job(jobs.Job):
    """Work for one process: runs of the methods of one family on one problem.

    ``method`` is the family. Rows go to the file `rows`; `cap` is what the whole job may take.
    """

    wanted: Sequence[Wanted]
    rows: str
    cap: float
    run_cap: float
    caches: str = "warm"
    cores: int = 1


def work(job: Job) -> Result:
    """Do a job in this process and append its rows; the first call compiles, and is not counted."""
    from models.evidence_suite import PROBLEMS

    book, problem = open_book(Path(job.rows)), PROBLEMS[job.problem]()
    wanted, parent = [Wanted(*w) for w in job.wanted], os.getppid()
    about = {
        "kind": "run", "problem": job.problem, "truth": problem.log_evidence,
        "reference_error": problem.error, "n_dim": problem.n_dim, "easy": problem.easy,
    }  # fmt: skip
    if job.family in CONTINUOUS and problem.prior_transform is None:
        no = about | {"status": "not for discrete"}
        book.add(*({**no, "seed": w.seeds[0], "method": w.method} for w in wanted))
        return {"status": "finished"}
    estimate = PREPARE[job.family](problem)

    def call(method: str, seed: int) -> Result:
        return attempt(lambda: estimate(method.partition(":")[2], seed), job.run_cap)

    call(wanted[0].method, wanted[0].seeds[0] - 1)
    for w in wanted:
        stopped = 0
        for seed in w.seeds:
            row = call(w.method, seed)
            book.add({**about, "method": w.method, "seed": seed, **row})
            stopped += row["status"].startswith("stopped")
            if stopped >= STOPPED:
                break
            if os.getppid() != parent:
                return {"status": "nobody waits for this any more"}
    return {"status": "finished"}
