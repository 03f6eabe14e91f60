"""Flags of posteriors that are too wide or badly adjusted, and none where all is well."""

import warnings

import numpy as np
import pytest

from scipy import stats

import amc_pymc as amc

FLAGS = {"too_wide", "miscalibrated"}


def sample(problem, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return amc.sample_abc_tree(
            model=problem, batched=True, random_seed=1, progressbar=False, **options
        )


def flags(found):
    return FLAGS & set(found["abc"].attrs["flag_names"].split("; "))


def near(sd):
    def simulator(rng, theta):
        return theta + sd * rng.standard_normal(theta.shape)

    return simulator


def normal(d, sd, data=0.6):
    """Parameters with standard normal priors, each seen with noise."""
    return amc.SimulatorProblem({"theta": (stats.norm(), d)}, near(sd), np.full(d, data))


def with_noise(rng, x):
    told = x + 0.02 * rng.standard_normal(len(x))
    return np.column_stack([told, rng.standard_normal((len(x), 40))])


def test_a_posterior_that_is_too_wide():
    """In five dimensions 2,000 simulations do not come close to a posterior of a twentieth of the prior."""
    found = sample(normal(5, 0.05), max_simulations=2000, adjust="none")
    assert flags(found) == {"too_wide"}
    sd = found["estimates"]["theta"].sel(statistic="sd")
    assert float(sd.max()) > 1.5 * 0.05


def test_an_adjustment_that_is_miscalibrated():
    """A regression on 40 useless statistics and 200 simulations leaves the posterior five times too wide."""
    problem = amc.SimulatorProblem(
        {"x": stats.uniform(-1.0, 2.0)}, with_noise, np.append(0.5, np.zeros(40))
    )
    found = sample(problem, max_simulations=200, adjust="regression")
    assert "miscalibrated" in flags(found)
    assert float(found["estimates"]["x"].sel(statistic="sd")) > 5.0 * 0.02


def spread(rng, scale):
    x = scale[:, None] * rng.standard_normal((len(scale), 50))
    return np.log(x.std(axis=1))[:, None]


def counts(rng, rate):
    return rng.poisson(rate[:, None], (len(rate), 20)).mean(axis=1, keepdims=True)


HEALTHY = {
    "one": (normal(1, 0.3), {}),
    "two": (normal(2, 0.5), {}),
    "scale": (
        amc.SimulatorProblem({"scale": stats.expon(scale=2.0)}, spread, [0.3]),
        {"adjust": "auto"},
    ),
    "counts": (amc.SimulatorProblem({"rate": stats.gamma(2.0)}, counts, [2.5]), {}),
    "six": (normal(6, 0.5), {"adjust": "regression"}),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("scale", "six") else n for n in HEALTHY],
)
def test_no_flag_where_widths_are_right(name):
    problem, options = HEALTHY[name]
    assert not flags(sample(problem, max_simulations=6000, **options))
