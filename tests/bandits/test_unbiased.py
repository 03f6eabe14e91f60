"""The predictable estimate is exactly unbiased, whatever the policy and delays."""

import numpy as np
import pytest

from amc_pymc.bandits import POLICIES, UCB1, RunningRange, make_policy
from amc_pymc.bandits.arms import as_arms
from amc_pymc.bandits.combination import Combination, Fold, plan_rounds
from benchmarks.papers.combine_estimators import run_here

DRAWS = 32

#: Arms of mean 1, all skewed: an arm that has not shown its tail has a low mean and a low variance.
SHAPES = (1.0, 4.0)
SETTINGS = {
    "lcb": {"values": "natural"},
    "ucbcv": {"n_controls": 0},
}

#: Seeds that do not depend on the list of policies.
SEEDS = {"klucb": 2, "lcb": 3, "round_robin": 7, "thompson": 8}
SEEDS |= {"ucb1": 11, "ucbcv": 12, "ucbv": 13}


def gamma(shape):
    return lambda rng: rng.gamma(shape, 1.0 / shape)


ARMS = as_arms({f"gamma{s:g}": gamma(s) for s in SHAPES})


def fresh(name):
    settings = dict(SETTINGS.get(name, {"rewards": "running"}))
    if "rewards" in settings:
        settings["rewards"] = RunningRange()
    return make_policy(name, len(ARMS), **settings)


def combination(name, payoff="squared", kind=Combination):
    policy = fresh(name)
    plan = plan_rounds(DRAWS, 8, "draws")
    return kind(ARMS, policy, plan, None if name == "lcb" else payoff)


def estimates(make, runs, seed):
    rng = np.random.default_rng(seed)
    return np.array([run_here(make(), rng).estimate("predictable").mean for _ in range(runs)])


def assert_mean_one(values, largest_error=0.004):
    error = values.std(ddof=1) / np.sqrt(values.size)
    assert error <= largest_error
    assert abs(values.mean() - 1.0) < 3.0 * error


class Late(Combination):
    """Tells the policy of a round only after the next one has been decided."""

    waiting = None

    def _tell(self, pulls, samples):
        before, self.waiting = self.waiting, (pulls, samples)
        if before is not None:
            super()._tell(*before)


class OwnWeights(Combination):
    """Broken: a fold is weighted by records that hold its own draws."""

    def _fold(self, decided, mine, known, portion):
        from amc_pymc.bandits.combination import _with

        known = [_with(r, s) for r, s in zip(known, mine, strict=True)]
        return super()._fold(decided, mine, known, portion)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy(name):
    values = estimates(lambda: combination(name), 2_000, [11, SEEDS[name]])
    assert_mean_one(values, 0.0065)


@pytest.mark.slow
def test_pairs_of_draws():
    assert_mean_one(estimates(lambda: combination("ucb1", "paired"), 3_000, 13), 0.0045)


def test_delayed_tells():
    """Weights of folds by their own draws are five standard errors off in 600 runs."""
    assert_mean_one(estimates(lambda: combination("lcb", kind=Late), 600, 14), 0.0085)


@pytest.mark.slow
def test_random_costs_that_depend_on_values():
    """Rounds are planned by mean costs of earlier rounds and always finished."""

    def costly(shape):
        class Arm:
            def sample(self, n, rng):
                x = rng.gamma(shape, 1.0 / shape, n)
                return x, 0.2 + x

        return Arm()

    arms = as_arms([costly(s) for s in SHAPES])
    rng = np.random.default_rng(15)
    values = [
        run_here(
            Combination(
                arms,
                UCB1(2, rewards=RunningRange()),
                plan_rounds(40.0, 8.0, "cost"),
                "paired",
            ),
            rng,
        )
        .estimate("predictable")
        .mean
        for _ in range(3_000)
    ]
    assert_mean_one(np.array(values), 0.0045)


@pytest.mark.slow
def test_weights_from_their_own_draws_are_biased():
    values = estimates(lambda: combination("ucb1", kind=OwnWeights), 2_000, 17)
    with pytest.raises(AssertionError):
        assert_mean_one(values, 0.02)


@pytest.mark.slow
def test_same_sample_inverse_variance_weights_are_biased():
    """Which is why they are not the default."""
    rng = np.random.default_rng(18)
    values = np.array(
        [run_here(combination("ucb1"), rng).estimate("inverse_variance").mean for _ in range(2_000)]
    )
    error = values.std(ddof=1) / np.sqrt(values.size)
    assert values.mean() < 1.0 - 5.0 * error


def test_weights_of_folds_sum_to_one():
    rng = np.random.default_rng(19)
    for name in ("lcb", "ucb1", "thompson"):
        run = run_here(combination(name), rng)
        folds: list[Fold] = [f for r in run.rounds for f in r.folds]
        assert sum(f.weight for f in folds) == pytest.approx(1.0)
        assert all(f.weight >= 0.0 for f in folds)
        assert all(f.arm_weights.sum() == pytest.approx(1.0) for f in folds)
        assert sum(int(r.counts.sum()) for r in run.rounds) == DRAWS


@pytest.mark.slow
def test_stated_errors_are_those_of_many_runs():
    """Twice the weight in place of its square would make the variance twice as large."""
    arms = as_arms({name: lambda rng: rng.normal(1.0, 1.0) for name in ("a", "b")})
    runs, rng = 500, np.random.default_rng(12)
    found = []
    for _ in range(runs):
        policy = make_policy("round_robin", 2, rewards=RunningRange())
        run = Combination(arms, policy, plan_rounds(96, 32, "draws"), "squared")
        found.append(run_here(run, rng).estimate("predictable"))
    means, errors = np.array([(e.mean, e.mcse) for e in found]).T
    ratio = np.mean(errors**2) / np.var(means, ddof=1)
    assert abs(ratio - 1.0) < 4.0 * np.sqrt(2.0 / runs)
