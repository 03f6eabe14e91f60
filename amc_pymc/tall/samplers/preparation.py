"""Data shared by all chains over a model: densities, control variate, Gaussian approximation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.flags import Flag
from amc_pymc.tall.proxies import gaussian_factor
from amc_pymc.tall.samplers.compiled import (
    Densities,
    as_they_are,
    call_total,
    no_control,
)
from amc_pymc.tall.samplers.raced import Raced, RacedModel
from amc_pymc.tall.samplers.surrogate import Surrogate, no_surrogate
from amc_pymc.tall.thinning import Thinning

__all__ = ["Forecast", "GaussianFit", "NoProxy", "Preparation", "fit_gaussian"]


class NoProxy(Exception):
    """No control variate is possible; the message gives the reason."""


class ParameterMap(Protocol):
    """Map from x (D,), partly discrete, to the parameters eta (E,) that units depend on."""

    @property
    def native(self) -> Any:
        """First-class ``x (D,) -> eta (E,)``."""

    @property
    def evaluate(self) -> Any:
        """The same function for Python."""

    def rough(self) -> np.ndarray:
        """Return the coordinates of eta that are conditions or indices."""


class SurfaceMoves(Protocol):
    """Prior times surrogate, with moves tuned on it."""

    @property
    def draws(self) -> np.ndarray:
        """A chain (K, D) on prior times surrogate."""

    def with_tails(self) -> SurfaceMoves:
        """Return the same with the tails of a Student t."""

    @property
    def moving(self) -> bool:
        """Whether there are hyperparameters or binary variables."""

    @property
    def binary(self) -> np.ndarray:
        """Coordinates that are 0 or 1 and moved too."""

    @property
    def gaussian(self) -> np.ndarray:
        """Coordinates that are drawn given the hyperparameters."""

    @property
    def hyperparameters(self) -> np.ndarray:
        """Coordinates that are moved by trajectories, and binary ones."""

    @property
    def plateaus(self) -> Any:
        """Expansion of units, if it is not that of races."""

    @property
    def knows_prior(self) -> bool:
        """Whether the prior of coefficients given hyperparameters is not approximated."""

    def start(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return x or, if it is far out, a draw."""

    def moves(self) -> Any:
        """Return the moves of a new chain."""


class DataSpaceControl(Protocol):
    """Control variate in data space: residuals and population sum."""

    @property
    def total(self) -> Any:
        """First-class ``eta -> population sum of the control variate``."""

    @property
    def rewards(self) -> Any:
        """Residual changes, as in :class:`~amc_pymc.tall.samplers.raced.Raced`."""

    @property
    def state_rewards(self) -> Any:
        """Residuals, as in :class:`~amc_pymc.tall.samplers.raced.Raced`."""


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


class Forecast(NamedTuple):
    """Predicted cost of a decision between two independent draws of the Gaussian fit.

    ``residual_sd`` and ``plain_sd`` are standard deviations over units of raced rewards, with and
    without control variate (natural log), ``rows`` and ``plain_rows`` the expected units read per
    decision, including exact ones. ``acceptance`` is the acceptance rate of such moves if only the
    units were not Gaussian.
    """

    residual_sd: float
    plain_sd: float
    rows: float
    plain_rows: float
    acceptance: float


class Tables(Protocol):
    """Holder of a thinning."""

    thinning: Thinning


@dataclass(frozen=True)
class Preparation:
    """Data about a model that are shared by all chains.

    ``densities`` is the model as a function of x, ``raced`` the population of units as a function of
    the parameters eta(x), the same object if ``cut`` is None. ``surrogate`` is None without a Taylor
    control variate, ``fit`` is None without a mode. ``control`` is the control variate in data space,
    if any. ``exact_rows`` are units evaluated at every decision. ``rounding_only`` says whether the
    control variate is exact up to rounding, ``kinked`` whether log-likelihoods have kinks. ``rows_spent`` counts row evaluations, ``flags`` are
    doubts about every run, ``forecast_flags`` those about a forecast only, ``no_proxy`` says why there is no control
    variate, ``forecast`` predicts the cost of a decision. ``surface`` is prior times surrogate, with moves tuned on it.
    ``quadrature_error`` is the standard deviation over posterior points of
    the error that the nodes over local effects leave, in nats. ``tables`` hold bounds of rows, with which decisions are exact. ``seconds`` is the wall time by task, ``"compiling"`` separately.
    """

    densities: RacedModel
    raced: Raced
    start: np.ndarray
    cut: ParameterMap | None = None
    surrogate: Surrogate | None = None
    control: DataSpaceControl | None = None
    fit: GaussianFit | None = None
    exact_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    rounding_only: bool = False
    kinked: bool = False
    rows_spent: int = 0
    flags: tuple[Flag, ...] = ()
    forecast_flags: tuple[Flag, ...] = ()
    no_proxy: str = ""
    forecast: Forecast | None = None
    surface: SurfaceMoves | None = None
    tables: Tables | None = None
    quadrature_error: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def eta(self, x: np.ndarray) -> np.ndarray:
        """Return parameters (..., E) at points (..., D)."""
        if self.cut is None:
            return x
        return np.apply_along_axis(self.cut.evaluate, -1, x)

    @property
    def thinning(self) -> Thinning | None:
        """Thinning of decisions, if any."""
        return None if self.tables is None else self.tables.thinning

    @property
    def first_surrogate(self) -> Surrogate:
        """Surrogate of a new chain; zero without a Taylor control variate."""
        return self.surrogate or no_surrogate(self.eta(self.start))

    @property
    def residuals(self) -> Raced | DataSpaceControl:
        """Source of the ``rewards`` and ``state_rewards`` of races."""
        return self.raced if self.control is None else self.control

    @property
    def control_native(self) -> Callable[[np.ndarray], float]:
        """First-class population sum of the control variate in data space, zero without one."""
        return no_control if self.control is None else self.control.total

    def control_total(self, eta: np.ndarray) -> float:
        """Return the population sum of the control variate in data space."""
        return call_total(self.control_native, eta)

    def compiled(
        self, rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    ) -> Densities:
        """Return the densities for compiled loops, with the given ``rewards``."""
        densities = self.densities
        return Densities(
            rewards,
            densities.rest,
            as_they_are if self.cut is None else self.cut.native,
            self.control_native,
            self.raced.reads,
        )


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
