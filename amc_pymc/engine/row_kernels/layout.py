"""Positions of a model's generated functions and sizes in ``program`` for the loops over rows.

The description of leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four entries
(:mod:`amc_pymc.engine.stages`).
"""

from __future__ import annotations

from amc_pymc.engine.leaves import DOTS_AT

__all__: list[str] = []

#: Numbers of parameters, of coefficients that are functions of them, and of families of coefficients.
N_PARAMETERS, N_COEFFICIENTS, N_FAMILIES = (DOTS_AT + k for k in (1, 2, 3))
#: Largest number of leaves of a coefficient, output rows of the coefficients' derivatives, and position
#: of the description of families.
COEFFICIENT_LEAVES, DERIVATIVE_ROWS, FAMILIES_AT = (DOTS_AT + k for k in (4, 5, 6))
#: Stages: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (FAMILIES_AT + 1 + 4 * k for k in range(5))
#: Positions in a family's description: first coefficient, number of coefficients, stages of values, of
#: directional derivatives and of derivatives by leaves.
FAMILY_FIRST, FAMILY_SIZE, FAMILY_VALUE, FAMILY_JET, FAMILY_DERIVATIVES = 0, 1, 2, 6, 10
FAMILY_WIDTH = 14
