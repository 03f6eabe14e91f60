"""Markov kernels that move P particles at once."""

from amc_pymc.kernels.both import Mixed
from amc_pymc.kernels.discrete import DiscreteMetropolis
from amc_pymc.kernels.hmc import HMC
from amc_pymc.kernels.langevin import Langevin
from amc_pymc.kernels.random_walk import RandomWalk
from amc_pymc.kernels.registry import KERNELS, make_kernel
from amc_pymc.kernels.slice import Slice
from amc_pymc.kernels.target import (
    Kernel,
    Move,
    Particles,
    Path,
    Tuning,
    log_target,
    start,
    target_gradient,
)
from amc_pymc.kernels.tuning import Tuned, scale_of, tune

__all__ = [
    "HMC",
    "KERNELS",
    "DiscreteMetropolis",
    "Kernel",
    "Langevin",
    "Mixed",
    "Move",
    "Particles",
    "Path",
    "RandomWalk",
    "Slice",
    "Tuned",
    "Tuning",
    "log_target",
    "make_kernel",
    "scale_of",
    "start",
    "target_gradient",
    "tune",
]
