"""The objects behind the string arguments of racing step methods."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from amc_pymc.proxies import DataProxy
from amc_pymc.racing.settings import (
    BardenetRace,
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
    Race,
    TTestRace,
    as_race,
)

__all__ = [
    "Audits",
    "BardenetRace",
    "BernsteinRace",
    "ExactRace",
    "GaussianProposal",
    "LangevinProposal",
    "LilUCBRace",
    "NormalRace",
    "Proxy",
    "Race",
    "RandomWalkProposal",
    "TTestRace",
    "TaylorProxy",
    "as_audits",
    "as_proposals",
    "as_proxy",
    "as_race",
    "check_combination",
    "check_row_logp",
]


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


Proposal = RandomWalkProposal | GaussianProposal | LangevinProposal
Proxy = TaylorProxy | DataProxy


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


def as_proposals(proposal: str | Proposal, proxy: Proxy | None) -> tuple[Proposal, ...]:
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


def as_proxy(proxy: str | Proxy | None) -> tuple[Proxy | None, bool]:
    """Settings of the control variate and whether the user insists on it."""
    if proxy is None or isinstance(proxy, TaylorProxy | DataProxy):
        return proxy, proxy is not None
    if proxy in ("auto", "taylor"):
        return TaylorProxy(), proxy == "taylor"
    if proxy == "data":
        return DataProxy(), True
    raise ValueError(
        f"proxy must be 'auto', 'taylor', 'data', TaylorProxy, DataProxy or None, got {proxy!r}"
    )


def check_row_logp(row_logp, proxy: Proxy | None, insist: bool) -> str:
    """Refuse a control variate that cannot be; return why there can be none, if so."""
    if row_logp is None and proxy is not None:
        return ""
    if row_logp is not None and not callable(row_logp):
        raise TypeError(f"row_logp must be callable, got {row_logp!r}")
    reason = "proxy=None" if proxy is None else "row_logp has no derivatives"
    if insist:
        name = "data" if isinstance(proxy, DataProxy) else "taylor"
        raise ValueError(f"proxy='{name}' cannot be used: {reason}")
    return reason


def check_combination(proposals, proxy: Proxy | None, insist: bool, row_logp) -> None:
    """Refuse what contradicts itself before the model is taken apart."""
    reason = check_row_logp(row_logp, proxy, insist)
    if not reason:
        return
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
