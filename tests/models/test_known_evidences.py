"""Reference evidences against a second computation of each, and against what the literature prints."""

import math

import numpy as np
import pytest

from scipy.stats import betabinom, loggamma, multivariate_normal, multivariate_t, norm

from models import (
    beta_binomial,
    contamination,
    correlated_gaussian,
    eggbox,
    funnel,
    ising,
    linear_regression,
    log_gamma,
    radiata_pine,
    shells,
    spike_and_slab,
    two_modes,
)


@pytest.mark.parametrize("case", [(2, 10, 1.0, 1.0), (0, 5, 2.5, 1.0), (7, 7, 3.0, 4.5)])
def test_beta_binomial(case):
    k, n, a, b = case
    value = beta_binomial.log_evidence(*case)
    np.testing.assert_allclose(value, betabinom.logpmf(k, n, a, b), rtol=1e-11)
    np.testing.assert_allclose(value, beta_binomial.log_evidence_by_quadrature(*case), rtol=1e-9)
    total = sum(math.exp(beta_binomial.log_evidence(j, n, a, b)) for j in range(n + 1))
    assert abs(total - 1.0) < 1e-12
    assert abs(beta_binomial.log_evidence(k, n, 1.0, 1.0) + math.log(n + 1)) < 1e-12


@pytest.mark.parametrize("shape", [(100, 5), (3, 5), (40, 1)])
def test_linear_regression(shape):
    X, y = linear_regression.simulate(*shape, seed=4)
    n = y.size
    known = linear_regression.log_evidence_known_variance(X, y, 0.7, 2.5)
    spread = 0.49 * np.eye(n) + 6.25 * X @ X.T
    np.testing.assert_allclose(known, multivariate_normal(cov=spread).logpdf(y), rtol=1e-9)
    unknown = linear_regression.log_evidence_unknown_variance(X, y, 2.5, 3.0, 2.0)
    spread = 2.0 / 3.0 * (np.eye(n) + 6.25 * X @ X.T)
    np.testing.assert_allclose(unknown, multivariate_t(shape=spread, df=6).logpdf(y), rtol=1e-9)


def test_radiata_pine():
    assert radiata_pine.STRENGTH.size == 42
    assert radiata_pine.DENSITY.size == radiata_pine.ADJUSTED_DENSITY.size == 42
    # Resin adds to the density, and specimen 34 is the weakest.
    assert np.all(radiata_pine.DENSITY >= radiata_pine.ADJUSTED_DENSITY)
    assert radiata_pine.STRENGTH.argmin() == 33
    values = [radiata_pine.log_evidence(number) for number in (1, 2)]
    np.testing.assert_allclose(values, [-310.128286, -301.704602], atol=1e-6)
    again = [radiata_pine.log_evidence_by_quadrature(number) for number in (1, 2)]
    np.testing.assert_allclose(values, again, rtol=1e-12)
    for number, value in enumerate(values, 1):
        W = np.column_stack([np.ones(42), radiata_pine.covariate(number)])
        spread = 6e4 * (np.eye(42) + W @ np.diag([1 / 0.06, 1 / 6.0]) @ W.T)
        density = multivariate_t(W @ [3000.0, 185.0], spread, df=6)
        np.testing.assert_allclose(value, density.logpdf(radiata_pine.STRENGTH), rtol=1e-12)


@pytest.mark.parametrize("case", [(10, 0.3, 2.0, 0.5, 3.0), (1, 0.9, 0.7, 1.5, 0.4)])
def test_two_modes(case):
    value = two_modes.log_evidence(*case)
    np.testing.assert_allclose(value, two_modes.log_evidence_by_quadrature(*case), rtol=1e-9)


