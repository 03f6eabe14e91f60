"""Settings of proposals and audits."""

from __future__ import annotations

import math

from dataclasses import dataclass
from numbers import Integral, Real

__all__ = [
    "Audits",
    "GaussianProposal",
    "LangevinProposal",
    "NestedProposal",
    "Proposal",
    "RandomWalkProposal",
    "check_count",
    "is_integer",
]


@dataclass(frozen=True)
class RandomWalkProposal:
    """Gaussian random walk, covariance and scale adapted while tuning."""

    target_accept: float = 0.25

    def __post_init__(self):
        _check_target(self.target_accept)


@dataclass(frozen=True)
class GaussianProposal:
    """Moves reversible for a Gaussian approximation of the posterior, scale adapted in (0, 1].

    Parameters
    ----------
    target_accept : float
        Acceptance rate the scale is tuned to.
    freedom : float, default infinity
        Degrees of freedom of a Student t that takes the place of the Gaussian if fewer than nine in
        ten moves are accepted, so that tails heavier than Gaussian are visited and left.
    """

    target_accept: float = 0.6
    freedom: float = math.inf

    def __post_init__(self):
        _check_target(self.target_accept)
        real = isinstance(self.freedom, Real) and not isinstance(self.freedom, bool)
        if not (real and self.freedom > 0.0):
            raise ValueError(f"freedom must be a positive number, got {self.freedom!r}")


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
        check_count("batch_size", self.batch_size, 1)


@dataclass(frozen=True)
class NestedProposal:
    """Hyperparameters near their mode, coefficients from their Gaussian approximation given these.

    For models with hyperparameters on which only priors depend. The scale of the coefficients' part
    is adapted in (0, 1]; at 1 they are drawn anew.
    """

    target_accept: float = 0.4

    def __post_init__(self):
        _check_target(self.target_accept)


Proposal = RandomWalkProposal | GaussianProposal | LangevinProposal | NestedProposal


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
        if not (is_integer(self.number) and self.number >= 0):
            raise ValueError(f"audits must be a non-negative integer, got {self.number!r}")
        share = self.max_share
        if share is not None and not (isinstance(share, Real) and 0.0 < share <= 1.0):
            raise ValueError(f"max_share must lie in (0, 1] or be None, got {share!r}")


def is_integer(value) -> bool:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: int, least: int) -> None:
    """Refuse what is not an integer of at least ``least``."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_target(target: float) -> None:
    if not (isinstance(target, Real) and 0.0 < target < 1.0):
        raise ValueError(f"target_accept must lie in (0, 1), got {target!r}")
