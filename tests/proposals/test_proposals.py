import numpy as np
import pytest

from scipy import stats

from amc_pymc.proposals import (
    conditional_mean,
    gaussian_log_ratio,
    propose_gaussian,
    propose_random_walk,
    propose_student,
    student_log_ratio,
)

# --- densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.05, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("size", [1, 4])
def test_gaussian_ratio_is_that_of_the_densities(scale, size):
    rng = np.random.default_rng(size)
    keep = np.sqrt(1.0 - scale**2)
    for _ in range(20):
        w, w_new = rng.normal(size=(2, size)) * 2
        forward = stats.norm.logpdf(w_new, keep * w, scale).sum()
        backward = stats.norm.logpdf(w, keep * w_new, scale).sum()
        assert gaussian_log_ratio(w, w_new) == pytest.approx(backward - forward, rel=1e-9)


def assert_normal(draws, mean, covariance):
    """Whitened draws are independent standard normals: KS per coordinate, z-scores of products."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    for row in white:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    z = (white @ white.T / len(draws) - np.eye(len(white))) * np.sqrt(len(draws) / 2)
    assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_moves_have_the_distribution_their_densities_say(scale):
    rng = np.random.default_rng(4)
    w = np.array([1.0, -2.0, 0.5])
    chol = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 3.0, 0.1]])
    n, eye = 20_000, np.eye(3)
    draws = np.array([propose_gaussian(w, scale, rng) for _ in range(n)])
    assert_normal(draws, np.sqrt(1 - scale**2) * w, scale**2 * eye)
    draws = np.array([propose_random_walk(w, chol, scale, rng) for _ in range(n)])
    assert_normal(draws, w, scale**2 * chol @ chol.T)


def test_gaussian_moves_leave_the_standard_normal_reversible():
    """pi(w) q(w' | w) is symmetric: the ratio of the target cancels that of the proposal."""
    rng = np.random.default_rng(6)
    for scale in (0.1, 0.7, 1.0):
        w = rng.normal(size=5)
        w_new = propose_gaussian(w, scale, rng)
        change = stats.norm.logpdf(w_new).sum() - stats.norm.logpdf(w).sum()
        assert change + gaussian_log_ratio(w, w_new) == pytest.approx(0.0, abs=1e-12)


# --- Student t ------------------------------------------------------------------------------------


def student_move(w, scale, freedom):
    """Distribution of w' given w, the mixture over the precision in closed form."""
    shape = scale**2 * (freedom + w @ w) / (freedom + w.size)
    return stats.multivariate_t(
        np.sqrt(1.0 - scale**2) * w, shape * np.eye(w.size), df=freedom + w.size
    )


@pytest.mark.parametrize("scale", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("freedom", [1.0, 5.0])
def test_student_ratio_is_that_of_the_densities(scale, size, freedom):
    rng = np.random.default_rng(size)
    for _ in range(20):
        w, w_new = rng.normal(size=(2, size)) * [[1.0], [8.0]]
        expected = student_move(w_new, scale, freedom).logpdf(w)
        expected -= student_move(w, scale, freedom).logpdf(w_new)
        assert student_log_ratio(w, w_new, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-9)
        t = stats.multivariate_t(np.zeros(size), np.eye(size), df=freedom)
        change = t.logpdf(w_new) - t.logpdf(w)
        assert change + student_log_ratio(w, w_new, freedom) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("scale", [0.3, 1.0])
@pytest.mark.parametrize("freedom", [1.0, 5.0])
def test_student_moves_have_the_distribution_their_density_says(scale, freedom):
    rng = np.random.default_rng(8)
    w = np.array([4.0, -20.0, 0.5])
    draws = np.array([propose_student(w, scale, freedom, rng) for _ in range(20_000)])
    spread = scale * np.sqrt((freedom + w @ w) / (freedom + 3))
    shift = (draws - np.sqrt(1.0 - scale**2) * w) / spread
    for direction in np.vstack([np.eye(3), np.full(3, 3**-0.5)]):
        assert stats.kstest(shift @ direction, stats.t(df=freedom + 3).cdf).pvalue > 1e-4
    # radii: a multivariate t is not a product of its margins
    radius = stats.f(3, freedom + 3)
    assert stats.kstest((shift**2).sum(axis=1) / 3, radius.cdf).pvalue > 1e-4


def conditional(covariance, active):
    """Regression of the active coordinates on the others, (A, D), and the factor of what is left."""
    others = np.setdiff1d(np.arange(len(covariance)), active)
    gain = np.zeros((len(active), len(covariance)))
    cross = covariance[np.ix_(active, others)]
    gain[:, others] = np.linalg.solve(covariance[np.ix_(others, others)], cross.T).T
    left = covariance[np.ix_(active, active)] - gain[:, others] @ cross.T
    return gain, np.linalg.cholesky(left)


def test_conditional_mean_is_that_of_the_normal():
    rng = np.random.default_rng(2)
    a = rng.normal(size=(4, 4))
    covariance, mean, active = a @ a.T, rng.normal(size=4), np.array([0, 2])
    gain, chol = conditional(covariance, active)
    joint = stats.multivariate_normal(mean, covariance)
    x = rng.normal(size=4)
    found = conditional_mean(x, mean, active, gain)
    inner = stats.multivariate_normal(found, chol @ chol.T)
    points = np.tile(x, (5, 1))
    points[:, active] = rng.normal(size=(5, 2))
    difference = joint.logpdf(points) - inner.logpdf(points[:, active])
    np.testing.assert_allclose(difference, difference[0], rtol=1e-9)
