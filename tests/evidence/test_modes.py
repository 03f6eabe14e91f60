"""Searches for modes, curvatures, and mixtures by Laplace's method."""

import math

import numpy as np
import pytest

from scipy import optimize

from amc_pymc.evidence.modes import distinct_modes, hessians, laplace_components, maximise


class Counted:
    """A function and the number of points it was asked for."""

    def __init__(self, function):
        self.function, self.points, self.calls = function, 0, 0

    def __call__(self, x):
        self.points += len(x)
        self.calls += 1
        return self.function(x)


def rosenbrock(x):
    gap, near = x[:, 1:] - x[:, :-1] ** 2, 1.0 - x[:, :-1]
    gradient = np.zeros_like(x)
    gradient[:, 1:] -= 200.0 * gap
    gradient[:, :-1] += 400.0 * x[:, :-1] * gap + 2.0 * near
    return -(100.0 * gap**2 + near**2).sum(axis=1), gradient


def quadratic(precision, mean, top=0.0):
    def value_and_gradient(x):
        pull = (x - mean) @ precision
        return top - 0.5 * (pull * (x - mean)).sum(axis=1), -pull

    return value_and_gradient


def rotated(d, condition, rng):
    q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return (q * np.geomspace(1.0, condition, d)) @ q.T


def gaussians(weights, means, covariances):
    """Log of a sum of unnormalised Gaussians with evidences `weights`."""
    precisions = [np.linalg.inv(c) for c in covariances]
    d = len(means[0])
    logs = [
        math.log(w) - 0.5 * d * math.log(2.0 * math.pi) - 0.5 * np.linalg.slogdet(c)[1]
        for w, c in zip(weights, covariances, strict=True)
    ]

    def value_and_gradient(x):
        terms, pulls = [], []
        for log, mean, precision in zip(logs, means, precisions, strict=True):
            value, pull = quadratic(precision, mean, log)(x)
            terms.append(value)
            pulls.append(pull)
        total = np.logaddexp.reduce(terms)
        r = np.exp(np.array(terms) - total)
        return total, np.einsum("kp,kpd->pd", r, np.array(pulls))

    return value_and_gradient


@pytest.mark.parametrize(("d", "condition"), [(1, 1.0), (10, 1e2), (30, 1e4), (60, 1e4)])
def test_quadratics(d, condition):
    rng = np.random.default_rng(1)
    precision, mean = rotated(d, condition, rng), rng.standard_normal(d)
    target = Counted(quadratic(precision, mean, 7.0))
    x, values = maximise(target, 3.0 * rng.standard_normal((16, d)))
    np.testing.assert_allclose(values, 7.0, atol=1e-3)
    np.testing.assert_allclose(values, target(x)[0], atol=1e-12)


def test_rosenbrock_takes_few_evaluations():
    starts = 2.0 * np.random.default_rng(2).standard_normal((20, 2))
    target = Counted(rosenbrock)
    np.testing.assert_allclose(maximise(target, starts)[0], 1.0, atol=1e-4)
    by_scipy = sum(
        optimize.minimize(
            lambda x: tuple(-v[0] for v in rosenbrock(x[None])), x, jac=True, method="BFGS"
        ).nfev
        for x in starts
    )
    assert target.points < 1.5 * by_scipy


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_steps_out_of_the_domain_are_shortened(bad):
    def gamma(x):
        inside = x[:, 0] > 0.0
        safe = np.where(inside, x[:, 0], 1.0)
        value = np.where(inside, 3.0 * np.log(safe) - safe, bad)
        return value, np.where(inside, 3.0 / safe - 1.0, math.nan)[:, None]

    x, values = maximise(gamma, np.array([[1e-6], [0.5], [3.0], [400.0], [-1.0]]))
    np.testing.assert_allclose(x[:4, 0], 3.0, atol=1e-2)
    assert values[4] == -math.inf
    assert x[4, 0] == -1.0


def test_no_maximum():
    """A search of a density that grows for ever ends after the last evaluation."""
    target = Counted(lambda x: (x.sum(axis=1), np.ones_like(x)))
    assert np.isfinite(maximise(target, np.zeros((2, 3)), max_iter=50)[1]).all()
    assert target.points == 2 * 50


def test_hessians():
    scale = np.array([1.0, 1e-3, 1e3])

    def gradient(x):
        z = x / scale
        return np.stack([np.cos(z[:, 0]) * z[:, 1], np.sin(z[:, 0]) - z[:, 1], -(z[:, 2] ** 3)],
                        axis=1) / scale  # fmt: skip

    rng = np.random.default_rng(6)
    z = rng.standard_normal((4, 3))
    found = hessians(gradient, z * scale)
    for h, (a, b, c) in zip(found, z, strict=True):
        known = np.array([[-math.sin(a) * b, math.cos(a), 0.0],
                          [math.cos(a), -1.0, 0.0], [0.0, 0.0, -3.0 * c**2]])  # fmt: skip
        np.testing.assert_allclose(h * np.outer(scale, scale), known, atol=2e-4)
        np.testing.assert_array_equal(h, h.T)


