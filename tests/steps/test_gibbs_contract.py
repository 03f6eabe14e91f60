"""RacingGibbs inside pm.sample."""

from __future__ import annotations

import copy
import functools
import io

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc.sampling.mcmc import assign_step_methods
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence, CompoundStep
from steps.test_contract import SpyPickler, assert_same

import amc_pymc as amc

from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.results.tables import (
    GIBBS_STATS,
    METROPOLIS_STATS,
    RACE_STATS,
    STEP_STATS,
)


def draws(step, point, number, seed=1, tune=0):
    """Points (number, D) of one chain after its tuning, and the statistics of its draws."""
    layout = step.prepared.densities.layout
    step.setup_chain(np.random.default_rng(seed), tune, number)
    for _ in range(tune):
        point, _ = step.step(point)
    step.stop_tuning()
    out, found = np.empty((number, layout.size)), []
    for j in range(number):
        point, (stat,) = step.step(point)
        out[j] = layout.ravel(point)
        found.append(stat)
    names = [n for n in found[0] if n != "warning"]
    return out, {n: np.array([s[n] for s in found]) for n in names}


STATS = RACE_STATS | STEP_STATS | GIBBS_STATS
N_ROWS = 800


@functools.cache
def selection_arrays():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(N_ROWS, 3))
    return X, X @ [0.1, -0.06, 0.05] + rng.normal(size=N_ROWS)


@functools.cache
def selection():
    """Indicators (2D with one row, to see that shapes are kept) and coefficients."""
    X, y = selection_arrays()
    with pm.Model(coords={"column": ["a", "b", "c"]}) as out:
        x_data, y_data, p = pm.Data("X", X), pm.Data("y", y), pm.Data("p", np.array(0.5))
        gamma = pm.Bernoulli("gamma", p, shape=(1, 3), initval=np.ones((1, 3), dtype=int))
        beta = pm.Normal("beta", 0.05, 0.2, dims="column")
        pm.Normal("obs", x_data @ (gamma[0] * beta), 1, observed=y_data, shape=y_data.shape)
    return out


def selection_logp(point, rows):
    X, y = selection_arrays()
    return -0.5 * (y[rows] - X[rows] @ (point["gamma"][0] * point["beta"])) ** 2


@functools.cache
def real_step():
    return amc.RacingGibbs([selection()["gamma"]], model=selection(), audits=20)


@functools.cache
def quick_step():
    return amc.RacingGibbs(
        [selection()["gamma"]], model=selection(), row_logp=selection_logp, audits=20
    )


def run(steps, seed=1, **kwargs):
    settings = {"draws": 30, "tune": 30, "chains": 2, "cores": 1, "progressbar": False}
    settings |= {"quiet": True, "compute_convergence_checks": False}
    return pm.sample(step=steps, model=selection(), random_seed=seed, **{**settings, **kwargs})


def with_other(step):
    """The step and a cheap one for the other variable."""
    other = amc.RacingMetropolis(
        [selection()["beta"]], model=selection(), row_logp=selection_logp, audits=20
    )
    return [step, other]


@functools.cache
def reference():
    return run(with_other(real_step()), discard_tuned_samples=False)


class TestSeed:
    def test_forked_workers(self):
        steps = with_other(real_step())
        again = run(steps, cores=2, mp_ctx="fork", discard_tuned_samples=False)
        assert_same(reference(), again)

    @pytest.mark.slow
    def test_spawned_workers(self):
        steps = with_other(quick_step())
        alone = run(steps)
        assert_same(alone, run(steps, cores=2, mp_ctx="spawn"))

    @pytest.mark.slow
    def test_spawned_workers_compile_again(self):
        steps = with_other(real_step())
        again = run(steps, cores=2, mp_ctx="spawn", discard_tuned_samples=False)
        assert_same(reference(), again)

    def test_step_is_reused(self):
        steps = with_other(real_step())
        run(steps, seed=9, chains=1)
        assert_same(reference(), run(steps, discard_tuned_samples=False))

    def test_other_seeds_and_chains_differ(self):
        other = run(with_other(real_step()), seed=2)
        beta = reference().posterior["beta"].values
        assert not np.any(other.posterior["beta"].values == beta)
        assert not np.any(beta[0] == beta[1])


