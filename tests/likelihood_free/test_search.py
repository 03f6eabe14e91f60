"""The mode is that of the density of the parameters, errors are as stated, boxes are chosen by belief."""

import math

import numpy as np
import pytest

from scipy import stats

from amc_pymc.likelihood_free.map_mode import _at_zero, estimate_mode
from amc_pymc.likelihood_free.map_peak import fit_log_quadratic
from amc_pymc.likelihood_free.map_search import lowered, map_batches, map_rounds, refine
from amc_pymc.likelihood_free.partition import whole_cube
from amc_pymc.likelihood_free.problem import gaussian_kernel
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.rng import spawn_generators


def bent(seed, n):
    """Gaps to the mode and their errors: normal noise around a curved sheet that the data are far from."""

    def simulator(rng, t):
        x = np.stack([t[:, 0] - 0.5, 2.0 * (t[:, 1] - t[:, 0] ** 2 + 1.0), np.ones(len(t))], axis=1)
        return x + 0.05 * rng.normal(size=x.shape)

    problem = SimulatorProblem({"t": (stats.uniform(-4.0, 8.0), 2)}, simulator, np.zeros(3))
    found = mode_of(problem, search(problem, n, seed))
    return problem.parameters(found.u[None])["t"][0] - [0.5, -0.75], found.se


def search(problem, n, seed, **settings):
    """All batches of a search."""
    sizes = map_batches(n)
    noise, *rngs = spawn_generators(seed, 1 + len(sizes))

    def simulate(u, b):
        return problem.simulate(u, noise, batched=True).distance

    for history in map_rounds(simulate, problem.log_prior, problem.n_dim, sizes, rngs, **settings):
        pass
    return history


def mode_of(problem, history, **kwargs):
    return estimate_mode(history, problem.parameters, problem.log_prior, **kwargs)


def skewed_prior(observed=2.0, rate=1.0):
    """Exponential prior, normal data: the density has its mode at observed - rate, the likelihood at observed."""

    def simulator(rng, mu):
        return rng.normal(mu, 1.0)

    return SimulatorProblem({"mu": stats.expon(scale=1.0 / rate)}, simulator, observed)


# --- the mode -------------------------------------------------------------------------------------


def test_mode_on_the_scale_of_parameters():
    # Normal noise: the mode is at 2 - 1, at tolerance h at 2 - (1 + h^2). By volumes of the cube it would
    # be at 2.
    problem = skewed_prior()
    found = mode_of(problem, search(problem, 10_000, 1))
    mu = problem.parameters(found.u[None])["mu"][0]
    assert 0.0 < found.se[0] < 0.3
    assert abs(mu - 1.0) < 4.0 * found.se[0]
    assert abs(mu - 1.0) < 0.5


@pytest.mark.slow
def test_errors_are_as_stated():
    # The bounds are quantiles 0.0005 and 0.9995 of the mean of that many squared z-scores. In one run of twenty the
    # highest fit is a narrow one to a few large labels, or one at the edge.
    problem, z, n = skewed_prior(), [], 60
    for seed in range(n):
        found = mode_of(problem, search(problem, 5000, seed))
        mu = problem.parameters(found.u[None])["mu"][0]
        z.append((mu - 1.0) / found.se[0])
    low, high = stats.chi2(n).ppf([0.0005, 0.9995]) / n
    assert low < np.mean(np.square(z)) < high


def test_two_scales():
    # The narrow part of the noise decides.
    def simulator(rng, t):
        scale = np.where(rng.random((len(t), 1)) < 0.5, 1.0, 0.1)
        return t + scale * rng.normal(size=t.shape)

    observed = np.array([1.5, -2.3])
    problem = SimulatorProblem({"t": (stats.uniform(-10.0, 20.0), 2)}, simulator, observed)
    found = mode_of(problem, search(problem, 20_000, 5))
    gap = problem.parameters(found.u[None])["t"][0] - observed
    assert (np.abs(gap) < 4.0 * found.se).all()
    assert (found.se < 0.02).all()


