"""Priors on the unit cube: known distribution functions, moments and densities."""

from __future__ import annotations

import functools

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc.distributions.transforms import Interval, ordered
from scipy import special, stats

from amc_pymc.likelihood_free.model_prior import PriorTransform
from amc_pymc.reading import graphs
from amc_pymc.reading.graphs import Batched

N = 2000
GRID = (np.arange(N) + 0.5) / N


def cube_of(write, **outputs) -> PriorTransform:
    with pm.Model() as model:
        write()
    return PriorTransform(model, outputs)


def column(cube: PriorTransform, u=GRID) -> np.ndarray:
    (x,) = cube.values(np.asarray(u)[:, None])[0].values()
    return x


def uniform(cube: PriorTransform, n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(2.0**-53, 1.0 - 2.0**-53, size=(n, cube.n_dim))


class Known:
    """A distribution function that SciPy does not have."""

    def __init__(self, cdf):
        self.cdf = cdf


class Mixed:
    """A mixture of SciPy's distributions."""

    def __init__(self, weights, parts):
        self.weights, self.parts = weights, parts

    def cdf(self, x):
        return sum(w * p.cdf(x) for w, p in zip(self.weights, self.parts, strict=True))

    def logpdf(self, x):
        parts = zip(self.weights, self.parts, strict=True)
        return special.logsumexp([np.log(w) + p.logpdf(x) for w, p in parts], axis=0)

    def logpmf(self, x):
        parts = zip(self.weights, self.parts, strict=True)
        return np.log(sum(w * p.pmf(x) for w, p in parts))


class Cut:
    """A distribution of SciPy between two values, both included."""

    def __init__(self, whole, low, high):
        self.whole, self.low, self.high = whole, low, high
        self.below = whole.cdf(low - 1 if hasattr(whole, "pmf") else low)
        self.mass = whole.cdf(high) - self.below

    def cdf(self, x):
        inside = (self.whole.cdf(np.minimum(x, self.high)) - self.below) / self.mass
        return np.where(x < self.low, 0.0, inside)

    def logpdf(self, x):
        return self.whole.logpdf(x) - np.log(self.mass)

    def logpmf(self, x):
        return self.whole.logpmf(x) - np.log(self.mass)


def dirac():
    return Known(lambda x: np.where(x >= 2, 1.0, 0.0))


CONTINUOUS = {
    "Normal": (lambda n: pm.Normal(n, 1.0, 2.0), stats.norm(1.0, 2.0)),
    "HalfNormal": (lambda n: pm.HalfNormal(n, 2.0), stats.halfnorm(scale=2.0)),
    "Uniform": (lambda n: pm.Uniform(n, -1.0, 3.0), stats.uniform(-1.0, 4.0)),
    "TruncatedNormal": (
        lambda n: pm.TruncatedNormal(n, 1.0, 2.0, lower=-1.0, upper=4.0),
        stats.truncnorm(-1.0, 1.5, 1.0, 2.0),
    ),
    "Beta": (lambda n: pm.Beta(n, 2.0, 0.5), stats.beta(2.0, 0.5)),
    "Kumaraswamy": (
        lambda n: pm.Kumaraswamy(n, 2.0, 3.0),
        Known(lambda x: 1.0 - (1.0 - x**2.0) ** 3.0),
    ),
    "Exponential": (lambda n: pm.Exponential(n, 2.0), stats.expon(scale=0.5)),
    "Laplace": (lambda n: pm.Laplace(n, 1.0, 2.0), stats.laplace(1.0, 2.0)),
    "StudentT": (lambda n: pm.StudentT(n, nu=3.0, mu=1.0, sigma=2.0), stats.t(3.0, 1.0, 2.0)),
    "HalfStudentT": (
        lambda n: pm.HalfStudentT(n, nu=3.0, sigma=2.0),
        Known(lambda x: 2.0 * stats.t.cdf(x, 3.0, scale=2.0) - 1.0),
    ),
    "Cauchy": (lambda n: pm.Cauchy(n, 1.0, 2.0), stats.cauchy(1.0, 2.0)),
    "HalfCauchy": (lambda n: pm.HalfCauchy(n, 2.0), stats.halfcauchy(scale=2.0)),
    "Gamma": (lambda n: pm.Gamma(n, 0.5, 2.0), stats.gamma(0.5, scale=0.5)),
    "InverseGamma": (lambda n: pm.InverseGamma(n, 3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "Weibull": (lambda n: pm.Weibull(n, 2.0, 3.0), stats.weibull_min(2.0, scale=3.0)),
    "LogNormal": (lambda n: pm.LogNormal(n, 0.5, 2.0), stats.lognorm(2.0, scale=np.exp(0.5))),
    "ChiSquared": (lambda n: pm.ChiSquared(n, 3.0), stats.chi2(3.0)),
    "Pareto": (lambda n: pm.Pareto(n, 3.0, 2.0), stats.pareto(3.0, scale=2.0)),
    "Gumbel": (lambda n: pm.Gumbel(n, 1.0, 2.0), stats.gumbel_r(1.0, 2.0)),
    "Logistic": (lambda n: pm.Logistic(n, 1.0, 2.0), stats.logistic(1.0, 2.0)),
    "LogitNormal": (
        lambda n: pm.LogitNormal(n, 0.5, 2.0),
        Known(lambda x: stats.norm.cdf(special.logit(x), 0.5, 2.0)),
    ),
    "Moyal": (lambda n: pm.Moyal(n, 1.0, 2.0), stats.moyal(1.0, 2.0)),
    "Triangular": (
        lambda n: pm.Triangular(n, lower=-1.0, c=0.0, upper=3.0),
        stats.triang(0.25, -1.0, 4.0),
    ),
    "truncated Gamma": (
        lambda n: pm.Truncated(n, pm.Gamma.dist(2.0, 0.5), lower=1.0, upper=6.0),
        Cut(stats.gamma(2.0, scale=2.0), 1.0, 6.0),
    ),
    "truncated above": (
        lambda n: pm.Truncated(n, pm.LogNormal.dist(0.0, 1.0), upper=2.0),
        Cut(stats.lognorm(1.0), 0.0, 2.0),
    ),
    "own distribution": (
        lambda n: pm.CustomDist(n, 0.5, dist=lambda m, size: pt.exp(pm.Normal.dist(m, size=size))),
        stats.lognorm(1.0, scale=np.exp(0.5)),
    ),
}

#: Continuous families that are not turned into each other in order.
SHUFFLED = {
    "Wald": (
        lambda n: pm.Wald(n, mu=1.5, lam=2.0, alpha=0.5),
        stats.invgauss(0.75, loc=0.5, scale=2.0),
    ),
    "SkewNormal": (
        lambda n: pm.SkewNormal(n, mu=1.0, sigma=2.0, alpha=3.0),
        stats.skewnorm(3.0, 1.0, 2.0),
    ),
    "VonMises": (lambda n: pm.VonMises(n, 2.0, 3.0), Known(lambda x: _circular(x, 2.0, 3.0))),
    "mixture of normals": (
        lambda n: pm.NormalMixture(n, w=[0.3, 0.7], mu=[0.0, 3.0], sigma=[1.0, 0.5]),
        Mixed([0.3, 0.7], [stats.norm(), stats.norm(3.0, 0.5)]),
    ),
    "mixture of others": (
        lambda n: pm.Mixture(n, w=[0.2, 0.8], comp_dists=[pm.Gamma.dist(2, 1), pm.Wald.dist(1, 2)]),
        Mixed([0.2, 0.8], [stats.gamma(2.0), stats.invgauss(0.5, scale=2.0)]),
    ),
}

DISCRETE = {
    "Poisson": (lambda n: pm.Poisson(n, 3.5), stats.poisson(3.5)),
    "Binomial": (lambda n: pm.Binomial(n, 7, 0.3), stats.binom(7, 0.3)),
    "NegativeBinomial": (
        lambda n: pm.NegativeBinomial(n, mu=3.0, alpha=2.0),
        stats.nbinom(2.0, 0.4),
    ),
    "Bernoulli": (lambda n: pm.Bernoulli(n, 0.3), stats.bernoulli(0.3)),
    "DiscreteUniform": (lambda n: pm.DiscreteUniform(n, 2, 6), stats.randint(2, 7)),
    "Geometric": (lambda n: pm.Geometric(n, 0.2), stats.geom(0.2)),
    "Categorical": (
        lambda n: pm.Categorical(n, [0.2, 0.3, 0.5]),
        stats.rv_discrete(values=([0, 1, 2], [0.2, 0.3, 0.5])),
    ),
    "DiracDelta": (lambda n: pm.DiracDelta(n, 2), dirac()),
    "truncated Poisson": (
        lambda n: pm.Truncated(n, pm.Poisson.dist(2.0), lower=1),
        Cut(stats.poisson(2.0), 1, 10**6),
    ),
    "truncated Geometric": (
        lambda n: pm.Truncated(n, pm.Geometric.dist(0.2), lower=2, upper=5),
        Cut(stats.geom(0.2), 2, 5),
    ),
}


def _circular(x, mu, kappa):
    """Distribution function of von Mises on (-pi, pi], which starts at -pi."""
    low = stats.vonmises.cdf(-np.pi, kappa, loc=mu)
    return stats.vonmises.cdf(x, kappa, loc=mu) - low


@functools.cache
def single(name: str) -> PriorTransform:
    return cube_of(lambda: (CONTINUOUS | SHUFFLED | DISCRETE)[name][0]("x"))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantiles_invert_the_distribution_function(name):
    cube, known = single(name), CONTINUOUS[name][1]
    assert cube.fallback == {}
    assert cube.log_density(GRID[:, None]) is None
    np.testing.assert_allclose(known.cdf(column(cube)), GRID, rtol=1e-7)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_quantiles_are_the_first_to_reach_the_level(name):
    cube, known = single(name), DISCRETE[name][1]
    x = column(cube)
    assert cube.fallback == {}
    assert x.dtype.kind == "i" or name == "truncated Geometric"  # floats for PyMC
    assert np.all(known.cdf(x) >= GRID * (1 - 1e-12))
    assert np.all(known.cdf(x - 1) <= GRID * (1 + 1e-12))


@pytest.mark.parametrize(
    "name",
    [n for n, (_, d) in (CONTINUOUS | SHUFFLED | DISCRETE).items() if not isinstance(d, Known)],
)
def test_log_prior_is_the_density_of_the_variable(name):
    cube, known = single(name), (CONTINUOUS | SHUFFLED | DISCRETE)[name][1]
    x = column(cube)
    log = known.logpmf(x) if name in DISCRETE else known.logpdf(x)
    np.testing.assert_allclose(cube.log_prior(GRID[:, None]), log, rtol=1e-6, atol=1e-8)


# --- several variables --------------------------------------------------------------------------


def hierarchy():
    mu = pm.Normal("mu", 1.0, 2.0)
    tau = pm.HalfNormal("tau", 3.0)
    pm.Normal("theta", mu, tau, shape=(2, 3))
    pm.Poisson("k", pm.math.exp(mu / 4.0))


def test_children_are_drawn_given_their_parents():
    cube = cube_of(hierarchy)
    u = uniform(cube, 500)
    values, possible = cube.values(u)
    assert possible.all()
    assert cube.shapes == {"mu": (), "tau": (), "theta": (2, 3), "k": ()}
    mu, tau = stats.norm.ppf(u[:, 0], 1.0, 2.0), stats.halfnorm.ppf(u[:, 1], scale=3.0)
    theta = mu[:, None] + tau[:, None] * special.ndtri(u[:, 2:8])
    np.testing.assert_allclose(values["mu"], mu, rtol=1e-10)
    np.testing.assert_allclose(values["theta"].reshape(500, 6), theta, rtol=1e-9)
    np.testing.assert_array_equal(values["k"], stats.poisson.ppf(u[:, 8], np.exp(mu / 4.0)))
    log = stats.norm.logpdf(mu, 1.0, 2.0) + stats.halfnorm.logpdf(tau, scale=3.0)
    log += stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1)
    log += stats.poisson.logpmf(values["k"], np.exp(mu / 4.0))
    np.testing.assert_allclose(cube.log_prior(u), log, rtol=1e-9)


def test_multivariate_normal():
    mean, cov = (
        np.array([1.0, -2.0, 0.5]),
        np.array([[2.0, 0.8, 0.1], [0.8, 1.0, -0.3], [0.1, -0.3, 0.5]]),
    )
    cube = cube_of(lambda: pm.MvNormal("x", mean, cov))
    u = uniform(cube, 4000)
    x = cube.values(u)[0]["x"]
    gap = np.linalg.solve(np.linalg.cholesky(cov), (x - mean).T)
    assert stats.kstest((gap**2).sum(axis=0), stats.chi2(3).cdf).pvalue > 1e-3
    se = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(x))
    assert np.all(np.abs(np.cov(x.T) - cov) < 4.0 * se)
    np.testing.assert_allclose(cube.log_prior(u), stats.multivariate_normal(mean, cov).logpdf(x))


def test_dirichlet():
    a = np.array([0.5, 2.0, 3.0, 1.0])
    cube = cube_of(lambda: pm.Dirichlet("p", a))
    assert cube.n_dim == 3
    u = uniform(cube, 4000)
    p = cube.values(u)[0]["p"]
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)
    for k in range(4):
        assert stats.kstest(p[:, k], stats.beta(a[k], a.sum() - a[k]).cdf).pvalue > 1e-3
    assert stats.kstest(p[:, 1] + p[:, 3], stats.beta(3.0, 3.5).cdf).pvalue > 1e-3
    log = [stats.dirichlet(a).logpdf(row[:-1]) for row in p]
    np.testing.assert_allclose(cube.log_prior(u), log)


