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
def constant_index(x, g, rng):
    b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.Normal("y", b * x + u[g], 1, observed=rng.normal(size=N))


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
def log_normal_effects(x, g, rng):
    b, s = pm.Normal("b", 0, 1), pm.HalfNormal("s", 1)
    u = pm.LogNormal("u", 0, s, shape=G)
    pm.Poisson("y", u[g] * pt.exp(b * x), observed=rng.poisson(1.0, N))


@accepted()
def student_effects(x, g, rng):
    nu, sd = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sd", 1)
    u = pm.StudentT("u", nu, mu=0, sigma=sd, shape=G)
    pm.Bernoulli("y", logit_p=x + u[g], observed=rng.integers(0, 2, N))


@accepted()
def truncated_effects(x, g, rng):
    sd = pm.HalfNormal("sd", 1)
    u = pm.TruncatedNormal("u", 0, sd, lower=0, upper=3, shape=G)
    pm.Bernoulli("y", logit_p=x + u[g], observed=rng.integers(0, 2, N))


@accepted()
def beta_effects(x, g, rng):
    """Success probabilities of groups."""
    a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
    p = pm.Beta("p", a, b, shape=G)
    pm.Bernoulli("y", p=p[g], observed=rng.integers(0, 2, N))


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
def group_covariate(x, g, rng):
    sd, gamma = pm.HalfNormal("sd", 1), pm.Normal("gamma", 0, 1, shape=2)
    size = pm.Data("size", rng.normal(size=G))
    u = pm.Normal("u", gamma[0] + gamma[1] * size, sd * np.sqrt(1.0 + np.arange(G)), shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


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


@accepted(levels=N)
def effect_per_row(x, g, rng):
    b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, 1, shape=N)
    pm.Poisson("y", pt.exp(b * x + sd * u), observed=rng.poisson(1.0, N))


@accepted()
def discrete_change(x, g, rng):
    """A binary state of the group that shifts its rows."""
    w, d = pm.Beta("w", 2, 2), pm.Normal("d", 0, 1)
    k = pm.Bernoulli("k", w, shape=G)
    pm.Normal("y", x + d * k[g], 1, observed=rng.normal(size=N))


@accepted()
def discrete_uniform_states(x, g, rng):
    """Negative states choose entries from the end."""
    level = pm.Normal("level", 0, 1, shape=4)
    k = pm.DiscreteUniform("k", -2, 1, shape=G, initval=np.zeros(G, int))
    pm.Normal("y", x + level[k[g]], 1, observed=rng.normal(size=N))


@accepted()
def multinomial_by_group(x, g, rng):
    b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    eta = pt.stack([pt.zeros(N), b[0] + u[g], b[1] - u[g]], axis=1)
    pm.Categorical("y", logit_p=eta, observed=rng.integers(0, 3, N))


@accepted()
def hurdle_poisson_rows(x, g, rng):
    """No count at all, or a Poisson count that is not zero."""
    psi, sd = pm.Beta("psi", 2, 2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.HurdlePoisson("y", psi=psi, mu=pt.exp(0.3 * x + u[g]), observed=rng.poisson(1.0, N))


@accepted()
def hurdle_negative_binomial_rows(x, g, rng):
    alpha, sd = pm.HalfNormal("alpha", 2), pm.HalfNormal("sd", 1)
    u = pm.Normal("u", 0, sd, shape=G)
    pm.HurdleNegativeBinomial(
        "y", psi=0.6, mu=pt.exp(0.3 * x + u[g]), alpha=alpha, observed=rng.poisson(1.0, N)
    )


@either
def group_covariate_from_a_table(x, g, rng):
    region = np.array([0, 1, 1, 2, 2, 0])
    sd, r = pm.HalfNormal("sd", 1, shape=3), pm.Normal("r", 0, 1, shape=3)
    gamma = pm.Normal("gamma", 0, 1)
    size = pm.Data("size", rng.normal(size=G))
    u = pm.Normal("u", r[region] + gamma * size, sd[region], shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


# --- refused ---------------------------------------------------------------------------------------


@refused()
def mean_of_the_effects(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", x + u[g] - u.mean(), 1, observed=rng.normal(size=N))


@refused()
def sum_of_the_effects(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", u[g] + u.sum() * x, 1, observed=rng.normal(size=N))


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


@refused("v depends on it")
def used_by_a_prior(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    v = pm.Normal("v", u[:2], 1, shape=2)
    pm.Normal("y", x * v[0] + u[g], 1, observed=rng.normal(size=N))


@refused("short depends on it")
def used_by_other_data(x, g, rng):
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("short", u, 1, observed=rng.normal(size=G))
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("prior")
def random_walk(x, g, rng):
    u = pm.GaussianRandomWalk("u", sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("prior")
def auto_regression(x, g, rng):
    u = pm.AR("u", rho=[0.5], sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=G)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused("prior")
def gaussian_process(x, g, rng):
    at = np.arange(G, dtype=float)
    cov = np.exp(-0.5 * (at[:, None] - at) ** 2) + 0.01 * np.eye(G)
    scale = pm.HalfNormal("scale", 1)
    u = pm.MvNormal("u", np.zeros(G), cov=scale**2 * cov)
    pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))


@refused()
def gaussian_process_not_centred(x, g, rng):
    at = np.arange(G, dtype=float)
    chol = np.linalg.cholesky(np.exp(-0.5 * (at[:, None] - at) ** 2) + 0.01 * np.eye(G))
    z = pm.Normal("z", 0, 1, shape=G)
    pm.Normal("y", x + pt.dot(chol, z)[g], 1, observed=rng.normal(size=N))


@refused()
def random_walk_by_cumulative_sum(x, g, rng):
    z = pm.Normal("z", 0, 1, shape=G)
    pm.Normal("y", x + pt.cumsum(z)[g], 1, observed=rng.normal(size=N))


@refused()
def ordered_levels(x, g, rng):
    u = pm.Normal(
        "u", 0, 1, shape=G, transform=pm.distributions.transforms.ordered, initval=np.arange(G)
    )
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


@refused("states")
def unbounded_counts(x, g, rng):
    """An N-mixture."""
    n = pm.Poisson("n", 8.0, shape=G, initval=np.full(G, 20))
    p = pm.Beta("p", 2, 2)
    pm.Binomial("y", n=n[g], p=p, observed=rng.binomial(3, 0.4, N))


@refused("continuous and discrete")
def continuous_and_discrete(x, g, rng):
    k = pm.Bernoulli("k", 0.4, shape=G)
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", x + u[g] * k[g], 1, observed=rng.normal(size=N))


@either
def matrix_by_its_second_axis(x, g, rng):
    """Groups along the last axis."""
    u = pm.Normal("u", 0, 1, shape=(2, G))
    pm.Normal("y", u[0, g] + u[1, g] * x, 1, observed=rng.normal(size=N))


@refused("rows of z do not belong to a level; pass observed_vars=['y']")
def rows_of_one_of_two_observed(x, g, rng):
    b = pm.Normal("b", 0, 1)
    u = pm.Normal("u", 0, 1, shape=G)
    pm.Normal("y", b * x + u[g], 1, observed=rng.normal(size=N))
    pm.Normal("z", b * x, 1, observed=rng.normal(size=N))
