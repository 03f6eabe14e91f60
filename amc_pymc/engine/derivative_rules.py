"""Derivatives of operations by their arguments.

A rule takes the graph, the arguments, the operation itself and the place k of an argument; it returns a node or a float.
"""

from __future__ import annotations

import math

from collections.abc import Callable

_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _div_rule(g, args, y, k):
    if k == 0:
        return g.make("div", 1.0, args[1])
    return g.make("neg", g.make("div", y, args[1]))


def _pow_rule(g, args, y, k):
    a, b = args
    if k == 0:
        return g.make("mul", b, g.make("pow", a, g.make("sub", b, 1.0)))
    slope = g.make("mul", y, g.make("log", a))  # 0^b is constant
    return g.make("switch", g.make("eq", a, 0.0), 0.0, slope)


def _erf_rule(sign: float):
    def rule(g, args, y, k):
        square = g.make("mul", args[0], args[0])
        return g.make("mul", sign * _TWO_OVER_ROOT_PI, g.make("exp", g.make("neg", square)))

    return rule


def _erfcx_rule(g, args, y, k):
    twice = g.make("mul", 2.0, g.make("mul", args[0], y))
    return g.make("sub", twice, _TWO_OVER_ROOT_PI)


def _log1mexp_rule(g, args, y, k):
    return g.make("neg", g.make("exp", g.make("sub", args[0], y)))


def _over(op: str, *, root: bool, sign: float = 1.0, first: bool = True):
    """Return the rule of a derivative sign / (1 op x^2), or of the root of the latter."""

    def rule(g, args, y, k):
        square = g.make("mul", args[0], args[0])
        below = g.make(op, 1.0, square) if first else g.make(op, square, 1.0)
        return g.make("div", sign, g.make("sqrt", below) if root else below)

    return rule


def _bessel_i0e_rule(g, args, y, k):
    return g.make("sub", g.make("bessel_i1e", args[0]), g.make("mul", g.make("sign", args[0]), y))


def _bessel_i1e_rule(g, args, y, k):
    """Return I_0e(x) - I_1e(x) (1 / x + sign x), which is 1/2 at 0."""
    zero = g.make("eq", args[0], 0.0)
    ratio = g.make("div", y, g.make("switch", zero, 1.0, args[0]))
    ratio = g.make("switch", zero, 0.5, ratio)
    left = g.make("sub", g.make("bessel_i0e", args[0]), ratio)
    return g.make("sub", left, g.make("mul", g.make("sign", args[0]), y))


def _by(op: str):
    return lambda g, args, y, k: g.make(op, args[0])


DERIVATIVE_RULES: dict[str, Callable] = {
    "add": lambda g, args, y, k: 1.0,
    "float": lambda g, args, y, k: 1.0,
    "sub": lambda g, args, y, k: -1.0 if k else 1.0,
    "mul": lambda g, args, y, k: args[1 - k],
    "div": _div_rule,
    "neg": lambda g, args, y, k: -1.0,
    "pow": _pow_rule,
    "sqrt": lambda g, args, y, k: g.make("div", 0.5, y),
    "exp": lambda g, args, y, k: y,
    "expm1": lambda g, args, y, k: g.make("add", y, 1.0),
    "log": lambda g, args, y, k: g.make("div", 1.0, args[0]),
    "log1p": lambda g, args, y, k: g.make("div", 1.0, g.make("add", 1.0, args[0])),
    "sigmoid": lambda g, args, y, k: g.make("mul", y, g.make("sub", 1.0, y)),
    "softplus": _by("sigmoid"),
    "log1mexp": _log1mexp_rule,
    "sin": _by("cos"),
    "cos": lambda g, args, y, k: g.make("neg", g.make("sin", args[0])),
    "tan": lambda g, args, y, k: g.make("add", 1.0, g.make("mul", y, y)),
    "tanh": lambda g, args, y, k: g.make("sub", 1.0, g.make("mul", y, y)),
    "sinh": _by("cosh"),
    "cosh": _by("sinh"),
    "arctan": _over("add", root=False),
    "arctanh": _over("sub", root=False),
    "arcsin": _over("sub", root=True),
    "arccos": _over("sub", root=True, sign=-1.0),
    "arcsinh": _over("add", root=True, first=False),
    "arccosh": _over("sub", root=True, first=False),
    "erf": _erf_rule(1.0),
    "erfc": _erf_rule(-1.0),
    "erfcx": _erfcx_rule,
    "gamma": lambda g, args, y, k: g.make("mul", y, g.make("digamma", args[0])),
    "gammaln": _by("digamma"),
    "digamma": _by("trigamma"),
    "trigamma": _by("tetragamma"),
    "abs": _by("sign"),
    "mod": lambda g, args, y, k: g.make("neg", g.make("floor", g.make("div", *args))) if k else 1.0,
    "bessel_i0e": _bessel_i0e_rule,
    "bessel_i1e": _bessel_i1e_rule,
}
