"""Paths of densities, none of them symmetric, that can be sampled exactly at any beta."""

import numpy as np

from scipy.special import gammaln


class Path:
    """Counts what it is asked for and insists on points that are finite."""

    def __init__(self):
        self.evaluated = self.differentiated = 0

    def values(self, x):
        self._check(x)
        self.evaluated += len(x)
        return self.terms(x)

    def gradients(self, x):
        self._check(x)
        self.differentiated += len(x)
        return self.terms(x), self.slopes(x)

    def _check(self, x):
        assert x.ndim == 2
        assert x.shape[1] == self.n_dim
        assert len(x) > 0
        assert np.isfinite(x).all()


class LogGamma(Path):
    """Logarithms of three gamma variables, of shape 2 + beta and less, and of any rate."""

    n_dim = 3

    def terms(self, x):
        e = np.exp(np.minimum(x, 300.0))
        base = x @ [2.0, 1.0, 0.5] - e @ [1.0, 3.0, 0.2]
        return np.array([base, x @ [1.0, 0.0, 2.0] - e @ [0.5, 2.0, 0.0]])

    def slopes(self, x):
        e = np.exp(np.minimum(x, 300.0))
        return np.array(
            [np.array([2.0, 1.0, 0.5]) - e * [1.0, 3.0, 0.2], [1.0, 0.0, 2.0] - e * [0.5, 2.0, 0.0]]
        )

    def draw(self, n, beta, rng):
        shape = np.array([2.0, 1.0, 0.5]) + beta * np.array([1.0, 0.0, 2.0])
        rate = np.array([1.0, 3.0, 0.2]) + beta * np.array([0.5, 2.0, 0.0])
        return np.log(rng.gamma(shape, 1.0 / rate, (n, 3)))


class Banana(Path):
    """x0 ~ N(0, 2^2), x1 given x0 around x0^2 / 4, ever closer."""

    n_dim = 2

    def terms(self, x):
        left = x[:, 1] - 0.25 * x[:, 0] ** 2
        return np.array([-(x[:, 0] ** 2) / 8.0 - 0.5 * left**2, -1.5 * left**2])

    def slopes(self, x):
        left = x[:, 1] - 0.25 * x[:, 0] ** 2
        bend = np.column_stack([0.5 * x[:, 0] * left, -left])
        base = bend.copy()
        base[:, 0] -= x[:, 0] / 4.0
        return np.array([base, 3.0 * bend])

    def draw(self, n, beta, rng):
        x = 2.0 * rng.standard_normal(n)
        noise = rng.standard_normal(n) / np.sqrt(1.0 + 3.0 * beta)
        return np.column_stack([x, 0.25 * x**2 + noise])


class TiltedMixture(Path):
    """0.7 N(-1, 0.5^2) + 0.3 N(2, 1) in one dimension, tilted by exp(beta x)."""

    n_dim = 1
    weights, means, sds = np.array([0.7, 0.3]), np.array([-1.0, 2.0]), np.array([0.5, 1.0])

    def parts(self, x):
        return (
            self.weights
            / self.sds
            * np.exp(-0.5 * np.minimum((x - self.means) / self.sds, 35) ** 2)
        )

    def terms(self, x):
        return np.array([np.log(self.parts(x).sum(axis=1) + 1e-250), x[:, 0]])

    def slopes(self, x):
        parts = self.parts(x)
        pull = np.sum(parts * (self.means - x) / self.sds**2, axis=1) / (parts.sum(axis=1) + 1e-250)
        return np.array([pull[:, None], np.ones_like(x)])

    def draw(self, n, beta, rng):
        weights = self.weights * np.exp(beta * self.means + 0.5 * (beta * self.sds) ** 2)
        part = rng.choice(2, n, p=weights / weights.sum())
        x = self.means + beta * self.sds**2 + self.sds * rng.standard_normal((n, 2))
        return x[np.arange(n), part][:, None]


