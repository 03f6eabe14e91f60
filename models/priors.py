r"""Regressions of tall data with the priors that people give many coefficients, and their simulators.

Shrinkage (horseshoe, R2D2, Student t, Laplace, spike and slab), factors (crossed, nested, correlated, ordered by time or
space), smooth curves, and several ways to write the same standard deviations. Rows are

.. math:: \eta_i = x_i^\top \beta + u_{g(i)} + \dots, \qquad y_i \sim p(y \mid \eta_i) .

:data:`EXAMPLES` lists them with their simulators. A simulator returns arrays, with true values under ``true_NAME``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.interpolate import BSpline
from scipy.special import expit

from amc_pymc.rng import as_generator

Data = dict[str, np.ndarray]
Family = Literal["normal", "student_t", "logistic", "poisson", "negative_binomial", "ordered"]
CUTPOINTS = np.array([-1.0, 0.3, 1.5])
SHAPE, NOISE = 3.0, 1.0


class Example(NamedTuple):
    """A model with its simulator.

    Attributes
    ----------
    title : str
    simulate : callable
        ``(n_rows, seed) -> data``.
    model : callable
        ``data -> pm.Model``.
    variables : tuple of str
        Names of the parameters of interest.
    n_rows : int
        Usual number of rows.
    """

    title: str
    simulate: Callable[[int, int], Data]
    model: Callable[[Data], pm.Model]
    variables: tuple[str, ...]
    n_rows: int = 50_000


# --- simulators ----------------------------------------------------------------------------------


def outcomes(family: Family, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw outcomes (N,) given linear predictors."""
    if family == "normal":
        return eta + NOISE * rng.standard_normal(eta.size)
    if family == "student_t":
        return eta + NOISE * rng.standard_t(4.0, eta.size)
    if family == "logistic":
        return (rng.random(eta.size) < expit(eta)).astype(int)
    if family == "poisson":
        return rng.poisson(np.exp(eta))
    if family == "negative_binomial":
        return rng.negative_binomial(SHAPE, SHAPE / (SHAPE + np.exp(eta)))
    return np.digitize(eta + rng.logistic(size=eta.size), CUTPOINTS)


def observe(family: Family, eta) -> dict[str, pm.Distribution]:
    """Return class and arguments of the outcomes, and add the parameters that the family has besides."""
    if family == "normal":
        return {"dist": pm.Normal, "mu": eta, "sigma": pm.HalfNormal("sigma", 2.0)}
    if family == "student_t":
        nu, sigma = pm.Gamma("nu", 2.0, 0.1), pm.HalfNormal("sigma", 2.0)
        return {"dist": pm.StudentT, "nu": nu, "mu": eta, "sigma": sigma}
    if family == "logistic":
        return {"dist": pm.Bernoulli, "logit_p": eta}
    if family == "poisson":
        return {"dist": pm.Poisson, "mu": pm.math.exp(eta)}
    if family == "negative_binomial":
        return {
            "dist": pm.NegativeBinomial,
            "mu": pm.math.exp(eta),
            "alpha": pm.Exponential("alpha", 0.2),
        }
    cuts = pm.Normal(
        "cuts",
        0.0,
        2.0,
        shape=3,
        initval=np.array([-1.0, 0.0, 1.0]),
        transform=pm.distributions.transforms.ordered,
    )
    return {"dist": pm.OrderedLogistic, "eta": eta, "cutpoints": cuts, "compute_p": False}


def add_outcomes(family: Family, eta, y: np.ndarray) -> None:
    """Add the outcomes ``obs`` to the model of the context."""
    arguments = observe(family, eta)
    arguments.pop("dist")("obs", **arguments, observed=y)


def sparse(n_rows: int, seed: int, *, columns: int, family: Family) -> Data:
    """Simulate covariates of which every eighth has a coefficient, between 0.05 and 0.4 in size."""
    rng = as_generator([seed, columns])
    X = rng.standard_normal((n_rows, columns))
    b = np.zeros(columns)
    b[::8] = np.geomspace(0.05, 0.4, b[::8].size) * (-1.0) ** np.arange(b[::8].size)
    return {"X": X, "y": outcomes(family, -0.5 + X @ b, rng), "true_b": b}


