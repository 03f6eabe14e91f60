"""Likelihood-free samplers: results as ArviZ data, seeds, workers, budgets, and what can go wrong."""

import math
import time
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from amc_pymc.abc_tree.partition import from_cuts
from tests.inference.killed import killed_and_whole

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")

TOLERANCE, DATA, SD = 0.2, 1.5, 0.5
BUDGET = 8000


def normal(rng, mu, size):
    return rng.normal(mu, SD, size=size)


@pytest.fixture(scope="module")
def model():
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
    return sampler(model=model, progressbar=False, **options)


@pytest.fixture(scope="module")
def found(model):
    return sample(model, max_simulations=20_000)


def known(tolerance):
    """Mean is the data; the variance adds that of a uniform distribution within the tolerance."""
    return DATA, math.sqrt(SD**2 + tolerance**2 / 3.0)


def test_groups(found):
    assert set(found.children) == {
        "posterior", "sample_stats", "weighted_posterior", "estimates", "abc", "step_posterior",
        "observed_data", "constant_data",
    }  # fmt: skip
    posterior = found["posterior"]
    assert posterior["mu"].dims == ("chain", "draw", "group")
    assert posterior["mu"].shape == (4, 1000, 2)
    assert list(posterior.coords["group"].values) == ["a", "b"]
    gap = posterior["mu"].sel(group="b") - posterior["mu"].sel(group="a")
    np.testing.assert_allclose(posterior["gap"], gap)
    np.testing.assert_array_equal(found["observed_data"]["y"], [DATA, -DATA])
    np.testing.assert_array_equal(found["constant_data"]["known"], [1.0, 2.0])


def test_arviz_reads_it(found, tmp_path):
    summary = az.summary(found)
    assert list(summary.index) == ["mu[a]", "mu[b]", "gap"]
    assert (summary["r_hat"].astype(float) < 1.05).all()
    file = tmp_path / "found.nc"
    found.to_netcdf(file)
    again = xr.open_datatree(file)
    again.load().close()
    np.testing.assert_array_equal(again["posterior"]["mu"], found["posterior"]["mu"])
    assert (
        again["posterior"].attrs["effective_draws"] == found["posterior"].attrs["effective_draws"]
    )


def test_attributes_and_totals(found):
    attrs, run = found["posterior"].attrs, found["abc"]
    assert attrs["simulations"] == 20_000 == int(run["simulations"].sum())
    assert attrs["tolerance"] == float(run["final_tolerance"])
    weighted = found["weighted_posterior"]
    w = np.exp(weighted["log_weight"].values.ravel())
    assert attrs["effective_draws"] == pytest.approx(w.sum() ** 2 / (w @ w))
    assert attrs["unique_draws"] <= int(run["accepted"]) == len(w)
    assert (weighted["distance"] <= attrs["tolerance"]).all()
    assert np.isinf(run["tolerance"][0]) and (np.diff(run["tolerance"][1:]) <= 0.0).all()


def test_draws_are_those_of_the_simulations(model, found):
    copied = sample(model, max_simulations=20_000, smooth=False)
    assert copied["posterior"].attrs["smoothing"] == "none"
    stats_, weighted = copied["sample_stats"], copied["weighted_posterior"]
    xr.testing.assert_equal(stats_["simulation"], found["sample_stats"]["simulation"])
    distance = dict(
        zip(weighted["mu"].values[0, :, 0], weighted["distance"].values[0], strict=True)
    )
    for mu, d in zip(
        copied["posterior"]["mu"].values[0, :50, 0], stats_["distance"].values[0], strict=False
    ):
        assert distance[mu] == d


