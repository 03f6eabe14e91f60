"""Likelihood-free samplers: results as ArviZ data, moments, seeds and workers."""

import math

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from tests.likelihood_free.abc_runs import (
    DATA,
    SD,
    TOLERANCE,
    equal,
    grouped_model,
    rejection,
    sample,
    slow,
)

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")


@pytest.fixture(scope="module")
def model():
    return grouped_model()


@pytest.fixture(scope="module")
def found(model):
    return sample(model, max_simulations=10_000)


def known(tolerance):
    """Mean is the data; the variance adds that of a uniform distribution within the tolerance."""
    return DATA, math.sqrt(SD**2 + tolerance**2 / 3.0)


def test_groups(found):
    assert set(found.children) == {
        "posterior", "sample_stats", "weighted_posterior", "estimates", "abc", "step_posterior", "simulations",
        "observed_data", "constant_data",
    }  # fmt: skip
    posterior = found["posterior"]
    assert posterior["mu"].dims == ("chain", "draw", "group")
    assert posterior["mu"].shape == (4, 1000, 2)
    assert list(posterior.coords["group"].values) == ["a", "b"]
    gap = posterior["mu"].sel(group="b") - posterior["mu"].sel(group="a")
    np.testing.assert_allclose(posterior["gap"], gap)
    np.testing.assert_array_equal(found["observed_data"]["y"], [DATA, -DATA])
    np.testing.assert_array_equal(found["constant_data"]["known"], [1.0, 2.0])


def test_arviz_reads_it(found, tmp_path):
    summary = az.summary(found)
    assert list(summary.index) == ["mu[a]", "mu[b]", "gap"]
    assert (summary["r_hat"].astype(float) < 1.05).all()
    file = tmp_path / "found.nc"
    found.to_netcdf(file)
    again = xr.open_datatree(file)
    again.load().close()
    np.testing.assert_array_equal(again["posterior"]["mu"], found["posterior"]["mu"])
    assert (
        again["posterior"].attrs["effective_draws"] == found["posterior"].attrs["effective_draws"]
    )


def test_draws_are_smooth(found):
    mu, attrs = found["posterior"]["mu"].values.reshape(-1, 2), found["posterior"].attrs
    assert attrs["smoothing"] == "normal" and attrs["smoothing_bandwidth"] > 0.0
    assert len(np.unique(mu, axis=0)) == len(mu) > 2 * attrs["unique_draws"]
    np.testing.assert_allclose(found["posterior"]["gap"].values.ravel(), mu[:, 1] - mu[:, 0])
    mean = found["estimates"]["mu"].sel(statistic="mean").values
    weighted = found["weighted_posterior"]
    w = np.exp(weighted["log_weight"].values[0])
    at = weighted["mu"].values[0]
    sd = np.sqrt(np.average((at - mean) ** 2, axis=0, weights=w))
    # Draws scatter by sampling: 4,000 of them, and of simulations, of which chains hold a part each.
    np.testing.assert_allclose(mu.mean(axis=0), mean, atol=4.0 * sd.max() / math.sqrt(1000.0))
    np.testing.assert_allclose(mu.std(axis=0), sd, rtol=0.1)


def test_discrete_parameters_are_not_smoothed():
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        pm.Simulator("y", count, k, epsilon=1.0, observed=[3.0])
    # Exactly, P(k = 3) is 0.81, and 0.52 at this tolerance.
    with pytest.warns(UserWarning, match="may change the probability of k=3 by 0.2"):
        found = sample(model, max_simulations=2000)
    assert found["posterior"].attrs["smoothing"] == "none"
    assert (found["posterior"]["k"] % 1 == 0).all()


def count(rng, k, size):
    return rng.normal(k, 0.5, size=size)


@pytest.mark.parametrize(
    "options",
    [
        slow({}),
        slow({"proposal": amc.TreeProposal(partition="dyadic", utility="efficiency")}),
        slow({"proposal": amc.TreeProposal(batch_size=300)}),
        {"sampler": rejection},
    ],
    ids=lambda options: ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items()),
)
@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_moments(options):
    """Over seeds, for a run that has seen no simulation of a tail does not know how wrong it is."""
    mean, sd = known(TOLERANCE)
    errors = []
    for seed in range(20):
        found = sample(
            tolerance=TOLERANCE, max_simulations=4000, **{**options, "random_seed": seed}
        )
        weighted, posterior = found["weighted_posterior"], found["posterior"]
        assert posterior.attrs["tolerance"] == TOLERANCE
        w, mu = (weighted[k].values.ravel() for k in ("log_weight", "mu"))
        w = np.exp(w) / np.exp(w).sum()
        drawn = posterior["mu"].values.mean()
        prior = float(found["abc"]["prior_acceptance"]) - 2.0 * TOLERANCE / 10.0
        errors.append([w @ mu - mean, w @ (mu - mean) ** 2 - sd**2, drawn - mean, prior])
    for x in np.transpose(errors):
        assert abs(x.mean()) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))


def test_step_posterior(found):
    steps = found["step_posterior"]
    assert float(steps["mass"].sum()) == pytest.approx(1.0)
    volumes = (steps["upper"] - steps["lower"]).prod("coordinate")
    assert float(volumes.sum()) == pytest.approx(1.0)
    assert list(steps.coords["coordinate"].values) == ["mu[0]", "mu[1]"]
    middle = 0.5 * (steps["lower"] + steps["upper"])
    mean = 10.0 * (middle * steps["mass"]).sum("box") - 5.0  # of the prior's quantiles
    np.testing.assert_allclose(mean, [DATA, -DATA], atol=0.3)


def test_seeds():
    first, again, other = (sample(random_seed=s, max_simulations=2000) for s in (5, 5, 6))
    equal(first, again)
    assert not np.array_equal(first["posterior"]["mu"], other["posterior"]["mu"])


@pytest.mark.parametrize("batched", [True, False])
def test_cores_change_nothing(batched):
    options = {"batched": batched, "random_seed": 2, "max_simulations": 2000}
    equal(sample(**options), sample(cores=2, **options))


def test_a_model_in_worker_processes(model):
    options = {"max_simulations": 400, "batched": False}
    found = []
    for cores in (1, 2):
        with pytest.warns(UserWarning):
            found.append(sample(model, cores=cores, **options))
    equal(*found)


@pytest.mark.parametrize("correlation", [0.0, 0.95])
@pytest.mark.parametrize("seed", [1, 2])
def test_posteriors_of_a_tiny_part_of_the_prior_are_found(correlation, seed):
    """The posterior is normal; its standard deviation is 1e-4 of the range of the prior, in three dimensions."""
    sd, observed = 2e-4, np.array([0.3, 0.4, 0.6])
    root = np.linalg.cholesky((1.0 - correlation) * np.eye(3) + correlation)

    def simulator(rng, t):
        return t + sd * rng.standard_normal(t.shape) @ root.T

    problem = amc.SimulatorProblem({"t": (stats.uniform(-1.0, 2.0), 3)}, simulator, observed)
    found = sample(problem, max_simulations=10_000, tolerance=None, random_seed=seed)
    drawn = found["posterior"]["t"]
    assert (np.abs(drawn.mean(("chain", "draw")) - observed) < 0.4 * sd).all()
    width = drawn.std(("chain", "draw")).values / sd
    assert (width > 1.0 / 1.5).all() and (width < 1.5).all()
