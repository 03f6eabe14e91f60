"""Compiled Newton search for the mode of a group's local effects."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call
from amc_pymc.tall.groups.layout import PRIOR_NEWTON, ROWS_NEWTON
from amc_pymc.tall.groups.parts import factor_of, padded

__all__ = ["climb"]

#: Maximum number of Newton steps, and squared length of a step, in standard deviations, that ends them.
_MOST_STEPS = 30
_CLOSE = 1e-2
#: Maximum length of the first step, in standard deviations. It doubles with each further step in the
#: same direction, because the mode is many standard deviations away if the effects' variance is small.
_LONGEST = 2.0

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def _newton_sums(program, eta, shared, kept, size, group, u, out):
    """Write gradient and lower Hessian triangle of the log integrand in the local effects."""
    call(program[PRIOR_NEWTON], eta, shared, group, u, out)
    call(
        program[ROWS_NEWTON], eta, shared, kept, kept.shape[1], size, padded(size), u, out
    )  # fmt: skip


@_compiled
def _climb_line(program, eta, shared, kept, size, group, u, factor):
    """Move u to the mode as :func:`climb` does, for one local effect.

    Once the mode is bracketed, steps that are too long, leave the bracket or start from a point where
    the density overflows are replaced by bisection.
    """
    sums = np.empty(2)
    longest, before = _LONGEST, 0.0
    low, high = -math.inf, math.inf
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        curvature = -sums[1]
        if not curvature > 0.0:
            curvature = max(1.0, abs(curvature))
        sd = 1.0 / math.sqrt(curvature)
        w = sd * sums[0]
        overflow = not np.isfinite(w)
        if overflow and before == 0.0:
            return math.nan
        if before > 0.0 if overflow else w < 0.0:
            high = u[0]
        else:
            low = u[0]
        if not overflow and w * before < 0.0:
            longest = _LONGEST
        new = u[0] + sd * min(longest, max(-longest, w))
        between = high - low < math.inf
        if overflow or (between and (abs(w) > longest or not low <= new <= high)):
            if not between:
                return math.nan
            u[0] = 0.5 * (low + high)
            continue
        u[0] = new
        longest, before = 2.0 * longest if abs(w) > longest else _LONGEST, w
        factor[0, 0] = sd
        if w * w < _CLOSE:
            break
    return math.log(factor[0, 0])


@_compiled
def climb(program, eta, shared, kept, size, group, u, factor):
    """Move u (q,) to the integrand's mode; write ``factor`` C and return log |C|.

    C C' is the inverse curvature, whose diagonal is increased if it is not positive definite.
    """
    q = u.size
    if q == 1:
        return _climb_line(program, eta, shared, kept, size, group, u, factor)
    sums = np.empty(q + q * (q + 1) // 2)
    curvature = np.empty((q, q))
    w = np.empty(q)
    step, before = np.zeros(q), np.zeros(q)
    longest, shorter = _LONGEST, 0.0
    log_det = math.nan
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        if not np.isfinite(sums).all():
            if shorter == 0.0:
                return math.nan
            for a in range(q):  # a quarter of the last step
                u[a] -= 0.75 * shorter * step[a]
            shorter *= 0.25
            continue
        place = q
        for a in range(q):
            for b in range(a + 1):
                curvature[a, b] = -sums[place]
                place += 1
        log_det = factor_of(curvature, factor)
        lift = 0.0
        while not np.isfinite(log_det):
            lift = max(1.0, 4.0 * lift)
            if lift > 1e12:
                return math.nan
            for a in range(q):
                curvature[a, a] += lift
            log_det = factor_of(curvature, factor)
        length = 0.0
        for a in range(q):
            w[a] = 0.0
            for b in range(q):
                w[a] += factor[b, a] * sums[b]
            length += w[a] * w[a]
        onwards = 0.0
        for a in range(q):
            step[a] = 0.0
            for b in range(q):
                step[a] += factor[a, b] * w[b]
            onwards += step[a] * before[a]
        if onwards < 0.0:
            longest = _LONGEST
        shorter = min(1.0, longest / math.sqrt(length)) if length > 0.0 else 1.0
        for a in range(q):
            u[a] += shorter * step[a]
            before[a] = step[a]
        longest = 2.0 * longest if shorter < 1.0 else _LONGEST
        if length < _CLOSE:
            break
    return log_det
