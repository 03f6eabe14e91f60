"""Transforms of many points at once are those of one point after the other."""

import numpy as np
import pymc as pm
import pytest

from pymc.distributions import transforms

from amc_pymc.reading.particles.prior import layout_of, unconstrain


def model_and_draws(n=7):
    """Transforms of vectors, of bounds that are variables, of matrices, and none."""
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Dirichlet("p", np.ones(3), shape=(2, 3))
        pm.Uniform("u", 0.0, sigma, shape=2)
        pm.Normal("cuts", 0.0, 1.0, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.Normal("x", 0.0, 1.0)
    rng = np.random.default_rng(1)
    sigma = np.abs(rng.normal(size=n))
    draws = {
        "sigma": sigma,
        "p": rng.dirichlet(np.ones(3), (n, 2)),
        "u": sigma[:, None] * rng.random((n, 2)),
        "cuts": np.sort(rng.normal(size=(n, 3)), axis=1),
        "x": rng.normal(size=n),
    }
    return model, layout_of(model), draws


def singly(model, layout, draws):
    n = len(draws["x"])
    rows = [
        unconstrain(model, layout, {k: v[i : i + 1] for k, v in draws.items()}) for i in range(n)
    ]
    return np.concatenate(rows)


def test_all_at_once():
    model, layout, draws = model_and_draws()
    x = unconstrain(model, layout, draws)
    assert x.shape == (7, layout.size)
    np.testing.assert_allclose(x, singly(model, layout, draws), rtol=1e-12)
    np.testing.assert_allclose(x[:, layout.slices["sigma_log__"]][:, 0], np.log(draws["sigma"]))


def test_wrong_shapes():
    model, layout, draws = model_and_draws()
    with pytest.raises(ValueError, match=r"draws of sigma are missing"):
        unconstrain(model, layout, {k: v for k, v in draws.items() if k != "sigma"})
    with pytest.raises(ValueError, match=r"draws of 'x' must have shape \(7, ...\) with 0 more"):
        unconstrain(model, layout, draws | {"x": np.zeros((7, 2))})
