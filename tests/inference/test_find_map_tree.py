"""Modes of models, with what users need around them."""

import math

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from amc_pymc.abc_tree.simulator_problem import SimulatorProblem
from amc_pymc.inference.find_map_tree import find_MAP_tree

QUIET = {"batched": True, "progressbar": False}


def noisy(rng, mu, size=None):
    return rng.normal(mu, 1.0, size=size)


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"side": ["left", "right"]}) as model:
        mu = pm.Exponential("mu", 1.0, dims="side")
        pm.Deterministic("twice", 2.0 * mu, dims="side")
        pm.Simulator("y", noisy, mu, epsilon=1.0, observed=np.array([3.0, 3.5]))
    return model


def problem(observed=2.0, **kwargs):
    return SimulatorProblem({"mu": stats.expon()}, noisy_alone, observed, **kwargs)


def noisy_alone(rng, mu):
    return rng.normal(mu, 1.0)


def test_mode_of_a_model_on_the_scale_of_its_variables(model):
    # At tolerance h the mode is at y - (1 + h^2), for h = 1 at 1 and 1.5. On the unconstrained scale, where
    # pm.find_MAP looks, it would be at 2 and 2.35; by volumes of the cube at 3 and 3.5.
    with model:
        found, raw = find_MAP_tree(max_simulations=20_000, random_seed=1, return_raw=True, **QUIET)
    assert raw["mode"].attrs["tolerance"] < 1.5
    assert set(found) == {"mu", "twice"}
    np.testing.assert_allclose(found["twice"], 2.0 * found["mu"])
    se = raw["mode_se"]["mu"].values
    assert (se < 0.15).all()
    wanted = np.array([2.0, 2.5]) - raw["mode"].attrs["tolerance"] ** 2
    assert (np.abs(found["mu"] - wanted) < 4.0 * se).all()


def test_raw_result(model, tmp_path):
    found, raw = find_MAP_tree(
        max_simulations=2000, batch_size=400, model=model, random_seed=2, return_raw=True, **QUIET
    )
    assert set(raw.children) == {"mode", "mode_se", "box", "rounds"}
    assert raw["mode"]["mu"].dims == ("side",)
    assert raw["mode"]["side"].values.tolist() == ["left", "right"]
    np.testing.assert_array_equal(raw["mode"]["mu"], found["mu"])
    rounds = raw["rounds"]
    np.testing.assert_array_equal(rounds["simulations"], [400] * 5)
    assert (np.diff(rounds["tolerance"]) <= 0.0).all()
    assert (raw["box"]["lower"] < raw["box"]["upper"]).all()
    attrs = raw["mode"].attrs
    assert attrs["simulations"] == 2000
    assert math.isfinite(attrs["log_density"])
    raw.to_netcdf(tmp_path / "raw.nc", engine="h5netcdf")


@pytest.mark.parametrize("policy", ["thompson", "ucb", "hoo"])
@pytest.mark.parametrize("estimate", ["kde", "box"])
def test_other_policies_and_estimates(policy, estimate):
    found = find_MAP_tree(
        max_simulations=5000, policy=policy, estimate=estimate, model=problem(), random_seed=3,
        **QUIET,
    )  # fmt: skip
    assert abs(found["mu"] - 1.0) < 0.6


def test_seeds_decide_everything():
    def run(seed, **kwargs):
        return find_MAP_tree(
            max_simulations=1000, model=problem(), random_seed=seed, progressbar=False, **kwargs
        )["mu"]

    assert run(1) == run(1) == run(1, cores=2)
    assert run(1) != run(2)


