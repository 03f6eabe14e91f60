"""Densities are those of the draws, weights have mean one, and sums over accepted draws are unbiased."""

import math

import numpy as np
import pytest

from scipy.stats import norm

from amc_pymc.abc_tree import best_proposal, halve, whole_cube
from amc_pymc.abc_tree.partition import from_cuts
from amc_pymc.abc_tree.proposal import Boxes, Proposal, prior_proposal
from amc_pymc.abc_tree.run import Cart, Dyadic, Settings, batch_sizes, rounds, schedule
from amc_pymc.rng import spawn_generators

QUARTERS = from_cuts([(0, 0, 0.25), (2, 1, 0.5)], 2)


def two_members(share=0.1):
    other = Boxes(from_cuts([(0, 1, 0.4)], 2), np.array([0.9, 0.1]))
    return Proposal((Boxes(QUARTERS, np.array([0.2, 0.1, 0.7])), other), share)


def test_density_by_hand():
    found = two_members().density(np.array([[0.1, 0.3], [0.3, 0.6]]))
    np.testing.assert_allclose(
        found,
        [
            0.1 + 0.45 * (0.2 / 0.25 + 0.9 / 0.4),
            0.1 + 0.45 * (0.7 / 0.375 + 0.1 / 0.6),
        ],
    )
    u = np.random.default_rng(1).random((400_000, 2))
    assert two_members().density(u).mean() == pytest.approx(1.0, abs=0.01)
    np.testing.assert_array_equal(prior_proposal(2).density(u[:5]), np.ones(5))


