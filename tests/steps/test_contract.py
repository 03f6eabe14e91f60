"""What PyMC asks of a step method, on `amc.RacingMetropolis`, and what its own steps are tested for."""

from __future__ import annotations

import copy
import io
import multiprocessing
import subprocess
import sys

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.mcmc import assign_step_methods
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence, CompoundStep
from pytensor.compile.executor import Function
from threadpoolctl import threadpool_info, threadpool_limits

import amc_pymc as amc

from amc_pymc.engine.first_class import FirstClassFunction
from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.results.tables import METROPOLIS_STATS, RACE_STATS, STEP_STATS

#: Statistics of NUTS that are times.
CLOCKS = {"perf_counter_diff", "perf_counter_start", "process_time_diff"}
#: Long enough for a step without a control variate to find its scale.
STATS = RACE_STATS | STEP_STATS | METROPOLIS_STATS
LONG = {"tune": 300, "draws": 100}
#: For functions that PyTensor interprets.
SHORT = {"tune": 100, "draws": 40}


def assert_same(one, other):
    """Equal draws and statistics, those of the tuning too if they are there."""
    for group in set(one.children) & {
        "posterior",
        "sample_stats",
        "warmup_posterior",
        "warmup_sample_stats",
    }:
        mine, theirs = one[group].to_dataset(), other[group].to_dataset()
        assert set(mine.data_vars) == set(theirs.data_vars), group
        for name in set(mine.data_vars) - CLOCKS:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=f"{group}.{name}")


def moves(values, axis=1) -> bool:
    """Whether every chain has moved."""
    return bool(np.all(np.ptp(np.asarray(values), axis=axis) > 0))


def walk(step, point, n):
    """``n`` draws of a step, outside of pm.sample: values of its point and statistics."""
    values, stats = [], []
    for _ in range(n):
        point, (stat,) = step.step(point)
        values.append(np.concatenate([np.ravel(v) for v in point.values()]))
        stats.append([stat[name] for name in STATS])
    return point, np.array(values), np.array(stats)


@pytest.fixture
def begun(linear, linear_step):
    """The step at the start of a chain, and the point it starts from."""
    linear_step.setup_chain(np.random.default_rng(8), tune=20, draws=30)
    return linear_step, linear.initial_point()


