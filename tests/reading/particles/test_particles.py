"""Log prior and log likelihood of many points at once."""

from __future__ import annotations

import functools
import logging
import multiprocessing

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from copy import copy

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse

from pymc.distributions.transforms import Interval, ordered
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy import stats

from amc_pymc.reading import graphs
from amc_pymc.reading.graphs import INTERPRETED
from amc_pymc.reading.particles import densities as module
from amc_pymc.reading.particles import densities as outputs
from amc_pymc.reading.particles.densities import (
    ParticleDensities,
    counted,
    extract_particles,
)
from amc_pymc.reading.particles.prior import PriorDraws
from tests.model_zoo import build

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Numba will use object mode:UserWarning",
    "ignore:.*will be automatically imputed",
    "ignore:No safe default transform found for Mixture",
    "ignore:Scan return signature will change:DeprecationWarning",
)

Y = np.array([1.0, -0.5, 2.0, 0.3])


def model_of(write) -> pm.Model:
    with pm.Model() as model:
        write()
    return model


def extracted(write) -> ParticleDensities:
    return extract_particles(model_of(write))


def unverified(write) -> ParticleDensities:
    """Densities that nothing has been drawn from or evaluated for."""
    return extract_particles(model_of(write), check=False)


def operations(densities: ParticleDensities, *, gradients: bool = False) -> list[Apply]:
    """Operations of the graphs of many points."""
    graphs = module.GraphTerms(densities._x, densities._terms)
    batch = graphs._gradients if gradients else graphs._values
    return batch._many.maker.fgraph.apply_nodes


def without_batches(monkeypatch):
    def fail(outputs, swap):
        raise NotImplementedError("a test")

    monkeypatch.setattr(graphs, "vectorize_graph", fail)


# A model whose densities are easily written down.


