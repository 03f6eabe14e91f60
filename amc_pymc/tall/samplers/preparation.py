"""Data about a model that all chains share, and the cost of decisions, predicted before sampling."""

from __future__ import annotations

import logging

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from scipy import special

from amc_pymc.flags import Flag
from amc_pymc.tall.racing.rules import Race
from amc_pymc.tall.samplers.compiled import Densities, as_they_are, unit_changes
from amc_pymc.tall.samplers.raced import (
    EXACT_ROW_CHOICES,
    GaussianFit,
    NoProxy,
    Raced,
    RacedModel,
    ResidualSummary,
    Surrogate,
    choose_exact_rows,
    most_near_kinks,
    no_surrogate,
    rows_near_kinks,
    summarise_residuals,
    surrogate_change,
)
from amc_pymc.tall.samplers.surface import SurfaceFit
from amc_pymc.tall.thinning import Thinning


class Forecast(NamedTuple):
    """Predicted cost of a decision between two independent draws of the Gaussian fit.

    ``rows`` are the expected units read per decision, including exact ones, ``acceptance`` is the acceptance rate of
    such moves if only the units were not Gaussian.
    """

    rows: float
    acceptance: float


@dataclass(frozen=True)
class Preparation:
    """Data about a model that are shared by all chains.

    ``densities`` is the model as a function of x, ``raced`` the population of units as a function of
    the parameters eta(x), the same object if ``cut`` is None. ``cut`` has this map x (D,) -> eta (E,) for Python
    (``evaluate``) and as a first-class function (``native``). ``surrogate`` is None without a control variate,
    ``fit`` and ``surface`` are None for a sampler without moves. ``exact_rows`` are units evaluated at every decision.
    ``rounding_only`` says whether the control variate is exact up to rounding, ``kinked`` whether log-likelihoods have
    kinks.
    ``rows_spent`` counts row evaluations, ``flags`` are doubts about every run, ``forecast_flags`` those about a
    forecast only, ``no_proxy`` says why there is no control variate, ``forecast`` predicts the cost of a decision.
    ``surface`` is prior times surrogate, with moves tuned on it. ``quadrature_error`` is the standard deviation over
    posterior points of the error that the nodes over local effects leave, in nats. ``tables`` hold a ``thinning``
    with bounds of rows, with which decisions are exact. ``seconds`` is the wall time of the preparation.
    """

    densities: RacedModel
    raced: Raced
    start: np.ndarray
    cut: Any = None
    surrogate: Surrogate | None = None
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
    seconds: float = 0.0

    def eta(self, x: np.ndarray) -> np.ndarray:
        """Return parameters (..., E) at points (..., D)."""
        if self.cut is None:
            return x
        found: np.ndarray = np.apply_along_axis(self.cut.evaluate, -1, x)
        return found

    @property
    def thinning(self) -> Thinning | None:
        """Thinning of decisions, if any."""
        return None if self.tables is None else self.tables.thinning

    @property
    def first_surrogate(self) -> Surrogate:
        """Surrogate of a new chain; zero without a control variate."""
        return self.surrogate or no_surrogate(self.eta(self.start))

    def compiled(self, rewards: Any) -> Densities:
        """Return the densities for compiled loops, with the given ``rewards``."""
        parameters = as_they_are if self.cut is None else self.cut.native
        return Densities(rewards, self.densities.rest, parameters, self.raced.reads)


# --- forecast --------------------------------------------------------------------------------------


_log = logging.getLogger("amc_pymc")
#: Size of residuals, relative to the log-likelihoods, below which they are rounding errors.
_ROUNDING = 1e-11
_PROBES = 4
#: Probe moves for log-likelihoods with kinks, where a move changes the residuals of few rows only.
_KINKED_PROBES = 64
#: Maximum numbers of units and of rows whose residuals are computed at once.
_CHUNK, _CHUNK_ROWS = 16_384, 262_144
#: Number of units below which none is evaluated exactly.
_FEW = 1_000
_IMPOSSIBLE = "rows are impossible a posterior standard deviation from the mode"
_SAMPLE = 5_000


