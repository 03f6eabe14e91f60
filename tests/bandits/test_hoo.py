"""HOO against the algorithm as the paper writes it, and what it finds."""

import math
import pickle

import numpy as np
import pytest

from amc_pymc.bandits import HOO, KnownRange, LogLoss, RunningRange
from amc_pymc.bandits.hoo import B_VALUE
from amc_pymc.bandits.rewards import MEAN


class Oracle:
    """Figure 1 of Bubeck et al. (2011) with nodes (h, i) and everything recomputed at each step.

    With a horizon, the truncated version of section 4.2.
    """

    def __init__(self, bounds, nu, rho, log_of=None, max_depth=10**9):
        self.bounds, self.nu, self.rho = np.array(bounds, float), nu, rho
        self.log_of, self.max_depth = log_of or math.log, max_depth
        self.rewards = {(0, 1): []}  # of the nodes in the tree
        self.rounds = 0

    def cell(self, h, i):
        low, high = np.zeros(len(self.bounds)), np.ones(len(self.bounds))
        for depth, bit in enumerate(np.binary_repr(i - 1, h) if h else ""):
            axis = depth % len(self.bounds)
            mid = (low[axis] + high[axis]) / 2
            low[axis], high[axis] = (mid, high[axis]) if bit == "1" else (low[axis], mid)
        return low, high

    def b_values(self):
        b = {}
        for h, i in sorted(self.rewards, reverse=True):
            n = len(self.rewards[h, i])
            if n == 0:
                b[h, i] = math.inf
                continue
            u = np.mean(self.rewards[h, i]) + self.nu * self.rho**h
            u += math.sqrt(2 * self.log_of(self.rounds) / n)
            if h < self.max_depth:
                u = min(
                    u, max(b.get((h + 1, 2 * i - 1), math.inf), b.get((h + 1, 2 * i), math.inf))
                )
            b[h, i] = u
        return b

    def ask(self, rng):
        u = rng.random(1 + len(self.bounds))
        coin, b = u[0], self.b_values() if self.rounds else {}
        h, i = 0, 1
        self.path = [(0, 1)]
        while (h, i) in self.rewards and h < self.max_depth:
            left, right = (b.get((h + 1, j), math.inf) for j in (2 * i - 1, 2 * i))
            bit = int(right > left)
            if left == right:
                bit = int(2 * coin >= 1)
                coin = 2 * coin - bit
            h, i = h + 1, 2 * i - 1 + bit
            self.path.append((h, i))
        low, high = self.cell(h, i)
        ends = self.bounds
        return ends[:, 0] + (low + (high - low) * u[1:]) * (ends[:, 1] - ends[:, 0])

    def tell(self, reward):
        for node in self.path:
            self.rewards.setdefault(node, []).append(reward)
        self.rounds += 1


def smooth(rng, x):
    """In [0, 1], of mean proportional to 1 - |x - 0.3|^2 / 4."""
    return (1 - np.sum((np.asarray(x) - 0.3) ** 2) / 4) * rng.beta(8, 2)


@pytest.mark.parametrize(
    ("bounds", "nu", "rho"),
    [([[-1, 1]], 1.0, 0.25), ([[-1, 1]], 0.3, 0.6), ([[0, 1], [-1, 1]], 1.0, 0.5)],
)
@pytest.mark.parametrize("horizon", [None, 300, 40])
def test_against_the_algorithm_as_written(bounds, nu, rho, horizon):
    log_of, depth = None, 10**9
    if horizon is not None:
        log_of = lambda _: math.log(horizon)  # noqa: E731
        depth = math.ceil((math.log(horizon) / 2 - math.log(1 / nu)) / math.log(1 / rho))
    oracle = Oracle(bounds, nu, rho, log_of, depth)
    hoo = HOO(bounds, nu=nu, rho=rho, horizon=horizon)
    rng, same, noise = np.random.default_rng(1), np.random.default_rng(1), np.random.default_rng(2)
    for _ in range(300):
        pull, expected = hoo.ask(rng), oracle.ask(same)
        np.testing.assert_allclose(pull.point, expected, rtol=1e-12, atol=1e-12)
        reward = smooth(noise, pull.point)
        hoo.tell(pull, reward)
        oracle.tell(reward)
    assert hoo.depth == max(h for h, _ in oracle.rewards)
    b_values = hoo.index()
    assert b_values.size == len(oracle.rewards)
    np.testing.assert_allclose(np.sort(b_values), sorted(oracle.b_values().values()))