def hierarchy(**initval) -> pm.Model:
    """Two observed variables, a Potential, a hierarchy, a transform."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        tau = pm.HalfNormal("tau", 2.0, **initval)
        mu = pm.Normal("mu", 0.0, tau, dims="group")
        pm.Deterministic("gap", mu[1] - mu[0])
        pm.Normal("y", mu[0], 1.5, observed=Y)
        pm.Poisson("n", pm.math.exp(mu[1]), observed=[2, 0])
        pm.Potential("extra", -0.5 * mu**2)
    return model


@functools.cache
def densities() -> ParticleDensities:
    return extract_particles(hierarchy())


def expected(x):
    """Log prior and log likelihood (2, P) by SciPy; x holds log tau and mu."""
    x = np.asarray(x)
    log_tau, mu = x[:, 0], x[:, 1:]
    tau = np.exp(log_tau)
    prior = stats.halfnorm.logpdf(tau, scale=2.0) + log_tau
    prior += stats.norm.logpdf(mu, 0.0, tau[:, None]).sum(axis=1)
    likelihood = stats.norm.logpdf(Y, mu[:, :1], 1.5).sum(axis=1) - 0.5 * (mu**2).sum(axis=1)
    likelihood += stats.poisson.logpmf([[2, 0]], np.exp(mu[:, 1:])).sum(axis=1)
    return np.stack([prior, likelihood])


def points(n=300, seed=1):
    return np.random.default_rng(seed).normal(size=(n, 3))


def slopes(function, x, h=1e-5):
    """Central differences (2, P, D) of values (2, P)."""
    out = np.empty((2, *x.shape))
    for d in range(x.shape[1]):
        up, down = x.copy(), x.copy()
        up[:, d] += h
        down[:, d] -= h
        out[:, :, d] = (function(up) - function(down)) / (2.0 * h)
    return out


def test_values_are_those_of_the_model():
    found, x = extract_particles(hierarchy()), points()
    np.testing.assert_allclose(found.values(x), expected(x), rtol=1e-9)
    terms, gradients = found.gradients(x)
    np.testing.assert_allclose(terms, expected(x), rtol=1e-9)
    np.testing.assert_allclose(gradients, slopes(expected, x), rtol=1e-5, atol=1e-5)
    assert found.n_dim == 3
    assert found.n_observed == 6


def test_what_is_returned_belongs_to_the_caller():
    x = points(10)
    first, (_, gradients) = densities().values(x), densities().gradients(x)
    kept = first.copy(), gradients.copy()
    densities().values(x + 1.0)
    densities().gradients(x + 1.0)
    np.testing.assert_array_equal(first, kept[0])
    np.testing.assert_array_equal(gradients, kept[1])


def test_initial_values_change_nothing(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("an initial value was asked for")

    monkeypatch.setattr(pm.Model, "initial_point", forbidden)
    other = extract_particles(hierarchy(initval=7.0))
    x = points(5)
    np.testing.assert_array_equal(other.values(x), densities().values(x))
    mine, its = (d.draw_prior(50, np.random.default_rng(3)) for d in (densities(), other))
    np.testing.assert_array_equal(mine, its)
    assert len(np.unique(its[:, 0])) == 50


@pytest.mark.parametrize("chunk", [1, 7, 49, 50, 51])
def test_chunks_do_not_matter(chunk):
    other, x = copy(densities()), points(50)
    other.chunk = chunk
    np.testing.assert_allclose(other.values(x), expected(x), rtol=1e-9)
    terms, gradients = other.gradients(x)
    np.testing.assert_allclose(terms, expected(x), rtol=1e-9)
    np.testing.assert_allclose(gradients, densities().gradients(x)[1], rtol=1e-12)
    for name, array in other.constrain(x).items():
        np.testing.assert_array_equal(array, densities().constrain(x)[name])


def test_no_points_and_one():
    assert densities().values(np.empty((0, 3))).shape == (2, 0)
    assert densities().gradients(np.empty((0, 3)))[1].shape == (2, 0, 3)
    assert densities().constrain(np.empty((0, 3)))["mu"].shape == (0, 2)
    x = points(1)
    np.testing.assert_allclose(densities().values(x), expected(x), rtol=1e-9)
    np.testing.assert_allclose(densities().values(x.astype("float32")), expected(x), rtol=1e-6)


# All kinds of models against PyMC's own functions.


def normal_mixture():
    w = pm.Dirichlet("w", np.ones(2))
    mu = pm.Normal("mu", [-1.0, 1.0], 1.0, shape=2)
    pm.NormalMixture("y", w, mu, pm.HalfNormal("sigma", 1.0), observed=Y)


def truncated_and_censored():
    a = pm.Truncated("a", pm.Normal.dist(0.0, 1.0), lower=-1.0, upper=2.0, shape=2)
    pm.Truncated("y", pm.Normal.dist(a[0], 1.0), lower=-1.0, observed=Y)
    pm.Censored("z", pm.Normal.dist(a[1], 1.0), lower=-1, upper=1, observed=np.clip(Y, -1, 1))


def random_walk():
    s = pm.HalfNormal("s", 1.0)
    start = pm.Normal.dist(0.0, 1.0)
    pm.Normal("y", pm.GaussianRandomWalk("z", sigma=s, init_dist=start, shape=4), 1.0, observed=Y)


def random_covariance():
    s = pm.HalfNormal("s", 1.0, shape=2)
    r = pm.Uniform("r", -0.9, 0.9)
    b = pm.MvNormal("b", np.zeros(2), pt.outer(s, s) * (r + (1.0 - r) * pt.eye(2)))
    pm.MvNormal("y", b, np.eye(2) + 0.3, observed=Y.reshape(2, 2))


def derived_densities():
    def shifted(mu, size):
        return pm.math.exp(pm.Normal.dist(mu, 1.0, size=size)) - 3.0

    mu = pm.Normal("mu", 0.0, 1.0)
    pm.CustomDist("y", mu, dist=shifted, observed=Y)
    pm.CustomDist("z", mu, logp=lambda value, mu: -pt.abs(value - mu), observed=Y)


def two_kinds_of_missing_values():
    b = pm.Normal("b", 0.0, 1.0, shape=2)
    x = pm.Normal("x", b[0], 1.0, observed=[[1.0, np.nan], [0.5, 2.0], [np.nan, 1.0]])
    pm.Normal("y", pt.dot(x, b), 1.0, observed=np.ma.masked_invalid([1.0, np.nan, 0.2]))


def gaussian_process():
    scale = pm.HalfNormal("scale", 1.0)
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, scale))
    gp.marginal_likelihood("y", np.arange(4.0)[:, None], Y, sigma=0.3)


def unknown_bounds():
    low = pm.Normal("low", 0.0, 1.0)
    u = pm.Uniform("u", low, low + pm.HalfNormal("width", 1.0), shape=2)
    pm.Normal("y", u.sum(), 1.0, observed=Y)


def discrete_unknowns():
    k = pm.DiscreteUniform("k", 0, 3)
    z = pm.Bernoulli("z", pm.Beta("p", 1.0, 1.0), shape=2)
    pm.Normal("y", k + z.sum() + pm.Categorical("c", [0.2, 0.3, 0.5]), 1.0, observed=Y)


WRITTEN = {
    f.__name__: f
    for f in (
        normal_mixture,
        truncated_and_censored,
        random_walk,
        random_covariance,
        derived_densities,
        two_kinds_of_missing_values,
        gaussian_process,
        unknown_bounds,
        discrete_unknowns,
    )
}
ZOO = (
    "hierarchy_data",
    "mixture_of_regressions",
    "zero_inflated_poisson",
    "with_potential",
    "xtensor_dims",
    "discrete_free",
)
SINGLY = ("normal_mixture", "random_walk", "discrete_unknowns", "xtensor_dims")


@pytest.mark.parametrize("name", [*WRITTEN, *ZOO])
def test_densities_are_those_of_pymc(name, monkeypatch):
    model = model_of(WRITTEN[name]) if name in WRITTEN else build(name, n_rows=12)
    found = extract_particles(model)
    assert found._graphs._values.fallback is None
    x = found.draw_prior(6, np.random.default_rng(2))
    terms, gradients = found.gradients(x)
    np.testing.assert_allclose(found.values(x), terms, rtol=1e-12)

    parts = [model.free_RVs, [*model.observed_RVs, *model.potentials]]
    graphs = [model.logp(vars=part) for part in parts]
    oracle = model.compile_fn(graphs, mode=INTERPRETED, on_unused_input="ignore")
    wanted = np.array([oracle(found.layout.unravel(p)) for p in x]).T
    np.testing.assert_allclose(terms, wanted, rtol=1e-6)  # PyMC's constants are in single precision

    steep = slopes(found.values, x)
    steep[:, :, found.discrete] = 0.0
    np.testing.assert_allclose(gradients, steep, rtol=1e-4, atol=1e-4)
    kinds = [np.dtype(t).kind in "iub" for t in found.layout.dtypes]
    np.testing.assert_array_equal(found.discrete, np.repeat(kinds, found.layout.sizes))

    if name not in SINGLY:
        return
    one = copy(found)
    one.do_not_print()
    without_batches(monkeypatch)
    np.testing.assert_allclose(one.values(x), terms, rtol=1e-9, atol=1e-12)
    alone, gradients_alone = one.gradients(x)
    np.testing.assert_allclose(alone, terms, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients_alone, gradients, rtol=1e-7, atol=1e-9)


# Printed code.


@pytest.mark.parametrize(
    ("name", "n_rows"),
    [
        ("mixture_of_regressions", 40),
        ("zero_inflated_poisson", 12),
        ("discrete_mean", 12),
        ("shrunk", 40),
    ],
)
def test_printed_densities_are_those_of_pytensor(name, n_rows):
    """Few rows are one expression, many rows a loop; so are coefficients that are products."""
    own = {"shrunk": shrunk, "discrete_mean": discrete_mean}
    model = own[name](n_rows) if name in own else build(name, n_rows=n_rows)
    found = extract_particles(model)
    assert type(found._parts[-1]).__name__ == ("PrintedTerms" if n_rows == 12 else "RowTerm")
    other = copy(found)
    other.do_not_print()
    assert other._parts == [other._graphs]
    x = found.draw_prior(70, np.random.default_rng(4))
    for got, wanted in zip(found.gradients(x), other.gradients(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.values(x), other.values(x), rtol=1e-6, atol=1e-6)


def discrete_mean(n_rows):
    with pm.Model() as model:
        mean = pm.DiscreteUniform("k", 0, 3) * pm.Normal("b")
        pm.Normal("y", mean, 1.0, observed=np.arange(n_rows) % 5.0)
    return model


def shrunk(n_rows):
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", shape=3) * pm.HalfNormal("all")
        X = rng.normal(size=(n_rows, 3))
        pm.Bernoulli("y", logit_p=X @ (scale * pm.Normal("z", shape=3)), observed=X[:, 0] > 0)
    return model


@pytest.mark.parametrize("term", [0, 1])
def test_printed_code_with_other_values_is_noticed(term, monkeypatch):
    right = module.printed_terms

    def wrong(x, terms, discrete):
        return right(x, [t + 1e-3 * (k == term) for k, t in enumerate(terms)], discrete)

    monkeypatch.setattr(module, "printed_terms", wrong)
    found = extract_particles(hierarchy())
    assert found._parts == [found._graphs]
    np.testing.assert_allclose(found.values(points(5)), expected(points(5)), rtol=1e-9)


@pytest.mark.slow
def test_rows_with_other_values_are_noticed(monkeypatch):
    right, model = module.row_term, build("zero_inflated_poisson", n_rows=40)
    others = build("zero_inflated_poisson", n_rows=40, seed=1)
    wanted = extract_particles(model)
    monkeypatch.setattr(module, "row_term", lambda model, layout: right(others, layout))
    found = extract_particles(model)
    assert found._parts == [found._graphs]
    x = found.draw_prior(5, np.random.default_rng(1))
    np.testing.assert_allclose(found.values(x), wanted.values(x), rtol=1e-6)


def test_a_variable_that_chooses_a_coordinate_is_left_to_pytensor(caplog):
    def write():
        m = pm.Normal("m", [0.0, 1.0], 1.0)
        pm.Normal("y", m[pm.Bernoulli("z", 0.5)], 1.0, observed=1.0)

    found = extracted(write)
    x = found.draw_prior(20, np.random.default_rng(1))
    wanted = stats.norm.logpdf(1.0, np.where(x[:, 2] > 0, x[:, 1], x[:, 0]))
    np.testing.assert_allclose(found.values(x)[1], wanted)


def pickled_copy(found):
    """As another process would have it."""
    return cloudpickle.loads(cloudpickle.dumps(found))


# The prior integrates to one on the scale of the values.


def only_prior(write):
    """The model with a likelihood of one."""

    def both():
        write()
        pm.Potential("nothing", pt.zeros(()))

    return both


LINES = {
    "beta": lambda: pm.Beta("v", 2.0, 3.0),
    "pareto": lambda: pm.Pareto("v", 2.0, 1.0),
    "truncated": lambda: pm.Truncated("v", pm.Gumbel.dist(0.0, 1.0), lower=-1.0, upper=2.0),
    "mixture": lambda: pm.NormalMixture("v", [0.3, 0.7], [-2.0, 2.0], [1.0, 0.5]),
    "circle": lambda: pm.VonMises("v", 1.0, 2.0),
    "zero sum": lambda: pm.ZeroSumNormal("v", sigma=1.5, shape=2),
}
PLANES = {
    "simplex": lambda: pm.Dirichlet("v", [1.5, 1.5, 2.0]),
    "ordered pairs": lambda: pm.Normal("v", 0.0, 1.0, shape=(1, 2), transform=ordered),
    "neighbours": lambda: pm.CAR("v", np.zeros(2), np.array([[0, 1], [1, 0]]), 0.5, 1.0),
}


@pytest.mark.parametrize("name", LINES)
def test_priors_on_a_line_integrate_to_one(name, monkeypatch):
    found = unverified(only_prior(LINES[name]))
    x = np.linspace(-40.0, 40.0, 20_001)
    prior, likelihood = found.values(x[:, None])
    np.testing.assert_allclose(np.trapezoid(np.exp(prior), x), 1.0, atol=2e-5)
    assert (likelihood == 0.0).all()


@pytest.mark.parametrize("name", PLANES)
def test_priors_on_a_plane_integrate_to_one(name, monkeypatch):
    found = unverified(only_prior(PLANES[name]))
    line = np.linspace(-20.0, 10.0, 251)
    x = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    prior, _ = found.values(x)
    np.testing.assert_allclose(np.exp(prior).sum() * (line[1] - line[0]) ** 2, 1.0, atol=1e-3)


def test_neighbours_have_the_density_of_their_covariance():
    """PyMC's conditional autoregressions leave constants out, observed ones too."""
    W = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    y = np.arange(6.0).reshape(2, 3)

    def write():
        m = pm.Normal("m", 0.0, 1.0)
        pm.CAR("y", m * np.ones(3), W, 0.3, 2.0, observed=y)

    covariance = np.linalg.inv(2.0 * (np.diag(W.sum(axis=0)) - 0.3 * W))
    wanted = stats.multivariate_normal(np.full(3, 0.5), covariance).logpdf(y).sum()
    np.testing.assert_allclose(extracted(write).values(np.array([[0.5]]))[1], wanted)


