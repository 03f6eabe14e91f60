"""Likelihoods of single observations that are learned from simulations."""

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free.by_observation import cells_around, locate
from models.drift_diffusion import PRIORS, log_density, reaction_times

LEARNED = "likelihood of observations"


def test_cells():
    rng = np.random.default_rng(1)
    times = rng.choice([-1.0, 1.0], 100) * rng.gamma(5.0, size=100)
    cells = cells_around(times, 2)
    # One cell around each time, one on either side of these, and the gap around zero.
    assert len(cells.edges) + 1 == 103
    counts = cells.counts(np.stack([times, np.full(100, 1e-3), np.full(100, -1e9)]))
    outside = [0, int(counts[1].argmax()), 102]
    assert (counts.sum(axis=1) == 100).all() and counts[2, 0] == 100
    assert not counts[0, outside].any() and (np.delete(counts[0], outside) == 1).all()
    assert ((cells.basis[outside] > 0.0).sum(axis=1) == 1).all()
    np.testing.assert_allclose(cells.basis.sum(axis=1), 1.0)
    many = cells_around(rng.normal(size=5000), 2)
    assert len(many.edges) <= 202 and many.counts(rng.normal(size=(3, 5000))).sum() == 15_000


def test_where_no_likelihood_is_learned():
    for observed, parameters in ((np.arange(29.0), 1), (np.zeros(100), 1), (np.arange(100.0), 7)):
        assert cells_around(observed, parameters) is None


@pytest.mark.parametrize("mean", [0.4, -1.2])
def test_mode_and_information_of_normal_observations(mean):
    """Mean and log variance with standard normal priors: the mode solves two equations."""
    rng = np.random.default_rng(2)
    y = rng.normal(mean, 0.7, 100)
    cells = cells_around(y, 2)
    observed, mode = cells.counts(y[None]), np.array([y.mean(), 2.0 * np.log(y.std())])
    for _ in range(50):
        precision = np.exp(-mode[1])
        mode[0] = precision * y.sum() / (1.0 + 100 * precision)
        mode[1] += (0.5 * precision * ((y - mode[0]) ** 2).sum() - 50.0 - mode[1]) / 51.0
    sd = np.array([(1.0 + 100 * np.exp(-mode[1])) ** -0.5, 51.0**-0.5])

    centres, sds = [], []
    for _ in range(4):
        x = mode + 0.5 * rng.normal(size=(2000, 2))
        counts = cells.counts(x[:, :1] + np.exp(0.5 * x[:, 1:]) * rng.normal(size=(2000, 100)))
        found = locate(x, np.vstack([observed, counts]), cells.basis, x, np.full(2000, 5e-4))
        centres.append((found.centre - mode) / sd)
        sds.append(np.sqrt((found.root**2).sum(axis=1)) / sd)
    # In standard deviations; a tenth of one for cells and a quadratic logarithm.
    error = np.std(centres, axis=0) / np.sqrt(3)
    assert (error < 0.1).all() and (np.abs(np.mean(centres, axis=0)) < 0.1 + 4.0 * error).all()
    assert (np.abs(np.mean(sds, axis=0) - 1.0) < 0.1).all()

    # Estimates for other data: off by a posterior standard deviation, and infinite where the likelihood is unknown.
    z, whitened = found.estimates(x, counts), np.linalg.solve(found.root, (x - found.centre).T).T
    length = np.linalg.norm(whitened, axis=1)
    np.testing.assert_array_equal(np.isfinite(z).all(axis=1), length <= found.reach)
    assert 0.1 < (length <= found.reach).mean() < 0.9
    gaps = (z - whitened)[length < 4.0]
    assert (np.abs(gaps.mean(axis=0)) < 0.2).all() and (np.abs(gaps.std(axis=0) - 1.0) < 0.2).all()


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_a_mode_out_of_reach_is_kept():
    """The sign of mu does not matter."""
    y = np.random.default_rng(2).normal(2.0, 1.0, 60)
    problem = amc.SimulatorProblem(
        {"mu": stats.norm(0.0, 3.0)}, lambda rng, mu: rng.normal(abs(mu), 1.0, 60), y
    )
    tree = amc.sample_abc_tree(
        model=problem, max_simulations=2000, exchangeable=True, random_seed=1, progressbar=False
    )
    assert tree["posterior"].attrs.get("regression") != LEARNED
    assert 0.25 < float((tree["posterior"]["mu"] < 0.0).mean()) < 0.75


