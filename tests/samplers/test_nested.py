"""Moves of coefficients and hyperparameters together, against dense formulas."""

import copy
import functools
import math

import numpy as np
import pymc as pm
import pytest

from compiled_calls import called_often
from numba import njit
from scipy import optimize, stats
from scipy.stats import multivariate_normal as mvn

import amc_pymc as amc

from amc_pymc.first_class import first_class
from amc_pymc.racing import REWARDS, make_population
from amc_pymc.racing.rules import exact_rule
from amc_pymc.samplers.compiled import (
    GRADIENT,
    LOGP,
    Densities,
    Races,
    as_they_are,
    call_total,
    no_control,
)
from amc_pymc.samplers.counts import MetropolisCounts
from amc_pymc.samplers.logs import MoveLog
from amc_pymc.samplers.metropolis import run_draws
from amc_pymc.samplers.moves import NAMES, NESTED, Moves, Normal
from amc_pymc.samplers.nested import _FREEDOM, _WALKS, NestedFit, propose_nested
from amc_pymc.samplers.surrogate import no_surrogate
from amc_pymc.streams import stream_of

# --- a regression with known noise: Gaussian given hyperparameters ---------------------------------
# x = (mean, theta_0, log sd, theta_1, theta_2): theta_0 and theta_1 ~ N(mean, sd), theta_2 ~ N(0.5, 2).

PHI, THETA, BLOCK = np.array([0, 2]), np.array([1, 3, 4]), np.array([0, 0, 1])
N_ROWS = 12
_rng = np.random.default_rng(12)
X = _rng.normal(size=(N_ROWS, 3))
Y = X @ [1.0, 0.2, -0.4] + _rng.normal(size=N_ROWS)
H, B = X.T @ X, X.T @ Y
#: Prior of the hyperparameters, and a proposal that does not fit their posterior too well.
PHI_SD, PHI_MEAN = np.array([1.0, 0.6]), np.array([0.0, -0.5])
MODE, COVARIANCE = np.array([0.3, -0.4]), np.array([[0.4, 0.1], [0.1, 0.3]])
#: The same with theta_2 as psi, after the hyperparameters.
MODE_PSI = np.append(MODE, 0.2)
COVARIANCE_PSI = np.array([[0.4, 0.1, 0.1], [0.1, 0.3, 0.0], [0.1, 0.0, 0.2]])


@njit
def priors_of(x):
    return np.array([math.exp(-2.0 * x[2]), 0.25, x[0], 0.5])


@first_class(GRADIENT)
def priors(x):
    """Precisions, then means."""
    return priors_of(x)


@first_class(LOGP)
def log_prior(x):
    out = -0.5 * (x[0] / 1.0) ** 2 - 0.5 * ((x[2] + 0.5) / 0.6) ** 2
    for k in (1, 3):
        out += -0.5 * ((x[k] - x[0]) * math.exp(-x[2])) ** 2 - x[2]
    return out - 0.125 * (x[4] - 0.5) ** 2


@first_class(REWARDS)
def rewards(points, centre, rows):
    out = np.zeros((2, rows.size))
    for j in range(rows.size):
        n = rows[j]
        fits = np.zeros(2)
        for k in range(2):
            fits[k] = X[n, 0] * points[k, 1] + X[n, 1] * points[k, 3] + X[n, 2] * points[k, 4]
        out[1, j] = 0.5 * (Y[n] - fits[0]) ** 2 - 0.5 * (Y[n] - fits[1]) ** 2
    return out


class Prior:
    """The hyperparameters' role, as the step finds it in a model."""

    theta, phi, block, n_blocks, n_psi = THETA, PHI, BLOCK, 2, 0
    native = priors

    @staticmethod
    def evaluate(x):
        return priors_of(x)


class PriorPsi(Prior):
    """theta_2 is drawn together with the hyperparameters."""

    n_psi = 1


