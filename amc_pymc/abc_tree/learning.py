r"""Choice of the next proposal from all simulations so far.

Trees are grown on subsets of the history, and their rates are shrunk towards those of parent boxes. Mixtures of
Student t densities are fitted to subsets as well (:mod:`amc_pymc.abc_tree.local`). Proposals are then judged by
accepted simulations that they were not fitted to. With weights w of these, the effective draws per simulation are
those of the first batch, which is uniform on the cube, times

.. math:: \frac{\sum_i w_i \pi(u_i)}{\sum_i w_i \pi(u_i) / q(u_i)}.

This criterion chooses the exponent of :math:`q_k \propto \pi_k \hat\mu_k^\gamma`, then the shares of boxes and
kernels, and estimates the gain of the batch. The prior density :math:`\pi` need only be known up to a factor.
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
from amc_pymc.abc_tree.local import NEAR, FittedKernels, Kernels, fit_kernels
from amc_pymc.abc_tree.partition import Partition
from amc_pymc.abc_tree.proposal import Boxes, Proposal, prior_proposal
from amc_pymc.abc_tree.rates import drawn_rates, shrunk_rates
from amc_pymc.abc_tree.shares import best_shares
from amc_pymc.abc_tree.utilities import best_proposal
from amc_pymc.logweights import relative
from amc_pymc.simulators.kernels import accepted, student_kernel

__all__ = ["Learner", "Partitioner", "check_partitioner", "next_proposal"]

#: Candidate exponents of rates; 1/2 is optimal for known rates, larger ones for smoothed rates.
_EXPONENTS = (0.5, 0.65, 0.8, 1.0)
#: Fraction of the history that a tree is grown on.
_BAG = 0.7
#: Minimum accepted simulations for judging a proposal.
_JUDGES = 10
#: Prior weights of boxes and of kernels in the choice of shares, in effective simulations.
_PULL_BOXES, _PULL_KERNELS = 1.0, 0.5
#: Share below which kernels are dropped, and maximum share of all kernels.
_LEAST_SHARE, _MOST_LOCAL = 0.02, 0.9
#: Weight of the last batch's gain, in effective simulations.
_STEADINESS = 10.0


class Partitioner(Protocol):
    """Interface of functions that make boxes from simulations; implement it to add other trees."""

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a partition from points (n, D), kernel values (n,) and the last batch's partition, if any."""


@dataclass(frozen=True)
class Learner:
    """Settings for choosing the next proposal.

    Attributes
    ----------
    partitioner : Partitioner or tuple of Partitioner
        Several partitioners are used in turn.
    trees : int
        Number of partitions that a proposal mixes.
    utility : str
        Name in :data:`amc_pymc.abc_tree.UTILITIES`; the exponent is chosen for "ess" only.
    share : float
        Share of each batch that is drawn from the prior.
    smooth : bool
        Learn from how close simulations came, not only from acceptance.
    rotate : bool
        Cut every other partition along principal axes of the accepted simulations.
    honest : bool
        Use different simulations for estimating rates and for choosing cuts.
    beta_draws : bool
        Draw rates from their Beta distributions instead of using their means.
    window : int or None
        Number of most recent rounds to learn from; None for all.
    local : bool
        Also draw from Student t kernels of local shape where worthwhile; only with utility "ess".

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
    local: bool = True

    def __post_init__(self) -> None:
        given = self.partitioner
        for partitioner in given if isinstance(given, tuple) else (given,):
            check_partitioner(partitioner)

    def partitioner_of(self, tree: int) -> Partitioner:
        """Return the partitioner for a tree, by number."""
        if isinstance(self.partitioner, tuple):
            return self.partitioner[tree % len(self.partitioner)]
        return self.partitioner


@dataclass(frozen=True)
class _Grown:
    """A partition, rates (K,) of its boxes, its axes, and which simulations (n,) it was not grown on."""

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
    """Return the best proposal given the history, or the prior while no simulation was close.

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
    axes, turned = None, u
    if learner.rotate and learner.trees > 1 and len(hit) > 2 * u.shape[1]:
        axes = principal_axes(u[hit], relative(seen.log_ratio[hit]))
        turned = to_axes(u, axes, seen.x)
    grown = []
    for t in range(learner.trees):
        v, own = (turned, axes) if t % 2 else (u, None)
        last = before.members[t].partition if len(before.members) == learner.trees else None
        grown.append(_grow(v, near, own, last, learner.partitioner_of(t), learner, rng))
    grown = [g for g in grown if g.rates.sum() > 0.0]
    if not grown:
        return prior_proposal(u.shape[1])
    return _judged(grown, history, near, tolerance, learner, rng)


def _grow(
    v: np.ndarray,
    near: np.ndarray,
    axes: np.ndarray | None,
    before: Partition | None,
    partitioner: Partitioner,
    learner: Learner,
    rng: np.random.Generator,
) -> _Grown:
    """Grow a partition on some of the simulations, with points v (n, D) along its axes."""
    bag = rng.random(len(v)) < _BAG
    half = rng.random(len(v)) < 0.5 if learner.honest else bag
    for_cuts = for_rates = _chosen(v, near, bag & half)
    if learner.honest:
        for_rates = _chosen(v, near, bag & ~half)
    partition = _partition(partitioner, *for_cuts, before, rng)
    if learner.beta_draws:
        rates = drawn_rates(partition, *for_rates, rng)
    else:
        rates = shrunk_rates(partition, *for_rates)
    return _Grown(partition, rates, axes, ~bag)


