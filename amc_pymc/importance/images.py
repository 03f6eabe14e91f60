"""Copies of a mixture by the symmetries of a density."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from amc_pymc.importance.student_t import StudentTMixture

__all__ = ["Exchange", "Images"]


class Exchange(NamedTuple):
    """Signed permutation of extended coordinates e: (T e)_i = signs_i e_places_i.

    Attributes
    ----------
    places : array of int (E,)
    signs : array (E,)
    """

    places: np.ndarray
    signs: np.ndarray

    def after(self, first: Exchange) -> Exchange:
        """Return this exchange after another."""
        return Exchange(first.places[self.places], self.signs * first.signs[self.places])

    def inverse(self) -> Exchange:
        """Return the exchange that undoes this one."""
        places = np.argsort(self.places)
        return Exchange(places, self.signs[places])


@dataclass(frozen=True, eq=False)
class Images:
    """Exchanges of the coordinates of x (D,) that leave a density as it is.

    They act on the extended coordinates e (E,): those of x, and for each simplex on the log-ratio scale the last
    log-ratio, which is minus the sum of the others. They preserve volumes.

    Parameters
    ----------
    n_dim : int
        Number of dimensions D.
    sums : tuple of array of int
        Positions in x of the log-ratios of each simplex.
    exchanges : tuple of Exchange
        The first one changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.importance import StudentTMixture
    >>> from amc_pymc.importance.images import Exchange, Images
    >>> swap = Exchange(np.array([1, 0]), np.ones(2))
    >>> images = Images(2, (), (swap.after(swap), swap))
    >>> q = StudentTMixture([1.0], [[0.0, 3.0]], [np.diag([1.0, 2.0])], np.inf)
    >>> images.spread(q).means, images.folded(np.array([[3.0, 0.0]]), q)
    (array([[0., 3.],
           [3., 0.]]), array([[0., 3.]]))
    """

    n_dim: int
    sums: tuple[np.ndarray, ...]
    exchanges: tuple[Exchange, ...]

    def extended(self, x: np.ndarray) -> np.ndarray:
        """Return the extended coordinates (P, E) of points (P, D)."""
        return np.column_stack([x, *(-x[:, s].sum(axis=1) for s in self.sums)])

    def of(self, x: np.ndarray, exchange: Exchange) -> np.ndarray:
        """Return the image (P, D) of points (P, D)."""
        places, signs = exchange.places[: self.n_dim], exchange.signs[: self.n_dim]
        return self.extended(x)[:, places] * signs

    def every(self, x: np.ndarray) -> np.ndarray:
        """Return the images (S, P, D) of points (P, D)."""
        e = self.extended(x)
        d = self.n_dim
        return np.stack([e[:, t.places[:d]] * t.signs[:d] for t in self.exchanges])

    @cached_property
    def matrices(self) -> np.ndarray:
        """Matrices (S, D, D) of the exchanges."""
        return self.every(np.eye(self.n_dim)).transpose(0, 2, 1)

    def spread(self, mixture: StudentTMixture) -> StudentTMixture:
        """Return the mixture of all images of a mixture, with equal weights."""
        means = self.every(mixture.means)
        roots = self.matrices[:, None] @ mixture.choleskys
        upper = np.linalg.qr(roots.swapaxes(-1, -2), mode="r")
        signs = np.sign(np.diagonal(upper, axis1=-2, axis2=-1))
        factors = np.tril(upper.swapaxes(-1, -2) * signs[..., None, :])
        weights = np.tile(mixture.weights, len(means)) / len(means)
        d = self.n_dim
        return StudentTMixture(
            weights, means.reshape(-1, d), factors.reshape(-1, d, d), mixture.dof
        )

    def shares(self, x: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """Return the shares (S,) of points (P, D) that are closest to each image of a mode (D,)."""
        away = np.linalg.norm(x[None] - self.every(mode[None]), axis=2)
        return np.bincount(away.argmin(axis=0), minlength=len(away)) / len(x)

    def folded(self, x: np.ndarray, mixture: StudentTMixture) -> np.ndarray:
        """Return the image of each point (P, D) at which a mixture is highest."""
        images = self.every(x)
        heights = np.stack([mixture.log_density(y) for y in images])
        return images[heights.argmax(axis=0), np.arange(len(x))]
