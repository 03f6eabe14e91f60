"""Paths from a prior to a posterior with known normalising constants, most of them lopsided."""

import math

import numpy as np

from scipy.special import expit, gammaln, log_expit, logsumexp
from scipy.stats import norm, truncnorm

from amc_pymc.evidence.annealing import Ladder
from amc_pymc.evidence.mcmc import Tuning
from tests.evidence.mcmc.paths import Path


def log_normal(x, mean, sd):
    """Log density (P,) of independent normal coordinates, all of one standard deviation."""
    x = np.asarray(x, float)
    z = (x - mean) / sd
    return -0.5 * np.sum(z**2, axis=-1) - x.shape[-1] * math.log(sd * math.sqrt(2.0 * math.pi))


class FromPrior(Path):
    """With `draw(n, beta, rng)`, exact draws of any member."""

    def draw_prior(self, n, rng):
        return self.draw(n, 0.0, rng)


class Gaussian(FromPrior):
    """x ~ N(0, I), one observation of each coordinate with standard deviation `sd`."""

    def __init__(self, data, sd):
        super().__init__()
        self.data, self.sd = np.asarray(data, float), sd
        self.n_dim = self.data.size
        self.log_z = float(log_normal(self.data, 0.0, math.hypot(1.0, sd)))

    def terms(self, x):
        return np.array([log_normal(x, 0.0, 1.0), log_normal(x, self.data, self.sd)])

    def slopes(self, x):
        return np.array([-x, (self.data - x) / self.sd**2])

    def moments(self, beta):
        """Mean and standard deviation of a member."""
        precision = 1.0 + beta / self.sd**2
        return beta * self.data / self.sd**2 / precision, 1.0 / math.sqrt(precision)

    def draw(self, n, beta, rng):
        mean, sd = self.moments(beta)
        return mean + sd * rng.standard_normal((n, self.n_dim))

    def slope_sd(self, beta):
        """Standard deviation of the slope: (x - y)^2 has the variance 2 v^2 + 4 v (mean - y)^2."""
        mean, sd = self.moments(beta)
        variances = 2.0 * sd**4 + 4.0 * sd**2 * (mean - self.data) ** 2
        return math.sqrt(variances.sum()) / (2.0 * self.sd**2)


class Lossy(Gaussian):
    """Its prior draws of small first coordinates are lost, as those at the edge of a simplex are."""

    def draw_prior(self, n, rng):
        x = super().draw_prior(n, rng)
        x[x[:, 0] < -1.0] = np.nan
        return x

    def values(self, x):
        lost = np.isnan(x).any(axis=1)
        return np.where(lost, -np.inf, super().values(np.where(np.isnan(x), 0.0, x)))

    def gradients(self, x):
        return self.values(x), super().gradients(np.where(np.isnan(x), 0.0, x))[1]


class Counts(FromPrior):
    """Logarithms of gamma variables, and Poisson counts: the posterior is of the same kind."""

    shape, rate = np.array([2.0, 1.0]), np.array([1.0, 0.5])
    n_dim = 2

    def __init__(self, count=(3.0, 1.0), exposure=(0.5, 2.0)):
        super().__init__()
        self.count, self.exposure = np.array(count), np.array(exposure)
        self._constant = float(np.sum(self.shape * np.log(self.rate) - gammaln(self.shape)))
        shape, rate = self.shape + self.count, self.rate + self.exposure
        self.log_z = self._constant + float(np.sum(gammaln(shape) - shape * np.log(rate)))

    def terms(self, x):
        e = np.exp(np.minimum(x, 300.0))
        base = x @ self.shape - e @ self.rate + self._constant
        return np.array([base, x @ self.count - e @ self.exposure])

    def slopes(self, x):
        e = np.exp(np.minimum(x, 300.0))
        return np.array([self.shape - e * self.rate, self.count - e * self.exposure])

    def draw(self, n, beta, rng):
        shape, rate = self.shape + beta * self.count, self.rate + beta * self.exposure
        return np.log(rng.gamma(shape, 1.0 / rate, (n, 2)))


class HalfPlane(FromPrior):
    """x ~ N(0, I); the likelihood is exp(-x0) N(x1; 1, sd^2) where x0 > 0, else zero."""

    n_dim = 2
    #: Prior probability of what is possible.
    possible = 0.5

    def __init__(self, sd=0.5):
        super().__init__()
        self.sd = sd
        self.log_z = 0.5 + norm.logcdf(-1.0) + norm.logpdf(1.0, 0.0, math.hypot(1.0, sd))

    def terms(self, x):
        slope = log_normal(x[:, 1:], 1.0, self.sd) - x[:, 0]
        return np.array([log_normal(x, 0.0, 1.0), np.where(x[:, 0] > 0.0, slope, -np.inf)])

    def slopes(self, x):
        slope = np.column_stack([-np.ones(len(x)), (1.0 - x[:, 1]) / self.sd**2])
        slope[x[:, 0] <= 0.0] = np.nan
        return np.array([-x, slope])

    def draw(self, n, beta, rng):
        precision = 1.0 + beta / self.sd**2
        second = (precision - 1.0) / precision + rng.standard_normal(n) / math.sqrt(precision)
        first = rng.standard_normal(n)
        if beta > 0.0:
            first = truncnorm.rvs(beta, np.inf, -beta, 1.0, n, random_state=rng)
        return np.column_stack([first, second])


