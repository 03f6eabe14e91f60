"""Data shared by all chains over a model: densities, control variate, Gaussian approximation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.flags import Flag
from amc_pymc.tall.samplers.compiled import (
    Densities,
    as_they_are,
    call_total,
    no_control,
)
from amc_pymc.tall.samplers.raced import Raced, RacedModel
from amc_pymc.tall.samplers.surface import SurfaceFit
from amc_pymc.tall.samplers.surrogate import (
    GaussianFit,
    NoProxy,
    Surrogate,
    fit_gaussian,
    no_surrogate,
)
from amc_pymc.tall.thinning import Thinning

__all__ = ["Forecast", "GaussianFit", "NoProxy", "Preparation", "fit_gaussian"]


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
    the error that the nodes over local effects leave, in nats. ``tables`` hold a ``thinning`` with bounds of rows, with which decisions are exact. ``seconds`` is the wall time by task, ``"compiling"`` separately.
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
    surface: SurfaceFit | None = None
    tables: Any = None
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
