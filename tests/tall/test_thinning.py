"""Decisions by thinning are exact: chains against quadrature, for residuals with known bounds."""

import numpy as np
import pytest

from numba import njit

from amc_pymc.first_class import first_class
from amc_pymc.racing import REWARDS
from amc_pymc.tall.thinning import (
    BROKEN,
    Thinning,
    alias_table,
    fit_thinning,
    not_thinned,
    rates,
    thin,
)

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
    """Bounds of rows with one argument, which are all that matters here."""

    n_arguments, shared = 1, np.empty(0, np.int64)

    def __init__(self, factors, unknown=()):
        self.factors, self.unknown = factors, list(unknown)

    def __call__(self, centre, covariance, radii, cuts):
        out = np.zeros((4, N))
        out[0] = self.factors
        out[:, self.unknown] = np.inf
        return out


def tabulated(factors, radii, *, unknown=()):
    """Thinning of a parameter of unit variance around 0.5."""
    bounds = Bounds(factors, unknown)
    t = fit_thinning(bounds, N, np.array([0.5]), np.eye(1), np.array([0]))
    return t._replace(radii=np.asarray(radii, float))


@njit
def run(steps, x, rewards, t, rng, out):
    """Independent proposals from N(0.5, 1), which the target is relative to."""
    points, q = np.full((2, 1), x), np.empty(t.powers.size)
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


def test_rows_are_drawn_in_proportion_to_weights():
    rng = np.random.default_rng(3)
    weights = rng.exponential(size=50) * (rng.random(50) > 0.2)
    chances, aliases = np.empty(50, np.float32), np.empty(50, np.int32)
    alias_table(weights, chances, aliases)
    shares = chances.astype(float).copy()
    np.add.at(shares, aliases, 1.0 - chances.astype(float))
    np.testing.assert_allclose(shares / 50, weights / weights.sum(), atol=1e-8)


def test_rows_without_or_with_dominant_bounds_are_evaluated_always():
    loose = factors() / 1e4
    loose[11] = 1.0
    t = tabulated(loose, [[2.0, 1.0], [4.0, 1.0]], unknown=[3])
    assert t.exact.tolist() == [3, 11]
    assert not t.bounds[:, :, t.exact].any()


def test_bounds_of_moves():
    """q_j bounds the change of every product of two kinds of lengths, and is small for small moves."""
    rng = np.random.default_rng(2)
    t = not_thinned(3)._replace(
        centre=rng.normal(size=3),
        reads=np.arange(3),
        whiten=np.eye(3),
        shared=np.array([2]),
        whiten_shared=np.eye(1),
        radii=np.array([[3.0, 1.5], [9.0, 9.0]]),
        powers=np.arange(4),
    )
    q = np.empty(4)
    for size in (1e-3, 0.1, 2.0):
        points = t.centre + rng.normal(size=(2, 3))
        points[1] = points[0] + size * rng.normal(size=3)
        k = rates(points, t, q)
        w = points - t.centre
        lengths, v = np.linalg.norm(w, axis=1), np.abs(w[:, 2])
        expected = 0 if lengths.max() <= 3.0 and v.max() <= 1.5 else 1
        assert k == (expected if max(lengths.max(), v.max()) <= 9.0 else -1)
        for j in range(4):
            ends = lengths ** (3 - j) * v**j
            assert abs(ends[1] - ends[0]) <= q[j] * (1 + 1e-12)
            assert q[j] <= ends.sum() * (1 + 1e-12)
        assert size > 1e-2 or q.max() < 0.1


def test_reading_all_rows_may_cost_less():
    t = fit_thinning(Bounds(np.full(N, 0.09)), N, np.zeros(6), np.eye(6), np.arange(6))
    assert t is None


def test_unused():
    assert isinstance(not_thinned(2), Thinning)
    assert rates(np.zeros((2, 2)), not_thinned(2), np.empty(0)) == -1
