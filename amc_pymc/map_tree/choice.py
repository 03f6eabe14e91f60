"""Choice of the boxes to simulate in next, to find the box with the largest density."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.partition import Partition
from amc_pymc.abc_tree.rates import shrunk_rates
from amc_pymc.bandits import UCB1, KnownRange

__all__ = ["POLICIES", "Beliefs", "beliefs", "choose_boxes"]

#: Names of policies for choosing boxes; "hoo" grows its own tree.
POLICIES = ("top_two", "thompson", "ucb", "hoo")
#: Minimum parameter of a Beta distribution.
_LEAST = 1e-6
#: Draws to find a box other than the leading one; then the best other one of one more draw is taken.
_TRIES = 10


class Beliefs(NamedTuple):
    """Estimated densities of K boxes and their uncertainty.

    Attributes
    ----------
    rate : array (K,)
        Mean kernel values, shrunk towards those of the parent boxes.
    counts : array (K,)
        Number of simulations that each estimate is worth.
    prior : array (K,)
        Prior density or mass at the centre, on the scale of the parameters, relative to the largest.
    """

    rate: np.ndarray
    counts: np.ndarray
    prior: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """Posterior densities (K,), up to a factor."""
        return self.rate * self.prior

    @property
    def error(self) -> np.ndarray:
        """Standard deviations (K,) of the posterior densities."""
        return self.prior * np.sqrt(self.rate * (1.0 - self.rate) / (self.counts + 1.0))


def beliefs(
    partition: Partition,
    u: np.ndarray,
    kernel_values: np.ndarray,
    log_prior: np.ndarray,
    *,
    strength: float = 2.0,
) -> Beliefs:
    """Estimate the densities of boxes from simulations.

    Parameters
    ----------
    partition : Partition
    u : array (n, D)
    kernel_values : array (n,)
        From 0 to 1.
    log_prior : array (K,)
        Natural log prior density or mass at the centres of boxes, on the scale of the parameters. A box
        where it is not finite has value 0, unless it is finite nowhere.
    strength : float
        Number of simulations that the rate of the parent box counts for.

    Returns
    -------
    Beliefs

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.map_tree.choice import beliefs
    >>> from amc_pymc.abc_tree.partition import from_cuts
    >>> halves = from_cuts([(0, 0, 0.5)], n_dim=1)
    >>> u = np.array([[0.1], [0.2], [0.7], [0.9]])
    >>> beliefs(halves, u, np.array([0, 0, 1, 1]), np.log([4.0, 1.0])).value
    array([0.25  , 0.1875])
    """
    rate = shrunk_rates(partition, u, kernel_values, strength=strength)
    counts = np.bincount(partition.find(u), minlength=partition.boxes) + strength
    possible = np.isfinite(log_prior)
    prior = np.zeros(len(log_prior)) if possible.any() else np.ones(len(log_prior))
    prior[possible] = np.exp(log_prior[possible] - log_prior[possible].max(initial=-np.inf))
    return Beliefs(np.clip(rate, 0.0, 1.0), counts, prior)


def choose_boxes(
    believed: Beliefs, n: int, rng: np.random.Generator, *, policy: str = "top_two", b: float = 0.5
) -> np.ndarray:
    """Choose boxes for a batch one by one, without feedback in between.

    Parameters
    ----------
    believed : Beliefs
    n : int
    rng : numpy.random.Generator
    policy : {"top_two", "thompson", "ucb"}
        "thompson" draws all densities and takes the largest. "top_two" does so with probability `b`, and
        otherwise draws until another box has the largest. "ucb" takes the largest upper confidence bound.
    b : float
        Probability for "top_two".

    Returns
    -------
    array of int (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.map_tree.choice import Beliefs, choose_boxes
    >>> from amc_pymc.rng import as_generator
    >>> two = Beliefs(np.array([0.2, 0.3]), np.array([5000, 5000]), np.ones(2))
    >>> np.bincount(choose_boxes(two, 100, as_generator(1), policy="thompson"))
    array([  0, 100])
    """
    if policy == "ucb":
        rewards = KnownRange(0.0, believed.prior)
        bounds = UCB1(len(believed.rate), rewards=rewards)
        return bounds.begin_with(believed.counts, believed.value).ask(rng, n).arms
    hits = believed.rate * believed.counts
    alpha, beta = (np.maximum(x, _LEAST) for x in (hits, believed.counts - hits))
    leaders = (believed.prior * rng.beta(alpha, beta, (n, alpha.size))).argmax(axis=1)
    if policy == "thompson" or alpha.size == 1:
        return leaders
    # Top-two Thompson sampling: Russo (2016), https://proceedings.mlr.press/v49/russo16.html
    chosen = leaders.copy()
    again = np.flatnonzero(rng.random(n) >= b)
    for _ in range(_TRIES):
        chosen[again] = (believed.prior * rng.beta(alpha, beta, (again.size, alpha.size))).argmax(
            axis=1
        )
        again = again[chosen[again] == leaders[again]]
    if again.size:
        values = believed.prior * rng.beta(alpha, beta, (again.size, alpha.size))
        values[np.arange(again.size), leaders[again]] = -np.inf
        chosen[again] = values.argmax(axis=1)
    return chosen