class TwoModes(FromPrior):
    """x ~ N(0, 3^2 I), likelihood 0.3 N(x; -2, sd^2 I) + 0.7 N(x; 2, sd^2 I)."""

    weights, means, wide = np.array([0.3, 0.7]), np.array([-2.0, 2.0]), 3.0

    def __init__(self, n_dim, sd=0.3):
        super().__init__()
        self.n_dim, self.sd = n_dim, sd
        total = math.hypot(self.wide, sd)
        at_means = [log_normal(np.zeros(n_dim), m, total) for m in self.means]
        self.log_z = float(logsumexp(at_means, b=self.weights))

    def parts(self, x):
        return np.array(
            [math.log(w) + log_normal(x, m, self.sd) for w, m in zip(self.weights, self.means)]
        )

    def terms(self, x):
        return np.array([log_normal(x, 0.0, self.wide), logsumexp(self.parts(x), axis=0)])

    def slopes(self, x):
        parts = self.parts(x)
        share = np.exp(parts - logsumexp(parts, axis=0))
        pull = sum(s[:, None] * (m - x) for s, m in zip(share, self.means, strict=True))
        return np.array([-x / self.wide**2, pull / self.sd**2])

    def draw_prior(self, n, rng):
        return self.wide * rng.standard_normal((n, self.n_dim))


class SpikeAndSlab(FromPrior):
    """A uniform box, a slab of evidence one and a spike of evidence 100 inside; by logits.

    The same problem as that of models/spike_and_slab.py.
    """

    def __init__(self, n_dim=20):
        super().__init__()
        self.n_dim = n_dim
        self.log_z = math.log(101.0)

    def parts(self, u):
        return np.array([log_normal(u, 0.0, 0.1), math.log(100.0) + log_normal(u, 0.031, 0.01)])

    def terms(self, x):
        base = np.sum(log_expit(x) + log_expit(-x), axis=1)
        return np.array([base, logsumexp(self.parts(expit(x) - 0.5), axis=0)])

    def slopes(self, x):
        p = expit(x)
        u = p - 0.5
        parts = self.parts(u)
        share = np.exp(parts - logsumexp(parts, axis=0))
        pull = share[0][:, None] * -u / 0.01 + share[1][:, None] * (0.031 - u) / 1e-4
        return np.array([1.0 - 2.0 * p, pull * p * (1.0 - p)])

    def draw_prior(self, n, rng):
        return rng.logistic(size=(n, self.n_dim))


class LabelAndNumber(FromPrior):
    """A label 0, 1 or 2, a number around the label's mean, one observation of the number."""

    n_dim = 2
    weights, means = np.array([0.5, 0.3, 0.2]), np.array([-1.0, 0.5, 3.0])
    datum, sd = 1.5, 0.7

    def __init__(self):
        super().__init__()
        one = norm.logpdf(self.datum, self.means, math.hypot(1.0, self.sd))
        self.log_z = float(logsumexp(one, b=self.weights))

    def terms(self, x):
        z = x[:, 0].astype(int)
        base = np.log(self.weights[z]) + norm.logpdf(x[:, 1], self.means[z])
        return np.array([base, norm.logpdf(x[:, 1], self.datum, self.sd)])

    def slopes(self, x):
        out = np.zeros((2, *x.shape))
        out[0, :, 1] = self.means[x[:, 0].astype(int)] - x[:, 1]
        out[1, :, 1] = (self.datum - x[:, 1]) / self.sd**2
        return out

    def draw_prior(self, n, rng):
        z = rng.choice(3, n, p=self.weights)
        return np.column_stack([z, self.means[z] + rng.standard_normal(n)])


def frozen(size, scale):
    """A ladder with one tuning."""
    tuning = Tuning(size, np.asarray(scale, float))
    return Ladder(
        np.array([0.0, 1.0]), np.array([0.0, 1.0]), (tuning,) * 2, 0.0, None, np.zeros(2), 1.0, 1.0
    )


def assert_mean(log_values, log_mean, precision=0.01):
    """The mean of exponentials is right, within four standard errors that are small themselves."""
    ratio = np.exp(log_values - log_mean)
    error = ratio.std(ddof=1) / math.sqrt(ratio.size)
    assert error < precision, error
    assert abs(ratio.mean() - 1.0) < 4.0 * error, (ratio.mean(), error)
