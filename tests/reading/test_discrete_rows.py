"""What rows make of discrete variables, as coefficients in which they are expanded."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from numba import njit

from amc_pymc.reading import extract_rows
from amc_pymc.reading.densities import RowDensities
from amc_pymc.reading.graphs import interpreted_function
from amc_pymc.steps.preparation import Options, prepare
from amc_pymc.tall.decisions import residuals
from amc_pymc.tall.samplers.fit import probe_moves
from amc_pymc.tall.surrogate import surrogate_at, surrogate_change, surrogate_total

N = 120
LEVELS = np.array([-0.3, 0.1, 0.4])
SCALES = np.array([0.8, 1.0, 1.3])


@functools.cache
def arrays():
    rng = np.random.default_rng(7)
    return rng.normal(size=(N, 3)), rng.normal(size=N), rng.integers(0, 2, size=N)


def products():
    X, y, _ = arrays()
    gamma = pm.Bernoulli("gamma", 0.5, shape=3)
    beta = pm.Normal("beta", 0, 0.5, shape=3)
    pm.Normal("y", pm.Normal("a") + X @ (gamma * beta), 1.2, observed=y)


def chosen_scale():
    """Rows depend on sigma[k] and on its logarithm."""
    _, y, _ = arrays()
    k = pm.Categorical("k", p=np.ones(3) / 3)
    pm.Normal("y", pt.as_tensor(LEVELS)[k], pt.as_tensor(SCALES)[k], observed=y)


def levels_of_coefficients():
    X, _, y = arrays()
    level = pm.Categorical("level", p=np.ones(3) / 3, shape=3)
    pm.Bernoulli("y", logit_p=X @ pt.as_tensor(LEVELS)[level], observed=y)


def both_kinds():
    """Discrete and continuous variables in one predictor and in the scale."""
    X, y, _ = arrays()
    k = pm.DiscreteUniform("k", 1, 3)
    b = pm.Normal("b", 0, 1)
    s = pm.HalfNormal("s", 1)
    pm.Normal("y", X[:, :2] @ pt.stack([0.1 * k, b]), s * pt.sqrt(k), observed=y)


def product_of_three():
    """A product of gamma, beta and data in one node; an integer that is multiplied and added."""
    X, y, _ = arrays()
    gamma, k = pm.Bernoulli("gamma", 0.5), pm.DiscreteUniform("k", 0, 2)
    mu = pm.Normal("a") + 0.1 * k + gamma * pm.Normal("b") * X[:, 0] - 0.2 * k * X[:, 1]
    pm.Normal("y", mu, 1, observed=y)


def scalar_condition():
    """A condition of discrete variables only decides between two quantities."""
    X, y, _ = arrays()
    k = pm.DiscreteUniform("k", 0, 3)
    a, b = pm.Normal("a"), pm.Normal("b")
    pm.Normal("y", pt.switch(k > 1, a, b * X[:, 0].mean()), 1, observed=y)


def shared_shape():
    """alpha, beta and their sum."""
    k = pm.Categorical("k", p=np.ones(3) / 3)
    share = pt.as_tensor(np.array([0.3, 0.5, 0.6]))[k]
    size = pt.as_tensor(np.array([2.0, 3.0, 4.0]))[k]
    data = np.random.default_rng(1).beta(2, 2, size=N)
    pm.Beta("y", share * size, (1 - share) * size, observed=data)


def uniform_width():
    k = pm.Categorical("k", p=np.ones(3) / 3)
    data = np.random.default_rng(2).uniform(0, 0.79, size=N)
    pm.Uniform("y", 0, pt.as_tensor(SCALES)[k], observed=data)


def number_of_trials():
    n = pm.DiscreteUniform("n", 6, 8)
    pm.Binomial("y", n, pm.Beta("p", 2, 2), observed=arrays()[2] + 3)


def change_point():
    _, y, _ = arrays()
    when = pm.DiscreteUniform("when", 0, N)
    mu = pt.switch(when > np.arange(N), pm.Normal("early"), pm.Normal("late"))
    pm.Normal("y", mu, 1, observed=y)


def group_by_row():
    """Which column a row takes."""
    X, y, _ = arrays()
    k = pm.Categorical("k", p=np.ones(3) / 3)
    pm.Normal("y", pt.as_tensor(X)[:, k] * pm.Normal("b"), 1, observed=y)


def rare_condition():
    X, y, _ = arrays()
    k = pm.Categorical("k", p=np.r_[np.full(49, 0.999 / 49), 0.001], initval=0)
    pm.Normal("y", pt.switch(pt.eq(k, 49), X[:, 0], X[:, 1]) + 0.01 * k, 1, observed=y)


STATES = {
    products: {"gamma": range(2)},
    chosen_scale: {"k": range(3)},
    levels_of_coefficients: {"level": range(3)},
    both_kinds: {"k": range(1, 4)},
    product_of_three: {"gamma": range(2), "k": range(3)},
    scalar_condition: {"k": range(4)},
    shared_shape: {"k": range(3)},
    number_of_trials: {"n": range(6, 9)},
    change_point: {"when": (0, 1, 5, 60, 119, 120)},
    group_by_row: {"k": range(3)},
    rare_condition: {"k": (0, 1, 48, 49)},
}
SMOOTH = [
    products,
    chosen_scale,
    levels_of_coefficients,
    both_kinds,
    product_of_three,
    scalar_condition,
    shared_shape,
]
ROUGH = [number_of_trials, change_point, group_by_row, rare_condition]
every = pytest.mark.parametrize("build", [*SMOOTH, *ROUGH], ids=lambda b: b.__name__)
smooth = pytest.mark.parametrize("build", SMOOTH, ids=lambda b: b.__name__)
rough = pytest.mark.parametrize("build", ROUGH, ids=lambda b: b.__name__)


@functools.cache
def case(build):
    """The model, its rows, and their densities."""
    with pm.Model() as model:
        build()
    rows = extract_rows(model)
    smooth = [n for n in rows.value_vars if n in rows.layout.continuous]
    return model, rows, RowDensities(rows, expand=rows.layout.indices(smooth))


def random_points(build, number=3, seed=1):
    """All states of the discrete elements, each with random values of the others."""
    model, rows, _ = case(build)
    rng, layout = np.random.default_rng(seed), rows.layout
    names = list(STATES[build])
    places = layout.indices(names)
    choices = [STATES[build][n] for n in names for _ in range(np.size(model.initial_point()[n]))]
    for state in itertools.product(*choices):
        for _ in range(number):
            x = rng.normal(scale=0.7, size=layout.size)
            x[places] = state
            yield x


# --- values ---------------------------------------------------------------------------------------


@every
def test_rows_of_the_coefficients_are_the_rows(build):
    _, rows, densities = case(build)
    direct, raced = interpreted_function(*rows.graph()), densities.raced
    coefficients = densities.packed.coefficients
    idx = np.random.default_rng(2).permutation(N)
    for x in random_points(build):
        z = x if coefficients is None else coefficients.evaluate(x)
        assert z.shape == (raced.layout.size,)
        expected = direct(x, idx, *rows.arrays)
        assert np.all(np.isfinite(expected))
        np.testing.assert_allclose(raced.values(z, idx), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(densities.values(x, idx), raced.values(z, idx))


@smooth
def test_native_map_is_that_of_python(build):
    found = case(build)[2].packed.coefficients
    for x in random_points(build):
        np.testing.assert_array_equal(ask(found.native, x), found.evaluate(x))


@njit
def ask(f, x):
    return f(x)


# --- which coefficients there are -----------------------------------------------------------------

SIZES = {
    products: 4,  # a, gamma * beta
    chosen_scale: 2,
    levels_of_coefficients: 3,
    both_kinds: 3,  # k, b, s
    product_of_three: 3,  # a, gamma b, k
    scalar_condition: 1,
    shared_shape: 2,
}


@smooth
def test_few_coefficients_none_of_which_is_a_function_of_others(build):
    raced = case(build)[2].raced
    assert raced.expand.size == raced.reads.size == SIZES[build]


@rough
def test_rows_that_a_variable_selects_read_it(build):
    raced = case(build)[2].raced
    assert raced.expand.size < raced.reads.size


def prepared(build):
    model, *_ = case(build)
    options = Options(progressbar=False)
    return prepare(model, [], options, point=model.initial_point(), fit=False)


@rough
def test_they_leave_no_control_variate(build):
    (name,) = STATES[build]
    reason = prepared(build).no_proxy
    assert (
        reason.startswith("the rows depend on") and f"{name} as an index or a condition" in reason
    )


def test_conditions_on_parameters_are_no_obstacle():
    """The search for the mode leaves sigma > 0 and lower <= upper behind on its way."""
    assert not prepared(chosen_scale).no_proxy
    reason = prepared(uniform_width).no_proxy
    assert "impossible" in reason or "finite" in reason


def test_without_discrete_variables_there_is_nothing_to_compute():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=arrays()[1])
    densities = RowDensities(extract_rows(model), expand=np.arange(2))
    assert densities.packed.coefficients is None and densities.raced is densities


# --- the control variate --------------------------------------------------------------------------


def identity(build, centre_of=lambda eta: eta):
    """Residuals and surrogate against the log-likelihood, at several points."""
    _, rows, densities = case(build)
    raced, xs = densities.raced, list(random_points(build, 1))[:6]
    etas = np.ascontiguousarray([densities.packed.coefficients.evaluate(x) for x in xs])
    centre = etas[0].copy()
    centre[raced.expand] = centre_of(etas[0])[raced.expand]
    surrogate = surrogate_at(raced, centre)
    everything = np.arange(N)
    found = residuals(raced.state_rewards, etas, surrogate.centre, everything).sum(axis=1)
    found += [surrogate_total(eta, surrogate) for eta in etas]
    exact = np.array([rows(rows.layout.unravel(x), everything).sum() for x in xs])
    return raced, surrogate, etas, found, exact


@pytest.mark.parametrize("build", [products, chosen_scale], ids=lambda b: b.__name__)
def test_residuals_and_surrogate_add_up(build):
    """Whatever the centre: sums of residuals and surrogate differ by a constant from the truth."""
    raced, surrogate, etas, found, exact = identity(build, lambda eta: eta + 0.05)
    assert np.ptp(exact) > 0.1
    scale = np.abs(exact).max()
    np.testing.assert_allclose(found - found[0], exact - exact[0], rtol=0, atol=1e-11 * scale)
    for j in range(1, len(etas)):
        pair = np.ascontiguousarray(etas[[0, j]])
        change = residuals(raced.rewards, pair, surrogate.centre, np.arange(N))[1].sum()
        change += surrogate_change(pair, surrogate)
        np.testing.assert_allclose(change, exact[j] - exact[0], rtol=0, atol=1e-11 * scale)


def test_a_normal_mean_is_expanded_exactly():
    """Residuals are the same in every row and state: the expansion of a square is exact."""
    raced, surrogate, etas, _, _ = identity(products)
    left = residuals(raced.state_rewards, etas, surrogate.centre, np.arange(N))
    assert np.abs(left).max() < 1e-12


def test_the_mode_of_related_parameters_is_found():
    """sigma and log sigma must not vary apart, or the search for the centre runs away."""
    found = prepared(chosen_scale)
    _, gradient = found.raced.value_and_gradient(found.surrogate.centre)
    assert np.abs(gradient).max() < 0.05 * N
    etas = np.array([found.eta(x) for x in random_points(chosen_scale, 1)])
    assert np.all(np.abs(found.surrogate.centre) < 3 * np.abs(etas).max())
    moves, rows = probe_moves(found, np.random.default_rng(1)), np.arange(N)
    plain = [np.std(np.subtract(*(found.raced.values(eta, rows) for eta in m))) for m in moves]
    centre = found.surrogate.centre
    left = [np.std(residuals(found.raced.rewards, m, centre, rows)[1]) for m in moves]
    assert np.mean(left) < 0.5 * np.mean(plain)