def test_nothing_comes_close():
    problem = SimulatorProblem({"mu": stats.norm()}, lambda rng, mu: mu * np.inf, 0.0)
    history = search(problem, 200, 9)
    assert history.tolerance == math.inf
    with pytest.raises(ValueError, match="close to the data"):
        mode_of(problem, history)


@pytest.mark.parametrize(("edge", "observed"), [(3.0, -2.0), (0.0, -5.0)])
def test_the_mode_is_where_the_prior_allows(edge, observed):
    # Beyond the edge the density falls, so the mode is at it; the likelihood's is where the prior is zero.
    def simulator(rng, mu):
        return rng.normal(mu, 1.0)

    problem = SimulatorProblem({"mu": stats.norm(0.0, 3.0)}, simulator, observed)

    whole = problem.log_prior

    def log_prior(u):
        return np.where(problem.parameters(u)["mu"] > edge, whole(u), -np.inf)

    problem.log_prior = log_prior
    history = search(problem, 3000, 13)
    found = estimate_mode(history, problem.parameters, log_prior)
    mu = problem.parameters(found.u[None])["mu"][0]
    assert edge < mu < edge + 0.1


def test_a_prior_that_is_zero_everywhere_is_told():
    problem = skewed_prior()
    history = search(problem, 200, 14)

    def never(u):
        return np.full(len(u), -np.inf)

    history.log_prior = never(history.centres)
    with pytest.raises(ValueError, match="prior is"):
        estimate_mode(history, problem.parameters, never)


# --- batches --------------------------------------------------------------------------------------


def test_tolerances_never_rise_and_end_where_told():
    problem = skewed_prior()
    found = [r.tolerance for r in search(problem, 4000, 11, lowest=0.5).rounds]
    assert (np.diff(found) <= 0.0).all()
    assert found[-1] == 0.5
    assert search(problem, 4000, 11).tolerance < 0.5


def test_tolerance_by_hand():
    d = np.array([1.0, 2.0, 4.0])
    h = lowered(d, math.inf, kernel_values=0.3)
    assert gaussian_kernel(d, h).mean() == pytest.approx(0.3)
    assert lowered(d, 0.5, kernel_values=0.3) == 0.5
    assert lowered(d, math.inf, kernel_values=0.3, lowest=7.0) == 7.0
    assert lowered(np.full(3, np.inf), 2.0, kernel_values=0.3) == 2.0
    # failed simulations count as far away
    assert lowered(np.append(d, np.inf), math.inf, kernel_values=0.3) > h
    assert lowered(np.zeros(5), math.inf, kernel_values=0.3) == 0.0


# --- boxes ----------------------------------------------------------------------------------------


def test_noise_is_not_cut():
    rng = np.random.default_rng(1)
    cut = [
        refine(whole_cube(2), rng.random((2000, 2)), (rng.random(2000) < 0.2).astype(float)).boxes
        for _ in range(100)
    ]
    # four comparisons at three standard errors: at most 1.1 % in expectation
    assert np.mean(np.array(cut) > 1) < 0.06


def test_a_peak_in_the_middle_is_cut():
    rng = np.random.default_rng(2)
    u = rng.random((2000, 2))
    labels = np.exp(-0.5 * ((u - 0.5) ** 2).sum(axis=1) / 0.1**2)
    found = refine(whole_cube(2), u, labels)
    assert found.boxes > 8
    assert found.volumes[found.find(np.array([[0.51, 0.51]]))] < 0.1


# --- the fit --------------------------------------------------------------------------------------


def test_a_quadratic_is_found_exactly():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3000, 2))
    c = np.array([[2.0, 0.5], [0.5, 1.0]])
    labels = np.exp(-0.5 * np.einsum("ni,ij,nj->n", x - 0.2, c, x - 0.2))
    found = fit_log_quadratic(x, labels, np.zeros(2), np.linalg.cholesky(np.linalg.inv(c)), 3.0)
    root = found.root
    np.testing.assert_allclose(found.curvature(), root.T @ c @ root, rtol=2e-3, atol=2e-3)
    top = root @ np.linalg.solve(found.curvature(), found.coefficients[1:3])
    np.testing.assert_allclose(top, [0.2, 0.2], atol=2e-3)
    assert len(found.coefficients) == 6


