"""Models with groups that are tricky to take apart. Builders take no argument and are seeded."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

N, G = 40, 6
SEED = 31


def data():
    """Covariate, group of every row, and a generator for the rest."""
    rng = np.random.default_rng(SEED)
    return rng.normal(size=N), rng.integers(0, G, N), rng


ACCEPTED, REFUSED, EITHER = {}, {}, {}


def accepted(levels=G, effects=1, names=None):
    """Register a builder of a model, the effects of which can be integrated out."""

    def register(build):
        ACCEPTED[build.__name__] = (build, levels, effects, names)
        return build

    return register


def refused(mentions=""):
    """Register a builder of a model that has no factor, or one with a reason."""

    def register(build):
        REFUSED[build.__name__] = (build, mentions)
        return build

    return register


def either(build):
    """Register a builder of a model that may be refused, with a reason, but must not be wrong."""
    EITHER[build.__name__] = build
    return build


@accepted()
def constant_index():
    x, g, rng = data()
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.Normal("y", b * x + u[g], 1, observed=rng.normal(size=N))
    return m


@accepted()
def negative_index():
    x, g, rng = data()
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        g = np.where(rng.random(N) < 0.5, g - G, g)
        pm.Normal("y", b * x + u[pm.Data("g", g)], 1, observed=rng.normal(size=N))
    return m


@accepted(levels=9)
def empty_groups_and_groups_of_one():
    x, g, rng = data()
    g = np.concatenate([np.zeros(30, int), [1, 2, 3], np.full(7, 5)])
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=9)
        pm.Poisson("y", pt.exp(b * x + u[g]), observed=rng.poisson(1.0, N))
    return m


@accepted()
def with_deterministic():
    x, g, rng = data()
    with pm.Model() as m:
        sd = pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, 1, shape=G)
        effect = pm.Deterministic("effect", pt.exp(sd * u))
        pm.Deterministic("largest", effect.max())
        pm.Poisson("y", effect[g] * pt.exp(0.2 * x), observed=rng.poisson(1.0, N))
    return m


@accepted()
def gamma_frailty():
    x, g, rng = data()
    with pm.Model() as m:
        b, k = pm.Normal("b", 0, 1), pm.LogNormal("k", 0, 0.5)
        u = pm.Gamma("u", k, k, shape=G)
        pm.Exponential("y", u[g] * pt.exp(b * x), observed=rng.exponential(size=N))
    return m


@accepted()
def log_normal_effects():
    x, g, rng = data()
    with pm.Model() as m:
        b, s = pm.Normal("b", 0, 1), pm.HalfNormal("s", 1)
        u = pm.LogNormal("u", 0, s, shape=G)
        pm.Poisson("y", u[g] * pt.exp(b * x), observed=rng.poisson(1.0, N))
    return m


@accepted()
def student_effects():
    x, g, rng = data()
    with pm.Model() as m:
        nu, sd = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sd", 1)
        u = pm.StudentT("u", nu, mu=0, sigma=sd, shape=G)
        pm.Bernoulli("y", logit_p=x + u[g], observed=rng.integers(0, 2, N))
    return m


@accepted()
def truncated_effects():
    x, g, rng = data()
    with pm.Model() as m:
        sd = pm.HalfNormal("sd", 1)
        u = pm.TruncatedNormal("u", 0, sd, lower=0, upper=3, shape=G)
        pm.Bernoulli("y", logit_p=x + u[g], observed=rng.integers(0, 2, N))
    return m


@accepted()
def beta_effects():
    """Success probabilities of groups."""
    _, g, rng = data()
    with pm.Model() as m:
        a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
        p = pm.Beta("p", a, b, shape=G)
        pm.Bernoulli("y", p=p[g], observed=rng.integers(0, 2, N))
    return m


@accepted()
def student_rows():
    """Likelihoods that are not log-concave in the effect."""
    x, g, rng = data()
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.StudentT("y", 3.0, mu=b * x + u[g], sigma=0.7, observed=rng.standard_t(2, size=N))
    return m


@accepted()
def mixture_rows():
    _, g, rng = data()
    with pm.Model() as m:
        w, sd = pm.Beta("w", 2, 2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        parts = [pm.Normal.dist(u[g], 0.8), pm.Normal.dist(-u[g] + 1.0, 1.2)]
        pm.Mixture("y", w=pt.stack([w, 1 - w]), comp_dists=parts, observed=rng.normal(size=N))
    return m


@accepted(effects=2)
def intercept_and_slope():
    x, g, rng = data()
    with pm.Model() as m:
        sd = pm.HalfNormal("sd", 1, shape=2)
        u = pm.Normal("u", 0, sd, shape=(G, 2))
        pm.Normal("y", u[g, 0] + u[g, 1] * x, 1, observed=rng.normal(size=N))
    return m


@accepted(effects=2, names=("a", "c"))
def two_variables_of_one_factor():
    x, g, rng = data()
    with pm.Model() as m:
        g = pm.Data("g", g)
        sd = pm.HalfNormal("sd", 1, shape=2)
        a = pm.Normal("a", 0, sd[0], shape=G)
        c = pm.Normal("c", 0.5 * a, sd[1], shape=G)
        pm.Bernoulli("y", logit_p=a[g] + c[g] * x, observed=rng.integers(0, 2, N))
    return m


@accepted(effects=2, names=("mean", "log_sd"))
def location_and_scale():
    _, g, rng = data()
    with pm.Model() as m:
        sd = pm.HalfNormal("sd", 1, shape=2)
        mean = pm.Normal("mean", 0, sd[0], shape=G)
        log_sd = pm.Normal("log_sd", 0, sd[1], shape=G)
        pm.Normal("y", mean[g], pt.exp(log_sd[g]), observed=rng.normal(size=N))
    return m


@accepted()
def group_covariate():
    x, g, rng = data()
    with pm.Model() as m:
        sd, gamma = pm.HalfNormal("sd", 1), pm.Normal("gamma", 0, 1, shape=2)
        size = pm.Data("size", rng.normal(size=G))
        u = pm.Normal("u", gamma[0] + gamma[1] * size, sd * np.sqrt(1.0 + np.arange(G)), shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@accepted()
def dummies():
    """Overlapping one-hot columns, one of ones, one of zeros, and covariates between them."""
    x, g, rng = data()
    month, day = rng.integers(0, 5, N), rng.integers(0, 4, N)
    hot = [np.equal.outer(k, np.arange(n)).astype(float) for k, n in ((month, 5), (day, 4))]
    X = np.column_stack([np.ones(N), hot[0], x, hot[1], np.zeros(N), rng.normal(size=N)])
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1, shape=X.shape[1]), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Bernoulli("y", logit_p=X @ b + sd * u[g], observed=rng.integers(0, 2, N))
    return m


@accepted()
def two_observed():
    """A count and a size, from the same groups."""
    x, g, rng = data()
    with pm.Model() as m:
        g = pm.Data("g", g)
        b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.Poisson("count", pt.exp(b[0] * x + u[g]), observed=rng.poisson(1.0, N))
        size = np.exp(rng.normal(size=N))
        pm.LogNormal("size", b[1] + 0.5 * u[g], 0.5, observed=size)
    return m


@accepted()
def dims_and_data():
    x, g, rng = data()
    with pm.Model(coords={"group": list("abcdef"), "obs": range(N)}) as m:
        g = pm.Data("g", g.astype("int8"), dims="obs")
        sd = pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, dims="group")
        eta = x + u[g]
        pm.Normal("y", eta, 1, observed=rng.normal(size=N), dims="obs")
    return m


@accepted()
def treatment_coded():
    """The first level has no effect: its rows read none."""
    x, g, rng = data()
    with pm.Model() as m:
        sd = pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.Normal("y", x + pt.concatenate([[0.0], u])[g + (g > 2)], 1, observed=rng.normal(size=N))
    return m


@accepted(levels=N)
def effect_per_row():
    x, _, rng = data()
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, 1, shape=N)
        pm.Poisson("y", pt.exp(b * x + sd * u), observed=rng.poisson(1.0, N))
    return m


@accepted()
def discrete_change():
    """A binary state of the group that shifts its rows."""
    x, g, rng = data()
    with pm.Model() as m:
        w, d = pm.Beta("w", 2, 2), pm.Normal("d", 0, 1)
        k = pm.Bernoulli("k", w, shape=G)
        pm.Normal("y", x + d * k[g], 1, observed=rng.normal(size=N))
    return m


@accepted()
def discrete_uniform_states():
    """Negative states choose entries from the end."""
    x, g, rng = data()
    with pm.Model() as m:
        level = pm.Normal("level", 0, 1, shape=4)
        k = pm.DiscreteUniform("k", -2, 1, shape=G, initval=np.zeros(G, int))
        pm.Normal("y", x + level[k[g]], 1, observed=rng.normal(size=N))
    return m


@accepted()
def multinomial_by_group():
    _, g, rng = data()
    with pm.Model() as m:
        b, sd = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        eta = pt.stack([pt.zeros(N), b[0] + u[g], b[1] - u[g]], axis=1)
        pm.Categorical("y", logit_p=eta, observed=rng.integers(0, 3, N))
    return m


@accepted()
def hurdle_poisson_rows():
    """No count at all, or a Poisson count that is not zero."""
    x, g, rng = data()
    with pm.Model() as m:
        psi, sd = pm.Beta("psi", 2, 2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.HurdlePoisson("y", psi=psi, mu=pt.exp(0.3 * x + u[g]), observed=rng.poisson(1.0, N))
    return m


@accepted()
def hurdle_negative_binomial_rows():
    x, g, rng = data()
    with pm.Model() as m:
        alpha, sd = pm.HalfNormal("alpha", 2), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, sd, shape=G)
        pm.HurdleNegativeBinomial(
            "y", psi=0.6, mu=pt.exp(0.3 * x + u[g]), alpha=alpha, observed=rng.poisson(1.0, N)
        )
    return m


@either
def group_covariate_from_a_table():
    x, g, rng = data()
    region = np.array([0, 1, 1, 2, 2, 0])
    with pm.Model() as m:
        sd, r = pm.HalfNormal("sd", 1, shape=3), pm.Normal("r", 0, 1, shape=3)
        gamma = pm.Normal("gamma", 0, 1)
        size = pm.Data("size", rng.normal(size=G))
        u = pm.Normal("u", r[region] + gamma * size, sd[region], shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


# --- refused ---------------------------------------------------------------------------------------


@refused()
def mean_of_the_effects():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("y", x + u[g] - u.mean(), 1, observed=rng.normal(size=N))
    return m


@refused()
def sum_of_the_effects():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("y", u[g] + u.sum() * x, 1, observed=rng.normal(size=N))
    return m


@refused()
def zero_sum():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.ZeroSumNormal("u", 1.0, shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused()
def index_used_in_two_ways():
    """Partners: a row reads two levels."""
    _, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("y", u[g] - u[(g + 1) % G], 1, observed=rng.normal(size=N))
    return m


@refused("bound depends on it")
def used_by_a_potential():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Potential("bound", -(u.sum() ** 2))
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("v depends on it")
def used_by_a_prior():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        v = pm.Normal("v", u[:2], 1, shape=2)
        pm.Normal("y", x * v[0] + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("short depends on it")
def used_by_other_data():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("short", u, 1, observed=rng.normal(size=G))
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("prior")
def random_walk():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.GaussianRandomWalk("u", sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("prior")
def auto_regression():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.AR("u", rho=[0.5], sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("prior")
def gaussian_process():
    x, g, rng = data()
    at = np.arange(G, dtype=float)
    cov = np.exp(-0.5 * (at[:, None] - at) ** 2) + 0.01 * np.eye(G)
    with pm.Model() as m:
        scale = pm.HalfNormal("scale", 1)
        u = pm.MvNormal("u", np.zeros(G), cov=scale**2 * cov)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused()
def gaussian_process_not_centred():
    x, g, rng = data()
    at = np.arange(G, dtype=float)
    chol = np.linalg.cholesky(np.exp(-0.5 * (at[:, None] - at) ** 2) + 0.01 * np.eye(G))
    with pm.Model() as m:
        z = pm.Normal("z", 0, 1, shape=G)
        pm.Normal("y", x + pt.dot(chol, z)[g], 1, observed=rng.normal(size=N))
    return m


@refused()
def random_walk_by_cumulative_sum():
    x, g, rng = data()
    with pm.Model() as m:
        z = pm.Normal("z", 0, 1, shape=G)
        pm.Normal("y", x + pt.cumsum(z)[g], 1, observed=rng.normal(size=N))
    return m


@refused()
def ordered_levels():
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal(
            "u", 0, 1, shape=G, transform=pm.distributions.transforms.ordered, initval=np.arange(G)
        )
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("mean_by_level has a value for each level too")
def a_mean_for_each_level():
    x, g, rng = data()
    with pm.Model() as m:
        mean = pm.Normal("mean_by_level", 0, 1, shape=G)
        u = pm.Normal("u", mean, 0.5, shape=G)
        pm.Normal("y", x + u[g], 1, observed=rng.normal(size=N))
    return m


@refused("prior")
def conditional_on_neighbours():
    """A second effect, the mean of which is another level's first."""
    x, g, rng = data()
    with pm.Model() as m:
        a = pm.Normal("a", 0, 1, shape=G)
        c = pm.Normal("c", a[::-1], 1, shape=G)
        pm.Normal("y", a[g] + c[g] * x, 1, observed=rng.normal(size=N))
    return m


