"""Functions that users call on a model."""

from amc_pymc.inference.combine_estimators import combine_estimators
from amc_pymc.inference.product_space import sample_product_space
from amc_pymc.inference.racing_outlook import RacingOutlook, racing_outlook

__all__ = ["RacingOutlook", "combine_estimators", "racing_outlook", "sample_product_space"]
