"""How many points densities were evaluated at, for any model."""

from __future__ import annotations

import threading

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

__all__ = ["Counts", "count", "counted"]


class Counts(NamedTuple):
    """Numbers of points evaluated without and with gradients, and of points where a density was nan."""

    values: int
    gradients: int
    nan: int


_here = threading.local()


@contextmanager
def counted(*, apart: bool = False) -> Iterator[np.ndarray]:
    """Count the evaluations of this thread, for any model, in an array (3,) ordered as :class:`Counts`.

    If jobs share compiled functions or run in other processes, only this gives the count of one job.

    Parameters
    ----------
    apart : bool
        Whether to leave an enclosing count unchanged: jobs return their counts with their results, and
        may run in any thread.
    """
    outer = getattr(_here, "counts", None)
    _here.counts = counts = np.zeros(3, np.int64)
    try:
        yield counts
    finally:
        _here.counts = outer
        if outer is not None and not apart:
            outer += counts


def count(kind: int, n: int) -> None:
    """Add n points to those that :func:`counted` counts; ``kind`` is a position in :class:`Counts`."""
    if (here := getattr(_here, "counts", None)) is not None:
        here[kind] += n