@refused("at most")
def four_effects():
    _, g, rng = data()
    X = rng.normal(size=(N, 4))
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=(G, 4))
        pm.Normal("y", (X * u[g]).sum(1), 1, observed=rng.normal(size=N))
    return m


@refused("states")
def unbounded_counts():
    """An N-mixture."""
    _, g, rng = data()
    with pm.Model() as m:
        n = pm.Poisson("n", 8.0, shape=G, initval=np.full(G, 20))
        p = pm.Beta("p", 2, 2)
        pm.Binomial("y", n=n[g], p=p, observed=rng.binomial(3, 0.4, N))
    return m


@refused("continuous and discrete")
def continuous_and_discrete():
    x, g, rng = data()
    with pm.Model() as m:
        k = pm.Bernoulli("k", 0.4, shape=G)
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("y", x + u[g] * k[g], 1, observed=rng.normal(size=N))
    return m


@either
def matrix_by_its_second_axis():
    """Groups along the last axis."""
    x, g, rng = data()
    with pm.Model() as m:
        u = pm.Normal("u", 0, 1, shape=(2, G))
        pm.Normal("y", u[0, g] + u[1, g] * x, 1, observed=rng.normal(size=N))
    return m


@refused("rows of z do not belong to a level; pass observed_vars=['y']")
def rows_of_one_of_two_observed():
    x, g, rng = data()
    with pm.Model() as m:
        b = pm.Normal("b", 0, 1)
        u = pm.Normal("u", 0, 1, shape=G)
        pm.Normal("y", b * x + u[g], 1, observed=rng.normal(size=N))
        pm.Normal("z", b * x, 1, observed=rng.normal(size=N))
    return m
