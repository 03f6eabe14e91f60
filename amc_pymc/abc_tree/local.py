r"""Student t kernels of local shape, which complement the boxes of a proposal.

On the normal scale :math:`x = \Phi^{-1}(u)` the prior is standard normal. A mixture of Student t densities is fitted to
weighted simulations near the data and flattened to approximate the optimal proposal, the square root of posterior
times prior. Unlike boxes, its components can follow a posterior that is narrow in an oblique direction.
"""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.axes import from_normal, to_normal
from amc_pymc.logweights import systematic
from amc_pymc.mixtures import StudentTMixture, fit_student_t_mixture

__all__ = ["NEAR", "FittedKernels", "Kernels", "fit_kernels", "flattened"]

#: Numbers of components of the fitted mixtures, and powers that they are flattened to.
_COMPONENTS, _POWERS = (1, 3, 6), (0.5, 0.75)
#: Degrees of freedom of the fitted mixtures, and of the flattened ones.
_FITTED_DOF, _DRAWN_DOF = 10.0, 8.0
#: Number of parts of the points; each mixture is fitted to all but one of them.
_PARTS = 2
#: Maximum number of points that mixtures are fitted to.
_MOST = 1000
#: Kernel value that simulations must exceed to be used for fitting.
NEAR = 0.02
#: Multiple of k (D + 1) in the number of effective points required for k components.
_POINTS = 1.5
#: Maximum EM iterations, and the gain in log density at which they end.
_ITERATIONS, _ENOUGH = 8, 1e-2


@dataclass(frozen=True)
class Kernels:
    """A mixture on the normal scale, as a density on the unit cube.

    Attributes
    ----------
    mixture : StudentTMixture
    """

    mixture: StudentTMixture

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points (n, D), clipped to the open unit cube."""
        return from_normal(self.mixture.sample(n, rng))

    def density(self, u: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the density (n,) at points (n, D), relative to the prior; x are these on the normal scale, if known."""
        if x is None:
            x = to_normal(u)
        log_prior = -0.5 * (np.einsum("nd,nd->n", x, x) + x.shape[1] * math.log(2.0 * math.pi))
        return np.exp(self.mixture.log_density(x) - log_prior)


@dataclass(frozen=True)
class FittedKernels:
    """Kernels that were each fitted to all but one part of the simulations.

    Attributes
    ----------
    kernels : tuple of Kernels
    part : array of int (n,)
        Part that each simulation belongs to; the kernels with this number were not fitted to it.
    """

    kernels: tuple[Kernels, ...]
    part: np.ndarray

    def unseen_density(self, u: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the density (m,) at chosen (m,) of points (n, D), by the kernels not fitted to them."""
        out = np.empty(len(chosen))
        for number, kernels in enumerate(self.kernels):
            own = self.part[chosen] == number
            out[own] = kernels.density(u[chosen[own]])
        return out


def fit_kernels(u: np.ndarray, worth: np.ndarray, rng: np.random.Generator) -> list[FittedKernels]:
    """Fit mixtures of several sizes to weighted points, each to all but one part of them.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    worth : array (n,)
        Worth of each point: weight times kernel value.
    rng : numpy.random.Generator

    Returns
    -------
    list of FittedKernels
        One for each feasible number of components and each power of :func:`flattened`; empty if there are too
        few points for a single component.
    """
    chosen, worth = _chosen(worth, rng)
    x, n_dim = to_normal(u[chosen]), u.shape[1]
    part = rng.permutation(np.arange(len(u)) % _PARTS)
    seen = [part[chosen] != number for number in range(_PARTS)]
    effective = min(_effective(worth[own]) for own in seen)
    out = []
    for k in _COMPONENTS:
        if effective < _POINTS * k * (n_dim + 1) + 2.0:
            break
        found = [
            fit_student_t_mixture(
                x[own], np.log(worth[own]), n_components=k, rng=rng, dof=_FITTED_DOF,
                n_iter=_ITERATIONS, tolerance=_ENOUGH,
            )
            for own in seen
        ]  # fmt: skip
        for power in _POWERS:
            kernels = tuple(Kernels(flattened(mixture, power, _DRAWN_DOF)) for mixture in found)
            out.append(FittedKernels(kernels, part))
    return out


def flattened(mixture: StudentTMixture, power: float, dof: float) -> StudentTMixture:
    r"""Return a mixture close to a power of a density times the complementary power of the normal prior.

    A component :math:`\pi_k N(m_k, S_k)` becomes

    .. math:: (\pi_k N(x; m_k, S_k))^\gamma \, N(x; 0, I)^{1 - \gamma},

    a normal with precision :math:`\gamma S_k^{-1} + (1 - \gamma) I`, whose integral is the new weight. With
    :math:`\gamma = 1/2` and well separated components it is the proposal with most effective draws (Alsing, Wandelt &
    Feeney 2018, arXiv:1808.06040, for a posterior known up to a factor).

    Parameters
    ----------
    mixture : StudentTMixture
        Mixture whose scale matrices are taken as covariances.
    power : float
        Exponent :math:`\gamma`, above 0 and at most 1.
    dof : float
        Degrees of freedom of the result.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.local import flattened
    >>> from amc_pymc.mixtures import StudentTMixture
    >>> posterior = StudentTMixture([1.0], [[2.0]], [[[0.5]]], 8.0)
    >>> wide = flattened(posterior, 0.5, 8.0)
    >>> wide.means, wide.scale_matrices
    (array([[1.6]]), array([[[0.4]]]))
    """
    precision = np.linalg.inv(mixture.scale_matrices)
    inner = power * precision + (1.0 - power) * np.eye(mixture.n_dim)
    covariance = np.linalg.inv(inner)
    pull = power * np.einsum("kij,kj->ki", precision, mixture.means)
    mean = np.einsum("kij,kj->ki", covariance, pull)
    squares = power * np.einsum("ki,kij,kj->k", mixture.means, precision, mixture.means)
    squares -= np.einsum("ki,ki->k", mean, pull)
    log_weight = power * (np.log(mixture.weights) + 0.5 * np.linalg.slogdet(precision)[1])
    log_weight -= 0.5 * (np.linalg.slogdet(inner)[1] + squares)
    weight = np.exp(log_weight - log_weight.max())
    root = np.linalg.cholesky(0.5 * (covariance + covariance.transpose(0, 2, 1)))
    return StudentTMixture(weight / weight.sum(), mean, root, dof)


def _chosen(worth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return points (m,) of positive worth with their worth; a weighted sample if there are many."""
    chosen = np.flatnonzero(worth > 0.0)
    if len(chosen) <= _MOST:
        return chosen, worth[chosen]
    drawn, counts = np.unique(systematic(worth[chosen], _MOST, rng), return_counts=True)
    return chosen[drawn], counts.astype(float)


def _effective(weight: np.ndarray) -> float:
    squares = float(weight @ weight)
    return float(weight.sum() ** 2 / squares) if squares > 0.0 else 0.0
