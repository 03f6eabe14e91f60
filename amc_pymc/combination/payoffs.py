"""What a bandit is told about draws, so that it prefers the estimator with the least variance times cost.

A policy that uses costs is told values and costs unchanged. Others are told rewards, made of one to three draws.

Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, sections
4 and 5. On the log scale, the logarithms of losses are used, for :class:`amc_pymc.bandits.LogLoss`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

__all__ = ["PAYOFFS", "Adapter", "Payoff", "rewards"]

Payoff = Literal["squared", "paired", "triple"]

#: Number of draws per reward.
PAYOFFS: dict[str, int] = {"squared": 1, "paired": 2, "triple": 3}


class Adapter(NamedTuple):
    """Conversion of the draws of a pull to the value and the cost that a policy is told.

    Attributes
    ----------
    payoff : {"squared", "paired", "triple", None}
        None leaves values and costs unchanged.
    scale : {"natural", "log"}
        Scale of the values.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.combination.payoffs import Adapter
    >>> Adapter("paired", "natural").told(np.array([[3.0, 1.0]]), np.array([[1.0, 2.0]]))
    (array([-3.]), array([3.]))
    """

    payoff: Payoff | None
    scale: str

    @property
    def draws(self) -> int:
        """Number of draws per pull."""
        return 1 if self.payoff is None else PAYOFFS[self.payoff]

    def told(self, values: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value and the cost (m,) of m pulls from those of their draws, (m, g)."""
        if self.payoff is None:
            return values[:, 0], costs[:, 0]
        return rewards(values.T, costs.T, self.payoff, self.scale), costs.sum(axis=1)


def rewards(values: np.ndarray, costs: np.ndarray, payoff: Payoff, scale: str) -> np.ndarray:
    r"""Compute the rewards of groups of draws.

    ``squared``: :math:`-X^2`, for equal costs. ``paired``: :math:`-\frac14 (D_1 + D_2)(X_1 - X_2)^2`,
    with expectation :math:`-\delta V` where the cost D of a draw is independent of its value.
    ``triple``: :math:`-\frac16 \sum_i D_i (X_j - X_k)^2` over the three choices of draw i, for costs
    that may depend on values.

    Parameters
    ----------
    values, costs : array (g, m)
        g draws for each of m rewards, with g from :data:`PAYOFFS`.
    payoff : {"squared", "paired", "triple"}
    scale : {"natural", "log"}
        Scale of the values; on the log scale, the logarithm of the loss is returned.

    Returns
    -------
    array (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.combination.payoffs import rewards
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
    loss: np.ndarray
    if payoff == "squared":
        loss = x[0] ** 2
    elif payoff == "paired":
        loss = 0.25 * (d[0] + d[1]) * (x[0] - x[1]) ** 2
    else:
        apart = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        loss = sum(d[i] * (x[j] - x[k]) ** 2 for i, j, k in apart) / 6.0
    return loss
