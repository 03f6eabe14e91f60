from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from numba import njit
from scipy import stats

from amc_pymc.reading import extract_rows
from benchmarks.papers.data_space import DataControl, DataProxy

X0 = np.zeros(0)


slow = pytest.mark.slow


def logistic(n=3000, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1, 0.2, 3]
    eta = X @ [1.0, -3.0, 0.2]
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=X @ b, observed=(rng.random(n) < 1 / (1 + np.exp(-eta))) * 1)
    return model, np.array([1.0, -3.0, 0.2])


def poisson_offset(n=3000, seed=2):
    rng = np.random.default_rng(seed)
    X, exposure = rng.normal(size=(n, 2)), rng.exponential(2, n)
    y = rng.poisson(exposure * np.exp(X @ [0.4, -0.3]))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Poisson("y", pt.exp(X @ b + np.log(exposure)), observed=y)
    return model, np.array([0.4, -0.3])


def arch_series(n, order, seed=3):
    """Returns r (n,), squared lags (n, order), the coefficients (order + 1,)."""
    rng = np.random.default_rng(seed)
    weights = 0.8 ** np.arange(order)
    alpha = np.r_[0.3, 0.6 * weights / weights.sum()]
    r = np.zeros(n + order + 200)
    for t in range(order, r.size):
        variance = alpha[0] + alpha[1:] @ r[t - order : t][::-1] ** 2
        r[t] = np.sqrt(variance) * rng.standard_t(8)
    r = r[200:]
    lags = np.stack([r[order - j : r.size - j] for j in range(1, order + 1)], axis=1)
    return r[order:], lags**2, alpha


def arch(n=3000, order=5, dtype=float):
    r, squares, alpha = arch_series(n, order)
    with pm.Model() as model:
        a = pm.Gamma("a", 1, 1, shape=order + 1)
        nu = pm.Gamma("nu", 2, 0.1)
        scale = pt.sqrt(a[0] + pt.dot(squares.astype(dtype), a[1:]))
        pm.StudentT("r", nu=nu, sigma=scale, observed=r.astype(dtype))
    return model, np.log(np.r_[alpha, 8.0])


def arch_summary(n, order):
    r, squares, alpha = arch_series(n, order)
    return np.column_stack([r, alpha[0] + squares @ alpha[1:]])


def normal_known_mean(n=3000, seed=4):
    y = np.random.default_rng(seed).standard_t(3, size=n) + 5
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", 5.0, sigma, observed=y)
    return model, np.array([0.3])


MODELS = {"logistic": logistic, "poisson": poisson_offset, "arch": arch}


def make(build, settings=None, **kwargs):
    model, x = build(**kwargs)
    return DataControl(extract_rows(model), settings or DataProxy(), x, np.random.default_rng(5)), x


@cache
def usual(name):
    return make(MODELS[name])


def values(control, x, rows):
    return control.rows(control.rows.layout.unravel(x), rows)


def raced(control):
    return np.setdiff1d(np.arange(control.n_rows), control.exact)


def assert_total_is_exact(control, x):
    """total(x) = sum over raced rows of l_n less their residuals, to rounding of the terms."""
    rows = raced(control)
    plain = values(control, x, rows)
    h = plain - control.residuals(x[None], rows)[0]
    assert abs(control.population_total(x) - h.sum()) < 1e-10 * np.abs(h).sum()
    assert np.abs(h).sum() > 1


def variance_reduction(control, x, x_new):
    """Variance of the raced rows' changes from x to x_new, divided by that of what the control variate leaves."""
    rows = raced(control)
    residual = control.residuals(np.stack([x, x_new]), rows)
    plain = values(control, x_new, rows) - values(control, x, rows)
    return plain.var() / (residual[1] - residual[0]).var()


class TestTotal:
    @pytest.mark.parametrize("name", MODELS)
    def test_is_the_sum_over_raced_rows(self, name):
        control, x = usual(name)
        assert control.exact.size == 600
        rng = np.random.default_rng(6)
        for _ in range(3):
            assert_total_is_exact(control, x + rng.normal(scale=0.5, size=x.size))

    def test_against_a_formula(self):
        """Poisson with log mean eta = y'(b, 1): l = k eta - exp(eta) - log k!."""
        control, x = usual("poisson")
        rows, b = raced(control), x + 0.2
        X, k, log_k = _poisson_data(control)
        eta = X @ np.r_[b, 1.0]
        h = np.empty(control.n_rows)
        label = control.bin_of_row
        for bin_ in range(control.n_bins):
            mine = np.flatnonzero(label == bin_)
            assert np.unique(k[mine]).size == 1
            at = eta[mine].mean()
            d = eta[mine] - at
            h[mine] = k[mine] * eta[mine] - np.exp(at) * (1 + d + d**2 / 2) - log_k[mine]
        expected = k * eta - np.exp(eta) - log_k - h
        np.testing.assert_allclose(control.residuals(b[None], rows)[0], expected[rows], atol=1e-10)
        assert control.population_total(b) == pytest.approx(h[rows].sum(), rel=1e-12)


