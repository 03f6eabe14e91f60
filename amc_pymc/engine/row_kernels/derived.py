"""Printer of functions in stages."""

from __future__ import annotations

from collections.abc import Sequence

from amc_pymc.engine.printer import Printer, Stages

__all__ = ["StagePrinter"]


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
