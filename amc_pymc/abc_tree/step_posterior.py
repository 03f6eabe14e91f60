"""The posterior as a step function on boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from amc_pymc.abc_tree.cart import fit_cart
from amc_pymc.abc_tree.partition import Partition
from amc_pymc.logweights import systematic

__all__ = ["StepPosterior", "fit_step_posterior"]

#: Accepted simulations that there are for each box on the mean, at least.
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
        Accepted simulations in each, of those that masses are estimated from.
    """

    partition: Partition
    mass: np.ndarray
    accepted: np.ndarray

    def density(self, u: np.ndarray) -> np.ndarray:
        """Density (n,) at points (n, D) of the unit cube; its integral over the cube is one."""
        return (self.mass / self.partition.volumes)[self.partition.find(np.atleast_2d(u))]

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Points (n, D) of the cube, in random order."""
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
    r"""Boxes of a regression tree with the weights of accepted simulations in them.

    A box gets of its parent's mass

    .. math:: \frac{N_k + c\, |\Omega_k| / |\Omega_{\mathrm{parent}}|}{N_{\mathrm{parent}} + c}

    with N the effective number of accepted simulations in it, of the half that cuts were not chosen by.

    Parameters
    ----------
    u : array (N, D)
        All simulations.
    kernel_values : array (N,)
        How close they came, which boxes are cut by.
    hit : array of int (A,)
        The accepted ones.
    weight : array (A,)
        Their weights, which sum to one.
    rng : numpy.random.Generator
    strength : float
        c, draws that uniform density within the parent counts for.

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
    # Masses from the simulations that cuts were chosen by would be too large in small boxes.
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


@numba.njit(cache=True)
def _masses(n, volumes, parent, strength):
    for node in range(len(n) - 1, 0, -1):
        volumes[parent[node]] += volumes[node]
    mass = np.ones(len(n))
    for node in range(1, len(n)):
        above = parent[node]
        part = volumes[node] / volumes[above]
        mass[node] = mass[above] * (n[node] + strength * part) / (n[above] + strength)
    return mass
