"""Small likelihood-free problems, and runs of them, for tests of the samplers."""

import functools

import pymc as pm
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

TOLERANCE, DATA, SD = 0.2, 1.5, 0.5
BUDGET = 8000


def normal(rng, mu, size):
    return rng.normal(mu, SD, size=size)


@functools.cache
def grouped_model():
    """Means of two groups, with one simulation for both."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        mu = pm.Uniform("mu", -5.0, 5.0, dims="group")
        pm.Deterministic("gap", mu[1] - mu[0])
        pm.Data("known", [1.0, 2.0])
        pm.Simulator("y", normal, mu, epsilon=0.4, observed=[DATA, -DATA])
    return model


def one_normal(rng, mu):
    return rng.normal(mu, SD)


PROBLEM = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, one_normal, DATA)


def sample(model=PROBLEM, sampler=amc.sample_abc_tree, **options):
    options = {"max_simulations": BUDGET, "batched": True, "random_seed": 1, **options}
    if sampler is amc.sample_abc_tree:
        options.setdefault("adjust", "none")
    return sampler(model=model, progressbar=False, **options)


def rejection(*args, **options):
    """All simulations are from the prior."""
    own = {"proposal": amc.TreeProposal(prior_share=1.0), "adjust": "none"}
    return amc.sample_abc_tree(*args, **own | options)


def equal(first, second):
    for group in ("posterior", "sample_stats", "weighted_posterior"):
        xr.testing.assert_equal(first[group].to_dataset(), second[group].to_dataset())


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


class Interrupting:
    """Interrupts once, in a call; before and after that it simulates."""

    def __init__(self, call):
        self.left = call

    def __call__(self, rng, mu):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return rng.normal(mu, SD)


def interrupted(call):
    return amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, Interrupting(call), DATA)
