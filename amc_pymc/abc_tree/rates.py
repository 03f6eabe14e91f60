"""Acceptance rates of boxes, shrunk towards those of their parent boxes."""

from __future__ import annotations

import numpy as np

from amc_pymc.abc_tree.partition import Partition
from amc_pymc.engine.jit import njit

__all__ = ["drawn_rates", "shrunk_rates"]


def shrunk_rates(
    partition: Partition, u: np.ndarray, accepted: np.ndarray, *, strength: float = 1.0
) -> np.ndarray:
    r"""Return posterior means of acceptance rates under Beta priors centred at the parents' rates.

    .. math:: \eta_k = \frac{A_k + c\, \eta_{\mathrm{parent}(k)}}{N_k + c}

    from the root down. With a flat prior in each of a thousand boxes, boxes without a single acceptance would
    hold most of the posterior mass.

    Parameters
    ----------
    partition : Partition
    u : array (n, D)
        Simulated points of the unit cube.
    accepted : array (n,)
        Whether each simulation was accepted, or kernel values from 0 to 1.
    strength : float
        Number c of simulations that the parent's rate counts for.

    Returns
    -------
    array (K,)
        Rates of the boxes, positive unless no simulation was accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import shrunk_rates
    >>> from amc_pymc.abc_tree.partition import from_cuts
    >>> halves = from_cuts([(0, 0, 0.5)], n_dim=1)
    >>> u = np.array([[0.1], [0.2], [0.7], [0.9]])
    >>> shrunk_rates(halves, u, np.array([0, 0, 1, 1]))
    array([0.16666667, 0.83333333])
    """
    return _rates(partition, u, accepted, strength)[0]


def drawn_rates(
    partition: Partition,
    u: np.ndarray,
    accepted: np.ndarray,
    rng: np.random.Generator,
    *,
    strength: float = 1.0,
) -> np.ndarray:
    r"""Draw acceptance rates from the Beta distributions whose means are :func:`shrunk_rates`.

    .. math:: \mu_k \sim \mathrm{Beta}(\eta_k (N_k + c), (1 - \eta_k) (N_k + c))

    Parameters
    ----------
    partition, u, accepted, strength
        As for :func:`shrunk_rates`.
    rng : numpy.random.Generator

    Returns
    -------
    array (K,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import whole_cube
    >>> from amc_pymc.abc_tree.rates import drawn_rates
    >>> from amc_pymc.rng import as_generator
    >>> u = np.linspace(0.0, 0.999, 1000)[:, None]
    >>> drawn_rates(whole_cube(1), u, u[:, 0] < 0.3, as_generator(1)).round(2)
    array([0.3])
    """
    rates, totals = _rates(partition, u, accepted, strength)
    n = totals + strength
    drawable = (rates > 0.0) & (rates < 1.0)
    out = rates.copy()
    out[drawable] = rng.beta((rates * n)[drawable], ((1.0 - rates) * n)[drawable])
    return out


def _rates(
    partition: Partition, u: np.ndarray, accepted: np.ndarray, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return rates of boxes and the numbers of points in them."""
    if not strength > 0.0:
        raise ValueError(f"strength must be positive, got {strength!r}.")
    accepts, totals = partition.sums(u, np.asarray(accepted, float), np.ones(len(u)))
    rates = _shrunk(accepts, totals, partition.parent, float(strength))
    return rates[partition.leaves], totals[partition.leaves]


@njit(cache=True)
def _shrunk(
    accepts: np.ndarray, totals: np.ndarray, parent: np.ndarray, strength: float
) -> np.ndarray:
    rates = np.empty(len(accepts))
    rates[0] = accepts[0] / totals[0] if totals[0] > 0.0 else 0.5
    for node in range(1, len(accepts)):
        above = rates[parent[node]]
        rates[node] = (accepts[node] + strength * above) / (totals[node] + strength)
    return rates
