"""Kernels beside boxes: densities, exact weights, and what they win where posteriors are narrow and oblique."""

import math

import numpy as np
import pytest

from abc_tree.problems import UniformProblem, run, settings
from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal, multivariate_t, norm

from amc_pymc.abc_tree.cart import Cart
from amc_pymc.abc_tree.learning import Learner
from amc_pymc.abc_tree.local import Kernels, fit_kernels, flattened
from amc_pymc.abc_tree.partition import from_cuts
from amc_pymc.abc_tree.proposal import Boxes, Proposal
from amc_pymc.abc_tree.shares import best_shares
from amc_pymc.mixtures import StudentTMixture

FOREST = (Cart(random_cuts=True), Cart())
OBLIQUE = np.linalg.cholesky([[0.3, 0.27], [0.27, 0.3]])
KERNELS = Kernels(StudentTMixture([1.0], [[0.5, -0.3]], OBLIQUE[None], 8.0))
HALVES = Boxes(from_cuts([(0, 0, 0.5)], 2), np.array([0.3, 0.7]))


def test_density_is_relative_to_the_prior():
    x = np.random.default_rng(1).normal(size=(20, 2))
    wanted = multivariate_t([0.5, -0.3], OBLIQUE @ OBLIQUE.T, df=8.0).pdf(x) / norm.pdf(x).prod(
        axis=1
    )
    np.testing.assert_allclose(KERNELS.density(ndtr(x)), wanted)


def test_draws_have_the_density():
    u = KERNELS.draw(20_000, np.random.default_rng(1))
    assert ((u > 0.0) & (u < 1.0)).all()
    prior = np.random.default_rng(2).random((400_000, 2))
    inside = lambda points: (points[:, 0] > 0.6) & (points[:, 1] < 0.5)  # noqa: E731
    x = KERNELS.density(prior) * inside(prior)
    error = math.hypot(x.std() / math.sqrt(len(x)), 0.5 / math.sqrt(len(u)))
    assert abs(inside(u).mean() - x.mean()) < 4.0 * error


def test_points_beyond_double_precision_count_for_nothing():
    far = Kernels(StudentTMixture([1.0], [[0.0]], [[[50.0]]], 2.0))
    u = far.draw(1000, np.random.default_rng(1))
    edge = (u == u.min()) | (u == u.max())
    assert edge.sum() > 500 and (far.density(u[edge[:, 0]]) > 1e10).all()


