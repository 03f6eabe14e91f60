from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm

from scipy import optimize, stats

from amc_pymc.tall.mode import find_mode


class Target:
    """Rows and a normal prior, as ``find_mode`` wants them."""

    def __init__(self, X, prior_sd):
        self.X, self.prior_sd, self.n_units = X, prior_sd, len(X)
        self.full_passes = 0
        self.largest_subsample = 0

    def rows(self, x, X, rows):
        """Summed log-likelihood, its derivative by the predictor and second derivative, per row."""
        raise NotImplementedError

    def _part(self, x, rows):
        if rows is None:
            self.full_passes += 1
            return self.X, slice(None)
        self.largest_subsample = max(self.largest_subsample, len(rows))
        return self.X[rows], rows

    def value_and_gradient(self, x, rows):
        X, index = self._part(x, rows)
        value, slope, _ = self.rows(X @ x, index)
        return value, X.T @ slope

    def hessian(self, x, rows):
        X, index = self._part(x, rows)
        return (X.T * self.rows(X @ x, index)[2]) @ X

    def rest_value_and_gradient(self, x):
        return -0.5 * x @ x / self.prior_sd**2, -x / self.prior_sd**2

    def rest_hessian(self, x, coordinates):
        return -np.eye(x.size) / self.prior_sd**2

    def whole(self, x, rows=None):
        """Value, gradient and Hessian of the log density, by all rows or by some in their place."""
        scale = 1.0 if rows is None else len(self.X) / len(rows)
        found = *self.value_and_gradient(x, rows), self.hessian(x, rows)
        rest = *self.rest_value_and_gradient(x), self.rest_hessian(x, None)
        return [scale * f + r for f, r in zip(found, rest)]

    def find(self, x0=None, search=None, seed=1, **kwargs):
        d = self.X.shape[1]
        x0, search = (
            np.zeros(d) if x0 is None else np.asarray(x0, float),
            np.arange(d) if search is None else np.asarray(search),
        )
        rng, subsample = np.random.default_rng(seed), kwargs.pop("subsample", 20_000)
        return find_mode(self, self, x0, search, subsample, rng, **kwargs)


def mode_of(value_and_gradient, hessian, x0, n_units=100, seed=1, subsample=20_000):
    """The mode of a log density by units alone, over all coordinates."""
    units = SimpleNamespace(
        n_units=n_units, value_and_gradient=value_and_gradient, hessian=hessian,
        rest_value_and_gradient=lambda x: (0.0, np.zeros(x.size)),
        rest_hessian=lambda x, coordinates: np.zeros((x.size, x.size)),
    )  # fmt: skip
    x0, rng = np.asarray(x0, float), np.random.default_rng(seed)
    return find_mode(units, units, x0, np.arange(x0.size), subsample, rng)


class Linear(Target):
    def __init__(self, X, y, prior_sd):
        super().__init__(X, prior_sd)
        self.y = y

    def rows(self, eta, index):
        r = self.y[index] - eta
        return -0.5 * r @ r, r, -np.ones(r.size)

    def closed_form(self):
        precision = self.X.T @ self.X + np.eye(self.X.shape[1]) / self.prior_sd**2
        return np.linalg.solve(precision, self.X.T @ self.y), precision


class Logistic(Target):
    def __init__(self, X, y, prior_sd):
        super().__init__(X, prior_sd)
        self.y = y

    def rows(self, eta, index):
        p = 1.0 / (1.0 + np.exp(-eta))
        value = np.sum(self.y[index] * eta - np.logaddexp(0.0, eta))
        return value, self.y[index] - p, -p * (1 - p)


def design(n, d, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, d))
    X[:, 0] = 1.0
    X[:, -1] *= 30.0
    return X