@pytest.mark.parametrize("n", [7, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_weights_have_mean_one(share, n):
    rng, proposal = np.random.default_rng(2), two_members(share)
    means = [np.exp(proposal.draw(n, rng).log_ratio).mean() for _ in range(60_000 // n)]
    assert abs(np.mean(means) - 1.0) < 4.0 * np.std(means) / math.sqrt(len(means)) + 1e-12


def test_moments_of_the_prior_come_back():
    drawn = two_members().draw(200_000, np.random.default_rng(3))
    w = np.exp(drawn.log_ratio)
    assert w.max() <= 1.0 / 0.1 + 1e-9
    for f, wanted in ((drawn.u[:, 0], 0.5), (drawn.u[:, 1] ** 2, 1 / 3)):
        x = w * f
        assert abs(x.mean() - wanted) < 4.0 * x.std() / math.sqrt(len(x))
    np.testing.assert_array_equal(drawn.box, QUARTERS.find(drawn.u))


def test_boxes_are_drawn_as_often_as_asked():
    q = np.array([0.2, 0.1, 0.7])
    drawn = Proposal((Boxes(QUARTERS, q),), 0.0).draw(1001, np.random.default_rng(4))
    assert (np.abs(np.bincount(drawn.box) - 1001 * q) < 1.0).all()


def test_budgets_are_spent():
    for n in (1, 3, 19, 20, 21, 999, 100_000):
        sizes = batch_sizes(n)
        assert sum(sizes) == n and min(sizes) > 0
        assert sum(batch_sizes(n, 64)) == n


def test_tolerances_fall_and_stop():
    settings = Settings(Cart(), accepts=5, tolerance=0.02)
    distance = np.arange(100) / 100
    assert schedule(distance, math.inf, settings) == 0.04
    assert schedule(distance, 0.03, settings) == 0.03
    assert schedule(distance / 10, math.inf, settings) == 0.02
    assert schedule(np.full(50, np.inf), math.inf, settings) == math.inf
    factor = Settings(Cart(), accepts=5, factor=0.5)
    assert schedule(distance, 0.4, factor) == 0.2
    assert schedule(distance + 1.0, 1.5, factor) == 1.5  # nothing is as close


# A normal mean with a uniform prior: the posterior at a tolerance is known.

OBSERVED, SD, WIDTH = 0.3, 0.02, 1.0


def gaussian(u, rng):
    return np.abs(WIDTH * u[:, 0] + SD * rng.standard_normal(len(u)) - OBSERVED)


def acceptance(u, tolerance):
    return norm.cdf((OBSERVED + tolerance - u) / SD) - norm.cdf((OBSERVED - tolerance - u) / SD)


def known(tolerance):
    """Acceptance of rejection, posterior mean and sd, probability of being below the observation."""
    u = np.linspace(0.0, 1.0, 200_001)
    p = acceptance(u, tolerance)
    z = np.trapezoid(p, u)
    mean = np.trapezoid(p * u, u) / z
    sd = math.sqrt(np.trapezoid(p * (u - mean) ** 2, u) / z)
    return z, mean, sd, np.trapezoid(np.where(u < OBSERVED, p, 0.0), u) / z


def run(n, settings, seed, n_dim=1):
    generators = spawn_generators(seed, 40)
    sizes = batch_sizes(n)

    def simulate(u, b):
        return gaussian(u, generators[20 + b])

    for history in rounds(simulate, n_dim, sizes, settings, generators[: len(sizes)]):
        pass
    return history


PARTITIONERS = {
    "cart": Cart,
    "forest": lambda: Cart(trees=4, random_cuts=True),
    "dyadic": lambda: Dyadic(cuts=5),
    "dyadic, widest": lambda: Dyadic(cuts=5, separate=False),
}


CASES = [
    ("cart", "ess"),
    ("dyadic", "ess"),
    *(pytest.param("cart", u, marks=pytest.mark.slow) for u in ("efficiency", "posterior", "kl")),
    *(
        pytest.param(kind, utility, marks=pytest.mark.slow)
        for kind in ("forest", "dyadic, widest")
        for utility in ("ess", "efficiency", "posterior", "kl")
    ),
]


@pytest.mark.parametrize(("kind", "utility"), CASES)
def test_the_posterior_at_a_tolerance(kind, utility):
    tolerance, n = 0.01, 4000
    z, mean, sd, below = known(tolerance)
    sums = []
    for seed in range(30):
        settings = Settings(PARTITIONERS[kind](), utility=utility, tolerance=tolerance, accepts=300)
        history = run(n, settings, seed)
        w = np.exp(history.log_weight) * (history.distance <= tolerance)
        gains = np.array([r.proposal.gain for r in history.rounds])
        u, total = history.u[:, 0], gains[history.number].sum()
        sums.append([w.sum(), w @ u, w @ (u - mean) ** 2, w @ (u < OBSERVED)] / total)
    sums = np.array(sums)
    for x, wanted in zip(sums.T, [z, z * mean, z * sd**2, z * below], strict=True):
        assert abs(x.mean() - wanted) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))
    gained = w.sum() ** 2 / (w @ w) / (n * z)
    assert gained > (2.0 if utility in ("ess", "efficiency") else 0.7)


def test_a_bounded_run_of_the_prior_is_rejection():
    settings = Settings(lambda u, near, before, rng: [whole_cube(1)], tolerance=0.05)
    history = run(3000, settings, 1)
    np.testing.assert_allclose(history.log_weight, 0.0, atol=1e-12)


def test_nothing_accepted():
    generators = spawn_generators(1, 20)
    settings = Settings(Cart(), tolerance=0.1)
    found = list(rounds(lambda u, b: np.full(len(u), np.inf), 2, [10] * 20, settings, generators))
    assert len(found[-1]) == 200
    np.testing.assert_array_equal(found[-1].log_weight, np.zeros(200))


def test_an_exact_proposal_is_close_to_the_best():
    """With boxes as fine as one likes the gain is that of the best continuous proposal."""
    z, *_ = known(0.01)
    u = np.linspace(0.0, 1.0, 100_001)
    best = z / np.trapezoid(np.sqrt(acceptance(u, 0.01)), u) ** 2
    fine = whole_cube(1)
    for _ in range(10):
        fine = halve(fine, np.ones(fine.boxes), n_cuts=fine.boxes)
    k = fine.find(u[:-1, None])
    rates = np.bincount(k, acceptance(u[:-1], 0.01)) / np.bincount(k)
    q = best_proposal(fine.volumes * rates, fine.volumes)
    weights = 1.0 / Proposal((Boxes(fine, q),), 1e-6).density(u[:-1, None])
    gain = z / np.trapezoid(acceptance(u[:-1], 0.01) * weights, u[:-1])
    assert 0.99 * best < gain <= best * 1.001
