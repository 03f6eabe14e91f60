"""Choice among conjugate and one-parameter models whose evidence is known."""

import dataclasses
import functools
import signal
import time

from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy.special import logsumexp

import amc_pymc as amc
import amc_pymc.steps.product_space as module

N = 2_000
_data = np.random.default_rng(1)
X = _data.normal(size=N)
Y = _data.normal(0.05 + 0.03 * X, 1.0)
NAMES = ["mean", "scale", "line"]
QUIET = {"cores": 1, "progressbar": False}

#: Most runs here are short.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Product space. (the chains came|model .* was never)"
)


# --- models and what is known of them -------------------------------------------------------------


def mean_model(y=Y, centre=0.0, sd=0.1):
    with pm.Model() as model:
        mu = pm.Normal("mu", centre, sd)
        pm.Normal("obs", mu, 1, observed=y)
    return model


def scale_model():
    with pm.Model() as model:
        sigma = pm.Gamma("sigma", 20, 20)
        pm.Deterministic("variance", sigma**2)
        pm.Normal("obs", 0, sigma, observed=Y)
    return model


def line_model():
    with pm.Model(coords={"term": ["constant", "slope"]}) as model:
        beta = pm.Normal("beta", 0, 0.2, dims="term")
        pm.Deterministic("shifted", beta + 1.0, dims="term")
        pm.Normal("obs", beta[0] + beta[1] * X, 1, observed=Y)
    return model


def normal_log(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


def conjugate(design, centre, sd):
    """Posterior mean and covariance, and log evidence, of a regression with unit noise."""
    precision = design.T @ design + np.eye(design.shape[1]) / sd**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (design.T @ Y + centre / sd**2)
    # log p(y) = log p(y | b) + log p(b) - log p(b | y) at b = posterior mean
    evidence = normal_log(Y, design @ mean, 1.0).sum() + normal_log(mean, centre, sd).sum()
    evidence -= 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1]
    return mean, covariance, evidence


@functools.cache
def truth():
    """Posterior mean (D,), covariance (D, D) and log evidence by model."""
    out = {
        "mean": conjugate(np.ones((N, 1)), 0.0, 0.1),
        "line": conjugate(np.column_stack([np.ones(N), X]), 0.0, 0.2),
        "hopeless": conjugate(np.ones((N, 1)), 2.0, 0.1),
    }
    sigma = np.linspace(0.85, 1.15, 4_001)
    prior = 20 * np.log(20) + 19 * np.log(sigma) - 20 * sigma - np.log(np.arange(1, 20)).sum()
    joint = prior - N * np.log(sigma * np.sqrt(2 * np.pi)) - (Y**2).sum() / (2 * sigma**2)
    evidence = logsumexp(joint) + np.log(sigma[1] - sigma[0])
    p = np.exp(joint - logsumexp(joint))
    mean = (p * sigma).sum()
    out["scale"] = np.array([mean]), np.array([[(p * (sigma - mean) ** 2).sum()]]), evidence
    return out


def true_log_bf(names):
    evidence = np.array([truth()[n][2] for n in names])
    return evidence[:, None] - evidence[None, :]


