"""RacingMetropolis on 1e4 ... 1e8 rows, beside a race written by hand for the same model.

    python -m benchmarks.tall.scale                                  # in memory, half an hour
    python -m benchmarks.tall.scale --stored 1e8 --scratch /mnt/big  # and 1e8 rows on disk, 20 GB
    python -m benchmarks.tall.scale --sizes 1e6 --columns 10 --memory
    python -m benchmarks.tall.scale --quick                          # two minutes

Prints tables in Markdown and writes them, JSON and CSV into results/. What is compared
with what: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import results
from benchmarks.harness.jobs import Result
from benchmarks.harness.options import Option, parse, whole
from benchmarks.harness.tables import markdown, number
from benchmarks.tall import bench
from benchmarks.tall.memory import MemoryWatch
from benchmarks.tall.problems import Job

_NAME = "tall_scale"
METHODS = ("hand", "racing", "racing:10")
#: Draws of a chain, and how many times more the race written by hand makes, whose draws cost nothing else.
_DRAWS, _HAND_TIMES = 20_000, 5
_CHAINS = 4
HEADERS = (
    "D", "N", "method", "steps/s", "of hand-written", "ESS/s", "rows per step", "set-up CPU s",
    "set-up s", "peak RSS MB", "anonymous MB", "mean error / sd", "run",
)  # fmt: skip
STORED_HEADERS = (
    "D", "N", "Parquet MB", "writing it s", "store MB", "making it s", "pass s (CPU)",
    "reading the file s (CPU)",
)  # fmt: skip
MEMORY_HEADERS = ("N", "start", "chains", "Pss MB", "of one chain", "anonymous MB", "run")


def main(options: argparse.Namespace) -> None:
    """Measure everything, print and save the tables."""
    runs, rows = bench.Bench("benchmarks.tall.scale_worker", options), []
    for job in jobs(options):
        rows.append(measure(runs, job))
        print(markdown(HEADERS, [line(rows[-1], rows)]), flush=True)
        kept = [{k: v for k, v in row.items() if k != "parameters"} for row in rows]
        results.save(options, _NAME, kept, report(rows))
    print(report(rows))


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All measurements."""
    o = options
    for columns in o.columns:
        problem = f"logistic_{columns}"
        for n_rows in o.sizes:
            for method in o.methods:
                draws = o.draws * _HAND_TIMES if method == "hand" else o.draws
                yield Job(problem, method, n_rows, o.seed, o.cap, draws=draws)
        for n_rows in o.stored:
            yield Job(problem, "stored", n_rows, o.seed, o.cap, draws=o.draws)
    if o.memory:
        problem, n_rows = f"logistic_{o.columns[0]}", o.memory_rows
        for start in o.memory:
            for chains in (1, _CHAINS):
                method = f"racing:{start}"
                yield Job(problem, method, n_rows, o.seed, o.cap, chains, _CHAINS, o.draws)


# --- measurements ---------------------------------------------------------------------------------


def measure(runs: bench.Bench, job: Job) -> Result:
    """Run a job, after the one that writes its rows if they are to be on disk."""
    with tempfile.TemporaryDirectory(dir=runs.options.scratch) as scratch:
        os.environ["TALL_SCALE_SCRATCH"] = scratch
        # What is on disk is read by code that racing has compiled.
        known = job.family if job.family in METHODS else "racing"
        runs.prime(replace(job, method=known, chains=1, cores=1))
        sampling, written = Path(scratch) / "sampling", {}
        if job.family == "stored":
            written = runs.run(replace(job, method="write"))
            if written["status"] != "finished":
                return figures(written)
        sampling.unlink(missing_ok=True)
        watch = MemoryWatch(sampling)
        row = figures(runs.run(job, watch) | watch.peaks)
    return {**row, "parquet_s": written.get("setup_s"), "parquet_mb": written.get("parquet_mb")}


def figures(result: Result) -> Result:
    """What the tables show."""
    row = bench.figures(result) | {"columns": int(result["problem"].split("_")[1])}
    made = row["draws"] * row.get("transitions", 1)
    row["steps_per_s"] = made / (row.get("sample_cpu_s") or math.nan)
    row["rows_per_step"] = row["rows_share"] * row["n_rows"]
    row["parameters"] = result.get("parameters", {})
    return row


# --- the report -----------------------------------------------------------------------------------


