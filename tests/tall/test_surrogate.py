"""Terms of priors, and the marginal of hyperparameters under prior times an expansion of rows."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from amc_pymc.engine import Family, Graph
from amc_pymc.reading.densities import RestDensities
from amc_pymc.reading.graphs import log_densities
from amc_pymc.reading.particles.prior import layout_of
from amc_pymc.tall.surrogate import (
    Surface,
    _inverse,
    backward_solve,
    conditional,
    gradient,
    log_determinant,
    narrow_order,
    rows_of,
    transposed_product,
)
from amc_pymc.tall.terms import Written, compiled_terms, with_few_entries

SIZE = 4


def scaled():
    """Coefficients tau lam z of a horseshoe, beside an intercept."""
    pm.HalfCauchy("tau", 0.3)
    pm.HalfCauchy("lam", 1.0, shape=SIZE)
    pm.Normal("z", 0.0, 1.0, shape=SIZE)
    pm.Normal("a", 0.0, 1.0)


def centred():
    """Effects of two factors with a common mean."""
    mu, sd = pm.Normal("mu", 0.0, 1.0), pm.HalfNormal("sd", 1.0, shape=2)
    pm.Normal("u", mu, sd[0], shape=3)
    pm.Normal("w", 0.0, sd[1], shape=2)


def zero_sum():
    """Effects that add up to zero, with a share of their variance."""
    sd, share = pm.HalfNormal("sd", 1.0), pm.Dirichlet("share", np.ones(5))
    pm.ZeroSumNormal("u", sigma=sd * share[0], shape=6)


def walk():
    """Intercepts that walk at random."""
    pm.GaussianRandomWalk("a", sigma=pm.HalfNormal("sd", 1.0), init_dist=pm.Normal.dist(), steps=6)


def smooth():
    """A penalty on second differences."""
    sd = pm.HalfNormal("sd", 1.0)
    b = pm.Normal("b", 0.0, 3.0, shape=5)
    prior = pm.Normal.dist(0.0, sd, shape=3)
    pm.Potential("smooth", pm.logp(prior, pt.diff(b, n=2)))  # two leaves of a term read one entry


def areas():
    """Neighbours on a ring, whose sum is nearly zero and whose weighted sum is known."""
    ring = np.roll(np.eye(8, dtype=int), 1, axis=0)
    phi = pm.ICAR("phi", W=ring + ring.T, sigma=pm.HalfNormal("sd", 1.0))
    pm.Potential("known", pm.logp(pm.Normal.dist(0.0, 0.5), pt.dot(np.arange(8.0), phi)))


#: Models in which combinations of many coordinates are kept apart from the sparse part of the precision.
WIDE = {"areas"}
#: Variables that are Gaussian given the others, and variables that rows read.
MODELS = {
    "scaled": (scaled, ["z", "a"], ["a"]),
    "centred": (centred, ["mu", "u", "w"], ["u", "w"]),
    "walk": (walk, ["a"], ["a"]),
    "zero-sum": (zero_sum, ["u_zerosum__"], ["u_zerosum__"]),
    "smooth": (smooth, ["b"], ["b"]),
    "areas": (areas, ["phi"], ["phi"]),
}


class Problem:
    """A model's surface for a random expansion of rows, and log pi~ by PyMC."""

    def __init__(self, name, dense, seed=1):
        build, inner, read = MODELS[name]
        with pm.Model() as self.model:
            build()
        self.layout, rng = layout_of(self.model), np.random.default_rng(seed)
        size = self.layout.size
        self.inner = self.layout.indices(inner)
        self.outer = np.setdiff1d(np.arange(size), self.inner)
        reads, graph, families = self.layout.indices(read), Graph(), []
        if name == "scaled":
            self.places = [self.layout.slices[n].start for n in ("tau_log__", "lam_log__", "z")]
            at = (
                graph.const(self.places[0]),
                *(graph.make("column", value=k, kind="i") for k in (0, 1)),
            )
            tau, lam, z = (graph.make("entry", place, value="eta") for place in at)
            product = graph.make("mul", graph.make("exp", tau), graph.make("exp", lam))
            product = graph.make("mul", product, z)
            table = np.array(self.places[1:]) + np.arange(SIZE)[:, None]
            families = [Family(product, table.astype(float), 0)]
        self.name, number = name, reads.size + (SIZE if families else 0)
        root = rng.normal(size=(number, number))
        own, terms = self._prior()
        prior, combinations = with_few_entries(own, terms, size)
        coefficients = Written(graph, tuple(families))
        wide = np.arange(len(combinations)) if name in WIDE else ()
        self.surface = Surface(
            *(self._numbered(where, size) for where in (self.inner, self.outer)),
            compiled_terms(prior, 3),
            rows_of(combinations, len(prior.functions), wide),
            compiled_terms(coefficients, 2),
            reads,
            rng.normal(size=number),
            rng.normal(size=number),
            root @ root.T if dense else np.diag(np.diag(root) ** 2),
            np.zeros(1),
        )
        self.x = 0.5 * rng.normal(size=size)
        self._logp = self.model.compile_logp()

    @staticmethod
    def _numbered(where, size):
        out = np.full(size, -1)
        out[where] = np.arange(where.size)
        return out

    def _prior(self):
        """Return terms of one vector, as a step reads them."""
        terms = log_densities(self.model, [*self.model.free_RVs, *self.model.potentials])
        found = RestDensities(terms, self.model.value_vars, self.layout).prior_terms
        return found.graph, found.families

    def log_p(self, x):
        z = x[self.surface.reads]
        if self.name == "scaled":
            tau, lam, effects = self.places
            more = np.exp(x[tau] + x[lam : lam + SIZE]) * x[effects : effects + SIZE]
            z = np.concatenate([z, more])
        u = z - self.surface.centre
        quadratic = self.surface.slope @ u - 0.5 * u @ self.surface.curvature @ u
        return float(self._logp(self.layout.unravel(x))) + quadratic

    def marginal(self, x):
        """By differences, which are exact for quadratic functions."""
        unit, x = np.eye(self.inner.size), x.copy()

        def at(v):
            x[self.inner] = v
            return self.log_p(x)

        middle = at(0.0 * unit[0])
        slope = np.array([(at(e) - at(-e)) / 2.0 for e in unit])
        ends = np.array([at(e) - middle for e in unit])
        hessian = np.array([[at(e + f) for f in unit] for e in unit]) - middle
        hessian -= ends[:, None] + ends[None, :]
        mode = np.linalg.solve(-hessian, slope)
        return middle + 0.5 * slope @ mode - 0.5 * np.linalg.slogdet(-hessian)[1], mode


