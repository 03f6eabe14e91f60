"""Models with groups that are tricky to take apart. Builders take no argument and are seeded."""

from functools import wraps

import numpy as np
import pymc as pm
import pytensor.tensor as pt

N, G = 40, 6
SEED = 31

ACCEPTED, REFUSED, EITHER = {}, {}, {}


def model_of(rows):
    """A builder of the model of some rows, given a covariate, the group of every row, and a generator."""

    @wraps(rows)
    def build():
        rng = np.random.default_rng(SEED)
        with pm.Model() as model:
            rows(rng.normal(size=N), rng.integers(0, G, N), rng)
        return model

    return build


def accepted(levels=G, effects=1, names=None):
    """Register a model, the effects of which can be integrated out."""

    def register(rows):
        ACCEPTED[rows.__name__] = (model_of(rows), levels, effects, names)

    return register


def refused(mentions=""):
    """Register a model that has no factor, or one with a reason."""

    def register(rows):
        REFUSED[rows.__name__] = (model_of(rows), mentions)

    return register


def either(rows):
    """Register a model that may be refused, with a reason, but must not be wrong."""
    EITHER[rows.__name__] = model_of(rows)


@accepted()
def negative_index(x, g, rng):
    b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    g = np.where(rng.random(N) < 0.5, g - G, g)
    pm.Normal("y", b * x + u[pm.Data("g", g)], 1, observed=rng.normal(size=N))


@accepted(levels=9)
def empty_groups_and_groups_of_one(x, g, rng):
    g = np.concatenate([np.zeros(30, int), [1, 2, 3], np.full(7, 5)])
    b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=9)
    pm.Poisson("y", pt.exp(b * x + u[g]), observed=rng.poisson(1.0, N))


@accepted()
def with_deterministic(x, g, rng):
    sd = pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, 1, shape=G)
    effect = pm.Deterministic("effect", pt.exp(sd * u))
    pm.Deterministic("largest", effect.max())
    pm.Poisson("y", effect[g] * pt.exp(0.2 * x), observed=rng.poisson(1.0, N))


@accepted()
def gamma_frailty(x, g, rng):
    b, k = pm.Normal("b", 0, 1), pm.LogNormal("k", 0, 0.5)
    u = pm.Gamma("u", k, k, shape=G)
    pm.Exponential("y", u[g] * pt.exp(b * x), observed=rng.exponential(size=N))


@accepted()
def student_effects(x, g, rng):
    nu, sd = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sd", 1)
    u = pm.StudentT("u", nu, mu=0, sigma=sd, shape=G)
    pm.Bernoulli("y", logit_p=x + u[g], observed=rng.integers(0, 2, N))


@accepted()
def student_rows(x, g, rng):
    """Likelihoods that are not log-concave in the effect."""
    b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.StudentT("y", 3.0, mu=b * x + u[g], sigma=0.7, observed=rng.standard_t(2, size=N))


@accepted()
def mixture_rows(x, g, rng):
    w, sd = pm.Beta("w", 2, 2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    parts = [pm.Normal.dist(u[g], 0.8), pm.Normal.dist(-u[g] + 1.0, 1.2)]
    pm.Mixture("y", w=pt.stack([w, 1 - w]), comp_dists=parts, observed=rng.normal(size=N))


@accepted(effects=2)
def intercept_and_slope(x, g, rng):
    sd = pm.HalfNormal("sd", 1, shape=2)
    u = pm.Normal("u", 0, sd, shape=(G, 2))
    pm.Normal("y", u[g, 0] + u[g, 1] * x, 1, observed=rng.normal(size=N))


@accepted(effects=2, names=("a", "c"))
def two_variables_of_one_factor(x, g, rng):
    g = pm.Data("g", g)
    sd = pm.HalfNormal("sd", 1, shape=2)
    a = pm.Normal("a", 0, sd[0], shape=G)
    c = pm.Normal("c", 0.5 * a, sd[1], shape=G)
    pm.Bernoulli("y", logit_p=a[g] + c[g] * x, observed=rng.integers(0, 2, N))


@accepted(effects=2, names=("mean", "log_sd"))
def location_and_scale(x, g, rng):
    sd = pm.HalfNormal("sd", 1, shape=2)
    mean = pm.Normal("mean", 0, sd[0], shape=G)
    log_sd = pm.Normal("log_sd", 0, sd[1], shape=G)
    pm.Normal("y", mean[g], pt.exp(log_sd[g]), observed=rng.normal(size=N))


@accepted()
def dummies(x, g, rng):
    """Overlapping one-hot columns, one of ones, one of zeros, and covariates between them."""
    month, day = rng.integers(0, 5, N), rng.integers(0, 4, N)
    hot = [np.equal.outer(k, np.arange(n)).astype(float) for k, n in ((month, 5), (day, 4))]
    X = np.column_stack([np.ones(N), hot[0], x, hot[1], np.zeros(N), rng.normal(size=N)])
    b, sd = pm.Normal("b", 0, 1, shape=X.shape[1]), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Bernoulli("y", logit_p=X @ b + sd * u[g], observed=rng.integers(0, 2, N))


@accepted()
def two_observed(x, g, rng):
    """A count and a size, from the same groups."""
    g = pm.Data("g", g)
    b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.Poisson("count", pt.exp(b[0] * x + u[g]), observed=rng.poisson(1.0, N))
    size = np.exp(rng.normal(size=N))
    pm.LogNormal("size", b[1] + 0.5 * u[g], 0.5, observed=size)


@accepted()
def dims_and_data(x, g, rng):
    pm.modelcontext(None).add_coords({"group": list("abcdef"), "obs": range(N)})
    g = pm.Data("g", g.astype("int8"), dims="obs")
    sd = pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, dims="group")
    eta = x + u[g]
    pm.Normal("y", eta, 1, observed=rng.normal(size=N), dims="obs")


