"""Grouped models: local effects integrated out, posteriors against closed forms and NUTS."""

import functools

import grouped_small
import numpy as np
import pymc as pm
import pytest

from grouped_runs import (
    assert_agree,
    example,
    example_step,
    flat,
    frozen,
    racing,
    sample,
)
from pytensor.compile.mode import Mode
from scipy import integrate, special, stats

import amc_pymc as amc

from models.customer_lifetime import customer_model, simulate_customers
from models.grouped import EXAMPLES, PRIOR_SD
from models.grouped_gaussian import (
    eight_schools_model,
    eight_schools_reference,
    gaussian_reference,
    log_marginal,
)

#: Many small groups: races read some of them.
SIZE = (2_400, 600)


def points_around(step, number, seed=1):
    """Draws (n, E) from twice as wide as the Gaussian approximation of the posterior."""
    fit, rng = step.prepared.fit, np.random.default_rng(seed)
    draws = [fit.draw(rng) for _ in range(number)]
    return [fit.mean + 2.0 * (x - fit.mean) for x in draws]


def natural(step, x):
    """beta, sigma and tau of a Gaussian model at x."""
    layout = step.prepared.densities.layout
    beta, sigma, tau = (x[layout.slices[n]] for n in ("beta", "sigma_log__", "sd_group_log__"))
    return beta, float(np.exp(sigma[0])), float(np.exp(tau[0]))


# --- what is raced --------------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [True, False])
def test_groups_add_up_to_the_closed_form(centred):
    step = example_step("gaussian", *SIZE, centred)
    data, _ = example("gaussian", *SIZE, centred)
    densities = step.prepared.densities
    assert densities.unit == "group" and densities.n_units == SIZE[1]
    points = points_around(step, 5)
    got = [densities.all_values(x).sum() for x in points]
    expected = [log_marginal(data, *natural(step, x)) for x in points]
    np.testing.assert_allclose(got, expected, atol=1e-7)
    assert densities.change(points[0], points[1]) == pytest.approx(
        expected[1] - expected[0], abs=1e-7
    )


@pytest.mark.parametrize("centred", [True, False])
def test_the_rest_is_the_prior_with_jacobians(centred):
    step = example_step("gaussian", *SIZE, centred)
    for x in points_around(step, 5):
        beta, sigma, tau = natural(step, x)
        expected = stats.norm.logpdf(beta, 0.0, PRIOR_SD).sum()
        expected += sum(stats.halfnorm.logpdf(s) + np.log(s) for s in (sigma, tau))
        got = step.prepared.densities.rest_value_and_gradient(x)[0]
        assert got == pytest.approx(expected, abs=1e-9)


def test_each_group_is_the_integral_over_its_effect():
    """Logistic, with a group of half of the rows, groups of one row and empty ones."""
    step = example_step("unbalanced", 600, 30)
    data, _ = example("unbalanced", 600, 30)
    densities, (x,) = step.prepared.densities, points_around(step, 1)
    layout = densities.layout
    beta, tau = x[layout.slices["beta"]], float(np.exp(x[layout.slices["sd_group_log__"]][0]))
    signs, eta = 2.0 * data.y - 1.0, data.X @ beta
    expected = []
    for g in range(30):
        own = data.groups["group"] == g

        def density(u, own=own):
            rows = special.log_expit(signs[own] * (eta[own] + u))
            return np.exp(rows.sum() - shift[0] + stats.norm.logpdf(u, 0.0, tau))

        shift = [0.0]
        shift[0] = special.log_expit(signs[own] * eta[own]).sum()
        value, _ = integrate.quad(density, -8 * tau, 8 * tau, limit=400, points=[-tau, 0.0, tau])
        expected.append(np.log(value) + shift[0])
    values = densities.all_values(x)
    np.testing.assert_allclose(values, expected, atol=0.02)
    sizes = np.bincount(data.groups["group"], minlength=30)
    assert sizes.min() == 0 and sizes.max() >= 300
    np.testing.assert_allclose(values[sizes == 0], 0.0, atol=1e-4)


