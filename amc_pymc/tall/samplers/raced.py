"""Interface between samplers and models: a population of raced units, and the rest of the logp.

A unit is a row or a group of rows. The log posterior (natural logarithm) at a flat point x (D,) is

    sum over units l_n(x) + rest(x).

Samplers access a model only through :class:`Raced` and :class:`RacedModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from scipy import linalg

from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record

#: Least eigenvalue of a precision with a unit diagonal, relative to the largest.
_FLOOR = 1e-10


# --- units -----------------------------------------------------------------------------------------


class Raced(Protocol):
    """A population of ``n_units`` units with log-likelihoods l_n(x).

    A control variate h_n, if there is one, is the second-order Taylor polynomial of l_n around a
    centre in the coordinates ``expand``; a residual is l_n - h_n.

    Attributes
    ----------
    n_units : int
        Number N of units, which are numbered from 0.
    unit : str
        Name of a unit in messages: "row".
    n_rows : int
        Number of rows of all units.
    layout : FlatLayout
        Names and positions of variables in x, see :class:`amc_pymc.reading.FlatLayout`.
    reads : int array
        Coordinates that units depend on.
    expand : (E,) int array
        Coordinates in which control variates are expanded; empty for none.
    approximation_error : float
        Largest change of a decision's log ratio so far under a finer approximation of units.
    rows_evaluated : int
        Cost of the passes over all units so far, in log-likelihoods of one row.
    """

    n_units: int
    unit: str
    n_rows: int
    layout: Any
    reads: np.ndarray
    expand: np.ndarray
    approximation_error: float
    rows_evaluated: int

    @property
    def race_cost(self) -> float:
        """Cost of racing one unit, in log-likelihoods of one row read sequentially."""

    @property
    def audit_cost(self) -> float:
        """Cost per unit of auditing a decision, on the same scale."""

    @property
    def rows_read(self) -> int | None:
        """Number of rows read so far; None if units are rows."""

    def forget_errors(self) -> None:
        """Reset :attr:`approximation_error` to zero for a new chain."""

    @property
    def rewards(self) -> Any:
        """First-class ``(points (2, D), centre, units (m,)) -> (2, m)``: residual changes.

        Row 0 is zero; row 1 holds the changes from points[0] to points[1].
        """

    @property
    def state_rewards(self) -> Any:
        """First-class ``(points (K, D), centre, units (m,)) -> (K, m)``: residuals."""

    def values(self, x: np.ndarray, units: np.ndarray, /) -> np.ndarray:
        """Return log-likelihoods (m,) of some units at x."""

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return log-likelihoods (N,) of all units at x."""

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield log-likelihoods of all units in order, in chunks."""

    def all_finite(self, x: np.ndarray, /) -> bool:
        """Whether the log-likelihoods of all units are finite at x."""

    def touch(self, n_rows: float, /) -> None:
        """Count rows read at random by races; their pages of mapped files occupy memory."""

    def release(self) -> None:
        """Release memory that holds pages of mapped files."""

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None, /) -> float:
        """Return the sum over all units of l_n(x_new) - l_n(x).

        ``surrogate`` is the surrogate of the races, needed for :attr:`approximation_error`.
        """

    def value_and_gradient(
        self, x: np.ndarray, units: np.ndarray | None = None, /
    ) -> tuple[float, np.ndarray]:
        """Return the summed log-likelihood of some or all units and its gradient (D,)."""

    def hessian(self, x: np.ndarray, units: np.ndarray | None = None, /) -> np.ndarray:
        """Return the Hessian (D, D) of that sum, zero in coordinates that are not expanded."""

    def expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient (D,) and Hessian (D, D) at x of the sum of all control variates."""

    def forget_centre(self) -> None:
        """Discard what is stored for the current centre; the next expansion recomputes it."""


class RacedModel(Raced, Protocol):
    """Units, and the rest of the log posterior: priors, Jacobians, Potentials, other data.

    ``observed_vars`` are the names of the observed variables whose units are raced, ``factor`` is the grouping factor
    whose effects are integrated out of the units, if any.
    """

    observed_vars: tuple[str, ...]
    factor: Any

    @property
    def rest(self) -> Any:
        """First-class ``x -> log density``."""

    def rest_value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return both, outside of compiled loops."""

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return the Hessian (D, D) of the rest over some coordinates, zero elsewhere."""

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point of the user's model to x (D,)."""

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Convert x (D,) to values of the user's variables."""