# What counts as likelihood, and what is shown.


def test_what_is_shown():
    with pm.Model(coords={"row": range(4)}) as model:
        s = pm.Normal("s", 0.0, 1.0)
        k = pm.Bernoulli("k", 0.5, shape=2)
        pm.Deterministic("density", pm.logp(pm.Normal.dist(0.0, s), Y), dims="row")
        pm.Deterministic("constant", pt.arange(3))
        pm.Normal("y", s + k.sum(), 1.0, observed=Y)
        pm.Deterministic("of the data", model["y"] + s)
    shown = extract_particles(model).constrain(np.array([[1.0, 0.0, 1.0], [-1.0, 1.0, 1.0]]))
    assert {name: a.shape for name, a in shown.items()} == {
        "s": (2,),
        "k": (2, 2),
        "density": (2, 4),
        "constant": (2, 3),
        "of the data": (2, 4),
    }
    assert shown["k"].dtype.kind == "i"
    np.testing.assert_array_equal(shown["k"], [[0, 1], [1, 1]])
    np.testing.assert_allclose(shown["density"][0], stats.norm.logpdf(Y))
    assert (shown["density"][1] == -np.inf).all()  # and no error for the other point
    np.testing.assert_array_equal(shown["of the data"], [Y + 1.0, Y - 1.0])
    np.testing.assert_array_equal(shown["constant"], [[0, 1, 2]] * 2)


