r"""Proposal distributions for batches of parameters, and the optimal probabilities of boxes.

Box k has prior mass pi_k and acceptance probability mu_k; its posterior mass p_k is proportional to pi_k
mu_k. Draws from proposal q are weighted by pi_k / q_k. At a fixed tolerance the effective draws per
simulation are

.. math:: \frac{Z}{\sum_k p_k \pi_k / q_k}, \qquad Z = \sum_k \pi_k \mu_k.

They are maximised by q_k proportional to pi_k sqrt(mu_k). For q = p they equal those of rejection sampling, Z.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from amc_pymc.likelihood_free.partition import Partition, whole_cube
from amc_pymc.logweights import systematic
from amc_pymc.mixtures import StudentTMixture

#: Largest exponent used; beyond it, one box has all of the proposal.
_LARGEST = 700.0
#: Relative difference below which rates are treated as equal.
_ALIKE = 1e-12
#: Minimum distance of points from the sides of the cube.
EDGE = 2.0**-52
#: Largest absolute value of these points on the normal scale.
FARTHEST = float(-ndtri(EDGE))


# --- scales ---


def principal_axes(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Return the principal axes of weighted points on the normal scale, :math:`x = \Phi^{-1}(u)`.

    If u is uniform, x is standard normal, and so is :math:`R x` for any rotation R. Boxes in
    :math:`\Phi(R x)` can follow an oblique posterior, and their volumes are still prior masses.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    weights : array (n,)
        Nonnegative weights, not all zero.

    Returns
    -------
    array (D, D)
        Orthogonal matrix R, whose rows are the axes.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.proposal import principal_axes
    >>> t = np.linspace(0.1, 0.9, 9)
    >>> abs(principal_axes(np.column_stack([t, t]), np.ones(9))).round(3)
    array([[0.707, 0.707],
           [0.707, 0.707]])
    """
    x = to_normal(u)
    x = x - np.average(x, axis=0, weights=weights)
    _, axes = np.linalg.eigh((x * weights[:, None]).T @ x)
    return axes.T


def to_axes(x: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return coordinates (n, D) along rotated axes, in the unit cube, of points x (n, D) on the normal scale."""
    return ndtr(x @ axes.T)


def to_cube(v: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return the points of the cube with given rotated coordinates (n, D)."""
    return from_normal(to_normal(v) @ axes)


def to_normal(u: np.ndarray) -> np.ndarray:
    """Map points (n, D) of the cube to finite values on the normal scale."""
    return ndtri(np.clip(u, EDGE, 1.0 - EDGE))


def from_normal(x: np.ndarray) -> np.ndarray:
    """Map points (n, D) from the normal scale to the open unit cube."""
    return np.clip(ndtr(x), EDGE, 1.0 - EDGE)


class Parametrisation(NamedTuple):
    r"""Unbounded coordinates x of points u of the unit cube.

    Normal quantiles of the cube are a non-centred parametrisation: an effect with a prior :math:`N(\mu, \tau)` is
    :math:`(\alpha - \mu) / \tau`. Data that determine :math:`\alpha` are linear in the effect itself, the centred
    parametrisation (Papaspiliopoulos, Roberts & Skold 2007, doi:10.1214/088342307000000014).

    Attributes
    ----------
    name : str
    to : callable
        Maps u (n, D) to x (n, D).
    back : callable
        Maps x (n, D) to u (n, D).
    log_prior : callable
        Natural log prior density (n,) of x, up to a constant that is the same for all parametrisations, without
        Potentials.
    """

    name: str
    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]
    log_prior: Callable[[np.ndarray], np.ndarray]


def _normal(x: np.ndarray) -> np.ndarray:
    return -0.5 * np.einsum("ij,ij->i", x, x)


NONCENTRED = Parametrisation("noncentred", to_normal, from_normal, _normal)


# --- utilities ---


