"""Slices against figures 3 and 5 of Neal (2003), written down for one particle."""

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import Slice, Tuning, log_target, start
from tests.evidence.mcmc.paths import Banana, Corner, Gaussian, LogGamma, TiltedMixture


def literal(path, x, beta, widths, m, rng):
    """One sweep of one particle; the new point and the number of evaluations."""
    x, evaluations = x.copy(), 0

    def log_f(d, point):
        nonlocal evaluations
        evaluations += 1
        y = x.copy()
        y[d] = point
        return log_target(path.terms(y[None]), beta)[0]

    for d, w in enumerate(widths):
        level = log_target(path.terms(x[None]), beta)[0] - rng.standard_exponential()
        left = x[d] - w * rng.random()
        right = left + w
        j = rng.integers(m)
        k = m - 1 - j
        while j > 0 and level < log_f(d, left):
            left, j = left - w, j - 1
        while k > 0 and level < log_f(d, right):
            right, k = right + w, k - 1
        while True:
            point = left + rng.random() * (right - left)
            if level < log_f(d, point):
                break
            if point < x[d]:
                left = point
            else:
                right = point
        x[d] = point
    return x, evaluations


@pytest.mark.parametrize("m", [1, 2, 5, 10])
@pytest.mark.parametrize("size", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("path", [LogGamma, Banana, TiltedMixture, Corner])
def test_one_particle_goes_as_the_paper_says(path, size, m):
    path = path()
    for seed in range(12):
        x = path.draw(1, 0.5, np.random.default_rng([seed, 1]))
        sds = np.linspace(0.5, 1.5, path.n_dim)
        particles = start(path, x, with_gradient=False)
        path.evaluated = 0
        moved, _ = Slice(m).step(
            path, particles, 0.5, Tuning(size, sds), np.random.default_rng(seed)
        )
        found, evaluations = literal(path, x[0], 0.5, size * sds, m, np.random.default_rng(seed))
        np.testing.assert_allclose(moved.x[0], found, rtol=1e-12)
        assert path.evaluated == evaluations


def test_each_particle_has_its_own_level_and_interval():
    """Equal particles part ways, and only those still looking are evaluated."""
    path = LogGamma()
    particles = start(path, np.zeros((500, 3)), with_gradient=False)
    path.evaluated = 0
    moved, accepted = Slice().step(
        path, particles, 1.0, Tuning(2.0, np.ones(3)), np.random.default_rng(1)
    )
    assert len(np.unique(moved.x)) == 1500
    assert 3 * 1500 < path.evaluated < 7 * 1500
    np.testing.assert_array_equal(accepted, 1.0)


def test_levels_below_rounding_do_not_hang():
    """With densities of size 1e17 a level is that of the particle itself; it may stay."""

    class Huge(Gaussian):
        def terms(self, x):
            return super().terms(x) - 1e17

    path, rng = Huge(1), np.random.default_rng(5)
    particles = start(path, np.linspace(-1e8, 1e8, 50)[:, None], with_gradient=False)
    moved, _ = Slice().step(path, particles, 1.0, Tuning(1.0, np.ones(1)), rng)
    assert np.isfinite(moved.x).all()
    assert path.evaluated < 50 * 300


@pytest.mark.parametrize(("max_widths", "error"), [(0, ValueError), (2.0, TypeError)])
def test_bad_settings(max_widths, error):
    with pytest.raises(error, match="max_widths"):
        Slice(max_widths)