def _chosen(v: np.ndarray, near: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index = np.flatnonzero(mask)
    return np.take(v, index, axis=0), near[index]


def check_partitioner(partitioner: Partitioner) -> None:
    """Raise a TypeError if a partitioner does not accept the arguments it is called with."""
    try:
        signature = inspect.signature(partitioner)
    except ValueError:  # some C functions have no signature
        return
    try:
        signature.bind("u", "kernel_values", "before", "rng")
    except TypeError as error:
        raise TypeError(
            f"partition={_name(partitioner)} must take four arguments (u, kernel_values, before, rng): {error}."
        ) from None


def _partition(
    partitioner: Partitioner,
    u: np.ndarray,
    near: np.ndarray,
    before: Partition | None,
    rng: np.random.Generator,
) -> Partition:
    """Call a partitioner and check its result; errors name the partitioner."""
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


def _name(partitioner: object) -> str:
    return getattr(partitioner, "__qualname__", None) or repr(partitioner)


def _judged(
    grown: Sequence[_Grown],
    history: History,
    near: np.ndarray,
    tolerance: float,
    learner: Learner,
    rng: np.random.Generator,
) -> Proposal:
    """Return the mixture of boxes and kernels that is best for unseen simulations near the data.

    Their worth is their weight times the prior density, up to a factor.
    """
    seen = history.last(learner.window)
    u, log_worth = seen.u, seen.log_ratio + seen.log_density
    unseen = np.stack([g.unseen for g in grown])
    judges = np.flatnonzero(
        accepted(seen.distance, tolerance) & (seen.log_density > -math.inf) & unseen.any(axis=0)
    )
    exponents = _EXPONENTS if learner.utility == "ess" else (0.5,)
    forests = [tuple(g.boxes(learner.utility, e) for g in grown) for e in exponents]
    if len(judges) < _JUDGES:
        return Proposal(forests[0], learner.share, 1.0)
    worth = _worth(log_worth[judges])
    places = [member.find(u[judges]) for member in forests[0]]  # the same for all exponents
    boxes = [_unseen_density(members, places, unseen[:, judges]) for members in forests]
    best = int(np.argmin([(worth / _with_prior(b, learner)).sum() for b in boxes]))
    members, density = forests[best], boxes[best]
    kernels: tuple[Kernels, ...] = ()
    shares: tuple[float, ...] = ()
    if learner.local and learner.utility == "ess":
        fits = fit_kernels(u, _worth(seen.log_ratio) * np.where(near > NEAR, near, 0.0), rng)
        kernels, shares, density = _beside(density, fits, u, judges, worth, learner)
    inverse = worth / _with_prior(density, learner)
    gain = _steadied(float(worth.sum()), inverse, history.rounds[-1].proposal.gain)
    return Proposal(members, learner.share, gain, kernels, shares)


def _worth(log_weight: np.ndarray) -> np.ndarray:
    """Return weights (n,) relative to the largest; single precision removes effects of a common factor."""
    return relative(log_weight).astype(np.float32).astype(float)


def _with_prior(density: np.ndarray, learner: Learner) -> np.ndarray:
    return learner.share + (1.0 - learner.share) * density


def _unseen_density(
    members: Sequence[Boxes], places: Sequence[np.ndarray], unseen: np.ndarray
) -> np.ndarray:
    """Return the mean density (m,) at points in boxes (T, m) of the partitions not grown on them, by mask (T, m)."""
    out = np.zeros(unseen.shape[1])
    for member, place, new in zip(members, places, unseen, strict=True):
        out[new] += member.heights[place[new]]
    return out / unseen.sum(axis=0)


def _beside(
    boxes: np.ndarray,
    fits: Sequence[FittedKernels],
    u: np.ndarray,
    judges: np.ndarray,
    worth: np.ndarray,
    learner: Learner,
) -> tuple[tuple[Kernels, ...], tuple[float, ...], np.ndarray]:
    """Return kernels, their shares, and the density (m,) of boxes and kernels at the judging simulations."""
    if not fits:
        return (), (), boxes
    density = np.stack([boxes, *(fit.unseen_density(u, judges) for fit in fits)])
    pull = np.r_[_PULL_BOXES, np.full(len(fits), _PULL_KERNELS / len(fits))]
    shares = best_shares(density, worth, learner.share, pull * (worth @ worth) / worth.sum() ** 2)
    shares[1:][shares[1:] < _LEAST_SHARE] = 0.0
    shares[0] = max(shares[0], (1.0 / _MOST_LOCAL - 1.0) * shares[1:].sum())
    shares /= shares.sum()
    kernels: list[Kernels] = []
    parts: list[float] = []
    for fit, share in zip(fits, shares[1:], strict=True):
        if share > 0.0:
            kernels += fit.kernels
            parts += [float(share) / len(fit.kernels)] * len(fit.kernels)
    return tuple(kernels), tuple(parts), shares @ density


def _steadied(total: float, inverse: np.ndarray, last: float) -> float:
    """Return the estimated gain, shrunk on the log scale towards that of the last batch.

    A batch with an overestimated gain would have too much weight.
    """
    cost = float(inverse.sum())
    known = cost**2 / float(inverse @ inverse)
    log = known * math.log(total / cost) + _STEADINESS * math.log(last)
    return max(1.0, math.exp(log / (known + _STEADINESS)))
