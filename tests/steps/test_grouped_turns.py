"""Crossed factors of many levels each, integrated out in turns."""

import functools

import grouped_small
import numpy as np
import pymc as pm
import pytest

from grouped_runs import assert_agree, example, frozen, racing, sample
from scipy import stats

import amc_pymc as amc

from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.groups import take_groups
from amc_pymc.steps.grouping import chosen_turns
from amc_pymc.steps.settings import Options

SD_A, SD_B, PRIOR_SD = 0.8, 0.6, 2.0
N, LEVELS = 900, {"a": 45, "b": 30, "c": 6}


@functools.cache
def data():
    """Rows with a covariate and three crossed factors."""
    rng = np.random.default_rng(5)
    index = {f: rng.integers(0, k, size=N) for f, k in LEVELS.items()}
    x = rng.normal(size=N)
    effect = sum(rng.normal(0.0, 0.7, k)[index[f]] for f, k in LEVELS.items())
    return index, x, 0.5 - 0.4 * x + effect + rng.normal(size=N)


def model(centred=True):
    """Standard deviations of a and b are known, that of c is not."""
    return _model(centred)


def step(centred=True):
    """Moves it in two turns."""
    return _step(centred)


@functools.cache
def _model(centred):
    index, x, y = data()
    with pm.Model() as out:
        beta = pm.Normal("beta", 0.0, PRIOR_SD, shape=2)
        sd_c = pm.HalfNormal("sd_c", 1.0)
        c = pm.Normal("c", 0.0, sd_c, shape=LEVELS["c"])
        if centred:
            a = pm.Normal("a", 0.0, SD_A, shape=LEVELS["a"])
            b = pm.Normal("b", 0.0, SD_B, shape=LEVELS["b"])
        else:
            a = pm.Deterministic("a", SD_A * pm.Normal("z_a", shape=LEVELS["a"]))
            b = pm.Deterministic("b", SD_B * pm.Normal("z_b", shape=LEVELS["b"]))
        mu = beta[0] + beta[1] * x + a[index["a"]] + b[index["b"]] + c[index["c"]]
        pm.Normal("y", mu, 1.0, observed=y)
    return out


@functools.cache
def _step(centred):
    names = ["a", "b"] if centred else ["z_a", "z_b"]
    return racing(model(centred), marginalize=names)


@functools.cache
def reference():
    """Posterior means and standard deviations: Gaussian given sd_c, which a grid takes."""
    index, x, y = data()
    one_hot = [np.eye(k)[index[f]] for f, k in LEVELS.items()]
    Z = np.column_stack([np.ones(N), x, *one_hot])
    log_sd = np.linspace(-4.0, 2.0, 121)
    log_p, means, seconds = [], [], []
    for tau in np.exp(log_sd):
        sds = [PRIOR_SD] * 2 + [SD_A] * LEVELS["a"] + [SD_B] * LEVELS["b"] + [tau] * LEVELS["c"]
        precision = Z.T @ Z + np.diag(np.array(sds) ** -2.0)
        covariance = np.linalg.inv(precision)
        mean = covariance @ (Z.T @ y)
        evidence = 0.5 * mean @ precision @ mean - 0.5 * np.linalg.slogdet(precision)[1]
        log_p.append(evidence - np.log(sds).sum() + stats.halfnorm.logpdf(tau) + np.log(tau))
        means.append(np.append(mean, tau))
        seconds.append(np.append(np.diag(covariance) + mean**2, tau**2))
    w = np.exp(np.array(log_p) - max(log_p))
    w /= w.sum()
    mean = w @ np.array(means)
    sd = np.sqrt(w @ np.array(seconds) - mean**2)
    ends = np.cumsum([2, *LEVELS.values(), 1])
    parts = zip(["beta", "a", "b", "c", "sd_c"], ends - np.diff(ends, prepend=0), ends)
    return {name: (mean[i:j], sd[i:j]) for name, i, j in parts}


# --- which turns ----------------------------------------------------------------------------------


def turns(model, **options):
    names = [v.name for v in model.value_vars]
    return chosen_turns(model, names, Options(**options))


def test_factors_that_do_not_fit_among_the_coordinates_take_turns():
    one, two = turns(model(), marginalize="auto", proxy=amc.TaylorProxy(max_dim=30))
    assert one.factor.names == ("a",) and two.factor.names == ("b",)
    assert set(one.names) == {"beta", "sd_c_log__", "c", "a"} and one.held == ("b",)
    assert set(two.names) == {"beta", "sd_c_log__", "c", "b"} and two.held == ("a",)


def test_factors_that_fit_stay():
    (one,) = turns(model(), marginalize="auto")
    assert one.factor.names == ("a",) and one.held == ()


def test_hyperparameters_move_with_their_factor():
    _, crossed = example("crossed", 600, 20)
    one, two = turns(crossed, marginalize=["item", "user"])
    assert set(one.names) == {"beta", "sd_item_log__", "item"}
    assert set(one.held) == {"sd_user_log__", "user"}
    assert set(two.names) == {"beta", "sd_user_log__", "user"}


def test_scales_of_effects_that_are_not_centred_move_in_every_turn():
    _, crossed = example("crossed", 600, 20, centred=False)
    names = [v.name for v in crossed.free_RVs if v.name.startswith(("item", "user"))]
    one, two = turns(crossed, marginalize=names)
    assert {"beta", "sd_user_log__", "sd_item_log__"} <= set(one.names) & set(two.names)


