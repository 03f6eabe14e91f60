"""Statements of papers and what was found: parts of a benchmark, each with a text, rows and statements.

Causes of a "no" are in ``docs/explanation/papers.md``.
"""

from __future__ import annotations

import time

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.harness import results
from benchmarks.harness.jobs import say
from benchmarks.harness.tables import markdown

#: Batches of runs by policy.
Collected = dict[str, list[np.ndarray]]
_HEADERS = ("source", "statement", "holds", "evidence, 95 %")
_KEYS = ("source", "statement", "holds", "evidence")


class Statement(NamedTuple):
    """One sentence of a paper and what was found."""

    source: str
    text: str
    holds: bool
    evidence: str

    def line(self) -> list[str]:
        """For the table."""
        return [self.source, self.text, "yes" if self.holds else "no", self.evidence]


class Statements(list[Statement]):
    """Statements of one source; a call adds one, without its source."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source

    def __call__(self, text: str, holds: bool, evidence: str) -> None:
        self.append(Statement(self.source, text, holds, evidence))


class Part(NamedTuple):
    """What one figure gives."""

    text: str
    statements: list[Statement]


def publish(
    name: str, options: Namespace, makers: Mapping[str, Callable[[], Part]], *,
    clock: Callable[[], float] = time.process_time,
) -> None:  # fmt: skip
    """Make all parts, print them as they come, and save their texts and all statements.

    `name` is that of the files, and `clock` times the parts.
    """
    parts: list[Part] = []
    taken = {}
    for part, make in makers.items():
        begun = clock()
        parts.append(make())
        taken[part] = round(clock() - begun, 1)
        print(f"{parts[-1].text}\n", flush=True)
        for s in parts[-1].statements:
            say(" | ".join(s.line()))
    lines = [s.line() for part in parts for s in part.statements]
    unit = "CPU seconds" if clock is time.process_time else "Seconds"
    table = f"## Statements\n\n{markdown(_HEADERS, lines)}\n\n{unit}: "
    table += ", ".join(f"{k} {s:g}" for k, s in taken.items())
    print(table)
    text = "\n\n".join([*(part.text for part in parts), table])
    rows = [dict(zip(_KEYS, line, strict=True)) for line in lines]
    results.save(options, name, rows, text, {"seconds": taken})


def times_up_to(n: int, number: int = 40, start: int = 10) -> np.ndarray:
    """Checkpoints, evenly spaced in logarithm."""
    return np.unique(np.geomspace(min(start, n), n, number).round().astype(np.int64))


def batches(runs: int, size: int) -> Iterator[int]:
    """Sizes of batches of runs."""
    for start in range(0, runs, size):
        yield min(size, runs - start)
