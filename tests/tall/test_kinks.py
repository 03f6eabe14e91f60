"""Curvature by differences of gradients, where second derivatives miss it and nowhere else."""

import numpy as np
import pytest

from amc_pymc.tall.mode import kinked_precision, secant_precision

N = 20_000
ROWS = np.random.default_rng(1).normal(size=(N, 8))
ERRORS = np.random.default_rng(2).laplace(size=N)


def kinked(gradient, hessian, factor, seed=3):
    with np.errstate(all="ignore"):
        return kinked_precision(gradient, hessian, factor, np.random.default_rng(seed))


def of_laplace(prior):
    """Gradient and Hessian of a regression with Laplace errors, around the true coefficients."""

    def gradient(shift):
        x = ROWS[:, : len(shift)]
        return np.sign(ERRORS - x @ shift) @ x - prior * shift

    return gradient, lambda shift: -prior * np.eye(len(shift))


def expected_sd(size):
    """The expected curvature is X'X times twice the density of errors at zero, which is one half."""
    return np.sqrt(np.diag(np.linalg.inv(ROWS[:, :size].T @ ROWS[:, :size])))


@pytest.mark.parametrize("prior", [1.0, 1e-10])
def test_precision_of_a_regression_with_laplace_errors(prior):
    found = kinked(*of_laplace(prior), np.eye(3) / np.sqrt(prior))
    np.testing.assert_allclose(np.sqrt(np.diag(np.linalg.inv(found))), expected_sd(3), rtol=0.15)


SMOOTH = {
    "as expected": (lambda x: -9.0 * x, lambda x: -9.0 * np.eye(x.size), 1 / 3),
    "four times as narrow": (lambda x: -9.0 * x, lambda x: -9.0 * np.eye(x.size), 3.0),
    "no curvature at the mode": (lambda x: -4e4 * x**3, lambda x: -12e4 * np.diag(x**2), 10.0),
    "logistic": (lambda x: -N * np.tanh(x), lambda x: -N * np.diag(np.cosh(x) ** -2), 1e3),
    "a valley": (lambda x: N * x, lambda x: N * np.eye(x.size), 1.0),
    "not finite": (lambda x: np.full(x.size, np.nan), lambda x: np.eye(x.size), 1.0),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("size", [1, 4])
def test_nothing_is_measured_where_there_are_no_kinks(name, size):
    gradient, hessian, scale = SMOOTH[name]
    assert kinked(gradient, hessian, scale * np.eye(size)) is None


def test_differences_of_a_quadratic_function_are_its_curvature():
    a = np.random.default_rng(4).normal(size=(5, 5))
    precision = a @ a.T + np.eye(5)
    factor = np.linalg.cholesky(np.linalg.inv(precision + 0.2 * np.eye(5)))
    np.testing.assert_allclose(secant_precision(lambda x: -precision @ x, factor), precision)
