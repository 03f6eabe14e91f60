"""Decisions by thinning are exact: chains against quadrature, for residuals with known bounds."""

import numpy as np
import pytest

from numba import njit, typeof

from amc_pymc.engine.jit import first_class
from amc_pymc.tall.decisions import (
    BROKEN,
    Thinning,
    _lengths,
    alias_table,
    fit_thinning,
    not_thinned,
    rates,
    thin,
)
from amc_pymc.tall.racing import REWARDS

N = 40


@first_class(REWARDS)
def cubic(points, centre, rows):
    """Residuals a_n (x0 - c)^3 with a_n = 0.02 (n + 1) / 40, and the opposite for row 7."""
    out = np.zeros((2, rows.size))
    for j in range(rows.size):
        a = 0.02 * (rows[j] + 1) / 40
        if rows[j] == 7:
            a = -a
        out[1, j] = a * ((points[1, 0] - centre[0]) ** 3 - (points[0, 0] - centre[0]) ** 3)
    return out


def factors():
    return 0.02 * (np.arange(N) + 1) / 40


class Bounds:
    """Bounds of rows that read coordinates densely and, if any, the levels of a factor."""

    n_arguments = 1

    def __init__(self, factors, unknown=(), *, dense=1, levels=()):
        self.factors, self.unknown, self.dense = factors, list(unknown), np.arange(dense)
        self.levels = np.atleast_2d(np.asarray(levels, np.int32).reshape(-1, N))

    def positions(self, centre):
        return self.levels

    def __call__(self, centre, blocks, radii, sizes, cuts):
        out = np.tile(self.factors, (1 + len(self.levels), 1)).astype(float)
        out[:, self.unknown] = np.inf
        return out


def tabulated(factors, radii, *, unknown=()):
    """Thinning of a parameter of unit variance around 0.5."""
    bounds = Bounds(factors, unknown)
    t = fit_thinning(bounds, N, np.array([0.5]), np.eye(1))
    return t._replace(radii=np.asarray(radii, float)[-len(t.radii) :])


@njit
def run(steps, x, rewards, t, rng, out):
    """Independent proposals from N(0.5, 1), which the target is relative to."""
    points, q = np.full((2, 1), x), np.empty(t.totals.shape[1])
    read = 0
    for k in range(steps):
        points[1, 0] = 0.5 + rng.standard_normal()
        radius = rates(points, t, q)
        if radius >= 0:
            found = thin(rewards, points, radius, q, t, rng)
            read += found.rows
            if found.status == BROKEN:
                return -found.row - 1
            if found.accepted:
                points[0, 0] = points[1, 0]
        out[k] = points[0, 0]
    return read


def moments(radius):
    """Mean and second moment of N(0.5, 1) exp(sum_n a_n (x - 0.5)^3) within the radius."""
    w = np.linspace(-radius, radius, 200_001)
    slope = factors().sum() - 2.0 * factors()[7]
    p = np.exp(-0.5 * w**2 + slope * w**3)
    return np.array([(w * p).sum(), (w**2 * p).sum()]) / p.sum()


def batch_means(values, number=50):
    means = values.reshape(number, -1).mean(axis=1)
    return means.mean(), means.std(ddof=1) / np.sqrt(number)


@pytest.mark.parametrize("slack", [1.0, 3.0])
def test_a_chain_within_a_radius_has_the_moments_of_quadrature(slack):
    """Proposals beyond the radius are rejected here; loose bounds read more and change nothing."""
    t = tabulated(slack * factors(), [[2.0, 1.0], [2.0, 1.0]])
    draws = np.empty(400_000)
    read = run(draws.size, 0.5, cubic, t, np.random.default_rng(1), draws)
    assert read > 0
    w = draws - 0.5
    for power, expected in zip((1, 2), moments(2.0), strict=True):
        mean, error = batch_means(w**power)
        assert abs(mean - expected) < 4.0 * error


def test_bounds_that_are_broken_are_found():
    t = tabulated(0.5 * factors(), [[2.0, 1.0], [2.0, 1.0]])
    draws = np.empty(10_000)
    assert run(draws.size, 0.5, cubic, t, np.random.default_rng(1), draws) < 0


def test_rows_without_or_with_dominant_bounds_are_evaluated_always():
    loose = factors() / 1e4
    loose[11] = 1.0
    t = tabulated(loose, [[2.0, 1.0], [4.0, 1.0]], unknown=[3])
    assert t.exact.tolist() == [3, 11]
    assert not t.bounds[:, :, t.exact].any()


