"""What PyMC asks of a step method, on the racing steps, and what its own steps are tested for."""

from __future__ import annotations

import copy
import functools
import multiprocessing

from collections.abc import Callable
from typing import Any, NamedTuple

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.mcmc import assign_step_methods
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence, CompoundStep
from steps.conftest import assert_same, linear_model, normal_model, sample
from threadpoolctl import threadpool_info, threadpool_limits

import amc_pymc as amc

from amc_pymc.reading.graphs import INTERPRETED
from amc_pymc.results.tables import GIBBS_STATS, METROPOLIS_STATS, RACE_STATS, STEP_STATS
from amc_pymc.tall.samplers import metropolis

STATS = RACE_STATS | STEP_STATS | METROPOLIS_STATS
#: Long enough for a step to find its scale.
LONG = {"tune": 300, "draws": 100}


#: For functions that PyTensor interprets.
SHORT = {"tune": 100, "draws": 40}


def moves(values, axis=1) -> bool:
    """Whether every chain has moved."""
    return bool(np.all(np.ptp(np.asarray(values), axis=axis) > 0))


def walk(step, point, n):
    """``n`` draws of a step, outside of pm.sample: its last point, values of all, and statistics."""
    values, stats = [], []
    for _ in range(n):
        point, (stat,) = step.step(point)
        values.append(np.concatenate([np.ravel(v) for v in point.values()]))
        stats.append([stat[name] for name in stat if name != "warning"])
    return point, np.array(values), np.array(stats)


# --- two models, and steps for them ---------------------------------------------------------------

N_ROWS = 800


@functools.cache
def selection_arrays():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(N_ROWS, 3))
    return X, X @ [0.1, -0.06, 0.05] + rng.normal(size=N_ROWS)


def selection_model():
    """Indicators (2D with one row, to see that shapes are kept) and coefficients."""
    X, y = selection_arrays()
    with pm.Model(coords={"column": ["a", "b", "c"]}) as out:
        x_data, y_data, p = pm.Data("X", X), pm.Data("y", y), pm.Data("p", np.array(0.5))
        gamma = pm.Bernoulli("gamma", p, shape=(1, 3), initval=np.ones((1, 3), dtype=int))
        beta = pm.Normal("beta", 0.05, 0.2, dims="column")
        pm.Normal("obs", x_data @ (gamma[0] * beta), 1, observed=y_data, shape=y_data.shape)
    return out


class Case(NamedTuple):
    """A step of a model's variable, one that is quick to compile, and a step for the rest.

    ``data`` are those that may change, ``drawn`` the variables of the step.
    """

    model: pm.Model
    step: Any
    quick: Callable[..., Any]
    rest: tuple[Any, ...]
    stats: dict[str, Any]
    data: tuple[str, ...]
    drawn: tuple[str, ...]

    def run(self, **kwargs):
        settings = {"draws": 30, "tune": 30, "discard_tuned_samples": False} | kwargs
        return sample(self.model, [self.step, *self.rest], **settings)


@functools.cache
def case_of(name) -> Case:
    if name == "metropolis":
        model = linear_model()
        quick = functools.partial(amc.RacingMetropolis, model=model, audits=20)
        step, drawn = amc.RacingMetropolis(model=model), ("beta", "sigma_log__")
        return Case(model, step, quick, (), STATS, ("X", "y"), drawn)
    model = selection_model()
    own = {"model": model, "audits": 20}
    quick = functools.partial(amc.RacingGibbs, ["gamma"], **own)
    rest = amc.RacingMetropolis(["beta"], **own)
    stats = RACE_STATS | STEP_STATS | GIBBS_STATS
    step = amc.RacingGibbs(["gamma"], **own)
    return Case(model, step, quick, (rest,), stats, ("X", "y", "p"), ("gamma",))


@functools.cache
def quick_of(name):
    return case_of(name).quick()


@functools.cache
def reference_of(name):
    return case_of(name).run()


@pytest.fixture(params=["metropolis", "gibbs"])
def name(request):
    return request.param


@pytest.fixture
def case(name):
    return case_of(name)


# --- seeds ----------------------------------------------------------------------------------------


def test_same_seed_same_draws_in_parallel(name, case):
    assert_same(reference_of(name), case.run(cores=2, mp_ctx="fork"))


@pytest.mark.slow
def test_same_seed_same_draws_in_spawned_workers(run, normal):
    """Quick, for there is little to compile in each worker."""
    step = amc.RacingMetropolis(model=normal)
    alone = run(normal, step)
    assert_same(alone, run(normal, step, cores=2, mp_ctx="spawn"))


