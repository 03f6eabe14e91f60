"""Simulate where the simulator comes close to the data, learn from it, draw again."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from amc_pymc.abc_tree.cart import fit_cart
from amc_pymc.abc_tree.dyadic import halve
from amc_pymc.abc_tree.partition import Partition
from amc_pymc.abc_tree.proposal import Boxes, Proposal, prior_proposal
from amc_pymc.abc_tree.rates import shrunk_rates
from amc_pymc.abc_tree.utilities import best_proposal, draws_per_simulation

__all__ = ["History", "Partitioner", "Round", "Settings", "batch_sizes", "rounds", "schedule"]

#: Batches that a budget is cut into, and the part of it that the first one, from the prior, takes.
_BATCHES, _FIRST = 20, 0.05
#: Largest share of all simulations that a tolerance may accept.
_LARGEST_SHARE = 0.1


class Partitioner(Protocol):
    """Makes boxes from simulations."""

    def __call__(
        self,
        u: np.ndarray,
        closeness: np.ndarray,
        before: Sequence[Partition],
        rng: np.random.Generator,
    ) -> Sequence[Partition]:
        """Partitions, from points (n, D), how close (n,) they came, and the partitions of the last batch."""


@dataclass(frozen=True)
class Settings:
    """How to choose the next proposal.

    Attributes
    ----------
    partitioner : Partitioner
    utility : str
        Of :data:`amc_pymc.abc_tree.UTILITIES`.
    share : float
        Of each batch that is drawn from the prior.
    accepts : int
        Simulations, of all so far, that a tolerance is lowered to accept.
    tolerance : float or None
        At which lowering ends.
    factor : float or None
        Lower the tolerance by this factor a round instead.
    """

    partitioner: Partitioner
    utility: str = "ess"
    share: float = 0.05
    accepts: int = 1000
    tolerance: float | None = None
    factor: float | None = None


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
        Prior over proposal.
    distance : array (n,)
        inf where the simulation failed.
    """

    proposal: Proposal
    tolerance: float
    u: np.ndarray
    box: np.ndarray
    log_ratio: np.ndarray
    distance: np.ndarray


@dataclass
class History:
    r"""All simulations so far.

    A simulation of batch b has the weight

    .. math:: w_i = \frac{G_b}{q_b(u_i)}

    with the gain G_b that was expected of the batch's proposal before it was drawn. Weighted sums over
    accepted simulations are therefore unbiased for any tolerance fixed in advance, but for the sum of
    weights, which they are divided by.
    """

    rounds: list[Round] = field(default_factory=list)

    def add(self, made: Round) -> None:
        """Take in a batch."""
        self.rounds.append(made)

    @property
    def u(self) -> np.ndarray:
        """Points (N, D) of the unit cube."""
        return np.concatenate([r.u for r in self.rounds])

    @property
    def distance(self) -> np.ndarray:
        """Distances (N,)."""
        return np.concatenate([r.distance for r in self.rounds])

    @property
    def log_weight(self) -> np.ndarray:
        """Natural logarithms of weights (N,)."""
        return np.concatenate([r.log_ratio + math.log(r.proposal.gain) for r in self.rounds])

    @property
    def number(self) -> np.ndarray:
        """Batch (N,) that each simulation belongs to."""
        return np.repeat(np.arange(len(self.rounds)), [len(r.u) for r in self.rounds])

    def __len__(self) -> int:
        return sum(len(r.u) for r in self.rounds)