def report(rows: Sequence[Result]) -> str:
    """All tables."""
    how = (
        "Logistic regression with D columns, one of them of ones. Every measurement in a process of its "
        "own with one thread, one chain; steps/s and ESS/s are those of CPU seconds while sampling."
    )
    single = [r for r in rows if not watched(r)]
    parts = [
        "# Racing from 1e4 to 1e8 rows",
        how,
        markdown(HEADERS, [line(r, rows) for r in single]),
    ]
    on_disk = [r for r in rows if r["family"] == "stored"]
    if on_disk:
        parts += ["## Rows on disk", markdown(STORED_HEADERS, map(stored_line, on_disk))]
    several = [r for r in rows if watched(r)]
    if several:
        parts += [
            "## Memory of chains side by side, while sampling",
            markdown(MEMORY_HEADERS, [memory_line(r, rows) for r in several]),
        ]
    return "\n\n".join(parts)


def watched(row: Result) -> bool:
    """Whether a row is of chains whose memory is compared."""
    return row["cores"] > 1


def line(row: Result, rows: Sequence[Result]) -> list[str]:
    """One method at one N and D."""
    return [
        str(row["columns"]), f"{row['n_rows']:,}", row["method"], number(row["steps_per_s"]),
        number(of_hand(row, rows), 2), number(row["ess_per_cpu_s"]), number(row["rows_per_step"]),
        number(row.get("setup_cpu_s")), number(row["setup_s"]), number(row["peak_mb"]),
        number(row.get("anonymous_mb")), number(mean_error(row, rows), 2), row["status"],
    ]  # fmt: skip


def of_hand(row: Result, rows: Sequence[Result]) -> float:
    """Steps per second as a share of those of the race written by hand."""
    return row["steps_per_s"] / bench.peer_of(rows, row, "hand").get("steps_per_s", math.nan)


def mean_error(row: Result, rows: Sequence[Result]) -> float:
    """Largest distance of a posterior mean from the mode, in standard deviations."""
    laplace = bench.peer_of(rows, row, "hand").get("laplace")
    found = row["parameters"].get("mean")
    if not laplace or not found:
        return math.nan
    return max(abs(m - c) / s for m, c, s in zip(found, laplace["mean"], laplace["sd"]))


def stored_line(row: Result) -> list[str]:
    """Passes over rows on disk."""
    cells = [number(row.get(k)) for k in ("parquet_mb", "parquet_s", "store_mb", "store_s")]
    passes = [
        f"{number(row.get(f'{k}_s'))} ({number(row.get(f'{k}_cpu_s'))})" for k in ("pass", "read")
    ]
    return [str(row["columns"]), f"{row['n_rows']:,}", *cells, *passes]


def memory_line(row: Result, rows: Sequence[Result]) -> list[str]:
    """Memory of some chains."""
    start = row["method"].split(":")[1]
    cells = [f"{row['n_rows']:,}", start, str(row["chains"]), number(row.get("sampling_pss_mb"))]
    ratio = number(of_one_chain(row, rows), 3)
    return [*cells, ratio, number(row.get("sampling_anonymous_mb")), row["status"]]


def of_one_chain(row: Result, rows: Sequence[Result]) -> float:
    """Memory beside that of one chain."""
    same = [r for r in rows if (r["method"], r["n_rows"]) == (row["method"], row["n_rows"])]
    one = next((r for r in same if r["chains"] == 1), {})
    return row.get("sampling_pss_mb", math.nan) / one.get("sampling_pss_mb", math.nan)


if __name__ == "__main__":
    main(
        parse(
            __doc__,
            quick={
                "columns": [10], "sizes": [10_000], "stored": [20_000], "memory": ["fork"],
                "memory_rows": 10_000, "draws": 2_000,
            },
            columns=Option([10, 50], "D"),
            sizes=Option([10_000, 100_000, 1_000_000, 10_000_000], "N in memory"),
            stored=Option([], "numbers of rows on disk, such as 1e8", read=whole),
            methods=list(METHODS), draws=_DRAWS, cap=600.0, memory_rows=1_000_000,
            memory=Option([], "watch the memory of one and of four chains: fork, spawn"),
            scratch=Option(None, "folder for rows on disk, by default that of temporary files"),
            caches="warm",
        )
    )  # fmt: skip
