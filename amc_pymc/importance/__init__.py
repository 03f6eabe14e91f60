"""Proposals for importance sampling: Student t mixtures, their construction and their fit."""

from amc_pymc.importance.adapt import AdaptedMixture, adapt_mixture
from amc_pymc.importance.fit import (
    choose_mixture,
    drop_component,
    fit_student_t_mixture,
    information_criterion,
    split_component,
)
from amc_pymc.importance.images import Exchange, Images
from amc_pymc.importance.modes import (
    Maxima,
    distinct_modes,
    hessians,
    laplace_components,
    maximise,
)
from amc_pymc.importance.rqmc import scrambled_points
from amc_pymc.importance.student_t import StudentTMixture, log_mixture_density

__all__ = [
    "AdaptedMixture",
    "Exchange",
    "Images",
    "Maxima",
    "StudentTMixture",
    "adapt_mixture",
    "choose_mixture",
    "distinct_modes",
    "drop_component",
    "fit_student_t_mixture",
    "hessians",
    "information_criterion",
    "laplace_components",
    "log_mixture_density",
    "maximise",
    "scrambled_points",
    "split_component",
]
