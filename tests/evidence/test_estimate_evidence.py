"""Evidence to a wanted error: small models, own estimators, budgets, refusals."""

import math
import multiprocessing
import signal
import sys
import warnings

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from scipy import stats
from scipy.special import logsumexp

import amc_pymc as amc

from amc_pymc.evidence.adapt import AdaptedMixture
from amc_pymc.evidence.arms import ARMS, Portfolio
from amc_pymc.evidence.estimate_evidence import __name__ as MODULE
from amc_pymc.evidence.results import Evidence, PosteriorDraws, missed_mode
from amc_pymc.mixtures import StudentTMixture
from amc_pymc.reading.particles.densities import counted
from tests.evidence.evidence_models import (
    EASY,
    SCHOOLS,
    Known,
    assert_same,
    by_quadrature,
    compile_before,
    compiled_once,  # noqa: F401
    error_of,
    flag_names,
    flags_of,
    half,
    impossible,
    label,
    labels,
    nan_gradient,
    normal_log,
    one,
    partly_nan,
    potential,
    regression,
    schools,
    unbounded,
    vague_funnel,
)

module = sys.modules[MODULE]
GROUPS = {
    "estimate",
    "arms",
    "rounds",
    "pulls",
    "posterior",
    "sample_stats",
    "evidence",
    "evaluations",
    "observed_data",
}


def estimate(known, *, seed=1, **settings):
    model = known.model if isinstance(known, Known) else known
    return amc.estimate_evidence(
        **{"model": model, "random_seed": seed, "progressbar": False, "draws": 50} | settings
    )


def assert_right(tree, known, *, target=0.05, errors=4.5):
    error, mcse = error_of(tree, known)
    assert 0.0 < mcse <= target
    assert abs(error) < errors * mcse
    second = tree["evidence"].to_dataset()
    gap = second["log_evidence_iv"] - known.log_evidence
    assert abs(gap) < errors * second["log_evidence_iv_mcse"]


class Noisy:
    """Log-normal estimates of one number, which cost as much as they say."""

    scale = "log"

    def __init__(self, log_mean, sd, cost=1.0):
        self.log_mean, self.sd, self.cost = log_mean, sd, cost

    def sample(self, n, rng):
        return self.log_mean - 0.5 * self.sd**2 + self.sd * rng.standard_normal(n)


@pytest.fixture
def instead(monkeypatch):
    """A function that puts arms in the place of those from the pilot run."""

    def put(arms):
        monkeypatch.setattr(module, "make_portfolio", lambda *args, **settings: Portfolio(arms))

    return put


def own(**sds):
    return {name: Noisy(one().log_evidence, sd) for name, sd in sds.items()}


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", EASY, ids=lambda f: f.__name__)
def test_evidence(known):
    tree = estimate(known())
    assert_right(tree, known())
    assert flags_of(tree) == ""


@pytest.mark.slow
@pytest.mark.parametrize("arms", [None, ["importance"], ["smc_reference"], ["smc"]], ids=label)
def test_coverage(arms):
    n = 200 if arms in (None, ["importance"]) else 60
    runs = [estimate(one(), seed=s, arms=arms, target_mcse=0.05) for s in range(n)]
    inside = [
        float(r["evidence"]["log_evidence_lower"])
        < one().log_evidence
        < float(r["evidence"]["log_evidence_upper"])
        for r in runs
    ]
    assert np.mean(inside) >= 0.95 - 3.0 * math.sqrt(0.95 * 0.05 / n)
    z = np.array([np.divide(*error_of(r, one())) for r in runs])
    assert 0.6 < z.std() < 1.4
    assert abs(z.mean()) < 4.0 * z.std() / np.sqrt(n)
    assert all(flags_of(r) == "" for r in runs)


@pytest.mark.parametrize("name", ARMS)
def test_arms_by_name(name):
    settings = {"target_mcse": 0.2}
    tree = estimate(one(), arms=[name], **settings)
    assert tree["arms"]["arm"].values.tolist() == [name]
    assert_right(tree, one(), target=0.2)


