"""Kernels by name."""

from __future__ import annotations

from amc_pymc.kernels.hmc import HMC
from amc_pymc.kernels.langevin import Langevin
from amc_pymc.kernels.random_walk import RandomWalk
from amc_pymc.kernels.slice import Slice
from amc_pymc.kernels.target import Kernel

__all__ = ["KERNELS", "make_kernel"]

#: Kernels for continuous coordinates by name.
KERNELS: dict[str, type] = {cls.name: cls for cls in (Slice, RandomWalk, Langevin, HMC)}


def make_kernel(kernel: str | Kernel) -> Kernel:
    """Create a kernel with default settings from its name, or return a given kernel.

    Parameters
    ----------
    kernel : {"slice", "random_walk", "langevin", "hmc"} or Kernel

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
    >>> from amc_pymc.kernels import make_kernel
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
