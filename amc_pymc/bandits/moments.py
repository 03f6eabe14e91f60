"""Running moments of the values, costs and control variates of one arm."""

from __future__ import annotations

import copy
import functools
import math

from typing import NamedTuple

import numpy as np

from scipy import special

from amc_pymc.bandits.arms import Arm, Sample
from amc_pymc.logweights import trusted_variance

#: Error probability of the confidence limits used for weights.
_CAREFUL = 0.1
#: Share of unexplained variation below which controls count as collinear.
_COLLINEAR = 1e-12


@functools.cache
def upper_factor(df: int) -> float:
    """Return the upper confidence limit of a Gaussian variance over its estimate, by degrees of freedom."""
    return float(df / special.chdtri(df, 1.0 - _CAREFUL))


def controls_pay(n: int, q: int) -> bool:
    """Whether n draws suffice for q control variates to inflate the variance by at most 2 %.

    Estimated coefficients inflate the variance by the factor (n - 2) / (n - q - 2) (Verma & Hanawal 2021,
    lemma 3), which is at most 1.02 from n = 51 q + 2 on.
    """
    return q > 0 and n >= 51 * q + 2


class Regression(NamedTuple):
    """Regression of a value on q controls.

    Attributes
    ----------
    coefficients : array (q,)
    inverse : array (q, q)
        Pseudo-inverse of the sums of products of the controls about their means.
    rank : int
        Number of controls that do not depend linearly on others.
    left : float
        Sum of squares that the controls do not explain.
    """

    coefficients: np.ndarray
    inverse: np.ndarray
    rank: int
    left: float


def regress(comoment: np.ndarray) -> Regression:
    """Regress a value on controls, from sums of products (1 + q, 1 + q) of their deviations."""
    products, cross = comoment[1:, 1:], comoment[1:, 0]
    scale = np.sqrt(np.diag(products))
    scale = np.where(scale > 0.0, scale, 1.0)
    size, vectors = np.linalg.eigh(products / np.outer(scale, scale))
    kept = size > _COLLINEAR
    half = vectors[:, kept] / np.sqrt(size[kept]) / scale[:, None]
    inverse = half @ half.T
    coefficients = inverse @ cross
    left = max(float(comoment[0, 0] - coefficients @ cross), 0.0)
    return Regression(coefficients, inverse, int(kept.sum()), left)


class Moments:
    """Running moments of values, or of the exponentials of log values, and of controls.

    Values are divided by ``exp(offset)``; the offset is zero on the natural scale and the largest
    log value so far on the log scale.

    Parameters
    ----------
    log : bool
        Whether values are logarithms.
    q : int
        Number of controls.

    Attributes
    ----------
    n : int
        Number of values.
    offset : float
    mean : array (1 + q,)
        Means of the value and the controls.
    comoment : array (1 + q, 1 + q)
        Sums of products of deviations from the means.
    logs : array (3,)
        Number, mean and sum of squared deviations of the finite log values.
    high : array (2,)
        Sums of third and fourth powers of deviations of values.
    """

    def __init__(self, log: bool, q: int = 0):
        self.log, self.q, self.n = log, q, 0
        self.offset = -math.inf if log else 0.0
        self.mean, self.comoment = np.zeros(1 + q), np.zeros((1 + q, 1 + q))
        self.logs, self.high = np.zeros(3), np.zeros(2)

    def include(self, values: np.ndarray, controls: np.ndarray | None = None) -> None:
        """Add values (n,) and their controls (n, q).

        Pébay (2008), Sandia report SAND2008-6212, equations 2.2 to 2.4.
        """
        if values.size == 0:
            return
        x = self._relative(values)
        z = x[:, None] if controls is None or self.q == 0 else np.column_stack([x, controls])
        a, b = self.n, len(z)
        n, mean = a + b, z.mean(axis=0)
        centred, d = z - mean, mean - self.mean
        theirs = centred.T @ centred
        square = centred[:, 0] ** 2
        cubes, fourths = float(square @ centred[:, 0]), float(square @ square)
        e, p, q = float(d[0]), float(self.comoment[0, 0]), float(theirs[0, 0])
        third, fourth = self.high
        self.high[:] = (
            third + cubes + e**3 * a * b * (a - b) / n**2 + 3.0 * e * (a * q - b * p) / n,
            fourth
            + fourths
            + e**4 * a * b * (a * a - a * b + b * b) / n**3
            + 6.0 * e**2 * (a * a * q + b * b * p) / n**2
            + 4.0 * e * (a * cubes - b * third) / n,
        )
        self.comoment += theirs + np.outer(d, d) * (a * b / n)
        self.mean += d * (b / n)
        self.n = n

    def _relative(self, values: np.ndarray) -> np.ndarray:
        """Return values over exp(offset), after raising the offset if necessary."""
        if not self.log:
            return values
        positive = values[values > -np.inf]
        if positive.size == 0 and self.offset == -math.inf:
            return np.zeros(values.size)
        if positive.size:
            n, mean, squares = self.logs
            centre = positive.mean()
            d, total = centre - mean, n + positive.size
            squares += float(((positive - centre) ** 2).sum()) + d**2 * n * positive.size / total
            self.logs[:] = total, mean + d * positive.size / total, squares
            top = float(positive.max())
            if top > self.offset:
                shrink = math.exp(self.offset - top)
                self.mean[0] *= shrink
                self.comoment[0] *= shrink
                self.comoment[:, 0] *= shrink
                self.high *= shrink**3, shrink**4
                self.offset = top
        return np.exp(values - self.offset)

    def kurtosis(self) -> float:
        """Return the fourth central moment over squared variance; nan if all values are equal."""
        squares = float(self.comoment[0, 0])
        return self.n * float(self.high[1]) / squares**2 if squares > 0.0 else math.nan

    def log_variance(self) -> float:
        """Return the variance s^2 of the logarithms of positive values."""
        return float(self.logs[2] / (self.logs[0] - 1)) if self.logs[0] > 1 else math.nan


