"""What the tree bandits' benchmark measures with is right; the benchmark runs."""

import math

import numpy as np
import pytest

from scipy.stats import beta as beta_distribution

from benchmarks.papers import abc_tree_methods as methods
from benchmarks.papers import abc_tree_posteriors as posteriors
from benchmarks.papers import abc_tree_toys as toys
from models.point_simulators import gaussian_known


def test_thompson_probabilities():
    """Probabilities of the arms are those of having the largest of all draws."""
    rates, n = np.array([0.05, 0.3, 0.35, 0.02]), 150
    box, won, q = toys.thompson_game(
        rates, n, np.random.default_rng(1), toys.grid_for_thompson(400)
    )
    np.testing.assert_allclose(q[0], 0.25, atol=2e-3)
    np.testing.assert_allclose(q.sum(axis=1), 1.0)
    a = 1.0 + np.bincount(box[:-1], won[:-1], minlength=4)
    b = 1.0 + np.bincount(box[:-1], ~won[:-1], minlength=4)
    draws = beta_distribution.rvs(a, b, size=(40_000, 4), random_state=np.random.default_rng(2))
    share = np.bincount(draws.argmax(axis=1), minlength=4) / 40_000
    error = np.sqrt(share * (1.0 - share) / 40_000)
    assert (np.abs(q[-1] - share) < 4.0 * error + 2e-3).all()


def off(method, **options):
    """What means and mean squares of ten runs are off by, at the tolerance each ended with, and errors."""
    example, gaps = gaussian_known(2), []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        run = method(example, 6_000, rng, quota=300, **options)
        last = run.path[-1]
        x, w = example.cube(last.u), last.weight / last.weight.sum()
        exact = example.epsilon_reference(rng, 4_000, last.tolerance)
        assert (run.distance <= last.tolerance).sum() >= len(last.u) > 50
        assert len(run.distance) == 6_000
        gaps.append([*(w @ x - exact.mean(0)), *(w @ x**2 - (exact**2).mean(0))])
    return np.mean(gaps, axis=0), np.std(gaps, axis=0, ddof=1) / math.sqrt(10)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if "here" in n else n for n in methods.METHODS]
)
def test_methods_agree_with_the_exact_posterior(name):
    options = {"pseudo": 1.0} if name == posteriors.PRINTED else {}
    bias, error = off(methods.METHODS[name], **options)
    assert (np.abs(bias) < 5.0 * error).all() and (error < 0.1).all()


def test_squared_mmd():
    rng = np.random.default_rng(8)
    same = [
        methods.squared_mmd(rng.standard_normal((100, 2)), rng.standard_normal((100, 2)))
        for _ in range(50)
    ]
    assert abs(np.mean(same)) < 4.0 * np.std(same) / math.sqrt(50)
    assert (
        methods.squared_mmd(rng.standard_normal((100, 2)) + 1.0, rng.standard_normal((100, 2)))
        > 0.1
    )