def test_observed_parents_keep_their_data():
    """The prior of a variable that depends on an observed one is the one given its data."""

    def write():
        x = pm.Normal("x", 0.0, 1.0, observed=[5.0, 50.0])
        z = pm.Normal("z", x, 1e-3)
        pm.Normal("y", z, 1.0, observed=np.zeros(2))

    draws = extracted(write).draw_prior(100, np.random.default_rng(1))
    np.testing.assert_allclose(draws, np.tile([5.0, 50.0], (100, 1)), atol=0.01)


# Impossible points.


def scale_that_may_be_negative():
    pm.Normal("y", 0.0, pm.Normal("s", 0.0, 1.0), observed=Y)


def negative_scale_of_a_component():
    s = pm.Normal("s", 0.0, 1.0)
    pm.Mixture("y", [0.5, 0.5], pm.Normal.dist(0.0, pt.stack([s, s])), observed=Y)


@pytest.mark.parametrize(
    "write",
    [
        scale_that_may_be_negative,
        negative_scale_of_a_component,
    ],
)
@pytest.mark.parametrize("singly", [False, True], ids=["batched", "one by one"])
def test_impossible_parameters_hurt_nobody_else(write, singly, monkeypatch):
    found = unverified(write)
    if singly:
        found.do_not_print()
        without_batches(monkeypatch)
    x = np.array([[2.0], [-0.5], [-2.0], [1.5]])
    prior, likelihood = found.values(x)
    np.testing.assert_allclose(prior, stats.norm.logpdf(x[:, 0]))
    assert np.isfinite(likelihood[[0, 3]]).all()
    assert (likelihood[[1, 2]] == -np.inf).all()
    terms, gradients = found.gradients(x)
    np.testing.assert_allclose(terms, [prior, likelihood])
    assert np.isfinite(gradients[:, [0, 3]]).all()


