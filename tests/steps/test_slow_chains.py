"""Chains that mix slowly say so, and those that mix well say nothing."""

import contextlib
import warnings

from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import amc_pymc as amc

from amc_pymc.flags import flags_of_bits
from amc_pymc.tall.refresh import log_surface
from amc_pymc.tall.samplers.fit import log_weights
from models.priors import EXAMPLES

GROUP = np.arange(2_000) % 20


def effects(centred, wide=False):
    """Twenty effects of a hundred rows each; a determinant of them has no scalar form."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd if centred else 1, shape=20) * (1 if centred else sd)
        pm.Normal("y", a + u[GROUP], 1.0, observed=rng.normal(rng.normal(0, 0.5, 20)[GROUP], 1.0))
        if wide:
            v = model["u"]
            pm.Potential("wide", -0.1 * pm.math.log(pt.linalg.det(pt.eye(20) + pt.outer(v, v))))
    return model


@pytest.mark.parametrize(
    ("args", "name"),
    [
        pytest.param([False, True], "slow_chain", marks=pytest.mark.slow),
        ([False], ""),
        ([True], ""),
    ],
    ids=["non-centred, unknown prior", "non-centred", "centred"],
)
def test_slow_chains_are_flagged(run, args, name):
    model = effects(*args)
    kwargs = {"tune": 1_000, "draws": 1_000, "keep_warning_stat": True}
    beforehand = contextlib.nullcontext()
    if name == "slow_chain":  # the step says so, too
        beforehand = pytest.warns(UserWarning, match="of independent moves would be accepted")
    with beforehand:
        step = amc.RacingMetropolis(model=model, marginalize=None)
    stats = run(model, [step], **kwargs)["sample_stats"]
    for bits in stats["race_flags"].values[:, -1]:
        assert name in flags_of_bits(bits) if name else flags_of_bits(bits) == []
    warned = [w.message for w in stats["warning"].values.ravel() if w]
    assert len(warned) >= 2 if name else not warned


@pytest.mark.parametrize(("start", "names"), [(None, []), ({"mu": 5.0}, ["start_replaced"])])
def test_a_start_that_is_not_used_is_flagged(normal, normal_step, run, start, names):
    """The model's own start is replaced as well, but nobody chose it."""
    idata = run(normal, normal_step, initvals=start, chains=1)
    assert abs(idata.posterior["mu"].values - 0.3).max() < 1.0
    assert flags_of_bits(idata.sample_stats["race_flags"].values[0, -1]) == names


def test_a_poor_expansion_is_flagged_before_sampling():
    """Two-parameter item response, of which each person informs a product of unknown quantities."""
    example = EXAMPLES["item_response"]
    with example.model(example.simulate(2_000, 1)):
        with pytest.warns(UserWarning, match="of independent moves would be accepted") as caught:
            step = amc.RacingMetropolis()
        assert len(caught) == 1
        with pytest.warns(UserWarning, match="of independent moves would be accepted"):
            forecast = amc.racing_forecast()
    assert step.prepared.forecast.acceptance < 0.05
    assert not forecast.pays
    assert [f.name for f in effects_step(centred=True).prepared.flags] == []


def effects_step(centred):
    with effects(centred):
        return amc.RacingMetropolis()


def logistic(n_rows, n_coefficients):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n_rows, n_coefficients))
    p = 1.0 / (1.0 + np.exp(-X @ rng.normal(0.0, 0.4, n_coefficients)))
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0, shape=n_coefficients)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=(rng.random(n_rows) < p).astype(int))
    return model


def test_weights_of_draws_are_posterior_over_surrogate():
    """Up to a constant, where both densities are computed at the same draws."""
    model = logistic(400, 20)
    prepared = amc.RacingMetropolis(model=model, progressbar=False).prepared
    found, surface = log_weights(prepared, 60), prepared.surface
    draws = surface.draws[np.linspace(0, len(surface.draws) - 1, 60).astype(int)]
    logp, refresh = model.compile_logp(), surface.moves()._replace(freedom=np.full(1, np.inf))
    expected = [logp({"b": x}) - log_surface(x, refresh) for x in draws]
    assert np.std(expected) > 0.3  # else the test says little
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], atol=1e-8)


def test_draws_at_which_rows_are_impossible_have_no_weight():
    """The rate of a Poisson variable is negative at one of the draws."""
    y = np.random.default_rng(1).poisson(3.0, size=500)
    with pm.Model():
        b = pm.Normal("b", 3.0, 1.0)
        pm.Poisson("y", b, observed=y)
        prepared = amc.RacingMetropolis(progressbar=False).prepared
    draws = prepared.surface.draws.copy()
    draws[0] = -1.0
    impossible = replace(prepared, surface=replace(prepared.surface, draws=draws))
    first, *others = log_weights(impossible, len(draws))
    assert first == -np.inf
    assert np.isfinite(others).all()


@pytest.mark.parametrize(
    ("n_rows", "number", "transitions", "poor"),
    [(300, 60, 8, True), (2_000, 40, 2, False), (20_000, 5, 1, False)],
)
def test_more_transitions_where_moves_are_rejected(n_rows, number, transitions, poor):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = amc.RacingMetropolis(model=logistic(n_rows, number), progressbar=False)
    assert step.sampler.transitions == transitions
    assert [f.name for f in step.prepared.flags] == poor * ["poor_expansion"]
    assert len(caught) == poor
