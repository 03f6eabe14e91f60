"""Settings of races, for the argument ``race`` of racing step methods."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.tall.racing import rules
from amc_pymc.tall.racing.lil_ucb import upper_half_width
from amc_pymc.tall.racing.normal import b_normal, expected_rows
from amc_pymc.tall.racing.race import RaceRule
from amc_pymc.tall.racing.rules import Variance

__all__ = [
    "AutoRace",
    "BernsteinRace",
    "ExactRace",
    "LilUCBRace",
    "NormalRace",
    "Race",
    "as_race",
]

_DELTA = 0.05
_UNKNOWN_RANGE = 10.0  # standard deviations, for planning


@dataclass(frozen=True)
class NormalRace:
    """Race with the normal bound of Chen & Ghahramani (2016), section 3.3.2.

    Parameters
    ----------
    delta : float
        Maximum probability that a decision differs from that on all rows, if batch means are normal.
        In (0, 0.5).
    batch_size : int
        Rows of the first batch; batches double.
    variance : {"pairwise", "marginal"}
        Whether arms are compared by the variance of their difference or by their own variances. The
        latter is looser but cheaper with many arms.

    Examples
    --------
    >>> from amc_pymc import NormalRace
    >>> NormalRace(delta=0.05).rule(100_000, 2).sizes[:4].tolist()
    [50, 100, 200, 400]
    """

    delta: float = _DELTA
    batch_size: int = 50
    variance: Variance = "pairwise"

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        _check_count("batch_size", self.batch_size, 2)
        _check_variance(self.variance)

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows."""
        return rules.normal_rule(
            n_raced,
            n_arms,
            delta=self.delta,
            batch_size=int(self.batch_size),
            variance=self.variance,
            zero_sd_decides=zero_sd_decides,
        )

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the expected rows of a two-arm race for gaps in sds of the rows' differences."""
        gaps = _gaps(gap_in_sds)
        if self.batch_size >= n_raced:
            return np.full(gaps.shape, float(n_raced))
        marginal = self.variance == "marginal"
        b = b_normal(
            self.delta / (2 if marginal else 1),
            self.batch_size / n_raced,
            sides="one" if marginal else "two",
        )
        return np.asarray(expected_rows(gaps, n_raced, int(self.batch_size), b))


@dataclass(frozen=True)
class AutoRace(NormalRace):
    """Thinned decisions, which are exact, where they are expected to be cheaper than a race; else a normal race.

    Only :class:`amc_pymc.RacingMetropolis` thins decisions; elsewhere this is a :class:`NormalRace`.
    """


@dataclass(frozen=True)
class BernsteinRace:
    """Race with the empirical Bernstein-Serfling bound of Chen & Ghahramani (2016), section 3.3.1.

    The error is guaranteed for any rewards in a known range, at the cost of reading more rows.

    Parameters
    ----------
    delta : float
        Maximum probability that a decision differs from that on all rows. In (0, 0.5).
    reward_range : float or sequence of float, optional
        Largest minus smallest reward of an arm (natural logarithms; of residuals if there is a control
        variate), one number or one per arm. None uses the range of the rewards read so far, *which
        voids the guarantee*.
    batch_size : int
        Rows of the first batch; batches double.
    variance : {"pairwise", "marginal"}
        As for :class:`NormalRace`.

    Examples
    --------
    >>> from amc_pymc import BernsteinRace
    >>> BernsteinRace(delta=0.05, reward_range=1.0).rule(1_000, 2).sizes[:4].tolist()
    [2, 4, 8, 16]
    """

    delta: float = _DELTA
    reward_range: float | Sequence[float] | None = None
    batch_size: int = 2
    variance: Variance = "pairwise"

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        _check_count("batch_size", self.batch_size, 2)
        _check_variance(self.variance)
        object.__setattr__(self, "reward_range", _as_range(self.reward_range))

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows."""
        return rules.bernstein_rule(
            n_raced,
            n_arms,
            delta=self.delta,
            batch_size=int(self.batch_size),
            reward_range=self.reward_range,
            variance=self.variance,
            zero_sd_decides=zero_sd_decides,
        )

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the rows after which the half-width of a two-arm race is below the gap.

        The range is taken to be ten standard deviations of the differences.
        """
        return _rows_until(self.rule(n_raced, 2), gap_in_sds)


