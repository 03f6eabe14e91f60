"""HOO against the algorithm as the paper writes it, and what it finds."""

import math

import numpy as np
import pytest

from amc_pymc.bandits import HOO


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
@pytest.mark.parametrize("horizon", [300, 40])
def test_against_the_algorithm_as_written(bounds, nu, rho, horizon):
    log_of = lambda _: math.log(horizon)  # noqa: E731
    depth = math.ceil((math.log(horizon) / 2 - math.log(1 / nu)) / math.log(1 / rho))
    oracle = Oracle(bounds, nu, rho, log_of, depth)
    hoo = HOO(bounds, nu=nu, rho=rho, horizon=horizon)
    rng, same, noise = np.random.default_rng(1), np.random.default_rng(1), np.random.default_rng(2)
    for _ in range(300):
        point, expected = hoo.ask(rng)[0], oracle.ask(same)
        np.testing.assert_allclose(point, expected, rtol=1e-12, atol=1e-12)
        reward = smooth(noise, point)
        hoo.tell([reward])
        oracle.tell(reward)


def two_peaks(rng, x):
    """Bernoulli with a higher, narrower peak at 0.75 and a lower one at 0.2."""
    mean = 0.9 - 2.0 * abs(x[0] - 0.75) if x[0] > 0.5 else 0.6 - 2.0 * abs(x[0] - 0.2)
    return float(rng.random() < max(mean, 0.0))


def test_maximum_and_regret_in_one_dimension():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        hoo = HOO([[0.0, 1.0]], nu=1.0, rho=0.5, horizon=3_000)
        total = 0.0
        for _ in range(3_000):
            reward = two_peaks(rng, hoo.ask(rng)[0])
            total += reward
            hoo.tell([reward])
        assert abs(hoo.best()[0] - 0.75) < 0.1
        grid = (np.arange(20_000) + 0.5) / 20_000
        mean = np.where(grid > 0.5, 0.9 - 2 * abs(grid - 0.75), 0.6 - 2 * abs(grid - 0.2))
        random_regret = 0.9 - np.maximum(mean, 0.0).mean()
        assert 0.9 - total / 3_000 < 0.5 * random_regret


def test_a_batch_spreads():
    """Pending pulls count, so that points asked for together are in different cells."""
    rng, hoo = np.random.default_rng(7), HOO([[0.0, 1.0]], rho=0.5, horizon=500)
    points = hoo.ask(rng, 32)
    assert points.shape == (32, 1)
    assert len(np.unique(np.floor(32 * points[:, 0]))) > 20
    assert 8 <= (points[:, 0] > 0.5).sum() <= 24


def test_bad_input():
    for bounds, settings, message in [
        ([0.0, 1.0], {}, r"bounds must have shape \(d, 2\), got \(2,\)"),
        ([[1.0, 0.0]], {}, "bounds must be finite with low < high"),
        ([[0.0, math.inf]], {}, "bounds must be finite with low < high"),
        ([[0.0, 1.0]], {"nu": 0.0}, "nu must be positive"),
        ([[0.0, 1.0]], {"rho": 1.0}, "rho must be between 0 and 1, got 1.0"),
        ([[0.0, 1.0]], {"max_depth": 0}, "max_depth must be at least 1, got 0"),
        ([[0.0, 1.0]], {"horizon": 0}, "horizon must be at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            HOO(bounds, **{"horizon": 9} | settings)
    rng, hoo = np.random.default_rng(15), HOO([[0.0, 1.0]], horizon=50)
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        hoo.ask(rng, -1)
    assert hoo.ask(rng, 0).shape == (0, 1)
    hoo.ask(rng, 2)
    with pytest.raises(ValueError, match="needs at least one reward"):
        hoo.best()
    for rewards, message in [
        ([0.5], r"rewards must have shape \(2,\), got \(1,\)"),
        ([0.5, 1.5], "rewards must be between 0 and 1"),
        ([0.5, math.nan], "rewards must be between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            hoo.tell(rewards)
    hoo.tell([0.5, 0.5])
