"""Settings of proposals and audits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

__all__ = [
    "Audits",
    "Proposal",
    "RandomWalkProposal",
    "SurrogateProposal",
    "check_count",
    "is_integer",
]


@dataclass(frozen=True)
class RandomWalkProposal:
    """Gaussian random walk with covariance and scale adapted during tuning."""

    target_accept: float = 0.25

    def __post_init__(self) -> None:
        _check_target(self.target_accept)


@dataclass(frozen=True)
class SurrogateProposal:
    """Moves that are reversible for prior times the second-order expansion of rows or groups.

    Hyperparameters are moved by Hamiltonian Monte Carlo on their marginal density, and coefficients that are
    Gaussian given these are drawn, with a scale adapted in (0, 1]; at 1 they are drawn independently. No rows are
    read for it.

    Parameters
    ----------
    target_accept : float
        Target acceptance rate of the scale.
    """

    target_accept: float = 0.5

    def __post_init__(self) -> None:
        _check_target(self.target_accept)


Proposal = RandomWalkProposal | SurrogateProposal


@dataclass(frozen=True)
class Audits:
    """Settings of audits: decisions repeated on all rows to measure the error rate.

    Half of the audited decisions are drawn from all, half are those closest to the threshold, judged
    by an independent batch of rows.

    Parameters
    ----------
    number : int
        Maximum number of audited decisions per chain.
    max_share : float or None
        Maximum share of time spent on audits, estimated from row counts so a seed reproduces a run;
        None for no limit.
    chains : int
        Number of chains that share the time spent on setup. ``pm.sample`` does not tell step methods how
        many chains it runs; give the number if it is not four. ``sample_product_space`` sets it.
    """

    number: int = 200
    max_share: float | None = 0.1
    chains: int = 4

    def __post_init__(self) -> None:
        if not (is_integer(self.number) and self.number >= 0):
            raise ValueError(f"audits must be a non-negative integer, got {self.number!r}")
        share = self.max_share
        if share is not None and not (isinstance(share, Real) and 0.0 < share <= 1.0):
            raise ValueError(f"max_share must lie in (0, 1] or be None, got {share!r}")
        check_count("chains", self.chains, 1)


def is_integer(value: object) -> bool:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: int, least: int) -> None:
    """Raise an error unless ``value`` is an integer of at least ``least``."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_target(target: float) -> None:
    if not (isinstance(target, Real) and 0.0 < target < 1.0):
        raise ValueError(f"target_accept must lie in (0, 1), got {target!r}")
