"""Calls of a model's generated functions for a block that holds the rows of a group."""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call
from amc_pymc.engine.stages import N_SHARED, ROWS, SHARED
from amc_pymc.tall.groups.layout import (
    JET,
    PRIOR_JET,
    PRIOR_VALUE,
    ROWS_JET,
    ROWS_VALUE,
)
from amc_pymc.tall.groups.parts import padded

__all__: list[str] = []

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def of_line(program, at, du, dv):
    """Return the values that depend only on parameters and directions."""
    out = np.empty(max(1, program[JET + N_SHARED]))
    call(program[JET + SHARED], at, du, dv, out)
    return out


@_compiled
def gather(rows, begin, n, block):
    """Copy the rows of a group to a block (C, width)."""
    for c in range(block.shape[0]):
        for j in range(n):
            block[c, j] = rows[c, begin + j]


@_compiled
def keep_rows(program, stage, eta, shared, block, size, kept):
    """Write the values of a block's rows that do not depend on local effects."""
    call(
        program[stage + ROWS], eta, shared, block, block.shape[1], padded(size), kept, kept.shape[1]
    )  # fmt: skip


@_compiled
def log_density(program, eta, shared, kept, size, group, u, total):
    """Return the log density of a group's rows and local effects; ``total`` (1,) is a work array."""
    call(program[PRIOR_VALUE], eta, shared, group, u, total)
    call(
        program[ROWS_VALUE], eta, shared, kept, kept.shape[1], size, padded(size), u, total
    )  # fmt: skip
    return total[0]


@_compiled
def jet_of(program, at, du, dv, shared, kept, size, group, u, jet):
    """Write the log density, its derivatives along du and dv, and the mixed second one (4,)."""
    call(program[PRIOR_JET], at, du, dv, shared, group, u, jet)
    call(
        program[ROWS_JET], at, du, dv, shared, kept, kept.shape[1], size, padded(size), u, jet
    )  # fmt: skip
