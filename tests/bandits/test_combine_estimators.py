"""amc.combine_estimators: arguments, results, budgets, failures, reproducibility."""

import math
import time
import warnings

import numpy as np
import pytest
import xarray as xr

from scipy.stats import norm

import amc_pymc as amc

from amc_pymc.bandits import UCB1, KnownRange, LogLoss


class Normal:
    """Normal values of mean 1."""

    def __init__(self, sd, cost=None, mean=1.0):
        self.sd, self.mean = sd, mean
        if cost is not None:
            self.cost = cost

    def sample(self, n, rng):
        return rng.normal(self.mean, self.sd, n)


class LogNormal:
    """Weights of mean exp(level), as logarithms."""

    scale = "log"

    def __init__(self, s, cost=1.0, level=-2000.0):
        self.s, self.cost, self.level = s, cost, level

    def sample(self, n, rng):
        return rng.normal(self.level - 0.5 * self.s**2, self.s, n)


class Controlled:
    """Values of mean 1 that a control nearly explains."""

    control_means = [2.0]

    def __init__(self, noise=0.1):
        self.noise = noise

    def sample(self, n, rng):
        w = rng.normal(2.0, 1.0, n)
        return 1.0 + (w - 2.0) + rng.normal(0.0, self.noise, n), None, w[:, None]


def two():
    return {"sharp": Normal(0.5), "vague": Normal(3.0)}


def mean_of(found, weights="predictable"):
    return float(found["estimate"]["mean"].sel(weights=weights))


def test_the_result():
    found = amc.combine_estimators(two(), draws=500, random_seed=1)
    assert isinstance(found, xr.DataTree)
    assert set(found.children) == {"estimate", "arms", "rounds", "pulls"}
    pulls, arms, rounds = found["pulls"], found["arms"], found["rounds"]
    assert pulls.sizes["pull"] == 500
    assert arms["arm"].values.tolist() == ["sharp", "vague"]
    assert arms["draws"].values.sum() == 500
    assert np.array_equal(np.bincount(pulls["arm"].values), arms["draws"].values)
    assert np.array_equal(rounds["draws"].sum("round"), arms["draws"])
    assert float(rounds["round_weight"].sum()) == pytest.approx(1.0)
    assert float(arms["weight"].sum()) == pytest.approx(1.0)
    assert arms["draws"].sel(arm="sharp") > 400
    uniform = pulls["value"].values.mean()
    assert mean_of(found, "uniform") == pytest.approx(uniform)
    running = rounds["running_mean"].isel(round=-1).sel(weights="predictable")
    assert float(running) == pytest.approx(mean_of(found))
    assert found.attrs["unbiased"].startswith("The predictable estimate exactly")
    assert found.attrs["weights"] == "predictable"


@pytest.mark.parametrize(
    "policy",
    ["lcb", "ucb1", "ucbv", "klucb", "thompson", "round_robin"],
)
def test_every_named_policy_finds_the_mean(policy):
    found = amc.combine_estimators(two(), policy=policy, draws=2000, random_seed=4)
    error = float(found["estimate"]["mcse"].sel(weights="predictable"))
    assert error < 0.1
    assert abs(mean_of(found) - 1.0) < 4.0 * error


@pytest.mark.slow
def test_the_error_is_honest():
    """The spread of 200 estimates against the errors they state."""
    rng = np.random.default_rng(6)
    runs = [
        amc.combine_estimators(two(), draws=120, random_seed=rng, progressbar=False)["estimate"]
        for _ in range(200)
    ]
    for weights in ("predictable", "inverse_variance"):
        z = [
            float((r["mean"].sel(weights=weights) - 1.0) / r["mcse"].sel(weights=weights))
            for r in runs
        ]
        assert np.mean(np.square(z)) == pytest.approx(1.0, abs=4.0 * np.sqrt(2.0 / 200) + 0.1)


class RareEvent:
    """P(z > 3) by plain draws, which are nearly all zero, or by draws around 3."""

    def __init__(self, shift):
        self.shift = shift

    def sample(self, n, rng):
        z = rng.normal(self.shift, 1.0, n)
        return (z > 3.0) * np.exp(0.5 * self.shift**2 - self.shift * z)


def test_an_arm_that_has_seen_nothing_does_not_decide():
    """Plain draws are all zero in most runs, whose variance of zero must not make the estimate zero."""
    truth, arms = norm.sf(3.0), {"plain": RareEvent(0.0), "shifted": RareEvent(3.0)}
    z = []
    for seed in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = amc.combine_estimators(arms, draws=2_000, random_seed=seed, progressbar=False)
        mcse = float(found["estimate"]["mcse"].sel(weights="predictable"))
        z.append((mean_of(found) - truth) / mcse)
    assert max(map(abs, z)) < 5.0
    assert abs(np.mean(z)) < 4.0 / math.sqrt(20)


