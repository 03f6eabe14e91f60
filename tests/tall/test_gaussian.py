import numpy as np
import pytest

from scipy import stats

from amc_pymc.tall.mode import gaussian_factor


def test_gaussian_factor_of_a_covariance():
    a = np.random.default_rng(3).normal(size=(6, 6))
    precision = a @ a.T + np.eye(6)
    factor, definite = gaussian_factor(precision)
    assert definite
    np.testing.assert_allclose(factor @ factor.T @ precision, np.eye(6), atol=1e-10)
    np.testing.assert_array_equal(factor, np.tril(factor))
    assert factor.flags.c_contiguous
    draws = np.random.default_rng(4).normal(size=(4_000, 6)) @ factor.T
    quadratic = np.einsum("ni,ij,nj->n", draws, precision, draws)
    assert stats.kstest(quadratic, stats.chi2(6).cdf).pvalue > 1e-4


@pytest.mark.parametrize("eigenvalues", [(4.0, 1.0, 0.0), (4.0, 1.0, -2.0), (-1.0, -1.0, -1.0)])
def test_gaussian_factor_lifts_what_is_not_positive(eigenvalues):
    q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    precision = (q * eigenvalues) @ q.T
    factor, definite = gaussian_factor(precision)
    assert not definite
    assert np.all(np.isfinite(factor))
    diagonal = np.diag(precision)
    scale = np.sqrt(diagonal) if (diagonal > 0.0).all() else np.ones(3)
    found = np.linalg.eigvalsh(factor @ factor.T * np.outer(scale, scale))
    values = np.linalg.eigvalsh(precision / np.outer(scale, scale))
    least = 1e-10 * max(values[-1], 1.0)
    expected = np.sort(1 / np.maximum(values, least))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-15 / least)


@pytest.mark.parametrize("unit", [1e-20, 1e6])
def test_gaussian_factor_whatever_the_units(unit):
    """An amount in cents beside a logarithm, whose precisions differ by 1e12 or more."""
    correlations = np.array([[1.0, 0.8, -0.3], [0.8, 1.0, 0.1], [-0.3, 0.1, 1.0]])
    sd = np.array([1e-3, 1.0, unit])
    precision = np.linalg.inv(correlations) / np.outer(sd, sd)
    factor, definite = gaussian_factor(precision)
    assert definite
    np.testing.assert_allclose(factor @ factor.T / np.outer(sd, sd), correlations, rtol=1e-9)