def threads_after_setup(step, connection):
    """Threads of linear algebra in a process whose libraries had two before a chain was begun there."""
    threadpool_limits(2, "blas")
    step.setup_chain(np.random.default_rng(1), tune=1, draws=1)
    connection.send([lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"])


def test_a_chain_in_a_process_of_its_own_has_one_thread(linear_step):
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=threads_after_setup, args=(linear_step, there))
    process.start()
    assert here.poll(60)
    found = here.recv()
    process.join()
    assert found and set(found) == {1}


class TestSeed:
    @pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    def test_same_seed_same_draws_in_parallel(self, run, linear, linear_step, reference, mp_ctx):
        again = run(
            linear, linear_step, chains=4, cores=2, mp_ctx=mp_ctx, discard_tuned_samples=False
        )
        assert_same(reference, again)

    def test_same_seed_same_draws_in_spawned_workers(self, run, normal, row_logp):
        """Quick, for there is little to compile in each worker."""
        step = amc.RacingMetropolis(model=normal, row_logp=row_logp)
        alone = run(normal, step)
        assert_same(alone, run(normal, step, cores=2, mp_ctx="spawn"))

    def test_step_is_reused(self, run, linear, linear_step, reference):
        run(linear, linear_step, seed=9, chains=1)
        again = run(linear, linear_step, chains=4, discard_tuned_samples=False)
        assert_same(reference, again)

    def test_new_step_same_draws(self, run, linear, reference):
        step = amc.RacingMetropolis(model=linear)
        assert_same(reference, run(linear, step, chains=4, discard_tuned_samples=False))

    def test_other_seed_other_draws(self, run, linear, linear_step, reference):
        other = run(linear, linear_step, seed=2, chains=4)
        for name in ("beta", "sigma"):
            assert not np.any(other.posterior[name].values == reference.posterior[name].values)

    def test_chains_differ(self, reference):
        draws = reference.posterior["sigma"].values
        for k in range(4):
            for j in range(k):
                assert not np.any(draws[k] == draws[j])

    def test_global_numpy_seed_is_left_alone(self, run, normal, row_logp):
        results = []
        for seed in (1, 2):
            np.random.seed(seed)
            before = np.random.get_state()[1].copy()
            step = amc.RacingMetropolis(model=normal, row_logp=row_logp)
            results.append(run(normal, step, chains=1))
            np.testing.assert_array_equal(before, np.random.get_state()[1])
        assert_same(*results)

    def test_list_of_seeds(self, run, linear, linear_step):
        one = run(linear, linear_step, seed=[11, 12])
        assert_same(one, run(linear, linear_step, seed=[11, 12]))


class TestTuning:
    def test_reset_between_chains(self, reference):
        """Every chain starts from the same settings, whatever chains before it have learned."""
        scaling = reference.warmup_sample_stats["scaling"].values[:, 0]
        recentred = reference.warmup_sample_stats["race_recentred"].values[:, 0]
        start = np.ptp(scaling) / scaling[0]
        assert start < 0.5  # one adaptation step, not fifty
        assert not recentred.any()

    def test_setup_chain_forgets_everything(self, linear, linear_step):
        runs = []
        for _ in range(2):
            linear_step.setup_chain(np.random.default_rng(4), tune=30, draws=10)
            assert linear_step.tune
            point, *tuning = walk(linear_step, linear.initial_point(), 30)
            linear_step.stop_tuning()
            assert not linear_step.tune
            runs.append([*tuning, *walk(linear_step, point, 10)[1:]])
        for one, two in zip(*runs):
            np.testing.assert_array_equal(one, two)

    def test_scale_is_frozen_after_tuning(self, reference):
        scaling = reference.sample_stats["scaling"].values
        np.testing.assert_array_equal(scaling, scaling[:, :1].repeat(50, axis=1))

    def test_scale_adapts_while_tuning(self, run, normal, row_logp):
        step = amc.RacingMetropolis(model=normal, row_logp=row_logp, proposal="random_walk")
        scaling = run(normal, step, discard_tuned_samples=False).warmup_sample_stats["scaling"]
        assert moves(scaling)

    @pytest.mark.parametrize("draws", [1, 7])
    def test_without_tuning(self, run, linear, linear_step, draws):
        idata = run(linear, linear_step, tune=0, draws=draws, chains=1)
        assert idata.posterior.sizes["draw"] == draws
        assert np.all(np.isfinite(idata.posterior["beta"]))
        again = run(linear, linear_step, tune=0, draws=draws, chains=1, cores=2, mp_ctx="fork")
        assert_same(idata, again)

    @pytest.mark.parametrize("tune", [1, 2, 10])
    def test_short_tuning_and_one_draw(self, run, linear, linear_step, tune):
        idata = run(linear, linear_step, tune=tune, draws=1, chains=1)
        assert idata.posterior.sizes["draw"] == 1


class TestStep:
    def test_returns_new_point_in_the_same_order(self, begun):
        step, point = begun
        reordered = dict(reversed(point.items()))
        before = copy.deepcopy(reordered)
        for array in reordered.values():
            array.flags.writeable = False
        new, _ = step.step(reordered)
        assert new is not reordered
        assert list(new) == list(before)
        for name, old in before.items():
            np.testing.assert_array_equal(reordered[name], old)
            assert isinstance(new[name], np.ndarray)
            assert new[name].shape == old.shape
            assert new[name].dtype == old.dtype

    def test_one_dict_of_declared_stats(self, begun):
        step, point = begun
        for _ in range(30):
            point, stats = step.step(point)
            assert len(stats) == 1
            assert list(stats[0]) == list(step.stats_dtypes_shapes)
            for name in STATS:
                assert np.ndim(stats[0][name]) == 0
                assert isinstance(stats[0][name], float)

    def test_declared_stats(self):
        declared = dict(amc.RacingMetropolis.stats_dtypes_shapes)
        # NUTS declares this one in just this way; another would clash in a compound step.
        assert declared.pop("warning") == (SamplerWarning, None)
        assert set(declared) == set(STATS)
        assert all(dtype is np.float64 and shape == [] for dtype, shape in declared.values())

    def test_keeps_no_reference_to_the_point(self, linear, linear_step):
        """Workers overwrite one shared point in place after each draw."""
        results = []
        for shared in (False, True):
            linear_step.setup_chain(np.random.default_rng(4), tune=20, draws=20)
            point, values = linear.initial_point(), []
            for k in range(40):
                if k == 20:
                    linear_step.stop_tuning()
                new, _ = linear_step.step(point)
                values.append(np.concatenate([np.ravel(v) for v in new.values()]))
                if shared:
                    for name, value in new.items():
                        point[name][...] = value
                else:
                    point = {name: value.copy() for name, value in new.items()}
            results.append(np.array(values))
        np.testing.assert_array_equal(*results)

    def test_leaves_other_variables_alone(self, linear, beta_step):
        beta_step.setup_chain(np.random.default_rng(8), tune=20, draws=30)
        start = linear.initial_point()
        point, values, _ = walk(beta_step, start, 50)
        np.testing.assert_array_equal(point["sigma_log__"], start["sigma_log__"])
        assert np.ptp(values[:, 0]) > 0

    def test_steps_without_setup(self, normal, row_logp):
        step = amc.RacingMetropolis(model=normal, row_logp=row_logp, rng=1)
        _, values, _ = walk(step, normal.initial_point(), 20)
        assert np.ptp(values) > 0

    def test_rng_argument_seeds_it(self, normal, row_logp):
        values = []
        for rng in (3, np.random.default_rng(3)):
            step = amc.RacingMetropolis(model=normal, row_logp=row_logp, rng=rng)
            values.append(walk(step, normal.initial_point(), 10)[1])
        np.testing.assert_array_equal(*values)


class TestVars:
    def test_default_is_all(self, linear, linear_step):
        assert linear_step.vars == linear.value_vars

    def test_random_variables_become_value_variables(self, linear, beta_step, sigma_step):
        assert beta_step.vars == [linear.rvs_to_values[linear["beta"]]]
        assert [v.name for v in sigma_step.vars] == ["sigma_log__"]

    @pytest.mark.parametrize("as_list", [True, False])
    @pytest.mark.parametrize("value", [True, False])
    def test_both_kinds_alone_or_in_a_list(self, normal, row_logp, as_list, value):
        var = normal.rvs_to_values[normal["mu"]] if value else normal["mu"]
        step = amc.RacingMetropolis([var] if as_list else var, model=normal, row_logp=row_logp)
        assert step.vars == normal.value_vars

    def test_vars_as_keyword(self, normal, row_logp):
        step = amc.RacingMetropolis(vars=(normal["mu"],), model=normal, row_logp=row_logp)
        assert list(step.vars) == normal.value_vars

    def test_model_of_the_context(self, normal, row_logp):
        with normal:
            assert amc.RacingMetropolis(row_logp=row_logp).vars == normal.value_vars


class TestCompound:
    def test_with_nuts(self, run, linear, beta_step, tmp_path):
        with linear:
            steps = [beta_step, pm.NUTS([linear["sigma"]], mode=interpreted_mode())]
        idata = run(linear, steps, **SHORT)
        assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])
        assert idata.sample_stats["race_rows"].dims == ("chain", "draw")
        assert "diverging" in idata.sample_stats
        idata.to_netcdf(tmp_path / "nuts.nc", engine="h5netcdf")
        with linear:  # a used NUTS would go on from what it has learned
            steps = [beta_step, pm.NUTS([linear["sigma"]], mode=interpreted_mode())]
        assert_same(idata, run(linear, steps, cores=2, mp_ctx="fork", **SHORT))

    def test_rest_is_assigned_to_nuts(self, linear, beta_step):
        steps, selected = assign_step_methods(linear, beta_step)
        assert steps == [beta_step]
        assert selected == {pm.NUTS: [linear.rvs_to_values[linear["sigma"]]]}

    def test_with_metropolis(self, run, linear, beta_step, tmp_path):
        """It has statistics of the same names: they get a trailing dimension."""
        with linear:
            steps = [beta_step, pm.Metropolis([linear["sigma"]], scaling=0.05)]
        idata = run(linear, steps, **LONG)
        assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])
        assert idata.sample_stats["accept"].shape == (2, 100, 2)
        assert idata.sample_stats["race_rows"].shape == (2, 100)
        idata.to_netcdf(tmp_path / "metropolis.nc", engine="h5netcdf")

    def test_two_of_them(self, run, linear, beta_step, sigma_step, tmp_path):
        idata = run(linear, [beta_step, sigma_step], **LONG)
        assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])
        for name in STATS:
            assert idata.sample_stats[name].shape == (2, 100, 2)
            assert idata.sample_stats[name].dtype == np.float64
        idata.to_netcdf(tmp_path / "two.nc", engine="h5netcdf")
        back = az.from_netcdf(tmp_path / "two.nc", engine="h5netcdf")
        assert_same(idata, back)

    def test_not_blocked(self, run, linear):
        step = amc.RacingMetropolis(model=linear, blocked=False, proxy=None)
        assert isinstance(step, CompoundStep)
        assert step.name == "Compound[racing_metropolis, racing_metropolis]"
        assert [[v.name for v in m.vars] for m in step.methods] == [["beta"], ["sigma_log__"]]
        idata = run(linear, step, **LONG)
        assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])
        assert_same(idata, run(linear, step, cores=2, mp_ctx="fork", **LONG))

    def test_not_blocked_with_one_variable(self, normal, row_logp):
        step = amc.RacingMetropolis(model=normal, blocked=False, row_logp=row_logp)
        assert isinstance(step, amc.RacingMetropolis)


