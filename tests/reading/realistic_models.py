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
def von_mises(n, rng):
    with pm.Model() as m:
        mu = 2.0 * pt.arctan(linear(rng, n))
        kappa = pm.HalfNormal("kappa", 2.0)
        pm.VonMises("y", mu, kappa, observed=rng.vonmises(0.3, 2.0, n))
    return m


@model
def skew_normal(n, rng):
    with pm.Model() as m:
        alpha, sigma = pm.Normal("alpha", 0.0, 2.0), pm.HalfNormal("sigma", 1.0)
        pm.SkewNormal("y", mu=linear(rng, n), sigma=sigma, alpha=alpha, observed=rng.normal(size=n))
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
