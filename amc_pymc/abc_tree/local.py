"""prototype"""
from __future__ import annotations
import math
from dataclasses import dataclass
import numpy as np
from scipy.special import ndtr, ndtri
from amc_pymc.importance import StudentTMixture, fit_student_t_mixture, choose_mixture
_EDGE = 2.0**-53

def normal(u):
    return ndtri(np.clip(u, _EDGE, 1.0 - _EDGE))

def log_phi(x):
    return -0.5 * np.einsum("nd,nd->n", x, x) - 0.5 * x.shape[1] * math.log(2 * math.pi)

@dataclass(frozen=True)
class Kernels:
    mixture: StudentTMixture
    def draw(self, n, rng):
        x = self.mixture.sample(n, rng)
        return np.clip(ndtr(x), _EDGE, 1.0 - _EDGE)
    def density(self, u):
        x = normal(u)
        return np.exp(self.mixture.log_density(x) - log_phi(x))

def tempered(m: StudentTMixture, gamma, dof, widen=1.0, wide=None):
    S = m.scale_matrices
    d = m.n_dim
    P = np.linalg.inv(S)
    Q = gamma * P + (1 - gamma) * np.eye(d)
    C = np.linalg.inv(Q)
    h = gamma * np.einsum("kij,kj->ki", P, m.means)
    mean = np.einsum("kij,kj->ki", C, h)
    quad = gamma * np.einsum("ki,kij,kj->k", m.means, P, m.means) - np.einsum("ki,kij,kj->k", h, C, h)
    logw = gamma * (np.log(m.weights) - 0.5 * np.linalg.slogdet(S)[1]) - 0.5 * np.linalg.slogdet(Q)[1] - 0.5 * quad
    w = np.exp(logw - logw.max())
    w /= w.sum()
    L = np.linalg.cholesky(widen * C)
    if wide is not None:
        part, factor = wide
        w = np.r_[(1 - part) * w, part * w]; mean = np.r_[mean, mean]; L = np.r_[L, factor * L]
    return StudentTMixture(w, mean, L, dof)

def fit_local(x, worth, rng, k, n_iter=8):
    return fit_student_t_mixture(x, np.log(worth), n_components=k, rng=rng, dof=10.0, n_iter=n_iter, tolerance=1e-2)