def test_a_target_is_reached_by_a_certifying_round():
    found = amc.combine_estimators(two(), target_mcse=0.02, random_seed=7)
    estimate = found["estimate"].sel(weights="predictable")
    assert 0.01 < float(estimate["mcse"]) <= 0.022
    weights = found["rounds"]["round_weight"].values
    assert weights[-1] == pytest.approx(1.0)
    assert not weights[:-1].any()
    last = found["pulls"]["round"].values == len(weights) - 1
    assert float(estimate["mean"]) == pytest.approx(found["pulls"]["value"].values[last].mean())
    # Half a standard deviation over 0.02 squared is 625 draws; exploring may cost as much again.
    assert found["pulls"].sizes["pull"] < 1600
    assert found.attrs["unbiased"].startswith("The predictable estimate exactly")


@pytest.mark.slow
def test_certified_estimates_cover_the_truth():
    rng, hits = np.random.default_rng(8), 0
    for _ in range(100):
        found = amc.combine_estimators(two(), target_mcse=0.1, random_seed=rng, progressbar=False)
        estimate = found["estimate"].sel(weights="predictable")
        hits += abs(float(estimate["mean"]) - 1.0) < 1.96 * float(estimate["mcse"])
    assert hits >= 95 - 4.0 * np.sqrt(100 * 0.05 * 0.95)


def test_a_target_out_of_reach_warns():
    with pytest.warns(UserWarning, match="where 0.001 was wanted and max_cost=300 was to be spent"):
        found = amc.combine_estimators(two(), target_mcse=0.001, max_cost=300.0, random_seed=9)
    assert found.attrs["flag_names"] == "budget_too_small"
    assert "raise max_cost" in found.attrs["flags"]
    assert float(found["rounds"]["cost"].sum()) <= 300.0


def test_controls_shrink_the_error():
    plain = amc.combine_estimators({"a": Normal(1.0)}, draws=3000, random_seed=10)
    helped = amc.combine_estimators({"a": Controlled()}, draws=3000, random_seed=10)
    key = {"weights": "predictable"}
    ratio = float(helped["estimate"]["mcse"].sel(key) / plain["estimate"]["mcse"].sel(key))
    assert ratio < 0.2
    assert abs(mean_of(helped) - 1.0) < 4.0 * float(helped["estimate"]["mcse"].sel(key)) + 0.01


def test_costs_decide_between_equal_variances():
    arms = {"cheap": Normal(1.0, cost=1.0), "dear": Normal(1.0, cost=20.0)}
    found = amc.combine_estimators(arms, max_cost=2000.0, random_seed=11)
    assert found["arms"]["draws"].sel(arm="cheap") > 20 * found["arms"]["draws"].sel(arm="dear")
    assert float(found["rounds"]["cost"].sum()) <= 2000.0


def test_a_cheap_arm_among_dear_ones_uses_the_budget_up():
    arms = {
        "cheap": Normal(1.0, cost=1.0),
        "b": Normal(1.0, cost=100.0),
        "c": Normal(1.0, cost=100.0),
    }
    found = amc.combine_estimators(arms, max_cost=30_000.0, random_seed=24)
    assert float(found["rounds"]["cost"].sum()) > 29_900.0
    assert found["arms"]["draws"].sel(arm="cheap") > 25_000


class Priced(Normal):
    """Returns its costs, which nobody knows in advance."""

    def __init__(self, sd, price):
        super().__init__(sd)
        self.price = price

    def sample(self, n, rng):
        return super().sample(n, rng), np.full(n, self.price)


@pytest.mark.parametrize("policy", ["lcb", "ucb1"])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
def test_a_budget_in_any_unit_is_spent_on_the_better_arm(unit, policy):
    """A pilot measures the costs, as a part of the budget."""
    price = {"sharp": unit, "vague": 3.0 * unit}
    arms = {k: Priced(sd, price[k]) for (k, sd) in (("sharp", 0.1), ("vague", 5.0))}
    found = amc.combine_estimators(arms, max_cost=1000.0 * unit, policy=policy, random_seed=1)
    spent = found["pulls"]["cost"].values.sum() / unit
    assert 997.0 - 1e-9 <= spent <= 1003.0 + 1e-9
    drawn = found["arms"]["draws"]
    assert drawn.sel(arm="sharp") > (2 if policy == "ucb1" else 50) * drawn.sel(arm="vague")
    assert abs(mean_of(found) - 1.0) < 5.0 * found["estimate"]["mcse"].sel(weights="predictable")


