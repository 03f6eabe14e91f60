"""Weights and estimates for chains over the product space of models (Carlin & Chib 1995)."""

from amc_pymc.tall.product_space.estimates import ModelEstimates, estimate_models, round_trips
from amc_pymc.tall.product_space.wang_landau import wang_landau_step

__all__ = [
    "ModelEstimates",
    "estimate_models",
    "round_trips",
    "wang_landau_step",
]