def test_default_rho():
    assert HOO([[0, 1]]).rho == 0.25
    assert HOO([[0, 1]] * 4).rho == pytest.approx(math.sqrt(0.5))


def two_peaks(rng, x):
    """Bernoulli with a higher, narrower peak at 0.75 and a lower one at 0.2."""
    mean = 0.9 - 2.0 * abs(x[0] - 0.75) if x[0] > 0.5 else 0.6 - 2.0 * abs(x[0] - 0.2)
    return float(rng.random() < max(mean, 0.0))


@pytest.mark.parametrize("horizon", [None, 3_000])
def test_maximum_and_regret_in_one_dimension(horizon):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        hoo = HOO([[0.0, 1.0]], nu=1.0, rho=0.5, horizon=horizon)
        total = 0.0
        for _ in range(3_000):
            pull = hoo.ask(rng)
            reward = two_peaks(rng, pull.point)
            total += reward
            hoo.tell(pull, reward)
        assert abs(hoo.best().point[0] - 0.75) < 0.1
        grid = (np.arange(20_000) + 0.5) / 20_000
        mean = np.where(grid > 0.5, 0.9 - 2 * abs(grid - 0.75), 0.6 - 2 * abs(grid - 0.2))
        random_regret = 0.9 - np.maximum(mean, 0.0).mean()
        assert 0.9 - total / 3_000 < 0.5 * random_regret


def test_maximum_in_two_dimensions():
    rng = np.random.default_rng(4)
    hoo = HOO([[-1, 1], [0, 10]], horizon=5_000, point="centre")
    for _ in range(5_000):
        pull = hoo.ask(rng)
        x, y = pull.point
        mean = 0.9 - 0.3 * (x - 0.5) ** 2 - 0.5 * ((y - 2.0) / 10) ** 2
        hoo.tell(pull, rng.random() < mean)
    x, y = hoo.best().point
    assert abs(x - 0.5) < 0.5 and abs(y - 2.0) < 4.0
    found = 0.9 - 0.3 * (x - 0.5) ** 2 - 0.5 * ((y - 2.0) / 10) ** 2
    assert found > 0.85
    assert hoo.depth <= hoo.max_depth


def test_points_lie_in_their_cells():
    rng = np.random.default_rng(5)
    for point in ("uniform", "centre"):
        hoo = HOO([[-3.0, -1.0], [5.0, 6.0], [0.0, 1e-3]], point=point)
        for _ in range(200):
            pull = hoo.ask(rng)
            assert (hoo.bounds[:, 0] <= pull.point).all() and (pull.point <= hoo.bounds[:, 1]).all()
            hoo.tell(pull, 0.5 + 0.1 * pull.point[0])
        best = hoo.best()
        np.testing.assert_allclose(best.point, best.bounds.mean(axis=1))
        assert best.pulls >= 1 and (np.diff(best.bounds) > 0).all()
    # the centres of the first two cells, in some order
    hoo = HOO([[0.0, 8.0]], point="centre")
    assert {float(hoo.ask(rng).point[0]) for _ in range(2)} == {2.0, 6.0}


def test_best_follows_the_most_told_path():
    rng, hoo = np.random.default_rng(6), HOO([[0.0, 8.0]], point="centre")
    with pytest.raises(ValueError, match="at least one reward"):
        hoo.best()
    for _ in range(6):
        pull = hoo.ask(rng)
        hoo.tell(pull, float(pull.point[0] > 4.0))
    best = hoo.best()
    assert 4.0 <= best.bounds[0, 0] < best.bounds[0, 1] <= 8.0 and best.mean == 1.0


