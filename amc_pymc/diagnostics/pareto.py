"""Tails of importance weights."""

from __future__ import annotations

import math

import numpy as np

from arviz_stats.base import array_stats

__all__ = ["pareto_k"]


def pareto_k(log_weights: np.ndarray) -> float:
    """Return the generalised Pareto shape of the largest weights; nan for fewer than 25, or if they are equal."""
    logs = log_weights[log_weights > -np.inf]
    if logs.size < 25:
        return math.nan
    try:
        return float(np.squeeze(array_stats.psislw(-logs)[1]))
    except ValueError:  # all weights in the tail are equal
        return math.nan
