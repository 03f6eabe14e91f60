import math

import numpy as np
import pytest

from amc_pymc.importance import expectation_maximisation as em
from amc_pymc.importance import fit_student_t_mixture
from amc_pymc.importance.small_fits import climb, nearest_after_moves
from amc_pymc.rng import as_generator


def data(n, n_dim, seed=1):
    rng = as_generator(seed)
    return rng.normal(size=(n, n_dim)) + 3.0 * (rng.random((n, 1)) < 0.4), rng.normal(size=n)


def fitted(x, log_weights, k, **settings):
    given = {"dof": 10.0, "n_iter": 30, "tolerance": 1e-4} | settings
    return fit_student_t_mixture(x, log_weights, n_components=k, rng=as_generator(2), **given)


def interpreted(monkeypatch):
    """Let all iterations be those of NumPy."""
    monkeypatch.setattr(em, "_climbed", lambda draws, mixture, *rest: (False, 0, mixture))


@pytest.mark.parametrize(
    "n, n_dim, k, ridge", [(500, 10, 1, 1.0), (500, 10, 6, 1.0), (2000, 2, 6, 0.0), (40, 3, 6, 0.5)]
)
def test_compiled_iterations_are_those_of_numpy(n, n_dim, k, ridge, monkeypatch):
    x, log_weights = data(n, n_dim)
    found = fitted(x, log_weights, k, ridge=ridge)
    interpreted(monkeypatch)
    other = fitted(x, log_weights, k, ridge=ridge)
    assert found.components == other.components
    for name in ("weights", "means", "choleskys"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(other, name), rtol=1e-9, atol=1e-11
        )


@pytest.mark.parametrize("n, n_dim, k", [(6, 2, 5), (20, 3, 12), (40, 3, 20)])
def test_components_with_too_few_draws_are_dropped(n, n_dim, k, monkeypatch):
    x, log_weights = data(n, n_dim)
    found = fitted(x, log_weights, k, min_draws=2.5)
    interpreted(monkeypatch)
    other = fitted(x, log_weights, k, min_draws=2.5)
    assert found.components == other.components < k
    np.testing.assert_allclose(found.means, other.means, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n_iter", [1, 2, 7])
def test_as_many_iterations_as_told(n_iter, monkeypatch):
    x, log_weights = data(200, 3)
    found = fitted(x, log_weights, 4, n_iter=n_iter, tolerance=0.0)
    interpreted(monkeypatch)
    other = fitted(x, log_weights, 4, n_iter=n_iter, tolerance=0.0)
    np.testing.assert_allclose(found.means, other.means, rtol=1e-9)


def test_singular_matrices_are_left_to_numpy(monkeypatch):
    x, log_weights = data(100, 2)
    x[:, 1] = 2.0 * x[:, 0]
    regular = []

    def spied(*arguments):
        found = climbed(*arguments)
        regular.append(found[0])
        return found

    climbed = em._climbed
    monkeypatch.setattr(em, "_climbed", spied)
    found = fitted(x, log_weights, 1, ridge=0.0)
    assert regular == [False]
    interpreted(monkeypatch)
    other = fitted(x, log_weights, 1, ridge=0.0)
    np.testing.assert_allclose(found.means, other.means, rtol=1e-6)


def test_says_where_it_stopped():
    x, w = np.array([[0.0], [1e300]]), np.array([0.5, 0.5])
    one = np.ones(1)
    regular, n_done, *_ = climb(
        x, w, one, np.zeros((1, 1)), np.ones((1, 1, 1)), 5.0, 0.0, 1.0, one, 2.0, 10, 1e-3, 2.0, 1e-6
    )  # fmt: skip
    assert not regular and n_done == 0


def test_moves_of_centres():
    rng = as_generator(3)
    z, w, centres = rng.normal(size=(200, 3)), rng.random(200), rng.normal(size=(4, 3))
    centres[3] = 50.0  # has no points and stays
    moved = centres.copy()

    def nearest():
        return ((z[:, None] - moved) ** 2).sum(axis=2).argmin(axis=1)

    for _ in range(5):
        labels = nearest()
        for j in range(3):
            moved[j] = np.average(z[labels == j], axis=0, weights=w[labels == j])
    np.testing.assert_array_equal(nearest_after_moves(z, w, centres, 5), nearest())
    assert math.isclose(centres[3, 0], 50.0)