def test_left_out_where_variables_are_discrete():
    tree = estimate(labels())
    left_out = tree["arms"].attrs["left_out"]
    for name in ("importance", "importance_rqmc", "smc_reference"):
        assert f"{name}: no reference: some variables are discrete" in left_out
    assert_right(tree, labels())
    assert tree["arms"]["arm"].values[0] == "smc"
    assert tree["posterior"].attrs["source"].startswith("particles of the pilot run")
    assert tree["posterior"]["outlier"].dtype.kind == "i"


def test_discrete_variables_of_all_kinds():
    """A label of three states, a number of twenty, a count without end; states index an array."""
    shift, table = np.array([0.0, 2.0, 5.0]), np.linspace(0.0, 1.0, 20)
    with pm.Model() as model:
        label = pm.Categorical("label", np.array([0.2, 0.5, 0.3]))
        number = pm.DiscreteUniform("number", 0, 19)
        count = pm.Poisson("count", 4.0)
        mean = pt.as_tensor(shift)[label] + pt.as_tensor(table)[number] + count
        pm.Normal("y", mean, 1.0, observed=[7.0, 8.5])
    means = shift[:, None, None] + table[:, None] + np.arange(60.0)
    log_f = sum(stats.norm.logpdf(y, means) for y in (7.0, 8.5))
    log_f += np.log([0.2, 0.5, 0.3])[:, None, None] - math.log(20.0)
    log_f += stats.poisson.logpmf(np.arange(60), 4.0)
    known = Known(model, float(logsumexp(log_f)))
    tree = estimate(known, target_mcse=0.02)
    assert_right(tree, known, target=0.02)


def test_the_better_arm_gets_the_draws(instead):
    instead(own(rough=1.0, fine=0.2))
    tree = estimate(one(), target_mcse=0.01)
    assert_right(tree, one(), target=0.012)
    arms = tree["arms"].to_dataset()
    assert arms["draws"].sel(arm="fine") > 10 * arms["draws"].sel(arm="rough")


def test_arms_that_miss_what_the_pilot_run_saw_are_flagged(instead):
    instead({"low": Noisy(-5.0, 0.1)})
    with pytest.warns(UserWarning, match="found more evidence"):
        estimate(one())


def test_arms_that_are_always_zero(instead):
    instead({"zero": Noisy(-np.inf, 0.1)})
    with pytest.warns(UserWarning, match="Model evidence"):
        tree = estimate(one())
    found = tree["evidence"].to_dataset()
    assert found["log_evidence"] == -np.inf
    assert found["ess"] == 0.0
    assert found["log_evidence_upper"] == np.inf
    assert "all weights are zero" in flags_of(tree)


# --- budgets --------------------------------------------------------------------------------------


def test_a_budget_alone(instead):
    instead(own(rough=1.0, fine=0.2))
    counts = estimate(one(), target_mcse=0.05)["evaluations"].sel(stage="pilot")
    spent = int(counts["n_likelihood"] + counts["n_gradient"])
    tree = estimate(one(), target_mcse=None, max_cost=spent + 4000.0)
    assert 0.8 * 4000 < tree["pulls"]["cost"].sum() <= 4000
    assert_right(tree, one(), target=0.02)


def test_a_budget_smaller_than_the_pilot_run_is_flagged():
    with pytest.warns(UserWarning, match="max_cost=100 is hardly more than the pilot run cost"):
        tree = estimate(one(), target_mcse=None, max_cost=100.0)
    assert "max_cost=100" in flags_of(tree)
    assert np.isfinite(tree["evidence"]["log_evidence"])


