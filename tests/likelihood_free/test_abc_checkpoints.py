"""Checkpoints of likelihood-free samplers: resuming, and runs of other problems."""

import shutil
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from tests.likelihood_free.abc_runs import BUDGET, DATA, SD, equal, interrupted, rejection, sample
from tests.runs.killed import killed_and_whole

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")


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


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    whole = sample(interrupted(-1))
    with pytest.warns(UserWarning):
        part = sample(interrupted(12), checkpoint=tmp_path / "run")
    assert part["posterior"].attrs["simulations"] < BUDGET
    equal(sample(interrupted(-1), checkpoint=tmp_path / "run"), whole)
    with pytest.raises(ValueError, match="another run"):
        sample(interrupted(-1), checkpoint=tmp_path / "run", tolerance=0.3)


@pytest.mark.parametrize("mode", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_finished_run_goes_on_with_a_larger_budget(mode, tmp_path):
    options = {"checkpoint": tmp_path / "run"}
    if mode:
        options |= {"sampler": amc.find_MAP_tree, "return_raw": True}

    def result(problem, folder, budget=BUDGET):
        options["checkpoint"] = tmp_path / folder
        found = sample(problem, max_simulations=budget, **options)
        return found[1]["mode"] if mode else found["posterior"]

    result(interrupted(-1), "run", 2000)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    whole = result(interrupted(-1), "run")
    assert whole.attrs["simulations"] == BUDGET - 126
    assert abs(whole["mu"].mean() - DATA) < 0.15
    with pytest.warns(UserWarning, match="interrupted"):
        result(interrupted(9), "again")
    xr.testing.assert_equal(result(interrupted(-1), "again").to_dataset(), whole.to_dataset())
    with pytest.raises(ValueError, match=r"max_simulations=2000 is too small: .*again' has 7,874"):
        result(interrupted(-1), "again", 2000)


def test_a_continued_run_of_equal_batches_is_that_of_the_larger_budget(tmp_path):
    options = {"proposal": amc.TreeProposal(batch_size=500)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample(max_simulations=1126, checkpoint=tmp_path / "run", **options)
        continued = sample(max_simulations=2126, checkpoint=tmp_path / "run", **options)
        whole = sample(max_simulations=2126, **options)
    assert continued["posterior"].attrs["simulations"] == 2000
    equal(continued, whole)


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


OWN = np.random.default_rng(1)


@pytest.mark.filterwarnings("ignore:Likelihood-free inference. the tolerance")  # by chance
@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (OWN.normal, amc.sample_abc_tree),
        (np.random.normal, rejection),
        (stats.norm.rvs, amc.find_MAP_tree),
    ],
)
def test_a_simulator_with_random_numbers_of_its_own(noise, sampler, tmp_path):
    np.random.seed(1)
    problem = amc.SimulatorProblem(
        {"mu": stats.uniform(-5.0, 10.0)}, lambda rng, mu: noise(mu, SD), DATA
    )
    options = {"sampler": sampler, "max_simulations": 1000}
    with pytest.warns(UserWarning, match="does not take all its random numbers"):
        found = sample(problem, checkpoint=tmp_path / "run", **options)
    with pytest.warns(UserWarning, match="does not take all its random numbers"):
        again = sample(problem, checkpoint=tmp_path / "run", **options)
    if sampler is not amc.find_MAP_tree:
        assert "not_reproducible" in found["abc"].attrs["flag_names"]
        found, again = found["posterior"], again["posterior"]
    np.testing.assert_array_equal(found["mu"], again["mu"])


def test_worker_processes_do_not_repeat_global_random_numbers():
    def simulator(rng, mu):
        return np.random.normal(mu, SD)

    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, simulator, DATA)
    with pytest.warns(UserWarning, match="worker processes may repeat each other's noise"):
        found = sample(
            problem, max_simulations=1000, batched=False, cores=2,
            sampler=rejection,
        )["simulations"]  # fmt: skip
    noise = found["summaries"][:, 0] - found["mu"]
    assert len(np.unique(noise.round(9))) == 994


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(tmp_path):
    (again, whole), done, n = killed_and_whole(SCRIPT, tmp_path)
    assert again == whole != ""
    assert 3 <= done < n
