"""Tall data on which nothing but discrete variables is unknown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.tall.problems import Data, Problem, correlated_normal

#: Covariates, states of a coefficient, and the spacing of states in standard errors.
_COVARIATES, _STATES, _SPACING = 8, 5, 1.5
_SHAPE = 2.0


def grid_data(n_rows: int, seed: int) -> Data:
    """Logistic regression whose coefficients lie on grids some standard errors wide."""
    rng, X, truth, levels = _design(n_rows, seed, 2.0)
    y = rng.random(n_rows) < 1.0 / (1.0 + np.exp(-X @ truth))
    return {"X": X, "y": y.astype(np.int8), "levels": levels}


def counts_data(n_rows: int, seed: int) -> Data:
    """Overdispersed counts whose log rate has coefficients on grids."""
    rng, X, truth, levels = _design(n_rows, seed, 1.2)
    y = rng.negative_binomial(_SHAPE, _SHAPE / (_SHAPE + np.exp(0.5 + X @ truth)))
    return {"X": X, "y": y, "levels": levels}


def indicator_data(n_rows: int, seed: int) -> Data:
    """Logistic regression with covariates of known effect that may be in or out."""
    rng, X, _, _ = _design(n_rows, seed, 2.0)
    effect = 2.0 / np.sqrt(0.2 * n_rows) * (-1.0) ** np.arange(_COVARIATES)
    inside = np.arange(_COVARIATES) % 2 == 0
    y = rng.random(n_rows) < 1.0 / (1.0 + np.exp(-X @ (effect * inside * 0.75 + 0.2 * effect)))
    return {"X": X, "y": y.astype(np.int8), "effect": effect}


def _design(n_rows: int, seed: int, scale: float):
    rng = np.random.default_rng([seed, 5])
    X = correlated_normal(rng, n_rows, _COVARIATES)
    truth = np.linspace(-0.3, 0.3, _COVARIATES)
    steps = _SPACING * scale / np.sqrt(n_rows) * (np.arange(_STATES) - _STATES // 2)
    return rng, X, truth, truth[:, None] + steps


def grid_model(data: Data):
    """Bernoulli rows, a Categorical per coefficient."""
    return _model(
        data, lambda pm, X, y: pm.Bernoulli("obs", logit_p=X @ _coefficients(data), observed=y)
    )


def counts_model(data: Data):
    """Negative-binomial rows, which are dear to evaluate."""

    def rows(pm, X, y):
        rate = pm.math.exp(0.5 + X @ _coefficients(data))
        pm.NegativeBinomial("obs", mu=rate, alpha=_SHAPE, observed=y)

    return _model(data, rows)


def indicator_model(data: Data):
    """Bernoulli rows, a Bernoulli per covariate."""

    def rows(pm, X, y):
        state = pm.Bernoulli("state", 0.5, shape=_COVARIATES)
        pm.Bernoulli("obs", logit_p=X @ (data["effect"] * state), observed=y)

    return _model(data, rows)


def _model(data: Data, rows: Callable):
    import pymc as pm

    with pm.Model() as model:
        rows(pm, pm.Data("X", data["X"]), pm.Data("y", data["y"]))
    return model


def _coefficients(data: Data):
    import pymc as pm
    import pytensor.tensor as pt

    state = pm.Categorical("state", p=np.full(_STATES, 1.0 / _STATES), shape=_COVARIATES)
    return pt.as_tensor(data["levels"])[np.arange(_COVARIATES), state]


PROBLEMS = {
    name: Problem(name, title, make_data, make_model, ("state",), False)
    for name, title, make_data, make_model in (
        (
            "grid", "Logistic regression, 8 coefficients on grids of 5 states (cheap rows)",
            grid_data, grid_model,
        ),
        (
            "counts",
            "Negative-binomial regression, 8 coefficients on grids of 5 states (dear rows)",
            counts_data, counts_model,
        ),
        (
            "indicators", "Logistic regression, 8 indicators (cheap rows)",
            indicator_data, indicator_model,
        ),
    )
}  # fmt: skip
