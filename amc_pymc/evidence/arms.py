"""Unbiased estimators of the evidence, as arms for combinations of estimators.

Each has a method ``sample(n, rng)``, which returns the logarithms of n estimates and their costs in model
evaluations; a gradient counts as two.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from amc_pymc.evidence.annealing import Ladder, anneal, sequential
from amc_pymc.evidence.annealing.paths import Reference
from amc_pymc.evidence.discrete_proposal import DiscreteProposal
from amc_pymc.evidence.mcmc import HMC, Kernel, Path
from amc_pymc.evidence.pilot import DEFENSIVE_SHARE, PriorPath
from amc_pymc.importance import StudentTMixture, log_mixture_density, scrambled_points
from amc_pymc.logweights import log_mean_exp

__all__ = ["GRADIENT_COST", "AnnealingArm", "ImportanceArm", "QuasiArm", "SequentialArm"]

#: Cost of a gradient in evaluations.
GRADIENT_COST = 2.0
#: Number of particles annealed, or of importance sampling estimates computed, at once.
_BLOCK = 1024
#: Number of weights averaged in one importance sampling estimate.
_FEW = 64
#: Number of points in a randomised net.
_NET = 256


class ImportanceArm:
    r"""Importance sampling from a mixture of a reference and the prior.

    .. math:: w = \frac{p(x) L(x)}{(1 - s) q(x) + s\, p(x)}, \qquad x \sim (1 - s) q + s\, p

    (Hesterberg 1995, doi:10.1080/00401706.1995.10484303). No weight exceeds L / s. One estimate is the mean of
    64 weights, because single weights can be arbitrarily small even if their mean is not.

    Parameters
    ----------
    path : PriorPath
    reference : StudentTMixture or DiscreteProposal
    share : float
        Share s of the prior.
    """

    scale: ClassVar[str] = "log"
    cost: ClassVar[float] = float(_FEW)

    def __init__(
        self,
        path: PriorPath,
        reference: StudentTMixture | DiscreteProposal,
        share: float = DEFENSIVE_SHARE,
    ):
        self.path, self.reference, self.share = path, reference, share

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of mean weights, and their costs."""
        means = []
        for i in range(0, n, _BLOCK):
            log_w, _ = self.weigh(min(_BLOCK, n - i) * _FEW, rng)
            means.append(log_mean_exp(log_w.reshape(-1, _FEW), axis=1))
        return np.concatenate(means), np.full(n, self.cost)

    def weigh(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw log-weights (n,) and points (n, D), in random order."""
        k = int(rng.binomial(n, self.share)) if self.share > 0.0 else 0
        parts = []
        if k:
            parts.append(self.path.draw_prior(k, rng))
        if k < n:
            parts.append(self.reference.sample(n - k, rng))
        x = np.concatenate(parts)
        log_w = _weights(self.path, self.reference, x, self.share)
        order = rng.permutation(n)
        return log_w[order], x[order]


class QuasiArm:
    """Importance sampling at randomised quasi-Monte Carlo points of the reference.

    One estimate is the mean weight of a scrambled Sobol' net, transformed to the reference, and of a
    few prior draws, with weights as in :class:`ImportanceArm`.

    Parameters
    ----------
    path : PriorPath
    reference : StudentTMixture
    share : float
        Share of prior draws; their number is rounded.
    """

    scale: ClassVar[str] = "log"
    draws_per_job: ClassVar[int] = 16

    def __init__(self, path: PriorPath, reference: StudentTMixture, share: float = DEFENSIVE_SHARE):
        self.path, self.reference = path, reference
        self.beside = round(_NET * share / (1.0 - share))
        self.cost = float(_NET + self.beside)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of mean weights, and their costs."""
        return np.array([self._one(rng) for _ in range(n)]), np.full(n, self.cost)

    def _one(self, rng: np.random.Generator) -> float:
        u = scrambled_points(_NET, self.path.n_dim + 2, rng)
        beside = self.path.draw_prior(self.beside, rng)
        x = np.concatenate([beside, self.reference.from_uniforms(u)])
        log_w = _weights(self.path, self.reference, x, self.beside / len(x))
        top = log_w.max()
        if top == -np.inf:
            return -np.inf
        return float(top + np.log(np.exp(log_w - top).mean()))


class AnnealingArm:
    """Annealed importance sampling along a path, from its base.

    One estimate is the mean weight of several particles, which take hardly more time than one.

    Parameters
    ----------
    path : Path
    base : PriorPath or Reference
        Distribution of x_0: the prior, or the reference of a reference path.
    betas : array (T + 1,)
    kernel : Kernel
    ladder : Ladder
        Frozen ladder.
    n_moves : int
    n_particles : int
        Particles per estimate.
    """

    scale: ClassVar[str] = "log"
    draws_per_job: ClassVar[int] = 8

    def __init__(
        self,
        path: Path,
        base: PriorPath | Reference,
        betas: np.ndarray,
        kernel: Kernel,
        ladder: Ladder,
        *,
        n_moves: int = 1,
        n_particles: int = 32,
    ):
        self.path, self.base, self.betas = path, base, betas
        self.kernel, self.ladder, self.n_moves = kernel, ladder, n_moves
        self.n_particles = n_particles
        one = known_cost(kernel, len(betas) - 2, n_moves)
        self.cost = None if one is None else one * n_particles

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of mean weights, and their costs."""
        values, costs = [], []
        at_once = max(1, _BLOCK // self.n_particles)
        for i in range(0, n, at_once):
            m = min(at_once, n - i)
            x = draw_base(self.base, m * self.n_particles, rng)
            run = anneal(
                self.path, x, self.betas, self.kernel, self.ladder, rng, n_moves=self.n_moves
            )
            values.append(log_mean_exp(run.log_weights.reshape(m, -1), axis=1))
            costs.append(np.full(m, (run.evaluations + GRADIENT_COST * run.gradients) / m))
        return np.concatenate(values), np.concatenate(costs)


class SequentialArm:
    """Sequential Monte Carlo on a fixed schedule; each estimate is a run of many particles.

    Parameters
    ----------
    path, base, betas, kernel, ladder, n_moves
        As for :class:`AnnealingArm`.
    n_particles : int
    """

    scale: ClassVar[str] = "log"
    draws_per_job: ClassVar[int] = 1

    def __init__(self, path: Path, base: PriorPath | Reference, betas: np.ndarray, kernel: Kernel, ladder: Ladder, *,
                 n_moves: int = 3, n_particles: int = 512):  # fmt: skip
        self.path, self.base, self.betas = path, base, betas
        self.kernel, self.ladder = kernel, ladder
        self.n_moves, self.n_particles = n_moves, n_particles
        one = known_cost(kernel, len(betas) - 2, n_moves)
        self.cost = None if one is None else one * n_particles

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of estimates, and their costs."""
        values, costs = np.empty(n), np.empty(n)
        for i in range(n):
            x = draw_base(self.base, self.n_particles, rng)
            run = sequential(
                self.path, x, self.betas, self.kernel, self.ladder, rng, n_moves=self.n_moves
            )
            values[i] = run.log_z
            costs[i] = run.evaluations + GRADIENT_COST * run.gradients
        return values, costs


def draw_base(base: PriorPath | Reference, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points (n, D) from a prior or a reference."""
    return base.draw_prior(n, rng) if hasattr(base, "draw_prior") else base.sample(n, rng)


def known_cost(kernel: Kernel, n_steps: int, n_moves: int) -> float | None:
    """Return the cost of a particle moved `n_moves` times at each of `n_steps` temperatures; None if random."""
    if not isinstance(kernel, HMC):
        return None
    return GRADIENT_COST * (1 + n_steps * n_moves * kernel.n_leapfrog)


def _weights(
    path: Path, reference: StudentTMixture | DiscreteProposal, x: np.ndarray, share: float
) -> np.ndarray:
    """Return the log-weights (P,) for the mixture of the reference and the prior as the proposal."""
    terms = path.values(x)
    log_g = log_mixture_density(reference.log_density(x), terms[0], share)
    joint = terms.sum(axis=0)
    possible = joint > -np.inf
    joint[possible] -= log_g[possible]
    return joint