@njit
def propose_once(points, scale, nested, prior_of, rng):
    return propose_nested(points, scale, nested, prior_of, rng)


def fresh(n_psi=0):
    if n_psi:
        return NestedFit(PriorPsi(), H, B, MODE_PSI, COVARIANCE_PSI).compiled()
    return NestedFit(Prior(), H, B, MODE, COVARIANCE).compiled()


def memory():
    """An empty one."""
    return {k: v for k, v in fresh()._asdict().items() if k.startswith("known")}


def prior_given(phi):
    """Mean (3,) and covariance (3, 3) of the coefficients."""
    return np.array([phi[0], phi[0], 0.5]), np.diag([np.exp(2 * phi[1])] * 2 + [4.0])


def log_marginal(phi):
    """log p(phi, y), the coefficients integrated out."""
    mean, covariance = prior_given(phi)
    log_p = stats.norm.logpdf(phi, PHI_MEAN, PHI_SD).sum()
    return log_p + mvn.logpdf(Y, X @ mean, np.eye(N_ROWS) + X @ covariance @ X.T)


def conditional(phi):
    """Mean and covariance of the coefficients given hyperparameters and data, by conditioning."""
    mean, covariance = prior_given(phi)
    gain = covariance @ X.T @ np.linalg.inv(np.eye(N_ROWS) + X @ covariance @ X.T)
    return mean + gain @ (Y - X @ mean), covariance - gain @ X @ covariance


def log_posterior(x):
    """Up to a constant."""
    mean, covariance = prior_given(x[PHI])
    log_p = stats.norm.logpdf(x[PHI], PHI_MEAN, PHI_SD).sum()
    log_p += mvn.logpdf(x[THETA], mean, covariance)
    return log_p + stats.norm.logpdf(Y, X @ x[THETA]).sum()


def log_student(phi):
    return stats.multivariate_t.logpdf(phi, MODE, COVARIANCE, df=_FREEDOM)


def log_proposal_psi(x):
    """Of phi and psi, where theta_2 is psi."""
    outer = np.append(x[PHI], x[THETA[2]])
    return stats.multivariate_t.logpdf(outer, MODE_PSI, COVARIANCE_PSI, df=_FREEDOM)


def log_marginal_psi(x):
    """log p(phi, psi, y), the two other coefficients integrated out."""
    mean, covariance = conditional(x[PHI])
    psi = stats.norm.logpdf(x[THETA[2]], mean[2], np.sqrt(covariance[2, 2]))
    return log_marginal(x[PHI]) + psi


def inner_given_psi(x):
    """Mean (2,) and covariance (2, 2) of the two other coefficients, by conditioning."""
    mean, covariance = conditional(x[PHI])
    gain = covariance[:2, 2] / covariance[2, 2]
    inner = covariance[:2, :2] - np.outer(gain, covariance[2, :2])
    return mean[:2] + gain * (x[THETA[2]] - mean[2]), inner


def random_point(rng):
    """From far around the posterior."""
    x = np.empty(5)
    x[PHI] = MODE + rng.multivariate_normal(np.zeros(2), 2.0 * COVARIANCE)
    x[THETA] = rng.normal(0.0, 2.0, size=3)
    return x


def proposed(x, scale, rng, nested=None):
    """x', the log ratio of the proposals, and whether the hyperparameters made a random walk."""
    walks = copy.deepcopy(rng).random() < _WALKS
    points = np.stack([x, x])
    log_q = propose_once(points, scale, nested or fresh(), priors, rng)
    return points[1], log_q, walks


@pytest.mark.parametrize("scale", [0.4, 1.0])
def test_the_ratio_is_that_of_the_hyperparameters_marginal_posteriors(scale):
    """The posterior is the reference here, so the coefficients drop out of the acceptance ratio."""
    rng, kinds = np.random.default_rng(1), set()
    for _ in range(60):
        x = random_point(rng)
        x_new, log_q, walks = proposed(x, scale, rng)
        got = log_posterior(x_new) - log_posterior(x) + log_q
        expected = log_marginal(x_new[PHI]) - log_marginal(x[PHI])
        if not walks:
            expected += log_student(x[PHI]) - log_student(x_new[PHI])
        assert got == pytest.approx(expected, abs=1e-8)
        kinds.add(walks)
    assert kinds == {True, False}


