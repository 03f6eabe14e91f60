"""Learned summaries and the choice of an adjustment, from model to result."""

import warnings

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free import choose, learned, results
from tests.likelihood_free.abc_runs import interrupted, rejection

OPTIONS = {"batched": True, "progressbar": False}


def two_slopes(rng, theta):
    """The posterior has a mode on either side of zero, of masses that are as the inverse slopes."""
    return np.where(theta > 0.0, theta, -3.0 * theta) + 0.02 * rng.normal(size=theta.shape)


def spread(rng, log_sd, size):
    return rng.normal(0.0, np.exp(0.5 * log_sd), size=size)


def model_of(observed=(-1.5, 0.3, 2.0, -0.7, 1.1), **options):
    with pm.Model() as model:
        log_sd = pm.Normal("log_sd")
        pm.Simulator("y", spread, log_sd, epsilon=0.5, observed=np.array(observed), **options)
    return model


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_the_order_of_exchangeable_observations_does_not_matter():
    """A learned distance: all that was simulated is the same, and so is all that is made of it."""
    found = [
        amc.sample_abc_tree(
            model=model_of(y), max_simulations=300, adjust="auto", exchangeable=True,
            distance_scale="learned", random_seed=1, **OPTIONS,
        )
        for y in ([-1.5, 0.3, 2.0, -0.7, 1.1], [2.0, -1.5, 1.1, 0.3, -0.7])
    ]  # fmt: skip
    one, other = (f["posterior"]["log_sd"].values for f in found)
    np.testing.assert_array_equal(one, other)
    attrs = found[0]["posterior"].attrs
    assert attrs["distance_scale"] == "learned"
    assert attrs["gain_error"] >= 0.0 and np.isfinite(attrs["gain"])


def signed_times(rng, shift, size):
    """Exponential times after a shift, with the sign of an outcome."""
    return rng.choice([-1.0, 1.0], size, p=[0.4, 0.6]) * (shift + rng.exponential(size=size))


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_where_signed_times_begin():
    """The density of the shift is proportional to exp(100 shift) below the shortest of 100 times."""
    y = signed_times(np.random.default_rng(3), 0.3, 100)
    with pm.Model() as model:
        pm.Simulator("y", signed_times, pm.Uniform("shift", 0.0, 1.0), observed=y)
    tree = amc.sample_abc_tree(
        model=model,
        max_simulations=2000,
        adjust="auto",
        exchangeable=True,
        random_seed=1,
        **OPTIONS,
    )
    shift = tree["posterior"]["shift"]
    assert abs(float(shift.mean()) - (np.abs(y).min() - 0.01)) < 0.01  # one standard deviation
    assert 0.007 < float(shift.std()) < 0.018


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
@pytest.mark.parametrize("shape", [(4, 2), (8,)])
def test_observations_that_are_not_exchangeable(shape):
    """Four points of two coordinates each: as eight numbers, places matter."""

    def points(rng, a, b):
        return (np.stack([a, b], axis=-1)[:, None] + rng.normal(size=(len(a), 4, 2))).reshape(
            len(a), *shape
        )

    problem = amc.SimulatorProblem({"a": stats.norm(), "b": stats.norm()}, points, np.ones(shape))
    found = amc.sample_abc_tree(
        model=problem,
        max_simulations=1000,
        exchangeable=True,
        random_seed=1,
        **OPTIONS,
    )
    assert ("order_matters" in found["abc"].attrs["flag_names"]) == (shape == (8,))