def factors(
    n_rows: int, seed: int, *, levels: dict[str, int], family: Family, sd: float = 0.3
) -> Data:
    """Simulate a covariate ``x`` with coefficient 0.3, and factors whose effects have the same sd."""
    rng = as_generator([seed, *levels.values()])
    x = rng.standard_normal(n_rows)
    eta, data = -0.4 + 0.3 * x, Data(x=x)
    for name, n in levels.items():
        data[name], effects = rng.integers(n, size=n_rows), rng.normal(0.0, sd, n)
        eta = eta + effects[data[name]]
        data[f"true_u_{name}"] = effects
    return data | {"y": outcomes(family, eta, rng), "true_b": np.array(0.3)}


def slopes(n_rows: int, seed: int) -> Data:
    """Simulate 50 groups with correlated intercepts and slopes."""
    rng = as_generator([seed, 50])
    x, g = rng.standard_normal(n_rows), rng.integers(50, size=n_rows)
    u = rng.multivariate_normal([0.0, 0.0], [[0.25, -0.06], [-0.06, 0.09]], size=50)
    y = outcomes("logistic", -0.4 + 0.3 * x + u[g, 0] + u[g, 1] * x, rng)
    return {"x": x, "g": g, "y": y, "true_b": np.array(0.3), "true_u": u}


def districts(n_rows: int, seed: int) -> Data:
    """Simulate 12 regions of ten districts each."""
    rng = as_generator([seed, 120])
    region, d = np.repeat(np.arange(12), 10), rng.integers(120, size=n_rows)
    u = rng.normal(0.0, 0.4, 12)[region] + rng.normal(0.0, 0.2, 120)
    return {"region": region, "d": d, "y": outcomes("logistic", -0.4 + u[d], rng), "true_u": u}


def curve(n_rows: int, seed: int, *, family: Family) -> Data:
    """Simulate rows along a curve."""
    rng = as_generator([seed, 20])
    x = rng.random(n_rows)
    return {"x": x, "y": outcomes(family, np.sin(6.0 * x) + 0.5 * x, rng)}


def series(
    n_rows: int, seed: int, *, times: int, family: Family, rho: float = 1.0, groups: int = 1
) -> Data:
    """Simulate intercepts that walk, or return to zero, over time, and a factor."""
    rng = as_generator([seed, times])
    a, steps = np.zeros(times), rng.normal(0.0, 0.1 if rho == 1.0 else 0.3, times)
    for t in range(1, times):
        a[t] = rho * a[t - 1] + steps[t]
    t, g, u = (
        rng.integers(times, size=n_rows),
        rng.integers(groups, size=n_rows),
        rng.normal(0, 0.3, groups),
    )
    eta = a[t] + (u[g] if groups > 1 else 0.0)
    return {"t": t, "g": g, "y": outcomes(family, eta, rng), "true_a": a, "times": np.array(times)}


def areas(n_rows: int, seed: int) -> Data:
    """Simulate counts in 15 x 20 areas, with smooth effects."""
    rng = as_generator([seed, 300])
    row, column = np.divmod(np.arange(300), 20)
    W = (np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1).astype(int)
    u = 0.4 * np.sin(row / 3.0) + 0.3 * np.cos(column / 4.0) + rng.normal(0.0, 0.1, 300)
    a = rng.integers(300, size=n_rows)
    return {
        "W": W,
        "a": a,
        "y": outcomes("poisson", 0.2 + u[a] - u.mean(), rng),
        "true_u": u - u.mean(),
    }


def answers(n_rows: int, seed: int) -> Data:
    """Simulate all answers of so many persons to 40 items that the rows are ``n_rows``."""
    rng, persons = as_generator([seed, 40]), n_rows // 40
    person, item = np.divmod(np.arange(40 * persons), 40)
    theta, a, b = rng.standard_normal(persons), rng.lognormal(0.0, 0.4, 40), rng.standard_normal(40)
    y = outcomes("logistic", a[item] * (theta[person] - b[item]), rng)
    return {"person": person, "item": item, "y": y, "true_a": a, "true_b": b, "true_theta": theta}


