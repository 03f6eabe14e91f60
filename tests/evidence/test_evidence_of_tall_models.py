"""Evidence of models with many rows, from prior times the rows' expansion, against closed forms and quadrature."""

import numpy as np
import pymc as pm
import pytest

from scipy import integrate, special

import amc_pymc as amc

from amc_pymc.evidence.from_surrogate import FEWEST_ROWS, evidence_from_surrogate

N = 6_000
assert N > FEWEST_ROWS


def estimated(model, **kwargs):
    found = amc.estimate_evidence(model, progressbar=False, **{"random_seed": 1, **kwargs})
    assert found["evidence"].attrs["method"].startswith("prior times expansion of rows")
    return found


def values(found):
    return (float(found["evidence"][n]) for n in ("log_evidence", "log_evidence_mcse"))


def log_integral(log_density, lower, upper):
    """Return the log of the integral of an exponential."""
    grid = np.linspace(lower, upper, 2001)
    highest = max(log_density(t) for t in grid)
    total, _ = integrate.quad(
        lambda t: np.exp(log_density(t) - highest), lower, upper, limit=500, epsabs=1e-12
    )
    return highest + np.log(total)


def linear():
    """Return a regression with known noise, and log N(y; 0, I + 4 X X')."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 4))
    y = X @ [0.5, -0.5, 0.0, 1.0] + rng.normal(size=N)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 2.0, shape=4)
        pm.Normal("y", X @ b, 1.0, observed=y)
    precision, Xy = np.eye(4) / 4.0 + X.T @ X, X.T @ y
    exact = -0.5 * N * np.log(2 * np.pi) - 0.5 * (y @ y - Xy @ np.linalg.solve(precision, Xy))
    return model, exact - 0.5 * np.linalg.slogdet(precision)[1] - 2.0 * np.log(4.0)


def logistic():
    """Return a logistic regression with one coefficient, and its evidence by quadrature."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=N)
    y = (rng.random(N) < special.expit(0.7 * x)).astype(int)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0)
        pm.Bernoulli("y", logit_p=x * b, observed=y)

    def log_density(b):
        rows = y * x * b - np.logaddexp(0.0, x * b)
        return rows.sum() - 0.5 * b * b - 0.5 * np.log(2 * np.pi)

    return model, log_integral(log_density, 0.3, 1.1)


def intercepts():
    """Return random intercepts of unknown scale, and their evidence by quadrature over the scale."""
    rng, n_groups = np.random.default_rng(3), 30
    g = rng.permutation(N) % n_groups
    y = rng.normal(0.7 * rng.normal(size=n_groups)[g], 1.0)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        u = pm.Normal("u", 0.0, sd, shape=n_groups)
        pm.Normal("y", u[g], 1.0, observed=y)
    n, sums = np.bincount(g), np.bincount(g, y)

    def log_density(sd):
        prior = 0.5 * np.log(2.0 / np.pi) - 0.5 * sd**2
        spread = 1.0 + n * sd**2
        quadratic = y @ y - np.sum(sums**2 * sd**2 / spread)
        return prior - 0.5 * (N * np.log(2 * np.pi) + quadratic + np.log(spread).sum())

    return model, log_integral(log_density, 0.2, 2.5)


@pytest.mark.parametrize("build", [linear, logistic, intercepts])
def test_against_closed_forms_and_quadrature(build):
    model, exact = build()
    found = estimated(model, target_mcse=0.02)
    z, error = values(found)
    assert error <= 0.02
    assert abs(z - exact) < 4.0 * error + 1e-6
    assert not found["evidence"].attrs["flags"]


@pytest.mark.slow
def test_posterior_draws_are_from_the_posterior():
    model, _ = logistic()
    found = estimated(model)
    drawn = found["posterior"]["b"].values
    assert drawn.shape == (4, 500)
    kept = found["sample_stats"]
    assert np.isclose(kept["lp"], kept["log_prior"] + kept["log_likelihood_sum"]).all()
    assert found["observed_data"]["y"].size == N
    other = estimated(model, random_seed=2)["posterior"]["b"].values
    error = np.hypot(drawn.std(), other.std()) / np.sqrt(found["posterior"].attrs["n_distinct"])
    assert abs(drawn.mean() - other.mean()) < 5.0 * error
    again = estimated(model)
    np.testing.assert_array_equal(again["posterior"]["b"].values, drawn)
    assert list(values(again)) == list(values(found))


def mixture():
    rng = np.random.default_rng(4)
    y = rng.normal(np.where(rng.random(N) < 0.4, -1.5, 1.5), 1.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0, shape=2)
        pm.NormalMixture("y", [0.5, 0.5], mu, 1.0, observed=y)
    return model


def few_rows_for_each_parameter():
    rng = np.random.default_rng(5)
    g = np.arange(N) % 250
    y = (rng.random(N) < special.expit(3.0 * rng.normal(size=250)[g] + 4.0)).astype(int)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 3.0)
        u = pm.Normal("u", 4.0, sd, shape=250)
        pm.Bernoulli("y", logit_p=u[g], observed=y)
    return model


@pytest.mark.parametrize("build", [mixture, few_rows_for_each_parameter])
def test_posteriors_unlike_their_surrogate_are_left_to_other_estimators(build):
    args = {"target": 0.05, "draws": 10, "chains": 2, "words": [1]}
    assert evidence_from_surrogate(build(), **args, progressbar=False) is None