@pytest.mark.parametrize("y", [np.zeros(9), np.array([0.2, -4.0, 30.0]), np.array([1e-3])])
def test_funnel(y):
    for scale, sigma in ((3.0, 1.0), (1.0, 0.2)):
        value = funnel.log_evidence(y, scale, sigma)
        again = funnel.log_evidence_adaptively(y, scale, sigma)
        np.testing.assert_allclose(value, again, rtol=1e-9)
    assert abs(funnel.log_evidence(np.zeros(9), 3.0, 1.0) + 9.554) < 5e-4


@pytest.mark.parametrize("case", [(20, 0.1, 0.01, 0.031, 100.0), (3, 0.3, 0.2, 0.45, 2.0)])
def test_spike_and_slab(case):
    value = spike_and_slab.log_evidence(*case)
    np.testing.assert_allclose(
        value, spike_and_slab.log_evidence_by_quadrature(*case), rtol=1e-10, atol=1e-10
    )
    if case[0] == 20:
        assert abs(value - math.log(101.0)) < 2e-7


@pytest.mark.parametrize(
    ("d", "published"), [(2, -1.7456), (5, -5.6736), (10, -14.5905), (20, -36.0865), (30, -60.1278)]
)
def test_shells(d, published):
    value = shells.log_evidence(d, 2.0, 0.1, 3.5, 6.0)
    again = shells.log_evidence_on_a_grid(d, 2.0, 0.1, 3.5, 6.0)
    np.testing.assert_allclose(value, again, rtol=1e-11)
    assert abs(value - published) < 1e-4


def test_eggbox():
    value = eggbox.log_evidence()
    assert abs(value - 235.855940) < 1e-6
    for cells in (1, 5):
        np.testing.assert_allclose(value, eggbox.log_evidence_on_the_box(cells), rtol=1e-11)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_log_gamma(d):
    value = log_gamma.log_evidence(d)
    np.testing.assert_allclose(value, log_gamma.log_evidence_by_quadrature(d), rtol=1e-10)
    assert abs(value + d * math.log(60.0)) < 2e-9
    x = np.random.default_rng(d).uniform(-12.0, 12.0, d)
    kinds = [loggamma(1.0, 10.0)] * log_gamma.n_skewed(d)
    kinds += [norm(10.0)] * (d - 2 - log_gamma.n_skewed(d))
    by_scipy = math.log(0.5 * loggamma.pdf(x[0], 1, 10) + 0.5 * loggamma.pdf(x[0], 1, -10))
    by_scipy += np.logaddexp(norm.logpdf(x[1], 10), norm.logpdf(x[1], -10)) - math.log(2)
    by_scipy += sum(kind.logpdf(value) for kind, value in zip(kinds, x[2:], strict=True))
    np.testing.assert_allclose(log_gamma.log_likelihood(x), by_scipy, rtol=1e-10)


@pytest.mark.parametrize(("d", "rho"), [(1, 0.0), (3, 0.95), (10, 0.95)])
def test_correlated_gaussian(d, rho):
    value = correlated_gaussian.log_evidence(d, 10.0)
    found = correlated_gaussian.log_evidence_by_importance(d, rho, 10.0)
    assert found.error < 0.02
    assert abs(found.log_evidence - value) < 4.0 * found.error


def test_ising():
    for case in ((4, 4, 0.3, 0.1), (2, 5, -0.8, 0.3), (1, 7, 0.5, 0.0)):
        value = ising.log_evidence(*case)
        np.testing.assert_allclose(value, ising.log_evidence_by_transfer(*case), rtol=1e-12)
    # A chain without a field: each bond contributes cosh(J).
    np.testing.assert_allclose(ising.log_evidence(1, 7, 0.5, 0.0), 6.0 * math.log(math.cosh(0.5)))


def test_contamination():
    for case in ((0.2, (0.5, 5.0), 10.0), (0.6, (2.0, 1.0), 3.0)):
        y = np.array(contamination.MEASUREMENTS)
        value = contamination.log_evidence(y, *case)
        again = contamination.log_evidence_by_quadrature(y, *case)
        np.testing.assert_allclose(value, again, rtol=1e-11)