def busy(sd):
    """An arm whose draws take 50 microseconds of CPU time, at any speed of the processor."""

    def arm(rng):
        end = time.thread_time() + 5e-5
        while time.thread_time() < end:
            pass
        return rng.normal(1.0, sd)

    return arm


def test_a_budget_of_seconds_is_spent():
    arms = {"sharp": busy(0.1), "vague": busy(5.0)}
    found = amc.combine_estimators(arms, cost="cpu", max_cost=0.1, random_seed=1)
    assert 0.08 < found["pulls"]["cost"].values.sum() < 0.12
    assert found["arms"]["draws"].sel(arm="sharp") > 10 * found["arms"]["draws"].sel(arm="vague")


def test_a_pilot_that_uses_the_budget_up():
    with pytest.warns(UserWarning, match=r"max_cost=1e\+06 is hardly more than the pilot run cost"):
        found = amc.combine_estimators([Priced(1.0, 1e6)] * 2, max_cost=1e6, random_seed=1)
    assert found["pulls"].sizes["pull"] == 2
    assert mean_of(found) == found["pulls"]["value"].values.mean()


@pytest.mark.parametrize("n_arms", [1, 2])
def test_equal_values_are_no_exact_estimate(n_arms):
    """With p = 0.01, the first hundred draws are likely all zero."""
    arms = [lambda rng: float(rng.random() < 0.01)] * n_arms
    with pytest.warns(UserWarning, match="no estimator has returned two different values in 40 dr"):
        found = amc.combine_estimators(arms, draws=40, random_seed=1)
    assert found.attrs["flag_names"] == "no_spread"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few ones tell little about the draws that are needed
        found = amc.combine_estimators(arms, target_mcse=2e-3, random_seed=1)
    error = found["estimate"]["mcse"].sel(weights="predictable")
    assert 0.0 < error < 4e-3 and abs(mean_of(found) - 0.01) < 4.0 * error


@pytest.mark.parametrize("budget", [{"draws": 200}, {"max_cost": 200.0}], ids=str)
def test_weights_that_are_all_zero_miss_any_target(budget):
    def zero(rng):
        return -np.inf

    zero.scale = "log"
    with pytest.warns(UserWarning, match="all weights are zero"):
        found = amc.combine_estimators([zero, zero], target_mcse=0.1, random_seed=1, **budget)
    assert found.attrs["flag_names"] == "all_zero"


