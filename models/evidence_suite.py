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
    gaussian_process,
    horseshoe,
    mixed_models,
    swapping_mixture,
    wide_logistic,
)
from models import group_problems as groups
from models import logistic_regression as logistic
from models import regression_problems as regressions
from models import series_problems as series
from models import shape_problems as shapes
from models.beta_binomial import beta_binomial
from models.contamination import contamination
from models.evidence_problem import EvidenceProblem
from models.funnel import funnel
from models.galaxies import galaxies
from models.ising import ising
from models.linear_regression import linear_regression, linear_regression_unknown_variance
from models.normal_scores import grid_evidence, sampled_evidence
from models.radiata_pine import radiata_pine
from models.spike_and_slab import spike_and_slab
from models.student_importance import Reference
from models.two_modes import two_modes

CLASSIC: dict[str, Callable[[], EvidenceProblem]] = {
    "beta_binomial": beta_binomial, "linear_regression_100": linear_regression,
    "linear_regression_1000": partial(linear_regression, 1000),
    "linear_regression_unknown_variance": linear_regression_unknown_variance,
    "radiata_pine_1": partial(radiata_pine, 1), "radiata_pine_2": partial(radiata_pine, 2),
    "logistic_regression": logistic.logistic_regression, "breast_cancer": logistic.breast_cancer,
    "correlated_gaussian_10": shapes.correlated_gaussian, "ising": ising,
    "contamination": contamination, "funnel": funnel, "two_modes_10": two_modes,
    "galaxies_2": partial(galaxies, 2), "galaxies_3": partial(galaxies, 3),
    "galaxies_3_unequal": partial(galaxies, 3, equal=False), "eggbox": shapes.eggbox,
    "shells_10": partial(shapes.shells, 10), "shells_30": partial(shapes.shells, 30),
    "log_gamma_10": shapes.log_gamma, "spike_and_slab_20": spike_and_slab,
}  # fmt: skip
"""Problems of the literature on evidences."""

HARD: dict[str, Callable[[], EvidenceProblem]] = {
    "unequal_modes_5": shapes.unequal_modes,
    "rosenbrock_pairs_5": shapes.rosenbrock_pairs,
    "horseshoe": horseshoe.horseshoe,
    "gp_counts": gaussian_process.gp_counts,
    "mixed_linear_50": partial(mixed_models.mixed_model, "linear", 50),
    "mixed_linear_200": partial(mixed_models.mixed_model, "linear", 200),
    "mixed_poisson_80": partial(mixed_models.mixed_model, "poisson", 80),
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
    "earthquakes": series.earthquakes,
    "autoregression_2": series.autoregression,
    "nile": series.nile,
    "nile_marginal": series.nile_marginal,
    "garch": series.garch,
    "item_response_1pl": partial(groups.small_test, False),
    "item_response_2pl": partial(groups.small_test, True),
    "rat_tumours": groups.rat_tumours,
    "eight_schools": groups.eight_schools,
    "eight_schools_centred": partial(groups.eight_schools, True),
    "speed_of_light": partial(regressions.robust_regression, "speed_of_light"),
    "stack_loss": partial(regressions.robust_regression, "stack_loss"),
    "negative_binomial": regressions.negative_binomial,
    "zero_inflated": regressions.zero_inflated,
    "ordered_answers": regressions.ordered_answers,
    "leukaemia": regressions.leukaemia,
    "coal": series.coal,
    "coal_discrete": series.coal_discrete,
    "dirichlet_groups": groups.dirichlet_groups,
    "puromycin": regressions.puromycin,
}
"""Models of applied work."""

PROBLEMS = CLASSIC | HARD | REAL
"""Name, and the function that makes the problem."""

_LONG: dict[str, int] = {"n_components": 16, "log2_points": 12, "replicates": 16}
STORED: dict[str, Callable[[], Reference]] = {
    "logistic_regression": lambda: logistic.reference(
        *logistic.simulate(50, 8), np.full(8, 2.5), log2_points=16, replicates=32
    ),
    "horseshoe": lambda: sampled_evidence(horseshoe.marginal_scores(), **_LONG),
    "gp_counts": lambda: sampled_evidence(
        gaussian_process.count_scores(), log2_points=13, replicates=32, particles=4096
    ),
    "mixed_linear_50": partial(mixed_models.reference, "linear", 50),
    "mixed_linear_200": partial(mixed_models.reference, "linear", 200),
    "mixed_poisson_80": partial(mixed_models.reference, "poisson", 80),
    "wide_logistic_100": wide_logistic.reference,
    "swapping_mixture": swapping_mixture.reference,
    "gp_regression": lambda: grid_evidence(gaussian_process.regression_scores()),
    "earthquakes": lambda: sampled_evidence(series.earthquake_scores()),
    "nile_marginal": lambda: grid_evidence(series.marginal_scores(), step=0.125),
    "garch": lambda: sampled_evidence(series.garch_scores()),
    "item_response_1pl": lambda: sampled_evidence(groups.item_scores(False)),
    "item_response_2pl": lambda: sampled_evidence(groups.item_scores(True)),
    "rat_tumours": lambda: grid_evidence(groups.population_scores(), step=0.125, reach=8.0),
    "speed_of_light": lambda: grid_evidence(regressions.robust_scores("speed_of_light")),
    "stack_loss": lambda: sampled_evidence(regressions.robust_scores("stack_loss"), **_LONG),
    "negative_binomial": lambda: sampled_evidence(regressions.negative_binomial_scores()),
    "zero_inflated": lambda: grid_evidence(regressions.zero_inflated_scores()),
    "ordered_answers": lambda: sampled_evidence(regressions.answer_scores(), **_LONG),
    "leukaemia": lambda: grid_evidence(regressions.remission_scores()),
    "puromycin": lambda: grid_evidence(regressions.reaction_scores()),
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
