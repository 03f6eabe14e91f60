"""Priors of pm.CustomDist whose density is not that of their draws."""

import math

import pymc as pm
import pytensor.tensor as pt
import pytest

import amc_pymc as amc

from amc_pymc.evidence.model import prior_flags


def normal_logp(value, mu):
    return -0.5 * (value - mu) ** 2 - 0.5 * math.log(2.0 * math.pi)


def poisson_logp(value, mu):
    return value * pt.log(mu) - mu - pt.gammaln(value + 1.0)


def drawn(shift=0.0, sd=1.0):
    return lambda mu, rng=None, size=None: rng.normal(mu + shift, sd, size)


def counted(factor):
    return lambda mu, rng=None, size=None: rng.poisson(factor * mu, size)


def twice(value, mu):
    return normal_logp(value, mu) + math.log(2.0)


@pytest.mark.parametrize(
    ("logp", "random", "settings", "integral"),
    [
        (normal_logp, drawn(), {}, None),
        (normal_logp, drawn(), {"shape": 5}, None),
        (normal_logp, drawn(3.0, 0.2), {}, 0.0),
        (normal_logp, drawn(0.0, 1.5), {"shape": 5}, 1.0),
        (twice, drawn(), {}, 2.0),
        (poisson_logp, counted(1.0), {"dtype": "int64"}, None),
        (poisson_logp, counted(2.0), {"dtype": "int64"}, 0.3),
    ],
)
def test_densities_and_draws(logp, random, settings, integral):
    with pm.Model() as model:
        mu = pm.Gamma("mu", 20.0, 5.0)  # the check is given other variables
        pm.CustomDist("m", mu, logp=logp, random=random, **settings)
    flags = prior_flags(model)
    assert [f.name for f in flags] == ([] if integral is None else ["prior_mismatch"])
    if integral is not None:
        assert "'m' integrates to" in flags[0].happened
        assert float(flags[0].happened.split()[-4 - 1]) == pytest.approx(integral, abs=0.3)


def test_a_result_has_the_flag():
    with pm.Model() as model:
        m = pm.CustomDist("m", 0.0, logp=normal_logp, random=drawn(3.0, 0.2))
        pm.Normal("y", m, 1.0, observed=[0.3, 1.2, -0.4, 0.9])
    with pytest.warns(UserWarning, match="'m' integrates to 0"):
        tree = amc.estimate_evidence(model, random_seed=1, progressbar=False)
    assert tree["evidence"].attrs["flag_names"] == "prior_mismatch"
