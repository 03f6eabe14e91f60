"""The objects behind the string arguments of racing step methods."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from amc_pymc.bounds import b_normal

__all__ = [
    "Audits",
    "ExactRace",
    "GaussianProposal",
    "LangevinProposal",
    "NormalRace",
    "RandomWalkProposal",
    "TaylorProxy",
    "as_audits",
    "as_proposals",
    "as_proxy",
    "as_race",
    "check_combination",
]


@dataclass(frozen=True)
class NormalRace:
    """Race with the normal bound of Chen & Ghahramani (2016), section 3.3.2.

    Parameters
    ----------
    delta : float
        Probability, at most, that a decision differs from the one all rows would make, if batch
        means are normal. In (0, 0.5).
    batch_size : int
        Rows of the first batch; batches double.

    Examples
    --------
    >>> from amc_pymc import NormalRace
    >>> round(NormalRace(delta=0.05).bound(n_rows=100_000), 2)
    2.5
    """

    delta: float = 0.05
    batch_size: int = 50

    def __post_init__(self):
        if not (isinstance(self.delta, Real) and 0.0 < self.delta < 0.5):
            raise ValueError(f"delta must lie in (0, 0.5), got {self.delta!r}")
        _check_count("batch_size", self.batch_size, 2)

    def bound(self, n_rows: int) -> float:
        """Constant B in standard errors for a two-arm race over ``n_rows`` rows."""
        return b_normal(self.delta, min(1.0, self.batch_size / max(1, n_rows)))

    def first_batch(self, n_rows: int) -> int:
        """Rows of the first batch."""
        return int(self.batch_size)


@dataclass(frozen=True)
class ExactRace:
    """Read all rows at every decision: the plain Metropolis-Hastings rule, for checking."""

    @property
    def delta(self) -> float:
        """Zero: no decision differs from the one all rows make."""
        return 0.0

    def bound(self, n_rows: int) -> float:
        """No bound is needed."""
        return 0.0

    def first_batch(self, n_rows: int) -> int:
        """All rows."""
        return int(n_rows)


@dataclass(frozen=True)
class RandomWalkProposal:
    """Gaussian random walk, covariance and scale adapted while tuning."""

    target_accept: float = 0.25

    def __post_init__(self):
        _check_target(self.target_accept)


@dataclass(frozen=True)
class GaussianProposal:
    """Moves reversible for a Gaussian approximation of the posterior, scale adapted in (0, 1]."""

    target_accept: float = 0.6

    def __post_init__(self):
        _check_target(self.target_accept)


@dataclass(frozen=True)
class LangevinProposal:
    """Langevin moves along a subsampled control-variate gradient.

    Parameters
    ----------
    target_accept : float
        Acceptance rate the scale is tuned to.
    batch_size : int
        Rows of a gradient, drawn apart from those of the race; the reverse move uses the same.
    """

    target_accept: float = 0.57
    batch_size: int = 50

    def __post_init__(self):
        _check_target(self.target_accept)
        _check_count("batch_size", self.batch_size, 1)


@dataclass(frozen=True)
class TaylorProxy:
    """Second-order Taylor control variate of every row around the posterior mode.

    Parameters
    ----------
    max_dim : int
        Refuse to expand in more coordinates: D + D^2 sums are stored, D passes over the data
        made.
    subsample : int
        Rows on which the mode search starts.
    exact_rows : int or "auto"
        Rows with the largest residuals that are evaluated at every decision instead of raced.
        ``"auto"`` chooses the number that makes decisions cheapest.
    """

    max_dim: int = 500
    subsample: int = 20_000
    exact_rows: int | Literal["auto"] = "auto"

    def __post_init__(self):
        rows = self.exact_rows
        if rows != "auto" and not (_is_integer(rows) and rows >= 0):
            raise ValueError(f"exact_rows must be 'auto' or a non-negative integer, got {rows!r}")
        _check_count("max_dim", self.max_dim, 1)
        _check_count("subsample", self.subsample, 2)


@dataclass(frozen=True)
class Audits:
    """Decisions per chain that are re-made on all rows, to measure the decision error.

    Half are drawn from all decisions of the chain, half are those that an independent batch of
    rows shows nearest to the threshold.

    Parameters
    ----------
    number : int
        Audited decisions per chain, at most.
    max_share : float or None
        Share of the time that audits may take, by a count of rows (so that a seed reproduces a
        run); None for no limit.
    """

    number: int = 200
    max_share: float | None = 0.1

    def __post_init__(self):
        if not (_is_integer(self.number) and self.number >= 0):
            raise ValueError(f"audits must be a non-negative integer, got {self.number!r}")
        share = self.max_share
        if share is not None and not (isinstance(share, Real) and 0.0 < share <= 1.0):
            raise ValueError(f"max_share must lie in (0, 1] or be None, got {share!r}")


Race = NormalRace | ExactRace
Proposal = RandomWalkProposal | GaussianProposal | LangevinProposal


def _is_integer(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_count(name: str, value: int, least: int) -> None:
    if not _is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_target(target: float) -> None:
    if not (isinstance(target, Real) and 0.0 < target < 1.0):
        raise ValueError(f"target_accept must lie in (0, 1), got {target!r}")


def as_race(race: str | Race, delta: float, batch_size: int) -> Race:
    """Settings of the race from the step's arguments."""
    if isinstance(race, NormalRace | ExactRace):
        return race
    if race == "normal":
        return NormalRace(delta, batch_size)
    if race == "exact":
        NormalRace(delta, batch_size)
        return ExactRace()
    raise ValueError(f"race must be 'normal', 'exact', NormalRace or ExactRace, got {race!r}")


