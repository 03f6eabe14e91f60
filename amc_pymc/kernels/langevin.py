"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.kernels.hmc import hamiltonian_step
from amc_pymc.kernels.scaling import checked_coordinates
from amc_pymc.kernels.target import Move, Particles, Path, Tuning

__all__ = ["Langevin"]


@dataclass(frozen=True)
class Langevin:
    r"""Metropolis-adjusted Langevin kernel, preconditioned by the scale.

    The proposal

    .. math::
        x' = x + \tfrac{s^2}{2} L L^T \nabla \log f(x) + s L z, \qquad z \sim N(0, I),

    is accepted or rejected by Metropolis-Hastings (Roberts & Tweedie 1996, doi:10.2307/3318418). It is
    one leapfrog step of size s with velocity z. If z' is the final velocity, the reverse step from x'
    has velocity -z'. Therefore :math:`\log q(x \mid x') - \log q(x' \mid x) = (|z|^2 - |z'|^2) / 2`,
    and the scale is never inverted.

    Parameters
    ----------
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If the coordinates are repeated or negative.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.kernels import Langevin, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def gradients(self, x):
    ...         terms = np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    ...         return terms, np.array([-x, np.zeros_like(x)])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, rng.standard_normal((500, 2)), with_gradient=True)
    >>> particles, move = Langevin().step(path, particles, 1.0, Tuning(1.0, np.ones(2)), rng)
    >>> move.gradients, bool(0.75 < move.acceptance.mean() < 0.95)
    (500, True)
    """

    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "langevin"
    needs_gradient: ClassVar[bool] = True
    target_acceptance: ClassVar[float] = 0.57

    #: Step size above which steps on a Gaussian of known scale overshoot its centre.
    max_size: ClassVar[float] = math.sqrt(2.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coordinates", checked_coordinates(self.coordinates))

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles once."""
        return hamiltonian_step(
            path, particles, beta, tuning, rng, n_leapfrog=1, coordinates=self.coordinates
        )