@pytest.mark.parametrize("horizon", [None, 500])
def test_a_batch_spreads(horizon):
    """Pending pulls count, so that pulls asked for together go to different cells."""
    rng, hoo = np.random.default_rng(7), HOO([[0.0, 1.0]], rho=0.5, horizon=horizon)
    pulls = hoo.ask(rng, 32)
    assert hoo.pending == 32 and hoo.told == 0 and [p.number for p in pulls] == list(range(32))
    assert len({p.node for p in pulls}) > 20
    x = np.array([p.point[0] for p in pulls])
    assert 8 <= (x > 0.5).sum() <= 24


@pytest.mark.parametrize("horizon", [None, 400])
def test_order_of_telling_and_state(horizon):
    rng, hoo = np.random.default_rng(8), HOO([[0.0, 1.0]], horizon=horizon)
    for _ in range(5):
        pulls = hoo.ask(rng, 40)
        rewards = np.array([smooth(rng, p.point) for p in pulls])
        late = hoo.copy()
        hoo.tell(pulls, rewards)
        for i in rng.permutation(40):
            late.tell(pulls[i], rewards[i])
        np.testing.assert_allclose(late.index(), hoo.index(), rtol=1e-9, atol=1e-9)
        tables = late.state()["table"], hoo.state()["table"]
        np.testing.assert_allclose(*tables, rtol=1e-9, atol=1e-9)
    hoo.ask(rng, 3)
    fresh = HOO([[0.0, 1.0]], horizon=horizon)
    for other in (fresh.restore(hoo.state()), pickle.loads(pickle.dumps(hoo)), hoo.copy()):
        one, two, this = np.random.default_rng(9), np.random.default_rng(9), hoo.copy()
        for _ in range(100):
            a, b = this.ask(one), other.ask(two)
            assert a.node == b.node and a.number == b.number and (a.point == b.point).all()
            reward = 1.0 - abs(a.point[0] - 0.4)
            this.tell(a, reward)
            other.tell(b, reward)
        assert other.pending == 3 and other.told == 300 and other.asked == 303


def test_b_values_of_one_path_are_those_of_all():
    rng, hoo = np.random.default_rng(10), HOO([[0.0, 1.0]], horizon=600)
    for _ in range(600):
        pull = hoo.ask(rng)
        hoo.tell(pull, smooth(rng, pull.point))
    before = hoo.state()["table"]
    np.testing.assert_array_equal(before[B_VALUE], hoo.index())
    np.testing.assert_array_equal(before, hoo.state()["table"])


def test_dropped_pulls_leave_no_trace():
    rng, hoo = np.random.default_rng(11), HOO([[0.0, 1.0]])
    first = hoo.ask(rng)
    hoo.drop(first)
    assert hoo.pending == 0
    nodes = set()
    for _ in range(2):
        pull = hoo.ask(rng)
        nodes.add(pull.node)
        hoo.tell(pull, 0.5)
    assert first.node in nodes and hoo.depth == 1
    pulls = hoo.ask(rng, 10)
    hoo.drop(pulls[::2])
    hoo.tell(pulls[1::2], np.full(5, 0.5))
    assert hoo.pending == 0 and hoo.told == 7


