"""Robust means: formulas, coverage of their bounds, and the policy that uses them."""

import math
import pickle

import numpy as np
import pytest

from scipy.optimize import brentq

from amc_pymc.bandits import (
    RobustUCB,
    catoni_mean,
    make_policy,
    median_of_means,
    truncated_mean,
)

MEANS = ["truncated", "median_of_means", "catoni"]


def truncated(x, delta, u, epsilon):
    log = math.log(1 / delta)
    kept = [
        v if abs(v) <= (u * t / log) ** (1 / (1 + epsilon)) else 0.0
        for t, v in enumerate(x, start=1)
    ]
    bound = 4 * u ** (1 / (1 + epsilon)) * (log / len(x)) ** (epsilon / (1 + epsilon))
    return np.mean(kept), bound


def of_blocks(x, delta, v, epsilon):
    log = math.log(math.exp(1 / 8) / delta)
    k = math.floor(min(8 * log, len(x) / 2))
    size = len(x) // k
    means = [np.mean(x[b * size : (b + 1) * size]) for b in range(k)]
    bound = (12 * v) ** (1 / (1 + epsilon)) * (16 * log / len(x)) ** (epsilon / (1 + epsilon))
    return np.median(means), bound if len(x) >= 16 * log else math.inf


def catoni(x, delta, v, epsilon=1.0):
    n, log = len(x), math.log(1 / delta)
    alpha = math.sqrt(2 * log / (n * (v + 2 * v * log / (n - 2 * log))))

    def total(m):
        y = alpha * (x - m)
        return np.sum(np.where(y >= 0, np.log(1 + y + y * y / 2), -np.log(1 - y + y * y / 2)))

    root = brentq(total, np.min(x), np.max(x), xtol=1e-14, rtol=1e-14)
    return root, math.sqrt(2 * v * log / (n - 2 * log))


ORACLES = dict(zip(MEANS, (truncated, of_blocks, catoni), strict=True))


@pytest.mark.parametrize("n", [30, 101, 1000])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_formulas(n, epsilon):
    x = np.random.default_rng(n).standard_t(2.5, size=n) + 1.0
    for delta, u in ((0.3, 6.0), (1e-3, 2.0)):
        settings = {"delta": delta, "moment_bound": u, "epsilon": epsilon}
        np.testing.assert_allclose(truncated_mean(x, **settings), truncated(x, delta, u, epsilon))
        np.testing.assert_allclose(median_of_means(x, **settings), of_blocks(x, delta, u, epsilon))
        found = catoni_mean(x, delta=delta, moment_bound=u)
        np.testing.assert_allclose(found, catoni(x, delta, u), rtol=1e-9)


def test_catoni_of_a_constant_and_of_far_values():
    assert catoni_mean([2.5] * 40, delta=0.1, moment_bound=1.0).mean == pytest.approx(2.5)
    x = np.concatenate([np.zeros(99), [1e12]])
    found = catoni_mean(x, delta=0.05, moment_bound=1.0)
    assert found.mean == pytest.approx(catoni(x, 0.05, 1.0)[0], rel=1e-6)
    assert found.mean < 3.0
    few = catoni_mean([1.0, 2.0, 9.0], delta=0.05, moment_bound=1.0)
    assert few == (2.0, math.inf)


def pareto(rng, size, shape):
    return (1.0 - rng.random(size)) ** (-1.0 / shape)


@pytest.mark.parametrize("delta", [0.2, 0.01])
@pytest.mark.parametrize(("shape", "epsilon"), [(2.2, 1.0), (1.5, 0.4)])
def test_coverage_on_pareto_values(delta, shape, epsilon):
    """Each side fails with probability at most delta."""
    runs, n = 2_000, 200
    samples = pareto(np.random.default_rng([3, int(10 * shape)]), (runs, n), shape)
    mu, order = shape / (shape - 1.0), 1.0 + epsilon
    raw = shape / (shape - order)
    big = pareto(np.random.default_rng(4), 4_000_000, shape)
    # any bound on the central moment will do: 2 max(raw, mu^order) by convexity
    central = (
        shape / (shape - 2.0) - mu**2 if order == 2.0 else 2.0 ** (order - 1) * (raw + mu**order)
    )
    assert order == 2.0 or np.mean(np.abs(big - mu) ** order) < central
    allowed = delta + 4.0 * math.sqrt(delta * (1 - delta) / runs)
    for function, moment in ((truncated_mean, raw), (median_of_means, central)):
        estimates = [
            function(x, delta=delta, moment_bound=moment, epsilon=epsilon) for x in samples
        ]
        error = np.array([e.mean for e in estimates]) - mu
        bound = np.array([e.bound for e in estimates])
        assert np.isfinite(bound).all()
        assert np.mean(error > bound) <= allowed and np.mean(-error > bound) <= allowed
    if epsilon == 1.0:
        error = [catoni_mean(x, delta=delta, moment_bound=central).mean - mu for x in samples]
        bound = catoni_mean(samples[0], delta=delta, moment_bound=central).bound
        assert np.mean(np.array(error) > bound) <= allowed
        assert np.mean(-np.array(error) > bound) <= allowed


def test_the_plain_mean_misses_where_catonis_does_not():
    """Rare large values: the deviation that delta = 1e-4 allows is exceeded by the plain mean."""
    n, size, runs, delta = 1_000, 100.0, 20_000, 1e-3
    rng = np.random.default_rng(8)
    p = 1.0 / size**2
    counts = rng.binomial(n, p, size=runs)
    v = size**2 * p * (1 - p)
    bound = catoni_mean(np.zeros(n), delta=delta, moment_bound=v).bound
    plain = counts * size / n - p * size
    assert np.mean(plain > bound) > 2 * delta
    means = np.array(
        [
            catoni_mean(np.repeat([0.0, size], [n - c, c]), delta=delta, moment_bound=v).mean
            for c in range(counts.max() + 1)
        ]
    )
    assert np.mean(means[counts] - p * size > bound) <= delta