class TestRegistration:
    def test_name(self, linear_step):
        assert isinstance(linear_step, BlockedStep)
        assert amc.RacingMetropolis.name == linear_step.name == "racing_metropolis"

    def test_competence(self, linear):
        for rv in linear.free_RVs:
            for has_grad in (True, False):
                found = amc.RacingMetropolis.competence(rv, has_grad)
                assert found == Competence.INCOMPATIBLE
            assert amc.RacingMetropolis.competence(rv) == Competence.INCOMPATIBLE

    def test_never_picked_unasked(self, linear):
        assert amc.RacingMetropolis not in STEP_METHODS
        _, selected = assign_step_methods(linear)
        assert set(selected) == {pm.NUTS}

    def test_import_registers_nothing(self):
        code = (
            "from pymc.step_methods import STEP_METHODS; before = list(STEP_METHODS); "
            "import amc_pymc; assert STEP_METHODS == before"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


class TestState:
    def test_round_trip(self, begun):
        """Across the end of tuning, with audits, twice from one saved state."""
        step, point = begun
        point, *_ = walk(step, point, 10)
        state = step.sampling_state
        copied = copy.deepcopy(state)
        results = []
        for saved in (None, state, copied, state):
            if saved is not None:
                step.sampling_state = saved
                assert step.tune
            tuning = walk(step, point, 10)
            step.stop_tuning()
            results.append([*tuning[1:], *walk(step, tuning[0], 30)[1:]])
        for other in results[1:]:
            for one, two in zip(results[0], other):
                np.testing.assert_array_equal(one, two)

    def test_state_is_small(self, begun):
        """It is copied for every chain, so nothing as long as the data may be in it."""
        step, point = begun
        walk(step, point, 5)
        assert len(cloudpickle.dumps(step.sampling_state)) < 50_000

    def test_of_another_step_is_refused(self, beta_step, sigma_step):
        with pytest.raises(ValueError, match="var_names"):
            beta_step.sampling_state = sigma_step.sampling_state


class SpyPickler(cloudpickle.Pickler):
    """Notes compiled code and large arrays on their way."""

    def __init__(self, file):
        super().__init__(file)
        self.compiled = []

    def reducer_override(self, obj):
        if isinstance(obj, Function | Dispatcher | CFunc | FirstClassFunction):
            # amc_pymc's own kernels are pickled by reference
            if not getattr(obj, "__module__", "").startswith("amc_pymc"):
                self.compiled.append(obj)
        return super().reducer_override(obj)


class TestPickle:
    def test_round_trip_steps_equally(self, linear, linear_step):
        copied = cloudpickle.loads(cloudpickle.dumps(linear_step))
        values = []
        for step in (linear_step, copied):
            step.setup_chain(np.random.default_rng(2), tune=10, draws=10)
            values.append(walk(step, linear.initial_point(), 20)[1:])
        for one, two in zip(*values):
            np.testing.assert_array_equal(one, two)

    def test_no_compiled_code(self, linear_step, begun):
        begun[0].step(begun[1])
        spy = SpyPickler(io.BytesIO())
        spy.dump(linear_step)
        assert spy.compiled == []

    def test_data_are_not_copied(self):
        rng = np.random.default_rng(0)
        n_rows = 200_000
        covariates, noise = rng.normal(size=(n_rows, 2)), rng.normal(size=n_rows)
        with pm.Model() as model:
            x, y = pm.Data("X", covariates), pm.Data("y", covariates.sum(axis=1) + noise)
            pm.Normal("obs", x @ pm.Normal("beta", 0, 2, size=2), 1, observed=y)
            step = amc.RacingMetropolis()
        size = len(cloudpickle.dumps(step))
        data = covariates.nbytes + noise.nbytes
        assert size < 1.2 * data + 2e6, f"{size} bytes for {data} bytes of data"
        step.setup_chain(np.random.default_rng(2), tune=5, draws=5)
        walk(step, model.initial_point(), 5)
        assert len(cloudpickle.dumps(step)) < size + 100_000


class TestModels:
    def test_initval(self, run):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 2, initval=1.5)
            pm.Normal("obs", mu, 1, observed=np.random.default_rng(5).normal(size=500))
        step = amc.RacingMetropolis(model=model)
        idata = run(model, step)
        assert moves(idata.posterior["mu"])
        assert_same(idata, run(model, step, cores=2, mp_ctx="fork"))
        cloudpickle.loads(cloudpickle.dumps(step))

    def test_initvals_of_sample(self, run, normal, row_logp):
        """Far from where the step was made; without tuning the chain starts right there."""
        step = amc.RacingMetropolis(model=normal, row_logp=row_logp)
        idata = run(normal, step, initvals={"mu": 4.0}, tune=0, draws=1, chains=1)
        assert abs(idata.posterior["mu"].item() - 4.0) < 1.5

    def test_frozen(self, run, linear, reference):
        frozen = freeze_dims_and_data(linear)
        step = amc.RacingMetropolis(model=frozen)
        idata = run(frozen, step, chains=4)
        for name in ("beta", "sigma"):
            np.testing.assert_allclose(
                idata.posterior[name].mean(("chain", "draw")),
                reference.posterior[name].mean(("chain", "draw")),
                atol=0.02,
            )

    def test_discrete_variable_gets_a_step_of_its_own(self, run):
        with pm.Model() as model:
            k = pm.Poisson("k", 3.0)
            mu = pm.Normal("mu", 0.2 * k, 1.0)
            pm.Normal("obs", mu, 1, observed=np.random.default_rng(5).normal(size=500))
            step = amc.RacingMetropolis()
        assert [v.name for v in step.vars] == ["mu"]
        steps, selected = assign_step_methods(model, step)
        assert steps == [step] and set(selected) == {pm.Metropolis}
        idata = run(model, step)
        assert moves(idata.posterior["mu"]) and moves(idata.posterior["k"])
        assert idata.posterior["k"].dtype == np.int64
        point = model.initial_point()
        step.setup_chain(np.random.default_rng(1), 5, 5)
        new, _ = step.step(point)
        assert new["k"].dtype == point["k"].dtype and new["k"] == point["k"]

    def test_data_changed_after_the_step_was_made(self, run, linear, linear_step, reference):
        old = linear["y"].get_value()
        try:
            pm.set_data({"y": old + 1.0}, model=linear)
            with pytest.raises(ValueError, match=r"data .*y.* have changed.*Make a new one"):
                run(linear, linear_step)
            with pytest.raises(ValueError, match=r"have changed"):
                linear_step.setup_chain(np.random.default_rng(1), 5, 5)
        finally:
            pm.set_data({"y": old}, model=linear)
        assert_same(reference, run(linear, linear_step, chains=4, discard_tuned_samples=False))


