"""How close to the evidence, how soon, and how honest: estimate_evidence and its peers where log Z is known.

    python -m benchmarks.evidence.suite --quick                     # three problems, two minutes
    python -m benchmarks.evidence.suite                             # all problems and methods: hours
    python -m benchmarks.evidence.suite --problems hard real        # the newer ones of models/evidence_suite.py
    python -m benchmarks.evidence.suite --coverage --targets 0.05   # intervals over 500 seeds
    python -m benchmarks.evidence.suite --speed                     # densities and moves, by hand and ours
    python -m benchmarks.evidence.suite --aim                       # three problems to an error of 0.01
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

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evidence.methods import LIBRARIES, expand, family, installed
from benchmarks.evidence.speed import LOGISTIC
from benchmarks.evidence.tables import AIM_PROBLEMS, AIM_TARGET, report
from benchmarks.evidence.worker import Job, Wanted, left, open_book, work
from benchmarks.harness import options
from benchmarks.harness.jobs import Result, run_job, say, serve
from benchmarks.harness.results import Book, save

_NAME = "evidence_suite"
_MODULE = "benchmarks.evidence.suite"
#: Seeds of a comparison where a run takes less than a second, and where it takes more.
_SEEDS = {"estimate_evidence": (100, 20), "bridge": (20, 20), "sample_smc": (20, 20)}
_FEW_SEEDS = (10, 10)
_COVERAGE_SEEDS = (500, 50)
_AIM_STARTS = 3
_QUICK: dict[str, Any] = {
    "problems": list(AIM_PROBLEMS),
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


# --- plan ----------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One family on one problem."""

    problem: str
    family: str
    wanted: dict[str, tuple[int, int]]
    starts: int


def plan(o: argparse.Namespace, problems: Sequence[str]) -> list[Task]:
    """What the tables need."""
    tasks: dict[tuple[str, str], Task] = {}

    def want(problem: str, method: str, seeds: tuple[int, int], starts: int) -> None:
        family = method.partition(":")[0]
        task = tasks.get((problem, family), Task(problem, family, {}, 0))
        if o.seeds is not None:
            seeds = (o.seeds, o.seeds)
        before = task.wanted.get(method, (0, 0))
        task.wanted[method] = max(before[0], seeds[0]), max(before[1], seeds[1])
        tasks[problem, family] = task._replace(starts=max(task.starts, starts))

    methods = expand(o.methods, o.targets)
    for problem in problems:
        for method in methods:
            family = method.partition(":")[0]
            if o.compare:
                want(problem, method, _SEEDS.get(family, _FEW_SEEDS), o.starts)
            if o.coverage and family == "estimate_evidence":
                want(problem, method, _COVERAGE_SEEDS, 0)
    if o.aim:
        for problem in AIM_PROBLEMS:
            for method in expand(o.methods, [AIM_TARGET]):
                family = method.partition(":")[0]
                want(problem, method, _SEEDS.get(family, _FEW_SEEDS), _AIM_STARTS)
    return list(tasks.values())


class Runner:
    """Hands out jobs."""

    def __init__(self, options: argparse.Namespace, book: Book):
        self.options, self.book = options, book
        self.caches = str(Path(options.out).resolve() / "caches")

    def task(self, task: Task) -> None:
        """Runs first, which fills the caches, then starts with warm and with cold ones."""
        o = self.options
        wanted = [
            todo
            for method, (cheap, dear) in task.wanted.items()
            if (todo := left(self.book, task.problem, Wanted(method, cheap, dear), o.seed))
        ]
        if wanted:
            self._job(task, wanted)
        first = [Wanted(next(iter(task.wanted)), 0, 0)]
        rows = [r for r in self.book.rows() if r["problem"] == task.problem]
        if any(r["kind"] == "run" and r["status"] == "not for discrete" and family(r) == task.family
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
            problem=task.problem, method=task.family, wanted=wanted, rows=str(self.book.path.resolve()),
            cap=runs * o.cap, run_cap=o.cap, seed=o.seed if seed is None else seed, caches=caches,
        )  # fmt: skip
        what = f"{task.problem} {task.family}" + (
            f", {caches} start" if runs == 1 < len(wanted) + 1 else ""
        )
        begin = time.perf_counter()
        result = run_job(_MODULE, job, self.caches if caches == "warm" else None)
        took = time.perf_counter() - begin
        say(f"... {what}: {result['status']}, {took:.0f} s")
        if result["status"] != "finished":
            broken = {
                "kind": "run" if runs > 1 else "start", "problem": task.problem, "seed": None,
                "status": result["status"], "truth": math.nan, "reference_error": math.nan, "n_dim": 0,
                "easy": False, "caches": caches,
            }  # fmt: skip
            self.book.add(*({**broken, "method": w.method} for w in wanted))


def parser() -> argparse.ArgumentParser:
    """Options of this script."""
    p = options.parser(__doc__, seed="the first; the next ones follow")
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
    p.add_argument("--cap", type=float, default=600.0, help="CPU seconds of one run")
    p.add_argument("--cold", action="store_true", help="measure starts with empty caches, too")
    p.add_argument(
        "--starts", type=int, default=1, help="of each method and problem, measured apart"
    )
    p.add_argument("--cores", type=int, default=1, help="jobs side by side, each on one core")
    p.add_argument("--resume", action="store_true", help="keep finished rows and do the others")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save; be a worker if asked to."""
    if serve(sys.argv[1:] if argv is None else argv, lambda job: work(Job(**job))):
        return
    o = options.parse(parser(), argv, _QUICK)
    o.compare |= not (o.coverage or o.speed or o.aim)
    o.methods = installed(o.methods)
    problems = named(o.problems)
    book = book_of(Path(o.out), resume=o.resume)
    runner = Runner(o, book)
    names = [*LOGISTIC, *(problems if o.problems else AIM_PROBLEMS)] if o.speed else []
    try:
        each(runner.task, plan(o, problems), o.cores)
        each(runner.speed, names, 1)
    finally:
        finish(book.rows(), o)


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


def finish(rows: Sequence[Result], o: argparse.Namespace) -> None:
    """Print and save the tables of what there is."""
    if not rows:
        return
    text = report(rows, o)
    print(text)
    flat = [{k: "; ".join(v) if k == "flags" else v for k, v in row.items()} for row in rows]
    save(o, _NAME, flat, text)


if __name__ == "__main__":
    main()
