"""Modes of models, with what users need around them."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

from amc_pymc.likelihood_free.find_map_tree import find_MAP_tree
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem

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
    # the mode at epsilon, which is the lowest tolerance of interest
    assert (np.abs(found["mu"] - [1.0, 1.5]) < 4.0 * se).all()


def test_raw_result(model, tmp_path):
    found, raw = find_MAP_tree(
        max_simulations=2000, batch_size=400, model=model, random_seed=2, return_raw=True, **QUIET
    )
    assert set(raw.children) == {"mode", "mode_se", "rounds"}
    assert raw["mode"]["mu"].dims == ("side",)
    assert raw["mode"]["side"].values.tolist() == ["left", "right"]
    assert raw["mode_se"]["side"].values.tolist() == ["left", "right"]
    assert raw["rounds"]["coordinate"].values.tolist() == ["mu[0]", "mu[1]"]
    np.testing.assert_array_equal(raw["mode"]["mu"], found["mu"])
    rounds = raw["rounds"]
    np.testing.assert_array_equal(rounds["simulations"], [400, 400, 400, 400, 274])
    assert (np.diff(rounds["tolerance"]) <= 0.0).all()
    assert rounds["boxes"].values[0] <= rounds["boxes"].values[-1]
    attrs = raw["mode"].attrs
    assert attrs["simulations"] == 1874
    assert math.isfinite(attrs["log_density"])
    raw.to_netcdf(tmp_path / "raw.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "raw.nc", engine="h5netcdf") as back:
        assert back["mode"].attrs["flags"] == attrs["flags"] == ""


def test_seeds_decide_everything():
    def run(seed, **kwargs):
        return find_MAP_tree(
            max_simulations=500, model=problem(), random_seed=seed, progressbar=False, **kwargs
        )["mu"]

    assert run(1) == run(1) == run(1, cores=2)
    assert run(1) != run(2)


def test_density_by_hand():
    # Prior density times mean kernel_values: e^-mu times h / sqrt(1 + h^2) e^(-(2 - mu)^2 / (2 (1 + h^2))).
    found, raw = find_MAP_tree(
        max_simulations=20_000, model=problem(), random_seed=4, return_raw=True, **QUIET
    )
    attrs, mu = raw["mode"].attrs, float(found["mu"])
    v = 1.0 + attrs["tolerance"] ** 2
    wanted = -mu + math.log(attrs["tolerance"] / math.sqrt(v)) - 0.5 * (2.0 - mu) ** 2 / v
    assert abs(attrs["log_density"] - wanted) < 4.0 * attrs["log_density_se"] + 0.01
    assert attrs["log_density_se"] < 0.1


def test_discrete_parameters_are_refused():
    poisson = SimulatorProblem({"mu": (stats.poisson(1.0), 2)}, noisy_alone, np.array([3.0, 0.0]))
    with pytest.raises(ValueError, match=r"continuous parameters, and 'mu\[0\]' is a whole number"):
        find_MAP_tree(max_simulations=1000, model=poisson, **QUIET)


@pytest.mark.parametrize(
    ("irrelevant", "told", "flags"),
    [
        (0, True, set()),
        (30, True, {"mode_by_learning"}),
        (2, False, {"mode_by_learning", "mode_of_prior"}),
    ],
)
def test_summaries_are_learned_if_the_distance_tells_nothing(irrelevant, told, flags):
    """Summaries that do not depend on the parameter hide the one that does, if there is one."""

    def simulator(rng, mu):
        seen = rng.normal(mu, 0.3) if told else rng.normal(size=len(mu))
        return np.column_stack([seen, rng.normal(size=(len(mu), irrelevant))])

    observed = np.append(0.7, np.random.default_rng(3).normal(size=irrelevant))
    problem = SimulatorProblem({"mu": stats.norm()}, simulator, observed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, raw = find_MAP_tree(
            max_simulations=2000, model=problem, random_seed=1, return_raw=True, **QUIET
        )
    known = {"mode_by_learning", "mode_of_prior"}
    assert known & set(raw["mode"].attrs["flag_names"].split("; ")) == flags
    assert raw["mode"].attrs["summaries"] == ("learned" if flags else "given")
    if told:  # the posterior's standard deviation is 0.29
        assert abs(found["mu"] - 0.7 / 1.09) < 0.15


def test_a_tolerance_out_of_reach_is_told():
    with pytest.warns(UserWarning, match=r"tolerance ended at .* far above 1e-06"):
        _, raw = find_MAP_tree(
            max_simulations=500,
            tolerance=1e-6,
            model=problem(),
            random_seed=7,
            return_raw=True,
            **QUIET,
        )
    assert raw["mode"].attrs["flags"].startswith("the tolerance ended at ")


class Interrupting:
    """Interrupts once, after so many simulations; before and after that it simulates."""

    def __init__(self, after):
        self.left = after

    def __call__(self, rng, mu):
        before, self.left = self.left, self.left - len(mu)
        if self.left < 0 <= before:
            raise KeyboardInterrupt
        return np.where(mu > 6.0, np.nan, rng.normal(mu, 1.0))


def from_checkpoint(folder, after=math.inf, **kwargs):
    given = {"max_simulations": 3000, "batch_size": 300, "random_seed": 10} | kwargs
    stopped = SimulatorProblem({"mu": stats.expon()}, Interrupting(after), 2.0)
    return find_MAP_tree(model=stopped, checkpoint=folder, return_raw=True, **given, **QUIET)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    _, whole = from_checkpoint(None)
    with pytest.warns(UserWarning, match="interrupted"):
        _, part = from_checkpoint(tmp_path / "run", after=1500)
    done = part["mode"].attrs["simulations"]
    assert 0 < done < 3000
    assert "interrupted by the user" in part["mode"].attrs["flags"]
    assert len(list((tmp_path / "run").glob("*.npz"))) == done // 300
    _, again = from_checkpoint(tmp_path / "run")
    xr.testing.assert_identical(again, whole)
    # nothing is left to simulate but a trial, and no seed is needed
    _, once_more = from_checkpoint(tmp_path / "run", after=130, random_seed=None)
    xr.testing.assert_identical(once_more, whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tolerance", 0.7), ("batch_size", 200), ("random_seed", 11)],
)
def test_a_checkpoint_of_another_run_is_refused(name, value, tmp_path):
    from_checkpoint(tmp_path / "run", max_simulations=600)
    with pytest.raises(ValueError, match=f"another run: .*{name}|another {name}"):
        from_checkpoint(tmp_path / "run", max_simulations=600, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("max_simulations", 0, ValueError),
        ("max_simulations", 1e4, TypeError),
        ("batch_size", 0, ValueError),
        ("batch_size", 101, ValueError),
        ("batched", "no", TypeError),
        ("tolerance", 0.0, ValueError),
        ("tolerance", math.nan, ValueError),
        ("tolerance", "small", TypeError),
        ("model", "y", TypeError),
    ],
)
def test_bad_arguments_are_named(name, value, error):
    given = {"max_simulations": 100, "model": problem(), "progressbar": False} | {name: value}
    with pytest.raises(error, match=name):
        find_MAP_tree(**given)


def test_failed_simulations_are_told():
    def simulator(rng, mu):
        if mu < 0.1:
            raise RuntimeError("too small")
        return rng.normal(mu, 1.0)

    failing = SimulatorProblem({"mu": stats.expon()}, simulator, 2.0)
    with pytest.warns(UserWarning, match=r"simulations failed.*too small"):
        find_MAP_tree(max_simulations=200, model=failing, random_seed=6, progressbar=False)


def test_nothing_comes_close():
    never = SimulatorProblem({"mu": stats.expon()}, lambda rng, mu: np.nan * mu, 2.0)
    with pytest.raises(ValueError, match=r"nan|fail"):
        find_MAP_tree(max_simulations=100, model=never, random_seed=9, progressbar=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [7, 8])
def test_budgets_of_one_or_two_simulations(budget, seed):
    """Six simulations of a budget try the simulator. One point has no covariance, nor have two if one is far."""
    priors = {"mu": stats.norm(), "sigma": stats.uniform()}
    model = SimulatorProblem(priors, lambda rng, mu, sigma: rng.normal(mu, 1.0, 3), np.zeros(3))
    point = find_MAP_tree(model=model, max_simulations=budget, random_seed=seed, progressbar=False)
    assert 0.0 < point["sigma"] < 1.0
