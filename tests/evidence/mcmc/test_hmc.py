"""Leapfrog trajectories against a plain one with momenta and a mass matrix."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.mcmc import HMC, Tuning, log_target, start
from tests.evidence.mcmc.paths import Fixed, Gaussian, LogGamma, Path, Scaled

BETA = 0.7
CHOL = np.array([[0.8, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.4, 0.2, 1.1]])


def leapfrog(path, x, p, mass, size, n_leapfrog):
    """Positions and momenta (P, D) after some steps with momenta p and a mass matrix."""

    def gradient(x):
        base, slope = path.slopes(x)
        return base + BETA * slope

    for _ in range(n_leapfrog):
        p = p + 0.5 * size * gradient(x)
        x = x + size * np.linalg.solve(mass, p.T).T
        p = p + 0.5 * size * gradient(x)
    return x, p


def energy(path, x, p, mass):
    kinetic = 0.5 * np.einsum("ij,ij->i", p, np.linalg.solve(mass, p.T).T)
    return kinetic - log_target(path.terms(x), BETA)


@pytest.mark.parametrize("scale", [np.array([0.5, 1.0, 2.0]), CHOL], ids=["diagonal", "dense"])
@pytest.mark.parametrize("n_leapfrog", [1, 2, 5])
def test_trajectories_are_those_with_a_mass_matrix(scale, n_leapfrog):
    path, rng = LogGamma(), np.random.default_rng(1)
    chol = np.diag(scale) if scale.ndim == 1 else scale
    mass = np.linalg.inv(chol @ chol.T)
    x, v = path.draw(40, BETA, rng), rng.standard_normal((40, 3))
    p = np.linalg.solve(chol.T, v.T).T
    x_end, p_end = leapfrog(path, x, p, mass, 0.3, n_leapfrog)
    particles, kernel = start(path, x, with_gradient=True), HMC(n_leapfrog, jitter=0.0)
    moved, accepted = kernel.step(path, particles, BETA, Tuning(0.3, scale), Fixed(v))
    np.testing.assert_allclose(moved.x, x_end, rtol=1e-10)
    difference = energy(path, x, p, mass) - energy(path, x_end, p_end, mass)
    np.testing.assert_allclose(accepted, np.exp(np.minimum(difference, 0.0)), rtol=1e-9)
    assert accepted.min() < 0.95

    # With the velocity turned round, particles come back to where they were.
    back, again = kernel.step(path, moved, BETA, Tuning(0.3, scale), Fixed(-(p_end @ chol)))
    np.testing.assert_allclose(back.x, x, rtol=1e-9)
    np.testing.assert_allclose(again, np.exp(np.minimum(-difference, 0.0)), rtol=1e-8)


def test_step_sizes_are_jittered_particle_by_particle():
    """Where there is no force, a particle goes n_leapfrog steps of its own size."""

    class Flat(Path):
        n_dim = 2

        def terms(self, x):
            return np.zeros((2, len(x)))

        def slopes(self, x):
            return np.zeros((2, *x.shape))

    path, n = Flat(), 4000
    particles = start(path, np.zeros((n, 2)), with_gradient=True)
    tuning = Tuning(0.2, np.array([1.0, 3.0]))
    kernel = HMC(n_leapfrog=4, jitter=0.3)
    moved, accepted = kernel.step(path, particles, 1.0, tuning, np.random.default_rng(3))
    v = np.random.default_rng(3).standard_normal((n, 2))
    sizes = moved.x / (4 * v * [1.0, 3.0])
    np.testing.assert_allclose(sizes[:, 0], sizes[:, 1], rtol=1e-9)
    assert stats.kstest(sizes[:, 0], "uniform", (0.14, 0.12)).pvalue > 1e-3
    assert abs(np.corrcoef(sizes[:, 0], v[:, 0])[0, 1]) < 4 / np.sqrt(n)
    assert np.all(accepted == 1.0)


@pytest.mark.parametrize("n_leapfrog", [1, 3])
def test_no_gradient_is_wasted(n_leapfrog):
    path, rng = Scaled(), np.random.default_rng(4)
    particles = start(path, path.draw(50, 1.0, rng), with_gradient=True)
    path.differentiated = 0
    tuning = Tuning(0.5, particles.x.std(axis=0))
    moved, _ = HMC(n_leapfrog=n_leapfrog).step(path, particles, 1.0, tuning, rng)
    assert (path.evaluated, path.differentiated) == (0, 50 * n_leapfrog)
    np.testing.assert_array_equal(moved.gradients, path.slopes(moved.x))


class Steep(Path):
    """exp(-x^4), of which large steps lead out of the finite numbers."""

    n_dim = 1

    def terms(self, x):
        with np.errstate(over="ignore"):
            return np.array([np.zeros(len(x)), -(x[:, 0] ** 4)])

    def slopes(self, x):
        with np.errstate(over="ignore"):
            return np.array([np.zeros_like(x), -4.0 * x**3])


@pytest.mark.parametrize("size", [5.0, 1e6, 1e60, 1e200])
def test_trajectories_that_explode_are_rejected(size):
    path, rng = Steep(), np.random.default_rng(5)
    particles = start(path, rng.standard_normal((200, 1)), with_gradient=True)
    moved, accepted = HMC(n_leapfrog=10).step(path, particles, 1.0, Tuning(size, np.ones(1)), rng)
    np.testing.assert_array_equal(moved.x, particles.x)
    np.testing.assert_array_equal(moved.terms, particles.terms)
    np.testing.assert_array_equal(accepted, 0.0)


def test_points_without_gradient_are_neither_left_nor_reached():
    class Hole(Gaussian):
        def slopes(self, x):
            gradients = super().slopes(x)
            gradients[0, np.abs(x[:, 0]) < 0.5] = np.nan
            return gradients

    path, rng = Hole(1), np.random.default_rng(6)
    x = rng.standard_normal((1000, 1))
    particles = start(path, x, with_gradient=True)
    inside = np.abs(x[:, 0]) < 0.5
    for _ in range(5):
        particles, accepted = HMC(2).step(path, particles, 1.0, Tuning(0.4, np.ones(1)), rng)
        assert np.isfinite(accepted).all()
    np.testing.assert_array_equal(particles.x[inside], x[inside])
    assert np.abs(particles.x[~inside]).min() >= 0.5
    assert (particles.x[~inside] != x[~inside]).mean() > 0.8


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"n_leapfrog": 0}, ValueError),
        ({"n_leapfrog": 2.5}, TypeError),
        ({"n_leapfrog": True}, TypeError),
        ({"jitter": -0.1}, ValueError),
        ({"jitter": 1.0}, ValueError),
        ({"jitter": np.nan}, ValueError),
    ],
)
def test_bad_settings(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        HMC(**settings)


@pytest.mark.parametrize("n_leapfrog", [1, 2, 3, 8])
def test_at_the_largest_size_a_gaussian_is_forgotten(n_leapfrog):
    path, rng = Gaussian(3), np.random.default_rng(7)
    x, v = rng.standard_normal((2, 50, 3))
    tuning = Tuning(HMC(n_leapfrog).max_size, np.ones(3))
    ends = [
        HMC(n_leapfrog, jitter=0.0)
        .step(path, start(path, s * x, with_gradient=True), 1.0, tuning, Fixed(v))[0]
        .x
        for s in (1.0, -1.0)
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-12)
