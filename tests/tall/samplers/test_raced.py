import functools
import math

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from amc_pymc.engine.jit import first_class
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.tall.decisions import residuals
from amc_pymc.tall.racing import REWARDS, NormalRace
from amc_pymc.tall.samplers.fit import (
    ResidualSummary,
    choose_exact_rows,
    most_near_kinks,
    rows_near_kinks,
    summarise_residuals,
)
from amc_pymc.tall.surrogate import surrogate_at, surrogate_change

# --- the identity ---------------------------------------------------------------------------------


def _data(n, d=2):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d))
    return rng, X, X @ np.linspace(-1.0, 1.0, d)


def negative_binomial():
    rng, X, eta = _data(600)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        alpha = pm.Exponential("alpha", 1)
        y = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(eta)))
        pm.NegativeBinomial("y", mu=pm.math.exp(X @ b), alpha=alpha, observed=y)
    return model


def hierarchical():
    rng, X, _ = _data(800)
    group = rng.integers(0, 6, 800)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=6)
        slope = pm.Normal("slope", 0, 1)
        pm.Poisson(
            "y", pm.math.exp((tau * z)[group] + slope * X[:, 0]), observed=rng.poisson(1.5, 800)
        )
    return model


@functools.cache
def densities_of(build, expand_all=True):
    densities = ModelDensities(build(), ["y"])
    if not expand_all:
        densities.expand = densities.layout.indices(densities.layout.names[:1])
    return densities.in_parameters()


@pytest.mark.parametrize("build", [negative_binomial, hierarchical])
def test_surrogate_and_residuals_add_up_to_the_exact_change(build):
    """The control variate is exact in the sum, wherever the points and the centre are."""
    densities = densities_of(build)
    rng = np.random.default_rng(1)
    d, everything = densities.layout.size, np.arange(densities.n_units)
    surrogate = surrogate_at(densities, 0.3 * rng.normal(size=d))
    for spread in (0.01, 0.3, 1.0):
        for _ in range(3):
            points = surrogate.centre + spread * rng.normal(size=(2, d))
            left = residuals(densities.rewards, points, surrogate.centre, everything)[1]
            found = surrogate_change(points, surrogate) + left.sum()
            exact = densities.change(points[0], points[1])
            size = np.abs(left).sum() + abs(surrogate_change(points, surrogate))
            assert abs(found - exact) < 1e-8 * max(abs(exact), 1e-3 * size)


def test_the_identity_holds_where_some_coordinates_are_not_expanded():
    densities = densities_of(hierarchical, expand_all=False)
    rng = np.random.default_rng(2)
    d, everything = densities.layout.size, np.arange(densities.n_units)
    centre = 0.3 * rng.normal(size=d)
    inside = densities.expand
    outside = np.setdiff1d(np.arange(d), inside)
    points = centre + 0.2 * rng.normal(size=(2, d))
    points[:, outside] = centre[outside]
    surrogate = surrogate_at(densities, centre)
    assert not surrogate.gradient[outside].any()
    assert not surrogate.hessian[outside].any() and not surrogate.hessian[:, outside].any()
    left = residuals(densities.rewards, points, centre, everything)[1]
    exact = densities.change(points[0], points[1])
    assert surrogate_change(points, surrogate) + left.sum() == pytest.approx(exact, rel=1e-8)


def test_residuals_are_of_third_order():
    """Halving the distance to the centre makes every residual eight times smaller."""
    densities = densities_of(negative_binomial)
    rng = np.random.default_rng(3)
    d, everything = densities.layout.size, np.arange(densities.n_units)
    centre, directions = 0.3 * rng.normal(size=d), rng.normal(size=(2, d))
    sizes = []
    for step in (0.04, 0.02, 0.01):
        points = centre + step * directions
        r = residuals(densities.rewards, points, centre, everything)[1]
        sizes.append(np.sqrt(np.mean(np.square(r))))
    ratios = np.array(sizes[:-1]) / sizes[1:]
    np.testing.assert_allclose(ratios, 8.0, rtol=0.15)


# --- which rows are exact -------------------------------------------------------------------------


#: Distance of log ratios from their thresholds, in nats.
GAP = 20.0


def summary_of(scale):
    power = np.square(np.asarray(scale, float))
    largest = np.argsort(-power)[:1000]
    total = power.sum()
    return ResidualSummary(
        power.size, largest, np.sqrt(power[largest]), total, np.zeros(1), np.array([total])
    )


