"""Beta variates in compiled code, seeded by one number from a generator.

Passing a NumPy generator to compiled code takes longer than a decision, and so does NumPy's own
``beta`` for a few arms. Here one uniform number from the generator seeds a SplitMix64 stream for
the variates of that decision; the generator remains the only source of randomness.

References
----------
Steele, Lea & Flood (2014), OOPSLA, 453-472. doi:10.1145/2660193.2660195 (SplitMix64).
Marsaglia & Tsang (2000), ACM Transactions on Mathematical Software 26, 363-372.
doi:10.1145/358407.358414 (gamma variates).
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = ["beta_variate", "gamma_variate", "normal_variate", "stream", "uniform_variate"]

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
