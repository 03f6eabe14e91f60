"""Twelve shapes of models, for the seconds to their first draw; see `first_draw.py`.

Every function simulates data and returns the model. All free variables are continuous:
zero inflation and the mixture's labels are summed out of the likelihood, as
`pm.ZeroInflatedPoisson` and `pm.NormalMixture` do, so that every method can move all there is.
Rows in groups come from `models/grouped.py`, customers from `models/customer_lifetime.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm

from models.customer_lifetime import customer_model, simulate_customers
from models.grouped import intercepts_model, simulate_intercepts, simulate_slopes, slopes_model

Build = Callable[[np.random.Generator, int], pm.Model]

N_GROUPS = 30
#: Coefficients of an intercept and four covariates.
_BETA = np.array([0.3, 0.5, -0.4, 0.3, -0.2])


def covariates(rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """An intercept and four standard normal covariates (N, 5)."""
    return np.column_stack([np.ones(n_rows), rng.standard_normal((n_rows, _BETA.size - 1))])


def zero_inflated_poisson(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Counts, three in ten of which are zero whatever the covariates say."""
    X = covariates(rng, n_rows)
    counts = rng.poisson(np.exp(X @ _BETA)) * (rng.random(n_rows) < 0.7)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=X.shape[1])
        psi = pm.Beta("psi", 1.0, 1.0)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(X @ beta), observed=counts)
    return model


def bivariate_normal(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Pairs with two means, two standard deviations and a correlation."""
    pairs = rng.multivariate_normal([1.0, -1.0], [[1.0, 0.6], [0.6, 2.0]], size=n_rows)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        sds = pm.HalfNormal.dist(2.0, size=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sds)
        pm.MvNormal("y", mu, chol=chol, observed=pairs)
    return model


def ordered_logistic(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Answers in four ordered categories."""
    X = covariates(rng, n_rows)[:, 1:]
    latent = X @ _BETA[1:] + rng.logistic(size=n_rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=X.shape[1])
        cutpoints = pm.Normal(
            "cutpoints", 0.0, 3.0, shape=3, transform=pm.distributions.transforms.ordered,
            initval=np.array([-1.0, 0.0, 1.0]),
        )  # fmt: skip
        answers = np.searchsorted([-1.0, 0.3, 1.5], latent)
        pm.OrderedLogistic("y", eta=X @ beta, cutpoints=cutpoints, observed=answers)
    return model


def multinomial_logit(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Choices among three, the last of which is the reference."""
    X = covariates(rng, n_rows)
    utility = X @ np.column_stack([_BETA, -_BETA, 0.0 * _BETA])
    choices = (utility + rng.gumbel(size=utility.shape)).argmax(axis=1)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=(X.shape[1], 2))
        logits = pm.math.concatenate([X @ beta, np.zeros((n_rows, 1))], axis=1)
        pm.Categorical("y", logit_p=logits, observed=choices)
    return model


def censored_weibull(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Times until an event, not observed beyond a limit of each row."""
    X = covariates(rng, n_rows)
    limit = rng.uniform(0.5, 4.0, n_rows)
    times = np.minimum(np.exp(X @ _BETA) * rng.weibull(1.5, n_rows), limit)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=X.shape[1])
        shape = pm.HalfNormal("shape", 2.0)
        latent = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(X @ beta))
        pm.Censored("y", latent, lower=None, upper=limit, observed=times)
    return model


def customer_lifetime(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """BG/NBD as a `pm.CustomDist`, the same four parameters for all customers."""
    return customer_model(simulate_customers(n_rows, varying=(), seed=rng), varying=())


def group_slopes(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Linear regression, intercepts and slopes by group, correlated with an LKJ prior."""
    return slopes_model(simulate_slopes("gaussian", n_rows, N_GROUPS, seed=rng), "gaussian")


def negative_binomial(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Overdispersed counts."""
    X = covariates(rng, n_rows)
    counts = rng.poisson(rng.gamma(2.0, np.exp(X @ _BETA) / 2.0))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=X.shape[1])
        alpha = pm.HalfNormal("alpha", 5.0)
        pm.NegativeBinomial("y", mu=pm.math.exp(X @ beta), alpha=alpha, observed=counts)
    return model


def hsgp_regression(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """A smooth curve of one covariate: a Gaussian process in 20 basis functions."""
    x = rng.uniform(-1.0, 1.0, n_rows)
    y = np.sin(4.0 * x) + 0.5 * rng.standard_normal(n_rows)
    with pm.Model() as model:
        scale = pm.InverseGamma("scale", 5.0, 2.0)
        eta = pm.HalfNormal("eta", 1.0)
        gp = pm.gp.HSGP(m=[20], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=scale))
        f = gp.prior("f", X=x[:, None])
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", f, sigma, observed=y)
    return model


def student_regression(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Linear regression with Student-t errors of unknown scale and degrees of freedom."""
    X = covariates(rng, n_rows)
    y = X @ _BETA + rng.standard_t(4.0, n_rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=X.shape[1])
        sigma = pm.HalfNormal("sigma", 2.0)
        nu = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=nu, mu=X @ beta, sigma=sigma, observed=y)
    return model


def group_intercepts(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Logistic regression, an intercept for every group."""
    return intercepts_model(simulate_intercepts("logistic", n_rows, N_GROUPS, seed=rng))


def normal_mixture(rng: np.random.Generator, n_rows: int) -> pm.Model:
    """Two normals, their labels summed out."""
    first = rng.random(n_rows) < 0.4
    y = np.where(first, -1.0, 2.0) + np.where(first, 0.7, 1.0) * rng.standard_normal(n_rows)
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        mu = pm.Normal(
            "mu", 0.0, 5.0, shape=2, transform=pm.distributions.transforms.ordered,
            initval=np.array([-1.0, 1.0]),
        )  # fmt: skip
        sigma = pm.HalfNormal("sigma", 2.0, shape=2)
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=y)
    return model


SHAPES: dict[str, Build] = {
    build.__name__: build
    for build in (
        zero_inflated_poisson,
        bivariate_normal,
        ordered_logistic,
        multinomial_logit,
        censored_weibull,
        customer_lifetime,
        group_slopes,
        negative_binomial,
        hsgp_regression,
        student_regression,
        group_intercepts,
        normal_mixture,
    )
}
