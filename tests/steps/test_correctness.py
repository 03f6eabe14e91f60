"""Posteriors of RacingMetropolis against closed forms."""

import functools

import numpy as np
import pymc as pm
import pytest

from grouped_runs import QUIET, estimates, flat
from scipy import stats

import amc_pymc as amc

from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.metropolis import RANDOM_WALK, SURROGATE


def sample(model, step, draws, tune=1_000, seeds=(1, 2), chains=2):
    """Draws of several runs as so many chains: posterior and sample_stats."""
    runs = []
    with model:
        for seed in seeds:
            runs.append(
                pm.sample(draws, tune=tune, step=step, chains=chains, random_seed=seed, **QUIET)
            )
    return runs


def assert_agree(runs, references):
    """Largest |z| over means and sds within a Bonferroni bound at a level of 1e-3.

    ``references`` maps names to (means and sds, their standard errors).
    """
    z = {}
    for name, (truth, error) in references.items():
        found, mcse = estimates(np.concatenate([flat(run, name) for run in runs]))
        z[name] = (found - truth) / np.hypot(mcse, error)
    every = np.concatenate(list(z.values()))
    assert np.all(np.isfinite(every))
    bound = stats.norm.isf(0.5e-3 / every.size)
    assert np.abs(every).max() < bound, {k: np.round(v, 1) for k, v in z.items()}


def exact(means, sds):
    truth = np.concatenate([np.atleast_1d(means), np.atleast_1d(sds)]).astype(float)
    return truth, np.zeros_like(truth)


def stat(runs, name):
    return np.concatenate([run.sample_stats[name].values for run in runs])


# --- closed forms ---------------------------------------------------------------------------------


class NormalGamma:
    """y ~ N(mu, 1/tau), mu | tau ~ N(1, 1/(2 tau)), tau ~ Gamma(3, 2): conjugate."""

    def __init__(self, n_rows, potential=False, second=0):
        rng = np.random.default_rng(n_rows)
        self.y = rng.normal(2.0, 1.5, size=n_rows)
        k, m, a, b = 2.0, 1.0, 3.0, 2.0
        parts = [self.y]
        with pm.Model() as self.model:
            tau = pm.Gamma("tau", a, b)
            mu = pm.Normal("mu", m, tau=k * tau)
            pm.Normal("y", mu, tau=tau, observed=self.y)
            if second:
                parts.append(rng.normal(2.5, 1.0, size=second))
                pm.Normal("y2", mu, tau=tau, observed=parts[-1])
            if potential:
                # a Gamma(1 + n/20, n/10) prior more, strong enough to be seen
                extra = n_rows / 20
                pm.Potential("pull", extra * pm.math.log(tau) - 2 * extra * tau)
                a, b = a + extra, b + 2 * extra
        every = np.concatenate(parts)
        n = every.size
        self.k = k + n
        self.m = (k * m + every.sum()) / self.k
        self.a = a + n / 2
        self.b = b + 0.5 * (
            np.sum((every - every.mean()) ** 2) + k * n / (k + n) * (every.mean() - m) ** 2
        )

    @property
    def references(self):
        tau = stats.gamma(self.a, scale=1 / self.b)
        mu = stats.t(2 * self.a, self.m, np.sqrt(self.b / (self.a * self.k)))
        return {"tau": exact(tau.mean(), tau.std()), "mu": exact(mu.mean(), mu.std())}


@functools.cache
def normal_gamma(n_rows, **kwargs):
    return NormalGamma(n_rows, **kwargs)


@pytest.mark.slow
def test_a_mean_of_a_hundred_thousand_rows():
    """The control variate is exact here; precision 1/100 + N."""
    n_rows = 100_000
    y = np.random.default_rng(1).normal(2.0, 1.0, size=n_rows)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=y)
    precision = 0.01 + n_rows
    runs = sample(model, amc.RacingMetropolis(model=model), 4_000, tune=300)
    assert_agree(runs, {"mu": exact(y.sum() / precision, precision**-0.5)})
    assert stat(runs, "race_rows").mean() < 200


@pytest.mark.parametrize("kind", [RANDOM_WALK, SURROGATE], ids=["random walk", "surrogate"])
def test_each_kind_of_moves_has_the_closed_form(kind, monkeypatch):
    monkeypatch.setattr(metropolis, "proposal_weights", lambda jumps: np.eye(2)[kind])
    target = normal_gamma(20_000)
    step = amc.RacingMetropolis(model=target.model, transitions_per_draw=2)
    runs = sample(target.model, step, 2_500, tune=500, seeds=(1,))
    assert_agree(runs, target.references)
    assert stat(runs, "race_rows").mean() < 1_500 * 2


def test_exact_races_are_plain_metropolis_hastings():
    target = normal_gamma(1_000)
    step = amc.RacingMetropolis(model=target.model, race="normal", audits=50)
    step = step.replace(race=amc.ExactRace())
    runs = sample(target.model, step, 2_500, tune=500, seeds=(1,))
    assert_agree(runs, target.references)
    assert np.all(stat(runs, "race_rows") == 1_000)
    assert np.all(stat(runs, "race_delta") == 0)
    assert stat(runs, "race_wrong").sum() == 0
    assert stat(runs, "race_audited").sum() == 100


@pytest.mark.slow
def test_a_potential_and_a_shorter_observed_variable_enter_exactly():
    target = normal_gamma(20_000, potential=True, second=3_000)
    plain = normal_gamma(20_000)
    shift = target.references["tau"][0][0] - plain.references["tau"][0][0]
    assert abs(shift) > 4 * plain.references["tau"][0][1]
    shift = target.references["mu"][0][0] - plain.references["mu"][0][0]
    assert abs(shift) > 4 * plain.references["mu"][0][1]
    step = amc.RacingMetropolis(model=target.model, transitions_per_draw=2)
    assert step.prepared.densities.n_units == 20_000
    assert_agree(sample(target.model, step, 1_200, tune=300, seeds=(1,)), target.references)


@pytest.mark.slow
def test_nuts_moves_one_variable_and_races_the_other(compiled_by_pytensor):
    """The control variate expands in tau too, which NUTS has moved since."""
    target = normal_gamma(5_000)
    model = target.model
    with model:
        steps = [
            amc.RacingMetropolis([model["mu"]], transitions_per_draw=2),
            pm.NUTS([model["tau"]]),
        ]
    runs = sample(model, steps, 800, tune=400, seeds=(3,), chains=2)
    assert_agree(runs, target.references)
