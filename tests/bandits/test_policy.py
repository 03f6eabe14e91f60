"""What every policy owes its caller: ask, tell, drop, copy, save."""

import math
import pickle
import time

import numpy as np
import pytest

from amc_pymc.bandits import (
    LCB,
    POLICIES,
    UCB1,
    FixedArm,
    IndexPolicy,
    KnownRange,
    LogLoss,
    Policy,
    Pull,
    Pulls,
    RandomChoice,
    RoundRobin,
    RunningRange,
    ThompsonSampling,
    make_policy,
)
from amc_pymc.bandits.policy import CompiledPolicy

NAMES = sorted(POLICIES)
RANDOM = [name for name in NAMES if name in ("thompson", "top_two", "random")]
#: Policies that are told rewards in a declared range.
SCALED = [name for name in NAMES if name not in ("lcb", "ucbcv")]


def make(name, n_arms=4, **settings):
    return make_policy(name, n_arms, **settings)


def answer(rng, pulls):
    """Rewards and controls of some pulls, better for larger arms."""
    n = len(pulls)
    w = rng.normal(size=(n, 1))
    return np.clip(0.1 * pulls.arms + 0.3 * rng.random(n) + 0.05 * w[:, 0], 0.0, 1.0), w


def tell(policy, pulls, told):
    rewards, controls = told
    policy.tell(pulls, rewards, controls=controls)


def feed(policy, rng, n, batch=1):
    """Ask and tell n pulls, `batch` at a time; the arms."""
    arms = []
    for _ in range(n // batch):
        pulls = policy.ask(rng, batch)
        tell(policy, pulls, answer(rng, pulls))
        arms.extend(pulls.arms.tolist())
    return arms


def same_state(a, b):
    a, b = a.state(), b.state()
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_equal(a[key], b[key])


@pytest.mark.parametrize("name", NAMES)
def test_counts_and_pending(name):
    rng = np.random.default_rng(1)
    policy = make(name)
    first = policy.ask(rng)
    assert isinstance(first, Pull) and 0 <= first.arm < 4 and first.number == 0
    pulls = policy.ask(rng, 40)
    assert isinstance(pulls, Pulls) and len(pulls) == 40
    assert pulls.numbers.tolist() == list(range(1, 41))
    assert policy.asked == 41
    expected = pulls.counts(4)
    expected[first.arm] += 1
    np.testing.assert_array_equal(policy.pending, expected)
    assert policy.counts.sum() == 0

    rewards, controls = answer(rng, pulls)
    policy.tell(pulls, rewards, controls=controls)
    policy.tell(first, 0.25, controls=[0.0])
    np.testing.assert_array_equal(policy.counts, expected)
    assert policy.pending.sum() == 0
    arms = np.append(pulls.arms, first.arm)
    values = np.append(rewards, 0.25)
    for k in np.flatnonzero(expected):
        np.testing.assert_allclose(policy.means[k], values[arms == k].mean())
        np.testing.assert_allclose(policy.variances[k], values[arms == k].var(), atol=1e-15)
    assert policy.index().shape == (4,) and not np.isnan(policy.index()).any()


@pytest.mark.parametrize("name", NAMES)
def test_told_in_any_order_and_together(name):
    """Delayed, out of order, one by one or in batches: the same statistics, so the same index."""
    rng = np.random.default_rng(2)
    a = make(name)
    pulls = a.ask(rng, 60)
    b, c = a.copy(), a.copy()
    rewards, controls = answer(rng, pulls)
    a.tell(pulls, rewards, controls=controls)
    for i in range(len(pulls)):
        b.tell(pulls[i], rewards[i], controls=controls[i])
    order = rng.permutation(60)
    c.tell(pulls[order[:25]], rewards[order[:25]], controls=controls[order[:25]])
    middle = c.ask(rng, 3)
    c.drop(middle)
    c.tell(pulls[order[25:]], rewards[order[25:]], controls=controls[order[25:]])
    np.testing.assert_allclose(b.index(), a.index(), rtol=1e-10)
    np.testing.assert_allclose(c.means, a.means, rtol=1e-10)
    np.testing.assert_array_equal(c.counts, a.counts)
    assert c.asked == 63
    if name not in ("klucb", "ucb1", "ucbv", "ucbcv"):
        np.testing.assert_allclose(c.index(), a.index(), rtol=1e-10)  # the others know of t


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*RANDOM, "fixed")])
def test_pending_pulls_count(name):
    """Nothing is told: every arm gets its turn, none is asked for again and again."""
    policy = make(name, 5)
    counts = policy.ask(np.random.default_rng(0), 50).counts(5)
    assert counts.min() >= 9 and counts.max() <= 11


