"""Running moments of the values, costs and control variates of one arm."""

from __future__ import annotations

import functools
import math

import numpy as np

from scipy import special

from amc_pymc.combination.arms import Arm, Sample
from amc_pymc.logweights import trusted_variance

__all__ = ["ArmRecord", "controls_pay"]

#: Error probability of the confidence limits used for weights.
_CAREFUL = 0.1


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


class ArmRecord:
    """Running moments of one arm.

    Values are divided by ``exp(offset)``; the offset is zero on the natural scale and the largest
    log value so far on the log scale.

    Attributes
    ----------
    n, failed : int
        Number of draws with a value and of failed draws.
    total_cost : float
    offset : float
    mean : array (1 + q,)
        Means of the value and the controls.
    comoment : array (1 + q, 1 + q)
        Sums of products of deviations from the means.
    """

    def __init__(self, arm: Arm):
        self.arm = arm
        self.q = 0 if arm.control_means is None else arm.control_means.size
        self.n = self.failed = 0
        self.total_cost = 0.0
        self.offset = 0.0 if arm.scale == "natural" else -math.inf
        self.mean = np.zeros(1 + self.q)
        self.comoment = np.zeros((1 + self.q, 1 + self.q))
        self._no_coefficients = np.zeros(self.q)
        self._logs = np.zeros(3)  # count, mean and squared deviations of log values
        self._high = np.zeros(2)  # sums of third and fourth powers of deviations of values

    def add(self, sample: Sample) -> None:
        """Add draws to the moments."""
        good = ~sample.failed
        self.failed += int(sample.failed.sum())
        self.total_cost += float(sample.costs.sum())
        values = sample.values[good] if self.failed else sample.values
        n = values.size
        if n == 0:
            return
        x = self._relative(values)
        if self.arm.scale == "log":
            self._add_high(x)
        if self.q == 0:
            self._add_alone(x)
            return
        z = np.column_stack([x, sample.controls[good]])  # type: ignore[index]
        mean = z.mean(axis=0)
        d, total = mean - self.mean, self.n + n
        centred = z - mean
        self.comoment += centred.T @ centred + np.outer(d, d) * (self.n * n / total)
        self.mean += d * (n / total)
        self.n = total

    def _add_high(self, x: np.ndarray) -> None:
        """Update third and fourth powers; Pébay (2008), Sandia report SAND2008-6212, equations 2.2 to 2.4."""
        a, b = self.n, x.size
        n, ours, mean = a + b, float(self.comoment[0, 0]), float(x.sum()) / b
        z = x - mean
        squares = z * z
        theirs, cubes, fourths = float(squares.sum()), float(squares @ z), float(squares @ squares)
        d = mean - float(self.mean[0])
        third, fourth = self._high
        self._high[:] = (
            third + cubes + d**3 * a * b * (a - b) / n**2 + 3.0 * d * (a * theirs - b * ours) / n,
            fourth
            + fourths
            + d**4 * a * b * (a * a - a * b + b * b) / n**3
            + 6.0 * d**2 * (a * a * theirs + b * b * ours) / n**2
            + 4.0 * d * (a * cubes - b * third) / n,
        )

    def _add_alone(self, x: np.ndarray) -> None:
        """Add values of an arm without controls."""
        n, total = x.size, self.n + x.size
        mean = float(x.sum()) / n
        centred = x - mean
        d = mean - float(self.mean[0])
        self.comoment[0, 0] += float(centred @ centred) + d * d * self.n * n / total
        self.mean[0] += d * n / total
        self.n = total

    def _relative(self, values: np.ndarray) -> np.ndarray:
        """Return values over exp(offset), after raising the offset if necessary."""
        if self.arm.scale == "natural":
            return values
        positive = values[values > -np.inf]
        if positive.size:
            self._add_logs(positive)
            top = float(positive.max())
            if top > self.offset:
                shrink = math.exp(self.offset - top)
                self.mean[0] *= shrink
                self.comoment[0] *= shrink
                self.comoment[:, 0] *= shrink
                self._high *= shrink**3, shrink**4
                self.offset = top
        return np.exp(values - self.offset) if self.offset > -math.inf else np.zeros(values.size)

    def _add_logs(self, x: np.ndarray) -> None:
        n, mean, squares = self._logs
        d, total = x.mean() - mean, n + x.size
        squares += float(((x - x.mean()) ** 2).sum()) + d**2 * n * x.size / total
        self._logs[:] = total, mean + d * x.size / total, squares

    @property
    def cost(self) -> float:
        """Mean cost of a draw, including failed ones; the known cost before any draw."""
        drawn = self.n + self.failed
        if drawn == 0:
            return math.nan if self.arm.cost is None else self.arm.cost
        return self.total_cost / drawn

    def coefficients(self) -> np.ndarray:
        """Return the regression coefficients (q,) of the controls; zeros with too few draws."""
        if not controls_pay(self.n, self.q):
            return self._no_coefficients
        return np.linalg.lstsq(self.comoment[1:, 1:], self.comoment[1:, 0], rcond=None)[0]

    def centre(self) -> float:
        """Return the mean of the values over exp(offset), adjusted by the controls."""
        if self.q == 0:
            return float(self.mean[0])
        assert self.arm.control_means is not None
        shift = self.mean[1:] - self.arm.control_means
        return float(self.mean[0] - self.coefficients() @ shift)

    def variance(self) -> float:
        """Return the residual variance of a value given the controls, over exp(2 offset)."""
        if self.n < 2:
            return math.nan
        c, df = self.comoment, self.n - 1
        left = float(c[0, 0])
        if controls_pay(self.n, self.q):
            beta = self.coefficients()
            left += beta @ c[1:, 1:] @ beta - 2.0 * beta @ c[1:, 0]
            df -= self.q
        return max(left, 0.0) / df

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

    def log_variance(self) -> float:
        """Return the variance s^2 of the logarithms of positive values."""
        return float(self._logs[2] / (self._logs[0] - 1)) if self._logs[0] > 1 else math.nan

    def surrogate(self) -> float:
        """Return the relative variance of log-normal values with the same s^2 and share of zeros."""
        s2 = self.log_variance()
        if not s2 < 700.0:
            return math.inf
        variance: float = math.exp(s2) * self.n / self._logs[0] - 1.0
        return variance

    def cautious_variance(self, common_mean: float) -> float:
        """Return the variance used for planning.

        On the natural scale, this is the empirical variance plus the squared distance from the common mean,
        because an arm whose tail has not been sampled yet has a small variance and a wrong mean. An arm whose
        values are all equal is not taken as exact if other arms have another mean. On the log scale, it is the larger of empirical and surrogate variance, in units of the squared common mean.
        """
        if self.n < 2:
            return math.nan
        if self.arm.scale == "log":
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
        if self.arm.scale == "log":
            n = self._logs[0]
            s2 = self.log_variance()
            if not n > 1 or not s2 < math.inf:
                return math.inf
            s2 *= upper_factor(int(n) - 1)
            upper = math.expm1(s2) * self.n / n + (self.n / n - 1.0) if s2 < 700.0 else math.inf
            return max(self.relative_variance(), upper)
        return self.cautious_variance(common_mean) * upper_factor(self.n - 1)

    def copy(self) -> ArmRecord:
        """Return an independent copy."""
        out = ArmRecord.__new__(ArmRecord)
        out.__dict__.update(self.__dict__)
        for name in ("mean", "comoment", "_logs", "_high"):
            setattr(out, name, getattr(self, name).copy())
        return out

    def kurtosis(self) -> float:
        """Return the fourth central moment over squared variance (log scale); nan if all values are equal."""
        squares = float(self.comoment[0, 0])
        return self.n * float(self._high[1]) / squares**2 if squares > 0.0 else math.nan

    def reported_variance(self, common_mean: float) -> float:
        """Return the variance used for standard errors, in the units of :meth:`cautious_variance`.

        On the natural scale, it is the empirical variance, except for values that are all equal. On the log
        scale, it is that of :func:`amc_pymc.logweights.trusted_variance`.
        """
        if self.arm.scale == "natural" and self.constant:
            return self._unseen_variance(common_mean)
        if self.arm.scale == "natural" or self.n < 2:
            return self.variance()
        return trusted_variance(
            self.n, self.relative_variance(), self.surrogate(), self.log_variance(), self.kurtosis()
        )
