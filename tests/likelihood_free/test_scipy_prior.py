"""Priors of SciPy distributions."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem

PRIOR = {
    "mu": stats.norm(1.0, 2.0),
    "x": (stats.halfnorm(scale=0.5), (2, 3)),
    "n": stats.poisson(5.0),
}


def simulate(rng, **parameters):
    return np.zeros(1)


def test_values_are_quantiles():
    problem, u = SimulatorProblem(PRIOR, simulate, [0.0]), np.random.default_rng(1).random((7, 8))
    found = problem.parameters(u)
    np.testing.assert_allclose(found["mu"], stats.norm.ppf(u[:, 0], 1.0, 2.0))
    np.testing.assert_allclose(found["x"].reshape(7, 6), stats.halfnorm.ppf(u[:, 1:7], scale=0.5))
    assert found["n"].dtype.kind == "i"
    np.testing.assert_array_equal(found["n"], stats.poisson.ppf(u[:, 7], 5.0))
    log = (
        stats.norm.logpdf(found["mu"], 1.0, 2.0) + stats.poisson.logpmf(found["n"], 5.0)
        + stats.halfnorm.logpdf(found["x"].reshape(7, 6), scale=0.5).sum(axis=1)
    )  # fmt: skip
    np.testing.assert_allclose(problem.log_prior(u), log)


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        ({"x": lambda mu: stats.norm(mu)}, TypeError, r"prior\['x'\] must be a frozen .* pm.Model"),
        ({"x": stats.norm(0.0, -1.0)}, ValueError, "has no median"),
        (
            {"x": (stats.norm(np.zeros(3), 1.0), 2)},
            ValueError, r"parameters of shape \(3,\) do not fit into \(2,\)",
        ),
        ({"x": (stats.norm(), 1.5)}, ValueError, "whole numbers"),
    ],
)  # fmt: skip
def test_objects_that_are_no_priors(prior, error, message):
    with pytest.raises(error, match=message):
        SimulatorProblem(prior, simulate, [0.0])
