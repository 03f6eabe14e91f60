"""Which variables are Gaussian given the others, however a model is written, and prior times surrogate of such models."""

import numpy as np
import pymc as pm
import pytest

from pymc.distributions.transforms import ordered

from amc_pymc.reading.densities import ModelDensities, parts_of
from amc_pymc.tall.refresh import log_surface
from amc_pymc.tall.samplers.fit import SurfaceFit, surface_at
from amc_pymc.tall.surrogate import surrogate_at
from amc_pymc.tall.terms import split

N, K, G, H = 400, 5, 12, 6
_rng = np.random.default_rng(1)
X, Y = _rng.normal(size=(N, K)), _rng.normal(size=N)
G1, G2 = _rng.permutation(N) % G, _rng.permutation(N) % H
YES = (Y > 0.0).astype(int)
LEVEL = _rng.normal(size=G)  # of each group


def logistic(eta):
    pm.Bernoulli("y", logit_p=eta, observed=YES)


def normal(mu):
    pm.Normal("y", mu, pm.HalfNormal("s", 1.0), observed=Y)


def scale(name="sd", **kwargs):
    return pm.HalfNormal(name, 1.0, **kwargs)


def first(sigma):
    return pm.GaussianRandomWalk("u", sigma=sigma, init_dist=pm.Normal.dist(0.0, 1.0), shape=G)


def cholesky():
    return pm.LKJCholeskyCov("c", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))[0]


# --- ways of writing a model ----------------------------------------------------------------------


def horseshoe():
    tau, lam = pm.HalfCauchy("tau", 0.1), pm.HalfCauchy("lam", 1.0, shape=K)
    logistic(pm.Normal("a", 0.0, 2.0) + X @ (tau * lam * pm.Normal("z", shape=K)))


def not_centred():
    sd = scale(shape=2)
    u, w = pm.Normal("u", shape=G), pm.Normal("w", shape=H)
    normal(sd[0] * u[G1] + sd[1] * w[G2] + X @ pm.Normal("b", shape=K))


def scaled_before_indexing():
    sd, u = scale(), pm.Normal("u", shape=G)
    normal((pm.Normal("mu") + sd * u)[G1])


def population_mean():
    u = pm.Normal("u", pm.Normal("mu") + pm.Normal("slope") * LEVEL, scale(), shape=G)
    normal(u[G1])


def random_walk():
    normal(first(scale())[G1])


def autoregression_of_unknown_strength():
    rho = pm.Uniform("rho", -1.0, 1.0)
    u = pm.AR("u", rho=[rho], sigma=scale(), init_dist=pm.Normal.dist(0.0, 1.0), shape=G)
    normal(u[G1])


def icar():
    near = np.diag(np.ones(G - 1), 1)
    normal(scale() * pm.ICAR("u", W=near + near.T, sigma=1.0)[G1])


def laplace():
    logistic(X @ pm.Laplace("b", 0.0, scale(), shape=K))


def student_as_mixture():
    v = pm.InverseGamma("v", 2.0, 2.0, shape=K)
    logistic(X @ (scale() * pm.math.sqrt(v) * pm.Normal("z", shape=K)))


def correlated():
    b = pm.Normal("z", shape=(G, 2)) @ cholesky().T
    logistic(b[G1, 0] + b[G1, 1] * X[:, 0])


def hsgp():
    eta, length = scale("eta"), pm.InverseGamma("length", 5.0, 2.0)
    gp = pm.gp.HSGP(m=[6], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=length))
    logistic(gp.prior("f", X=np.linspace(-1.0, 1.0, G)[:, None])[G1])


def r2d2():
    sd, r2, phi = scale("s"), pm.Beta("r2", 2.0, 2.0), pm.Dirichlet("phi", np.ones(K))
    b = pm.Normal("z", shape=K) * pm.math.sqrt(phi * r2 / (1.0 - r2)) * sd
    pm.Normal("y", X @ b, sd, observed=Y)


def gamma_precision():
    normal(pm.Normal("u", 0.0, tau=pm.Gamma("tau", 2.0, 1.0), shape=G)[G1])


def with_a_name_in_between():
    b = pm.Deterministic("b", pm.Normal("mu") + scale() * pm.Normal("z", shape=G))
    normal(pm.Deterministic("eta", b[G1] + X[:, 0]))


def shared_sd():
    sd = scale()
    normal(sd * pm.Normal("u", shape=G)[G1] + pm.Normal("w", 0.0, sd, shape=H)[G2])


def mixture_of_normals():
    b = pm.NormalMixture("b", [0.5, 0.5], [0.0, 0.0], pm.math.stack([0.1, scale()]), shape=K)
    logistic(X @ b)


def cubic():
    b = pm.Normal("b", 0.0, scale(), shape=K)
    pm.Potential("skew", -0.05 * pm.math.sum(b**3))
    logistic(X @ b)


def product_of_coefficients():
    """Item response: either factor of a product is Gaussian given the other; the longer one is drawn."""
    u, w = pm.Normal("u", 0.0, scale(), shape=G), pm.Normal("w", 1.0, 0.5, shape=H)
    logistic(u[G1] * w[G2])