def test_hessians_where_there_are_none():
    found = hessians(lambda x: np.where(x > 1.0, math.nan, -x), np.array([[1.0], [0.0]]))
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], -1.0)


def test_distinct_modes_of_a_search():
    means = np.array([[-6.0, 0.0], [6.0, 0.0]])
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    target = gaussians([1.0, 2.0], means, [covariance] * 2)
    x, values = maximise(target, 5.0 * np.random.default_rng(7).standard_normal((30, 2)))
    curvature = hessians(lambda y: target(y)[1], x)
    kept = distinct_modes(x, values, -curvature)
    np.testing.assert_allclose(x[kept], means[::-1], atol=1e-2)


def test_flat_directions_do_not_make_modes():
    x = np.array([[0.0, 0.0], [0.0, 5.0], [0.1, -7.0], [3.0, 1.0]])
    flat = np.diag([1.0, 0.0])
    for precision in (flat, np.diag([1.0, -0.01])):
        values = np.array([0.0, -0.1, -0.2, -0.3])
        assert distinct_modes(x, values, np.array([precision] * 4)).tolist() == [0, 3]


def test_a_narrow_mode_within_a_wide_one():
    """Close by the curvature of the one, far by that of the other."""
    x = np.array([[0.0], [0.3]])
    precisions = np.array([[[1.0]], [[1e4]]])
    for values in ([0.0, -1.0], [-1.0, 0.0]):
        assert sorted(distinct_modes(x, np.array(values), precisions)) == [0, 1]


def test_impossible_points_are_not_modes():
    x, values = np.zeros((3, 1)), np.array([-math.inf, math.nan, 0.0])
    assert distinct_modes(x, values, np.ones((3, 1, 1))).tolist() == [2]
    assert distinct_modes(x[:2], values[:2], np.ones((2, 1, 1))).tolist() == []
    unknown = np.array([[[1.0]], [[1.0]], [[math.nan]]])
    assert distinct_modes(x, values, unknown).tolist() == []


def test_laplace_is_exact_for_separate_gaussians():
    rng = np.random.default_rng(8)
    d = 5
    roots = [np.tril(rng.standard_normal((d, d))) + 2.0 * np.eye(d) for _ in range(3)]
    covariances = [1e-2 * r @ r.T for r in roots]
    means = 50.0 * np.eye(3, d)
    target = gaussians([1e-3, 2.0, 5.0], means, covariances)
    x, _ = maximise(target, means + 0.05)
    curvatures = hessians(lambda y: target(y)[1], x)
    q = laplace_components(target, x, curvatures).with_dof(math.inf)
    np.testing.assert_allclose(q.weights, np.array([1e-3, 2.0, 5.0]) / 7.001, rtol=1e-4)
    np.testing.assert_allclose(q.means, means, atol=1e-3)
    np.testing.assert_allclose(q.scale_matrices, covariances, rtol=1e-4, atol=1e-5)
    # A normalised target is its own Laplace approximation.
    x = q.sample(100, rng)
    np.testing.assert_allclose(q.log_density(x) + math.log(7.001), target(x)[0], atol=1e-2)


@pytest.mark.parametrize("hessian", [
    np.diag([-1.0, 0.0]), np.diag([-1.0, 0.5]), np.diag([0.0, 4e-6]), -np.ones((2, 2)),
    np.array([[-1.0, 2.0], [2.0, -1.0]]), -np.diag([1e-8, 1e12]),
])  # fmt: skip
def test_any_curvature_makes_a_component(hessian):
    target = quadratic(np.eye(2), np.zeros(2))
    q = laplace_components(target, np.zeros((1, 2)), hessian[None])
    values, vectors = np.linalg.eigh(-hessian)
    precision = np.linalg.inv(q.scale_matrices[0])
    # Directions that curve downward are as they were.
    for value, v in zip(values, vectors.T, strict=True):
        if value > 1e-3 * values.max():
            assert v @ precision @ v == pytest.approx(value, rel=1e-4)


def test_laplace_leaves_out_what_is_not_a_mode():
    def target(x):
        value, gradient = quadratic(np.eye(1), np.zeros(1))(x)
        return np.where(x[:, 0] > 5.0, -math.inf, value), np.where(x > 5.0, math.nan, gradient)

    curvatures = np.array([[[math.nan]], [[-1.0]]])
    q = laplace_components(target, np.array([[9.0], [0.0]]), curvatures)
    assert q.means.tolist() == [[0.0]]
    with pytest.raises(ValueError, match="no mode has a finite value"):
        laplace_components(target, np.array([[9.0]]), curvatures[:1])


def test_flat_places_are_maxima():
    x, _ = maximise(lambda x: (np.zeros(len(x)), np.zeros_like(x)), np.ones((2, 3)))
    np.testing.assert_array_equal(x, 1.0)
