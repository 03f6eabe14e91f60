"""One measurement of `scale.py` in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys

from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.harness.jobs import Result, Stopwatch, serve
from benchmarks.tall import samplers
from benchmarks.tall.outcomes import Outcome, cpu_figures, pin
from benchmarks.tall.problems import Job, logistic_chunks, logistic_data, logistic_problem
from benchmarks.tall.worker import result_of

#: Rows of the placeholders of a model whose rows are on disk, and bytes read at a time.
_PLACEHOLDERS, _BYTES = 500, 8 * 2**20


def coefficients(columns: int) -> np.ndarray:
    """As those of `logistic.py` with ten columns, and logits of about the same size with more."""
    return np.linspace(-0.8, 0.8, columns) * np.sqrt(10.0 / columns)


def problem_of(job: Job):
    """Logistic regression with as many columns as the name of the job's problem says."""
    columns = int(job.problem.split("_")[1])
    make_data = partial(logistic_data, coefficients=coefficients(columns))
    return logistic_problem(job.problem, f"Logistic regression, D = {columns}", make_data)


def scratch() -> Path:
    """Where the rows on disk are, and the file `sampling` that says that set-up is over."""
    return Path(os.environ["TALL_SCALE_SCRATCH"])


# --- methods --------------------------------------------------------------------------------------


def racing(job: Job) -> Outcome:
    """RacingMetropolis on rows in memory; ``racing:10`` makes ten transitions for every draw."""
    import amc_pymc as amc

    problem = problem_of(job)
    transitions = job.count(1)
    model = problem.make_model(problem.make_data(job.n_rows, job.seed))
    step, built = samplers.timed_step(
        model,
        lambda: amc.RacingMetropolis(
            race="normal", transitions_per_draw=transitions, progressbar=False
        ),
    )
    return _sampled(job, problem, model, step, built)


def stored(job: Job) -> Outcome:
    """RacingMetropolis on the rows of Parquet files."""
    import amc_pymc as amc

    from amc_pymc.rows import stored_rows

    problem, folder = problem_of(job), scratch()
    model = problem.make_model(problem.make_data(_PLACEHOLDERS, job.seed))
    names = [f"x{k}" for k in range(model["X"].eval().shape[1])]
    rows = amc.Rows(folder / "rows", {"X": names, "y": "y"}, folder=folder)
    times = []

    def timed(*args, **kwargs):
        watch, store = Stopwatch(), stored_rows(*args, **kwargs)
        times.append(watch.stop().wall_s)
        return store

    with patch("amc_pymc.steps.preparation.stored_rows", timed):
        step, built = samplers.timed_step(
            model, lambda: amc.RacingMetropolis(race="normal", rows=rows, progressbar=False)
        )
    outcome = _sampled(job, problem, model, step, built)
    outcome.extra |= _passes(step) | {"store_s": times[0]}
    return outcome


def _sampled(job: Job, problem, model, step, built: Stopwatch) -> Outcome:
    for start in set(job.options) & set(multiprocessing.get_all_start_methods()):
        multiprocessing.set_start_method(start, force=True)
    begin()
    draws, tune = job.draws or 20_000, job.tune or 1_000
    outcome, idata = samplers.sample_steps(problem, job, model, step, draws, tune, built)
    made = step.sampler.transitions
    outcome = samplers.race_figures(outcome, idata, job.n_rows * made)
    outcome.extra["transitions"] = made
    return outcome


def _passes(step) -> Result:
    """Seconds of a pass over the store that sums the log-likelihood, and of reading the file alone.

    The file's pages are taken out of the system's cache before each, as far as it allows.
    """
    densities, centre = step.prepared.densities, step.prepared.surrogate.centre
    times, store = {}, Path(densities.store.path)
    for name in ("read", "pass"):
        densities.store.release()
        _forget_pages(store)
        watch = Stopwatch()
        if name == "read":
            _read(store)
        else:
            for _ in densities.value_chunks(centre):
                pass
        watch.stop()
        times |= {f"{name}_s": watch.wall_s, f"{name}_cpu_s": watch.cpu_s}
    return {**times, "store_mb": store.stat().st_size / 1e6}


def _forget_pages(path: Path) -> None:
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    buffer = bytearray(_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def hand(job: Job) -> Outcome:
    """The race written by hand; one compiled call makes all steps."""
    from benchmarks.tall import hand_written_race as race

    problem = problem_of(job)
    data = problem.make_data(job.n_rows, job.seed)
    built = Stopwatch()
    Z = race.signed_rows(data)
    at, rng = race.expand(Z), np.random.default_rng(job.seed)
    race.sample(Z, at, 10, rng)
    built.stop()
    begin()
    watch = Stopwatch()
    draws, counts = race.sample(Z, at, job.draws or 20_000, rng)
    watch.stop()
    extra = cpu_figures(built.cpu_s, watch, 0.0, watch.wall_s)
    sd = np.sqrt(np.diag(at.factor @ at.factor.T))
    extra |= {
        "accepted": float(counts.accepted.mean()),
        "transitions": 1,
        "laplace": {"mean": at.mode.tolist(), "sd": sd.tolist()},
    }
    share = float(counts.rows.mean()) / job.n_rows
    return Outcome({"beta": draws[None]}, built.wall_s, 0.0, watch.wall_s, share, extra=extra)


def write(job: Job) -> Outcome:
    """Write the rows to Parquet files, a chunk at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = scratch() / "rows"
    folder.mkdir()
    columns = int(job.problem.split("_")[1])
    watch = Stopwatch()
    for k, part in enumerate(logistic_chunks(job.n_rows, job.seed, coefficients(columns))):
        table = pa.table({f"x{c}": part["X"][:, c] for c in range(columns)} | {"y": part["y"]})
        name = folder / f"part-{k // _CHUNKS_OF_A_FILE:05d}.parquet"
        if k % _CHUNKS_OF_A_FILE == 0:
            writer = pq.ParquetWriter(name, table.schema, compression="NONE", use_dictionary=False)
        writer.write_table(table)
        if (k + 1) % _CHUNKS_OF_A_FILE == 0:
            writer.close()
    writer.close()
    watch.stop()
    size = sum(file.stat().st_size for file in folder.iterdir())
    extra = {"parquet_mb": size / 1e6, "setup_cpu_s": watch.cpu_s}
    return Outcome({}, watch.wall_s, 0.0, 0.0, np.nan, extra=extra)


_CHUNKS_OF_A_FILE = 25
METHODS = {"racing": racing, "stored": stored, "hand": hand, "write": write}


# --- the measurement ------------------------------------------------------------------------------


def run(job: Job) -> Result:
    """Figures of a job."""
    pin(job.cores)
    return result_of(problem_of(job), job, METHODS[job.family](job))


def begin() -> None:
    """Tell who watches that set-up is over."""
    (scratch() / "sampling").touch()


if __name__ == "__main__":
    serve(sys.argv[1:], lambda job: run(Job(**job)))
