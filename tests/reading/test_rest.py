"""The log density of what is not raced, against PyTensor's own derivatives."""

from functools import reduce
from operator import mul

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from amc_pymc.reading.densities import ModelDensities, RestDensities
from amc_pymc.reading.graphs import INTERPRETED, FlatLayout, initial_point_of
from amc_pymc.tall.decisions import call_total
from tests.reading.test_packed_rows import bivariate


def of_vector(write, *sizes, discrete=()):
    """The rest of a model whose log density is a function of vectors v0, v1, ..."""
    names = [f"v{k}" for k in range(len(sizes))]
    kinds = tuple("int64" if k in discrete else "float64" for k in range(len(sizes)))
    vectors = [pt.tensor(n, dtype=d, shape=(m,)) for n, d, m in zip(names, kinds, sizes)]
    layout = FlatLayout(tuple(names), tuple((n,) for n in sizes), kinds)
    return RestDensities([write(*vectors)], vectors, layout)


def check(rest, x, scalar=True):
    """Values, gradients and Hessians are those of PyTensor."""
    graph, symbol = rest.rest_graph, rest.symbol
    slope, v = (
        pt.zeros_like(symbol) + pt.grad(graph, symbol, disconnected_inputs="ignore"),
        pt.vector("v"),
    )
    product = pt.zeros_like(symbol) + pt.grad(
        pt.dot(slope, v), symbol, disconnected_inputs="ignore"
    )
    by_pytensor = pytensor.function(
        [symbol, v], [graph, slope, product], mode=INTERPRETED, on_unused_input="ignore"
    )
    value, slopes, hessian = map(np.array, zip(*(by_pytensor(x, e) for e in np.eye(x.size))))
    assert (rest.prior_terms is not None) == scalar
    assert call_total(rest.rest, x) == pytest.approx(value[0], rel=1e-12)
    found, gradient = rest.rest_value_and_gradient(x)
    assert found == pytest.approx(value[0], rel=1e-12)
    np.testing.assert_allclose(gradient, slopes[0], rtol=1e-10, atol=1e-12)
    some = np.arange(1, x.size)
    hessian[0], hessian[:, 0] = 0.0, 0.0
    np.testing.assert_allclose(rest.rest_hessian(x, some), hessian, rtol=1e-9, atol=1e-11)


SCALE = np.array([1.0, 2.0, 4.0])
DENSITIES = {
    "a normal": lambda a, b: pt.sum(-0.5 * (a / pytensor.shared(SCALE)) ** 2) + pt.log1p(pt.exp(b[0])),
    "products": lambda a, b: pt.sum(-0.5 * (a / SCALE) ** 2) + a[0] * pt.exp(b[0]),
    "a wide sum": lambda a, b: -(pt.sum(a) + pt.sum(b) - 1.0) ** 2 + pt.sum(pt.exp(b)),
    "a wide function": lambda a, b: pt.sum((b - pt.logsumexp(b)) * a[0]) - pt.sum(a**2),
    "rows of data": lambda a, b: -pt.sum(pt.exp(np.arange(24.0).reshape(4, 6) / 9 @ b)) - pt.sum(a**2),
    "an entry read twice": lambda a, b: a[0] * pt.exp(a[0] * b[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", DENSITIES)
def test_derivatives(name):
    rest = of_vector(DENSITIES[name], 3, 6)
    check(rest, np.array([0.3, -1.0, 0.8, 0.7, -0.2, 0.5, 0.1, -0.4, 0.2]))


def test_without_a_scalar_form_pytensor_computes_it():
    rest = of_vector(lambda a: pt.sum(pt.sort(a)[:2] ** 2) + pt.sum(a), 3)
    check(rest, np.array([0.3, -1.0, 2.0]), scalar=False)


@pytest.mark.slow
def test_derivatives_that_take_too_long_are_left_to_pytensor():
    rest = of_vector(lambda a: reduce(mul, [a[k] for k in range(80)]) - pt.sum(a**2), 80)
    check(rest, np.linspace(0.97, 1.04, 80))
    assert rest.prior_terms.curves is None


def test_derivatives_by_discrete_variables_are_zero():
    """Also where a variable chooses an entry, or a number that depends on nothing else."""
    p = np.array([0.2, 0.5, 0.3])

    def write(a, k):
        log_p = pm.logp(pm.Categorical.dist(p), k[0])
        return log_p + a[pt.switch(k[0] > 1, 0, 1)] ** 2 + k[0] * a[0]

    rest = of_vector(write, 2, 1, discrete=(1,))
    for k, log_p in zip((-1, 0, 1, 2, 3), (-np.inf, *np.log(p), -np.inf)):
        chosen = int(k <= 1)
        x, expected = np.array([0.5, -0.7, k]), np.array([float(k), 0.0, 0.0])
        assert call_total(rest.rest, x) == pytest.approx(log_p + x[chosen] ** 2 + k * 0.5)
        expected[chosen] += 2.0 * x[chosen]
        np.testing.assert_allclose(rest.rest_value_and_gradient(x)[1], expected)
        hessian = np.zeros((3, 3))
        hessian[chosen, chosen] = 2.0
        np.testing.assert_allclose(rest.rest_hessian(x, np.arange(3)), hessian)


@pytest.mark.parametrize(("p", "expected"), [(0.3, np.log([0.7, 0.3])), (1.3, [-np.inf] * 2)])
def test_checks_of_data(p, expected):
    """The condition of a check depends on data alone, as with ``pm.Data`` in a prior."""
    rest = of_vector(
        lambda k: pm.logp(pm.Bernoulli.dist(pytensor.shared(np.array(p))), k[0]), 1, discrete=(0,)
    )
    found = [call_total(rest.rest, np.array([state])) for state in (0.0, 1.0)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_priors_of_a_model():
    """A log density with a Jacobian and a Cholesky factor, as PyMC computes it."""
    model = bivariate()
    densities = ModelDensities(model)
    x = densities.layout.ravel(initial_point_of(model)) + 0.2
    rest = model.logp(vars=[v for v in model.basic_RVs if v.name != "y"])
    fn = pytensor.function(model.value_vars, rest, mode=INTERPRETED)
    point = densities.layout.unravel(x)
    expected = float(fn(*(point[v.name] for v in model.value_vars)))
    assert call_total(densities.rest, x) == pytest.approx(expected, rel=1e-12)
    check(densities, x)