class ArmRecord(Moments):
    """Running moments of one arm.

    Attributes
    ----------
    total_cost : float
    """

    def __init__(self, arm: Arm):
        super().__init__(arm.scale == "log", arm.known_means.size)
        self.arm, self.total_cost = arm, 0.0

    def add(self, sample: Sample) -> None:
        """Add draws to the moments."""
        self.total_cost += float(sample.costs.sum())
        self.include(sample.values, sample.controls)

    def copy(self) -> ArmRecord:
        """Return an independent copy."""
        out = copy.copy(self)
        for name in ("mean", "comoment", "logs", "high"):
            setattr(out, name, getattr(self, name).copy())
        return out

    @property
    def cost(self) -> float:
        """Mean cost of a draw; the known cost before any draw."""
        if self.n == 0:
            return math.nan if self.arm.cost is None else self.arm.cost
        return self.total_cost / self.n

    def coefficients(self) -> np.ndarray:
        """Return the regression coefficients (q,) of the controls; zeros with too few draws."""
        if not controls_pay(self.n, self.q):
            return np.zeros(self.q)
        return regress(self.comoment).coefficients

    def centre(self) -> float:
        """Return the mean of the values over exp(offset), adjusted by the controls."""
        return float(self.mean[0] - self.coefficients() @ (self.mean[1:] - self.arm.known_means))

    def variance(self) -> float:
        """Return the residual variance of a value given the controls, over exp(2 offset)."""
        if self.n < 2:
            return math.nan
        if controls_pay(self.n, self.q):
            return regress(self.comoment).left / (self.n - 1 - self.q)
        return float(self.comoment[0, 0]) / (self.n - 1)

    @property
    def constant(self) -> bool:
        """Whether there are at least two values, and all are equal."""
        return self.n > 1 and float(self.comoment[0, 0]) <= 0.0

    def _unseen_variance(self, common_mean: float) -> float:
        """Return the variance that an arm with equal values would need to have the common mean.

        If other values come with probability p, n draws without any make p about 1 / n at most. A mean at
        a distance d from the value seen then needs a variance of d^2 (1 / p - 1).
        """
        return (self.n - 1) * (self.centre() - common_mean) ** 2

    def relative_variance(self) -> float:
        """Return the empirical variance over the squared mean."""
        centre = self.centre()
        return self.variance() / centre**2 if centre else math.inf

    def surrogate(self) -> float:
        """Return the relative variance of log-normal values with the same s^2 and share of zeros."""
        s2 = self.log_variance()
        if not s2 < 700.0:
            return math.inf
        return math.exp(s2) * self.n / self.logs[0] - 1.0

    def cautious_variance(self, common_mean: float) -> float:
        """Return the variance used for planning.

        On the natural scale, this is the empirical variance plus the squared distance from the common mean,
        because an arm whose tail has not been sampled yet has a small variance and a wrong mean. An arm whose
        values are all equal is not taken as exact if other arms have another mean. On the log scale, it is the
        larger of empirical and surrogate variance, in units of the squared common mean.
        """
        if self.n < 2:
            return math.nan
        if self.log:
            return max(self.relative_variance(), self.surrogate())
        if self.constant:
            return self._unseen_variance(common_mean)
        return self.variance() + (self.centre() - common_mean) ** 2

    def careful_variance(self, common_mean: float) -> float:
        """Return an upper confidence limit of :meth:`cautious_variance`, inf for fewer than two draws.

        Weights are based on it, because an arm that looks precise after few draws is most likely one
        whose tail has not been sampled yet.
        """
        if self.n < 2:
            return math.inf
        if not self.log:
            return self.cautious_variance(common_mean) * upper_factor(self.n - 1)
        n, s2 = self.logs[0], self.log_variance()
        if not s2 < math.inf:
            return math.inf
        s2 *= upper_factor(int(n) - 1)
        upper = math.expm1(s2) * self.n / n + (self.n / n - 1.0) if s2 < 700.0 else math.inf
        return max(self.relative_variance(), upper)

    def reported_variance(self, common_mean: float) -> float:
        """Return the variance used for standard errors, in the units of :meth:`cautious_variance`.

        On the natural scale, it is the empirical variance, except for values that are all equal. On the log
        scale, it is that of :func:`amc_pymc.logweights.trusted_variance`.
        """
        if not self.log and self.constant:
            return self._unseen_variance(common_mean)
        if not self.log or self.n < 2:
            return self.variance()
        return trusted_variance(
            self.n, self.relative_variance(), self.surrogate(), self.log_variance(), self.kurtosis()
        )
