"""The posterior as a step function on boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.cart import fit_cart
from amc_pymc.abc_tree.partition import Partition
from amc_pymc.engine.jit import njit
from amc_pymc.logweights import systematic

__all__ = ["StepPosterior", "fit_step_posterior"]

#: Minimum average number of accepted simulations per box.
_PER_BOX = 20
_MOST_BOXES, _MIN_SAMPLES = 1000, 20


@dataclass(frozen=True)
class StepPosterior:
    """A posterior that is constant, relative to the prior, in each box.

    Attributes
    ----------
    partition : Partition
    mass : array (K,)
        Posterior masses of the boxes; they sum to one.
    accepted : array of int (K,)
        Number of accepted simulations in each box that masses are estimated from.
    """

    partition: Partition
    mass: np.ndarray
    accepted: np.ndarray

    def density(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D) of the unit cube; it integrates to one."""
        return (self.mass / self.partition.volumes)[self.partition.find(np.atleast_2d(u))]

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points (n, D) of the cube, in random order."""
        return rng.permutation(self.partition.draw(systematic(self.mass, n, rng), rng))


def fit_step_posterior(
    u: np.ndarray,
    kernel_values: np.ndarray,
    hit: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
    *,
    strength: float = 1.0,
) -> StepPosterior:
    r"""Fit the boxes of a regression tree and their posterior masses.

    The share of a box in its parent's mass is

    .. math:: \frac{N_k + c\, |\Omega_k| / |\Omega_{\mathrm{parent}}|}{N_{\mathrm{parent}} + c}

    with N the effective number of accepted simulations in a box, from the half that was not used for choosing cuts.

    Parameters
    ----------
    u : array (N, D)
        Points of all simulations.
    kernel_values : array (N,)
        Kernel values of the simulations, for choosing cuts.
    hit : array of int (A,)
        Indices of the accepted simulations.
    weight : array (A,)
        Weights of the accepted simulations, which sum to one.
    rng : numpy.random.Generator
    strength : float
        Number c of draws that a uniform density within the parent counts for.

    Returns
    -------
    StepPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.step_posterior import fit_step_posterior
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((2000, 1))
    >>> hit = np.flatnonzero(u[:, 0] < 0.1)
    >>> weight = np.full(len(hit), 1 / len(hit))
    >>> found = fit_step_posterior(u, (u[:, 0] < 0.1).astype(float), hit, weight, rng)
    >>> found.density(np.array([[0.05], [0.5]])).round(1)
    array([9.8, 0. ])
    """
    boxes = int(np.clip(len(hit) / _PER_BOX, 2, _MOST_BOXES))
    # Masses estimated from the simulations used for choosing cuts would be too large in small boxes.
    for_cuts = rng.random(len(u)) < 0.5
    partition = fit_cart(
        u[for_cuts], kernel_values[for_cuts], rng, max_leaves=boxes, min_samples=_MIN_SAMPLES
    )
    others = ~for_cuts[hit]
    if others.any() and weight[others].sum() > 0.0:
        hit, weight = hit[others], weight[others] / weight[others].sum()
    share, count = partition.sums(u[hit], weight, np.ones(len(hit)))
    effective = 1.0 / float(weight @ weight)
    volumes = np.zeros(len(partition.feature))
    volumes[partition.leaves] = partition.volumes
    mass = _masses(effective * share, volumes, partition.parent, float(strength))
    leaves = partition.leaves
    return StepPosterior(partition, mass[leaves], np.round(count[leaves]).astype(np.int64))


@njit(cache=True)
def _masses(n: np.ndarray, volumes: np.ndarray, parent: np.ndarray, strength: float) -> np.ndarray:
    for node in range(len(n) - 1, 0, -1):
        volumes[parent[node]] += volumes[node]
    mass = np.ones(len(n))
    for node in range(1, len(n)):
        above = parent[node]
        part = volumes[node] / volumes[above]
        mass[node] = mass[above] * (n[node] + strength * part) / (n[above] + strength)
    return mass
