"""Pilot runs: temperatures, barriers, tunings, what cannot be climbed, what is found in the cold."""

import math

import numpy as np
import pytest

from scipy.integrate import quad
from scipy.special import logsumexp

from amc_pymc.evidence.annealing import Ladder, climb, cool
from amc_pymc.evidence.mcmc import KERNELS, DiscreteMetropolis, Mixed, Tuning, make_kernel, start
from tests.evidence.annealing.problems import (
    Counts,
    Gaussian,
    HalfPlane,
    LabelAndNumber,
    Lossy,
    log_normal,
)
from tests.evidence.mcmc.paths import Path

each = pytest.mark.parametrize("name", KERNELS)


def pilot(path, name="hmc", n=1000, seed=0, **settings):
    kernel = make_kernel(name) if isinstance(name, str) else name
    rng = np.random.default_rng(seed)
    x = path.draw_prior(n, rng)
    path.evaluated = path.differentiated = 0
    return climb(path, x, kernel, rng, **settings)


@each
@pytest.mark.parametrize(
    ("data", "sd"), [([1.0, -2.0, 0.5], 0.5), ([3.0], 0.1), (np.ones(20), 0.5), ([0.1], 4.0)]
)
def test_barrier_of_a_gaussian(name, data, sd):
    path = Gaussian(data, sd)
    found = pilot(path, name, n=400 if path.n_dim > 9 else 2000)
    barrier = quad(path.slope_sd, 0.0, 1.0, points=[1e-3, 1e-2, 0.1])[0]
    assert found.barrier == found.heights[-1]
    assert found.barrier == pytest.approx(barrier, rel=0.15)
    assert found.log_z == pytest.approx(path.log_z, abs=0.5 * barrier + 0.5)  # a rough one
    for beta, height in zip(found.betas, found.heights, strict=True):
        part = quad(path.slope_sd, 0.0, beta, points=[b for b in (1e-3, 1e-2, 0.1) if b < beta])[0]
        assert height == pytest.approx(part, rel=0.15, abs=1e-6)


@each
def test_what_comes_back(name):
    path, reports = Counts((6.0, 3.0), (1.0, 4.0)), []
    found = pilot(path, name, report=reports.append)
    n_steps = len(found.betas)
    assert n_steps >= 3
    assert (found.betas[0], found.betas[-1], found.heights[0]) == (0.0, 1.0, 0.0)
    assert (np.diff(found.betas) > 0.0).all()
    assert (np.diff(found.heights) > 0.0).all()
    assert len(found.tunings) == n_steps
    assert reports == [f"inverse temperature {beta:.2g}" for beta in found.betas[1:]]
    assert found.tunings[0] is found.tunings[1]
    assert found.possible == 1.0
    assert tuple(found.spent) == (path.evaluated, path.differentiated)
    np.testing.assert_allclose(found.particles.terms, path.terms(found.particles.x))
    if name == "slice":
        assert 6.0 < found.per_move < 14.0  # three to seven for each of two coordinates
    else:
        assert found.per_move == 6.0
    again, other = pilot(path, name), pilot(path, name, seed=1)
    np.testing.assert_array_equal(found.betas, again.betas)
    np.testing.assert_array_equal(found.particles.x, again.particles.x)
    assert found.log_z == again.log_z != other.log_z


@each
@pytest.mark.parametrize("n_dim", [1, 2, 10])
def test_tunings_are_usable(name, n_dim):
    """They accept nearly as often as they should, or are as long as they may be and accept more."""
    path = Gaussian(np.linspace(0.5, 2.0, n_dim), 0.2)
    kernel, found = make_kernel(name), pilot(path, name)
    rng = np.random.default_rng(2)
    for beta, tuning in zip(found.betas[1:], found.tunings[1:], strict=True):
        particles = start(path, path.draw(1000, beta, rng), with_gradient=kernel.needs_gradient)
        accepted = kernel.step(path, particles, beta, tuning, rng)[1].mean()
        capped = tuning.size >= 0.999 * getattr(kernel, "max_size", math.inf)
        assert accepted > kernel.target_acceptance - 0.15
        assert capped or accepted < kernel.target_acceptance + 0.15
        exact = path.moments(beta)[1]
        np.testing.assert_allclose(np.sqrt(np.diag(tuning.scale @ tuning.scale.T)), exact, rtol=0.3)


def test_the_tuning_of_the_next_cooler_step():
    tunings = tuple(Tuning(float(k), np.ones(1)) for k in (1, 1, 2, 3))
    betas = np.array([0.0, 0.1, 0.4, 1.0])
    ladder = Ladder(betas, betas, tunings, 0.0, None, np.zeros(2), 1.0, 1.0)
    wanted = {1e-300: 1, 0.05: 1, 0.1: 1, 0.1 + 1e-15: 1, 0.11: 2, 0.4: 2, 0.41: 3, 1.0: 3, 9.0: 3}
    assert {beta: int(ladder.at(beta).size) for beta in wanted} == wanted


def test_no_likelihood_anywhere():
    path, rng = HalfPlane(), np.random.default_rng(3)
    x = np.column_stack([-np.ones(1234), np.zeros(1234)])
    with pytest.raises(ValueError, match="zero at all of 1,234 draws from the reference"):
        climb(path, x, make_kernel("hmc"), rng)


