"""Log-likelihoods with kinks, which have second derivatives almost everywhere but no expansion to second order."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import statsmodels.api as sm

import amc_pymc as amc

N = 20_000
Q = 0.8


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=N)
    return x, 1.0 + 0.5 * x + rng.normal(scale=0.8, size=N)


@pytest.fixture(scope="module")
def model():
    """Quantile regression."""
    x, y = data()
    with pm.Model() as model:
        a, b, s = pm.Normal("a"), pm.Normal("b"), pm.HalfNormal("s")
        pm.AsymmetricLaplace("y", mu=a + b * x, b=1.0 / s, q=Q, observed=y)
    return model


@pytest.fixture(scope="module")
def moments():
    """Posterior means and standard deviations by quadrature on a grid."""
    x, y = data()
    axes = [np.linspace(m - 7.0 * h, m + 7.0 * h, 57) for m, h in zip(*centre_and_sd(x, y))]
    loss = np.empty((57, 57))
    for j, b in enumerate(axes[1]):
        error = np.sort(y - b * x)
        total, below = error.sum(), np.append(0.0, np.cumsum(error))
        place = np.searchsorted(error, axes[0])
        loss[:, j] = Q * (total - N * axes[0]) - (below[place] - place * axes[0])
    a, b, s = np.meshgrid(*axes, indexing="ij")
    # PyMC's density is proportional to exp(-v kappa / s) / s for v > 0, with kappa^2 = q / (1 - q).
    scale = s * np.sqrt(Q * (1.0 - Q))
    log_p = -N * np.log(s) - loss[:, :, None] / scale - 0.5 * (a**2 + b**2 + s**2)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = {}
    for name, grid in zip("abs", (a, b, s)):
        mean = (p * grid).sum()
        found[name] = mean, np.sqrt((p * (grid - mean) ** 2).sum())
    return found


def centre_and_sd(x, y):
    """Rough: the mode, and asymptotic standard deviations."""
    a, b = sm.QuantReg(y, np.column_stack([np.ones(N), x])).fit(q=Q).params
    error = y - a - b * x
    scale = np.mean(error * (Q - (error < 0.0)))
    s = scale / np.sqrt(Q * (1.0 - Q))
    h = np.sqrt(scale / (N * 0.35))  # the density of errors at their quantile
    return (a, b, s), (h, h, s / np.sqrt(N))


def test_quantile_regression_has_the_posterior(model, moments, run):
    step = amc.RacingMetropolis(model=model, progressbar=False)
    assert step.prepared.kinked
    idata = run(model, step, draws=2_000, tune=1_000)
    for name, (mean, sd) in moments.items():
        found = idata.posterior[name].values
        error = sd / np.sqrt(az.ess(found))
        assert abs(found.mean() - mean) < 4.0 * error
        assert found.std() == pytest.approx(sd, rel=4.0 / np.sqrt(2.0 * az.ess(found)))
    assert amc.decision_error(idata).loc["all", "ci_low"] < 0.05


def test_rows_near_kinks_are_read_at_every_decision(model):
    """All other rows have residuals of zero, up to the slow change of the scale."""
    prepared = amc.RacingMetropolis(model=model, progressbar=False).prepared
    x, y = data()
    point = prepared.densities.layout.unravel(prepared.fit.mean)
    error = np.abs(y - point["a"] - point["b"] * x)
    near = np.sort(error)[prepared.exact_rows.size]
    assert 200 < prepared.exact_rows.size < 2_000
    assert np.median(error[prepared.exact_rows]) < near


def test_coefficients_given_hyperparameters():
    """Their precision is that of their rows: numbers times the density of errors at the kink over the scale."""
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, 12, N), rng.normal(size=N)
    y = rng.normal(scale=0.5, size=12)[group] + 0.5 * x + rng.laplace(scale=0.8, size=N)
    with pm.Model() as model:
        tau, b, s = pm.HalfNormal("tau"), pm.Normal("b"), pm.HalfNormal("s")
        effect = pm.Normal("effect", 0.0, tau, shape=12)
        pm.Laplace("y", effect[group] + b * x, s, observed=y)
    step = amc.RacingMetropolis(model=model, marginalize=None, progressbar=False)
    prepared, surface = step.prepared, step.prepared.surface.surface
    layout = prepared.densities.layout
    assert prepared.kinked and surface.outer[layout.slices["tau_log__"]] == 0
    at = np.searchsorted(surface.reads, layout.indices(["effect"]))
    found = np.diag(surface.curvature)[at]
    np.testing.assert_allclose(found, np.bincount(group) / 0.8**2, rtol=0.4)
    assert found.sum() == pytest.approx(N / 0.8**2, rel=0.15)


def test_smooth_rows_have_no_kinks(linear_step):
    assert not linear_step.prepared.kinked