@pytest.mark.parametrize("n", [7, 1000])
def test_weights_with_kernels_have_the_moments_of_the_prior(n):
    proposal = Proposal((HALVES,), 0.1, kernels=(KERNELS,) * 2, kernel_shares=(0.5, 0.2))
    rng, sums = np.random.default_rng(3), []
    for _ in range(20_000 // n):
        drawn = proposal.draw(n, rng)
        w = np.exp(drawn.log_ratio)
        assert w.max() <= 1.0 / 0.1 + 1e-9
        sums.append([w.mean(), w @ drawn.u[:, 0] / n, w @ (drawn.u[:, 0] * drawn.u[:, 1]) / n])
    for x, wanted in zip(np.transpose(sums), [1.0, 0.5, 0.25], strict=True):
        assert abs(x.mean() - wanted) < 4.0 * x.std() / math.sqrt(len(x)) + 1e-12
    assert proposal.local_share == pytest.approx(0.7)
    by_hand = 0.1 + 0.9 * (0.3 * HALVES.density(drawn.u) + 0.7 * KERNELS.density(drawn.u))
    np.testing.assert_allclose(proposal.density(drawn.u), by_hand)


def test_a_normal_posterior_is_flattened_to_the_best_proposal():
    """The square root of posterior times prior, up to a factor."""
    mean, cov = np.array([1.0, -0.5]), np.array([[0.4, 0.3], [0.3, 0.5]])
    mixture = StudentTMixture([1.0], [mean], [np.linalg.cholesky(cov)], np.inf)
    x = np.random.default_rng(1).normal(size=(50, 2))
    prior = multivariate_normal(np.zeros(2)).logpdf(x)
    wanted = 0.5 * (multivariate_normal(mean, cov).logpdf(x) + prior)
    gap = flattened(mixture, 0.5, np.inf).log_density(x) - wanted
    np.testing.assert_allclose(gap, gap[0])


def test_components_apart_get_weights_by_the_roots_of_their_masses():
    """With shares a, b and widths s, t the best masses are as sqrt(a s) to sqrt(b t), in one narrow dimension."""
    given = StudentTMixture([0.9, 0.1], [[0.3], [-0.3]], [[[1e-4]], [[4e-4]]], 8.0)
    weights = flattened(given, 0.5, 8.0).weights
    assert weights[0] / weights[1] == pytest.approx(math.sqrt(0.9 * 1e-4 / (0.1 * 4e-4)), rel=1e-3)


def test_kernels_are_fitted_to_parts_and_to_weights():
    rng = np.random.default_rng(4)
    u = rng.random((2000, 2))
    worth = np.exp(-0.5 * ((u[:, 0] - u[:, 1]) / 0.1) ** 2) * (np.abs(u[:, 0] - 0.4) < 0.1)
    fits = fit_kernels(u, worth, rng)
    assert [fit.kernels[0].mixture.components for fit in fits[:2]] == [1, 1] and len(fits) == 6
    for fit in fits:
        assert len(fit.kernels) == 2 and set(fit.part) == {0, 1}
        chosen = np.array([3, 5, 8])
        for i, found in zip(chosen, fit.unseen_density(u, chosen), strict=True):
            assert found == pytest.approx(fit.kernels[fit.part[i]].density(u[i : i + 1])[0])
    assert fit_kernels(u, np.where(np.arange(2000) < 4, 1.0, 0.0), rng) == []
    assert fit_kernels(u, np.zeros(2000), rng) == []


@pytest.mark.parametrize("floor", [0.1, 0.7])
def test_best_shares_against_a_grid(floor):
    rng = np.random.default_rng(5)
    density, worth, pull = rng.gamma(1.0, size=(2, 300)), rng.gamma(1.0, size=300), [0.05, 0.02]

    def cost(a):
        q = floor + (1.0 - floor) * (a * density[0] + (1.0 - a) * density[1])
        return np.log((worth / q).sum()) - pull[0] * np.log(a) - pull[1] * np.log(1.0 - a)

    grid = np.linspace(0.001, 0.999, 999)
    wanted = grid[np.argmin([cost(a) for a in grid])]
    found = best_shares(density, worth, floor, np.array(pull))
    np.testing.assert_allclose(found, [wanted, 1.0 - wanted], atol=2e-3)


class Ridge(UniformProblem):
    """Accepted along a narrow diagonal in three dimensions; the chance is known."""

    def __init__(self):
        super().__init__(self._distance_of, n_dim=3)

    def _distance_of(self, u, rng):
        x = ndtri(u)
        gaps = np.stack([x[:, 0] - x[:, 1], x[:, 1] - x[:, 2], 0.3 * (x.sum(axis=1) - 2.0)], axis=1)
        return np.linalg.norm(gaps + 0.05 * rng.standard_normal(gaps.shape), axis=1)


def gains_on_a_ridge(local, seeds=6, tolerance=0.1):
    """Weighted sums over accepted simulations, and effective draws per simulation."""
    out = []
    for seed in range(seeds):
        learner = Learner(FOREST, trees=4, rotate=True, local=local)
        history = run(Ridge(), 3000, settings(learner, tolerance=tolerance), seed)
        hit = history.distance <= tolerance
        w = np.exp(history.log_weight[hit])
        w_ratio = np.exp(history.log_ratio[hit])
        out.append([w_ratio.sum() / len(history), w.sum() ** 2 / (w @ w) / len(history)])
    return np.array(out)


def test_kernels_win_on_a_ridge_and_stay_unbiased():
    boxes, local = gains_on_a_ridge(False), gains_on_a_ridge(True)
    assert np.median(local[:, 1]) > 1.5 * np.median(boxes[:, 1])
    # By simulation of the noise: the three gaps are normal, and independent of each other in the last.
    rng = np.random.default_rng(6)
    map_ = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.3, 0.3, 0.3]])
    cov = map_ @ map_.T + 0.05**2 * np.eye(3)
    ball = rng.standard_normal((20_000, 3))
    ball *= (0.1 * rng.random(20_000) ** (1 / 3) / np.linalg.norm(ball, axis=1))[:, None]
    density = multivariate_normal([0.0, 0.0, -0.6], cov).pdf(ball)
    acceptance = density.mean() * 4.0 / 3.0 * math.pi * 0.1**3
    x = local[:, 0]
    assert abs(x.mean() - acceptance) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))


@pytest.mark.parametrize("options", [{"local": False}, {"utility": "posterior"}])
def test_without_kernels(options):
    history = run(Ridge(), 1000, settings(Learner(FOREST, trees=2, **options), tolerance=0.3), 1)
    assert all(r.proposal.kernels == () for r in history.rounds)


def test_the_share_of_kernels_is_learnt():
    """Nothing at first; more than boxes have where it pays, but not all; and weights keep their bound."""
    history = run(Ridge(), 3000, settings(Learner(FOREST, trees=4), tolerance=0.1), 1)
    shares = [r.proposal.local_share for r in history.rounds]
    assert shares[0] == 0.0 and max(shares) > 0.3 and max(shares) <= 0.9 + 1e-9
    for r in history.rounds:
        assert np.exp(r.log_ratio).max() <= 1.0 / 0.05 + 1e-9


def test_ndtr_of_draws_is_in_the_cube():
    u = Kernels(StudentTMixture([1.0], [[9.0]], [[[0.1]]], 8.0)).draw(10, np.random.default_rng(1))
    assert (u < 1.0).all() and (u > ndtr(8.0)).all()