class TestStep:
    def test_returns_a_new_point_in_the_same_order(self):
        step, point = quick_step(), dict(reversed(selection().initial_point().items()))
        before = copy.deepcopy(point)
        for array in point.values():
            array.flags.writeable = False
        step.setup_chain(np.random.default_rng(8), tune=5, draws=5)
        changed = False
        for _ in range(10):
            new, found = step.step(point)
            assert new is not point
            assert list(new) == list(before)
            for name, old in before.items():
                np.testing.assert_array_equal(point[name], old)
                assert new[name].shape == old.shape and new[name].dtype == old.dtype
                if name != "gamma":
                    np.testing.assert_array_equal(new[name], old)
            changed |= bool(np.any(new["gamma"] != before["gamma"]))
            assert list(found[0]) == list(step.stats_dtypes_shapes)
            for name in STATS:
                assert isinstance(found[0][name], float)
        assert changed
        assert new["gamma"].dtype == np.int64 and new["gamma"].shape == (1, 3)

    def test_declared_stats(self):
        declared = dict(amc.RacingGibbs.stats_dtypes_shapes)
        assert declared.pop("warning") == (SamplerWarning, None)
        assert set(declared) == set(STATS)
        assert all(dtype is np.float64 and shape == [] for dtype, shape in declared.values())

    def test_keeps_no_reference_to_the_point(self):
        """Workers overwrite one shared point in place after each draw."""
        step, results = quick_step(), []
        for shared in (False, True):
            step.setup_chain(np.random.default_rng(4), tune=10, draws=20)
            point, values = selection().initial_point(), []
            for k in range(30):
                if k == 10:
                    step.stop_tuning()
                new, _ = step.step(point)
                values.append(np.concatenate([np.ravel(v) for v in new.values()]))
                if shared:
                    for name, value in new.items():
                        point[name][...] = value
                else:
                    point = {name: value.copy() for name, value in new.items()}
            results.append(np.array(values))
        np.testing.assert_array_equal(*results)

    def test_setup_chain_forgets_everything(self):
        step = real_step()
        runs = [draws(step, selection().initial_point(), 15, seed=4, tune=30) for _ in range(2)]
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        for name in STATS:
            np.testing.assert_array_equal(runs[0][1][name], runs[1][1][name])

    def test_steps_without_setup(self):
        values = []
        for rng in (3, np.random.default_rng(3)):
            step = amc.RacingGibbs(
                [selection()["gamma"]], model=selection(), row_logp=selection_logp, rng=rng
            )
            point = selection().initial_point()
            for _ in range(5):
                point, _ = step.step(point)
            values.append(point["gamma"])
        np.testing.assert_array_equal(*values)
        assert np.any(values[0] != selection().initial_point()["gamma"])

    def test_vars(self):
        rv = selection()["gamma"]
        value = selection().rvs_to_values[rv]
        for given in (value, (rv, value)):
            step = amc.RacingGibbs(given, model=selection(), row_logp=selection_logp)
            assert list(step.vars) == [value]
        with selection():
            assert amc.RacingGibbs(row_logp=selection_logp).vars == [value]

    def test_several_transitions_per_draw(self):
        step = quick_step()
        one = draws(step, selection().initial_point(), 60)[1]
        three = draws(step.replace(transitions=3), selection().initial_point(), 60)[1]
        assert 2 < three["race_rows"].mean() / one["race_rows"].mean() < 4.5


class TestPickle:
    def test_round_trip_steps_equally(self):
        step = real_step()
        copied = cloudpickle.loads(cloudpickle.dumps(step))
        one, two = (draws(s, selection().initial_point(), 10, tune=5)[0] for s in (step, copied))
        np.testing.assert_array_equal(one, two)

    def test_no_compiled_code(self):
        step = real_step()
        draws(step, selection().initial_point(), 2)
        spy = SpyPickler(io.BytesIO())
        spy.dump(step)
        assert spy.compiled == []

    def test_state_round_trip(self):
        """Across the end of tuning, with audits, twice from one saved state."""
        step, results = real_step(), []
        step.setup_chain(np.random.default_rng(8), tune=20, draws=30)
        start = selection().initial_point()
        for _ in range(10):
            start, _ = step.step(start)
        state = step.sampling_state
        assert len(cloudpickle.dumps(state)) < 50_000
        copied = copy.deepcopy(state)
        for saved in (None, state, copied):
            if saved is not None:
                step.sampling_state = saved
                assert step.tune
            point, out = start, []
            for k in range(25):
                if k == 10:
                    step.stop_tuning()
                point, (found,) = step.step(point)
                out += [found[n] for n in STATS]
                out += list(np.ravel(point["gamma"]))
            results.append(out)
        assert results[0] == results[1] == results[2]


