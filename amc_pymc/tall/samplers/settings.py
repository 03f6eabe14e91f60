"""Settings of proposals and audits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from amc_pymc.arguments import positive_int

__all__ = ["Audits", "Proposal", "RandomWalkProposal", "SurrogateProposal"]


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
        number, share = self.number, self.max_share
        if not isinstance(number, Integral) or isinstance(number, bool) or number < 0:
            raise ValueError(f"audits must be a non-negative integer, got {number!r}")
        if share is not None and not (isinstance(share, Real) and 0.0 < share <= 1.0):
            raise ValueError(f"max_share must lie in (0, 1] or be None, got {share!r}")
        positive_int("chains", self.chains)


def _check_target(target: float) -> None:
    if not (isinstance(target, Real) and 0.0 < target < 1.0):
        raise ValueError(f"target_accept must lie in (0, 1), got {target!r}")