@dataclass(frozen=True)
class LilUCBRace:
    """lil'UCB adapted to finite populations, Chen & Ghahramani (2016), section 3.2.

    Each arm draws its own rows, one at a time, and better arms draw more. It is worthwhile only with
    many arms, most of them clearly inferior. The heuristic parameters of Jamieson et al. (2014) have
    no proof: the error may exceed ``delta``.

    Parameters
    ----------
    delta : float
        Nominal error probability, in (0, 0.5).
    reward_range : float or sequence of float, optional
        Largest minus smallest reward of an arm; of several, the largest is used. None uses the
        largest range seen in an arm.
    beta, epsilon : float
        Parameters of the bound, 1/2 and 0 in the heuristic.
    rows_per_pull : int
        Rows read at a time. Larger values take less time per row but may read more rows.
    """

    delta: float = _DELTA
    reward_range: float | Sequence[float] | None = None
    beta: float = 0.5
    epsilon: float = 0.0
    rows_per_pull: int = 1

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        object.__setattr__(self, "reward_range", _as_range(self.reward_range))
        for name, value in (("beta", self.beta), ("epsilon", self.epsilon)):
            if not (_is_real(value) and 0.0 <= value < math.inf):
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")
        _check_count("rows_per_pull", self.rows_per_pull, 1)

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows."""
        return rules.lil_rule(
            n_raced,
            n_arms,
            delta=self.delta,
            reward_range=self.reward_range,
            beta=self.beta,
            epsilon=self.epsilon,
            rows_per_pull=self.rows_per_pull,
        )

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the rows of an arm after which twice the half-width is below the gap.

        The range is taken to be ten standard deviations of the differences.
        """
        gaps = _gaps(gap_in_sds)
        lil = self.rule(n_raced, 2).lil
        sizes = np.unique(np.geomspace(1, max(1, n_raced), 200).astype(np.int64))
        widths = [2.0 * upper_half_width(size, _UNKNOWN_RANGE / 2.0, lil) for size in sizes]
        return _first_below(sizes, np.array(widths), gaps, n_raced)


@dataclass(frozen=True)
class ExactRace:
    """Exact decisions.

    A race reads all rows. :class:`amc_pymc.RacingMetropolis` made with it thins its decisions instead where the
    remainders of rows can be bounded: they are exact, too, and read few rows or none.
    """

    @property
    def delta(self) -> float:
        """Zero: every decision is made on all rows."""
        return 0.0

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows."""
        return rules.exact_rule(n_raced, n_arms, zero_sd_decides=zero_sd_decides)

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the number of all rows, for any gap."""
        return np.full(_gaps(gap_in_sds).shape, float(n_raced))


Race = NormalRace | BernsteinRace | LilUCBRace | ExactRace
_NAMED: dict[str, Any] = {
    "auto": AutoRace,
    "normal": NormalRace,
    "bernstein": BernsteinRace,
    "lil_ucb": LilUCBRace,
    "exact": ExactRace,
}


def as_race(
    race: str | Race,
    delta: float | None = None,
    batch_size: int | None = None,
    variance: Variance | None = None,
) -> Race:
    """Return the settings of the race for a step's arguments.

    Parameters
    ----------
    race : {"auto", "normal", "bernstein", "lil_ucb", "exact"} or a race
    delta, batch_size, variance : optional
        Settings of a race given by name. Default: those of its class.

    Raises
    ------
    ValueError
        If a value is out of range, the name is unknown, or an argument contradicts the race or has
        no meaning for it.
    """
    arguments = {"delta": delta, "batch_size": batch_size, "variance": variance}
    given = {name: value for name, value in arguments.items() if value is not None}
    if isinstance(race, Race):
        for name, value in given.items():
            if value != getattr(race, name, None):
                raise ValueError(
                    f"{name}={value!r} contradicts race={race!r}; give it to {type(race).__name__} "
                    "or leave it out"
                )
        return race
    if not isinstance(race, str) or race not in _NAMED:
        raise ValueError(
            f"race must be {', '.join(map(repr, _NAMED))} or a race such as NormalRace(), "
            f"got {race!r}"
        )
    kind = _NAMED[race]
    for name, value in given.items():
        if name not in kind.__dataclass_fields__:
            own = ", ".join(kind.__dataclass_fields__) or "none"
            raise ValueError(
                f"{name}={value!r} has no meaning for race={race!r}; leave it out (the settings of "
                f"{kind.__name__}: {own})"
            )
    found: Race = kind(**given)
    return found


def _gaps(gap_in_sds: ArrayLike) -> np.ndarray:
    return np.abs(np.asarray(gap_in_sds, dtype=float))


def _rows_until(rule: RaceRule, gap_in_sds: ArrayLike) -> np.ndarray:
    """Return the rows after which a gap exceeds the half-width, in units of the sd."""
    widths = rule.sd_factor + _UNKNOWN_RANGE * rule.range_factor
    return _first_below(rule.sizes, widths, _gaps(gap_in_sds), int(rule.sizes[-1]))


def _first_below(
    sizes: np.ndarray, widths: np.ndarray, gaps: np.ndarray, n_raced: int
) -> np.ndarray:
    below = widths < gaps[..., None]
    rows = sizes[np.argmax(below, axis=-1)]
    return np.where(below.any(axis=-1), rows, n_raced).astype(float)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_delta(delta: float) -> None:
    if not (_is_real(delta) and 0.0 < delta < 0.5):
        raise ValueError(f"delta must lie in (0, 0.5), got {delta!r}")


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_variance(variance: str) -> None:
    if variance not in get_args(Variance):
        raise ValueError(f"variance must be one of {get_args(Variance)}, got {variance!r}")


def _as_range(reward_range: Any) -> float | tuple[float, ...] | None:
    if reward_range is None:
        return None
    if _is_real(reward_range):
        values: tuple[Any, ...] = (reward_range,)
    elif isinstance(reward_range, Sequence | np.ndarray) and not isinstance(reward_range, str):
        values = tuple(reward_range)
    else:
        values = ()
    if not values or not all(_is_real(v) and 0.0 < v < math.inf for v in values):
        raise ValueError(
            "reward_range must be a positive number, one for each arm, or None, "
            f"got {reward_range!r}"
        )
    return float(reward_range) if _is_real(reward_range) else tuple(float(v) for v in values)
