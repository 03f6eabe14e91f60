"""A run of batches of simulations: its workers, journal, limits and warnings."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.arguments import boolean, positive_int, positive_or_none
from amc_pymc.flags import Flag, flag
from amc_pymc.inference.abc_fingerprint import problem_fingerprint
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.simulators.problem import ModelProblem
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import Journal, begin_journal, check_workers, run_loop
from amc_pymc.simulators.failures import describe, failure_arrays, failures_from_arrays
from amc_pymc.simulators.problem import Failure, Problem, Simulated
from amc_pymc.simulators.simulator_problem import SimulatorProblem
from amc_pymc.simulators.trial import try_simulator
from amc_pymc.simulators.workers import Simulate, simulation_workers

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["How", "SimulationRun", "as_problem", "failure_flags", "simulation_run"]

#: Share of failed simulations above which a warning is given.
_MANY_FAILED = 0.05


class How(NamedTuple):
    """Arguments of the user about the simulations and the run."""

    budget: int
    batch_size: int | None
    batched: bool
    timeout: float | None
    cores: int | None
    executor: Executor | None
    checkpoint: str | FilePath | None
    max_time: float | None
    progressbar: bool
    random_seed: RandomSeed

    @classmethod
    def of(
        cls,
        max_simulations: int,
        batch_size: int | None,
        batched: bool,
        simulation_timeout: float | None,
        cores: int | None,
        executor: Executor | None,
        checkpoint: str | FilePath | None,
        max_time: float | None,
        progressbar: bool,
        random_seed: RandomSeed,
    ) -> How:
        """Check the arguments."""
        budget, size = _checked_sizes(max_simulations, batch_size)
        check_workers(cores, executor)
        timeout = positive_or_none("simulation_timeout", simulation_timeout)
        limit = positive_or_none("max_time", max_time)
        batched = boolean("batched", batched)
        return cls(
            budget, size, batched, timeout, cores, executor, checkpoint, limit, progressbar,
            random_seed,
        )  # fmt: skip


type SizesOf = Callable[[int, int | None, Sequence[int]], list[int]]


class _State(Protocol):
    """State of a run after a batch."""

    @property
    def distance(self) -> np.ndarray:
        """Distances of all simulations."""


@dataclass
class SimulationRun:
    """A run whose batches come from a journal, as far as it has them, or are simulated.

    Attributes
    ----------
    description : str
    sizes : sequence of int
        Sizes of the batches.
    max_time : float or None
    rngs : list of numpy.random.Generator
        One more than batches.
    flags : list of Flag
    seconds : list of float
        Simulation time of each batch; nan for batches from the journal.
    """

    description: str
    sizes: Sequence[int]
    max_time: float | None
    rngs: list[np.random.Generator]
    flags: list[Flag]
    words: list[int]
    bar: ProgressReport
    workers: Simulate
    journal: Journal
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._n_recalled = len(self.journal)
        self._begin = time.monotonic()

    def simulate(self, u: np.ndarray, b: int) -> Simulated:
        """Simulate batch b at points (n, D) of the unit cube, unless the journal has it."""
        stored = self.journal.recall(u)
        if stored is not None:
            self.bar.advance(len(u))
            self.seconds.append(math.nan)
            return _restored(stored)
        start = time.perf_counter()
        found = self.workers(u, [*self.words, b])
        self.seconds.append(time.perf_counter() - start)
        self.journal.append(_to_store(found), u)
        return found

    def follow[T: _State](
        self,
        states: Iterable[T],
        *,
        told: Callable[[T], str],
        enough: Callable[[T], bool] = lambda state: False,
    ) -> T:
        """Make batches until the last one, a limit or an interrupt; return the last state.

        Parameters
        ----------
        states : iterable
            Makes a batch when it is asked for the state after it.
        told : callable
            Text beside the bar.
        enough : callable, optional
            Whether the state needs no further batch.
        """
        ended = run_loop(
            states,
            n_steps=len(self.sizes),
            n_untimed=self._n_recalled,
            max_time=self.max_time,
            begin=self._begin,
            each=lambda state: self.bar.update(description=self.description + told(state)),
            enough=enough,
        )
        so_far = {"done": len(ended.last.distance), "total": sum(self.sizes)}
        if ended.why == "max_time":
            self.flags.append(flag("simulations_out_of_time", limit=self.max_time, **so_far))
        elif ended.why == "interrupted":
            self.flags.append(flag("simulations_interrupted", **so_far))
        return ended.last


@contextmanager
def simulation_run(
    description: str,
    problem: Problem,
    how: How,
    sizes_of: SizesOf,
    settings: dict[str, Any],
    *,
    summaries: bool = False,
) -> Iterator[SimulationRun]:
    """Begin a run, or resume it: batches in the journal are treated as if they had just been simulated.

    The budget includes the simulations that try the simulator. It may be larger than that of the run in the journal.

    Parameters
    ----------
    description : str
        Name of the sampler.
    problem : Problem
    how : How
    sizes_of : callable
        Maps the number of simulations, the size of batches that the user wants, and the sizes of those in the journal
        to the sizes of all batches.
    settings : dict
        What else the numbers depend on.
    summaries : bool, default False
        Whether to keep summary statistics.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for simulators that always fail and checkpoints of other runs.
    """
    options: dict[str, Any] = {"batched": how.batched, "timeout": how.timeout}
    trial = try_simulator(problem, **options)
    flags = [] if trial.reproducible else [flag("not_reproducible")]
    run = {"sampler": description, "batched": how.batched, "batch_size": how.batch_size, **settings}
    words = seed_words(how.random_seed)
    journal, words = begin_journal(
        how.checkpoint, lambda: problem_fingerprint(problem, trial) | run, words, how.random_seed
    )
    done = [len(batch["distance"]) for batch in journal.batches()]
    left = how.budget - trial.simulations
    if left < 1 or sum(done) > how.budget:
        why = f"the run in checkpoint={str(how.checkpoint)!r} has {sum(done):,} already"
        if left < 1:
            why = f"{trial.simulations} of these are to try the simulator"
        raise ValueError(f"max_simulations={how.budget} is too small: {why}; raise it.")
    sizes = sizes_of(left, how.batch_size, done)
    _, *rngs = spawn_generators(words, 2 + len(sizes))
    with (
        progress(description, sum(sizes), enabled=how.progressbar) as bar,
        simulation_workers(
            problem, cores=how.cores, executor=how.executor, **options, summaries=summaries, bar=bar
        ) as workers,
    ):
        yield SimulationRun(
            description, sizes, how.max_time, rngs, flags, words, bar, workers, journal
        )


def _to_store(found: Simulated) -> dict[str, np.ndarray]:
    out = {"distance": found.distance, **failure_arrays(found.failures)}
    return out if found.summaries is None else {**out, "summaries": found.summaries}


def _restored(stored: dict[str, np.ndarray]) -> Simulated:
    return Simulated(stored["distance"], failures_from_arrays(stored), stored.get("summaries"))


def failure_flags(problem: Problem, failures: list[Failure], u: np.ndarray) -> list[Flag]:
    """Return a flag about failed simulations at points (N, D), unless few failed and none raised an error."""
    few = len(failures) <= _MANY_FAILED * len(u)
    if few and not any(f.kind == "error" for f in failures):
        return []
    return [flag("simulations_failed", failures=describe(failures, problem.parameters(u)))]


# --- arguments ------------------------------------------------------------------------------------


def as_problem(model: Model | SimulatorProblem | None) -> tuple[Problem, Any]:
    """Return problem and model of ``model=``: a SimulatorProblem, or a ``pm.Model``, given or from the context."""
    if isinstance(model, SimulatorProblem):
        return model, None
    model = context_model(model, single=True)
    return ModelProblem.from_model(model), model


def _checked_sizes(max_simulations: object, batch_size: object) -> tuple[int, int | None]:
    """Return budget and batch size after checking them."""
    budget = positive_int("max_simulations", max_simulations)
    size = None if batch_size is None else positive_int("batch_size", batch_size)
    if size is not None and size > budget:
        raise ValueError(
            f"max_simulations={budget} is less than a batch, batch_size={size}; raise it or leave batch_size "
            "out."
        )
    return budget, size
