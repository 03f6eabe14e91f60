"""`rows=` of Dask collections: sums over all rows are those of workers, and those of a local pass."""

from __future__ import annotations

import functools
import os
import signal

import numpy as np
import pymc as pm
import pytest

from clusters import client_of_two, quiet_close

import amc_pymc as amc

pytestmark = quiet_close

da = pytest.importorskip("dask.array")

N, FEW, GROUPS = 20_000, 200, 4


@functools.cache
def data():
    rng = np.random.default_rng(4)
    X, g = rng.normal(size=(N, 2)), rng.integers(0, GROUPS, N)
    mean = X @ [0.4, -0.2] + 0.3 * g
    return {"X": X, "g": g, "y": mean + 0.7 * rng.standard_t(5, size=N)}


@functools.cache
def build():
    with pm.Model() as model:
        X, g, y = (pm.Data(n, data()[n][:FEW]) for n in ("X", "g", "y"))
        b = pm.Normal("b", 0, 2, shape=2)
        a = pm.Normal("a", 0, 2, shape=GROUPS)
        s = pm.HalfNormal("s", 1)
        pm.StudentT("obs", nu=5, mu=X @ b + a[g], sigma=s, observed=y)
    return model


def collections(chunk=3_000):
    return {n: da.from_array(a, chunks=(chunk, -1)[: a.ndim]) for n, a in data().items()}


def make_step(client=None, source=None, **kwargs):
    rows = amc.Rows(source or (data() if client is None else collections()), client=client)
    proxy = amc.TaylorProxy(exact_rows=50)
    kwargs = {"race": "normal", "proxy": proxy, "progressbar": False, **kwargs}
    return amc.RacingMetropolis(rows=rows, model=build(), **kwargs)


@functools.cache
def local():
    return make_step()


def draws(run, step, **kwargs):
    out = run(build(), step, **{"draws": 60, "tune": 60, "seed": 3, **kwargs})
    return out.posterior["b"].values, out.sample_stats


def points():
    rng = np.random.default_rng(8)
    x = local().prepared.fit.mean
    return [x, x + 0.02 * rng.normal(size=x.size), x + 0.5 * rng.normal(size=x.size)]


def assert_same_sums(ours, theirs):
    """Rounding of sums of 20,000 numbers in another order."""
    for x in points():
        value, gradient = ours.value_and_gradient(x)
        other, slope = theirs.value_and_gradient(x)
        assert value == pytest.approx(other, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-7)
        np.testing.assert_allclose(ours.hessian(x), theirs.hessian(x), rtol=1e-9, atol=1e-6)
        change = ours.change(points()[0], x)
        assert change == pytest.approx(theirs.change(points()[0], x), rel=1e-9, abs=1e-7)


@pytest.fixture(scope="module")
def client():
    """Of a cluster inside this process."""
    with client_of_two(processes=False) as made:
        yield made


@pytest.fixture(scope="module")
def far(client):
    return make_step(client)


# --- a cluster inside this process ----------------------------------------------------------------


def test_sums_are_those_of_a_local_pass(far):
    ours, theirs = far.prepared.densities, local().prepared.densities
    np.testing.assert_array_equal(ours.packed.data, theirs.packed.data)
    assert_same_sums(ours, theirs)
    some = np.arange(0, N, 7)
    for x in points():
        assert ours.value_and_gradient(x, some)[0] == theirs.value_and_gradient(x, some)[0]


def test_the_preparation_is_that_of_a_local_pass(far):
    ours, theirs = far.prepared, local().prepared
    np.testing.assert_allclose(ours.fit.mean, theirs.fit.mean, atol=1e-9)
    np.testing.assert_allclose(ours.fit.precision, theirs.fit.precision, rtol=1e-7, atol=1e-3)
    assert theirs.exact_rows.size == 50
    np.testing.assert_array_equal(ours.exact_rows, theirs.exact_rows)
    np.testing.assert_allclose(ours.forecast, theirs.forecast, rtol=1e-7)
    assert ours.rows_spent == theirs.rows_spent


def test_decisions_are_those_of_a_local_pass(far, run):
    """Rounding moves no decision of a short chain."""
    ours, stats = draws(run, far)
    theirs, others = draws(run, local())
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    for name in ("race_rows", "race_audited", "race_audit_rows"):
        np.testing.assert_array_equal(stats[name], others[name])
    assert stats["race_audited"].sum() > 0