def test_a_step_is_reused(name, case):
    case.run(seed=9, chains=1)
    assert_same(reference_of(name), case.run())


def test_other_seeds_and_chains_differ(name, case):
    other = case.run(seed=2)
    beta = reference_of(name).posterior["beta"].values
    assert not np.any(other.posterior["beta"].values == beta)
    assert not np.any(beta[0] == beta[1])


def test_global_numpy_seed_is_left_alone(run, normal):
    results = []
    for seed in (1, 2):
        np.random.seed(seed)
        before = np.random.get_state()[1].copy()
        step = amc.RacingMetropolis(model=normal)
        results.append(run(normal, step, chains=1))
        np.testing.assert_array_equal(before, np.random.get_state()[1])
    assert_same(*results)


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


# --- tuning ----------------------------------------------------------------------------------------


def test_scale_is_frozen_after_tuning(reference):
    scaling = reference.sample_stats["scaling"].values
    np.testing.assert_array_equal(scaling, scaling[:, :1].repeat(50, axis=1))


@pytest.mark.parametrize(("tune", "draws"), [(0, 1), (0, 7), (1, 1)])
def test_short_runs(run, linear, linear_step, tune, draws):
    idata = run(linear, linear_step, tune=tune, draws=draws, chains=1)
    assert idata.posterior.sizes["draw"] == draws
    assert np.all(np.isfinite(idata.posterior["beta"]))


# --- steps ----------------------------------------------------------------------------------------


def test_returns_a_new_point_in_the_same_order(name, case):
    step, point = quick_of(name), dict(reversed(case.model.initial_point().items()))
    before, changed = copy.deepcopy(point), False
    for array in point.values():
        array.flags.writeable = False
    step.setup_chain(np.random.default_rng(8), tune=5, draws=5)
    for _ in range(20):
        new, (stats,) = step.step(point)
        assert new is not point and list(new) == list(before)
        for var, old in before.items():
            np.testing.assert_array_equal(point[var], old)
            assert new[var].shape == old.shape and new[var].dtype == old.dtype
            if var not in case.drawn:
                np.testing.assert_array_equal(new[var], old)
        changed |= any(np.any(new[var] != before[var]) for var in case.drawn)
        assert list(stats) == list(step.stats_dtypes_shapes)
        assert all(isinstance(stats[s], float) for s in case.stats)
    assert changed


def test_declared_stats(case):
    declared = dict(case.step.stats_dtypes_shapes)
    # NUTS declares this one in just this way; another would clash in a compound step.
    assert declared.pop("warning") == (SamplerWarning, None)
    assert set(declared) == set(case.stats)
    assert all(dtype is np.float64 and shape == [] for dtype, shape in declared.values())


def test_keeps_no_reference_to_the_point(name, case):
    """Workers overwrite one shared point in place after each draw."""
    step, results = quick_of(name), []
    for shared in (False, True):
        step.setup_chain(np.random.default_rng(4), tune=20, draws=20)
        point, values = case.model.initial_point(), []
        for k in range(40):
            if k == 20:
                step.stop_tuning()
            new, _ = step.step(point)
            values.append(np.concatenate([np.ravel(v) for v in new.values()]))
            if shared:
                for var, value in new.items():
                    point[var][...] = value
            else:
                point = {var: value.copy() for var, value in new.items()}
        results.append(np.array(values))
    np.testing.assert_array_equal(*results)


def test_a_step_without_setup_takes_its_own_generator(case):
    values = []
    for rng in (3, np.random.default_rng(3)):
        values.append(walk(case.quick(rng=rng), case.model.initial_point(), 10)[1])
    np.testing.assert_array_equal(*values)
    assert np.ptp(values[0], axis=0).max() > 0


# --- variables -------------------------------------------------------------------------------------


def test_model_of_the_context(normal):
    with normal:
        assert amc.RacingMetropolis().vars == normal.value_vars


# --- states and pickles ---------------------------------------------------------------------------


def test_a_state_round_trips(case):
    """Across the end of tuning, with audits, twice from one saved state."""
    case.step.setup_chain(np.random.default_rng(8), tune=20, draws=30)
    point, *_ = walk(case.step, case.model.initial_point(), 10)
    state, results = case.step.sampling_state, []
    assert len(cloudpickle.dumps(state)) < 50_000  # nothing as long as the data is in it
    copied = copy.deepcopy(state)
    for saved in (None, state, copied, state):
        if saved is not None:
            case.step.sampling_state = saved
            assert case.step.tune
        tuning = walk(case.step, point, 10)
        case.step.stop_tuning()
        results.append([*tuning[1:], *walk(case.step, tuning[0], 30)[1:]])
    for other in results[1:]:
        for one, two in zip(results[0], other):
            np.testing.assert_array_equal(one, two)


