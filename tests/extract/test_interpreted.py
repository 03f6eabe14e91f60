"""Modes in which graphs are interpreted."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pytensor.compile.builders import OpFromGraph

import amc_pymc as amc

from amc_pymc.extract import extract_rows
from amc_pymc.extract.interpreted import (
    interpreted_mode,
    modes_for_few,
    rewritten_mode,
    unrewritten_mode,
)

X = pt.vector("x")


def test_few_rows_are_evaluated_without_rewriting_first():
    assert modes_for_few([pt.exp(X)], 1_000) == (unrewritten_mode(), rewritten_mode())
    assert modes_for_few([pt.exp(X)], 1_000_000) == (interpreted_mode(), rewritten_mode())


def test_inner_graphs_are_rewritten():
    """PyTensor would compile the graph of an operation that is not inlined."""
    inner = OpFromGraph([X], [pt.exp(X)])(X)
    assert modes_for_few([inner + 1.0], 10) == (interpreted_mode(), rewritten_mode())


@pytest.fixture
def far():
    """A model whose logistic likelihood underflows at the initial point unless it is rewritten."""
    x = np.r_[-900.0, np.linspace(-2.0, 2.0, 300)]
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0, initval=1.0)
        pm.Bernoulli("y", p=pm.math.sigmoid(b * x), observed=(x < 0.0).astype(int))
    return model, x


def test_rows_that_underflow(far):
    """They are compared as PyTensor would compute them, so that an error in them is seen."""
    model, x = far
    rows = extract_rows(model)
    point, index = np.array([1.0]), np.arange(x.size)
    eta = np.where(x < 0.0, x, -x)
    assert not np.isfinite(rows.compile(unrewritten_mode())(point, index)).all()
    found = rows.compile(rewritten_mode())(point, index)
    np.testing.assert_allclose(found, -np.logaddexp(0.0, -eta))


def test_a_step_that_starts_where_rows_underflow(far):
    """The sum of rows and rest is compared with what PyTensor would compute."""
    model, _ = far
    with model:
        step = amc.RacingMetropolis(progressbar=False)
    assert step.prepared.fit.mean[0] < 0.5
