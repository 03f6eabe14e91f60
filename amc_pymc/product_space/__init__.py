"""Choosing among models by a chain over their product space (Carlin & Chib 1995)."""

from amc_pymc.product_space.estimates import ModelEstimates, estimate_models, round_trips
from amc_pymc.product_space.index_kernel import (
    VALUES,
    IndexLog,
    IndexStep,
    Models,
    draw_index,
)
from amc_pymc.product_space.wang_landau import wang_landau_step

__all__ = [
    "VALUES",
    "IndexLog",
    "IndexStep",
    "ModelEstimates",
    "Models",
    "draw_index",
    "estimate_models",
    "round_trips",
    "wang_landau_step",
]
