"""Hierarchical models whose rows lie in a store are those of the same rows in memory."""

from __future__ import annotations

import functools
import logging

from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from grouped_runs import example, example_step, racing, sample

import amc_pymc as amc

from amc_pymc.reading import group_densities
from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.graphs import initial_point_of, interpreted_mode
from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.rows import Rows
from amc_pymc.steps.grouping import chosen_turns, possible_factors, stored_group_densities
from amc_pymc.steps.settings import Options
from models.grouped import EXAMPLES

#: Rows, groups, and rows of the placeholders.
SIZE, FEW = (2_400, 600), 150
SEEDED = {"draws": 60, "tune": 60, "seed": 5}


def placeholders(data, few=FEW):
    """The same data with some rows."""
    groups = {name: g[:few] for name, g in data.groups.items()}
    return replace(data, X=data.X[:few], y=data.y[:few], groups=groups)


def source_of(data):
    return {"X": data.X, "y": data.y, "group_index": data.groups["group"]}


@functools.cache
def few_model():
    return EXAMPLES["gaussian"].build(placeholders(example("gaussian", *SIZE)[0]), centred=True)


def make_step(**kwargs):
    data, _ = example("gaussian", *SIZE)
    return racing(few_model(), rows=source_of(data), **kwargs)


@functools.cache
def in_store():
    return make_step()


def in_memory():
    return example_step("gaussian", *SIZE)


def pair():
    """Densities in a store and in memory, and points."""
    ours, theirs = in_store().prepared.densities, in_memory().prepared.densities
    fit, rng = in_memory().prepared.fit, np.random.default_rng(3)
    return ours, theirs, [fit.mean, *(fit.draw(fit.mean, fit.coordinates, rng) for _ in range(2))]


@pytest.fixture
def in_parts(monkeypatch):
    """Groups are read in many parts, the memory of which is let go of; how often."""
    monkeypatch.setattr(group_densities, "_PART", 2_000)
    released, real = [], GroupDensities.release
    monkeypatch.setattr(GroupDensities, "release", lambda self: released.append(1) or real(self))
    return released


# --- the same numbers -----------------------------------------------------------------------------


def test_groups_are_those_in_memory():
    ours, theirs, points = pair()
    assert ours.unit == "group" and ours.n_units == SIZE[1] and ours.n_rows == SIZE[0]
    assert ours.layout.names == theirs.layout.names and ours.n_nodes == theirs.n_nodes
    np.testing.assert_array_equal(ours.groups.first, theirs.groups.first)
    np.testing.assert_array_equal(ours.groups.columns, theirs.groups.columns)
    for x in points:
        np.testing.assert_array_equal(ours.all_values(x), theirs.all_values(x))


def test_sums_of_parts(in_parts):
    ours, theirs, points = pair()
    some = np.arange(0, SIZE[1], 7)
    for x in points:
        for units in (None, some):
            value, gradient = ours.value_and_gradient(x, units)
            other, slope = theirs.value_and_gradient(x, units)
            assert value == pytest.approx(other, rel=1e-12)
            np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-8)
            found, expected = ours.hessian(x, units), theirs.hessian(x, units)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-7)
        np.testing.assert_array_equal(ours.values(x, some), theirs.values(x, some))
        change, other = ours.change(points[0], x), theirs.change(points[0], x)
        assert change == pytest.approx(other, rel=1e-9, abs=1e-9)
        effects = np.random.default_rng(1).normal(size=(SIZE[1], 1))
        assert ours.complete(x, effects) == pytest.approx(theirs.complete(x, effects), rel=1e-12)
    assert len(in_parts) > 100


@pytest.mark.slow
def test_a_seed_gives_the_same_draws():
    ours = sample(few_model(), in_store(), **SEEDED)
    theirs = sample(in_memory()._model, in_memory(), **SEEDED)
    for name in ("beta", "sigma", "sd_group", "group"):
        np.testing.assert_array_equal(ours.posterior[name], theirs.posterior[name])
    for name in ("race_rows", "accept", "race_audited", "race_quadrature"):
        np.testing.assert_array_equal(ours.sample_stats[name], theirs.sample_stats[name])
    assert float(ours.posterior["group"].std()) > 0.1


def test_chains_in_processes_are_those_of_one():
    kwargs = SEEDED | {"draws": 10, "tune": 10}
    serial = sample(few_model(), in_store(), **kwargs).posterior
    parallel = sample(few_model(), in_store(), **kwargs | {"cores": 2, "mp_ctx": "fork"}).posterior
    for name in ("beta", "group"):
        np.testing.assert_array_equal(serial[name], parallel[name])


