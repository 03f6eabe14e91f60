"""RacingSlice against closed forms and a slice sampler in NumPy; RacingGibbs and it inside pm.sample."""

from __future__ import annotations

import copy
import functools
import io
import math

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc.sampling.mcmc import assign_step_methods
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence, CompoundStep
from scipy import stats
from step_methods.test_contract import SpyPickler, assert_same
from step_methods.test_correctness import NormalGamma, assert_agree
from step_methods.test_correctness import sample as sample_runs

import amc_pymc as amc

from amc_pymc.extract.interpreted import interpreted_mode
from amc_pymc.results.tables import (
    GIBBS_STATS,
    METROPOLIS_STATS,
    RACE_STATS,
    SLICE_STATS,
    STEP_STATS,
)
from amc_pymc.samplers import slice as core

LEVEL = 1e-4


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


# --- a rate of few events: a skewed posterior -----------------------------------------------------

COUNTS = np.array([0, 0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
SHAPE, RATE = 1.5 + COUNTS.sum(), 2.0 + COUNTS.size


def log_posterior(z):
    """Of z = log rate, the coordinate that PyMC samples."""
    return SHAPE * z - RATE * math.exp(z)


@functools.cache
def counts_model():
    with pm.Model() as out:
        rate = pm.Gamma("rate", 1.5, 2.0)
        pm.Poisson("y", rate, observed=COUNTS)
    return out


def counts_step(**kwargs):
    """Exact decisions by a Python function: next to nothing to compile."""

    def logp(point, rows):
        z = float(point["rate_log__"])
        return COUNTS[rows] * z - math.exp(z)

    settings = {"race": "exact", "audits": 0} | kwargs
    return amc.RacingSlice(model=counts_model(), row_logp=logp, **settings)


def numpy_slice(x, number, width, max_steps, rng):
    """Neal (2003), figures 3 and 5; the sampler's own order of random numbers."""
    out, asked = np.empty(number), np.zeros(number, dtype=int)
    for k in range(number):
        height = log_posterior(x) + math.log(1.0 - rng.random())
        left = x - width * rng.random()
        right = left + width
        j = int(rng.random() * max_steps)
        i = max_steps - 1 - j
        while j > 0:
            asked[k] += 1
            if log_posterior(left) <= height:
                break
            left, j = left - width, j - 1
        while i > 0:
            asked[k] += 1
            if log_posterior(right) <= height:
                break
            right, i = right + width, i - 1
        while True:
            new = left + (right - left) * rng.random()
            asked[k] += 1
            if log_posterior(new) > height:
                break
            if new < x:
                left = new
            else:
                right = new
        out[k] = x = new
    return out, asked


@pytest.mark.parametrize("width, max_steps", [(3.0, 10), (0.4, 4), (8.0, 1)])
def test_exact_decisions_make_neals_slice_sampler(width, max_steps):
    step = counts_step(width=width, max_steps=max_steps)
    values, found = draws(step, counts_model().initial_point(), 400, seed=6)
    start = float(counts_model().initial_point()["rate_log__"])
    expected, asked = numpy_slice(start, 400, width, max_steps, np.random.default_rng(6))
    np.testing.assert_allclose(values[:, 0], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found["race_decisions"], asked)
    np.testing.assert_array_equal(found["race_rows"], asked * COUNTS.size)


@pytest.mark.parametrize(
    "width, max_steps", [pytest.param(3.0, 10, marks=pytest.mark.slow), (0.4, 4)]
)
def test_a_skewed_posterior_is_left_invariant(width, max_steps):
    step = counts_step(width=width, max_steps=max_steps, transitions_per_draw=15)
    values, _ = draws(step, counts_model().initial_point(), 2_000)
    truth = stats.gamma(SHAPE, scale=1 / RATE)
    assert stats.kstest(np.exp(values[:, 0]), truth.cdf).pvalue > LEVEL


# --- rows that are impossible ---------------------------------------------------------------------


@functools.cache
def shifted():
    data = np.random.default_rng(5).normal(0.3, 1.0, size=400)
    with pm.Model() as out:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("obs", mu, 1, observed=data)
    return data, out


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_points_with_impossible_rows_are_below_the_height(value):
    """The posterior cut off at 0.3."""
    data, model = shifted()

    def logp(point, rows):
        found = -0.5 * (data[rows] - point["mu"]) ** 2
        return np.where((point["mu"] > 0.3) & (rows % 50 == 7), value, found)

    settings = {"race": "exact", "audits": 0, "width": 0.1, "transitions_per_draw": 8}
    step = amc.RacingSlice(model=model, row_logp=logp, **settings)
    values, _ = draws(step, {"mu": np.array(0.25)}, 600)
    precision = 0.25 + data.size
    mean, sd = data.sum() / precision, precision**-0.5
    assert values.max() <= 0.3
    truth = stats.truncnorm(-np.inf, (0.3 - mean) / sd, mean, sd)
    assert stats.kstest(values[:, 0], truth.cdf).pvalue > LEVEL


def test_an_impossible_row_at_the_current_point_is_an_error():
    """It had not been read when the chain came there."""
    data, model = shifted()
    broken = [False]

    def logp(point, rows):
        found = -0.5 * (data[rows] - point["mu"]) ** 2
        return np.where(broken[0] & (rows == 17), np.nan, found)

    step = amc.RacingSlice(model=model, row_logp=logp, race="exact", audits=0)
    step.setup_chain(np.random.default_rng(1), 0, 10)
    point, _ = step.step(model.initial_point())
    broken[0] = True
    with pytest.raises(ValueError, match=r"log-likelihood of obs is nan in row 17 at the current"):
        step.step(point)


# --- closed forms of two variables ----------------------------------------------------------------


@functools.cache
def normal_gamma():
    target = NormalGamma(3_000)
    return target, amc.RacingSlice(model=target.model, audits=100)


def test_normal_gamma_with_a_control_variate():
    target, step = normal_gamma()
    runs = sample_runs(target.model, step, 2_500, tune=300)
    assert_agree(runs, target.references)
    found = runs[0].sample_stats
    rows, decisions = found["race_rows"].values, found["race_decisions"].values
    assert rows.sum() / decisions.sum() < 300
    assert 2 * 2 <= decisions.mean() < 2 * 8
    table = amc.decision_error(runs[0]).loc["all"]
    assert table["audited"] > 0 and table["ci_low"] <= 0.05


def test_normal_gamma_with_exact_races():
    target, step = normal_gamma()
    step = step.replace(race=amc.ExactRace())
    runs = sample_runs(target.model, step, 1_200, tune=200, seeds=(3,))
    assert_agree(runs, target.references)
    found = runs[0].sample_stats
    np.testing.assert_array_equal(found["race_rows"], 3_000 * found["race_decisions"])
    assert not found["race_wrong"].any() and found["race_audited"].sum() == 200


def test_directions_are_those_of_the_posterior():
    """One step along each whitens the closed form."""
    target, step = normal_gamma()
    slices = core.init(step.sampler, np.random.default_rng(1)).slices
    tau = stats.gamma(target.a, scale=1 / target.b)
    mu = stats.t(2 * target.a, target.m, np.sqrt(target.b / (target.a * target.k)))
    expected = np.diag([(tau.std() / tau.mean()) ** 2, mu.var()])
    np.testing.assert_allclose(slices.directions.T @ slices.directions, expected, atol=2e-5)


@pytest.mark.slow
def test_directions_are_learnt_without_a_control_variate():
    target = NormalGamma(600)
    step = amc.RacingSlice(model=target.model, proxy=None, race="exact", audits=0)
    assert_agree(sample_runs(target.model, step, 2_500, tune=500, seeds=(1,)), target.references)
    draws(step, target.model.initial_point(), 10, tune=300)
    covariance = step.chain.slices.directions.T @ step.chain.slices.directions
    assert 0.3 < covariance[1, 1] / (target.b / (target.a * target.k)) < 3.0


# --- bad input of its own -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, -1.0, np.nan, np.inf, "x", None, True, [1.0]])
def test_width(width):
    with pytest.raises(ValueError, match=r"width must be positive and finite, got"):
        amc.RacingSlice(model=shifted()[1], width=width)


@pytest.mark.parametrize(
    "number, error", [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_max_steps(number, error):
    with pytest.raises(error, match=rf"max_steps.*{number}"):
        amc.RacingSlice(model=shifted()[1], max_steps=number)


def test_variance_and_proposal_are_of_other_steps():
    for name in ("variance", "proposal", "states"):
        with pytest.raises(TypeError, match=name):
            amc.RacingSlice(model=shifted()[1], **{name: None})


# --- inside pm.sample: RacingGibbs and RacingSlice ------------------------------------------------

STATS = {
    "gibbs": RACE_STATS | STEP_STATS | GIBBS_STATS,
    "slice": RACE_STATS | STEP_STATS | SLICE_STATS,
}
KINDS = {"gibbs": amc.RacingGibbs, "slice": amc.RacingSlice}
MOVED = {"gibbs": "gamma", "slice": "beta"}
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
def real_step(kind):
    return KINDS[kind]([selection()[MOVED[kind]]], model=selection(), audits=20)


@functools.cache
def quick_step(kind):
    return KINDS[kind](
        [selection()[MOVED[kind]]], model=selection(), row_logp=selection_logp, audits=20
    )


@pytest.fixture(params=["gibbs", "slice"])
def kind(request):
    return request.param


def run(steps, seed=1, **kwargs):
    settings = {"draws": 30, "tune": 30, "chains": 2, "cores": 1, "progressbar": False}
    settings |= {"quiet": True, "compute_convergence_checks": False}
    return pm.sample(step=steps, model=selection(), random_seed=seed, **{**settings, **kwargs})


def with_other(step, kind):
    """The step and a cheap one for the other variable."""
    if kind == "gibbs":
        other = amc.RacingMetropolis(
            [selection()["beta"]], model=selection(), row_logp=selection_logp, audits=20
        )
    else:
        other = quick_step("gibbs")
    return [step, other]


@functools.cache
def reference(kind):
    return run(with_other(real_step(kind), kind), discard_tuned_samples=False)


class TestSeed:
    def test_forked_workers(self, kind):
        steps = with_other(real_step(kind), kind)
        again = run(steps, cores=2, mp_ctx="fork", discard_tuned_samples=False)
        assert_same(reference(kind), again)

    @pytest.mark.slow
    def test_spawned_workers(self, kind):
        steps = with_other(quick_step(kind), kind)
        alone = run(steps)
        assert_same(alone, run(steps, cores=2, mp_ctx="spawn"))

    @pytest.mark.slow
    def test_spawned_workers_compile_again(self, kind):
        steps = with_other(real_step(kind), kind)
        again = run(steps, cores=2, mp_ctx="spawn", discard_tuned_samples=False)
        assert_same(reference(kind), again)

    def test_step_is_reused(self, kind):
        steps = with_other(real_step(kind), kind)
        run(steps, seed=9, chains=1)
        assert_same(reference(kind), run(steps, discard_tuned_samples=False))

    def test_other_seeds_and_chains_differ(self, kind):
        other = run(with_other(real_step(kind), kind), seed=2)
        beta = reference(kind).posterior["beta"].values
        assert not np.any(other.posterior["beta"].values == beta)
        assert not np.any(beta[0] == beta[1])


class TestStep:
    def test_returns_a_new_point_in_the_same_order(self, kind):
        step, point = quick_step(kind), dict(reversed(selection().initial_point().items()))
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
                if name != MOVED[kind]:
                    np.testing.assert_array_equal(new[name], old)
            changed |= bool(np.any(new[MOVED[kind]] != before[MOVED[kind]]))
            assert list(found[0]) == list(step.stats_dtypes_shapes)
            for name in STATS[kind]:
                assert isinstance(found[0][name], float)
        assert changed
        assert new["gamma"].dtype == np.int64 and new["gamma"].shape == (1, 3)

    def test_declared_stats(self, kind):
        declared = dict(KINDS[kind].stats_dtypes_shapes)
        assert declared.pop("warning") == (SamplerWarning, None)
        assert set(declared) == set(STATS[kind])
        assert all(dtype is np.float64 and shape == [] for dtype, shape in declared.values())

    def test_keeps_no_reference_to_the_point(self, kind):
        """Workers overwrite one shared point in place after each draw."""
        step, results = quick_step(kind), []
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

    def test_setup_chain_forgets_everything(self, kind):
        step = real_step(kind)
        runs = [draws(step, selection().initial_point(), 15, seed=4, tune=30) for _ in range(2)]
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        for name in STATS[kind]:
            np.testing.assert_array_equal(runs[0][1][name], runs[1][1][name])

    def test_steps_without_setup(self, kind):
        values = []
        for rng in (3, np.random.default_rng(3)):
            step = KINDS[kind](
                [selection()[MOVED[kind]]], model=selection(), row_logp=selection_logp, rng=rng
            )
            point = selection().initial_point()
            for _ in range(5):
                point, _ = step.step(point)
            values.append(point[MOVED[kind]])
        np.testing.assert_array_equal(*values)
        assert np.any(values[0] != selection().initial_point()[MOVED[kind]])

    def test_vars(self, kind):
        rv = selection()[MOVED[kind]]
        value = selection().rvs_to_values[rv]
        for given in (value, (rv, value)):
            step = KINDS[kind](given, model=selection(), row_logp=selection_logp)
            assert list(step.vars) == [value]
        with selection():
            assert KINDS[kind](row_logp=selection_logp).vars == [value]

    def test_several_transitions_per_draw(self, kind):
        step = quick_step(kind)
        one = draws(step, selection().initial_point(), 60)[1]
        three = draws(step.replace(transitions=3), selection().initial_point(), 60)[1]
        assert 2 < three["race_rows"].mean() / one["race_rows"].mean() < 4.5


class TestPickle:
    def test_round_trip_steps_equally(self, kind):
        step = real_step(kind)
        copied = cloudpickle.loads(cloudpickle.dumps(step))
        one, two = (draws(s, selection().initial_point(), 10, tune=5)[0] for s in (step, copied))
        np.testing.assert_array_equal(one, two)

    def test_no_compiled_code(self, kind):
        step = real_step(kind)
        draws(step, selection().initial_point(), 2)
        spy = SpyPickler(io.BytesIO())
        spy.dump(step)
        assert spy.compiled == []

    def test_state_round_trip(self, kind):
        """Across the end of tuning, with audits, twice from one saved state."""
        step, results = real_step(kind), []
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
                out += [found[n] for n in STATS[kind]]
                out += list(np.ravel(point[MOVED[kind]]))
            results.append(out)
        assert results[0] == results[1] == results[2]


class TestCompound:
    def test_with_nuts(self, tmp_path):
        """Statistics of three kinds of steps in one data set."""
        with selection():
            steps = [real_step("gibbs"), pm.NUTS([selection()["beta"]], mode=interpreted_mode())]
        idata = run(steps)
        assert np.all(np.ptp(idata.posterior["gamma"].values, axis=1).max(axis=-1) > 0)
        assert idata.posterior["gamma"].dtype == np.int64
        assert idata.posterior["gamma"].shape == (2, 30, 1, 3)
        assert "diverging" in idata.sample_stats
        assert amc.decision_error(idata).loc["all", "audited"] > 0
        idata.to_netcdf(tmp_path / "out.nc", engine="h5netcdf")
        assert_same(idata, az.from_netcdf(tmp_path / "out.nc", engine="h5netcdf"))

    def test_stacked_statistics(self, kind):
        idata = reference(kind)
        other = METROPOLIS_STATS if kind == "gibbs" else GIBBS_STATS
        own = SLICE_STATS if kind == "slice" else GIBBS_STATS
        for name in RACE_STATS:
            assert idata.sample_stats[name].shape == (2, 30, 2)
        for name in {**other, **own}:
            assert idata.sample_stats[name].shape == (2, 30)
        table = amc.decision_error(idata)
        audited = idata.sample_stats["race_audited"].values
        assert table.loc["all", "audited"] == audited.sum() > 0
        assert table.loc["all", "wrong"] == idata.sample_stats["race_wrong"].values.sum()

    def test_progress_bar(self, kind, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "200")
        run(with_other(quick_step(kind), kind), progressbar=True, quiet=False)
        shown = capsys.readouterr().out
        assert "Rows read" in shown and "%" in shown

    def test_share_of_rows(self, kind):
        step = quick_step(kind)
        columns, start = step._progressbar_config(3)
        assert [c.get_table_column().header for c in columns] == ["Rows read"]
        (update,) = step._make_progressbar_update_functions()
        elements = 3 if kind == "gibbs" else 1
        assert update({"race_rows": 0.25 * N_ROWS * elements}) == {"share": 0.25}
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
    def test_never_picked_unasked(self, kind):
        cls = KINDS[kind]
        assert issubclass(cls, BlockedStep) and cls not in STEP_METHODS
        for rv in selection().free_RVs:
            assert cls.competence(rv) == Competence.INCOMPATIBLE
        assert cls.name == real_step(kind).name == f"racing_{kind}"

    def test_rest_is_assigned(self, kind):
        steps, selected = assign_step_methods(selection(), real_step(kind))
        assert steps == [real_step(kind)] and len(set(selected)) == 1


class TestData:
    @pytest.mark.parametrize("name", ["X", "y", "p"])
    def test_changed_data_are_refused(self, kind, name):
        """Those of the rows and those of the prior."""
        step, old = real_step(kind), selection()[name].get_value()
        try:
            pm.set_data({name: 0.9 * old}, model=selection())
            with pytest.raises(ValueError, match=rf"data .*\b{name}\b.* have changed.*a new one"):
                step.setup_chain(np.random.default_rng(1), 5, 5)
        finally:
            pm.set_data({name: old}, model=selection())
        step.setup_chain(np.random.default_rng(1), 5, 5)

    def test_initval_of_the_chain(self):
        idata = run(
            with_other(quick_step("gibbs"), "gibbs"),
            initvals={"gamma": np.zeros((1, 3), dtype=int)},
            tune=0,
            draws=1,
            chains=1,
        )
        assert idata.posterior.sizes["draw"] == 1
