"""What the figures of the bandit papers share: statements, intervals, checkpoints."""

from __future__ import annotations

import math

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks import common

#: Batches of runs by policy.
Collected = dict[str, list[np.ndarray]]
Z95 = 1.959964


class Statement(NamedTuple):
    """One sentence of a paper and what was found."""

    source: str
    text: str
    holds: bool
    evidence: str
    cause: str = ""

    def line(self) -> list[str]:
        """For the table."""
        return [
            self.source,
            self.text,
            "yes" if self.holds else "no",
            self.evidence,
            "" if self.holds else self.cause,
        ]


class Part(NamedTuple):
    """What one figure gives."""

    rows: list[dict]
    text: str
    statements: list[Statement]


def mean_and_half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over runs (the first axis) and half widths of their 95 % intervals."""
    return values.mean(0), Z95 * values.std(0, ddof=1) / math.sqrt(len(values))


def interval(values: np.ndarray, digits: int = 3) -> str:
    """Mean with its 95 % interval, for people."""
    mean, half = mean_and_half(np.asarray(values, float))
    return f"{common.number(float(mean), digits)} ± {common.number(float(half), 2)}"


def less(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a is less than b on average, significantly (paired, 95 %)."""
    mean, half = mean_and_half(np.asarray(a, float) - np.asarray(b, float))
    return bool(mean < -half)


def difference(a: np.ndarray, b: np.ndarray) -> str:
    """Mean of a - b with its 95 % interval."""
    mean, half = mean_and_half(np.asarray(a, float) - np.asarray(b, float))
    return f"{mean:+.3g} ± {common.number(float(half), 2)}"


def times_up_to(n: int, number: int = 40, start: int = 10) -> np.ndarray:
    """Checkpoints, evenly spaced in logarithm."""
    return np.unique(np.geomspace(min(start, n), n, number).round().astype(np.int64))


def batches(runs: int, size: int) -> Iterator[int]:
    """Sizes of batches of runs."""
    for start in range(0, runs, size):
        yield min(size, runs - start)
