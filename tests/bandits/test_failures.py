"""Arms whose draws fail: by chance in a batch, or always."""

import numpy as np
import pytest

from amc_pymc.bandits import LogLoss, Policy, RunningRange, make_policy
from amc_pymc.bandits.arms import FailedPull, as_arms
from amc_pymc.bandits.combination import Combination, plan_rounds, run_here

POLICIES = ("lcb", "ucb1", "klucb", "thompson", "round_robin", "ucbcv")


class Normal:
    """Normal values of mean 1; the first batches fail, each as a whole."""

    def __init__(self, failing=0, sd=1.0):
        self.failing, self.sd, self.batches = failing, sd, 0

    def sample(self, n, rng):
        self.batches += 1
        if self.batches <= self.failing:
            raise FailedPull
        return rng.normal(1.0, self.sd, n)


NEVER = 10**9


class FirstArm(Policy):
    """Pulls the first arm it may."""

    name = "first"

    def index(self):
        return -np.arange(self.n_arms)


def combination(arms, name, draws=1000, rounds="doubling", first=60, payoff="squared"):
    settings = {"rewards": RunningRange()}
    if name == "lcb":
        settings, payoff = {"values": "natural"}, None
    if name == "ucbcv":
        settings = {"n_controls": 0}
    used = as_arms(arms)
    policy = make_policy(name, len(used), **settings)
    return Combination(used, policy, plan_rounds(draws, first, "draws", rounds), payoff)


@pytest.mark.parametrize("name", POLICIES)
def test_an_arm_whose_first_batch_fails_is_not_lost(name):
    """Thirty failed draws are one failure; the arm with the smaller variance is then found."""
    arms = {"good": Normal(1, sd=0.1), "bad": Normal(sd=3.0)}
    run = run_here(combination(arms, name, draws=2_000), np.random.default_rng(1))
    good, bad = run.records
    assert good.failed > 0 and not run.given_up.any()
    assert good.n > 100
    assert name in ("round_robin", "ucb1", "klucb", "ucbcv") or good.n > bad.n


@pytest.mark.parametrize("rounds", ["doubling", 100, 1])
@pytest.mark.parametrize("name", POLICIES)
def test_an_arm_that_always_fails_takes_little_of_the_budget(name, rounds):
    arms = {"never": Normal(NEVER), "one": Normal(), "two": Normal(sd=2.0)}
    run = run_here(combination(arms, name, rounds=rounds), np.random.default_rng(2))
    never, one, two = run.records
    # Twenty in the first round, at most twenty in each of three others.
    assert never.failed <= 80
    assert run.given_up.tolist() == [True, False, False]
    assert never.failed + one.n + two.n == 1000
    mean = run.estimate("predictable")
    assert abs(mean.mean - 1.0) < 4.0 * mean.mcse < 0.6


def test_failures_of_groups_of_draws():
    arms = {"never": Normal(NEVER), "one": Normal(), "two": Normal(sd=2.0)}
    run = run_here(combination(arms, "ucb1", payoff="paired"), np.random.default_rng(3))
    assert run.records[0].failed <= 90
    assert run.given_up.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("size", "failed"), [(30, [30, 50, 70, 70]), (3, [3, 6, 9, 12, 15, 18, 21, 21])]
)
def test_twenty_failures_and_three_rounds_are_needed(size, failed):
    """Of an arm that is always asked for, thirty draws before it has failed and twenty per round after."""
    used = as_arms({"never": Normal(NEVER), "one": Normal()})
    policy = FirstArm(2, rewards=RunningRange())
    run = Combination(used, policy, plan_rounds(300, size, "draws", size), "squared")
    rng = np.random.default_rng(4)
    for expected in failed:
        given_up, before = run.given_up[0], run.records[0].failed
        _record(run, run.next_round(rng), rng)
        assert run.records[0].failed == expected
        assert given_up == (before == failed[-1])
        assert run.rounds[-1].counts.sum() == size


def _record(run, decided, rng):
    from amc_pymc.bandits.arms import draw

    samples = [
        draw(a, int(n), rng) if n else None for a, n in zip(run.arms, decided.counts, strict=True)
    ]
    run.record(decided, samples)
    return run


def test_there_is_no_round_without_arms():
    arms = {"never": Normal(NEVER), "neither": Normal(NEVER)}
    run = run_here(combination(arms, "lcb", draws=10_000), np.random.default_rng(5))
    assert run.given_up.all() and run.silent.all()
    assert sum(r.failed for r in run.records) < 1_000
    assert np.isnan(run.estimate("predictable").mean)


def test_a_known_cost_is_not_exceeded_without_the_cheapest_arm():
    never, dear = Normal(NEVER), Normal()
    never.cost, dear.cost = 1.0, 50.0
    used = as_arms({"never": never, "dear": dear})
    policy = make_policy("ucb1", 2, rewards=RunningRange())
    run = Combination(used, policy, plan_rounds(1_040.0, 102.0, "cost", 90), "paired")
    run_here(run, np.random.default_rng(6))
    assert run.given_up.tolist() == [True, False]
    assert run.spent <= 1_040.0
    assert 1_040.0 - run.spent < 100.0


@pytest.mark.parametrize(
    ("runs", "largest_error"), [(1_000, 0.0104), pytest.param(3_000, 0.006, marks=pytest.mark.slow)]
)
def test_giving_up_keeps_the_estimate_unbiased(runs, largest_error):
    """Which arm is left out depends on failures alone."""

    def gamma(failing):
        def draw(rng):
            if rng.random() < failing:
                raise FailedPull
            return rng.gamma(1.0)

        return draw

    rng, found = np.random.default_rng(7), []
    for _ in range(runs):
        arms = {"a": gamma(0.95), "b": gamma(0.0)}
        run = combination(arms, "thompson", draws=90, rounds=15, first=15)
        found.append(run_here(run, rng).estimate("predictable").mean)
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert error < largest_error
    assert abs(np.mean(found) - 1.0) < 3.0 * error


def test_controls_of_an_incomplete_group():
    """A round may end with fewer draws than a reward needs."""

    class Controlled:
        control_means = (0.5,)

        def sample(self, n, rng):
            w = rng.random(n)
            return w + rng.normal(0.5, 0.1, n), None, w[:, None]

    used = as_arms({"a": Controlled(), "b": Controlled()})
    policy = make_policy("ucbcv", 2, control_means=0.5)
    run = Combination(used, policy, plan_rounds(101, 9, "draws", 37), "paired")
    run_here(run, np.random.default_rng(8))
    assert sum(r.n for r in run.records) == 101


def test_log_scale():
    class Log(Normal):
        scale = "log"

    used = as_arms({"never": Log(NEVER), "one": Log(), "two": Log(sd=2.0)})
    policy = make_policy("thompson", 3, rewards=LogLoss())
    run = Combination(used, policy, plan_rounds(900, 60, "draws", "doubling"), "squared")
    run_here(run, np.random.default_rng(9))
    assert run.given_up.tolist() == [True, False, False]
