"""Densities of a ``pm.Model``, of rows in memory or in a store, and checks that they add up to its log density."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc import Model

from amc_pymc.reading import FlatLayout, extract_rows
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.factors import Factor
from amc_pymc.reading.graphs import interpreted_function, log_density
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.packed_rows import RowPacking
from amc_pymc.reading.rows import choose_observed, possible_points
from amc_pymc.rng import as_generator
from amc_pymc.rows import open_source, stored_rows
from amc_pymc.steps.settings import Options
from amc_pymc.tall.samplers.raced import RacedModel

#: Seed of subsamples, probes, and points at which packed rows are checked; independent of the user's seed.
SEED = 20161


def checked_densities(
    model: Model, options: Options, point: dict[str, np.ndarray]
) -> ModelDensities:
    """Decompose the model, and check at a point that its densities add up."""
    densities = plain_densities(model, options, point)
    check_densities(model, densities, point)
    return densities


def check_densities(model: Model, densities: ModelDensities, point: dict[str, np.ndarray]) -> None:
    """Raise an error if rows are not finite at a point, or densities do not add up."""
    start = densities.layout.ravel(point)
    check_rows_finite(densities, start, "the initial point")
    got = densities.all_values(start).sum() + densities.rest_value_and_gradient(start)[0]
    terms = [*model.basic_RVs, *model.potentials]
    _check_sum(model, densities.layout.unravel(start), float(got), terms)


def grouped_densities(
    model: Model,
    factor: Factor,
    observed_vars: Sequence[Any] | None,
    point: dict[str, np.ndarray],
) -> GroupedModel:
    """Decompose the model with the local effects of a factor integrated out, and check it."""
    groups = take_groups(model, factor, observed_vars)
    local = [v for v in model.value_vars if v.name in groups.factor.names]
    kept = [v for v in model.value_vars if v not in local]
    terms = [model.values_to_rvs[v] for v in local]
    terms += [v for v in model.basic_RVs if v.name in groups.observed_vars]
    others = [v for v in [*model.basic_RVs, *model.potentials] if v not in set(terms)]
    densities = GroupedModel(groups, log_density(model, others), kept)
    start = densities.ravel(point)
    got = densities.complete(start, densities.effects(point))
    got += densities.rest_value_and_gradient(start)[0] - groups.centring.log_jacobian(start)
    _check_sum(model, point, got, [*terms, *others])
    check_rows_finite(densities, start, "the initial point")
    return densities


def plain_densities(model: Model, options: Options, point: dict[str, np.ndarray]) -> ModelDensities:
    """Decompose the model into densities of rows and the rest."""
    observed = choose_observed(model, options.observed_vars)
    layout = FlatLayout.from_model(model, point)
    factors = [*model.basic_RVs, *model.potentials]
    rest = log_density(model, [v for v in factors if v not in observed])
    rows = extract_rows(model, observed)
    # Rows that depend on nothing are expanded in all variables: they are their control variates then.
    read = rows.value_vars or layout.names
    expand = layout.indices([n for n in read if layout.is_continuous(n)])
    return ModelDensities(rows, rest, model.value_vars, expand=expand)


def check_rows_finite(densities: RacedModel, x: np.ndarray, where: str) -> None:
    """Raise a ValueError that names rows whose log-likelihood is not finite."""
    if densities.all_finite(x):
        return
    unit, number, first = densities.unit, 0, 0
    shown: list[str] = []
    for values in densities.value_chunks(x):
        found = np.flatnonzero(~np.isfinite(values))
        shown += [f"{unit} {first + n}: {values[n]}" for n in found[: 5 - len(shown)]]
        number, first = number + found.size, first + values.size
    raise ValueError(
        f"The log-likelihood of {', '.join(densities.observed_vars)} is not finite at {where} in {number} "
        f"of {first} {unit}s ({', '.join(shown)}{', ...' if number > 5 else ''}). Clean these {unit}s or "
        "start where they are possible."
    )


def _check_sum(
    model: Model, point: dict[str, np.ndarray], got: float, terms: Sequence[Any]
) -> None:
    """Check a value against the model's log density of some terms."""
    whole = log_density(model, terms)
    fn = interpreted_function(model.value_vars, whole)
    expected = float(fn(*(point[v.name] for v in model.value_vars)))
    if np.isfinite(expected) and abs(got - expected) <= 1e-8 * max(1.0, abs(expected)):
        return
    if not np.isfinite(expected):
        raise ValueError(f"The model's logp is {expected} at the initial point; start elsewhere")
    raise ValueError(
        f"The rows and the rest add up to a log density of {got}, the model says {expected}. "
        "Please report this model as a bug of amc_pymc."
    )


# --- rows in a store ------------------------------------------------------------------------------


def stored_densities(
    model: Model, active_names: Sequence[str], options: Options, point: dict[str, np.ndarray]
) -> ModelDensities:
    """Return the densities of the rows of ``options.rows``, for a step that moves some variables.

    The model is decomposed and checked on its placeholders. Each chunk of the source is checked
    against the model's graph while it is packed. The data of the model are not changed.

    Raises
    ------
    ValueError, TypeError, OSError, ImportError
        As for :func:`amc_pymc.rows.stored_rows` and :class:`RowPacking`.
    """
    rows = options.rows
    assert rows is not None
    plain = plain_densities(model, options, point)
    _refuse_other_steps(plain, active_names)
    _, around = possible_points(model, plain.layout, dict(point), as_generator(SEED), 2)
    packing = RowPacking(model, plain.rows, plain.ravel(point), around, *plain.rest_graph)
    source = open_source(rows, packing.placeholders)
    check_densities(model, plain.of_packed(packing.placeholder_rows()), point)
    store = stored_rows(rows, source, packing, progressbar=options.progressbar)
    return plain.of_packed(packing.packed(store))


def _refuse_other_steps(densities: ModelDensities, active_names: Sequence[str]) -> None:
    """Raise an error if other steps, which see placeholders only, would sample what rows read."""
    left = [n for n in densities.layout.names_at(densities.reads) if n not in active_names]
    if left:
        raise ValueError(
            f"vars leaves out {', '.join(left)}, on which rows depend: with rows=, other steps would see "
            "the placeholders only. Let this step sample all variables that rows read: RacingMetropolis "
            "continuous ones, RacingGibbs discrete ones, and sum others out."
        )