@accepted()
def treatment_coded(x, g, rng):
    """The first level has no effect: its rows read none."""
    sd = pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.Normal("y", x + pt.concatenate([[0.0], u])[g + (g > 2)], 1, observed=rng.normal(size=N))


@accepted()
def multinomial_by_group(x, g, rng):
    b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    eta = pt.stack([pt.zeros(N), b[0] + u[g], b[1] - u[g]], axis=1)
    pm.Categorical("y", logit_p=eta, observed=rng.integers(0, 3, N))


# --- refused ---------------------------------------------------------------------------------------


@refused()
def mean_of_the_effects(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", x + u[g] - u.mean(), 1, observed=rng.normal(size=N))


@refused()
def zero_sum(x, g, rng):
    u = pm.ZeroSumNormal("u", 1.0, shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused()
def index_used_in_two_ways(x, g, rng):
    """Partners: a row reads two levels."""
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", u[g] - u[(g + 1) % G], 1, observed=rng.normal(size=N))


@refused("bound depends on it")
def used_by_a_potential(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Potential("bound", -(u.sum() ** 2))
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("short depends on it")
def used_by_other_data(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("short", u, 1, observed=rng.normal(size=G))
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("prior")
def random_walk(x, g, rng):
    u = pm.GaussianRandomWalk("u", sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("mean_by_level has a value for each level too")
def a_mean_for_each_level(x, g, rng):
    mean = pm.Normal("mean_by_level", 0, 1, shape=G)
    u = pm.Normal("u", mean, 0.5, shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("prior")
def conditional_on_neighbours(x, g, rng):
    """A second effect, the mean of which is another level's first."""
    a = pm.Normal("a", 0, 1, shape=G)
    c = pm.Normal("c", a[::-1], 1, shape=G)
    pm.Normal("y", a[g] + c[g] * x, 1, observed=rng.normal(size=N))


@refused("at most")
def four_effects(x, g, rng):
    X = rng.normal(size=(N, 4))
    u = pm.Normal("u", 0, 1, shape=(G, 4))
    pm.Normal("y", (X * u[g]).sum(1), 1, observed=rng.normal(size=N))


@refused("discrete effects")
def unbounded_counts(x, g, rng):
    """An N-mixture."""
    n = pm.Poisson("n", 8.0, shape=G, initval=np.full(G, 20))
    p = pm.Beta("p", 2, 2)
    pm.Binomial("y", n=n[g], p=p, observed=rng.binomial(3, 0.4, N))


@refused("discrete effects; sum them out")
def continuous_and_discrete(x, g, rng):
    k = pm.Bernoulli("k", 0.4, shape=G)
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", x + u[g] * k[g], 1, observed=rng.normal(size=N))


@either
def matrix_by_its_second_axis(x, g, rng):
    """Groups along the last axis."""
    u = pm.Normal("u", 0, 1, shape=(2, G))
    pm.Normal("y", u[0, g] + u[1, g] * x, 1, observed=rng.normal(size=N))


@accepted()
def rows_of_one_of_two_observed(x, g, rng):
    b = pm.Normal("b", 0, 1)
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", b * x + u[g], 1, observed=rng.normal(size=N))
    pm.Normal("z", b * x, 1, observed=rng.normal(size=N))
