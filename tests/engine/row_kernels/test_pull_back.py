"""Derivatives of coefficients by parameters, against products of matrices."""

import numpy as np
import pytest

from amc_pymc.engine.row_kernels.coefficients import pull_gradient, pull_hessian

SIZE, LEAVES, NUMBER = 5, 3, 4


@pytest.fixture(scope="module")
def parts():
    """Derivatives by z, places and curves, and the same curves as matrices."""
    rng = np.random.default_rng(1)
    slopes = rng.normal(size=SIZE + NUMBER)
    hessian = rng.normal(size=(SIZE + NUMBER, SIZE + NUMBER))
    hessian += hessian.T
    at = np.stack([rng.permutation(SIZE)[:LEAVES] for _ in range(NUMBER)], axis=1)
    curves = rng.normal(size=(LEAVES + LEAVES * (LEAVES + 1) // 2, NUMBER))
    jacobian = np.vstack([np.eye(SIZE), np.zeros((NUMBER, SIZE))])
    second = np.zeros((NUMBER, SIZE, SIZE))
    low = np.tril_indices(LEAVES)
    for j in range(NUMBER):
        jacobian[SIZE + j, at[:, j]] = curves[:LEAVES, j]
        a, b = at[low[0], j], at[low[1], j]
        second[j, a, b] = second[j, b, a] = curves[LEAVES:, j]
    return slopes, hessian, at, curves, jacobian, second


def test_gradient(parts):
    slopes, _, at, curves, jacobian, _ = parts
    np.testing.assert_allclose(pull_gradient(slopes, at, curves, SIZE), jacobian.T @ slopes)


def test_hessian(parts):
    slopes, hessian, at, curves, jacobian, second = parts
    wanted = jacobian.T @ hessian @ jacobian + np.tensordot(slopes[SIZE:], second, 1)
    np.testing.assert_allclose(pull_hessian(slopes, hessian, at, curves, SIZE), wanted)
