"""Sizes that accept as often as they should, and scales of points."""

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import (
    HMC,
    KERNELS,
    DiscreteMetropolis,
    Slice,
    make_kernel,
    scale_of,
    start,
    tune,
)
from tests.evidence.mcmc.paths import Banana, Corner, Gaussian, LogGamma, Scaled

TUNED = [HMC(), HMC(n_leapfrog=1)]


@pytest.mark.parametrize("size", [None, 1e-4, 100.0])
@pytest.mark.parametrize("path", [LogGamma, Banana, Scaled, Corner])
@pytest.mark.parametrize("kernel", TUNED, ids=repr)
def test_acceptance_is_as_wanted(kernel, path, size):
    path, rng = path(), np.random.default_rng(1)
    particles = start(path, path.draw(1000, 0.5, rng), with_gradient=kernel.needs_gradient)
    scale = scale_of(particles.x, dense=True)
    path.evaluated = path.differentiated = 0
    tuning, _ = tune(kernel, path, particles, 0.5, rng, scale=scale, size=size)
    assert path.evaluated + path.differentiated <= 12_000 * getattr(kernel, "n_leapfrog", 1)
    assert tuning.scale is scale
    assert tuning.size <= getattr(kernel, "max_size", np.inf) * (1 + 1e-12)
    fresh = start(path, path.draw(10_000, 0.5, rng), with_gradient=kernel.needs_gradient)
    _, accepted = kernel.step(path, fresh, 0.5, tuning, rng)
    found = accepted.mean()
    if tuning.size < 0.99 * getattr(kernel, "max_size", np.inf):
        assert found == pytest.approx(kernel.target_acceptance, abs=0.09)
    else:
        assert found > kernel.target_acceptance - 0.03


@pytest.mark.parametrize("kernel", [Slice(), DiscreteMetropolis((0,), (None,))])
def test_nothing_to_tune(kernel):
    path, rng = Gaussian(2), np.random.default_rng(4)
    particles = start(path, np.zeros((10, 2)), with_gradient=False)
    state = rng.bit_generator.state
    for size, expected in ((None, 2.0), (0.3, 0.3)):
        path.evaluated = path.differentiated = 0
        tuning, same = tune(kernel, path, particles, 1.0, rng, scale=np.ones(2), size=size)
        assert tuning.size == expected
        assert same is particles
        assert path.evaluated == path.differentiated == 0
    assert rng.bit_generator.state == state


@pytest.mark.parametrize("kernel", TUNED, ids=repr)
def test_particles_of_density_zero_do_not_count(kernel):
    path, rng = Corner(), np.random.default_rng(5)
    x = path.draw(2000, 1.0, rng)
    x[::2] = [-50.0, -50.0]
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    scale = np.array([0.5, 0.3])
    tuning, _ = tune(kernel, path, particles, 1.0, rng, scale=scale)
    fresh = start(path, path.draw(5000, 1.0, rng), with_gradient=kernel.needs_gradient)
    _, accepted = kernel.step(path, fresh, 1.0, tuning, rng)
    assert accepted.mean() == pytest.approx(kernel.target_acceptance, abs=0.09)


class Sticky(Gaussian):
    """Particles far out have no gradient and never move."""

    def slopes(self, x):
        return np.where(x[:, :1] > 50.0, np.nan, super().slopes(x))


def test_particles_that_are_stuck_do_not_stop_the_others():
    """With a fifth and more of them, the wanted acceptance is not reached at any size."""
    path, rng, sizes = Sticky(2), np.random.default_rng(6), []
    for stuck in (0, 250):
        x = rng.standard_normal((1000, 2))
        x[:stuck] = 100.0
        particles = start(path, x, with_gradient=True)
        found, _ = tune(HMC(1), path, particles, 1.0, rng, scale=np.full(2, 1e3), n_moves=20)
        sizes.append(found.size)
    assert 0.2 * sizes[0] < sizes[1] < sizes[0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", ["flat", "point"])
def test_sizes_are_bounded(name, target):
    class Extreme(Gaussian):
        def terms(self, x):
            return (0.0 if target == "flat" else 1e30) * super().terms(x)

        def slopes(self, x):
            return (0.0 if target == "flat" else 1e30) * super().slopes(x)

    kernel, path, rng = make_kernel(name), Extreme(2), np.random.default_rng(7)
    particles = start(path, 1e-15 * np.ones((100, 2)), with_gradient=kernel.needs_gradient)
    size = tune(kernel, path, particles, 1.0, rng, scale=np.ones(2), n_moves=20)[0].size
    if name == "slice":
        assert size == pytest.approx(2.0)
    elif target == "point":
        assert size == pytest.approx(1e-6)
    else:
        assert size == pytest.approx(getattr(kernel, "max_size", 1e3))


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"n_moves": 0}, ValueError, "n_moves"),
        ({"n_moves": 1.5}, TypeError, "n_moves"),
    ],
)
def test_bad_settings(settings, error, match):
    path, rng = Gaussian(2), np.random.default_rng(8)
    particles = start(path, np.zeros((10, 2)), with_gradient=True)
    with pytest.raises(error, match=match):
        tune(HMC(), path, particles, 1.0, rng, **({"scale": np.ones(2)} | settings))


def test_standard_deviations_and_correlations():
    x = Scaled().draw(5000, 1.0, np.random.default_rng(9))
    np.testing.assert_allclose(scale_of(x, dense=False), x.std(axis=0, ddof=1))
    chol = scale_of(x, dense=True)
    np.testing.assert_array_equal(chol, np.tril(chol))


@pytest.mark.parametrize("n", [3, 10, 200])
def test_shrinkage_by_brute_force(n):
    """Schäfer & Strimmer (2005), their equations for correlations, one pair after the other."""
    x = np.random.default_rng([10, n]).standard_normal((n, 4)) @ np.array(
        [[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, -0.9], [2, 0, 0, 1]]
    )
    z = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    variance = squares = 0.0
    for i in range(4):
        for j in range(4):
            if i != j:
                w = z[:, i] * z[:, j]
                variance += n / (n - 1) ** 3 * np.sum((w - w.mean()) ** 2)
                squares += (n / (n - 1) * w.mean()) ** 2
    shrink = min(1.0, variance / squares)
    assert shrink < 1.0
    covariance = np.cov(x.T)
    expected = (1 - shrink) * covariance + shrink * np.diag(covariance.diagonal())
    chol = scale_of(x, dense=True)
    np.testing.assert_allclose(chol @ chol.T, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(11).standard_normal((5, 20)),
        np.repeat(np.random.default_rng(12).standard_normal((50, 1)), 3, axis=1),
        np.zeros((10, 3)),
        np.full((10, 2), 1e10),
        np.array([[1.0, 2.0, 3.0]]),
        np.array([[1.0, 0.0], [2.0, 0.0]]),
        np.array([[1e-100, 5.0], [2e-100, 1e100], [3e-100, -1e50]]),
    ],
    ids=["P < D", "copies", "zeros", "constant", "P = 1", "P = 2", "scales"],
)
def test_scales_are_never_singular(x):
    sds = scale_of(x, dense=False)
    assert np.all(sds > 0.0)
    chol = scale_of(x, dense=True)
    assert np.isfinite(chol).all()
    assert np.all(chol.diagonal() > 0.0)
    units = chol / sds[:, None]
    np.testing.assert_allclose(np.sum(units**2, axis=1), 1.0, rtol=1e-9)
    assert np.linalg.eigvalsh(units @ units.T).min() > 1e-7
