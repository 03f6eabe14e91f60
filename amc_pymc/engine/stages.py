"""Stages of a printed program, as loops read them.

A *stage* takes four places: the address of a function of parameters, the address of a function of rows
that reads its results, the number of results, and the number of output rows.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call

__all__ = ["N_KEPT", "N_SHARED", "ROWS", "SHARED", "of_parameters", "room_of"]

#: Offsets of the places in a stage.
SHARED, ROWS, N_SHARED, N_KEPT = 0, 1, 2, 3

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def of_parameters(program, stage, eta):
    """Compute the results of a stage that depend on parameters only."""
    out = np.empty(max(1, program[stage + N_SHARED]))
    call(program[stage + SHARED], eta, out)
    return out


@_compiled
def room_of(program, stage, width):
    """Allocate the output of a stage for ``width`` rows."""
    return np.empty((max(1, program[stage + N_KEPT]), width))