def best_proposal(p: np.ndarray, pi: np.ndarray, utility: str = "ess") -> np.ndarray:
    r"""Return the optimal proposal for a posterior under one of several utilities.

    Parameters
    ----------
    p : array (K,)
        Posterior masses of the boxes, up to a factor.
    pi : array (K,)
        Prior masses of the boxes, positive.
    utility : {"ess", "efficiency", "posterior", "kl"}
        "ess": effective draws per simulation; :math:`q_k \propto \sqrt{p_k \pi_k}`. The others are those of
        O'Hagan, Kim & Rockova: "posterior", :math:`\omega^1 = -\|q - p\|^2` (eq. 3.6), maximised by q =
        p; "efficiency", :math:`\omega^2 = \sum_k (q_k p_k / \pi_k) / \sum_k (p_k \pi_k / q_k)` (eq. 3.6; Alsing,
        Wandelt & Feeney 2018, arXiv:1808.06040); "kl", :math:`\omega^3 = \log \sum_k q_k \mu_k -
        \mathrm{KL}(q \| p)` (eq. C.1).

    Returns
    -------
    array (K,)
        Proposal probabilities, which sum to one; zero where p is zero.

    Raises
    ------
    ValueError
        If the utility is unknown, or no p is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free import best_proposal
    >>> best_proposal(np.array([0.0, 0.2, 0.8]), np.full(3, 1 / 3))
    array([0.        , 0.33333333, 0.66666667])
    """
    if utility not in UTILITIES:
        raise ValueError(f"utility must be one of {', '.join(UTILITIES)}, got {utility!r}.")
    total = p.sum()
    if not 0.0 < total < np.inf:
        raise ValueError("p must have a positive, finite sum.")
    q = UTILITIES[utility](p / total, pi)
    return q / q.sum()


def draws_per_simulation(p: np.ndarray, pi: np.ndarray, q: np.ndarray) -> float:
    """Return effective draws per simulation from proposal q, relative to rejection sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free import best_proposal, draws_per_simulation
    >>> p, pi = np.array([0.0, 0.2, 0.8]), np.full(3, 1 / 3)
    >>> (
    ...     round(draws_per_simulation(p, pi, p), 3),
    ...     round(draws_per_simulation(p, pi, best_proposal(p, pi)), 3),
    ... )
    (1.5, 1.667)
    """
    some = p > 0.0
    return float(p.sum() / (p[some] * pi[some] / q[some]).sum())


