"""Annealed importance sampling."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from amc_pymc.evidence.mcmc import Kernel, Path, Tuning, start

__all__ = [
    "Annealed",
    "Tunings",
    "anneal",
    "anneal_back",
    "by_temperature",
    "effective_shares",
]


class Tunings(Protocol):
    """Tunings of a kernel along a path, such as those of a :class:`Ladder`."""

    def at(self, beta: float) -> Tuning:
        """Return the tuning at an inverse temperature."""


class Annealed(NamedTuple):
    """P independent annealing runs.

    Attributes
    ----------
    x : array (P, D)
        Last points.
    log_weights : array (P,)
        Natural logarithms, -inf for zero.
    log_likelihood : array (P,)
        Slope at the last points.
    paths : array (n, T)
        Cumulative log-weights of the first n particles after each factor.
    log_sums : array (2, T)
        Logarithms of the sums of the cumulative weights and of their squares.
    acceptance : array (T - 1,)
        Mean acceptance probability at each inverse temperature strictly between 0 and 1.
    evaluations, gradients : int
    """

    x: np.ndarray
    log_weights: np.ndarray
    log_likelihood: np.ndarray
    paths: np.ndarray
    log_sums: np.ndarray
    acceptance: np.ndarray
    evaluations: int
    gradients: int

    @property
    def ess(self) -> np.ndarray:
        """Effective share (sum w)^2 / (P sum w^2) of the cumulative weights, (T,)."""
        return effective_shares(self.log_sums, len(self.x))


def anneal(
    path: Path,
    x: np.ndarray,
    betas: np.ndarray,
    kernel: Kernel,
    ladder: Tunings,
    rng: np.random.Generator,
    *,
    n_paths: int = 0,
    n_moves: int = 1,
) -> Annealed:
    r"""Anneal particles from the base of a path to its end (Neal 2001).

    .. math::
        \log w = \sum_{t=1}^{T} (\beta_t - \beta_{t-1})\, s(x_{t-1}), \qquad
        x_t \sim K_{\beta_t}(x_{t-1}, \cdot),

    with the slope s and x_0 from the normalised base. The expectation of w is the normalising constant of
    the end, for any schedule and any kernel that leaves :math:`f_\beta` invariant, provided both are
    fixed beforehand.

    Parameters
    ----------
    path : Path
    x : array (P, D)
        Independent draws from the base.
    betas : array (T + 1,)
        Inverse temperatures from 0 to 1.
    kernel : Kernel
    ladder : Tunings
        Tuning at each inverse temperature.
    rng : numpy.random.Generator
    n_paths : int
        Number of particles whose cumulative weights are kept.
    n_moves : int
        Moves at each inverse temperature.

    Returns
    -------
    Annealed

    References
    ----------
    Neal (2001), Annealed importance sampling, doi:10.1023/A:1008923215028.
    """
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    evaluations, gradients = _started(kernel, len(x))
    log_w = np.zeros(len(x))
    n_paths, n_factors = min(n_paths, len(x)), len(betas) - 1
    paths, log_sums = np.empty((n_paths, n_factors)), np.empty((2, n_factors))
    acceptance = np.empty(n_factors - 1)
    for t in range(n_factors):
        log_w += (betas[t + 1] - betas[t]) * particles.terms[1]
        paths[:, t], log_sums[:, t] = log_w[:n_paths], _log_sums(log_w)
        if t == n_factors - 1:
            break
        tuning, accepted = ladder.at(betas[t + 1]), 0.0
        for _ in range(n_moves):
            particles, move = kernel.step(path, particles, betas[t + 1], tuning, rng)
            evaluations += move.evaluations
            gradients += move.gradients
            accepted += float(move.acceptance.mean()) / n_moves
        acceptance[t] = accepted
    return Annealed(
        particles.x, log_w, particles.terms[1], paths, log_sums, acceptance, evaluations, gradients
    )


def anneal_back(
    path: Path,
    x: np.ndarray,
    betas: np.ndarray,
    kernel: Kernel,
    ladder: Tunings,
    rng: np.random.Generator,
) -> Annealed:
    r"""Anneal particles from the end of a path to its base, for an upper bound of log Z.

    With exact draws x_T from the end and x_{t-1} ~ K_{\beta_{t-1}}(x_t, .), the weights

    .. math:: \log w = -\sum_{t=1}^{T} (\beta_t - \beta_{t-1})\, s(x_t)

    have expectation 1 / Z, times the probability under the base that the density of the end is positive. The
    expectation of :math:`-\log \bar w` is therefore above log Z (Grosse, Ghahramani & Adams 2015,
    arXiv:1511.02543).

    Parameters
    ----------
    path, betas, kernel, ladder, rng
        As for :func:`anneal`.
    x : array (P, D)
        Draws from the end of the path.

    Returns
    -------
    Annealed
        Runs whose ``log_weights`` estimate 1 / Z.
    """
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    evaluations, gradients = _started(kernel, len(x))
    log_w = np.zeros(len(x))
    n_factors = len(betas) - 1
    log_sums, acceptance = np.empty((2, n_factors)), np.empty(n_factors - 1)
    for t in range(n_factors, 0, -1):
        log_w -= (betas[t] - betas[t - 1]) * particles.terms[1]
        log_sums[:, t - 1] = _log_sums(log_w)
        if t == 1:
            break
        particles, move = kernel.step(path, particles, betas[t - 1], ladder.at(betas[t - 1]), rng)
        acceptance[t - 2] = float(move.acceptance.mean())
        evaluations += move.evaluations
        gradients += move.gradients
    none = np.empty((0, n_factors))
    return Annealed(
        particles.x, log_w, particles.terms[1], none, log_sums, acceptance, evaluations, gradients
    )


def effective_shares(log_sums: np.ndarray, n: int) -> np.ndarray:
    """Return effective shares (T,) of n weights from the logarithms (2, T) of their sums and sums of squares."""
    out = np.zeros(log_sums.shape[1])
    some = log_sums[0] > -np.inf
    out[some] = np.exp(2.0 * log_sums[0, some] - log_sums[1, some]) / n
    return out


def by_temperature(runs: Sequence[Annealed]) -> dict[str, np.ndarray]:
    """Return statistics (T,) of all particles: log mean weight, effective share, and acceptance of moves."""
    sizes = [len(r.x) for r in runs]
    sums = np.logaddexp.reduce([r.log_sums for r in runs])
    acceptance = np.average([r.acceptance for r in runs], axis=0, weights=sizes)
    return {
        "log_mean_weight": sums[0] - math.log(sum(sizes)),
        "ess": effective_shares(sums, sum(sizes)),
        "accept": np.append(acceptance, np.nan),
    }


def _log_sums(log_weights: np.ndarray) -> tuple[float, float]:
    top = float(log_weights.max())
    if top == -np.inf:
        return top, top
    w = np.exp(log_weights - top)
    return top + math.log(float(w.sum())), 2.0 * top + math.log(float(w @ w))


def _started(kernel: Kernel, n: int) -> tuple[int, int]:
    return (0, n) if kernel.needs_gradient else (n, 0)