def test_at_most_a_tenth_of_the_rows_is_taken_out():
    scale = np.full(600, 1e-5)
    scale[:100] = 1.0
    rows, expected = choose_exact_rows(summary_of(scale), NormalRace(), np.array([GAP]))
    assert rows.size <= 60 and rows.size <= expected <= 600
    scale = np.full(100, 1e-5)
    scale[:3] = 1.0
    assert choose_exact_rows(summary_of(scale), NormalRace(), np.array([GAP]))[0].size == 0


def test_the_choice_is_the_cheapest():
    """Against the cost of every choice from numpy."""
    rng = np.random.default_rng(5)
    for spread in (0.5, 1.5, 3.0):
        scale = 1e-3 * rng.lognormal(0.0, spread, size=20_000)
        costs = {}
        for n in (0, 50, 200, 1_000):
            rest = np.sort(scale)[: 20_000 - n]
            gap = GAP / (20_000 - n) / np.sqrt(np.mean(rest**2))
            costs[n] = n + float(NormalRace().expected_rows(gap, 20_000 - n))
        chosen, cost = choose_exact_rows(summary_of(scale), NormalRace(), np.array([GAP]))
        assert costs[chosen.size] <= 1.001 * min(costs.values())
        assert cost == pytest.approx(costs[chosen.size])


@pytest.mark.parametrize("height", [0.01, 1.0])
def test_rows_near_kinks_are_those_whose_residuals_matter(height):
    """The others leave a standard deviation of 0.05 nats, if one row stands for all."""
    scale = np.zeros(40_000)
    planted = np.random.default_rng(1).choice(40_000, 900, replace=False)
    scale[planted] = height * np.linspace(1.0, 2.0, 900)
    chosen = rows_near_kinks(summary_of(scale))
    assert set(chosen.tolist()) == set(planted.tolist())
    np.testing.assert_array_equal(chosen, np.unique(chosen))
    small = np.full(40_000, 0.04 / 40_000)
    small[planted[:30]] = height
    assert set(rows_near_kinks(summary_of(small)).tolist()) == set(planted[:30].tolist())
    assert rows_near_kinks(summary_of(0.5 * small * (small < height))).size == 0


def test_at_most_a_quarter_of_the_rows_is_near_kinks():
    assert most_near_kinks(1_000) == 250
    assert most_near_kinks(10**8) == 2**17
    assert rows_near_kinks(summary_of(np.ones(4_000))).size == 1_000  # all that the summary names


@pytest.mark.parametrize("chunk", [7, 100, 16_384])
def test_residuals_are_summarised_over_chunks(chunk):
    rng = np.random.default_rng(6)
    table = rng.normal(size=(3, 100)) * [[1.0], [5.0], [0.1]]
    probes = [np.full((2, 1), float(k)) for k in range(3)]
    chunks = []

    @first_class(REWARDS)
    def rewards(points, centre, rows):
        out = np.zeros((2, rows.size))
        out[1] = table[int(points[0, 0])][rows]
        return out

    store = SimpleNamespace(release=lambda: chunks.append(0))
    raced = SimpleNamespace(rewards=rewards, n_units=100, store=store)
    summary = summarise_residuals(raced, np.zeros(1), probes, chunk, n_largest=20)
    power = np.mean(table**2, axis=0)
    largest = np.argsort(-power)[:20]
    np.testing.assert_array_equal(summary.largest, largest)
    np.testing.assert_allclose(summary.scale, np.sqrt(power[largest]))
    np.testing.assert_allclose(summary.power, power.sum())
    np.testing.assert_allclose(summary.totals, table.sum(axis=1))
    np.testing.assert_allclose(summary.squares, np.square(table).sum(axis=1))
    assert len(chunks) == 3 * math.ceil(100 / chunk)


def test_planted_outliers_are_taken_out():
    rng = np.random.default_rng(1)
    scale = np.abs(rng.normal(1e-4, 1e-5, size=20_000))
    planted = np.sort(rng.choice(20_000, 40, replace=False))
    scale[planted] = rng.uniform(1.0, 3.0, size=40)
    chosen, _ = choose_exact_rows(summary_of(scale), NormalRace(), np.array([GAP]))
    assert chosen.size == 50
    assert set(planted) <= set(chosen.tolist())
    np.testing.assert_array_equal(chosen, np.unique(chosen))
    assert chosen.dtype == np.int64


def test_even_residuals_leave_nothing_to_take_out():
    scale = np.full(5_000, 0.2)
    assert choose_exact_rows(summary_of(scale), NormalRace(), np.array([500.0]))[0].size == 0
