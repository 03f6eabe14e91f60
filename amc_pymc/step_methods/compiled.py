"""What compiled loops of racing steps share: densities, control variates, two-arm decisions.

Rows depend on the flat point x through parameters eta(x): x itself, or what it makes of discrete
variables. With a second-order Taylor control variate h of every row around a centre c of eta,
u = eta' - eta and v = eta' + eta - 2c,

    sum_n [l_n(x') - l_n(x)] = G.u + u'Hv/2 + sum_n r_n,     r_n = residual of row n,

where G and H are population sums of gradients and Hessians at c, stored once. The race estimates
the mean of r_n only (Chen & Ghahramani 2016, eq. 11-12, with the control variate in the parameters
as in Bardenet, Doucet & Holmes 2017, JMLR 18(47)). A control variate in data space has its own
population sum, ``Densities.control``; the one that is not used is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numba import cfunc, njit, types

from amc_pymc.racing import DECIDED, NOT_FINITE, race

__all__ = [
    "GRADIENT",
    "LOGP",
    "ROW_GRADIENT",
    "Densities",
    "Surrogate",
    "Verdict",
    "as_they_are",
    "decide",
    "no_control",
    "no_gradient",
    "no_row_gradient",
    "surrogate_change",
    "surrogate_total",
]

#: log density of everything but the raced rows: x (D,) -> float.
LOGP = types.float64(types.float64[::1])
#: its gradient, or the parameters eta: x (D,) -> (D,) or (E,).
GRADIENT = types.float64[::1](types.float64[::1])
#: sum over rows of the gradient of their residuals: points (K, D), centre (D,), rows -> (K, D).
ROW_GRADIENT = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])


@cfunc(GRADIENT, cache=True)
def no_gradient(x):
    """Stand-in where no proposal needs a gradient."""
    return np.zeros_like(x)


@cfunc(ROW_GRADIENT, cache=True)
def no_row_gradient(points, centre, rows):
    """Stand-in where no proposal needs row gradients."""
    return np.zeros_like(points)


@cfunc(GRADIENT, cache=True)
def as_they_are(x):
    """Parameters that are the value variables themselves."""
    return x.copy()


@cfunc(LOGP, cache=True)
def no_control(eta):
    """Stand-in where there is no control variate in data space."""
    return 0.0


class Densities(NamedTuple):
    """Compiled pieces of the log posterior.

    ``rewards``, ``row_gradient`` and ``control`` take parameters eta (E,), the others x (D,);
    ``parameters`` maps x to eta, ``control`` gives the population sum of the control variate in
    data space.
    """

    rewards: object
    rest: object
    rest_gradient: object
    row_gradient: object
    parameters: object
    control: object


class Surrogate(NamedTuple):
    """Second-order surrogate of the log-likelihood: centre (E,), sums G (E,) and H (E, E)."""

    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


class Verdict(NamedTuple):
    """A two-arm decision.

    ``gap`` is the estimated log ratio less its threshold, ``raced`` and ``exact`` count rows,
    ``row`` names an offending row if ``status`` is ``NOT_FINITE``.
    """

    accepted: bool
    gap: float
    raced: int
    exact: int
    rounds: int
    status: int
    row: int


@njit(cache=True)
def surrogate_total(eta, surrogate):
    """G.u + u'Hu/2 for u = eta - c: the surrogate's sum but for its value at the centre."""
    u = eta - surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ u)


@njit(cache=True)
def surrogate_change(points, surrogate):
    """G.u + u'Hv/2 for u = eta' - eta, v = eta' + eta - 2c and the points eta, eta'."""
    u = points[1] - points[0]
    v = points[1] + points[0] - 2.0 * surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ v)


@njit(cache=True)
def _verdict(accepted, gap, exact, status, row):
    return Verdict(accepted, gap, 0, exact, 0, status, row)


@njit(cache=True)
def decide(known, points, densities, surrogate, population, rule, rng):
    """Whether known + sum_n [l_n(eta') - l_n(eta)] > 0 for the points (2, E) eta, eta'.

    ``known`` is the log ratio without the raced rows, less the threshold.
    """
    n_raced = population.n_raced
    change = surrogate_change(points, surrogate)
    change += densities.control(points[1]) - densities.control(points[0])
    n_exact = population.exact.size
    if n_exact:
        exact = densities.rewards(points, surrogate.centre, population.exact)[1]
        for j in range(n_exact):
            if np.isnan(exact[j]) or exact[j] == np.inf:
                return _verdict(False, -np.inf, n_exact, NOT_FINITE, population.exact[j])
        change += exact.sum()
    if not np.isfinite(change):
        return _verdict(False, -np.inf, n_exact, DECIDED, -1)
    bias = np.zeros(2)
    bias[1] = (known + change) / max(1, n_raced)
    result = race(densities.rewards, points, surrogate.centre, bias, population, rule, rng)
    return Verdict(
        result.winner == 1,
        result.margin * max(1, n_raced),
        result.rows,
        n_exact,
        result.rounds,
        result.status,
        result.row,
    )
