"""`rows=`: a step on rows in a store is the step on the same rows in memory."""

from __future__ import annotations

import functools
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import amc_pymc as amc

from amc_pymc.reading import extract_rows
from amc_pymc.reading.graphs import initial_point_of

N, FEW, GROUPS = 30_000, 200, 4


@functools.cache
def data():
    rng = np.random.default_rng(4)
    X, g = rng.normal(size=(N, 2)), rng.integers(0, GROUPS, N)
    mean = X @ [0.4, -0.2] + 0.3 * g
    return {"X": X, "g": g, "y": mean + 0.7 * rng.standard_t(5, size=N)}


def build(values=None, **own):
    """Regression with effects of groups and heavy tails; ``own`` replaces data."""
    values = {**(values or {n: a[:FEW] for n, a in data().items()}), **own}
    with pm.Model() as model:
        X, g, y = (pm.Data(n, values[n]) for n in ("X", "g", "y"))
        b = pm.Normal("b", 0, 2, shape=2)
        a = pm.Normal("a", 0, 2, shape=GROUPS)
        s = pm.HalfNormal("s", 1)
        pm.StudentT("obs", nu=5, mu=X @ b + a[g], sigma=s, observed=y)
    return model


def make_step(rows=None, model=None, **kwargs):
    kwargs = {"progressbar": False, "race": "normal", **kwargs}
    return amc.RacingMetropolis(rows=rows, model=model or build(), **kwargs)


@functools.cache
def stored():
    return make_step(data())


@functools.cache
def in_memory():
    return make_step(model=build(data()), marginalize=None)


def run_on(run, step, **kwargs):
    """A short run on the model that a step was made for."""
    return run(step._model, step, **kwargs)


def points():
    rng = np.random.default_rng(8)
    x = in_memory().prepared.fit.mean
    return [x, x + 0.02 * rng.normal(size=x.size), x + 0.5 * rng.normal(size=x.size)]


# --- the same numbers -----------------------------------------------------------------------------


def test_rows_sums_and_derivatives():
    ours, theirs = stored().prepared.densities, in_memory().prepared.densities
    assert ours.n_units == ours.n_rows == N
    some = np.arange(0, N, 7)
    for x in points():
        np.testing.assert_array_equal(ours.all_values(x), theirs.all_values(x))
        value, gradient = ours.value_and_gradient(x)
        other, slope = theirs.value_and_gradient(x)
        assert value == pytest.approx(other, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-7)
        np.testing.assert_allclose(ours.hessian(x), theirs.hessian(x), rtol=1e-9, atol=1e-6)
        change = ours.change(points()[0], x)
        assert change == pytest.approx(theirs.change(points()[0], x), rel=1e-9, abs=1e-7)
        value = ours.value_and_gradient(x, some)[0]
        assert value == theirs.value_and_gradient(x, some)[0]


def test_a_seed_gives_the_same_draws(run):
    ours = run_on(run, stored(), seed=3)
    theirs = run_on(run, in_memory(), seed=3)
    for name in ("b", "a", "s"):
        np.testing.assert_array_equal(ours.posterior[name], theirs.posterior[name])
    for name in ("race_rows", "accept", "race_audited"):
        np.testing.assert_array_equal(ours.sample_stats[name], theirs.sample_stats[name])


def test_thinned_decisions_are_those_in_memory(run):
    ours = make_step(amc.Rows(data()), race="exact")
    theirs = make_step(model=build(data()), marginalize=None, race="exact")
    a, b = (step.prepared.thinning for step in (ours, theirs))
    np.testing.assert_allclose(a.totals, b.totals, rtol=1e-5)
    one, other = (run_on(run, step, seed=3) for step in (ours, theirs))
    assert (one.sample_stats["race_rows"] < N / 10).mean() > 0.9
    np.testing.assert_allclose(one.posterior["b"], other.posterior["b"], rtol=1e-9)


# --- life -----------------------------------------------------------------------------------------


def test_the_placeholders_are_left_as_they_are():
    model = build()
    before = {n: model[n].get_value() for n in ("X", "g", "y")}
    logp = model.compile_logp()(model.initial_point())
    make_step(data(), model)
    bad = data() | {"y": np.where(np.arange(N) == 7, np.nan, data()["y"])}
    with pytest.raises(ValueError, match="in row 7"):
        make_step(bad, model)
    for name, value in before.items():
        np.testing.assert_array_equal(model[name].get_value(), value)
    assert model.compile_logp()(model.initial_point()) == logp