def test_standard_errors_of_a_fit():
    # The mean of squared z-scores is within four of its standard errors, over 300 replications.
    z, n = [], 300
    for rng in spawn_generators(6, n):
        x = rng.uniform(-1.5, 1.5, (400, 1))
        labels = (rng.random(400) < 0.4 * np.exp(-0.5 * x[:, 0] ** 2)).astype(float)
        found = fit_log_quadratic(x, labels, np.zeros(1), np.eye(1), 1.5)
        z.append(found.coefficients[:2] - [math.log(0.4), 0.0])
        z[-1] /= np.sqrt(np.diag(found.covariance)[:2])
    squares = np.square(z)
    assert (np.abs(squares.mean(axis=0) - 1.0) < 4.0 * squares.std(axis=0) / math.sqrt(n)).all()


def test_labels_are_counted_by_what_they_are_worth():
    # Their scale makes no difference; among zeros and ones it is the ones that count.
    x = np.linspace(-0.9, 0.9, 400)[:, None]
    labels = np.exp(-0.5 * x[:, 0] ** 2)
    high, low = (fit_log_quadratic(x, s * labels, np.zeros(1), np.eye(1), 1.0) for s in (1.0, 1e-3))
    assert high.effective == pytest.approx(low.effective)
    w = 1.0 - x[:, 0] ** 2
    assert high.effective == pytest.approx((w @ labels) ** 2 / ((w * labels) @ (w * labels)))
    few = np.zeros(400)
    few[[199, 200, 201]] = 1.0
    found = fit_log_quadratic(x, few, np.zeros(1), np.eye(1), 1.0)
    assert found.effective == pytest.approx(3.0, rel=1e-3)


# --- from the tolerance of a fit to the lowest one ------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_line_is_followed_to_zero(k):
    squares = np.array([1.0, 0.5, 0.25, 0.125])
    weights = _at_zero(squares, k)
    assert weights @ (3.0 - 7.0 * squares) == pytest.approx(3.0)
    assert (weights[k + 1 :] == 0.0).all()
    _, intercept = np.polyfit(squares[: k + 1], np.sin(9.0 * squares[: k + 1]), 1)
    assert weights @ np.sin(9.0 * squares) == pytest.approx(intercept)


def test_mode_at_the_edge():
    problem = skewed_prior(0.2)
    found = mode_of(problem, search(problem, 5000, 4))
    assert 0.0 <= problem.parameters(found.u[None])["mu"][0] < 0.05


@pytest.mark.slow
def test_a_bent_peak_that_no_simulation_comes_close_to():
    # For every tolerance the mode is where the sheet is closest to the data, at a distance of 1. A quadratic
    # in a window as wide as the peak is off by some forty of its standard errors.
    found = [bent(seed, 5000) for seed in range(8)]
    assert np.median([np.abs(gap / se).max() for gap, se in found]) < 5.0
    # Two of ninety searches end beside the mode: the probability of two of eight is 0.01.
    assert np.sort([np.abs(gap).max() for gap, _ in found])[-2] < 0.1


@pytest.mark.slow
def test_normal_in_ten_dimensions_at_its_tolerance():
    x = np.linspace(-0.5, 0.5, 10)

    def simulator(rng, t):
        return rng.normal(t, math.sqrt(0.1))

    problem = SimulatorProblem({"t": (stats.norm(0.0, math.sqrt(0.1)), 10)}, simulator, x)
    found = mode_of(problem, search(problem, 10_000, 6))
    gap = problem.parameters(found.u[None])["t"][0] - x * 0.1 / (0.2 + found.tolerance**2)
    # not quite free of bias: the fit has 66 terms
    assert np.mean(np.square(gap / found.se)) < 3.0


def test_impossible_parameters_are_left_out():
    problem = skewed_prior()
    history = search(problem, 2000, 12)

    def parameters(u):
        mu = problem.parameters(u)["mu"]
        return {"mu": np.where(mu > 3.0, np.nan, mu)}

    found = estimate_mode(history, parameters, problem.log_prior)
    assert 0.0 < parameters(found.u[None])["mu"][0] < 3.0
