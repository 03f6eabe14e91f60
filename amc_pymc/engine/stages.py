"""Stages of a printed program: functions of parameters, and functions of rows that read their results.

A *stage* takes four places in a program: the address of a function of parameters, the address of a function of rows
that reads its results, the number of results, and the number of output rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call
from amc_pymc.engine.printer import Printer, Stages

__all__ = ["N_KEPT", "N_SHARED", "ROWS", "SHARED", "StagePrinter", "of_parameters", "room_of"]

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


class StagePrinter(Printer):
    """Printer of stages: functions of parameters, and functions of rows that read their results."""

    def stage(
        self,
        name: str,
        arrays: Sequence[str],
        outputs: Sequence[int],
        places: Sequence[int] | None = None,
    ) -> list[int | str]:
        """Print a stage of expressions of rows and, unless None, of positions in eta."""
        shared = Stages.of(self.graph, [*outputs, *(places or ())]).shared
        self.once(f"{name}_shared", (*arrays, "out"), shared)
        rows = [*arrays, "shared", "block", "stride", "n", "out", "out_stride"]
        rows += [] if places is None else ["at"]
        number = self.each_row(f"{name}_rows", rows, outputs, shared=shared, places=places or ())
        return [f"{name}_shared", f"{name}_rows", len(shared), number]
