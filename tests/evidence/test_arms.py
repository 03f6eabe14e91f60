"""Estimators of evidence: exact means, exact costs, and what a combination of estimators asks of them."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.annealing import power_schedule
from amc_pymc.evidence.arms import ImportanceArm, QuasiArm, SequentialArm
from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.paths import ReferencePath
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import (
    Counts,
    Gaussian,
    HalfPlane,
    assert_mean,
    frozen,
)

#: Too narrow and off the centre of the posterior of `Counts`, so that the prior's share matters.
NARROW = StudentTMixture(
    [0.6, 0.4], [[1.3, -0.4], [0.9, -0.1]], np.broadcast_to(0.3 * np.eye(2), (2, 2, 2)), 20.0
)
WIDE = StudentTMixture([1.0], [[1.0, -0.3]], [0.8 * np.eye(2)], 5.0)
COARSE = power_schedule(3, 2)


def importance(path=None):
    return ImportanceArm(path or Counts(), NARROW)


def quasi(path=None):
    return QuasiArm(path or Counts(), NARROW)


def sequential(path=None, name="hmc"):
    path = path or Counts()
    ladder = frozen(0.7, np.full(2, 0.7))
    return SequentialArm(path, COARSE, make_kernel(name), ladder, n_moves=2, n_particles=256)


def sequential_from_reference(path=None):
    path = path or Counts()
    ladder = frozen(0.7, np.full(2, 0.7))
    bridge = ReferencePath(path, WIDE)
    return SequentialArm(bridge, COARSE, make_kernel("hmc"), ladder, n_particles=256)


ALL = {f.__name__: f for f in (importance, quasi, sequential, sequential_from_reference)}
DRAWS = {
    "importance": 900,
    "quasi": 150,
    "sequential": 80,
    "sequential_from_reference": 80,
}
each = pytest.mark.parametrize("make", ALL.values(), ids=list(ALL))


@each
def test_mean(make):
    path = Counts()
    values, _ = make(path).sample(DRAWS[make.__name__], np.random.default_rng(2))
    assert_mean(values, path.log_z)


@each
def test_mean_where_half_of_the_prior_is_impossible(make):
    path = HalfPlane(2.0)
    n = DRAWS[make.__name__] * 3 // 2
    values, _ = make(path).sample(n, np.random.default_rng(3))
    assert not np.isnan(values).any()
    assert_mean(values, path.log_z, precision=0.015)


@each
@pytest.mark.parametrize("n", [1, 2, 33])
def test_costs_are_what_was_evaluated(make, n):
    path = Counts()
    arm = make(path)
    for seed in range(3):
        path.evaluated = path.differentiated = 0
        values, costs = arm.sample(n, np.random.default_rng(seed))
        assert values.shape == costs.shape == (n,)
        assert costs.sum() == pytest.approx(path.evaluated + 2 * path.differentiated)
        np.testing.assert_allclose(costs, arm.cost)


def test_costs_of_slices_are_only_known_afterwards():
    path = Counts()
    arm = sequential(path, "slice")
    assert arm.cost is None
    path.evaluated = 0
    _, costs = arm.sample(5, np.random.default_rng(6))
    assert costs.sum() == pytest.approx(path.evaluated)


def test_importance_weights_are_held_in_blocks():
    largest = []

    class Watched(Counts):
        def values(self, x):
            largest.append(len(x))
            return super().values(x)

    values, _ = ImportanceArm(Watched(), NARROW).sample(2500, np.random.default_rng(8))
    assert values.shape == (2500,)
    assert largest == [1024 * 64, 1024 * 64, 452 * 64]


def test_importance_weights_belong_to_their_points():
    path = Counts()
    log_w, x = ImportanceArm(path, NARROW).weigh(500, np.random.default_rng(10))
    assert x.shape == (500, 2)
    terms = path.terms(x)
    density = 0.9 * np.exp(NARROW.log_density(x)) + 0.1 * np.exp(terms[0])
    np.testing.assert_allclose(np.exp(log_w), np.exp(terms.sum(axis=0)) / density)
    assert log_w.max() < path.terms(np.log([path.count / path.exposure]))[1] + math.log(10.0)


@pytest.mark.parametrize("n", [1, 4, 30])
def test_importance_draws_are_exchangeable(n):
    """The first of a batch has the mean of all: it comes from the prior as often as any other."""
    path, rng = Counts(), np.random.default_rng(11)
    arm = ImportanceArm(path, NARROW)
    batches = np.array([arm.weigh(n, rng)[0] for _ in range(2000)])
    assert_mean(batches[:, 0], path.log_z, precision=0.06)
    assert_mean(batches.ravel(), path.log_z, precision=0.04)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_other_shares_of_the_prior(share):
    path = Counts()
    values, _ = ImportanceArm(path, WIDE, share).sample(1000, np.random.default_rng(12))
    assert_mean(values, path.log_z)


def test_the_prior_beside_a_net_has_the_share_that_it_is_weighted_by():
    """28 points in 284, which is not quite a tenth: from the exact posterior that shows."""
    path = Gaussian([3.0], 0.3)
    mean, sd = path.moments(1.0)
    exact = StudentTMixture([1.0], [mean], [[[sd]]], np.inf)
    values, _ = QuasiArm(path, exact).sample(800, np.random.default_rng(16))
    assert_mean(values, path.log_z, precision=2.5e-4)


def test_no_likelihood_anywhere():
    class Impossible(Counts):
        def terms(self, x):
            terms = super().terms(x)
            terms[1] = -np.inf
            return terms

    path = Impossible()
    for make in (importance, quasi, sequential, sequential_from_reference):
        values, costs = make(path).sample(3, np.random.default_rng(14))
        np.testing.assert_array_equal(values, -np.inf)
        assert (costs > 0.0).all()


def test_a_reference_where_the_prior_cannot_be():
    """Points without prior density weigh nothing, even where the reference underflows as well."""

    class Box(Counts):
        def terms(self, x):
            terms = super().terms(x)
            terms[0, np.abs(x).max(axis=1) > 3.0] = -np.inf
            return terms

        def draw_prior(self, n, rng):
            return np.full((n, 2), 1e200)  # as good as infinitely far from anything

    with np.errstate(over="ignore"):
        log_w, _ = ImportanceArm(Box(), NARROW, 0.5).weigh(200, np.random.default_rng(15))
    assert 60 < (log_w == -np.inf).sum() < 140
    assert not np.isnan(log_w).any()