class TestResult:
    def test_posterior_carries_dims_and_coords(self, reference):
        assert reference.posterior["beta"].dims == ("chain", "draw", "column")
        assert reference.posterior["column"].values.tolist() == ["constant", "slope"]

    def test_sample_stats(self, reference):
        stats = reference.sample_stats.to_dataset()
        assert set(stats.data_vars) == set(STATS)
        for name in STATS:
            assert stats[name].dtype == np.float64
            assert stats[name].dims == ("chain", "draw")
        assert np.all((stats["accept"] >= 0) & (stats["accept"] <= 1))
        assert np.all(stats["accepted"].isin([0.0, 1.0]))
        assert np.all((stats["race_rows"] >= 0) & (stats["race_rows"] <= 1000))
        assert np.all(stats["race_exact"].isin([0.0, 1.0]))
        assert np.all(stats["race_delta"] == 0.05 * (1.0 - stats["race_exact"]))
        assert np.all(stats["race_wrong"] <= stats["race_audited"])
        assert moves(reference.posterior["beta"]) and moves(reference.posterior["sigma"])

    def test_accepted_is_moved(self, reference):
        accepted = reference.sample_stats["accepted"].values[:, 1:] == 1.0
        moved = np.diff(reference.posterior["sigma"].values, axis=1) != 0
        np.testing.assert_array_equal(accepted, moved)

    def test_warning_stat_can_be_kept(self, run, linear, linear_step):
        idata = run(linear, linear_step, keep_warning_stat=True)
        assert "warning" in idata.sample_stats

    def test_netcdf(self, reference, tmp_path):
        reference.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
        assert_same(reference, az.from_netcdf(tmp_path / "draws.nc", engine="h5netcdf"))

    @pytest.mark.filterwarnings("ignore:`return_inferencedata=False` is deprecated:FutureWarning")
    def test_multitrace(self, run, linear, linear_step, reference):
        trace = run(linear, linear_step, chains=4, return_inferencedata=False)
        assert isinstance(trace, pm.backends.base.MultiTrace)
        beta = np.array(trace.get_values("beta", combine=False))
        np.testing.assert_array_equal(beta, reference.posterior["beta"].values)
        rows = np.array(trace.get_sampler_stats("race_rows", combine=False))
        np.testing.assert_array_equal(rows, reference.sample_stats["race_rows"].values)

    def test_summary(self, reference):
        summary = az.summary(reference)
        assert {"beta[slope]", "sigma"} <= set(summary.index)

    def test_forward_sampling(self, linear, reference):
        some = reference.isel(draw=slice(10))
        with linear:
            predicted = pm.sample_posterior_predictive(some, random_seed=1, progressbar=False)
            pointwise = pm.compute_log_likelihood(
                some, extend_inferencedata=False, progressbar=False
            )
        assert predicted.posterior_predictive["obs"].shape == (4, 10, 1000)
        assert pointwise["obs"].shape == (4, 10, 1000)
        assert np.all(np.isfinite(pointwise["obs"]))

    def test_several_transitions_per_draw(self, run, normal):
        raced, triple = (
            amc.RacingMetropolis(model=normal, race="normal", transitions_per_draw=n)
            for n in (1, 3)
        )
        one = run(normal, raced, chains=4).sample_stats
        three = run(normal, triple, chains=4).sample_stats
        ratio = float(three["race_rows"].mean() / one["race_rows"].mean())
        assert 2.4 < ratio < 3.6
        assert np.all(three["race_rounds"] >= 3 * (three["race_rows"] > 0))
        assert np.all(three["accept"] <= 1.0)
        assert set(np.unique(np.round(3 * three["accepted"], 9))) <= {0.0, 1.0, 2.0, 3.0}
        scale = three["accepted"].mean() / one["accepted"].mean()
        assert 0.7 < float(scale) < 1.4


