"""Means over runs with intervals: normal, Student's, by the bootstrap, and of shares."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.harness.tables import number

#: Half the width of a 95 % interval in standard errors.
Z95 = 1.959964
#: Samples of a bootstrap.
RESAMPLES = 1_000


def mean_and_half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over runs (the first axis) and half widths of their 95 % intervals."""
    return values.mean(0), Z95 * values.std(0, ddof=1) / math.sqrt(len(values))


def interval(values: np.ndarray, digits: int = 3) -> str:
    """Mean with its 95 % interval, for people."""
    mean, half = mean_and_half(np.asarray(values, float))
    return f"{number(float(mean), digits)} ± {number(float(half), 2)}"


class Gap(NamedTuple):
    """Mean of paired differences with its 95 % interval by Student's distribution."""

    mean: float
    half: float

    @property
    def below(self) -> bool:
        """Whether it is below zero for sure."""
        return self.mean < -self.half

    @property
    def above(self) -> bool:
        """Whether it is above zero for sure."""
        return self.mean > self.half

    def __str__(self) -> str:
        return f"{self.mean:+.3g} ± {number(self.half, 2)}"


def gap(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray | float = 0.0) -> Gap:
    """Of a - b over runs, of which there may be few.

    >>> from benchmarks.harness.intervals import gap
    >>> found = gap([1.0, 2.0, 3.0], [2.0, 3.5, 4.1])
    >>> found.below, str(found)
    (True, '-1.2 ± 0.66')
    """
    from scipy.stats import t as student

    values = np.asarray(a, float) - np.asarray(b, float)
    n = len(values)
    half = student.ppf(0.975, max(n - 1, 1)) * values.std(ddof=min(1, n - 1)) / math.sqrt(n)
    return Gap(float(values.mean()), float(half) if n > 1 else math.inf)


def list_of(gaps: Sequence[Gap]) -> str:
    """Several, for people."""
    return ", ".join(map(str, gaps))


class Ratio(NamedTuple):
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def bootstrap(statistic: Callable[[np.ndarray], float], n: int, seed: int = 1) -> Ratio:
    """Percentile interval of a statistic of n runs, given as indices."""
    rng = np.random.default_rng(seed)
    found = [statistic(rng.integers(0, n, n)) for _ in range(RESAMPLES)]
    low, high = np.percentile(found, (2.5, 97.5))
    return Ratio(float(statistic(np.arange(n))), float(low), float(high))


def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Interval for a probability from k of n; nan of nothing."""
    from scipy.stats import binomtest

    found = binomtest(int(k), int(n)).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)
