"""Proposal distributions for batches of parameters."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.axes import to_axes, to_cube, to_normal
from amc_pymc.abc_tree.local import Kernels
from amc_pymc.abc_tree.partition import Partition, whole_cube
from amc_pymc.logweights import systematic

__all__ = ["Boxes", "Drawn", "Proposal", "prior_proposal"]


@dataclass(frozen=True)
class Boxes:
    """A partition with the probabilities of drawing its boxes.

    Attributes
    ----------
    partition : Partition
    q : array (K,)
    axes : array (D, D) or None
        Axes along which the partition is cut, from :func:`amc_pymc.abc_tree.axes.principal_axes`.
    """

    partition: Partition
    q: np.ndarray
    axes: np.ndarray | None = None

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points (n, D) of the cube, with systematic sampling of boxes."""
        v = self.partition.draw(systematic(self.q, n, rng), rng)
        return v if self.axes is None else to_cube(v, self.axes)

    def find(self, u: np.ndarray) -> np.ndarray:
        """Return boxes (n,) of points (n, D)."""
        return self.partition.find(u if self.axes is None else to_axes(u, self.axes))

    @property
    def heights(self) -> np.ndarray:
        """Densities of the boxes (K,), relative to the prior."""
        return self.q / self.partition.volumes

    def density(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D), relative to the prior."""
        return self.heights[self.find(u)]


class Drawn(NamedTuple):
    """A batch of draws.

    Attributes
    ----------
    u : array (n, D)
        Points of the unit cube.
    log_ratio : array (n,)
        Natural logarithm of prior over proposal density; the mean of its exponential is one.
    box : array of int (n,)
        Box of each point in the first partition.
    x : array (n, D) or None
        Points on the normal scale, if they were needed.
    """

    u: np.ndarray
    log_ratio: np.ndarray
    box: np.ndarray
    x: np.ndarray | None = None


@dataclass(frozen=True)
class Proposal:
    r"""Mixture of the prior, boxes of one or several partitions, and kernels, fixed for a batch.

    The density relative to the prior, which is uniform in the unit cube, is

    .. math:: q(u) = s + (1 - s) \Bigl[\frac{1 - l}{T} \sum_t \frac{q_{t,k_t(u)}}{|\Omega_{t,k_t(u)}|}
        + \sum_j l_j \frac{f_j(x)}{\varphi(x)}\Bigr], \qquad x = \Phi^{-1}(u), \; l = \sum_j l_j.

    Attributes
    ----------
    members : tuple of Boxes
    share : float
        Share s of draws from the prior; no weight exceeds 1 / s.
    gain : float
        Expected effective draws per simulation, relative to rejection sampling.
    kernels : tuple of Kernels
    kernel_shares : tuple of float
        Shares l_j of kernels in the draws that are not from the prior; the boxes have the rest.
    """

    members: tuple[Boxes, ...]
    share: float
    gain: float = 1.0
    kernels: tuple[Kernels, ...] = ()
    kernel_shares: tuple[float, ...] = ()

    @property
    def local_share(self) -> float:
        """Share l of kernels in the draws that are not from the prior."""
        return float(sum(self.kernel_shares))

    def draw(self, n: int, rng: np.random.Generator) -> Drawn:
        """Draw n parameters, with a fixed number from each part, rounded up for the prior."""
        # Round up, because this share bounds the weights; 1e-9 allows for rounding errors.
        from_prior = max(math.ceil(self.share * n - 1e-9), 1 if self.share > 0.0 else 0)
        left = n - from_prior
        local = np.diff(np.rint(left * np.cumsum([0.0, *self.kernel_shares])).astype(int)).tolist()
        t, left = len(self.members), left - sum(local)
        sizes = [left // t + (i < left % t) for i in range(t)] + local
        parts = [rng.random((from_prior, self.members[0].partition.n_dim))]
        parts += [part.draw(size, rng) for part, size in zip(self._parts, sizes, strict=True)]
        u = rng.permutation(np.concatenate(parts))
        density, box, x = self._density(u, from_prior / n, [size / n for size in sizes])
        return Drawn(u, -np.log(density), box, x)

    def density(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D), relative to the prior."""
        learnt = 1.0 - self.share
        each = learnt * (1.0 - self.local_share) / len(self.members)
        local = [learnt * share for share in self.kernel_shares]
        return self._density(u, self.share, [each] * len(self.members) + local)[0]

    @property
    def _parts(self) -> tuple[Boxes | Kernels, ...]:
        return (*self.members, *self.kernels)

    def _density(
        self, u: np.ndarray, share: float, shares: Sequence[float]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return densities, boxes of the first partition and, if it was needed, the points on the normal scale."""
        out, t = np.full(len(u), share), len(self.members)
        turned = any(member.axes is not None for member in self.members)
        x = to_normal(u) if turned or self.kernels else None
        axes, v, first = None, u, None
        for member, size in zip(self.members, shares[:t], strict=True):
            if first is not None and size <= 0.0:
                continue
            if member.axes is not None and member.axes is not axes:  # most members share axes
                axes, v = member.axes, to_axes(u, member.axes, x)
            box = member.partition.find(u if member.axes is None else v)
            first = box if first is None else first
            if size > 0.0:
                out += size * member.heights[box]
        for kernel, size in zip(self.kernels, shares[t:], strict=True):
            if size > 0.0:
                out += size * kernel.density(u, x)
        assert first is not None
        return out, first, x


def prior_proposal(n_dim: int) -> Proposal:
    """Return the prior as a proposal."""
    return Proposal((Boxes(whole_cube(n_dim), np.ones(1)),), share=1.0)
