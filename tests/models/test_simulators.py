"""Every example: its PyMC model, its NumPy simulator and its cube are the same model."""

import functools
import math

import numpy as np
import pymc as pm
import pytest

from pymc.distributions.simulator import SimulatorRV
from pytensor.compile.mode import Mode
from scipy.stats import ks_2samp, spearmanr

from models.gaussian_mixtures import bivariate_mixture, univariate_mixture
from models.masked_digits import masked_digits
from models.point_simulators import gaussian_known
from models.process_simulators import heston, lotka_volterra
from models.simulator_suite import EXAMPLES

BUILDERS = EXAMPLES | {
    "univariate_mixture": univariate_mixture,
    "bivariate_mixture": bivariate_mixture,
    "gaussian_1": functools.partial(gaussian_known, 1),
    "lotka_volterra_unit": functools.partial(lotka_volterra, prior="unit"),
    "heston": functools.partial(heston, 200),
    "masked_digits_5": masked_digits,
    "masked_digits_2": functools.partial(masked_digits, 2, image=17, seen="right"),
}
DRAWS = 500
every_example = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n.startswith("masked") else n for n in BUILDERS],
)


@functools.cache
def example_of(name):
    return BUILDERS[name]()


@functools.cache
def prior_predictive(name):
    """Parameters (DRAWS, D) and summaries (DRAWS, S) from PyMC."""
    example = example_of(name)
    with example.model() as model:
        # Plain Python compiles in no time.
        data = pm.sample_prior_predictive(
            DRAWS, random_seed=11, compile_kwargs={"mode": Mode(linker="py", optimizer=None)}
        )
    assert [rv.name for rv in model.free_RVs] == list(example.names)
    prior = {name: data.prior[name].values[0] for name in example.names}
    (observed,) = data.observed_data.data_vars
    np.testing.assert_array_equal(data.observed_data[observed], example.observed)
    return example.columns(prior), data.prior_predictive[observed].values[0]


def assert_same_distribution(a, b, shares=1e-5):
    """Columns of both have the same shares of NaN and the same distributions."""
    for x, y in zip(a.T, b.T, strict=True):
        failed = np.isnan(x).mean(), np.isnan(y).mean()
        spread = np.sqrt(max(failed[1] * (1.0 - failed[1]), 1e-3) * (1 / len(x) + 1 / len(y)))
        assert abs(failed[0] - failed[1]) < 4.0 * spread
        assert ks_2samp(x[~np.isnan(x)], y[~np.isnan(y)], method="asymp").pvalue > shares


@every_example
def test_prior_of_the_model_is_the_cube(name):
    theta, _ = prior_predictive(name)
    sample = example_of(name).prior_sample(np.random.default_rng(12), 4000)
    assert sample.shape == (4000, example_of(name).n_dim)
    assert_same_distribution(theta, sample)
    if theta.shape[1] > 1:
        ours, theirs = (spearmanr(x).statistic for x in (sample, theta))
        np.testing.assert_allclose(ours, theirs, atol=4.5 / np.sqrt(DRAWS))


@every_example
def test_simulator_of_the_model_is_simulate(name):
    """The same distribution of summaries, and the same dependence on each parameter."""
    theta, summaries = prior_predictive(name)
    rng, example = np.random.default_rng(13), example_of(name)
    again = example.simulate(rng, np.repeat(theta, 4, axis=0))
    assert_same_distribution(summaries, again)
    single = again[::4]
    for i in range(theta.shape[1]):
        for j in range(summaries.shape[1]):
            pairs = [
                spearmanr(theta[:, i], x[:, j], nan_policy="omit").statistic
                for x in (summaries, single)
            ]
            assert abs(pairs[0] - pairs[1]) < 4.5 * np.sqrt(2.0 / DRAWS)


@every_example
def test_a_batch_is_one_call(name):
    """PyMC's function with a leading axis gives what `simulate` gives with the same generator."""
    example = example_of(name)
    (rv,) = example.model().observed_RVs
    assert isinstance(rv.owner.op, SimulatorRV)
    theta = example.prior_sample(np.random.default_rng(14), 7)
    parameters, start = [], 0
    for shape in example.shapes.values():
        part = theta[:, start : start + math.prod(shape)]
        parameters.append(part[:, None, :] if shape else part)
        start += part.shape[1]
    size = (7, len(example.observed))
    batch = rv.owner.op.rng_fn(np.random.default_rng(15), *parameters, size)
    expected = example.simulate(np.random.default_rng(15), theta)
    np.testing.assert_array_equal(batch, expected)
    one = rv.owner.op.rng_fn(np.random.default_rng(16), *(p[0] for p in parameters), size[1:])
    np.testing.assert_array_equal(one, example.simulate(np.random.default_rng(16), theta[:1])[0])


@every_example
def test_tolerance_is_the_models(name):
    """PyMC's log-kernel is minus half the squared distance in units of the tolerance."""
    example = example_of(name)
    (rv,) = example.model().observed_RVs
    x = example.simulate(
        np.random.default_rng(17), example.prior_sample(np.random.default_rng(17), 1)
    )
    epsilon = rv.owner.op.epsilon.eval()
    kernel = np.sum(rv.owner.op.distance(epsilon, example.observed, x[0]))
    expected = -0.5 * (example.distance(x)[0] / example.epsilon) ** 2
    np.testing.assert_allclose(kernel, expected, rtol=1e-12)
