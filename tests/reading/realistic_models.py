"""Models as people write them: likelihoods, splines, offsets and indices of many kinds.

Every builder is called with a number of rows and a Generator, as those of the zoo are.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

MODELS = {}


def model(build):
    """Register a builder."""
    MODELS[build.__name__] = build
    return build


def intercepts(rng, n, groups=6, name="u"):
    """Random intercepts, not centred."""
    sd = pm.HalfNormal(f"sd_{name}", 1.0)
    z = pm.Normal(f"{name}_z", 0.0, 1.0, shape=groups)
    return (sd * z)[rng.integers(0, groups, n)]


def linear(rng, n, p=2):
    return rng.normal(size=(n, p)) @ pm.Normal("b", 0.0, 1.0, shape=p)


@model
def beta_binomial(n, rng):
    with pm.Model() as m:
        mu = pm.math.invlogit(linear(rng, n) + intercepts(rng, n))
        kappa = pm.Gamma("kappa", 2.0, 0.1)
        trials = rng.integers(1, 30, n)
        y = rng.binomial(trials, 0.3)
        pm.BetaBinomial("y", alpha=mu * kappa, beta=(1 - mu) * kappa, n=trials, observed=y)
    return m


@model
def hurdle_gamma(n, rng):
    with pm.Model() as m:
        psi = pm.math.invlogit(linear(rng, n))
        mu, alpha = pt.exp(intercepts(rng, n)), pm.Exponential("alpha", 1.0)
        y = rng.gamma(2.0, size=n) * (rng.random(n) < 0.6)
        pm.HurdleGamma("y", psi=psi, alpha=alpha, beta=alpha / mu, observed=y)
    return m


@model
def hurdle_poisson(n, rng):
    with pm.Model() as m:
        psi, mu = pm.Beta("psi", 2.0, 2.0), pt.exp(linear(rng, n))
        pm.HurdlePoisson("y", psi=psi, mu=mu, observed=rng.poisson(1.0, n))
    return m


@model
def gamma_regression(n, rng):
    with pm.Model() as m:
        mu, alpha = pt.exp(linear(rng, n) + intercepts(rng, n)), pm.HalfCauchy("alpha", 2.0)
        pm.Gamma("y", alpha=alpha, beta=alpha / mu, observed=rng.gamma(2.0, size=n))
    return m


@model
def weibull_survival_with_censoring(n, rng):
    event = (rng.random(n) < 0.7).astype(float)
    t = rng.weibull(1.3, n) + 0.01
    with pm.Model() as m:
        k = pm.LogNormal("k", 0.0, 0.5)
        lam = pt.exp(linear(rng, n) + intercepts(rng, n))
        hazard = pt.log(k) - k * pt.log(lam) + (k - 1) * np.log(t)
        density = event * hazard - (t / lam) ** k

        def logp(value, density):
            return density

        pm.CustomDist("y", density, logp=logp, observed=t)
    return m


@model
def weibull_by_its_mean(n, rng):
    with pm.Model() as m:
        k = pm.LogNormal("k", 0.0, 0.5)
        mean = pt.exp(linear(rng, n))
        time = pm.Weibull.dist(alpha=k, beta=mean / pt.gamma(1 + 1 / k))
        pm.Censored("y", time, lower=None, upper=2.0, observed=np.minimum(rng.weibull(1.3, n), 2.0))
    return m


@model
def multinomial_logit(n, rng):
    group = rng.integers(0, 5, n)
    with pm.Model() as m:
        b = pm.Normal("b", 0.0, 1.0, shape=(3, 2))
        u = pm.Normal("u", 0.0, 1.0, shape=(5, 2))
        eta = pt.dot(rng.normal(size=(n, 3)), b) + u[group]
        eta = pt.concatenate([pt.zeros((n, 1)), eta], axis=1)
        pm.Categorical("y", logit_p=eta, observed=rng.integers(0, 3, n))
    return m


@model
def beta_regression(n, rng):
    with pm.Model() as m:
        mu = pm.math.invlogit(linear(rng, n) + intercepts(rng, n))
        pm.Beta("y", mu=mu, nu=pm.Gamma("nu", 2.0, 0.1), observed=rng.beta(2.0, 3.0, n))
    return m


@model
def skew_normal(n, rng):
    with pm.Model() as m:
        alpha, sigma = pm.Normal("alpha", 0.0, 2.0), pm.HalfNormal("sigma", 1.0)
        pm.SkewNormal("y", mu=linear(rng, n), sigma=sigma, alpha=alpha, observed=rng.normal(size=n))
    return m


def gompertz(value, a, b):
    """A hazard of a exp(b t)."""
    return pt.log(a) + b * value - a / b * pt.expm1(b * value)


@model
def gompertz_custom(n, rng):
    with pm.Model() as m:
        a, b = pt.exp(linear(rng, n)), pm.HalfNormal("b_time", 1.0)
        pm.CustomDist("y", a, b, logp=gompertz, observed=rng.exponential(size=n))
    return m


@model
def spline(n, rng):
    """A design matrix of 30 columns."""
    x = rng.uniform(0.0, 1.0, n)
    basis = np.exp(-0.5 * ((x[:, None] - np.linspace(0, 1, 30)) / 0.05) ** 2)
    with pm.Model() as m:
        w = pm.Normal("w", 0.0, pm.HalfNormal("tau", 1.0), shape=30)
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("y", a + pm.math.dot(basis, w), 0.3, observed=rng.normal(size=n))
    return m


@model
def interactions_and_offset(n, rng):
    x, z = rng.normal(size=(2, n))
    kind = rng.integers(0, 3, n)
    with pm.Model(coords={"kind": list("abc")}) as m:
        x, z = pm.Data("x", x), pm.Data("z", z)
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=3)
        by_kind = pm.Normal("by_kind", 0, 1, dims="kind")
        eta = a + b[0] * x + b[1] * z + b[2] * x * z + by_kind[kind] * x
        pm.Poisson("y", pt.exp(eta + np.log(rng.uniform(1, 4, n))), observed=rng.poisson(2, n))
    return m


@model
def mixture_by_hand(n, rng):
    with pm.Model() as m:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", 0.0, 2.0, shape=3)
        y = rng.normal(size=n)
        parts = pt.log(w) + pm.logp(pm.Normal.dist(mu, 1.0), y[:, None])

        def logp(value, parts):
            return pm.math.logsumexp(parts, axis=-1, keepdims=False)

        pm.CustomDist("y", parts, logp=logp, observed=y, signature="(k)->()")
    return m


@model
def negative_binomial_zero_inflated(n, rng):
    with pm.Model() as m:
        mu = pt.exp(linear(rng, n) + intercepts(rng, n))
        psi, alpha = pm.Beta("psi", 2, 2), pm.Exponential("alpha", 1.0)
        y = rng.poisson(2.0, n) * rng.integers(0, 2, n)
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=y)
    return m


@model
def inverse_gaussian(n, rng):
    with pm.Model() as m:
        mu, lam = pt.exp(linear(rng, n)), pm.Gamma("lam", 2.0, 1.0)
        pm.Wald("y", mu=mu, lam=lam, observed=rng.wald(1.0, 2.0, n))
    return m


@model
def ex_gaussian(n, rng):
    """Response times by person."""
    with pm.Model() as m:
        mu = linear(rng, n) + intercepts(rng, n)
        sigma, nu = pm.HalfNormal("sigma", 1.0), pm.Gamma("nu", 2.0, 1.0)
        y = rng.normal(size=n) + rng.exponential(size=n)
        pm.ExGaussian("y", mu, sigma=sigma, nu=nu, observed=y)
    return m


@model
def asymmetric_laplace(n, rng):
    """Quantile regression."""
    with pm.Model() as m:
        b = pm.HalfNormal("b_scale", 1.0)
        pm.AsymmetricLaplace("y", b=b, q=0.3, mu=linear(rng, n), observed=rng.normal(size=n))
    return m


@model
def ordered_probit(n, rng):
    with pm.Model() as m:
        cut = pm.Normal(
            "cut", 0.0, 2.0, shape=3, transform=pm.distributions.transforms.ordered,
            initval=np.array([-1.0, 0.0, 1.0]),
        )  # fmt: skip
        y = rng.integers(0, 4, n)
        pm.OrderedProbit("y", eta=linear(rng, n), cutpoints=cut, compute_p=False, observed=y)
    return m


@model
def item_response(n, rng):
    """Two-parameter logistic, guessing included."""
    person, item = rng.integers(0, 20, n), rng.integers(0, 7, n)
    with pm.Model() as m:
        theta = pm.Normal("theta", 0.0, 1.0, shape=20)
        a = pm.LogNormal("a", 0.0, 0.3, shape=7)
        d = pm.Normal("d", 0.0, 1.0, shape=7)
        guess = pm.Beta("guess", 2.0, 8.0, shape=7)
        p = pm.math.invlogit(a[item] * (theta[person] - d[item]))
        p = guess[item] + (1 - guess[item]) * p
        pm.Bernoulli("y", p=p, observed=rng.integers(0, 2, n))
    return m


@model
def treatment_coding(n, rng):
    """The first level's effect is zero."""
    level = rng.integers(0, 5, n)
    with pm.Model() as m:
        b = pm.Normal("b", 0.0, 1.0, shape=4)
        effect = pt.concatenate([[0.0], b])
        pm.Normal("y", effect[level], 1.0, observed=rng.normal(size=n))
    return m


