"""Shapes of a model's variables."""

import numpy as np
import pymc as pm
import pytest

from amc_pymc.reading.particles.model_terms import rv_shapes


def known():
    pm.LKJCholeskyCov("chol", 1.0, n=3, sd_dist=pm.Exponential.dist(1.0))
    pm.Dirichlet("share", np.ones((2, 4)))
    pm.Normal("b", pm.HalfNormal("sd"), shape=(3, 2))


def unknown():
    """The length is that of data, which may be replaced."""
    x = pm.Data("x", np.zeros(5))
    pm.Gamma("scales", 1.0, 1.0, shape=(x.shape[0], 2))
    pm.HalfNormal("sd")


@pytest.mark.parametrize("write", [known, unknown])
def test_shapes_are_those_of_pymc(write):
    with pm.Model() as model:
        write()
    wanted = {name: tuple(map(int, shape)) for name, shape in model.eval_rv_shapes().items()}
    assert (write is unknown) == any(None in rv.type.shape for rv in model.free_RVs)
    found = rv_shapes(model)
    assert found == wanted
    assert all(type(n) is int for shape in found.values() for n in shape)