def games(n_rows: int, seed: int) -> Data:
    """Simulate games between 300 teams."""
    rng = as_generator([seed, 301])
    skill = rng.normal(0.0, 0.7, 300)
    first = rng.integers(300, size=n_rows)
    second = (first + rng.integers(1, 300, size=n_rows)) % 300
    y = outcomes("logistic", 0.1 + skill[first] - skill[second], rng)
    return {"first": first, "second": second, "y": y, "true_skill": skill}


def levels_with_means(n_rows: int, seed: int) -> Data:
    """Simulate 80 groups whose means depend on a covariate of the groups."""
    rng = as_generator([seed, 80])
    z, g = rng.standard_normal(80), rng.integers(80, size=n_rows)
    u = -0.3 + 0.5 * z + rng.normal(0.0, 0.2, 80)
    y = outcomes("logistic", u[g], rng)
    return {"z": z, "g": g, "y": y, "true_u": u, "true_b": np.array(0.5)}


# --- shrinkage -----------------------------------------------------------------------------------


def horseshoe(data: Data, *, family: Family = "logistic", centred: bool = False) -> pm.Model:
    """Horseshoe of Carvalho, Polson & Scott (2010)."""
    X = data["X"]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        tau = pm.HalfCauchy("tau", 0.1)
        lam = pm.HalfCauchy("lam", 1.0, shape=X.shape[1])
        if centred:
            b = pm.Normal("b", 0.0, tau * lam, shape=X.shape[1])
        else:
            z = pm.Normal("z", 0.0, 1.0, shape=X.shape[1])
            b = pm.Deterministic("b", z * tau * lam)
        add_outcomes(family, a + X @ b, data["y"])
    return model


def regularised_horseshoe(data: Data) -> pm.Model:
    """Regularised horseshoe of Piironen & Vehtari (2017)."""
    X = data["X"]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        tau = pm.HalfStudentT("tau", 2, 0.1)
        lam = pm.HalfStudentT("lam", 2, shape=X.shape[1])
        c2 = pm.InverseGamma("c2", 1.0, 1.0)
        z = pm.Normal("z", 0.0, 1.0, shape=X.shape[1])
        local = lam * pm.math.sqrt(c2 / (c2 + tau**2 * lam**2))
        b = pm.Deterministic("b", z * tau * local)
        add_outcomes("logistic", a + X @ b, data["y"])
    return model


def r2d2(data: Data) -> pm.Model:
    """R2D2 of Zhang et al. (2022)."""
    X, k = data["X"], data["X"].shape[1]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        r2 = pm.Beta("r2", 2.0, 2.0)
        share = pm.Dirichlet("share", np.full(k, 0.5))
        z = pm.Normal("z", 0.0, 1.0, shape=k)
        b = pm.Deterministic("b", z * sigma * pm.math.sqrt(share * r2 / (1.0 - r2)))
        pm.Normal("obs", a + X @ b, sigma, observed=data["y"])
    return model


def heavy_tailed(data: Data, *, kind: Literal["student_t", "laplace"]) -> pm.Model:
    """Student t or Laplace priors of unknown scale."""
    X, k = data["X"], data["X"].shape[1]
    with pm.Model() as model:
        a, s = pm.Normal("a", 0.0, 2.0), pm.HalfNormal("s", 0.5)
        if kind == "student_t":
            b = pm.StudentT("b", nu=3, mu=0.0, sigma=s, shape=k)
        else:
            b = pm.Laplace("b", 0.0, s, shape=k)
        add_outcomes("logistic", a + X @ b, data["y"])
    return model


def spike_and_slab(data: Data, *, family: Family = "negative_binomial") -> pm.Model:
    """Coefficients that are zero or normal."""
    X, k = data["X"], data["X"].shape[1]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        g = pm.Bernoulli("g", 0.2, shape=k)
        b = pm.Normal("b", 0.0, 0.5, shape=k)
        pm.Deterministic("included", g.sum())
        add_outcomes(family, a + X @ (g * b), data["y"])
    return model


def two_normals(data: Data) -> pm.Model:
    """Coefficients from a narrow or a wide normal distribution (George & McCulloch 1993)."""
    X, k = data["X"], data["X"].shape[1]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        p = pm.Beta("p", 1.0, 1.0)
        g = pm.Bernoulli("g", p, shape=k)
        b = pm.Normal("b", 0.0, pm.math.switch(g, 1.0, 0.05), shape=k)
        add_outcomes("logistic", a + X @ b, data["y"])
    return model