@pytest.mark.parametrize(("summaries", "name"), [(100, "auto"), (101, "none")])
def test_the_default_adjustment(summaries, name):
    """Many summary statistics would take minutes."""
    problem = amc.SimulatorProblem(
        {"mu": stats.norm()},
        lambda rng, mu: mu[:, None] + rng.normal(size=(len(mu), summaries)),
        np.zeros(summaries),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attrs = amc.sample_abc_tree(model=problem, max_simulations=200, random_seed=1, **OPTIONS)[
            "posterior"
        ].attrs
    assert ("gain" in attrs) == (name == "auto")
    assert name == "auto" or attrs["adjust"] == "none"


def test_exchangeable_observations_need_the_data():
    with pytest.raises(ValueError, match=r"5 numbers, and there are 1 summary"):
        amc.sample_abc_tree(
            model=model_of(sum_stat="mean"), max_simulations=400, adjust="auto", exchangeable=True,
            **OPTIONS,
        )  # fmt: skip
    single = amc.SimulatorProblem({"mu": stats.norm()}, lambda rng, mu: mu, 1.0)
    with pytest.raises(ValueError, match="two observations at least"):
        rejection(model=single, max_simulations=400, adjust="auto", exchangeable=True, **OPTIONS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_a_minor_mode_keeps_its_mass_with_a_learned_distance(monkeypatch):
    # Forests take ten times as long.
    monkeypatch.setattr(learned, "_QUICK", ("ridge", "quadratic ridge"))
    monkeypatch.setattr(learned, "_THOROUGH", learned._QUICK)
    problem = amc.SimulatorProblem({"theta": stats.uniform(-1.0, 2.0)}, two_slopes, 0.5)
    masses = []
    for seed in range(200):
        found = amc.sample_abc_tree(
            model=problem, max_simulations=1500, distance_scale="learned", random_seed=seed,
            adjust="none", proposal=amc.TreeProposal(batch_size=500), **OPTIONS,
        )["weighted_posterior"]  # fmt: skip
        weight = np.exp(found["log_weight"].values[0])
        masses.append(weight @ (found["theta"].values[0] < 0.0) / weight.sum())
    error = np.std(masses) / np.sqrt(len(masses))
    assert error < 0.01 and abs(np.mean(masses) - 0.25) < 4.0 * error


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_an_interrupt_while_adjustments_are_compared_keeps_the_simulations(monkeypatch):
    calls = []

    def interrupt(*args):
        calls.append(0)
        if len(calls) == 50:
            raise KeyboardInterrupt
        return np.zeros(7)

    options = {"model": model_of(), "max_simulations": 500, "random_seed": 1, **OPTIONS}
    plain = amc.sample_abc_tree(adjust="none", **options)
    monkeypatch.setattr(choose, "kernel_score", interrupt)
    found = amc.sample_abc_tree(**options)
    assert len(calls) == 50 and found["posterior"].attrs["adjust"] == "none"
    assert "interrupted" in found["abc"].attrs["flag_names"]
    drawn = (tree["weighted_posterior"]["log_sd"].values for tree in (found, plain))
    np.testing.assert_array_equal(*drawn)
    calls.clear()
    options["model"] = interrupted(12)  # the run, and then the comparison
    found = amc.sample_abc_tree(**options | {"max_simulations": 8000})
    assert len(calls) == 50 and found["abc"].attrs["flag_names"].count("interrupted") == 1


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_an_interrupt_while_summaries_are_learned_keeps_the_simulations(monkeypatch):
    """A quick fit, or the mode without learned summaries, takes the place of a thorough one."""

    def interrupt(*args, thorough=False, **options):
        if thorough:
            raise KeyboardInterrupt
        return learned.learned_distance(*args, **options)

    for module in ("sample_abc_tree", "find_map_tree"):
        place = f"amc_pymc.likelihood_free.{module}.learned_distance"
        monkeypatch.setattr(place, interrupt)
    options = {"max_simulations": 1000, "random_seed": 1, **OPTIONS}
    found = amc.sample_abc_tree(
        model=model_of(), distance_scale="learned", adjust="none", **options
    )
    assert found["abc"].attrs["flag_names"].split("; ").count("interrupted") == 1
    assert found["abc"]["n_simulations"] == 1000 - 126
    # Thirty summary statistics that do not depend on the parameter hide the one that does.
    observed = np.append(0.7, np.random.default_rng(3).normal(size=30))
    problem = amc.SimulatorProblem(
        {"mu": stats.norm()},
        lambda rng, mu: rng.normal(size=(len(mu), 31)) + np.outer(mu, np.arange(31) == 0),
        observed,
    )
    _, raw = amc.find_MAP_tree(
        model=problem, return_raw=True, **options | {"max_simulations": 2000}
    )
    attrs = raw["mode"].attrs
    assert attrs["flag_names"] == "interrupted; mode_of_prior" and attrs["summaries"] == "given"


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
@pytest.mark.parametrize("stopped", [False, True])
def test_an_interrupt_after_the_choice_leaves_no_flag_of_the_adjustment(monkeypatch, stopped):
    choose_one, mean_of = results.adjust_run, results.adjusted_mean

    def far_off(*args):
        *found, choice = choose_one(*args)
        candidate = choice.candidate._replace(kind="linear")
        calibration = np.array([9.0]), np.array([0.1])
        return *found, choice._replace(candidate=candidate, calibration=calibration)

    def interrupt(*args):
        if stopped:
            raise KeyboardInterrupt
        return mean_of(*args)

    monkeypatch.setattr(results, "adjust_run", far_off)
    monkeypatch.setattr(results, "adjusted_mean", interrupt)
    found = amc.sample_abc_tree(model=model_of(), max_simulations=500, random_seed=1, **OPTIONS)
    names = found["abc"].attrs["flag_names"].split("; ")
    assert ("interrupted" in names, "miscalibrated" in names) == (stopped, not stopped)
    assert (found["posterior"].attrs["adjust"] == "none") == stopped
