"""Graphs that are interpreted."""

import math

from decimal import Decimal, localcontext

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.compile.builders import OpFromGraph
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.math import variadic_add

import amc_pymc as amc

from amc_pymc.reading import extract_rows
from amc_pymc.reading.graphs import INTERPRETED, interpreted_function
from tests.reading.zoo_rows import RowCounter

try:
    from pytensor.conditional.op import ifelse
except ModuleNotFoundError:  # the PyTensor of PyMC 6.3
    from pytensor.ifelse import ifelse

X = pt.vector("x")


@pytest.mark.parametrize(("n", "plain"), [(300, True), (100_001, False)])
def test_few_rows_are_evaluated_without_rewriting(n, plain):
    """Rewriting computes equal terms once."""

    def logp(y, mu):
        return RowCounter()(y - mu) + RowCounter()(y - mu)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=np.zeros(n))
    RowCounter.seen.clear()
    extract_rows(model)
    assert len(RowCounter.seen) == (3 + 3 * 4) * (1 + plain)  # of all rows, and of some


@pytest.mark.parametrize("plain", [False, True])
def test_wide_sums_and_products(plain):
    """NumPy's functions take at most 32 arrays, and as many results; PyTensor refuses others."""
    terms = [X * c for c in range(1, 41)]
    graphs = [pt.add(*terms), pt.mul(*(1.0 / t for t in terms)), variadic_add(*terms).sum()]
    total, product, everything = interpreted_function([X], graphs, plain=plain)([0.5, 2.0])
    np.testing.assert_allclose(total, [410.0, 1640.0])
    np.testing.assert_allclose(product, np.array([2.0, 0.5]) ** 40 / math.factorial(40))
    assert everything == pytest.approx(2050.0)


def test_plain_functions_evaluate_what_pytensor_does():
    y, shared = pt.matrix("y"), pytensor.shared(np.arange(3.0))
    sums, everything = pt.exp(X) @ y + shared, pt.stack([X.sum(), y.max(), X[0] + 1])
    graphs = [sums, everything, X[::2], shared, pt.linalg.inv(y @ y.T), sums]
    values = np.array([1.0, 2.0]), np.arange(6.0).reshape(2, 3)
    wanted = pytensor.function([X, y], graphs, mode=INTERPRETED)(*values)
    plain = interpreted_function([X, y], graphs, plain=True)
    for _ in range(2):
        for a, b in zip(plain(*values), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    shared.set_value(np.ones(3))
    np.testing.assert_allclose(plain(*values)[0], wanted[0] - np.arange(3.0) + 1.0)
    assert interpreted_function([X], X.shape[0], plain=True)([4, 5]) == 2


def test_plain_functions_change_nothing_that_is_given():
    x, shared = np.arange(3.0), pytensor.shared(np.arange(3.0))
    f = interpreted_function([X], [X, X[1:], shared, shared[:2]], plain=True)
    for value in f(x):
        value += 1.0
    np.testing.assert_array_equal(x, np.arange(3.0))
    np.testing.assert_array_equal(shared.get_value(), np.arange(3.0))


def test_plain_functions_leave_conditions_and_loops_to_pytensor():
    lazy = ifelse(X[0] > 0.0, X.sum(), X.max())
    total = pytensor.scan(lambda a, b: a + b, [X], [np.float64(0.0)], return_updates=False)
    f = interpreted_function([X], [lazy, total[-1]], plain=True)
    assert f([1.0, 2.0]) == [3.0, 3.0]


@pytest.fixture(params=["plain", "inner"])
def far(request):
    """A model whose logistic likelihood underflows at the initial point unless it is rewritten."""
    x = np.r_[-900.0, np.linspace(-2.0, 2.0, 300)]
    with pm.Model() as model:
        eta = pm.Normal("b", 0.0, 1.0, initval=1.0) * x
        if request.param == "inner":
            eta = OpFromGraph([X], [1.0 * X])(eta)
        pm.Bernoulli("y", p=pm.math.sigmoid(eta), observed=(x < 0.0).astype(int))
    return model, x


def test_rows_that_underflow(far):
    """They are compared as PyTensor would compute them, so that an error in them is seen.

    Inner graphs, which PyTensor rewrites in any case, must not lead to a comparison with what underflows.
    """
    model, x = far
    rows = extract_rows(model)
    point, index = np.array([1.0]), np.arange(x.size)
    eta = np.where(x < 0.0, x, -x)
    plain, stable = (
        interpreted_function(*rows.graph(), plain=plain)(point, index, *rows.arrays)
        for plain in (True, False)
    )
    assert not np.isfinite(plain).all()
    np.testing.assert_allclose(stable, -np.logaddexp(0.0, -eta))


@pytest.mark.slow
def test_a_step_that_starts_where_rows_underflow(far):
    """The sum of rows and rest is compared with what PyTensor would compute."""
    model, _ = far
    with model:
        step = amc.RacingMetropolis(progressbar=False)
    assert step.prepared.fit.mean[0] < 0.5


def test_stable_functions_take_arrays():
    """PyTensor evaluates these two one number at a time, a thousand times slower."""
    x = pt.vector("x")
    f = interpreted_function([x], [pt.softplus(x), pt.log1mexp(-abs(x))])
    kinds = {type(getattr(n.op, "scalar_op", n.op)) for n in f.maker.fgraph.toposort()}
    assert not kinds & {Softplus, Log1mexp}
    values = np.array([-np.inf, -800.0, -40.0, -0.5, -1e-9, 0.0, 1e-9, 0.7, 20.0, 35.0, 800.0])
    with np.errstate(divide="ignore"):
        soft, log = f(values)
    np.testing.assert_allclose(soft, np.logaddexp(0.0, values), rtol=1e-15)
    with localcontext(prec=60, traps=[]):
        exact = [float((1 - (-abs(Decimal(v))).exp()).ln()) for v in values.tolist()]
    np.testing.assert_allclose(log, exact, rtol=1e-14)
