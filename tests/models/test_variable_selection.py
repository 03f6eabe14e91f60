import itertools

import numpy as np
import pytest

from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal, norm

from amc_pymc.reading import extract_rows
from models.variable_selection import (
    doctor_visits,
    full_fit,
    grid_model,
    grid_probabilities,
    inclusion_probabilities,
    selection_model,
    sparse_data,
)


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


@pytest.mark.slow
def test_the_model_has_the_enumerated_posterior():
    """Integrated over beta and the intercept, whatever the pseudo-prior, gamma has its posterior."""
    X, y = small("normal", p=1)
    X = 0.5 * X
    model = selection_model(X, y, family="normal", inclusion=0.4, tau=0.8, intercept_sd=3.0)
    logp = model.compile_logp()
    beta, intercept = np.linspace(-5.0, 5.0, 61), np.linspace(-1.5, 1.5, 31)
    log_weight = [
        logsumexp(
            [
                logp({"gamma": np.array([g]), "beta": np.array([b]), "intercept": np.array(a)})
                for b, a in itertools.product(beta, intercept)
            ]
        )
        for g in (0, 1)
    ]
    expected = inclusion_probabilities(X, y, inclusion=0.4, tau=0.8, intercept_sd=3.0).inclusion
    assert expit(log_weight[1] - log_weight[0]) == pytest.approx(expected[0], rel=1e-6)
    assert 0.05 < expected[0] < 0.95


@pytest.mark.parametrize("family", ["bernoulli", "normal"])
def test_full_fit(family):
    """Against a general optimiser, and the curvature by differences."""
    X, y = small(family)

    def objective(b):
        eta = b[0] + X @ b[1:]
        if family == "normal":
            log_lik = norm.logpdf(y, eta, 1.2).sum()
        else:
            log_lik = y @ eta - np.logaddexp(0.0, eta).sum()
        return -log_lik + 0.5 * (b[0] / 10.0) ** 2 + 0.5 * np.sum((b[1:] / 0.5) ** 2)

    fit = full_fit(X, y, family=family, sigma=1.2, tau=0.5)
    best = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(fit.mode, best.x, atol=1e-5)
    h, eye = 1e-3, np.eye(4)
    hessian = [
        [
            sum(
                s * r * objective(fit.mode + h * (s * eye[i] + r * eye[j]))
                for s in (1, -1)
                for r in (1, -1)
            )
            / (4 * h * h)
            for j in range(4)
        ]
        for i in range(4)
    ]
    np.testing.assert_allclose(fit.error, np.sqrt(np.diag(np.linalg.inv(hessian))), rtol=1e-4)


@pytest.mark.parametrize("family", ["bernoulli", "normal"])
def test_grid_against_the_model(family):
    X, y = small(family, p=2)
    levels, weights = (-0.5, 0.0, 0.5, 1.0), (0.1, 0.5, 0.2, 0.2)
    found = grid_probabilities(X, y, levels=levels, weights=weights, family=family, sigma=1.1)
    model = grid_model(X, y, levels=levels, weights=weights, family=family, sigma=1.1)
    logp = model.compile_logp()
    log_weight = np.array([logp({"level": state}) for state in found.states])
    expected = np.exp(log_weight - logsumexp(log_weight))
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-8)
    for j, k in itertools.product(range(2), range(4)):
        assert found.marginals[j, k] == pytest.approx(expected[found.states[:, j] == k].sum())


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bernoulli", "normal"])
def test_rows_can_be_subsampled(family):
    X, y = small(family)
    for model in (
        selection_model(X, y, family=family, names=["a", "b", "c"]),
        grid_model(X, y, family=family),
    ):
        assert extract_rows(model).n_rows == 40
        assert model.named_vars_to_dims["y"] == ("obs",)


def test_indicators_start_at_one_and_effects_at_the_fit():
    X, y = small("bernoulli")
    fit = full_fit(X, y)
    point = selection_model(X, y).initial_point()
    np.testing.assert_array_equal(point["gamma"], 1)
    np.testing.assert_allclose(point["beta"], fit.mode[1:])
    assert point["intercept"] == pytest.approx(fit.mode[0])


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


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1000, 20_000])
def test_some_effects_are_uncertain(n):
    data = sparse_data(n, family="normal", rng=np.random.default_rng(0))
    found = inclusion_probabilities(data.X, data.y).inclusion
    assert np.sum((found > 0.05) & (found < 0.95)) >= 2
    assert found[:6].max() > 0.99
    assert found[6:].mean() < found[:6].mean()


def test_effects_are_in_standard_errors():
    data = sparse_data(20_000, rng=np.random.default_rng(1))
    fit = full_fit(data.X, data.y)
    z = (fit.mode[1:] - data.beta) / fit.error[1:]
    assert np.abs(z).max() < 4.0
    strength = np.abs(data.beta[:6]) / fit.error[1:7]
    np.testing.assert_allclose(strength, np.linspace(2.5, 6.0, 6), rtol=0.05)
    assert np.corrcoef(data.X.T)[0, 1] == pytest.approx(0.3, abs=0.03)


def test_data_are_reproducible():
    one, two, other = (sparse_data(50, rng=np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.X, two.X)
    assert not np.array_equal(one.X, other.X)


def test_doctor_visits():
    data = doctor_visits(3)
    assert data.X.shape == (20_190, 12)
    assert set(np.unique(data.y)) == {0, 1}
    assert data.names[-1] == "noise2"
    np.testing.assert_allclose(data.X[:, :9].std(axis=0), 1.0)
    fit = full_fit(data.X, data.y)
    z = np.abs(fit.mode / fit.error)[1:]
    assert z[:9].max() > 10.0
    assert z[9:].max() < 4.0
    np.testing.assert_array_equal(doctor_visits(3).X, data.X)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda X, y: selection_model(X, y[:-1]), "X must be"),
        (lambda X, y: selection_model(X, y + 1), "0 or 1"),
        (lambda X, y: selection_model(X * np.nan, y), "finite"),
        (lambda X, y: selection_model(X, y, family="poisson"), "family"),
        (lambda X, y: selection_model(X, y, names=["a"]), "names"),
        (lambda X, y: grid_model(X, y, levels=[1.0]), "levels"),
        (lambda X, y: grid_model(X, y, weights=[0.5, 0.5]), "weights"),
        (lambda X, y: grid_probabilities(np.tile(X, 4), y), "states"),
        (lambda X, y: inclusion_probabilities(np.tile(X, 6), y), "16 covariates"),
        (lambda X, y: sparse_data(10, 2, 3, rng=np.random.default_rng(0)), "n_active"),
        (
            lambda X, y: sparse_data(10, correlation=1.0, rng=np.random.default_rng(0)),
            "correlation",
        ),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call(*small("bernoulli"))
