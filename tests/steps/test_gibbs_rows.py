"""`RacingGibbs(rows=)`: the step on rows in a store is the step on the same rows in memory."""

from __future__ import annotations

import functools

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc

N, FEW = 20_000, 300


@functools.cache
def data():
    rng = np.random.default_rng(4)
    X, g = rng.normal(size=(N, 2)), rng.integers(0, 3, N)
    mean = X @ [0.05, -0.03] + np.array([0.0, 0.1, 0.2])[g]
    return {"X": X, "g": g, "y": mean + rng.normal(size=N)}


def build(values=None):
    """Slopes that are there or not, and groups' levels from a table."""
    values = values or {n: a[:FEW] for n, a in data().items()}
    with pm.Model() as model:
        X, g, y = (pm.Data(n, values[n]) for n in ("X", "g", "y"))
        there = pm.Bernoulli("there", 0.5, shape=2)
        level = pm.Categorical("level", p=np.full(5, 0.2), shape=3)
        table = pm.math.stack([np.float64(0.05 * k) for k in range(5)])
        mu = X @ (there * np.array([0.05, 0.01])) + table[level][g]
        pm.Normal("obs", mu, 1.0, observed=y)
    return model


def make(rows=None, model=None, vars=None, **kwargs):
    model = model or build()
    return amc.RacingGibbs(vars, rows=rows, model=model, progressbar=False, **kwargs)


@functools.cache
def in_order():
    return make(data())


@functools.cache
def in_memory():
    return make(model=build(data()))


def run_on(run, step, **kwargs):
    return run(step._model, step, **{"draws": 150, "tune": 50, **kwargs})


def points():
    rng = np.random.default_rng(3)
    return [np.r_[rng.integers(0, 2, 2), rng.integers(0, 5, 3)].astype(float) for _ in range(4)]


def test_rows_are_those_in_memory():
    """At points x, and in terms of what they see of x."""
    ours, theirs = in_order().prepared, in_memory().prepared
    assert ours.densities.n_rows == N
    logp = build(data()).compile_logp()
    for x in points():
        expected = theirs.densities.all_values(x)
        np.testing.assert_allclose(ours.densities.all_values(x), expected, rtol=1e-12)
        np.testing.assert_allclose(ours.raced.all_values(ours.eta(x)), expected, rtol=1e-12)
        got = expected.sum() + ours.densities.rest_value_and_gradient(x)[0]
        point = ours.densities.unravel(x)
        assert got == pytest.approx(float(logp(point)), rel=1e-10)
        change = ours.densities.change(points()[0], x)
        assert change == pytest.approx(theirs.densities.change(points()[0], x), abs=1e-7)


def test_a_seed_gives_the_same_draws(run):
    ours, theirs = (run_on(run, step(), seed=3) for step in (in_order, in_memory))
    for name in ("there", "level"):
        np.testing.assert_array_equal(ours.posterior[name], theirs.posterior[name])
    for name in ("race_rows", "race_audited"):
        np.testing.assert_array_equal(ours.sample_stats[name], theirs.sample_stats[name])
    assert ours.sample_stats["race_rows"].mean() < 0.2 * N * 5  # there is a control variate


def test_conditions_are_raced_without_a_control_variate(run):
    """A change-point is no parameter that rows can be expanded in."""
    t = 10 * np.arange(N) // N
    values = {"t": t, "y": (t > 5) + np.random.default_rng(3).normal(size=N)}
    some = np.arange(0, N, 67)
    with pm.Model() as model:
        t, y = (pm.Data(n, a[some]) for n, a in values.items())
        k = pm.DiscreteUniform("k", 0, 9)
        pm.Normal("obs", pm.math.switch(t > k, 1.0, 0.0), 1.0, observed=y)
    step = make(values, model)
    assert step.prepared.no_proxy
    draws = run_on(run, step, draws=40, tune=5).posterior["k"]
    assert np.all(draws.values[:, 5:] == 5)


def test_variables_that_others_would_draw():
    """Other steps know nothing of the store."""
    model = build()
    with pytest.raises(ValueError, match="vars leaves out level, on which rows depend"):
        make(data(), model, [model["there"]])
    with pm.Model() as model:
        X, g, y = (pm.Data(n, data()[n][:FEW]) for n in ("X", "g", "y"))
        b = pm.Normal("b", shape=2)
        pm.Normal("obs", X @ (b * pm.Bernoulli("k", 0.5)) + 0.1 * g, 1, observed=y)
    with pytest.raises(ValueError, match=r"vars leaves out b, .*see the placeholders only"):
        make(data(), model, [model["k"]])
    with pytest.raises(ValueError, match=r"vars leaves out k, .*RacingGibbs discrete ones"):
        amc.RacingMetropolis(rows=data(), model=model, progressbar=False)


def test_conditional_probabilities_are_exact_ones(run):
    """Every element given the others, over all states, by the whole model's density."""
    draws = run_on(run, in_order(), seed=5, draws=400).posterior
    logp = build(data()).compile_logp()
    states = [np.array(s) for s in np.ndindex(2, 2)]
    level = draws["level"].values.reshape(-1, 3)
    most, count = np.unique(level, axis=0, return_counts=True)
    fixed = most[count.argmax()]
    log_p = np.array([float(logp({"there": s, "level": fixed})) for s in states])
    exact = np.exp(log_p - np.logaddexp.reduce(log_p))
    there = draws["there"].values.reshape(-1, 2)[(level == fixed).all(axis=1)]
    share = np.array([(there == s).all(axis=1).mean() for s in states])
    # a quarter of the draws independent; draws are wrong with probability delta at most
    error = np.sqrt(exact * (1 - exact) / (len(there) / 4))
    assert np.all(np.abs(share - exact) < 4 * error + 0.05)