class TestCompound:
    def test_with_nuts(self, tmp_path):
        """Statistics of three kinds of steps in one data set."""
        with selection():
            steps = [real_step(), pm.NUTS([selection()["beta"]], mode=interpreted_mode())]
        idata = run(steps)
        assert np.all(np.ptp(idata.posterior["gamma"].values, axis=1).max(axis=-1) > 0)
        assert idata.posterior["gamma"].dtype == np.int64
        assert idata.posterior["gamma"].shape == (2, 30, 1, 3)
        assert "diverging" in idata.sample_stats
        assert amc.decision_error(idata).loc["all", "audited"] > 0
        idata.to_netcdf(tmp_path / "out.nc", engine="h5netcdf")
        assert_same(idata, az.from_netcdf(tmp_path / "out.nc", engine="h5netcdf"))

    def test_stacked_statistics(self):
        idata = reference()
        for name in RACE_STATS:
            assert idata.sample_stats[name].shape == (2, 30, 2)
        for name in {**METROPOLIS_STATS, **GIBBS_STATS}:
            assert idata.sample_stats[name].shape == (2, 30)
        table = amc.decision_error(idata)
        audited = idata.sample_stats["race_audited"].values
        assert table.loc["all", "audited"] == audited.sum() > 0
        assert table.loc["all", "wrong"] == idata.sample_stats["race_wrong"].values.sum()

    def test_progress_bar(self, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "200")
        run(with_other(quick_step()), progressbar=True, quiet=False)
        shown = capsys.readouterr().out
        assert "Rows read" in shown and "%" in shown

    def test_share_of_rows(self):
        step = quick_step()
        columns, start = step._progressbar_config(3)
        assert [c.get_table_column().header for c in columns] == ["Rows read"]
        (update,) = step._make_progressbar_update_functions()
        assert update({"race_rows": 0.25 * N_ROWS * 3}) == {"share": 0.25}
        assert set(start) == {"share"}

    def test_not_blocked(self):
        with pm.Model() as model:
            a, b = pm.Bernoulli("a", 0.5), pm.Bernoulli("b", 0.5)
            pm.Normal("obs", 0.1 * (a + b), 1, observed=np.zeros(300))

        def logp(point, rows):
            return -0.5 * (0.1 * (point["a"] + point["b"])) ** 2 * np.ones(rows.size)

        step = amc.RacingGibbs(model=model, row_logp=logp, blocked=False)
        assert isinstance(step, CompoundStep)
        assert [[v.name for v in m.vars] for m in step.methods] == [["a"], ["b"]]


class TestRegistration:
    def test_never_picked_unasked(self):
        assert issubclass(amc.RacingGibbs, BlockedStep) and amc.RacingGibbs not in STEP_METHODS
        for rv in selection().free_RVs:
            assert amc.RacingGibbs.competence(rv) == Competence.INCOMPATIBLE
        assert amc.RacingGibbs.name == real_step().name == "racing_gibbs"

    def test_rest_is_assigned(self):
        steps, selected = assign_step_methods(selection(), real_step())
        assert steps == [real_step()] and len(set(selected)) == 1


class TestData:
    @pytest.mark.parametrize("name", ["X", "y", "p"])
    def test_changed_data_are_refused(self, name):
        """Those of the rows and those of the prior."""
        step, old = real_step(), selection()[name].get_value()
        try:
            pm.set_data({name: 0.9 * old}, model=selection())
            with pytest.raises(ValueError, match=rf"data .*\b{name}\b.* have changed.*a new one"):
                step.setup_chain(np.random.default_rng(1), 5, 5)
        finally:
            pm.set_data({name: old}, model=selection())
        step.setup_chain(np.random.default_rng(1), 5, 5)

    def test_initval_of_the_chain(self):
        idata = run(
            with_other(quick_step()),
            initvals={"gamma": np.zeros((1, 3), dtype=int)},
            tune=0,
            draws=1,
            chains=1,
        )
        assert idata.posterior.sizes["draw"] == 1
