"""Markov kernels that move P particles at once."""

from __future__ import annotations

from amc_pymc.evidence.mcmc.discrete import DiscreteMetropolis, Mixed
from amc_pymc.evidence.mcmc.hmc import HMC
from amc_pymc.evidence.mcmc.slice import Slice
from amc_pymc.evidence.mcmc.target import (
    Kernel,
    Move,
    Particles,
    Path,
    Tuning,
    log_target,
    start,
    target_gradient,
)
from amc_pymc.evidence.mcmc.tuning import Tuned, scale_of, tune

__all__ = [
    "HMC",
    "KERNELS",
    "DiscreteMetropolis",
    "Kernel",
    "Mixed",
    "Move",
    "Particles",
    "Path",
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

#: Kernels for continuous coordinates by name.
KERNELS: dict[str, type] = {cls.name: cls for cls in (HMC, Slice)}


def make_kernel(kernel: str | Kernel) -> Kernel:
    """Create a kernel with default settings from its name, or return a given kernel.

    Parameters
    ----------
    kernel : {"hmc", "slice"} or Kernel

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If `kernel` is neither a name nor a kernel.

    Examples
    --------
    >>> make_kernel("hmc")
    HMC(n_leapfrog=3, jitter=0.3, coordinates=None)
    """
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            names = ", ".join(map(repr, sorted(KERNELS)))
            raise ValueError(f"kernel must be one of {names}, or a kernel, got {kernel!r}")
        return KERNELS[kernel]()
    if isinstance(kernel, type):
        raise TypeError(
            f"kernel must be a name or a kernel, got the class; write {kernel.__name__}()"
        )
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a name or a kernel, got {kernel!r}")
    return kernel
