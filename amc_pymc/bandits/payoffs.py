"""What a bandit is told about draws, so that it prefers the estimator with the least variance times cost.

A policy that uses costs is told values and costs unchanged. Others are told rewards, made of one or two draws.

Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, sections
4 and 5. On the log scale, the logarithms of losses are used, for :class:`amc_pymc.bandits.LogLoss`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Payoff = Literal["squared", "paired"]

#: Number of draws per reward.
PAYOFFS: dict[str, int] = {"squared": 1, "paired": 2}


def rewards(values: np.ndarray, costs: np.ndarray, payoff: Payoff, scale: str) -> np.ndarray:
    r"""Compute the rewards of groups of draws.

    ``squared``: :math:`-X^2`, for equal costs. ``paired``: :math:`-\frac14 (D_1 + D_2)(X_1 - X_2)^2`,
    with expectation :math:`-\delta V` where the cost D of a draw is independent of its value.

    Parameters
    ----------
    values, costs : array (g, m)
        g draws for each of m rewards, with g from :data:`PAYOFFS`.
    payoff : {"squared", "paired"}
    scale : {"natural", "log"}
        Scale of the values; on the log scale, the logarithm of the loss is returned.

    Returns
    -------
    array (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits.payoffs import rewards
    >>> rewards(np.array([[3.0], [1.0]]), np.array([[1.0], [2.0]]), "paired", "natural")
    array([-3.])
    """
    if scale == "natural":
        return -_loss(values, costs, payoff)
    top = values.max(axis=0)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(_loss(np.exp(values - safe), costs, payoff)) + 2.0 * safe


def _loss(x: np.ndarray, d: np.ndarray, payoff: Payoff) -> np.ndarray:
    return x[0] ** 2 if payoff == "squared" else 0.25 * (d[0] + d[1]) * (x[0] - x[1]) ** 2
