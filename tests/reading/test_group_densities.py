"""Marginal log-likelihoods of groups against numerical integration, and what is made of them."""

from copy import copy
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.group_densities import NODES, TOLERANCE, GroupDensities, choose_nodes
from amc_pymc.reading.groups import take_groups
from amc_pymc.steps.preparation import grouped_densities
from amc_pymc.tall import groups as loops
from amc_pymc.tall.decisions import residuals
from models.grouped import EXAMPLES
from tests.reading.group_models import ACCEPTED
from tests.reading.test_groups import example, taken

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
#: One model of each kind; more nodes where integrands are far from Gaussian.
CONTINUOUS = {
    "empty_groups_and_groups_of_one": 31,
    "gamma_frailty": 41,
    "student_rows": 61,
    "intercept_and_slope": 11,
    "two_observed": 31,
    "dummies": 31,
}
#: Relative to one nat; the nodes above leave less, but for heavy tails.
ERROR = {"student_rows": 2e-4, "gamma_frailty": 1e-6}


@cache
def grouped(name):
    """A model's groups."""
    if name in EXAMPLES:
        return taken(example, name, True)[2]
    return taken(ACCEPTED[name][0])[2]


def densities(name, n_nodes=None):
    return GroupDensities(grouped(name), n_nodes or CONTINUOUS.get(name))


def points(d, number=2, scale=0.3, seed=3):
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=d.layout.size) for _ in range(number)]


def integrand(groups, g, x):
    """``u (K, q) -> (K,)``, log density of a group's rows and effects by NumPy."""
    program = groups.program
    own = slice(groups.first[g], groups.first[g + 1])
    rows = [c[own, None] for c in groups.rows.data]
    size = own.stop - own.start

    def f(u):
        local = [np.asarray(a, float) for a in np.atleast_2d(u).T]
        with np.errstate(all="ignore"):
            return total(local)

    def total(local):
        (prior,) = program.graph.evaluate(
            [program.prior], group=list(groups.group_data[g]), local=local, eta=x
        )
        (each,) = program.graph.evaluate(
            [program.row], row=rows, local=[a[None, :] for a in local], eta=x
        )
        out = np.broadcast_to(each, (size, local[0].size)).sum(axis=0)
        out = np.broadcast_to(prior, local[0].shape) + out
        return np.where(np.isnan(out) | (out == np.inf), -np.inf, out)  # far out, by underflow

    return f


def integrate_line(f):
    """Log integral over one effect: the trapezoidal rule, exact for what decays at both ends."""
    grid = np.concatenate(
        [-np.geomspace(1e-7, 2e3, 400)[::-1], [0.0], np.geomspace(1e-7, 2e3, 400)]
    )
    at = grid[np.argmax(f(grid[:, None]))]
    width = max(1e-7, 0.1 * abs(at))
    found = minimize_scalar(
        lambda u: -f([[u]])[0], bounds=(at - width, at + width), method="bounded"
    )
    mode, top = (found.x, -found.fun) if -found.fun > f([[at]])[0] else (at, f([[at]])[0])
    ends = []
    for sign in (-1.0, 1.0):
        step = 1e-8
        while f([[mode + sign * step]])[0] > top - 50.0 and step < 1e5:
            step *= 1.3
        ends.append(mode + sign * step)
    u = np.linspace(*ends, 20_001)
    return logsumexp(f(u[:, None])) + np.log(u[1] - u[0]), u


def integrate_plane(f, half=7.0, number=701):
    line = np.linspace(-half, half, number)
    u = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    return logsumexp(f(u)) + 2.0 * np.log(line[1] - line[0])


def marginal(groups, g, x):
    f = integrand(groups, g, x)
    return integrate_plane(f) if groups.program.n_local == 2 else integrate_line(f)[0]


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTINUOUS)
def test_values_are_integrals(name):
    d = densities(name)
    for x in points(d):
        found = d.all_values(x)
        for g in range(min(4, d.n_units)):
            assert found[g] == pytest.approx(marginal(d.groups, g, x), abs=ERROR.get(name, 1e-8))


@pytest.mark.parametrize("log_sd", [-12.0, -6.0, -2.0, 1.0, 3.0, 5.0])
def test_values_at_extreme_standard_deviations(log_sd):
    """Groups with no row, with one and with thirty; the prior is very narrow or very wide."""
    name = "empty_groups_and_groups_of_one"
    d = densities(name, 61)
    x = np.array([0.2, 0.0])
    x[d.layout.slices["sd_log__"]] = log_sd
    found = d.all_values(x)
    for g in (0, 1, 4, 5):
        # A count of zero under a wide prior is half a Gaussian, which polynomials do not follow.
        error = 1e-7 if log_sd < 2.0 else 0.05
        assert found[g] == pytest.approx(marginal(d.groups, g, x), abs=error)
    assert found[4] == pytest.approx(0.0, abs=1e-10)


