"""Small helpers for graphs of rows as functions of their data."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytensor.gradient import pushforward

from amc_pymc.engine.jit import njit

__all__ = ["call", "evaluate", "push", "width_of"]


def push(f, wrt, tangents) -> Any:
    """Return the derivative of graphs along tangents."""
    return pushforward(f, wrt, tangents, disconnected_outputs="ignore")


def width_of(array: np.ndarray) -> int:
    """Return the number of entries per row."""
    return int(np.prod(array.shape[1:]))


@njit(cache=True)
def call(rewards, points, rows):
    """Call compiled rewards from Python."""
    return rewards(points, points[0], rows)


@njit(cache=True)
def evaluate(total, x):
    """Call a compiled total from Python."""
    return total(x)
