"""Model evidence as an xarray.DataTree."""

from __future__ import annotations

import math
import sys

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from arviz_stats.base import array_stats

from amc_pymc.evidence import Pilot, PosteriorDraws
from amc_pymc.extract.marginal_particles import Densities
from amc_pymc.extract.particles import counted
from amc_pymc.inference.flags import Flag, flag, flag_attributes
from amc_pymc.logweights import LogWeights, summarise_log_weights, trusted_variance
from amc_pymc.results import normal_interval

if TYPE_CHECKING:
    from types import ModuleType

    from pymc import Model

__all__ = [
    "Evidence",
    "add_data_groups",
    "add_posterior",
    "disagreements",
    "draws_group",
    "evidence_group",
    "from_log_weights",
    "missed_mode",
    "nan_flags",
    "pareto_k",
    "uncertain",
]

#: Standard errors, plus a margin in nats, by which estimates may differ without a flag.
_ERRORS, _NATS = 5.0, 0.1
#: Relative variance of the weights in one step of a climb.
_PER_STEP = 1.0 / 0.6 - 1.0
#: Number of draws from the fitted reference that estimate the share of nan densities.
_LOOKED_AT = 4096
#: Minimum share of distinct posterior draws.
_DISTINCT = 0.5


class Evidence(dict[str, Any]):
    """Numbers of the group ``evidence``, by name."""


def from_log_weights(log_weights: np.ndarray) -> Evidence:
    """Return log evidence, standard error, effective sample size and Pareto k of independent weights."""
    summary = summarise_log_weights(log_weights)
    return Evidence(
        log_evidence=summary.log_mean,
        log_evidence_mcse=math.sqrt(_reported_variance(summary, log_weights) / summary.n),
        ess=summary.ess,
        pareto_k=pareto_k(log_weights),
    )


def _reported_variance(found: LogWeights, log_weights: np.ndarray) -> float:
    r"""Return the relative variance of weights that reported errors are based on.

    It lies between the empirical variance and, for few weights, the larger variance of log-normal weights, computed
    from the variance s^2 of logarithms weighted by square roots of the weights. For log-normal weights that is the
    variance of their logarithms; for others it ignores how small the small weights are, which says nothing about
    the large ones.
    """
    if found.n < 2 or found.log_mean == -math.inf:
        return math.inf
    logs = log_weights[log_weights > -np.inf]
    share = np.exp(0.5 * (logs - logs.max()))
    share /= share.sum()
    seen = 1.0 - float(share @ share)
    s2 = float(share @ (logs - share @ logs) ** 2) / seen if seen > 0.0 else math.inf
    surrogate = found._replace(log_variance=s2).surrogate
    kurtosis = _kurtosis(log_weights)
    return trusted_variance(found.n, found.relative_variance, surrogate, s2, kurtosis)


def _kurtosis(log_weights: np.ndarray) -> float:
    """Return the fourth central moment of weights over their squared variance; nan if they are all equal."""
    w = np.exp(log_weights - log_weights.max())
    squares = (w - w.mean()) ** 2
    variance = float(squares.mean())
    return float(squares @ squares) / len(w) / variance**2 if variance > 0.0 else math.nan


def pareto_k(log_weights: np.ndarray) -> float:
    """Return the generalised Pareto shape of the largest weights; nan for fewer than 25, or if they are equal."""
    logs = log_weights[log_weights > -np.inf]
    if logs.size < 25:
        return math.nan
    try:
        return float(np.squeeze(array_stats.psislw(-logs)[1]))
    except ValueError:  # all weights in the tail are equal
        return math.nan


def evidence_group(numbers: Mapping[str, Any], flags: Sequence[Flag], **attrs: Any) -> xr.Dataset:
    """Return the group ``evidence``: numbers with a 95 % interval, and flags as attributes."""
    lower, upper = normal_interval(numbers["log_evidence"], numbers["log_evidence_mcse"])
    out = xr.Dataset(
        {**numbers, "log_evidence_lower": float(lower), "log_evidence_upper": float(upper)}
    )
    out.attrs = {**flag_attributes(flags), **attrs}
    return out


def uncertain(numbers: Evidence) -> list[Flag]:
    """Return a flag if the error is so large that the estimate means little."""
    error = numbers["log_evidence_mcse"]
    if numbers["log_evidence"] == -math.inf or error < 1.0:
        return []
    return [flag("large_error", error=error)]