@pytest.mark.parametrize("name", NAMES)
def test_initial_pulls_come_in_order(name):
    arms = make(name, 6).ask(np.random.default_rng(0), 6).arms.tolist()
    if name == "fixed":
        assert arms == [0] * 6
    elif name in ("lcb", "ucbcv"):
        assert arms == sorted(arms)
    elif name not in RANDOM:
        assert arms == list(range(6))


@pytest.mark.parametrize("name", NAMES)
def test_drop(name):
    rng = np.random.default_rng(3)
    policy = make(name)
    feed(policy, rng, 24)
    before = policy.counts
    pulls = policy.ask(rng, 10)
    policy.drop(pulls[:4])
    policy.drop(pulls[4])
    np.testing.assert_array_equal(policy.counts, before)
    np.testing.assert_array_equal(policy.pending, pulls[5:].counts(4))
    for gone in (pulls[4], pulls[:2]):
        with pytest.raises(ValueError, match="told or dropped already"):
            policy.drop(gone)
        with pytest.raises(ValueError, match="told or dropped already"):
            if isinstance(gone, Pulls):
                policy.tell(gone, [0.5, 0.5], controls=np.zeros((2, 1)))
            else:
                policy.tell(gone, 0.5, controls=[0.0])


@pytest.mark.parametrize("name", NAMES)
def test_copies_pickles_and_states_go_on_alike(name):
    rng = np.random.default_rng(4)
    policy = make(name)
    feed(policy, rng, 50)
    waiting = policy.ask(rng, 3)
    saved = pickle.loads(pickle.dumps(policy.state()))
    others = [
        policy.copy(),
        pickle.loads(pickle.dumps(policy)),
        make(name).restore(saved),
        make(name).restore(saved),
    ]
    seen = []
    for p in (policy, *others):
        r = np.random.default_rng(5)
        tell(p, waiting, answer(r, waiting))
        seen.append([*feed(p, r, 80), *feed(p, r, 80, batch=8)])
        same_state(p, policy)
    assert all(s == seen[0] for s in seen)
    assert others[0].counts.sum() == 213 and saved["asked"] == 53

    with pytest.raises(ValueError, match="shape"):
        make(name, 3).restore(saved)


@pytest.mark.parametrize("name", NAMES)
def test_pulls_that_are_not_open(name):
    rng = np.random.default_rng(6)
    policy = make(name)
    pull = policy.ask(rng)
    wrong = Pull((pull.arm + 1) % 4, pull.number, pull.coin)
    with pytest.raises(ValueError, match=f"pull 0 of arm {wrong.arm}"):
        policy.tell(wrong, 0.5, controls=[0.0])
    with pytest.raises(ValueError, match="pull 7 of arm 0 was never asked for"):
        policy.tell(Pull(0, 7), 0.5, controls=[0.0])
    policy.tell(pull, 0.5, controls=[0.1])
    with pytest.raises(ValueError, match=f"pull 0 of arm {pull.arm} has been told"):
        policy.tell(pull, 0.5, controls=[0.0])
    pulls = policy.ask(rng, 3)
    before = policy.state()
    twice = pulls[np.array([0, 1, 1])]
    with pytest.raises(ValueError, match="told or dropped already"):
        policy.tell(twice, np.full(3, 0.5), controls=np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"value must have shape \(3,\)"):
        policy.tell(pulls, np.zeros(2), controls=np.zeros((3, 1)))
    for key, value in policy.state().items():
        np.testing.assert_equal(value, before[key])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_rewards_that_are_no_numbers(name, bad):
    rng = np.random.default_rng(7)
    policy = make(name)
    pulls = policy.ask(rng, 3)
    before = policy.state()
    with pytest.raises(ValueError, match=f"pull 2 of arm {pulls.arms[2]} is {bad}"):
        policy.tell(pulls, [0.1, 0.2, bad], controls=np.zeros((3, 1)))
    with pytest.raises(ValueError, match=f"pull 1 of arm {pulls.arms[1]} is {bad}"):
        policy.tell(pulls[1], bad, controls=[0.0])
    for key, value in policy.state().items():
        np.testing.assert_equal(value, before[key])


