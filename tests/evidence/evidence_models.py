"""Small models whose evidence is known, each compiled once for all tests of a session."""

import functools
import importlib
import math
import re

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from scipy.special import logsumexp

from amc_pymc.evidence.model import compiled_particles
from models.contamination import contamination
from models.linear_regression import linear_regression
from models.spike_and_slab import spike_and_slab

LOG_2PI = math.log(2.0 * math.pi)
DATA = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = list("ABCDEFGH")


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    """Inference functions find the compiled densities of a model that they have seen before."""
    patch, kept = pytest.MonkeyPatch(), functools.cache(compiled_particles)

    def cached(model, effects=None):
        return kept(model, effects)

    for name in ("sample_ais", "estimate_evidence", "from_draws"):
        module = importlib.import_module(f"amc_pymc.evidence.{name}")
        patch.setattr(module, "compiled_particles", cached)
    yield
    patch.undo()


def compile_before(model) -> None:
    """Compile a model's densities, so that what that evaluates is not counted with what follows."""
    importlib.import_module("amc_pymc.evidence.sample_ais").compiled_particles(model)


class Known(NamedTuple):
    """A model and its log evidence."""

    model: pm.Model
    log_evidence: float


def normal_log(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * LOG_2PI


def by_quadrature(log_f, low, high, n=20_001):
    """Log of the integral of exp(log_f) by the trapezoidal rule, where f is zero at both ends."""
    x = np.linspace(low, high, n)
    return float(logsumexp(log_f(x)) + math.log(x[1] - x[0]))


def normal_model(y=3.0, initval=None):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0, initval=initval)
        pm.Normal("y", mu, 1.0, observed=[y])
    return model


@functools.cache
def one():
    """A standard normal mean and one observation at 3: the posterior is N(1.5, 1/2)."""
    return Known(normal_model(), float(normal_log(3.0, 0.0, math.sqrt(2.0))))


@functools.cache
def regression():
    problem = linear_regression(20, 2)
    return Known(problem.build(), problem.log_evidence)


@functools.cache
def several():
    """Two observed variables and a potential."""
    y, z = np.array([0.3, 1.4, 0.9]), np.array([2.5, 3.1])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("y", mu, 1.0, observed=y)
        pm.Normal("z", 2.0 * mu, 0.5, observed=z)
        pm.Potential("pull", -3.0 * pt.abs(mu - 1.0))

    def log_f(x):
        rows = normal_log(y, x[:, None], 1.0).sum(axis=1)
        rows += normal_log(z, 2.0 * x[:, None], 0.5).sum(axis=1)
        return rows + normal_log(x, 0.0, 2.0) - 3.0 * np.abs(x - 1.0)

    return Known(model, by_quadrature(log_f, -20.0, 20.0))


@functools.cache
def schools():
    """Eight schools without their effects: two dimensions, a skewed posterior, names for everything."""
    with pm.Model(coords={"school": SCHOOLS}) as model:
        sd = pm.Data("sd", ERRORS, dims="school")
        mu = pm.Normal("mu", 5.0, 10.0)
        tau = pm.HalfNormal("tau", 10.0)
        pm.Deterministic("total", pt.sqrt(tau**2 + sd**2), dims="school")
        pm.Normal("y", mu, pt.sqrt(tau**2 + sd**2), observed=DATA, dims="school")
    tau, t_step = np.linspace(0.0, 100.0, 1001, retstep=True)
    mu, m_step = np.linspace(-80.0, 90.0, 681, retstep=True)
    log_f = normal_log(mu, 5.0, 10.0) + (math.log(2.0) + normal_log(tau, 0.0, 10.0))[:, None]
    for y, sd in zip(DATA, ERRORS, strict=True):
        log_f += normal_log(y, mu, np.sqrt(tau**2 + sd**2)[:, None])
    log_f[0] -= math.log(2.0)
    return Known(model, float(logsumexp(log_f) + math.log(t_step * m_step)))


@functools.cache
def labels():
    """Three measurements, each good or bad: continuous and discrete variables."""
    problem = contamination([0.6, 7.2, 1.1])
    return Known(problem.build(), problem.log_evidence)


