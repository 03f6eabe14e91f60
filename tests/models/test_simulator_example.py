"""The parts that all examples share: checks, distances, batches, rejection."""

import math

import numpy as np
import pytest

from models.rejection import RejectionSampler, Students

# --- rejection from a fitted mixture --------------------------------------------------------------


def banana(x):
    """A normal in the first coordinate and around its square in the second."""
    return -0.5 * x[:, 0] ** 2 - 0.5 * ((x[:, 1] - x[:, 0] ** 2) / 0.5) ** 2


def test_rejection_sampler_of_a_banana():
    start = np.random.default_rng(0).uniform(-20.0, 20.0, (5000, 2))
    sampler = RejectionSampler.fitted(banana, start, np.random.default_rng(1), n=4000, pilot=20_000)
    assert sampler.rate > 0.1
    x = sampler.draw(np.random.default_rng(2), 20_000)
    for values, mean, sd in (
        (x[:, 0], 0.0, 1.0),
        (x[:, 0] ** 2, 1.0, math.sqrt(2.0)),
        (x[:, 1] - x[:, 0] ** 2, 0.0, 0.5),
        (x[:, 1], 1.0, 1.5),
    ):
        assert abs(values.mean() - mean) < 4.0 * sd / math.sqrt(len(x))
    with pytest.raises(RuntimeError, match="no starting point"):
        RejectionSampler.fitted(lambda x: np.full(len(x), -np.inf), start, np.random.default_rng(1))


def test_students_integrate_to_one():
    students = Students(
        shares=np.array([0.3, 0.7]),
        means=np.array([[0.0, 0.0], [3.0, 1.0]]),
        roots=np.array([[[1.0, 0.0], [0.5, 1.0]], [[0.3, 0.0], [0.0, 2.0]]]),
    )
    edge = np.linspace(-40.0, 40.0, 801)
    grid = np.stack(np.meshgrid(edge, edge, indexing="ij"), axis=-1).reshape(-1, 2)
    total = np.exp(students.log_density(grid)).sum() * (edge[1] - edge[0]) ** 2
    assert abs(total - 1.0) < 2e-3
    x = students.draw(np.random.default_rng(3), 40_000)
    share = (x[:, 0] > 1.8).mean()
    expected = np.exp(students.log_density(grid[grid[:, 0] > 1.8])).sum() * (edge[1] - edge[0]) ** 2
    assert abs(share - expected) < 4.0 * math.sqrt(0.25 / 40_000) + 2e-3
