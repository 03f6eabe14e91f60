"""Interface between samplers and models: a population of raced units, and the rest of the logp.

A unit is a row or a group of rows. The log posterior (natural logarithm) at a flat point x (D,) is

    sum over units l_n(x) + rest(x).

Samplers access a model only through :class:`Raced` and :class:`RacedModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amc_pymc.tall.proxies.taylor import ResidualSummary

__all__ = ["Layout", "Raced", "RacedModel", "finite_or_raise"]


class Layout(Protocol):
    """Positions of the variables in a flat point x (D,)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""

    @property
    def size(self) -> int:
        """Length D."""

    @property
    def slices(self) -> dict[str, slice]:
        """Slice of each variable."""

    def is_continuous(self, name: str) -> bool:
        """Whether a variable has a floating dtype."""

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """Return the sorted positions of the entries of some variables."""

    @property
    def discrete(self) -> np.ndarray:
        """Whether each coordinate is discrete, (D,) bool."""

    def names_at(self, coordinates: np.ndarray) -> tuple[str, ...]:
        """Return the names of the variables that some coordinates belong to."""

    def labels(self) -> list[str]:
        """Return a readable name for each entry."""


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
    def layout(self) -> Layout:
        """Layout of the points."""

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

    def residual_summary(
        self, probes: list[np.ndarray], centre: np.ndarray, number: int, /
    ) -> ResidualSummary | None:
        """Summarise all units' residuals over probe moves (2, D), listing the ``number`` largest.

        Return None if the caller must compute the summary from :attr:`rewards`.
        """

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
    def held(self) -> Any:
        """Values of variables that are data to the units, if any."""

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

    def raise_errors(self) -> None:
        """Raise an error that a Python callback raised inside a compiled loop, if any."""


def finite_or_raise(model: RacedModel, x: np.ndarray, unit: int) -> None:
    """Raise a ValueError if the log-likelihood of a unit is not finite at x.

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