def test_the_faces_of_the_cube_are_finite():
    def write():
        pm.Normal("a", 0.0, pm.HalfCauchy("b", 1.0))
        pm.Pareto("c", 0.01, 1.0)
        pm.InverseGamma("d", 0.1, 1.0)
        pm.Geometric("e", 1e-4)

    cube = cube_of(write)
    for edge in (2.0**-53, 1.0 - 2.0**-53):
        values, possible = cube.values(np.full((1, cube.n_dim), edge))
        assert possible.all()
        assert all(np.isfinite(v).all() for v in values.values())


def test_impossible_parameters_spoil_their_own_point_only():
    def write():
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("b", 0.0, a)
        pm.Poisson("k", a)

    cube = cube_of(write)
    u = np.array([[0.9, 0.5, 0.5], [0.1, 0.5, 0.5], [0.8, 0.5, 0.5]])
    values, possible = cube.values(u)
    assert possible.tolist() == [True, False, True]
    assert np.isfinite(values["b"]).tolist() == [True, False, True]
    assert values["k"][1] == 0
    assert np.isfinite(cube.log_prior(u)).tolist() == [True, False, True]
    assert cube._variables[1]._graph.fallback is None


# --- reference densities ------------------------------------------------------------------------


def weighted(cube: PriorTransform, n: int = 20_000):
    """Values and weights at uniform points; the weights average to one within 4 standard errors."""
    u = uniform(cube, n)
    w = np.exp(cube.log_density(u))
    assert abs(w.mean() - 1.0) < 4.0 * w.std() / np.sqrt(n)
    assert w.sum() ** 2 / (w**2).sum() > 0.3 * n
    return cube.values(u)[0], w


