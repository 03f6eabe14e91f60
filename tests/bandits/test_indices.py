"""Indices against numbers worked out by hand and against independent implementations."""

import math

import numpy as np
import pytest

from scipy import optimize, special, stats

from amc_pymc.bandits import (
    KLUCB,
    LCB,
    UCB1,
    UCBV,
    KnownRange,
    RunningRange,
    ThompsonSampling,
    kl_upper,
)

RNG = np.random.default_rng(1)
#: Two arms, told 2 and 3 rewards: means 0.3 and 0.5, variances 0.01 and 0.02/3.
REWARDS = ([0.2, 0.4], [0.4, 0.5, 0.6])


def told(policy, rewards=REWARDS):
    """The policy after all these rewards, as many pulls of each arm as there are."""
    rng = np.random.default_rng(0)
    for arm, values in enumerate(rewards):
        for value in values:
            policy.tell(policy.ask(rng, among=[arm]), value)
    return policy


def test_ucb1():
    # t = 6: log 6 = 1.791759; sqrt(2 * 1.791759 / 2) = 1.338566, sqrt(2 * 1.791759 / 3) = 1.092935
    np.testing.assert_allclose(told(UCB1(2)).index(), [1.638566, 1.592935], atol=1e-6)
    assert UCB1(1, c=1.0)._bound(4.0, 0.5, 0.0, math.e**4) == pytest.approx(1.5)


def test_ucbv():
    # E = 1.2 log 6 = 2.150111.  sqrt(2 * 0.01 E / 2) = 0.146633, 3 E / 2 = 3.225167;
    # sqrt(2 * (0.02 / 3) E / 3) = 0.097755, 3 E / 3 = 2.150111
    np.testing.assert_allclose(
        told(UCBV(2)).index(), [0.3 + 0.146633 + 3.225167, 0.5 + 0.097755 + 2.150111], atol=2e-6
    )
    # zeta log t = 2, so sqrt(2 * 0.25 * 2 / 4) = 0.5 and 3 * 0.5 * 2 / 4 = 0.75
    assert UCBV(1, zeta=0.5, c=0.5)._bound(4.0, 0.1, 0.25, math.e**4) == pytest.approx(1.35)


def kl(p, q):
    return special.rel_entr(p, q) + special.rel_entr(1.0 - p, 1.0 - q)


def test_kl_upper_by_root_search():
    worst = 0.0
    for _ in range(1_000):
        p = RNG.choice([RNG.random(), 10 ** -RNG.uniform(0, 8), 1.0 - 10 ** -RNG.uniform(0, 8)])
        d = 10 ** RNG.uniform(-7, 1.5)
        top = np.nextafter(1.0, 0.0)
        root = (
            1.0 if kl(p, top) < d else optimize.brentq(lambda q: kl(p, q) - d, p, top, xtol=1e-15)
        )
        worst = max(worst, abs(kl_upper(p, d) - root))
    assert worst < 1e-10


def test_kl_upper_at_the_ends():
    # KL(0, q) = -log(1 - q)
    assert kl_upper(0.0, 0.7) == pytest.approx(1.0 - math.exp(-0.7), rel=1e-14)
    assert kl_upper(0.0, 1e-12) == pytest.approx(1e-12, rel=1e-9)
    assert kl_upper(1.0, 0.3) == 1.0
    assert kl_upper(0.4, 0.0) == 0.4
    assert kl_upper(0.4, 1e3) == 1.0
    assert kl_upper(1.0 + 1e-16, 0.1) == 1.0 and 0.0 < kl_upper(-1e-17, 0.1) < 0.1
    # KL(1/2, q) = -log(2 sqrt(q (1 - q))) = log 1.25 at q = 0.8
    assert kl_upper(0.5, math.log(1.25)) == pytest.approx(0.8, abs=1e-12)


def test_klucb():
    # f(6) = 1.791759 + 3 log 1.791759 = 3.541354
    f = math.log(6) + 3.0 * math.log(math.log(6))
    assert f == pytest.approx(3.541354, abs=1e-6)
    expected = [
        optimize.brentq(lambda q, p=p, n=n: n * kl(p, q) - f, p, 1.0 - 1e-15)
        for p, n in ((0.3, 2), (0.5, 3))
    ]
    np.testing.assert_allclose(told(KLUCB(2)).index(), expected, atol=1e-10)
    one, two, three, four = (
        KLUCB(1)._bound(np.array(1.0), np.array(0.2), 0.0, t) for t in (1, 2, 3, 4)
    )
    assert one == two == three < four


def test_indices_are_mapped_back_to_each_range():
    # Arm 1 lives on [-2, 8]: its bound is -2 + 10 times that on [0, 1].
    plain = told(KLUCB(2))
    policy = told(
        KLUCB(2, rewards=KnownRange([0.0, -2.0], [1.0, 8.0])),
        (REWARDS[0], [-2.0 + 10.0 * x for x in REWARDS[1]]),
    )
    np.testing.assert_allclose(policy.index(), plain.index() * [1.0, 10.0] + [0.0, -2.0])


