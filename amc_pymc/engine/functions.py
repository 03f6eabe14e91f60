"""Operations of expressions, on arrays and as functions that printed code calls.

Digamma, trigamma and tetragamma shift their argument above 12 and use the asymptotic series of
Abramowitz & Stegun (1964), 6.3.18, 6.4.11 and 6.4.14. The error is below 1e-14 (1 + |value|) for
x > 0; other arguments give nan.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import Any

import numpy as np

from numba import types
from numba.extending import intrinsic
from scipy import special

from amc_pymc.engine.jit import njit

#: For functions without branches and calls, which can be vectorised.
_branch_free = njit(cache=True, fastmath={"contract"}, forceinline=True)


@intrinsic
def _same_bits(typingctx, x):
    """Return the integer with the 64 bits of a float, or the float with those of an integer."""
    kind = types.float64 if isinstance(x, types.Integer) else types.int64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(kind))

    return kind(x), codegen


@intrinsic
def select(typingctx, condition, yes, no):
    """Return ``yes`` or ``no`` by a truth value without a branch: both are computed."""
    if not isinstance(condition, types.Boolean):
        return None

    def codegen(context, builder, signature, args):
        one, a, b = (
            context.cast(builder, v, t, types.float64) if k else v
            for k, (v, t) in enumerate(zip(args, signature.args))
        )
        return builder.select(one, a, b)

    return types.float64(condition, yes, no), codegen


_LOG2_E = 1.4426950408889634
_LOG_2 = 0.6931471805599453
#: log 2 as a sum of two parts, the first with trailing zero bits.
_LOG_2_HIGH, _LOG_2_LOW = 0.6931471803691238, 1.9082149292705877e-10
#: Number whose sum with a float below 2^51 has the nearest integer in its last bits.
_ROUND = 6755399441055744.0
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD


@_branch_free
def exp(x):
    """Return exp(x) = 2^n exp(r) with |r| <= log(2) / 2 by Taylor series; error below 3e-16.

    It is 0 for x <= -708 and infinite for x >= 709.
    """
    bounded = min(max(x, -708.0), 709.0)
    t = bounded * _LOG2_E + _ROUND
    n = t - _ROUND
    r = (bounded - n * _LOG_2_HIGH) - n * _LOG_2_LOW
    p = 1 / 6227020800
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    out = p * _same_bits((_same_bits(t) + 1023) << 52)
    out = select(x > -708.0, out, select(x <= -708.0, 0.0, x))
    return select(x < 709.0, out, select(x >= 709.0, math.inf, x))


@_branch_free
def _log_near_one(f):
    """Return log(1 + f) for f in [-0.3, 0.42], by the series of atanh; error below 2e-16."""
    s = f / (2.0 + f)
    z = s * s
    p = 2 / 21
    p = p * z + 2 / 19
    p = p * z + 2 / 17
    p = p * z + 2 / 15
    p = p * z + 2 / 13
    p = p * z + 2 / 11
    p = p * z + 2 / 9
    p = p * z + 2 / 7
    p = p * z + 2 / 5
    p = p * z + 2 / 3
    p = p * z + 2.0
    return p * s


@_branch_free
def log(x):
    """Return log(x); numbers below 1e-307 are treated as 0."""
    bits = _same_bits(x)
    shifted = bits - _ROOT_HALF_BITS
    n = shifted >> 52
    f = _same_bits(bits - (n << 52)) - 1.0
    out = _log_near_one(f) + (n * _LOG_2_LOW + n * _LOG_2_HIGH)
    out = select(x > 1e-307, out, select(x >= 0.0, -math.inf, math.nan))
    return select(x < math.inf, out, x)


@_branch_free
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp(-x))


@_branch_free
def softplus(x):
    """Return log(1 + exp(x))."""
    e = exp(-abs(x))
    large = e > 0.41421356237309503
    near = select(large, (e - 1.0) * 0.5, e)
    return max(x, 0.0) + _log_near_one(near) + select(large, _LOG_2, 0.0)


@njit(cache=True)
def log1mexp(x):
    """Return log(1 - exp(x)) for x < 0 (Maechler 2012)."""
    if x > -0.6931471805599453:
        return math.log(-math.expm1(x))
    return math.log1p(-math.exp(x))


@njit(cache=True)
def digamma(x):
    """Return the first derivative of log Gamma."""
    shift = 0.0
    while x < 12.0:
        if x <= 0.0:
            return math.nan
        shift -= 1.0 / x
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (
        1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760)))))
    )
    return shift + math.log(x) - 0.5 / x - series


@njit(cache=True)
def trigamma(x):
    """Return the second derivative of log Gamma."""
    shift = 0.0
    while x < 12.0:
        if x <= 0.0:
            return math.nan
        shift += 1.0 / (x * x)
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (
        1 / 6 - z * (1 / 30 - z * (1 / 42 - z * (1 / 30 - z * (5 / 66 - z * (691 / 2730)))))
    )
    return shift + (1.0 + series) / x + 0.5 * z


@njit(cache=True)
def tetragamma(x):
    """Return the third derivative of log Gamma."""
    shift = 0.0
    while x < 12.0:
        if x <= 0.0:
            return math.nan
        shift -= 2.0 / (x * x * x)
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (0.5 - z * (1 / 6 - z * (1 / 6 - z * (3 / 10 - z * (5 / 6 - z * (691 / 210))))))
    return shift - z * (1.0 + 1.0 / x + series)


@njit(cache=True)
def erfcx(x):
    """Return exp(x^2) erfc(x).

    It is computed as the product below 25, and by the asymptotic series (Abramowitz & Stegun 7.1.23)
    above.
    """
    if x < 25.0:
        return math.exp(x * x) * math.erfc(x)
    z = 0.5 / (x * x)
    series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z))))
    return series / (x * 1.7724538509055159)


@njit(cache=True)
def sign(x):
    """Return -1, 0 or 1; nan for nan."""
    return select(x > 0.0, 1.0, select(x < 0.0, -1.0, x))


#: Operations that have NumPy's names.
_OF_NUMPY = (
    "sqrt exp expm1 log log1p sin cos tanh arctan abs sign maximum minimum floor ceil mod isnan isinf"
).split()
#: NumPy and SciPy implementations of the operations, on arrays that broadcast.
ARRAY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _OF_NUMPY},
    **{name: getattr(np, f"logical_{name}") for name in ("and", "or", "xor", "not")},
    **{name: getattr(special, name) for name in ("erf", "erfc", "erfcx", "gamma", "gammaln")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "neg": np.negative,
    "pow": lambda a, b: np.power(np.asarray(a, float), b),
    "sigmoid": special.expit,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "log1mexp": lambda x: np.where(
        np.asarray(x) > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(x))
    ),
    "digamma": special.digamma,
    "trigamma": lambda x: special.polygamma(1, x),
    "tetragamma": lambda x: special.polygamma(2, x),
    "held": np.asarray,
    "floordiv": np.floor_divide,
    "int": lambda x: np.trunc(x).astype(np.int64),
    "float": lambda x: np.asarray(x, float),
    "switch": np.where,
    "lt": np.less,
    "gt": np.greater,
    "le": np.less_equal,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

_compiled = njit(cache=True)
_MATH = {
    **{n: n for n in ("expm1", "log1p", "sin", "cos", "tanh", "erf", "erfc", "gamma")},
    "arctan": "atan",
    "gammaln": "lgamma",
}


def _of_math(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: function(x)


#: Functions that printed code calls; Numba compiles each once, when the first model needs it.
CALLED = {
    **{
        f.__name__: f
        for f in (exp, log, sigmoid, softplus, log1mexp, digamma, trigamma, tetragamma, erfcx, sign)
    },
    "pow": _compiled(lambda x, y: x**y),
    "floordiv": _compiled(lambda x, y: x // y),
    "mod": _compiled(lambda x, y: x % y),
    **{name: _compiled(_of_math(getattr(math, f))) for name, f in _MATH.items()},
}
