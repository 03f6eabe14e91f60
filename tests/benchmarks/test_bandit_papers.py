"""Compiled runs decide as the policies do; theorem 1's identity; the benchmark runs."""

import csv
import math
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import KLUCB, UCB1, UCBV
from amc_pymc.bandits.rewards import KnownRange
from amc_pymc.bandits.thompson import ThompsonSampling
from benchmarks.papers import neufeld as neufeld
from benchmarks.papers import verma as verma
from benchmarks.papers.bandit_runs import run
from benchmarks.papers.eucbv import EUCBV
from benchmarks.papers.moss import MOSS
from benchmarks.papers.tightest import TightestBound
from models.scaled_bernoulli import make_problem
from models.ucb_cv_instances import make_instance

ROOT = Path(__file__).resolve().parents[2]
N = 300


def asked(policy: Policy, rewards, rng, controls=None) -> np.ndarray:
    """Pulls (n, K) after each of n pulls, by ask and tell."""
    n_arms, n = rewards.shape
    counts = np.zeros((n + 1, n_arms), int)
    for t in range(n):
        pull = policy.ask(rng)
        i = counts[t, pull.arm]
        w = None if controls is None else [controls[pull.arm, i]]
        policy.tell(pull, rewards[pull.arm, i], controls=w)
        counts[t + 1] = counts[t]
        counts[t + 1, pull.arm] += 1
    return counts[1:]


BOUNDED = {
    "ucb1": lambda k, r: UCB1(k, rewards=r),
    "ucbv": lambda k, r: UCBV(k, rewards=r),
    "klucb": lambda k, r: KLUCB(k, rewards=r),
    "klucb, c = 0": lambda k, r: KLUCB(k, c=0.0, rewards=r),
    "moss": lambda k, r: MOSS(k, rewards=r),
    "tightest": lambda k, r: TightestBound(k, rewards=r),
    "eucbv": lambda k, r: EUCBV(k, horizon=N, rewards=r),
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("n_arms", [1, 2, 5])
@pytest.mark.parametrize("ranges", ["same", "own"])
def test_same_decisions(name, n_arms, ranges):
    rng = np.random.default_rng([n_arms, len(name)])
    rewards = rng.random((2, n_arms, N)) * np.linspace(0.6, 1.0, n_arms)[:, None]
    rewards[:, :, ::7] = 0.0  # ends of the range
    scale = KnownRange(0.0, 1.0)
    if ranges == "own":
        high = 1.0 + np.arange(n_arms)
        scale, rewards = KnownRange(-high, 0.0), -high[:, None] * rewards
    found = run(
        BOUNDED[name](n_arms, scale), rewards, np.arange(1, N + 1), np.random.default_rng(9)
    )
    same = np.random.default_rng(9)
    for r in range(2):
        expected = asked(BOUNDED[name](n_arms, scale), rewards[r], same)
        np.testing.assert_array_equal(found[r], expected)


def test_compiled_thompson_sampling_has_the_distribution_of_the_policy():
    """It draws from streams of its own, so only frequencies can be the same."""
    rng, n = np.random.default_rng(3), 60
    rewards = (rng.random((4_000, 2, n)) < np.array([0.4, 0.6])[:, None]).astype(float)
    compiled = run(ThompsonSampling(2), rewards, np.array([n]), rng)[:, 0, 1]
    plain = np.array([asked(ThompsonSampling(2), r, rng)[-1, 1] for r in rewards[:400]])
    error = math.hypot(compiled.std() / math.sqrt(4_000), plain.std() / math.sqrt(400))
    assert abs(compiled.mean() - plain.mean()) < 4.0 * error


@pytest.mark.parametrize("estimator", ["regression", "jackknife", "splitting", "batching"])
def test_same_decisions_with_controls(estimator):
    instance, rng = make_instance(2), np.random.default_rng(5)
    draws = verma.draw(instance, N, 2, rng)
    found = run(
        verma.controlled(instance, estimator=estimator, n_batches=5),
        draws.rewards, np.arange(1, N + 1), rng, draws.controls,
    )  # fmt: skip
    for r in range(2):
        policy = verma.controlled(instance, estimator=estimator, n_batches=5)
        expected = asked(policy, draws.rewards[r], rng, draws.controls[r])
        np.testing.assert_array_equal(found[r], expected)


@pytest.mark.parametrize(
    "name",
    [
        "UCB1",
        *(pytest.param(n, marks=pytest.mark.slow) for n in neufeld.PAPER_POLICIES if n != "UCB1"),
    ],
)
def test_regret_identity(name):
    """Theorem 1 of Neufeld et al.: n^2 (MSE - V* / n) = sum_k E[T_k] (V_k - V*)."""
    problem, n, runs = make_problem([0.02, 0.2, 0.1]), 100, 20_000
    rng = np.random.default_rng(17)
    values = np.array([problem.sample(n, rng) for _ in range(runs)])
    counts = run(neufeld.PAPER_POLICIES[name](3), 1.0 - values**2, np.array([n]), rng)
    best = problem.variances.min()
    squares = neufeld.normalised_errors(
        np.cumsum(values, 2), counts, np.array([n]), problem.mean, best
    )[:, 0]
    exact = 1.0 + counts[:, 0] @ (problem.variances / best - 1.0) / n
    gap = squares - exact
    assert abs(gap.mean()) < 3.5 * gap.std() / math.sqrt(runs)
    assert exact.mean() > 1.1  # there is something to find


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


@pytest.mark.slow
def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.papers.bandits", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--steps", "1000"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "## Statements" in done.stdout and "nan" not in done.stdout
    for name in ("1", "2", "cv1", "cv2", "cv3", "cv4"):
        assert (tmp_path / f"bandit_papers_{name}.png").stat().st_size > 10_000
    with (tmp_path / "bandit_papers.csv").open() as file:
        rows = list(csv.DictReader(file))
    of = [r for r in rows if r["figure"] == "statements"]
    assert len(of) == 31 and {r["holds"] for r in of} <= {"yes", "no"}
    assert all(r["cause"] for r in of if r["holds"] == "no")
    assert sum(r["figure"] == "1" for r in rows) == 36 * 4
