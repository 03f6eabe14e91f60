"""Kernels for discrete and continuous coordinates, one after the other."""

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import (
    HMC,
    KERNELS,
    DiscreteMetropolis,
    Langevin,
    Mixed,
    RandomWalk,
    Slice,
    Tuning,
    start,
    tune,
)
from tests.evidence.mcmc.paths import LabelsAndCounts

DISCRETE = DiscreteMetropolis((2, 0), (LabelsAndCounts.labels, None))
TUNING = Tuning(0.8, np.array([1.5]))


@pytest.mark.parametrize("continuous", [kernel(coordinates=(1,)) for kernel in KERNELS.values()])
def test_what_is_cached_is_true(continuous):
    kernel, path, rng = Mixed(continuous, DISCRETE), LabelsAndCounts(), np.random.default_rng(1)
    particles = start(path, path.draw(300, 0.4, rng), with_gradient=kernel.needs_gradient)
    for _ in range(3):
        path.evaluated = path.differentiated = 0
        particles, move = kernel.step(path, particles, 0.4, TUNING, rng)
        assert move.evaluations == path.evaluated
        assert move.gradients == path.differentiated
        np.testing.assert_allclose(particles.terms, path.terms(particles.x), rtol=1e-13)
        if kernel.needs_gradient:
            np.testing.assert_array_equal(particles.gradients, path.slopes(particles.x))


def test_it_is_one_after_the_other():
    path, rng = LabelsAndCounts(), np.random.default_rng(2)
    particles = start(path, path.draw(200, 1.0, rng), with_gradient=False)
    continuous = RandomWalk(coordinates=(1,))
    both, move = Mixed(continuous, DISCRETE).step(
        path, particles, 1.0, TUNING, np.random.default_rng(3)
    )
    rng = np.random.default_rng(3)
    first, _ = DISCRETE.step(path, particles, 1.0, TUNING, rng)
    second, last = continuous.step(path, first, 1.0, TUNING, rng)
    np.testing.assert_array_equal(both.x, second.x)
    np.testing.assert_array_equal(move.acceptance, last.acceptance)
    assert move.evaluations == 3 * 200


def test_gradients_are_refreshed_where_something_changed():
    path, rng = LabelsAndCounts(), np.random.default_rng(4)
    particles = start(path, path.draw(500, 1.0, rng), with_gradient=True)
    kernel = Mixed(Langevin(coordinates=(1,)), DISCRETE)
    moved, move = kernel.step(path, particles, 1.0, TUNING, rng)
    changed = (moved.x[:, [0, 2]] != particles.x[:, [0, 2]]).any(axis=1).sum()
    assert 100 < changed < 500
    assert move.gradients == 500 + changed


def test_it_is_tuned_as_its_continuous_part():
    path, rng = LabelsAndCounts(), np.random.default_rng(5)
    particles = start(path, path.draw(1000, 1.0, rng), with_gradient=True)
    kernel = Mixed(HMC(coordinates=(1,)), DISCRETE)
    tuned = tune(kernel, path, particles, 1.0, rng, scale=np.array([0.01]))
    assert kernel.max_size == HMC().max_size
    assert tuned.tuning.size == pytest.approx(HMC().max_size)
    assert Mixed(Slice(coordinates=(1,)), DISCRETE).max_size == np.inf


@pytest.mark.parametrize(
    ("coordinates", "match"),
    [(None, "moves all coordinates"), ((1, 2), r"\[2\] are moved by both")],
)
def test_bad_settings(coordinates, match):
    with pytest.raises(ValueError, match=match):
        Mixed(HMC(coordinates=coordinates), DISCRETE)


def test_gradients_must_be_there():
    path, rng = LabelsAndCounts(), np.random.default_rng(6)
    particles = start(path, path.draw(10, 1.0, rng), with_gradient=False)
    with pytest.raises(ValueError, match="with_gradient=True"):
        Mixed(HMC(coordinates=(1,)), DISCRETE).step(path, particles, 1.0, TUNING, rng)
