"""Model evidence as an xarray.DataTree."""

from __future__ import annotations

import math
import sys
import warnings

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from arviz_stats.base import array_stats

from amc_pymc.combination import Arm, Sample
from amc_pymc.combination.record import ArmRecord
from amc_pymc.evidence import Pilot
from amc_pymc.logweights import summarise_log_weights

__all__ = [
    "Evidence",
    "add_data_groups",
    "disagreements",
    "draws_group",
    "evidence_group",
    "from_log_weights",
    "pareto_k",
    "warn",
]

#: Pareto shape of the largest weights above which a few of them carry the sum.
LARGEST_K = 0.7
#: Standard errors, and nats beside them, by which estimates may differ before a flag is raised.
_ERRORS, _NATS = 5.0, 0.1
#: Relative variance that one step of a climb leaves.
_PER_STEP = 1.0 / 0.6 - 1.0
#: Share of the posterior that a reference may miss.
_UNCOVERED = 0.1


class Evidence(dict):
    """Numbers of the group ``evidence``, by name."""


def from_log_weights(log_weights: np.ndarray) -> Evidence:
    """Log evidence, its error, effective draws and Pareto k of independent weights."""
    n = log_weights.size
    record = ArmRecord(Arm("weights", lambda rng: 0.0, scale="log"))
    record.add(Sample(log_weights, np.ones(n), None, np.zeros(n, bool)))
    summary = summarise_log_weights(log_weights)
    variance = record.reported_variance() if n > 1 else math.inf
    mcse = math.sqrt(variance / n) if summary.log_mean > -math.inf else math.inf
    return Evidence(
        log_evidence=summary.log_mean,
        log_evidence_mcse=mcse,
        ess=summary.ess,
        pareto_k=pareto_k(log_weights),
    )


def pareto_k(log_weights: np.ndarray) -> float:
    """Generalised Pareto shape of the largest weights; nan for fewer than 25."""
    logs = log_weights[log_weights > -np.inf]
    if logs.size < 25 or np.ptp(logs) == 0.0:
        return math.nan
    return float(np.squeeze(array_stats.psislw(-logs)[1]))


def evidence_group(numbers: Evidence, flags: Sequence[str], **attrs: Any) -> xr.Dataset:
    """The group ``evidence``: numbers with a 95 % interval, flags in an attribute."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    known = math.isfinite(z) and math.isfinite(error)
    out = xr.Dataset(
        {
            **numbers,
            "log_evidence_lower": z - 1.959964 * error if known else -math.inf,
            "log_evidence_upper": z + 1.959964 * error if known else math.inf,
        }
    )
    out.attrs = {"flags": "; ".join(flags), **attrs}
    return out


def disagreements(numbers: Evidence, pilot: Pilot) -> list[str]:
    """What the pilot run found that the estimate does not show."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    flags = []
    ladder, adapted = pilot.ladder, pilot.adapted
    rough = math.sqrt(_PER_STEP * len(ladder.betas) / len(ladder.particles.x))
    if ladder.log_z - z > _ERRORS * math.hypot(error, rough) + _NATS:
        flags.append(
            f"the pilot run from the prior found more evidence ({ladder.log_z:.2f}): part of the posterior "
            "is missing"
        )
    if adapted is not None and adapted.ess > 0.0:
        rough = 1.0 / math.sqrt(adapted.ess)
        if adapted.log_mean - z > _ERRORS * math.hypot(error, rough) + _NATS:
            flags.append(
                f"importance sampling around all modes found more evidence ({adapted.log_mean:.2f}): "
                "part of the posterior is missing, perhaps a narrow peak"
            )
    return flags


def warn(flags: Sequence[str], *, stacklevel: int = 3) -> None:
    """One warning for each flag."""
    for flag in flags:
        warnings.warn(f"Model evidence: {flag}.", UserWarning, stacklevel=stacklevel + 1)


def draws_group(model, values: dict[str, np.ndarray], *, n_chains: int) -> xr.Dataset:
    """Draws (chains x draws, ...) as a dataset with the model's coords and dims."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import coords_and_dims_for_inferencedata

    coords, dims = coords_and_dims_for_inferencedata(model)
    shaped = {k: v.reshape(n_chains, -1, *v.shape[1:]) for k, v in values.items()}
    return dict_to_dataset(
        shaped,
        inference_library=_library(),
        coords=coords,
        dims=dims,
        sample_dims=["chain", "draw"],
    )


def _library():
    """The package itself, whose name and version are noted in results."""
    return sys.modules["amc_pymc"]


def add_data_groups(tree: xr.DataTree, model) -> None:
    """Observed and constant data of a model, as ``pm.sample`` gives them."""
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