class TestInterruption:
    @pytest.mark.parametrize("cores", [1, 2])
    def test_returns_the_draws_so_far(self, run, linear, linear_step, reference, cores):
        def stop(trace, draw):
            if draw.chain == 0 and draw.draw_idx == 30:
                raise KeyboardInterrupt

        idata = run(
            linear, linear_step, chains=1, tune=10, cores=cores, mp_ctx="fork", callback=stop
        )
        assert 15 <= idata.posterior.sizes["draw"] <= 25
        assert_same(reference, run(linear, linear_step, chains=4, discard_tuned_samples=False))


class TestProgressBar:
    @pytest.mark.parametrize("cores", [1, 2])
    def test_columns(self, run, linear, linear_step, monkeypatch, capsys, cores):
        monkeypatch.setenv("COLUMNS", "200")
        run(linear, linear_step, progressbar=True, quiet=False, cores=cores, mp_ctx="fork")
        shown = capsys.readouterr().out
        assert "Accept" in shown and "Rows read" in shown
        assert "%" in shown

    @pytest.mark.parametrize("progressbar", ["combined", "split", "combined+stats"])
    def test_other_kinds(self, run, linear, linear_step, monkeypatch, capsys, progressbar):
        monkeypatch.setenv("COLUMNS", "200")
        run(linear, linear_step, progressbar=progressbar, quiet=False)
        assert "draws/s" in capsys.readouterr().out

    def test_in_a_compound_step(self, run, linear, beta_step, sigma_step, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "200")
        with linear:
            other = pm.Metropolis([linear["sigma"]])
        for steps in ([beta_step, sigma_step], [beta_step, other], [other, beta_step]):
            run(linear, steps, progressbar=True, quiet=False)
            assert "Rows read" in capsys.readouterr().out

    def test_share_of_rows(self, linear_step):
        columns, start = linear_step._progressbar_config(3)
        assert [c.get_table_column().header for c in columns] == ["Accept", "Rows read"]
        assert all(len(v) == 3 for v in start.values())
        (update,) = linear_step._make_progressbar_update_functions()
        shown = update({"accept": 0.5, "race_rows": 250.0})
        assert set(shown) == set(start)
        assert shown["share"] == 0.25
