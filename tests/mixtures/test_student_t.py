"""Student t mixtures against SciPy, numerical derivatives and their own draws."""

import math

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.arms import scrambled_points
from amc_pymc.mixtures import StudentTMixture, log_mixture_density


def mixture(k, d, dof, seed=1):
    rng = np.random.default_rng(seed)
    factors = np.tril(0.4 * rng.standard_normal((k, d, d)), -1)
    factors += np.eye(d) * rng.uniform(0.3, 2.0, (k, 1, d))
    return StudentTMixture(
        rng.dirichlet(np.full(k, 3.0)), 3.0 * rng.standard_normal((k, d)), factors, dof
    )


def by_scipy(q, x):
    scale = q.scale_matrices
    if math.isinf(q.dof):
        terms = [
            stats.multivariate_normal.logpdf(x, m, s) for m, s in zip(q.means, scale, strict=True)
        ]
    else:
        terms = [
            stats.multivariate_t.logpdf(x, m, s, q.dof) for m, s in zip(q.means, scale, strict=True)
        ]
    terms = np.array(terms).reshape(q.components, len(x))
    return np.logaddexp.reduce(np.log(q.weights)[:, None] + terms)


@pytest.mark.parametrize("dof", [1.0, 2.5, 5.0, 80.0, math.inf])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 4), (3, 1), (4, 7), (2, 30)])
def test_density_against_scipy(k, d, dof):
    q = mixture(k, d, dof)
    x = np.concatenate([q.sample(50, np.random.default_rng(2)), 10.0 * np.ones((1, d))])
    np.testing.assert_allclose(q.log_density(x), by_scipy(q, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dof", [1.0, 5.0, math.inf])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 4), (3, 5)])
def test_gradient(k, d, dof):
    q = mixture(k, d, dof)
    x = q.sample(40, np.random.default_rng(3))
    values, gradients = q.log_density_and_gradient(x)
    np.testing.assert_array_equal(values, q.log_density(x))
    h = 1e-5
    for j in range(d):
        step = h * np.eye(d)[j]
        slope = (q.log_density(x + step) - q.log_density(x - step)) / (2.0 * h)
        np.testing.assert_allclose(gradients[:, j], slope, rtol=1e-5, atol=1e-6)


def test_far_points_do_not_underflow():
    q = mixture(3, 2, 5.0)
    x = np.array([[1e3, 0.0], [1e10, 1e10], [-1e100, 1.0]])
    values, gradients = q.log_density_and_gradient(x)
    # t: log density falls by (dof + D) per factor e of the distance, the gradient is -(dof + D) / x.
    np.testing.assert_allclose(np.diff(q.log_density(np.array([[1e50, 0], [1e60, 0]]))),
                               -7.0 * math.log(1e10))  # fmt: skip
    np.testing.assert_allclose((gradients * x).sum(axis=1), -7.0, rtol=0.02)
    assert np.isfinite(values).all()
    gaussian = mixture(3, 2, math.inf)
    assert np.isfinite(gaussian.log_density(x[:2])).all()


@pytest.mark.parametrize("dof", [5.0, math.inf])
def test_points_beyond_all_bounds(dof):
    q = mixture(2, 2, dof)
    x = np.array([[math.inf, 0.0], [math.nan, 1.0], [1e300, 1e300], [0.0, 0.0]])
    values, gradients = q.log_density_and_gradient(x)
    assert (values[:3] == -math.inf).all() and np.isfinite(values[3])
    assert (gradients[:3] == 0.0).all() and np.isfinite(gradients[3]).all()
    np.testing.assert_array_equal(values, q.log_density(x))


def test_blocks_of_points_change_nothing():
    """Twenty thousand points are several blocks, a thousand are one."""
    q = mixture(3, 4, 5.0)
    x = q.sample(20_000, np.random.default_rng(1))
    parts = [q.log_density_and_gradient(part) for part in np.split(x, 20)]
    values, gradients = (np.concatenate(p) for p in zip(*parts, strict=True))
    np.testing.assert_allclose(q.log_density(x), values, rtol=1e-13)
    found = q.log_density_and_gradient(x)
    np.testing.assert_allclose(found[0], values, rtol=1e-13)
    np.testing.assert_allclose(found[1], gradients, rtol=1e-9, atol=1e-12)
    total = np.logaddexp.reduce(q.log_terms(x))
    np.testing.assert_allclose(total, values, rtol=1e-12, atol=1e-12)


def draws(q, n, how):
    rng = np.random.default_rng(5)
    if how == "sample":
        return q.sample(n, rng)
    return q.from_uniforms(rng.random((n, q.n_dim + 2)))


@pytest.mark.parametrize("how", ["sample", "uniforms"])
@pytest.mark.parametrize("dof", [1.5, 5.0, math.inf])
def test_radii_and_directions_of_draws(how, dof):
    d = 4
    q = mixture(1, d, dof)
    z = np.linalg.solve(q.choleskys[0], (draws(q, 4000, how) - q.means[0]).T).T
    r2 = (z**2).sum(axis=1)
    law = stats.chi2(d) if math.isinf(dof) else stats.f(d, dof, scale=d)
    assert stats.kstest(r2, law.cdf).pvalue > 1e-3
    share = z[:, 0] ** 2 / r2
    assert stats.kstest(share, stats.beta(0.5, 0.5 * (d - 1)).cdf).pvalue > 1e-3


@pytest.mark.parametrize("how", ["sample", "uniforms"])
def test_shares_of_components(how):
    q = StudentTMixture([0.05, 0.6, 0.0, 0.35], [[0.0], [100.0], [200.0], [300.0]],
                        np.ones((4, 1, 1)), 30.0)  # fmt: skip
    counts = np.bincount(np.round(draws(q, 5000, how)[:, 0] / 100.0).astype(int), minlength=4)
    assert counts[2] == 0
    used = [0, 1, 3]
    assert stats.chisquare(counts[used], 5000 * q.weights[used]).pvalue > 1e-3


@pytest.mark.parametrize("how", ["sample", "uniforms"])
def test_radii_do_not_depend_on_the_component(how):
    q = StudentTMixture([0.5, 0.5], [[-1e6, 0.0], [1e6, 0.0]], [np.eye(2)] * 2, 3.0)
    x = draws(q, 4000, how)
    right = x[:, 0] > 0.0
    radii = abs(x - np.where(right, 1e6, -1e6)[:, None] * [1.0, 0.0]).max(axis=1)
    assert stats.ks_2samp(radii[right], radii[~right]).pvalue > 1e-3


def test_quasi_monte_carlo_points_give_smaller_errors():
    q = mixture(2, 3, 5.0)
    rng = np.random.default_rng(3)
    a = np.array([0.5, -1.0, 0.3])

    def error(u):
        return np.cos(q.from_uniforms(u) @ a).mean()

    random = np.array([error(rng.random((512, 5))) for _ in range(100)])
    scrambled = np.array([error(scrambled_points(512, 5, rng)) for _ in range(100)])
    gap = random.mean() - scrambled.mean()
    assert abs(gap) < 4.0 * math.hypot(random.std(), scrambled.std()) / 10.0
    assert random.var() / scrambled.var() > 5.0


def test_scrambled_points_hit_components_in_proportion():
    q = StudentTMixture([0.25, 0.75], [[0.0], [100.0]], np.ones((2, 1, 1)), math.inf)
    x = q.from_uniforms(scrambled_points(256, 3, np.random.default_rng(1)))
    assert (x < 50.0).sum() == 64


@pytest.mark.parametrize("k", [1, 3])
def test_no_draws_and_no_points(k):
    q = mixture(k, 2, 5.0)
    assert q.sample(0, np.random.default_rng(1)).shape == (0, 2)
    assert q.from_uniforms(np.empty((0, 4))).shape == (0, 2)
    assert q.log_density(np.empty((0, 2))).shape == (0,)


def test_a_mixture_does_not_change():
    means = np.zeros((1, 2))
    q = StudentTMixture([1.0], means, [np.eye(2)], 5)
    means += 1.0
    assert (q.means == 0.0).all()
    with pytest.raises(ValueError, match="read-only"):
        q.means[0] = 1.0
    with pytest.raises(AttributeError):
        q.dof = 3.0
    assert (q.components, q.n_dim) == (1, 2)


def test_bad_points():
    q = mixture(2, 3, 5.0)
    with pytest.raises(ValueError, match=r"x must have shape \(P, 3\)"):
        q.log_density(np.zeros(3))
    with pytest.raises(ValueError, match=r"u must have shape \(n, 5\)"):
        q.from_uniforms(np.full((4, 4), 0.5))
    with pytest.raises(ValueError, match="strictly between"):
        q.from_uniforms(np.zeros((4, 5)))
    with pytest.raises(ValueError, match="n must be at least 1"):
        q.sample(-1, np.random.default_rng(1))


def test_values():
    log_q, log_p = np.log([0.2, 3.0]), np.log([0.5, 1e-5])
    expected = np.log([0.7 * 0.2 + 0.3 * 0.5, 0.7 * 3.0 + 0.3e-5])
    np.testing.assert_allclose(log_mixture_density(log_q, log_p, 0.3), expected, rtol=1e-14)


def test_shares_of_nothing_and_everything():
    log_q, log_p = np.array([-1.0, -math.inf]), np.array([-math.inf, -2.0])
    assert log_mixture_density(log_q, log_p, 0.0).tolist() == log_q.tolist()
    assert log_mixture_density(log_q, log_p, 1.0).tolist() == log_p.tolist()


def test_zero_densities():
    found = log_mixture_density(np.array([-math.inf, -math.inf, -5e4]),
                                np.array([-math.inf, -3e4, -math.inf]), 0.25)  # fmt: skip
    np.testing.assert_allclose(found, [-math.inf, -3e4 + math.log(0.25), -5e4 + math.log(0.75)])


def test_weights_are_bounded():
    rng = np.random.default_rng(1)
    log_q, log_p, log_l = rng.normal(-500.0, 100.0, (3, 1000))
    log_w = log_p + log_l - log_mixture_density(log_q, log_p, 0.1)
    assert log_w.max() <= log_l.max() + math.log(10.0) + 1e-9
