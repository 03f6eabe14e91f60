"""Second-order surrogate of the units' summed log-likelihood.

Units depend on the flat point x through parameters eta(x): x itself, or functions of x if variables
are discrete. Let h be a second-order Taylor control variate of every unit around a centre c of eta,
u = eta' - eta and v = eta' + eta - 2c. Then

    sum_n [l_n(x') - l_n(x)] = G.u + u'Hv/2 + sum_n r_n,     r_n = residual of unit n,

where G and H are population sums of gradients and Hessians at c, computed once (Bardenet, Doucet &
Holmes 2017, JMLR 18(47)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record
from amc_pymc.tall.proxies import gaussian_factor
from amc_pymc.tall.samplers.raced import Raced, RacedModel

__all__ = [
    "GaussianFit",
    "NoProxy",
    "Surrogate",
    "expanded_hessian",
    "fit_gaussian",
    "mask_of",
    "no_surrogate",
    "surrogate_at",
    "surrogate_change",
    "surrogate_total",
]


@record
class Surrogate(NamedTuple):
    """Centre c (E,) and population sums G (E,) and H (E, E)."""

    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


@njit(cache=True)
def surrogate_total(eta: np.ndarray, surrogate: Surrogate) -> float:
    """Return G.u + u'Hu/2 for u = eta - c, the surrogate minus its value at the centre."""
    u = eta - surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ u)


@njit(cache=True)
def surrogate_change(points: np.ndarray, surrogate: Surrogate) -> float:
    """Return G.u + u'Hv/2 for u = eta' - eta, v = eta' + eta - 2c and the points eta, eta'."""
    u = points[1] - points[0]
    v = points[1] + points[0] - 2.0 * surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ v)


def no_surrogate(centre: np.ndarray) -> Surrogate:
    """Return a surrogate that is zero everywhere."""
    return Surrogate(centre, np.zeros(centre.size), np.zeros((centre.size, centre.size)))


def surrogate_at(raced: Raced, centre: np.ndarray) -> Surrogate | None:
    """Compute the surrogate at a centre by one pass over all units; None if not finite."""
    gradient, hessian = raced.expansion(centre)
    inside = mask_of(centre.size, raced.expand)
    hessian = hessian * np.outer(inside, inside)
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return None
    return Surrogate(centre.copy(), gradient * inside, hessian)


def expanded_hessian(raced: Raced, x: np.ndarray) -> np.ndarray:
    """Return the Hessian of the units' sum, zero outside the expanded coordinates."""
    inside = mask_of(x.size, raced.expand)
    return raced.hessian(x) * np.outer(inside, inside)


def mask_of(size: int, coordinates: np.ndarray) -> np.ndarray:
    """Return a mask: one at some coordinates, zero elsewhere."""
    out = np.zeros(size)
    out[coordinates] = 1.0
    return out


# --- Gaussian approximations ----------------------------------------------------------------------


class NoProxy(Exception):
    """No control variate is possible; the message gives the reason."""


@dataclass(frozen=True)
class GaussianFit:
    """Gaussian approximation N(mean, precision^-1) of the posterior on the continuous coordinates.

    ``mean`` is (D,), ``precision`` (D, D) with zeros outside ``coordinates``.
    """

    mean: np.ndarray
    precision: np.ndarray
    coordinates: np.ndarray

    def moves(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Cholesky factor (A, A) and gain (A, D) of active coordinates given the others."""
        within = self.precision[np.ix_(active, active)]
        factor, _ = gaussian_factor(within)
        others = np.setdiff1d(self.coordinates, active)
        gain = np.zeros((active.size, self.mean.size))
        if others.size:
            gain[:, others] = -factor @ (factor.T @ self.precision[np.ix_(active, others)])
        return factor, gain

    def draw(self, x: np.ndarray, active: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the active coordinates given the rest of ``x``; return the new point."""
        factor, gain = self.moves(active)
        out = x.copy()
        shift = gain @ (x - self.mean)
        out[active] = self.mean[active] + shift + factor @ rng.standard_normal(active.size)
        return out


def fit_gaussian(
    model: RacedModel,
    hessian: np.ndarray,
    x: np.ndarray,
    coordinates: np.ndarray,
    precision: np.ndarray | None = None,
) -> GaussianFit | None:
    """Return the Gaussian approximation at x; None if the Hessian is not finite.

    ``hessian`` (D, D) is that of the units. A ``precision`` (S, S) of the coordinates takes the place of second
    derivatives.
    """
    whole = np.zeros((x.size, x.size))
    if precision is None:
        precision = -(hessian + model.rest_hessian(x, coordinates))[
            np.ix_(coordinates, coordinates)
        ]
        if not np.all(np.isfinite(precision)):
            return None
    whole[np.ix_(coordinates, coordinates)] = precision
    return GaussianFit(x.copy(), whole, coordinates)
