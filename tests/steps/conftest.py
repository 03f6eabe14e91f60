"""Models, steps and runs that several tests share: what is slow here is compiling."""

from __future__ import annotations

import grouped_runs
import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc


def linear_model(n_rows: int = 1000) -> pm.Model:
    """Linear regression with mutable data: ``beta`` (2,) has dims, ``sigma`` is transformed."""
    rng = np.random.default_rng(3)
    covariates = np.column_stack([np.ones(n_rows), rng.normal(size=n_rows)])
    y = covariates @ [0.5, -1.0] + 0.7 * rng.normal(size=n_rows)
    with pm.Model(coords={"column": ["constant", "slope"]}) as model:
        x_data, y_data = pm.Data("X", covariates), pm.Data("y", y)
        beta = pm.Normal("beta", 0, 2, dims="column")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("obs", x_data @ beta, sigma, observed=y_data, shape=y_data.shape)
    return model


def normal_data(n_rows: int = 500) -> np.ndarray:
    return np.random.default_rng(5).normal(0.3, 1.0, size=n_rows)


def normal_model(n_rows: int = 500, **kwargs) -> pm.Model:
    """Mean of a normal; ``kwargs`` go to the parameter."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, **kwargs)
        pm.Normal("obs", mu, 1, observed=normal_data(n_rows))
    return model


def sample(model, step, **kwargs):
    return grouped_runs.sample(model, step, **{"draws": 50, "tune": 50, **kwargs})


#: Statistics of NUTS that are times.
CLOCKS = {"perf_counter_diff", "perf_counter_start", "process_time_diff"}
GROUPS = {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"}


def assert_same(one, other):
    """Equal draws and statistics, those of the tuning too if they are there."""
    for group in set(one.children) & GROUPS:
        mine, theirs = one[group].to_dataset(), other[group].to_dataset()
        assert set(mine.data_vars) == set(theirs.data_vars), group
        for name in set(mine.data_vars) - CLOCKS:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=f"{group}.{name}")


@pytest.fixture(scope="session")
def run():
    """``run(model, step, **kwargs)`` is a short quiet ``pm.sample``."""
    return sample


@pytest.fixture(scope="session")
def linear():
    return linear_model()


@pytest.fixture(scope="session")
def linear_step(linear):
    return amc.RacingMetropolis(model=linear)


@pytest.fixture(scope="session")
def reference(linear, linear_step):
    """Four sequential chains, with what was drawn while tuning."""
    return sample(linear, linear_step, chains=4, discard_tuned_samples=False)


@pytest.fixture(scope="session")
def beta_step(linear):
    """Moves ``beta`` only, by races, which are audited."""
    return amc.RacingMetropolis([linear["beta"]], model=linear, race="normal")


@pytest.fixture(scope="session")
def sigma_step(linear):
    return amc.RacingMetropolis([linear["sigma"]], model=linear)


@pytest.fixture(scope="session")
def normal():
    return normal_model()


@pytest.fixture(scope="session")
def normal_step(normal):
    return amc.RacingMetropolis(model=normal)


@pytest.fixture
def unprepared(monkeypatch):
    """Fail where an argument is only looked at after the model has been taken apart."""

    def prepare(*args, **kwargs):
        raise AssertionError("the model was taken apart before the arguments were checked")

    for module in ("racing_gibbs", "racing_metropolis", "racing_forecast"):
        monkeypatch.setattr(f"amc_pymc.steps.{module}.prepare", prepare)


@pytest.fixture(scope="session")
def categorical():
    """A discrete ``k`` and a continuous ``mu``."""
    with pm.Model() as model:
        mean = pm.Categorical("k", p=np.ones(3) / 3) + pm.Normal("mu")
        pm.Normal(
            "obs", 0.1 * mean, 1, observed=np.random.default_rng(5).normal(0.1, 1.0, size=300)
        )
    return model