# --- factors -------------------------------------------------------------------------------------

FIVE = {"year": 26, "age": 72, "educ": 21, "party": 8, "region": 6}


def crossed(data: Data, *, centred: bool = True, family: Family = "logistic") -> pm.Model:
    """Crossed factors, each with a standard deviation."""
    with pm.Model() as model:
        eta = pm.Normal("a", 0.0, 1.5) + pm.Normal("b", 0.0, 1.0) * data["x"]
        for name in (k for k in data if f"true_u_{k}" in data):
            n = data[f"true_u_{name}"].size
            sd = pm.HalfNormal(f"sd_{name}", 1.0)
            if centred:
                u = pm.Normal(f"u_{name}", 0.0, sd, shape=n)
            else:
                z = pm.Normal(f"z_{name}", 0.0, 1.0, shape=n)
                u = pm.Deterministic(f"u_{name}", sd * z)
            eta = eta + u[data[name]]
        add_outcomes(family, eta, data["y"])
    return model


def bambi_default(data: Data) -> pm.Model:
    """``y ~ x + (1|h)`` as Bambi writes it by default."""
    coords = {"h__factor_dim": [f"h{k:02d}" for k in range(data["true_u_h"].size)]}
    with pm.Model(coords=coords) as model:
        intercept = pm.Normal("Intercept", 0.0, 2.5)
        x = pm.Normal("x", 0.0, 2.5)
        sigma = pm.HalfNormal("1|h_sigma", 2.5)
        offset = pm.Normal("1|h_offset", 0.0, 1.0, dims="h__factor_dim")
        h = pm.Deterministic("1|h", offset * sigma, dims="h__factor_dim")
        centred = (data["x"] - data["x"].mean())[:, None]
        eta = intercept + pt.dot(centred, pt.stack([x])) + h[data["h"]]
        pm.Poisson("obs", mu=pt.exp(eta), observed=data["y"])
    return model


def correlated_slopes(data: Data) -> pm.Model:
    """Intercepts and slopes with an LKJ prior, not centred."""
    x, g = data["x"], data["g"]
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.5), pm.Normal("b", 0.0, 1.0)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        z = pm.Normal("z", 0.0, 1.0, shape=(2, 50))
        u = pm.Deterministic("u", (chol @ z).T)
        add_outcomes("logistic", a + b * x + u[g, 0] + u[g, 1] * x, data["y"])
    return model


def nested(data: Data) -> pm.Model:
    """Districts in regions, not centred."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.5)
        sd_region, sd_district = pm.HalfNormal("sd_region", 1.0), pm.HalfNormal("sd_district", 1.0)
        z_region = pm.Normal("z_region", 0.0, 1.0, shape=12)
        z_district = pm.Normal("z_district", 0.0, 1.0, shape=120)
        region = a + sd_region * z_region
        u = pm.Deterministic("u", region[data["region"]] + sd_district * z_district)
        add_outcomes("logistic", u[data["d"]], data["y"])
    return model


def means_regression(data: Data) -> pm.Model:
    """Groups whose means follow a regression on a covariate of the groups."""
    with pm.Model() as model:
        a, b, sd = pm.Normal("a", 0.0, 1.5), pm.Normal("b", 0.0, 1.0), pm.HalfNormal("sd", 1.0)
        u = pm.Normal("u", mu=a + b * data["z"], sigma=sd, shape=80)
        add_outcomes("logistic", u[data["g"]], data["y"])
    return model


def zero_sum(data: Data) -> pm.Model:
    """A factor whose effects add up to zero."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.5), pm.Normal("b", 0.0, 1.0)
        u = pm.ZeroSumNormal("u", pm.HalfNormal("sd", 1.0), shape=50)
        add_outcomes("poisson", a + b * data["x"] + u[data["h"]], data["y"])
    return model


Sds = Literal["vector", "stack", "variance", "precision", "exp"]


