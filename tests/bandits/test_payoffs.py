"""Payoffs have the expectations that make the best estimator the best arm."""

import numpy as np
import pytest

from amc_pymc.bandits import LCB, UCB1
from amc_pymc.bandits.arms import as_arms
from amc_pymc.bandits.combination import Combination, plan_rounds
from amc_pymc.bandits.payoffs import PAYOFFS, rewards


def groups(rng, payoff, n, dependent):
    g = PAYOFFS[payoff]
    x = rng.gamma(2.0, 0.5, (g, n))
    d = 1.0 + x if dependent else rng.exponential(2.0, (g, n))
    return x, d


@pytest.mark.parametrize(
    ("payoff", "dependent", "expected"),
    [
        ("squared", False, -1.5),
        ("paired", False, -2.0 * 0.5),
    ],
)
def test_expectations(payoff, dependent, expected):
    x, d = groups(np.random.default_rng(1), payoff, 200_000, dependent)
    found = rewards(x, d, payoff, "natural")
    error = found.std() / np.sqrt(found.size)
    assert abs(found.mean() - expected) < 3.5 * error


def test_pairs_are_misled_by_costs_that_depend_on_values():
    x, d = groups(np.random.default_rng(2), "paired", 200_000, True)
    found = rewards(x, d, "paired", "natural")
    assert abs(found.mean() + 2.0 * 0.5) > 10.0 * found.std() / np.sqrt(found.size)


@pytest.mark.parametrize("payoff", sorted(PAYOFFS))
def test_log_scale_tells_the_logarithm_of_the_loss(payoff):
    x, d = groups(np.random.default_rng(3), payoff, 50, False)
    plain = rewards(x, d, payoff, "natural")
    assert rewards(np.log(x), d, payoff, "log") == pytest.approx(np.log(-plain))
    assert rewards(np.log(x) - 800.0, d, payoff, "log") == pytest.approx(np.log(-plain) - 1600.0)


def test_policies_with_costs_are_told_values_and_others_rewards():
    arms, plan = as_arms([lambda rng: rng.random()]), plan_rounds(10, 5, "draws")
    with pytest.raises(
        ValueError, match=r"policy 'lcb' is told values and costs, not payoff='paired'"
    ):
        Combination(arms, LCB(1, values="natural"), plan, "paired")
    with pytest.raises(
        ValueError, match=r"policy 'ucb1' is told rewards, not values with payoff=None"
    ):
        Combination(arms, UCB1(1), plan, None)


def test_zero_weights_lose_nothing():
    x = np.full((2, 1), -np.inf)
    assert rewards(x, np.ones((2, 1)), "paired", "log").tolist() == [-np.inf]