def gamma_times(rng, shape, scale, size=None):
    return rng.gamma(shape, scale, size)


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_posterior_of_gamma_times():
    """Against quadrature on a grid, by a pm.Model; and by regressions on quantiles, which are farther off."""
    y = np.random.default_rng(5).gamma(2.5, 1.0, 100)
    with pm.Model() as model:
        shape, scale = pm.Gamma("shape", 2.0, 0.5), pm.Gamma("scale", 2.0, 1.0)
        pm.Simulator("y", gamma_times, shape, scale, observed=y)
    a, b = (v.ravel() for v in np.meshgrid(np.linspace(0.8, 6.0, 300), np.linspace(0.3, 3.0, 300)))
    log = stats.gamma(2.0, scale=2.0).logpdf(a) + stats.gamma(2.0).logpdf(b)
    log += stats.gamma(a, scale=b).logpdf(y[:, None]).sum(axis=0)
    w = np.exp(log - log.max())
    tree = amc.sample_abc_tree(
        model=model, max_simulations=3000, exchangeable=True, random_seed=1, progressbar=False
    )
    attrs = tree["posterior"].attrs
    assert attrs["regression"] == LEARNED and attrs["effective_draws"] > 50
    for name, exact in (("shape", a), ("scale", b)):
        mean = np.average(exact, weights=w)
        sd = np.average((exact - mean) ** 2, weights=w) ** 0.5
        draws = tree["posterior"][name]
        assert abs(float(draws.mean()) - mean) < 4.0 / np.sqrt(attrs["effective_draws"]) * sd
        assert 0.8 < float(draws.std()) / sd < 1.25


def exact_moments(y, truth, rng):
    """Means and standard deviations by importance sampling, repeated from those that it finds."""
    mean, covariance = np.array(truth), np.diag([0.15, 0.05, 0.03, 0.01]) ** 2
    for n in (2000, 2000, 2000, 6000):
        root = np.linalg.cholesky(1.3 * covariance)
        z = rng.standard_t(5.0, (n, 4))
        x = mean + z @ root.T
        log = np.array([log_density(y, *row).sum() for row in x]) - stats.t.logpdf(z, 5.0).sum(1)
        log += sum(p.logpdf(x[:, k]) for k, p in enumerate(PRIORS.values()))
        w = np.exp(log - log.max())
        mean = w @ x / w.sum()
        covariance = (x - mean).T @ ((x - mean) * w[:, None]) / w.sum()
    assert w.sum() ** 2 / (w @ w) > 1000.0
    return mean, np.sqrt(np.diag(covariance))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_raw_reaction_times(seed):
    """Two hundred signed times of a drift-diffusion model: all four means within half a standard deviation."""
    truth = [(1.0, 1.5, 0.5, 0.3), (0.3, 1.0, 0.6, 0.2), (-1.2, 1.1, 0.55, 0.4)][seed - 1]
    rng = np.random.default_rng(seed)
    y = reaction_times(rng, *np.array(truth)[:, None])[0]
    mean, sd = exact_moments(y, truth, rng)
    problem = amc.SimulatorProblem(PRIORS, reaction_times, observed=y)
    tree = amc.sample_abc_tree(
        model=problem, max_simulations=5000, batched=True, exchangeable=True, random_seed=seed,
        progressbar=False,
    )  # fmt: skip
    assert tree["posterior"].attrs["regression"] == LEARNED
    draws = np.stack([tree["posterior"][name].values.ravel() for name in PRIORS], axis=1)
    assert (np.abs(draws.mean(axis=0) - mean) < 0.5 * sd).all()
    assert (np.abs(np.log(draws.std(axis=0) / sd)) < np.log(1.5)).all()
