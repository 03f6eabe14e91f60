"""Interface between models and likelihood-free samplers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["Failure", "Problem", "Simulated", "labels"]


def labels(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return names of the elements of an array, in C order.

    Examples
    --------
    >>> from amc_pymc.simulators.problem import labels
    >>> labels("mu", (2, 1)), labels("sigma", ())
    (['mu[0,0]', 'mu[1,0]'], ['sigma'])
    """
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, at))}]" for at in np.ndindex(*shape)]


class Failure(NamedTuple):
    """A simulation that gave no distance.

    Attributes
    ----------
    index : int
        Row of the parameters.
    kind : {"error", "nan", "timeout"}
    message : str
        Type and text of the error, or another reason for the failure.
    """

    index: int  # type: ignore[assignment]
    kind: str
    message: str


class Simulated(NamedTuple):
    """Distances of some simulations.

    Attributes
    ----------
    distance : array (n,)
        Nonnegative distances; inf where a simulation failed.
    failures : list of Failure
    summaries : array (n, S) or None
        Summary statistics, if requested; nan where a simulation failed.
    """

    distance: np.ndarray
    failures: list[Failure]
    summaries: np.ndarray | None = None


class Problem(Protocol):
    """A prior on the unit cube, a simulator and a distance to the data.

    Attributes
    ----------
    shapes : mapping of str to tuple of int
        Shapes of the parameters by name, in order.
    n_dim : int
        Number of coordinates of the unit cube, D.
    coordinates : list of str
        Parameter elements that the coordinates belong to.
    tolerance : float or None
        Smallest tolerance of interest, in units of the distance.
    observed_summaries : array (S,)
        Summary statistics of the data.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""

    @property
    def n_dim(self) -> int:
        """Number of coordinates D."""

    @property
    def coordinates(self) -> list[str]:
        """Parameter elements that the coordinates belong to, such as "mu[0]"."""

    @property
    def tolerance(self) -> float | None:
        """Smallest tolerance of interest."""

    @property
    def observed_summaries(self) -> np.ndarray:
        """Summary statistics (S,) of the data."""

    def parameters(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return parameters (n, *shape) on their own scale, at points (n, D) of the unit cube."""

    def log_density(self, u: np.ndarray) -> np.ndarray | None:
        """Return the natural log prior density (n,) in the cube; None if it is uniform."""

    def log_prior(self, u: np.ndarray) -> np.ndarray:
        """Return the natural log prior density or mass (n,) on the scale of the parameters."""

    def simulate(
        self,
        u: np.ndarray,
        rng: np.random.Generator,
        *,
        batched: bool = False,
        timeout: float | None = None,
        summaries: bool = False,
    ) -> Simulated:
        """Simulate at points (n, D), one by one within `timeout` seconds each, or all in one call."""
