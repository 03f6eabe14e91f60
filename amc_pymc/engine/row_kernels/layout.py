"""Positions of a model's generated functions and sizes in ``program`` for the loops over rows.

The description of leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four entries
(:mod:`amc_pymc.engine.stages`).
"""

from __future__ import annotations

from amc_pymc.engine.leaves import DOTS_AT

__all__: list[str] = []

#: Stages: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (DOTS_AT + 1 + 4 * k for k in range(5))