@model
def reshaped_effects(n, rng):
    row, column = rng.integers(0, 4, n), rng.integers(0, 3, n)
    with pm.Model() as m:
        b = pm.Normal("b", 0.0, 1.0, shape=12)
        c = pm.Normal("c", 0.0, 1.0, shape=(3, 4))
        mu = b.reshape((4, 3))[row, column] + c.T.flatten()[row * 3 + column]
        pm.Normal("y", mu, 1.0, observed=rng.normal(size=n))
    return m


@model
def negative_indices(n, rng):
    level, column = rng.integers(-5, 5, n), rng.integers(-2, 2, n)
    with pm.Model() as m:
        first = pm.Normal("first", 0.0, 1.0, shape=3)
        b = pm.Normal("b", 0.0, 1.0, shape=5)
        c = pm.Normal("c", 0.0, 1.0, shape=(5, 2))
        mu = first[0] + b[pm.Data("level", level)] + c[level, column] + b[-2]
        pm.Normal("y", mu, 1.0, observed=rng.normal(size=n))
    return m


@model
def nested_tables(n, rng):
    """Constants that are looked up by what was looked up."""
    town, county = rng.integers(0, 9, n), np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])
    income = rng.normal(size=(4, 2))
    with pm.Model() as m:
        a = pm.Normal("a", 0.0, 1.0, shape=9)
        b = pm.Normal("b", 0.0, 1.0, shape=4)
        g = pm.Normal("g", 0.0, 1.0, shape=2)
        effect = a + (b + pt.dot(income, g))[county]
        pm.Normal("y", effect[town], 1.0, observed=rng.normal(size=n))
    return m


