"""Paths from a fitted reference, and from a Gaussian in coordinates in which it is standard normal."""

import math

import numpy as np
import pytest

from scipy.stats import multivariate_normal

from amc_pymc.evidence.annealing import anneal, climb, power_schedule
from amc_pymc.evidence.mcmc import KERNELS, log_target, make_kernel
from amc_pymc.evidence.paths import ReferencePath, WhitenedPath
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import Counts, HalfPlane, assert_mean

Q = StudentTMixture([0.4, 0.6], [[0.0, 0.5], [1.0, -1.0]], [np.eye(2), 0.8 * np.eye(2)], 5.0)
BETAS = power_schedule(3, 1)
MEAN, CHOLESKY = np.array([0.3, -1.0]), np.array([[0.5, 0.0], [0.8, 1.7]])
MADE = {
    "reference": lambda joint: ReferencePath(joint, Q),
    "whitened": lambda joint: WhitenedPath(joint, MEAN, CHOLESKY),
}


def test_ends_and_middle():
    joint, x = Counts(), Q.sample(50, np.random.default_rng(1))
    path = ReferencePath(joint, Q)
    assert path.n_dim == 2
    terms, prior_times_likelihood = path.values(x), joint.terms(x).sum(axis=0)
    np.testing.assert_allclose(log_target(terms, 0.0), Q.log_density(x))
    np.testing.assert_allclose(log_target(terms, 1.0), prior_times_likelihood)
    middle = 0.3 * prior_times_likelihood + 0.7 * Q.log_density(x)
    np.testing.assert_allclose(log_target(terms, 0.3), middle)


def test_ends_of_a_whitened_path():
    joint, z = Counts(), np.random.default_rng(1).standard_normal((50, 2))
    path = MADE["whitened"](joint)
    terms, x = path.values(z), path.points(z)
    assert path.n_dim == 2
    np.testing.assert_allclose(path.coordinates(x), z)
    log_volume = math.log(np.linalg.det(CHOLESKY))
    gaussian = multivariate_normal(MEAN, CHOLESKY @ CHOLESKY.T).logpdf(x)
    np.testing.assert_allclose(log_target(terms, 0.0), gaussian + log_volume)
    np.testing.assert_allclose(log_target(terms, 1.0), joint.values(x).sum(axis=0) + log_volume)


@pytest.mark.parametrize("kind", MADE)
def test_gradients(kind):
    path, x = MADE[kind](Counts()), Q.sample(50, np.random.default_rng(2))
    terms, gradients = path.gradients(x)
    np.testing.assert_allclose(terms, path.values(x))
    for d in range(2):
        h = 1e-5 * np.eye(2)[d]
        found = (path.values(x + h) - path.values(x - h)) / 2e-5
        np.testing.assert_allclose(found, gradients[:, :, d], rtol=1e-4, atol=1e-6)


class Heavy(HalfPlane):
    """A prior with tails that reach further than the reference."""

    def terms(self, x):
        possible = np.where(x[:, 0] > 0.0, -1.0, -np.inf)
        return np.array([-2.0 * np.log1p(np.abs(x)).sum(axis=1), possible])


@pytest.mark.parametrize("kind", MADE)
def test_impossible_points(kind):
    path = MADE[kind](Heavy())
    x = np.array([[1.0, 0.0], [-1.0, 0.0], [1e200, 0.0]])
    terms, gradients = path.gradients(x)
    assert np.isfinite(terms[0, :2]).all()  # the reference goes there
    np.testing.assert_array_equal(terms[1] > -np.inf, [True, False, False])
    assert not np.isnan(terms).any() and not (terms == np.inf).any()
    np.testing.assert_array_equal(terms, path.values(x))
    assert np.isfinite(gradients[:, 0]).all()
    assert kind == "whitened" or terms[0, 2] == -np.inf


class Infinite(HalfPlane):
    """Gradients of any kind where there is no likelihood."""

    def slopes(self, x):
        out = super().slopes(x)
        out[0, x[:, 0] <= 0.0] = -np.inf
        out[1, x[:, 0] <= 0.0] = np.inf
        return out


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("joint", [Counts(), HalfPlane(2.0), Infinite(2.0)])
def test_mean_weight(name, joint):
    kernel, rng = make_kernel(name), np.random.default_rng(3)
    path = ReferencePath(joint, Q)
    ladder = climb(path, Q.sample(400, rng), kernel, rng)
    joint.evaluated = joint.differentiated = 0
    found = anneal(path, Q.sample(40_000, rng), BETAS, kernel, ladder.at, rng)
    assert_mean(found.log_weights, joint.log_z)
    assert tuple(found.spent) == (joint.evaluated, joint.differentiated)