def batch_sizes(max_simulations: int, batch_size: int | None = None) -> list[int]:
    """Sizes of the batches that a budget is spent in, fixed before anything is simulated.

    Examples
    --------
    >>> from amc_pymc.abc_tree.run import batch_sizes
    >>> batch_sizes(1000), batch_sizes(1000, 300)
    ([50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50], [300, 300, 300, 100])
    """
    if batch_size is None:
        first = max(1, math.ceil(_FIRST * max_simulations))
        left, n = max_simulations - first, _BATCHES - 1
        rest = [left // n + (i < left % n) for i in range(n)]
        return [first, *(size for size in rest if size)]
    full, rest_size = divmod(max_simulations, batch_size)
    return [batch_size] * full + ([rest_size] if rest_size else [])


def rounds(
    simulate: Callable[[np.ndarray, int], np.ndarray],
    n_dim: int,
    sizes: Sequence[int],
    settings: Settings,
    generators: Sequence[np.random.Generator],
) -> Iterator[History]:
    """Spend a budget batch by batch.

    Parameters
    ----------
    simulate : callable
        Points (n, D) of the unit cube and the number of the batch, to distances (n,).
    n_dim : int
    sizes : sequence of int
        Of the batches.
    settings : Settings
    generators : sequence of numpy.random.Generator
        One for each batch.

    Yields
    ------
    History
        The same object, grown by a batch each time.
    """
    history, tolerance = History(), math.inf
    for b, (size, rng) in enumerate(zip(sizes, generators, strict=True)):
        proposal = prior_proposal(n_dim)
        if b > 0:
            tolerance = schedule(history.distance, tolerance, settings)
            proposal = next_proposal(history, tolerance, settings, rng)
        drawn = proposal.draw(size, rng)
        distance = simulate(drawn.u, b)
        history.add(Round(proposal, tolerance, drawn.u, drawn.box, drawn.log_ratio, distance))
        yield history


def schedule(distance: np.ndarray, last: float, settings: Settings) -> float:
    """The next tolerance: never above the last one, nor below where lowering is to end.

    The largest distance among as many of the closest simulations as are to be accepted; if that many
    are equally close, the tolerance stays where they are.
    """
    n = min(settings.accepts, max(2, math.ceil(_LARGEST_SHARE * len(distance))))
    wanted = float(np.partition(distance, n - 1)[n - 1])
    if settings.factor is not None and math.isfinite(last):
        wanted = settings.factor * last
        if not (distance <= wanted).any():
            wanted = last
    floor = 0.0 if settings.tolerance is None else settings.tolerance
    return max(min(wanted, last), floor)


def next_proposal(
    history: History, tolerance: float, settings: Settings, rng: np.random.Generator
) -> Proposal:
    """The best proposal by what is known; the prior while nothing is accepted."""
    u, distance = history.u, history.distance
    near = closeness(distance, tolerance)
    if not near.any():
        return prior_proposal(u.shape[1])
    members, gains = [], []
    before = [m.partition for m in history.rounds[-1].proposal.members]
    for partition in settings.partitioner(u, near, before, rng):
        rates = shrunk_rates(partition, u, near)
        p = partition.volumes * rates
        q = best_proposal(p, partition.volumes, settings.utility)
        members.append(Boxes(partition, q))
        mixed = settings.share * partition.volumes + (1.0 - settings.share) * q
        gains.append(draws_per_simulation(p, partition.volumes, mixed))
    return Proposal(tuple(members), settings.share, max(1.0, float(np.mean(gains))))


def closeness(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """1 where a simulation is accepted, else 0."""
    if tolerance == math.inf:
        return np.isfinite(distance).astype(float)
    return (distance <= tolerance).astype(float)


@dataclass(frozen=True)
class Cart:
    """Partitions by :func:`fit_cart`.

    Attributes
    ----------
    max_leaves, min_samples : int
    accepts_per_leaf : float
        There is at most a leaf for so many accepted simulations.
    trees : int
    random_cuts : bool
    """

    max_leaves: int = 1000
    min_samples: int = 30
    accepts_per_leaf: float = 5.0
    trees: int = 1
    random_cuts: bool = False

    def __call__(self, u, closeness, before, rng) -> list[Partition]:
        """One partition for each tree."""
        leaves = int(min(self.max_leaves, max(4.0, closeness.sum() / self.accepts_per_leaf)))
        return [
            fit_cart(
                u, closeness, rng, max_leaves=leaves, min_samples=self.min_samples,
                random_cuts=self.random_cuts,
            )
            for _ in range(self.trees)
        ]  # fmt: skip


@dataclass(frozen=True)
class Dyadic:
    """Halves the boxes with most of the posterior, some each round.

    Attributes
    ----------
    cuts : int
        Boxes halved a round.
    separate : bool
        Cut along the side that tells most; else along the widest.
    """

    cuts: int = 20
    separate: bool = True

    def __call__(self, u, closeness, before, rng) -> list[Partition]:
        """The partition of the last batch, cut further."""
        (found,) = before
        for _ in range(self.cuts):
            worth = found.volumes * shrunk_rates(found, u, closeness)
            told = {"closeness": closeness, "u": u} if self.separate else {}
            found = halve(found, worth, n_cuts=1, **told)
        return [found]
