"""Names of PyMC and PyTensor that are not public: each check says what breaks if a new version moves one."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest


def shapes_of_draws():
    """``particles.prior``: many draws of a random variable at once."""
    node = pm.Normal.dist(np.zeros(3), 1.0, shape=(2, 3)).owner
    _, size, *parameters = node.inputs
    return [int(n.eval()) for n in node.op._infer_shape(size, parameters)] == [2, 3]


def rewrites_by_name():
    """``scalars``: the stable form of a likelihood, in which logistic functions do not underflow."""
    from amc_pymc.reading.graphs import stabilised

    graph = stabilised(pt.log(pt.sigmoid(pt.scalar("x"))))
    return "Softplus" in str(pytensor.dprint(graph, file="str"))


CHECKS = [
    shapes_of_draws,
    rewrites_by_name,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_is_where_it_was(check):
    assert check(), f"a new version has moved what is behind {check.__doc__}"