def two_factors(seed=2):
    """Thinning of rows that read two coordinates, a level of each of two factors, and random factors."""
    rng = np.random.default_rng(seed)
    levels = [2 + rng.integers(0, 5, N), 7 + rng.integers(0, 3, N)]
    root = rng.normal(size=(10, 10))
    factors = 1e-4 * rng.exponential(size=N)
    bounds, centre = Bounds(factors, dense=2, levels=levels), rng.normal(size=10)
    return fit_thinning(bounds, N, centre, root @ root.T / 10), rng


def test_bounds_of_moves():
    """q bounds the change of a sum of cubes of any combination of lengths, and is small for small moves."""
    t, rng = two_factors()
    q, sums = np.empty(9), []
    for size in (1e-3, 0.1, 2.0):
        for _ in range(20):
            points = t.centre + 0.7 * rng.normal(size=(2, 10))
            points[1] = points[0] + size * rng.normal(size=10)
            k = rates(points, t, q)
            p = _lengths(points, t.centre, t.blocks)
            inside = np.maximum(p[0], p[1])
            fits = (inside[0] <= t.radii[:, 0]) & (inside[1:].max() <= t.radii[:, 1])
            assert k == (np.flatnonzero(fits)[0] if fits.any() else -1)
            if k < 0:
                continue
            # Weighted mean of a row's lengths, with signs: what its argument may be.
            signs, weights = rng.choice([-1.0, 1.0], (100, 9)), rng.dirichlet(np.ones(9), 100)
            ends = [(weights * signs * p[e]).sum(axis=1) for e in (0, 1)]
            step = (weights * p[2]).sum(axis=1)
            ends[1] = np.clip(ends[1], ends[0] - step, ends[0] + step)
            assert (np.abs(ends[1] ** 3 - ends[0] ** 3) <= weights @ q * (1 + 1e-12)).all()
            sums.append((size, q.sum()))
    sizes, sums = np.array(sums).T
    assert sums[sizes == 1e-3].mean() < 0.05 * sums[sizes == 2.0].mean()


def test_rows_are_drawn_in_proportion_to_bounds():
    t, rng = two_factors()
    points = t.centre + 0.7 * rng.normal(size=(2, 10))
    q = np.empty(9)
    k = rates(points, t, q)
    each = q[0] * t.bounds[k, 0] + (q[t.numbers] * t.bounds[k, 1:]).sum(axis=0)
    scale = 2_000.0 / each.sum()
    counted, draws = np.zeros(N), 50

    def count(points, centre, rows):
        np.add.at(counted, rows, 1.0)
        return np.zeros((2, rows.size))

    for _ in range(draws):
        thin.py_func(count, points, k, scale * q, t, rng)
    expected = draws * scale * each
    assert (np.abs(counted - expected) < 4.5 * np.sqrt(expected)).all()
    assert np.abs(counted.sum() - expected.sum()) < 4.0 * np.sqrt(expected.sum())


def test_reading_all_rows_may_cost_less():
    t = fit_thinning(Bounds(np.full(N, 0.09), dense=6), N, np.zeros(6), np.eye(6))
    assert t is None


def test_compiled_loops_have_one_type():
    assert typeof(two_factors()[0]) == typeof(not_thinned())
    assert typeof(tabulated(factors(), [[2.0, 1.0]])) == typeof(not_thinned())


def test_unused():
    assert isinstance(not_thinned(), Thinning)
    assert rates(np.zeros((2, 2)), not_thinned(), np.empty(1)) == -1


def test_rows_are_drawn_in_proportion_to_weights():
    rng = np.random.default_rng(3)
    weights = rng.exponential(size=50) * (rng.random(50) > 0.2)
    chances, aliases = np.empty(50, np.float32), np.empty(50, np.int32)
    alias_table(weights, chances, aliases)
    shares = chances.astype(float).copy()
    np.add.at(shares, aliases, 1.0 - chances.astype(float))
    np.testing.assert_allclose(shares / 50, weights / weights.sum(), atol=1e-8)


def test_lengths_of_blocks_are_standardised():
    """Lengths have the moments of chi distributions, and are independent between the first block and others."""
    t, rng = two_factors()
    covariance = np.random.default_rng(2)
    covariance.integers(0, 5, N), covariance.integers(0, 3, N)
    root = covariance.normal(size=(10, 10)) / np.sqrt(10)
    points = t.centre + rng.normal(size=(20_000, 10)) @ root.T
    p = np.concatenate(
        [_lengths(pair, t.centre, t.blocks)[:2] for pair in points.reshape(-1, 2, 10)]
    )
    squares, error = np.square(p), 4.0 / np.sqrt(len(p))
    expected = np.array([4.0] + [1.0] * 8)  # two coordinates, and the mean effects of two factors
    assert (np.abs(squares.mean(axis=0) - expected) < error * np.sqrt(2.0 * expected)).all()
    assert np.abs(np.corrcoef(squares.T)[0, 1:]).max() < error