# --- derivatives ----------------------------------------------------------------------------------


def numeric(f, x, step):
    """Central differences of a function of x, along each coordinate."""
    return np.array([(f(x + e) - f(x - e)) / (2 * step) for e in step * np.eye(x.size)])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradient_and_hessian_are_those_of_the_values(name):
    d = densities(name)
    for x in points(d, 1):
        total, gradient, hessian = *d.value_and_gradient(x), d.hessian(x)
        assert total == pytest.approx(d.all_values(x).sum(), rel=1e-12)
        expected = numeric(lambda y: d.all_values(y).sum(), x, 1e-5)
        scale = 1.0 + np.abs(expected).max()
        loose = 2e-3 if name == "student_rows" else 1e-6
        assert np.abs(gradient - expected).max() < loose * scale
        curvature = numeric(lambda y: d.value_and_gradient(y)[1], x, 1e-5)
        loose = 1e-2 if name == "student_rows" else 1e-5
        assert np.abs(hessian - curvature).max() < loose * (1.0 + np.abs(curvature).max())
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-9, atol=1e-9)


def rewards(d, pair, centre):
    """Of all groups."""
    return residuals(d.rewards, np.stack(pair), centre, np.arange(d.n_units))


def change_as_raced(d, here, there, units=None):
    """Sum of the changes, where searches at the new point begin at the modes of the old one.

    Modes are found to a tenth of a standard deviation, and few nodes feel that.
    """
    units = np.arange(d.n_units) if units is None else units
    modes, factors = d.modes.copy(), d.factors.copy()
    data = d.groups.rows.data, d.groups.first, d.groups.group_data, modes, factors, *d.nodes
    old = loops.values(here, units, *data, True, d.counter, d.program)
    return (loops.values(there, units, *data, False, d.counter, d.program) - old).sum()


# --- control variates -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTINUOUS)
def test_rewards_and_the_expansion_add_up_to_the_change(name):
    d = densities(name, 7)
    rng = np.random.default_rng(6)
    centre = points(d, 1)[0]
    d.settle(centre)
    gradient, hessian = d.expansion(centre)
    for scale in (0.02, 0.4):
        here, there = centre + scale * rng.normal(size=(2, centre.size))
        found = rewards(d, [here, there], centre)
        assert (found[0] == 0.0).all()
        u, v = d.mask * (there - here), d.mask * (there + here - 2.0 * centre)
        total = found[1].sum() + gradient @ u + 0.5 * u @ hessian @ v
        change = change_as_raced(d, here, there)
        size = np.abs(gradient @ u) + np.abs(u @ hessian @ v) + np.abs(change)
        assert total == pytest.approx(change, abs=1e-8 * (1.0 + size))


def test_rewards_shrink_with_the_distance_cubed():
    d = densities("dummies", 31)
    centre = points(d, 1)[0]
    d.settle(centre)
    d.expansion(centre)
    direction = np.random.default_rng(7).normal(size=centre.size)

    def size(step):
        return np.abs(rewards(d, [centre, centre + step * direction], centre)[1]).max()

    assert size(0.01) / size(0.02) == pytest.approx(1 / 8, rel=0.2)


def test_a_change_is_audited_with_more_nodes():
    d = densities("gamma_frailty", 3)
    fine = densities("gamma_frailty", 61)
    x, y = points(d)
    expected = fine.all_values(y).sum() - fine.all_values(x).sum()
    coarse = d.all_values(y).sum() - d.all_values(x).sum()
    change = d.change(x, y)
    assert abs(change - expected) < abs(coarse - expected)
    assert d.approximation_error == pytest.approx(abs(change - coarse))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dummies", 3), ("student_effects", 7), ("location_and_scale", 5)],
)
def test_nodes_are_as_few_as_the_points_allow(name, expected):
    """The error varies by less than the tolerance with the nodes chosen, with fewer by more."""
    d = densities(name, 7)
    some = points(d, 4)

    def totals(number):
        return np.array([densities(name, number).all_values(x).sum() for x in some])

    fine = totals(61 if d.groups.program.n_local == 1 else 21)
    found = choose_nodes(d, some, np.random.default_rng(1))
    assert d.n_nodes >= expected  # more where that lets races hold fewer
    choices = NODES[d.groups.program.n_local]
    measured = np.std(totals(expected) - totals(choices[-1]))
    assert found == pytest.approx(measured, rel=1e-6, abs=1e-6)
    errors = {k: np.std(totals(k) - fine) for k in choices if k <= expected}
    assert errors.pop(expected) < TOLERANCE and all(e > TOLERANCE for e in errors.values())
    assert len(d.nodes.log_weights) == d.n_nodes**d.groups.program.n_local


