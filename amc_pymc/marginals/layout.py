"""Where the loops of groups find what a model has printed.

The description of leaves of a row comes first (:mod:`amc_pymc.expressions.leaves`). A stage takes four
places (:mod:`amc_pymc.expressions.stages`).
"""

from __future__ import annotations

from amc_pymc.expressions.leaves import DOTS_AT

__all__: list[str] = []

#: Local effects of a group, whether they are summed over states, leaves of their log density.
N_LOCAL, DISCRETE, N_PRIOR_LEAVES = (DOTS_AT + k for k in (1, 2, 3))
#: Stages of what does not depend on local effects: for log-likelihoods and Newton's steps, for
#: directional derivatives, for derivatives by leaves.
VALUE, JET, SLOPE = (DOTS_AT + k for k in (4, 8, 12))
#: Functions that add sums over rows: log-likelihoods, derivatives by local effects, directional ones.
ROWS_VALUE, ROWS_NEWTON, ROWS_JET = (DOTS_AT + k for k in (16, 17, 18))
#: Functions that write derivatives by leaves of each row and where its entries are, and rows of
#: output of the first.
ROWS_SLOPES, ROWS_PLACES, N_SLOPES = (DOTS_AT + k for k in (19, 20, 21))
#: Functions of the local effects' log density.
PRIOR_VALUE, PRIOR_NEWTON, PRIOR_JET, PRIOR_SLOPES, PRIOR_PLACES, END = (
    *(DOTS_AT + k for k in (22, 23, 24, 25, 26, 27)),
)
