"""The path from a Gaussian in coordinates in which it is standard normal."""

import math

import numpy as np

from scipy.stats import multivariate_normal

from amc_pymc.evidence.mcmc import log_target
from amc_pymc.evidence.paths import WhitenedPath
from tests.evidence.annealing.problems import Counts, HalfPlane

MEAN = np.array([0.3, -1.0])
CHOLESKY = np.array([[0.5, 0.0], [0.8, 1.7]])


def points(n=50, seed=1):
    return np.random.default_rng(seed).standard_normal((n, 2))


def test_ends():
    joint, z = Counts(), points()
    path = WhitenedPath(joint, MEAN, CHOLESKY)
    terms, x = path.values(z), path.points(z)
    assert path.n_dim == 2
    np.testing.assert_allclose(path.coordinates(x), z)
    log_volume = math.log(np.linalg.det(CHOLESKY))
    gaussian = multivariate_normal(MEAN, CHOLESKY @ CHOLESKY.T).logpdf(x)
    np.testing.assert_allclose(log_target(terms, 0.0), gaussian + log_volume)
    np.testing.assert_allclose(log_target(terms, 1.0), joint.values(x).sum(axis=0) + log_volume)


def test_gradients():
    path, z = WhitenedPath(Counts(), MEAN, CHOLESKY), points()
    terms, gradients = path.gradients(z)
    np.testing.assert_allclose(terms, path.values(z))
    for d in range(2):
        h = 1e-5 * np.eye(2)[d]
        found = (path.values(z + h) - path.values(z - h)) / 2e-5
        np.testing.assert_allclose(found, gradients[:, :, d], rtol=1e-4, atol=1e-6)


class Cauchy(HalfPlane):
    """A prior with tails that reach further than the Gaussian."""

    def terms(self, x):
        possible = np.where(x[:, 0] > 0.0, -1.0, -np.inf)
        return np.array([-2.0 * np.log1p(np.abs(x)).sum(axis=1), possible])


def test_impossible_points():
    path = WhitenedPath(Cauchy(), np.zeros(2), np.eye(2))
    terms, _ = path.gradients(np.array([[1.0, 0.0], [-1.0, 0.0], [1e200, 0.0]]))
    np.testing.assert_array_equal(terms[1] > -np.inf, [True, False, False])
    assert not np.isnan(terms).any()