@pytest.mark.parametrize("scale", [0.4, 1.0])
def test_the_ratio_where_a_coefficient_is_drawn_with_the_hyperparameters(scale):
    """Only the other coefficients drop out."""
    rng, kinds = np.random.default_rng(11), set()
    for _ in range(60):
        x = random_point(rng)
        x_new, log_q, walks = proposed(x, scale, rng, fresh(n_psi=1))
        got = log_posterior(x_new) - log_posterior(x) + log_q
        expected = log_marginal_psi(x_new) - log_marginal_psi(x)
        if not walks:
            expected += log_proposal_psi(x) - log_proposal_psi(x_new)
        assert got == pytest.approx(expected, abs=1e-8)
        kinds.add(walks)
    assert kinds == {True, False}


def test_what_is_proposed_where_a_coefficient_is_drawn_with_the_hyperparameters():
    rng = np.random.default_rng(12)
    x, nested = random_point(rng), fresh(n_psi=1)
    inner, outer = [], []
    for _ in range(4_000):
        x_new, _, walks = proposed(x, 1.0, rng, nested)
        mean, covariance = inner_given_psi(x_new)
        shift = x_new[THETA[:2]] - mean
        inner.append(shift @ np.linalg.solve(covariance, shift))
        if not walks:
            step = np.append(x_new[PHI], x_new[THETA[2]]) - MODE_PSI
            outer.append(step @ np.linalg.solve(COVARIANCE_PSI, step) / 3.0)
    assert stats.kstest(inner, stats.chi2(2).cdf).pvalue > 1e-3
    assert stats.kstest(outer, stats.f(3, _FREEDOM).cdf).pvalue > 1e-3


def test_what_is_proposed():
    """Hyperparameters from a Student t or a random walk, coefficients from their conditional."""
    rng = np.random.default_rng(2)
    x, nested = random_point(rng), fresh()
    every = [proposed(x, 1.0, rng, nested) for _ in range(6_000)]
    square, lengths = [], {True: [], False: []}
    inverse = np.linalg.inv(COVARIANCE)
    for x_new, _, walks in every:
        mean, covariance = conditional(x_new[PHI])
        square.append((x_new[THETA] - mean) @ np.linalg.solve(covariance, x_new[THETA] - mean))
        step = x_new[PHI] - (x[PHI] if walks else MODE)
        lengths[walks].append(step @ inverse @ step / 2.0)
    assert stats.kstest(square, stats.chi2(3).cdf).pvalue > 1e-3
    assert stats.kstest(lengths[False], stats.f(2, _FREEDOM).cdf).pvalue > 1e-3
    walk = stats.chi2(2, scale=2.38**2 / 4.0)
    assert stats.kstest(lengths[True], walk.cdf).pvalue > 1e-3
    share = len(lengths[True]) / len(every)
    assert abs(share - _WALKS) < 4 * math.sqrt(_WALKS * (1 - _WALKS) / len(every))


def test_a_partial_refresh_keeps_part_of_the_coefficients():
    """Standardised coefficients before and after have correlation sqrt(1 - scale^2)."""
    rng, scale = np.random.default_rng(3), 0.4
    kept = []
    for _ in range(400):
        x = random_point(rng)
        mean, covariance = conditional(x[PHI])
        factor = np.linalg.cholesky(np.linalg.inv(covariance))
        w = rng.standard_normal(3)
        x[THETA] = mean + np.linalg.solve(factor.T, w)
        x_new, *_ = proposed(x, scale, rng)
        mean, covariance = conditional(x_new[PHI])
        factor = np.linalg.cholesky(np.linalg.inv(covariance))
        kept.append((factor.T @ (x_new[THETA] - mean) - math.sqrt(1 - scale**2) * w) / scale)
    assert stats.kstest(np.ravel(kept), "norm").pvalue > 1e-3


