"""The posterior as a step function on boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amc_pymc.engine.regression_trees import add_up
from amc_pymc.likelihood_free.trees import Cart

#: Minimum average number of accepted simulations per box.
_PER_BOX = 20
_MOST_BOXES, _MIN_SAMPLES = 1000, 20


class StepPosterior(NamedTuple):
    """A posterior whose density relative to the prior is constant in each box.

    It is coarse: one box per 20 accepted simulations, at least two. It shows where the posterior is, and regions that
    the draws miss. The density in a box is its mass divided by its volume.

    Attributes
    ----------
    lower, upper : arrays (K, D)
        Corners of the boxes in the unit cube, where the prior is uniform.
    mass : array (K,)
        Posterior masses of the boxes, which sum to one.
    accepted : array of int (K,)
        Number of accepted simulations in each box that masses are estimated from.
    """

    lower: np.ndarray
    upper: np.ndarray
    mass: np.ndarray
    accepted: np.ndarray


def fit_step_posterior(
    u: np.ndarray,
    kernel_values: np.ndarray,
    hit: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
) -> StepPosterior:
    r"""Fit the boxes of a regression tree and their posterior masses.

    The share of a box in its parent's mass is

    .. math:: \frac{N_k + c\, |\Omega_k| / |\Omega_{\mathrm{parent}}|}{N_{\mathrm{parent}} + c}

    with c = 1 and N the effective number of accepted simulations in a box, from the half that was not used for
    choosing cuts.

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

    Returns
    -------
    StepPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.step_posterior import fit_step_posterior
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((2000, 1))
    >>> hit = np.flatnonzero(u[:, 0] < 0.1)
    >>> weight = np.full(len(hit), 1 / len(hit))
    >>> found = fit_step_posterior(u, (u[:, 0] < 0.1).astype(float), hit, weight, rng)
    >>> density = found.mass / (found.upper - found.lower)[:, 0]
    >>> bool(density[0] > 5.0 > density[-1])
    True
    """
    boxes = int(np.clip(len(hit) / _PER_BOX, 2, _MOST_BOXES))
    # Masses estimated from the simulations used for choosing cuts would be too large in small boxes.
    for_cuts = rng.random(len(u)) < 0.5
    partition = Cart(boxes, _MIN_SAMPLES)(u[for_cuts], kernel_values[for_cuts], None, rng)
    others = ~for_cuts[hit]
    if others.any() and weight[others].sum() > 0.0:
        hit, weight = hit[others], weight[others] / weight[others].sum()
    share, count = partition.sums(u[hit], weight, np.ones(len(hit)))
    n, leaves = share / float(weight @ weight), partition.leaves
    volume, mass = np.zeros(len(n)), np.ones(len(n))
    volume[leaves] = partition.volumes
    add_up(volume, partition.parent)
    for node, above in enumerate(partition.parent[1:], start=1):
        part = volume[node] / volume[above]
        mass[node] = mass[above] * (n[node] + part) / (n[above] + 1.0)
    counts = np.round(count[leaves]).astype(np.int64)
    return StepPosterior(partition.lower, partition.upper, mass[leaves], counts)
