import numpy as np
import pytest

from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal, norm

from models.variable_selection import full_fit, inclusion_probabilities, selection_model


def small(family, n=40, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    eta = X @ np.linspace(0.6, 0.0, p)
    y = eta + rng.normal(size=n) if family == "normal" else (rng.random(n) < expit(eta)) * 1
    return X, y


# --- references -----------------------------------------------------------------------------------


def test_enumeration_against_the_marginal_normal():
    """y ~ N(0, sigma^2 I + tau^2 X_g X_g' + s0^2 11') for every model g."""
    X, y = small("normal")
    found = inclusion_probabilities(X, y, inclusion=0.3, tau=0.7, sigma=1.3, intercept_sd=2.0)
    log_weight = []
    for model in found.models:
        active = X[:, model == 1]
        covariance = 1.69 * np.eye(40) + 0.49 * active @ active.T + 4.0
        prior = np.sum(np.where(model, np.log(0.3), np.log(0.7)))
        log_weight.append(multivariate_normal(np.zeros(40), covariance).logpdf(y) + prior)
    expected = np.exp(log_weight - logsumexp(log_weight))
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-8)
    np.testing.assert_allclose(found.inclusion, expected @ found.models, rtol=1e-8)


# --- models ---------------------------------------------------------------------------------------


def test_logp_of_the_model():
    X, y = small("bernoulli")
    fit = full_fit(X, y, tau=0.6)
    logp = selection_model(X, y, inclusion=0.2, tau=0.6).compile_logp()
    gamma, beta, a = np.array([1, 0, 1]), np.array([0.3, -0.2, 0.5]), 0.1
    eta = a + X @ (gamma * beta)
    expected = (
        y @ eta
        - np.logaddexp(0.0, eta).sum()
        + np.log([0.2, 0.8, 0.2]).sum()
        + norm.logpdf(beta[[0, 2]], 0.0, 0.6).sum()
        + norm.logpdf(beta[1], fit.mode[2], fit.error[2])
        + norm.logpdf(a, 0.0, 10.0)
    )
    found = logp({"gamma": gamma, "beta": beta, "intercept": np.array(a)})
    assert found == pytest.approx(expected)
