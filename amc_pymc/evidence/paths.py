"""Paths of densities: from the prior, from a fitted reference, from a Gaussian; records of the highest points."""

from __future__ import annotations

import math
import threading

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from scipy.linalg import solve_triangular

from amc_pymc.evidence.mcmc import Path
from amc_pymc.evidence.settings import DEFAULTS, PilotSettings
from amc_pymc.evidence.symmetry import Images, Symmetries


class PriorPath(Path, Protocol):
    """Path from the prior to the posterior that can draw from the prior."""

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""


class Joint:
    """Log of prior times likelihood, as searches for its modes use it.

    Parameters
    ----------
    path : Path
        Path from the prior to the posterior.
    settings : PilotSettings
        Effort and thresholds of the searches.

    Attributes
    ----------
    symmetries : Symmetries or None
        Labels and signs that can be exchanged.
    images : Images or None
        Exchanges that lead to all copies of the modes found so far.
    """

    def __init__(self, path: Path, settings: PilotSettings = DEFAULTS):
        self.path: Any = path
        self.settings = settings
        self.symmetries: Symmetries | None = None
        self.images: Images | None = None
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return int(self.path.n_dim)

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""
        drawn: np.ndarray = self.path.draw_prior(n, rng)
        return drawn

    def find_images(self, modes: np.ndarray, curvatures: np.ndarray) -> None:
        """Find all copies of modes (M, D) with Hessians (M, D, D)."""
        if self.symmetries is not None:
            self.images = self.symmetries.images(modes, -curvatures)

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior and log likelihood (2, P) at points (P, D)."""
        terms: np.ndarray = self.path.values(x)
        return terms

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior plus log likelihood (P,)."""
        terms = self.terms(x)
        self._last = x, terms[0]
        return terms.sum(axis=0)

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        """Return the log prior (P,), cached for the points of the last `log_density`."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        return self.terms(x)[0]

    def with_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate log density (P,) and gradient (P, D)."""
        terms, gradients = self.path.gradients(x)
        return terms.sum(axis=0), gradients.sum(axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the gradient (P, D) of the log density."""
        return self.with_gradient(x)[1]


#: Number of points recorded per call.
_EACH = 4

_here = threading.local()


class Highest:
    """Points of highest density seen so far; the result does not depend on the order of the calls.

    Parameters
    ----------
    kept : int, default 1024
        Maximum number of points; up to twice as many are held between calls.
    """

    def __init__(self, kept: int = 1024) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._x: list[np.ndarray] = []
        self._terms: list[np.ndarray] = []
        self._n, self._floor = 0, -np.inf

    def __len__(self) -> int:
        return self._n

    def look(self, x: np.ndarray, terms: np.ndarray) -> None:
        """Record the highest few of the points x (P, D) with their terms (2, P)."""
        log_f = terms.sum(axis=0)
        best = np.arange(len(x))
        if len(x) > _EACH:
            best = np.argpartition(-log_f, _EACH)[:_EACH]
        self.add(x[best], terms[:, best])

    def add(self, x: np.ndarray, terms: np.ndarray) -> None:
        """Record all points that are high enough."""
        best = terms.sum(axis=0) > self._floor
        if not best.any():
            return
        with self._lock:
            self._x.append(x[best])
            self._terms.append(terms[:, best])
            self._n += int(best.sum())
            if self._n > 2 * self.kept:
                self._prune()

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the recorded points (n, D) and their terms (2, n); (0, 0) and (2, 0) if there are none."""
        with self._lock:
            self._prune()
            if not self._x:
                return np.empty((0, 0)), np.empty((2, 0))
            return np.concatenate(self._x), np.concatenate(self._terms, axis=1)

    def _prune(self) -> None:
        """Keep only the highest points."""
        if self._n <= self.kept:
            return
        x, terms = np.concatenate(self._x), np.concatenate(self._terms, axis=1)
        log_f = terms.sum(axis=0)
        kept = np.argpartition(-log_f, self.kept)[: self.kept]
        self._x, self._terms = [x[kept]], [terms[:, kept]]
        self._n, self._floor = self.kept, float(log_f[kept].min())


@contextmanager
def collected(kept: int = 1024) -> Iterator[Highest]:
    """Collect the highest points that any :class:`RecordingPath` evaluates in this thread.

    Jobs in other threads or processes use it to return the points that they have seen.
    """
    outer = getattr(_here, "memory", None)
    _here.memory = memory = Highest(kept)
    try:
        yield memory
    finally:
        _here.memory = outer


class RecordingPath:
    """Path from a prior that records where prior times likelihood was highest.

    Samplers discard most points at which they evaluate a density, such as leapfrog steps and rejected
    proposals. A trajectory that crosses a narrow peak with steps tuned for a wide one is rejected, although
    it has found the peak.

    Parameters
    ----------
    path : PriorPath
    kept : int, default 1024
        Maximum number of points that are recorded.

    Attributes
    ----------
    memory : Highest

    Notes
    -----
    Unpickling gives a recording path with an empty memory. Use :func:`collected` to collect the points evaluated in
    another process or thread.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.paths import RecordingPath
    >>> class Peak:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.stack([0.0 * x[:, 0], -(x[:, 0] ** 2)])
    >>> seen = RecordingPath(Peak())
    >>> seen.values(np.array([[3.0], [0.5], [-1.0]])).shape
    (2, 3)
    >>> seen.highest(2)[0].ravel()
    array([ 0.5, -1. ])
    """

    def __init__(self, path: Path, kept: int = 1024):
        self.path = path
        self.memory = Highest(kept)

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self.path.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluate base and slope (2, P) at the points x (P, D)."""
        terms = self.path.values(x)
        self._look(x, terms)
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate base and slope (2, P) and their gradients (2, P, D)."""
        terms, gradients = self.path.gradients(x)
        self._look(x, terms)
        return terms, gradients

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""
        return self.path.draw_prior(n, rng)  # type: ignore[attr-defined]

    def highest(self, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return distinct points (n, D) and their terms (2, n), the highest first; by default all recorded points."""
        x, terms = self.memory.points()
        x, first = np.unique(x.reshape(-1, self.n_dim), axis=0, return_index=True)
        terms = terms[:, first]
        order = np.argsort(-terms.sum(axis=0), kind="stable")[:n]
        return x[order], terms[:, order]

    def _look(self, x: np.ndarray, terms: np.ndarray) -> None:
        memory = getattr(_here, "memory", None)
        (self.memory if memory is None else memory).look(x, terms)

    def __reduce__(self) -> tuple[type[RecordingPath], tuple[Path, int]]:
        return RecordingPath, (self.path, self.memory.kept)


class Reference(Protocol):
    """Normalised density that can be sampled."""

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the log density (P,) at points (P, D)."""

    def log_density_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the log density (P,) and its gradients (P, D)."""

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D)."""


class ReferencePath:
    """Path from a reference q to prior times likelihood.

    The base is log q, the slope the log ratio of the end to q.

    Parameters
    ----------
    joint : Path
        Path from the prior to the posterior; base plus slope is log prior plus log likelihood.
    reference : Reference

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

    def __init__(self, joint: Path, reference: Reference):
        self.joint, self.reference = joint, reference

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self.joint.n_dim

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


_LOG_2PI = math.log(2.0 * math.pi)


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
        self._path, self._images, self._centre = path, images, centre

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self._path.n_dim

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
    >>> from amc_pymc.evidence.paths import WhitenedPath
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
