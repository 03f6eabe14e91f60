"""Proposals, as compiled functions of the state, a scale and a random generator."""

from amc_pymc.proposals.gaussian import conditional_mean, gaussian_log_ratio, propose_gaussian
from amc_pymc.proposals.random_walk import propose_random_walk
from amc_pymc.proposals.student import propose_student, student_log_ratio

__all__ = [
    "conditional_mean",
    "gaussian_log_ratio",
    "propose_gaussian",
    "propose_random_walk",
    "propose_student",
    "student_log_ratio",
]
