r"""Prior times the second-order expansion of rows, and its marginal over hyperparameters.

Rows read coefficients z, which are coordinates of x or functions of them. With the sum Q(z) of the rows' second-order
expansions around a centre c,

    log pi~(x) = log prior(x) + Q(z(x)),    Q(z) = G'(z - c) - (z - c)'H(z - c) / 2.

The coordinates of x are split into v, in which the log prior is quadratic and z affine if the others, phi, are given.
Given phi, v is Gaussian with precision K(phi) = P + A'HA, P the prior's precision and A = dz/dv, and

    log pi~(phi) = f(v*, phi) - log det K(phi) / 2

up to a constant, where f = log pi~ and v* maximises it. With S = K^-1, u = G - H (z - c) at v*, and derivatives of the
prior l and of z denoted by indices,

    d log pi~ / d phi_c = l_c + u'z_c + (sum_ab S_ab l_abc) / 2 - sum_kj (H A S)_kj z_kjc.

Rue, Martino & Chopin (2009). doi:10.1111/j.1467-9868.2008.00700.x.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.jit import njit
from amc_pymc.tall.terms import N_FAMILIES, Terms, derivatives_of, family_at, with_values

__all__ = [
    "Conditional",
    "Surface",
    "backward_solve",
    "conditional",
    "expansion_at",
    "gradient",
    "prior_at",
]


class Surface(NamedTuple):
    """Arrays of log pi~.

    Attributes
    ----------
    inner, outer : (D,) int64 arrays
        Position of each coordinate of x in v and in phi, -1 if it is not there.
    prior : Terms
        Terms of the prior, which read (x, f(x), A x).
    combinations : (L, D) array
        A.
    coefficients : Terms
        Coefficients that are functions of (x, f(x)).
    reads : (R,) int64 array
        Coordinates of x that rows read; these and the functions are z (C,).
    centre, slope : (C,) arrays
    curvature : (C, C) array
        c, G and H.
    highest : (1,) array
        Maximum of Q.
    """

    inner: np.ndarray
    outer: np.ndarray
    prior: Terms
    combinations: np.ndarray
    coefficients: Terms
    reads: np.ndarray
    centre: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    highest: np.ndarray


class Conditional(NamedTuple):
    """Gaussian of v given phi: log pi~(phi), x with v* in it, Cholesky factor of K, and whether all is finite."""

    value: float
    x: np.ndarray
    factor: np.ndarray
    possible: bool


@njit(cache=True, error_model="numpy")
def coefficients_at(x, surface):
    """Return z (C,), and the positions (in x) and values (C, L) of its derivatives by coordinates of v."""
    reads, program = surface.reads, surface.coefficients.program
    extended = with_values(x, surface.coefficients.functions, surface.coefficients.functions_table)
    size, widest = reads.size, 1
    for f in range(program[N_FAMILIES]):
        _, n, n_leaves = family_at(program, f)
        size += n
        widest = max(widest, n_leaves)
    z, at, slopes = np.empty(size), np.full((size, widest), -1), np.zeros((size, widest))
    inner = surface.inner
    for c in range(reads.size):
        z[c] = x[reads[c]]
        if inner[reads[c]] >= 0:
            at[c, 0] = reads[c]
            slopes[c, 0] = 1.0
    c = reads.size
    for f in range(program[N_FAMILIES]):
        _, n, n_leaves = family_at(program, f)
        out, places = derivatives_of(extended, program, surface.coefficients.table, f)
        for k in range(n):
            z[c] = out[0, k]
            used = 0
            for a in range(n_leaves):
                place = places[a, k]
                if place < x.size and inner[place] >= 0:
                    at[c, used] = place
                    slopes[c, used] = out[1 + a, k]
                    used += 1
            c += 1
    return z, at, slopes


@njit(cache=True, error_model="numpy")
def _add_chained(x, terms, slopes, out):
    """Add to the gradient ``out`` (D,) what comes from slopes (M,) by functions of x."""
    program = terms.functions
    for f in range(program[N_FAMILIES]):
        values, at = derivatives_of(x, program, terms.functions_table, f)
        for a in range(at.shape[0]):
            out[at[a, 0]] += slopes[f] * values[1 + a, 0]


@njit(cache=True, error_model="numpy")
def _with_combinations(x, surface):
    """Return (x, f, A x), and the positions of its coordinates in (v, A x), -1 for hyperparameters."""
    a, inner, terms = surface.combinations, surface.inner, surface.prior
    known = with_values(x, terms.functions, terms.functions_table)
    size, n_inner = known.size, inner.max() + 1
    out, numbers = np.empty(size + a.shape[0]), np.full(size + a.shape[0], -1)
    for d in range(size):
        out[d] = known[d]
        if d < inner.size:
            numbers[d] = inner[d]
    for k in range(a.shape[0]):
        out[size + k] = np.dot(a[k], x)
        numbers[size + k] = n_inner + k
    return out, numbers


@njit(cache=True, error_model="numpy")
def _map_of_combinations(surface):
    """Return B (V + L, V) with (v, A x) = B v plus what does not depend on v."""
    a, inner = surface.combinations, surface.inner
    n_inner = inner.max() + 1
    out = np.zeros((n_inner + a.shape[0], n_inner))
    for j in range(n_inner):
        out[j, j] = 1.0
    for k in range(a.shape[0]):
        for d in range(inner.size):
            if inner[d] >= 0:
                out[n_inner + k, inner[d]] = a[k, d]
    return out


@njit(cache=True, error_model="numpy")
def prior_at(x: np.ndarray, surface: Surface, gradient: np.ndarray, precision: np.ndarray) -> float:
    """Return the log prior; add its gradient (D,) and, minus, its second derivatives by v."""
    program, n_combined = surface.prior.program, surface.combinations.shape[0]
    extended, numbers = _with_combinations(x, surface)
    slopes = np.zeros(extended.size)
    curvature = precision
    if n_combined:
        curvature = np.zeros((precision.shape[0] + n_combined, precision.shape[0] + n_combined))
    total = 0.0
    for f in range(program[N_FAMILIES]):
        _, n, n_leaves = family_at(program, f)
        out, at = derivatives_of(extended, program, surface.prior.table, f)
        for k in range(n):
            total += out[0, k]
            t = 1 + n_leaves
            for a in range(n_leaves):
                slopes[at[a, k]] += out[1 + a, k]
                i = numbers[at[a, k]]
                for b in range(a + 1):
                    j = numbers[at[b, k]]
                    if i >= 0 and j >= 0:
                        curvature[i, j] -= out[t, k]
                        if a != b:
                            curvature[j, i] -= out[t, k]
                    t += 1
    for d in range(x.size):
        gradient[d] += slopes[d]
    _add_chained(x, surface.prior, slopes[x.size :], gradient)
    if n_combined:
        gradient += surface.combinations.T @ slopes[slopes.size - n_combined :]
        back = _map_of_combinations(surface)
        precision += back.T @ (curvature @ back)
    return total


@njit(cache=True, error_model="numpy")
def _forces(z, surface):
    """Return Q and its gradient (C,)."""
    moved = z - surface.centre
    pull = surface.curvature @ moved
    value = np.dot(surface.slope, moved) - 0.5 * np.dot(moved, pull)
    return value, surface.slope - pull


@njit(cache=True, error_model="numpy")
def expansion_at(x: np.ndarray, surface: Surface) -> float:
    """Return Q at x minus its maximum."""
    z, _, _ = coefficients_at(x, surface)
    return min(0.0, _forces(z, surface)[0] - surface.highest[0])


@njit(cache=True, error_model="numpy")
def conditional(x: np.ndarray, surface: Surface) -> Conditional:
    """Return the Gaussian of v given the hyperparameters in x (D,), at any v."""
    inner = surface.inner
    size = inner.max() + 1
    slope, precision = np.zeros(x.size), np.zeros((size, size))
    value = prior_at(x, surface, slope, precision)
    z, at, slopes = coefficients_at(x, surface)
    more, force = _forces(z, surface)
    value += more
    for c in range(z.size):
        for a in range(at.shape[1]):
            if at[c, a] < 0:
                break
            slope[at[c, a]] += slopes[c, a] * force[c]
            i = inner[at[c, a]]
            if i < 0:
                continue
            for d in range(z.size):
                h = surface.curvature[c, d] * slopes[c, a]
                if h == 0.0:
                    continue
                for b in range(at.shape[1]):
                    if at[d, b] < 0:
                        break
                    j = inner[at[d, b]]
                    if j >= 0:
                        precision[i, j] += h * slopes[d, b]
    out = x.copy()
    if not math.isfinite(value):
        return Conditional(-math.inf, out, precision, False)
    if not cholesky(precision):
        return Conditional(-math.inf, out, precision, False)
    for i in range(size):
        value -= math.log(precision[i, i])
    step = np.empty(size)
    for d in range(x.size):
        if inner[d] >= 0:
            step[inner[d]] = slope[d]
    forward_solve(precision, step)
    value += 0.5 * np.dot(step, step)
    backward_solve(precision, step)
    for d in range(x.size):
        if inner[d] >= 0:
            out[d] += step[inner[d]]
    return Conditional(value, out, precision, math.isfinite(value))


#: Size of a pivot, relative to its diagonal element, that rounding errors may have produced.
_ROUNDING = 1e-12
#: For sums that may be reordered to allow vectorisation.
_in_any_order = njit(cache=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})


@_in_any_order
def cholesky(a):
    """Overwrite the lower triangle of a matrix by its Cholesky factor; return whether it is definite.

    A pivot that is little more than a rounding error counts as zero.
    """
    for j in range(a.shape[0]):
        for k in range(j + 1):
            s = a[j, k]
            for m in range(k):
                s -= a[j, m] * a[k, m]
            if k < j:
                a[j, k] = s / a[k, k]
            elif s > _ROUNDING * a[j, j]:
                a[j, j] = math.sqrt(s)
            else:
                return False
    return True


@_in_any_order
def forward_solve(factor, b):
    """Overwrite b by L^-1 b."""
    for i in range(b.size):
        s = b[i]
        for k in range(i):
            s -= factor[i, k] * b[k]
        b[i] = s / factor[i, i]


@_in_any_order
def backward_solve(factor: np.ndarray, b: np.ndarray) -> None:
    """Overwrite b by L'^-1 b."""
    for i in range(b.size - 1, -1, -1):
        s = b[i] / factor[i, i]
        b[i] = s
        for k in range(i):
            b[k] -= factor[i, k] * s