# --- second-order surrogate ------------------------------------------------------------------------
# Units depend on the flat point x through parameters eta(x): x itself, or functions of x if variables
# are discrete. Let h be a second-order Taylor control variate of every unit around a centre c of eta,
# u = eta' - eta and v = eta' + eta - 2c. Then
#
#     sum_n [l_n(x') - l_n(x)] = G.u + u'Hv/2 + sum_n r_n,     r_n = residual of unit n,
#
# where G and H are population sums of gradients and Hessians at c, computed once (Bardenet, Doucet &
# Holmes 2017, JMLR 18(47)).


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


def mask_of(size: int, coordinates: np.ndarray) -> np.ndarray:
    """Return a mask: one at some coordinates, zero elsewhere."""
    out = np.zeros(size)
    out[coordinates] = 1.0
    return out


# --- factors of precisions -------------------------------------------------------------------------


def gaussian_factor(precision: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return lower L with L L' = precision^-1, after raising small or negative eigenvalues.

    Also returns whether the precision was positive definite without this. Eigenvalues are raised that are numerically
    zero whatever the units of coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.samplers.raced import gaussian_factor
    >>> gaussian_factor(np.diag([4.0, 1.0]))
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    """
    diagonal = np.diag(precision)
    scale = np.sqrt(diagonal) if np.all(diagonal > 0.0) else np.ones(len(precision))
    values, vectors = linalg.eigh(precision / np.outer(scale, scale))
    return _factor(values, vectors) / scale[:, None], bool(np.all(values > _least(values)))


def absolute_factor(precision: np.ndarray) -> np.ndarray:
    """Return the same factor for the absolute values of the eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.samplers.raced import absolute_factor
    >>> absolute_factor(np.diag([4.0, -1.0]))
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    values, vectors = linalg.eigh(precision)
    return _factor(np.abs(values), vectors)


def _least(values: np.ndarray) -> float:
    return _FLOOR * max(float(values.max(initial=0.0)), 1.0)


def _factor(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    covariance = (vectors / np.maximum(values, _least(values))) @ vectors.T
    return np.ascontiguousarray(linalg.cholesky(covariance, lower=True))


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

    def factor(self, active: np.ndarray) -> np.ndarray:
        """Return the Cholesky factor (A, A) of the covariance of active coordinates given the others."""
        return gaussian_factor(self.precision[np.ix_(active, active)])[0]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return a draw (D,), which has other coordinates from the mean."""
        out, at = self.mean.copy(), self.coordinates
        out[at] += self.factor(at) @ rng.standard_normal(at.size)
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
    whole, inside = np.zeros((x.size, x.size)), np.ix_(coordinates, coordinates)
    if precision is None:
        precision = -(hessian + model.rest_hessian(x, coordinates))[inside]
        if not np.all(np.isfinite(precision)):
            return None
    whole[inside] = precision
    return GaussianFit(x.copy(), whole, coordinates)


class Moments:
    """Running mean (D,) and covariance (D, D) of the points visited."""

    def __init__(self, size: int):
        self.count = 0
        self.mean = np.zeros(size)
        self.comoment = np.zeros((size, size))

    def add(self, x: np.ndarray) -> None:
        """Add one point."""
        self.count += 1
        shift = x - self.mean
        self.mean += shift / self.count
        self.comoment += np.outer(shift, x - self.mean)

    def covariance(self) -> np.ndarray:
        """Return the unbiased covariance; requires two points."""
        return self.comoment / (self.count - 1)

    def factor(self, coordinates: np.ndarray, prior: np.ndarray, weight: float) -> np.ndarray:
        """Return the Cholesky factor of some coordinates' covariance, shrunk to prior @ prior.T."""
        inner = self.covariance()[np.ix_(coordinates, coordinates)]
        mixed = (self.count * inner + weight * prior @ prior.T) / (self.count + weight)
        factor, _ = gaussian_factor(np.linalg.inv(mixed))
        return factor
