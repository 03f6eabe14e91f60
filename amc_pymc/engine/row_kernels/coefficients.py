"""Coefficients w that are functions of parameters: maps eta -> z = (eta, w) and derivatives by eta.

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
from amc_pymc.engine.machine import call
from amc_pymc.engine.row_kernels.printed import (
    COEFFICIENT_LEAVES,
    DERIVATIVE_ROWS,
    FAMILIES_AT,
    FAMILY_DERIVATIVES,
    FAMILY_FIRST,
    FAMILY_JET,
    FAMILY_SIZE,
    FAMILY_VALUE,
    FAMILY_WIDTH,
    N_COEFFICIENTS,
    N_FAMILIES,
    N_PARAMETERS,
)
from amc_pymc.engine.stages import N_KEPT, N_SHARED, ROWS, SHARED, of_parameters

__all__: list[str] = []

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def of_line(program, stage, z, zu, zv, zw):
    """Return the values that depend only on parameters and directions."""
    out = np.empty(max(1, program[stage + N_SHARED]))
    call(program[stage + SHARED], z, zu, zv, zw, out)
    return out


@_compiled
def extended(eta, program, table):
    """Return z, the parameters followed by the coefficients."""
    if program[N_COEFFICIENTS] == 0:
        return eta
    size = program[N_PARAMETERS]
    z = np.empty(size + program[N_COEFFICIENTS])
    for a in range(size):
        z[a] = eta[a]
    for f in range(program[N_FAMILIES]):
        family = program[FAMILIES_AT] + f * FAMILY_WIDTH
        first, n = program[family + FAMILY_FIRST], program[family + FAMILY_SIZE]
        stage = family + FAMILY_VALUE
        shared = of_parameters(program, stage, eta)
        kept = np.empty((program[stage + N_KEPT], n))
        rows = table[0, first:]
        call(program[stage + ROWS], eta, shared, rows, table.shape[1], n, kept, n)
        for j in range(n):
            z[size + first + j] = kept[0, j]
    return z


@_compiled
def extended_line(at, du, dv, program, table):
    """Extend a point and two directions; return also the direction of first derivatives."""
    if program[N_COEFFICIENTS] == 0:
        return at, du, dv, du
    size = program[N_PARAMETERS]
    total = size + program[N_COEFFICIENTS]
    z, zu, zv, zw = np.empty(total), np.empty(total), np.empty(total), np.empty(total)
    for a in range(size):
        z[a], zu[a], zv[a], zw[a] = at[a], du[a], dv[a], du[a]
    for f in range(program[N_FAMILIES]):
        family = program[FAMILIES_AT] + f * FAMILY_WIDTH
        first, n = program[family + FAMILY_FIRST], program[family + FAMILY_SIZE]
        stage = family + FAMILY_JET
        shared = of_line(program, stage, at, du, dv, du)
        kept = np.empty((program[stage + N_KEPT], n))
        rows = table[0, first:]
        call(
            program[stage + ROWS], at, du, dv, du, shared, rows, table.shape[1], n, kept, n
        )  # fmt: skip
        for j in range(n):
            a = size + first + j
            z[a], zu[a], zv[a], zw[a] = kept[0, j], kept[1, j], kept[2, j], kept[3, j]
    return z, zu, zv, zw


@_compiled
def _derivatives(eta, program, table):
    """Return positions of the entries of eta that coefficients read, and derivatives by these."""
    n_leaves, number = program[COEFFICIENT_LEAVES], table.shape[1]
    at = np.empty((n_leaves, number), np.int64)
    curves = np.empty((program[DERIVATIVE_ROWS], number))
    for f in range(program[N_FAMILIES]):
        family = program[FAMILIES_AT] + f * FAMILY_WIDTH
        first, n = program[family + FAMILY_FIRST], program[family + FAMILY_SIZE]
        stage = family + FAMILY_DERIVATIVES
        shared = of_parameters(program, stage, eta)
        rows, out, places = table[0, first:], curves[0, first:], at[0, first:]
        call(
            program[stage + ROWS], eta, shared, rows, number, n, out, number, places
        )  # fmt: skip
    return at, curves


@_compiled
def gradient_by_parameters(eta, slopes, program, table):
    """Convert first derivatives by z to those by eta."""
    if program[N_COEFFICIENTS] == 0:
        return slopes
    at, curves = _derivatives(eta, program, table)
    return pull_gradient(slopes, at, curves, program[N_PARAMETERS])


@_compiled
def hessian_by_parameters(eta, slopes, hessian, program, table):
    """Convert second derivatives by z to those by eta."""
    if program[N_COEFFICIENTS] == 0:
        return hessian
    at, curves = _derivatives(eta, program, table)
    return pull_hessian(slopes, hessian, at, curves, program[N_PARAMETERS])


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
