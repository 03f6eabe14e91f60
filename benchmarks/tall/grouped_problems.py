"""Tall data in groups: problems, and the terms of their linear predictors for other packages.

Models and data are those of ``models``, which the process that hands out jobs does not import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.tall.problems import Job, Problem

ROWS_PER_GROUP = 100
ITEMS = 40
#: Distinct flights, all of them.
FLIGHTS = 327_346


class Terms(NamedTuple):
    """A logistic regression with effects: y ~ X beta + sum over factors of u[index].

    Attributes
    ----------
    X : array (N, p)
    y : array (N,)
    index : dict
        Level (N,) of every row, by factor.
    sizes : dict
        Number of levels, by factor.
    n_slopes : int
        Columns of X, beyond the intercept, whose coefficients also differ between groups.
    effect : str
        Name of the effects' variable, to be formatted with the factor's.
    """

    X: np.ndarray
    y: np.ndarray
    index: dict[str, np.ndarray]
    sizes: dict[str, int]
    n_slopes: int = 0
    effect: str = "{}"


@dataclass(frozen=True)
class GroupedProblem(Problem):
    """A problem with effects of groups.

    Attributes
    ----------
    build : callable
        ``(data, **options) -> pm.Model``, options ``centred`` and ``batch_size``.
    terms : callable or None
        ``data -> Terms``, for lme4 and NumPyro; None for what they have no formula for.
    sizes : tuple of int
        The N to run.
    parameterised : bool
        Whether the model can be centred or not.
    """

    build: Callable[..., Any]
    terms: Callable[[Any], Terms] | None
    sizes: tuple[int, ...]
    parameterised: bool = True
    grouped: ClassVar[bool] = True

    def model(self, data, options: tuple[str, ...] = ()):
        """The centred model unless the options say otherwise."""
        if "noncentred" not in options:
            return self.make_model(data)
        if not self.parameterised:
            return super().model(data, options)
        return self.build(data, centred=False)

    def batches(self, data, batch_size: int):
        """The centred model on minibatches."""
        return self.build(data, batch_size=batch_size)


def unsupported(problem: GroupedProblem, job: Job) -> str:
    """Why a method has not been set up for a problem, or nothing."""
    family = job.family
    if family in ("lme4", "hmcecs") and problem.terms is None:
        return "no formula"
    if family == "hmcecs" and "slopes" in problem.name:
        return "not set up for slopes"
    if "noncentred" in job.options and not problem.parameterised:
        return "one parameterisation only"
    return ""


# --- problems -------------------------------------------------------------------------------------


def _flights(name: str, title: str) -> GroupedProblem:
    factors = ("carrier", "dest", "tailnum")

    def data(n_rows, seed):
        from models.flights import load_flights

        return load_flights(n_rows, seed=seed)

    def build(data, **options):
        from models.flights import flights_model

        return flights_model(data, **options)

    def terms(data):
        index = {factor: data.index[factor] for factor in factors}
        sizes = {factor: data.levels[factor].size for factor in factors}
        return Terms(data.X, data.late, index, sizes, effect="{}_effect")

    hyper = tuple(f"sd_{factor}" for factor in factors)
    kept = "beta", *hyper, "carrier_effect", "dest_effect"
    return GroupedProblem(name, title, data, build, kept, False, build, terms, (FLIGHTS,))


def _simulated(
    name: str, title: str, variables: tuple[str, ...], sizes: tuple[int, ...], n_slopes: int = 0
) -> GroupedProblem:
    """Logistic rows with the effects of ``models/grouped.py`` that go by the problem's name."""

    def data(n_rows, seed):
        from models import grouped

        simulate = getattr(grouped, f"simulate_{name}")
        n_groups = max(2, n_rows // ROWS_PER_GROUP)
        return simulate("logistic", n_rows, n_groups, n_coefficients=10, seed=seed)

    def build(data, **options):
        from models import grouped

        return getattr(grouped, f"{name}_model")(data, "logistic", **options)

    def terms(data):
        return Terms(data.X, data.y, data.groups, data.n_groups, n_slopes)

    return GroupedProblem(name, title, data, build, variables, False, build, terms, sizes)


def _item_response(name: str, title: str, sizes: tuple[int, ...]) -> GroupedProblem:
    def data(n_rows, seed):
        from models.item_response import simulate_responses

        return simulate_responses(max(2, n_rows // ITEMS), ITEMS, seed=seed)

    def build(data, **options):
        from models.item_response import item_response_model

        return item_response_model(data, **options)

    variables = ("discrimination", "difficulty")
    return GroupedProblem(
        name, title, data, build, variables, False, build, None, sizes, parameterised=False
    )


PROBLEMS: dict[str, GroupedProblem] = {
    problem.name: problem
    for problem in (
        _flights("flights", "Flights, carriers, destinations and aircraft"),
        _simulated(
            "intercepts", "Random intercepts, 100 rows a group", ("beta", "sd_group"),
            (10**5, 10**6, 10**7),
        ),
        _simulated(
            "slopes", "Correlated intercepts and slopes, 100 rows a group", ("beta", "chol"),
            (10**5, 10**6), n_slopes=1,
        ),
        _item_response("item_response", "Item response, N / 40 persons, 40 items", (4_000_000,)),
    )
}  # fmt: skip
