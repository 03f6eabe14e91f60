"""Densities are those of the draws, weights have mean one, and sums over accepted draws are unbiased."""

import math

import numpy as np
import pytest

from scipy.stats import norm

from amc_pymc.likelihood_free.partition import cut_boxes, whole_cube
from amc_pymc.likelihood_free.proposal import (
    Boxes,
    Proposal,
    best_proposal,
    prior_proposal,
)
from tests.likelihood_free.problems import from_cuts

QUARTERS = from_cuts([(0, 0, 0.25), (2, 1, 0.5)], 2)


def two_members(share=0.1):
    other = Boxes(from_cuts([(0, 1, 0.4)], 2), np.array([0.9, 0.1]))
    return Proposal((Boxes(QUARTERS, np.array([0.2, 0.1, 0.7])), other), share)


def test_density_by_hand():
    found = two_members().density(np.array([[0.1, 0.3], [0.3, 0.6]]))
    np.testing.assert_allclose(
        found, [0.1 + 0.45 * (0.2 / 0.25 + 0.9 / 0.4), 0.1 + 0.45 * (0.7 / 0.375 + 0.1 / 0.6)]
    )
    u = np.random.default_rng(1).random((400_000, 2))
    assert two_members().density(u).mean() == pytest.approx(1.0, abs=0.01)
    np.testing.assert_array_equal(prior_proposal(2).density(u[:5]), np.ones(5))


@pytest.mark.parametrize("n", [7, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_weights_have_mean_one(share, n):
    rng, proposal = np.random.default_rng(2), two_members(share)
    means = [np.exp(proposal.draw(n, rng).log_ratio).mean() for _ in range(20_000 // n)]
    assert abs(np.mean(means) - 1.0) < 4.0 * np.std(means) / math.sqrt(len(means)) + 1e-12


@pytest.mark.parametrize("n", [1, 9, 10, 29, 1000])
@pytest.mark.parametrize("share", [0.01, 0.07, 0.1, 1.0])
def test_no_weight_exceeds_the_bound(share, n):
    nothing_right = Boxes(from_cuts([(0, 0, 0.5)], 2), np.array([1.0, 0.0]))
    proposal = Proposal((nothing_right,), share)
    ratios = [proposal.draw(n, np.random.default_rng(seed)).log_ratio for seed in range(20)]
    largest = np.exp(np.max(ratios))
    assert largest <= (1.0 + 1e-6) / share
    # So many are from the prior, the least that is enough.
    assert np.isclose(1.0 / largest, math.ceil(round(share * n, 9)) / n) or largest < 1.0


def test_moments_of_the_prior_come_back():
    drawn = two_members().draw(200_000, np.random.default_rng(3))
    w = np.exp(drawn.log_ratio)
    assert w.max() <= 1.0 / 0.1 + 1e-9
    for f, wanted in ((drawn.u[:, 0], 0.5), (drawn.u[:, 1] ** 2, 1 / 3)):
        x = w * f
        assert abs(x.mean() - wanted) < 4.0 * x.std() / math.sqrt(len(x))


def test_boxes_are_drawn_as_often_as_asked():
    q = np.array([0.2, 0.1, 0.7])
    drawn = Proposal((Boxes(QUARTERS, q),), 0.0).draw(1001, np.random.default_rng(4))
    assert (np.abs(np.bincount(QUARTERS.find(drawn.u)) - 1001 * q) < 1.0).all()


def test_turned_boxes():
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    turned = Proposal((Boxes(QUARTERS, np.array([0.2, 0.1, 0.7]), turn),), 0.1)
    rng = np.random.default_rng(5)
    prior = turned.density(rng.random((400_000, 2)))
    assert abs(prior.mean() - 1.0) < 4.0 * prior.std() / math.sqrt(len(prior))
    drawn = turned.draw(200_000, rng)
    w = np.exp(drawn.log_ratio)
    for f, wanted in ((drawn.u[:, 0] * drawn.u[:, 1], 0.25), (drawn.u[:, 1] ** 2, 1 / 3)):
        x = w * f
        assert abs(x.mean() - wanted) < 4.0 * x.std() / math.sqrt(len(x))


def acceptance(u, tolerance):
    """Of a normal mean in the unit interval, sd 0.02, observed at 0.3."""
    return norm.cdf((0.3 + tolerance - u) / 0.02) - norm.cdf((0.3 - tolerance - u) / 0.02)


def test_an_exact_proposal_is_close_to_the_best():
    """With boxes as fine as one likes the gain is that of the best continuous proposal."""
    u = np.linspace(0.0, 1.0, 100_001)
    z = np.trapezoid(acceptance(u, 0.01), u)
    best = z / np.trapezoid(np.sqrt(acceptance(u, 0.01)), u) ** 2
    fine = whole_cube(1)
    for _ in range(10):
        fine = cut_boxes(fine, np.arange(fine.boxes), np.zeros(fine.boxes, int))
    k = fine.find(u[:-1, None])
    rates = np.bincount(k, acceptance(u[:-1], 0.01)) / np.bincount(k)
    q = best_proposal(fine.volumes * rates, fine.volumes)
    weights = 1.0 / Proposal((Boxes(fine, q),), 1e-6).density(u[:-1, None])
    gain = z / np.trapezoid(acceptance(u[:-1], 0.01) * weights, u[:-1])
    assert 0.99 * best < gain <= best * 1.001
