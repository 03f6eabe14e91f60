"""Compiled doubles of the package's policies, for many long runs; tests compare their decisions.

The state of a policy is a table with a column per arm. A formula of count, mean and variance is compiled as it stands in the
package, where it is an array formula.
"""

from __future__ import annotations

import functools
import math

from collections.abc import Callable

import numpy as np

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import ucb1_bound, ucbv_bound
from amc_pymc.engine.jit import njit

#: Rows of the table: number of observed rewards, number of pending pulls, mean and sum of squared deviations of rewards,
#: and the range of rewards (low end, width).
TOLD, PENDING, MEAN, SQUARES, LOW, WIDTH = range(6)
N_ROWS = 6


def table_of(policy: Policy, extra_rows: int = 0) -> np.ndarray:
    """Return the table of a fresh policy with a known range of rewards."""
    table = np.zeros((N_ROWS + extra_rows, policy.n_arms))
    table[LOW], table[WIDTH] = policy._seen.low, policy._seen.width
    return table


@njit(cache=True)
def record(table: np.ndarray, arm: int, reward: float) -> None:
    """Record a reward: update count, mean and sum of squared deviations."""
    table[PENDING, arm] -= 1.0
    table[TOLD, arm] += 1.0
    d = reward - table[MEAN, arm]
    table[MEAN, arm] += d / table[TOLD, arm]
    table[SQUARES, arm] += d * (reward - table[MEAN, arm])


@njit(cache=True, error_model="numpy")
def unit_moments(table: np.ndarray, k: int) -> tuple[float, float]:
    """Return mean and variance (divisor n) of the rewards of an arm on [0, 1]; 1 and 0.25 without any.

    So they are if the range of the arm is a point.
    """
    told, width = table[TOLD, k], table[WIDTH, k]
    if told == 0.0 or width == 0.0:
        return 1.0, 0.25
    return (table[MEAN, k] - table[LOW, k]) / width, table[SQUARES, k] / told / width**2


# --- upper confidence bounds ---------------------------------------------------------------------


_ucb1, _ucbv = njit(cache=True)(ucb1_bound), njit(cache=True)(ucbv_bound)


@njit(cache=True)
def ucb1_index(n, mean, variance, t, constants):
    """The bound of UCB1, constants = (c,)."""
    return _ucb1(n, mean, t, constants[0])


@njit(cache=True)
def ucbv_index(n, mean, variance, t, constants):
    """The bound of UCB-V, constants = (zeta, c)."""
    return _ucbv(n, mean, variance, t, constants[0], constants[1])


#: Factor that covers rounding errors of a divergence.
_SLACK = 1.0 + 1e-6


@njit(cache=True)
def kl_upper(p: float, d: float) -> float:
    """Return the largest q with KL(Bernoulli(p), Bernoulli(q)) <= d, for p in [0, 1] and d >= 0.

    As a function of u = -log(1 - q), the divergence is h(u) - h(-log(1 - p)) with
    h(u) = (1 - p) u - p log(1 - exp(-u)), which is convex and nearly linear for large u. Newton's method
    therefore converges from any point to the right of p, and within a few steps from the first terms of
    the series of the root in sqrt(d).
    """
    if p >= 1.0:
        return 1.0
    if d <= 0.0:
        return max(p, 0.0)
    if p <= 0.0:
        return -math.expm1(-d)
    level = d - p * math.log(p) - (1.0 - p) * math.log(1.0 - p)
    top = level / (1.0 - p)  # upper bound of the root
    u = top
    series = math.sqrt(2.0 * p * (1.0 - p) * d) + 2.0 / 3.0 * (1.0 - 2.0 * p) * d
    if 0.0 < series < 1.0 - p:
        u = min(u, -math.log(1.0 - p - series))
    e = math.exp(-u)
    for _ in range(60):
        rest = 1.0 - e
        slope = (1.0 - p) - p * e / rest
        if not slope > 0.0:
            break
        step = ((1.0 - p) * u - p * math.log(rest) - level) / slope
        before, u = e, min(u - step, top)
        e = math.exp(-u)
        if abs(step) * max(before, e) < 1e-6 * (1.0 - e - p):
            break  # quadratic convergence: the next step is negligible
    return min(max(p, 1.0 - e), 1.0)