def test_nan_and_plus_infinity_count_as_impossible(monkeypatch):
    def write():
        m = pm.Normal("m", 0.0, 1.0)
        pm.Potential("root", pt.sqrt(m))  # nan below 0
        pm.Potential("pole", pt.switch(pt.eq(m, 1.0), np.inf, 0.0))
        pm.Potential("wall", pt.switch(m > 5.0, -np.inf, 0.0))

    found = unverified(write)
    x = np.array([[-1.0], [0.25], [1.0], [6.0], [np.nan]])
    with counted() as here:
        prior, likelihood = found.values(x)
        assert here.tolist() == [5, 0, 3]
        found.chunk = 2
        terms, _ = found.gradients(x)
    assert here.tolist() == [5, 5, 6]
    np.testing.assert_array_equal(likelihood, [-np.inf, 0.5, -np.inf, -np.inf, -np.inf])
    assert prior[-1] == -np.inf
    np.testing.assert_array_equal(terms, [prior, likelihood])


# Models without a well-defined evidence.


def nothing_free():
    pm.Normal("y", 0.0, 1.0, observed=1.0)


def nothing_observed():
    pm.Normal("a", 0.0, 1.0)


def one_observed(prior):
    def write():
        pm.Normal("y", prior().sum(), 1.0, observed=1.0)

    return write


def simulator():
    a = pm.Normal("a", 0.0, 1.0)
    pm.Simulator("sim", lambda rng, a, size=None: rng.normal(a, 1.0, size=2), a, observed=Y[:2])


def total_size():
    a = pm.Normal("a", 0.0, 1.0)
    pm.Normal("some", a, 1.0, observed=[1.0, 2.0], total_size=100)


def minibatch():
    X, y = pm.Minibatch(np.arange(20.0), np.arange(20.0), batch_size=5)
    pm.Normal("some", pm.Normal("a", 0.0, 1.0) * X, 1.0, observed=y, total_size=20)