def test_max_time_ends_a_run_after_two_rounds(instead):
    instead(own(rough=1.0, fine=0.2))
    settings = {"target_mcse": 0.005}
    with pytest.warns(UserWarning) as told:
        part = estimate(one(), **settings, max_time=1e-6)
    assert any("the time limit max_time=1e-06 s was over" in str(t.message) for t in told)
    assert part["rounds"].sizes["round"] == 2
    assert_right(part, one(), target=0.1)
    assert flag_names(part) == "out_of_time"
    whole = estimate(one(), **settings)
    assert whole["rounds"].sizes["round"] > 2
    assert_same(whole, estimate(one(), **settings, max_time=600.0))


# --- what is returned -----------------------------------------------------------------------------


def test_groups():
    tree = estimate(schools(), draws=70, chains=3)
    assert set(tree.children) == GROUPS | {"constant_data"}
    posterior = tree["posterior"].to_dataset()
    assert posterior.sizes == {"chain": 3, "draw": 70, "school": 8}
    assert posterior["school"].values.tolist() == SCHOOLS
    assert posterior.attrs["source"] == "sampling importance resampling from the fitted reference"
    numbers = tree["evidence"].to_dataset()
    assert all(numbers[name].ndim == 0 for name in numbers.data_vars)
    assert set(numbers.data_vars) == {
        "log_evidence", "log_evidence_mcse", "log_evidence_lower", "log_evidence_upper",
        "log_evidence_iv", "log_evidence_iv_mcse", "ess", "pareto_k", "n_likelihood", "n_gradient",
        "n_nan", "cpu_seconds", "compile_seconds",
    }  # fmt: skip
    assert {"flags", "weights", "kernel", "unbiased"} <= set(numbers.attrs)
    np.testing.assert_allclose(numbers["ess"], numbers["log_evidence_mcse"] ** -2.0)
    half_width = 1.959964 * numbers["log_evidence_mcse"]
    np.testing.assert_allclose(numbers["log_evidence_upper"] - numbers["log_evidence"], half_width)
    assert tree.attrs["sampling_method"] == "estimate_evidence"
    assert 0.0 < numbers["cpu_seconds"] < 60.0


def test_evaluations_are_counted():
    compile_before(regression().model)
    with counted() as counts:
        tree = estimate(regression(), arms=["importance", "smc"])
    values, gradients, _ = counts.tolist()
    found = tree["evidence"]
    assert found["n_gradient"] == gradients
    assert found["n_likelihood"] == values + gradients
    stages = tree["evaluations"].to_dataset()
    assert stages["stage"].values.tolist() == ["pilot", "arms", "checks", "posterior"]
    assert stages["n_likelihood"].sum() == found["n_likelihood"]
    assert stages["n_gradient"].sum() == found["n_gradient"]
    # 400 points that are weighted, 200 draws for sample_stats.
    assert stages["n_likelihood"].sel(stage="posterior") == 600
    cost = tree["pulls"]["cost"].sum()
    assert cost < found["n_likelihood"] + found["n_gradient"]


# --- reproducible ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds():
    first = estimate(one())
    assert_same(first, estimate(one()))
    assert first["evidence"]["log_evidence"] != estimate(one(), seed=2)["evidence"]["log_evidence"]
    rngs = [np.random.default_rng(5) for _ in range(2)]
    third, fourth = (estimate(one(), seed=rng) for rng in rngs)
    assert_same(third, fourth)
    fifth = estimate(one(), seed=rngs[0])
    assert fifth["evidence"]["log_evidence"] != third["evidence"]["log_evidence"]


@pytest.mark.slow
def test_processes(monkeypatch):
    settings = {"arms": ["importance", "smc"]}
    spawning = multiprocessing.get_context("spawn")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: spawning)
    parallel = estimate(one(), cores=2, **settings)
    assert_same(parallel, estimate(one(), **settings))
    # Seconds of the workers, which compile for themselves, are in it.
    assert parallel["evidence"]["cpu_seconds"] > 0.0


# --- interruption ---------------------------------------------------------------------------------