@each
def test_some_likelihood(name):
    """The barrier is that of the particles which can be helped."""
    path = HalfPlane()
    found = pilot(path, name)
    assert abs(found.possible - 0.5) < 0.07
    assert (found.particles.terms[1] > -np.inf).all()
    assert found.log_z == pytest.approx(path.log_z, abs=0.5)
    assert found.barrier < 2.0


class Steep(Path):
    """Likelihoods that have no finite mean near the origin: |x|^-n."""

    n_dim = 1

    def __init__(self, power):
        super().__init__()
        self.power = power

    def terms(self, x):
        return np.array([-0.5 * x[:, 0] ** 2, -self.power * np.log(np.abs(x[:, 0]) + 1e-300)])

    def draw_prior(self, n, rng):
        return rng.standard_normal((n, 1))


def test_a_likelihood_without_bound():
    with pytest.raises(ValueError, match="The likelihood is unbounded"):
        pilot(Steep(1e13), "slice")


class Flat(Path):
    """A likelihood that says nothing, but for rounding."""

    n_dim = 3

    def terms(self, x):
        return np.array([log_normal(x, 0.0, 1.0), -700.0 + 1e-13 * np.sin(1e6 * x[:, 0])])

    def draw_prior(self, n, rng):
        return rng.standard_normal((n, 3))


def test_a_likelihood_that_says_nothing():
    found = pilot(Flat(), "slice", n=99)
    np.testing.assert_array_equal(found.betas, [0.0, 1.0])
    assert 0.0 < found.barrier < 1e-6
    assert found.log_z == pytest.approx(-700.0)


def test_lineages_tell_the_variance_of_the_normalising_constant():
    """One over the lineages is the relative variance over repeated runs, to within a factor of two."""
    assert pilot(Flat(), "slice", n=99).lineages == 99.0
    path = Gaussian([1.0, -2.0, 0.5], 0.5)
    runs = [pilot(path, n=200, seed=seed, n_moves=2) for seed in range(60)]
    weights = np.exp([r.log_z - path.log_z for r in runs])
    expected = np.mean([1.0 / r.lineages for r in runs]) - 1.0 / 200.0
    assert 0.5 < np.var(weights) / expected < 2.0


class Needle(Path):
    """A slab and, at 0.5, a needle with a tenth of its evidence and a hundred times its height."""

    n_dim, wide, thin, at = 3, 1.0, 0.1, 0.5

    def parts(self, x):
        needle = log_normal(x, self.at, self.thin) - math.log(10.0)
        return np.array([log_normal(x, 0.0, self.wide), needle])

    def terms(self, x):
        return np.array([log_normal(x, 0.0, 3.0), logsumexp(self.parts(x), axis=0)])

    def slopes(self, x):
        parts = self.parts(x)
        share = np.exp(parts - logsumexp(parts, axis=0))[:, :, None]
        pull = -share[0] * x / self.wide**2 + share[1] * (self.at - x) / self.thin**2
        return np.array([-x / 9.0, pull])

    def draw_prior(self, n, rng):
        return 3.0 * rng.standard_normal((n, 3))


@pytest.mark.parametrize("name", ["hmc", "slice"])
def test_the_cold_finds_a_needle(name):
    found = 0
    for seed in range(4):
        path, kernel, rng = Needle(), make_kernel(name), np.random.default_rng([seed, 5])
        ladder = pilot(path, name, n=300, seed=seed)
        cold = cool(path, ladder, kernel, rng)
        assert cold.shape == (300, 3)
        warm, there = (
            (np.abs(x - path.at) < 0.3).all(axis=1).mean() for x in (ladder.particles.x, cold)
        )
        assert warm < 0.3
        found += there > 0.99
    assert found >= 3


def test_cold_particles_are_near_a_mode():
    path = Counts((6.0, 3.0), (1.0, 4.0))
    kernel, rng = make_kernel("hmc"), np.random.default_rng(6)
    ladder = pilot(path)
    before = [a.copy() for a in ladder.particles]
    cold = cool(path, ladder, kernel, rng, coldest=1000.0)
    shape = path.shape + 1000.0 * path.count
    mode, sd = np.log(shape / (path.rate + 1000.0 * path.exposure)), 1.0 / np.sqrt(shape)
    z = (cold - mode) / sd
    assert np.abs(z).max() < 6.0
    np.testing.assert_allclose(z.std(axis=0), 1.0, rtol=0.2)
    for a, b in zip(ladder.particles, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_discrete_coordinates():
    path = LabelAndNumber()
    discrete = DiscreteMetropolis((0,), ([0, 1, 2],))
    for kernel in (discrete, Mixed(KERNELS["hmc"](coordinates=(1,)), discrete)):
        found = pilot(path, kernel)
        assert found.tunings[-1].scale.shape == (1, 1)
        assert tuple(found.spent) == (path.evaluated, path.differentiated)
    assert found.log_z == pytest.approx(path.log_z, abs=0.3)
    assert 7.0 < found.per_move < 9.0


def test_draws_that_are_lost_are_impossible():
    path = Lossy([3.0, -1.0], 0.3)
    found = pilot(path, n=2000)
    assert np.isfinite(found.particles.x).all()
    assert found.possible == pytest.approx(0.84, abs=0.05)
    # The posterior is far from what is lost.
    assert found.log_z == pytest.approx(path.log_z, abs=0.5 * found.barrier)
    mean, sd = path.moments(1.0)
    assert np.abs(found.particles.x.mean(axis=0) - mean).max() < 0.3 * sd