@pytest.mark.parametrize("name", SCALED)
def test_rewards_outside_their_range(name):
    rng = np.random.default_rng(8)
    policy = make(name, rewards=(-1.0, 1.0))
    pulls = policy.ask(rng, 3)
    with pytest.warns(
        UserWarning, match=f"reward of 3 from arm {pulls.arms[0]} is outside"
    ) as seen:
        policy.tell(pulls[0], 3.0)
        policy.tell(pulls[1], -7.0)
    assert len(seen) == 1
    policy.tell(pulls[2], 0.5)
    assert policy.rewards.clipped == 2
    assert np.nanmin(policy.means) >= -1.0 and np.nanmax(policy.means) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_one_arm_is_allowed(name):
    rng = np.random.default_rng(9)
    policy = make(name, 1)
    assert set(feed(policy, rng, 50)) == {0}
    assert set(policy.ask(rng, 20).arms.tolist()) == {0}


@pytest.mark.parametrize("name", NAMES)
def test_number_of_arms(name):
    for bad in (0, -2):
        with pytest.raises(ValueError, match=f"n_arms must be at least 1, got {bad}"):
            make(name, bad)
    for bad in (2.5, True, "3"):
        with pytest.raises(TypeError, match="n_arms must be an integer"):
            make(name, bad)


@pytest.mark.parametrize("name", NAMES)
def test_asking_for_many(name):
    policy = make(name)
    rng = np.random.default_rng(10)
    feed(policy, rng, 60)
    assert len(policy.ask(rng, 0)) == 0
    with pytest.raises(ValueError, match="n must not be negative, got -1"):
        policy.ask(rng, -1)
    policy.tell(policy.ask(rng, 0), [])
    a, b, c = policy, policy.copy(), policy.copy()
    one = [a.ask(np.random.default_rng(i)).arm for i in range(40)]
    lots = [int(b.ask(np.random.default_rng(i), 1).arms[0]) for i in range(40)]
    assert one == lots
    if name not in RANDOM:
        assert c.ask(rng, 40).arms.tolist() == one


def test_compiled_functions_have_names_of_their_own():
    """Machine code of two functions of one name, cached by two processes, would be mixed up."""
    used = [cls._kernels for cls in POLICIES.values() if issubclass(cls, CompiledPolicy)]
    names = [f"{f.py_func.__module__}.{f.py_func.__qualname__}" for k in used for f in k]
    assert len(set(names)) == len(names) > 12


@pytest.mark.parametrize("name", RANDOM)
def test_many_at_once_are_distributed_as_one_by_one(name):
    rng = np.random.default_rng(11)
    policy = make(name, 3)
    for p in policy.ask(rng, 60):
        policy.tell(p, float(rng.random() < (0.5, 0.55, 0.6)[p.arm]))
    n = 4_000
    single = np.bincount([policy.copy().ask(rng).arm for _ in range(n)], minlength=3) / n
    many = policy.ask(rng, 10 * n).counts(3) / (10 * n)
    se = np.sqrt(many * (1.0 - many) * 1.1 / n)
    assert (np.abs(single - many) < 4.0 * se + 1e-12).all()


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_arms(name):
    rng = np.random.default_rng(12)
    policy = make(name, 5_000)
    batch = 200 if name in RANDOM else 5_000
    told = len(feed(policy, rng, (3 if name in ("lcb", "ucbcv") else 1) * batch, batch))
    start = time.process_time()
    feed(policy, rng, 50)
    assert time.process_time() - start < 1.0
    assert policy.counts.sum() == told + 50
    if name not in (*RANDOM, "fixed"):
        assert policy.counts.min() >= 1