class Impatient(Noisy):
    """Is interrupted after some calls."""

    calls = 0

    def sample(self, n, rng):
        self.calls += 1
        if self.calls > 4:
            raise KeyboardInterrupt
        return super().sample(n, rng)


def test_interruption_returns_what_there_is(instead):
    instead({"a": Impatient(one().log_evidence, 0.2)})
    with pytest.warns(UserWarning, match="Model evidence"):
        tree = estimate(one(), target_mcse=0.001)
    assert "interrupted" in flags_of(tree).lower()
    assert tree["rounds"].sizes["round"] == 4
    error, mcse = error_of(tree, one())
    assert abs(error) < 5.0 * mcse
    assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": 50}


@pytest.mark.parametrize(
    ("place", "estimated"),
    [
        ("evidence.pilot.climb", False),
        ("evidence.pilot._starts", True),
        ("bandits.combine_estimators.combination_tree", True),
        ("evidence.estimate_evidence.posterior_draws", True),
    ],
)
def test_ctrl_c_anywhere(place, estimated, monkeypatch):
    """What is complete is returned, if anything is, and the next call is not concerned."""
    module, name = f"amc_pymc.{place}".rsplit(".", 1)
    original = getattr(sys.modules[module], name)

    def pressed(*args, **kwargs):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(sys.modules[module], name, pressed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with nullcontext() if estimated else pytest.raises(KeyboardInterrupt):
            assert_right(estimate(one()), one(), target=0.5)
    assert estimate(one())["evidence"].attrs["flags"] == ""


# --- refusals -------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch):
    def work(*args, **settings):
        raise AssertionError("work was done")

    monkeypatch.setattr(module, "explored", work)


@pytest.mark.parametrize("name", ["target_mcse", "max_cost", "max_time"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0.0, ValueError), (-0.1, ValueError), (np.nan, ValueError), (np.inf, ValueError),
     ("0.1", TypeError), (True, TypeError), ([0.1], TypeError)],
)  # fmt: skip
def test_bad_numbers(name, value, error, no_work):
    with pytest.raises(error, match=f"{name} must be .*{str(value).strip('[]')}"):
        estimate(one(), **{name: value})


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"target_mcse": None}, ValueError, "One of target_mcse and max_cost is needed"),
        ({"arms": ["nested"]}, ValueError, "arms must be among .*'nested'"),
        ({"arms": []}, ValueError, "arms must be names, each once"),
        ({"arms": 3}, ValueError, "arms must be names, each once, got 3"),
        ({"arms": [3]}, ValueError, "arms must be among .*3"),
        ({"arms": ["smc", "smc"]}, ValueError, "arms must be names, each once"),
        ({"draws": 0}, ValueError, "draws must be .*0"),
        ({"chains": 1.5}, TypeError, r"chains must be .*1\.5"),
        ({"seed": "a"}, TypeError, "random_seed must be .*'a'"),
        ({"seed": 1.5}, TypeError, r"random_seed must be .*1\.5"),
        ({"seed": np.random.RandomState(1)}, TypeError, "random_seed must be .*RandomState"),
    ],
    ids=lambda v: label(v)[:50],
)  # fmt: skip
def test_bad_arguments(settings, error, message, no_work):
    with pytest.raises(error, match=message):
        estimate(one(), **settings)


def test_arms_from_a_mixture_want_continuous_variables():
    match = r"arm 'importance_rqmc' needs a reference.*use 'smc'"
    with pytest.raises(ValueError, match=match):
        estimate(labels(), arms=["importance_rqmc"])


def test_the_evidence_of_a_point_hypothesis_is_its_likelihood():
    with pm.Model() as model:
        scale = pm.Data("scale", 2.0)
        pm.Normal("y", 0.0, scale, observed=[1.0, 3.0])
        pm.Potential("less", pt.constant(-0.5))
    wanted = stats.norm(0.0, 2.0).logpdf([1.0, 3.0]).sum() - 0.5
    for tree in (
        estimate(model),
        amc.estimate_evidence(model, idata=xr.DataTree()),
        amc.sample_ais(model=model),
    ):
        assert float(tree["evidence"]["log_evidence"]) == pytest.approx(wanted, abs=1e-12)
        assert tree["evidence"]["log_evidence_mcse"] == 0.0
        assert "y" in tree["observed_data"]
    pm.set_data({"scale": 0.0}, model=model)
    with pytest.warns(UserWarning, match="all weights are zero"):
        assert estimate(model)["evidence"]["log_evidence"] == -np.inf


