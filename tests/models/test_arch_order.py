import itertools

import numpy as np
import pytest

from scipy.special import gammaln, logsumexp
from scipy.stats import norm

import amc_pymc as amc

from amc_pymc.reading import extract_rows
from models.arch_order import (
    ORDERS,
    Evidence,
    arch_evidence,
    arch_models,
    importance_evidence,
    lagged_rows,
    log_density,
    order_probabilities,
    simulate_arch,
    standardise,
)

ALPHA = [0.4, 0.2, 0.1, 0.1]


@pytest.fixture(scope="module")
def returns():
    return standardise(simulate_arch(120, ALPHA, 6.0, np.random.default_rng(0)))


# --- rows and models ------------------------------------------------------------------------------


def test_models_agree_with_the_reference(returns):
    """logp of each pm.Model, Jacobian included, is the NumPy density."""
    rng = np.random.default_rng(1)
    models = arch_models(returns, (2, 5))
    assert list(models) == ["arch2", "arch5"]
    for q, model in zip((2, 5), models.values()):
        logp = model.compile_logp()
        x = rng.normal(size=(5, q + 2))
        expected = log_density(lagged_rows(returns, q, 5), x)
        for point, value in zip(x, expected):
            found = logp({"alpha_normal_score__": point[:-1], "nu_normal_score__": point[-1]})
            assert found == pytest.approx(value, rel=1e-10)


def test_models_share_their_observed_rows_and_can_be_subsampled(returns):
    models = arch_models(returns)
    assert list(models) == [f"arch{q}" for q in ORDERS]
    for q, model in zip(ORDERS, models.values()):
        np.testing.assert_array_equal(model.rvs_to_values[model["r"]].eval(), returns[30:])
        assert model.named_vars_to_dims["alpha"] == ("lag",)
        rows = extract_rows(model)
        assert (rows.n_rows, rows.observed_vars) == (90, ("r",))
        x = np.full(q + 2, -0.3)
        point = {"alpha_normal_score__": x[:-1], "nu_normal_score__": x[-1]}
        total = rows(point, np.arange(90)).sum() + norm.logpdf(x).sum()
        assert total == pytest.approx(log_density(lagged_rows(returns, q), x))


# --- importance sampling --------------------------------------------------------------------------


def within(evidence: Evidence, expected, se):
    assert evidence.standard_error < se
    assert abs(evidence.log_evidence - expected) < 4.0 * evidence.standard_error


def test_evidence_of_a_skewed_density():
    """Logarithms of gamma variables, shapes 1 to 3, correlated by a rotation: evidence 7."""
    rng = np.random.default_rng(3)
    shape = np.array([1.0, 1.5, 3.0])
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]

    def log_target(x):
        z = x @ rotation
        return np.sum(shape * z - np.exp(z) - gammaln(shape), axis=1) + np.log(7.0)

    found = importance_evidence(log_target, np.zeros(3), rng, draws=20_000)
    within(found, np.log(7.0), 0.02)


@pytest.mark.slow
def test_evidence_of_an_arch_model(returns):
    """Order one against a sum over a grid in the coordinates of the pm.Model."""
    rows = lagged_rows(returns[:45], 1, 5)
    axes = [np.linspace(-7.0, 7.0, 70)] * 3
    grid = np.array(list(itertools.product(*axes)))
    expected = logsumexp(log_density(rows, grid)) + 3.0 * np.log(14.0 / 69.0)
    within(arch_evidence(rows, np.random.default_rng(4)), expected, 0.02)


def test_probabilities_and_their_errors():
    """First-order errors against noise put on the log evidences."""
    evidences = {
        "a": Evidence(-10.0, 0.03, 1e3),
        "b": Evidence(-10.5, 0.05, 1e3),
        "c": Evidence(-13.0, 0.02, 1e3),
    }
    found = order_probabilities(evidences)
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(40_000, 3)) * [0.03, 0.05, 0.02] + [-10.0, -10.5, -13.0]
    p = np.exp(noise - logsumexp(noise, axis=1, keepdims=True))
    assert sum(v for v, _ in found.values()) == pytest.approx(1.0)
    for (value, error), column in zip(found.values(), p.T):
        assert value == pytest.approx(column.mean(), rel=0.01)
        assert error == pytest.approx(column.std(), rel=0.03)


# --- data -----------------------------------------------------------------------------------------


def test_simulated_moments():
    """The variance of an ARCH process with t noise: a0 v / (1 - v sum a), v = nu / (nu - 2)."""
    r = simulate_arch(100_000, [0.4, 0.2, 0.1], 12.0, np.random.default_rng(7))
    v = 12.0 / 10.0
    batches = (r**2).reshape(100, -1).mean(axis=1)
    error = batches.std(ddof=1) / 10.0
    assert abs(batches.mean() - 0.4 * v / (1.0 - 0.3 * v)) < 4.0 * error
    assert np.corrcoef(r[1:] ** 2, r[:-1] ** 2)[0, 1] > 0.1


@pytest.mark.slow
def test_rows_are_expanded_in_parameters_where_functions_of_them_fail():
    """Of softplus coefficients with normal scores, prior times surrogate has its mass far from the mode."""
    returns = standardise(
        simulate_arch(1_500, [0.2, 0.15, *[0.1] * 4], 4.0, np.random.default_rng(0))
    )
    model = arch_models(returns, (5,))["arch5"]
    prepared = amc.RacingMetropolis(model=model, progressbar=False).prepared
    assert prepared.surrogate.centre.size == 7
    assert prepared.forecast.acceptance > 0.5
