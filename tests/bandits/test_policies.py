"""What every policy owes its caller: ask, tell, drop, copy; see amc_pymc.bandits."""

import math
import pickle

import numpy as np
import pytest

from amc_pymc.bandits import (
    POLICIES,
    UCB1,
    IndexPolicy,
    KnownRange,
    LogLoss,
    Policy,
    Pull,
    Pulls,
    RunningRange,
    make_policy,
)

NAMES = sorted(POLICIES)
#: Policies that are told rewards in a declared range.
SCALED = [name for name in NAMES if name not in ("lcb", "ucbcv")]


def make(name, n_arms=4, **settings):
    return make_policy(name, n_arms, **settings)


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


def summary(policy):
    """What a policy shows of its state."""
    return [policy.index(), policy.counts, policy.pending, policy.means, policy.asked]


def assert_same(a, b, rtol=1e-9):
    for one, other in zip(summary(a), summary(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol)


def value_of(pulls):
    return np.zeros((len(pulls), 1))


@pytest.mark.parametrize("name", NAMES)
def test_counts_pending_and_moments(name):
    rng, policy = np.random.default_rng(1), make(name)
    first = policy.ask(rng)
    assert isinstance(first, Pull) and 0 <= first.arm < 4 and first.number == 0
    pulls = policy.ask(rng, 40)
    assert isinstance(pulls, Pulls) and pulls.numbers.tolist() == list(range(1, 41))
    expected = pulls.counts(4)
    expected[first.arm] += 1
    np.testing.assert_array_equal(policy.pending, expected)
    assert policy.counts.sum() == 0 and policy.asked == 41
    rewards = rng.random(40)
    policy.tell(pulls, rewards, controls=rng.normal(size=(40, 1)))
    policy.tell(first, 0.25, controls=[0.0])
    np.testing.assert_array_equal(policy.counts, expected)
    assert policy.pending.sum() == 0
    arms, values = np.append(pulls.arms, first.arm), np.append(rewards, 0.25)
    for k in np.flatnonzero(expected):
        np.testing.assert_allclose(policy.means[k], values[arms == k].mean())
        np.testing.assert_allclose(policy.variances[k], values[arms == k].var(), atol=1e-15)
    assert policy.index().shape == (4,) and not np.isnan(policy.index()).any()


@pytest.mark.parametrize("name", NAMES)
def test_batches_lists_and_single_values_leave_the_same_state(name):
    cost = lambda u: 0.5 + u  # noqa: E731
    a, b = told(make(name), 100, cost), told(make(name), 100, cost, one_by_one=True)
    assert_same(a, b)
    pulls = a.ask(np.random.default_rng(2), 5)
    listed = list(b.ask(np.random.default_rng(2), 5))
    a.tell(pulls, np.full(5, 0.5), controls=np.arange(5.0))
    b.tell(listed, np.full(5, 0.5), controls=np.arange(5.0))
    assert_same(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_told_late_and_in_any_order(name):
    rng, a = np.random.default_rng(2), make(name)
    pulls = a.ask(rng, 60)
    b = a.copy()
    rewards, controls, order = rng.random(60), rng.normal(size=(60, 1)), rng.permutation(60)
    a.tell(pulls, rewards, controls=controls)
    for part in (order[:25], order[25:]):
        b.tell(pulls[part], rewards[part], controls=controls[part])
    assert_same(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_go_on_alike(name):
    policy = told(make(name), 100)
    policy.ask(np.random.default_rng(3), 3)
    others = policy.copy(), pickle.loads(pickle.dumps(policy))
    policy = told(policy, 60, seed=4)
    for other in others:
        assert_same(told(other, 60, seed=4), policy)


@pytest.mark.parametrize("name", NAMES)
def test_costs_are_used_or_ignored(name):
    cheap, dear = (told(make(name), 60, lambda u, by=by: 1.0 + by * u) for by in (0.0, 9.0))
    assert cheap.uses_costs == (name == "lcb")
    assert np.array_equal(cheap.index(), dear.index()) == (name != "lcb")


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
def test_bad_values_and_costs_are_named_and_leave_no_trace(name):
    policy = make(name)
    pulls = policy.ask(np.random.default_rng(5), 3)
    w = np.zeros(3)
    for value, cost, message in (
        ([0.5, 0.5, math.nan], 1.0, r"value of pull 2 .* is nan"),
        ([0.5, math.inf, 0.5], 1.0, r"value of pull 1 .* is inf"),
        ([0.5, 0.5], 1.0, r"value must have shape \(3,\), got \(2,\)"),
        ([0.5] * 3, [1.0, 1.0, -1.0], r"cost of pull 2 .* is -1"),
        ([0.5] * 3, [1.0, math.nan, 1.0], r"cost of pull 1 .* is nan"),
        ([0.5] * 3, [1.0, 1.0], r"cost must be a number or of shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.tell(pulls, value, cost, controls=w)
    with pytest.raises(ValueError, match=r"value of pull 1 .* is nan"):
        policy.tell(pulls[1], math.nan, controls=0.0)
    with pytest.raises(ValueError, match="value must have shape"):
        policy.tell(pulls[1], [0.5, 0.5], controls=0.0)
    assert np.sum(policy.pending) == 3
    policy.tell(pulls, [0.5] * 3, controls=w)


@pytest.mark.parametrize("name", NAMES)
def test_pulls_that_are_not_open(name):
    rng, policy = np.random.default_rng(6), make(name)
    pull, pulls = policy.ask(rng), list(policy.ask(rng, 3))
    with pytest.raises(ValueError, match=r"pull 7 .* was never asked for"):
        policy.tell(pull._replace(number=7), 0.5, controls=[0.0])
    policy.tell(pull, 0.5, controls=[0.1])
    policy.drop(pulls[2])
    for act in (policy.drop, lambda p: policy.tell(p, np.full(len(p), 0.5), controls=value_of(p))):
        for bad in ([pull], pulls, [pulls[0], pulls[0]]):
            with pytest.raises(ValueError, match="has been told or dropped already"):
                act(bad)
    assert np.sum(policy.pending) == 2
    policy.drop(pulls[:2])
    assert np.sum(policy.pending) == 0
    other = policy.ask(rng)
    with pytest.raises(ValueError, match="has been told or dropped already"):
        policy.tell(Pull((other.arm + 1) % 4, other.number), 0.5, controls=[0.0])


@pytest.mark.parametrize("name", NAMES)
def test_arms_that_may_be_chosen(name):
    policy, rng = told(make(name), 100), np.random.default_rng(7)
    a, b = policy.copy(), policy.copy()
    for among in ([1, 3], [2], np.array([3, 0])):
        arms = {policy.ask(rng, among=among).arm for _ in range(20)}
        assert arms | set(policy.ask(rng, 40, among=among).arms.tolist()) <= set(map(int, among))
    for bad in ([], [4], [-1], [0.5], 1, [True]):
        with pytest.raises(ValueError, match="among must be arms from 0 to 3"):
            policy.ask(rng, 2, among=bad)
    one, two = np.random.default_rng(8), np.random.default_rng(8)
    for n in (1, 30):
        np.testing.assert_array_equal(a.ask(one, n).arms, b.ask(two, n, among=range(4)).arms)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "thompson"])
def test_the_largest_index_is_pulled(name):
    """Also among some arms, as if there were no others; and of a batch one after the other."""
    rng, policy = np.random.default_rng(15), make(name)
    assert isinstance(policy, IndexPolicy)
    for _ in range(60):
        index, some = policy.index(), [0, 2, 3]
        assert index[policy.copy().ask(rng, among=some).arm] == index[some].max()
        pull = policy.ask(rng)
        assert index[pull.arm] == index.max()
        policy.tell(pull, 0.1 * pull.arm + 0.3 * rng.random(), controls=rng.normal(size=1))
    together = policy.copy().ask(rng, 40).arms.tolist()
    alone = [policy.ask(rng).arm for _ in range(40)]
    # Some of a batch are chosen at the time t of the first of them.
    assert np.abs(np.bincount(together, minlength=4) - np.bincount(alone, minlength=4)).max() <= 1


@pytest.mark.parametrize("name", [n for n in NAMES if n != "thompson"])
def test_pending_pulls_count(name):
    """Nothing is told: every arm gets its turn, none is asked for again and again."""
    counts = make(name, 5).ask(np.random.default_rng(0), 50).counts(5)
    assert counts.min() >= 9 and counts.max() <= 11


@pytest.mark.parametrize("scale", [RunningRange, LogLoss, lambda: KnownRange(-5.0, [1, 2, 3, 4])])
@pytest.mark.parametrize("name", SCALED)
def test_every_scale(name, scale):
    rng, policy = np.random.default_rng(13), make(name, rewards=scale())
    for _ in range(100):
        policy.tell(policy.ask(rng), rng.uniform(-1.0, 1.0))
    policy.tell(policy.ask(rng, 10), rng.uniform(-1.0, 1.0, 10))
    assert np.isfinite(policy.index()).all()


@pytest.mark.parametrize("name", SCALED)
def test_a_range_may_be_a_point(name):
    """An arm of known reward 0 beside others whose rewards are larger."""
    rng = np.random.default_rng(13)
    policy = make(name, rewards=KnownRange(0.0, [1.0, 0.0, 1.0, 1.0]))
    for _ in range(400):
        pull = policy.ask(rng)
        policy.tell(pull, 0.0 if pull.arm == 1 else 0.2 + 0.3 * rng.random())
    assert policy.counts[1] <= 1 or name == "round_robin"
    with pytest.raises(ValueError, match="low must be less than high"):
        KnownRange(0.0, [0.0, 0.0])


def test_make_policy():
    assert all(cls.name == name and issubclass(cls, Policy) for name, cls in POLICIES.items())
    policy = make_policy("ucb1", 3, c=5.0)
    assert type(policy) is UCB1 and policy.n_arms == 3
    with pytest.raises(ValueError, match=r"one of 'klucb', .*got 'ucb'"):
        make_policy("ucb", 3)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("ucb1", "c", 0.0),
        ("ucbv", "zeta", -1.0),
        ("ucbv", "c", math.nan),
        ("klucb", "c", -1.0),
        ("lcb", "values", "logs"),
        ("ucb1", "n_arms", 0),
    ],
)
def test_bad_settings_are_named(name, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must"):
        make(name, **{setting: value})


@pytest.mark.parametrize("rewards", [(0.0,), (1.0, 0.0), (0.0, math.inf), ([0.0, 0.0], 1.0)])
def test_bad_ranges(rewards):
    with pytest.raises(ValueError, match=r"low|pair"):
        UCB1(4, rewards=rewards)
