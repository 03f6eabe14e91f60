"""Every problem with known evidence: its PyMC model and its NumPy functions are the same model."""

import functools
import math

import numpy as np
import pymc as pm
import pytest

from pymc.model.transform.conditioning import remove_value_transforms
from scipy.special import logsumexp
from scipy.stats import qmc

from amc_pymc.reading.graphs import INTERPRETED
from models.beta_binomial import beta_binomial
from models.contamination import contamination
from models.evidence_problem import EvidenceProblem
from models.evidence_suite import CLASSIC, PROBLEMS, suite
from models.funnel import funnel
from models.ising import ising
from models.linear_regression import linear_regression, linear_regression_unknown_variance
from models.logistic_regression import logistic_regression
from models.shape_problems import correlated_gaussian, eggbox, log_gamma, shells
from models.spike_and_slab import spike_and_slab
from models.two_modes import two_modes

SUITE = suite()
CONTINUOUS = [name for name, problem in SUITE.items() if problem.prior_transform is not None]


def on_its_own_scale(problem):
    """The model without transforms of its free variables."""
    return remove_value_transforms(problem.build())


def compiled(model, *groups):
    """Function of a point that returns a log density for each group of variables."""
    densities = [model.logp(vars=variables, jacobian=False) for variables in groups]
    # Without stabilising rewrites, the logarithm of one minus an inverse logit is minus infinity.
    return model.compile_fn(densities, mode=INTERPRETED, on_unused_input="ignore")


@functools.cache
def shapes(name):
    """Names and shapes of a model's variables, and whether they are simplices."""
    return [
        (v.name, tuple(v.shape.eval()), v.owner.op.name == "dirichlet")
        for v in SUITE[name].build().free_RVs
    ]


def to_point(problem, parameters):
    """The values of variables by name, from a parameter vector in the problems' convention."""
    point, start = {}, 0
    for name, shape, simplex in shapes(problem.name):
        size = math.prod(shape[:-1]) * (shape[-1] - 1) if simplex else math.prod(shape)
        values = parameters[start : start + size]
        if simplex:
            values = values.reshape(*shape[:-1], shape[-1] - 1)
            values = np.append(values, 1.0 - values.sum(axis=-1, keepdims=True), axis=-1)
        point[name] = values.reshape(shape)
        start += size
    assert start == len(parameters)
    return point


def uniforms(problem, n=5, seed=1):
    return np.random.default_rng(seed).uniform(0.02, 0.98, (n, problem.n_dim))


def test_suite():
    assert list(SUITE) == list(PROBLEMS)
    for name, problem in SUITE.items():
        assert isinstance(problem, EvidenceProblem)
        assert problem.name == name and problem.source
        assert 0.0 <= problem.error < (5e-4 if name in CLASSIC else 0.025)
    values = [problem.log_evidence for problem in SUITE.values()]
    assert min(values) < -1000.0 < 0.0 < max(values)
    assert {problem.easy for problem in SUITE.values()} == {True, False}


def each(names):
    """Slow for models of long series, whose graphs are unrolled."""
    long = ("earthquakes", "garch")
    marked = [pytest.param(n, marks=pytest.mark.slow) if n in long else n for n in names]
    return pytest.mark.parametrize("name", marked)


@each(SUITE)
def test_models_are_fresh_and_of_the_stated_size(name):
    problem = SUITE[name]
    first, second = problem.build(), problem.build()
    assert isinstance(first, pm.Model) and first is not second
    assert len(first.observed_RVs) + len(first.potentials) == 1
    sizes = [np.size(value) for value in first.initial_point().values()]
    assert sum(sizes) == problem.n_dim
    assert (problem.prior_transform is None) == bool(first.discrete_value_vars)


