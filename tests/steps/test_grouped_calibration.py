"""Simulation-based calibration of grouped models (Talts et al. 2018, arXiv 1804.06788).

Parameters from the prior, data given them: the rank of the truth among posterior draws is uniform.
"""

import copy
import dataclasses

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing
from scipy import special, stats

from amc_pymc.steps import preparation, racing_metropolis

N_ROWS, N_GROUPS, N_SETS, N_DRAWS, THIN = 300, 30, 200, 99, 10
GROUP = np.random.default_rng(1).permutation(np.arange(N_ROWS) % N_GROUPS)
X = np.column_stack([np.ones(N_ROWS), np.random.default_rng(2).normal(size=N_ROWS)])
#: Local effects that are ranked.
SOME = (0, 11, 29)


def simulate(family, rng):
    """Parameters, by value variable, and outcomes."""
    beta, sd = rng.normal(0.0, 1.0, size=2), abs(rng.normal(0.0, 1.0))
    u = sd * rng.standard_normal(N_GROUPS)
    eta = X @ beta + u[GROUP]
    if family == "poisson":
        y = rng.poisson(np.exp(np.minimum(eta, 15.0)))
    else:
        y = (rng.random(N_ROWS) < special.expit(eta)).astype(int)
    return {"beta": beta, "sd_log__": np.log(sd), "u": u}, y


def build(family, y):
    with pm.Model() as model:
        beta, sd = pm.Normal("beta", 0.0, 1.0, shape=2), pm.HalfNormal("sd", 1.0)
        u = pm.Normal("u", 0.0, sd, shape=N_GROUPS)
        eta = X @ beta + u[GROUP]
        if family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


def with_outcomes(densities, column, y):
    """The same model with other outcomes; nothing is compiled again."""
    groups = densities.groups
    rows = groups.rows.copy()
    rows[column, :N_ROWS] = y[groups.order]  # columns are side by side, with a few rows more
    new = copy.copy(densities)
    for name in ("rewards",):
        new.__dict__.pop(name, None)
    new.groups = dataclasses.replace(groups, rows=rows)
    new.modes, new.factors = np.zeros_like(densities.modes), np.ones_like(densities.factors)
    new.settled, new.approximation_error = False, 0.0
    return new


def ranks_of(step, model, truth, rng):
    """Ranks of the parameters and of some local effects, and the share of moves accepted."""
    tune = 40
    point, below, accepted = model.initial_point(), None, []
    step.setup_chain(rng, tune, N_DRAWS)
    for k in range(tune + N_DRAWS):
        if k == tune:
            step.stop_tuning()
            step.tune = False
        point, (stat,) = step.step(point)
        if k >= tune:
            found = np.concatenate([np.ravel(point[n] < truth[n]) for n in truth])
            below = found.astype(int) if below is None else below + found
            accepted.append(stat["accept"])
    keep = [0, 1, 2, *(3 + g for g in SOME)]
    return below[keep], np.mean(accepted)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_ranks_of_the_truth_are_uniform(family, monkeypatch):
    rng = np.random.default_rng(20161)
    truth, y = simulate(family, rng)
    while not 0 < y.sum() < 200 or np.unique(y).size != (2 if family == "logistic" else 4):
        truth, y = simulate(family, rng)  # the first only serves to compile
    model = build(family, y)
    first = racing(model, transitions_per_draw=THIN, audits=0)
    densities = first.prepared.densities
    order = densities.groups.order
    columns = densities.groups.rows[:, :N_ROWS]
    (column,) = np.flatnonzero((columns == y[order]).all(axis=1))
    current = {}
    turn = first.turn
    monkeypatch.setattr(racing_metropolis, "chosen_turns", lambda *_: [turn])
    monkeypatch.setattr(preparation, "grouped_densities", lambda *_: current["densities"])
    ranks, accepted = [], []
    for _ in range(N_SETS):
        truth, y = simulate(family, rng)
        current["densities"] = with_outcomes(densities, column, y)
        step = racing(model, transitions_per_draw=THIN, audits=0)
        found, share = ranks_of(step, model, truth, rng)
        ranks.append(found)
        accepted.append(share)
    print("acceptance", np.quantile(accepted, [0.0, 0.1, 0.5]))
    names = ["beta[0]", "beta[1]", "sd", *(f"u[{g}]" for g in SOME)]
    p = {}
    for name, r in zip(names, np.transpose(ranks)):
        counts = np.bincount(r * 10 // (N_DRAWS + 1), minlength=10)
        uniform = (r + rng.random(r.size)) / (N_DRAWS + 1)
        p[name] = stats.chisquare(counts).pvalue, stats.kstest(uniform, "uniform").pvalue
    print(p)
    assert min(min(pair) for pair in p.values()) > 1e-3 / len(p), p
