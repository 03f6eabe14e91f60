"""Compiled doubles of UCB-CV with one control per reward; tests compare their decisions with the package's."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from benchmarks.papers.bandit_kernels import N_ROWS, PENDING, TOLD

#: Table rows after those of all policies: estimated mean, its variance, degrees of freedom.
EST_MEAN, EST_VARIANCE, EST_DF = range(N_ROWS, N_ROWS + 3)
#: Degrees of freedom from which the error of Hill's formula is within 5e-7; below, it is corrected.
_ENOUGH_DF = 20.0


@njit(cache=True)
def _normal_quantile(p: float) -> float:
    """Return the quantile with upper tail p < 0.5, by Abramowitz & Stegun 26.2.23 and one Halley step."""
    t = math.sqrt(-2.0 * math.log(p))
    x = t - ((0.010328 * t + 0.802853) * t + 2.515517) / (
        ((0.001308 * t + 0.189269) * t + 1.432788) * t + 1.0
    )
    tail = 0.5 * math.erfc(x / math.sqrt(2.0))
    step = (tail - p) * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
    return x + step / (1.0 - 0.5 * x * step)


@njit(cache=True)
def _hill(p: float, df: float) -> float:
    """Return the quantile with upper tail p < 0.5, within 3e-6 for df >= 3."""
    a = 1.0 / (df - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * df
    y = (2.0 * d * p) ** (2.0 / df)
    if y > 0.05 + a:
        x = -_normal_quantile(p)
        y = x * x
        if df < 5.0:
            c += 0.3 * (df - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        far = 1.0 / (((df + 6.0) / (df * y) - 0.089 * d - 0.822) * (df + 2.0) * 3.0)
        y = ((far + 0.5 / (df + 4.0)) * y - 1.0) * (df + 1.0) / (df + 2.0) + 1.0 / y
    return math.sqrt(df * y)


@njit(cache=True)
def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, 200):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d = 1.0 / max(1.0 + even * d, tiny)
        c = max(1.0 + even / c, tiny)
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / max(1.0 + odd * d, tiny)
        c = max(1.0 + odd / c, tiny)
        h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return h


@njit(cache=True)
def _corrected(t: float, p: float, df: float) -> float:
    """Refine a quantile t by Newton's method, in log t and log p in the tail, in p in the middle."""
    a = 0.5 * df
    scale = math.exp(math.lgamma(a + 0.5) - math.lgamma(a)) / math.sqrt(math.pi)
    for _ in range(50):
        x, rest = df / (df + t * t), t * t / (df + t * t)
        # x^a rest^(1/2) / B(a, 1/2) = t times the density
        front = scale * x**a * math.sqrt(rest)
        if x < (a + 1.0) / (a + 2.5):
            tail = 0.5 * front / a * _beta_fraction(x, a, 0.5)
            step = math.log(tail / p) * tail / front
            t *= math.exp(step)
        else:
            middle = front * _beta_fraction(rest, 0.5, a)
            step = (0.5 - p - middle) / front
            t *= 1.0 + step
        if abs(step) < 1e-5:
            break
    return t


@njit(cache=True)
def student_quantile(upper_tail_probability: float, df: float) -> float:
    """Return the quantile for an upper tail probability; Hill (1970), doi:10.1145/355598.355600."""
    p = upper_tail_probability
    if not 0.0 < p < 1.0 or not df >= 1.0:
        return math.nan
    if p == 0.5:
        return 0.0
    sign = 1.0
    if p > 0.5:
        p, sign = 1.0 - p, -1.0
    if df == 1.0:
        return sign / math.tan(math.pi * p)
    if df == 2.0:
        return sign * (1.0 - 2.0 * p) / math.sqrt(2.0 * p * (1.0 - p))
    if df > 1e10:
        return sign * _normal_quantile(p)
    t = _hill(p, df)
    if df < _ENOUGH_DF:
        t = _corrected(t, p, df)
    return sign * t


