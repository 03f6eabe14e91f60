"""Error bounds that determine when an estimated mean is accurate enough to decide."""

from amc_pymc.bounds.bernstein import BernsteinFactors, bernstein_serfling
from amc_pymc.bounds.normal import (
    b_normal,
    crossing_probability,
    expected_rows,
    race_cost_bound,
)

__all__ = [
    "BernsteinFactors",
    "b_normal",
    "bernstein_serfling",
    "crossing_probability",
    "expected_rows",
    "race_cost_bound",
]