def with_forecast(prepared: Preparation, race: Race, rng: np.random.Generator) -> Preparation:
    """Choose the exactly evaluated units and forecast the cost of a decision."""
    raced, surrogate = prepared.raced, prepared.surrogate
    assert surrogate is not None
    n_units = raced.n_units
    kinked = prepared.kinked and raced.unit != "group"  # log-likelihoods of groups are smooth
    probes = probe_moves(prepared, rng, _KINKED_PROBES if kinked else _PROBES)
    most = most_near_kinks(n_units) if kinked else EXACT_ROW_CHOICES[-1]
    summary = _residuals(raced, surrogate.centre, probes, most)
    totals = summary.totals + _beyond(prepared, probes)
    some = np.sort(rng.choice(n_units, size=min(n_units, _SAMPLE), replace=False))
    size = np.abs(raced.values(surrogate.centre, some)).mean()
    rounding_only = bool(np.sqrt(summary.squares.max() / n_units) <= _ROUNDING * max(size, 1e-3))
    log_u = np.log(rng.random(32))

    def predicted(sd: float, n_raced: int) -> float:
        gaps = np.abs(totals[:, None] - log_u[None, :]).ravel() / n_raced
        return float(np.mean(race.expected_rows(gaps / max(sd, 1e-300), n_raced)))

    exact = np.empty(0, np.int64)
    if kinked:
        exact = rows_near_kinks(summary)
        _log.info(
            "Log-likelihoods have kinks: the %d rows near them are read at every decision.",
            exact.size,
        )
    elif not rounding_only and n_units >= _FEW:
        exact = choose_exact_rows(summary, predicted)
    n_raced = n_units - exact.size
    power = summary.power - np.square(summary.scale[: exact.size]).sum()
    left = np.sqrt(max(power, 0.0) / max(1, n_raced))
    rows = exact.size + (predicted(left, n_raced) if n_raced > 1 else n_raced)
    forecast = Forecast(rows, expected_acceptance(totals))
    return replace(prepared, exact_rows=exact, rounding_only=rounding_only, forecast=forecast)


def probe_moves(
    prepared: Preparation, rng: np.random.Generator, number: int = _PROBES
) -> list[np.ndarray]:
    """Draw pairs of points (2, E) like the moves of a chain at stationarity."""
    if prepared.surface is not None:
        draws = prepared.surface.draws
        ends = rng.integers(1, len(draws), number)
        return [prepared.eta(draws[k - 1 : k + 1]) for k in ends]
    surrogate = prepared.surrogate
    assert surrogate is not None
    fit = GaussianFit(surrogate.centre, -surrogate.hessian, prepared.raced.expand)
    ends = [fit.draw(rng) for _ in range(2 * number)]
    return [np.stack(ends[k : k + 2]) for k in range(0, len(ends), 2)]


def _beyond(prepared: Preparation, probes: list[np.ndarray]) -> np.ndarray:
    """Return by how much the expansion of races changes more than that of moves."""
    surface, surrogate = prepared.surface, prepared.surrogate
    if surface is None or surface.plateaus is None or surrogate is None:
        return np.zeros(len(probes))
    total = surface.plateaus.total
    return np.array([surrogate_change(p, surrogate) - total(p[1]) + total(p[0]) for p in probes])


def log_weights(prepared: Preparation, number: int) -> np.ndarray:
    """Return the logarithms (K,) of the posterior density over prior times surrogate at draws of the latter.

    Up to a constant, a log weight is the log-likelihood of all units minus its expansion. It is -inf where the
    log-likelihood is not finite.
    """
    surface, surrogate, raced = prepared.surface, prepared.surrogate, prepared.raced
    assert surface is not None and surrogate is not None
    some = np.linspace(0, len(surface.draws) - 1, number).astype(int)
    moves = [np.stack([surrogate.centre, eta]) for eta in prepared.eta(surface.draws[some])]
    sums = np.array([sum(np.sum(part) for part in raced.value_chunks(eta)) for _, eta in moves])
    expanded = np.array([surrogate_change(move, surrogate) for move in moves])
    raced.release()
    found = sums - expanded + _beyond(prepared, moves)
    return np.where(np.isfinite(found), found, -np.inf)


def expected_acceptance(totals: np.ndarray) -> float:
    """Return the acceptance rate if log ratios are N(-s^2 / 2, s^2), s^2 the mean of totals^2."""
    return float(2.0 * special.ndtr(-0.5 * np.sqrt(np.mean(np.square(totals)))))


def _residuals(
    raced: Raced, centre: np.ndarray, probes: list[np.ndarray], number: int
) -> ResidualSummary:
    """Summarise the residuals of all units over the probe moves, with the ``number`` largest."""

    def residuals(points: np.ndarray, units: np.ndarray) -> np.ndarray:
        changes = unit_changes(raced.rewards, points, centre, units)
        raced.release()
        return np.nan_to_num(changes, nan=0.0)

    with np.errstate(all="ignore"):
        chunk = int(np.clip(_CHUNK_ROWS * raced.n_units // raced.n_rows, 1, _CHUNK))
        summary = summarise_residuals(residuals, probes, raced.n_units, chunk, n_largest=number)
    if not (np.all(np.isfinite(summary.totals)) and np.all(np.isfinite(summary.squares))):
        raise NoProxy(_IMPOSSIBLE)
    raced.rows_evaluated += 5 * raced.n_rows * len(probes)
    return summary
