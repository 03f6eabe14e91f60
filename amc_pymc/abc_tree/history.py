"""All simulations of a run, and the weights they have."""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.proposal import Proposal
from amc_pymc.logweights import log_mean_exp, relative
from amc_pymc.simulators.problem import Failure, Simulated

__all__ = ["History", "Round"]


class Round(NamedTuple):
    """One batch.

    Attributes
    ----------
    proposal : Proposal
    tolerance : float
        That the proposal was made for; inf at first.
    u : array (n, D)
    box : array of int (n,)
    log_ratio : array (n,)
        Natural logarithm of prior over proposal; -inf where the prior density is zero.
    log_density : array (n,) or None
        Natural logarithm of the prior's density in the cube, up to a constant; None where it is uniform.
    simulated : Simulated
    """

    proposal: Proposal
    tolerance: float
    u: np.ndarray
    box: np.ndarray
    log_ratio: np.ndarray
    log_density: np.ndarray | None
    simulated: Simulated


@dataclass
class History:
    r"""All simulations so far.

    A simulation of batch b has the weight

    .. math:: w_i = G_b \frac{\pi(u_i)}{q_b(u_i)}

    with the gain G_b that was expected of the batch's proposal before it was drawn. Weighted sums over
    accepted simulations are therefore unbiased for any tolerance fixed in advance, but for the sum of
    weights, which they are divided by.

    Potentials make a prior density that is known up to a factor. With each batch the factor is estimated again
    from all of them, so that :math:`\sum_i w_i = \sum_b G_b n_b`; it is the same for all weights.

    Attributes
    ----------
    rounds : list of Round
    log_factor : float
        Natural logarithm of what weights were divided by so far.
    """

    rounds: list[Round] = field(default_factory=list)
    log_factor: float = 0.0

    def add(self, made: Round) -> None:
        """Take in a batch."""
        self.rounds.append(made._replace(log_ratio=made.log_ratio - self.log_factor))
        if made.log_density is None:
            return
        gains = sum(r.proposal.gain * len(r.u) for r in self.rounds)
        more = float(log_mean_exp(self.log_weight)) - math.log(gains / len(self))
        if math.isfinite(more):
            self.rounds = [r._replace(log_ratio=r.log_ratio - more) for r in self.rounds]
            self.log_factor += more

    def score_again(self, distance: np.ndarray) -> None:
        """Give all simulations other distances (N,)."""
        parts = np.split(distance, np.cumsum([len(r.u) for r in self.rounds])[:-1])
        self.rounds = [
            r._replace(simulated=r.simulated._replace(distance=part))
            for r, part in zip(self.rounds, parts, strict=True)
        ]

    @property
    def u(self) -> np.ndarray:
        """Points (N, D) of the unit cube."""
        return np.concatenate([r.u for r in self.rounds])

    @property
    def box(self) -> np.ndarray:
        """Boxes (N,) that they were drawn in, of their batch's first partition."""
        return np.concatenate([r.box for r in self.rounds])

    @property
    def distance(self) -> np.ndarray:
        """Distances (N,)."""
        return np.concatenate([r.simulated.distance for r in self.rounds])

    @property
    def summaries(self) -> np.ndarray | None:
        """Summary statistics (N, S), if they were kept."""
        found = [r.simulated.summaries for r in self.rounds]
        kept = [s for s in found if s is not None]
        return np.concatenate(kept) if len(kept) == len(found) else None

    @property
    def failures(self) -> list[Failure]:
        """All failures, by number of the simulation."""
        starts = np.cumsum([0, *(len(r.u) for r in self.rounds)]).tolist()
        return [
            f._replace(index=f.index + start)
            for r, start in zip(self.rounds, starts, strict=False)
            for f in r.simulated.failures
        ]

    @property
    def log_density(self) -> np.ndarray:
        """Natural logarithms of the prior's density in the cube (N,), up to a constant; 0 where it is uniform."""
        return np.concatenate(
            [np.zeros(len(r.u)) if r.log_density is None else r.log_density for r in self.rounds]
        )

    @property
    def density(self) -> np.ndarray:
        """Density of the prior in the cube (N,), over the largest of these."""
        return relative(self.log_density)

    @property
    def log_ratio(self) -> np.ndarray:
        """Natural logarithms of prior over proposal (N,)."""
        return np.concatenate([r.log_ratio for r in self.rounds])

    @property
    def log_weight(self) -> np.ndarray:
        """Natural logarithms of weights (N,)."""
        return np.concatenate([r.log_ratio + math.log(r.proposal.gain) for r in self.rounds])

    @property
    def number(self) -> np.ndarray:
        """Batch (N,) that each simulation belongs to."""
        return np.repeat(np.arange(len(self.rounds)), [len(r.u) for r in self.rounds])

    def last(self, rounds: int | None) -> History:
        """The last rounds alone; all of them for None."""
        return self if rounds is None else History(self.rounds[-rounds:])

    def __len__(self) -> int:
        return sum(len(r.u) for r in self.rounds)