# --- what is held ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_follow_what_is_held():
    densities = step().prepared.densities
    point = model().initial_point()
    x = densities.ravel(point)
    densities.groups.hold(point)
    before = densities.all_values(x)
    rng = np.random.default_rng(3)
    other = point | {"b": rng.normal(size=LEVELS["b"])}
    densities.groups.hold(other)
    after = densities.all_values(x)
    index, _, y = data()
    for sign, b in ((-1.0, point["b"]), (1.0, other["b"])):
        residual = y - b[index["b"]]
        counts = np.bincount(index["a"], minlength=LEVELS["a"])
        sums = np.bincount(index["a"], residual, minlength=LEVELS["a"])
        squares = np.bincount(index["a"], residual**2, minlength=LEVELS["a"])
        share = SD_A**2 / (1.0 + counts * SD_A**2)
        expected = -0.5 * (
            squares - share * sums**2 + np.log1p(counts * SD_A**2) + counts * np.log(2 * np.pi)
        )
        np.testing.assert_allclose(before if sign < 0 else after, expected, atol=1e-8)
    densities.groups.hold(point)


def test_the_rest_follows_what_is_held():
    """A mean that all effects share is moved while effects of one factor are held."""
    index, _, y = data()
    with pm.Model() as shared:
        m = pm.Normal("m", 0.0, 1.0)
        a = pm.Normal("a", m, 0.5, shape=LEVELS["a"])
        b = pm.Normal("b", m, 0.5, shape=LEVELS["b"])
        pm.Normal("y", a[index["a"]] + b[index["b"]], 1.0, observed=y)
    densities = racing(shared, marginalize=["a", "b"]).prepared.densities
    point = shared.initial_point()
    x = densities.ravel(point | {"m": 0.3})
    for level in (0.0, 1.0):
        densities.groups.hold(point | {"b": np.full(LEVELS["b"], level)})
        expected = stats.norm.logpdf(0.3) + LEVELS["b"] * stats.norm.logpdf(level, 0.3, 0.5)
        value, gradient = densities.rest_value_and_gradient(x)
        assert value == pytest.approx(expected)
        assert gradient[0] == pytest.approx(-0.3 + LEVELS["b"] * (level - 0.3) / 0.25)


def test_gaussian_groups_leave_nothing_to_the_race():
    """Their control variates are exact: second derivatives are those of the integral."""
    prepared = step().prepared
    assert prepared.densities.n_nodes == 3
    assert prepared.forecast.residual_sd < 1e-9 < prepared.forecast.plain_sd


@pytest.mark.slow
def test_a_chain_from_far_out_begins_near_the_mode():
    """Newton steps from far out, where the log density is nearly flat, would lead nowhere."""
    _, crossed = example("crossed", 600, 20)
    own = racing(crossed, marginalize=["item", "user"])
    fit, slices = own.prepared.fit, own.prepared.densities.layout.slices
    own.setup_chain(np.random.default_rng(2), tune=5, draws=1)
    point = crossed.initial_point()
    point["sd_item_log__"] = np.array(-15.0)
    place = slices["sd_item_log__"]
    sd = 1.0 / np.sqrt(np.diag(fit.precision)[place])
    for _ in range(5):
        point, _ = own.step(point)
        z = (own.chain.fit.mean[place] - fit.mean[place]) / sd
        assert np.all(np.abs(z) < 20.0), z


# --- draws ----------------------------------------------------------------------------------------


def test_a_posterior_in_closed_form():
    """Coefficients, effects of all three factors, and the standard deviation of one."""
    own = step()
    assert len(own.later) == 1 and [v.name for v in own.vars] == [
        v.name for v in model().value_vars
    ]
    idata = sample(model(), own, 300, tune=150)
    assert_agree(idata, reference())
    stats_ = idata.sample_stats
    assert stats_["accept"].shape == (2, 300) and stats_["accept"].mean() > 0.5
    assert amc.decision_error(idata).loc["all", "ci_low"] < 0.05


@pytest.mark.slow
def test_turns_agree_with_nuts():
    _, crossed = example("crossed", *grouped_small.SIZES["crossed"], False)
    names = [f.label for f in find_factors(crossed)]
    own = racing(crossed, marginalize=names)
    assert len(own.later) == 1
    idata = sample(crossed, own, 2_000, tune=500)
    assert_agree(idata, frozen(grouped_small.FROZEN["crossed"]))


@pytest.mark.slow
def test_a_seed_reproduces_turns_in_any_process():
    own = step()
    first = sample(model(), own, 10, tune=10)
    again = sample(model(), own, 10, tune=10)
    elsewhere = sample(model(), own, 10, tune=10, cores=2, mp_ctx="fork")
    for other in (again, elsewhere):
        for name in ("beta", "a", "b", "c", "sd_c"):
            np.testing.assert_array_equal(first.posterior[name], other.posterior[name])


def test_a_state_restores_all_turns():
    own = step()
    own.setup_chain(np.random.default_rng(1), tune=0, draws=3)
    point = model().initial_point()
    point, _ = own.step(point)
    state = own.sampling_state
    after, _ = own.step(point)
    own.sampling_state = state
    again, _ = own.step(point)
    for name in after:
        np.testing.assert_array_equal(after[name], again[name])


@pytest.mark.slow
def test_a_posterior_that_is_not_centred():
    truth = {n: v for n, v in reference().items() if n != "c"} | {"c": reference()["c"]}
    assert_agree(sample(model(False), step(False), 2_000), truth)


@pytest.mark.slow
def test_held_variables_are_data():
    (factor, *_) = find_factors(model())
    groups = take_groups(model(), factor, held=["b", "c"])
    assert groups.layout.names == ("beta", "sd_c_log__")
    assert sorted(groups.held.layout.names) == ["b", "c"]
    assert groups.reads == ("beta",)