def test_placeholders_that_changed_are_refused(run):
    model = build()
    step = make_step(data(), model)
    with model:
        pm.set_data({"y": np.zeros(FEW)})
    with pytest.raises(ValueError, match=r"\(y\) have changed"):
        run(model, step)


def test_a_pickled_step_reads_the_same_store():
    step = stored()
    text = cloudpickle.dumps(step)
    rows = step.prepared.densities.store.data
    assert rows[10:12].tobytes() not in text
    assert data()["y"][20_000:20_004].tobytes() not in text  # nor does the source travel
    other = pickle.loads(text).prepared.densities
    for x in points():
        np.testing.assert_array_equal(other.all_values(x), step.prepared.densities.all_values(x))


def test_chains_in_processes_are_those_of_one(run):
    serial = run_on(run, stored(), seed=5).posterior
    parallel = run_on(run, stored(), seed=5, cores=2, mp_ctx="fork").posterior
    np.testing.assert_array_equal(serial["b"], parallel["b"])


# --- what is refused ------------------------------------------------------------------------------


def at(name, row, value):
    changed = data()[name].copy()
    changed[row] = value
    return data() | {name: changed}


BAD_ROWS = {
    "missing": (lambda: {"X": data()["X"], "y": data()["y"]}, "lacks 'g'.*'X', 'g', 'y'"),
    "nan": (lambda: at("y", 20_000, np.nan), "'y' must be finite, got nan in row 20000"),
    "index": (lambda: at("g", 25_000, GROUPS), "an index in rows 0 to 29999 .*out of bounds"),
}


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        make_step(rows())


def test_impossible_rows_are_named():
    """By their numbers in the source."""
    with pm.Model() as model:
        x, y = (pm.Data(n, np.arange(1.0, 100.0)) for n in ("x", "y"))
        pm.Uniform("obs", 0.0, pm.HalfNormal("s", 100.0) * x, observed=y)
    rows = {"x": np.arange(1.0, 500.0), "y": np.arange(1.0, 500.0)}
    rows["y"][400] = 1000.0 * rows["x"][400]
    with pytest.raises(ValueError, match=r"in row 400 of the source \(-inf\) and 0 more"):
        make_step(rows, model)


def test_rows_of_a_wrong_type():
    with pytest.raises(TypeError, match="rows must map names"):
        make_step(3)


def simple(**kwargs):
    """Data containers of a model to be."""
    values = {"x": data()["X"][:FEW, 0], "y": data()["y"][:FEW]}
    return [pm.Data(n, a) for n, a in (values | kwargs).items()]


def constant_observation():
    x, _ = simple()
    pm.Normal("obs", pm.Normal("b") * x, 1, observed=data()["y"][:FEW])
    return ["x"]


def centred():
    x, y = simple()
    pm.Normal("obs", pm.Normal("b") * (x - x.mean()), 1, observed=y)
    return ["x", "y"]


def mean_in_rows():
    x, y = simple()
    pm.Normal("obs", pm.Normal("b") * x * pm.Normal("c") + y.mean() * pm.Normal("d"), 1, observed=y)
    return ["x", "y"]


def one_placeholder():
    x, y = simple(x=np.ones(1), y=np.ones(1))
    pm.Normal("obs", pm.Normal("b") * x, 1, observed=y)
    return ["x", "y"]


def discrete():
    x, y = simple()
    pm.Normal("obs", pm.Normal("b") * x * pm.Bernoulli("k", 0.5), 1, observed=y)
    return ["x", "y"]


def alike_here_only():
    """Where a number is the same in all rows, there is a formula for it."""
    x, y = simple(x=np.full(FEW, 3))
    pm.Normal("obs", pt.gammaincc(x, pm.HalfNormal("b")), 1, observed=y)
    return ["x", "y"]


def no_scalar_form():
    x, y = simple()
    pm.Normal("obs", pt.gammainc(pm.HalfNormal("b"), pt.exp(x)), 1, observed=y)
    return ["x", "y"]