def test_draws_are_smooth(found):
    mu, attrs = found["posterior"]["mu"].values.reshape(-1, 2), found["posterior"].attrs
    assert attrs["smoothing"] in ("normal", "local normal") and attrs["smoothing_bandwidth"] > 0.0
    assert len(np.unique(mu, axis=0)) == len(mu) > 2 * attrs["unique_draws"]
    np.testing.assert_allclose(found["posterior"]["gap"].values.ravel(), mu[:, 1] - mu[:, 0])
    mean = found["estimates"]["mu"].sel(statistic="mean").values
    weighted = found["weighted_posterior"]
    w = np.exp(weighted["log_weight"].values[0])
    at = weighted["mu"].values[0]
    sd = np.sqrt(np.average((at - mean) ** 2, axis=0, weights=w))
    # Draws scatter by sampling: 4,000 of them, and of simulations, of which chains hold a part each.
    np.testing.assert_allclose(mu.mean(axis=0), mean, atol=4.0 * sd.max() / math.sqrt(1000.0))
    np.testing.assert_allclose(mu.std(axis=0), sd, rtol=0.1)


def test_discrete_parameters_are_not_smoothed():
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        pm.Simulator("y", count, k, epsilon=1.0, observed=[3.0])
    found = sample(model, max_simulations=2000)
    assert found["posterior"].attrs["smoothing"] == "none"
    assert (found["posterior"]["k"] % 1 == 0).all()


def count(rng, k, size):
    return rng.normal(k, 0.5, size=size)


@pytest.mark.parametrize("sampler", [amc.sample_abc_tree, amc.sample_abc_rejection])
def test_a_problem_is_no_number_of_draws(sampler):
    with pytest.raises(TypeError, match=r"got a SimulatorProblem; pass it as model="):
        sampler(PROBLEM, max_simulations=1000)
    with pytest.raises(TypeError, match=r"got a Model; pass it as model="):
        sampler(pm.Model(), max_simulations=1000)


def test_smooth_is_true_or_false():
    with pytest.raises(TypeError, match="smooth"):
        sample(smooth="yes")


def test_chains_share_no_simulation(found):
    chains = [set(c) for c in found["sample_stats"]["simulation"].values]
    assert all(not a & b for i, a in enumerate(chains) for b in chains[:i])


def test_the_posterior_of_a_model(found):
    n = found["posterior"].attrs["effective_draws"]
    w = np.exp(found["weighted_posterior"]["log_weight"].values[0])
    mu = found["weighted_posterior"]["mu"].values[0]
    sd = SD  # at least; wider by the tolerance
    error = 1.3 * sd / math.sqrt(n)
    np.testing.assert_allclose(np.average(mu, axis=0, weights=w), [DATA, -DATA], atol=4.0 * error)


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "options",
    [
        {},
        slow({"proposal": amc.TreeProposal(partition="cart")}),
        slow({"proposal": amc.TreeProposal(partition="dyadic", utility="efficiency")}),
        slow({"proposal": amc.TreeProposal(utility="posterior")}),
        slow({"proposal": amc.TreeProposal(utility="kl")}),
        slow({"proposal": amc.TreeProposal(rates="draw", honest=True, window=4)}),
        slow({"proposal": amc.TreeProposal(rotate=False, local=False)}),
        slow({"tolerance_schedule": 0.8}),
        slow({"batch_size": 300}),
        {"sampler": amc.sample_abc_rejection},
    ],
    ids=lambda options: ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items()),
)
@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_moments(options):
    """Over seeds, for a run that has seen no simulation of a tail does not know how wrong it is."""
    mean, sd = known(TOLERANCE)
    errors = []
    for seed in range(20):
        found = sample(tolerance=TOLERANCE, **{**options, "random_seed": seed})
        weighted, posterior = found["weighted_posterior"], found["posterior"]
        assert posterior.attrs["tolerance"] == TOLERANCE
        w, mu = (weighted[k].values.ravel() for k in ("log_weight", "mu"))
        w = np.exp(w) / np.exp(w).sum()
        drawn = posterior["mu"].values.mean()
        prior = float(found["abc"]["prior_acceptance"]) - 2.0 * TOLERANCE / 10.0
        errors.append([w @ mu - mean, w @ (mu - mean) ** 2 - sd**2, drawn - mean, prior])
    for x in np.transpose(errors):
        assert abs(x.mean()) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))


