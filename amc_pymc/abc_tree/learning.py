r"""The next proposal, from all simulations so far.

Trees are grown on parts of the history, their rates shrunk to those of parent boxes. Proposals
:math:`q_k \propto \pi_k \hat\mu_k^\gamma` are then judged by accepted simulations that the trees have not seen: with weights w of
these, effective draws per simulation are those of the first batch, which is uniform on the cube, times

.. math:: \frac{\sum_i w_i \pi(u_i)}{\sum_i w_i \pi(u_i) / q(u_i)},

which chooses the exponent and tells how much the batch is expected to be worth. A prior density
:math:`\pi` known up to a factor is enough.
"""

from __future__ import annotations

import inspect
import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from amc_pymc.abc_tree.axes import principal_axes, to_axes
from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.partition import Partition
from amc_pymc.abc_tree.proposal import Boxes, Proposal, prior_proposal
from amc_pymc.abc_tree.rates import drawn_rates, shrunk_rates
from amc_pymc.abc_tree.utilities import best_proposal
from amc_pymc.logweights import relative
from amc_pymc.simulators.kernels import accepted, student_kernel

__all__ = ["Learner", "Partitioner", "next_proposal"]

#: Exponents of rates; 1/2 is best where rates are known, larger ones where they are smoothed.
_EXPONENTS = (0.5, 0.65, 0.8, 1.0)
#: Part of the history that a tree is grown on.
_BAG = 0.7
#: Accepted simulations without which a proposal is not judged.
_JUDGES = 10


