"""Positions of a model's generated functions and sizes in ``program`` for the loops over groups.

The description of a row's leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four
entries (:mod:`amc_pymc.engine.printer`).
"""

from __future__ import annotations

from amc_pymc.engine.leaves import DOTS_AT

__all__: list[str] = []

#: Number of local effects per group, whether they are discrete, number of leaves of their log density.
N_LOCAL, DISCRETE, N_PRIOR_LEAVES = (DOTS_AT + k for k in (1, 2, 3))
#: Stages of values that do not depend on local effects: for log-likelihoods and Newton steps, for
#: directional derivatives, for derivatives by leaves.
VALUE, JET, SLOPE = (DOTS_AT + k for k in (4, 8, 12))
#: Functions that add sums over rows: log-likelihoods, their derivatives by local effects, directional ones.
ROWS_VALUE, ROWS_NEWTON, ROWS_JET = (DOTS_AT + k for k in (16, 17, 18))
#: Functions that write each row's derivatives by leaves and positions of entries of eta, and the number
#: of output rows of the first.
ROWS_SLOPES, ROWS_PLACES, N_SLOPES = (DOTS_AT + k for k in (19, 20, 21))
#: The same functions for the local effects' log density.
PRIOR_VALUE, PRIOR_NEWTON, PRIOR_JET, PRIOR_SLOPES, PRIOR_PLACES = (
    *(DOTS_AT + k for k in (22, 23, 24, 25, 26)),
)
#: End of the fixed entries.
END = DOTS_AT + 27