# --- Thompson ------------------------------------------------------------------------------------


def test_thompson_posterior():
    policy = ThompsonSampling(2, rewards=KnownRange([0.0, -10.0], [1.0, 10.0]))
    rng = np.random.default_rng(2)
    for _ in range(50):
        pull = policy.ask(rng)
        before = policy.successes, policy.failures
        reward = rng.random() if pull.arm == 0 else rng.uniform(-10.0, 10.0)
        policy.tell(pull, reward)
        scaled = reward if pull.arm == 0 else (reward + 10.0) / 20.0
        assert policy.successes[pull.arm] - before[0][pull.arm] == (pull.coin < scaled)
        assert policy.failures[pull.arm] - before[1][pull.arm] == (pull.coin >= scaled)
    np.testing.assert_array_equal(policy.successes + policy.failures, policy.counts)
    mean = (policy.successes + 1.0) / (policy.counts + 2.0)
    np.testing.assert_allclose(policy.index(), [mean[0], -10.0 + 20.0 * mean[1]])


def probability_of_best(a, b):
    """P(arm k has the largest Beta(a_k, b_k)), by quadrature."""
    x = np.linspace(0.0, 1.0, 20_001)
    mid = 0.5 * (x[1:] + x[:-1])
    cdf = stats.beta.cdf(mid[:, None], a, b)
    mass = np.diff(stats.beta.cdf(x[:, None], a, b), axis=0)
    return np.array([(mass[:, k] * np.delete(cdf, k, 1).prod(1)).sum() for k in range(len(a))])


def with_counts(policy, successes, failures):
    """The policy after this many rewards of 1 and of 0."""
    rewards = [np.repeat([1.0, 0.0], [int(s), int(f)]) for s, f in zip(successes, failures)]
    for arm, values in enumerate(rewards):
        policy.tell(policy.ask(np.random.default_rng(0), values.size, among=[arm]), values)
    np.testing.assert_array_equal(policy.successes, successes)
    np.testing.assert_array_equal(policy.failures, failures)
    return policy


def test_thompson_pulls_by_the_probability_of_being_best():
    s, f = np.array([3.0, 8.0, 2.0]), np.array([4.0, 9.0, 1.0])
    p = probability_of_best(s + 1.0, f + 1.0)
    n = 40_000
    share = with_counts(ThompsonSampling(3), s, f).ask(np.random.default_rng(3), n).counts(3) / n
    assert (np.abs(share - p) < 4.0 * np.sqrt(p * (1.0 - p) / n)).all()


def test_thompson_counts_move_with_the_range():
    """All pulls count, as if each had given the mean on the new scale."""
    policy, rng = ThompsonSampling(2, rewards=RunningRange()), np.random.default_rng(6)
    rewards = ([], [])
    for _ in range(60):
        pull = policy.ask(rng)
        reward, known = 2.0 + pull.arm + rng.normal(), [*rewards[0], *rewards[1]]
        policy.tell(pull, reward)
        if known and not min(known) <= reward <= max(known):
            low, high = min([*known, reward]), max([*known, reward])
            for k in (0, 1):
                expected = sum((x - low) / (high - low) for x in rewards[k])
                expected += k == pull.arm and pull.coin < (reward - low) / (high - low)
                assert policy.successes[k] == pytest.approx(expected)
        rewards[pull.arm].append(reward)
        np.testing.assert_allclose(policy.successes + policy.failures, policy.counts)


# --- lower confidence bound of the loss ----------------------------------------------------------


def told_values(samples, costs=None, **settings):
    """An LCB policy told these values of each arm."""
    policy, rng = LCB(len(samples), **settings), np.random.default_rng(0)
    n = max(len(v) for v in samples)
    pulls = policy.ask(rng, policy.n_arms * n * 3)
    for k, v in enumerate(samples):
        mine = pulls[np.flatnonzero(pulls.arms == k)]
        cost = 1.0 if costs is None else costs[k]
        policy.tell(mine[: len(v)], v, cost=cost)
        policy.drop(mine[len(v) :])
    return policy


def test_lcb_loss_of_log_values():
    x = np.array([0.1, -0.3, 0.25, 0.05, -0.2])
    y = np.array([-900.0, -903.0, -901.5, -902.0])
    policy = told_values([x, y], costs=[np.arange(1.0, 6.0), 7.0])
    for k, (v, cost) in enumerate(((x, 3.0), (y, 7.0))):
        w = np.exp(v - v.max())
        s2, n = v.var(ddof=1), len(v)
        relvar = max(np.expm1(s2), w.var(ddof=1) / w.mean() ** 2)
        assert policy.losses[k] == pytest.approx(math.log(cost) + math.log(relvar), rel=1e-10)
        se = s2 * math.exp(s2) / np.expm1(s2) * math.sqrt(2.0 / (n - 1))
        assert policy.index()[k] == pytest.approx(se - policy.losses[k], rel=1e-10)
    np.testing.assert_allclose(policy.costs, [3.0, 7.0])