class Scaled(Path):
    """A Gaussian of correlated coordinates with scales 0.001, 1 and 1000, and linear data."""

    n_dim = 3

    def __init__(self):
        super().__init__()
        units = np.array([1e-3, 1.0, 1e3])
        correlation = np.array([[1.0, 0.8, 0.3], [0.8, 1.0, -0.1], [0.3, -0.1, 1.0]])
        self.mean = units * [5.0, 0.0, -1.0]
        self.precision = np.linalg.inv(correlation * np.outer(units, units))
        self.row = np.array([1.0, -2.0, 1.0]) / units

    def terms(self, x):
        away = x - self.mean
        base = -0.5 * np.einsum("ij,ij->i", away @ self.precision, away)
        return np.array([base, -0.5 * (x @ self.row - 2.0) ** 2])

    def slopes(self, x):
        return np.array(
            [-(x - self.mean) @ self.precision, -(x @ self.row - 2.0)[:, None] * self.row]
        )

    def draw(self, n, beta, rng):
        covariance = np.linalg.inv(self.precision + beta * np.outer(self.row, self.row))
        mean = covariance @ (self.precision @ self.mean + 2.0 * beta * self.row)
        units = np.array([1e-3, 1.0, 1e3])
        chol = units[:, None] * np.linalg.cholesky(covariance / np.outer(units, units))
        return mean + rng.standard_normal((n, 3)) @ chol.T


class Corner(Path):
    """Exponential variables; the slope forbids a sum above 3, no gradient where nothing is allowed."""

    n_dim = 2

    def terms(self, x):
        base = np.where((x > 0.0).all(axis=1), -x.sum(axis=1), -np.inf)
        slope = np.where(x.sum(axis=1) < 3.0, -0.5 * x[:, 0] - 2.0 * x[:, 1], -np.inf)
        return np.array([base, slope])

    def slopes(self, x):
        base, slope = self.terms(x)
        gradients = np.array([-np.ones_like(x), np.ones_like(x) * [-0.5, -2.0]])
        gradients[0, base == -np.inf] = np.nan
        gradients[1, slope == -np.inf] = np.nan
        return gradients

    def draw(self, n, beta, rng):
        x = rng.exponential(1.0 / (1.0 + beta * np.array([0.5, 2.0])), (6 * n, 2))
        return x[(x.sum(axis=1) < 3.0) | (beta == 0.0)][:n]


class LabelsAndCounts(Path):
    """A label -1, 2 or 7, a count that is Poisson given it, a real number given both.

    The slope tilts the counts by exp(beta count / 2). Coordinates: count, real, label.
    """

    n_dim = 3
    labels, weights = np.array([-1, 2, 7]), np.array([0.2, 0.5, 0.3])
    rates, means = np.array([0.7, 4.0, 1.5]), np.array([0.0, -1.0, 2.0])

    def _label(self, x):
        return np.searchsorted(self.labels, x[:, 2])

    def terms(self, x):
        count, real, z = x[:, 0], x[:, 1], self._label(x)
        possible = np.maximum(count, 0.0)
        base = np.log(self.weights[z]) + possible * np.log(self.rates[z]) - self.rates[z]
        base -= gammaln(possible + 1.0) + 0.5 * (real - self.means[z] - 0.5 * count) ** 2
        base[count < 0] = -np.inf
        return np.array([base, 0.5 * count])

    def slopes(self, x):
        gradients = np.zeros((2, *x.shape))
        gradients[0, :, 1] = self.means[self._label(x)] + 0.5 * x[:, 0] - x[:, 1]
        gradients[:, :, [0, 2]] = np.nan  # nobody should look there
        return gradients

    def draw(self, n, beta, rng):
        rates = self.rates * np.exp(0.5 * beta)
        weights = self.weights * np.exp(rates - self.rates)
        z = rng.choice(3, n, p=weights / weights.sum())
        count = rng.poisson(rates[z])
        real = self.means[z] + 0.5 * count + rng.standard_normal(n)
        return np.column_stack([count, real, self.labels[z]])


class Gaussian(Path):
    """Standard normal, half of it in the slope."""

    def __init__(self, n_dim):
        super().__init__()
        self.n_dim = n_dim

    def terms(self, x):
        half = -0.25 * np.einsum("ij,ij->i", x, x)
        return np.array([half, half])

    def slopes(self, x):
        return np.array([-0.5 * x, -0.5 * x])


CONTINUOUS = (LogGamma, Banana, TiltedMixture, Scaled, Corner)


class Fixed:
    """Stands in for a generator: normals as given, every proposal accepted, step sizes in the middle."""

    def __init__(self, normals):
        self.normals = normals

    def standard_normal(self, shape):
        assert shape == self.normals.shape
        return self.normals.copy()

    def random(self, n):
        return np.zeros(n)
