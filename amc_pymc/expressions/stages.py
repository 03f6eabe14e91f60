"""Stages of what a model has printed, as loops find them.

A *stage* takes four places: the address of a function of parameters, that of a function of rows that
reads its results, how many results there are, and how many rows of output.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.expressions.machine import call
from amc_pymc.jit import njit

__all__ = ["N_KEPT", "N_SHARED", "ROWS", "SHARED", "of_parameters", "room_of"]

#: Places in a stage.
SHARED, ROWS, N_SHARED, N_KEPT = 0, 1, 2, 3

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def of_parameters(program, stage, eta):
    """What depends on parameters only."""
    out = np.empty(max(1, program[stage + N_SHARED]))
    call(program[stage + SHARED], eta, out)
    return out


@_compiled
def room_of(program, stage, width):
    """Room for what a stage writes for each of some rows."""
    return np.empty((max(1, program[stage + N_KEPT]), width))
