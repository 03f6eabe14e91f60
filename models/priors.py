r"""Regressions of tall data with the priors that people give many coefficients, and their simulators.

Shrinkage (horseshoe, R2D2, spike and slab), factors (crossed, ordered by time or space, answers to items) and smooth
curves. Rows are

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
Family = Literal["normal", "logistic", "poisson", "negative_binomial", "ordered"]
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
    if family == "logistic":
        return (rng.random(eta.size) < expit(eta)).astype(int)
    if family == "poisson":
        return rng.poisson(np.exp(eta))
    if family == "negative_binomial":
        return rng.negative_binomial(SHAPE, SHAPE / (SHAPE + np.exp(eta)))
    return np.digitize(eta + rng.logistic(size=eta.size), CUTPOINTS)


def add_outcomes(family: Family, eta, y: np.ndarray) -> None:
    """Add the outcomes ``obs`` to the model of the context, and the parameters that the family has besides."""
    if family == "normal":
        pm.Normal("obs", eta, pm.HalfNormal("sigma", 2.0), observed=y)
    elif family == "logistic":
        pm.Bernoulli("obs", logit_p=eta, observed=y)
    elif family == "poisson":
        pm.Poisson("obs", pm.math.exp(eta), observed=y)
    elif family == "negative_binomial":
        shape = pm.Exponential("alpha", 0.2)
        pm.NegativeBinomial("obs", mu=pm.math.exp(eta), alpha=shape, observed=y)
    else:
        ordered = pm.distributions.transforms.ordered
        start = np.array([-1.0, 0.0, 1.0])
        cuts = pm.Normal("cuts", 0.0, 2.0, shape=3, initval=start, transform=ordered)
        pm.OrderedLogistic("obs", eta=eta, cutpoints=cuts, compute_p=False, observed=y)


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


def curve(n_rows: int, seed: int, *, family: Family) -> Data:
    """Simulate rows along a curve."""
    rng = as_generator([seed, 20])
    x = rng.random(n_rows)
    return {"x": x, "y": outcomes(family, np.sin(6.0 * x) + 0.5 * x, rng)}


def series(n_rows: int, seed: int, *, times: int) -> Data:
    """Simulate intercepts that walk over time."""
    rng = as_generator([seed, times])
    a, steps = np.zeros(times), rng.normal(0.0, 0.1, times)
    a[1:] = np.cumsum(steps[1:])
    t = rng.integers(times, size=n_rows)
    (
        rng.integers(1, size=n_rows),
        rng.normal(0.0, 0.3, 1),
    )  # as the stream was when there were groups
    return {"t": t, "y": outcomes("logistic", a[t], rng), "true_a": a, "times": np.array(times)}


def areas(n_rows: int, seed: int) -> Data:
    """Simulate counts in 15 x 20 areas, with smooth effects."""
    rng = as_generator([seed, 300])
    row, column = np.divmod(np.arange(300), 20)
    W = (np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1).astype(int)
    u = 0.4 * np.sin(row / 3.0) + 0.3 * np.cos(column / 4.0) + rng.normal(0.0, 0.1, 300)
    a = rng.integers(300, size=n_rows)
    u -= u.mean()
    return {"W": W, "a": a, "y": outcomes("poisson", 0.2 + u[a], rng), "true_u": u}


def answers(n_rows: int, seed: int) -> Data:
    """Simulate all answers of so many persons to 40 items that the rows are ``n_rows``."""
    rng, persons = as_generator([seed, 40]), n_rows // 40
    person, item = np.divmod(np.arange(40 * persons), 40)
    theta, a, b = rng.standard_normal(persons), rng.lognormal(0.0, 0.4, 40), rng.standard_normal(40)
    y = outcomes("logistic", a[item] * (theta[person] - b[item]), rng)
    return {"person": person, "item": item, "y": y, "true_a": a, "true_b": b, "true_theta": theta}


# --- shrinkage -----------------------------------------------------------------------------------


def horseshoe(data: Data) -> pm.Model:
    """Horseshoe of Carvalho, Polson & Scott (2010), not centred."""
    X, k = data["X"], data["X"].shape[1]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0)
        tau = pm.HalfCauchy("tau", 0.1)
        lam = pm.HalfCauchy("lam", 1.0, shape=k)
        b = pm.Deterministic("b", pm.Normal("z", 0.0, 1.0, shape=k) * tau * lam)
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


# --- factors -------------------------------------------------------------------------------------

FIVE = {"year": 26, "age": 72, "educ": 21, "party": 8, "region": 6}


def crossed(data: Data, *, family: Family = "logistic") -> pm.Model:
    """Crossed factors, each with a standard deviation."""
    with pm.Model() as model:
        eta = pm.Normal("a", 0.0, 1.5) + pm.Normal("b", 0.0, 1.0) * data["x"]
        for name in (k for k in data if f"true_u_{k}" in data):
            n = data[f"true_u_{name}"].size
            u = pm.Normal(f"u_{name}", 0.0, pm.HalfNormal(f"sd_{name}", 1.0), shape=n)
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


def random_walk(data: Data) -> pm.Model:
    """Intercepts that walk at random."""
    with pm.Model() as model:
        sd, start = pm.HalfNormal("sd", 0.5), pm.Normal.dist(0.0, 1.0)
        steps = int(data["times"]) - 1
        a = pm.GaussianRandomWalk("a", sigma=sd, init_dist=start, steps=steps)
        add_outcomes("logistic", a[data["t"]], data["y"])
    return model


def smooth_areas(data: Data) -> pm.Model:
    """Intrinsic autoregression over areas (Besag 1974)."""
    with pm.Model() as model:
        m, sd = pm.Normal("m", 0.0, 1.5), pm.HalfNormal("sd", 1.0)
        u = pm.Deterministic("u", sd * pm.ICAR("phi", W=data["W"]))
        add_outcomes("poisson", m + u[data["a"]], data["y"])
    return model


# --- all of them ---------------------------------------------------------------------------------


def columns_of(columns: int, family: Family = "logistic") -> Callable[[int, int], Data]:
    """Return the simulator of so many covariates."""
    return partial(sparse, columns=columns, family=family)


def factors_of(family: Family = "logistic", **levels: int) -> Callable[[int, int], Data]:
    """Return the simulator of factors with so many levels."""
    return partial(factors, levels=levels, family=family)


_horseshoe, _sds = ("b", "tau", "lam"), tuple(f"sd_{k}" for k in FIVE)
_countries = factors_of("ordered", g=97)

#: All examples by name.
EXAMPLES = {
    "horseshoe_40": Example("Horseshoe, 40 coefficients", columns_of(40), horseshoe, _horseshoe),
    "horseshoe_200": Example("Horseshoe, 200 coefficients", columns_of(200), horseshoe, _horseshoe),
    "r2d2": Example("R2D2, 30 coefficients", columns_of(30, "normal"), r2d2, ("b", "r2", "sigma")),
    "spike_slab_30": Example(
        "Spike and slab, 30 coefficients, negative-binomial",
        columns_of(30, "negative_binomial"), spike_and_slab, ("included", "a", "alpha"),
    ),
    "spike_slab_200": Example(
        "Spike and slab, 200 coefficients",
        columns_of(200), partial(spike_and_slab, family="logistic"), ("included", "a"),
    ),
    "crossed": Example(
        "Five crossed factors, centred", factors_of(**FIVE), crossed, ("a", "b", *_sds), 40_000
    ),
    "bambi_default": Example(
        "y ~ x + (1|h) as Bambi writes it",
        factors_of("poisson", h=50), bambi_default, ("Intercept", "x", "1|h_sigma", "1|h"), 40_000,
    ),
    "item_response": Example(
        "Item response, 200 persons and 40 items", answers, item_response, ("a", "b"), 8_000
    ),
    "spline": Example("P-spline, 20 coefficients", partial(curve, family="logistic"), spline, ("sd", "b")),
    "gaussian_process": Example(
        "Gaussian process by 25 basis functions",
        partial(curve, family="poisson"), gaussian_process, ("scale", "length", "a"),
    ),
    "random_walk": Example(
        "Random walk over 500 times", partial(series, times=500), random_walk, ("sd", "a")
    ),
    "icar": Example(
        "Intrinsic autoregression over 300 areas", areas, smooth_areas, ("m", "sd", "u")
    ),
    "countries": Example(
        "Ordered answers in 97 countries", _countries, ordered_factor, ("b", "sd", "cuts"), 333_000
    ),
}  # fmt: skip
