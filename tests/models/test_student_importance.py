"""Importance sampling from Student mixtures: known integrals, symmetry, honest errors."""

import math

import numpy as np
import pytest

from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t

from models.student_importance import (
    Component,
    average,
    importance_evidence,
    log_student,
    student_points,
)

MEAN = np.array([1.0, -2.0, 0.5])
SCALE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])


def test_density_and_points():
    root = np.linalg.cholesky(SCALE)
    x = student_points(MEAN, root, 8.0, 12, np.random.default_rng(1))
    assert x.shape == (4096, 3)
    expected = multivariate_t(MEAN, SCALE, df=8).logpdf(x)
    np.testing.assert_allclose(log_student(x, MEAN, root, 8.0), expected, rtol=1e-10)
    np.testing.assert_allclose(x.mean(axis=0), MEAN, atol=0.01)
    np.testing.assert_allclose(np.cov(x.T), SCALE * 8.0 / 6.0, atol=0.05)


def two_humps(x):
    first = multivariate_normal(MEAN, 0.5 * SCALE).logpdf(x) + math.log(3.0)
    second = multivariate_normal(-MEAN, SCALE).logpdf(x) + math.log(4.0)
    return np.logaddexp(first, second)


def test_known_integrals():
    components = [Component(2.0, MEAN, SCALE), Component(1.0, -MEAN, 1.5 * SCALE)]
    z = [
        (found.log_evidence - math.log(7.0)) / found.error
        for found in (
            importance_evidence(two_humps, components, log2_points=7, replicates=16, seed=s)
            for s in range(10)
        )
    ]
    assert np.abs(z).max() < 5.0
    assert 0.5 < np.sqrt(np.mean(np.square(z))) < 1.8


def test_images():
    """A proposal that sees one hump of a symmetric pair is enough when told of the symmetry."""

    def log_joint(x):
        return logsumexp(
            [multivariate_normal(m, SCALE).logpdf(x) for m in (4.0 * MEAN, -4.0 * MEAN)], axis=0
        )

    components = [Component(1.0, 4.0 * MEAN, 1.3 * SCALE)]
    found = importance_evidence(log_joint, components, log2_points=9, images=lambda x: [x, -x])
    assert found.error < 0.01
    assert abs(found.log_evidence - math.log(2.0)) < 4.0 * found.error


def test_average():
    logs = np.array([-1000.0, -1001.0, -1000.5, -999.0])
    found = average(logs)
    ratios = np.exp(logs + 1000.0)
    np.testing.assert_allclose(found.log_evidence, math.log(ratios.mean()) - 1000.0)
    np.testing.assert_allclose(found.error, ratios.std(ddof=1) / 2.0 / ratios.mean())


def test_bad_input():
    one = [Component(1.0, MEAN, SCALE)]
    with pytest.raises(ValueError, match="replicates must be at least 2"):
        importance_evidence(two_humps, one, replicates=1)
    with pytest.raises(ValueError, match="log2_points must be at least 1"):
        importance_evidence(two_humps, one, log2_points=0)
    with pytest.raises(ValueError, match="components must be at least one"):
        importance_evidence(two_humps, [])
    with pytest.raises(ValueError, match="positive shares"):
        importance_evidence(two_humps, [Component(0.0, MEAN, SCALE)])
