"""Discrete moves against distributions that can be listed, alone and before continuous moves."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.mcmc import (
    KERNELS,
    DiscreteMetropolis,
    Mixed,
    Tuning,
    start,
)
from tests.evidence.mcmc.paths import LabelsAndCounts, Path

NO_TUNING = Tuning(1.0, np.ones(1))


class Table(Path):
    """Three states and a count with given weights, dependent."""

    n_dim = 2
    states = np.array([3, -1, 10])
    weights = np.array([[0.3, 0.1, 0.05, 0.01], [0.02, 0.2, 0.02, 0.1], [0.05, 0.05, 0.0, 0.1]])

    def terms(self, x):
        place = np.argmax(x[:, [0]] == self.states, axis=1)
        known = (x[:, 1] >= 0) & (x[:, 1] <= 3)
        with np.errstate(divide="ignore"):
            log_w = np.log(self.weights[place, np.clip(x[:, 1], 0, 3).astype(int)])
        return np.array([np.zeros(len(x)), np.where(known, log_w, -np.inf)])


KERNEL = DiscreteMetropolis((0, 1), (np.sort(Table.states), None))


def frequencies(x):
    return np.array([[np.sum((x == [s, k]).all(axis=1)) for k in range(4)] for s in Table.states])


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_any_start_leads_to_the_table(beta):
    path, rng, n = Table(), np.random.default_rng(1), 20_000
    particles = start(path, np.tile([10.0, 0.0], (n, 1)), with_gradient=False)
    for _ in range(40):
        particles, _ = KERNEL.step(path, particles, beta, NO_TUNING, rng)
    expected = n * Table.weights**beta / np.sum(Table.weights**beta)
    expected[2, 2] = 0.0
    expected *= n / expected.sum()
    found, possible = frequencies(particles.x), expected > 0.0
    assert found[~possible].sum() == 0
    assert stats.chisquare(found[possible], expected[possible]).pvalue > 1e-3


def test_moves_are_in_detailed_balance():
    """From exact draws, as many particles go from one cell to another as come back."""
    path, rng, n = Table(), np.random.default_rng(2), 200_000
    for d, kernel in (
        (0, DiscreteMetropolis((0,), (np.sort(Table.states),))),
        (1, DiscreteMetropolis((1,), (None,))),
    ):
        cell = rng.choice(12, n, p=Table.weights.ravel() / Table.weights.sum())
        x = np.column_stack([Table.states[cell // 4], cell % 4]).astype(float)
        particles = start(path, x, with_gradient=False)
        moved, _ = kernel.step(path, particles, 1.0, NO_TUNING, rng)
        place = np.argmax(moved.x[:, [0]] == Table.states, axis=1)
        flow = np.zeros((12, 12))
        np.add.at(flow, (cell, (4 * place + moved.x[:, 1]).astype(int)), 1)
        z = (flow - flow.T) / np.sqrt(np.maximum(flow + flow.T, 1.0))
        assert np.abs(z).max() < 4.0, d
        assert (cell != 4 * place + moved.x[:, 1]).mean() > 0.2


def test_proposals_without_bounds_are_symmetric_and_geometric():
    class Flat(Path):
        n_dim = 1

        def terms(self, x):
            return np.zeros((2, len(x)))

    path, n = Flat(), 40_000
    particles = start(path, np.full((n, 1), 7.0), with_gradient=False)
    kernel = DiscreteMetropolis((0,), (None,))
    moved, _ = kernel.step(path, particles, 1.0, NO_TUNING, np.random.default_rng(3))
    jump = moved.x[:, 0] - 7.0
    sizes = np.array([np.sum(jump == k) for k in (-3, -2, -1, 1, 2, 3)])
    rest = n - sizes.sum()
    expected = n * np.array([1 / 16, 1 / 8, 1 / 4, 1 / 4, 1 / 8, 1 / 16, 1 / 8])
    assert stats.chisquare([*sizes, rest], expected).pvalue > 1e-3


def test_counts_and_coordinates_left_alone():
    path, rng = LabelsAndCounts(), np.random.default_rng(5)
    x = path.draw(100, 0.5, rng)
    particles = start(path, x, with_gradient=False)
    path.evaluated = 0
    kernel = DiscreteMetropolis((2, 0), (LabelsAndCounts.labels, None))
    moved, _ = kernel.step(path, particles, 0.5, NO_TUNING, rng)
    assert path.evaluated == 200
    np.testing.assert_array_equal(moved.x[:, 1], x[:, 1])
    assert (moved.x[:, [0, 2]] != x[:, [0, 2]]).any(axis=1).mean() > 0.3
    np.testing.assert_array_equal(moved.terms, path.terms(moved.x))
    assert moved.gradients is None


@pytest.mark.parametrize("value", [0.5, 2.0, 99.0, -99.0])
def test_a_value_that_is_no_state(value):
    path = Table()
    particles = start(path, np.array([[3.0, 0.0], [value, 0.0]]), with_gradient=False)
    with pytest.raises(ValueError, match=f"coordinate 0 is {value}"):
        KERNEL.step(path, particles, 1.0, NO_TUNING, np.random.default_rng(7))


DISCRETE = DiscreteMetropolis((2, 0), (LabelsAndCounts.labels, None))
TUNING = Tuning(0.8, np.array([1.5]))


@pytest.mark.parametrize("continuous", [kernel(coordinates=(1,)) for kernel in KERNELS.values()])
def test_what_is_cached_is_true(continuous):
    kernel, path, rng = Mixed(continuous, DISCRETE), LabelsAndCounts(), np.random.default_rng(1)
    particles = start(path, path.draw(300, 0.4, rng), with_gradient=kernel.needs_gradient)
    for _ in range(3):
        particles, _ = kernel.step(path, particles, 0.4, TUNING, rng)
        np.testing.assert_allclose(particles.terms, path.terms(particles.x), rtol=1e-13)
        if kernel.needs_gradient:
            np.testing.assert_array_equal(particles.gradients, path.slopes(particles.x))
