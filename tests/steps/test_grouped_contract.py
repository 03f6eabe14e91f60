"""What PyMC asks of a step method, where local effects are integrated out."""

import numpy as np
import pymc as pm
import pytensor
import pytest

from grouped_runs import assert_agree, example, racing, sample
from steps.conftest import assert_same

from amc_pymc.reading.graphs import initial_point_of
from amc_pymc.steps.preparation import Options, chosen_factor
from models.grouped import PRIOR_SD
from models.grouped_gaussian import gaussian_reference

SIZE = (300, 30)
SHORT = {"draws": 60, "tune": 60}


@pytest.fixture(scope="module")
def labelled():
    """Gaussian rows with mutable data, coords and dims; ``effect`` begins at one."""
    data, _ = example("gaussian", *SIZE)
    coords = {"place": [f"p{g}" for g in range(SIZE[1])], "column": ["one", "a", "b"]}
    with pm.Model(coords=coords) as model:
        X, index, y = (
            pm.Data(n, v)
            for n, v in (("X", data.X), ("index", data.groups["group"]), ("y", data.y))
        )
        beta = pm.Normal("beta", 0, 2, dims="column")
        sd = pm.HalfNormal("sd", 1, initval=0.5)
        effect = pm.Normal("effect", 0, sd, dims="place", initval=np.ones(SIZE[1]))
        pm.Deterministic("largest", effect.max())
        pm.Normal(
            "obs", X @ beta + effect[index], pm.HalfNormal("sigma", 1), observed=y, shape=y.shape
        )
    return model


@pytest.fixture(scope="module")
def step(labelled):
    return racing(labelled)


@pytest.fixture(scope="module")
def reference(labelled, step):
    return sample(labelled, step, **SHORT)


# --- draws ----------------------------------------------------------------------------------------


def test_the_seed_decides(labelled, step, reference):
    assert_same(reference, sample(labelled, step, **SHORT))
    other = sample(labelled, step, seed=2, **SHORT)
    for name in ("sd", "effect"):
        one, two = reference.posterior[name].values, other.posterior[name].values
        assert np.mean(one == two) < 0.05
        assert np.mean(one[0] == one[1]) < 0.05


def test_parallel_chains_are_the_sequential_ones(labelled, step, reference):
    assert_same(reference, sample(labelled, step, cores=2, mp_ctx="fork", **SHORT))


# --- results --------------------------------------------------------------------------------------


def test_coords_and_dims(reference):
    assert reference.posterior["effect"].dims == ("chain", "draw", "place")
    assert reference.posterior["place"].values[-1] == "p29"
    largest = reference.posterior["effect"].max("place")
    np.testing.assert_allclose(reference.posterior["largest"], largest)


# --- some variables only --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "marginalize"),
    [
        (["beta", "sd_log__", "sigma_log__"], "auto"),  # another step moves the effects
        (["effect"], "auto"),  # nothing is left to race for
        (["beta", "sd_log__", "sigma_log__", "effect"], None),
    ],
)
def test_effects_that_are_not_integrated_out(labelled, names, marginalize):
    assert chosen_factor(labelled, names, Options(marginalize=marginalize)) is None


@pytest.mark.slow
def test_another_step_moves_a_population_parameter(compiled_by_pytensor):
    data, _ = example("gaussian", *SIZE)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, PRIOR_SD, shape=data.X.shape[1])
        effect = pm.Normal("group", 0.0, pm.HalfNormal("sd_group", 1.0), shape=SIZE[1])
        # PyTensor compiles a product with a matrix ten times as long.
        mean = (data.X * beta).sum(axis=1) + effect[data.groups["group"]]
        pm.Normal("obs", mean, pm.HalfNormal("sigma", 1.0), observed=data.y)
    others = [rv for rv in model.free_RVs if rv.name != "beta"]
    with model:
        step = racing(model, others)
        steps = [step, pm.Slice([model["beta"]])]
    assert step.prepared.densities.unit == "group"
    idata = sample(model, steps, 1_200)
    assert_agree(idata, {n: tuple(m) for n, m in gaussian_reference(data)[0].items()})


def test_shared_variables_that_change_are_refused():
    """Those of rows and those of the priors of groups, pm.Data or not."""
    level, x = pytensor.shared(np.zeros(30)), pytensor.shared(np.ones(300), name="x")
    with pm.Model() as model:
        u = pm.Normal("u", level, pm.HalfNormal("sd"), shape=30)
        mu = pm.Normal("mu", 0, 100, initval="prior")
        pm.Normal("obs", mu + x * u[np.arange(300) // 10], 1, observed=np.zeros(300))
    starts = [initial_point_of(model)["mu"] for _ in range(2)]
    assert starts[0] == starts[1] != 0.0  # although it is random
    step, rng = racing(model, marginalize=["u"]), np.random.default_rng(1)
    for variable, name in ((x, "x"), (level, "a shared variable")):
        old = variable.get_value()
        variable.set_value(old + 1.0)
        with pytest.raises(ValueError, match=rf"data .*\({name}\) have changed.*Make a new one"):
            step.setup_chain(rng, 5, 5)
        variable.set_value(old)
    step.setup_chain(rng, 5, 5)
