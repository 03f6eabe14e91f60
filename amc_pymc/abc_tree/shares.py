"""Shares of several densities in a proposal."""

from __future__ import annotations

import numpy as np

from scipy.optimize import minimize

__all__ = ["best_shares"]

#: Maximum iterations of the optimiser.
_ITERATIONS = 100


def best_shares(
    density: np.ndarray, worth: np.ndarray, floor: float, pull: np.ndarray
) -> np.ndarray:
    r"""Return the mixture shares of densities with most effective draws per simulation.

    .. math:: \min_a \; \log \sum_i \frac{w_i}{s + (1 - s) \sum_c a_c d_c(u_i)} - \sum_c t_c \log a_c

    over shares that sum to one. The sum over accepted simulations estimates the variance of weights (Douc,
    Guillin, Marin & Robert 2007, doi:10.1051/ps:2007028). The second term keeps all densities in the mixture while
    there are few simulations to judge them by; a useless density gets a share of about :math:`t_c`.

    Parameters
    ----------
    density : array (C, n)
        Densities at accepted simulations that they were not fitted to, relative to the prior.
    worth : array (n,)
        Weights w, not all zero.
    floor : float
        Share s of the prior.
    pull : array (C,)
        Penalty weights t, positive.

    Returns
    -------
    array (C,)
        Shares, which sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.shares import best_shares
    >>> density = np.array([[1.0, 9.0], [9.0, 1.0], [0.0, 0.0]])
    >>> best_shares(density, np.ones(2), 0.1, np.full(3, 1e-3)).round(2)
    array([0.5, 0.5, 0. ])
    """

    def target(z: np.ndarray) -> tuple[float, np.ndarray]:
        a = _softmax(z)
        inverse = worth / (floor + (1.0 - floor) * (a @ density))
        cost = inverse.sum()
        slope = -(1.0 - floor) * (density @ (inverse**2 / np.maximum(worth, 1e-300))) / cost
        log_a = z - z.max() - np.log(np.exp(z - z.max()).sum())
        return (
            float(np.log(cost) - pull @ log_a),
            a * (slope - a @ slope) - (pull - a * pull.sum()),
        )

    found = minimize(
        target, np.zeros(len(density)), jac=True, method="L-BFGS-B",
        options={"maxiter": _ITERATIONS},
    )  # fmt: skip
    return _softmax(found.x)


def _softmax(z: np.ndarray) -> np.ndarray:
    a = np.exp(z - z.max())
    return a / a.sum()
