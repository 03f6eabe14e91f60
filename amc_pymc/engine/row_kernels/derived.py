"""Stages of coefficients that are functions of parameters.

The loops over rows work on z = (eta, w), parameters and coefficients. The stages map eta to z and
directions of eta to those of z, and compute the derivatives that map back. Here a row is a row of a
family's table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.engine import Family
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.printer import Printer, Stages

__all__ = ["StagePrinter", "coefficient_stages", "coefficient_table"]


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


def coefficient_stages(
    families: Sequence[Family], printer: StagePrinter
) -> tuple[list[int | str], int, int]:
    """Return descriptions of families, the largest number of leaves, and output rows of derivatives."""
    g = printer.graph
    leaves = [leaves_of(g, f.expression)[0] for f in families]
    widest = max([1, *map(len, leaves)])
    described: list[int | str] = []
    n_rows = 1
    for k, (family, own) in enumerate(zip(families, leaves)):
        value = family.expression
        along_u, along_v = (g.directional(value, "eta", d) for d in ("du", "dv"))
        half = g.make("mul", g.const(0.5), g.directional(along_u, "eta", "dv"))
        jet = [value, along_u, along_v, g.make("add", along_u, half)]
        zero, nowhere = g.const(0.0), g.const(0)
        padded = [*own, *[None] * (widest - len(own))]
        first = [zero if n is None else g.partial(value, n) for n in padded]
        second = [
            zero if n is None else g.partial(first[a], n)
            for a in range(widest)
            for n in padded[: a + 1]
        ]
        places = [nowhere if n is None else g.nodes[n].args[0] for n in padded]
        stage = printer.stage(f"derivatives{k}", ("eta",), [*first, *second], places)
        described += [
            *(family.first, len(family.table)),
            *printer.stage(f"coefficient{k}", ("eta",), [value]),
            *printer.stage(f"jet{k}", ("eta", "du", "dv", "dw"), jet),
            *stage,
        ]
        n_rows = max(n_rows, int(stage[-1]))
    return described, widest, n_rows


def coefficient_table(families: Sequence[Family]) -> tuple[tuple[float, ...], ...]:
    """Return the concatenated tables of all families, column by column."""
    if not families:
        return ((0.0,),)
    out = np.zeros((max(f.table.shape[1] for f in families), sum(len(f.table) for f in families)))
    for f in families:
        out[: f.table.shape[1], f.first : f.first + len(f.table)] = f.table.T
    return tuple(map(tuple, out.tolist()))
