"""How close to the evidence, how soon, and how honest: estimate_evidence and its peers where log Z is known.

    python -m benchmarks.evidence.suite --quick                     # three problems, two minutes
    python -m benchmarks.evidence.suite                             # all problems and methods: hours
    python -m benchmarks.evidence.suite --problems hard real        # the newer ones of models/evidence_suite.py
    python -m benchmarks.evidence.suite --resume ...                # go on with what was interrupted

Methods are a family and its option: ``estimate_evidence:0.05`` (target; without one, all of
``--targets``), ``bridge:0.05`` (target; ours on the draws of nutpie), ``sample_smc:1000`` (draws of each of
two chains, combined by the mean of their evidences), ``dynesty:500`` and ``nautilus:1000`` (live points of
nested samplers) and ``morphz:2_group`` (kind of approximation, on the draws of nutpie). Runs of one
problem share a process; its first call is not counted. Every run is a line of evidence_suite.jsonl as soon
as it is done, from which tables in Markdown, JSON and CSV are made.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.evidence.honesty import report
from benchmarks.evidence.methods import LIBRARIES, expand, installed
from benchmarks.evidence.worker import STOPPED, Job, Wanted, open_book, work
from benchmarks.harness import options
from benchmarks.harness.jobs import Result, run_job, say, serve
from benchmarks.harness.options import Option
from benchmarks.harness.results import Book, save

_NAME = "evidence_suite"
_QUICK: dict[str, Any] = {
    "problems": ["linear_regression_100", "logistic_regression", "two_modes_10"],
    "methods": ["estimate_evidence", "bridge", "sample_smc", "dynesty:50"],
    "targets": [0.01],
    "seeds": 3,
}


def book_of(out: Path, *, resume: bool) -> Book:
    """All rows of a folder; unless one goes on with them, they are put aside."""
    path = out / f"{_NAME}.jsonl"
    if path.exists() and not resume:
        old = (path.with_suffix(f".{k}.jsonl") for k in itertools.count(1))
        path.replace(next(p for p in old if not p.exists()))
    return open_book(path)


def left(book: Book, problem: str, method: str, seeds: Sequence[int]) -> Wanted | None:
    """What is still to be run of a method, None if nothing."""
    rows = [r for r in book.rows() if (r["problem"], r["method"]) == (problem, method)]
    status = [r["status"] for r in rows]
    if "not for discrete" in status or sum(s.startswith("stopped") for s in status) >= STOPPED:
        return None
    done = {r["seed"] for r in rows if not r["status"].startswith("failed")}
    todo = [seed for seed in seeds if seed not in done]
    return Wanted(method, todo) if todo else None


def run_family(o: argparse.Namespace, book: Book, problem: str, methods: Sequence[str]) -> None:
    """Runs of the methods of one family on one problem, in a process."""
    seeds = range(o.seed, o.seed + o.seeds)
    wanted = [todo for m in methods if (todo := left(book, problem, m, seeds))]
    if not wanted:
        return
    family, runs = methods[0].partition(":")[0], 1 + sum(len(w.seeds) for w in wanted)
    job = Job(
        problem=problem, method=family, wanted=wanted, rows=str(book.path.resolve()),
        cap=runs * o.cap, run_cap=o.cap,
    )  # fmt: skip
    begin = time.perf_counter()
    result = run_job("benchmarks.evidence.suite", job, str(Path(o.out).resolve() / "caches"))
    say(f"... {problem} {family}: {result['status']}, {time.perf_counter() - begin:.0f} s")
    if result["status"] != "finished":
        broken = {
            "kind": "run", "problem": problem, "seed": None, "status": result["status"],
            "truth": math.nan, "reference_error": math.nan, "n_dim": 0, "easy": False,
        }  # fmt: skip
        book.add(*({**broken, "method": w.method} for w in wanted))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save; be a worker if asked to."""
    if serve(sys.argv[1:] if argv is None else argv, lambda job: work(Job(**job))):
        return
    o = options.parse(
        __doc__, argv, _QUICK, seed=Option(1, "the first; the next ones follow"),
        problems=Option([], "names, or classic, hard, real; default: all"),
        methods=Option(list(LIBRARIES), "family or family:option"),
        targets=Option([0.05, 0.01], "of ours"), seeds=Option(20, "runs of a method and problem"),
        cap=Option(600.0, "CPU seconds of one run"),
        cores=Option(1, "jobs side by side, each on one core"), resume=False,
    )  # fmt: skip
    methods = expand(installed(o.methods), o.targets)
    families = [list(m) for _, m in itertools.groupby(methods, lambda m: m.partition(":")[0])]
    book = book_of(Path(o.out), resume=o.resume)
    pool = ThreadPoolExecutor(o.cores)
    try:
        pairs = [(problem, family) for problem in named(o.problems) for family in families]
        list(pool.map(lambda pair: run_family(o, book, *pair), pairs))
    finally:
        # What is under way is waited for.
        pool.shutdown(cancel_futures=True)
        finish(book.rows(), o)


def named(problems: Sequence[str]) -> list[str]:
    """Names of problems that there are."""
    from models.evidence_suite import CLASSIC, HARD, PROBLEMS, REAL

    groups = {"classic": CLASSIC, "hard": HARD, "real": REAL}
    chosen: list[str] = []
    for name in problems or PROBLEMS:
        if name not in PROBLEMS and name not in groups:
            known = ", ".join([*groups, *PROBLEMS])
            raise SystemExit(f"--problems must be among {known}, got {name!r}")
        chosen += groups.get(name, [name])
    return list(dict.fromkeys(chosen))


def finish(rows: Sequence[Result], o: argparse.Namespace) -> None:
    """Print and save the tables of what there is."""
    if not rows:
        return
    text = report(rows)
    print(text)
    flat = [{k: "; ".join(v) if k == "flags" else v for k, v in row.items()} for row in rows]
    save(o, _NAME, flat, text)


if __name__ == "__main__":
    main()