@_in_any_order
def _inverse(factor):
    """Return (L L')^-1."""
    size = factor.shape[0]
    half = np.zeros((size, size))  # L^-1
    for i in range(size):
        for k in range(i):
            for j in range(k + 1):
                half[i, j] -= factor[i, k] * half[k, j]
        half[i, i] = 1.0
        for j in range(i + 1):
            half[i, j] /= factor[i, i]
    return half.T @ half


@njit(cache=True, error_model="numpy")
def gradient(found: Conditional, surface: Surface) -> np.ndarray:
    """Return the gradient of log pi~(phi) (F,) at a result of :func:`conditional`."""
    x, outer = found.x, surface.outer
    out = np.zeros(outer.max() + 1)
    covariance = _inverse(found.factor)
    program = surface.prior.program
    extended, numbers = _with_combinations(x, surface)
    combined = covariance
    if surface.combinations.shape[0]:
        back = _map_of_combinations(surface)
        combined = back @ (covariance @ back.T)
    by_extended = np.zeros(extended.size)
    for f in range(program[N_FAMILIES]):
        _, n, n_leaves = family_at(program, f)
        values, at = derivatives_of(extended, program, surface.prior.table, f)
        first_third = 1 + n_leaves + n_leaves * (n_leaves + 1) // 2
        for k in range(n):
            for a in range(n_leaves):
                by_extended[at[a, k]] += values[1 + a, k]
            t = first_third
            for a in range(n_leaves):
                for b in range(a + 1):
                    for c in range(b + 1):
                        places = (at[a, k], at[b, k], at[c, k])
                        _add_third(values[t, k], places, (a, b, c), combined, numbers, by_extended)
                        t += 1
    n_combined = surface.combinations.shape[0]
    by_x = by_extended[: x.size].copy()
    _add_chained(x, surface.prior, by_extended[x.size :], by_x)
    if n_combined:
        by_x += surface.combinations.T @ by_extended[extended.size - n_combined :]
    _add_by_coefficients(x, covariance, surface, by_x)
    for d in range(x.size):
        if outer[d] >= 0:
            out[outer[d]] = by_x[d]
    return out


