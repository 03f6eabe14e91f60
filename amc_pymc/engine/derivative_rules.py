"""Derivatives of operations by their arguments."""

from __future__ import annotations

import math

from collections.abc import Callable

_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _one(g, args, y, k):
    return g.const(1.0)


def _sub_rule(g, args, y, k):
    return g.const(-1.0 if k else 1.0)


def _div_rule(g, args, y, k):
    if k == 0:
        return g.make("div", g.const(1.0), args[1])
    return g.make("neg", g.make("div", y, args[1]))


def _pow_rule(g, args, y, k):
    a, b = args
    if k == 0:
        return g.make("mul", b, g.make("pow", a, g.make("sub", b, g.const(1.0))))
    slope = g.make("mul", y, g.make("log", a))  # 0^b is constant
    return g.make("switch", g.make("eq", a, g.const(0.0)), g.const(0.0), slope)


def _mod_rule(g, args, y, k):
    return g.const(1.0) if k == 0 else g.make("neg", g.make("floor", g.make("div", *args)))


def _sigmoid_rule(g, args, y, k):
    return g.make("mul", y, g.make("sub", g.const(1.0), y))


def _erf_rule(sign: float):
    def rule(g, args, y, k):
        square = g.make("mul", args[0], args[0])
        return g.make(
            "mul", g.const(sign * _TWO_OVER_ROOT_PI), g.make("exp", g.make("neg", square))
        )

    return rule


def _erfcx_rule(g, args, y, k):
    twice = g.make("mul", g.const(2.0), g.make("mul", args[0], y))
    return g.make("sub", twice, g.const(_TWO_OVER_ROOT_PI))


def _log1mexp_rule(g, args, y, k):
    return g.make("neg", g.make("exp", g.make("sub", args[0], y)))


def _over_root(inside: Callable, sign: float = 1.0):
    """Return the rule of a derivative sign / sqrt(inside)."""

    def rule(g, args, y, k):
        square = g.make("mul", args[0], args[0])
        return g.make("div", g.const(sign), g.make("sqrt", inside(g, square, g.const(1.0))))

    return rule


def _arctanh_rule(g, args, y, k):
    square = g.make("mul", args[0], args[0])
    return g.make("div", g.const(1.0), g.make("sub", g.const(1.0), square))


def _bessel_i0e_rule(g, args, y, k):
    return g.make("sub", g.make("bessel_i1e", args[0]), g.make("mul", g.make("sign", args[0]), y))


def _bessel_i1e_rule(g, args, y, k):
    """Return I_0e(x) - I_1e(x) (1 / x + sign x), which is 1/2 at 0."""
    zero = g.make("eq", args[0], g.const(0.0))
    ratio = g.make("div", y, g.make("switch", zero, g.const(1.0), args[0]))
    ratio = g.make("switch", zero, g.const(0.5), ratio)
    left = g.make("sub", g.make("bessel_i0e", args[0]), ratio)
    return g.make("sub", left, g.make("mul", g.make("sign", args[0]), y))


def _by(op: str):
    return lambda g, args, y, k: g.make(op, args[0])


DERIVATIVE_RULES: dict[str, Callable] = {
    "add": _one,
    "float": _one,
    "sub": _sub_rule,
    "mul": lambda g, args, y, k: args[1 - k],
    "div": _div_rule,
    "neg": lambda g, args, y, k: g.const(-1.0),
    "pow": _pow_rule,
    "sqrt": lambda g, args, y, k: g.make("div", g.const(0.5), y),
    "exp": lambda g, args, y, k: y,
    "expm1": lambda g, args, y, k: g.make("add", y, g.const(1.0)),
    "log": lambda g, args, y, k: g.make("div", g.const(1.0), args[0]),
    "log1p": lambda g, args, y, k: g.make(
        "div", g.const(1.0), g.make("add", g.const(1.0), args[0])
    ),
    "sigmoid": _sigmoid_rule,
    "softplus": _by("sigmoid"),
    "log1mexp": _log1mexp_rule,
    "sin": _by("cos"),
    "cos": lambda g, args, y, k: g.make("neg", g.make("sin", args[0])),
    "tan": lambda g, args, y, k: g.make("add", g.const(1.0), g.make("mul", y, y)),
    "tanh": lambda g, args, y, k: g.make("sub", g.const(1.0), g.make("mul", y, y)),
    "sinh": _by("cosh"),
    "cosh": _by("sinh"),
    "arctan": lambda g, args, y, k: g.make(
        "div", g.const(1.0), g.make("add", g.const(1.0), g.make("mul", args[0], args[0]))
    ),
    "erf": _erf_rule(1.0),
    "erfc": _erf_rule(-1.0),
    "erfcx": _erfcx_rule,
    "gamma": lambda g, args, y, k: g.make("mul", y, g.make("digamma", args[0])),
    "gammaln": _by("digamma"),
    "digamma": _by("trigamma"),
    "trigamma": _by("tetragamma"),
    "abs": _by("sign"),
    "mod": _mod_rule,
    "bessel_i0e": _bessel_i0e_rule,
    "bessel_i1e": _bessel_i1e_rule,
    "arcsin": _over_root(lambda g, square, one: g.make("sub", one, square)),
    "arccos": _over_root(lambda g, square, one: g.make("sub", one, square), -1.0),
    "arcsinh": _over_root(lambda g, square, one: g.make("add", square, one)),
    "arccosh": _over_root(lambda g, square, one: g.make("sub", square, one)),
    "arctanh": _arctanh_rule,
}
