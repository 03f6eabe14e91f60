"""A logistic regression and annealing as one would write them by hand."""

from __future__ import annotations

import math

from collections.abc import Sequence
from functools import cache

import numpy as np


class NumpyLogistic:
    """The logistic regression of the suite as one would write it in NumPy: a path as kernels take it.

    Parameters
    ----------
    X, y : array (N, D), (N,)
    scale : float
        Prior standard deviation.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, scale: float = 2.5):
        self.signed = np.ascontiguousarray((1.0 - 2.0 * y)[:, None] * X)
        self.scale = scale
        self.constant = -X.shape[1] * (math.log(scale) + 0.5 * math.log(2.0 * math.pi))

    @property
    def n_dim(self) -> int:
        """D."""
        return self.signed.shape[1]

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""
        return self.scale * rng.standard_normal((n, self.n_dim))

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P)."""
        return self._terms(x)[0]

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same and their gradients (2, P, D)."""
        terms, u, t = self._terms(x)
        share = np.where(u > 0.0, 1.0, t)
        t += 1.0
        share /= t
        gradients = np.empty((2, *x.shape))
        np.divide(x, -(self.scale**2), out=gradients[0])
        np.matmul(share, -self.signed, out=gradients[1])
        return terms, gradients

    def _terms(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = x @ self.signed.T
        t = np.abs(u)
        np.negative(t, out=t)
        np.exp(t, out=t)
        terms = np.empty((2, len(x)))
        terms[0] = self.constant - 0.5 * np.vecdot(x, x) / self.scale**2
        terms[1] = -(np.log1p(t) + np.maximum(u, 0.0)).sum(axis=1)
        return terms, u, t


class NumbaLogistic(NumpyLogistic):
    """The same in compiled loops, with one logarithm for many rows."""

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P)."""
        terms = np.empty((2, len(x)))
        _loops()(x, self.signed, self.scale, self.constant, terms, np.empty((2, 0, 0)))
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same and their gradients (2, P, D)."""
        terms, gradients = np.empty((2, len(x))), np.empty((2, *x.shape))
        _loops()(x, self.signed, self.scale, self.constant, terms, gradients)
        return terms, gradients


@cache
def _loops():
    from numba import njit

    @njit(error_model="numpy")
    def logistic(x, signed, scale, constant, terms, gradients):
        n_points, d = x.shape
        with_gradients = gradients.shape[1] > 0
        for i in range(n_points):
            square, likelihood, product = 0.0, 0.0, 1.0
            for j in range(d):
                square += x[i, j] * x[i, j]
                if with_gradients:
                    gradients[0, i, j] = -x[i, j] / (scale * scale)
                    gradients[1, i, j] = 0.0
            for r in range(len(signed)):
                u = 0.0
                for j in range(d):
                    u += signed[r, j] * x[i, j]
                t = math.exp(-abs(u))
                likelihood -= max(u, 0.0)
                product *= 1.0 + t  # at most 2, so 512 of them do not overflow
                if r % 512 == 511:
                    likelihood -= math.log(product)
                    product = 1.0
                if with_gradients:
                    share = (1.0 if u > 0.0 else t) / (1.0 + t)
                    for j in range(d):
                        gradients[1, i, j] -= share * signed[r, j]
            terms[0, i] = constant - 0.5 * square / (scale * scale)
            terms[1, i] = likelihood - math.log(product)

    return logistic


def anneal_by_hand(
    path, x: np.ndarray, betas: np.ndarray, tunings: Sequence, rng: np.random.Generator,
    n_leapfrog: int = 3, jitter: float = 0.3,
) -> np.ndarray:  # fmt: skip
    """Log-weights (P,) of annealed importance sampling with HMC, as one would write it in NumPy."""
    terms, gradients = path.gradients(x)
    log_w = np.zeros(len(x))
    for t, tuning in enumerate(tunings, start=1):
        log_w += (betas[t] - betas[t - 1]) * terms[1]
        beta, chol = betas[t], tuning.scale
        size = tuning.size * rng.uniform(1.0 - jitter, 1.0 + jitter, (len(x), 1))
        v = rng.standard_normal(x.shape)
        energy = 0.5 * (v * v).sum(axis=1) - terms[0] - beta * terms[1]
        new_x, new_terms, new_gradients = x, terms, gradients
        v = v + 0.5 * size * ((gradients[0] + beta * gradients[1]) @ chol)
        for k in range(n_leapfrog):
            new_x = new_x + size * (v @ chol.T)
            new_terms, new_gradients = path.gradients(new_x)
            part = 1.0 if k < n_leapfrog - 1 else 0.5
            v = v + part * size * ((new_gradients[0] + beta * new_gradients[1]) @ chol)
        energy += new_terms[0] + beta * new_terms[1] - 0.5 * (v * v).sum(axis=1)
        accepted = np.log(rng.random(len(x))) < energy
        x = np.where(accepted[:, None], new_x, x)
        terms = np.where(accepted, new_terms, terms)
        gradients = np.where(accepted[:, None], new_gradients, gradients)
    return log_w + (betas[-1] - betas[-2]) * terms[1]
