"""Many runs decide as the policies do; theorem 1's identity; the benchmark runs."""

import math

import numpy as np
import pytest

from amc_pymc.bandits.indices import KLUCB, UCB1, UCBV
from amc_pymc.bandits.rewards import KnownRange
from benchmarks.papers import neufeld as neufeld
from benchmarks.papers import verma as verma
from benchmarks.papers.bandit_runs import EUCBV, one_run, run
from models.scaled_bernoulli import make_problem
from models.ucb_cv_instances import make_instance

N = 300


BOUNDED = {
    "ucb1": lambda k, r: UCB1(k, rewards=r), "ucbv": lambda k, r: UCBV(k, rewards=r),
    "klucb": lambda k, r: KLUCB(k, rewards=r),
    "klucb, c = 0": lambda k, r: KLUCB(k, c=0.0, rewards=r),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("n_arms", [1, 5])
def test_same_decisions(name, n_arms):
    rng = np.random.default_rng([n_arms, len(name)])
    rewards = rng.random((2, n_arms, N)) * np.linspace(0.6, 1.0, n_arms)[:, None]
    rewards[:, :, ::7] = 0.0  # ends of the range
    high = 1.0 + np.arange(n_arms)
    scale, rewards = KnownRange(-high, 0.0), -high[:, None] * rewards
    found = run(
        BOUNDED[name](n_arms, scale), rewards, np.arange(1, N + 1), np.random.default_rng(9)
    )
    same = np.random.default_rng(9)
    for r in range(2):
        expected = one_run(BOUNDED[name](n_arms, scale), rewards[r], N, same)
        np.testing.assert_array_equal(found[r], expected)


def test_same_decisions_with_controls():
    instance, rng = make_instance(2), np.random.default_rng(5)
    draws = verma.draw(instance, N, 2, rng)
    found = run(verma.controlled(instance), draws.rewards, np.arange(1, N + 1), rng, draws.controls)
    for r in range(2):
        expected = one_run(verma.controlled(instance), draws.rewards[r], N, rng, draws.controls[r])
        np.testing.assert_array_equal(found[r], expected)


def test_eucbv_eliminates_worse_arms_for_good():
    """Hardly any run draws from the worse arms in its second half, where UCB1 still does."""
    rng, n = np.random.default_rng(4), 2_000
    rewards = (rng.random((50, 3, n)) < np.array([0.1, 0.2, 0.9])[:, None]).astype(float)
    counts = run(EUCBV(3, horizon=n), rewards, np.array([n // 2, n]), rng)
    idle = (counts[:, 0, :2] == counts[:, 1, :2]).all(axis=1)
    assert idle.mean() > 0.9
    assert (counts[:, 1, 2] > 0.9 * n).all()
    others = run(UCB1(3), rewards, np.array([n // 2, n]), rng)
    assert (others[:, 0, :2] < others[:, 1, :2]).all()


@pytest.mark.slow
def test_regret_identity():
    """Theorem 1 of Neufeld et al.: n^2 (MSE - V* / n) = sum_k E[T_k] (V_k - V*)."""
    problem, n, runs = make_problem([0.02, 0.2, 0.1]), 100, 20_000
    rng = np.random.default_rng(17)
    values = np.array([problem.sample(n, rng) for _ in range(runs)])
    counts = run(neufeld.PAPER_POLICIES["UCB1"](3), 1.0 - values**2, np.array([n]), rng)
    best = problem.variances.min()
    squares = neufeld.normalised_errors(
        np.cumsum(values, 2), counts, np.array([n]), problem.mean, best
    )[:, 0]
    exact = 1.0 + counts[:, 0] @ (problem.variances / best - 1.0) / n
    gap = squares - exact
    assert abs(gap.mean()) < 3.5 * gap.std() / math.sqrt(runs)
    assert exact.mean() > 1.1  # there is something to find


@pytest.mark.slow
def test_population_runs_are_martingales():
    """Mean squared deviation is what squared errors of the average are, on average."""
    strike, n, size, runs = 0.08, 60, 20, 1_500
    mean = neufeld.make_pools(2**15, np.random.default_rng(2))[2].mean
    by_values = neufeld.population_runs(
        strike, "payoff", n, size, runs, mean, 1.0, np.random.default_rng(3)
    )[:, -1]
    rng = np.random.default_rng(3)
    errors = np.array(
        [
            np.mean([p.values.mean() for p in neufeld.population_monte_carlo(
                neufeld.Caplet(strike), n // size, size=size, rng=rng)]) - mean
            for _ in range(runs)
        ]
    )  # fmt: skip
    gap = n * errors**2 - by_values
    assert abs(gap.mean()) < 3.5 * gap.std() / math.sqrt(runs)
