"""What a sampler asks of a model: a population of units that are raced, and the rest of the logp.

A unit is a row or a group of rows. The log posterior at a flat point x (D,) is

    sum over units l_n(x) + rest(x),

natural logarithms. Everything in this room knows a model by these two protocols only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amc_pymc.proxies import ResidualSummary

__all__ = ["Layout", "Raced", "RacedModel", "finite_or_raise"]


class Layout(Protocol):
    """Where each variable lies in a flat point x (D,)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""

    @property
    def size(self) -> int:
        """Length D."""

    @property
    def slices(self) -> dict[str, slice]:
        """Place of each variable."""

    def is_continuous(self, name: str) -> bool:
        """Whether a variable has a floating dtype."""

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """Sorted places of the entries of some variables."""

    def labels(self) -> list[str]:
        """Readable name of each entry."""


class Raced(Protocol):
    """A population of ``n_units`` units with log-likelihoods l_n(x).

    A control variate h_n, if there is one, is the second-order Taylor polynomial of l_n around a
    centre in the coordinates ``expand``; a residual is l_n - h_n.

    Attributes
    ----------
    n_units : int
        Number N of units, which are numbered from 0.
    unit : str
        What one is called in messages: "row".
    expand : (E,) int array
        Coordinates in which control variates expand; empty for none.
    rows_evaluated : int
        Cost of the passes over all units so far, in log-likelihoods of one row.
    """

    n_units: int
    unit: str
    expand: np.ndarray
    rows_evaluated: int

    @property
    def layout(self) -> Layout:
        """Of the points."""

    @property
    def n_rows(self) -> int:
        """Rows of all units."""

    @property
    def race_cost(self) -> float:
        """Cost of racing one unit, in log-likelihoods of one row that is read in order."""

    @property
    def audit_cost(self) -> float:
        """Cost of auditing a decision, for each unit."""

    @property
    def rows_read(self) -> int | None:
        """Rows read so far, where units are not rows."""

    @property
    def approximation_error(self) -> float:
        """Largest difference that a finer approximation of units made to a decision so far."""

    def forget_errors(self) -> None:
        """Set :attr:`approximation_error` to zero, for a new chain."""

    @property
    def reads(self) -> np.ndarray:
        """Coordinates that units depend on."""

    @property
    def rewards(self) -> Any:
        """First-class ``(points (2, D), centre, units (m,)) -> (2, m)``; row 0 is zero.

        Row 1 holds the change of each unit's residual from points[0] to points[1].
        """

    @property
    def state_rewards(self) -> Any:
        """First-class ``(points (K, D), centre, units (m,)) -> (K, m)``: residuals."""

    @property
    def row_gradient(self) -> Any:
        """First-class ``(points (K, D), centre, units) -> (K, D)``: summed residual gradients."""

    def values(self, x: np.ndarray, units: np.ndarray, /) -> np.ndarray:
        """Log-likelihoods (m,) of some units at x."""

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Log-likelihoods (N,) of all units at x."""

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """The same in order, some at a time."""

    def all_finite(self, x: np.ndarray, /) -> bool:
        """Whether the log-likelihoods of all units are finite at x."""

    def touch(self, n_rows: float, /) -> None:
        """Take note of rows that races have read at random, which may hold memory."""

    def release(self) -> None:
        """Let go of memory that can be read again."""

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None, /) -> float:
        """Sum over all units of l_n(x_new) - l_n(x).

        ``surrogate`` is the one that races use, for :attr:`approximation_error`.
        """

    def value_and_gradient(
        self, x: np.ndarray, units: np.ndarray | None = None, /
    ) -> tuple[float, np.ndarray]:
        """Sum of the log-likelihoods of some units, default all, and its gradient (D,)."""

    def hessian(self, x: np.ndarray, units: np.ndarray | None = None, /) -> np.ndarray:
        """Hessian (D, D) of that sum, zero in coordinates that are not expanded."""

    def residual_summary(
        self, probes: list[np.ndarray], centre: np.ndarray, number: int, /
    ) -> ResidualSummary | None:
        """Residuals of all units over probe moves (2, D), of so many units one by one.

        None unless they are computed elsewhere: :attr:`rewards` then give them.
        """

    def expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (D,) and Hessian (D, D) at x of the sum of all units' control variates."""

    def forget_centre(self) -> None:
        """Let the next expansion choose anew what control variates are built on."""


class RacedModel(Raced, Protocol):
    """Units, and the rest of the log posterior: priors, Jacobians, Potentials, other data."""

    @property
    def observed_vars(self) -> tuple[str, ...]:
        """Names of the observed variables whose units are raced."""

    @property
    def rest(self) -> Any:
        """First-class ``x -> log density``."""

    @property
    def rest_gradient(self) -> Any:
        """First-class ``x -> (D,)``; zero at discrete coordinates."""

    def rest_value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Both, outside of compiled loops."""

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Hessian (D, D) over some coordinates, zero elsewhere."""

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Point of the user's model -> x (D,)."""

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """X (D,) -> values of the user's variables."""

    def changed_data(self, model: Any) -> tuple[str, ...]:
        """Names of data that have changed in the user's model."""

    def raise_errors(self) -> None:
        """Raise what a Python callback raised inside a compiled loop, if one did."""


def finite_or_raise(model: RacedModel, x: np.ndarray, unit: int) -> None:
    """Raise a ValueError that names a unit whose log-likelihood at x is not finite.

    A unit that is not finite at a proposal is a rejection, at the current point an error.
    """
    model.raise_errors()
    value = float(model.values(x, np.array([unit]))[0])
    if not np.isfinite(value):
        raise ValueError(
            f"The log-likelihood of {', '.join(model.observed_vars)} is {value} in "
            f"{model.unit} {unit} at the current point of the chain: a {model.unit} that had not "
            "been read when the chain moved there. Use race='exact', or a likelihood that is "
            "positive everywhere."
        )