def assert_mean(f: np.ndarray, w: np.ndarray, wanted: float) -> None:
    mean = (w * f).sum() / w.sum()
    se = np.sqrt(np.sum((w * (f - mean)) ** 2)) / w.sum()
    assert abs(mean - wanted) < 4.0 * se


@pytest.mark.parametrize(
    ("name", "mean"), [("Wald", 2.0), ("SkewNormal", 1.0 + 6.0 / np.sqrt(5.0 * np.pi)), ("mixture of others", 1.2)]
)  # fmt: skip
def test_families_without_quantiles_are_weighted(name, mean):
    cube = single(name)
    assert list(cube.fallback) == ["x"]
    values, w = weighted(cube)
    assert_mean(values["x"], w, mean)


def test_random_walk():
    def write():
        pm.GaussianRandomWalk("x", sigma=0.5, init_dist=pm.Normal.dist(1.0, 2.0), steps=3)

    cube = cube_of(write)
    assert cube.fallback == {"x": "RandomWalk is multivariate"}
    values, w = weighted(cube)
    x = values["x"]
    for k in range(4):
        assert_mean(x[:, k], w, 1.0)
        assert_mean((x[:, k] - 1.0) ** 2, w, 4.0 + 0.25 * k)
    assert_mean((x[:, 0] - 1.0) * (x[:, 3] - 1.0), w, 4.0)


