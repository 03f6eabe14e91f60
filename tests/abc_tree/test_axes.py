import numpy as np

from scipy.special import ndtr
from scipy.stats import kstest

from amc_pymc.abc_tree.axes import principal_axes, to_axes, to_cube

RNG = np.random.default_rng(1)


def test_there_and_back():
    u = RNG.random((1000, 3))
    axes = principal_axes(u, RNG.random(1000))
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(to_cube(to_axes(u, axes), axes), u, atol=1e-9)


def test_uniform_points_stay_uniform():
    axes = principal_axes(RNG.random((50, 2)), np.ones(50))
    for column in to_axes(RNG.random((20_000, 2)), axes).T:
        assert kstest(column, "uniform").pvalue > 1e-3


def test_a_diagonal_becomes_upright():
    x = RNG.normal(size=(5000, 2)) * [1.0, 0.1]
    u = ndtr(x @ np.array([[0.6, 0.8], [-0.8, 0.6]]))
    axes = principal_axes(u, np.ones(5000))
    assert abs(np.corrcoef(to_axes(u, axes).T)[0, 1]) < 0.05
    assert abs(np.corrcoef(u.T)[0, 1]) > 0.9


def test_faces_of_the_cube():
    axes = np.array([[0.6, 0.8], [-0.8, 0.6]])
    corners = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert np.isfinite(to_axes(corners, axes)).all()
    found = to_cube(np.array([[0.0, 0.0], [1.0, 0.5]]), axes)
    assert ((found > 0.0) & (found < 1.0)).all()