@njit(cache=True)
def regression_update(moments, reward, deviation):
    """Add an observation to moments (6,): count, means of reward and control, sums of products rr, rc, cc."""
    moments[0] += 1.0
    d, e = reward - moments[1], deviation - moments[2]
    moments[1] += d / moments[0]
    moments[2] += e / moments[0]
    moments[3] += d * (reward - moments[1])
    moments[4] += d * (deviation - moments[2])
    moments[5] += e * (deviation - moments[2])


@njit(cache=True)
def regression_estimate(moments):
    """Mean, variance and degrees of freedom by least squares."""
    s, off, products = moments[0], moments[2], moments[5]
    if products <= 0.0:
        return moments[1], np.inf if s < 2.0 else moments[3] / (s - 1.0) / s, s - 1.0
    mean = moments[1] - moments[4] / products * off
    if s < 3.0:
        return mean, np.inf, s - 2.0
    left = max(moments[3] - moments[4] ** 2 / products, 0.0)
    return mean, left / (s - 2.0) * (1.0 / s + off * off / products), s - 2.0


@njit(cache=True)
def leave_one_out(rewards, deviations, pseudo):
    """Mean, variance and degrees of freedom by the jackknife (`pseudo`) or splitting."""
    s, mean, off = rewards.size, rewards.mean(), deviations.mean()
    cross, products = 0.0, 0.0
    for r in range(s):
        cross += (deviations[r] - off) * (rewards[r] - mean)
        products += (deviations[r] - off) ** 2
    if products <= 0.0 or s < 3:
        return mean, np.inf, s - 1.0
    beta = cross / products
    estimate = mean - beta * off
    total, squares = 0.0, 0.0
    for r in range(s):
        d = deviations[r] - off
        leverage = d * d / products
        if leverage > 1.0 - 1.0 / s - 1e-10:
            return estimate, np.inf, s - 1.0
        residual = (rewards[r] - mean - beta * d) / (1.0 - 1.0 / s - leverage)
        move = -off * d / products
        if pseudo:
            value = estimate + (s - 1.0) * (1.0 / s + move) * residual
        else:
            value = rewards[r] - beta * deviations[r] + residual * (leverage - move)
        last = value - total
        total += last / (r + 1.0)
        squares += last * (value - total)
    return total, squares / (s * (s - 1.0)), s - 1.0


@njit(cache=True)
def batch_update(batches, progress, reward, deviation):
    """Add an observation to running batches (2 b, 2), merged in pairs when all are full; whether one became full.

    progress = number of full batches, their size, observations in the open batch, and their two sums.
    """
    progress[2] += 1.0
    progress[3] += reward
    progress[4] += deviation
    if progress[2] < progress[1]:
        return False
    full = int(progress[0])
    batches[full] = progress[3:5] / progress[1]
    progress[0], progress[2] = full + 1.0, 0.0
    progress[3:5] = 0.0
    if full + 1 == batches.shape[0]:
        half = (full + 1) // 2
        for i in range(half):
            batches[i] = 0.5 * (batches[2 * i] + batches[2 * i + 1])
        progress[0], progress[1] = half, 2.0 * progress[1]
    return True


@njit(cache=True)
def batch_estimate(batches, progress):
    """Mean, variance and degrees of freedom of a regression on the means of full batches."""
    moments = np.zeros(6)
    for i in range(int(progress[0])):
        regression_update(moments, batches[i, 0], batches[i, 1])
    return regression_estimate(moments)


@njit(cache=True)
def choose(table, t, alpha):
    """The arm with the largest bound; of arms with too few observed rewards the one with the fewest pulls."""
    best, largest, fewest, tail = -1, -np.inf, np.inf, float(t) ** -alpha
    for k in range(table.shape[1]):
        told, pending, variance = table[TOLD, k], table[PENDING, k], table[EST_VARIANCE, k]
        if told + pending < 3.0 or (variance == np.inf and pending == 0.0):
            value = np.inf
        elif variance == np.inf:
            value = -np.inf
        else:
            sd = math.sqrt(variance * told / (told + pending))
            value = table[EST_MEAN, k] + student_quantile(tail, table[EST_DF, k]) * sd
        tie = value == largest and told + pending < fewest
        if best < 0 or value > largest or tie:
            best, largest, fewest = k, value, told + pending
    return best