@njit(cache=True)
def klucb_index(n: float, mean: float, variance: float, t: float, constants: np.ndarray) -> float:
    """Return the largest q with n KL(mean, q) <= log t + c log log t, t at least 3; constants = (c,)."""
    if mean >= 1.0:
        return 1.0 - 1e-9 * math.log(n)  # ties go to the arm with fewer pulls
    log_t = math.log(max(t, 3.0))
    return kl_upper(mean, (log_t + constants[0] * math.log(log_t)) / n)


@njit(cache=True)
def divergence(p: float, q: float) -> float:
    """Return KL(Bernoulli(p), Bernoulli(q)), q strictly between 0 and 1."""
    out = 0.0
    if p > 0.0:
        out += p * math.log(p / q)
    if p < 1.0:
        out += (1.0 - p) * math.log((1.0 - p) / (1.0 - q))
    return out


@njit(cache=True)
def klucb_beaten(
    n: float, mean: float, variance: float, t: float, constants: np.ndarray, x: float
) -> bool:
    """Whether the index is certainly below x, which takes two logarithms in place of a search for a root."""
    if not mean < x <= 1.0:
        return x > 1.0
    if x == 1.0:
        return False
    log_t = math.log(max(t, 3.0))
    return n * divergence(mean, x) > (log_t + constants[0] * math.log(log_t)) * _SLACK


@njit(cache=True)
def never(n, mean, variance, t, constants, x):
    """No bound is known to be beaten without computing it."""
    return False


@functools.cache
def chooser(index: Callable, beaten: Callable = never) -> Callable:
    """Compile ``choose(table, t, constants, rng) -> arm``: the first arm with the largest index.

    Parameters
    ----------
    index : compiled function
        ``index(n, mean, variance, t, constants) -> float`` for one arm, on [0, 1].
    beaten : compiled function, optional
        ``beaten(n, mean, variance, t, constants, x) -> bool``: whether the index is certainly below x.
    """

    def choose(table, t, constants, rng):
        best, largest = 0, -np.inf
        for k in range(table.shape[1]):
            n, low, width = table[TOLD, k] + table[PENDING, k], table[LOW, k], table[WIDTH, k]
            if n == 0.0:
                return k
            mean, variance = unit_moments(table, k)
            if width > 0.0 and beaten(n, mean, variance, t, constants, (largest - low) / width):
                continue
            value = low + width * index(n, mean, variance, t, constants)
            if value > largest:
                best, largest = k, value
        return best

    # Symbols of cached machine code consist of names, so closures need different ones.
    choose.__qualname__ += f".{index.py_func.__module__}.{index.py_func.__qualname__}"
    return njit(cache=True)(choose)


# --- Thompson sampling ---------------------------------------------------------------------------

SUCCESSES, FAILURES = N_ROWS, N_ROWS + 1


# One uniform number from the generator seeds a SplitMix64 stream for the variates of a decision: Steele, Lea & Flood (2014),
# doi:10.1145/2660193.2660195; gamma variates by Marsaglia & Tsang (2000), doi:10.1145/358407.358414.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S12 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(12)


@njit(cache=True)
def stream(u: float) -> np.uint64:
    """Return the state of a stream seeded by a uniform number in [0, 1)."""
    return np.uint64(u * 2.0**53)