# --- nodes that races hold ------------------------------------------------------------------------


def log_integrals(d, x):
    """Logarithms (G,) of sums over the held nodes by NumPy."""
    z, log_weights = d.held_nodes
    out = np.empty(d.n_units)
    for g in range(d.n_units):
        u = d.modes[g] + z @ d.factors[g].T
        out[g] = logsumexp(integrand(d.groups, g, x)(u) + log_weights)
    return out


def expansion_of_held(d, centre):
    """Gradient and Hessian of the sum of the held control variates."""
    held = copy(d)
    held.nodes = d.held_nodes
    return held.expansion(centre)


@pytest.mark.parametrize("name", ["gamma_frailty", "intercept_and_slope", "two_observed"])
def test_races_sum_over_the_nodes_they_hold(name):
    d = densities(name, 7)
    centre = points(d, 1)[0]
    d.settle(centre)
    _ = d.rewards  # bound to other nodes
    d.hold_nodes(3)
    here, there = centre + 0.01 * np.random.default_rng(6).normal(size=(2, centre.size))
    total = rewards(d, [here, there], centre)[1].sum()
    gradient, hessian = expansion_of_held(d, centre)
    total += gradient @ (there - here) + 0.5 * (there - here) @ hessian @ (
        there + here - 2 * centre
    )
    change = log_integrals(d, there) - log_integrals(d, here)
    assert total == pytest.approx(change.sum(), abs=1e-9 * (1.0 + np.abs(change).sum()))


@pytest.mark.parametrize("order", [1, -1])
def test_nodes_move_where_their_weights_change_much(order):
    d = densities("dummies", 7)
    centre = points(d, 1)[0]
    d.settle(centre)
    there = centre + 0.15 * np.random.default_rng(6).normal(size=centre.size)
    pair = [centre, there][::order]
    moved = rewards(d, pair, centre)[1]
    d.hold_nodes(7)
    found = rewards(d, pair, centre)[1]
    z, _ = d.nodes
    spread = np.empty(d.n_units)
    for g in range(d.n_units):
        u = d.modes[g] + z @ d.factors[g].T
        spread[g] = np.ptp(integrand(d.groups, g, there)(u) - integrand(d.groups, g, centre)(u))
    far = spread > d.most_spread
    assert 0 < far.sum() < d.n_units
    np.testing.assert_array_equal(found[far], moved[far])
    gradient, hessian = expansion_of_held(d, centre)
    step = there - centre
    held = log_integrals(d, pair[1]) - log_integrals(d, pair[0])
    total = found.sum() + order * (gradient @ step + 0.5 * step @ hessian @ step)
    expected = held[~far].sum() + change_as_raced(d, *pair, np.flatnonzero(far))
    assert total == pytest.approx(expected, abs=1e-8 * (1.0 + np.abs(held).sum()))


def test_few_held_nodes_beside_all_are_better_than_few_that_move():
    centre, fine = points(densities("gamma_frailty"), 1)[0], densities("gamma_frailty", 61)
    there = centre + 0.02 * np.random.default_rng(2).normal(size=centre.size)
    expected = fine.all_values(there).sum() - fine.all_values(centre).sum()
    few = densities("gamma_frailty", 2)
    moved = few.all_values(there).sum() - few.all_values(centre).sum()
    d = densities("gamma_frailty", 21)
    surrogate = centre, *d.expansion(centre)
    d.hold_nodes(2)
    held = d.raced_change(centre, there, surrogate, np.arange(d.n_units))
    assert abs(held - expected) < 0.01 * abs(moved - expected)
    d.change(centre, there, surrogate)
    assert d.approximation_error == pytest.approx(abs(held - expected), rel=1e-3)


# --- draws ----------------------------------------------------------------------------------------

N_DRAWS = 12_000


