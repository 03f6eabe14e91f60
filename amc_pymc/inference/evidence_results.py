"""Model evidence as an xarray.DataTree."""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.evidence import Pilot, PosteriorDraws
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.logweights import reported_variance, summarise_log_weights
from amc_pymc.reading.graphs import lowered, plain_function
from amc_pymc.reading.particles.densities import counted
from amc_pymc.reading.particles.marginal import Densities
from amc_pymc.reading.particles.model_terms import (
    check_evidence_defined,
    model_log_likelihood,
    without_checks,
)
from amc_pymc.results import declared_dataset, described, normal_interval, pareto_k
from amc_pymc.results.tables import DRAW_STATS, EVIDENCE
from amc_pymc.steps.model_groups import add_data_groups, draws_group

if TYPE_CHECKING:
    from pymc import Model

__all__ = [
    "Evidence",
    "add_posterior",
    "effective_size",
    "evidence_group",
    "from_log_weights",
    "likelihood_as_evidence",
    "nan_flags",
]

#: Number of draws from the fitted reference that estimate the share of nan densities.
_LOOKED_AT = 4096
#: Minimum share of distinct posterior draws, and number of these that is always enough.
_DISTINCT, _ENOUGH = 0.5, 400


class Evidence(dict[str, Any]):
    """Numbers of the group ``evidence``, by name."""

    @property
    def estimate(self) -> tuple[float, float]:
        """Log evidence and its standard error."""
        return self["log_evidence"], self["log_evidence_mcse"]


def effective_size(error: float) -> float:
    """Return the number of draws of relative variance one with this standard error of the log evidence."""
    return 1.0 / error / error if error > 0.0 else math.inf


def from_log_weights(log_weights: np.ndarray) -> Evidence:
    """Return log evidence, standard error, effective sample size and Pareto k of independent weights."""
    summary = summarise_log_weights(log_weights)
    return Evidence(
        log_evidence=summary.log_mean,
        log_evidence_mcse=math.sqrt(reported_variance(summary, log_weights) / summary.n),
        ess=summary.ess,
        pareto_k=pareto_k(log_weights),
    )


def evidence_group(numbers: Mapping[str, Any], flags: Sequence[Flag], **attrs: Any) -> xr.Dataset:
    """Return the group ``evidence``: numbers with a 95 % interval, and flags as attributes."""
    lower, upper = normal_interval(numbers["log_evidence"], numbers["log_evidence_mcse"])
    ends = {"log_evidence_lower": lower, "log_evidence_upper": upper}
    return declared_dataset(EVIDENCE, {**numbers, **ends}, attrs=flag_attributes(flags) | attrs)


def likelihood_as_evidence(model: Model, method: str) -> xr.DataTree:
    """Return the evidence of a model without free variables, which is its likelihood, without an error."""
    check_evidence_defined(model)
    graph = model_log_likelihood(model, [*model.observed_RVs, *model.potentials])
    found = float(plain_function([], without_checks(lowered([graph])))()[0])
    value = -math.inf if math.isnan(found) else found
    flags = [flag("all_zero")] if value == -math.inf else []
    exact = Evidence(log_evidence=value, log_evidence_mcse=0.0, ess=math.inf, n_likelihood=1)
    tree = xr.DataTree()
    tree["evidence"] = xr.DataTree(
        evidence_group(exact, flags, unbiased="exactly: it is the likelihood")
    )
    add_data_groups(tree, model)
    tree.attrs = {"inference_library": "amc_pymc", "sampling_method": method}
    warn_of(flags, "Model evidence")
    return tree


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


def add_posterior(
    tree: xr.DataTree,
    model: Model | None,
    densities: Densities,
    drawn: PosteriorDraws,
    n_chains: int,
    terms: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], list[Flag]]:
    """Add draws of equal weight with their log densities; return the draws, and a flag if few are distinct.

    ``terms`` (2, P) are log prior and log likelihood, if known.
    """
    values = densities.constrain(drawn.x)
    terms = densities.values(drawn.x) if terms is None else terms
    posterior = draws_group(model, values, n_chains=n_chains)
    posterior.attrs |= {"source": drawn.source, "n_distinct": drawn.distinct}
    stats = {"log_prior": terms[0], "log_likelihood_sum": terms[1], "lp": terms.sum(axis=0)}
    tree["posterior"] = xr.DataTree(posterior)
    told = described(draws_group(model, stats, n_chains=n_chains), DRAW_STATS)
    tree["sample_stats"] = xr.DataTree(told)
    if drawn.distinct >= min(_DISTINCT * len(drawn.x), _ENOUGH):
        return values, []
    return values, [flag("few_distinct_draws", distinct=drawn.distinct, draws=len(drawn.x))]