@pytest.mark.parametrize("scale", [RunningRange, LogLoss, lambda: KnownRange(-5.0, [1, 2, 3, 4])])
@pytest.mark.parametrize("name", SCALED)
def test_every_scale(name, scale):
    rng = np.random.default_rng(13)
    policy = make(name, rewards=scale())
    for _ in range(100):
        pull = policy.ask(rng)
        policy.tell(pull, rng.uniform(-1.0, 1.0))
    policy.tell(policy.ask(rng, 10), rng.uniform(-1.0, 1.0, 10))
    assert np.isfinite(policy.index()[policy.index() > -math.inf]).all()


def test_names():
    assert {
        "ucb1", "ucbv", "klucb", "thompson", "top_two", "lcb", "random", "round_robin", "fixed",
    } <= set(POLICIES)  # fmt: skip
    for name, cls in POLICIES.items():
        assert cls.name == name and issubclass(cls, Policy)


def test_make_policy():
    policy = make_policy("ucb1", 3, c=5.0)
    assert type(policy) is UCB1 and policy.n_arms == 3
    assert type(make_policy(UCB1, 3)) is UCB1
    assert make_policy(policy, 3) is policy
    with pytest.raises(ValueError, match=r"one of 'fixed', 'klucb', .*got 'ucb'"):
        make_policy("ucb", 3)
    with pytest.raises(ValueError, match="policy is of 3 arms, there are 4"):
        make_policy(policy, 4)
    with pytest.raises(TypeError, match="c must be given where it is made"):
        make_policy(policy, 3, c=1.0)
    for bad in (3, int, None):
        with pytest.raises(TypeError, match="policy must be a name"):
            make_policy(bad, 3)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("ucb1", "c", 0.0),
        ("ucbv", "zeta", -1.0),
        ("ucbv", "c", math.nan),
        ("klucb", "c", -1.0),
        ("thompson", "alpha", 0.0),
        ("thompson", "beta", math.inf),
        ("top_two", "b", 0.0),
        ("top_two", "tries", -1),
        ("fixed", "arm", 4),
        ("lcb", "values", "logs"),
        ("lcb", "z", -1.0),
        ("lcb", "min_pulls", 1),
        ("lcb", "prior_sd", 0.0),
    ],
)
def test_bad_settings_are_named(name, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must"):
        make(name, **{setting: value})


@pytest.mark.parametrize("rewards", [(0.0,), (1.0, 0.0), (0.0, math.inf), ([0.0, 0.0], 1.0)])
def test_bad_ranges(rewards):
    with pytest.raises(ValueError, match=r"low|pair"):
        UCB1(4, rewards=rewards)


def test_what_is_no_scale():
    with pytest.raises(TypeError, match="rewards must be a pair"):
        UCB1(4, rewards=3.0)


def test_baselines():
    rng = np.random.default_rng(14)
    robin = RoundRobin(3)
    assert robin.ask(rng, 7).arms.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert robin.ask(rng).arm == 1
    assert set(FixedArm(3, arm=1).ask(rng, 9).arms.tolist()) == {1}
    n = 30_000
    counts = RandomChoice(3).ask(rng, n).counts(3)
    assert (np.abs(counts / n - 1 / 3) < 4.0 * math.sqrt(2 / 9 / n)).all()


def test_index_policies_pull_the_largest_index():
    rng = np.random.default_rng(15)
    for name in NAMES:
        policy = make(name)
        if not isinstance(policy, IndexPolicy | LCB):
            continue
        for _ in range(60):
            index = policy.index()
            pull = policy.ask(rng)
            assert index[pull.arm] == index.max()
            policy.tell(pull, 0.1 * pull.arm + 0.3 * rng.random(), controls=rng.normal(size=1))


def test_coins():
    rng = np.random.default_rng(16)
    assert math.isnan(UCB1(2).ask(rng).coin)
    policy = ThompsonSampling(2)
    coins = policy.ask(rng, 1_000).coins
    assert ((coins >= 0.0) & (coins < 1.0)).all() and np.unique(coins).size == 1_000