def _efficiency(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """Solve eq. A.2 with A = sum q p / pi, which lies between half of the largest p / pi and the largest."""
    out, some = np.zeros_like(p), p > 0.0
    ratio, root = p[some] / pi[some], np.sqrt(p[some] * pi[some])
    top = float(ratio.max())
    ratio /= top
    if ratio.min() > 1.0 - _ALIKE:
        out[some] = root
        return out

    def gap(a: float) -> float:
        return float(((a - ratio) * root / np.sqrt(2.0 * a - ratio)).sum())

    a = brentq(gap, 0.5 * (1.0 + 1e-15), 1.0, xtol=1e-16, rtol=1e-14)
    out[some] = root / np.sqrt(2.0 * a - ratio)
    return out


def _kl(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    r"""Solve q_k proportional to p_k exp(mu_k / A) for A = sum q mu, with mu relative to the largest."""
    out, some = np.zeros_like(p), p > 0.0
    mu = p[some] / pi[some]
    mu /= mu.max()
    if mu.min() > 1.0 - _ALIKE:
        return p

    def proposal(a: float) -> np.ndarray:
        q = p[some] * np.exp(np.maximum((mu - 1.0) / a, -_LARGEST))
        return q / q.sum()

    # For any A, q favours high rates more than p does, so the mean rate under p is a lower bound.
    a = brentq(lambda a: a - float(proposal(a) @ mu), float(p[some] @ mu), 1.0, xtol=1e-15)
    out[some] = proposal(a)
    return out


#: Functions of p, which sums to one, and pi, both (K,), by the name of the utility they maximise.
UTILITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ess": lambda p, pi: np.sqrt(p * pi),
    "efficiency": _efficiency,
    "posterior": lambda p, pi: p,
    "kl": _kl,
}


# --- proposals ---


@dataclass(frozen=True)
class Boxes:
    """A partition with the probabilities of drawing its boxes.

    Attributes
    ----------
    partition : Partition
    q : array (K,)
    axes : array (D, D) or None
        Axes along which the partition is cut, from :func:`amc_pymc.likelihood_free.proposal.principal_axes`.
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
        return self.partition.find(u if self.axes is None else to_axes(to_normal(u), self.axes))

    @property
    def heights(self) -> np.ndarray:
        """Densities of the boxes (K,), relative to the prior."""
        return self.q / self.partition.volumes


@dataclass(frozen=True)
class Kernels:
    """Mixture of Student t densities on the normal scale, as a density on the cube.

    Unlike boxes, its components can follow a posterior that is narrow in an oblique direction.

    Attributes
    ----------
    mixture : StudentTMixture
    """

    mixture: StudentTMixture

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points (n, D), clipped to the open unit cube."""
        return from_normal(self.mixture.sample(n, rng))

    def density(self, x: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points x (n, D) on the normal scale, relative to the prior."""
        log_prior = -0.5 * (np.einsum("nd,nd->n", x, x) + x.shape[1] * math.log(2.0 * math.pi))
        return np.exp(self.mixture.log_density(x) - log_prior)


class Drawn(NamedTuple):
    """A batch of draws.

    Attributes
    ----------
    u : array (n, D)
        Points of the unit cube.
    log_ratio : array (n,)
        Natural logarithm of prior over proposal density; the mean of its exponential is one.
    x : array (n, D)
        Points on the normal scale.
    """

    u: np.ndarray
    log_ratio: np.ndarray
    x: np.ndarray


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

    def draw(self, n: int, rng: np.random.Generator) -> Drawn:
        """Draw n parameters, with a fixed number from each part, rounded up for the prior."""
        # Round up, because this share bounds the weights; 1e-9 allows for rounding errors.
        from_prior = max(math.ceil(self.share * n - 1e-9), 1 if self.share > 0.0 else 0)
        left = n - from_prior
        local = np.diff(np.rint(left * np.cumsum([0.0, *self.kernel_shares])).astype(int)).tolist()
        t, left = len(self.members), left - sum(local)
        sizes = [left // t + (i < left % t) for i in range(t)] + local
        parts = [rng.random((from_prior, self.members[0].partition.n_dim))]
        learnt: tuple[Boxes | Kernels, ...] = (*self.members, *self.kernels)
        parts += [part.draw(size, rng) for part, size in zip(learnt, sizes, strict=True)]
        u = rng.permutation(np.concatenate(parts))
        density, x = self._density(u, from_prior / n, [size / n for size in sizes])
        return Drawn(u, -np.log(density), x)

    def density(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D), relative to the prior."""
        learnt = 1.0 - self.share
        each = learnt * (1.0 - sum(self.kernel_shares)) / len(self.members)
        local = [learnt * share for share in self.kernel_shares]
        return self._density(u, self.share, [each] * len(self.members) + local)[0]

    def _density(
        self, u: np.ndarray, share: float, shares: Sequence[float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return densities and the points on the normal scale."""
        out, t, x = np.full(len(u), share), len(self.members), to_normal(u)
        axes, v = None, u
        for member, size in zip(self.members, shares[:t], strict=True):
            if size <= 0.0:
                continue
            if member.axes is not None and member.axes is not axes:  # most members share axes
                axes, v = member.axes, to_axes(x, member.axes)
            box = member.partition.find(u if member.axes is None else v)
            out += size * member.heights[box]
        for kernel, size in zip(self.kernels, shares[t:], strict=True):
            if size > 0.0:
                out += size * kernel.density(x)
        return out, x


def prior_proposal(n_dim: int) -> Proposal:
    """Return the prior as a proposal."""
    return Proposal((Boxes(whole_cube(n_dim), np.ones(1)),), share=1.0)
