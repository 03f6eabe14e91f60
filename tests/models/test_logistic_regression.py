"""Logistic regressions: the reference against quadrature, the frozen values, the reading of data."""

import math

import numpy as np

from scipy.special import logsumexp
from scipy.stats import norm

from models.logistic_regression import (
    FROZEN,
    breast_cancer,
    load_breast_cancer,
    log_likelihoods,
    logistic_regression,
    reference,
    simulate,
)


def test_reference_by_quadrature():
    X, y = simulate(30, 2, seed=3)
    scales = np.array([2.5, 0.8])
    grid = [np.linspace(-8.0 * s, 8.0 * s, 401) for s in scales]
    theta = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = log_likelihoods(theta, X, y) + norm.logpdf(theta, 0.0, scales).sum(axis=1)
    cell = math.prod(g[1] - g[0] for g in grid)
    exact = logsumexp(log_joint) + math.log(cell)
    found = reference(X, y, scales, log2_points=10)
    assert found.error < 1e-3
    assert abs(found.log_evidence - exact) < 4.0 * found.error


def test_frozen_references():
    """A quick run with another seed."""
    X, y = simulate(50, 8)
    found = reference(X, y, np.full(8, 2.5), log2_points=10, seed=5)
    frozen = FROZEN["logistic_regression"]
    assert logistic_regression().log_evidence == frozen.log_evidence
    assert frozen.error < 5e-4 < found.error < 0.01
    assert abs(found.log_evidence - frozen.log_evidence) < 4.0 * found.error

    X, y = load_breast_cancer()
    design = np.column_stack([np.ones(y.size), X])
    found = reference(design, y, np.append(5.0, np.full(8, 2.5)), log2_points=9, seed=5)
    frozen = FROZEN["breast_cancer"]
    assert breast_cancer().log_evidence == frozen.log_evidence
    assert frozen.error < 5e-4 < found.error < 0.01
    assert abs(found.log_evidence - frozen.log_evidence) < 4.0 * found.error