def test_arms_without_variance(instead):
    log_z = one().log_evidence
    instead({"a": Noisy(log_z, 0.0), "b": Noisy(log_z + 1e-12, 0.0)})
    tree = estimate(one())
    assert float(tree["evidence"]["log_evidence"]) == pytest.approx(log_z, abs=1e-9)
    assert "second_opinion" not in tree["evidence"].attrs["flag_names"]


def test_models_without_an_evidence(no_work):
    for low, high in [(-np.inf, np.inf), (0.0, np.inf)]:
        with pm.Model() as model:
            pm.Normal("y", pm.Uniform("m", low, high), 1.0, observed=[1.0])
        with pytest.raises(ValueError, match="the prior of 'm' cannot be drawn"):
            estimate(model)
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=[1.0])
    with pytest.raises(ValueError, match="'mu' has an improper prior"):
        estimate(model)
    with pm.Model() as model:
        pm.Normal("mu")
    with pytest.raises(ValueError, match="model has no likelihood"):
        estimate(model)
    with pytest.raises(TypeError, match="model is missing"):
        amc.estimate_evidence(progressbar=False)
    with pytest.raises(TypeError, match=r"model must be a pm\.Model, got str"):
        amc.estimate_evidence(model="radon", progressbar=False)


# --- hard models ----------------------------------------------------------------------------------


def test_likelihoods_that_cannot_be():
    with pytest.raises(ValueError, match="likelihood is zero"):
        estimate(impossible())
    # An infinite evidence that doubles see as finite: the integral of 1 / sigma.
    with pytest.warns(UserWarning, match=r"'sigma'.* is unbounded"):
        assert "is unbounded" in flags_of(estimate(unbounded(1), draws=500))


@pytest.mark.parametrize(
    ("known", "arms"),
    [
        (half, None),
        (nan_gradient, ["smc"]),
    ],
    ids=lambda v: getattr(v, "__name__", label(v)),
)
def test_zeros_and_gradients_of_nan(known, arms):
    tree = estimate(known(), arms=arms)
    assert_right(tree, known())
    assert flags_of(tree) == ""


@pytest.mark.parametrize("arms", [None, ["smc"]], ids=label)
def test_nan_is_counted_as_impossible(arms):
    with pytest.warns(UserWarning, match=r"the density was nan at [\d,]+ points"):
        tree = estimate(partly_nan(), arms=arms)
    assert_right(tree, partly_nan())
    assert flag_names(tree) == "nan"
    before = tree["evaluations"]["n_nan"].sel(stage=["pilot", "arms"]).sum()
    assert f"nan at {int(before):,} points" in flags_of(tree)


def test_nan_that_does_not_matter_is_counted_and_not_flagged():
    """Impossible beyond two and a half standard deviations of the prior, where the posterior is not."""
    model = potential(lambda x: pt.log(2.5 - x) - 2.0 * (x + 1.0) ** 2)

    def log_f(x):
        return normal_log(x, 0.0, 1.0) + np.log(2.5 - x) - 2.0 * (x + 1.0) ** 2

    known = Known(model, by_quadrature(log_f, -12.0, 2.5 - 1e-9))
    tree = estimate(known)
    assert_right(tree, known)
    assert tree["evidence"]["n_nan"] > 0
    assert flags_of(tree) == ""


