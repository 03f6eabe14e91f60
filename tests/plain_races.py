"""Racing steps whose races read rows themselves: many decisions are close, and some are wrong."""

from dataclasses import replace

import numpy as np

from amc_pymc.reading.densities import RowDensities
from amc_pymc.tall.surrogate import no_surrogate


def without_control_variate(step):
    """The same step of RacingMetropolis, with races over log-likelihoods and not over what expansions leave."""
    prepared = step.prepared
    raced, none = prepared.raced, np.empty(0, np.int64)
    zero = no_surrogate(prepared.surrogate.centre)
    rows = RowDensities(raced.rows, expand=none, packed=raced.packed)
    plain = replace(
        prepared, raced=rows, surrogate=zero, exact_rows=none, thinning=None, no_proxy="left out"
    )
    return step.replace(prepared=plain)