def test_effects_are_drawn_from_their_conditional_distribution():
    """Gaussian given the rest, mean and variance in closed form."""
    step = example_step("gaussian", *SIZE)
    data, _ = example("gaussian", *SIZE)
    densities, (x,) = step.prepared.densities, points_around(step, 1, seed=3)
    beta, sigma, tau = natural(step, x)
    counts = np.bincount(data.groups["group"], minlength=SIZE[1])
    sums = np.bincount(data.groups["group"], data.y - data.X @ beta, minlength=SIZE[1])
    share = tau**2 / (sigma**2 + counts * tau**2)
    effects, rng = np.zeros((SIZE[1], 1)), np.random.default_rng(2)
    standard = []
    for k in range(60):
        accepted = densities.draw_effects(x, effects, 5, rng)
        assert accepted > 0.8
        if k:
            standard.append((effects[:, 0] - share * sums) / np.sqrt(share * sigma**2))
    assert stats.kstest(np.ravel(standard), "norm").pvalue > 1e-3
    by_group = np.mean(standard, axis=0)
    assert np.abs(by_group).max() < 5 * 1.3 / np.sqrt(len(standard))


# --- Gaussian posteriors --------------------------------------------------------------------------


@functools.cache
def gaussian_truth(n_rows, n_groups, seed=1):
    data, _ = example("gaussian", n_rows, n_groups, seed=seed)
    return {name: tuple(m) for name, m in gaussian_reference(data)[0].items()}


@pytest.mark.parametrize(
    ("size", "centred", "race", "draws"),
    [
        (SIZE, True, "normal", 600),
        ((800, 200), False, "exact", 600),
        pytest.param((400, 20), False, "normal", 12_000, marks=pytest.mark.slow),
        pytest.param((20_000, 2_000), True, "normal", 2_500, marks=pytest.mark.slow),
    ],
)
def test_gaussian_posteriors(size, centred, race, draws):
    step = example_step("gaussian", *size, centred)
    _, model = example("gaussian", *size, centred)
    if race == "exact":
        step = step.replace(race=amc.ExactRace(), transitions=2)
    idata = sample(model, step, draws, tune=300 if draws == 600 else 500)
    assert_agree(idata, gaussian_truth(*size))
    rows = idata.sample_stats["race_rows"].mean() / step.sampler.transitions
    few = 0.9 * size[0] if size[1] > 100 else np.inf
    assert rows == size[0] if race == "exact" else rows < few
    assert idata.sample_stats["accept"].mean() > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("centred", "scales", "draws", "seeds"),
    [
        (False, {}, 2_000, [1]),
        (True, {"mean_scale": 50.0, "sd_scale": 25.0}, 8_000, [1, 2, 3]),
        (False, {"mean_scale": 50.0, "sd_scale": 25.0}, 8_000, [1, 2, 3]),
    ],
)
def test_eight_schools(centred, scales, draws, seeds):
    """Groups of one row, a standard deviation that may be zero, also with vague priors."""
    model = eight_schools_model(centred, **scales)
    step = racing(model)
    assert step.prepared.densities.unit == "group"
    if not scales:
        assert step.prepared.surface.plateaus is not None  # the second expansion keeps them
        assert step.prepared.forecast.acceptance > 0.8
    truth = {n: tuple(m) for n, m in eight_schools_reference(**scales)[0].items()}
    for seed in seeds:
        assert_agree(sample(model, step, draws, seed=seed), truth)


# --- other families -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS installation:UserWarning")
@pytest.mark.parametrize("name", grouped_small.SIZES)
def test_groups_agree_with_nuts(name):
    """Families; nested and crossed factors, covariates of groups, an effect per row."""
    size, kind = grouped_small.SIZES[name], name.removesuffix("_hard")
    step = example_step(kind, *size)
    assert step.prepared.densities.unit == "group"
    idata = sample(example(kind, *size)[1], step, 4_000, tune=1_000)
    assert_agree(idata, frozen(grouped_small.FROZEN[name]))
    assert idata.sample_stats["accept"].mean() > 0.2
    assert np.isfinite(flat(idata, EXAMPLES[kind].local[0])).all()
    assert amc.decision_error(idata).loc["all", "ci_low"] < 0.05


