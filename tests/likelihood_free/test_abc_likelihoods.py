"""Models with pm.Simulator and data that have a likelihood, and several Simulators, against closed forms."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest

from scipy.stats import norm, poisson

import amc_pymc as amc

from amc_pymc.likelihood_free.model_problem import ModelProblem
from tests.likelihood_free.abc_runs import rejection

PRIOR_SD, SEEN, SEEN_SD, SIMULATED, NOISE_SD, EPSILON = 2.0, [0.4, 0.9], 0.8, 1.5, 0.5, 0.4
SAMPLERS = [amc.sample_abc_tree, rejection]


def normal(rng, mu, size):
    return rng.normal(mu, NOISE_SD, size=size)


def counts(rng, rate, size):
    return rng.poisson(rate, size=size)


def model_of(likelihood=True, potential=False, second=False):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, PRIOR_SD)
        pm.Simulator("y", normal, mu, epsilon=EPSILON, observed=SIMULATED)
        if second:
            pm.Simulator("x", normal, 2.0 * mu, epsilon=3.0 * EPSILON, observed=2.6)
        if likelihood:
            pm.Normal("z", mu, SEEN_SD, observed=SEEN)
        if potential:
            pm.Potential("p", pm.logp(pm.Normal.dist(mu, SEEN_SD), np.array(SEEN)).sum())
    return model


def sample(model, sampler=amc.sample_abc_tree, seed=1, n=3000, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(are worth|may shift)")
        return sampler(
            model=model, max_simulations=n, batched=True, random_seed=seed, progressbar=False,
            **{"adjust": "none", **options},
        )  # fmt: skip


MU = np.linspace(-8.0, 8.0, 40_001)


def seen(mu):
    return norm.logpdf(np.array(SEEN)[:, None], mu, SEEN_SD).sum(axis=0)


def mean_and_sd(log_density):
    p = np.exp(log_density - log_density.max())
    mean = p @ MU / p.sum()
    return mean, math.sqrt(p @ (MU - mean) ** 2 / p.sum())


def agree(trees, name, wanted):
    """Means of several runs, within the Monte Carlo error that they state."""
    found = np.array([t["estimates"][name].values[:2] for t in trees])
    error = math.sqrt(np.square(found[:, 1]).mean() / len(found))
    assert abs(found[:, 0].mean() - wanted) < 4.0 * error < 0.25


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_mean_that_is_seen_twice(sampler):
    """By a simulator, within the tolerance, and by a normal likelihood."""
    near = norm.cdf((SIMULATED + EPSILON - MU) / NOISE_SD) - norm.cdf(
        (SIMULATED - EPSILON - MU) / NOISE_SD
    )
    with np.errstate(divide="ignore"):
        wanted, _ = mean_and_sd(norm.logpdf(MU, 0.0, PRIOR_SD) + seen(MU) + np.log(near))
    without, _ = mean_and_sd(norm.logpdf(MU, 0.0, PRIOR_SD) + np.log(near + 1e-300))
    agree([sample(model_of(), sampler, seed) for seed in range(3)], "mu", wanted)
    assert abs(wanted - without) > 0.2


def test_likelihood_is_a_potential():
    found, wanted = sample(model_of()), sample(model_of(likelihood=False, potential=True))
    np.testing.assert_allclose(found["posterior"]["mu"], wanted["posterior"]["mu"])
    assert set(found["observed_data"]) == {"y", "z"}


@pytest.mark.slow
def test_two_simulators_and_a_likelihood():
    """The distance is the root of the sum of squares, each in units of its own epsilon; adjusted, the posterior is normal."""
    precision = 1 / PRIOR_SD**2 + 2 / SEEN_SD**2 + 1 / NOISE_SD**2 + 4 / NOISE_SD**2
    mean = (sum(SEEN) / SEEN_SD**2 + SIMULATED / NOISE_SD**2 + 2 * 2.6 / NOISE_SD**2) / precision
    trees = [sample(model_of(second=True), seed=s, n=4000, adjust="regression") for s in range(2)]
    agree(trees, "mu", mean)
    sds = [float(t["posterior"]["mu"].std()) for t in trees]
    assert abs(np.mean(sds) * math.sqrt(precision) - 1.0) < 0.1
    problem = ModelProblem(model_of(second=True))
    x = [np.array([SIMULATED + EPSILON]), np.array([2.6 + 6.0 * EPSILON])]
    np.testing.assert_allclose(problem.distances(x), math.sqrt(1.0 + 4.0))


@pytest.mark.slow
def test_shared_parameters_of_different_kinds():
    """A rate that counts with a likelihood and a simulator of counts know."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 0.5)
        scale = pm.HalfNormal("scale", 1.0)
        pm.Deterministic("product", rate * scale)
        given = pm.Data("given", [3, 5, 4])
        pm.Poisson("n", rate, observed=given)
        pm.Simulator(
            "m",
            counts,
            rate,
            epsilon=0.5,
            observed=np.array([6, 2]),
            sum_stat="sort",
            dtype="int64",
        )
        pm.Normal("z", 0.0, scale, observed=[0.5])
    problem = ModelProblem(model)
    u = np.random.default_rng(2).random((5, 2))
    values = problem.parameters(u)
    expected = poisson.logpmf([[3], [5], [4]], values["rate"]).sum(axis=0)
    expected += norm.logpdf(0.5, 0.0, values["scale"])
    np.testing.assert_allclose(problem.log_density(u), expected)
    trees = [sample(model, seed=seed, n=6000) for seed in range(3)]
    # Sorted counts within a half are the data: the posterior is Gamma(2 + 12 + 8, 0.5 + 3 + 2).
    agree(trees, "rate", 22.0 / 5.5)


def test_mode_with_a_likelihood():
    precision = 1 / PRIOR_SD**2 + 2 / SEEN_SD**2 + 1 / NOISE_SD**2
    mean = (sum(SEEN) / SEEN_SD**2 + SIMULATED / NOISE_SD**2) / precision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode, raw = amc.find_MAP_tree(
            max_simulations=3000, model=model_of(), batched=True, random_seed=1, progressbar=False,
            return_raw=True,
        )  # fmt: skip
    assert abs(float(mode["mu"]) - mean) < 0.25 / math.sqrt(precision) + 0.1
    assert raw is not None


# --- what is refused -----------------------------------------------------------------------------


def test_missing_and_infinite_data():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Simulator("y", normal, mu, observed=1.0)
            pm.Normal("z", mu, 1.0, observed=np.ma.masked_invalid([1.0, np.nan]))
    with pytest.raises(ValueError, match="data of 'z' have missing values"):
        ModelProblem(model)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Simulator("y", normal, mu, observed=1.0)
        pm.Normal("z", mu, 1.0, observed=[1.0, np.inf])
    with pytest.raises(ValueError, match="data of 'z' are not all finite"):
        ModelProblem(model)


def test_impossible_data_are_told():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Simulator("y", normal, mu, observed=1.0)
        pm.Uniform("z", 10.0, 11.0 + 0.0 * mu, observed=5.0)
    with pytest.raises(ValueError, match=r"prior density is zero.*'z'"):
        sample(model, n=300)
