r"""Evidence by importance sampling from a fixed mixture of Student distributions.

The method is for densities without a closed form. Every component k has its own points: scrambled Sobol points
mapped by the normal and the chi-square quantile functions. All points are weighted relative to the
whole mixture,

.. math:: \hat Z = \sum_k \alpha_k \frac{1}{n} \sum_{i=1}^{n} \frac{f(x_{ki})}{q(x_{ki})}, \qquad
          q = \sum_k \alpha_k q_k,

which is unbiased (Owen & Zhou 2000, *Safe and effective importance sampling*, JASA 95, 135-143,
doi:10.1080/01621459.2000.10473909). Independent scrambles give the standard error.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import gammaincinv, gammaln, logsumexp, ndtri
from scipy.stats import qmc

from amc_pymc.rng import as_generator, spawn_generators

LogDensity = Callable[[np.ndarray], np.ndarray]


class Component(NamedTuple):
    """Student distribution with its share, mean (D,) and scale matrix (D, D)."""

    share: float
    mean: np.ndarray
    scale: np.ndarray


class Reference(NamedTuple):
    """Log evidence and its standard error."""

    log_evidence: float
    error: float


def log_student(x: np.ndarray, mean: np.ndarray, root: np.ndarray, df: float) -> np.ndarray:
    """Return the log density of points x (n, D) with Cholesky factor `root` of the scale matrix."""
    d = mean.size
    squares = np.square(solve_triangular(root, (x - mean).T, lower=True)).sum(axis=0)
    constant = gammaln(0.5 * (df + d)) - gammaln(0.5 * df) - 0.5 * d * math.log(df * math.pi)
    return constant - np.log(np.diag(root)).sum() - 0.5 * (df + d) * np.log1p(squares / df)


def importance_evidence(
    log_joint: LogDensity, components: Sequence[Component], *, df: float = 8.0,
    log2_points: int = 12, replicates: int = 16, seed: int = 0,
) -> Reference:  # fmt: skip
    """Estimate the log integral of exp(log_joint).

    Parameters
    ----------
    log_joint : callable
        Function from points (n, D) to log densities (n,).
    components : sequence of Component
        Components of the mixture; their shares are normalised.
    df : float
        Degrees of freedom of all components.
    log2_points : int
        Logarithm to base 2 of the number of points of each component in each replicate.
    replicates : int
        Number of independent scrambles, at least two.
    seed : int

    Returns
    -------
    Reference

    Examples
    --------
    >>> import numpy as np
    >>> found = importance_evidence(
    ...     lambda x: -0.5 * (x**2).sum(axis=1), [Component(1.0, np.zeros(2), np.eye(2))]
    ... )
    >>> bool(abs(found.log_evidence - np.log(2 * np.pi)) < 4 * found.error < 0.01)
    True
    """
    shares = np.array([c.share for c in components], dtype=float)
    log_shares = np.log(shares / shares.sum())
    roots = [np.linalg.cholesky(c.scale) for c in components]

    def log_mixture(x: np.ndarray) -> np.ndarray:
        terms = [
            s + log_student(x, c.mean, root, df)
            for s, c, root in zip(log_shares, components, roots, strict=True)
        ]
        return logsumexp(terms, axis=0)

    logs = []
    for rng in spawn_generators(as_generator(seed), replicates):
        parts = []
        for s, c, root in zip(log_shares, components, roots, strict=True):
            x = student_points(c.mean, root, df, log2_points, rng)
            parts.append(s + logsumexp(log_joint(x) - log_mixture(x)) - log2_points * math.log(2.0))
        logs.append(logsumexp(parts))
    return average(np.array(logs))


def student_points(
    mean: np.ndarray, root: np.ndarray, df: float, log2_points: int, rng: np.random.Generator
) -> np.ndarray:
    """Return 2^log2_points quasi-random points (n, D) of a Student distribution."""
    sobol = qmc.Sobol(mean.size + 1, scramble=True, seed=rng)
    u = np.clip(sobol.random_base2(log2_points), 1e-15, 1.0 - 1e-15)
    chi_square = 2.0 * gammaincinv(0.5 * df, u[:, -1])
    return mean + (ndtri(u[:, :-1]) @ root.T) * np.sqrt(df / chi_square)[:, None]


def average(logs: np.ndarray) -> Reference:
    """Return the log of the mean of exp(logs), and its standard error by the delta method."""
    n = logs.size
    relative = np.exp(logs - logs.max())
    error = relative.std(ddof=1) / math.sqrt(n) / relative.mean()
    return Reference(float(logsumexp(logs) - math.log(n)), float(error))
