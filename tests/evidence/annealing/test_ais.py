"""Annealed importance sampling: exact means with few temperatures, at the edges, and backwards."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.annealing import anneal, climb, effective_shares, power_schedule
from amc_pymc.evidence.mcmc import (
    KERNELS,
    DiscreteMetropolis,
    Mixed,
    Slice,
    make_kernel,
)
from amc_pymc.logweights import effective_share
from tests.evidence.annealing.problems import (
    Counts,
    Gaussian,
    HalfPlane,
    LabelAndNumber,
    assert_mean,
    frozen,
)

P = 30_000
COARSE = {n: power_schedule(n, 2) for n in (1, 2, 3, 5)}
#: Sizes that suit targets of unit scale, about.
SIZES = {"slice": 2.0, "hmc": 0.5}
each = pytest.mark.parametrize("name", KERNELS)


def run(path, name, n_steps, *, n=P, seed=0, size=None, **settings):
    """Anneal from the prior with a fixed tuning."""
    kernel = make_kernel(name) if isinstance(name, str) else name
    rng = np.random.default_rng(seed)
    ladder = frozen(size or SIZES[kernel.name], np.full(path.n_dim, 0.7))
    x = path.draw_prior(n, rng)
    path.evaluated = path.differentiated = 0
    return anneal(path, x, COARSE[n_steps], kernel, ladder.at, rng, **settings)


@each
@pytest.mark.parametrize("n_steps", [2, 5])
def test_mean_weight_with_tunings_of_a_pilot_run(name, n_steps):
    path, kernel, rng = Counts(), make_kernel(name), np.random.default_rng(1)
    ladder = climb(path, path.draw_prior(400, rng), kernel, rng)
    found = anneal(path, path.draw_prior(P, rng), COARSE[n_steps], kernel, ladder.at, rng)
    assert_mean(found.log_weights, path.log_z)
    assert found.acceptance.min() > 0.3


@each
@pytest.mark.parametrize("factor", [0.02, 0.3, 20.0])
def test_mean_weight_with_bad_tunings(name, factor):
    path = Counts()
    found = run(path, name, 3, size=factor * SIZES[name], n=2 * P)
    assert_mean(found.log_weights, path.log_z)


@each
@pytest.mark.parametrize("n_steps", [2, 5])
def test_mean_weight_where_half_of_the_prior_is_impossible(name, n_steps):
    path = HalfPlane()
    found = run(path, name, n_steps, n=2 * P, n_paths=100)
    assert not np.isnan(found.log_weights).any()
    assert not np.isnan(found.paths).any()
    zero = found.log_weights == -np.inf
    assert abs(zero.mean() - 0.5) < 4.0 * 0.5 / math.sqrt(2 * P)  # who begins there has lost
    assert (found.log_likelihood[~zero] > -np.inf).all()
    assert_mean(found.log_weights, path.log_z)


@each
def test_one_step_is_importance_sampling_from_the_prior(name):
    path, rng = Counts(), np.random.default_rng(3)
    x = path.draw_prior(100, rng)
    kernel = make_kernel(name)
    found = anneal(path, x, COARSE[1], kernel, frozen(1.0, np.ones(2)).at, rng, n_paths=100)
    np.testing.assert_array_equal(found.log_weights, path.terms(x)[1])
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.paths, found.log_weights[:, None])
    assert found.acceptance.shape == (0,)
    assert found.spent.sum() == 100


@each
def test_what_comes_back(name):
    path = Counts()
    found = run(path, name, 5, n=400, n_paths=400)
    assert found.x.shape == (400, 2)
    assert found.paths.shape == (400, 5)
    assert found.acceptance.shape == (4,)
    np.testing.assert_array_equal(found.paths[:, -1], found.log_weights)
    np.testing.assert_allclose(found.log_likelihood, path.terms(found.x)[1])
    w = np.exp(found.paths)
    np.testing.assert_allclose(
        effective_shares(found.log_sums, 400), w.sum(axis=0) ** 2 / (w**2).sum(axis=0) / 400
    )
    np.testing.assert_allclose(found.log_sums, np.log([w.sum(axis=0), (w**2).sum(axis=0)]))
    assert tuple(found.spent) == (path.evaluated, path.differentiated)
    assert run(path, name, 5, n=400, n_paths=3).paths.shape == (3, 5)
    assert run(path, name, 5, n=400, n_paths=999).paths.shape == (400, 5)


@each
def test_cumulative_weights_are_those_of_the_members(name):
    """Each column of `paths` has the constant of its own temperature for a mean."""
    path, wide = Gaussian([1.0, -0.5], 1.0), COARSE[5]
    found = run(path, name, 5, n_paths=P)
    for t, beta in enumerate(wide[1:]):
        s2 = 1.0 / beta
        log_z = -0.5 * np.sum(path.data**2) / (1.0 + s2) - math.log(1.0 + 1.0 / s2)
        log_z -= beta * math.log(2.0 * math.pi)
        assert_mean(found.paths[:, t], log_z)


def test_all_weights_zero():
    path, rng = HalfPlane(), np.random.default_rng(5)
    x = np.column_stack([-np.ones(20), np.zeros(20)])
    found = anneal(path, x, COARSE[3], Slice(), frozen(1e-3, np.ones(2)).at, rng, n_paths=20)
    np.testing.assert_array_equal(found.log_weights, -np.inf)
    np.testing.assert_array_equal(effective_shares(found.log_sums, len(x)), 0.0)
    np.testing.assert_array_equal(found.log_sums, -np.inf)


def test_effective_shares():
    assert effective_share(np.zeros(5)) == 1.0
    assert effective_share(np.full(5, -np.inf)) == 0.0
    assert effective_share(np.array([-1e5, -np.inf, -np.inf, -1e5])) == pytest.approx(0.5)
    assert effective_share(np.array([800.0, 800.0 + math.log(3.0)])) == pytest.approx(0.8)
    sums = np.array([[math.log(4.0), -np.inf], [math.log(10.0), -np.inf]])
    np.testing.assert_allclose(effective_shares(sums, 2), [0.8, 0.0])


@each
@pytest.mark.parametrize("n_steps", [2, 5])
def test_back_from_exact_draws(name, n_steps):
    """The mean weight is 1 / Z, and log Z lies between the means of both logarithms."""
    path, kernel, rng = Counts((1.0, 0.5), (0.5, 0.2)), make_kernel(name), np.random.default_rng(6)
    ladder = frozen(SIZES[name], np.full(2, 0.7))
    x = path.draw(P, 1.0, rng)
    path.evaluated = path.differentiated = 0
    back = anneal(path, x, COARSE[n_steps][::-1], kernel, ladder.at, rng)
    assert_mean(back.log_weights, -path.log_z)
    assert tuple(back.spent) == (path.evaluated, path.differentiated)
    assert back.acceptance.shape == (n_steps - 1,)
    w = np.exp(back.log_weights)
    assert effective_shares(back.log_sums, P)[-1] == pytest.approx(w.sum() ** 2 / (w @ w) / P)
    forward = run(path, name, n_steps)
    below, above = forward.log_weights, -back.log_weights
    assert below.mean() + 4.0 * below.std() / math.sqrt(P) < path.log_z
    assert above.mean() - 4.0 * above.std() / math.sqrt(P) > path.log_z


@each
def test_mean_weight_with_a_discrete_coordinate(name):
    path = LabelAndNumber()
    kernel = Mixed(KERNELS[name](coordinates=(1,)), DiscreteMetropolis((0,), ([0, 1, 2],)))
    rng = np.random.default_rng(2)
    ladder = climb(path, path.draw_prior(400, rng), kernel, rng)
    assert ladder.tunings[-1].scale.shape == (1, 1)
    found = anneal(path, path.draw_prior(P, rng), COARSE[5], kernel, ladder.at, rng)
    assert_mean(found.log_weights, path.log_z)
    assert np.isin(found.x[:, 0], [0, 1, 2]).all()
