"""All simulations of a run and their weights."""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.axes import to_normal
from amc_pymc.abc_tree.proposal import Proposal
from amc_pymc.logweights import log_mean_exp, relative
from amc_pymc.simulators.problem import Failure, Simulated

__all__ = ["History", "Round"]


class Round(NamedTuple):
    """One batch of simulations.

    Attributes
    ----------
    proposal : Proposal
    tolerance : float
        Tolerance that the proposal was made for; inf in the first batch.
    u : array (n, D)
    box : array of int (n,)
    log_ratio : array (n,)
        Natural logarithm of prior over proposal density; -inf where the prior density is zero.
    log_density : array (n,) or None
        Natural log prior density in the cube, up to a constant; None if the prior is uniform.
    simulated : Simulated
    x : array (n, D) or None
        Points on the normal scale, if they were needed.
    """

    proposal: Proposal
    tolerance: float
    u: np.ndarray
    box: np.ndarray
    log_ratio: np.ndarray
    log_density: np.ndarray | None
    simulated: Simulated
    x: np.ndarray | None = None


@dataclass
class History:
    r"""All simulations so far.

    A simulation of batch b has the weight

    .. math:: w_i = G_b \frac{\pi(u_i)}{q_b(u_i)}

    with the gain G_b that was expected of the batch's proposal before the batch was drawn. Weighted sums over
    accepted simulations are therefore unbiased for any tolerance fixed in advance, apart from the division by
    the sum of weights.

    With Potentials, the prior density is known only up to a factor, which is the same for all weights. After
    each batch it is estimated from all batches by the condition :math:`\sum_i w_i = \sum_b G_b n_b`.

    Attributes
    ----------
    rounds : list of Round
    log_factor : float
        Natural logarithm of the factor that weights have been divided by so far.
    """

    rounds: list[Round] = field(default_factory=list)
    log_factor: float = 0.0

    def add(self, made: Round) -> None:
        """Add a batch."""
        self.rounds.append(made._replace(log_ratio=made.log_ratio - self.log_factor))
        if made.log_density is None:
            return
        gains = sum(r.proposal.gain * len(r.u) for r in self.rounds)
        more = float(log_mean_exp(self.log_weight)) - math.log(gains / len(self))
        if math.isfinite(more):
            self.rounds = [r._replace(log_ratio=r.log_ratio - more) for r in self.rounds]
            self.log_factor += more

    def score_again(self, distance: np.ndarray) -> None:
        """Replace the distances (N,) of all simulations."""
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
    def x(self) -> np.ndarray:
        """Points (N, D) on the normal scale, which are computed once."""
        found = [(r, to_normal(r.u) if r.x is None else r.x) for r in self.rounds]
        self.rounds = [r._replace(x=x) for r, x in found]
        return np.concatenate([x for _, x in found])

    @property
    def box(self) -> np.ndarray:
        """Boxes (N,) of the points in the first partition of their batch."""
        return np.concatenate([r.box for r in self.rounds])

    @property
    def distance(self) -> np.ndarray:
        """Distances (N,)."""
        return np.concatenate([r.simulated.distance for r in self.rounds])

    @property
    def summaries(self) -> np.ndarray | None:
        """Summary statistics (N, S); None if they were not kept."""
        found = [r.simulated.summaries for r in self.rounds]
        kept = [s for s in found if s is not None]
        return np.concatenate(kept) if len(kept) == len(found) else None

    @property
    def failures(self) -> list[Failure]:
        """All failures, with indices among all simulations."""
        starts = np.cumsum([0, *(len(r.u) for r in self.rounds)]).tolist()
        return [
            f._replace(index=f.index + start)
            for r, start in zip(self.rounds, starts, strict=False)
            for f in r.simulated.failures
        ]

    @property
    def log_density(self) -> np.ndarray:
        """Natural log prior density in the cube (N,), up to a constant; 0 if the prior is uniform."""
        return np.concatenate(
            [np.zeros(len(r.u)) if r.log_density is None else r.log_density for r in self.rounds]
        )

    @property
    def density(self) -> np.ndarray:
        """Prior density in the cube (N,), relative to its maximum."""
        return relative(self.log_density)

    @property
    def log_ratio(self) -> np.ndarray:
        """Natural logarithms (N,) of prior over proposal density."""
        return np.concatenate([r.log_ratio for r in self.rounds])

    @property
    def log_weight(self) -> np.ndarray:
        """Natural log weights (N,)."""
        return np.concatenate([r.log_ratio + math.log(r.proposal.gain) for r in self.rounds])

    @property
    def number(self) -> np.ndarray:
        """Batch number (N,) of each simulation."""
        return np.repeat(np.arange(len(self.rounds)), [len(r.u) for r in self.rounds])

    def last(self, rounds: int | None) -> History:
        """Return the history of the last rounds only, or of all for None."""
        return self if rounds is None else History(self.rounds[-rounds:])

    def __len__(self) -> int:
        return sum(len(r.u) for r in self.rounds)
