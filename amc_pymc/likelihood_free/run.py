"""A run of batches of simulations: its workers, journal, limits and warnings."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amc_pymc.arguments import boolean, positive_int, positive_or_none
from amc_pymc.flags import Flag, flag
from amc_pymc.likelihood_free.model_problem import ModelProblem
from amc_pymc.likelihood_free.problem import (
    Failure,
    Problem,
    Simulated,
    describe,
    failure_arrays,
    failures_from_arrays,
)
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.likelihood_free.trial import Trial, try_simulator
from amc_pymc.likelihood_free.workers import Simulate, simulation_workers
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.reading.graphs import context_model
from amc_pymc.rng import RandomSeed, as_generator, seed_words, spawn_generators
from amc_pymc.runs import Journal, begin_journal, number_of_cores, run_loop

if TYPE_CHECKING:
    from pymc import Model

#: Maximum number of summary statistics that are stored if nobody asks for them.
MOST_SUMMARIES = 100
#: Share of failed simulations above which a warning is given.
_MANY_FAILED = 0.05
#: Number of points at which priors are compared.
_PROBES = 100


@dataclass
class SimulationRun:
    """A run whose batches come from a journal, as far as it has them, or are simulated.

    Attributes
    ----------
    sizes : sequence of int
        Sizes of the batches.
    rngs : list of numpy.random.Generator
        One more than batches.
    flags : list of Flag
    seconds : list of float
        Simulation time of each batch; nan for batches from the journal.
    failures : list of Failure
        Failures with indices among all simulations.
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
    failures: list[Failure] = field(default_factory=list)

    def simulate(self, u: np.ndarray, b: int) -> Simulated:
        """Simulate batch b at points (n, D) of the unit cube, unless the journal has it."""
        start, stored = time.perf_counter(), self.journal.recall(u)
        if stored is None:
            found = self.workers(u, [*self.words, b])
            self.seconds.append(time.perf_counter() - start)
            summaries = {} if found.summaries is None else {"summaries": found.summaries}
            stored = {"distance": found.distance, **failure_arrays(found.failures), **summaries}
            self.journal.append(stored, u)
        else:
            failures = failures_from_arrays(stored)
            found = Simulated(stored["distance"], failures, stored.get("summaries"))
            self.seconds.append(math.nan)
            self.bar.advance(len(u))
        before = sum(self.sizes[:b])
        self.failures += [f._replace(index=before + f.index) for f in found.failures]
        return found

    def follow[T](self, states: Iterable[T], told: Callable[[T], str]) -> T:
        """Make batches until the last one, a limit or an interrupt; return the last state.

        Parameters
        ----------
        states : iterable
            Makes a batch when it is asked for the state after it.
        told : callable
            Text beside the bar.
        """
        ended = run_loop(
            states,
            n_steps=len(self.sizes),
            n_untimed=len(self.journal),
            max_time=self.max_time,
            each=lambda state: self.bar.advance(0, self.description + told(state)),
        )
        if ended.why == "max_time":
            self.flags.append(flag("out_of_time", limit=self.max_time))
        elif ended.why == "interrupted":
            self.flags.append(flag("interrupted"))
        return ended.last


@contextmanager
def simulation_run(
    description: str,
    problem: Problem,
    sizes_of: Callable[[int, int | None, Sequence[int]], list[int]],
    settings: dict[str, Any],
    *,
    max_simulations: int,
    batch_size: int | None = None,
    batched: bool = False,
    cores: int | None = 1,
    checkpoint: str | Path | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
    summaries: bool = False,
) -> Iterator[SimulationRun]:
    """Begin a run, or resume it: batches in the journal are treated as if they had just been simulated.

    The budget includes the simulations that try the simulator. It may be larger than that of the run in the journal.

    Parameters
    ----------
    description : str
        Name of the sampler.
    problem : Problem
    sizes_of : callable
        Maps the number of simulations, the size of batches that the user wants, and the sizes of those in the journal
        to the sizes of all batches.
    settings : dict
        What else the numbers depend on.
    max_simulations, batch_size, batched, cores, checkpoint, max_time, progressbar, random_seed
        As for :func:`sample_abc_tree`.
    summaries : bool, default False
        Whether to keep summary statistics.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for invalid arguments, simulators that always fail and checkpoints of other runs.
    """
    budget = positive_int("max_simulations", max_simulations)
    size = None if batch_size is None else positive_int("batch_size", batch_size)
    if size is not None and size > budget:
        raise ValueError(
            f"max_simulations={budget} is less than a batch, batch_size={size}; raise it or leave batch_size out."
        )
    number_of_cores(cores, 1)  # checks the value
    max_time, batched = positive_or_none("max_time", max_time), boolean("batched", batched)
    trial = try_simulator(problem, batched=batched)
    flags = [] if trial.reproducible else [flag("not_reproducible")]
    run = {"sampler": description, "batched": batched, "batch_size": size, **settings}
    words = seed_words(random_seed)
    journal, words = begin_journal(
        checkpoint, lambda: _fingerprint(problem, trial) | run, words, random_seed
    )
    done = [len(batch["distance"]) for batch in journal.batches()]
    left = budget - trial.simulations
    if left < 1 or sum(done) > budget:
        why = f"the run in checkpoint={str(checkpoint)!r} has {sum(done):,} already"
        if left < 1:
            why = f"{trial.simulations} of these are to try the simulator"
        raise ValueError(f"max_simulations={budget} is too small: {why}; raise it.")
    sizes = sizes_of(left, size, done)
    _, *rngs = spawn_generators(words, 2 + len(sizes))
    with (
        progress(description, sum(sizes), enabled=progressbar) as bar,
        simulation_workers(
            problem, batched=batched, summaries=summaries, advance=bar.advance, cores=cores
        ) as simulate,
    ):
        yield SimulationRun(
            description, sizes, max_time, rngs, flags, words, bar, simulate, journal
        )


def _fingerprint(problem: Problem, trial: Trial) -> dict[str, Any]:
    """Return the prior, the data, and the results of a trial if it is reproducible, by what messages call them."""
    u = as_generator(0).random((_PROBES, problem.n_dim))
    return {
        "shapes": {k: list(v) for k, v in problem.shapes.items()},
        "prior": {k: np.asarray(v) for k, v in problem.parameters(u).items()},
        "prior density": problem.log_prior(u),
        "observed": problem.observed_summaries,
        "a trial of simulator, summaries, distance and epsilon": (
            trial.numbers if trial.reproducible else None
        ),
    }


def failure_flags(problem: Problem, failures: list[Failure], u: np.ndarray) -> list[Flag]:
    """Return a flag about failed simulations at points (N, D), unless few failed and none raised an error."""
    failures = [f for f in failures if f.index < len(u)]  # none of a batch that was interrupted
    few = len(failures) <= _MANY_FAILED * len(u)
    if few and not any(f.kind == "error" for f in failures):
        return []
    return [flag("simulations_failed", failures=describe(failures, problem.parameters(u)))]


def as_problem(model: Model | SimulatorProblem | None) -> tuple[Problem, Any]:
    """Return problem and model of ``model=``: a SimulatorProblem, or a ``pm.Model``, given or from the context."""
    if isinstance(model, SimulatorProblem):
        return model, None
    model = context_model(model, single=True)
    return ModelProblem(model), model
