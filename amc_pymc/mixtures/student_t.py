"""Mixtures of multivariate Student t densities, used as proposals for importance sampling."""

from __future__ import annotations

import math

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import betaln, gammaincinv, gammaln, ndtri

from amc_pymc.arguments import positive_int

#: Numbers in a block of points; two blocks fit in the L2 cache.
_BLOCK = 32_768
#: Share of the prior in every fitted proposal; it bounds weights by ten times the largest likelihood.
DEFENSIVE_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class StudentTMixture:
    r"""Mixture of K multivariate Student t densities on R^D with common degrees of freedom.

    .. math::
        q(x) = \sum_k \pi_k\, t_\nu(x; m_k, L_k L_k^T), \qquad
        t_\nu(x; m, S) = \frac{\Gamma((\nu + D)/2)}{\Gamma(\nu/2)\,(\nu\pi)^{D/2}\,|S|^{1/2}}
        \Big(1 + \frac{(x - m)^T S^{-1} (x - m)}{\nu}\Big)^{-(\nu + D)/2} .

    Parameters
    ----------
    weights : array (K,)
        Non-negative weights that sum to one.
    means : array (K, D)
    choleskys : array (K, D, D)
        Lower Cholesky factors of the scale matrices; a component's covariance is its scale matrix
        times :math:`\nu / (\nu - 2)`.
    dof : float
        Degrees of freedom; infinite for Gaussians.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures import StudentTMixture
    >>> from amc_pymc.rng import as_generator
    >>> q = StudentTMixture([0.3, 0.7], [[-2.0], [2.0]], [[[0.5]], [[0.5]]], 5.0)
    >>> x = q.sample(1000, as_generator(1))
    >>> x.shape, bool(abs(np.mean(x > 0.0) - 0.7) < 0.05)
    ((1000, 1), True)
    >>> np.round(q.log_density(np.array([[2.0], [1e6]])), 3)
    array([ -0.632, -82.499])
    """

    weights: np.ndarray
    means: np.ndarray
    choleskys: np.ndarray
    dof: float

    def __post_init__(self) -> None:
        for name in ("weights", "means", "choleskys"):
            value = np.array(getattr(self, name), float, order="C")
            value = value / value.sum() if name == "weights" else value
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "dof", float(self.dof))

    @property
    def components(self) -> int:
        """Number of components K."""
        return self.means.shape[0]

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self.means.shape[1]

    @property
    def scale_matrices(self) -> np.ndarray:
        """Scale matrices L L^T of all components, (K, D, D)."""
        return self.choleskys @ self.choleskys.transpose(0, 2, 1)

    @cached_property
    def _inverses(self) -> np.ndarray:
        """Inverses of the Cholesky factors, (K, D, D)."""
        identity = np.eye(self.n_dim)
        return np.array([solve_triangular(c, identity, lower=True) for c in self.choleskys])

    @cached_property
    def _whiteners(self) -> np.ndarray:
        """Transposed inverses of the Cholesky factors, contiguous for products with points in rows."""
        return np.ascontiguousarray(self._inverses.transpose(0, 2, 1))

    @cached_property
    def _constants(self) -> np.ndarray:
        """Log weight plus log density at the mean, (K,)."""
        diagonals = np.diagonal(self.choleskys, axis1=1, axis2=2)
        log_peak, log_roots = _log_peak(self.n_dim, self.dof), np.log(diagonals).sum(axis=1)
        with np.errstate(divide="ignore"):
            return log_peak + np.log(self.weights) - log_roots

    @cached_property
    def _edges(self) -> np.ndarray:
        """Cumulative weights without the last, (K - 1,)."""
        return np.cumsum(self.weights)[:-1]

    def part(self, keep: np.ndarray) -> StudentTMixture:
        """Return the mixture of some components, with equal weights if theirs are all zero."""
        weights = self.weights[keep]
        total = weights.sum()
        weights = weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))
        return StudentTMixture(weights, self.means[keep], self.choleskys[keep], self.dof)

    def joined(self, other: StudentTMixture, share: float) -> StudentTMixture:
        """Return this mixture with a share of another one, which takes over the degrees of freedom."""
        return StudentTMixture(
            np.concatenate([(1.0 - share) * self.weights, share * other.weights]),
            np.concatenate([self.means, other.means]),
            np.concatenate([self.choleskys, other.choleskys]),
            self.dof,
        )

    def with_dof(self, dof: float) -> StudentTMixture:
        """Return the mixture with other degrees of freedom."""
        return StudentTMixture(self.weights, self.means, self.choleskys, dof)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the log density at points.

        Parameters
        ----------
        x : array (P, D)

        Returns
        -------
        array (P,)
            Log density; -inf at points that are not finite or numerically infinitely far away.
        """
        x = self._points(x)
        out = np.empty(len(x))
        for rows in self._blocks(len(x)):
            out[rows] = _log_sum(self.terms_at(self.distances(x[rows])))
        return out

    def log_density_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the log density and its gradient at points.

        Parameters
        ----------
        x : array (P, D)

        Returns
        -------
        values : array (P,)
        gradients : array (P, D)
            Gradients; zero where the value is -inf.
        """
        x = self._points(x)
        values, gradients = np.empty(len(x)), np.zeros(x.shape)
        for rows in self._blocks(len(x)):
            z = np.empty((self.components, *x[rows].shape))
            distances = self.distances(x[rows], z)
            terms = self.terms_at(distances)
            values[rows] = total = _log_sum(terms)
            terms -= np.where(total > -math.inf, total, math.inf)
            pull = np.exp(terms, out=terms)
            if math.isfinite(self.dof):
                pull *= (self.dof + self.n_dim) / (self.dof + distances)
            for k in range(self.components):
                if self.components > 1 or math.isfinite(self.dof):
                    z[k] *= pull[k][:, None]
                gradients[rows] -= z[k] @ self._inverses[k]
        bad = values == -math.inf
        if bad.any():
            gradients[bad] = 0.0
        return values, gradients

    def log_terms(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the log of weight times density of each component.

        Parameters
        ----------
        x : array (P, D)

        Returns
        -------
        array (K, P)
        """
        x = self._points(x)
        out = np.empty((self.components, len(x)))
        for rows in self._blocks(len(x)):
            out[:, rows] = self.terms_at(self.distances(x[rows]))
        return out

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent points.

        Parameters
        ----------
        n : int
            Number of draws, possibly zero.
        rng : numpy.random.Generator

        Returns
        -------
        array (n, D)
        """
        n = positive_int("n", n) if n else 0
        labels = np.searchsorted(self._edges, rng.random(n), side="right")
        z = rng.standard_normal((n, self.n_dim))
        if math.isfinite(self.dof):
            z *= np.sqrt(self.dof / rng.chisquare(self.dof, n))[:, None]
        return self._placed(labels, z)

    def from_uniforms(self, u: np.ndarray) -> np.ndarray:
        """Map points of the unit cube to draws; uniform points give exact draws.

        The first coordinate selects the component, and the last gives the chi-square variable of Student's
        t (unused for Gaussians). The others are mapped to normals by the inverse distribution function.

        Parameters
        ----------
        u : array (n, D + 2)
            Points in the open unit cube.

        Returns
        -------
        array (n, D)

        Raises
        ------
        ValueError
            If the shape is wrong or a coordinate is not inside (0, 1).

        Examples
        --------
        >>> import numpy as np
        >>> from amc_pymc.evidence.arms import scrambled_points
        >>> from amc_pymc.rng import as_generator
        >>> q = StudentTMixture([1.0], [[1.0, 2.0]], [np.eye(2)], np.inf)
        >>> x = q.from_uniforms(scrambled_points(256, 4, as_generator(1)))
        >>> np.round(x.mean(axis=0), 2)
        array([1., 2.])
        """
        u = np.asarray(u, float)
        if u.ndim != 2 or u.shape[1] != self.n_dim + 2:
            raise ValueError(f"u must have shape (n, {self.n_dim + 2}), got {u.shape}.")
        if u.size and not (u.min() > 0.0 and u.max() < 1.0):
            raise ValueError("u must lie strictly between 0 and 1.")
        labels = np.searchsorted(self._edges, u[:, 0], side="right")
        z = ndtri(u[:, 1:-1])
        if math.isfinite(self.dof):
            gamma = gammaincinv(0.5 * self.dof, u[:, -1])
            z *= np.sqrt(0.5 * self.dof / gamma)[:, None]
        return self._placed(labels, z)

    def _placed(self, labels: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Shift and scale standard draws (n, D) to their components; overwrites z."""
        if self.components == 1:
            return z @ self.choleskys[0].T + self.means[0]
        for k in range(self.components):
            rows = np.flatnonzero(labels == k)
            z[rows] = z[rows] @ self.choleskys[k].T + self.means[k]
        return z

    def _points(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, float)
        if x.ndim != 2 or x.shape[1] != self.n_dim:
            raise ValueError(f"x must have shape (P, {self.n_dim}), got {x.shape}.")
        return x

    def _blocks(self, n: int) -> list[slice]:
        size = max(_BLOCK // self.n_dim, 64)
        return [slice(i, min(i + size, n)) for i in range(0, n, size)]

    def distances(self, x: np.ndarray, z: np.ndarray | None = None) -> np.ndarray:
        """Return squared Mahalanobis distances (K, P), inf for nan. Fills z (K, P, D) if given."""
        out = np.empty((self.components, len(x)))
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(self.components):
                zk = np.matmul(
                    x - self.means[k], self._whiteners[k], out=None if z is None else z[k]
                )
                np.einsum("pd,pd->p", zk, zk, out=out[k])
        if not np.isfinite(out).all():
            out[np.isnan(out)] = math.inf
            if z is not None:
                z[~np.isfinite(out)] = 0.0
        return out

    def terms_at(self, distances: np.ndarray) -> np.ndarray:
        """Return the log of weight times density (K, P) at squared distances (K, P)."""
        if math.isinf(self.dof):
            out = -0.5 * distances
        else:
            out = distances / self.dof
            np.log1p(out, out=out)
            out *= -0.5 * (self.dof + self.n_dim)
        out += self._constants[:, None]
        return out


def _log_peak(d: int, dof: float) -> float:
    """Return the log density of a component of unit scale in D dimensions at its mean."""
    if math.isinf(dof):
        return -0.5 * d * math.log(2.0 * math.pi)
    constant = float(gammaln(0.5 * d) - betaln(0.5 * dof, 0.5 * d))
    return constant - 0.5 * d * (math.log(dof) + math.log(math.pi))


def _log_sum(terms: np.ndarray) -> np.ndarray:
    """Return the log of the sum of exponentials over the first axis of (K, P)."""
    if len(terms) == 1:
        return terms[0].copy()
    top = terms.max(axis=0)
    top[top == -math.inf] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(np.exp(terms - top).sum(axis=0)) + top


def log_mixture_density(log_q: np.ndarray, log_prior: np.ndarray, share: float) -> np.ndarray:
    r"""Return the log density of a defensive mixture.

    .. math:: \log\{(1 - s)\, q(x) + s\, p(x)\}

    The share of the prior bounds the weights, prior times likelihood over density, by 1/s times the
    largest likelihood, even where the fitted q is too low (Hesterberg 1995, Technometrics 37:185-194,
    doi:10.1080/00401706.1995.10484303; Owen & Zhou 2000, JASA 95:135-143,
    doi:10.1080/01621459.2000.10473909).

    Parameters
    ----------
    log_q, log_prior : array (P,)
        Log densities; -inf where a density is zero.
    share : float
        Share s of the prior, from 0 to 1.

    Returns
    -------
    array (P,)
        Log density of the mixture; -inf where both densities are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures import log_mixture_density
    >>> log_q, log_prior = np.array([-1.0, -np.inf, -1e4]), np.array([-1.0, 0.0, -np.inf])
    >>> np.round(log_mixture_density(log_q, log_prior, 0.1), 2).tolist()
    [-1.0, -2.3, -10000.11]
    """
    with np.errstate(divide="ignore"):  # of no share at all
        return np.logaddexp(log_q + np.log1p(-share), log_prior + np.log(share))
