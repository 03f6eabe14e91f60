"""Steps of the random walk: their distribution, and what is counted."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.mcmc import RandomWalk, Tuning, start
from tests.evidence.mcmc.paths import Fixed, Gaussian

CHOL = np.array([[2.0, 0.0], [-1.0, 0.5]])


@pytest.mark.parametrize("scale", [np.array([2.0, 0.5]), CHOL], ids=["diagonal", "dense"])
def test_steps_and_ratio(scale):
    path, rng = Gaussian(2), np.random.default_rng(1)
    x, z = rng.standard_normal((2, 30, 2))
    chol = np.diag(scale) if scale.ndim == 1 else scale
    particles = start(path, x, with_gradient=False)
    moved, move = RandomWalk().step(path, particles, 0.0, Tuning(0.7, scale), Fixed(z))
    proposed = x + 0.7 * z @ chol.T
    ratio = np.exp(0.25 * np.sum(x**2 - proposed**2, axis=1))  # half of the normal is the base
    np.testing.assert_allclose(move.acceptance, np.minimum(ratio, 1.0), rtol=1e-12)
    np.testing.assert_allclose(moved.x, proposed)


def test_acceptance_of_a_standard_normal():
    """In one dimension 2 / pi arctan(2 / size) of the proposals are accepted."""
    path, rng = Gaussian(1), np.random.default_rng(2)
    particles = start(path, rng.standard_normal((20_000, 1)), with_gradient=False)
    for size in (0.5, 2.4, 8.0):
        _, move = RandomWalk().step(path, particles, 1.0, Tuning(size, np.ones(1)), rng)
        assert stats.ttest_1samp(move.acceptance, 2 / np.pi * np.arctan(2 / size)).pvalue > 1e-3


def test_several_steps_are_as_many_moves():
    path, rng = Gaussian(3), np.random.default_rng(3)
    particles = start(path, rng.standard_normal((50, 3)), with_gradient=False)
    tuning = Tuning(1.0, np.ones(3))
    many, move = RandomWalk(5).step(path, particles, 1.0, tuning, np.random.default_rng(4))
    assert move.evaluations == 250
    assert path.evaluated == 300
    rng, acceptance = np.random.default_rng(4), []
    for _ in range(5):
        particles, one = RandomWalk().step(path, particles, 1.0, tuning, rng)
        acceptance.append(one.acceptance)
    np.testing.assert_array_equal(many.x, particles.x)
    np.testing.assert_allclose(move.acceptance, np.mean(acceptance, axis=0), rtol=1e-12)


@pytest.mark.parametrize(("n_steps", "error"), [(0, ValueError), (1.0, TypeError)])
def test_bad_settings(n_steps, error):
    with pytest.raises(error, match="n_steps"):
        RandomWalk(n_steps)
