"""Draws of a combination of estimators, and what was made before them, on disk, from which a killed run resumes."""

from __future__ import annotations

import copy
import json
import os

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from amc_pymc.bandits.arms import Arm, Sample, draw
from amc_pymc.bandits.contract import Policy
from amc_pymc.rng import RandomSeed
from amc_pymc.runs import Journal, begin_journal, name_of, packed, unpacked, words_to_store

__all__ = ["Meter", "Recorded", "arms_told", "open_record", "settings_told"]


class Meter(Protocol):
    """Measures jobs, wherever they run."""

    def measured(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that also returns measurements."""

    def receive(self, found: Any) -> Any:
        """Note the measurements; return the result."""

    def stored(self, found: Any) -> dict[str, Any]:
        """Return measurements as arrays."""

    def recall(self, arrays: dict[str, Any]) -> None:
        """Note measurements that were stored."""


class Recorded:
    """Samples of jobs in a journal, one batch per job, in the order of the jobs.

    Other parts of a run may precede them. A job is a tuple of arguments of :func:`amc_pymc.bandits.arms.draw`.
    Without a journal nothing is recalled and nothing is stored.

    Parameters
    ----------
    journal : Journal, optional
    others : set of str
        Names of arms that are functions of the user; the first job of each that is recalled is repeated.

    Raises
    ------
    ValueError
        If a file of the journal is damaged.
    """

    def __init__(self, journal: Journal | None = None, others: Iterable[str] = ()):
        self._journal, self._others = journal, set(others)
        self._known = deque([] if journal is None else journal.batches())
        self._n_known = len(self._known)

    @property
    def keeps(self) -> bool:
        """Whether there is a journal."""
        return self._journal is not None

    @property
    def rounds(self) -> int:
        """Number of rounds of which the journal has draws."""
        return int(self._known[-1].get("round", -1)) + 1 if self._known else 0

    def once[T](self, name: str, make: Callable[[], T], rng: np.random.Generator) -> T:
        """Return a part of the run that is on disk, or make it and store it, with the generator that it uses.

        Raises
        ------
        ValueError
            If something else is on disk.
        """
        if self._known:
            arrays = self._known.popleft()
            if "generator" not in arrays or str(arrays["part"]) != name:
                raise self._other(f"is not the {name}")
            rng.bit_generator.state = json.loads(str(arrays["generator"]))
            found: T = unpacked(arrays, name)
            return found
        made = make()
        if self._journal is not None:
            state = json.dumps(rng.bit_generator.state)
            self._journal.append({"part": name, "generator": state, **packed(made, name)})
        return made

    def samples[J: tuple[Any, ...], R](
        self,
        jobs: list[J],
        number: int,
        run: Callable[[list[J]], Iterable[R]],
        meter: Meter | None = None,
    ) -> Iterator[Sample | R]:
        """Yield the samples of the jobs of a round: those on disk, then those that `run` makes, which are stored.

        Measurements of `meter` are stored with them.

        Raises
        ------
        ValueError
            If the samples on disk are of other jobs.
        """
        todo = deque(jobs)
        while todo and self._known:
            job = todo.popleft()
            known = self._recall(job, number, meter)
            if job[0].name in self._others:
                self._others.remove(job[0].name)
                self._try(job, known)
            yield known
        found = run(list(todo)) if todo else ()
        for (arm, *_), result in zip(todo, found, strict=True):
            sample = result if meter is None else meter.receive(result)
            if self._journal is not None and isinstance(sample, Sample):
                measured = {} if meter is None else meter.stored(result)
                self._journal.append(_stored(arm, number, sample) | measured)
            yield sample

    def _recall(self, job: tuple[Any, ...], number: int, meter: Meter | None) -> Sample:
        (arm, n, *_), found = job, self._known.popleft()
        if "arm" not in found:
            raise self._other("has no draws")
        same = str(found["arm"]) == arm.name and int(found["round"]) == number
        if not (same and found["values"].size == n):
            raise self._other(
                f"has {found['values'].size} draws of arm {str(found['arm'])!r} in round {int(found['round'])}, which "
                f"are stored where the policy asks for {n} of {arm.name!r} in round {number}"
            )
        if meter is not None:
            meter.recall(found)
        return Sample(found["values"], found["costs"], found.get("controls"))

    def _try(self, job: tuple[Any, ...], stored: Sample) -> None:
        """Repeat a job, and once more if it differs: values that differ always do not come from the generator."""
        arm, n, rng, cost = job
        first = draw(arm, n, copy.deepcopy(rng), cost)
        if not _alike(first, stored, cost) and _alike(first, draw(arm, n, rng, cost), cost):
            raise self._other(f"has other draws of arm {arm.name!r} than this run makes there")

    def _other(self, what: str) -> ValueError:
        """Return the error that the batch that was just recalled is another one."""
        assert self._journal is not None
        return self._journal.other(self._n_known - len(self._known) - 1, what)


def open_record(
    checkpoint: str | os.PathLike[str] | None,
    arms: list[Arm],
    told: dict[str, Any],
    random_seed: RandomSeed,
) -> tuple[Recorded, RandomSeed]:
    """Open the record of a run.

    Parameters
    ----------
    checkpoint : str, Path or None
    arms : list of Arm
    told : dict
        What else the numbers depend on; functions, classes and objects are told by their names.
    random_seed : int, sequence of int, SeedSequence, Generator or None

    Returns
    -------
    Recorded
    int, sequence of int, SeedSequence, Generator or None
        Seed to continue with. Integers give the same draws with and without a checkpoint.
    """
    if checkpoint is None:
        return Recorded(), random_seed
    facts = {"sampler": "combination of estimators", "arms": arms_told(arms)}
    facts |= settings_told(told)
    journal, words = begin_journal(
        checkpoint, lambda: facts, words_to_store(random_seed), random_seed
    )
    return Recorded(journal, [arm.name for arm in arms]), words


def arms_told(arms: Iterable[Arm]) -> dict[str, Any]:
    """Return what identifies arms."""
    return {arm.name: asdict(arm) | {"function": name_of(arm.function)} for arm in arms}


def settings_told(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in a form that can be stored; what is no number or text is told by its name."""

    def fact(value: Any) -> Any:
        if isinstance(value, Policy):
            return name_of(type(value))
        return name_of(value) if callable(value) else value

    return {name: fact(value) for name, value in settings.items()}


def _alike(one: Sample, other: Sample, cost: Any) -> bool:
    """Whether two samples are equal, except for last digits and for seconds."""
    pairs: list[tuple[Any, Any]] = [(one.values, other.values)]
    pairs += [] if cost == "cpu" else [(one.costs, other.costs)]
    pairs += [] if one.controls is None else [(one.controls, other.controls)]
    return all(np.allclose(a, b, rtol=1e-6, atol=0.0, equal_nan=True) for a, b in pairs)


def _stored(arm: Arm, number: int, sample: Sample) -> dict[str, Any]:
    batch = {"arm": arm.name, "round": number, **sample._asdict()}
    return {name: value for name, value in batch.items() if value is not None}
