"""Draws of a combination of estimators on disk, from which a killed run resumes."""

from __future__ import annotations

import os

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from amc_pymc.bandits import Policy
from amc_pymc.combination import Arm, Sample
from amc_pymc.rng import RandomSeed, as_generator, seed_words
from amc_pymc.running import Journal, begin_journal, name_of

__all__ = ["Recorded", "open_record"]


class Recorded:
    """Samples of jobs in a journal, one batch per job, in the order of the jobs.

    A job is a tuple whose first elements are the arm and the number of draws. Without a journal nothing is recalled
    and nothing is stored.

    Attributes
    ----------
    rounds : int
        Number of rounds of which the journal has draws.

    Raises
    ------
    ValueError
        If a file of the journal is damaged.
    """

    def __init__(self, journal: Journal | None = None):
        self._journal = journal
        self._known = deque([] if journal is None else journal.batches())
        self.rounds = int(self._known[-1]["round"]) + 1 if self._known else 0

    def samples[J: tuple[Any, ...], R](
        self, jobs: list[J], number: int, run: Callable[[list[J]], Iterable[R]]
    ) -> Iterator[Sample | R]:
        """Yield the samples of the jobs of a round: those on disk, then those that `run` makes, which are stored.

        Raises
        ------
        ValueError
            If the samples on disk are of other jobs.
        """
        todo = deque(jobs)
        while todo and self._known:
            arm, n, *_ = todo.popleft()
            yield self._recall(arm, n, number)
        found = run(list(todo)) if todo else ()
        for (arm, *_), result in zip(todo, found, strict=True):
            if self._journal is not None and isinstance(result, Sample):
                self._journal.append(_stored(arm, number, result))
            yield result

    def _recall(self, arm: Arm, n: int, number: int) -> Sample:
        found = self._known.popleft()
        same = str(found["arm"]) == arm.name and int(found["round"]) == number
        if not (same and found["values"].size == n):
            raise ValueError(
                f"checkpoint: {found['values'].size} draws of arm {str(found['arm'])!r} in round {int(found['round'])} "
                f"are stored where the policy asks for {n} of {arm.name!r} in round {number}; the estimators or the "
                "policy have changed. Delete the folder or name another one."
            )
        return Sample(found["values"], found["costs"], found.get("controls"), found["failed"])


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
    named = {arm.name: asdict(arm) | {"function": name_of(arm.function)} for arm in arms}
    facts = {"sampler": "combination of estimators", "arms": named}
    facts |= {name: _fact(value) for name, value in told.items()}
    journal, words = begin_journal(checkpoint, lambda: facts, _words(random_seed), random_seed)
    return Recorded(journal), words


def _words(random_seed: RandomSeed) -> list[int]:
    if random_seed is None or isinstance(random_seed, np.random.SeedSequence | np.random.Generator):
        return seed_words(random_seed)
    as_generator(random_seed)  # raises an error if it is no seed
    words: list[int] = np.atleast_1d(random_seed).tolist()
    return words


def _fact(value: Any) -> Any:
    """Return a value in a form that can be stored; what is no number or text is told by its name."""
    if isinstance(value, Policy):
        return name_of(type(value))
    return name_of(value) if callable(value) else value


def _stored(arm: Arm, number: int, sample: Sample) -> dict[str, Any]:
    batch = {"arm": arm.name, "round": number, **sample._asdict()}
    return {name: value for name, value in batch.items() if value is not None}