@pytest.mark.parametrize("name", ["gamma_frailty", "student_rows"])
def test_draws_have_the_moments_of_the_conditional(name):
    """Standard errors by batches of 100 draws; eight moments are compared."""
    d = densities(name, 7)
    x = points(d, 1)[0]
    rng = np.random.default_rng(10)
    effects = np.zeros((d.n_units, 1))
    draws = np.empty((N_DRAWS, d.n_units))
    accepted = 0.0
    for k in range(N_DRAWS):
        accepted += d.draw_effects(x, effects, 1, rng) / N_DRAWS
        draws[k] = effects[:, 0]
    assert 0.5 < accepted <= 1.0
    for g in range(4):
        f = integrand(d.groups, g, x)
        total, u = integrate_line(f)
        p = np.exp(f(u[:, None]) - total) * (u[1] - u[0])
        for power in (1, 2):
            batches = (draws[:, g] ** power).reshape(-1, 100).mean(axis=1)
            error = batches.std() / np.sqrt(batches.size)
            assert abs(batches.mean() - p @ u**power) < 4.0 * error


def test_impossible_effects_are_left_and_never_drawn():
    """Whatever the start, nan included, draws are possible effects after a step."""
    d = densities("gamma_frailty", 7)
    x = points(d, 1)[0]
    rng = np.random.default_rng(13)
    for start in (1e4, -1e5, np.nan):
        effects = np.full((d.n_units, 1), start)
        for _ in range(5):
            d.draw_effects(x, effects, 4, rng)
        assert np.isfinite(effects).all()
        assert np.isfinite(d.complete(x, effects))


# --- the whole model ------------------------------------------------------------------------------


def test_proposals_that_are_nan_are_rejected():
    """The likelihood is nan for effects below -1."""
    rng = np.random.default_rng(14)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=30)
        pm.Normal("y", pt.log(u[np.arange(30)] + 1.0), 2.0, observed=rng.normal(-1, 2, size=30))
    d = GroupDensities(take_groups(model, find_factors(model)[0]), 5)
    effects = np.zeros((30, 1))
    accepted = [d.draw_effects(np.array([0.3]), effects, 5, rng) for _ in range(20)]
    assert (effects > -1.0).all() and 0.1 < np.mean(accepted) < 1.0


@pytest.mark.slow
def test_more_nodes_converge_for_two_effects():
    x = points(densities("intercept_and_slope"), 1)[0]
    values = [densities("intercept_and_slope", n).all_values(x) for n in (3, 7, 11)]
    np.testing.assert_allclose(values[1], values[2], atol=1e-9)  # Gaussian rows: exact from one on
    np.testing.assert_allclose(values[0], values[2], atol=1e-9)


def test_draws_of_two_effects_have_the_covariance_of_the_conditional():
    d = densities("intercept_and_slope", 5)
    x = points(d, 1)[0]
    rng = np.random.default_rng(11)
    effects = np.zeros((d.n_units, 2))
    draws = np.array(
        [(d.draw_effects(x, effects, 1, rng), effects.copy())[1] for _ in range(N_DRAWS)]
    )
    line = np.linspace(-5.0, 5.0, 301)
    u = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    for g in range(2):
        p = integrand(d.groups, g, x)(u)
        p = np.exp(p - logsumexp(p))
        a, b = draws[:, g, 0], draws[:, g, 1]
        for powers in ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2)):
            expected = p @ np.prod(u ** np.array(powers), axis=1)
            batches = (a ** powers[0] * b ** powers[1]).reshape(-1, 100).mean(axis=1)
            error = batches.std() / np.sqrt(batches.size)
            assert abs(batches.mean() - expected) < 4.0 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_observed", "intercept_and_slope"])
def test_compiled_groups_and_the_rest_are_the_model(name):
    model, factor, _ = taken(ACCEPTED[name][0])
    point = model.initial_point()
    d = grouped_densities(model, factor, None, point)  # raises if they are not
    effects = d.effects(point)
    back = d.as_point(effects, point)
    for n in factor.names:
        np.testing.assert_array_equal(back[n], point[n])
        assert back[n].dtype == np.asarray(point[n]).dtype


def test_sums_over_some_groups():
    d = densities("two_observed")
    x = points(d, 1)[0]
    groups = np.array([0, 2]), np.array([1, 3, 4, 5])
    for sums in (
        lambda *some: d.value_and_gradient(x, *some)[0],
        lambda *some: d.value_and_gradient(x, *some)[1],
        lambda *some: d.hessian(x, *some),
    ):
        np.testing.assert_allclose(sum(sums(some) for some in groups), sums(), rtol=1e-10)