def test_ordered_variables():
    cube = cube_of(lambda: pm.Normal("x", 0.0, 1.0, shape=3, transform=ordered))
    assert cube.fallback == {"x": "ordered by its transform"}
    values, w = weighted(cube)
    x = values["x"]
    assert np.all(np.diff(x) >= 0.0)
    largest = 1.5 / np.sqrt(np.pi)  # mean of the largest of three
    assert_mean(x[:, 0], w, -largest)
    assert_mean(x[:, 1], w, 0.0)
    assert_mean(x[:, 2], w, largest)
    u = uniform(cube, 5)
    log = np.log(6.0) + stats.norm.logpdf(cube.values(u)[0]["x"]).sum(axis=1)
    np.testing.assert_allclose(cube.log_prior(u), log)


def own_logp(value, mu):
    return -pt.abs(value - mu) - np.log(2.0)


@pytest.mark.skipif(
    pm.__version__.startswith("6.3."), reason="the LKJ density of PyMC 6.3 is not normalised"
)
def test_correlation_matrix():
    def write():
        chol, _, _ = pm.LKJCholeskyCov("c", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        pm.Deterministic("first", chol[0, 0])

    cube = cube_of(write)
    assert list(cube.fallback) == ["c"]
    values, w = weighted(cube)
    assert_mean(values["c"][:, 0] ** 2, w, 1.0)
    correlation = values["c"][:, 1] / np.hypot(values["c"][:, 1], values["c"][:, 2])
    assert_mean(correlation**2, w, 1.0 / 5.0)


def test_potentials_belong_to_the_prior():
    def write():
        x = pm.Normal("x", 0.0, 1.0)
        pm.Potential("pull", -0.5 * (x - 2.0) ** 2)

    cube = cube_of(write)
    assert cube.fallback == {"pull": "a pm.Potential"}
    u = uniform(cube, 100)
    x = cube.values(u)[0]["x"]
    np.testing.assert_allclose(cube.log_density(u), -0.5 * (x - 2.0) ** 2)
    np.testing.assert_allclose(cube.log_prior(u), stats.norm.logpdf(x) - 0.5 * (x - 2.0) ** 2)


# --- bad models ---------------------------------------------------------------------------------


def unnamed_parameter():
    pm.Normal("x", pm.Normal.dist(), 1.0)


def unnamed_in_potential():
    pm.Potential("extra", pm.Normal("x") * pm.Normal.dist())


def cannot_be_drawn():
    pm.CustomDist("x", 0.0, logp=own_logp)


def named_dimensions_without_quantiles():
    import pymc.dims as pmd

    pm.modelcontext(None).add_coord("group", ["a", "b"])
    pmd.ZeroSumNormal("x", 1.0, core_dims="group", dims="group")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: pm.Flat("x"), "'x' has an improper prior .Flat."),
        (lambda: pm.HalfFlat("x"), "'x' has an improper prior .HalfFlat."),
        (lambda: pm.Multinomial("x", 3, [0.5, 0.5]), "'x' has a prior whose quantiles"),
        (lambda: pm.Normal("x", transform=Interval(0.0, 1.0)), "transform of 'x' cannot reach"),
        (
            lambda: pm.Normal("x", shape=2, transform=pm.distributions.transforms.log),
            "transform of 'x' cannot reach",
        ),
        (
            lambda: pm.Normal("x", mu=[0.0, 1.0], transform=ordered),
            "'x' is ordered by its transform, which cuts",
        ),
        (unnamed_parameter, "'x' draws random numbers"),
        (unnamed_in_potential, "'extra' draws random numbers"),
        (cannot_be_drawn, "the prior of 'x' cannot be drawn"),
        (named_dimensions_without_quantiles, "'x' has named dimensions and no quantile"),
    ],
)
def test_bad_priors_are_refused_by_name(write, message):
    with pytest.raises(ValueError, match=message):
        cube_of(write)