def two_factors(data: Data, *, sds: Sds) -> pm.Model:
    """Two crossed factors, with standard deviations written in one of several ways."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.5), pm.Normal("b", 0.0, 1.0)
        if sds == "vector":
            s = pm.HalfNormal("s", 1.0, shape=2)
        elif sds == "stack":
            s = pt.stack([pm.HalfNormal("s0", 1.0), pm.HalfNormal("s1", 1.0)])
        elif sds == "variance":
            s = pm.math.sqrt(pm.InverseGamma("s", 2.0, 0.2, shape=2))
        elif sds == "precision":
            s = pm.Gamma("s", 1.0, 0.1, shape=2)
        else:
            s = pm.math.exp(pm.Normal("s", -1.0, 1.0, shape=2))
        scale = "tau" if sds == "precision" else "sigma"
        u = pm.Normal("u", 0.0, **{scale: s[0]}, shape=40)
        w = pm.Normal("w", 0.0, **{scale: s[1]}, shape=25)
        add_outcomes("logistic", a + b * data["x"] + u[data["g"]] + w[data["h"]], data["y"])
    return model


def ordered_factor(data: Data) -> pm.Model:
    """Ordered answers with effects of one factor."""
    n = data["true_u_g"].size
    with pm.Model() as model:
        b, sd = pm.Normal("b", 0.0, 1.0), pm.HalfNormal("sd", 1.0)
        u = pm.Normal("u", 0.0, sd, shape=n)
        add_outcomes("ordered", b * data["x"] + u[data["g"]], data["y"])
    return model


def item_response(data: Data) -> pm.Model:
    """Two-parameter logistic model (Birnbaum 1968)."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=data["true_theta"].size)
        a = pm.LogNormal("a", 0.0, 0.5, shape=40)
        b = pm.Normal("b", 0.0, 1.5, shape=40)
        item = data["item"]
        add_outcomes("logistic", a[item] * (theta[data["person"]] - b[item]), data["y"])
    return model


def bradley_terry(data: Data) -> pm.Model:
    """Paired comparisons (Bradley & Terry 1952), with an advantage at home."""
    with pm.Model() as model:
        home, sd = pm.Normal("home", 0.0, 1.0), pm.HalfNormal("sd", 1.0)
        skill = pm.Normal("skill", 0.0, sd, shape=300)
        add_outcomes("logistic", home + skill[data["first"]] - skill[data["second"]], data["y"])
    return model


# --- curves, time and space ----------------------------------------------------------------------


def spline(data: Data) -> pm.Model:
    """P-spline: second differences of 20 coefficients have a normal prior (Lang & Brezger 2004)."""
    knots = np.linspace(-3.0 / 17.0, 1.0 + 3.0 / 17.0, 24)
    basis = BSpline.design_matrix(data["x"], knots, 3).toarray()
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        b = pm.Normal("b", 0.0, 5.0, shape=20)
        pm.Potential("smooth", pm.logp(pm.Normal.dist(0.0, sd, shape=18), pt.diff(b, n=2)).sum())
        add_outcomes("logistic", pt.dot(basis, b), data["y"])
    return model