def test_remembered_references_are_never_stale():
    """A chain that accepts and rejects at random proposes what one without a memory does."""
    rng, other, choices = (np.random.default_rng(seed) for seed in (4, 4, 5))
    nested, x = fresh(), random_point(choices)
    visited = [x]
    for _ in range(400):
        x_new, log_q, _ = proposed(x, 0.7, rng, nested)
        again, log_q_again, _ = proposed(x, 0.7, other)
        np.testing.assert_allclose(x_new, again, rtol=1e-12)
        assert log_q == pytest.approx(log_q_again, abs=1e-10)
        u = choices.random()
        if u < 0.4:
            x = x_new
        elif u < 0.6:  # another step has moved the coefficients
            x = x.copy()
            x[THETA] = choices.normal(size=3)
        elif u < 0.8:  # or one hyperparameter
            x = x.copy()
            x[PHI[choices.integers(2)]] += 0.1 * choices.normal()
        elif u < 0.9:
            x = visited[choices.integers(len(visited))]
        visited.append(x)


@pytest.mark.parametrize("log_sd", [-400.0, 400.0])
def test_a_hyperparameter_out_of_range_is_not_an_error(log_sd):
    """Precisions overflow or vanish there: such a move is rejected."""
    x = np.array([0.0, 0.1, -0.5, 0.2, 0.3])
    nested = NestedFit(Prior(), H, B, np.array([0.0, log_sd]), 1e-4 * np.eye(2)).compiled()
    rng, kinds = np.random.default_rng(6), set()
    for _ in range(40):
        fresh_rng = copy.deepcopy(rng)
        x_new, log_q, walks = proposed(x, 1.0, rng, nested)
        if walks:  # nothing of the moves before is left
            expected, *_ = proposed(x, 1.0, fresh_rng, nested._replace(**memory()))
            np.testing.assert_allclose(x_new, expected, rtol=1e-12)
        else:
            assert not call_total(log_prior, x_new) + log_q > -1e3
        kinds.add(walks)
    assert kinds == {True, False}


# --- chains ---------------------------------------------------------------------------------------


@functools.cache
def truth():
    """Posterior of (mean, log sd) on a grid: nodes (n, 2) and weights."""
    axes = [np.linspace(-3.5, 3.5, 71), np.linspace(-3.6, 2.2, 71)]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = np.array([log_marginal(phi) for phi in nodes])
    weights = np.exp(log_p - log_p.max())
    return nodes, weights / weights.sum()


@functools.cache
def true_moments():
    """Means and standard deviations of the coordinates of x."""
    nodes, weights = truth()
    parts = [conditional(phi) for phi in nodes[weights > 1e-12]]
    p = weights[weights > 1e-12]
    means, variances = (np.array(v) for v in zip(*((m, np.diag(c)) for m, c in parts)))
    mean, square = np.empty(5), np.empty(5)
    mean[PHI], square[PHI] = weights @ nodes, weights @ nodes**2
    mean[THETA], square[THETA] = p @ means, p @ (variances + means**2)
    return mean, np.sqrt(square - mean**2)


_run = called_often(run_draws)