# --- evaluation ---------------------------------------------------------------------------------


def test_shared_data_are_read_once():
    with pm.Model() as model:
        scale = pm.Data("scale", 2.0)
        pm.Normal("x", 0.0, scale)
    cube = PriorTransform(model, {})
    before = column(cube)
    model.set_data("scale", 5.0)
    np.testing.assert_array_equal(column(cube), before)
    np.testing.assert_allclose(before, 2.0 * special.ndtri(GRID), atol=1e-12)


def test_pickled_cubes_give_the_same():
    cube = cube_of(hierarchy)
    u = uniform(cube, 20)
    fresh = cloudpickle.loads(cloudpickle.dumps(cube))
    used = cube.values(u)[0]
    for other in (fresh, cloudpickle.loads(cloudpickle.dumps(cube))):
        for name, x in other.values(u)[0].items():
            np.testing.assert_array_equal(x, used[name])
    np.testing.assert_array_equal(fresh.log_prior(u), cube.log_prior(u))


def square():
    x = pt.vector("x", shape=(3,))
    return Batched([x], [x**2, x.sum()])


X = np.arange(12.0).reshape(4, 3)


def test_batches_are_evaluated_at_once():
    found = square()
    a, b = found([X], 4)
    np.testing.assert_array_equal(a, X**2)
    np.testing.assert_array_equal(b, X.sum(axis=1))
    assert found.fallback is None


