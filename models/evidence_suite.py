"""Problems with known evidence that need no download, from the mildest to those that break methods.

>>> from models.evidence_suite import suite
>>> problems = suite()
>>> min(problems, key=lambda name: problems[name].log_evidence)
'linear_regression_1000'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from models.beta_binomial import beta_binomial
from models.contamination import contamination
from models.correlated_gaussian import correlated_gaussian
from models.eggbox import eggbox
from models.evidence_problem import EvidenceProblem
from models.funnel import funnel
from models.galaxies import galaxies
from models.ising import ising
from models.linear_regression import linear_regression, linear_regression_unknown_variance
from models.log_gamma import log_gamma
from models.logistic_regression import breast_cancer, logistic_regression
from models.radiata_pine import radiata_pine
from models.shells import shells
from models.spike_and_slab import spike_and_slab
from models.two_modes import two_modes

PROBLEMS: dict[str, Callable[[], EvidenceProblem]] = {
    "beta_binomial": beta_binomial,
    "linear_regression_100": linear_regression,
    "linear_regression_1000": partial(linear_regression, 1000),
    "linear_regression_unknown_variance": linear_regression_unknown_variance,
    "radiata_pine_1": partial(radiata_pine, 1),
    "radiata_pine_2": partial(radiata_pine, 2),
    "logistic_regression": logistic_regression,
    "breast_cancer": breast_cancer,
    "correlated_gaussian_10": correlated_gaussian,
    "ising": ising,
    "contamination": contamination,
    "funnel": funnel,
    "two_modes_10": two_modes,
    "galaxies_2": partial(galaxies, 2),
    "galaxies_3": partial(galaxies, 3),
    "galaxies_3_unequal": partial(galaxies, 3, equal=False),
    "eggbox": eggbox,
    "shells_10": partial(shells, 10),
    "shells_30": partial(shells, 30),
    "log_gamma_10": log_gamma,
    "spike_and_slab_20": spike_and_slab,
}
"""Name, and the function that makes the problem."""


def suite() -> dict[str, EvidenceProblem]:
    """All problems by name, made afresh in about a second: no long reference is recomputed."""
    return {name: make() for name, make in PROBLEMS.items()}