@pytest.mark.slow
def test_effects_can_be_drawn_afterwards(tmp_path, caplog):
    """From the store that the step has made."""
    data, _ = example("gaussian", *SIZE)
    rows = Rows(source_of(data), folder=tmp_path)
    step = racing(few_model(), rows=rows, recover=False)
    idata = sample(few_model(), step, draws=40, tune=60)
    assert bool(idata.posterior["group"].isnull().all())
    caplog.set_level("INFO", logger="amc_pymc")
    kwargs = {"random_seed": 2, "progressbar": False}
    ours = amc.recover_marginals(idata, model=few_model(), rows=rows, **kwargs)
    assert "made by an earlier run" in caplog.text
    theirs = amc.recover_marginals(idata, model=example("gaussian", *SIZE)[1], **kwargs)
    np.testing.assert_array_equal(ours.posterior["group"], theirs.posterior["group"])


# --- models of all kinds --------------------------------------------------------------------------

N, G = 1_500, 30


def values_of(rng):
    """Some groups are empty, one has a single row, and placeholders are of a few groups."""
    g = rng.integers(0, G - 2, N)
    g[:60] = rng.integers(2, 9, 60)
    g[g == 4] = 5
    g[np.flatnonzero(g == 7)[1:]] = 6
    return {"g": g, "x": rng.normal(size=N), "y": rng.normal(size=N)}


def covariates(values, z):
    """Numbers of groups that rows choose, and some of the prior."""
    with pm.Model() as model:
        g, x, y = (pm.Data(n, values[n]) for n in ("g", "x", "y"))
        gamma, sd = pm.Normal("gamma", shape=2), pm.HalfNormal("sd")
        u = pm.Normal("u", gamma[0] * pm.Data("w", z[::-1].copy()), sd, shape=G)
        mu = (gamma[1] * pt.as_tensor(z) + u)[g] + pt.as_tensor(z)[g] * x
        pm.Normal("obs", mu, 1, observed=y)
    return model


def classes(values, z):
    """Discrete effects, and an index that is a function of the data."""
    with pm.Model() as model:
        g, y = (pm.Data(n, values[n]) for n in ("g", "y"))
        c = pm.Bernoulli("c", pm.Beta("p", 2, 2), shape=G)
        mu = pm.Normal("mu", shape=2)
        pm.Normal("obs", mu[0] + mu[1] * c[G - 1 - g], 1, observed=y)
    return model


def crossed_with_few(values, z):
    """Another factor of few levels, and columns that are one-hot in the placeholders only."""
    values["h"] = (values["g"] * 7 + np.arange(len(values["g"]))) % 5
    X = np.eye(4)[np.arange(len(values["x"])) % 4]
    X[60:] *= values["x"][60:, None]
    values["X"] = X
    with pm.Model() as model:
        g, h, y, X_ = (pm.Data(n, values[n]) for n in ("g", "h", "y", "X"))
        u = pm.Normal("u", 0, pm.HalfNormal("sd"), shape=G)
        v = pm.Normal("v", 0, pm.HalfNormal("sd_v"), shape=5)
        pm.StudentT("obs", nu=5, mu=u[g] + v[h] + X_ @ pm.Normal("b", shape=4), observed=y)
    return model


def chosen_factor(model):
    return next(f for f in find_factors(model) if not f.reason)


@pytest.mark.parametrize("build", [covariates, classes, crossed_with_few])
def test_models(build):
    rng = np.random.default_rng(8)
    values, z = values_of(rng), rng.normal(size=G)
    whole = build(values, z)
    model = build({n: a[:60] for n, a in values.items()}, z)
    names = [v.name for v in whole.data_vars if v.name in values]
    ours = make_densities({n: values[n] for n in names}, model)
    sizes = np.bincount(G - 1 - values["g"] if build is classes else values["g"], minlength=G)
    assert sizes.min() == 0 and 1 in sizes
    np.testing.assert_array_equal(np.diff(ours.groups.first), sizes)
    point = {n: np.asarray(v) for n, v in whole.initial_point().items()}
    point = {n: v + 0.4 * rng.normal(size=v.shape) if n != "c" else v for n, v in point.items()}
    if build is classes:
        point["c"] = rng.integers(0, 2, G)
    x, effects = ours.ravel(point), ours.effects(point)
    got = ours.complete(x, effects) + ours.rest_value_and_gradient(x)[0]
    logp = whole.compile_fn(whole.logp(), inputs=whole.value_vars, mode=interpreted_mode())
    expected = float(logp(point)) + ours.groups.centring.log_jacobian(x)
    assert got == pytest.approx(expected, rel=1e-10)


# --- what is refused ------------------------------------------------------------------------------


def make_densities(source, model=None, **kwargs):
    model = model or few_model()
    point = initial_point_of(model)
    args = chosen_factor(model), None, Rows(source, **kwargs), point
    return stored_group_densities(model, *args, progressbar=False)


def with_change(name, row, value):
    source = source_of(example("gaussian", *SIZE)[0])
    changed = source[name].astype(float) if isinstance(value, float) else source[name].copy()
    changed[row] = value
    return source | {name: changed}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("group_index", SIZE[1], r"'group_index' must number groups from 0 to 599, got 600 in row"),
        ("group_index", -1, r"'group_index' must number groups from 0 to 599, got -1 in row"),
        ("group_index", 0.5, r"'group_index' must fit the placeholder.*got 0.5 in row"),
        ("y", np.nan, r"'y' must be finite, got nan in row"),
    ],
)
def test_bad_rows_are_named(name, value, message):
    with pytest.raises(ValueError, match=f"{message} 2000"):
        make_densities(with_change(name, 2_000, value))


