"""The contract of amc_pymc.bandits, for every policy."""

import math

import numpy as np
import pytest

from amc_pymc.bandits import (
    HOO,
    LCB,
    POLICIES,
    UCB1,
    KnownRange,
    LogLoss,
    RunningRange,
    ThompsonSampling,
    TopTwoThompsonSampling,
    make_policy,
)

BANDITS = [*sorted(POLICIES), "hoo"]
SCALED = [name for name in sorted(POLICIES) if name not in ("lcb", "ucbcv")]
COSTLY = ["lcb"]


def make(name, **settings):
    if name == "hoo":
        return HOO([[0.0, 1.0]], horizon=500, **settings)
    return make_policy(name, 4, **settings)


def told(policy, n, cost=1.0, *, one_by_one=False, seed=1):
    """The policy after n values at some costs (a function of uniform numbers), in batches of 20 or each alone."""
    rng = np.random.default_rng(seed)
    for _ in range(n // 20):
        pulls = policy.ask(rng, 20)
        values, controls = rng.random(20), rng.normal(size=(20, 1))
        costs = np.full(20, cost(rng.random(20)) if callable(cost) else cost)
        if one_by_one:
            for i in range(20):
                policy.tell(pulls[i], values[i], costs[i], controls=controls[i])
        else:
            policy.tell(pulls, values, costs, controls=controls)
    return policy


def assert_same(a, b):
    a, b = a.state(), b.state()
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_equal(a[key], b[key])


@pytest.mark.parametrize("name", BANDITS)
def test_batches_and_single_values_leave_the_same_state(name):
    cost = lambda u: 0.5 + u  # noqa: E731
    a, b = told(make(name), 100, cost), told(make(name), 100, cost, one_by_one=True)
    assert_same(a, b)


@pytest.mark.parametrize("scale", [RunningRange, LogLoss])
@pytest.mark.parametrize("name", SCALED)
def test_batches_leave_the_same_state_where_the_scale_moves(name, scale):
    a, b = (told(make(name, rewards=scale()), 60, one_by_one=one) for one in (False, True))
    assert_same(a, b)


@pytest.mark.parametrize("name", BANDITS)
def test_a_list_of_pulls_is_a_batch(name):
    a, b = make(name), make(name)
    pulls = a.ask(np.random.default_rng(2), 5)
    listed = list(b.ask(np.random.default_rng(2), 5))
    a.tell(pulls, np.full(5, 0.5), controls=np.arange(5.0))
    b.tell(listed, np.full(5, 0.5), controls=np.arange(5.0))
    assert_same(a, b)


@pytest.mark.parametrize("name", BANDITS)
def test_costs_are_used_or_ignored(name):
    cheap, dear = (told(make(name), 60, lambda u, by=by: 1.0 + by * u) for by in (0.0, 9.0))
    assert cheap.uses_costs == (name in COSTLY)
    same = all(np.array_equal(cheap.state()[k], dear.state()[k]) for k in ("table", "open"))
    assert same == (name not in COSTLY)


@pytest.mark.parametrize("name", BANDITS)
def test_controls_are_used_or_ignored(name):
    rng, policy = np.random.default_rng(3), make(name)
    pull = policy.ask(rng)
    assert policy.uses_controls == (name == "ucbcv")
    if policy.uses_controls:
        with pytest.raises(ValueError, match="controls of pull 0 of arm 0 must have shape"):
            policy.tell(pull, 0.5)
    else:
        policy.tell(pull, 0.5)
        policy.tell(policy.ask(rng), 0.5, controls="anything")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, None, "dear"])
@pytest.mark.parametrize("name", BANDITS)
def test_bad_costs_are_named(name, bad):
    policy = make(name)
    pulls = policy.ask(np.random.default_rng(4), 3)
    before = policy.state()
    with pytest.raises(ValueError, match=r"cost|dear"):
        policy.tell(pulls[1], 0.5, bad, controls=0.0)
    if isinstance(bad, float):
        with pytest.raises(ValueError, match=f"cost of pull 2 .* is {bad}"):
            policy.tell(pulls, [0.5] * 3, [1.0, 1.0, bad], controls=np.zeros(3))
    with pytest.raises(ValueError, match=r"cost must be a number or of shape \(3,\)"):
        policy.tell(pulls, [0.5] * 3, [1.0, 1.0], controls=np.zeros(3))
    np.testing.assert_equal(policy.state(), before)


@pytest.mark.parametrize("name", BANDITS)
def test_bad_values_are_named(name):
    policy = make(name)
    pulls = policy.ask(np.random.default_rng(5), 3)
    before = policy.state()
    with pytest.raises(ValueError, match=r"value of pull 1 .* is nan"):
        policy.tell(pulls[1], math.nan, controls=0.0)
    with pytest.raises(ValueError, match=r"value of pull 2 .* is nan"):
        policy.tell(pulls, [0.5, 0.5, math.nan], controls=np.zeros(3))
    with pytest.raises(ValueError, match=r"value must have shape \(3,\), got \(2,\)"):
        policy.tell(pulls, [0.5, 0.5], controls=np.zeros(3))
    with pytest.raises(ValueError, match="value must be a number"):
        policy.tell(pulls[1], [0.5, 0.5], controls=0.0)
    np.testing.assert_equal(policy.state(), before)


