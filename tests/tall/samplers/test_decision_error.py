"""Decisions of races against those that all rows make, on the rows of real models.

Half of the audited decisions are put within one standard error of the first batch from their
threshold, where nearly all errors happen; the others have the threshold a chain would give them.
"""

import functools
import math

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from compiled_calls import called_often
from plain_races import without_control_variate

import amc_pymc as amc

from amc_pymc.results import clopper_pearson
from amc_pymc.tall.decisions import call_total, residuals
from amc_pymc.tall.racing import DECIDED, race
from amc_pymc.tall.surrogate import surrogate_change

DELTA = 0.05
_race = called_often(race)


@functools.cache
def logistic_model(n_rows=3_000):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, 3))
    y = rng.random(n_rows) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.2] + 1.0))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2, shape=3)
        pm.Bernoulli("y", logit_p=a + X @ b, observed=y.astype(int))
    return model


@functools.cache
def step_of(proxy):
    step = amc.RacingMetropolis(model=logistic_model(), race="normal")
    if not proxy:
        return without_control_variate(step)
    return step.replace(prepared=replace(step.prepared, exact_rows=np.empty(0, np.int64)))


@functools.cache
def pairs(count):
    """Points and proposals (count, 2, D) of a chain at stationarity."""
    step = step_of(True)
    fit = step.prepared.fit
    rng = np.random.default_rng(7)
    active = fit.coordinates
    out = np.empty((count, 2, fit.mean.size))
    factor = fit.factor(active)
    for k in range(count):
        out[k, 0] = fit.draw(rng)
        jump = factor @ rng.standard_normal(active.size)
        out[k, 1] = out[k, 0] + 2.38 / math.sqrt(active.size) * jump
    return out


@functools.cache
def wrong_decisions(proxy, near, bound_factor=1.0, count=6_000):
    """Verdicts of races that differ from those of all rows."""
    step = step_of(proxy)
    densities, _, population, rule, _ = step.sampler.races
    rule = rule._replace(sd_factor=bound_factor * rule.sd_factor)
    surrogate = step.prepared.surrogate
    n, m = population.n_raced, rule.sizes[0]
    everything = np.arange(n)
    rng = np.random.default_rng([20161, near])
    wrong = 0
    for points in pairs(count // 4):
        rewards = residuals(densities.rewards, points, surrogate.centre, everything)[1]
        error = np.std(rewards) * math.sqrt((n - m) / ((n - 1) * m))
        for _ in range(4):
            if near:
                bias = -rewards.mean() + rng.uniform(-1.0, 1.0) * error
            else:
                log_prior = call_total(densities.rest, points[1])
                log_prior -= call_total(densities.rest, points[0])
                bias = log_prior - math.log(rng.random()) + surrogate_change(points, surrogate)
                bias /= n
            result = _race(
                densities.rewards,
                points,
                surrogate.centre,
                np.array([0.0, bias]),
                population,
                rule,
                rng,
            )
            assert result.status == DECIDED
            wrong += (result.winner == 1) != (rewards.mean() + bias > 0)
    return wrong, count


@pytest.mark.slow
@pytest.mark.parametrize("proxy", [True, False], ids=["proxy", "no proxy"])
def test_fewer_than_delta_of_twelve_thousand_decisions_are_wrong(proxy):
    near, count = wrong_decisions(proxy, near=True)
    natural, _ = wrong_decisions(proxy, near=False)
    assert clopper_pearson(near, count)[1] <= DELTA
    assert clopper_pearson(near + natural, 2 * count)[1] <= DELTA
    assert near > 0


@pytest.mark.parametrize("proxy", [True, False], ids=["proxy", "no proxy"])
def test_half_the_bound_breaks_the_promise(proxy):
    """The same measurement, so that it is known to see a broken bound."""
    near, count = wrong_decisions(proxy, near=True, bound_factor=0.5)
    assert clopper_pearson(near, count)[0] > DELTA