MODELS = {
    constant_observation: "data that are no pm.Data",
    centred: "depends on other rows",
    mean_in_rows: "reads 'y' not only row by row",
    one_placeholder: "the placeholders have one row",
    discrete: r"vars leaves out k, on which rows depend.*sum others out",
    alike_here_only: "not one expression of numbers",
    no_scalar_form: "not one expression of numbers",
}


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_models_that_are_refused(make):
    with pm.Model() as model:
        names = make()
    source = {"x": data()["X"][:, 0], "y": data()["y"]}
    with pytest.raises(ValueError, match=MODELS[make]):
        make_step({n: source[n] for n in names}, model)


def test_variables_that_rows_read_must_be_sampled_here():
    model = build()
    for step in (amc.RacingMetropolis, amc.racing_forecast):
        with pytest.raises(ValueError, match="vars leaves out s_log__, on which rows depend"):
            step([model["b"], model["a"]], rows=data(), model=model, progressbar=False)


# --- models of all kinds --------------------------------------------------------------------------


def thresholds():
    """A condition that no placeholder meets."""
    rng = np.random.default_rng(3)
    values = {"x": rng.normal(size=900), "y": rng.normal(size=900)}
    values["x"][:50] = -np.abs(values["x"][:50])
    with pm.Model() as model:
        x, y = (pm.Data(k, v[:50]) for k, v in values.items())
        b, c = pm.Normal("b", 1.0), pm.Normal("c", -1.0)
        pm.Normal("obs", pm.math.switch(x > 0.5, b, c * x), 1, observed=y)
    return model, values


def trials():
    """Numbers that are all alike in the placeholders, and only there."""
    rng = np.random.default_rng(3)
    n = np.where(np.arange(900) < 50, 4, rng.integers(1, 9, 900))
    values = {"n": n, "k": rng.binomial(n, 0.3)}
    with pm.Model() as model:
        n_, k_ = (pm.Data(k, v[:50]) for k, v in values.items())
        pm.Binomial("obs", n=n_, p=pm.Beta("p", 1, 1), observed=k_)
    return model, values


def one_hot():
    """Columns that are one-hot in the placeholders, and only there."""
    rng = np.random.default_rng(3)
    X = np.eye(4)[rng.integers(0, 4, 900)]
    X[60:] += rng.normal(size=(840, 4))
    values = {"X": X, "y": rng.normal(size=900)}
    with pm.Model() as model:
        X_, y_ = (pm.Data(k, v[:50]) for k, v in values.items())
        pm.Normal("obs", X_ @ pm.Normal("b", shape=4), 1, observed=y_)
    return model, values


@pytest.mark.parametrize("make", [thresholds, trials, one_hot])
def test_nothing_is_taken_for_granted_that_placeholders_have_in_common(make):
    """Log-likelihoods of all rows are those of the model with all data."""
    model, values = make()
    step = make_step(amc.Rows(values), model, race="exact")
    with model:
        pm.set_data(values)
    rows, densities = extract_rows(model), step.prepared.densities
    x = densities.layout.ravel(initial_point_of(model)) + 0.1
    point = densities.layout.unravel(x)
    expected = rows(point, np.arange(900))
    np.testing.assert_allclose(densities.all_values(x), expected, rtol=1e-9, atol=1e-9)


def test_the_sum_is_that_of_the_model():
    """Of the model on all the data, which the placeholders know nothing of."""
    logp = build(data()).compile_logp()
    densities = stored().prepared.densities
    for x in points():
        point = densities.unravel(x)
        got = densities.value_and_gradient(x)[0] + densities.rest_value_and_gradient(x)[0]
        assert got == pytest.approx(float(logp(point)), rel=1e-10)


@pytest.mark.slow
def test_exact_races_read_the_store(run):
    step = stored().replace(race=amc.ExactRace(), audits=amc.Audits(0))
    stats = run_on(run, step, draws=5, tune=5).sample_stats
    assert np.all(stats["race_rows"] == N)


def test_two_observed_variables():
    values = data()
    with pm.Model() as model:
        X, y = pm.Data("X", values["X"][:FEW]), pm.Data("y", values["y"][:FEW])
        b = pm.Normal("b", shape=2)
        pm.Normal("first", X @ b, 1, observed=y)
        pm.Normal("second", b[0], 2, observed=X[:, 1])
    rows = {n: values[n] for n in ("X", "y")}
    densities = make_step(rows, model).prepared.densities
    x = np.array([0.3, -0.1])
    with model:
        pm.set_data(rows)
    got = densities.value_and_gradient(x)[0] + densities.rest_value_and_gradient(x)[0]
    assert got == pytest.approx(float(model.compile_logp()({"b": x})), rel=1e-10)
