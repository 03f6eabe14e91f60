"""Likelihood-free results: estimates with errors, priors with Potentials, step densities, all simulations."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from tests.likelihood_free.abc_runs import rejection

DATA, SD = 1.5, 0.5


def sample(model, sampler=amc.sample_abc_tree, **options):
    options = {"max_simulations": 4000, "batched": True, "adjust": "none", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sampler(model=model, random_seed=1, progressbar=False, **options)


def model_of(potential=None):
    """Two normal means by group, of which "gap" is the difference."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        mu = pm.Normal("mu", 0.0, 1.0, dims="group")
        pm.Deterministic("gap", mu[1] - mu[0])
        pm.Deterministic("twice", 2.0 * mu, dims="group")
        if potential is not None:
            pm.Potential("potential", potential(mu))
        pm.Simulator("y", normal, mu, epsilon=0.3, observed=[0.8, 0.6])
    return model


def normal(rng, mu, size):
    return rng.normal(mu, 1.0, size=size)


@pytest.fixture(scope="module")
def plain():
    return sample(model_of())


@pytest.fixture(scope="module")
def adjusted():
    return sample(model_of(), adjust="regression")


# --- estimates ------------------------------------------------------------------------------------


def test_estimates_have_the_dims_and_coords_of_the_model(plain, tmp_path):
    found = plain["estimates"]
    assert list(found["statistic"].values) == [
        "mean", "mcse", "tolerance_bias", "tolerance_bias_error", "error", "sd", "sd_at_zero"
    ]  # fmt: skip
    assert {k: v.dims for k, v in found.data_vars.items()} == {
        "mu": ("statistic", "group"), "gap": ("statistic",), "twice": ("statistic", "group"),
    }  # fmt: skip
    assert list(found["group"].values) == ["a", "b"]
    both = found["mu"].sel(statistic="mcse")
    np.testing.assert_allclose(found["twice"].sel(statistic="mcse"), 2.0 * both)
    plain.to_netcdf(tmp_path / "found.nc")
    with xr.open_datatree(tmp_path / "found.nc") as again:
        xr.testing.assert_equal(again["estimates"].to_dataset(), found.to_dataset())


@pytest.mark.parametrize("name", ["plain", "adjusted"])
def test_means_are_those_of_the_weighted_posterior(name, request):
    found = request.getfixturevalue(name)
    weighted = found["weighted_posterior"]
    w = np.exp(weighted["log_weight"].values[0])
    w /= w.sum()
    for variable in ("mu", "gap", "twice"):
        f = weighted[variable].values[0]
        mean, mcse = found["estimates"][variable].values[:2]
        np.testing.assert_allclose(mean, np.tensordot(w, f, 1))
        by_weights = np.sqrt(np.tensordot(w**2, (f - mean) ** 2, 1))
        if name == "plain":
            np.testing.assert_allclose(mcse, by_weights)
        else:
            assert (mcse > 0.5 * by_weights).all() and (mcse < 5.0 * by_weights).all()


def far(rng, mu):
    return mu + 0.2 * rng.standard_normal(mu.shape)


FAR = amc.SimulatorProblem({"mu": (stats.norm(), 2)}, far, [1.8, -1.6])


def test_effective_draws_know_of_the_regression():
    """Of rejection nearly all is accepted, and moved by two standard deviations with the same slopes."""
    found = sample(FAR, rejection, adjust="regression", max_simulations=1000)
    attrs, totals, weighted = found["posterior"].attrs, found["abc"], found["weighted_posterior"]
    w = np.exp(weighted["log_weight"].values[0])
    w /= w.sum()
    mu = weighted["mu"].values[0]
    sd, mcse = np.sqrt(w @ (mu - w @ mu) ** 2), found["estimates"]["mu"].values[1]
    # A standard normal prior: the normal scale is the parameter's own.
    assert attrs["effective_draws"] == pytest.approx((sd**2 / mcse**2).min())
    assert attrs["effective_draws"] == float(totals["effective_draws"]) < 0.5 / (w @ w)


