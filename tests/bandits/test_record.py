"""Running moments of an arm against the moments of all its draws at once."""

import math

import numpy as np
import pytest

from scipy.stats import chi2, kurtosis

from amc_pymc.bandits.arms import Sample, as_arms
from amc_pymc.bandits.moments import ArmRecord, controls_pay, upper_factor
from amc_pymc.logweights import log_mean_exp, summarise_log_weights


def arm(scale="natural", q=0):
    class Estimator:
        def sample(self, n, rng):
            raise NotImplementedError

    Estimator.scale = scale
    if q:
        Estimator.control_means = np.zeros(q)
    return as_arms([Estimator()])[0]


def fed(values, controls=None, scale="natural", parts=4):
    q = 0 if controls is None else controls.shape[1]
    record = ArmRecord(arm(scale, q))
    for i in np.array_split(np.arange(values.size), parts):
        w = None if controls is None else controls[i]
        record.add(Sample(values[i], np.full(i.size, 2.0), w))
    return record


def test_natural_moments():
    x = np.random.default_rng(1).normal(3.0, 2.0, 101)
    record = fed(x)
    assert record.n == 101
    assert record.cost == 2.0
    assert record.centre() == pytest.approx(x.mean())
    assert record.variance() == pytest.approx(x.var(ddof=1))
    assert record.cautious_variance(5.0) == pytest.approx(x.var(ddof=1) + (x.mean() - 5.0) ** 2)


@pytest.mark.parametrize("shift", [-5000.0, 0.0, 5000.0])
def test_log_moments(shift):
    logs = np.random.default_rng(2).normal(0.0, 1.5, 83)
    logs[[3, 60]] = -np.inf
    whole, record = summarise_log_weights(logs + shift), fed(logs + shift, scale="log")
    assert math.log(record.centre()) + record.offset == pytest.approx(log_mean_exp(logs) + shift)
    assert record.relative_variance() == pytest.approx(whole.relative_variance)
    s2 = np.var(logs[logs > -np.inf], ddof=1)
    assert record.log_variance() == pytest.approx(s2)
    assert record.surrogate() == pytest.approx(math.exp(s2) * 83 / 81 - 1.0)
    assert record.kurtosis() == pytest.approx(kurtosis(np.exp(logs), fisher=False))


def test_only_zero_weights():
    record = fed(np.full(8, -np.inf), scale="log")
    assert record.n == 8
    assert record.centre() == 0.0
    assert record.cautious_variance(0.0) == math.inf
    assert record.careful_variance(0.0) == math.inf


def test_regression_on_controls_is_least_squares():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    w = rng.normal(size=(500, 2))
    x = 1.0 + w @ [2.0, -1.0] + rng.normal(0.0, 0.5, 500)
    fit = sm.OLS(x, sm.add_constant(w)).fit()
    record = fed(x, w)
    assert record.coefficients() == pytest.approx(fit.params[1:])
    assert record.centre() == pytest.approx(fit.params[0])
    assert record.variance() == pytest.approx(fit.mse_resid)


def test_controls_wait_until_they_pay():
    assert not controls_pay(10_000, 0)
    assert [controls_pay(n, 1) for n in (52, 53)] == [False, True]
    assert (53 - 2) / (53 - 1 - 2) <= 1.02
    rng = np.random.default_rng(4)
    w = rng.normal(size=(52, 1))
    x = w[:, 0] + rng.normal(0.0, 0.1, 52)
    early = fed(x, w)
    assert not early.coefficients().any()
    assert early.centre() == pytest.approx(x.mean())
    assert early.variance() == pytest.approx(x.var(ddof=1))


def test_careful_variance_is_a_confidence_limit():
    """It falls below the variance with probability a tenth."""
    rng, runs, n = np.random.default_rng(5), 2000, 5
    records = [fed(rng.normal(size=n)) for _ in range(runs)]
    below = np.mean([r.careful_variance(r.centre()) < 1.0 for r in records])
    assert upper_factor(4) == pytest.approx(4.0 / chi2.ppf(0.1, 4))
    assert abs(below - 0.1) < 3.0 * math.sqrt(0.09 / runs)


def test_reported_variance_goes_from_surrogate_to_empirical():
    rng = np.random.default_rng(6)
    few, many = rng.normal(0.0, 1.0, 20), rng.normal(0.0, 1.0, 100_000)
    early, late = fed(few, scale="log"), fed(many, scale="log")
    assert early.reported_variance(0.0) > 0.7 * early.cautious_variance(0.0)
    raised = 1.0 + math.sqrt((late.kurtosis() - 1.0) / late.n)
    assert late.reported_variance(0.0) == pytest.approx(raised * late.relative_variance(), rel=1e-3)


def test_equal_values_are_not_exact_where_others_have_another_mean():
    """n equal values c leave room for others with probability 1 / n, and a mean m needs (n - 1) (m - c)^2."""
    record = fed(np.zeros(40))
    for variance in (record.cautious_variance(0.1), record.reported_variance(0.1)):
        assert variance == pytest.approx(39 * 0.01)
    assert record.careful_variance(0.1) > 39 * 0.01
    assert record.cautious_variance(0.0) == record.reported_variance(0.0) == 0.0