def as_proposals(proposal: str | Proposal, proxy: TaylorProxy | None) -> tuple[Proposal, ...]:
    """Proposals a step may use; several for ``"auto"``, which measures them while tuning."""
    if isinstance(proposal, RandomWalkProposal | GaussianProposal | LangevinProposal):
        return (proposal,)
    if proposal == "auto":
        walk = RandomWalkProposal()
        return (walk,) if proxy is None else (walk, GaussianProposal())
    if proposal == "random_walk":
        return (RandomWalkProposal(),)
    if proposal == "gaussian":
        return (GaussianProposal(),)
    if proposal == "langevin":
        return (LangevinProposal(),)
    raise ValueError(
        "proposal must be 'auto', 'random_walk', 'gaussian', 'langevin', RandomWalkProposal, "
        f"GaussianProposal or LangevinProposal, got {proposal!r}"
    )


def as_proxy(proxy: str | TaylorProxy | None) -> tuple[TaylorProxy | None, bool]:
    """Settings of the control variate and whether the user insists on it."""
    if proxy is None or isinstance(proxy, TaylorProxy):
        return proxy, proxy is not None
    if proxy in ("auto", "taylor"):
        return TaylorProxy(), proxy == "taylor"
    raise ValueError(f"proxy must be 'auto', 'taylor', TaylorProxy or None, got {proxy!r}")


def check_combination(proposals, proxy: TaylorProxy | None, insist: bool, row_logp) -> None:
    """Refuse what contradicts itself before the model is taken apart."""
    if row_logp is None and proxy is not None:
        return
    if row_logp is not None and not callable(row_logp):
        raise TypeError(f"row_logp must be callable, got {row_logp!r}")
    reason = "proxy=None" if proxy is None else "row_logp has no derivatives"
    if insist:
        raise ValueError(f"proxy='taylor' cannot be used: {reason}")
    first = proposals[0]  # "auto" begins with the random walk
    if isinstance(first, GaussianProposal):
        raise ValueError(
            "proposal='gaussian' needs the mode that the control variate is built on, and there "
            f"is none: {reason}. Use 'auto' or 'random_walk'."
        )
    if row_logp is not None and isinstance(first, LangevinProposal):
        raise ValueError("proposal='langevin' needs gradients, which row_logp does not give")


def as_audits(audits: int | Audits) -> Audits:
    """Settings of the audits."""
    return audits if isinstance(audits, Audits) else Audits(audits)
