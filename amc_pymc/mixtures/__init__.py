"""Mixtures of Student t distributions, and their fit to weighted draws."""

from amc_pymc.mixtures.fit import (
    choose_mixture,
    drop_component,
    fit_student_t_mixture,
    information_criterion,
    split_component,
)
from amc_pymc.mixtures.student_t import DEFENSIVE_SHARE, StudentTMixture, log_mixture_density

__all__ = [
    "DEFENSIVE_SHARE",
    "StudentTMixture",
    "choose_mixture",
    "drop_component",
    "fit_student_t_mixture",
    "information_criterion",
    "log_mixture_density",
    "split_component",
]