@model
def monotonic_predictor(n, rng):
    """Steps of a cumulative simplex, as brms has them."""
    dose = rng.integers(0, 5, n)
    with pm.Model() as m:
        steps = pm.Dirichlet("steps", np.ones(4))
        height = pm.Normal("height", 0.0, 1.0)
        curve = pt.concatenate([[0.0], pt.cumsum(steps)])
        pm.Normal("y", height * curve[dose], 1.0, observed=rng.normal(size=n))
    return m


@model
def linear_spline(n, rng):
    x = rng.uniform(0.0, 5.0, n)
    with pm.Model() as m:
        knot = pm.Uniform("knot", 1.0, 4.0)
        b = pm.Normal("b", 0.0, 1.0, shape=3)
        mu = b[0] + b[1] * x + b[2] * pt.maximum(x - knot, 0.0)
        pm.StudentT("y", 4.0, mu=mu, sigma=1.0, observed=rng.normal(size=n))
    return m


@model
def interval_censored(n, rng):
    low = rng.normal(size=n)
    with pm.Model() as m:
        mu, sigma = linear(rng, n), pm.HalfNormal("sigma", 1.0)
        dist = pm.Normal.dist(mu, sigma)
        value = pm.math.logdiffexp(pm.logcdf(dist, low + 1.5), pm.logcdf(dist, low))

        def logp(y, value):
            return value

        pm.CustomDist("y", value, logp=logp, observed=low)
    return m


@model
def seasonal(n, rng):
    t = np.arange(n) / 12.0
    with pm.Model() as m:
        b = pm.Normal("b", 0.0, 1.0, shape=(2, 2))
        waves = pt.stack([pt.sin(2 * np.pi * k * t) for k in (1, 2)], axis=1)
        others = pt.stack([pt.cos(2 * np.pi * k * t) for k in (1, 2)], axis=1)
        mu = (waves * b[0]).sum(1) + (others * b[1]).sum(1) + pm.Normal("trend", 0, 1) * t
        pm.Laplace("y", mu, pm.HalfNormal("sigma", 1.0), observed=rng.normal(size=n))
    return m


@model
def saturation_curve(n, rng):
    dose = rng.uniform(0.1, 10.0, n)
    with pm.Model() as m:
        top, half, hill = (pm.LogNormal(v, 0.0, 0.5) for v in ("top", "half", "hill"))
        mu = top * dose**hill / (half**hill + dose**hill)
        pm.LogNormal("y", pt.log(mu), 0.3, observed=rng.lognormal(size=n))
    return m
