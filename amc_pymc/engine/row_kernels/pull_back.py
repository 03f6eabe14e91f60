"""Conversion of derivatives by z = (eta, w(eta)), parameters and coefficients, to those by eta.

With J = dw / deta and f(eta) = l(z),

    f' = l_eta + J' l_w,
    f'' = [I J'] l'' [I; J] + sum_j l_w_j w_j''.

Coefficient j depends on the entries ``at[:, j]`` of eta. Rows 0, ..., L - 1 of ``curves`` hold its first
derivatives by these entries, further rows the lower triangle of the second. These loops are the same
for all models and compiled once.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit

__all__: list[str] = []

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def pull_gradient(slopes, at, curves, size):
    """Return f' (E,) from the derivatives by z, ``slopes`` (E + W,)."""
    out = np.empty(size)
    for a in range(size):
        out[a] = slopes[a]
    for j in range(at.shape[1]):
        for a in range(at.shape[0]):
            out[at[a, j]] += curves[a, j] * slopes[size + j]
    return out


@_compiled
def pull_hessian(slopes, hessian, at, curves, size):
    """Return f'' (E, E) from the first and second derivatives by z."""
    n_leaves, n = at.shape
    half = np.empty((size, size + n))
    for a in range(size):
        for b in range(size + n):
            half[a, b] = hessian[a, b]
    for j in range(n):
        for a in range(n_leaves):
            row, factor = at[a, j], curves[a, j]
            for b in range(size + n):
                half[row, b] += factor * hessian[size + j, b]
    out = np.empty((size, size))
    for a in range(size):
        for b in range(size):
            out[a, b] = half[a, b]
        for j in range(n):
            for b in range(n_leaves):
                out[a, at[b, j]] += half[a, size + j] * curves[b, j]
    for j in range(n):
        t = n_leaves
        for a in range(n_leaves):
            for b in range(a + 1):
                c = slopes[size + j] * curves[t, j]
                t += 1
                out[at[a, j], at[b, j]] += c
                if a != b:
                    out[at[b, j], at[a, j]] += c
    return out
