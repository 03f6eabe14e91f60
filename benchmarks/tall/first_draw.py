"""Seconds from the end of the model block to the first draw, for twelve shapes of models.

    python -m benchmarks.tall.first_draw                                        # half an hour
    python -m benchmarks.tall.first_draw --shapes negative_binomial --methods racing
    python -m benchmarks.tall.first_draw --quick                                # two shapes, 500 rows

Prints tables in Markdown and writes them, JSON and CSV into results/. What "cold", "warm" and
"shared" mean, and what is not timed: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import results
from benchmarks.harness.jobs import (
    ROOT,
    SETUP_LIMIT,
    Result,
    run_command,
    run_job,
    say,
    worker_environment,
)
from benchmarks.harness.options import Option, parse
from benchmarks.harness.tables import markdown, number
from benchmarks.tall.problems import Job

_NAME = "first_draw"
_WORKER = "benchmarks.tall.first_draw_worker"
METHODS = ("racing", "racing-interpreted", "pm.sample", "nutpie")
#: The names in `first_draw_models.SHAPES`, which this process does not import.
SHAPES = (
    "zero_inflated_poisson", "bivariate_normal", "ordered_logistic", "multinomial_logit",
    "censored_weibull", "customer_lifetime", "group_slopes", "negative_binomial", "hsgp_regression",
    "student_regression", "group_intercepts", "normal_mixture",
)  # fmt: skip
STATES = ("cold", "warm", "shared")
_KEYS = {"cpu_s": "CPU s", "wall_s": "wall s"}
_FIGURES = tuple((state, key) for state in STATES for key in _KEYS)
_TIMES = tuple(f"{state} {_KEYS[key]}" for state, key in _FIGURES)
_STEPS = tuple(f"step alone, {state} CPU s" for state in STATES)
HEADERS = ("shape", "method", *_TIMES, *_STEPS, "run")


def main(options: argparse.Namespace) -> None:
    """Measure all shapes and methods, print and save the tables."""
    rows: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        kernels = Path(scratch) / "caches"
        compile_package(kernels, options)
        for shape in options.shapes:
            for method in options.methods:
                rows.append(measure(shape, method, kernels, Path(scratch), options))
                print(markdown(HEADERS, [line(rows[-1])]), flush=True)
                results.save(options, _NAME, rows, report(rows, options))
    print(report(rows, options))


# --- measurements --------------------------------------------------------------------------------


def compile_package(folder: Path, options: argparse.Namespace) -> None:
    """Fill a folder of caches with the package's own kernels and nothing else, by `python -m amc_pymc.compile`."""
    folder.mkdir(parents=True)
    if not any("racing" in m for m in options.methods):
        return
    say("... compiling the package's own kernels")
    command = [sys.executable, "-m", "amc_pymc.compile"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    log = folder / "log"
    environment = worker_environment(1, str(folder)) | {"PYTHONPATH": path}
    status = run_command(command, environment, log, SETUP_LIMIT)
    if status != "exit code 0":
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"amc_pymc.compile: {status}: {' '.join(tail)}")
    log.unlink()
    shutil.rmtree(folder / "pytensor", ignore_errors=True)
    for library in (folder / "models").rglob("*.machine"):
        library.unlink()


def measure(
    shape: str, method: str, kernels: Path, scratch: Path, options: argparse.Namespace
) -> Result:
    """Figures of a method on a shape.

    Cold: the caches are a copy of the folder `kernels`. Warm: the same caches again. Shared: the
    caches are those that this method left in the folder `scratch` for the shapes before.
    """
    row: Result = {"shape": shape, "method": method, "n_rows": options.rows, "status": "finished"}
    job = Job(shape, method, options.rows, options.seed, cap=0.0)
    with tempfile.TemporaryDirectory() as fresh:
        caches, shared = Path(fresh) / "caches", scratch / method
        shutil.copytree(kernels, caches)
        if not shared.exists():
            shutil.copytree(kernels, shared)
        for state, folder in zip(STATES, (caches, caches, shared), strict=True):
            say(f"... {shape} {method} {state}")
            result = run_job(_WORKER, job, str(folder))
            if result["status"] != "finished":
                return row | {"status": f"{state}: {result['status']}"}
            row |= {f"{state}_{key}": result[key] for key in _KEYS}
            row[f"{state}_step_cpu_s"] = result["step"]["cpu_s"]
    return row


# --- the report ----------------------------------------------------------------------------------


def report(rows: Sequence[Result], options: argparse.Namespace) -> str:
    """All tables."""
    how = (
        f"{options.rows:,} rows, every measurement in a process of its own with one thread. From the "
        "end of the model block to the first draw of one chain; CPU seconds are user and system "
        "time. Cold: nothing but the package's own kernels is compiled; warm: the same again; shared: "
        "with what the shapes above it have compiled. Step alone: the part before `pm.sample` or "
        "`nutpie.sample`."
    )
    return "\n\n".join(
        [
            "# Seconds to the first draw",
            how,
            markdown(HEADERS, map(line, rows)),
            "## CPU seconds by shape",
            markdown(*by_shape(rows)),
        ]
    )


def line(row: Result) -> list[str]:
    """One method on one shape."""
    times = [number(row.get(f"{state}_{key}")) for state, key in _FIGURES]
    step = ["-"] * len(STATES)
    if row["method"] != "pm.sample":
        step = [number(row.get(f"{state}_step_cpu_s")) for state in STATES]
    return [row["shape"], row["method"], *times, *step, row["status"]]


def by_shape(rows: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """CPU seconds to the first draw of every shape, a column for each state of each method."""
    methods, shapes = (dict.fromkeys(row[key] for row in rows) for key in ("method", "shape"))
    found = {
        (row["shape"], row["method"], state): number(row.get(f"{state}_cpu_s"))
        for row in rows
        for state in STATES
    }
    pairs = [(method, state) for method in methods for state in STATES]
    lines = [[shape, *(found.get((shape, *pair), "-") for pair in pairs)] for shape in shapes]
    return ["shape", *(f"{method}, {state}" for method, state in pairs)], lines


if __name__ == "__main__":
    main(
        parse(
            __doc__, quick={"shapes": ["bivariate_normal", "negative_binomial"], "rows": 500},
            shapes=Option(list(SHAPES), choices=SHAPES),
            methods=Option(list(METHODS), choices=METHODS), rows=3_000,
        )
    )  # fmt: skip
