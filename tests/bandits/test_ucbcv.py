"""UCB-CV: its index, its contract, its regret."""

import math

import numpy as np
import pytest
import statsmodels.api as sm

from scipy import stats

from amc_pymc.bandits import UCBCV
from tests.bandits.test_control_variates import jackknife, regression, splitting

ESTIMATORS = ["regression", "jackknife", "splitting", "batching"]
OMEGA = np.array([[1.0, -2.0], [0.0, 0.5], [3.0, 3.0]])


def draw(rng, arm, q):
    w = OMEGA[arm, :q] + rng.normal(size=q)
    return 0.1 * arm + (w - OMEGA[arm, :q]).sum() + 0.3 * rng.normal(), w


def played(policy, n, seed, q):
    """Pull n times one by one; return rewards and controls of each arm."""
    rng, past = np.random.default_rng(seed), [([], []) for _ in range(policy.n_arms)]
    for _ in range(n):
        pull = policy.ask(rng)
        reward, w = draw(rng, pull.arm, q)
        policy.tell(pull, reward, controls=w if q else None)
        past[pull.arm][0].append(reward)
        past[pull.arm][1].append(w)
    return [(np.array(x), np.array(w).reshape(len(x), q)) for x, w in past]


@pytest.mark.parametrize("q", [0, 1, 2])
def test_index_against_least_squares_and_scipy(q):
    policy = UCBCV(3, n_controls=q, control_means=OMEGA[:, :q], alpha=1.5)
    past = played(policy, 150, [1, q], q)
    expected = []
    for (x, w), omega in zip(past, OMEGA, strict=True):
        fit = sm.OLS(x, np.column_stack([np.ones(x.size), w - omega[:q]])).fit()
        quantile = stats.t.isf(151**-1.5, x.size - q - 1)
        expected.append(fit.params[0] + quantile * fit.bse[0])
    np.testing.assert_allclose(policy.index(), expected, rtol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bounds_are_those_of_the_estimates(estimator):
    policy = UCBCV(3, n_controls=2, control_means=OMEGA, estimator=estimator, n_batches=4)
    past = played(policy, 200, 3, 2)
    index = policy.index()
    for k, (x, w) in enumerate(past):
        if estimator == "batching":
            size = next(2**i for i in range(9) if x.size // 2**i < 8)
            full = x.size // size
            assert full >= 4
            parts = np.column_stack([x, w])[: full * size].reshape(full, size, 3).mean(axis=1)
            expected = regression(parts[:, 0], parts[:, 1:], OMEGA[k])
        else:
            function = {"regression": regression, "jackknife": jackknife, "splitting": splitting}
            expected = function[estimator](x, w, OMEGA[k])
        got = policy._mean[k], policy._variance[k], policy._df[k]
        np.testing.assert_allclose(got, expected, rtol=1e-8)
        bound = expected.mean + stats.t.isf(201**-2.0, expected.df) * math.sqrt(expected.variance)
        assert index[k] == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_first_pulls_and_pending(estimator):
    rng = np.random.default_rng(5)
    policy = UCBCV(3, n_controls=2, control_means=OMEGA, estimator=estimator, n_batches=4)
    first = policy.ask(rng, 12)
    assert first.counts(3).tolist() == [4, 4, 4]  # q + 2 each, none told
    assert (policy.index() == -math.inf).all()
    assert policy.ask(rng, 3).counts(3).tolist() == [1, 1, 1]  # all wait: the least pulled
    rewards, controls = zip(*(draw(rng, p.arm, 2) for p in first), strict=True)
    policy.tell(first, rewards, controls=np.array(controls))
    assert np.isfinite(policy.index()).all()
    before = policy.index()
    arm = policy.ask(rng).arm
    assert arm == before.argmax()
    # one more pending pull lowers that arm's bound as sqrt(told / (told + pending)) says
    mean, df = policy._mean[arm], policy._df[arm]
    t_ratio = stats.t.isf(17**-2.0, df) / stats.t.isf(16**-2.0, df)
    expected = mean + (before[arm] - mean) * t_ratio * math.sqrt(5 / 6)
    assert policy.index()[arm] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("estimator", ["jackknife", "splitting"])
def test_an_arm_whose_estimate_is_undetermined_is_pulled_again(estimator):
    rng, policy = np.random.default_rng(9), UCBCV(2, estimator=estimator)
    for i in range(6):
        pull = policy.ask(rng)
        # the control of arm 0 moves once only
        policy.tell(pull, rng.normal(), controls=float(i == 0) if pull.arm == 0 else rng.normal())
    assert policy.index()[0] == math.inf and policy.ask(rng).arm == 0
    assert policy.index()[0] == -math.inf


def test_bad_input():
    for settings, message in [
        ({"n_controls": -1}, "n_controls must not be negative, got -1"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"estimator": "bootstrap"}, "estimator must be one of .* got 'bootstrap'"),
        ({"control_means": [0.0, 1.0]}, "control_means must be finite"),
        ({"control_means": math.nan}, "control_means must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            UCBCV(2, **settings)
    with pytest.raises(ValueError, match="n_arms must be at least 1"):
        UCBCV(0)


def test_bad_controls():
    rng, policy = np.random.default_rng(1), UCBCV(2, n_controls=2)
    pull, many = policy.ask(rng), policy.ask(rng, 3)
    with pytest.raises(
        ValueError,
        match=r"controls of pull 0 of arm 0 must have shape \(1, 2\) for 1 pulls, got \(0,\)",
    ):
        policy.tell(pull, 1.0)
    with pytest.raises(
        ValueError, match=r"pull 0 of arm 0 must have shape \(1, 2\) for 1 pulls, got \(3,\)"
    ):
        policy.tell(pull, 1.0, controls=[1.0, 2.0, 3.0])
    with pytest.raises(
        ValueError,
        match=r"controls of pull 1 of arm 1 must have shape \(3, 2\) for 3 pulls",
    ):
        policy.tell(many, np.zeros(3), controls=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"controls of pull 3 of arm . are \[0.0, nan\]"):
        policy.tell(many, np.zeros(3), controls=[[0.0, 0.0], [0.0, 0.0], [0.0, math.nan]])
    with pytest.raises(ValueError, match="value of pull 0 of arm 0 is nan"):
        policy.tell(pull, math.nan, controls=[0.0, 0.0])
    assert policy.counts.sum() == 0 and policy.pending.sum() == 4
    with pytest.raises(ValueError, match=r"must have shape \(1, 0\)"):
        plain = UCBCV(1, n_controls=0)
        plain.tell(plain.ask(rng), 1.0, controls=[1.0])
    policy.tell(many[:0], [], controls=np.zeros((0, 2)))
    policy.tell(many[:0], [])


@pytest.mark.slow
def test_controls_reduce_regret_by_what_they_explain():
    """Pulls of the worse arm fall in about the proportion 1 - rho^2 of the variance."""
    worse = {}
    for q in (0, 1):
        worse[q] = []
        for seed in range(20):
            rng, policy = np.random.default_rng([q, seed]), UCBCV(2, n_controls=q)
            for _ in range(1_000):
                pull = policy.ask(rng)
                w = 0.9 * rng.normal()
                reward = (0.5, 0.0)[pull.arm] + w + math.sqrt(1 - 0.81) * rng.normal()
                policy.tell(pull, reward, controls=w if q else None)
            worse[q].append(policy.counts[1])
    means = {q: np.mean(n) for q, n in worse.items()}
    errors = {q: np.std(n) / math.sqrt(20) for q, n in worse.items()}
    assert means[1] + 3 * errors[1] < 0.6 * (means[0] - 3 * errors[0])
