"""Functions that users call on a model."""

from amc_pymc.inference.combine_estimators import combine_estimators
from amc_pymc.inference.compare_evidence import compare_evidence
from amc_pymc.inference.estimate_evidence import estimate_evidence
from amc_pymc.inference.find_map_tree import find_MAP_tree
from amc_pymc.inference.product_space import sample_product_space
from amc_pymc.inference.racing_outlook import RacingOutlook, racing_outlook
from amc_pymc.inference.recover_marginals import recover_marginals
from amc_pymc.inference.sample_abc_tree import sample_abc_rejection, sample_abc_tree
from amc_pymc.inference.sample_ais import sample_ais
from amc_pymc.inference.step_density import step_density

__all__ = [
    "RacingOutlook",
    "combine_estimators",
    "compare_evidence",
    "estimate_evidence",
    "find_MAP_tree",
    "racing_outlook",
    "recover_marginals",
    "sample_abc_rejection",
    "sample_abc_tree",
    "sample_ais",
    "sample_product_space",
    "step_density",
]
