"""Reference evidences against SciPy's distributions, identities, and what the literature prints."""

import math

import numpy as np
import pytest

from scipy.stats import betabinom, loggamma, multivariate_normal, multivariate_t, norm

from models import (
    beta_binomial,
    funnel,
    ising,
    linear_regression,
    radiata_pine,
    spike_and_slab,
)
from models import shape_problems as shapes


@pytest.mark.parametrize("case", [(2, 10, 1.0, 1.0), (0, 5, 2.5, 1.0), (7, 7, 3.0, 4.5)])
def test_beta_binomial(case):
    value = beta_binomial.log_evidence(*case)
    np.testing.assert_allclose(value, betabinom.logpmf(*case), rtol=1e-11)


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


@pytest.mark.parametrize(("number", "printed"), [(1, -310.128286), (2, -301.704602)])
def test_radiata_pine(number, printed):
    value = radiata_pine.log_evidence(number)
    assert abs(value - printed) < 1e-6
    W = np.column_stack([np.ones(42), radiata_pine.covariate(number)])
    spread = 6e4 * (np.eye(42) + W @ np.diag([1 / 0.06, 1 / 6.0]) @ W.T)
    density = multivariate_t(W @ [3000.0, 185.0], spread, df=6)
    np.testing.assert_allclose(value, density.logpdf(radiata_pine.STRENGTH), rtol=1e-12)


@pytest.mark.parametrize(
    ("found", "known", "error"),
    [
        (funnel.log_evidence(np.zeros(9), 3.0, 1.0), -9.554, 5e-4),
        (spike_and_slab.log_evidence(20, 0.1, 0.01, 0.031, 100.0), math.log(101.0), 2e-7),
        (shapes.eggbox_log_evidence(), 235.855940, 1e-6),
        # A chain without a field: each bond contributes cosh(J).
        (ising.log_evidence(1, 7, 0.5, 0.0), 6.0 * math.log(math.cosh(0.5)), 1e-12),
        *(
            (shapes.shells_log_evidence(d, 2.0, 0.1, 3.5, 6.0), printed, 1e-4)
            for d, printed in ((2, -1.7456), (5, -5.6736), (10, -14.5905), (30, -60.1278))
        ),
        *((shapes.log_gamma_log_evidence(d), -d * math.log(60.0), 2e-9) for d in (2, 10)),
    ],
)
def test_literature(found, known, error):
    assert abs(found - known) < error


@pytest.mark.parametrize("d", [2, 3, 10])
def test_log_gamma_likelihood(d):
    x = np.random.default_rng(d).uniform(-12.0, 12.0, d)
    kinds = [loggamma(1.0, 10.0)] * shapes.n_skewed(d)
    kinds += [norm(10.0)] * (d - 2 - shapes.n_skewed(d))
    by_scipy = math.log(0.5 * loggamma.pdf(x[0], 1, 10) + 0.5 * loggamma.pdf(x[0], 1, -10))
    by_scipy += np.logaddexp(norm.logpdf(x[1], 10), norm.logpdf(x[1], -10)) - math.log(2)
    by_scipy += sum(kind.logpdf(value) for kind, value in zip(kinds, x[2:], strict=True))
    np.testing.assert_allclose(shapes.log_gamma_log_likelihood(x), by_scipy, rtol=1e-10)