def test_density_by_hand():
    # Prior density times mean closeness: e^-mu times h / sqrt(1 + h^2) e^(-(2 - mu)^2 / (2 (1 + h^2))).
    found, raw = find_MAP_tree(
        max_simulations=20_000, model=problem(), random_seed=4, return_raw=True, **QUIET
    )
    attrs, mu = raw["mode"].attrs, float(found["mu"])
    v = 1.0 + attrs["tolerance"] ** 2
    wanted = -mu + math.log(attrs["tolerance"] / math.sqrt(v)) - 0.5 * (2.0 - mu) ** 2 / v
    assert abs(attrs["log_density"] - wanted) < 4.0 * attrs["log_density_se"] + 0.01
    assert attrs["log_density_se"] < 0.1


def test_discrete_parameters():
    def simulator(rng, k):
        return rng.normal(k, 1.0)

    poisson = SimulatorProblem({"k": (stats.poisson(1.0), 2)}, simulator, np.array([3.0, 0.0]))
    found, raw = find_MAP_tree(
        max_simulations=10_000, model=poisson, random_seed=5, return_raw=True, **QUIET
    )
    assert found["k"].dtype.kind == "i"
    k = np.arange(10)
    wanted = [
        k[(stats.poisson(1.0).logpmf(k) + stats.norm(k, 1.0).logpdf(x)).argmax()]
        for x in (3.0, 0.0)
    ]
    np.testing.assert_array_equal(found["k"], wanted)
    np.testing.assert_array_equal(raw["mode_se"]["k"], [0.0, 0.0])


def test_failed_simulations_are_told():
    def simulator(rng, mu):
        if mu < 0.1:
            raise RuntimeError("too small")
        return rng.normal(mu, 1.0)

    failing = SimulatorProblem({"mu": stats.expon()}, simulator, 2.0)
    with pytest.warns(UserWarning, match=r"simulations failed.*too small"):
        find_MAP_tree(max_simulations=200, model=failing, random_seed=6, progressbar=False)


def test_a_tolerance_out_of_reach_is_told():
    with pytest.warns(UserWarning, match=r"tolerance ended at .* far above 1e-06"):
        find_MAP_tree(max_simulations=500, tolerance=1e-6, model=problem(), random_seed=7, **QUIET)


def test_an_interrupt_keeps_what_there_is():
    calls = []

    def simulator(rng, mu):
        calls.append(len(mu))
        if sum(calls) > 3500:
            raise KeyboardInterrupt
        return rng.normal(mu, 1.0)

    stopped = SimulatorProblem({"mu": stats.expon()}, simulator, 2.0)
    with pytest.warns(UserWarning, match=r"interrupted after [\d,]+ of 5,000 simulations"):
        found, raw = find_MAP_tree(
            max_simulations=5000, batch_size=500, model=stopped, random_seed=8, return_raw=True,
            **QUIET,
        )  # fmt: skip
    assert 0 < raw["mode"].attrs["simulations"] < 4000
    assert abs(found["mu"] - 1.0) < 1.0


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("max_simulations", 0, ValueError),
        ("max_simulations", 1e4, TypeError),
        ("batch_size", 0, ValueError),
        ("policy", "greedy", ValueError),
        ("estimate", "mean", ValueError),
        ("tolerance", 0.0, ValueError),
        ("tolerance", math.nan, ValueError),
        ("tolerance", "small", TypeError),
        ("model", "y", TypeError),
        ("random_seed", -1, ValueError),
        ("cores", 0, ValueError),
    ],
)
def test_bad_arguments_are_named(name, value, error):
    given = {"max_simulations": 100, "model": problem(), "progressbar": False} | {name: value}
    with pytest.raises(error, match=name):
        find_MAP_tree(**given)


def test_a_model_without_simulator():
    with pm.Model() as plain:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    with pytest.raises(ValueError, match="Simulator"):
        find_MAP_tree(max_simulations=100, model=plain, progressbar=False)


def test_nothing_comes_close():
    never = SimulatorProblem({"mu": stats.expon()}, lambda rng, mu: np.nan * mu, 2.0)
    with pytest.raises(ValueError, match=r"nan|fail"):
        find_MAP_tree(max_simulations=100, model=never, random_seed=9, progressbar=False)
