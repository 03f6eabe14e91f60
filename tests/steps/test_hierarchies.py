"""Posteriors of hyperparameters and coefficients that are Gaussian given them, by quadrature."""

import functools

import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import logsumexp

import amc_pymc as amc

#: Counts of rows with a mean of exp(LEVEL) and more or less at each of few levels.
LEVELS, ROWS, LEVEL = 4, 40, -0.7
GROUP = np.repeat(np.arange(LEVELS), ROWS)
EFFECT = np.array([0.5, -0.2, 0.1, 0.9])
Y = np.random.default_rng(3).poisson(np.exp(LEVEL + EFFECT[GROUP]))
TOTAL = np.bincount(GROUP, Y)
ONE_HOT = np.eye(LEVELS)[GROUP]


def counts(effect):
    pm.Poisson("y", pm.math.exp(LEVEL + effect), observed=Y)


def not_centred():
    counts(pm.Deterministic("u", pm.HalfNormal("sd", 1.0) * pm.Normal("z", shape=LEVELS))[GROUP])


def centred():
    counts(pm.Normal("u", 0.0, pm.HalfNormal("sd", 1.0), shape=LEVELS)[GROUP])


def horseshoe():
    sd, lam = pm.HalfCauchy("sd", 0.5), pm.HalfCauchy("lam", 1.0, shape=LEVELS)
    u = pm.Deterministic("u", sd * lam * pm.Normal("z", shape=LEVELS))
    counts(pm.math.dot(ONE_HOT, u))


def log_likelihood(u):
    """Of all levels (LEVELS, ...), at effects u."""
    with np.errstate(over="ignore"):
        return np.multiply.outer(TOTAL, u) - ROWS * np.exp(LEVEL + u)


#: Logarithms of the scale, and standard normal variables.
A, Z = np.linspace(-14.0, 5.0, 191), np.linspace(-7.0, 7.0, 281)


def independent_levels(log_prior, log_sd):
    """Log marginal likelihoods of A, and means (A,) of powers of the first effect, summed over log scales (A, B)."""
    log_p, powers = np.empty(A.size), np.empty((2, A.size))
    for k, row in enumerate(log_sd):
        u = np.exp(row)[:, None] * Z
        each = log_likelihood(u) + stats.norm.logpdf(Z) + log_prior[:, None]
        log_p[k] = logsumexp(each, axis=(1, 2)).sum()
        p = np.exp(each[0] - logsumexp(each[0]))
        powers[:, k] = [(p * u).sum(), (p * u**2).sum()]
    return log_p, powers


@functools.cache
def truth(build):
    """Means of log sd, its square, the first effect, and its square."""
    if build is horseshoe:
        b = np.linspace(-9.0, 11.0, 101)
        log_p, powers = independent_levels(stats.halfcauchy.logpdf(np.exp(b)) + b, A[:, None] + b)
    else:
        log_p, powers = independent_levels(np.zeros(1), A[:, None])
    prior = stats.halfcauchy(scale=0.5) if build is horseshoe else stats.halfnorm()
    log_p = log_p + prior.logpdf(np.exp(A)) + A
    p = np.exp(log_p - logsumexp(log_p))
    return np.array([p @ A, p @ A**2, *(powers @ p)])


@pytest.mark.parametrize(
    "build", [centred, horseshoe, pytest.param(not_centred, marks=pytest.mark.slow)]
)
def test_posteriors_are_those_of_quadrature(build, run):
    with pm.Model() as model:
        build()
        step = amc.RacingMetropolis(marginalize=None, transitions_per_draw=4, progressbar=False)
    surface = step.prepared.surface
    assert (surface.surface.outer >= 0).sum() >= 1  # hyperparameters, which have moves of their own
    idata = run(model, step, draws=2_500, tune=500, seed=11)
    a, u = np.log(idata.posterior["sd"].values), idata.posterior["u"].values[..., 0]
    values = np.stack([a, a**2, u, u**2]).reshape(4, 2 * 20, 125)
    means = values.mean(axis=-1)
    error = means.std(axis=1, ddof=1) / np.sqrt(means.shape[1])
    z = (means.mean(axis=1) - truth(build)) / error
    assert np.abs(z).max() < 4.0, (z, truth(build), error)
    acceptance = idata.sample_stats["accept"].mean()
    assert 0.5 < acceptance < 0.98  # the expansion is not exact
