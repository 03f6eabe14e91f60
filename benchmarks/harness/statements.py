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
from benchmarks.harness.jobs import Result, say
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

    rows: list[dict]
    text: str
    statements: list[Statement]


def publish(
    options: Namespace, makers: Mapping[str, Callable[[], Part]], *,
    clock: Callable[[], float] = time.process_time, seconds: Mapping[str, float] | None = None,
    hidden: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Make all parts, print them as they come, and save their rows and a table of all statements.

    `clock` times the parts, after `seconds` that were taken before; `hidden` options are not saved.
    """
    parts: list[Part] = []
    taken = dict(seconds or {})
    for name, make in makers.items():
        begun = clock()
        parts.append(make())
        taken[name] = round(clock() - begun, 1)
        print(f"{parts[-1].text}\n", flush=True)
        for s in parts[-1].statements:
            say(" | ".join(s.line()))
    lines = [s.line() for part in parts for s in part.statements]
    unit = "CPU seconds" if clock is time.process_time else "Seconds"
    table = f"## Statements\n\n{markdown(_HEADERS, lines)}\n\n{unit}: "
    table += ", ".join(f"{k} {s:g}" for k, s in taken.items())
    print(table)
    text = "\n\n".join([*(part.text for part in parts), table])
    rows: list[Result] = [row for part in parts for row in part.rows]
    rows += [{"figure": "statements", **dict(zip(_KEYS, line, strict=True))} for line in lines]
    shown = Namespace(**{k: v for k, v in vars(options).items() if k not in hidden})
    shown.out = options.out
    results.save(shown, options.name, rows, text, {"seconds": taken})


def times_up_to(n: int, number: int = 40, start: int = 10) -> np.ndarray:
    """Checkpoints, evenly spaced in logarithm."""
    return np.unique(np.geomspace(min(start, n), n, number).round().astype(np.int64))


def batches(runs: int, size: int) -> Iterator[int]:
    """Sizes of batches of runs."""
    for start in range(0, runs, size):
        yield min(size, runs - start)
