"""Where the loops of rows find what a model has printed.

The description of leaves comes first (:mod:`amc_pymc.expressions.leaves`). A stage takes four places
(:mod:`amc_pymc.expressions.stages`).
"""

from __future__ import annotations

from amc_pymc.expressions.leaves import DOTS_AT

__all__: list[str] = []

#: Parameters, coefficients that are functions of them, families of these.
N_PARAMETERS, N_COEFFICIENTS, N_FAMILIES = (DOTS_AT + k for k in (1, 2, 3))
#: The largest number of leaves of a coefficient, rows of output that their derivatives need, and
#: where families are described.
COEFFICIENT_LEAVES, DERIVATIVE_ROWS, FAMILIES_AT = (DOTS_AT + k for k in (4, 5, 6))
#: Stages: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (FAMILIES_AT + 1 + 4 * k for k in range(5))
#: Of a family: first coefficient, number, stages of values, directional and other derivatives.
FAMILY_FIRST, FAMILY_SIZE, FAMILY_VALUE, FAMILY_JET, FAMILY_DERIVATIVES = 0, 1, 2, 6, 10
FAMILY_WIDTH = 14
