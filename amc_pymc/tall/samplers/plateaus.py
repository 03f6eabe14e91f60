r"""Expansions of groups' log-likelihoods that are level where a standard deviation is small.

As the standard deviation s of effects goes to zero, log-likelihoods of groups become constant, and the posterior of
x = log s has the tail of its prior, while a quadratic in x has the tail of a Gaussian: a chain on prior times such a
surrogate hardly ever visits the tail and, once there, stays. The log-likelihood of balanced Gaussian groups is a
function of log(a + s^2), where a is the variance of a group's mean given its effect. Moves therefore expand it in

    w = log(a + exp(2 x)),

with the same value, gradient and Hessian at the centre, and with a such that the limit far to the left is the right one.
The same holds for x mirrored, as for the logarithm of a precision.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy import optimize

from amc_pymc.engine import Family, Graph
from amc_pymc.tall.samplers.raced import Raced
from amc_pymc.tall.samplers.surrogate import Surrogate, surrogate_total
from amc_pymc.tall.split import Parts
from amc_pymc.tall.terms import Written

__all__ = ["Plateaus", "find_plateaus"]

#: Distance from the centre at which log-likelihoods have reached their limits.
_FAR = 8.0
#: Smallest and largest logarithm of s^2 / a.
_LEAST, _MOST = -7.0, 2.0 * _FAR
#: Difference of the limit from that of the quadratic, in nats, below which a coordinate is left as it is.
_SAME = 1.0


class Plateaus(NamedTuple):
    """Coordinates x (P,) with a limit, their signs, numbers a, and the surrogate in (x, w)."""

    coordinates: np.ndarray
    signs: np.ndarray
    numbers: np.ndarray
    surrogate: Surrogate

    def total(self, x: np.ndarray) -> float:
        """Return the surrogate at x (D,), minus its value at the centre."""
        w = np.log(self.numbers + np.exp(2.0 * self.signs * x[self.coordinates]))
        return float(surrogate_total(np.append(x, w), self.surrogate))

    def parts(self, parts: Parts) -> Parts:
        """Return the same terms of the prior, with w among the coefficients."""
        graph, families = Graph(), list[Family]()
        for k, (j, sign, a) in enumerate(zip(*self[:3], strict=True)):
            twice = graph.make("mul", graph.const(2.0 * sign), graph.entry("eta", graph.const(j)))
            inside = graph.make("add", graph.const(a), graph.make("exp", twice))
            families.append(Family(graph.make("log", inside), np.zeros((1, 0)), k))
        return parts._replace(coefficients=Written(graph, tuple(families), ()))


def find_plateaus(raced: Raced, wide: np.ndarray, surrogate: Surrogate) -> Plateaus | None:
    """Return the coordinates among those not well informed in which log-likelihoods have other limits than quadratics.

    Parameters
    ----------
    raced : Raced
    wide : int array
        Coordinates.
    surrogate : Surrogate
        Expansion of the units' sum in x.
    """
    centre, gradient, hessian = surrogate
    here, size = raced.all_values(centre).sum(), centre.size
    found: list[tuple[int, float, float]] = []
    for j in np.intersect1d(wide, raced.expand):
        sides = [_side(raced, surrogate, here, int(j), sign) for sign in (1.0, -1.0)]
        higher, sign, ratio = max(sides)
        if higher > _SAME and ratio > 0.0:
            found.append((int(j), sign, ratio))
    if not found:
        return None
    at, first, second = np.arange(size), np.ones(size), np.zeros(size)
    numbers = []
    for k, (j, sign, ratio) in enumerate(found):
        share = ratio / (1.0 + ratio)
        at[j], first[j], second[j] = size + k, 2.0 * sign * share, 4.0 * share * (1.0 - share)
        numbers.append(math.exp(2.0 * sign * centre[j]) / ratio)
    coordinates, signs = (np.array(part) for part in list(zip(*found, strict=True))[:2])
    w = np.log(numbers + np.exp(2.0 * signs * centre[coordinates]))
    whole = np.zeros(size + w.size), np.zeros((size + w.size, size + w.size))
    slope = gradient / first
    whole[0][at] = slope
    whole[1][np.ix_(at, at)] = (hessian - np.diag(slope * second)) / np.outer(first, first)
    return Plateaus(coordinates, signs, np.array(numbers), Surrogate(np.append(centre, w), *whole))


def _side(
    raced: Raced, surrogate: Surrogate, here: float, j: int, sign: float
) -> tuple[float, float, float]:
    """Return by how much the limit where ``sign`` x_j is small exceeds the quadratic, ``sign``, and s^2 / a or 0."""
    far = surrogate.centre.copy()
    far[j] -= sign * _FAR
    with np.errstate(all="ignore"):
        limit = float(raced.all_values(far).sum() - here)
    slope, curvature = sign * surrogate.gradient[j], surrogate.hessian[j, j]
    higher = limit - 0.5 * curvature * _FAR**2 + slope * _FAR

    def excess(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)
        share, w = ratio / (1.0 + ratio), -math.log1p(ratio)
        by_w = slope / (2.0 * share)
        twice = (curvature - 2.0 * slope * (1.0 - share)) / (4.0 * share**2)
        return by_w * w + 0.5 * twice * w * w - limit

    if not math.isfinite(higher) or not excess(_LEAST) > 0.0 > excess(_MOST):
        return -math.inf, sign, 0.0
    return higher, sign, math.exp(optimize.brentq(excess, _LEAST, _MOST))
