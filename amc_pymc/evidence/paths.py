"""Paths of densities, from the prior or from a fitted reference, and densities on one copy of each point."""

from __future__ import annotations

import math

from typing import Protocol

import numpy as np

from amc_pymc.evidence.mcmc import Path
from amc_pymc.evidence.symmetry import Images
from amc_pymc.mixtures import StudentTMixture, log_mixture_density


class PriorPath(Path, Protocol):
    """Path from the prior to the posterior that can draw from the prior."""

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""


class ReferencePath:
    """Path from a reference q to prior times likelihood.

    The base is log q, the slope the log ratio of the end to q.

    Parameters
    ----------
    joint : Path
        Path from the prior to the posterior; base plus slope is log prior plus log likelihood.
    reference : StudentTMixture

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.paths import ReferencePath
    >>> class Joint:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.array([-np.abs(x[:, 0]), np.full(len(x), 2.0)])
    >>> class Laplace:
    ...     def log_density(self, x):
    ...         return -np.abs(x[:, 0]) - np.log(2.0)
    >>> ReferencePath(Joint(), Laplace()).values(np.array([[0.0], [3.0]])).round(2)
    array([[-0.69, -3.69],
           [ 2.69,  2.69]])
    """

    def __init__(self, joint: Path, reference: StudentTMixture):
        self.joint, self.reference, self.n_dim = joint, reference, joint.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluate base and slope (2, P)."""
        base = self.reference.log_density(x)
        prior, likelihood = self.joint.values(x)
        return np.stack([base, _slope(prior + likelihood, base)])

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate base and slope (2, P), and their gradients (2, P, D)."""
        base, base_gradient = self.reference.log_density_and_gradient(x)
        (prior, likelihood), gradients = self.joint.gradients(x)
        terms = np.stack([base, _slope(prior + likelihood, base)])
        with np.errstate(invalid="ignore"):  # gradients are arbitrary where a term is -inf
            slope_gradient = gradients.sum(axis=0) - base_gradient
        return terms, np.stack([base_gradient, slope_gradient])


def _slope(joint: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return log joint less log base; -inf where either is not finite."""
    out = np.full(joint.shape, -np.inf)
    possible = np.isfinite(joint) & np.isfinite(base)
    out[possible] = joint[possible] - base[possible]
    return out


def importance_log_weights(
    log_q: np.ndarray, terms: np.ndarray, share: float, log_z: float = 0.0
) -> np.ndarray:
    """Return log-weights (P,) less `log_z` of points drawn from a reference q with a share of the prior.

    ``log_q`` (P,) and ``terms`` (2, P) are the log densities of the reference and log prior and log likelihood.
    """
    log_w = terms.sum(axis=0)
    possible = log_w > -np.inf
    log_g = log_mixture_density(log_q, terms[0], share)
    log_w[possible] = log_w[possible] - log_g[possible] - log_z
    return log_w


class OneCopy:
    """Density that is zero but for one copy of each point, times the number of copies.

    If exchanges leave a density as it is, its integral is the number of images times that over the points that no
    exchange brings closer to a centre.

    Parameters
    ----------
    path : Path
        Path whose base plus slope is the log density.
    images : Images
        Group of exchanges.
    centre : array (D,)
    """

    def __init__(self, path: Path, images: Images, centre: np.ndarray):
        self._path, self._images, self._centre, self.n_dim = path, images, centre, path.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluate base and slope (2, P)."""
        return self._of_copy(x, self._path.values(x))

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate base and slope (2, P), and their gradients (2, P, D)."""
        terms, gradients = self._path.gradients(x)
        return self._of_copy(x, terms), gradients

    def _of_copy(self, x: np.ndarray, terms: np.ndarray) -> np.ndarray:
        terms[1] += math.log(len(self._images.exchanges))
        terms[:, self._images.nearest(x, self._centre) > 0] = -np.inf
        return terms