def test_a_pickle_steps_equally(case):
    copied, values = cloudpickle.loads(cloudpickle.dumps(case.step)), []
    for step in (case.step, copied):
        step.setup_chain(np.random.default_rng(2), tune=10, draws=10)
        values.append(walk(step, case.model.initial_point(), 20)[1:])
    for one, two in zip(*values):
        np.testing.assert_array_equal(one, two)


# --- compound steps --------------------------------------------------------------------------------


def test_rest_is_assigned_to_nuts(linear, beta_step):
    steps, selected = assign_step_methods(linear, beta_step)
    assert steps == [beta_step]
    assert selected == {pm.NUTS: [linear.rvs_to_values[linear["sigma"]]]}


@pytest.mark.parametrize("kind", ["racing", pytest.param("pymc", marks=pytest.mark.slow)])
def test_two_of_them(run, linear, beta_step, sigma_step, tmp_path, kind):
    """PyMC's own has statistics of the same names: they get a trailing dimension, too."""
    with linear:
        other = sigma_step if kind == "racing" else pm.Metropolis([linear["sigma"]], scaling=0.05)
    idata = run(linear, [beta_step, other], **LONG)
    assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])
    for name in STATS:
        both = kind == "racing" or name in ("accept", "accepted", "scaling")
        assert idata.sample_stats[name].shape == ((2, 100, 2) if both else (2, 100))
        assert idata.sample_stats[name].dtype == np.float64
    idata.to_netcdf(tmp_path / "two.nc", engine="h5netcdf")
    assert_same(idata, az.from_netcdf(tmp_path / "two.nc", engine="h5netcdf"))


def test_not_blocked(run, linear):
    step = amc.RacingMetropolis(model=linear, blocked=False)
    assert isinstance(step, CompoundStep)
    assert step.name == "Compound[racing_metropolis, racing_metropolis]"
    assert [[v.name for v in m.vars] for m in step.methods] == [["beta"], ["sigma_log__"]]
    idata = run(linear, step, **LONG)
    assert moves(idata.posterior["beta"]) and moves(idata.posterior["sigma"])


def test_stacked_statistics_of_two_kinds():
    idata = reference_of("gibbs")
    for name in RACE_STATS:
        assert idata.sample_stats[name].shape == (2, 30, 2)
    for name in {**METROPOLIS_STATS, **GIBBS_STATS}:
        assert idata.sample_stats[name].shape == (2, 30)
    table = amc.decision_error(idata)
    audited = idata.sample_stats["race_audited"].values
    assert table.loc["all", "audited"] == audited.sum() > 0
    assert table.loc["all", "wrong"] == idata.sample_stats["race_wrong"].values.sum()


# --- registration ---------------------------------------------------------------------------------


def test_never_picked_unasked(case):
    kind = type(case.step)
    assert isinstance(case.step, BlockedStep) and kind not in STEP_METHODS
    assert kind.name == {"RacingMetropolis": "racing_metropolis"}.get(kind.__name__, "racing_gibbs")
    for rv in case.model.free_RVs:
        for has_grad in (True, False):
            assert kind.competence(rv, has_grad) == Competence.INCOMPATIBLE
    assert kind not in assign_step_methods(case.model)[1]


# --- models and data -------------------------------------------------------------------------------


def test_changed_data_are_refused(name, case):
    """Those of the rows and those of the prior."""
    for data in case.data:
        old = case.model[data].get_value()
        try:
            pm.set_data({data: 0.9 * old}, model=case.model)
            message = rf"data .*\b{data}\b.* have changed.*Make a new one"
            for refused in (
                case.run,
                lambda: case.step.setup_chain(np.random.default_rng(1), 5, 5),
            ):
                with pytest.raises(ValueError, match=message):
                    refused()
        finally:
            pm.set_data({data: old}, model=case.model)
    assert_same(reference_of(name), case.run())


# --- results ---------------------------------------------------------------------------------------


def test_posterior_carries_dims_and_coords(reference):
    assert reference.posterior["beta"].dims == ("chain", "draw", "column")
    assert reference.posterior["column"].values.tolist() == ["constant", "slope"]


def test_sample_stats(reference):
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