@pytest.mark.slow
def test_a_kept_store_is_of_the_same_tables(tmp_path):
    """Numbers of groups that rows choose, wherever they differ."""
    rng = np.random.default_rng(8)
    values, z = values_of(rng), rng.normal(size=G)
    few = {n: a[:60] for n, a in values.items()}
    make_densities(values, covariates(few, z), folder=tmp_path)
    other = {n: a[60:140] for n, a in values.items()}
    make_densities(values, covariates(other, z), folder=tmp_path)  # other placeholders
    z[G - 1] += 1.0
    with pytest.raises(ValueError, match="made for another model"):
        make_densities(values, covariates(few, z), folder=tmp_path)


def crossed(n_levels):
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        y = pm.Data("y", rng.normal(size=50))
        mu = 0.0
        for name, size in zip("uv", n_levels):
            g = pm.Data(f"g_{name}", rng.integers(0, size, 50))
            mu += pm.Normal(name, 0, pm.HalfNormal(f"sd_{name}"), shape=size)[g]
        pm.Normal("obs", mu, 1, observed=y)
    return model


def turns_of(model, **options):
    names = [v.name for v in model.value_vars]
    return chosen_turns(model, names, Options(rows=Rows({}), **{"marginalize": "auto", **options}))


def test_few_levels_stay(caplog):
    caplog.set_level(logging.INFO, logger="amc_pymc")
    (turn,) = turns_of(crossed((400, 30)))
    assert turn.factor.names == ("u",) and {"v", "sd_u_log__"} <= set(turn.names)
    assert "Integrating u out: 400 groups. Races read groups. v (30 levels) stays." in caplog.text
    (turn,) = turns_of(crossed((100, 30)))
    assert turn.factor is None  # the number of placeholders says nothing
    assert "u out: a race over 100 groups would read most of them" in caplog.text
    (turn,) = turns_of(crossed((100, 30)), marginalize="v")
    assert turn.factor.names == ("v",)
    (turn,) = turns_of(crossed((400, 30)), marginalize=None)
    assert turn.factor is None


def test_turns_are_refused():
    message = r"u \(800 levels\) and v \(700 levels\) cannot be integrated out in turns with rows="
    with pytest.raises(ValueError, match=message):
        turns_of(crossed((800, 700)))
    with pytest.raises(ValueError, match="in turns with rows="):
        turns_of(crossed((400, 30)), marginalize=["u", "v"])
    (turn,) = turns_of(crossed((800, 700)), proxy=amc.TaylorProxy(max_dim=2_000))
    assert turn.factor.names == ("u",)


def test_several_observed_variables_are_refused():
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        g = pm.Data("g", rng.integers(0, 400, 50))
        u = pm.Normal("u", 0, pm.HalfNormal("sd"), shape=400)
        for name in "yz":
            pm.Normal(f"obs_{name}", u[g], 1, observed=pm.Data(name, rng.normal(size=50)))
    message = "with rows=, one observed variable is raced, not obs_y and obs_z"
    (factor,) = possible_factors(model, Options(rows=Rows({}), marginalize="auto"))
    assert message in factor.reason
    with pytest.raises(ValueError, match=message):
        turns_of(model, marginalize="u")
    assert turns_of(model)[0].factor is None


@pytest.mark.slow
def test_effects_are_drawn_as_in_memory(in_parts):
    ours, theirs, (x, *_) = pair()
    drawn = []
    for each in (ours, theirs):
        effects = np.zeros((SIZE[1], 1))
        share = each.draw_effects(x, effects, 3, np.random.default_rng(4))
        drawn.append((effects, share))
    np.testing.assert_allclose(
        drawn[0][0], drawn[1][0], rtol=1e-12, atol=1e-15
    )  # sums in another order
    assert drawn[0][1] == pytest.approx(drawn[1][1], rel=1e-12)
    assert np.std(drawn[0][0]) > 0.1 and len(in_parts) > 20


@pytest.mark.slow
def test_rows_in_another_order_are_in_the_same_groups():
    data, _ = example("gaussian", *SIZE)
    order = np.random.default_rng(6).permutation(SIZE[0])
    source = {name: a[order] for name, a in source_of(data).items()}
    (factor,) = find_factors(few_model())
    point = initial_point_of(few_model())
    ours = stored_group_densities(few_model(), factor, None, Rows(source), point, progressbar=False)
    _, theirs, points = pair()
    assert not np.array_equal(ours.groups.columns, theirs.groups.columns)
    for x in points:
        np.testing.assert_allclose(ours.all_values(x), theirs.all_values(x), rtol=1e-6, atol=1e-7)