@pytest.mark.slow
def test_discrete_variables(client, run):
    """Workers see rows in terms of what these make of the variables."""
    with pm.Model() as model:
        X, g, y = (pm.Data(n, data()[n][:FEW]) for n in ("X", "g", "y"))
        there = pm.Bernoulli("there", 0.5, shape=2)
        level = pm.Categorical("level", p=np.full(5, 0.2), shape=GROUPS)
        table = pm.math.stack([np.float64(0.25 * k) for k in range(5)])
        mu = X @ (there * np.array([0.4, 0.005])) + table[level][g]
        pm.Normal("obs", mu, 10.0, observed=y)

    def step(source, client):
        rows = amc.Rows(source, client=client)
        return amc.RacingGibbs(rows=rows, model=model, progressbar=False)

    ours, theirs = step(collections(), client), step(data(), None)
    assert ours.prepared.densities.packed.partitions is not None
    assert ours.prepared.raced.n_units == N and ours.prepared.surrogate is not None
    zero, one = np.zeros(6), np.array([1.0, 0.0, 0.0, 1.0, 2.0, 3.0])
    change = theirs.prepared.densities.change(zero, one)
    assert ours.prepared.densities.change(zero, one) == pytest.approx(change, rel=1e-9)
    centre = theirs.prepared.surrogate.centre
    for got, expected in zip(*(s.prepared.raced.expansion(centre) for s in (ours, theirs))):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-7)
    chains = [run(model, s, draws=40, tune=20, seed=2) for s in (ours, theirs)]
    for name in ("there", "level"):
        np.testing.assert_array_equal(*(c.posterior[name] for c in chains))
    np.testing.assert_array_equal(*(c.sample_stats["race_rows"] for c in chains))


def test_groups_are_stored_and_summed_here(client):
    """The client computes chunks of the source; partitions would cut groups apart."""
    n, few = 3_000, 150
    rng = np.random.default_rng(5)
    g = rng.integers(0, 300, n)
    values = {"g": g, "y": rng.normal(rng.normal(size=300)[g], 0.5)}
    with pm.Model() as model:
        g_, y_ = (pm.Data(name, a[:few]) for name, a in values.items())
        u = pm.Normal("u", pm.Normal("mu", 0, 5), pm.HalfNormal("sd", 2), shape=300)
        pm.Normal("obs", u[g_], pm.HalfNormal("s", 1), observed=y_)

    def densities(source, client):
        rows = amc.Rows(source, client=client)
        return amc.RacingMetropolis(rows=rows, model=model, progressbar=False).prepared.densities

    chunked = {name: da.from_array(a, chunks=700) for name, a in values.items()}
    ours, theirs = densities(chunked, client), densities(values, None)
    assert ours.unit == "group" and ours.n_units == 300 and ours.n_rows == n
    np.testing.assert_array_equal(ours.groups.store.data, theirs.groups.store.data)
    x = np.array([0.1, 0.0, -0.5])
    assert ours.value_and_gradient(x)[0] == theirs.value_and_gradient(x)[0]
    assert ours.residual_summary([np.stack([x, x])], x, 5) is None


# --- a cluster of processes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers():
    """Two worker processes; nannies begin another one where one ends."""
    with client_of_two(silence_logs=50) as made:
        yield made


@pytest.fixture(scope="module")
def spread(workers):
    return make_step(workers)


def kill_one(client):
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(spread, workers, tmp_path):
    """Between passes, and in the middle of one, with the partitions that it holds."""
    densities, x = spread.prepared.densities, points()[1]
    expected = densities.value_and_gradient(x), densities.hessian(x)
    kill_one(workers)
    got = densities.value_and_gradient(x), densities.hessian(x)
    assert got[0][0] == expected[0][0]
    np.testing.assert_array_equal(got[0][1], expected[0][1])
    np.testing.assert_array_equal(got[1], expected[1])
    marker = str(tmp_path / "killed")

    def dying(source, rows, *args):
        if rows[0, 0] == first and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return (rows.sum(axis=0),)

    parts = list(densities.packed.partitions.fetched())
    first = parts[4][0, 0]
    total = densities.packed.partitions.total(dying)[0]
    assert os.path.exists(marker)
    np.testing.assert_array_equal(total, functools.reduce(np.add, (p.sum(axis=0) for p in parts)))


@pytest.mark.slow
def test_chains_in_processes_are_those_of_one(spread, run):
    """They connect to the cluster by themselves."""
    serial, stats = draws(run, spread)
    parallel, others = draws(run, spread, cores=2, mp_ctx="fork")
    np.testing.assert_array_equal(serial, parallel)
    np.testing.assert_array_equal(stats["race_audited"], others["race_audited"])
    assert others["race_audited"].sum() > 0
