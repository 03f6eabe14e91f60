"""Compiled densities are kept for the last few models, and made anew where a model has changed."""

import numpy as np
import pymc as pm

from amc_pymc.evidence.model import compiled_particles


def model_with_data():
    with pm.Model() as model:
        y = pm.Data("y", [1.0, 2.0])
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("likelihood", mu, 1.0, observed=y)
    return model


def likelihood(model):
    return compiled_particles(model)[0].values(np.zeros((1, 1)))[1, 0]


def test_a_model_is_compiled_once():
    model = model_with_data()
    first, _ = compiled_particles(model)
    assert compiled_particles(model)[0] is first
    assert compiled_particles(model_with_data())[0] is not first


def test_changes_are_noticed():
    model = model_with_data()
    first = likelihood(model)
    with model:
        pm.set_data({"y": [1.0, 2.0, 3.0]})
    second = likelihood(model)
    np.testing.assert_allclose(second - first, -0.5 * 9.0 - 0.5 * np.log(2.0 * np.pi))
    with model:
        pm.Potential("more", -2.5 - model["mu"] ** 2)
    np.testing.assert_allclose(likelihood(model) - second, -2.5)


def test_few_are_kept():
    """The last four."""
    models = [model_with_data() for _ in range(5)]
    found = [compiled_particles(model)[0] for model in models]
    again = [compiled_particles(model)[0] for model in models[::-1]]
    kept = [a is b for a, b in zip(again, found[::-1], strict=True)]
    assert kept == [True] * 4 + [False]
