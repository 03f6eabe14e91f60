"""Where the next batch of parameters is drawn from."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.axes import to_axes, to_cube
from amc_pymc.abc_tree.partition import Partition, whole_cube
from amc_pymc.logweights import systematic

__all__ = ["Boxes", "Drawn", "Proposal", "prior_proposal"]


@dataclass(frozen=True)
class Boxes:
    """A partition with the probabilities that its boxes are drawn with.

    Attributes
    ----------
    partition : Partition
    q : array (K,)
    axes : array (D, D) or None
        Axes of :func:`amc_pymc.abc_tree.axes.principal_axes` that it cuts along.
    """

    partition: Partition
    q: np.ndarray
    axes: np.ndarray | None = None

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Points (n, D) of the cube, with systematic sampling of boxes."""
        v = self.partition.draw(systematic(self.q, n, rng), rng)
        return v if self.axes is None else to_cube(v, self.axes)

    def find(self, u: np.ndarray) -> np.ndarray:
        """Boxes (n,) of points (n, D)."""
        return self.partition.find(u if self.axes is None else to_axes(u, self.axes))

    def density(self, u: np.ndarray) -> np.ndarray:
        """Density (n,) at points (n, D), relative to the prior."""
        return (self.q / self.partition.volumes)[self.find(u)]


class Drawn(NamedTuple):
    """A batch.

    Attributes
    ----------
    u : array (n, D)
        In the unit cube.
    log_ratio : array (n,)
        Natural logarithm of prior over proposal; the mean of its exponential is one.
    box : array of int (n,)
        Box of the first partition.
    """

    u: np.ndarray
    log_ratio: np.ndarray
    box: np.ndarray


@dataclass(frozen=True)
class Proposal:
    r"""A share of the prior and boxes of one or several partitions, frozen for a batch.

    .. math:: q(u) = s + (1 - s) \frac{1}{T} \sum_t \frac{q_{t,k_t(u)}}{|\Omega_{t,k_t(u)}|}

    is the density relative to the prior, which is uniform in the unit cube.

    Attributes
    ----------
    members : tuple of Boxes
    share : float
        s, of draws from the prior; no weight exceeds 1 / s.
    gain : float
        Effective draws per simulation expected, over those of rejection.
    """

    members: tuple[Boxes, ...]
    share: float
    gain: float = 1.0
    local: tuple = ()
    local_share: float = 0.0

    def draw(self, n: int, rng: np.random.Generator) -> Drawn:
        """Draw n parameters: fixed numbers from each partition and the prior, whose share is rounded up."""
        # Rounded up, for weights are bounded by this share; not for an error of rounding.
        from_prior = max(math.ceil(self.share * n - 1e-9), 1 if self.share > 0.0 else 0)
        left = n - from_prior
        local = round(self.local_share * left)
        sizes = _even(left - local, len(self.members)) + _even(local, len(self.local))
        parts = [rng.random((from_prior, self.members[0].partition.n_dim))]
        parts += [m.draw(size, rng) for m, size in zip(self.members + self.local, sizes, strict=True)]
        u = rng.permutation(np.concatenate(parts))
        density = self._density(u, from_prior / n, [size / n for size in sizes])
        return Drawn(u, -np.log(density), self.members[0].find(u))

    def density(self, u: np.ndarray) -> np.ndarray:
        """Density (n,) at points (n, D), relative to the prior."""
        each = (1.0 - self.share) * (1.0 - self.local_share) / len(self.members)
        own = (1.0 - self.share) * self.local_share / max(1, len(self.local))
        return self._density(u, self.share, [each] * len(self.members) + [own] * len(self.local))

    def _density(self, u: np.ndarray, share: float, shares: Sequence[float]) -> np.ndarray:
        out = np.full(len(u), share)
        for member, part in zip(self.members + self.local, shares, strict=True):
            if part > 0.0:
                out += part * member.density(u)
        return out


def _even(n, parts):
    return [n // parts + (i < n % parts) for i in range(parts)]


def prior_proposal(n_dim: int) -> Proposal:
    """The prior itself."""
    return Proposal((Boxes(whole_cube(n_dim), np.ones(1)),), share=1.0)
