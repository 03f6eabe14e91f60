"""Problems with known evidence that need no download, from easy ones to those on which methods fail.

    python -m models.evidence_suite              # compute all stored references again: ten minutes
    python -m models.evidence_suite nile garch   # or some of them

>>> from models.evidence_suite import suite
>>> problems = suite()
>>> min(problems, key=lambda name: problems[name].log_evidence)
'mixed_linear_200'
"""

from __future__ import annotations

import sys
import time

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from models import (
    count_regression,
    earthquakes,
    garch,
    gaussian_process,
    horseshoe,
    item_response_evidence,
    leukaemia,
    mixed_models,
    nile,
    ordered_answers,
    puromycin,
    rat_tumours,
    robust_regression,
    swapping_mixture,
    wide_logistic,
)
from models.autoregression import autoregression
from models.beta_binomial import beta_binomial
from models.coal import coal, coal_discrete
from models.contamination import contamination
from models.correlated_gaussian import correlated_gaussian
from models.dirichlet_groups import dirichlet_groups
from models.eggbox import eggbox
from models.eight_schools import eight_schools
from models.evidence_problem import EvidenceProblem
from models.funnel import funnel
from models.galaxies import galaxies
from models.ising import ising
from models.linear_regression import linear_regression, linear_regression_unknown_variance
from models.log_gamma import log_gamma
from models.logistic_regression import breast_cancer, logistic_regression
from models.radiata_pine import radiata_pine
from models.rosenbrock_pairs import rosenbrock_pairs
from models.shells import shells
from models.spike_and_slab import spike_and_slab
from models.student_importance import Reference
from models.two_modes import two_modes
from models.unequal_modes import unequal_modes

CLASSIC: dict[str, Callable[[], EvidenceProblem]] = {
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
"""Problems of the literature on evidences."""

HARD: dict[str, Callable[[], EvidenceProblem]] = {
    "unequal_modes_5": unequal_modes,
    "rosenbrock_pairs_5": rosenbrock_pairs,
    "horseshoe": horseshoe.horseshoe,
    "gp_counts": gaussian_process.gp_counts,
    "mixed_linear_50": partial(mixed_models.mixed_linear, 50),
    "mixed_linear_200": partial(mixed_models.mixed_linear, 200),
    "mixed_poisson_80": partial(mixed_models.mixed_poisson, 80),
    "wide_logistic_100": wide_logistic.wide_logistic,
    "funnel_20": partial(
        funnel, 20, y=np.round(2.0 * np.sin(np.arange(20.0)), 2), name="funnel_20"
    ),
    "swapping_mixture": swapping_mixture.swapping_mixture,
}
"""Where estimates were wrong, dear or flagged without need."""

REAL: dict[str, Callable[[], EvidenceProblem]] = {
    "gp_regression": gaussian_process.gp_regression,
    "gp_latent": gaussian_process.gp_latent,
    "earthquakes": earthquakes.earthquakes,
    "autoregression_2": autoregression,
    "nile": nile.nile,
    "nile_marginal": nile.nile_marginal,
    "garch": garch.garch,
    "item_response_1pl": partial(item_response_evidence.small_test, False),
    "item_response_2pl": partial(item_response_evidence.small_test, True),
    "rat_tumours": rat_tumours.rat_tumours,
    "eight_schools": eight_schools,
    "eight_schools_centred": partial(eight_schools, True),
    "speed_of_light": partial(robust_regression.robust_regression, "speed_of_light"),
    "stack_loss": partial(robust_regression.robust_regression, "stack_loss"),
    "negative_binomial": count_regression.negative_binomial,
    "zero_inflated": count_regression.zero_inflated,
    "ordered_answers": ordered_answers.ordered_answers,
    "leukaemia": leukaemia.leukaemia,
    "coal": coal,
    "coal_discrete": coal_discrete,
    "dirichlet_groups": dirichlet_groups,
    "puromycin": puromycin.puromycin,
}
"""Models of applied work."""

PROBLEMS = CLASSIC | HARD | REAL
"""Name, and the function that makes the problem."""

_LONG: dict[str, int] = {"n_components": 16, "log2_points": 12, "replicates": 16}
STORED: dict[str, Callable[[], Reference]] = {
    "horseshoe": partial(horseshoe.reference, **_LONG),
    "gp_counts": partial(
        gaussian_process.reference, "counts", log2_points=13, replicates=32, particles=4096
    ),
    "mixed_linear_50": partial(mixed_models.reference, "linear", 50),
    "mixed_linear_200": partial(mixed_models.reference, "linear", 200),
    "mixed_poisson_80": partial(mixed_models.reference, "poisson", 80),
    "wide_logistic_100": wide_logistic.reference,
    "swapping_mixture": swapping_mixture.reference,
    "gp_regression": partial(gaussian_process.reference, "regression"),
    "earthquakes": earthquakes.reference,
    "nile_marginal": nile.reference,
    "garch": garch.reference,
    "item_response_1pl": partial(item_response_evidence.reference, False),
    "item_response_2pl": partial(item_response_evidence.reference, True),
    "rat_tumours": rat_tumours.reference,
    "speed_of_light": partial(robust_regression.reference, "speed_of_light"),
    "stack_loss": partial(robust_regression.reference, "stack_loss", **_LONG),
    "negative_binomial": partial(count_regression.reference, "negative_binomial"),
    "zero_inflated": partial(count_regression.reference, "zero_inflated"),
    "ordered_answers": partial(ordered_answers.reference, **_LONG),
    "leukaemia": leukaemia.reference,
    "puromycin": puromycin.reference,
}
"""Computations of the references that are stored as numbers."""


def suite() -> dict[str, EvidenceProblem]:
    """Return all problems by name, created in about a second; no expensive reference is recomputed."""
    return {name: make() for name, make in PROBLEMS.items()}


def main(names: Sequence[str]) -> None:
    """Compute stored references again and print them with the stored values."""
    for name in names or STORED:
        problem, begin = PROBLEMS[name](), time.process_time()
        found = STORED[name]()
        seconds = time.process_time() - begin
        print(
            f"{name}: {found.log_evidence:.6f} ± {found.error:.2g}, stored {problem.log_evidence:.6f} ± "
            f"{problem.error:.2g}, {seconds:.0f} CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