def test_lcb_empirical_variance_when_it_is_larger():
    # One huge weight among 30 equal ones: s^2 = 0.8, relative variance near n.
    v = np.zeros(30)
    v[7] = 5.0
    w = np.exp(v)
    relvar = w.var(ddof=1) / w.mean() ** 2
    assert relvar > 3.0 * np.expm1(v.var(ddof=1))
    assert told_values([v]).losses[0] == pytest.approx(math.log(relvar), rel=1e-12)


def test_lcb_zeros():
    rng = np.random.default_rng(8)
    x = rng.normal(0.0, 0.5, 30)
    v = np.append(x, np.full(10, -np.inf))
    policy = told_values([v, np.full(5, -np.inf), np.append(np.full(3, -np.inf), 2.0)])
    p0, s2 = 0.25, x.var(ddof=1)
    w = np.exp(v)
    relvar = max((1.0 + np.expm1(s2)) / (1.0 - p0) - 1.0, w.var(ddof=1) / w.mean() ** 2)
    assert policy.losses[0] == pytest.approx(math.log(relvar), rel=1e-10)
    assert policy.losses[1] == pytest.approx(math.log(5.0))  # one in six not zero: 6 - 1
    assert policy.losses[2] == pytest.approx(math.log(4.0), rel=1e-6)  # the empirical one
    np.testing.assert_allclose(policy.means, [x.mean(), np.nan, 2.0])
    np.testing.assert_allclose(policy.variances, [x.var(), np.nan, 0.0])


def test_lcb_natural_values():
    rng = np.random.default_rng(9)
    x, y = rng.normal(-3.0, 2.0, 40), rng.standard_t(3, 60)
    policy = told_values([x, y], values="natural", costs=[2.0, 0.5])
    for k, (v, cost) in enumerate(((x, 2.0), (y, 0.5))):
        n = len(v)
        assert policy.losses[k] == pytest.approx(math.log(cost * v.var(ddof=1)), rel=1e-10)
        kurtosis = max((n * stats.kurtosis(v, fisher=False) + 30.0) / (n + 10.0), 3.0)
        se = math.sqrt((kurtosis - 1.0) / (n - 1.0))
        assert policy.index()[k] == pytest.approx(se - policy.losses[k], rel=1e-10)
    assert stats.kurtosis(y, fisher=False) > 4.0


@pytest.mark.parametrize("values", ["log", "natural"])
def test_lcb_without_variance(values):
    """All values equal: the cheapest of such arms is pulled, before any with a variance."""
    policy = told_values(
        [[1.0, 2.0, 1.5], [3.0] * 3, [3.0] * 3, [0.0] * 3],
        costs=[0.1, 2.0, 1.0, 3.0],
        values=values,
    )
    assert np.isfinite(policy.index()).all()
    chosen = set(policy.ask(np.random.default_rng(0), 12).arms.tolist())
    assert chosen <= ({1, 2, 3} if values == "log" else {3})
    if values == "log":
        assert policy.index()[1:].min() > policy.index()[0]
        assert policy.losses[1] - policy.losses[2] == pytest.approx(math.log(2.0))


def test_lcb_pending_and_first_pulls():
    rng = np.random.default_rng(10)
    policy = LCB(3)
    assert policy.ask(rng, 9).arms.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    policy = told_values([[0.0, 1.0, 0.4], [0.0, 1.1, 0.4]])
    alone = policy.index()
    pulls = policy.ask(rng, 10)
    n = 3 + pulls.counts(2)
    np.testing.assert_allclose(
        policy.index() + policy.losses, (alone + policy.losses) * np.sqrt(2.0 / (n - 1.0))
    )
    waiting = LCB(2)
    waiting.tell(waiting.ask(rng, 3), [0.0, 1.0, 2.0])
    lots = waiting.ask(rng, 20)
    assert lots.counts(2).tolist() == [18, 2]  # of the second arm nothing is known yet
    assert waiting.index()[1] == -np.inf


def test_lcb_spends_little_on_a_catastrophic_arm():
    rng = np.random.default_rng(12)
    for _ in range(5):
        policy = LCB(3)
        s = np.array([37.0, 0.5, 1.0])
        for _ in range(300):
            pull = policy.ask(rng)
            policy.tell(pull, rng.normal(-0.5 * s[pull.arm] ** 2, s[pull.arm]))
        assert policy.counts[0] <= 5
        assert policy.counts[1] > 200
