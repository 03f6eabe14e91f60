"""Elements of PyTensor graphs as scalar expressions, with numbers and data as indices."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.compile.mode import Mode

from amc_pymc.engine import Graph
from amc_pymc.reading.graphs import stabilised
from amc_pymc.reading.scalars import Columns, ElementReader, NotScalar

PYTHON = Mode(linker="py", optimizer="fast_compile")
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
N = 25
VALUES = {
    "v": np.random.default_rng(1).normal(size=6),
    "m": np.random.default_rng(2).normal(size=(4, 3)),
    "s": np.array(0.7),
}
TABLE = np.random.default_rng(3).integers(0, 6, (4, 3))
NUMBERS = np.random.default_rng(4).normal(size=(5, 6))


def inputs():
    """Parameters v (6,), m (4, 3), s; data of a row: whole numbers i, j, and d."""
    v = pt.tensor("v", shape=(6,), dtype="float64")
    m = pt.tensor("m", shape=(4, 3), dtype="float64")
    return v, m, pt.dscalar("s"), pt.lscalar("i"), pt.lscalar("j"), pt.dscalar("d")


def read(build, low=0):
    """Values of an expression at all rows, as an expression and by PyTensor."""
    rng = np.random.default_rng(5)
    data = [rng.integers(low, 4, N), rng.integers(low, 3, N), rng.normal(size=N)]
    variables = inputs()
    out = build(*variables)
    graph = Graph()
    columns = Columns(graph, "column")
    starts, leaves = {"v": 0, "m": 6, "s": 18}, {}
    for x in variables[:3]:

        def leaf(index, x=x):
            at = graph.const(0)
            for k, n in zip(index, x.type.shape):
                at = graph.make("add", graph.make("mul", at, graph.const(n)), k)
            place = graph.make("add", graph.const(starts[x.name]), at)
            return graph.make("entry", place, value="eta")

        leaves[x] = leaf
    for k, x in enumerate(variables[3:]):
        leaves[x] = lambda index, k=k: columns.node(("data", k), lambda: data[k])
    node = ElementReader(graph, leaves, columns).element(stabilised(out))
    eta = np.concatenate([np.ravel(VALUES[k]) for k in ("v", "m", "s")])
    (found,) = graph.evaluate([node], row=columns.arrays, eta=eta)
    f = pytensor.function(list(variables), out, mode=PYTHON, on_unused_input="ignore")
    expected = [f(*VALUES.values(), *row) for row in zip(*data)]
    return np.broadcast_to(np.asarray(found, float), N), np.array(expected, float)


GRAPHS = {
    "entry": lambda v, m, s, i, j, d: v[i],
    "entry of a matrix": lambda v, m, s, i, j, d: m[i, j],
    "row of a matrix": lambda v, m, s, i, j, d: m[i].sum(),
    "column of a matrix": lambda v, m, s, i, j, d: m[:, j].prod(),
    "slice": lambda v, m, s, i, j, d: v[1:5][i],
    "arithmetic of indices": lambda v, m, s, i, j, d: v[(i * 3 + j) % 6],
    "table": lambda v, m, s, i, j, d: v[pt.constant(TABLE)[i, j]],
    "numbers from a table": lambda v, m, s, i, j, d: pt.constant(NUMBERS)[i, j] * s,
    "row of a table": lambda v, m, s, i, j, d: pt.dot(pt.constant(NUMBERS)[i], v),
    "join": lambda v, m, s, i, j, d: pt.concatenate([[0.0], v, m[0]])[2 * i + j],
    "join along the last axis": lambda v, m, s, i, j, d: pt.concatenate([m, m**2], axis=1)[i, j + 2],
    "cases": lambda v, m, s, i, j, d: pt.cumsum(v)[i],
    "cumulative product": lambda v, m, s, i, j, d: pt.cumprod(m, axis=1)[i, j],
    "reshape": lambda v, m, s, i, j, d: v.reshape((2, 3))[i // 2, j],
    "flatten": lambda v, m, s, i, j, d: m.T.flatten()[i + 4 * j],
    "set": lambda v, m, s, i, j, d: pt.set_subtensor(v[1:3], m[0, :2])[i],
    "add to": lambda v, m, s, i, j, d: pt.inc_subtensor(v[::2], s)[i],
    "set in reverse": lambda v, m, s, i, j, d: pt.set_subtensor(m[1::-1, -1], v[:2])[i, j],
    "add to a mask and a row": lambda v, m, s, i, j, d: pt.inc_subtensor(
        m[np.array([True, False, True, True])], pt.outer(v[:3], v[3:]))[i, j],
    "set by indices": lambda v, m, s, i, j, d: pt.set_subtensor(v[[3, 0]], m[1, :2])[i],
    "softmax": lambda v, m, s, i, j, d: pt.special.softmax(m * d, axis=1)[i, j],
    "log sum of exponentials": lambda v, m, s, i, j, d: pt.logsumexp(m * 300.0, axis=1)[i],
    "log of a sum of two": lambda v, m, s, i, j, d: pt.logaddexp(m * 300.0, 200.0 * d)[i, j],
    "largest": lambda v, m, s, i, j, d: pt.max(m, axis=0)[j] + pt.min(v),
    "mean and variance": lambda v, m, s, i, j, d: v.mean() + m.var(axis=1)[i],
    "all and any": lambda v, m, s, i, j, d: pt.switch(pt.all(v > -9) & pt.any(m > d), s, d),
    "matrix product": lambda v, m, s, i, j, d: pt.dot(m.T, m)[j, 0],
    "diagonal": lambda v, m, s, i, j, d: pt.diagonal(pt.dot(m, m.T))[i],
    "triangular solve": lambda v, m, s, i, j, d: pt.linalg.solve_triangular(
        pt.eye(3) * 2.0 + pt.tril(m[:3]), m[0], lower=True)[2],
    "Cholesky factor": lambda v, m, s, i, j, d: pt.linalg.cholesky(
        pt.eye(3) + pt.dot(m.T, m))[2, 1],
    "switch that is known": lambda v, m, s, i, j, d: pt.switch(pt.constant(True), v[i], v[i + 99]),
    "clip": lambda v, m, s, i, j, d: pt.clip(d * s, -0.2, 0.3),
    "casts": lambda v, m, s, i, j, d: (pt.cast(d > 0, "int64") + pt.cast(3.7 * s, "int64")) * s,
    "logarithms": lambda v, m, s, i, j, d: pt.log2(s) + pt.log10(s),
    "Gamma functions": lambda v, m, s, i, j, d: pt.gamma(s) + pt.psi(s) + pt.gammaln(s + i),
    "whole incomplete Gamma": lambda v, m, s, i, j, d: pt.gammaincc(4.0, s) + pt.gammainc(1.0, s),
    "whole incomplete Beta": lambda v, m, s, i, j, d: pt.betainc(s, 1.0, 0.3) + pt.betainc(
        3.0 * s, 4.0, pt.sigmoid(d)),
    "incomplete Gamma and Beta of data that are alike": lambda v, m, s, i, j, d: pt.gammaincc(
        0.0 * d + 3.0, s) + pt.betainc(s, 0.0 * d + 2.0, 0.6),
    "logic": lambda v, m, s, i, j, d: pt.switch(pt.xor(d > 0, ~(s > d)), d, s) + pt.isnan(d),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_elements(name):
    found, expected = read(GRAPHS[name])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["entry", "entry of a matrix", "table", "row of a matrix", "cases",
                                  "numbers from a table", "softmax", "set"])  # fmt: skip
def test_negative_indices_count_from_the_end(name):
    found, expected = read(GRAPHS[name], low=-3)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


REFUSED = {
    "GammaIncC": lambda v, m, s, i, j, d: pt.gammaincc(s, d),
    "GammaInc has": lambda v, m, s, i, j, d: pt.gammainc(2.5, s),
    "BetaInc": lambda v, m, s, i, j, d: pt.betainc(s, s, 0.3),
    "TriGamma": lambda v, m, s, i, j, d: pt.tri_gamma(s),
    "the shape of": lambda v, m, s, i, j, d: v[v > 0].sum(),
    "shape": lambda v, m, s, i, j, d: v[:i].sum(),
    "Sort": lambda v, m, s, i, j, d: pt.sort(v)[i],
    "Argmax": lambda v, m, s, i, j, d: pt.argmax(v) * s,
    "Scan|ScalarFromTensor": lambda v, m, s, i, j, d: pytensor.scan(
        lambda x, total: total + x, sequences=v, outputs_info=s, return_updates=False)[-1],
    "AND of numbers": lambda v, m, s, i, j, d: (i & 3) * s,
    "Maximum of 0 elements": lambda v, m, s, i, j, d: pt.max(v[:0]) + s,
    "it depends on other": lambda v, m, s, i, j, d: pt.dscalar("other") * s,
}  # fmt: skip


@pytest.mark.parametrize("says", REFUSED)
def test_what_has_no_scalar_form_is_named(says):
    with pytest.raises(NotScalar, match=says):
        read(REFUSED[says])


def test_a_gather_costs_the_same_whatever_is_gathered_from():
    sizes = []
    for n in (10, 1_000_000):
        v, i = pt.tensor("v", shape=(n,), dtype="float64"), pt.lscalar("i")
        graph = Graph()
        columns = Columns(graph, "column")
        leaves = {
            v: lambda index, graph=graph: graph.make("entry", index[0], value="eta"),
            i: lambda index, columns=columns: columns.node("i", lambda: np.arange(3)),
        }
        ElementReader(graph, leaves, columns).element(stabilised(pt.exp(2.0 * v)[i]))
        sizes.append(len(graph.nodes))
    assert sizes[0] == sizes[1] < 20