@pytest.mark.parametrize("n_rows", [50, 3_000])
def test_normal_rows_have_the_closed_form(n_rows):
    X = design(n_rows, 4)
    y = X @ [1.0, -2.0, 0.5, 0.01] + np.random.default_rng(1).normal(size=n_rows)
    target = Linear(X, y, prior_sd=2.0)
    mean, precision = target.closed_form()
    for subsample in (20_000, n_rows // 5):
        mode = target.find(x0=[5.0, 5.0, -5.0, 5.0], subsample=subsample)
        assert mode.converged and mode.message == ""
        shift = mode.x - mean
        assert shift @ precision @ shift <= 2 * mode.decrement + 1e-12
        assert mode.decrement <= 1e-6
    np.testing.assert_allclose(target.find().factor, np.linalg.cholesky(np.linalg.inv(precision)))


def test_logistic_rows_have_the_mode_of_statsmodels():
    n_rows = 60_000
    X = design(n_rows, 5)
    beta = np.array([-1.0, 0.5, 0.0, -0.3, 0.02])
    y = (np.random.default_rng(2).random(n_rows) < 1 / (1 + np.exp(-X @ beta))).astype(float)
    target = Logistic(X, y, prior_sd=1e4)
    mode = target.find()
    fit = sm.GLM(y, X, family=sm.families.Binomial()).fit(tol=1e-14)
    assert mode.converged
    # in posterior standard deviations: the flat prior moves the mode by less than 1e-6 of one
    assert np.abs((mode.x - fit.params) / fit.bse).max() < 2e-3
    gradient = target.whole(mode.x)[1]
    assert gradient @ np.linalg.solve(-target.whole(mode.x)[2], gradient) < 2e-6
    assert target.largest_subsample == 20_000


def test_other_coordinates_stay_where_they_are():
    X = design(500, 4)
    target = Linear(X, X @ [1.0, 2.0, 3.0, 0.1], prior_sd=3.0)
    start = np.array([9.0, 1.5, 8.0, 0.3])
    mode = target.find(x0=start, search=[0, 2])
    np.testing.assert_array_equal(mode.x[[1, 3]], start[[1, 3]])
    _, precision = target.closed_form()
    gradient = target.whole(mode.x)[1]
    np.testing.assert_allclose(gradient[[0, 2]], 0.0, atol=1e-2)
    inner = precision[np.ix_([0, 2], [0, 2])]
    np.testing.assert_allclose(mode.factor @ mode.factor.T, np.linalg.inv(inner), rtol=1e-9)


@pytest.mark.parametrize("shape", ["linear", "logarithm"])
def test_growth_without_end_is_reported(shape):
    """x has no curvature at all; log x has, but its Newton decrement is 1 everywhere."""
    if shape == "linear":
        parts = (lambda x: x, lambda x: 1.0, lambda x: 0.0)
    else:
        parts = (lambda x: np.log(x), lambda x: 1 / x, lambda x: -1 / x**2)
    mode = mode_of(
        lambda x, rows: (float(parts[0](x[0])), np.array([parts[1](x[0])])),
        lambda x, rows: np.array([[parts[2](x[0])]]),
        np.ones(1),
    )
    assert not mode.converged
    assert mode.message


def test_a_flat_direction_is_reported():
    """Two equal columns: the likelihood knows their sum only, and the prior is flat."""
    X = design(300, 3)
    X[:, 2] = X[:, 1]
    y = X[:, 1] + np.random.default_rng(1).normal(size=300)
    mode = Linear(X, y, prior_sd=1e12).find()
    assert not mode.converged
    assert "no strict maximum" in mode.message


def test_a_saddle_at_the_start_is_left():
    """The gradient is zero at the start; the maxima are at +-1."""
    mode = mode_of(
        lambda x, rows: (float(-np.sum((x**2 - 1) ** 2)), -4 * x * (x**2 - 1)),
        lambda x, rows: np.diag(4 - 12 * x**2),
        np.zeros(1),
    )
    assert not mode.converged or abs(mode.x[0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("bad", ["value", "hessian"])
def test_regions_that_are_not_finite_are_avoided_or_reported(bad):
    """A log density that ends at x = 3: the search must come back, or say so."""

    def value_and_gradient(x, rows):
        if bad == "value" and x[0] > 3.0:
            return -np.inf, np.full(1, np.nan)
        return float(-0.5 * (x[0] - 2.9) ** 2 * 100), -100 * (x - 2.9)

    def hessian(x, rows):
        return np.full((1, 1), np.nan if bad == "hessian" else -100.0)

    mode = mode_of(value_and_gradient, hessian, [-50.0])
    if bad == "value":
        assert mode.converged
        assert mode.x[0] == pytest.approx(2.9, abs=1e-3)
    else:
        assert not mode.converged
        assert "Hessian is not finite" in mode.message


# --- kinks ----------------------------------------------------------------------------------------


def quantile_regression(quantile, n_rows=20_000, seed=1):
    """Rows of asymmetric Laplace distributions, and coefficients that statsmodels finds."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n_rows), rng.normal(size=(n_rows, 2))])
    y = x @ [1.0, 0.5, -0.3] + rng.normal(size=n_rows)

    def value_and_gradient(beta, rows):
        some = slice(None) if rows is None else rows
        error = y[some] - x[some] @ beta
        slope = quantile - (error < 0.0)
        return -float(error @ slope), slope @ x[some]

    return x, sm.QuantReg(y, x).fit(q=quantile).params, value_and_gradient


@pytest.mark.parametrize("quantile", [0.5, 0.9])
@pytest.mark.parametrize("subsample", [20_000, 5_000])
def test_a_log_density_with_kinks_has_the_mode_of_statsmodels(quantile, subsample):
    """Its expected curvature is X'X times the density of errors at their quantile."""
    x, expected, value_and_gradient = quantile_regression(quantile)
    mode = mode_of(
        value_and_gradient,
        lambda beta, rows: np.zeros((3, 3)),
        np.zeros(3),
        n_units=20_000,
        seed=2,
        subsample=subsample,
    )
    curvature = x.T @ x * stats.norm.pdf(stats.norm.ppf(quantile))
    assert mode.converged
    found, sd = (np.sqrt(np.diag(np.linalg.inv(p))) for p in (mode.precision, curvature))
    np.testing.assert_allclose(found, sd, rtol=0.15)
    assert np.all(np.abs(mode.x - expected) < 0.2 * sd)


def test_one_kinked_direction_of_many_with_a_hessian_of_the_wrong_sign():
    """As that of a marginal log-likelihood: it has a term that kinks should outweigh."""
    x, expected, kinked = quantile_regression(0.5)
    curvature = np.diag(x.T @ x * stats.norm.pdf(0.0))
    second = np.concatenate([[0.15], [-1.0, -1.0]]) * curvature

    def value_and_gradient(z, rows):
        value, gradient = kinked(z[:3], rows)
        return value - 50.0 * z[3:] @ z[3:], np.append(gradient, -100.0 * z[3:])

    mode = mode_of(
        value_and_gradient,
        lambda z, rows: np.diag(np.append(second, np.full(40, -100.0))),
        np.append(expected, np.full(40, 0.01)),
        n_units=20_000,
        seed=2,
    )
    assert mode.converged, mode.message
    precision = np.diag(mode.precision)
    np.testing.assert_allclose(precision[:3], curvature, rtol=0.3)
    np.testing.assert_allclose(precision[3:], 100.0, rtol=0.05)


def test_an_informative_prior_counts():
    X = design(400, 3)
    y = (np.random.default_rng(3).random(400) < 0.7).astype(float)
    target = Logistic(X, y, prior_sd=0.1)
    mode = target.find()
    other = optimize.minimize(
        lambda x: -target.whole(x)[0], np.zeros(3), method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4_000},
    )  # fmt: skip
    np.testing.assert_allclose(mode.x, other.x, atol=1e-4)


def test_the_decrement_after_a_long_way():
    """Rare rows lead away from the mode of a subsample, and the search ends before it arrives."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, 2)) @ [[1.0, 0.9], [0.0, 0.3]]
    eta = X @ [0.5, -0.5]
    eta[np.argsort(X[:, 0])[-20:]] += 200.0
    target = Linear(X, eta + rng.normal(size=2000), 10.0)
    mode = target.find(seed=1, subsample=20, max_passes=2)
    assert not mode.converged
    slope = target.whole(mode.x)[1]
    rows = np.sort(np.random.default_rng(1).choice(2000, size=20, replace=False))
    curvature = -target.whole(mode.x, rows)[2]
    assert mode.decrement == pytest.approx(slope @ np.linalg.solve(curvature, slope))


def test_separated_data_under_a_flat_prior_have_no_maximum():
    """The supremum, zero, is at infinity: the search reports failure or comes within its tolerance."""
    X = design(200, 3)
    y = (X[:, 1] > 0).astype(float)
    target = Logistic(X, y, prior_sd=1e150)
    with np.errstate(over="ignore"):
        mode = target.find()
        value = target.whole(mode.x)[0]
    assert np.all(np.isfinite(mode.x))
    assert not mode.converged or -1e-2 < value <= 0.0


def test_an_unbounded_log_density_is_reported():
    mode = mode_of(
        lambda x, rows: (float(x @ x), 2 * x),
        lambda x, rows: 2 * np.eye(2),
        np.array([0.1, 0.2]),
    )
    assert not mode.converged
    assert mode.message
