"""Interface between samplers and models: a population of raced units, and the rest of the logp.

A unit is a row or a group of rows. The log posterior (natural logarithm) at a flat point x (D,) is

    sum over units l_n(x) + rest(x).

Samplers access a model only through :class:`Raced` and :class:`RacedModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from scipy import linalg

from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record

# --- residuals of a Taylor polynomial --------------------------------------------------------------
# The rows' log-likelihoods are expanded around a centre, and the race samples the residuals. If a few
# rows dominate the residual sum, a batch without them underestimates the spread. Such rows are removed
# from the race and evaluated at every decision.


EXACT_ROW_CHOICES = (0, 50, 200, 1000)
#: Standard deviation, in nats, of the estimated sum of the other residuals from as few rows as one, for rows with kinks.
_LEFT = 0.05
#: Least eigenvalue of a precision with a unit diagonal, relative to the largest.
_FLOOR = 1e-10


class ResidualSummary(NamedTuple):
    """Residuals r (natural log) of N rows over Q probe moves.

    ``largest`` (T,) are the rows with the largest root mean squares over the probes, in decreasing
    order; ``scale`` (T,) are these root mean squares. ``power`` is the sum of all rows' mean squares,
    ``totals`` (Q,) and ``squares`` (Q,) are sums over all rows of r and of r^2.
    """

    n_rows: int
    largest: np.ndarray
    scale: np.ndarray
    power: float
    totals: np.ndarray
    squares: np.ndarray


def summarise_residuals(
    residuals: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probes: list[np.ndarray],
    n_rows: int,
    chunk: int = 16_384,
    *,
    n_largest: int = EXACT_ROW_CHOICES[-1],
) -> ResidualSummary:
    """Summarise residuals by one pass over all rows per probe move.

    ``residuals(points, rows)`` returns (m,) residual changes for a probe's points (2, D). Memory
    use does not depend on the number of rows.
    """
    totals, squares = np.zeros(len(probes)), np.zeros(len(probes))
    n_largest, values, largest = min(n_largest, n_rows), np.empty(0), np.empty(0, np.int64)
    for start in range(0, n_rows, chunk):
        rows = np.arange(start, min(start + chunk, n_rows))
        power = np.zeros(rows.size)
        for q, points in enumerate(probes):
            r = residuals(points, rows)
            totals[q] += r.sum()
            squares[q] += np.square(r).sum()
            power += np.square(r) / len(probes)
        kept = np.flatnonzero(power > (values[-1] if 0 < n_largest == values.size else -np.inf))
        values = np.concatenate([values, power[kept]])
        order = np.argsort(-values, kind="stable")[:n_largest]
        values, largest = values[order], np.concatenate([largest, rows[kept]])[order]
    whole = float(squares.sum() / len(probes))
    return ResidualSummary(n_rows, largest, np.sqrt(values), whole, totals, squares)


def choose_exact_rows(
    summary: ResidualSummary,
    expected_rows: Callable[[float, int], float],
) -> np.ndarray:
    """Choose the exactly evaluated rows that minimise the expected rows read per decision.

    ``expected_rows(sd, n_raced)`` predicts the rows read by a race whose residuals have standard
    deviation ``sd`` per row.
    """
    n_rows = summary.n_rows
    choices = [n for n in EXACT_ROW_CHOICES if n <= min(n_rows // 10, summary.largest.size)] or [0]
    taken = np.append(0.0, np.cumsum(np.square(summary.scale)))
    costs = []
    for n in choices:
        left = max(summary.power - taken[n], 0.0)
        costs.append(n + expected_rows(np.sqrt(left / (n_rows - n)), n_rows - n))
    best = choices[int(np.argmin(costs))]
    return np.sort(summary.largest[:best])


def most_near_kinks(n_rows: int) -> int:
    """Return the largest number of rows that :func:`rows_near_kinks` may choose."""
    return min(n_rows // 4, 2**17)


def rows_near_kinks(summary: ResidualSummary) -> np.ndarray:
    """Return the rows to evaluate exactly if log-likelihoods have kinks.

    Only rows whose kinks lie between the two points of a move have residuals that are not about zero. Batches miss
    these rows, whose number grows with the square root of the number of rows. They are the same for all moves.
    """
    n_rows, number = summary.n_rows, summary.largest.size
    left = summary.power - np.append(0.0, np.cumsum(np.square(summary.scale)))
    sd = np.sqrt(np.maximum(left, 0.0) / np.maximum(1, n_rows - np.arange(number + 1)))
    enough = np.flatnonzero(n_rows * sd <= _LEFT)
    return np.sort(summary.largest[: enough[0] if enough.size else number])


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
    expand : (E,) int array
        Coordinates in which control variates are expanded; empty for none.
    rows_evaluated : int
        Cost of the passes over all units so far, in log-likelihoods of one row.
    """

    n_units: int
    unit: str
    expand: np.ndarray
    rows_evaluated: int

    @property
    def layout(self) -> Any:
        """Names and positions of variables in x, an :class:`amc_pymc.reading.FlatLayout`."""

    @property
    def n_rows(self) -> int:
        """Number of rows of all units."""

    @property
    def race_cost(self) -> float:
        """Cost of racing one unit, in log-likelihoods of one row read sequentially."""

    @property
    def audit_cost(self) -> float:
        """Cost per unit of auditing a decision, on the same scale."""

    @property
    def rows_read(self) -> int | None:
        """Number of rows read so far; None if units are rows."""

    @property
    def approximation_error(self) -> float:
        """Largest change of a decision's log ratio so far under a finer approximation of units."""

    def forget_errors(self) -> None:
        """Reset :attr:`approximation_error` to zero for a new chain."""

    @property
    def reads(self) -> np.ndarray:
        """Coordinates that units depend on."""

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
    """Units, and the rest of the log posterior: priors, Jacobians, Potentials, other data."""

    @property
    def observed_vars(self) -> tuple[str, ...]:
        """Names of the observed variables whose units are raced."""

    @property
    def factor(self) -> Any:
        """Grouping factor whose effects are integrated out of the units, if any."""

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


def finite_or_raise(model: RacedModel, x: np.ndarray, unit: int) -> None:
    """Raise a ValueError if the log-likelihood of a unit is not finite at x.

    A unit that is not finite at a proposal is a rejection, at the current point an error.
    """
    value = float(model.values(x, np.array([unit]))[0])
    if not np.isfinite(value):
        raise ValueError(
            f"The log-likelihood of {', '.join(model.observed_vars)} is {value} in "
            f"{model.unit} {unit} at the current point of the chain: a {model.unit} that had not "
            "been read when the chain moved there. Use race='exact', or a likelihood that is "
            "positive everywhere."
        )


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
    whole = np.zeros((x.size, x.size))
    if precision is None:
        precision = -(hessian + model.rest_hessian(x, coordinates))[
            np.ix_(coordinates, coordinates)
        ]
        if not np.all(np.isfinite(precision)):
            return None
    whole[np.ix_(coordinates, coordinates)] = precision
    return GaussianFit(x.copy(), whole, coordinates)
