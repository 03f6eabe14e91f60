import numpy as np

from scipy.stats import qmc

from amc_pymc.likelihood_free.problem import student_kernel
from amc_pymc.likelihood_free.step_posterior import fit_step_posterior
from amc_pymc.rng import as_generator
from tests.likelihood_free.problems import NormalMean


def fitted(n, tolerance=0.05):
    problem, rng = NormalMean(), as_generator(1)
    u = rng.random((n, 1))
    distance = problem.simulate(u, rng).distance
    hit = np.flatnonzero(distance <= tolerance)
    weight = np.full(len(hit), 1.0 / len(hit))
    near = student_kernel(distance, tolerance)
    return problem, fit_step_posterior(u, near, hit, weight, rng), u[hit]


def density_at(found, u):
    """Return the density of the boxes (K, 1) that contain points (n,)."""
    inside = (u[:, None] >= found.lower[:, 0]) & (u[:, None] < found.upper[:, 0])
    return inside @ (found.mass / (found.upper - found.lower)[:, 0])


def test_it_integrates_to_one():
    _, found, _ = fitted(20_000)
    assert abs(found.mass.sum() - 1.0) < 1e-12
    points = qmc.Sobol(1, seed=1).random(2**16)
    assert abs(density_at(found, points[:, 0]).mean() - 1.0) < 1e-2
    assert found.accepted.sum() > 1000


def test_it_is_near_the_posterior():
    problem, found, hit = fitted(200_000)
    z, mean, sd, _ = problem.known(0.05)
    grid = (np.arange(100_000) + 0.5) / 100_000
    density = density_at(found, grid)
    assert abs((density * grid).mean() - mean) < 4.0 * sd / np.sqrt(len(hit))
    exact = problem.acceptance(grid, 0.05) / z
    noise = np.sqrt(found.mass / len(hit)).sum() / np.sqrt(2.0 * np.pi)
    assert 0.5 * abs(density - exact).mean() < 1.5 * noise < 0.15


def test_one_accepted_simulation():
    u = as_generator(1).random((50, 2))
    found = fit_step_posterior(u, np.zeros(50), np.array([3]), np.ones(1), as_generator(2))
    assert found.mass.sum() == 1.0 and found.lower.shape == found.upper.shape == (1, 2)