@pytest.fixture(scope="module")
def models():
    return {"mean": mean_model(), "scale": scale_model(), "line": line_model()}


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Samplers of the same model and settings are prepared once for all tests here."""
    kept, original = {}, module._sampler

    def sampler(model, name, options):
        key = id(model), repr([options.observed_vars, options.race])
        if key not in kept:
            kept[key] = model, original(model, name, options)
        return dataclasses.replace(kept[key][1], race=options.race, audits=options.audits)

    patch = pytest.MonkeyPatch()
    patch.setattr(module, "_sampler", sampler)
    yield
    patch.undo()


def sample(models, **kwargs):
    settings = {"draws": 100, "tune": 100, "chains": 2, "random_seed": 1, **QUIET}
    return amc.sample_product_space(models, **{**settings, **kwargs})


@pytest.fixture(scope="module")
def normal_run(models):
    return sample(models, draws=2_000, tune=500)


@pytest.fixture(scope="module")
def short_run(models):
    return sample(models)


def assert_evidence(tree, names):
    found = tree["product_space"].to_dataset().sel(model=names, against=names)
    error = (found["log_bf"] - true_log_bf(names)).values
    off = ~np.eye(len(names), dtype=bool)
    assert np.all(found["log_bf_mcse"].values[off] > 0.0)
    assert np.all(found["log_bf_mcse"].values[off] < 0.2)
    assert np.all(np.abs(error[off]) < 4.0 * found["log_bf_mcse"].values[off])
    prior = found["prior_prob"].values
    prob = prior * np.exp(true_log_bf(names)[:, 0])
    prob /= prob.sum()
    assert np.all(np.abs(found["prob"] - prob) < 4.0 * found["prob_mcse"])
    assert found["prob"].sum() == pytest.approx(1.0)


def assert_same(a, b):
    xr.testing.assert_identical(
        a["posterior"].to_dataset().drop_attrs(), b["posterior"].to_dataset().drop_attrs()
    )
    for group in ("sample_stats", "product_space"):
        xr.testing.assert_equal(a[group].to_dataset(), b[group].to_dataset())
    for name in a["models"].children:
        mine, other = (t[f"models/{name}/posterior"].to_dataset() for t in (a, b))
        xr.testing.assert_equal(mine, other)


# --- probabilities and parameters -----------------------------------------------------------------


def test_bayes_factors_are_those_of_the_evidence(normal_run):
    assert_evidence(normal_run, NAMES)


@pytest.mark.slow
def test_exact_races_agree_and_compare_models_on_every_row(models):
    tree = sample(models, draws=1_000, tune=300, race="exact", random_seed=2)
    assert_evidence(tree, NAMES)
    rows = tree["sample_stats"]["race_rows"]
    assert np.all(rows.sel(step="index") == N)
    assert rows.sel(step="parameters").mean() < N  # most of these moves are decided by thinning
    assert amc.decision_error(tree).loc["all", "delta"] == 0.0


def null_model(mean, sd):
    """A model without parameters."""
    with pm.Model() as model:
        pm.Normal("obs", mean, sd, observed=Y)
        pm.Deterministic("constant", pm.math.constant(3.0))
    return model


def test_a_model_without_parameters_has_its_likelihood_as_evidence():
    """Also two of them, and its posterior holds the variables that it computes."""
    log_z = {"null": normal_log(Y, 0.05, 1.0).sum(), "zero": normal_log(Y, 0.0, 1.01).sum()}
    log_z["mean"] = truth()["mean"][2]
    given = {"null": null_model(0.05, 1.0), "mean": mean_model(), "zero": null_model(0.0, 1.01)}
    tree = sample(given, draws=1_500, tune=300)
    found = tree["product_space"].to_dataset()
    true = np.subtract.outer([log_z[n] for n in given], [log_z[n] for n in given])
    off = ~np.eye(3, dtype=bool)
    assert found.attrs["flag_names"] == ""
    assert np.all(found["log_bf_mcse"].values[off] < 0.15)
    error = (found["log_bf"].values - true)[off]
    assert np.all(np.abs(error) < 4.0 * found["log_bf_mcse"].values[off])
    np.testing.assert_allclose(
        found["laplace_log_evidence"], [log_z[n] for n in given], rtol=0, atol=1e-6
    )
    assert list(tree["models/null/posterior"].data_vars) == ["constant"]
    assert list(tree["models/mean/posterior"].data_vars) == ["mu"]


@pytest.mark.slow
def test_models_whose_coefficients_are_functions_of_parameters():
    """Rows are expanded in as many functions as there are columns, and models have fewer parameters."""
    columns = np.random.default_rng(2).normal(size=(N, 4))

    def model(shape):
        with pm.Model() as out:
            a, b = pm.Normal("a", 0.0, 0.1), pm.Normal("b", 0.0, 0.1)
            weights = pm.math.stack([shape(a + b * k) for k in range(4)])
            pm.Normal("obs", columns @ weights, 1.0, observed=Y)
        return out

    given = {"tanh": model(pm.math.tanh), "exp": model(lambda x: pm.math.exp(5.0 * x) - 1.0)}
    steps = [amc.RacingMetropolis(model=m, progressbar=False) for m in given.values()]
    assert all(s.prepared.surrogate.centre.size > 2 for s in steps)
    tree = sample(given, draws=2_000, tune=500)
    grid = np.linspace(-0.25, 0.25, 201)
    pairs = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 1, 2) @ [[1.0] * 4, range(4)]
    evidence = []
    for shape in (np.tanh, lambda x: np.exp(5.0 * x) - 1.0):
        rows = shape(pairs[:, 0]) @ columns.T
        joint = -0.5 * ((Y - rows) ** 2).sum(axis=1) - 50.0 * (
            pairs[:, 0, 0] ** 2 + (pairs[:, 0, 1] - pairs[:, 0, 0]) ** 2
        )
        evidence.append(logsumexp(joint))
    found = tree["product_space"].to_dataset().sel(model="tanh", against="exp")
    error = float(found["log_bf"]) - (evidence[0] - evidence[1])
    assert 0.0 < found["log_bf_mcse"] < 0.2
    assert abs(error) < 4.0 * found["log_bf_mcse"]
    assert abs(evidence[0] - evidence[1]) > 0.5


def test_adapted_weights_make_visits_even(normal_run):
    found = normal_run["product_space"].to_dataset()
    # The last gain, 1 / (1 + 500 / 100) = 0.17, makes weights fluctuate by about its root.
    share = found["visits"] / 2_000
    assert np.all(share > 0.33 * np.exp(-4 * np.sqrt(1 / 6)))
    assert np.all(found["round_trips"] > 100)
    np.testing.assert_allclose(np.exp(found["log_weight"]).sum("model"), 1.0)


@pytest.mark.parametrize(("name", "var"), [("mean", "mu"), ("scale", "sigma"), ("line", "beta")])
def test_parameters_follow_their_models_posterior(normal_run, name, var):
    mean, covariance, _ = truth()[name]
    draws = normal_run[f"models/{name}/posterior"][var]
    sd = np.sqrt(np.diag(covariance))
    summary = az.summary(normal_run[f"models/{name}"], var_names=[var], round_to="none")
    ess = 0.25 * summary["ess_bulk"].to_numpy(float)  # visits are repeated to fill (chain, draw)
    found = draws.mean(("chain", "draw")).values.reshape(-1)
    assert np.all(np.abs(found - mean) < 4.0 * sd / np.sqrt(ess))
    spread = draws.std(("chain", "draw")).values.reshape(-1)
    assert np.all(np.abs(spread / sd - 1.0) < 4.0 / np.sqrt(2.0 * ess))


# --- what is returned -------------------------------------------------------------------------------


def test_model_posteriors_hold_constrained_variables_with_dims(short_run):
    scale = short_run["models/scale/posterior"].to_dataset()
    assert set(scale.data_vars) == {"sigma", "variance"}
    np.testing.assert_allclose(scale["variance"], scale["sigma"] ** 2)
    assert np.all(np.abs(scale["sigma"] - 1.0) < 0.2)
    line = short_run["models/line/posterior"].to_dataset()
    assert set(line.data_vars) == {"beta", "shifted"}
    assert line["beta"].dims == ("chain", "draw", "term")
    assert line["term"].values.tolist() == ["constant", "slope"]
    np.testing.assert_allclose(line["shifted"], line["beta"] + 1.0)
    assert set(short_run["models/mean/posterior"].data_vars) == {"mu"}
    for name in NAMES:
        group = short_run[f"models/{name}/posterior"]
        assert (group.sizes["chain"], group.sizes["draw"]) == (2, 100)
        visits = short_run["product_space"]["visits"].sel(model=name)
        assert group.attrs["visits_per_chain"] == visits.values.tolist()


# --- models that are not visited ------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_hopeless(models):
    return {"mean": models["mean"], "hopeless": mean_model(centre=2.0), "line": models["line"]}


@pytest.fixture
def unadapted(monkeypatch):
    """Weights as if they had been tuned in vain."""
    monkeypatch.setattr(module, "_adapted_weights", lambda space, *_: np.zeros(len(space.samplers)))


@pytest.mark.usefixtures("unadapted")
def test_a_hopeless_model_that_is_never_visited(with_hopeless):
    with pytest.warns(UserWarning, match="Product space: model 'hopeless' was never visited"):
        tree = sample(with_hopeless, tune=50, prior_probs=[1, 1, 10], draws=500)
    assert "never_visited" in tree["product_space"].attrs["flag_names"]
    found = tree["product_space"].to_dataset()
    assert set(tree["models"].children) == {"mean", "line"}
    bad = found.sel(model="hopeless")
    assert np.all(bad["visits"] == 0)
    assert np.isnan(bad["prob"]) and np.isnan(bad["prob_mcse"])
    for table in (found["log_bf"], found["log_bf_mcse"]):
        assert np.all(np.isnan(table.sel(model="hopeless", against=["mean", "line"])))
        assert np.all(np.isnan(table.sel(against="hopeless", model=["mean", "line"])))
    assert found["prob"].sum() == pytest.approx(1.0)
    true = true_log_bf(["mean", "line"])[0, 1]
    gap = found.sel(model="mean", against="line")
    assert abs(gap["log_bf"] - true) < 4 * gap["log_bf_mcse"]


@pytest.mark.slow
def test_weights_reach_a_hopeless_model(with_hopeless):
    names = ["mean", "hopeless"]
    assert true_log_bf(names)[0, 1] > 100
    tree = sample({n: with_hopeless[n] for n in names}, draws=2_000, tune=300)
    assert_evidence(tree, names)


@pytest.mark.usefixtures("unadapted")
def test_a_chain_without_a_visit_borrows_the_others_draws(models):
    """Such a chain is said to have none in ``visits_per_chain``."""
    names = ["mean", "line"]
    for seed in range(5):
        tree = sample({n: models[n] for n in names}, tune=1, draws=6, chains=6, random_seed=seed)
        visits = tree["product_space"]["visits"].sel(model="line").values
        if visits.any() and not visits.all():
            break
    else:
        pytest.fail("no such run; draw more")
    group = tree["models/line/posterior"]
    assert group.attrs["visits_per_chain"] == visits.tolist()
    assert not np.isnan(group["beta"]).any()
    pool = group["beta"].values[visits > 0][..., 0].ravel()
    assert np.isin(group["beta"].values[visits == 0][..., 0], pool).all()


# --- audits -----------------------------------------------------------------------------------------


def wrong_indices(models, monkeypatch, spoil, **kwargs):
    original = module.gibbs.step

    def step(sampler, chain, *args, **kwargs):
        x, counts = original(sampler, chain, *args, **kwargs)
        log = chain.auditor.log
        if spoil and log.seen[0] and log.x.shape[0] >= log.seen[0]:
            log.outcome[log.seen[0] - 1] = (x[0] + 1) % 3
        return x, counts

    monkeypatch.setattr(module.gibbs, "step", step)
    audits = amc.Audits(50, max_share=None)
    stats = sample(models, chains=1, tune=20, audits=audits, **kwargs)["sample_stats"]
    counts = [stats[k].sel(step="index").sum() for k in ("race_wrong", "race_audited")]
    return [float(c) for c in counts]


def test_audits_find_wrong_index_decisions(models, monkeypatch):
    with pytest.warns(UserWarning, match="audited decisions were wrong about the index"):
        wrong, audited = wrong_indices(models, monkeypatch, spoil=True)
    assert audited == 50
    assert wrong >= 45
    monkeypatch.undo()
    wrong, audited = wrong_indices(models, monkeypatch, spoil=False)
    assert audited == 50
    assert wrong <= 8  # P(more than 8 of 50) is 0.0006 at an error of 0.05


# --- seeds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"cores": 2, "mp_ctx": "fork"}], ids=str)
def test_the_same_seed_draws_the_same(models, short_run, settings):
    assert_same(sample(models, **settings), short_run)


def test_another_seed_draws_others_and_chains_differ(models, short_run):
    index = short_run["posterior"]["model_index"].values
    mu = short_run["models/mean/posterior"]["mu"].values
    other = sample(models, random_seed=2)
    assert not np.array_equal(index, other["posterior"]["model_index"])
    assert not np.intersect1d(mu, other["models/mean/posterior"]["mu"].values).size
    assert not np.array_equal(index[0], index[1])


# --- runs that end early ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "draw", "shape"),
    [(0, 20, (1, 21)), (1, 20, (1, 100)), (1, 79, (2, 80))],
)
@pytest.mark.parametrize("by", ["user", "clock"])
def test_a_run_that_ends_early_keeps_most_of_its_draws(
    models, monkeypatch, short_run, by, chain, draw, shape
):
    seconds, original, states = [0.0], module.gibbs.step, []

    def count(sampler, state, *args, tuning):
        found = original(sampler, state, *args, tuning=tuning)
        if not tuning:
            states.append(state)
            here = sum(s is state for s in states) - 1
            if (len({id(s) for s in states}) - 1, here) == (chain, draw):
                seconds[0] = 11.0 if by == "clock" else 0.0
                if by == "user":
                    signal.raise_signal(signal.SIGINT)
        return found

    clock = SimpleNamespace(time=lambda: seconds[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module.gibbs, "step", count)
    message = {"user": "interrupted by the user", "clock": "the time limit max_time=10 s was over"}
    with pytest.warns(UserWarning, match=f"Product space: {message[by]}"):
        tree = sample(models, max_time=10)
    assert len({id(s) for s in states}) == chain + 1
    index = tree["posterior"]["model_index"].values
    expected = short_run["posterior"]["model_index"].values[: shape[0], : shape[1]]
    np.testing.assert_array_equal(index, expected)
    assert tree["product_space"]["visits"].sum() == shape[0] * shape[1]


def test_ctrl_c_while_tuning_has_nothing_to_return(models, monkeypatch):
    original = module.ps.wang_landau_step

    def step(log_weights, visited, t):
        original(log_weights, visited, t)
        if t == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module.ps, "wang_landau_step", step)
    with pytest.raises(KeyboardInterrupt, match="before a draw"):
        sample(models)


# --- bad input ----------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch):
    """Errors must come before anything is compiled."""

    def sampler(*args):
        raise AssertionError("a model was taken apart")

    monkeypatch.setattr(module, "_sampler", sampler)


def discrete_model():
    with pm.Model() as model:
        k = pm.Poisson("k", 3)
        pm.Normal("obs", k, 1, observed=Y)
    return model


def no_rows_model():
    with pm.Model() as model:
        pm.Normal("mu")
    return model


def two_observed(a, b):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("a", mu, 1, observed=a)
        pm.Normal("b", mu, 1, observed=b)
    return model


def shared_model(y):
    with pm.Model() as model:
        data = pm.Data("y", y)
        pm.Normal("obs", pm.Normal("mu", 0, 1), 1, observed=data)
    return model


CHANGED = np.where(np.arange(N) == 17, 0.0, Y)
PAIR = {"a": mean_model(), "b": mean_model(sd=1.0)}


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ({}, ValueError, "at least two models, got 0"),
        ({"a": PAIR["a"]}, ValueError, "at least two models, got 1"),
        (list(PAIR.values()), TypeError, "models must be a dict of name -> pm.Model, got list"),
        ({**PAIR, "c": 3}, TypeError, r"models\['c'\] must be a pm.Model, got int"),
        ({**PAIR, "c/d": PAIR["a"]}, ValueError, "names without '/', got 'c/d'"),
        ({**PAIR, 3: PAIR["a"]}, ValueError, "strings as names, names without '/', got 3"),
        ({**PAIR, "c": discrete_model()}, ValueError, r"models\['c'\] has discrete variables \(k\)"),
        ({**PAIR, "c": no_rows_model()}, ValueError, r"models\['c'\]: .*no observed variable"),
        ({**PAIR, "c": mean_model(Y[:-1])}, ValueError, r"'c'\] has other observed data than .*'a'\]"),
        ({**PAIR, "c": mean_model(CHANGED)}, ValueError, r"'c'\] has other observed data than .*'a'\]"),
        ({**PAIR, "c": two_observed(Y, Y)}, ValueError, "same rows"),
        ({"a": two_observed(Y, X), "b": two_observed(X, Y)}, ValueError, "same rows"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_compared(no_work, models, error, message):
    with pytest.raises(error, match=message):
        sample(models)


def test_data_objects_and_constants_are_the_same_rows():
    found = sample({"a": shared_model(Y), "b": mean_model()}, draws=5, tune=0)
    assert found["posterior"].sizes["draw"] == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prior_probs": [1.0]}, ValueError, r"prior_probs must hold 2 positive numbers, got \[1.0\]"),
        ({"prior_probs": [1.0, 0.0]}, ValueError, "leave out models that are impossible"),
        ({"prior_probs": [1.0, float("nan")]}, ValueError, "positive numbers, got .*nan"),
        ({"prior_probs": {"a": 1.0, "c": 1.0}}, ValueError, r"keys \['a', 'b'\], got \['a', 'c'\]"),
        ({"draws": 0}, ValueError, "draws must be at least 1, got 0"),
        ({"tune": -1}, ValueError, "tune must be at least 0, got -1"),
        ({"chains": 0}, ValueError, "chains must be at least 1, got 0"),
        ({"cores": 0}, ValueError, "cores must be at least 1, got 0"),
        ({"cores": 2, "mp_ctx": "thread"}, ValueError, "cannot find context for 'thread'"),
        ({"transitions_per_draw": 0}, ValueError, "transitions_per_draw must be at least 1, got 0"),
        ({"race": "fast"}, ValueError, "race must be .*got 'fast'"),
        ({"delta": 0.7}, ValueError, "delta must .*got 0.7"),
        ({"delta": 0.05, "race": amc.NormalRace(0.2)}, ValueError, "delta=0.05 has no meaning for race="),
        ({"batch_size": 0}, ValueError, "batch_size must .*got 0"),
        ({"max_time": 0}, ValueError, "max_time"),
        ({"audits": -1}, ValueError, "audits must be at least 0, got -1"),
        ({"random_seed": -1}, ValueError, "random_seed must not be negative, got -1"),
        ({"observed_vars": ["z"]}, ValueError, r"models\['a'\]: observed_vars names 'z'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named_before_any_work(no_work, arguments, error, message):
    with pytest.raises(error, match=message):
        sample(PAIR, **arguments)


def test_laplace_evidence_is_exact_where_the_posterior_is_normal(normal_run):
    found = normal_run["product_space"]["laplace_log_evidence"]
    for name in ("mean", "line"):
        assert float(found.sel(model=name)) == pytest.approx(truth()[name][2], abs=1e-6)
    assert float(found.sel(model="scale")) == pytest.approx(truth()["scale"][2], abs=0.05)


def test_parameters_are_those_of_the_steps_own_coordinates(normal_run):
    """Padding: a model of two parameters beside models of one."""
    draws = normal_run["models/line/posterior"]["beta"].values
    beta = np.concatenate([np.unique(chain, axis=0) for chain in draws])  # without repetitions
    correlation = np.corrcoef(beta.T)[0, 1]
    covariance = truth()["line"][1]
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert abs(correlation - expected) < 4.0 / np.sqrt(len(beta) / 4)


def test_groups_dims_and_coords(short_run):
    assert short_run["posterior"]["model_index"].dims == ("chain", "draw")
    assert short_run["posterior"].attrs["models"] == NAMES
    stats = short_run["sample_stats"].to_dataset()
    assert stats["race_rows"].dims == ("chain", "draw", "step")
    assert stats["step"].values.tolist() == ["parameters", "index"]
    for name in ("accept", "row_evaluations", "race_arms_left"):
        assert stats[name].dims == ("chain", "draw")
    assert np.all(stats["race_delta"] == 0.05)
    assert np.all(stats["race_arms_left"].isin([1, 2, 3]))
    # A race evaluates each row of the parameters' decision twice, and those of the index once for each model or more.
    moved, drawn = stats["race_rows"].values[..., 0], stats["race_rows"].values[..., 1]
    assert np.all(stats["row_evaluations"] >= 2.0 * moved + drawn)
    summary = short_run["product_space"].to_dataset()
    assert summary["log_bf"].dims == ("model", "against")
    assert summary["visits"].dims == ("chain", "model")
    assert summary["model"].values.tolist() == NAMES
    index = short_run["posterior"]["model_index"]
    for k, name in enumerate(NAMES):
        expected = (index == k).sum("draw")
        np.testing.assert_array_equal(summary["visits"].sel(model=name), expected)


def test_each_visit_is_repeated_evenly_and_stays_in_its_chain(short_run):
    """No draw is lost, none more than once oftener than another, in the order drawn."""
    for name, var in (("mean", "mu"), ("scale", "sigma")):
        for c in range(2):
            visits = int(short_run["product_space"]["visits"].sel(model=name, chain=c))
            values = short_run[f"models/{name}/posterior"][var].values[c]
            runs = np.diff(np.flatnonzero(np.diff(values, prepend=np.nan, append=np.nan) != 0))
            # Rejected moves leave equal values behind, so runs are sums of repetitions.
            assert len(runs) <= visits
            assert runs.min() >= 100 // visits
    first, second = short_run["models/mean/posterior"]["mu"].values
    assert not np.intersect1d(first, second).size


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"race": "exact"},
        {"prior_probs": [1, 2, 3]},
    ],
    ids=str,
)
def test_settings_do_not_change_the_evidence(models, settings):
    tree = sample(models, draws=2_000, tune=500, random_seed=8, **settings)
    assert_evidence(tree, NAMES)
    prior = settings.get("prior_probs", [2, 2, 2])
    np.testing.assert_allclose(tree["product_space"]["prior_prob"], np.array(prior) / 6)
    assert_same(sample(models, draws=50, **settings), sample(models, draws=50, **settings))


def test_missing_values_are_refused():
    broken = np.where(np.arange(N) == 17, np.nan, Y)
    with pytest.warns(pm.exceptions.ImputationWarning):
        pair = {"a": mean_model(broken), "b": mean_model(broken, sd=1.0)}
    with pytest.raises(ValueError, match=r"models\['a'\]: .*obs.*missing values"):
        sample(pair)


def test_a_row_that_is_not_finite_at_the_start_is_named():
    def model(sd):
        with pm.Model() as out:
            mu = pm.Normal("mu", 0.0, sd)
            x = np.where(np.arange(N) == 17, np.nan, X)
            pm.Normal("obs", mu * x, 1, observed=Y)
        return out

    with pytest.raises(ValueError, match=r"models\['a'\]: .*row 17: nan"):
        sample({"a": model(1.0), "b": model(2.0)})