def test_scales_of_rewards():
    """The same pulls whatever the scale on which rewards come."""
    points = []
    for scale, to in (((0.0, 1.0), lambda r: r), (KnownRange(-5.0, 5.0), lambda r: 10 * r - 5)):
        rng, hoo = np.random.default_rng(12), HOO([[0.0, 1.0]], rewards=scale)
        for _ in range(100):
            pull = hoo.ask(rng)
            hoo.tell(pull, to(1.0 - abs(pull.point[0] - 0.4)))
        points.append(hoo.best().point)
    np.testing.assert_allclose(points[0], points[1])
    for horizon in (None, 2_000):
        for scale, to in (
            (RunningRange(), lambda x: -1e6 * x),
            (LogLoss(), lambda x: -700 + 3 * x),
        ):
            rng = np.random.default_rng(13)
            hoo = HOO([[0.0, 1.0]], rewards=scale, rho=0.5, horizon=horizon)
            for _ in range(2_000):
                pull = hoo.ask(rng)
                hoo.tell(pull, to(abs(pull.point[0] - 0.4)))
            assert abs(hoo.best().point[0] - 0.4) < 0.1
            if horizon:
                before = hoo.state()["table"]
                np.testing.assert_allclose(before[B_VALUE], hoo.index())
                np.testing.assert_allclose(before, hoo.state()["table"])


def test_runs_share_no_range():
    """The range that one run learns is unknown to another run with the same object."""
    rewards, rng = RunningRange(), np.random.default_rng(14)
    one, other = (HOO([[0.0, 1.0]], rewards=rewards) for _ in range(2))
    for value in (-1e3, 1e3):
        one.tell(one.ask(rng), value)
    assert one.rewards is not other.rewards and other.rewards is not rewards


def test_a_reward_outside_its_range_is_told_once_and_counted():
    rng, hoo = np.random.default_rng(14), HOO([[0.0, 1.0]])
    with pytest.warns(UserWarning, match="outside its declared range"):
        hoo.tell(hoo.ask(rng), 1.5)
    hoo.tell(hoo.ask(rng), -0.5)
    assert hoo.rewards.clipped == 2 and hoo.state()["table"][MEAN, 0] == 0.5


def test_bad_input():
    for bounds, settings, message in [
        ([0.0, 1.0], {}, r"bounds must have shape \(d, 2\), got \(2,\)"),
        ([[1.0, 0.0]], {}, "bounds must be finite with low < high"),
        ([[0.0, math.inf]], {}, "bounds must be finite with low < high"),
        ([[0.0, 1.0]], {"nu": 0.0}, "nu must be positive"),
        ([[0.0, 1.0]], {"rho": 1.0}, "rho must be between 0 and 1, got 1.0"),
        ([[0.0, 1.0]], {"horizon": 0}, "horizon must be at least 1, got 0"),
        ([[0.0, 1.0]], {"max_depth": 0}, "max_depth must be at least 1, got 0"),
        ([[0.0, 1.0]], {"point": "corner"}, 'point must be "uniform" or "centre"'),
        ([[0.0, 1.0]], {"rewards": (1.0, 0.0)}, "low must be less than high"),
    ]:
        with pytest.raises(ValueError, match=message):
            HOO(bounds, **settings)
    rng, hoo = np.random.default_rng(15), HOO([[0.0, 1.0]])
    pull, pulls = hoo.ask(rng), hoo.ask(rng, 2)
    with pytest.raises(ValueError, match=r"value of pull 0 at \[0\.\d+\] is nan"):
        hoo.tell(pull, math.nan)
    with pytest.raises(ValueError, match=r"value must have shape \(2,\)"):
        hoo.tell(pulls, 0.5)
    with pytest.raises(ValueError, match="value must be a number"):
        hoo.tell(pull, [0.5])
    with pytest.raises(ValueError, match=r"pull 1 at .* has been told or dropped already"):
        hoo.tell([pulls[0], pulls[0]], [0.5, 0.5])
    assert hoo.told == 0 and hoo.pending == 3
    hoo.tell(pull, 0.5)
    with pytest.raises(ValueError, match=r"pull 0 at .* has been told or dropped already"):
        hoo.tell(pull, 0.5)
    with pytest.raises(ValueError, match=r"pull 7 at .* was never asked for"):
        hoo.drop(pull._replace(number=7))
    with pytest.raises(ValueError, match="n must not be negative, got -1"):
        hoo.ask(rng, -1)
    with pytest.raises(ValueError, match="state must have a table"):
        hoo.restore(hoo.state() | {"table": np.zeros((2, 3))})