def test_accepted_is_moved(reference):
    accepted = reference.sample_stats["accepted"].values[:, 1:] == 1.0
    moved = np.diff(reference.posterior["sigma"].values, axis=1) != 0
    np.testing.assert_array_equal(accepted, moved)


@pytest.mark.slow
def test_several_transitions_per_draw(run, normal):
    raced, triple = (
        amc.RacingMetropolis(model=normal, race="normal", transitions_per_draw=n) for n in (1, 3)
    )
    one = run(normal, raced, chains=4).sample_stats
    three = run(normal, triple, chains=4).sample_stats
    ratio = float(three["race_rows"].mean() / one["race_rows"].mean())
    assert 2.4 < ratio < 3.6
    assert np.all(three["accept"] <= 1.0)
    assert set(np.unique(np.round(3 * three["accepted"], 9))) <= {0.0, 1.0, 2.0, 3.0}
    scale = three["accepted"].mean() / one["accepted"].mean()
    assert 0.7 < float(scale) < 1.4


@pytest.mark.parametrize("cores", [1, 2])
def test_returns_the_draws_so_far(run, linear, linear_step, reference, cores):
    def stop(trace, draw):
        if draw.chain == 0 and draw.draw_idx == 30:
            raise KeyboardInterrupt

    idata = run(linear, linear_step, chains=1, tune=10, cores=cores, mp_ctx="fork", callback=stop)
    assert 15 <= idata.posterior.sizes["draw"] <= 25
    assert_same(reference, run(linear, linear_step, chains=4, discard_tuned_samples=False))


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cores", "shown"),
    [(True, 2, ["Progress", "draws/s"]), ("combined", 1, ["draws/s"])],
)
def test_progress_bars(run, linear, linear_step, monkeypatch, capsys, kind, cores, shown):
    monkeypatch.setenv("COLUMNS", "200")
    run(linear, linear_step, progressbar=kind, quiet=False, cores=cores, mp_ctx="fork")
    out = capsys.readouterr().out
    assert all(text in out for text in shown)


def test_initval(run):
    model = normal_model(initval=1.5)
    step = amc.RacingMetropolis(model=model)
    idata = run(model, step)
    assert moves(idata.posterior["mu"])
    assert_same(idata, run(model, step, cores=2, mp_ctx="fork"))
    cloudpickle.loads(cloudpickle.dumps(step))


def test_initvals_of_sample(run, normal, monkeypatch):
    """Far from where the step was made; without tuning the chain starts right there, and a random walk stays near."""
    monkeypatch.setattr(metropolis, "proposal_weights", lambda jumps: np.array([1.0, 0.0]))
    step = amc.RacingMetropolis(model=normal)
    idata = run(normal, step, initvals={"mu": 4.0}, tune=0, draws=1, chains=1)
    assert abs(idata.posterior["mu"].item() - 4.0) < 1.5


@pytest.mark.slow
def test_with_nuts(name, case, beta_step, tmp_path):
    step, other = {"metropolis": (beta_step, "sigma"), "gibbs": (case.step, "beta")}[name]
    model = step._model

    def steps():
        """A used NUTS would go on from what it has learned."""
        with model:
            return [step, pm.NUTS([model[other]], mode=INTERPRETED)]

    idata = sample(model, steps(), **SHORT)
    for rv in model.free_RVs:
        assert moves(idata.posterior[rv.name].values.reshape(2, SHORT["draws"], -1).sum(axis=2))
    assert idata.sample_stats["race_rows"].dims == ("chain", "draw")
    assert "diverging" in idata.sample_stats
    assert amc.decision_error(idata).loc["all", "audited"] > 0
    idata.to_netcdf(tmp_path / "nuts.nc", engine="h5netcdf")
    assert_same(idata, az.from_netcdf(tmp_path / "nuts.nc", engine="h5netcdf"))
    assert_same(idata, sample(model, steps(), cores=2, mp_ctx="fork", **SHORT))


def test_frozen(run, linear, reference):
    frozen = freeze_dims_and_data(linear)
    step = amc.RacingMetropolis(model=frozen)
    idata = run(frozen, step, chains=4)
    for name in ("beta", "sigma"):
        np.testing.assert_allclose(
            idata.posterior[name].mean(("chain", "draw")),
            reference.posterior[name].mean(("chain", "draw")),
            atol=0.02,
        )


def test_discrete_variable_gets_a_step_of_its_own(run):
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


def test_a_state_of_another_step_is_refused(beta_step, sigma_step):
    with pytest.raises(ValueError, match="var_names"):
        beta_step.sampling_state = sigma_step.sampling_state
