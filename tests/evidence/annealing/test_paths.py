"""Paths from a fitted reference and from a Gaussian."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.annealing import anneal, climb, power_schedule
from amc_pymc.evidence.mcmc import KERNELS, log_target, make_kernel
from amc_pymc.evidence.paths import ReferencePath
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import Counts, HalfPlane, assert_mean

Q = StudentTMixture([0.4, 0.6], [[0.0, 0.5], [1.0, -1.0]], [np.eye(2), 0.8 * np.eye(2)], 5.0)
BETAS = power_schedule(3, 1)
GAUSSIAN = StudentTMixture([1.0], [[0.3, -1.0]], [[[0.5, 0.0], [0.8, 1.7]]], math.inf)
REFERENCES = pytest.mark.parametrize("q", [Q, GAUSSIAN], ids=["mixture", "gaussian"])


def test_ends_and_middle():
    joint, x = Counts(), Q.sample(50, np.random.default_rng(1))
    path = ReferencePath(joint, Q)
    assert path.n_dim == 2
    terms, prior_times_likelihood = path.values(x), joint.terms(x).sum(axis=0)
    np.testing.assert_allclose(log_target(terms, 0.0), Q.log_density(x))
    np.testing.assert_allclose(log_target(terms, 1.0), prior_times_likelihood)
    middle = 0.3 * prior_times_likelihood + 0.7 * Q.log_density(x)
    np.testing.assert_allclose(log_target(terms, 0.3), middle)


@REFERENCES
def test_gradients(q):
    path, x = ReferencePath(Counts(), q), Q.sample(50, np.random.default_rng(2))
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


@REFERENCES
def test_impossible_points(q):
    path = ReferencePath(Heavy(), q)
    x = np.array([[1.0, 0.0], [-1.0, 0.0], [1e200, 0.0]])
    terms, gradients = path.gradients(x)
    assert np.isfinite(terms[0, :2]).all()  # the reference goes there
    np.testing.assert_array_equal(terms[1] > -np.inf, [True, False, False])
    assert not np.isnan(terms).any() and not (terms == np.inf).any()
    np.testing.assert_array_equal(terms, path.values(x))
    assert np.isfinite(gradients[:, 0]).all()
    assert terms[0, 2] == -np.inf


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
