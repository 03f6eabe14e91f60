"""A zoo of small PyMC models, one per shape a likelihood takes in the wild.

Every function takes ``(n_rows, rng)``, adds variables to the model of the context, and is deterministic given `rng`. The
models are tiny (two or three covariates, a handful of groups), so that what a test measures is the
shape of the graph, not the size of the data. `ZOO` maps a name to an `Entry`:

* an *accepted* entry has a likelihood that is a sum over rows, each row needing only its own data and
  the parameters;
* a *refused* entry has none, and asking for its rows must raise, naming `Entry.mentions`;
* an *either* entry is a sum over rows whose graph hides it (a concatenation, a reversed latent): a
  refusal is honest and right values are fine, wrong values never are.
"""

from __future__ import annotations

import warnings

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt

Filler = Callable[[int, np.random.Generator], None]


@dataclass(frozen=True)
class Entry:
    """One model of the zoo and what is known about its rows."""

    name: str
    build: Callable[[int, np.random.Generator], pm.Model]
    refused: bool = False
    mentions: str = ""
    """What a refusal must name: the offending variable, or a word when there is none."""
    either: bool = False
    observed: tuple[str, ...] = ("y",)
    """The observed variables that are raced by default, in the order of the model."""
    observed_arg: tuple[str, ...] | None = None
    """What to pass as `observed_vars`."""
    discrete: dict[str, int] = field(default_factory=dict)
    """Free integer variables, to be drawn from ``range(high)`` in a random point."""


ZOO: dict[str, Entry] = {}


def accepted(**kwargs) -> Callable[[Filler], None]:
    def register(fill: Filler) -> None:
        def build(n_rows: int, rng: np.random.Generator) -> pm.Model:
            with pm.Model() as model:
                fill(n_rows, rng)
            return model

        assert fill.__name__ not in ZOO, f"two models of the zoo are called {fill.__name__}"
        ZOO[fill.__name__] = Entry(name=fill.__name__, build=build, **kwargs)

    return register


def refused(mentions: str, **kwargs) -> Callable[[Filler], None]:
    """Register a model that has no rows; the refusal must contain `mentions`."""
    return accepted(refused=True, mentions=mentions, **kwargs)


def either(**kwargs) -> Callable[[Filler], None]:
    """Register a model that may be refused, but must not give wrong values."""
    return accepted(either=True, **kwargs)


def names(kind: str) -> list[str]:
    """Names of the ``"accepted"``, ``"refused"`` or ``"either"`` entries."""
    of = {
        "accepted": lambda e: not e.refused and not e.either,
        "refused": lambda e: e.refused,
        "either": lambda e: e.either,
    }[kind]
    return [name for name, entry in ZOO.items() if of(entry)]


def build(name: str, n_rows: int = 300, seed: int = 20261121) -> pm.Model:
    """Build the model `name` with a Generator of its own."""
    return ZOO[name].build(n_rows, np.random.default_rng([seed, sum(map(ord, name))]))


def _xy(n: int, rng: np.random.Generator, p: int = 2) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, p))
    return X, X @ np.linspace(-1.0, 1.0, p) + rng.normal(size=n)


# Regressions with one coefficient vector: where the data sit.


@accepted()
def logistic_data(n, rng):
    X, y = _xy(n, rng)
    X, y = pm.Data("X", X), pm.Data("labels", (y > 0).astype(int))
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Bernoulli("y", logit_p=X @ b, observed=y)


