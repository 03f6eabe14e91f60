"""Sequential Monte Carlo: exact means of small runs, and systematic resampling."""

import math

import numpy as np
import pytest

from amc_pymc.evidence import annealing
from amc_pymc.evidence.annealing import power_schedule, resample, sequential
from amc_pymc.evidence.mcmc import KERNELS, make_kernel
from tests.evidence.annealing.problems import Counts, HalfPlane, assert_mean, frozen

each = pytest.mark.parametrize("name", KERNELS)
BETAS = power_schedule(6, 3)
INFORMATIVE = (25.0, 12.0), (4.0, 16.0)
SIZES = {"slice": 2.0, "hmc": 0.5}


@pytest.fixture
def resamplings(monkeypatch):
    """How many particles each resampling was of."""
    found = []

    def counted(log_weights, n, rng):
        found.append(n)
        return resample(log_weights, n, rng)

    monkeypatch.setattr(annealing, "resample", counted)
    return found


def runs(path, kernel, n_particles, n_runs, *, betas=BETAS, scale=0.7, **settings):
    rng = np.random.default_rng(0)
    ladder = frozen(SIZES.get(kernel.name, 1.0), np.full(path.n_dim, scale))
    return [
        sequential(path, path.draw_prior(n_particles, rng), betas, kernel, ladder, rng, **settings)
        for _ in range(n_runs)
    ]


def log_z(found):
    return np.array([value for value, _ in found])


@pytest.mark.parametrize(("name", "n_runs"), [("hmc", 180), ("slice", 160)])
def test_mean_of_small_runs(name, n_runs, resamplings):
    """Each resamples about twice: a product of three means."""
    path = Counts(*INFORMATIVE)
    found = runs(path, make_kernel(name), 128, n_runs, scale=0.4)
    assert len(resamplings) > 1.8 * n_runs
    assert_mean(log_z(found), path.log_z, precision=0.015)


@pytest.mark.parametrize("factor", [0.02, 20.0])
def test_mean_of_small_runs_with_bad_tunings(factor, resamplings):
    path, betas = Counts((3.0, 1.5), (0.5, 2.0)), power_schedule(4, 2)
    found = runs(path, make_kernel("hmc"), 32, 450, scale=0.7 * factor, betas=betas)
    assert len(resamplings) > 100
    assert_mean(log_z(found), path.log_z, precision=0.015)


@each
def test_what_comes_back(name, resamplings):
    path = Counts(*INFORMATIVE)
    kernel, rng = make_kernel(name), np.random.default_rng(2)
    x = path.draw_prior(200, rng)
    x.flags.writeable = False
    path.evaluated = path.differentiated = 0
    ladder = frozen(SIZES[name], np.full(2, 0.7))
    _, cost = sequential(path, x, BETAS, kernel, ladder, rng, n_moves=2)
    assert resamplings
    assert cost == path.evaluated + 2 * path.differentiated
    moves = 200 * 5 * 2
    assert path.differentiated == (200 + 3 * moves if name == "hmc" else 0)
    one, two, other = (
        sequential(path, x, BETAS, kernel, ladder, np.random.default_rng(s))[0] for s in (1, 1, 2)
    )
    assert one == two != other


class Offset:
    """A generator with one number."""

    def __init__(self, value):
        self.value = value

    def random(self):
        return self.value


@pytest.mark.parametrize("n", [1, 7, 50, 400])
def test_resampled_as_often_as_weights_ask(n):
    """Each particle floor(n w) or ceil(n w) times, n w times on the mean over all offsets."""
    rng = np.random.default_rng(5)
    log_w = 1e5 + 2.0 * rng.standard_normal(50)
    log_w[::7] = -np.inf
    w = np.exp(log_w - 1e5)
    w /= w.sum()
    total, m = np.zeros(50), 500
    for i in range(m):
        chosen = resample(log_w, n, Offset((i + 0.5) / m))
        assert chosen.shape == (n,)
        counts = np.bincount(chosen, minlength=50)
        assert (np.abs(counts - n * w) < 1.0 + 1e-9).all()
        total += counts
    assert np.abs(total / m - n * w).max() < 1.0 / m + 1e-9


@pytest.mark.parametrize("offset", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("n", [1, 10, 512])
def test_never_resampled_without_weight(n, offset):
    log_w = np.array([-np.inf, 0.0, -np.inf, 0.1, -np.inf, -np.inf])
    assert set(resample(log_w, n, Offset(offset)).tolist()) <= {1, 3}
    np.testing.assert_array_equal(resample(np.array([-7.0]), n, Offset(offset)), 0)


@pytest.mark.parametrize("n_steps", [1, 2, 6])
def test_all_weights_zero(n_steps):
    path, rng = HalfPlane(), np.random.default_rng(4)
    x = np.column_stack([-np.ones(20), np.zeros(20)])
    betas = power_schedule(n_steps, 1)
    log_z, _ = sequential(path, x, betas, make_kernel("hmc"), frozen(1e-3, np.ones(2)), rng)
    assert log_z == -math.inf