def disagreements(numbers: Evidence, pilot: Pilot) -> list[Flag]:
    """Return flags for evidence that the pilot run found and the estimate misses."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    flags = []
    ladder, adapted = pilot.ladder, pilot.adapted
    rough = math.sqrt(_PER_STEP * len(ladder.betas) / len(ladder.particles.x))
    if ladder.log_z - z > _ERRORS * math.hypot(error, rough) + _NATS:
        flags.append(flag("pilot_found_more", other=ladder.log_z))
    if adapted is not None and adapted.ess > 0.0:
        rough = 1.0 / math.sqrt(adapted.ess)
        if adapted.log_mean - z > _ERRORS * math.hypot(error, rough) + _NATS:
            flags.append(flag("mixture_found_more", other=adapted.log_mean))
    return flags


def missed_mode(numbers: Evidence, pilot: Pilot, log_mass: float) -> list[Flag]:
    """Return a flag if modes outside the fitted mixture, with log evidence `log_mass`, exceed the error."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    adapted = pilot.adapted
    if adapted is None or adapted.ess <= 0.0 or log_mass == -math.inf:
        return []
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    total = float(np.logaddexp(adapted.log_mean, log_mass))
    rough = 1.0 / math.sqrt(adapted.ess)
    if total - z <= _ERRORS * math.hypot(error, rough) + _NATS:
        return []
    return [flag("missed_mode", total=total)]


def nan_flags(
    numbers: Evidence,
    counts: Mapping[str, int],
    densities: Densities,
    pilot: Pilot,
    rng: np.random.Generator,
) -> list[Flag]:
    """Return a flag if the density is nan near the posterior, and more often than the error allows for.

    Elsewhere such points can be treated as impossible: a trajectory that ends at one is rejected. The share near
    the posterior is estimated from draws of the fitted proposal or, without one, from all points evaluated.
    """
    if not counts["n_nan"]:
        return []
    reference = pilot.reference or pilot.discrete_proposal
    share = counts["n_nan"] / counts["n_likelihood"]
    if reference is not None:
        with counted() as there:
            densities.values(reference.sample(_LOOKED_AT, rng))
        share = int(there[2]) / _LOOKED_AT
    if share < 1.0 and -math.log1p(-share) <= numbers["log_evidence_mcse"]:
        return []
    return [flag("nan", points=counts["n_nan"], share=share)]


def draws_group(model: Model | None, values: dict[str, np.ndarray], *, n_chains: int) -> xr.Dataset:
    """Return draws (chains x draws, ...) as a dataset, with the coords and dims of the model if there is one."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import coords_and_dims_for_inferencedata

    coords, dims = ({}, {}) if model is None else coords_and_dims_for_inferencedata(model)
    shaped = {k: v.reshape(n_chains, -1, *v.shape[1:]) for k, v in values.items()}
    return dict_to_dataset(
        shaped,
        inference_library=_library(),
        coords=coords,
        dims=dims,
        sample_dims=["chain", "draw"],
        check_conventions=False,  # there may be more chains than draws
    )


def add_posterior(
    tree: xr.DataTree,
    model: Model | None,
    densities: Densities,
    drawn: PosteriorDraws,
    n_chains: int,
) -> tuple[dict[str, np.ndarray], list[Flag]]:
    """Add draws of equal weight with their log densities; return the draws, and a flag if few are distinct."""
    values, terms = densities.constrain(drawn.x), densities.values(drawn.x)
    posterior = draws_group(model, values, n_chains=n_chains)
    posterior.attrs |= {"source": drawn.source, "n_distinct": drawn.distinct}
    stats = {"log_prior": terms[0], "log_likelihood_sum": terms[1], "lp": terms.sum(axis=0)}
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(draws_group(model, stats, n_chains=n_chains))
    if drawn.distinct >= _DISTINCT * len(drawn.x):
        return values, []
    return values, [flag("few_distinct_draws", distinct=drawn.distinct, draws=len(drawn.x))]


def _library() -> ModuleType:
    """Return the package itself, whose name and version are stored in results."""
    return sys.modules["amc_pymc"]


def add_data_groups(tree: xr.DataTree, model: Model) -> None:
    """Add observed and constant data of a model, as ``pm.sample`` does."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import (
        coords_and_dims_for_inferencedata,
        find_constants,
        find_observations,
    )

    coords, dims = coords_and_dims_for_inferencedata(model)
    for group, data in (
        ("observed_data", find_observations(model)),
        ("constant_data", find_constants(model)),
    ):
        if data:
            tree[group] = xr.DataTree(
                dict_to_dataset(
                    data, inference_library=_library(), coords=coords, dims=dims, sample_dims=[]
                )
            )