def _poisson_data(control):
    """Columns (X, log exposure), counts and log k! as the rows hold them."""
    arrays = control.rows.arrays
    k = next(a for a in arrays if a.dtype.kind in "iu" and a.max() > 1)
    log_k = stats.poisson(1).logpmf(k) * -1 - 1
    X = next(a for a in arrays if a.ndim == 2)
    offsets = [a for a in arrays if a.ndim == 1 and a.dtype.kind == "f"]
    log_exposure = next(a for a in offsets if not np.allclose(a, log_k))
    return np.column_stack([X, log_exposure]), k, log_k


class TestRewards:
    @pytest.mark.parametrize("bins", [1, 3])
    def test_no_residual_where_the_data_enter_by_squares(self, bins):
        control, x = make(normal_known_mean, DataProxy(bins=bins))
        for s in (-1.0, 0.0, 2.0):
            residual = control.residuals(np.array([[s]]), raced(control))
            assert np.abs(residual).max() < 1e-10 * np.abs(values(control, x + s, [0, 1, 2])).max()

    def test_mixed_with_raced_rows(self):
        control, x = usual("logistic")
        rng = np.random.default_rng(8)
        points = x + rng.normal(scale=0.1, size=(2, x.size))
        rows = rng.permutation(np.r_[control.exact[:20], raced(control)[:20]])
        each = np.concatenate([control.residuals(points, rows[[k]]) for k in range(40)], axis=1)
        np.testing.assert_allclose(control.residuals(points, rows), each, atol=1e-13)
        outside = np.isin(rows, control.exact)
        plain = np.array([values(control, p, rows) for p in points])
        np.testing.assert_allclose(control.residuals(points, rows)[:, outside], plain[:, outside])
        assert np.all(control.residuals(points, rows)[:, ~outside] != plain[:, ~outside])

    def test_relative_to_the_first_arm(self):
        control, x = usual("arch")
        points = x + np.random.default_rng(9).normal(scale=0.1, size=(3, x.size))
        for rows in (raced(control)[:50], control.exact[:50], np.empty(0, np.int64)):
            absolute = control.residuals(points, rows)
            relative = _call(control.rewards, points, X0, rows)
            assert absolute.shape == (3, rows.size)
            assert np.all(relative[0] == 0.0)
            np.testing.assert_allclose(relative, absolute - absolute[0], atol=1e-13)


@njit
def _call(rewards, points, centre, rows):
    return rewards(points, centre, rows)


class TestVarianceReduction:
    """Chen & Ghahramani (2016), section 5.2: two to three orders with 10 x 10 bins, 20 % out."""

    def test_arch(self):
        control, x = make(arch, DataProxy(summary=arch_summary(13_000, 5)), n=13_000)
        assert control.exact.size == 2600
        rng = np.random.default_rng(11)
        for scale in (0.02, 0.1, 0.3):
            x_new = x + scale * rng.normal(size=x.size)
            assert variance_reduction(control, x, x_new) > 10


class TestBins:
    def test_integer_data_are_constant_within_bins(self):
        rng = np.random.default_rng(14)
        n, group = 4000, rng.integers(0, 7, 4000)
        y = rng.normal(size=n)
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 1, shape=7)
            pm.StudentT("y", nu=4, mu=mu[group], observed=y)
        x = rng.normal(size=7)
        control = DataControl(extract_rows(model), DataProxy(bins=5), x, rng)
        assert control.n_bins == 35
        for b in range(35):
            assert np.unique(group[control.bin_of_row == b]).size == 1
        assert_total_is_exact(control, x)


def one_value_per_row(rng):
    pm.Normal("y", pm.Normal("u", 0, 1, shape=50), 1, observed=rng.normal(size=50))


def only_integers(rng):
    pm.Bernoulli("y", pm.Beta("p", 1, 1), observed=rng.integers(0, 2, 100))


def without_a_scalar_form(rng):
    mu = pm.Normal("mu", 0, 1, shape=3)
    pm.Normal("y", pt.sort(mu)[1], 1, observed=rng.normal(size=200))


class TestRefusals:
    @pytest.mark.parametrize(
        ("write", "message"),
        [
            (one_value_per_row, "u has one value per row. Integrate it out"),
            (only_integers, "floating type, the rows of y have none. Cast"),
            (without_a_scalar_form, r"those of y are not \(Sort"),
        ],
    )
    def test_rows(self, write, message):
        rng = np.random.default_rng(16)
        with pm.Model() as model:
            write(rng)
        rows = extract_rows(model)
        with pytest.raises(ValueError, match=message):
            DataControl(rows, DataProxy(), np.zeros(rows.layout.size), rng)

    def test_impossible_reference(self):
        """Rows at 0 and 1; their mean 1/2 has probability zero at b = 1/2."""
        y = np.repeat([0.0, 1.0], 50)
        with pm.Model() as model:
            b = pm.Normal("b", 0, 1)
            pm.CustomDist("y", b, logp=lambda v, b: pt.log(pt.abs(v - b)), observed=y)
        rows, rng = extract_rows(model), np.random.default_rng(20)
        with pytest.raises(ValueError, match=r"sum of the control variate is (nan|-inf) at x"):
            DataControl(rows, DataProxy(bins=1, outliers=0), np.array([0.5]), rng)