def ordered_cuts():
    cuts = pm.Normal("cuts", 0.0, 2.0, shape=2, initval=[-1.0, 1.0], transform=ordered)
    u = pm.Normal("u", 0.0, scale(), shape=G)
    pm.OrderedLogistic("y", eta=u[G1], cutpoints=cuts, observed=np.digitize(Y, [-0.5, 1.0]))


def complement():
    """Differences of probabilities of levels are no coefficients."""
    u = pm.Normal("u", 0.0, scale(), shape=G)
    pm.Bernoulli("y", p=1.0 - pm.math.sigmoid(u[G1]), observed=YES)


def curve():
    """A rate of each level within a nonlinear function of data is no coefficient, but the height of the curve is."""
    height = pm.Normal("mu") + scale() * pm.Normal("z", shape=G)
    normal(height[G1] * pm.math.exp(-pm.HalfNormal("rate", 1.0) * X[:, 0] ** 2))


#: Variables that are Gaussian given the others, and hyperparameters; rows read the others ("s", "cuts", "rate") directly.
MODELS = {
    horseshoe: ("z a", "tau lam"),
    not_centred: ("u w b", "sd"),
    scaled_before_indexing: ("mu u", "sd"),
    population_mean: ("mu slope u", "sd"),
    random_walk: ("u", "sd"),
    autoregression_of_unknown_strength: ("u", "rho sd"),
    icar: ("u", "sd"),
    laplace: ("", "sd b"),
    student_as_mixture: ("z", "v sd"),
    correlated: ("z", "c"),
    hsgp: ("f_hsgp_coeffs", "eta length"),
    r2d2: ("z", "s r2 phi"),
    gamma_precision: ("u", "tau"),
    with_a_name_in_between: ("mu z", "sd"),
    shared_sd: ("u w", "sd"),
    mixture_of_normals: ("", "sd b"),
    cubic: ("", "sd b"),
    product_of_coefficients: ("u", "w sd"),
    ordered_cuts: ("u", "sd"),
    complement: ("u", "sd"),
    curve: ("mu z", "sd"),
}


@pytest.fixture(scope="module", params=MODELS, ids=lambda build: build.__name__)
def problem(request):
    """A model's densities, the parts of its prior, and their division."""
    with pm.Model() as model:
        request.param()
    densities = ModelDensities(model)
    parts = parts_of(densities)
    assert parts is not None
    layout, x = densities.layout, densities.ravel(model.initial_point())
    blocks = [np.r_[s] for s in layout.slices.values()]
    return request.param, densities, parts, split(parts, blocks, x, np.random.default_rng(0))


def names_of(layout, coordinates):
    """Names of variables, all of whose coordinates are given."""
    names = [n for n, s in layout.slices.items() if np.isin(np.r_[s], coordinates).all()]
    assert layout.indices(names).size == coordinates.size
    return {n.split("_")[0] if n.endswith("__") else n for n in names}


def test_what_is_gaussian_given_the_others(problem):
    build, densities, _, found = problem
    inner, outer = (set(names.split()) for names in MODELS[build])
    layout = densities.layout
    assert names_of(layout, found.inner) == inner
    assert names_of(layout, found.outer) == outer
    assert names_of(layout, found.nearly) <= {"s", "cuts", "rate"}


def as_it_is(x):
    return x


def test_prior_times_surrogate_is_that_of_the_model(problem):
    """By PyTensor's prior, and by the expansion of rows; where what rows read beside coefficients stays as it is."""
    _, densities, parts, found = problem
    raced, coefficients = densities.raced, densities.packed.coefficients
    eta = as_it_is if coefficients is None else coefficients.evaluate
    rng, start = (
        np.random.default_rng(2),
        0.3 * np.random.default_rng(3).normal(size=densities.layout.size),
    )

    surrogate = surrogate_at(raced, eta(start))
    hessian = -surrogate.hessian @ surrogate.hessian  # without negative eigenvalues
    surrogate = surrogate._replace(hessian=hessian / max(1.0, np.abs(hessian).max()))
    surface = surface_at(densities, parts, found, start, surrogate)
    mass = np.eye(found.outer.size)
    refresh = SurfaceFit(surface, mass, 0.1, 10, np.empty((0, start.size))).moves()
    moved = np.concatenate([found.inner, found.outer])
    values = []
    for _ in range(4):
        x = start.copy()
        x[moved] += 0.3 * rng.normal(size=moved.size)
        shift = eta(x) - surrogate.centre
        expected = surrogate.gradient @ shift + 0.5 * shift @ surrogate.hessian @ shift
        expected += densities.rest_value_and_gradient(x)[0]
        values.append([log_surface(x, refresh), expected])
    values = np.diff(values, axis=0)
    assert np.abs(values[:, 1]).min() > 1e-3
    np.testing.assert_allclose(values[:, 0], values[:, 1], rtol=1e-7, atol=1e-7)


def test_rows_are_functions_of_coefficients(problem):
    _, densities, _, _ = problem
    units, rng = np.arange(N), np.random.default_rng(4)
    for _ in range(3 if densities.packed.coefficients is not None else 0):
        x = 0.5 * rng.normal(size=densities.layout.size)
        rows = densities.rows(densities.rows.layout.unravel(x), units)
        np.testing.assert_allclose(densities.values(x, units), rows, rtol=1e-9, atol=1e-12)
