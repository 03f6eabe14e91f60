r"""Data in groups: simulators with known parameters and the PyMC models that fit them.

Rows i belong to groups g(i), and groups have effects,

.. math:: \eta_i = x_i^\top \beta + u_{g(i)}, \qquad u_g \sim N(0, \sigma_u^2), \qquad
          y_i \sim p(y \mid \eta_i),

and variants: several factors, vectors of effects. All coefficients have the prior
N(0, 2) and all standard deviations HalfNormal(1). The first column of X is for the intercept.

Models have the same variables whether effects are centred or not. If not, an effect ``group`` is a
deterministic function of the standard normal ``group_z``. :data:`EXAMPLES` lists all models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit

from amc_pymc.rng import as_generator

Family = Literal[
    "gaussian",
    "logistic",
    "poisson",
    "negative_binomial",
    "ordered",
    "exponential",
    "weibull",
]
Sizes = Literal["balanced", "random", "unbalanced", "single"]
#: In float64, because PyTensor stores small Python numbers in lower precision.
PRIOR_SD = np.float64(2.0)
CUTPOINTS = np.array([-1.0, 0.3, 1.5])
#: Coefficients of the simulated covariates.
SLOPES = np.array([0.5, -0.4, 0.3, -0.2, 0.6, -0.5, 0.4, -0.3, 0.2])


@dataclass(frozen=True)
class GroupedData:
    """Rows in groups, with the parameters of the simulation.

    Attributes
    ----------
    X : array (N, p)
        Covariates.
    y : array (N,)
        Outcomes.
    groups : dict
        Group (N,) of every row, by factor.
    n_groups : dict
        Number of groups, by factor; some groups may have no rows.
    truth : dict
        Population parameters, by their names in the models.
    effects : dict
        Effects of the groups, by factor.
    extra : dict
        Other data of a model: censoring limits, covariates of groups, parents.
    """

    X: np.ndarray
    y: np.ndarray
    groups: dict[str, np.ndarray]
    n_groups: dict[str, int]
    truth: dict[str, Any]
    effects: dict[str, np.ndarray]
    extra: dict[str, np.ndarray] = field(default_factory=dict)


# --- what models share ---------------------------------------------------------------------------


def row_data(
    batch_size: int | None = None, **arrays: np.ndarray
) -> tuple[dict[str, Any], int | None]:
    """Return the rows as ``pm.Data`` or, with a batch size, as minibatches, and the total size for scaling these."""
    if batch_size is None:
        return {name: pm.Data(name, values) for name, values in arrays.items()}, None
    # PyMC casts other integer types, and then does not recognise the minibatch as observed data.
    whole = (v.astype(np.int32) if v.dtype.kind in "iu" else v for v in arrays.values())
    batches = pm.Minibatch(*whole, batch_size=batch_size)
    return dict(zip(arrays, batches, strict=True)), len(next(iter(arrays.values())))


def effects(name: str, mean, sd, centred: bool, **shape):
    """Return normal effects, centred or as mean plus sd times ``<name>_z``; `shape` is shape or dims."""
    if centred:
        return pm.Normal(name, mean, sd, **shape)
    z = pm.Normal(f"{name}_z", 0.0, 1.0, **shape)
    return pm.Deterministic(name, mean + sd * z, dims=shape.get("dims"))


def coefficients(data: GroupedData):
    """Return the coefficients of the covariates."""
    return pm.Normal("beta", 0.0, PRIOR_SD, shape=data.X.shape[1])


def observe(family: Family, eta, rows: Mapping[str, Any], total_size: int | None = None) -> None:
    """Add the outcome ``obs`` with linear predictor eta, and the additional parameters of the family."""
    kwargs = {"observed": rows["y"], "total_size": total_size}
    if family == "gaussian":
        pm.Normal("obs", eta, pm.HalfNormal("sigma", 1.0), **kwargs)
    elif family == "logistic":
        pm.Bernoulli("obs", logit_p=eta, **kwargs)
    elif family == "poisson":
        pm.Poisson("obs", pt.exp(eta), **kwargs)
    elif family == "negative_binomial":
        pm.NegativeBinomial("obs", mu=pt.exp(eta), alpha=pm.Exponential("alpha", 0.2), **kwargs)
    elif family == "ordered":
        cutpoints = pm.Normal(
            "cutpoints", 0.0, PRIOR_SD, shape=CUTPOINTS.size,
            transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-1.0, 1.0, CUTPOINTS.size),
        )  # fmt: skip
        pm.OrderedLogistic("obs", eta=eta, cutpoints=cutpoints, compute_p=False, **kwargs)
    else:
        time = pm.Exponential.dist(pt.exp(eta))
        if family == "weibull":
            shape = pm.LogNormal("shape", 0.0, 0.5)
            time = pm.Weibull.dist(shape, pt.exp(-eta / shape))
        pm.Censored("obs", time, lower=None, upper=rows["limit"], **kwargs)


def draw_outcomes(
    family: Family, eta: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, Any], dict[str, np.ndarray]]:
    """Draw outcomes (N,); also return the true additional parameters of the family, and censoring limits.

    Survival times have hazard ``exp(eta)``, or ``shape exp(eta) t^(shape - 1)``, and are followed
    for a time between 1 and 4; a longer time is recorded as the limit.
    """
    n = eta.size
    if family == "gaussian":
        return rng.normal(eta, 0.7), {"sigma": 0.7}, {}
    if family == "logistic":
        return (rng.random(n) < expit(eta)).astype(np.int8), {}, {}
    if family == "poisson":
        return rng.poisson(np.exp(eta)), {}, {}
    if family == "negative_binomial":
        alpha = 2.5
        return rng.poisson(np.exp(eta) * rng.gamma(alpha, 1.0 / alpha, n)), {"alpha": alpha}, {}
    if family == "ordered":
        latent = eta + rng.logistic(size=n)
        return np.searchsorted(CUTPOINTS, latent), {"cutpoints": CUTPOINTS}, {}
    shape = 1.4 if family == "weibull" else 1.0
    limit = rng.uniform(1.0, 4.0, n)
    time = (rng.exponential(size=n) * np.exp(-eta)) ** (1.0 / shape)
    truth = {"shape": shape} if family == "weibull" else {}
    return np.minimum(time, limit), truth, {"limit": limit}


def group_index(
    rng: np.random.Generator, n_rows: int, n_groups: int, sizes: Sizes = "balanced"
) -> np.ndarray:
    """Return the group (N,) of every row, with rows in random order.

    ``"balanced"`` groups differ by at most one row, the sizes of ``"random"`` ones are multinomial, and ``"single"``
    ones have one row each. If ``"unbalanced"``, the first group has half of the rows, a third of the
    groups have one row, a tenth none, and the others share the rest.
    """
    if sizes == "random":
        return rng.integers(n_groups, size=n_rows)
    if sizes == "single":
        return rng.permutation(n_rows)
    if sizes == "balanced":
        return rng.permutation(np.arange(n_rows) % n_groups)
    singles, empty = n_groups // 3, -(-n_groups // 10)
    huge, rest = n_rows // 2, n_groups - 1 - singles - empty
    others = 1 + singles + np.arange(n_rows - huge - singles) % rest
    return rng.permutation(np.concatenate([np.zeros(huge, int), 1 + np.arange(singles), others]))


def covariates(rng: np.random.Generator, n_rows: int, columns: int) -> np.ndarray:
    """Draw a column of ones and standard normal columns (N, columns)."""
    X = rng.standard_normal((n_rows, columns))
    X[:, 0] = 1.0
    return X


# --- intercepts of groups: any family, any number of factors --------------------------------------


def simulate_intercepts(
    family: Family = "logistic", n_rows: int = 5_000, n_groups: int | Mapping[str, int] = 100, *,
    n_coefficients: int = 3, sd: float | Mapping[str, float] = 0.8, sizes: Sizes = "balanced",
    seed: int = 1,
) -> GroupedData:  # fmt: skip
    """Simulate rows with an intercept of their group, or of their group in each of several factors.

    Parameters
    ----------
    family : str
        Distribution of the outcomes given the linear predictor.
    n_rows : int
    n_groups : int or dict
        Number of groups of the factor ``group``, or numbers by factor.
    n_coefficients : int
        Up to 10, including the intercept. Ordered outcomes have cutpoints instead of an intercept, so
        their X has one column less.
    sd : float or dict
        Standard deviation of the effects, common to all factors or by factor.
    sizes : {"balanced", "random", "unbalanced", "single"}
        See :func:`group_index`.
    seed : int
    """
    rng = as_generator(seed)
    factors = dict(n_groups) if isinstance(n_groups, Mapping) else {"group": int(n_groups)}
    sds = dict(sd) if isinstance(sd, Mapping) else dict.fromkeys(factors, float(sd))
    X = covariates(rng, n_rows, n_coefficients)
    beta = np.concatenate([[-0.5], SLOPES])[:n_coefficients]
    if family == "ordered":
        X, beta = X[:, 1:], beta[1:]
    groups = {f: group_index(rng, n_rows, size, sizes) for f, size in factors.items()}
    u = {f: sds[f] * rng.standard_normal(size) for f, size in factors.items()}
    eta = X @ beta + sum(u[f][groups[f]] for f in factors)
    y, truth, extra = draw_outcomes(family, eta, rng)
    truth |= {"beta": beta, **{f"sd_{f}": sds[f] for f in factors}}
    return GroupedData(X, y, groups, factors, truth, u, extra)


def intercepts_model(
    data: GroupedData, family: Family = "logistic", centred: bool = True, *,
    batch_size: int | None = None,
) -> pm.Model:  # fmt: skip
    """Build the model of :func:`simulate_intercepts`: ``beta``, and ``sd_group``, ``group`` by factor."""
    with pm.Model() as model:
        index = {f"{f}_index": values for f, values in data.groups.items()}
        rows, total = row_data(batch_size, X=data.X, y=data.y, **index, **data.extra)
        eta = rows["X"] @ coefficients(data)
        for factor, size in data.n_groups.items():
            sd = pm.HalfNormal(f"sd_{factor}", 1.0)
            eta += effects(factor, 0.0, sd, centred, shape=size)[rows[f"{factor}_index"]]
        observe(family, eta, rows, total)
    return model


# --- intercepts and slopes, correlated ------------------------------------------------------------


def simulate_slopes(
    family: Family = "logistic", n_rows: int = 5_000, n_groups: int = 100, *, n_effects: int = 2,
    n_coefficients: int = 3, seed: int = 1,
) -> GroupedData:  # fmt: skip
    """Simulate groups with different first coefficients, with alternating correlations of -0.3 and 0.3.

    Parameters
    ----------
    family : str
        As in :func:`simulate_intercepts`, but not ``"ordered"``.
    n_rows, n_groups : int
    n_effects : int
        Number of effects of a group: the intercept and the next covariates.
    n_coefficients, seed : int
    """
    rng = as_generator(seed)
    X = covariates(rng, n_rows, n_coefficients)
    beta = np.concatenate([[-0.5], SLOPES])[:n_coefficients]
    sds = np.array([0.8, 0.5, 0.3])[:n_effects]
    corr = np.array([[1.0, -0.3, 0.3], [-0.3, 1.0, -0.3], [0.3, -0.3, 1.0]])[:n_effects, :n_effects]
    chol = sds[:, None] * np.linalg.cholesky(corr)
    group = group_index(rng, n_rows, n_groups)
    u = rng.standard_normal((n_groups, n_effects)) @ chol.T
    eta = X @ beta + (X[:, :n_effects] * u[group]).sum(axis=1)
    y, truth, extra = draw_outcomes(family, eta, rng)
    truth |= {"beta": beta, "chol": chol[np.tril_indices(n_effects)]}
    return GroupedData(X, y, {"group": group}, {"group": n_groups}, truth, {"group": u}, extra)


def slopes_model(
    data: GroupedData, family: Family = "logistic", centred: bool = True, *,
    batch_size: int | None = None,
) -> pm.Model:  # fmt: skip
    """Build the model of :func:`simulate_slopes`; ``chol`` has an LKJ(2) prior of the correlations."""
    n_groups, n_effects = data.effects["group"].shape
    with pm.Model() as model:
        rows, total = row_data(
            batch_size, X=data.X, y=data.y, group_index=data.groups["group"], **data.extra
        )
        sds = pm.HalfNormal.dist(1.0, size=n_effects)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=n_effects, eta=2.0, sd_dist=sds)
        if centred:
            u = pm.MvNormal("group", np.zeros(n_effects), chol=chol, shape=(n_groups, n_effects))
        else:
            z = pm.Normal("group_z", 0.0, 1.0, shape=(n_groups, n_effects))
            u = pm.Deterministic("group", z @ chol.T)
        eta = rows["X"] @ coefficients(data)
        eta += (rows["X"][:, :n_effects] * u[rows["group_index"]]).sum(axis=-1)
        observe(family, eta, rows, total)
    return model


# --- groups in groups, covariates of groups --------------------------------------------------------


def simulate_nested(n_rows: int = 5_000, n_groups: int = 100, *, seed: int = 1) -> GroupedData:
    """Simulate logistic rows in classes, ten classes in a school; the mean of a class is the effect of its school."""
    rng = as_generator(seed)
    n_schools = max(2, n_groups // 10)
    X = covariates(rng, n_rows, 3)
    beta, sds = np.array([-0.5, 0.5, -0.4]), {"school": 0.6, "class": 0.4}
    parent = np.arange(n_groups) % n_schools
    school = sds["school"] * rng.standard_normal(n_schools)
    classes = school[parent] + sds["class"] * rng.standard_normal(n_groups)
    index = group_index(rng, n_rows, n_groups)
    y, _, _ = draw_outcomes("logistic", X @ beta + classes[index], rng)
    truth = {"beta": beta, **{f"sd_{name}": value for name, value in sds.items()}}
    groups, sizes = {"class": index}, {"school": n_schools, "class": n_groups}
    u = {"school": school, "class": classes}
    return GroupedData(X, y, groups, sizes, truth, u, {"parent": parent})


def nested_model(data: GroupedData, centred: bool = True) -> pm.Model:
    """Build the model of :func:`simulate_nested`; rows depend on the effect ``class`` only."""
    with pm.Model() as model:
        rows, _ = row_data(X=data.X, y=data.y, class_index=data.groups["class"])
        parent = pm.Data("parent", data.extra["parent"])
        sds = {name: pm.HalfNormal(f"sd_{name}", 1.0) for name in ("school", "class")}
        school = effects("school", 0.0, sds["school"], centred, shape=data.n_groups["school"])
        mean = school[parent]
        classes = effects("class", mean, sds["class"], centred, shape=data.n_groups["class"])
        eta = rows["X"] @ coefficients(data) + classes[rows["class_index"]]
        observe("logistic", eta, rows)
    return model


def simulate_group_covariates(
    n_rows: int = 5_000, n_groups: int = 100, *, seed: int = 1
) -> GroupedData:
    """Simulate logistic rows in groups whose mean effect is a regression on two group covariates."""
    rng = as_generator(seed)
    X, W = covariates(rng, n_rows, 3), rng.standard_normal((n_groups, 2))
    beta, gamma, sd = np.array([-0.5, 0.5, -0.4]), np.array([0.7, -0.3]), 0.5
    index = group_index(rng, n_rows, n_groups)
    u = W @ gamma + sd * rng.standard_normal(n_groups)
    y, _, _ = draw_outcomes("logistic", X @ beta + u[index], rng)
    truth = {"beta": beta, "gamma": gamma, "sd_group": sd}
    groups, sizes = {"group": index}, {"group": n_groups}
    return GroupedData(X, y, groups, sizes, truth, {"group": u}, {"W": W})


def group_covariates_model(data: GroupedData, centred: bool = True) -> pm.Model:
    """Build the model of :func:`simulate_group_covariates`; ``gamma`` are the coefficients of the covariates."""
    with pm.Model() as model:
        rows, _ = row_data(X=data.X, y=data.y, group_index=data.groups["group"])
        W = pm.Data("W", data.extra["W"])
        gamma = pm.Normal("gamma", 0.0, PRIOR_SD, shape=data.extra["W"].shape[1])
        sd = pm.HalfNormal("sd_group", 1.0)
        u = effects("group", W @ gamma, sd, centred, shape=data.n_groups["group"])
        observe("logistic", rows["X"] @ coefficients(data) + u[rows["group_index"]], rows)
    return model


# --- one effect per row ---------------------------------------------------------------------------


def simulate_overdispersion(
    n_rows: int = 1_000, n_groups: int | None = None, *, seed: int = 1
) -> GroupedData:
    """Simulate counts with a normal effect of every row; `n_groups` is the number of rows."""
    data = simulate_intercepts("poisson", n_rows, n_rows, sd=0.6, sizes="single", seed=seed)
    order = data.groups["group"]
    truth = {"beta": data.truth["beta"], "sd_row": data.truth["sd_group"]}
    u = {"row": data.effects["group"][order]}
    return GroupedData(data.X, data.y, {"row": np.arange(n_rows)}, {"row": n_rows}, truth, u)


def overdispersion_model(data: GroupedData, centred: bool = True) -> pm.Model:
    """Build the model of :func:`simulate_overdispersion`; effects are added to rows without an index."""
    with pm.Model() as model:
        rows, _ = row_data(X=data.X, y=data.y)
        sd = pm.HalfNormal("sd_row", 1.0)
        u = effects("row", 0.0, sd, centred, shape=data.n_groups["row"])
        observe("poisson", rows["X"] @ coefficients(data) + u, rows)
    return model


# --- all of them ----------------------------------------------------------------------------------


class Example(NamedTuple):
    """A simulator, its model, and the roles of the variables.

    Attributes
    ----------
    simulate : callable
        ``(n_rows, n_groups, seed=1) -> GroupedData``.
    build : callable
        ``(data, centred=True) -> pm.Model``.
    population : tuple of str
        Variables of the population; the other free variables are local to groups.
    local : tuple of str
        Variables of the groups, with their names in the centred model.
    """

    simulate: Callable[..., GroupedData]
    build: Callable[..., pm.Model]
    population: tuple[str, ...]
    local: tuple[str, ...] = ("group",)


def _intercepts(family: Family, *own: str, **settings) -> Example:
    return Example(
        lambda n_rows, n_groups, seed=1: simulate_intercepts(
            family, n_rows, n_groups, seed=seed, **settings
        ),
        lambda data, centred=True: intercepts_model(data, family, centred),
        ("beta", *own, "sd_group"),
    )


def _logistic_intercepts(data: GroupedData, centred: bool = True) -> pm.Model:
    return intercepts_model(data, "logistic", centred)


def _crossed(n_rows: int, n_groups: int, seed: int = 1) -> GroupedData:
    return simulate_intercepts(
        "logistic", n_rows, {"user": n_groups, "item": n_groups}, sizes="random", seed=seed
    )


def _slopes(family: Family, n_effects: int, *own: str) -> Example:
    return Example(
        lambda n_rows, n_groups, seed=1: simulate_slopes(
            family, n_rows, n_groups, n_effects=n_effects, seed=seed
        ),
        lambda data, centred=True: slopes_model(data, family, centred),
        ("beta", *own, "chol"),
    )


EXAMPLES: dict[str, Example] = {
    "gaussian": _intercepts("gaussian", "sigma"),
    "logistic": _intercepts("logistic"),
    "poisson": _intercepts("poisson"),
    "negative_binomial": _intercepts("negative_binomial", "alpha"),
    "ordered": _intercepts("ordered", "cutpoints"),
    "exponential": _intercepts("exponential"),
    "weibull": _intercepts("weibull", "shape"),
    "unbalanced": _intercepts("logistic", sizes="unbalanced"),
    "slope": _slopes("logistic", 2),
    "gaussian_slope": _slopes("gaussian", 2, "sigma"),
    "two_slopes": _slopes("logistic", 3),
    "crossed": Example(
        _crossed, _logistic_intercepts, ("beta", "sd_user", "sd_item"), ("user", "item")
    ),
    "nested": Example(
        simulate_nested, nested_model, ("beta", "sd_school", "sd_class"), ("school", "class")
    ),
    "group_covariates": Example(
        simulate_group_covariates, group_covariates_model, ("beta", "gamma", "sd_group")
    ),
    "overdispersion": Example(
        simulate_overdispersion, overdispersion_model, ("beta", "sd_row"), ("row",)
    ),
}