@pytest.mark.parametrize(
    ("log_mass", "z", "flagged"),
    [
        (2.0, 0.0, True),
        (2.0, 2.1, False),  # the estimate has it
        (-3.0, 0.0, False),  # within the error
        (-math.inf, -9.0, False),
        (2.0, -math.inf, False),
    ],
)
def test_a_missed_mode_is_flagged_if_it_matters(log_mass, z, flagged):
    q = StudentTMixture([1.0], [[0.0]], [[[1.0]]], 5.0)
    pilot = SimpleNamespace(adapted=AdaptedMixture(q, 0.1, 1e6, 0.0, np.ones(1)))
    numbers = Evidence(log_evidence=z, log_evidence_mcse=0.01)
    assert bool(missed_mode(*numbers.estimate, pilot, log_mass)) is flagged
    assert missed_mode(*numbers.estimate, SimpleNamespace(adapted=None), log_mass) == []


def test_the_target_decides():
    fine, rough = (estimate(one(), target_mcse=t) for t in (0.001, 0.05))
    assert_right(fine, one(), target=0.0012)
    assert fine["pulls"]["cost"].sum() > 2.0 * rough["pulls"]["cost"].sum()


def test_a_budget_too_small_for_the_target_is_flagged(instead):
    instead(own(a=0.5))
    with pytest.warns(
        UserWarning, match="Model evidence: the standard error is .* where 0.001 was wanted"
    ):
        tree = estimate(one(), target_mcse=0.001, max_cost=2e5)
    assert "where 0.001 was wanted" in flags_of(tree)
    error, mcse = error_of(tree, one())
    assert mcse > 0.0012
    assert abs(error) < 4.5 * mcse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "uncovered", "reached", "flagged"),
    [
        ({"importance_rqmc": 1.0}, 0.3, 20.0, True),
        ({"importance_rqmc": 1.0}, 0.3, 500.0, False),  # its prior draws are there
        ({"importance_rqmc": 1.0}, 0.05, 0.0, False),
        ({"importance": 0.5, "smc_reference": 0.5}, 0.3, 500.0, True),  # no prior draws
        ({"smc": 0.95, "importance": 0.05}, 0.3, 0.0, False),  # starts from the prior
    ],
)
def test_a_reference_that_misses_something_is_flagged_if_the_estimate_relies_on_it(
    weights, uncovered, reached, flagged, monkeypatch
):
    monkeypatch.setattr(module, "effective_beside", lambda *args: reached)
    arms = xr.Dataset({"weight": ("arm", [*weights.values()])}, {"arm": [*weights]})
    found = SimpleNamespace(tree=xr.DataTree.from_dict({"arms": arms}))
    flags = module._uncovered(SimpleNamespace(uncovered=uncovered, adapted=None), found, None, None)
    assert [f.name for f in flags] == ["uncovered"] * flagged


@pytest.mark.slow
def test_answers_that_are_right_are_not_flagged():
    for seed in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = estimate(vague_funnel(), seed=seed)
        assert flag_names(tree) in ("", "few_values")  # a few weights may carry the sum
        assert_right(tree, vague_funnel())


def test_few_different_draws_are_flagged(monkeypatch):
    def few(path, pilot, kernel, n, rng, *, discrete):
        return PosteriorDraws(np.repeat(path.draw_prior(10, rng), n // 10, axis=0), 10, "copies")

    monkeypatch.setattr(module, "posterior_draws", few)
    with pytest.warns(UserWarning, match="only 10 of 200 posterior draws are different"):
        tree = estimate(one())
    assert flag_names(tree) == "few_distinct_draws"
    assert tree["posterior"].attrs["n_distinct"] == 10


def test_every_flag_is_a_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tree = estimate(partly_nan(), target_mcse=None, max_cost=100.0)
    said = [str(w.message) for w in caught if w.category is UserWarning]
    assert len(said) == 2
    assert "; ".join(
        s.removeprefix("Model evidence: ").removesuffix(".") for s in said
    ) == flags_of(tree)
    assert all(w.filename.startswith(str(Path(__file__).parent)) for w in caught)