#: Segments of customers (BG/NBD) by NUTS on the model that is not centred, 8,000 draws of 600 customers in 12 segments: mean,
#: standard deviation, effective sample size.
CUSTOMERS = {
    "log_r": (-0.52906, 0.0749, 4_700),
    "log_alpha": (1.13849, 0.25136, 1_290),
    "log_a": (-1.05582, 0.16196, 3_750),
    "log_b": (0.07921, 0.22639, 3_740),
    "sd_alpha": (0.74451, 0.19536, 1_650),
}


@pytest.mark.slow
def test_customers_agree_with_nuts():
    model = customer_model(simulate_customers(600, 12, seed=2), varying=("alpha",))
    step = racing(model)
    assert step.prepared.densities.unit == "group"
    idata = sample(model, step, 4_000, tune=1_000)
    assert_agree(idata, frozen(CUSTOMERS))
    assert idata.sample_stats["accept"].mean() > 0.4


@pytest.mark.slow
def test_no_more_transitions_than_are_of_use():
    """Nearly all moves are accepted, so that few of them make a draw independent of the last one."""
    step = example_step("poisson", 20_000, 2_000)
    assert step.prepared.forecast.acceptance > 0.95
    assert 2 <= step.sampler.transitions <= 4
    idata = sample(example("poisson", 20_000, 2_000)[1], step, 100, tune=100)
    assert idata.sample_stats["accept"].mean() > 0.8


# --- parts of a model, away from the initial point --------------------------------------------------

PYTHON = Mode(linker="py", optimizer=None)
N_ROWS, N_GROUPS, N_REGIONS = 200, 40, 5
_rng = np.random.default_rng(1)
GROUP, REGION = _rng.integers(0, N_GROUPS, N_ROWS), _rng.integers(0, N_REGIONS, N_ROWS)
X, Y = _rng.normal(size=(2, N_ROWS))


@functools.cache
def built(centred):
    """Two effects of a group, in variables of different shapes, and another factor's."""
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 0.5, shape=2)
        sd_region = pm.HalfNormal("sd_region", 0.4)  # not one at the initial point
        level = pm.Normal("level", 0.0, sd[0], shape=N_GROUPS)
        slope = pm.Normal("slope", 0.0, sd[1], shape=(N_GROUPS, 1))
        if centred:
            region = pm.Normal("region", 0.0, sd_region, shape=N_REGIONS)
        else:
            region = sd_region * pm.Normal("region", shape=N_REGIONS)
        mean = level[GROUP] + slope[GROUP, 0] * X + region[REGION]
        pm.Normal("obs", mean, pm.HalfNormal("noise", 2.0), observed=Y)
    return model, racing(model)


def random_point(model, rng):
    return {n: v + 0.5 * rng.normal(size=v.shape) for n, v in model.initial_point().items()}


@pytest.mark.parametrize("centred", [True, False])
def test_parts_add_up_to_the_model(centred):
    """Up to the Jacobian of effects that stay and are moved in the place of standard normals."""
    model, step = built(centred)
    densities, logp = step.prepared.densities, model.compile_logp(mode=PYTHON)
    rng = np.random.default_rng(2)
    for _ in range(3):
        point = random_point(model, rng)
        x = densities.ravel(point)
        for name, value in densities.unravel(x).items():
            np.testing.assert_allclose(value, point[name], rtol=1e-12)
        found = densities.complete(x, densities.effects(point))
        found += densities.rest_value_and_gradient(x)[0]
        jacobian = 0.0 if centred else -N_REGIONS * point["sd_region_log__"]
        assert found == pytest.approx(float(logp(point)) + jacobian, rel=1e-10)
        assert densities.groups.centring.log_jacobian(x) == pytest.approx(jacobian)