@pytest.fixture(
    scope="module", params=[(name, dense) for name in MODELS for dense in (True, False)]
)
def problem(request):
    return Problem(*request.param)


def test_the_marginal_and_the_mode_given_hyperparameters(problem):
    found = conditional(problem.x, problem.surface)
    value, mode = problem.marginal(problem.x)
    assert found.possible and found.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(found.x[problem.inner], mode, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found.x[problem.outer], problem.x[problem.outer])


def test_the_factors_are_those_of_the_precision(problem):
    found, rng = conditional(problem.x, problem.surface), np.random.default_rng(3)
    assert (len(found.spikes) > 1) == (problem.name in WIDE)
    b = rng.normal(size=problem.inner.size)
    out = b.copy()
    backward_solve(found.factor, found.spikes, out)  # F'^-1 b
    np.testing.assert_allclose(transposed_product(found.factor, found.spikes, out), b, rtol=1e-8)
    np.testing.assert_allclose(out @ found.precision() @ out, b @ b, rtol=1e-8)
    half = 0.5 * np.linalg.slogdet(found.precision())[1]
    assert log_determinant(found.factor, found.spikes) == pytest.approx(half, abs=1e-8)


def test_the_marginal_does_not_depend_on_the_coefficients(problem):
    other = problem.x.copy()
    other[problem.inner] += 3.0
    values = [conditional(x, problem.surface).value for x in (problem.x, other)]
    rounding = 4.0 * np.finfo(float).eps * abs(problem.log_p(other))  # of the terms that cancel
    assert values[0] == pytest.approx(values[1], rel=1e-10, abs=rounding)


def test_the_gradient_by_hyperparameters(problem):
    found = gradient(conditional(problem.x, problem.surface), problem.surface)
    for slope, k in zip(found, problem.outer, strict=True):
        step = np.zeros(problem.x.size)
        step[k] = 1e-4
        ends = [problem.marginal(problem.x + s * step)[0] for s in (1.0, -1.0)]
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-6)


def test_a_curvature_that_is_not_definite_is_impossible(problem):
    surface = problem.surface._replace(curvature=problem.surface.curvature - 1e4)
    assert not conditional(problem.x, surface).possible


def test_terms_of_priors_add_up_to_the_prior():
    """Transforms, matrices, sums over events and variables that read others."""
    with pm.Model() as model:
        sd = pm.Exponential("sd", 1.0)
        pm.ZeroSumNormal("zero_sum", sigma=sd, shape=4)
        pm.StudentT("t", nu=4.0, mu=0.0, sigma=sd, shape=(2, 3))
        pm.Beta("share", 2.0, 3.0)
        pm.Dirichlet("shares", np.ones(3))
        pm.MvNormal("mv", np.zeros(2), np.array([[2.0, 0.3], [0.3, 1.0]]))
        pm.Potential("extra", -pm.math.sqr(sd - 1.0))
    layout = layout_of(model)
    terms = log_densities(model, [*model.free_RVs, *model.potentials])
    found = RestDensities(terms, model.value_vars, layout).prior_terms
    graph, families = found.graph, found.families
    x = np.random.default_rng(2).normal(size=layout.size)
    values = [graph.evaluate([f.expression], row=f.table.T, eta=x)[0] for f in families]
    total = sum(np.broadcast_to(v, len(f.table)).sum() for v, f in zip(values, families))
    assert total == pytest.approx(float(model.compile_logp()(layout.unravel(x))), rel=1e-10)
    assert max(len(f.table) for f in families) == 6


def test_an_order_in_which_factors_have_few_entries():
    """A chain in any order, and a hub that all are linked with."""
    rng, size = np.random.default_rng(3), 40
    chain = np.eye(size) + np.eye(size, k=1) + np.eye(size, k=-1)
    chain[0] = chain[:, 0] = 1.0
    mixed = rng.permutation(size)
    matrix = (chain + size * np.eye(size))[np.ix_(mixed, mixed)]
    order = narrow_order(matrix)
    np.testing.assert_array_equal(np.sort(order), np.arange(size))
    factor = np.linalg.cholesky(matrix[np.ix_(order, order)])
    assert np.count_nonzero(factor) < 3 * size


def test_the_inverse_where_a_matrix_has_entries():
    rng, size = np.random.default_rng(4), 12
    for links in (0.1, 0.5, 1.0):
        root = rng.normal(size=(size, size)) * (rng.random((size, size)) < links)
        matrix = root @ root.T + np.eye(size)
        found = _inverse(np.linalg.cholesky(matrix), np.empty((0, len(matrix))))
        inside = matrix != 0.0
        np.testing.assert_allclose(
            found[inside], np.linalg.inv(matrix)[inside], rtol=1e-9, atol=1e-12
        )
