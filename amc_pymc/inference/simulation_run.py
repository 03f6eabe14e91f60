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
from amc_pymc.extract.simulator import ModelProblem
from amc_pymc.flags import Flag, flag
from amc_pymc.inference.abc_fingerprint import problem_fingerprint
from amc_pymc.inference.evidence_model import context_model
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.running import Journal, begin_journal, check_workers, run_loop
from amc_pymc.simulators.failures import describe, failure_arrays, failures_from_arrays
from amc_pymc.simulators.problem import Failure, Problem, Simulated
from amc_pymc.simulators.simulator_problem import SimulatorProblem
from amc_pymc.simulators.workers import Simulate, simulation_workers

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["How", "SimulationRun", "as_problem", "failure_flags", "simulation_run", "sizes_of"]

#: Share of failed simulations above which a warning is given.
_MANY_FAILED = 0.05


class How(NamedTuple):
    """Arguments of the user about the simulations and the run."""

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
        check_workers(cores, executor)
        timeout = positive_or_none("simulation_timeout", simulation_timeout)
        limit = positive_or_none("max_time", max_time)
        batched = boolean("batched", batched)
        return cls(batched, timeout, cores, executor, checkpoint, limit, progressbar, random_seed)


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
        self._stored, self._n_recalled = self.journal.batches(), len(self.journal)
        self._begin = time.monotonic()

    def simulate(self, u: np.ndarray, b: int) -> Simulated:
        """Simulate batch b at points (n, D) of the unit cube, unless the journal has it."""
        stored = next(self._stored, None)
        if stored is not None:
            self.bar.advance(len(u))
            self.seconds.append(math.nan)
            return _restored(stored)
        start = time.perf_counter()
        found = self.workers(u, [*self.words, b])
        self.seconds.append(time.perf_counter() - start)
        self.journal.append(_to_store(found))
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
    sizes: Sequence[int],
    how: How,
    settings: dict[str, Any],
    *,
    summaries: bool = False,
) -> Iterator[SimulationRun]:
    """Begin a run, or resume it: batches in the journal are treated as if they had just been simulated.

    Parameters
    ----------
    description : str
        Name of the sampler.
    problem : Problem
    sizes : sequence of int
        Sizes of the batches.
    how : How
    settings : dict
        What else the numbers depend on.
    summaries : bool, default False
        Whether to keep summary statistics.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for simulators that always fail and checkpoints of other runs.
    """
    flags: list[Flag] = []
    options: dict[str, Any] = {"batched": how.batched, "timeout": how.timeout}

    def told() -> dict[str, Any]:
        found, doubts = problem_fingerprint(problem, **options, summaries=summaries)
        flags.extend(doubts)
        run = {"sampler": description, "sizes": list(sizes), "batched": how.batched}
        return {**found, **run, **settings}

    words = seed_words(how.random_seed)
    journal, words = begin_journal(how.checkpoint, told, words, how.random_seed)
    trial, *rngs = spawn_generators(words, 2 + len(sizes))
    problem.check(trial, **options)
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


def sizes_of(max_simulations: object, batch_size: object) -> tuple[int, int | None]:
    """Return budget and batch size after checking them."""
    budget = positive_int("max_simulations", max_simulations)
    size = None if batch_size is None else positive_int("batch_size", batch_size)
    if size is not None and size > budget:
        raise ValueError(
            f"max_simulations={budget} is less than a batch, batch_size={size}; raise it or leave batch_size "
            "out."
        )
    return budget, size