# --- Potentials -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_adjusted_draws_stay_where_a_potential_allows_them():
    model = model_of(lambda mu: pm.math.switch(mu[0] < mu[1], 0.0, -np.inf))
    found = sample(model, adjust="regression")
    assert float(found["posterior"]["gap"].min()) > 0.0
    assert float(found["weighted_posterior"]["gap"].min()) > 0.0
    # Given the data means are normal with mean data / 2, variance 1/2 and independent: so is the gap.
    loc, scale = -0.1, 1.0
    gap = stats.truncnorm(-loc / scale, np.inf, loc, scale)
    mean, mcse = found["estimates"]["gap"].values[:2]
    assert abs(mean - gap.mean()) < 4.0 * mcse < 0.3 * gap.std()
    w = np.exp(found["weighted_posterior"]["log_weight"].values[0])
    spread = np.average((found["weighted_posterior"]["gap"].values[0] - mean) ** 2, weights=w)
    n = found["posterior"].attrs["effective_draws"]
    assert abs(math.sqrt(spread) / gap.std() - 1.0) < 4.0 / math.sqrt(2.0 * n)
    # The step function is of what was accepted before adjustment, half of it.
    before = int(sample(model)["abc"]["accepted"])
    assert int(found["step_posterior"]["accepted"].sum()) < before < int(found["abc"]["accepted"])


@pytest.mark.slow
def test_adjusted_draws_have_the_weight_of_a_soft_potential():
    """A normal Potential is a further observation."""
    found = sample(model_of(lambda mu: -0.5 * ((mu[0] - 1.5) / 0.5) ** 2), adjust="regression")
    mean, mcse = found["estimates"]["mu"].sel(group="a").values[:2]
    variance = 1.0 / (1.0 + 1.0 + 4.0)
    assert abs(mean - variance * (0.8 + 4.0 * 1.5)) < 4.0 * mcse < math.sqrt(variance)
    mean, mcse = found["estimates"]["mu"].sel(group="b").values[:2]
    assert abs(mean - 0.3) < 4.0 * mcse


def test_where_no_adjusted_draw_is_possible():
    problem = amc.SimulatorProblem({"mu": stats.norm()}, far, 3.0)
    # Above the data nothing is allowed, and there all adjusted draws are.
    problem.log_density = lambda u: np.where(stats.norm.ppf(u[:, 0]) < 1.0, 0.0, -np.inf)
    found = sample(problem, adjust="regression", max_simulations=1000)
    assert "draws are not adjusted: regression moves all" in found["abc"].attrs["flags"]
    assert found["posterior"].attrs["adjust"] == "none"
    assert float(found["posterior"]["mu"].max()) < 1.0


# --- all simulations ------------------------------------------------------------------------------


def test_all_simulations_are_as_the_model_has_them(adjusted, tmp_path):
    found = adjusted["simulations"]
    assert found.sizes["simulation"] == 4000 - 126
    assert found["mu"].dims == ("simulation", "group")
    assert list(found["group"].values) == ["a", "b"]
    gaps = found["summaries"].values - [0.8, 0.6]
    np.testing.assert_allclose(found["distance"], np.sqrt((gaps**2).sum(axis=1)) / 0.3)
    assert list(found["coordinate"].values) == ["mu[0]", "mu[1]"]
    assert (found["failure"] == "").all()
    adjusted.to_netcdf(tmp_path / "found.nc")


def test_failures_are_told_one_by_one():
    def fails(rng, mu):
        if mu > 2.0:
            raise ValueError("no solution")
        return rng.normal(mu, SD) if mu > -3.0 else math.nan

    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, fails, DATA)
    found = sample(problem, batched=False, max_simulations=500)
    found = found["simulations"]
    mu, kind = found["mu"].values, found["failure"].values
    wanted = np.where(mu > 2.0, "error", np.where(mu > -3.0, "", "nan"))
    np.testing.assert_array_equal(kind, wanted)
    np.testing.assert_array_equal(np.isinf(found["distance"]), kind != "")
    np.testing.assert_array_equal(np.isnan(found["summaries"]).all("summary"), kind != "")