def gaussian_process(data: Data) -> pm.Model:
    """Gaussian process by 25 basis functions (Riutort-Mayol et al. 2023)."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        scale, length = pm.HalfNormal("scale", 1.0), pm.InverseGamma("length", 5.0, 1.5)
        gp = pm.gp.HSGP(m=[25], c=1.5, cov_func=scale**2 * pm.gp.cov.ExpQuad(1, length))
        basis, root = gp.prior_linearized(data["x"][:, None])
        z = pm.Normal("z", 0.0, 1.0, shape=25)
        add_outcomes("poisson", a + basis @ (root * z), data["y"])
    return model


def random_walk(data: Data, *, cumulated: bool = False) -> pm.Model:
    """Intercepts that walk at random, as a distribution or as sums of steps."""
    n = int(data["times"])
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 0.5)
        if cumulated:
            start, z = pm.Normal("start", 0.0, 1.0), pm.Normal("z", 0.0, 1.0, shape=n)
            a = pm.Deterministic("a", start + sd * pt.cumsum(z))
        else:
            a = pm.GaussianRandomWalk(
                "a", sigma=sd, init_dist=pm.Normal.dist(0.0, 1.0), steps=n - 1
            )
        add_outcomes("logistic", a[data["t"]], data["y"])
    return model


def autoregression(data: Data) -> pm.Model:
    """Intercepts that follow an AR(1) process with unknown coefficient."""
    with pm.Model() as model:
        m, sd = pm.Normal("m", 0.0, 1.0), pm.HalfNormal("sd", 1.0)
        rho = pm.Uniform("rho", -1.0, 1.0, shape=1)
        a = pm.AR("a", rho=rho, sigma=sd, init_dist=pm.Normal.dist(0.0, 1.0), steps=99)
        add_outcomes("logistic", m + a[data["t"]], data["y"])
    return model


def walk_and_factor(data: Data) -> pm.Model:
    """A walking intercept and a factor, not centred."""
    n = int(data["times"])
    with pm.Model() as model:
        sd_a, sd_u = pm.HalfNormal("sd_a", 0.5), pm.HalfNormal("sd_u", 1.0)
        a = pm.GaussianRandomWalk("a", sigma=sd_a, init_dist=pm.Normal.dist(0.0, 1.0), steps=n - 1)
        z = pm.Normal("z", 0.0, 1.0, shape=40)
        add_outcomes("poisson", a[data["t"]] + sd_u * z[data["g"]], data["y"])
    return model


def smooth_areas(data: Data, *, bym2: bool = False) -> pm.Model:
    """Intrinsic autoregression over areas, alone or with independent effects (Riebler et al. 2016)."""
    W, a = data["W"], data["a"]
    with pm.Model() as model:
        m, sd = pm.Normal("m", 0.0, 1.5), pm.HalfNormal("sd", 1.0)
        phi = pm.ICAR("phi", W=W)
        effect = sd * phi
        if bym2:
            rho, theta = pm.Beta("rho", 0.5, 0.5), pm.Normal("theta", 0.0, 1.0, shape=300)
            variances = np.diag(np.linalg.pinv(np.diag(W.sum(0)) - W, hermitian=True))
            scale = np.exp(np.mean(np.log(variances[variances > 1e-9])))  # without isolated areas
            effect = sd * (pt.sqrt(rho / scale) * phi + pt.sqrt(1.0 - rho) * theta)
        u = pm.Deterministic("u", effect)
        add_outcomes("poisson", m + u[a], data["y"])
    return model


# --- all of them ---------------------------------------------------------------------------------

_columns = {k: partial(sparse, columns=k, family="logistic") for k in (30, 40, 200)}
_two = partial(factors, levels={"g": 40, "h": 25}, family="logistic")
_five = partial(factors, levels=FIVE, family="logistic")

#: All examples by name.
EXAMPLES = {
    "horseshoe_40": Example(
        "Horseshoe, 40 coefficients, not centred", _columns[40], horseshoe, ("b", "tau", "lam")
    ),
    "horseshoe_40_centred": Example(
        "The same, centred", _columns[40], partial(horseshoe, centred=True), ("b", "tau", "lam")
    ),
    "regularised_horseshoe": Example(
        "Regularised horseshoe, 40 coefficients",
        _columns[40],
        regularised_horseshoe,
        ("b", "tau", "c2"),
    ),
    "horseshoe_200": Example(
        "Horseshoe, 200 coefficients", _columns[200], horseshoe, ("b", "tau", "lam")
    ),
    "horseshoe_student": Example(
        "Horseshoe, 40 coefficients, Student t errors",
        partial(sparse, columns=40, family="student_t"),
        partial(horseshoe, family="student_t"),
        ("b", "tau", "sigma", "nu"),
    ),
    "r2d2": Example(
        "R2D2, 30 coefficients",
        partial(sparse, columns=30, family="normal"),
        r2d2,
        ("b", "r2", "sigma"),
    ),
    "student_t": Example(
        "Student t priors of 40 coefficients",
        _columns[40],
        partial(heavy_tailed, kind="student_t"),
        ("b", "s"),
    ),
    "laplace": Example(
        "Laplace priors of 40 coefficients",
        _columns[40],
        partial(heavy_tailed, kind="laplace"),
        ("b", "s"),
    ),
    "spike_slab_30": Example(
        "Spike and slab, 30 coefficients, negative-binomial",
        partial(sparse, columns=30, family="negative_binomial"),
        spike_and_slab,
        ("included", "a", "alpha"),
    ),
    "spike_slab_200": Example(
        "Spike and slab, 200 coefficients",
        _columns[200],
        partial(spike_and_slab, family="logistic"),
        ("included", "a"),
    ),
    "two_normals": Example(
        "Mixture of two normals, 30 coefficients", _columns[30], two_normals, ("b", "p")
    ),
    "crossed": Example(
        "Five crossed factors, centred",
        _five,
        crossed,
        ("a", "b", *(f"sd_{k}" for k in FIVE)),
        40_000,
    ),
    "crossed_noncentred": Example(
        "Five crossed factors, not centred",
        _five,
        partial(crossed, centred=False),
        ("a", "b", *(f"sd_{k}" for k in FIVE)),
        40_000,
    ),
    "bambi_default": Example(
        "y ~ x + (1|h) as Bambi writes it",
        partial(factors, levels={"h": 50}, family="poisson"),
        bambi_default,
        ("Intercept", "x", "1|h_sigma", "1|h"),
        40_000,
    ),
    "correlated_slopes": Example(
        "Correlated slopes of 50 groups, LKJ prior",
        slopes,
        correlated_slopes,
        ("a", "b", "chol", "u"),
    ),
    "nested": Example(
        "Districts in regions, not centred", districts, nested, ("a", "sd_region", "sd_district")
    ),
    "means_regression": Example(
        "Means of 80 groups follow a regression",
        levels_with_means,
        means_regression,
        ("a", "b", "sd"),
    ),
    "zero_sum": Example(
        "Zero-sum effects of 50 levels",
        partial(factors, levels={"h": 50}, family="poisson"),
        zero_sum,
        ("a", "b", "sd", "u"),
    ),
    **{
        f"sds_{kind}": Example(
            f"Two factors, standard deviations by {words}",
            _two,
            partial(two_factors, sds=kind),
            ("a", "b", *names, "u", "w"),
        )
        for kind, words, names in (
            ("vector", "a vector", ("s",)),
            ("stack", "a stack", ("s0", "s1")),
            ("variance", "variances", ("s",)),
            ("precision", "precisions", ("s",)),
            ("exp", "exponentials", ("s",)),
        )
    },
    "ordered_factor": Example(
        "Ordered answers, 60 levels",
        partial(factors, levels={"g": 60}, family="ordered"),
        ordered_factor,
        ("b", "sd", "cuts"),
    ),
    "item_response": Example(
        "Item response, 200 persons and 40 items", answers, item_response, ("a", "b"), 8_000
    ),
    "bradley_terry": Example(
        "Paired comparisons of 300 teams", games, bradley_terry, ("home", "sd", "skill"), 40_000
    ),
    "spline": Example(
        "P-spline, 20 coefficients", partial(curve, family="logistic"), spline, ("sd", "b")
    ),
    "gaussian_process": Example(
        "Gaussian process by 25 basis functions",
        partial(curve, family="poisson"),
        gaussian_process,
        ("scale", "length", "a"),
    ),
    "random_walk": Example(
        "Random walk over 500 times",
        partial(series, times=500, family="logistic"),
        random_walk,
        ("sd", "a"),
    ),
    "random_walk_sums": Example(
        "The same by sums of steps",
        partial(series, times=500, family="logistic"),
        partial(random_walk, cumulated=True),
        ("sd", "a"),
    ),
    "autoregression": Example(
        "AR(1) over 100 periods",
        partial(series, times=100, family="logistic", rho=0.8),
        autoregression,
        ("m", "sd", "rho"),
    ),
    "walk_and_factor": Example(
        "Random walk over 100 times and a factor",
        partial(series, times=100, family="poisson", groups=40),
        walk_and_factor,
        ("sd_a", "sd_u", "a"),
    ),
    "icar": Example(
        "Intrinsic autoregression over 300 areas", areas, smooth_areas, ("m", "sd", "u")
    ),
    "bym2": Example(
        "The same and independent effects",
        areas,
        partial(smooth_areas, bym2=True),
        ("m", "sd", "rho", "u"),
    ),
    "countries": Example(
        "Ordered answers in 97 countries",
        partial(factors, levels={"g": 97}, family="ordered"),
        ordered_factor,
        ("b", "sd", "cuts"),
        333_000,
    ),
}