@functools.cache
def far_down():
    """A likelihood of about exp(-10^4)."""
    y = np.array([100.5, -99.0])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("y", mu, 1.0, observed=y)
    return Known(
        model,
        by_quadrature(
            lambda x: normal_log(x, 0.0, 1.0) + normal_log(y, x[:, None], 1.0).sum(1), -9, 9
        ),
    )


def potential(function):
    """A standard normal variable and a potential of it."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        pm.Potential("likelihood", function(x))
    return model


@functools.cache
def half():
    """A likelihood of zero on half of the prior."""
    model = potential(lambda x: pt.switch(x > 0.0, -2.0 * x, -np.inf))
    return Known(model, by_quadrature(lambda x: normal_log(x, 0.0, 1.0) - 2.0 * x, 0.0, 12.0))


@functools.cache
def partly_nan():
    """A likelihood x on the positive half of the prior, and the logarithm of a negative number elsewhere."""
    return Known(potential(pt.log), -0.5 * LOG_2PI)


@functools.cache
def nan_gradient():
    """A likelihood exp(-sqrt(x)), one below zero: known everywhere, with a gradient of nan below."""
    model = potential(lambda x: -pt.sqrt(pt.maximum(x, 0.0)))

    def log_f(x):
        return normal_log(x, 0.0, 1.0) - np.sqrt(np.maximum(x, 0.0))

    return Known(model, by_quadrature(log_f, -12.0, 12.0, 400_001))


@functools.cache
def peak():
    problem = spike_and_slab()
    return Known(problem.build(), problem.log_evidence)


@functools.cache
def vague_funnel():
    """Neal's funnel of 21 dimensions with a vague observation of each local variable."""
    rng = np.random.default_rng(3)
    y = 1.5 * rng.standard_normal(20) + 30.0 * rng.standard_normal(20)
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        x = pm.Normal("x", 0.0, pm.math.exp(0.5 * v), shape=20)
        pm.Normal("y", x, 30.0, observed=y)

    def log_f(v):
        sd = np.sqrt(900.0 + np.exp(v))[:, None]
        return normal_log(v, 0.0, 3.0) + normal_log(y, 0.0, sd).sum(axis=1)

    return Known(model, by_quadrature(log_f, -25.0, 25.0))


@functools.cache
def far_off():
    """A posterior four standard deviations off the prior, and a tenth as wide."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0), 0.1, observed=[4.0])
    return Known(model, float(normal_log(4.0, 0.0, math.sqrt(1.01))))


@functools.cache
def impossible():
    """A likelihood of zero wherever anyone looks."""
    return potential(lambda x: pt.switch(x > 1e3, 0.0, -np.inf))


@functools.cache
def unbounded(n=3):
    """Data that are exactly their mean: the likelihood of a standard deviation of zero is infinite."""
    with pm.Model() as model:
        pm.Normal("y", 0.0, pm.HalfNormal("sigma", 1.0), observed=np.zeros(n))
    return model


EASY = (one, regression, several, schools, labels, far_down)


def assert_same(one, two):
    """All groups of two results hold the same, attributes too, but for what was timed."""
    assert set(one.groups) == set(two.groups)
    for group in one.groups:
        notes = [
            {k: np.asarray(v).tolist() for k, v in tree[group].attrs.items() if k != "created_at"}
            for tree in (one, two)
        ]
        assert notes[0] == notes[1]
        left, right = (
            tree[group].to_dataset().drop_vars(["cpu_seconds", "compile_seconds"], errors="ignore")
            for tree in (one, two)
        )
        xr.testing.assert_equal(left, right)


def flags_of(tree):
    return tree["evidence"].attrs["flags"]


def flag_names(tree):
    return tree["evidence"].attrs["flag_names"]


def error_of(tree, known):
    """Error of log Z, and what it should be about."""
    found = tree["evidence"]
    return float(found["log_evidence"]) - known.log_evidence, float(found["log_evidence_mcse"])


def label(value) -> str:
    """Name of a parameter of a test, the same in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))