@njit(cache=True, error_model="numpy")
def _add_by_coefficients(x, covariance, surface, by_x):
    """Add to the gradient (D,) u'z_c - sum_kj (H A S)_kj z_kjc of coefficients z."""
    z, at, slopes = coefficients_at(x, surface)
    inner, (_, force), n_read = surface.inner, _forces(z, surface), surface.reads.size
    for c in range(n_read):
        by_x[surface.reads[c]] += force[c]
    if z.size == n_read:
        return
    spread = np.zeros((z.size, covariance.shape[0]))
    for c in range(z.size):
        for a in range(at.shape[1]):
            if at[c, a] < 0:
                break
            spread[c] += slopes[c, a] * covariance[inner[at[c, a]]]
    spread = surface.curvature[n_read:] @ spread
    terms, c = surface.coefficients, 0
    extended = with_values(x, terms.functions, terms.functions_table)
    by_extended = np.zeros(extended.size)
    for f in range(terms.program[N_FAMILIES]):
        _, n, n_leaves = family_at(terms.program, f)
        values, places = derivatives_of(extended, terms.program, terms.table, f)
        for k in range(n):
            t = 1 + n_leaves
            for a in range(n_leaves):
                i = places[a, k]
                by_extended[i] += force[n_read + c] * values[1 + a, k]
                for b in range(a + 1):
                    j = places[b, k]
                    if i < x.size and inner[i] >= 0:
                        by_extended[j] -= spread[c, inner[i]] * values[t, k]
                    if a != b and j < x.size and inner[j] >= 0:
                        by_extended[i] -= spread[c, inner[j]] * values[t, k]
                    t += 1
            c += 1
    for d in range(x.size):
        by_x[d] += by_extended[d]
    _add_chained(x, terms, by_extended[x.size :], by_x)


@njit(cache=True, error_model="numpy")
def _add_third(third, places, leaves, covariance, numbers, out):
    """Add half of S_ab l_abc to the derivative by each coordinate c among three.

    ``leaves`` a >= b >= c number the leaves: those that are equal stand for fewer orders.
    """
    if third == 0.0:
        return
    i, j, k = places
    m, n, o = numbers[i], numbers[j], numbers[k]
    a, b, c = leaves
    if a == c:
        if m >= 0:
            out[i] += 0.5 * third * covariance[m, m]
        return
    if a == b:
        if m >= 0:
            out[k] += 0.5 * third * covariance[m, m]
            if o >= 0:
                out[i] += third * covariance[m, o]
        return
    if b == c:
        if n >= 0:
            out[i] += 0.5 * third * covariance[n, n]
            if m >= 0:
                out[j] += third * covariance[m, n]
        return
    if n >= 0 and o >= 0:
        out[i] += third * covariance[n, o]
    if m >= 0 and o >= 0:
        out[j] += third * covariance[m, o]
    if m >= 0 and n >= 0:
        out[k] += third * covariance[m, n]
