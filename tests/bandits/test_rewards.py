"""Scales of rewards."""

import math

import numpy as np
import pytest

from amc_pymc.bandits import (
    KLUCB,
    UCB1,
    UCBV,
    KnownRange,
    LogLoss,
    RunningRange,
    ThompsonSampling,
)

INDEX = [UCB1, UCBV, KLUCB]
EVERY = [*INDEX, ThompsonSampling]


def side_by_side(a, b, n, told_a, told_b, seed=1):
    """Same pulls, the same rewards on two scales; arms of both."""
    rng = np.random.default_rng(seed)
    r, s = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(n):
        x = rng.random(a.n_arms) * np.linspace(0.5, 1.0, a.n_arms)
        p, q = a.ask(r), b.ask(s)
        assert p.arm == q.arm
        a.tell(p, told_a(p.arm, x[p.arm]))
        b.tell(q, told_b(q.arm, x[q.arm]))


@pytest.mark.parametrize("make", EVERY)
def test_a_range_is_a_change_of_units(make):
    a, b = make(3), make(3, rewards=(-4.0, 4.0))
    side_by_side(a, b, 200, lambda k, x: x, lambda k, x: 8.0 * x - 4.0)
    finite = np.isfinite(a.index())
    np.testing.assert_allclose(b.index()[finite], 8.0 * a.index()[finite] - 4.0, rtol=1e-9)


@pytest.mark.parametrize("make", EVERY)
def test_log_losses_are_rewards_rescaled(make):
    """The largest log-loss comes first, so the scale stands still after it: rewards are known."""
    top = -800.0
    a = make(3, rewards=(-1.0, 0.0))
    b = make(3, rewards=LogLoss())
    p, q = a.ask(np.random.default_rng(5)), b.ask(np.random.default_rng(5))
    a.tell(p, -1.0)
    b.tell(q, top)
    side_by_side(a, b, 200, lambda k, x: -x, lambda k, x: top + math.log(x))
    np.testing.assert_allclose(b.index(), a.index(), rtol=1e-9)


@pytest.mark.parametrize("make", INDEX)
def test_log_losses_when_the_scale_moves(make):
    """After any order of losses statistics are those of all losses over the largest."""
    rng = np.random.default_rng(3)
    policy = make(2, rewards=LogLoss())
    logs, seen = rng.normal(-600.0, 8.0, 60), ([], [])
    logs[20] = -math.inf
    for x in logs:
        pull = policy.ask(rng)
        policy.tell(pull, x)
        seen[pull.arm].append(x)
        largest = max(max(s, default=-math.inf) for s in seen)
        for k in (0, 1):
            if seen[k]:
                reward = -np.exp(np.array(seen[k]) - largest)
                np.testing.assert_allclose(policy.means[k], reward.mean(), rtol=1e-9, atol=1e-300)
                np.testing.assert_allclose(policy.variances[k], reward.var(), rtol=1e-7, atol=1e-20)
    assert (policy.means >= -1.0).all() and (policy.means <= 0.0).all()


def test_running_range_grows():
    policy = UCB1(2, rewards=RunningRange())
    rng = np.random.default_rng(4)
    rewards = 5.0 + 0.01 * rng.normal(size=40)
    arms = []
    for x in rewards:
        pull = policy.ask(rng)
        policy.tell(pull, x)
        arms.append(pull.arm)
    width = np.ptp(rewards)
    t, n = 41, np.bincount(arms)
    means = [rewards[np.array(arms) == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(policy.index(), means + width * np.sqrt(2.0 * math.log(t) / n))


def test_clipping_is_counted_and_saved():
    rng = np.random.default_rng(6)
    policy = UCB1(2, rewards=KnownRange([0.0, -1.0], 1.0))
    first = policy.ask(rng)
    with pytest.warns(UserWarning, match=r"reward of -0\.5 from arm 0 is outside .*\[0, 1\]"):
        policy.tell(first, -0.5)
    policy.tell(policy.ask(rng), -0.5)  # arm 1, inside
    np.testing.assert_array_equal(policy.means, [0.0, -0.5])
    assert policy.copy().rewards.clipped == 1


def test_infinite_log_losses():
    rng = np.random.default_rng(8)
    policy = UCB1(1, rewards=LogLoss())
    policy.tell(policy.ask(rng), -math.inf)
    assert policy.means[0] == 0.0
    with pytest.raises(ValueError, match="value of pull 1 of arm 0 is inf"):
        policy.tell(policy.ask(rng), math.inf)
