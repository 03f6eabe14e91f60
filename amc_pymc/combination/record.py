"""What is known of one arm: running moments of values, costs and controls."""

from __future__ import annotations

import functools
import math

import numpy as np

from scipy import special

from amc_pymc.combination.arms import Arm, Sample
from amc_pymc.logweights import trusted_variance

__all__ = ["ArmRecord", "controls_pay"]

#: Error probability of the confidence limits that weights are made of.
_CAREFUL = 0.1


@functools.cache
def upper_factor(df: int) -> float:
    """Upper confidence limit of a Gaussian variance over its estimate with `df` degrees of freedom."""
    return float(df / special.chdtri(df, 1.0 - _CAREFUL))


def controls_pay(n: int, q: int) -> bool:
    """Whether n draws suffice for q control variates to cost at most 2 % of variance.

    Estimated coefficients inflate the variance by (n - 2) / (n - q - 2) (Verma & Hanawal 2021, lemma
    3), which is at most 1.02 from n = 51 q + 2 on.
    """
    return q > 0 and n >= 51 * q + 2


class ArmRecord:
    """Running moments of one arm.

    Values are kept relative to ``exp(offset)``; the offset is zero on the natural scale and the largest
    log-value so far on the log scale.

    Attributes
    ----------
    n, failed : int
        Draws with and without a value.
    total_cost : float
    offset : float
    mean : array (1 + q,)
        Of value and controls.
    comoment : array (1 + q, 1 + q)
        Sums of products of deviations.
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
        self._logs = np.zeros(3)  # number of positive values, mean and squares of their logarithms
        self._high = np.zeros(2)  # sums of third and fourth powers of deviations of values

    def add(self, sample: Sample) -> None:
        """Take in more draws."""
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
        """Third and fourth powers; Pébay (2008), Sandia report SAND2008-6212, equations 2.2 to 2.4."""
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
        """Values without controls."""
        n, total = x.size, self.n + x.size
        mean = float(x.sum()) / n
        centred = x - mean
        d = mean - float(self.mean[0])
        self.comoment[0, 0] += float(centred @ centred) + d * d * self.n * n / total
        self.mean[0] += d * n / total
        self.n = total

    def _relative(self, values: np.ndarray) -> np.ndarray:
        """Values over exp(offset), after moving the offset where they need it."""
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
        """Mean cost of a draw, failed ones included; the known one before any."""
        drawn = self.n + self.failed
        if drawn == 0:
            return math.nan if self.arm.cost is None else self.arm.cost
        return self.total_cost / drawn

    def coefficients(self) -> np.ndarray:
        """Regression coefficients of the controls, (q,); zeros until they pay."""
        if not controls_pay(self.n, self.q):
            return self._no_coefficients
        return np.linalg.lstsq(self.comoment[1:, 1:], self.comoment[1:, 0], rcond=None)[0]

    def centre(self) -> float:
        """Mean of the values over exp(offset), shifted by the controls."""
        if self.q == 0:
            return float(self.mean[0])
        assert self.arm.control_means is not None
        shift = self.mean[1:] - self.arm.control_means
        return float(self.mean[0] - self.coefficients() @ shift)

    def variance(self) -> float:
        """Variance of a value over exp(2 offset), what the controls leave of it."""
        if self.n < 2:
            return math.nan
        c, df = self.comoment, self.n - 1
        left = float(c[0, 0])
        if controls_pay(self.n, self.q):
            beta = self.coefficients()
            left += beta @ c[1:, 1:] @ beta - 2.0 * beta @ c[1:, 0]
            df -= self.q
        return max(left, 0.0) / df

    def relative_variance(self) -> float:
        """Empirical variance over the squared mean."""
        centre = self.centre()
        return self.variance() / centre**2 if centre else math.inf

    def log_variance(self) -> float:
        """Variance s^2 of the logarithms of positive values."""
        return float(self._logs[2] / (self._logs[0] - 1)) if self._logs[0] > 1 else math.nan

    def surrogate(self) -> float:
        """Relative variance of log-normal values with the same s^2 and share of zeros."""
        s2 = self.log_variance()
        if not s2 < 700.0:
            return math.inf
        return math.exp(s2) * self.n / self._logs[0] - 1.0

    def cautious_variance(self, common_mean: float) -> float:
        """Variance to plan with.

        On the natural scale the empirical one and the squared distance from the mean common to all arms:
        an arm that has not yet shown its tail has a small variance and the wrong mean. On the log
        scale, in units of the squared common mean, the larger of empirical and surrogate variance.
        """
        if self.n < 2:
            return math.nan
        if self.arm.scale == "log":
            return max(self.relative_variance(), self.surrogate())
        return self.variance() + (self.centre() - common_mean) ** 2

    def careful_variance(self, common_mean: float) -> float:
        """Upper confidence limit of :meth:`cautious_variance`, inf for fewer than two draws.

        What weights are made of: an arm that looks precise after few draws is most likely one that has
        not yet shown its tail.
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
        """An independent copy."""
        out = ArmRecord.__new__(ArmRecord)
        out.__dict__.update(self.__dict__)
        for name in ("mean", "comoment", "_logs", "_high"):
            setattr(out, name, getattr(self, name).copy())
        return out

    def kurtosis(self) -> float:
        """Fourth central moment over squared variance, on the log scale; nan if all values are equal."""
        squares = float(self.comoment[0, 0])
        return self.n * float(self._high[1]) / squares**2 if squares > 0.0 else math.nan

    def reported_variance(self) -> float:
        """Variance to report errors with, in the units of :meth:`cautious_variance`.

        On the log scale by :func:`amc_pymc.logweights.trusted_variance`.
        """
        if self.arm.scale == "natural" or self.n < 2:
            return self.variance()
        return trusted_variance(
            self.n, self.relative_variance(), self.surrogate(), self.log_variance(), self.kurtosis()
        )