def test_step_posterior(found):
    steps = found["step_posterior"]
    assert float(steps["mass"].sum()) == pytest.approx(1.0)
    volumes = (steps["upper"] - steps["lower"]).prod("coordinate")
    assert float(volumes.sum()) == pytest.approx(1.0)
    theta = steps["theta_upper"] - steps["theta_lower"]
    np.testing.assert_allclose(theta.prod("coordinate") / 100.0, volumes, rtol=1e-6)
    assert list(steps.coords["coordinate"].values) == ["mu[0]", "mu[1]"]
    middle = 0.5 * (steps["theta_lower"] + steps["theta_upper"])
    mean = (middle * steps["mass"]).sum("box")
    np.testing.assert_allclose(mean, [DATA, -DATA], atol=0.3)


def equal(first, second):
    for group in ("posterior", "sample_stats", "weighted_posterior"):
        xr.testing.assert_equal(first[group].to_dataset(), second[group].to_dataset())


def test_seeds():
    first, again, other = (sample(random_seed=s) for s in (5, 5, 6))
    equal(first, again)
    assert not np.array_equal(first["posterior"]["mu"], other["posterior"]["mu"])


@pytest.mark.parametrize("batched", [True, False])
def test_cores_change_nothing(batched):
    options = {"batched": batched, "random_seed": 2}
    equal(sample(**options), sample(cores=2, **options))


def test_a_model_in_worker_processes(model):
    options = {"max_simulations": 400, "batched": False}
    found = []
    for cores in (1, 2):
        with pytest.warns(UserWarning):
            found.append(sample(model, cores=cores, **options))
    equal(*found)


def test_the_model_of_the_context(model):
    with model, pytest.warns(UserWarning):
        amc.sample_abc_rejection(max_simulations=200, batched=True, progressbar=False)
    with pytest.raises(TypeError, match="model is missing"):
        amc.sample_abc_tree(max_simulations=200)


def test_all_simulations_on_request():
    found = sample(keep_simulations=True)["simulations"]
    assert found.sizes["simulation"] == BUDGET
    assert abs(np.exp(found["log_weight"].values[:100]).mean() - 1.0) < 1e-12
    assert "simulations" not in sample()