@pytest.mark.parametrize("name", BANDITS)
def test_nothing_is_dropped_with_a_pull_that_is_not_open(name):
    policy = make(name)
    pulls = list(policy.ask(np.random.default_rng(6), 3))
    policy.drop(pulls[2])
    before = policy.state()
    with pytest.raises(ValueError, match=r"pull 2 .* has been told or dropped already"):
        policy.drop(pulls)
    np.testing.assert_equal(policy.state(), before)
    policy.drop(pulls[:2])
    assert len(policy.state()["open"]) == 0 and np.sum(policy.pending) == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_arms_that_may_be_chosen(name):
    policy, rng = told(make(name), 100), np.random.default_rng(7)
    before = policy.state()
    for among in ([1, 3], [2], np.array([3, 0])):
        arms = {policy.ask(rng, among=among).arm for _ in range(20)}
        assert arms | set(policy.ask(rng, 40, among=among).arms.tolist()) <= set(map(int, among))
    for bad in ([], [4], [-1], [0.5], 1, [True]):
        with pytest.raises(ValueError, match="among must be arms from 0 to 3"):
            policy.ask(rng, 2, among=bad)
    everywhere = make(name).restore(before), make(name).restore(before)
    one, two = np.random.default_rng(8), np.random.default_rng(8)
    for n in (1, 30):
        a, b = everywhere[0].ask(one, n), everywhere[1].ask(two, n, among=range(4))
        np.testing.assert_array_equal(a.arms, b.arms)


@pytest.mark.parametrize("name", ["ucb1", "ucbv", "klucb", "lcb", "ucbcv"])
def test_among_some_arms_as_if_there_were_no_others(name):
    """The best of them by the index, in a single pull."""
    policy = told(make(name), 200)
    open_arms = [0, 2, 3]
    for _ in range(30):
        index = policy.index()[open_arms]
        pull = policy.ask(np.random.default_rng(9), among=open_arms)
        assert index[open_arms.index(pull.arm)] == index.max()


def test_an_index_can_begin_with_a_summary():
    rng, policy = np.random.default_rng(10), UCB1(2)
    values = rng.random(40), rng.random(60)
    for k in (0, 1):
        for p in policy.ask(rng, 100, among=[k])[: len(values[k])]:
            policy.tell(p, values[k][p.number % len(values[k])])
    means, variances = policy.means, policy.variances
    fresh = UCB1(2).begin_with([40, 60], means, variances)
    np.testing.assert_array_equal(fresh.counts, policy.counts)
    np.testing.assert_allclose(fresh.variances, variances)
    expected = means + np.sqrt(2.0 * math.log(101) / np.array([40, 60]))
    np.testing.assert_allclose(fresh.index(), expected)
    for bad in ({"counts": [-1, 1]}, {"means": [math.nan, 0]}, {"variances": [-1, 0]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            UCB1(2).begin_with(**{"counts": [1, 1], "means": [0, 0]} | bad)
    with pytest.raises(ValueError, match="needs a fresh policy"):
        policy.begin_with([1, 1], [0, 0])


@pytest.mark.parametrize("cls", [ThompsonSampling, TopTwoThompsonSampling])
def test_a_prior_for_each_arm_stands_for_successes(cls):
    prior, plain = cls(2, alpha=[4.0, 1.0], beta=[1.5, 2.5]), cls(2, alpha=1.0, beta=0.5)
    for arm, values in enumerate(([1.0, 1.0, 1.0, 0.0], [0.0, 0.0])):
        plain.tell(plain.ask(np.random.default_rng(10), len(values), among=[arm]), values)
    a, b = (p.ask(np.random.default_rng(11), 200).arms for p in (prior, plain))
    np.testing.assert_array_equal(a, b)
    one, two = np.random.default_rng(14), np.random.default_rng(14)
    assert [prior.ask(one).arm for _ in range(60)] == [plain.ask(two).arm for _ in range(60)]
    for bad in ([1.0], [1.0, 0.0], [[1.0, 1.0]]):
        with pytest.raises(ValueError, match="alpha must be"):
            cls(2, alpha=bad)


def test_without_coins_successes_are_fractions():
    rng, policy = np.random.default_rng(12), ThompsonSampling(1, coins=False)
    expected = np.random.default_rng(12)
    expected.random()
    pulls = policy.ask(rng, 3)
    assert np.isnan(pulls.coins).all() and rng.random() == expected.random()
    policy.tell(pulls, [0.25, 0.5, 1.0])
    assert policy.successes[0] == 1.75 and policy.failures[0] == 1.25


@pytest.mark.parametrize("name", SCALED)
def test_a_range_may_be_a_point(name):
    """An arm of known reward 0 beside others whose rewards are larger."""
    rng, policy = (
        np.random.default_rng(13),
        make(name, rewards=KnownRange(0.0, [1.0, 0.0, 1.0, 1.0])),
    )
    for _ in range(400):
        pull = policy.ask(rng)
        policy.tell(pull, 0.0 if pull.arm == 1 else 0.2 + 0.3 * rng.random())
    assert policy.index()[1] in (0.0, -math.inf) or name in ("random", "round_robin", "fixed")
    if name not in ("random", "round_robin", "fixed"):
        assert policy.counts[1] <= 1
    with pytest.raises(ValueError, match="low must be less than high"):
        KnownRange(0.0, [0.0, 0.0])


def test_messages_of_every_kind_of_pull():
    assert str(LCB(2).ask(np.random.default_rng(1))) == "pull 0 of arm 0"
    point = HOO([[0.0, 1.0]], point="centre").ask(np.random.default_rng(1))
    assert str(point) == f"pull 0 at {point.point.tolist()}"