def chain(scale, n, seed, n_psi=0):
    """Every 10th draw of a chain, and the share of moves accepted."""
    densities = Densities(rewards, log_prior, as_they_are, no_control, THETA, priors)
    races = Races(densities, no_surrogate(np.zeros(5)), make_population(N_ROWS), exact_rule(N_ROWS))
    weights, scales = np.zeros(len(NAMES)), np.ones(len(NAMES))
    weights[NESTED], scales[NESTED] = 1.0, scale
    normal = Normal(np.zeros(5), np.zeros((5, 5)), np.eye(5), np.eye(5))
    moves = Moves(weights, scales, np.arange(5), normal, np.eye(5), fresh(n_psi))
    rng, counts = np.random.default_rng(seed), MetropolisCounts.zeros(len(NAMES), n)
    points, log, out = np.zeros((2, 5)), MoveLog.empty(0, 5), np.empty((n, 5))
    stream = stream_of(rng)
    _run(0, 10, 10, points, races, moves, stream, log, stream, out, counts)
    return out[100:], counts.accepted[:, NESTED].sum() / counts.tries[:, NESTED].sum()


def z_scores(values, mean, sd):
    """Of means and variances of draws (n, D), with batches of 50 draws."""
    out = []
    for v in (values - mean, (values - mean) ** 2 - sd**2):
        batches = v[: len(v) // 50 * 50].reshape(-1, 50, v.shape[1]).mean(axis=1)
        out.append(batches.mean(axis=0) / (batches.std(axis=0, ddof=1) / np.sqrt(len(batches))))
    return np.concatenate(out)


@pytest.mark.parametrize(("scale", "n_psi"), [(0.4, 0), (1.0, 0), (0.7, 1)])
def test_a_long_chain_has_the_posterior(scale, n_psi):
    values, accepted = chain(scale, 5_100, seed=7, n_psi=n_psi)
    assert 0.2 < accepted < 0.9
    mean, sd = true_moments()
    assert np.abs(z_scores(values, mean, sd)).max() < 4
    nodes, weights = truth()
    for k, coordinate in enumerate(PHI):
        grid = np.unique(nodes[:, k])
        cdf = np.array([weights[nodes[:, k] <= g].sum() for g in grid])
        middle = 0.5 * (grid[1:] + grid[:-1])
        found = stats.kstest(
            values[::3, coordinate], functools.partial(np.interp, xp=middle, fp=cdf[:-1])
        )
        assert found.pvalue > 1e-3


# --- fitting --------------------------------------------------------------------------------------


def test_the_fit_finds_mode_and_covariance():
    """Against the marginal posterior of the hyperparameters, maximised and differentiated directly."""
    rng = np.random.default_rng(8)
    n_rows, size = 150, 8
    columns = rng.normal(size=(n_rows, size))
    truth = rng.normal(0.4, 0.7, size=size)
    y = columns @ truth + rng.normal(size=n_rows)
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0, 1), pm.HalfNormal("sd", 1)
        theta = pm.Normal("theta", mean, sd, shape=size)
        pm.Normal("y", columns @ theta, 1.0, observed=y)
    nested = amc.RacingMetropolis(model=model, progressbar=False).prepared.nested

    def objective(phi):
        covariance = np.eye(n_rows) + np.exp(2 * phi[1]) * columns @ columns.T
        log_p = mvn.logpdf(y, phi[0] * columns.sum(axis=1), covariance)
        log_p += stats.norm.logpdf(phi[0]) + stats.halfnorm.logpdf(np.exp(phi[1])) + phi[1]
        return -log_p

    best = optimize.minimize(objective, nested.mode, method="BFGS")
    assert nested.prior.phi.tolist() == [0, 1]
    sds = np.sqrt(np.diag(nested.covariance))
    # the fit stops within a tenth of a standard deviation
    assert np.all(np.abs(nested.mode - best.x) < 0.1 * sds)
    steps, curvature = 0.05 * np.eye(2), np.empty((2, 2))
    for a in range(2):
        for b in range(2):
            curvature[a, b] = sum(
                i * j * objective(best.x + i * steps[a] + j * steps[b])
                for i in (1, -1)
                for j in (1, -1)
            ) / (4 * 0.05**2)
    np.testing.assert_allclose(nested.covariance, np.linalg.inv(curvature), rtol=0.1, atol=0.002)
    np.testing.assert_allclose(nested.precision, columns.T @ columns, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(nested.linear, columns.T @ y, rtol=1e-6)