def test_a_batch_with_other_values_is_noticed(monkeypatch):
    right = graphs.vectorize_graph
    monkeypatch.setattr(
        graphs, "vectorize_graph", lambda outputs, swap: [o + 1e-4 for o in right(outputs, swap)]
    )
    found = square()
    np.testing.assert_array_equal(found([X], 4)[0], X**2)
    assert found.fallback == "ValueError: the graph gives other values for a batch"


def test_discrete_parents_pick_elements():
    def write():
        z = pm.Categorical("z", [0.25, 0.75])
        pm.Normal("x", pt.as_tensor([-5.0, 5.0])[z], 1.0)

    cube = cube_of(write)
    u = uniform(cube, 100)
    values, _ = cube.values(u)
    np.testing.assert_array_equal(values["z"], u[:, 0] > 0.25)
    np.testing.assert_allclose(values["x"], 10.0 * values["z"] - 5.0 + special.ndtri(u[:, 1]))


def test_elements_have_their_own_parameters():
    cube = cube_of(lambda: pm.Gamma("x", alpha=[[1.0], [2.0]], beta=[1.0, 2.0, 4.0]))
    assert cube.shapes == {"x": (2, 3)}
    u = uniform(cube, 50)
    wanted = stats.gamma.ppf(
        u.reshape(50, 2, 3), [[1.0], [2.0]], scale=1.0 / np.array([1.0, 2.0, 4.0])
    )
    np.testing.assert_allclose(cube.values(u)[0]["x"], wanted, rtol=1e-9)
