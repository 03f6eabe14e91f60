"""Priors of SciPy that depend on earlier parameters."""

import warnings

import numpy as np
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free.scipy_prior import ScipyPrior

HIERARCHY = {
    "mu": stats.norm(1.0, 2.0),
    "tau": stats.halfnorm(scale=0.5),
    "x": (lambda mu, tau: stats.norm(mu, tau), (2, 3)),
    "n": lambda tau: stats.poisson(5.0 * tau),
    "y": lambda x: stats.norm(x.sum(axis=(1, 2)), 0.1),
}


def normal(rng, mu, x):
    return rng.normal(x, 0.5)


def hierarchical():
    prior = {"mu": stats.norm(0.0, 1.0), "x": (lambda mu: stats.norm(mu, 1.0), 2)}
    return amc.SimulatorProblem(prior, normal, [1.0, 2.0])


def test_values_are_conditional_quantiles():
    prior, u = ScipyPrior(HIERARCHY), np.random.default_rng(1).random((7, 10))
    found = prior.values(u)
    z = stats.norm.ppf(u)
    np.testing.assert_allclose(found["mu"], 1.0 + 2.0 * z[:, 0])
    np.testing.assert_allclose(found["tau"], stats.halfnorm.ppf(u[:, 1], scale=0.5))
    mean, spread = found["mu"][:, None], found["tau"][:, None]
    np.testing.assert_allclose(found["x"].reshape(7, 6), mean + spread * z[:, 2:8])
    assert found["n"].dtype.kind == "i"
    np.testing.assert_array_equal(found["n"], stats.poisson.ppf(u[:, 8], 5.0 * found["tau"]))
    np.testing.assert_allclose(found["y"], found["x"].sum(axis=(1, 2)) + 0.1 * z[:, 9])
    log = (
        stats.norm.logpdf(found["mu"], 1.0, 2.0) + stats.halfnorm.logpdf(found["tau"], scale=0.5)
        + stats.norm.logpdf(found["x"].reshape(7, 6), mean, spread).sum(axis=1)
        + stats.poisson.logpmf(found["n"], 5.0 * found["tau"])
        + stats.norm.logpdf(found["y"], found["x"].sum(axis=(1, 2)), 0.1)
    )  # fmt: skip
    np.testing.assert_allclose(prior.log_density(found), log)


@pytest.mark.slow
def test_posterior_of_a_hierarchy():
    """Data 1 and 2 with noise 1/2 of x, whose mean is mu: the posterior is normal."""
    precision = np.array([[1.0 + 2.0, -1.0, -1.0], [-1.0, 5.0, 0.0], [-1.0, 0.0, 5.0]])
    mean = np.linalg.solve(precision, [0.0, 4.0, 8.0])
    options = {
        "max_simulations": 6000, "batched": True, "progressbar": False, "adjust": "regression", "draws": 250
    }  # fmt: skip
    problem = hierarchical()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = amc.sample_abc_tree(model=problem, random_seed=1, **options)
    estimates = found["estimates"]
    for name, wanted in (("mu", mean[0]), ("x", mean[1:])):
        told, mcse = estimates[name].values[:2]
        assert (np.abs(told - wanted) < 4.0 * mcse).all() and (mcse < 0.1).all()
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    drawn = found["posterior"]
    assert abs(float(drawn["mu"].std()) / sd[0] - 1.0) < 0.2


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        ({"x": lambda mu: stats.norm(mu)}, TypeError, "takes 'mu', which is no earlier parameter"),
        ({"x": lambda *mu: stats.norm(mu)}, TypeError, r"must name its parameters, got \*mu"),
        ({"a": stats.norm(), "x": lambda a: a}, TypeError, r"prior\['x'\] must be a frozen"),
        ({"a": stats.norm(), "x": lambda a: stats.norm(a, -1.0)}, ValueError, "has no median"),
        ({"a": stats.norm(), "x": lambda a: a.missing}, ValueError, "raised AttributeError"),
        (
            {"a": (stats.norm(), 3), "x": (lambda a: stats.norm(a, 1.0), 2)},
            ValueError, r"parameters of shape \(3,\) do not fit into \(2,\)",
        ),
        ({"a": stats.norm(), "x": (lambda a: stats.norm(a), 1.5)}, ValueError, "whole numbers"),
    ],
)  # fmt: skip
def test_functions_that_are_no_priors(prior, error, message):
    with pytest.raises(error, match=message):
        ScipyPrior(prior)


def test_impossible_parameters_are_told():
    prior = ScipyPrior({"a": stats.norm(1.0, 1.0), "x": lambda a: stats.norm(0.0, a)})
    with pytest.raises(ValueError, match=r"prior\['x'\] is no distribution for a=-"):
        prior.values(np.array([[0.5, 0.5], [0.01, 0.5]]))