@njit(cache=True)
def uniform_variate(state: np.uint64) -> tuple[np.uint64, float]:
    """Return the next state and a uniform number strictly between 0 and 1."""
    state = state + _GAMMA
    z = (state ^ (state >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    z = z ^ (z >> _S31)
    return state, (np.float64(z >> _S12) + 0.5) * 2.0**-52


@njit(cache=True)
def normal_variate(state: np.uint64) -> tuple[np.uint64, float]:
    """Return the next state and a standard normal variate, by the polar method."""
    while True:
        state, u = uniform_variate(state)
        state, v = uniform_variate(state)
        u, v = 2.0 * u - 1.0, 2.0 * v - 1.0
        r = u * u + v * v
        if 0.0 < r < 1.0:
            return state, u * math.sqrt(-2.0 * math.log(r) / r)


@njit(cache=True)
def gamma_variate(state: np.uint64, a: float) -> tuple[np.uint64, float]:
    """Return the next state and a gamma variate of shape a >= 1 and scale 1."""
    d = a - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        state, x = normal_variate(state)
        state, u = uniform_variate(state)
        v = 1.0 + c * x
        if v > 0.0:
            v = v * v * v
            if u < 1.0 - 0.0331 * x**4 or math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
                return state, d * v


@njit(cache=True)
def beta_variate(state: np.uint64, a: float, b: float) -> tuple[np.uint64, float]:
    """Return the next state and a Beta(a, b) variate, for positive a and b."""
    if a >= 1.0 and b >= 1.0:
        state, x = gamma_variate(state, a)
        state, y = gamma_variate(state, b)
        return state, x / (x + y)
    # A gamma variate of shape a is one of shape a + 1 times U^(1/a); logarithms prevent underflow.
    state, x = gamma_variate(state, a + 1.0)
    state, u = uniform_variate(state)
    state, y = gamma_variate(state, b + 1.0)
    state, v = uniform_variate(state)
    log_odds = math.log(x / y) + math.log(u) / a - math.log(v) / b
    if log_odds < 0.0:
        odds = math.exp(log_odds)
        return state, odds / (1.0 + odds)
    return state, 1.0 / (1.0 + math.exp(-log_odds))


@njit(cache=True)
def thompson_choose(table, t, constants, rng):
    """Draw from all posteriors, constants = (alpha, beta), each (K,)."""
    best, largest, state = 0, -np.inf, stream(rng.random())
    for k in range(table.shape[1]):
        a, b = table[SUCCESSES, k] + constants[0][k], table[FAILURES, k] + constants[1][k]
        state, theta = beta_variate(state, a, b)
        value = table[LOW, k] + table[WIDTH, k] * theta
        if value > largest:
            best, largest = k, value
    return best


@njit(cache=True)
def thompson_learn(table, arm, reward, constants, rng):
    """Record a reward as a success or failure by a coin."""
    record(table, arm, reward)
    width = table[WIDTH, arm]
    x = min(max((reward - table[LOW, arm]) / width, 0.0), 1.0) if width > 0.0 else 1.0
    success = 1.0 if rng.random() < x else 0.0
    table[SUCCESSES, arm] += success
    table[FAILURES, arm] += 1.0 - success


# --- lower confidence bound of the loss ----------------------------------------------------------


#: Table rows after those of all policies. MEAN and SQUARES are moments of the values, or of the finite log
#: values; FINITE is their number. COST is the sum of costs. For log values, TOP is the largest, and WMEAN
#: and WSQUARES are mean and sum of squared deviations of the values over exp(TOP), including zeros. LOSS and SPREAD enter the index.
FINITE, COST, TOP, WMEAN, WSQUARES, LOSS, SPREAD = range(N_ROWS, N_ROWS + 7)
#: Number of observed pulls from which the pending pulls of an arm are not limited.
WELL_KNOWN = 30
#: Relative rounding error of a value.
ROUNDING = 2.0**-52


@njit(cache=True)
def add_log(table: np.ndarray, k: int, x: float) -> None:
    """Add the logarithm of a value."""
    table[PENDING, k] -= 1.0
    table[TOLD, k] += 1.0
    w = 0.0
    if x > -np.inf:
        table[FINITE, k] += 1.0
        d = x - table[MEAN, k]
        table[MEAN, k] += d / table[FINITE, k]
        table[SQUARES, k] += d * (x - table[MEAN, k])
        if x > table[TOP, k]:
            shrink = math.exp(table[TOP, k] - x)
            table[WMEAN, k] *= shrink
            table[WSQUARES, k] *= shrink**2
            table[TOP, k] = x
        w = math.exp(x - table[TOP, k])
    d = w - table[WMEAN, k]
    table[WMEAN, k] += d / table[TOLD, k]
    table[WSQUARES, k] += d * (w - table[WMEAN, k])


@njit(cache=True)
def variance_of(table: np.ndarray, k: int, prior_variance: float) -> float:
    """Return the variance of values or finite log values; the prior counts as one more pull.

    The result is at least the squared rounding error of the mean.
    """
    n = table[FINITE, k]
    weight = 1.0 if prior_variance > 0.0 else 0.0
    least = (ROUNDING * max(abs(table[MEAN, k]), 1.0)) ** 2
    if n + weight < 2.0:
        return least
    return max((table[SQUARES, k] + prior_variance) / (n - 1.0 + weight), least)


@njit(cache=True)
def log_summary(table: np.ndarray, k: int, prior_variance: float) -> tuple[float, float]:
    """Return the log relative variance of an arm from log values, and sqrt(n - 1) times its standard error."""
    told, finite = table[TOLD, k], table[FINITE, k]
    # If all values are zero, assume one more value that is not.
    present = finite / told if finite > 0.0 else 1.0 / (told + 1.0)
    variance = variance_of(table, k, prior_variance)
    # relvar + 1 = exp(variance) / present; `share` = relvar / (relvar + 1).
    share = (1.0 - present) - present * math.expm1(-variance)
    log_relvar = variance - math.log(present) + math.log(share)
    squared = 2.0 * (variance / share) ** 2 * (told - 1.0) / max(finite - 1.0, 1.0)
    squared += (1.0 - present) / present / share**2
    if table[WSQUARES, k] > 0.0:
        empirical = math.log(table[WSQUARES, k] / (told - 1.0)) - 2.0 * math.log(table[WMEAN, k])
        log_relvar = max(log_relvar, empirical)
    return log_relvar, math.sqrt(squared)


@njit(cache=True)
def lcb_learn(table, k, x, cost, prior_variance):
    """Add the logarithm of a value and its cost."""
    add_log(table, k, x)
    table[COST, k] += cost
    if table[TOLD, k] >= 2.0:
        loss, table[SPREAD, k] = log_summary(table, k, prior_variance)
        table[LOSS, k] = loss + math.log(max(table[COST, k] / table[TOLD, k], 1e-300))


@njit(cache=True)
def lcb_index(n: float, loss: float, spread: float, z: float) -> float:
    """Return minus the lower confidence bound of a loss with standard error spread / sqrt(n - 1)."""
    return z * spread / math.sqrt(n - 1.0) - loss


@njit(cache=True)
def lcb_choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
    """Choose the next arm: the one with fewest pulls if below `min_pulls`, else the best below its pending limit."""
    z, min_pulls, growth = constants[0], constants[1], constants[2]
    rarest, least = 0, np.inf
    best, largest = -1, -np.inf
    crowded, crowded_largest = -1, -np.inf
    for k in range(table.shape[1]):
        told, pending = table[TOLD, k], table[PENDING, k]
        if told + pending < least:
            rarest, least = k, told + pending
        if told < 2.0:
            continue
        value = lcb_index(told + pending, table[LOSS, k], table[SPREAD, k], z)
        if pending < growth * told or told >= WELL_KNOWN:
            if best < 0 or value > largest:
                best, largest = k, value
        elif crowded < 0 or value > crowded_largest:
            crowded, crowded_largest = k, value
    if least < min_pulls:
        return rarest
    if best >= 0:
        return best
    return crowded if crowded >= 0 else rarest
