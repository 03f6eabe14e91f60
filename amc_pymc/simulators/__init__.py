"""Likelihood-free problems, worker processes for their simulations, distances to the data and ABC kernels."""

from amc_pymc.simulators.kernels import accepted, gaussian_kernel, student_kernel
from amc_pymc.simulators.problem import Problem
from amc_pymc.simulators.simulator_problem import SimulatorProblem

__all__ = ["Problem", "SimulatorProblem", "accepted", "gaussian_kernel", "student_kernel"]
