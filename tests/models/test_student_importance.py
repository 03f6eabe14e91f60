"""Importance sampling from Student mixtures: known integrals, symmetry, honest errors."""

import math

import numpy as np

from scipy.stats import multivariate_normal

from models.student_importance import Component, importance_evidence

MEAN = np.array([1.0, -2.0, 0.5])
SCALE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])


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