@accepted()
def logistic_constants(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    a = pm.Normal("a", 0, 1)
    pm.Bernoulli("y", logit_p=a + pt.dot(X, b), observed=y > 0)


@accepted()
def logistic_dims(n, rng):
    X, y = _xy(n, rng)
    pm.modelcontext(None).add_coords({"obs": np.arange(n), "feature": ["u", "v"]})
    X = pm.Data("X", X, dims=("obs", "feature"))
    b = pm.Normal("b", 0, 1, dims="feature")
    pm.Bernoulli("y", p=pm.math.invlogit(X @ b), observed=(y > 0).astype("int8"), dims="obs")


@accepted()
def transposed_layout(n, rng):
    X, y = _xy(n, rng)
    XT = pm.Data("XT", X.T.copy())
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", b @ XT, 1, observed=y)


@accepted()
def transposed_in_graph(n, rng):
    X, y = _xy(n, rng)
    XT = pm.Data("XT", X.T.copy())
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", XT.T @ b, 1, observed=y)


@accepted()
def column_shapes(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 1, shape=(2, 1))
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", X @ b, sigma, observed=y[:, None])


@accepted()
def column_times_row(n, rng):
    X, y = _xy(n, rng)
    x = pm.Data("x", X[:, 0])
    b = pm.Normal("b", 0, 1, shape=(1, 3))
    pm.Normal("y", x[:, None] * b + X[:, 1:], 1, observed=y[:, None] + np.zeros(3))


@accepted()
def standardised_in_graph(n, rng):
    X, y = _xy(n, rng)
    X, y = pm.Data("X", 3 + 2 * X), pm.Data("outcome", y)
    b = pm.Normal("b", 0, 1, shape=2)
    Z = (X - X.mean(0)) / X.std(0)
    pm.Normal("y", Z @ b, 1, observed=(y - y.mean()) / y.std())


@accepted()
def heteroscedastic(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    g = pm.Normal("g", 0, 0.3, shape=2)
    pm.Normal("y", X @ b, pt.exp(X @ g), observed=y)


@accepted()
def poisson_offset(n, rng):
    X, _ = _xy(n, rng)
    exposure = rng.uniform(1, 5, n)
    X, offset = pm.Data("X", X), pm.Data("offset", np.log(exposure))
    b = pm.Normal("b", 0, 0.5, shape=2)
    pm.Poisson("y", pt.exp(offset + X @ b), observed=rng.poisson(exposure))


@accepted()
def binomial_trials(n, rng):
    X, _ = _xy(n, rng)
    trials = rng.integers(1, 20, n)
    trials_ = pm.Data("trials", trials.astype("int8"))
    b = pm.Normal("b", 0, 0.5, shape=2)
    successes = rng.binomial(trials, 0.4)
    pm.Binomial("y", n=trials_, logit_p=X @ b, observed=successes)


# No covariate at all: the row axis comes from the observed values or from a shape.


@accepted()
def iid_normal(n, rng):
    mu = pm.Normal("mu", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", mu, sigma, observed=rng.normal(size=n))


@accepted()
def alloc_of_data_length(n, rng):
    y = pm.Data("outcome", rng.normal(size=n))
    mu = pm.Normal("mu", 0, 1)
    slope = pm.Normal("slope", 0, 1)
    t = pt.arange(y.shape[0]) / y.shape[0]
    pm.Normal("y", pt.zeros(y.shape[0]) + mu + slope * t, 1, observed=y, shape=y.shape)


@accepted()
def out_of_support(n, rng):
    """Some rows are impossible, at -inf, for most parameters."""
    theta = pm.LogNormal("theta", 0, 1)
    pm.Uniform("y", 0, theta, observed=rng.uniform(0, 2, n))


@accepted()
def number_that_equals_the_length(n, rng):
    """As many trials as rows: an integer that is N and not a length."""
    p = pm.Beta("p", 2, 2)
    pm.Binomial("y", n=n, p=p, observed=rng.binomial(n, 0.4, size=n))


# Gathers: hierarchical models.


@accepted()
def hierarchy_data(n, rng):
    pm.modelcontext(None).add_coords({"group": range(7)})
    group = pm.Data("group_idx", rng.integers(0, 7, n))
    tau = pm.HalfNormal("tau", 1)
    a = pm.Normal("a", 0, tau, dims="group")
    pm.Normal("y", a[group], 1, observed=rng.normal(size=n))


@accepted()
def hierarchy_nested(n, rng):
    region_of_group = np.array([0, 0, 1, 1, 2, 2, 2])
    group = pm.Data("group_idx", rng.integers(0, 7, n).astype("uint8"))
    region = pm.Normal("region", 0, 1, shape=3)
    z = pm.Normal("z", 0, 1, shape=7)
    a = region[region_of_group] + z
    pm.Normal("y", a[group], 1, observed=rng.normal(size=n))


@accepted()
def random_slopes(n, rng):
    X, y = _xy(n, rng)
    group = rng.integers(0, 5, n)
    X = pm.Data("X", X)
    B = pm.Normal("B", 0, 1, shape=(5, 2))
    c = pm.Normal("c", 0, 1, shape=(5, 4))
    column = rng.integers(0, 4, n)
    pm.Normal("y", (X * B[group]).sum(axis=1) + c[group, column], 1, observed=y)


@accepted()
def as_many_groups_as_rows(n, rng):
    """A latent vector as long as the data, gathered in another order: not one latent per row."""
    group = rng.integers(0, n, n)
    a = pm.Normal("a", 0, 1, shape=n)
    pm.Normal("y", a[group], 1, observed=rng.normal(size=n))


@accepted()
def random_walk_per_row(n, rng):
    level = pm.GaussianRandomWalk("level", sigma=0.3, init_dist=pm.Normal.dist(0, 1), shape=n)
    pm.Normal("y", level, 1, observed=rng.normal(size=n))


@accepted()
def latent_per_row(n, rng):
    X, _ = _xy(n, rng)
    pm.modelcontext(None).add_coords({"obs": range(n)})
    X = pm.Data("X", X, dims=("obs", None))
    b = pm.Normal("b", 0, 1, shape=2)
    u = pm.Normal("u", 0, 1, dims="obs")
    pm.Poisson("y", pt.exp(X @ b + u), observed=rng.poisson(1, n), dims="obs")


@accepted()
def latent_per_row_transformed(n, rng):
    scale = pm.HalfNormal("scale", 1)
    u = pm.Gamma("u", 2, 2, shape=n)
    pm.Normal("y", 0, scale / pt.sqrt(u), observed=rng.normal(size=n))


@accepted()
def latent_vectors_per_row(n, rng):
    pm.modelcontext(None).add_coords({"obs": range(n), "factor": range(2)})
    W = pm.Normal("W", 0, 1, shape=(2, 3))
    Z = pm.Normal("Z", 0, 1, dims=("obs", "factor"))
    pm.Normal("y", Z @ W, 1, observed=rng.normal(size=(n, 3)))


@accepted()
def simplex_per_row(n, rng):
    concentration = pm.HalfNormal("concentration", 2)
    p = pm.Dirichlet("p", concentration * np.ones(3), shape=(n, 3))
    pm.Multinomial("y", n=5, p=p, observed=rng.multinomial(5, [0.2, 0.3, 0.5], size=n))


# Discrete parameters.


@accepted(discrete={"change": 300, "flip": 2})
def discrete_free(n, rng):
    t = np.arange(n)
    change = pm.DiscreteUniform("change", 0, n)
    flip = pm.Bernoulli("flip", 0.5)
    rate = pm.Exponential("rate", 1, shape=2)
    mu = pt.switch(t < change, rate[0], rate[1]) + flip
    pm.Poisson("y", mu, observed=rng.poisson(1, n))


@accepted(discrete={"k": 3})
def discrete_latent_per_row(n, rng):
    pm.modelcontext(None).add_coords({"obs": range(n)})
    w = pm.Dirichlet("w", np.ones(3))
    centre = pm.Normal("centre", 0, 2, shape=3)
    k = pm.Categorical("k", w, dims="obs")
    pm.Normal("y", centre[k], 1, observed=rng.normal(size=n), dims="obs")


@accepted(discrete={"hidden": 2})
def discrete_latent_gathered(n, rng):
    """Binary unknowns that are as many as the rows, in another order; all alike at the start."""
    centre = pm.Normal("centre", 0, 2, shape=2)
    hidden = pm.Bernoulli("hidden", 0.3, shape=n)
    pm.Normal("y", centre[hidden[rng.permutation(n)]], 1, observed=rng.normal(size=n))


# Mixtures, and the other distributions whose logp hides in an inner graph.


@accepted()
def normal_mixture(n, rng):
    w = pm.Dirichlet("w", np.ones(3))
    mu = pm.Normal("mu", 0, 2, shape=3)
    sigma = pm.HalfNormal("sigma", 1, shape=3)
    pm.NormalMixture("y", w, mu, sigma, observed=rng.normal(size=n))


@accepted()
def mixture_of_regressions(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    w = pm.Dirichlet("w", np.ones(2))
    B = pm.Normal("B", 0, 1, shape=(2, 2))
    parts = [pm.Normal.dist(X @ B[0], 1.0), pm.StudentT.dist(4, mu=X @ B[1], sigma=2.0)]
    pm.Mixture("y", w=w, comp_dists=parts, observed=y)


@accepted()
def mixture_batched(n, rng):
    """One batched component with the parts along the last axis, weights that change per row."""
    X, y = _xy(n, rng)
    B = pm.Normal("B", 0, 1, shape=(2, 3))
    G = pm.Normal("G", 0, 1, shape=(2, 3))
    w = pm.math.softmax(X @ G, axis=-1)
    pm.Mixture("y", w=w, comp_dists=pm.Normal.dist(X @ B, 1.0), observed=y)


@accepted()
def zero_inflated_poisson(n, rng):
    X, _ = _xy(n, rng)
    psi = pm.Beta("psi", 2, 2)
    b = pm.Normal("b", 0, 0.5, shape=2)
    counts = rng.poisson(2, n) * rng.integers(0, 2, n)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(X @ b), observed=counts)


@accepted()
def ordered_logistic(n, rng):
    X, _ = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    cut = pm.Normal(
        "cut", 0, 2, shape=3, transform=pm.distributions.transforms.ordered,
        initval=np.array([-1.0, 0.0, 1.0]),
    )  # fmt: skip
    labels = rng.integers(0, 4, n)
    pm.OrderedLogistic("y", cutpoints=cut, eta=X @ b, observed=labels, compute_p=False)


@accepted()
def censored(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 1, shape=2)
    latent = pm.Normal.dist(X @ b, 1.0)
    pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=np.clip(y, -1, 1))


@accepted()
def censored_per_row(n, rng):
    limit = rng.uniform(0.5, 2, n)
    alpha = pm.HalfNormal("alpha", 2)
    lifetime = pm.Weibull.dist(alpha=alpha, beta=1.5)
    pm.Censored(
        "y", lifetime, lower=None, upper=limit, observed=np.minimum(rng.weibull(1, n), limit)
    )


@accepted()
def truncated(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    latent = pm.Normal.dist(X @ b, sigma)
    pm.Truncated("y", latent, lower=-2.0, upper=2.0, observed=np.clip(y, -1.9, 1.9))


def _laplace(value, mu, scale):
    return -pt.abs(value - mu) / scale - pt.log(2 * scale)


@accepted()
def custom_dist(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 1, shape=2)
    scale = pm.HalfNormal("scale", 1)
    pm.CustomDist("y", X @ b, scale, logp=_laplace, observed=y)


def _shifted(mu, sigma, size):
    return pm.math.exp(pm.Normal.dist(mu, sigma, size=size)) + 0.5


@accepted()
def custom_dist_derived(n, rng):
    """PyMC derives the density from the generative graph."""
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    pm.CustomDist("y", X @ b, sigma, dist=_shifted, observed=0.5 + np.exp(0.3 * y))


# Time series with observed lags.


@accepted()
def student_t_lags_data(n, rng):
    z = pm.Data("series", np.cumsum(rng.normal(size=n + 2)) * 0.3)
    b = pm.Normal("b", 0, 0.5, shape=2)
    nu = pm.Gamma("nu", 2, 0.1)
    sigma = pm.HalfNormal("sigma", 1)
    mu = b[0] * z[1:-1] + b[1] * z[:-2]
    pm.StudentT("y", nu, mu=mu, sigma=sigma, observed=z[2:])


# Several values per row, several observed variables, other terms of the model.


@accepted()
def mvnormal_lkj(n, rng):
    X, y = _xy(n, rng)
    B = pm.Normal("B", 0, 1, shape=(2, 2))
    chol, _, _ = pm.LKJCholeskyCov(
        "chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True
    )
    pm.MvNormal("y", X @ B, chol=chol, observed=y[:, None] + rng.normal(size=(n, 2)))


@accepted()
def categorical_softmax(n, rng):
    X, _ = _xy(n, rng)
    X = pm.Data("X", X)
    B = pm.Normal("B", 0, 1, shape=(2, 2))
    eta = pt.concatenate([pt.zeros((X.shape[0], 1)), X @ B], axis=1)
    p = pm.math.softmax(eta, axis=1)
    pm.Categorical("y", p=p, observed=rng.integers(0, 3, n))


@accepted()
def multinomial_rows(n, rng):
    p = pm.Dirichlet("p", np.ones(3))
    pm.Multinomial("y", n=5, p=p, observed=rng.multinomial(5, [0.2, 0.3, 0.5], size=n))


@accepted(observed=("count", "size"))
def two_observed(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 0.5, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Poisson("count", pt.exp(X @ b), observed=rng.poisson(1, n))
    pm.Normal("size", X @ b, sigma, observed=y)


@accepted(observed=("first", "second"))
def observed_as_covariate(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 0.5, shape=2)
    first = pm.Normal("first", pt.dot(X, b), 1, observed=y)
    slope = pm.Normal("slope", 0, 1)
    pm.Poisson("second", pt.exp(0.3 * slope * first), observed=rng.poisson(1, n))


@accepted(observed=("long",))
def unequal_lengths(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 0.5, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("short", b, sigma, observed=rng.normal(size=(20, 2)))
    pm.Normal("long", X @ b, 1, observed=y)


@accepted()
def with_potential(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Potential("repulsion", pt.log1p(pt.square(b[0] - b[1])))
    pm.Normal("y", X @ b, 1, observed=y)


@accepted()
def boolean_mask_of_data(n, rng):
    keep = rng.permutation(np.r_[np.ones(n, bool), np.zeros(50, bool)])
    X, y = _xy(n + 50, rng)
    X, y, keep = pm.Data("X", X), pm.Data("outcome", y), pm.Data("keep", keep)
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", X[keep.nonzero()] @ b, 1, observed=y[keep.nonzero()])


@accepted()
def xtensor_dims(n, rng):
    X, y = _xy(n, rng)
    pm.modelcontext(None).add_coords({"obs": range(n), "feature": ["u", "v"]})
    X = pmd.Data("X", X, dims=("obs", "feature"))
    y = pmd.Data("outcome", y, dims="obs")
    b = pmd.Normal("b", 0, 1, dims="feature")
    sigma = pmd.HalfNormal("sigma", 1)
    pmd.Normal("y", (X * b).sum("feature"), sigma, observed=y)


@accepted()
def xtensor_gather(n, rng):
    """Named dimensions, three outputs per row, an index vector that is a named Data."""
    _, y = _xy(n, rng)
    outcome = y[:, None] + rng.normal(size=(n, 3))
    pm.modelcontext(None).add_coords({"obs": range(n), "group": range(4), "out": range(3)})
    group = pmd.Data("group_idx", rng.integers(0, 4, n), dims="obs")
    y = pmd.Data("outcome", outcome, dims=("obs", "out"))
    a = pmd.Normal("a", 0, 1, dims=("group", "out"))
    pmd.Normal("y", a.isel(group=group), 1, observed=y)


# Rows that the graph hides: right or refused, never wrong.


@either()
def square_design(n, rng):
    """As many coefficients as rows: the row axis is ambiguous by length alone."""
    X = rng.normal(size=(n, n)) / np.sqrt(n)
    b = pm.Normal("b", 0, 1, shape=n)
    pm.Normal("y", pt.dot(X, b), 1, observed=rng.normal(size=n))


@either()
def square_output(n, rng):
    """As many columns as rows, with an effect of the column."""
    effect = pm.Normal("effect", 0, 1, shape=n)
    pm.Normal("y", effect, 1, observed=rng.normal(size=(n, n)))


@either()
def latent_reversed(n, rng):
    u = pm.Normal("u", 0, 1, shape=n)
    pm.Normal("y", u[::-1], 1, observed=rng.normal(size=n))


@either()
def latent_differences(n, rng):
    u = pm.Normal("u", 0, 1, shape=n + 1)
    pm.Normal("y", u[1:] - u[:-1], 1, observed=rng.normal(size=n))


@either()
def concatenated_halves(n, rng):
    a = pm.Normal("a", 0, 1, shape=2)
    first = n // 3
    mu = pt.concatenate([pt.full((first,), a[0]), pt.full((n - first,), a[1])])
    pm.Normal("y", mu, 1, observed=rng.normal(size=n))


@either()
def set_first_rows(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    shift = pm.Normal("shift", 0, 1)
    mu = pt.dot(X, b)
    pm.Normal("y", pt.set_subtensor(mu[:40], mu[:40] + shift), 1, observed=y)


@either()
def mask_of_parameters(n, rng):
    X, y = _xy(n + 50, rng)
    keep = rng.permutation(np.r_[np.ones(n, bool), np.zeros(50, bool)])
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", pt.dot(X, b)[keep], 1, observed=y[keep])


@either()
def rows_last(n, rng):
    """A likelihood of shape (2, N): its leading axis is not the rows."""
    mu = pm.Normal("mu", 0, 1, shape=(2, 1))
    pm.Normal("y", mu, 1, observed=rng.normal(size=(2, n)))


@either()
def latent_vectors_last(n, rng):
    """Latent vectors per row, with the rows along the second axis."""
    W = pm.Normal("W", 0, 1, shape=(3, 2))
    Z = pm.Normal("Z", 0, 1, shape=(2, n))
    pm.Normal("y", (W @ Z).T, 1, observed=rng.normal(size=(n, 3)))


@either(discrete={"hidden": 3})
def discrete_latent_reversed(n, rng):
    """All unknowns are alike at the initial point, where a wrong order would not show."""
    centre = pm.Normal("centre", 0, 2, shape=3)
    hidden = pm.Categorical("hidden", p=[0.2, 0.5, 0.3], shape=n)
    pm.Normal("y", centre[hidden[::-1]], 1, observed=rng.normal(size=n))


@either(discrete={"k": 300})
def table_as_long_as_the_data(n, rng):
    """Data of length N, looked up by a parameter and not by the row."""
    k = pm.DiscreteUniform("k", 0, n - 1)
    a = pm.Normal("a", 0, 1)
    table = pm.Data("table", rng.normal(size=n))
    pm.Normal("y", a * table[k], 1, observed=rng.normal(size=n))


@either()
def length_as_a_number(n, rng):
    """One symbolic N, as a length and as a factor."""
    y = pm.Data("outcome", rng.normal(size=n))
    a = pm.Normal("a", 0, 100)
    pm.Normal("y", pt.full((y.shape[0],), a / y.shape[0]), 1, observed=y)


# No row factorisation: must be refused.


@refused("series_ar")
def ar_likelihood(n, rng):
    rho = pm.Normal("rho", 0, 0.3, shape=2)
    pm.AR(
        "series_ar", rho, sigma=1.0, init_dist=pm.Normal.dist(0, 1, shape=2),
        observed=rng.normal(size=n),
    )  # fmt: skip


@refused("series_walk")
def random_walk_likelihood(n, rng):
    sigma = pm.HalfNormal("sigma", 1)
    pm.GaussianRandomWalk(
        "series_walk", sigma=sigma, init_dist=pm.Normal.dist(0, 1),
        observed=np.cumsum(rng.normal(size=n)),
    )  # fmt: skip


@refused("holes")
def missing_values_iid(n, rng):
    """No covariate: the observed part alone would come out as a shorter vector of rows."""
    y = rng.normal(size=n)
    y[::10] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("holes", mu, 1, observed=y)


@refused("centred")
def centred_by_parameters(n, rng):
    X, y = _xy(n, rng)
    X = pm.Data("X", X + 1)
    b = pm.Normal("b", 0, 1, shape=2)
    mu = X @ b
    pm.Normal("centred", mu - mu.mean(), 1, observed=y)


@refused("weakly_centred")
def centred_weakly(n, rng):
    """A dependence across rows that a loose tolerance would let through."""
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    mu = pt.dot(X + 1, b)
    pm.Normal("weakly_centred", mu - 1e-4 * mu.mean(), 1, observed=y)


@refused("competing")
def softmax_over_rows(n, rng):
    X, _ = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    share = pm.math.softmax(pt.dot(X, b))
    pm.Poisson("competing", n * share, observed=rng.poisson(1, n))


@refused("integrated")
def cumsum_of_latent(n, rng):
    step = pm.Normal("step", 0, 1, shape=n)
    pm.Normal("integrated", pt.cumsum(step), 1, observed=rng.normal(size=n))


@refused("switched")
def cumsum_of_discrete(n, rng):
    """Switches that are all off at the initial point, where the sum over the rows does not show."""
    jump = pm.Normal("jump", 0, 1)
    switch = pm.Bernoulli("switch", 0.02, shape=n)
    pm.Normal("switched", jump * pt.cumsum(switch), 1, observed=rng.normal(size=n))


@refused("impossible")
def centred_out_of_support(n, rng):
    """No row is possible near the initial point, so that agreement there shows nothing."""
    X, _ = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    mu = pt.dot(X + 1, b)
    pm.Exponential("impossible", pt.exp(mu - mu.mean()), observed=-np.ones(n))


@refused("offender")
def second_of_two_centred(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    mu = pt.dot(X + 1, b)
    pm.Normal("blameless", mu, 1, observed=y)
    pm.Normal("offender", mu - mu.mean(), 1, observed=y)


@refused("field")
def mvnormal_over_rows(n, rng):
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    eta = pm.HalfNormal("eta", 1)
    cov = eta**2 * np.exp(-0.5 * (distance / 2.0) ** 2) + np.eye(n)
    pm.MvNormal("field", np.zeros(n), cov, observed=rng.normal(size=n))


@refused("gp_field")
def gp_marginal(n, rng):
    ell = pm.Gamma("ell", 2, 1)
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=ell))
    x = np.linspace(0, 10, n)[:, None]
    gp.marginal_likelihood("gp_field", X=x, y=rng.normal(size=n), sigma=1.0)


@refused("batched")
def minibatch(n, rng):
    X, y = _xy(n, rng)
    X_batch, y_batch = pm.Minibatch(X, y, batch_size=32)
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("batched", X_batch @ b, 1, observed=y_batch, total_size=n)


@refused("batched")
def minibatch_without_total_size(n, rng):
    X, y = _xy(n, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC misses the total_size, too
        X_batch, y_batch = pm.Minibatch(X, y, batch_size=32)
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("batched", X_batch @ b, 1, observed=y_batch)


@refused("rescaled")
def total_size_without_minibatch(n, rng):
    X, y = _xy(n, rng)
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("rescaled", pt.dot(X, b), 1, observed=y, total_size=10 * n)


def _sum_of_squares(value, mu):
    return -pt.square(value - mu).sum()


@refused("one_number")
def custom_dist_scalar_logp(n, rng):
    mu = pm.Normal("mu", 0, 1)
    pm.CustomDist("one_number", mu, logp=_sum_of_squares, observed=rng.normal(size=n))


@refused("single")
def scalar_observed(n, rng):
    mu = pm.Normal("mu", 0, 1)
    pm.Normal("single", mu, 1, observed=0.3)


@refused("observed")
def no_observed(n, rng):
    pm.Normal("mu", 0, 1, shape=3)
