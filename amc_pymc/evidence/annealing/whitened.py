"""Path from a Gaussian to the posterior, in coordinates that make the Gaussian standard normal."""

from __future__ import annotations

import math

import numpy as np

from scipy.linalg import solve_triangular

from amc_pymc.evidence.mcmc import Path

__all__ = ["WhitenedPath"]

_LOG_2PI = math.log(2.0 * math.pi)


class WhitenedPath:
    r"""Path from N(m, L L^T) to prior times likelihood, in coordinates z with x = m + L z.

    The base is the standard normal log density of z, and base plus slope is
    :math:`\log p(m + L z) + \log|L|`, which has the same normalising constant as p. Kernels that move z need
    no scale other than ones, and neither the base nor its gradient requires a matrix product.

    Parameters
    ----------
    joint : Path
        Path from the prior to the posterior; base plus slope is log p, log prior plus log likelihood.
    mean : array (D,)
    cholesky : array (D, D)
        Lower triangular matrix L with positive diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.annealing import WhitenedPath
    >>> class Joint:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.array([-0.5 * ((x[:, 0] - 3.0) / 2.0) ** 2, np.zeros(len(x))])
    >>> path = WhitenedPath(Joint(), np.array([3.0]), np.array([[2.0]]))
    >>> path.values(np.array([[0.0], [1.0]])).round(3)  # the slope is log(2 sqrt(2 pi)) everywhere
    array([[-0.919, -1.419],
           [ 1.612,  1.612]])
    >>> path.points(path.coordinates(np.array([[7.0]])))
    array([[7.]])
    """

    def __init__(self, joint: Path, mean: np.ndarray, cholesky: np.ndarray):
        self.joint, self.mean, self.cholesky = joint, mean, cholesky
        self._log_volume = float(np.log(cholesky.diagonal()).sum())

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self.joint.n_dim

    def points(self, z: np.ndarray) -> np.ndarray:
        """Return unconstrained points x (P, D) for coordinates z (P, D)."""
        return self.mean + z @ self.cholesky.T

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return coordinates z (P, D) of unconstrained points x (P, D)."""
        return solve_triangular(self.cholesky, (x - self.mean).T, lower=True).T

    def values(self, z: np.ndarray) -> np.ndarray:
        """Evaluate base and slope (2, P)."""
        return self._terms(z, self.joint.values(self.points(z)))

    def gradients(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate base and slope (2, P), and their gradients (2, P, D)."""
        terms, gradients = self.joint.gradients(self.points(z))
        with np.errstate(invalid="ignore", over="ignore"):  # arbitrary where a term is -inf
            slope = gradients.sum(axis=0) @ self.cholesky + z
        return self._terms(z, terms), np.stack([-z, slope])

    def _terms(self, z: np.ndarray, terms: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            base = -0.5 * np.vecdot(z, z) - 0.5 * self.n_dim * _LOG_2PI
        joint = terms.sum(axis=0)
        slope = np.full(len(z), -np.inf)
        possible = np.isfinite(joint) & np.isfinite(base)
        slope[possible] = joint[possible] - base[possible] + self._log_volume
        return np.stack([base, slope])