# Points where a prior draw hardly ever is, and where most of the evidence comes from.
BUMPS = 0.01 * np.sin(np.arange(30.0))
HEAVY = {
    "spike_and_slab_20": [0.031 + BUMPS[:20], 10.0 * BUMPS[:20]],
    "shells_10": [np.append(5.5, BUMPS[:9]), np.append(-1.5, BUMPS[:9]), 0.1 * BUMPS[:10]],
    "shells_30": [np.append(5.5, BUMPS[:29]), np.append(-1.6, BUMPS[:29])],
    "two_modes_10": [2.0 + BUMPS[:10], -2.0 + BUMPS[:10], BUMPS[:10]],
    "galaxies_2": [np.array([0.1, 10.0, 22.0, 9.0])],
    "galaxies_3": [np.array([0.88, 0.04, 21.4, 33.0, 9.7, 4.5])],
    "galaxies_3_unequal": [np.array([0.08, 0.88, 9.7, 21.4, 33.0, 0.4, 5.0, 0.9])],
    "log_gamma_10": [10.0 + BUMPS[:10], np.append([-10.5, -9.0], 10.0 + BUMPS[:8])],
}


@each(CONTINUOUS)
def test_numpy_and_pymc_agree(name):
    """The likelihoods are equal, and the prior's density is what the transform's volume says."""
    problem = SUITE[name]
    model = on_its_own_scale(problem)
    densities = compiled(model, model.observed_RVs + model.potentials, model.free_RVs)
    for parameters in HEAVY.get(name, []):
        found = problem.log_likelihood(parameters)
        likelihood, _ = densities(to_point(problem, parameters))
        np.testing.assert_allclose(found, likelihood, rtol=1e-10, atol=1e-10)
    for u in uniforms(problem):
        parameters = problem.prior_transform(u)
        assert parameters.shape == (problem.n_dim,)
        found = problem.log_likelihood(parameters)
        assert isinstance(found, float)
        point = to_point(problem, parameters)
        likelihood, prior = densities(point)
        np.testing.assert_allclose(found, likelihood, rtol=1e-10, atol=1e-10)
        step = 1e-6 * np.eye(problem.n_dim)
        columns = [
            (problem.prior_transform(u + e) - problem.prior_transform(u - e)) / 2e-6 for e in step
        ]
        sign, log_volume = np.linalg.slogdet(np.array(columns))
        assert sign != 0.0
        np.testing.assert_allclose(prior, -log_volume, rtol=1e-6, atol=1e-5)


SMALL = [
    beta_binomial(3, 7, a=2.0, b=1.5), linear_regression(10, 2),
    linear_regression_unknown_variance(10, 2), logistic_regression(12, 2),
    correlated_gaussian(2, rho=0.5), funnel(3, y=(0.5, -1.0, 2.0)), two_modes(2),
    eggbox(1, power=2.0), shells(2, width=0.3), log_gamma(2),
    spike_and_slab(2, spike=0.05, weight=3.0),
]  # fmt: skip


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
def test_evidence_is_the_average_likelihood_over_the_prior(problem):
    replicates = []
    for seed in range(8):
        cube = qmc.Sobol(problem.n_dim, scramble=True, seed=seed).random_base2(10)
        logs = [problem.log_likelihood(problem.prior_transform(u)) for u in cube]
        replicates.append(logsumexp(logs) - math.log(len(logs)))
    ratios = np.exp(np.array(replicates) - problem.log_evidence)
    error = ratios.std(ddof=1) / math.sqrt(len(ratios))
    assert error < 0.05
    assert abs(ratios.mean() - 1.0) < 4.0 * error + 4.0 * problem.error


def test_evidence_of_discrete_models_is_the_sum_over_their_states():
    problem = ising(2, 3, coupling=-0.7, field=0.4)
    model = on_its_own_scale(problem)
    log_joint = compiled(model, None)
    states = (np.arange(64)[:, None] >> np.arange(6)) & 1
    logs = [log_joint({"up": state.reshape(2, 3)}) for state in states]
    np.testing.assert_allclose(logsumexp(logs), problem.log_evidence, rtol=1e-10)

    problem = contamination((0.3, 5.0, 1.1), share=0.3, sigmas=(1.0, 4.0), scale=3.0)
    model = on_its_own_scale(problem)
    log_joint = compiled(model, None)
    grid = np.linspace(-15.0, 15.0, 121)
    logs = [
        log_joint({"m": m, "outlier": (code >> np.arange(3)) & 1})
        for m in grid
        for code in range(8)
    ]
    found = logsumexp(logs) + math.log(grid[1] - grid[0])
    # The prior beyond five standard deviations, under a likelihood that falls as well, is lost.
    np.testing.assert_allclose(found, problem.log_evidence, rtol=1e-7)
