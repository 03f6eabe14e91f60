"""Racing steps whose races read rows themselves: many decisions are close, and some are wrong."""

from dataclasses import replace

import numpy as np

from amc_pymc.reading.densities import RowDensities


def without_control_variate(step):
    """The same step of RacingMetropolis, with races over log-likelihoods and not over what expansions leave."""
    prepared = step.prepared
    raced, none = prepared.raced, np.empty(0, np.int64)
    rows = RowDensities(raced.rows, expand=none, packed=raced.packed)
    plain = replace(prepared, raced=rows, surrogate=None, exact_rows=none, tables=None)
    return step.replace(prepared=plain)
