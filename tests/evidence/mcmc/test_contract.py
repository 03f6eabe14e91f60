"""What holds for every kernel, at the edges too."""

import dataclasses
import pickle

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import (
    KERNELS,
    Kernel,
    Tuning,
    log_target,
    make_kernel,
    start,
)
from tests.evidence.mcmc.paths import CONTINUOUS, Corner, LogGamma, Path

BETAS = (0.0, 0.4, 1.0)
each = pytest.mark.parametrize("kernel", [make_kernel(k) for k in KERNELS], ids=list(KERNELS))


def begin(kernel, path, n, beta, seed=1):
    rng = np.random.default_rng(seed)
    return start(path, path.draw(n, beta, rng), with_gradient=kernel.needs_gradient), rng


@each
@pytest.mark.parametrize("n_particles", [1, 2, 50])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("path", CONTINUOUS)
def test_what_comes_back(kernel, path, beta, n_particles):
    path = path()
    particles, rng = begin(kernel, path, n_particles, beta)
    given = [a for a in particles if a is not None]
    for a in given:
        a.flags.writeable = False
    copies = [a.copy() for a in given]
    tuning = Tuning(0.5, particles.x.std(axis=0) + 0.1)
    tuning.scale.flags.writeable = False
    path.evaluated = path.differentiated = 0
    moved, accepted = kernel.step(path, particles, beta, tuning, rng)
    for a, b in zip(given, copies, strict=True):
        np.testing.assert_array_equal(a, b)

    assert moved.x.shape == particles.x.shape
    np.testing.assert_allclose(moved.terms, path.terms(moved.x), rtol=1e-12)
    if kernel.needs_gradient:
        np.testing.assert_allclose(moved.gradients, path.slopes(moved.x), rtol=1e-12)
    else:
        assert moved.gradients is None
    assert np.all(log_target(moved.terms, beta) > -np.inf)
    assert accepted.shape == (n_particles,)
    assert np.all((accepted >= 0.0) & (accepted <= 1.0))
    again, _ = kernel.step(path, moved, beta, tuning, rng)  # what came back can be moved on
    assert np.isfinite(again.x).all()


@each
def test_a_generator_decides_everything(kernel):
    path = LogGamma()
    particles, _ = begin(kernel, path, 20, 0.5)
    tuning = Tuning(0.8, np.ones(3))
    one, two, other = (
        kernel.step(path, particles, 0.5, tuning, np.random.default_rng(s))[0].x for s in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@each
def test_at_the_start_of_a_path_the_slope_does_not_matter(kernel):
    """At beta = 0 particles go where the slope is -inf, and have no gradient of it there."""
    path = Corner()
    particles, rng = begin(kernel, path, 2000, 0.0)
    tuning = Tuning(1.0, np.ones(2))
    for _ in range(3):
        particles, _ = kernel.step(path, particles, 0.0, tuning, rng)
    impossible = particles.terms[1] == -np.inf
    assert impossible.mean() == pytest.approx(4 * np.exp(-3), abs=0.05)
    assert np.isfinite(particles.x).all()


@each
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_from_nowhere_to_somewhere(kernel, beta):
    """Particles of density zero take what is better, and never go back."""
    path, rng = Corner(), np.random.default_rng(5)
    x = np.column_stack([rng.uniform(-0.5, 0.0, 500), rng.uniform(0.2, 0.8, 500)])
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    assert np.all(log_target(particles.terms, beta) == -np.inf)
    arrived = np.zeros(500, bool)
    for _ in range(20):
        particles, accepted = kernel.step(path, particles, beta, Tuning(0.7, np.full(2, 0.5)), rng)
        assert np.isfinite(particles.x).all()
        assert np.isfinite(accepted).all()
        possible = log_target(particles.terms, beta) > -np.inf
        assert not (arrived & ~possible).any()
        if kernel.needs_gradient:
            assert np.isfinite(particles.gradients[:, possible]).all()
        arrived |= possible
    assert arrived.mean() > 0.9


@each
def test_far_from_anywhere_nothing_happens(kernel):
    path, rng = Corner(), np.random.default_rng(6)
    particles = start(path, np.full((30, 2), -100.0), with_gradient=kernel.needs_gradient)
    path.evaluated = 0
    moved, accepted = kernel.step(path, particles, 1.0, Tuning(0.7, np.ones(2)), rng)
    np.testing.assert_array_equal(moved.x, particles.x)
    if kernel.name == "slice":
        assert path.evaluated == 30 * 2
    else:
        np.testing.assert_array_equal(accepted, 0.0)


class Given(Path):
    """The density of coordinates 2 and 0, in this order, given coordinate 1."""

    n_dim = 2

    def __init__(self, path, middle):
        super().__init__()
        self.path, self.middle = path, middle

    def whole(self, x):
        return np.column_stack([x[:, 1], np.full(len(x), self.middle), x[:, 0]])

    def terms(self, x):
        return self.path.terms(self.whole(x))

    def slopes(self, x):
        return self.path.slopes(self.whole(x))[:, :, [2, 0]]


@each
def test_other_coordinates_are_left_alone(kernel):
    """A kernel of some coordinates is a kernel of their density given the others."""
    path, some = LogGamma(), dataclasses.replace(kernel, coordinates=(2, 0))
    tuning = Tuning(0.5, np.array([[0.5, 0.0], [0.2, 1.0]]))
    moves = 0
    for seed in range(20):
        particles, _ = begin(kernel, path, 1, 1.0, seed)
        moved, _ = some.step(path, particles, 1.0, tuning, np.random.default_rng(seed))
        assert moved.x[0, 1] == particles.x[0, 1]
        given = Given(path, particles.x[0, 1])
        begun = start(given, particles.x[:, [2, 0]], with_gradient=kernel.needs_gradient)
        found, _ = kernel.step(given, begun, 1.0, tuning, np.random.default_rng(seed))
        np.testing.assert_allclose(moved.x[:, [2, 0]], found.x, rtol=1e-12)
        moves += int((moved.x != particles.x).any())
    assert moves > 10


@each
def test_kernels_are_values(kernel):
    assert isinstance(kernel, Kernel)
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    alike = [dataclasses.replace(kernel, coordinates=(1, 0)) for _ in range(2)]
    assert hash(alike[0]) == hash(alike[1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.coordinates = (0,)