BAD = [
    ({"draws": 0}, "draws must be at least 1"),
    ({"draws": 1.5}, "draws must be an integer"),
    ({"chains": 0}, "chains must be at least 1"),
    ({"max_simulations": 0}, "max_simulations must be at least 1"),
    ({"max_simulations": 1e4}, "max_simulations must be an integer"),
    ({"batch_size": 9000}, "max_simulations=8000 is less than a batch, batch_size=9000"),
    ({"proposal": "cart"}, r"proposal must be an amc_pymc\.TreeProposal, got 'cart'"),
    ({"proposal": None}, r"proposal must be an amc_pymc\.TreeProposal, got None"),
    ({"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
    ({"tolerance": math.nan}, "tolerance must be positive and finite, got nan"),
    ({"tolerance": "small"}, "tolerance must be a number or None"),
    ({"tolerance_schedule": "fast"}, "tolerance_schedule must be 'quantile' or a factor"),
    ({"tolerance_schedule": 1.0}, "tolerance_schedule must be between 0 and 1, got 1.0"),
    ({"tolerance_schedule": None}, "tolerance_schedule must be"),
    ({"accepts_per_round": 0}, "accepts_per_round must be at least 1"),
    ({"adjust": "cubic"}, "adjust must be one of 'linear', .* got 'cubic'"),
    ({"exchangeable": 1, "adjust": "auto"}, "exchangeable must be .* got 1"),
    ({"exchangeable": True}, "exchangeable=True changes nothing without adjust="),
    ({"distance_scale": "learnt"}, "distance_scale must be one of 'mad', 'whiten', 'learned'"),
    ({"max_time": -1}, "max_time must be positive"),
    ({"min_acceptance": 2.0}, "min_acceptance must be between 0 and 1, got 2.0"),
    ({"simulation_timeout": 0}, "simulation_timeout must be positive"),
    ({"simulation_timeout": 1.0, "batched": True}, "timeout"),
    ({"cores": 0}, "cores must be at least 1"),
    ({"model": "model"}, "model must be a pm.Model"),
    ({"random_seed": "one"}, "random_seed"),
    ({"checkpoint": 3}, "checkpoint must be a path"),
    ({"batched": "no"}, "batched must be .* got 'no'"),
    ({"keep_simulations": 1}, "keep_simulations must be .* got 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(o) for o, _ in BAD])
def test_bad_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sample(**options)


def test_no_simulator():
    with pm.Model() as plain:
        pm.Normal("x")
    with pytest.raises(ValueError, match=r"no pm\.Simulator"):
        sample(plain)


def failing(rng, mu):
    if mu > 2.0:
        raise ValueError("no solution")
    return rng.normal(mu, SD) if mu > -3.0 else math.nan


def test_failures_are_counted_and_told():
    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, failing, DATA)
    with pytest.warns(UserWarning) as caught:
        found = sample(problem, batched=False, smooth=False)
    text = next(str(w.message) for w in caught if "failed" in str(w.message))
    assert "raised ('ValueError: no solution', first at mu=" in text and "returned nan" in text
    assert int(found["abc"]["n_failed"]) == int(found["abc"]["failed"].sum()) > 100
    assert float(found["posterior"]["mu"].max()) <= 2.0


def test_all_fail():
    def broken(rng, mu):
        raise RuntimeError("out of order")

    problem = amc.SimulatorProblem({"mu": stats.norm()}, broken, DATA)
    with pytest.raises(ValueError, match="RuntimeError: out of order"):
        sample(problem, batched=False)


@pytest.mark.filterwarnings("ignore:Likelihood-free inference. the tolerance")
def test_few_effective_draws_are_told():
    with pytest.warns(UserWarning, match="independent draws"):
        sample(max_simulations=300)


def test_a_tolerance_out_of_reach_is_told(model):
    with pytest.warns(UserWarning, match="above 1 that is asked for"):
        sample(model, sampler=amc.sample_abc_rejection)


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


def test_ctrl_c_keeps_what_there_is():
    with pytest.warns(UserWarning) as caught:
        found = sample(interrupted(12))
    assert any("was interrupted after" in str(w.message) for w in caught)
    done = found["posterior"].attrs["simulations"]
    assert 0 < done < BUDGET and done == int(found["abc"]["simulations"].sum())


def test_ctrl_c_before_anything_was_done():
    with pytest.raises(KeyboardInterrupt):
        sample(interrupted(2))


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    whole = sample(interrupted(-1))
    with pytest.warns(UserWarning):
        part = sample(interrupted(12), checkpoint=tmp_path / "run")
    assert part["posterior"].attrs["simulations"] < BUDGET
    equal(sample(interrupted(-1), checkpoint=tmp_path / "run"), whole)
    with pytest.raises(ValueError, match="another run"):
        sample(interrupted(-1), checkpoint=tmp_path / "run", tolerance=0.3)


def test_limits():
    with pytest.warns(UserWarning) as caught:
        found = sample(min_acceptance=0.9)
    assert any("min_acceptance=0.9" in str(w.message) for w in caught)
    assert found["posterior"].attrs["simulations"] < BUDGET
    with pytest.warns(UserWarning) as caught:
        found = sample(max_time=1e-6)
    assert any("max_time=1e-06 s was over" in str(w.message) for w in caught)
    assert len(found["abc"]["round"]) == 1


def test_a_slow_simulation_is_left_out():
    def slow(rng, mu):
        if 3.0 < mu < 3.05:
            time.sleep(30)
        return rng.normal(mu, SD)

    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, slow, DATA)
    with pytest.warns(UserWarning, match="independent draws"):
        found = sample(problem, batched=False, max_simulations=1000, simulation_timeout=0.1)
    assert 0 < int(found["abc"]["n_failed"]) < 50


SCRIPT = """
    import sys, time
    import numpy as np
    from scipy import stats
    import amc_pymc as amc

    def simulator(rng, mu):
        time.sleep(float(sys.argv[2]))
        return rng.normal(mu, 0.5, size=mu.shape)

    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, simulator, 1.5)
    found = amc.sample_abc_tree(
        max_simulations=3000, batched=True, model=problem, random_seed=3, progressbar=False,
        checkpoint=sys.argv[1] + "/run",
    )
    print(repr(found["posterior"]["mu"].values.sum()))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(tmp_path):
    (again, whole), done, n = killed_and_whole(SCRIPT, tmp_path)
    assert again == whole != ""
    assert 3 <= done < n


@pytest.mark.parametrize("sampler", [amc.sample_abc_tree, amc.sample_abc_rejection])
@pytest.mark.parametrize("batched", [True, slow(False)])
def test_linear_adjustment(sampler, batched):
    """Of a normal mean with a normal prior regression makes the posterior at tolerance zero."""
    problem = amc.SimulatorProblem({"mu": stats.norm(0.0, 1.0)}, one_normal, DATA)
    found = sample(problem, sampler, adjust="linear", batched=batched)
    variance = 1.0 / (1.0 + 1.0 / SD**2)
    mean, n = variance * DATA / SD**2, found["posterior"].attrs["effective_draws"]
    weighted = found["weighted_posterior"]
    w, mu = np.exp(weighted["log_weight"].values[0]), weighted["mu"].values[0]
    assert abs(np.average(mu, weights=w) - mean) < 4.0 * math.sqrt(variance / n)
    spread = np.average((mu - mean) ** 2, weights=w)
    assert abs(spread / variance - 1.0) < 4.0 * math.sqrt(2.0 / n)
    plain = sample(problem, sampler, batched=batched)
    assert n > plain["posterior"].attrs["effective_draws"]


def test_step_density(found):
    density = amc.step_density(found)
    rng = np.random.default_rng(3)
    u = rng.random((50_000, 2))
    values = density.cube(u)
    assert abs(values.mean() - 1.0) < 4.0 * values.std() / math.sqrt(len(u))
    theta = 10.0 * u - 5.0
    np.testing.assert_allclose(
        density.ratio({"mu[0]": theta[:, 0], "mu[1]": theta[:, 1]}), values, rtol=1e-9
    )
    assert (density.ratio({"mu[0]": [-5.0, 5.0, 5.1], "mu[1]": [-5.0, 5.0, 0.0]})[2:] == 0.0).all()
    assert density.cube(np.array([[1.0, 1.0]])) >= 0.0
    with pytest.raises(ValueError, match=r"lacks mu\[1\]"):
        density.ratio({"mu[0]": theta[:, 0]})
    with pytest.raises(ValueError, match=r"shape \(n, 2\)"):
        density.cube(u[:, :1])
    with pytest.raises(ValueError, match="no group 'step_posterior'"):
        amc.step_density(xr.DataTree())
    with pytest.raises(TypeError, match="DataTree"):
        amc.step_density(found["posterior"].to_dataset())


class TestDistanceScale:
    """Two statistics of a normal mean: a useful one of scale 1/1000, and noise of scale 1000."""

    OBSERVED = (0.0015, 0.0)

    @staticmethod
    def simulator(rng, mu):
        useful = rng.normal(mu, 0.5) / 1000.0
        return np.stack([useful, 1000.0 * rng.standard_normal(np.shape(mu))], axis=-1)

    def problem(self, **options):
        return amc.SimulatorProblem(
            {"mu": stats.uniform(-5.0, 10.0)}, self.simulator, self.OBSERVED, **options
        )

    def test_it_is_the_distance_in_the_units_of_the_pilot(self):
        found = sample(self.problem(), distance_scale="mad")
        scale = found["abc"]["summary_scale"].values

        def distance(simulated, observed):
            return np.sqrt((((simulated - observed) / scale) ** 2).sum(axis=-1))

        by_hand = sample(self.problem(distance=distance))
        # Sums of squares are rounded differently, which changes no draw.
        np.testing.assert_array_equal(found["posterior"]["mu"], by_hand["posterior"]["mu"])
        np.testing.assert_allclose(
            found["weighted_posterior"]["distance"], by_hand["weighted_posterior"]["distance"]
        )
        assert found["posterior"].attrs["distance_scale"] == "mad"

    @pytest.mark.parametrize("name", ["mad", "whiten"])
    def test_the_useful_statistic_is_heard(self, name):
        found = sample(self.problem(), distance_scale=name)["posterior"]
        with pytest.warns(UserWarning, match="may shift posterior means"):
            deaf = sample(self.problem())["posterior"]
        assert abs(float(found["mu"].mean()) - DATA) < 0.5 and float(found["mu"].std()) < 1.0
        assert float(deaf["mu"].std()) > 2.0

    def test_a_model_whose_epsilon_no_longer_counts(self, model):
        found = sample(model, distance_scale="mad")
        assert found["posterior"].attrs["tolerance"] < 0.2
        assert found["abc"]["summary_scale"].shape == (2,)
        assert "summary_root" in sample(model, distance_scale="whiten")["abc"]
        given = sample(model, distance_scale="mad", tolerance=0.5)
        assert given["posterior"].attrs["tolerance"] == 0.5

    def test_with_adjustment_and_by_rejection(self):
        found = sample(self.problem(), distance_scale="mad", adjust="linear")
        assert abs(float(found["posterior"]["mu"].mean()) - DATA) < 0.3
        plain = sample(self.problem(), amc.sample_abc_rejection, distance_scale="mad")
        assert abs(float(plain["posterior"]["mu"].mean()) - DATA) < 0.5

    def test_a_run_from_a_checkpoint(self, tmp_path):
        options = {"distance_scale": "whiten", "random_seed": 4}
        whole = sample(self.problem(), **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            part = sample(self.problem(), checkpoint=tmp_path / "run", max_time=1e-9, **options)
        assert part["abc"].sizes["round"] == 1
        again = sample(self.problem(), checkpoint=tmp_path / "run", **options)
        np.testing.assert_array_equal(whole["posterior"]["mu"], again["posterior"]["mu"])
        with pytest.raises(ValueError, match="distance_scale"):
            sample(self.problem(), checkpoint=tmp_path / "run", random_seed=4)

    def test_a_statistic_that_does_not_vary_is_told(self):
        problem = amc.SimulatorProblem(
            {"mu": stats.uniform(-5.0, 10.0)},
            lambda rng, mu: np.stack([rng.normal(mu, SD), np.ones(np.shape(mu))], axis=-1),
            [DATA, 2.0],
        )
        with pytest.warns(UserWarning, match="statistics 1 of 2 did not vary"):
            found = sample(problem, distance_scale="mad")
        assert "did not vary" in found["abc"].attrs["flags"]
        assert abs(float(found["posterior"]["mu"].mean()) - DATA) < 0.3

    def test_errors(self):
        with pytest.raises(
            ValueError, match="distance_scale must be one of 'mad', 'whiten', 'learned', got 'sd'"
        ):
            sample(self.problem(), distance_scale="sd")
        with pytest.raises(ValueError, match="first batch of 30 simulations at least, it has 20"):
            sample(self.problem(), distance_scale="mad", batch_size=20)


# --- a checkpoint is of one problem ---------------------------------------------------------------


def a_model(epsilon=0.4, known=(1.0, 2.0), sd=SD, low=-2.0):
    with pm.Model() as model:
        mu = pm.Uniform("mu", -5.0, 5.0)
        pm.Potential("not far below", pm.math.switch(mu < low, -np.inf, 0.0))
        x = pm.Data("x", known)
        fn = lambda rng, mean, size: rng.normal(mean, sd, size=size)  # noqa: E731
        pm.Simulator("y", fn, mu * x, epsilon=epsilon, observed=[DATA, 2.0 * DATA])
    return model


@pytest.mark.parametrize(
    "other",
    [
        lambda: a_model(epsilon=0.3),
        lambda: a_model(known=[-1.0, 2.0]),
        lambda: a_model(sd=0.6),
        lambda: a_model(low=-1.0),
    ],
    ids=["epsilon", "data", "simulator", "potential"],
)
def test_a_checkpoint_of_another_model(other, tmp_path):
    options = {"max_simulations": 1000, "checkpoint": tmp_path / "run"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = sample(a_model(), **options)
        equal(sample(a_model(), **options), whole)
    with pytest.raises(
        ValueError, match=r"is of another run: (a trial of simulator|prior density)"
    ):
        sample(other(), **options)


def test_a_checkpoint_of_another_distance(tmp_path):
    options = {"checkpoint": tmp_path / "run"}

    def problem(distance):
        prior = {"mu": (stats.uniform(-5.0, 10.0), 2)}
        return amc.SimulatorProblem(prior, one_normal, [DATA, DATA], distance=distance)

    sample(problem("euclidean"), **options)
    with pytest.raises(ValueError, match="a trial of simulator, summaries, distance and epsilon"):
        sample(problem("manhattan"), **options)


def test_a_simulator_with_random_numbers_of_its_own(tmp_path):
    own = np.random.default_rng(1)
    problem = amc.SimulatorProblem(
        {"mu": stats.uniform(-5.0, 10.0)}, lambda rng, mu: own.normal(mu, SD), DATA
    )
    with pytest.warns(UserWarning, match="does not take all its random numbers"):
        found = sample(problem, checkpoint=tmp_path / "run")
    assert "random numbers" in found["abc"].attrs["flags"]
    with pytest.warns(UserWarning, match="does not take all its random numbers"):
        again = sample(problem, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(found["posterior"]["mu"], again["posterior"]["mu"])


def test_a_partition_of_ones_own_with_a_checkpoint(tmp_path):
    def made():
        def halves(u, kernel_values, before, rng):
            return from_cuts([(0, 0, 0.5)], n_dim=1)

        return halves

    options = {"checkpoint": tmp_path / "run"}
    whole = sample(proposal=amc.TreeProposal(partition=made()), **options)
    equal(sample(proposal=amc.TreeProposal(partition=made()), **options), whole)
    with pytest.raises(ValueError, match="learner differs"):
        sample(proposal=amc.TreeProposal(partition="cart"), **options)


# --- names and numbers of draws -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("distance", {}), ("round", {}), ("draw", {}), ("u", {"keep_simulations": True})],
)
def test_variables_that_are_called_as_results_are(name, options):
    problem = amc.SimulatorProblem(
        {name: stats.uniform(-5.0, 10.0)}, lambda rng, **given: rng.normal(given[name], SD), DATA
    )
    with pytest.raises(ValueError, match=f"a variable is called '{name}'"):
        sample(problem, **options)
    if name == "u":
        assert sample(problem)["posterior"]["u"].shape == (4, 1000)


@pytest.mark.parametrize("accepts", [40, 1000, 3000])
def test_rejection_accepts_as_many_as_it_is_told(accepts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sample(sampler=amc.sample_abc_rejection, accepts=accepts)
    assert int(found["abc"]["accepted"]) == accepts
