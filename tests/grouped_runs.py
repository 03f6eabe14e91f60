"""Runs of grouped models, and how far they are from the truth in standard errors."""

from __future__ import annotations

import functools
import logging

import arviz as az
import numpy as np
import pymc as pm

from scipy import stats

import amc_pymc as amc

from models.grouped import EXAMPLES

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}


def example(name, n_rows, n_groups, centred=True, seed=1):
    """Data and model of one of :data:`models.grouped.EXAMPLES`."""
    return _example(name, n_rows, n_groups, centred, seed)


def example_step(name, n_rows, n_groups, centred=True, seed=1):
    """A step that samples all of it."""
    return _example_step(name, n_rows, n_groups, centred, seed)


@functools.cache
def _example(name, n_rows, n_groups, centred, seed):
    data = EXAMPLES[name].simulate(n_rows, n_groups, seed=seed)
    return data, EXAMPLES[name].build(data, centred=centred)


@functools.cache
def _example_step(name, n_rows, n_groups, centred, seed):
    _, model = example(name, n_rows, n_groups, centred, seed)
    return racing(model)


def racing(model, vars=None, **kwargs):
    """A quiet ``amc.RacingMetropolis``."""
    logging.getLogger("amc_pymc").setLevel(logging.WARNING)
    return amc.RacingMetropolis(vars, model=model, **{"progressbar": False, **kwargs})


def sample(model, step, draws=1_000, tune=500, *, seed=1, chains=2, **kwargs):
    """A quiet run."""
    kwargs = {**QUIET, **kwargs}
    return pm.sample(
        draws, tune=tune, step=step, model=model, chains=chains, random_seed=seed, **kwargs
    )


def flat(idata, name):
    """Draws (chains, draws, size)."""
    values = np.asarray(idata.posterior[name].values, float)
    return values.reshape(*values.shape[:2], -1)


def estimates(values):
    """Means, then standard deviations, of (chains, draws, size), and the MCSEs of both."""
    mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1), ddof=1)
    errors = [
        [float(az.mcse(values[:, :, k], method=how)) for k in range(values.shape[2])]
        for how in ("mean", "sd")
    ]
    return np.concatenate([mean, sd]), np.concatenate(errors)


def z_scores(values, mean, sd, ess=np.inf):
    """Of means and standard deviations of draws (chains, draws, size).

    ``ess`` is the effective sample size behind the references, infinite if they are exact.
    """
    mean, sd = np.atleast_1d(mean), np.atleast_1d(sd)
    truth = np.concatenate([mean, sd])
    error = np.concatenate([sd / np.sqrt(ess), sd / np.sqrt(2.0 * np.asarray(ess))])
    found, mcse = estimates(values)
    return (found - truth) / np.hypot(mcse, error)


def assert_agree(idata, references, pick=slice(None)):
    """Largest |z| within a Bonferroni bound at a level of 1e-3, and every R-hat close to one.

    ``references`` maps names to means and standard deviations, and maybe effective sample sizes;
    of variables with more than 40 elements some are compared.
    """
    z = {}
    for name, (mean, sd, *ess) in references.items():
        values = flat(idata, name)
        some = np.arange(values.shape[2])
        if some.size > 40:
            some = some[:: some.size // 40]
        mean, sd = np.atleast_1d(mean), np.atleast_1d(sd)
        z[name] = z_scores(values[:, :, some], mean[some], sd[some], *ess)
        assert max(float(az.rhat(values[:, :, k])) for k in some) < 1.03, name
    every = np.concatenate(list(z.values()))
    bound = stats.norm.isf(0.5e-3 / every.size)
    shown = {k: np.round(v, 1) for k, v in z.items()}
    assert np.all(np.isfinite(every)), shown
    assert np.abs(every).max() < bound, shown
    return z


def frozen(figures):
    """References by name from means, standard deviations and sample sizes by element."""
    out: dict = {}
    for label, row in figures.items():
        out.setdefault(label.split("[")[0], []).append(row)
    return {name: tuple(np.array(rows).T) for name, rows in out.items()}
