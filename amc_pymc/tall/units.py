"""Interface between samplers and models: a population of units, and the rest of the logp.

A unit is a row or a group of rows. The log posterior (natural logarithm) at a flat point x (D,) is

    sum over units l_n(x) + rest(x).

Samplers access a model only through :class:`Raced` and :class:`RacedModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np


class NoProxy(Exception):
    """No control variate is possible; the message gives the reason."""


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
    settled : bool
        Set to false, so that the next expansion computes anew what units keep for the current centre.
    """

    n_units: int
    unit: str
    n_rows: int
    layout: Any
    reads: np.ndarray
    expand: np.ndarray
    approximation_error: float
    rows_evaluated: int
    settled: bool

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

    @property
    def store(self) -> Any:
        """Data, see :class:`amc_pymc.rows.RowStore`: pages of mapped files occupy memory."""

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
