"""Results of a chain over a product space of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import arviz_base as az
import numpy as np
import xarray as xr

import amc_pymc.tall.product_space as ps

from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.results import declared_dataset, described
from amc_pymc.results.tables import RACE_STATS, SPACE, SPACE_STATS
from amc_pymc.steps.model_groups import add_data_groups, draws_group, natural_values
from amc_pymc.steps.racing_step import wrong_decisions
from amc_pymc.tall.samplers.index import ModelSpace

if TYPE_CHECKING:
    from pymc import Model


#: Number of round trips below which batch means underestimate the error of a model.
_FEW_TRIPS = 10
STEPS = ("parameters", "index")


class ChainRecord(NamedTuple):
    """Record of one chain, ``complete`` unless it was stopped.

    ``visits`` (S,) are models, ``points`` their parameters; ``log_weights`` (M,).
    """

    visits: np.ndarray
    points: list[np.ndarray]
    stats: dict[str, np.ndarray]
    log_weights: np.ndarray
    complete: bool


def product_space_result(
    models: Mapping[str, Any],
    prior: np.ndarray,
    space: ModelSpace,
    tune: int,
    records: Sequence[ChainRecord],
    limit: float | None = None,
) -> xr.DataTree:
    """Return the posterior over models, that of each model, and the statistics of the chains.

    Incomplete chains were ended by a time limit in seconds, or interrupted if it is None.
    """
    names = list(models)
    flags = []
    if not all(r.complete for r in records):
        flags = [flag("interrupted") if limit is None else flag("out_of_time", limit=limit)]
    records, draws = _rectangle(records)
    if draws == 0:
        raise KeyboardInterrupt("Stopped before a draw was kept")
    index = np.stack([r.visits[:draws] for r in records])
    log_weights = np.stack([r.log_weights for r in records])
    stats = {key: np.stack([r.stats[key][:draws] for r in records]) for key in records[0].stats}
    tree = az.from_dict(
        {"posterior": {"model_index": index}, "sample_stats": stats},
        coords={"step": list(STEPS)},
        dims={key: ["step"] for key in RACE_STATS},
        attrs={
            "/": {"inference_library": "amc_pymc"},
            "posterior": {"models": names, "tuning_steps": tune},
        },
    )
    tree["sample_stats"].dataset = described(tree["sample_stats"].to_dataset(), SPACE_STATS)
    summary = _summary(names, prior, space, index, log_weights)
    flags += list(dict.fromkeys(f for s in space.samplers for f in s.prepared.flags))
    flags += _mixing(summary) + _wrong_decisions(stats, space.race.delta)
    tree["product_space"] = xr.DataTree(summary.assign_attrs(flag_attributes(flags)))
    warn_of(flags, "Product space")
    for k, name in enumerate(names):
        points = [r.points[:draws] for r in records]
        if np.any(index == k):
            tree[f"models/{name}"] = _model_posterior(models[name], space, k, index, points)
    return tree


def _rectangle(records: Sequence[ChainRecord]) -> tuple[list[ChainRecord], int]:
    """Return the chains and the number of draws that keep most draws if chains were interrupted."""
    lengths = sorted((len(r.visits) for r in records), reverse=True)
    draws = max(lengths, key=lambda n: n * sum(m >= n for m in lengths))
    return [r for r in records if len(r.visits) >= draws], draws


def _mixing(summary: xr.Dataset) -> list[Flag]:
    """Return flags about models that the chains rarely came back to, or never visited."""
    trips, visits = summary["round_trips"].sum("chain"), summary["visits"].sum("chain")
    rare = summary["model"].values[((trips < _FEW_TRIPS) & (visits > 0)).values]
    names = ", ".join(map(repr, rare.tolist()))
    flags = [flag("few_round_trips", models=names, fewest=_FEW_TRIPS)] if rare.size else []
    never = summary["model"].values[(visits == 0).values].tolist()
    return flags + [flag("never_visited", model=name) for name in never]


def _wrong_decisions(stats: Mapping[str, np.ndarray], delta: float) -> list[Flag]:
    """Return flags about steps whose audited decisions were wrong too often."""
    wrong, audited = (stats[k].sum(axis=(0, 1)).astype(int) for k in ("race_wrong", "race_audited"))
    found = [
        wrong_decisions(int(w), int(a), f"the {step}", delta)
        for w, a, step in zip(wrong, audited, STEPS)
    ]
    return [f for f in found if f]


def _summary(
    names: Sequence[str],
    prior: np.ndarray,
    space: ModelSpace,
    index: np.ndarray,
    log_weights: np.ndarray,
) -> xr.Dataset:
    estimates = ps.estimate_models(index, log_weights, prior)
    counts = np.stack([np.bincount(i, minlength=len(names)) for i in index])
    trips = np.stack([ps.round_trips(i, len(names)) for i in index])
    return declared_dataset(
        SPACE,
        {
            **estimates._asdict(),
            "visits": counts,
            "round_trips": trips,
            "log_weight": log_weights,
            "prior_prob": prior,
            "laplace_log_evidence": space.laplace_log_evidence,
        },
        coords={"model": list(names), "against": list(names), "chain": np.arange(len(index))},
    )


def _model_posterior(
    model: Model, space: ModelSpace, k: int, index: np.ndarray, points: Sequence[list[np.ndarray]]
) -> xr.DataTree:
    """Return the draws made in model k, repeated evenly to the full number per chain, and its data."""
    draws = index.shape[1]
    pools = [[x for x, visited in zip(p, i) if visited == k] for p, i in zip(points, index)]
    everywhere = [x for pool in pools for x in pool]
    layout = cast(ModelDensities, space.samplers[k].prepared.densities).layout
    natural = natural_values(model)
    chosen: list[dict[str, np.ndarray]] = []
    for pool in pools:
        found = [natural(layout.unravel(x)) for x in pool or everywhere]
        places = ((np.arange(draws) + 0.5) / draws * len(found)).astype(int)
        chosen += [found[c] for c in places]
    values = {name: np.stack([each[name] for each in chosen]) for name in chosen[0]}
    posterior = draws_group(model, values, n_chains=len(pools))
    tree = xr.DataTree.from_dict(
        {"posterior": posterior.assign_attrs(visits_per_chain=[len(p) for p in pools])}
    )
    add_data_groups(tree, model)
    return tree