class Partitioner(Protocol):
    """Makes boxes from simulations: the place to add other trees."""

    def __call__(
        self,
        u: np.ndarray,
        closeness: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """A partition from points (n, D), how close (n,) they came, and that of the last batch, if any."""


@dataclass(frozen=True)
class Learner:
    """How to choose the next proposal.

    Attributes
    ----------
    partitioner : Partitioner or tuple of Partitioner
        Several are used in turn.
    trees : int
        Partitions that a proposal mixes.
    utility : str
        Of :data:`amc_pymc.abc_tree.UTILITIES`; the exponent is chosen for "ess" alone.
    share : float
        Of each batch that is drawn from the prior.
    smooth : bool
        Learn from how close simulations came, not from acceptance alone.
    rotate : bool
        Cut every other partition along principal axes of the accepted simulations.
    honest : bool
        Estimate rates from other simulations than those that cuts are chosen by.
    beta_draws : bool
        Draw rates from their Beta distributions, instead of using their means.
    window : int or None
        Rounds to learn from, the last ones; None for all.

    Raises
    ------
    TypeError
        If a partitioner cannot be called with the arguments of :class:`Partitioner`.
    """

    partitioner: Partitioner | tuple[Partitioner, ...]
    trees: int = 1
    utility: str = "ess"
    share: float = 0.05
    smooth: bool = True
    rotate: bool = False
    honest: bool = False
    beta_draws: bool = False
    window: int | None = None
    local: object = None

    def __post_init__(self):
        given = self.partitioner
        for partitioner in given if isinstance(given, tuple) else (given,):
            _check_call(partitioner)

    def partitioner_of(self, tree: int) -> Partitioner:
        """The one for a tree, by number."""
        if isinstance(self.partitioner, tuple):
            return self.partitioner[tree % len(self.partitioner)]
        return self.partitioner


@dataclass(frozen=True)
class _Grown:
    """A partition, rates (K,) of its boxes, and which simulations (n,) it has not seen."""

    partition: Partition
    rates: np.ndarray
    axes: np.ndarray | None
    unseen: np.ndarray

    def boxes(self, utility: str, exponent: float) -> Boxes:
        volumes = self.partition.volumes
        if utility == "ess":
            q = volumes * self.rates**exponent
            q /= q.sum()
        else:
            q = best_proposal(volumes * self.rates, volumes, utility)
        return Boxes(self.partition, q, self.axes)


def next_proposal(
    history: History, tolerance: float, learner: Learner, rng: np.random.Generator
) -> Proposal:
    """The best proposal by what is known; the prior while nothing was close.

    Parameters
    ----------
    history : History
    tolerance : float
        inf accepts all finite distances.
    learner : Learner
    rng : numpy.random.Generator

    Returns
    -------
    Proposal
    """
    seen = history.last(learner.window)
    u, distance = seen.u, seen.distance
    kernel = student_kernel if learner.smooth else accepted
    near = kernel(distance, tolerance) * seen.density
    hit = np.flatnonzero(accepted(distance, tolerance) & (seen.log_density > -math.inf))
    before = history.rounds[-1].proposal
    axes = None
    if learner.rotate and len(hit) > 2 * u.shape[1]:
        axes = principal_axes(u[hit], relative(seen.log_ratio[hit]))
    grown = []
    for t in range(learner.trees):
        turned = axes if t % 2 else None
        last = before.members[t].partition if len(before.members) == learner.trees else None
        grown.append(_grow(u, near, turned, last, learner.partitioner_of(t), learner, rng))
    grown = [g for g in grown if g.rates.sum() > 0.0]
    if not grown:
        return prior_proposal(u.shape[1])
    log_worth = seen.log_ratio + seen.log_density
    if learner.local is None:
        return _judged(grown, u[hit], hit, log_worth[hit], learner)
    from amc_pymc.abc_tree.local_judge import judged
    return judged(grown, u, near, hit, seen.log_ratio, learner, rng, tolerance, distance)


def _grow(u, near, axes, before, partitioner: Partitioner, learner: Learner, rng) -> _Grown:
    v = u if axes is None else to_axes(u, axes)
    bag = rng.random(len(u)) < _BAG
    for_cuts, for_rates = bag, bag
    if learner.honest:
        half = rng.random(len(u)) < 0.5
        for_cuts, for_rates = bag & half, bag & ~half
    partition = _partition(partitioner, v[for_cuts], near[for_cuts], before, rng)
    if learner.beta_draws:
        rates = drawn_rates(partition, v[for_rates], near[for_rates], rng)
    else:
        rates = shrunk_rates(partition, v[for_rates], near[for_rates])
    return _Grown(partition, rates, axes, ~bag)


def _check_call(partitioner) -> None:
    """Raise a TypeError where a partitioner does not take what it is called with."""
    try:
        signature = inspect.signature(partitioner)
    except ValueError:  # some functions in C tell nobody
        return
    try:
        signature.bind("u", "closeness", "before", "rng")
    except TypeError as error:
        raise TypeError(
            f"partition={_name(partitioner)} must take four arguments (u, closeness, before, rng): {error}."
        ) from None


def _partition(partitioner: Partitioner, u, near, before, rng) -> Partition:
    """What a partitioner makes of simulations, or an error with its name."""
    try:
        found = partitioner(u, near, before, rng)
    except Exception as error:
        error.add_note(f"partition={_name(partitioner)} was called with {len(u):,} simulations.")
        raise
    n_dim = u.shape[1]
    if not isinstance(found, Partition):
        raise TypeError(
            f"partition={_name(partitioner)} must return an amc_pymc.abc_tree.Partition, got {found!r}."
        )
    if found.n_dim != n_dim:
        raise ValueError(
            f"partition={_name(partitioner)} must return a Partition of the cube of dimension {n_dim}, got one "
            f"with n_dim={found.n_dim}."
        )
    return found


def _name(partitioner) -> str:
    return getattr(partitioner, "__qualname__", None) or repr(partitioner)


def _judged(grown: Sequence[_Grown], u, hit, log_worth, learner: Learner) -> Proposal:
    """The mixture of partitions with the exponent that unseen accepted simulations speak for.

    Their worth is their weight times the prior's density, up to a factor.
    """
    exponents = _EXPONENTS if learner.utility == "ess" else (0.5,)
    unseen = np.stack([g.unseen[hit] for g in grown])
    judges = unseen.any(axis=0)
    found = []
    for exponent in exponents:
        members = tuple(g.boxes(learner.utility, exponent) for g in grown)
        gain = 1.0
        if judges.any():
            boxes = np.zeros(len(u))
            for member, new in zip(members, unseen, strict=True):
                boxes[new] += member.density(u[new])
            boxes = boxes[judges] / unseen[:, judges].sum(axis=0)
            density = learner.share + (1.0 - learner.share) * boxes
            worth = relative(log_worth[judges])
            gain = float(worth.sum() / (worth / density).sum())
        found.append((gain, members))
    gain, members = found[0]
    if judges.sum() >= _JUDGES:
        gain, members = max(found, key=lambda one: one[0])
    return Proposal(members, learner.share, max(1.0, gain))