def play(policy, n, seed, rewards=lambda rng, arm: rng.standard_t(3) + arm):
    rng, past = np.random.default_rng(seed), [[] for _ in range(policy.n_arms)]
    for _ in range(n):
        pull = policy.ask(rng)
        reward = rewards(rng, pull.arm)
        policy.tell(pull, reward)
        past[pull.arm].append(reward)
    return past


@pytest.mark.parametrize("mean", MEANS)
def test_index(mean):
    u = [4.0, 5.0, 8.0]
    policy = RobustUCB(3, mean=mean, moment_bound=u)
    past = play(policy, 900, 1)
    delta = 901**-2.0
    expected = [
        sum(ORACLES[mean](np.array(x), delta, v, 1.0)) for x, v in zip(past, u, strict=True)
    ]
    np.testing.assert_allclose(policy.index(), expected, rtol=1e-9)


@pytest.mark.parametrize("mean", MEANS)
def test_it_finds_the_better_arm(mean):
    policy = RobustUCB(2, mean=mean, moment_bound=4.0)
    rounds = 3_000
    play(policy, rounds, 2, lambda rng, arm: rng.standard_t(3) + (0.0, 4.0)[arm])
    # an arm is not pulled once its bound is below the gap
    assert policy.counts[0] < {"truncated": 500, "median_of_means": 500, "catoni": 100}[mean]


@pytest.mark.parametrize("mean", MEANS)
def test_pending_and_state(mean):
    def make():
        return RobustUCB(2, mean=mean, moment_bound=[4.0, 5.0])

    rng, policy = np.random.default_rng(3), make()
    pulls = policy.ask(rng, 400)
    least, t = (
        {"truncated": 1, "median_of_means": 16 * math.log(400**2), "catoni": 4 * math.log(400)}[
            mean
        ],
        401,
    )
    assert abs(pulls.counts(2)[0] - 200) <= 1 and pulls.counts(2).min() >= least
    assert (policy.index() == -math.inf).all()
    rewards = rng.standard_t(3, size=400)
    late = policy.copy()
    policy.tell(pulls, rewards)
    for i in range(400):
        late.tell(pulls[i], rewards[i])
    np.testing.assert_array_equal(late.index(), policy.index())
    before = policy.index()
    pull = policy.ask(rng)
    fewer = ORACLES[mean](
        rewards[pulls.arms == pull.arm], (t + 1) ** -2.0, policy.moment_bound[pull.arm], 1.0
    )
    n = 201 if pulls.counts(2)[pull.arm] == 200 else None
    assert n is not None
    bound = {
        "truncated": truncated(np.zeros(n), (t + 1) ** -2.0, policy.moment_bound[pull.arm], 1.0),
        "median_of_means": of_blocks(
            np.zeros(n), (t + 1) ** -2.0, policy.moment_bound[pull.arm], 1.0
        ),
        "catoni": (
            0.0,
            math.sqrt(
                2 * policy.moment_bound[pull.arm] * 2 * math.log(t + 1) / (n - 4 * math.log(t + 1))
            ),
        ),
    }[mean][1]
    assert policy.index()[pull.arm] == pytest.approx(fewer[0] + bound, rel=1e-9)
    assert pull.arm == before.argmax()
    for other in (
        make().restore(policy.state()),
        pickle.loads(pickle.dumps(policy)),
        policy.copy(),
    ):
        np.testing.assert_array_equal(other.index(), policy.index())
        other.tell(pull, 0.5)
        assert other.counts.sum() == 401
    policy.drop(pull)
    assert policy.pending.sum() == 0
    assert make().restore(make().state()).ask(rng).arm == 0


def test_bad_input():
    good = {"delta": 0.1, "moment_bound": 1.0}
    for function in (truncated_mean, median_of_means, catoni_mean):
        for values, change, message in [
            ([], {}, "values must have shape"),
            ([[1.0]], {}, "values must have shape"),
            ([1.0, math.nan], {}, "values must be finite"),
            ([1.0], {"delta": 0.0}, "delta must be between 0 and 1, got 0.0"),
            ([1.0], {"moment_bound": 0.0}, "moment_bound must be positive and finite, got 0.0"),
        ]:
            with pytest.raises(ValueError, match=message):
                function(values, **good | change)
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 1\], got 1.5"):
        truncated_mean([1.0], **good, epsilon=1.5)
    for settings, message in [
        ({"moment_bound": -1.0}, "moment_bound must be positive"),
        ({"moment_bound": [1.0, 2.0, 3.0]}, r"shape \(2,\), got \(3,\)"),
        ({"moment_bound": 1.0, "mean": "mode"}, "mean must be one of .* got 'mode'"),
        ({"moment_bound": 1.0, "mean": "catoni", "epsilon": 0.5}, "needs a finite variance"),
        ({"moment_bound": 1.0, "epsilon": 0.0}, "epsilon must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            RobustUCB(2, **settings)
    policy, rng = make_policy("robust", 2, moment_bound=1.0), np.random.default_rng(1)
    with pytest.raises(ValueError, match="value of pull 0 of arm 0 is inf"):
        policy.tell(policy.ask(rng), math.inf)