def several_missing_values():
    m = pm.Normal("m", 0.0, 1.0, shape=2)
    pm.MvNormal("y", m, np.eye(2), observed=[[1.0, np.nan], [0.0, 2.0]])


def mixed_with_flat():
    return pm.Mixture("m", [0.5, 0.5], [pm.Flat.dist(), pm.Normal.dist(0.0, 1.0)])


def ordered_unlike():
    pm.Normal("cut", [-1.0, 1.0], 1.0, shape=2, transform=ordered)
    pm.Potential("nothing", pt.zeros(()))


def neighbours():
    return pm.ICAR("phi", W=np.array([[0, 1], [1, 0]]))


REFUSED = {
    "nothing free": (nothing_free, "no free variable"),
    "nothing observed": (nothing_observed, "no likelihood.*observed="),
    "flat": (one_observed(lambda: pm.Flat("m")), r"'m'.*improper prior \(Flat\)"),
    "mixed flat": (one_observed(mixed_with_flat), r"'m'.*improper prior \(Flat\)"),
    "neighbours": (one_observed(neighbours), r"'phi'.*improper prior \(ICAR\)"),
    "censored": (
        one_observed(lambda: pm.Censored("m", pm.Normal.dist(0.0, 1.0), lower=0.0, upper=None)),
        r"'m'.*positive probability \(Censored\)",
    ),
    "hurdle": (
        one_observed(lambda: pm.HurdleGamma("m", 0.4, 2.0, 1.0)),
        r"'m'.*positive probability \(DiracDelta\)",
    ),
    "simulator": (simulator, "'sim'.*pm.Simulator"),
    "total size": (total_size, "'some'.*total_size"),
    "minibatch": (minibatch, "'some'.*pm.Minibatch"),
    "several missing values": (several_missing_values, "'y_unobserved'.*multivariate"),
    "ordered": (ordered_unlike, "'cut'.*identically distributed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_evidence_are_refused(name, monkeypatch):
    """Before anything has been drawn or compiled."""

    def forbidden(*args, **kwargs):
        raise AssertionError("too late")

    write, message = REFUSED[name]
    model = model_of(write)
    monkeypatch.setattr(PriorDraws, "draw", forbidden)
    monkeypatch.setattr(module, "printed_terms", forbidden)
    with pytest.raises(ValueError, match=message):
        extract_particles(model)


def test_discrete_point_masses_are_allowed():
    def write():
        pm.Normal("y", pm.ZeroInflatedPoisson("k", 0.6, 2.0), 1.0, observed=1.0)

    x = np.arange(3.0)[:, None]
    wanted = np.where(x == 0, 0.4, 0.0) + 0.6 * stats.poisson.pmf(x, 2.0)
    np.testing.assert_allclose(extracted(write).values(x)[0], np.log(wanted[:, 0]))


@pytest.mark.parametrize("shape", [(3,), (5, 2), (1, 3, 1), (0,)])
def test_points_of_the_wrong_shape_are_refused(shape):
    for evaluate in (densities().values, densities().gradients, densities().constrain):
        with pytest.raises(ValueError, match=r"x must have shape \(P, 3\), got"):
            evaluate(np.zeros(shape))


# One after the other, if it must be.


def sparse_neighbours():
    """PyTensor cannot vectorise products with sparse matrices."""
    W = scipy.sparse.csr_matrix(np.array([[0.0, 1.0], [1.0, 0.0]]))
    t = pm.HalfNormal("t", 1.0)
    z = pm.CAR("z", np.zeros(2), pytensor.sparse.as_sparse_variable(W), 0.5, t)
    pm.Normal("y", z, 1.0, observed=[1.0, 2.0])


def test_models_that_cannot_be_vectorised_go_one_by_one(caplog):
    found = extracted(sparse_neighbours)
    x = found.draw_prior(20, np.random.default_rng(1))
    assert len(np.unique(x, axis=0)) == 20
    with caplog.at_level(logging.INFO, "amc_pymc"):
        terms, gradients = found.gradients(x)
    assert "Points are evaluated one at a time" in caplog.text and "sparse" in caplog.text.lower()
    np.testing.assert_allclose(found.values(x), terms)
    np.testing.assert_allclose(gradients, slopes(found.values, x), rtol=1e-5, atol=1e-5)
    covariance = np.linalg.inv([[1.0, -0.5], [-0.5, 1.0]])
    t = np.exp(x[:, 0])
    wanted = stats.halfnorm.logpdf(t) + x[:, 0]
    for i in range(20):
        wanted[i] += stats.multivariate_normal(np.zeros(2), covariance / t[i]).logpdf(x[i, 1:])
    np.testing.assert_allclose(terms[0], wanted, rtol=1e-9)


class Opaque(Op):
    """The sum of a vector, with no gradient."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0].sum())

    def pullback(self, inputs, outputs, cotangents):
        raise NotImplementedError("Opaque has no gradient")


def sum_of_two(op) -> pm.Model:
    """A model whose likelihood contains an operation on a vector that cannot be printed."""
    with pm.Model() as model:
        pm.Normal("y", op(pm.Normal("b", 0.0, 1.0, shape=2)), 1.0, observed=1.0)
    return model


def test_functions_without_gradient_have_values():
    found = extract_particles(sum_of_two(Opaque()))
    x = np.array([[1.0, 1.0], [0.0, 4.0]])
    np.testing.assert_allclose(found.values(x)[1], stats.norm.logpdf([1.0, 3.0]))
    with pytest.raises(NotImplementedError, match="Opaque has no gradient"):
        found.gradients(x)
    assert found._graphs._values.fallback is None


class GradientOfOne(Opaque):
    """A sum whose gradient is a sparse matrix on the way, which PyTensor cannot vectorise."""

    def pullback(self, inputs, outputs, cotangents):
        row = (cotangents[0] * pt.ones_like(inputs[0]))[None]
        return [pytensor.sparse.dense_from_sparse(pytensor.sparse.csr_from_dense(row))[0]]


def test_gradients_that_cannot_be_batched_go_one_by_one():
    found, x = extract_particles(sum_of_two(GradientOfOne())), points(4)[:, :2]
    assert found._parts == [found._graphs]
    _, (prior, likelihood) = found.gradients(x)
    residual = 1.0 - x.sum(axis=1)
    np.testing.assert_allclose(prior, -x, rtol=1e-9)
    np.testing.assert_allclose(likelihood, np.column_stack([residual, residual]), rtol=1e-9)
    assert found._graphs._gradients.fallback
    np.testing.assert_allclose(found.values(x)[1], stats.norm.logpdf(residual), rtol=1e-9)


# Processes and threads.


def test_pickled_once_per_process():
    ours = copy(densities())
    first, second = pickled_copy(ours), pickled_copy(ours)
    assert first is second
    assert first is not ours
    x = points(64)
    np.testing.assert_array_equal(first.values(x), densities().values(x))
    np.testing.assert_array_equal(first.gradients(x)[1], densities().gradients(x)[1])
    mine, its = (d.draw_prior(9, np.random.default_rng(3)) for d in (densities(), first))
    np.testing.assert_array_equal(mine, its)
    np.testing.assert_array_equal(first.constrain(x)["gap"], densities().constrain(x)["gap"])


def test_only_the_last_few_are_kept():
    sent = [copy(densities()) for _ in range(7)]
    loaded = [pickled_copy(d) for d in sent]
    again = [pickled_copy(d) is found for d, found in zip(sent[::-1], loaded[::-1], strict=True)]
    assert again == [True] * 4 + [False] * 3


def test_threads_get_equal_results():
    found, x = pickled_copy(densities()), points(64)
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: pickled_copy(densities()), range(8)))
        values = list(pool.map(found.values, [x] * 8))
        gradients = list(pool.map(lambda x: found.gradients(x)[1], [x] * 8))
    assert len({id(d) for d in loaded}) == 1
    for array in values:
        np.testing.assert_array_equal(array, values[0])
    for array in gradients:
        np.testing.assert_array_equal(array, gradients[0])
    np.testing.assert_allclose(values[0], expected(x), rtol=1e-9)


# Costs.

X = np.random.default_rng(1).normal(size=(2000, 8))


@pytest.mark.parametrize(
    ("write", "widest"),
    [
        (gaussian_process, 16),  # a covariance matrix
        (lambda: pm.Potential("p", pm.Normal("m", 0.0, 1.0, shape=500).sum()), 500),
        (lambda: pm.Normal("y", pm.Normal("m", 0.0, 1.0), 1.0, observed=np.ones(70)), 70),
        (
            lambda: pm.NormalMixture(
                "y", np.ones(5) / 5, pm.Normal("m", 0.0, 1.0, shape=5), 1.0, observed=np.ones(70)
            ),
            350,
        ),
    ],
    ids=["covariance", "many unknowns", "many rows", "rows by components"],
)
def test_the_largest_array_sets_the_chunk(write, widest, monkeypatch):
    found = unverified(write)
    assert found.widest == widest
    assert found.chunk == outputs.chunk_size(widest)


def test_transforms_that_cut_the_prior_off():
    def write():
        m = pm.Normal("m", 0.0, 1.0, transform=Interval(0.0, 1.0))
        pm.Normal("y", m, 1.0, observed=1.0)

    with pytest.raises(ValueError, match=r"prior draws of 'm_interval__' are nan.*pm.Truncated"):
        extracted(write)


def test_prior_draws_that_underflow_are_explained():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.full(4, 0.02))
        pm.Multinomial("y", 10, p, observed=[1, 2, 3, 4])
    with pytest.raises(
        ValueError, match=r"'p_simplex__' are nan.*Dirichlet.*larger concentrations"
    ):
        extract_particles(model)


def recursion(n):
    """A chain of two hidden states, summed out step by step."""
    with pm.Model() as model:
        rate, stay = pm.Gamma("rate", 3.0, 1.0, shape=2), pm.Beta("stay", 9.0, 1.0)
        log_p = (np.arange(n) % 4)[:, None] * pt.log(rate) - rate
        alpha = log_p[0]
        for t in range(1, n):
            alpha = pt.logaddexp(alpha + pt.log(stay), alpha[::-1] + pt.log1p(-stay)) + log_p[t]
        pm.Potential("states", pt.logsumexp(alpha))
    return model


@pytest.mark.slow
def test_large_graphs_are_not_put_into_canonical_form(monkeypatch):
    """Which took minutes for a hundred steps of a recursion, as did the rewrites for a check of them."""
    printed = extract_particles(recursion(6))
    x = printed.draw_prior(50, np.random.default_rng(1))
    monkeypatch.setattr(module, "printed_terms", lambda x, terms, discrete: None)
    monkeypatch.setattr(graphs, "_MOST_REWRITTEN", 30)
    found = extract_particles(recursion(6))
    np.testing.assert_allclose(found.values(x), printed.values(x), rtol=1e-10)
    for got, wanted in zip(found.gradients(x), printed.gradients(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-8)


def test_potentials_are_likelihood():
    def write():
        m = pm.Normal("m", 0.0, 1.0, shape=2)
        pm.Potential("vector", -m)
        pm.Potential("number", 3.0 * m[0])

    found = extracted(write)
    x = np.array([[1.0, 2.0], [0.5, -1.0]])
    np.testing.assert_allclose(found.values(x)[1], [0.0, 2.0])
    np.testing.assert_allclose(found.values(x)[0], stats.norm.logpdf(x).sum(axis=1))
    assert found.n_observed == 0


def test_missing_values_are_unknowns():
    def write():
        m = pm.Normal("m", 0.0, 2.0)
        pm.Normal("y", m, 1.0, observed=[1.0, np.nan, 3.0])

    found = extracted(write)
    x = np.array([[0.5, -1.0]])
    m, missing = (x[0, found.layout.indices([n])[0]] for n in ("m", "y_unobserved"))
    prior = stats.norm.logpdf(m, scale=2.0) + stats.norm.logpdf(missing, m)
    likelihood = stats.norm.logpdf([1.0, 3.0], m).sum()
    np.testing.assert_allclose(found.values(x), [[prior], [likelihood]])
    np.testing.assert_allclose(found.constrain(x)["y"], [[1.0, missing, 3.0]])
    assert found.n_observed == 2


@pytest.mark.skipif(
    pm.__version__.startswith("6.3."), reason="PyMC 6.3 rounds probabilities near 1 to 1"
)
def test_probabilities_may_be_very_small():
    X, b = np.random.default_rng(1).normal(size=(30, 2)), np.array([[1.0, -800.0], [0.3, 0.2]])

    def logistic():
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        pm.Bernoulli("y", logit_p=pt.dot(X, b), observed=X[:, 0] > 0)

    eta = b @ X.T
    wanted = -np.logaddexp(0.0, np.where(X[:, 0] > 0, -eta, eta)).sum(axis=1)
    found = unverified(logistic)
    found.do_not_print()
    np.testing.assert_allclose(found.values(b)[1], wanted, rtol=1e-12)


@pytest.mark.slow
def test_another_process_gets_equal_results():
    found, x = extract_particles(hierarchy()), points(20)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        np.testing.assert_allclose(pool.submit(found.values, x).result(), found.values(x))
        its = pool.submit(found.draw_prior, 5, np.random.default_rng(3)).result()
    np.testing.assert_array_equal(its, found.draw_prior(5, np.random.default_rng(3)))
