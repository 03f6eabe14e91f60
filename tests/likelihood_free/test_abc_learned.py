"""Learned summaries and the choice of an adjustment, from model to result."""

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

OPTIONS = {"batched": True, "progressbar": False}


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


def test_exchangeable_observations_need_the_data():
    with pytest.raises(ValueError, match=r"5 numbers, and there are 1 summary"):
        amc.sample_abc_tree(
            model=model_of(sum_stat="mean"), max_simulations=400, adjust="auto", exchangeable=True,
            **OPTIONS,
        )  # fmt: skip
    single = amc.SimulatorProblem({"mu": stats.norm()}, lambda rng, mu: mu, 1.0)
    with pytest.raises(ValueError, match="two observations at least"):
        amc.sample_abc_rejection(
            model=single, max_simulations=400, adjust="auto", exchangeable=True, **OPTIONS
        )
