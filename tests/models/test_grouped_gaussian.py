"""Gaussian mixed models in closed form, against densities and integrals computed otherwise."""

import math

import numpy as np
import pytest

from pytensor.compile.mode import Mode
from scipy.integrate import cubature, quad
from scipy.stats import halfnorm, multivariate_normal, norm

from models.group_problems import EFFECTS, ERRORS
from models.grouped import EXAMPLES, simulate_intercepts
from models.grouped_gaussian import (
    eight_schools_reference,
    gaussian_reference,
    given_sds,
    log_marginal,
    sums,
)

PYTHON = Mode(linker="py", optimizer=None)
BETA, SIGMA, TAU = np.array([0.1, 0.4, -0.2]), 0.7, 0.9


@pytest.fixture
def data():
    return simulate_intercepts("gaussian", 40, 12, sizes="unbalanced", seed=3)


def test_reference_by_adaptive_integration(data):
    """Evidence and mean of tau over (sigma, tau), by another rule in other coordinates."""
    s = sums(data)
    moments, log_evidence = gaussian_reference(data)

    def integrands(x):
        sigma, tau = x.T
        prior = halfnorm.pdf(sigma) * halfnorm.pdf(tau)
        density = np.exp(given_sds(s, sigma, tau)[0] - log_evidence) * prior
        return np.stack([density, tau * density], axis=1)

    total, mean = cubature(integrands, [0.3, 0.0], [1.6, 5.0], rtol=1e-7, atol=1e-7).estimate
    assert total == pytest.approx(1.0, abs=1e-5)
    assert moments["sd_group"].mean == pytest.approx(mean, abs=1e-5)


def test_reference_and_pymc_have_the_same_density(data):
    """The model's joint density is the marginal one times that of the effects given the rest."""
    model = EXAMPLES["gaussian"].build(data)
    u = np.linspace(-1.0, 1.0, 12)
    point = {"beta": BETA, "sd_group_log__": math.log(TAU), "sigma_log__": math.log(SIGMA)}
    found = float(model.compile_logp(mode=PYTHON)({**point, "group": u}))
    group = data.groups["group"]
    n, r = np.bincount(group, minlength=12), data.y - data.X @ BETA
    precision = n / SIGMA**2 + 1.0 / TAU**2
    mean = np.bincount(group, weights=r, minlength=12) / SIGMA**2 / precision
    expected = log_marginal(data, BETA, SIGMA, TAU) + norm.logpdf(BETA, 0.0, 2.0).sum()
    expected += halfnorm.logpdf([SIGMA, TAU]).sum() + math.log(SIGMA * TAU)
    expected += norm.logpdf(u, mean, precision**-0.5).sum()
    assert found == pytest.approx(expected)


# --- eight schools --------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean_scale", "sd_scale"), [(5.0, 5.0), (10.0, 2.0)])
def test_eight_schools_by_adaptive_integration(mean_scale, sd_scale):
    moments, log_evidence = eight_schools_reference(mean_scale=mean_scale, sd_scale=sd_scale)
    y, errors = EFFECTS, ERRORS

    def density(tau):
        covariance = np.diag(errors**2 + tau**2) + mean_scale**2
        log_p = multivariate_normal.logpdf(y, np.zeros(8), covariance)
        return math.exp(log_p - log_evidence) * halfnorm.pdf(tau, scale=sd_scale)

    def theta(tau):  # their mean, with mu integrated out
        prior = tau**2 * np.eye(8) + mean_scale**2
        return prior @ np.linalg.solve(prior + np.diag(errors**2), y)

    top = 12.0 * sd_scale
    assert quad(density, 0.0, top)[0] == pytest.approx(1.0, abs=1e-6)
    mean = quad(lambda t: t * density(t), 0.0, top)[0]
    square = quad(lambda t: t**2 * density(t), 0.0, top)[0]
    assert moments["tau"].mean == pytest.approx(mean, abs=1e-5)
    assert moments["tau"].sd == pytest.approx(math.sqrt(square - mean**2), abs=1e-5)
    first = quad(lambda t: theta(t)[0] * density(t), 0.0, top)[0]
    assert moments["theta"].mean[0] == pytest.approx(first, abs=1e-5)