@pytest.mark.parametrize("budget", [{"draws": 100_000}, {"target_mcse": 1e-3}], ids=str)
@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_max_time_holds_if_the_machine_becomes_slower(monkeypatch, budget, slower):
    """All rounds are complete, so nearly all draws are in the predictable estimate."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def arm(rng):
        now[0] += 0.01 if now[0] < 30.0 else 0.01 * slower
        return rng.normal()

    with pytest.warns(UserWarning, match="max_time=45 s was over"):
        found = amc.combine_estimators([arm], **budget, max_time=45.0, random_seed=1)
    assert 45.0 < now[0] < 1.2 * 45.0
    error = found["estimate"]["mcse"].sel(weights="predictable").item()
    assert error == pytest.approx(1 / np.sqrt(found["pulls"].sizes["pull"]), rel=0.1)


def test_ctrl_c_in_the_last_round_leaves_the_weights_of_earlier_ones():
    """That round would have taken all the weight; 765 draws come before it."""
    made = [0]

    def interrupted(rng):
        made[0] += 1
        if made[0] > 1_000:
            raise KeyboardInterrupt
        return rng.normal()

    with pytest.warns(UserWarning, match="interrupted by the user"):
        found = amc.combine_estimators([interrupted], target_mcse=0.02, random_seed=1)
    assert found["rounds"]["draws"].sum() == 765
    error = found["estimate"]["mcse"].sel(weights="predictable").item()
    assert error == pytest.approx(1 / np.sqrt(765), rel=0.15)
    assert abs(found["estimate"]["mean"].sel(weights="predictable").item()) < 4 * error


def test_ready_policies():
    policy = UCB1(2, rewards=KnownRange(-100.0, 0.0))
    found = amc.combine_estimators(two(), policy=policy, draws=50, random_seed=15)
    assert policy.asked == 0  # it is copied
    assert found.attrs["policy"] == "ucb1"
    with pytest.warns(UserWarning, match="outside its declared range"):
        found = amc.combine_estimators(
            two(), policy=UCB1(2, rewards=KnownRange(-0.5, 0.0)), draws=50, random_seed=15
        )
    assert found.attrs["rewards_clipped"] > 0
    assert found.attrs["flag_names"] == "rewards_clipped"


# --- seeds and workers --------------------------------------------------------------------------


def same(a, b):
    return all(
        np.array_equal(a[g][v].values, b[g][v].values, equal_nan=a[g][v].dtype.kind == "f")
        for g in ("estimate", "arms", "rounds", "pulls")
        for v in a[g].data_vars
    )


def test_seeds():
    first, again, other = (
        amc.combine_estimators(two(), draws=300, random_seed=s) for s in (1, 1, 2)
    )
    assert same(first, again)
    assert not same(first, other)


def test_workers_change_nothing():
    arms = {"short": LogNormal(1.5, 1.0), "long": LogNormal(0.5, 4.0)}
    here = amc.combine_estimators(arms, max_cost=3000.0, random_seed=16)
    there = amc.combine_estimators(arms, max_cost=3000.0, random_seed=16, cores=2)
    assert same(here, there)


def test_max_time_ends_a_run_after_two_rounds():
    """Without the second the predictable estimate would be nan."""
    settings = {"draws": 3000, "random_seed": 16}
    whole = amc.combine_estimators(two(), **settings)
    with pytest.warns(UserWarning, match="max_time=1e-06 s was over"):
        part = amc.combine_estimators(two(), **settings, max_time=1e-6)
    assert part.attrs["stopped"] == "The time limit max_time=1e-06 s was over."
    assert part["rounds"].sizes["round"] == 2 < whole["rounds"].sizes["round"]
    assert np.isfinite(part["estimate"]["mean"]).all()
    np.testing.assert_array_equal(
        part["pulls"]["value"], whole["pulls"]["value"][: part["pulls"].sizes["pull"]]
    )
    assert same(whole, amc.combine_estimators(two(), **settings, max_time=600.0))


# --- failures -----------------------------------------------------------------------------------


class Fails:
    """Normal values until a number of draws was made."""

    def __init__(self, after, how):
        self.left, self.how = after, how

    def __call__(self, rng):
        self.left -= 1
        if self.left < 0:
            return self.how()
        return rng.normal(1.0, 0.1)


def divide():
    return 1 / 0


@pytest.mark.parametrize(
    ("how", "words"), [(divide, "raised ZeroDivisionError"), (lambda: np.nan, "returned nan")]
)
def test_an_arm_that_fails_late(how, words):
    with pytest.warns(UserWarning, match=f"draw 51 .*'bad' {words}"):
        found = amc.combine_estimators({"bad": Fails(50, how)}, draws=400, random_seed=18)
    assert found.attrs["stopped"].startswith("Draw 51")
    assert found["arms"]["draws"].item() == found["pulls"].sizes["pull"] == 48  # of complete jobs
    assert abs(mean_of(found) - 1.0) < 0.2
    assert found.attrs["unbiased"].startswith("Not exactly")


def test_an_arm_that_fails_at_once_raises():
    with pytest.raises(amc.ArmError, match="'bad' raised ZeroDivisionError: division by zero"):
        amc.combine_estimators({"bad": Fails(0, divide), "good": Normal(1.0)}, draws=100)


def test_ctrl_c_returns_what_there_is():
    def stop():
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Combined estimate: interrupted by the user"):
        found = amc.combine_estimators({"a": Fails(30, stop)}, draws=400, random_seed=20)
    assert found.attrs["stopped"] == "Interrupted by the user."
    assert found.attrs["flag_names"] == "interrupted"
    assert 6 <= found["pulls"].sizes["pull"] <= 30
    with pytest.raises(KeyboardInterrupt):
        amc.combine_estimators({"a": Fails(0, stop)}, draws=400, random_seed=20)


def test_heavy_tails_are_told():
    class Cauchyish:
        scale = "log"

        def sample(self, n, rng):
            return rng.exponential(1.2, n)

    with pytest.warns(UserWarning, match="Pareto k"):
        amc.combine_estimators([Cauchyish()], draws=1000, random_seed=22)


@pytest.mark.parametrize(
    ("arms", "arguments", "error", "match"),
    [
        ({}, {"draws": 10}, ValueError, "arms is empty"),
        (None, {}, ValueError, "draws, max_cost and target_mcse"),
        (None, {"draws": 1}, ValueError, "draws=1 does not give each of 2 arms"),
        (None, {"draws": 0}, ValueError, "draws must be at least 1"),
        (None, {"draws": 2.5}, TypeError, "draws must be an integer"),
        (None, {"draws": True}, TypeError, "draws must be an integer"),
        (None, {"draws": 10, "max_cost": 5.0}, ValueError, "exclude each other"),
        (
            [Normal(1.0, cost=1.0)] * 2,
            {"max_cost": 1.5},
            ValueError,
            "not pay for one draw of each",
        ),
        ({1: Normal(1.0)}, {"draws": 10}, TypeError, "names of arms must be strings, got 1"),
        (None, {"max_cost": -1.0}, ValueError, "max_cost must be positive"),
        (None, {"max_cost": np.nan}, ValueError, "max_cost must be positive"),
        (None, {"target_mcse": 0.0}, ValueError, "target_mcse must be positive"),
        (None, {"draws": 10, "policy": "best"}, ValueError, "'thompson'.*got 'best'"),
        (None, {"draws": 10, "policy": UCB1(3)}, ValueError, "3 arms, there are 2"),
        (None, {"draws": 10, "cost": "wall"}, ValueError, "cost must be"),
        (None, {"draws": 10, "random_seed": -1}, ValueError, "random_seed"),
        ({"a": LogNormal(1.0)}, {"draws": 10, "policy": "ucbcv"}, ValueError, "LogLoss"),
        ({"a": LogNormal(1.0)}, {"draws": 10, "policy": UCB1(1)}, ValueError, "LogLoss"),
        (None, {"draws": 10, "policy": UCB1(2, rewards=LogLoss())}, ValueError, "LogLoss"),
    ],
)
def test_bad_arguments(arms, arguments, error, match):
    with pytest.raises(error, match=match):
        amc.combine_estimators(two() if arms is None else arms, **arguments)


def test_a_used_policy_is_refused():
    policy = UCB1(2)
    policy.ask(np.random.default_rng(1))
    with pytest.raises(ValueError, match="used before"):
        amc.combine_estimators(two(), policy=policy, draws=10)


class Jumpy:
    """Values that begin to vary after the fourth round."""

    cost = 1.0  # known, so that there is no pilot

    def __init__(self):
        self.calls = 0

    def sample(self, n, rng):
        self.calls += 1
        return rng.normal(1.0, 0.1 if self.calls < 5 else 2.0, n)


def test_a_round_that_misses_the_target_is_followed_by_others():
    found = amc.combine_estimators({"a": Jumpy()}, target_mcse=0.01, random_seed=3)
    assert found.attrs["flag_names"] == ""
    assert found.attrs["unbiased"].startswith("Nearly")
    assert float(found["estimate"]["mcse"].sel(weights="predictable")) < 1.2 * 0.01
    weights = found["rounds"]["round_weight"].to_numpy()
    np.testing.assert_array_equal(weights, np.arange(weights.size) == weights.size - 1)


def test_every_flag_is_a_warning_and_an_attribute():
    with pytest.warns(UserWarning) as caught:
        found = amc.combine_estimators(
            {"a": Normal(1.0), "b": Normal(1.0, mean=3.0)},
            target_mcse=0.001, max_cost=400.0, random_seed=21,
        )  # fmt: skip
    said = [str(w.message).removeprefix("Combined estimate: ").removesuffix(".") for w in caught]
    assert "; ".join(said) == found.attrs["flags"]
    assert found.attrs["flag_names"] == "estimators_disagree; budget_too_small"
    assert all(w.filename == __file__ for w in caught)


def test_the_predictable_estimate_is_the_weighted_sum_of_its_folds():
    """Computed again from the draws: fold j of an arm is every other draw."""
    found = amc.combine_estimators({"only": Normal(1.0)}, draws=200, random_seed=2)
    assert mean_of(found) == pytest.approx(found["pulls"]["value"].values.mean())


def test_log_scale():
    arms = {"short": LogNormal(2.0, 1.0), "long": LogNormal(0.5, 4.0)}
    found = amc.combine_estimators(arms, max_cost=4000.0, random_seed=5)
    estimate = found["estimate"].sel(weights="predictable")
    assert abs(float(estimate["log_mean"]) + 2000.0) < 4.0 * float(estimate["log_mean_mcse"])
    assert float(estimate["log_mean_mcse"]) < 0.03
    assert float(found["rounds"]["cost"].sum()) <= 4000.0
    assert found["arms"]["draws"].sel(arm="long") > 800
    assert found.attrs["scale"] == "log"


def test_a_known_cost_is_never_exceeded():
    arms = {"a": Normal(1.0, cost=7.0), "b": Normal(1.1, cost=11.0)}
    for budget in (18.0, 25.0, 100.0, 333.0):
        found = amc.combine_estimators(arms, max_cost=budget, random_seed=12)
        assert float(found["rounds"]["cost"].sum()) <= budget
        assert float(found["rounds"]["round_weight"].sum()) == pytest.approx(1.0)
