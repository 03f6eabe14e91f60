"""The user's posterior draws, on the unconstrained scale and checked against a model."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from arviz_stats.base import array_stats
from pymc import Model
from scipy.stats import chi2

from amc_pymc.reading.particles.densities import ParticleDensities
from amc_pymc.reading.particles.prior import unconstrain

#: Minimum number of draws in total and per chain; fewer cannot be split into useful halves.
_FEWEST, _SHORTEST = 100, 10
#: R-hat up to which long chains agree, and the probability that independent draws of a coordinate exceed the limit.
_R_HAT, _BY_CHANCE = 1.02, 1e-4


class Health(NamedTuple):
    """Diagnostics of whether draws come from one distribution.

    Attributes
    ----------
    r_hat, largest : float
        Largest R-hat of all coordinates, and the value up to which chains agree.
    ess_bulk : float
        Smallest bulk effective sample size of all coordinates.
    copies : float
        Mean number of copies of a draw.
    divergences : int
    particles : bool
        Whether the draws are particles of sequential Monte Carlo.
    """

    r_hat: float
    largest: float
    ess_bulk: float
    copies: float
    divergences: int
    particles: bool


def check_idata(idata: object, model: Model, marginalized: Sequence[str] = ()) -> xr.Dataset:
    """Return the group ``posterior`` of a result, if a model's evidence can be estimated from it.

    Draws of free variables that are integrated out are not needed.

    Raises
    ------
    TypeError, ValueError
        Before compilation, naming what is missing, of the wrong shape or not finite.
    """
    if not isinstance(idata, xr.DataTree):
        raise TypeError(
            "idata must be an xarray.DataTree with a group 'posterior', as pm.sample returns it, got "
            f"{type(idata).__name__}."
        )
    if "posterior" not in idata.children:
        raise ValueError(
            f"idata has no group 'posterior', only {sorted(map(str, idata.children))}: pass what pm.sample "
            "returned."
        )
    posterior = idata["posterior"].to_dataset()
    if absent := [d for d in ("chain", "draw") if d not in posterior.dims]:
        raise ValueError(
            f"the group 'posterior' of idata has no dimension {absent[0]!r}, only "
            f"{sorted(map(str, posterior.dims))}: draws must keep their chains and their order."
        )
    free = [rv for rv in model.free_RVs if rv.name not in marginalized]
    discrete = [rv.name for rv in free if not rv.dtype.startswith("float")]
    if discrete:
        raise ValueError(
            f"model has discrete free variables ({', '.join(discrete)}), and a bridge needs continuous ones: "
            "sum them out, or use estimate_evidence(model=model) without idata."
        )
    _check_variables(posterior, free)
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains * draws < _FEWEST or draws < _SHORTEST:
        raise ValueError(
            f"idata has {chains} chains of {draws} draws; at least {_FEWEST} draws are needed, and "
            f"{_SHORTEST} in a chain."
        )
    return posterior


def _check_variables(posterior: xr.Dataset, free: Sequence[Any]) -> None:
    missing = [rv.name for rv in free if rv.name not in posterior]
    if missing:
        raise ValueError(
            f"idata has no draws of {', '.join(missing)}; its posterior has "
            f"{', '.join(map(str, posterior.data_vars))}. Are these draws of another model? All free variables "
            "are needed (var_names of pm.sample leaves some out)."
        )
    for rv in free:
        values = posterior[rv.name].values
        lost = ~np.isfinite(values)
        if lost.any():
            raise ValueError(
                f"draws of {rv.name!r} in idata are not finite: {int(lost.sum()):,} of {lost.size:,} numbers. If "
                "a racing step method integrated its effects out, draw them by amc.recover_marginals(idata) first."
            )


def stored_draws(posterior: xr.Dataset, model: Model, densities: ParticleDensities) -> np.ndarray:
    """Return draws of the free variables on the unconstrained scale (C, N, D).

    Raises
    ------
    ValueError
        If a shape is wrong, or the posterior density is zero at a draw.
    """
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    expected = densities.constrain(np.zeros((1, densities.n_dim)))
    values = {}
    for name in densities.variables:
        array = draws_of(posterior, name, model)
        if array.shape[2:] != expected[name].shape[1:]:
            raise ValueError(
                f"draws of {name!r} in idata have shape {array.shape[2:]}, in the model it has "
                f"{expected[name].shape[1:]}: these are draws of another model, or of other data."
            )
        values[name] = array.reshape(-1, *array.shape[2:])
    with np.errstate(all="ignore"):
        x = unconstrain(model, densities.layout, values)
    _check_density(x, values, densities)
    return x.reshape(*shape, densities.n_dim)


def draws_of(group: xr.Dataset, name: str, model: Model) -> np.ndarray:
    """Return draws of a variable (C, N, ...) in the order of the model, which labels tell.

    Raises
    ------
    ValueError
        If a dimension of the model has other labels in the group.
    """
    array, own = group[name], list(model.named_vars_to_dims.get(name, ()))
    dims = [d for d in array.dims if d not in ("chain", "draw")]
    dims = own if sorted(own) == sorted(map(str, dims)) else dims
    array = array.transpose("chain", "draw", *dims)
    for k, dim in enumerate(dims):
        labels, default = array.indexes.get(dim), pd.RangeIndex(array.sizes[dim])
        known = model.coords.get(own[k]) if len(own) == len(dims) else None
        wanted = default if known is None else pd.Index(known)
        if labels is None or len(labels) != len(wanted) or labels.equals(wanted):
            continue
        if labels.is_unique and wanted.is_unique and labels.isin(wanted).all():
            array = array.isel({dim: labels.get_indexer(wanted)})
        elif known is not None and not labels.equals(default):
            raise ValueError(
                f"dimension {dim!r} of {name!r} in idata has the labels {list(labels)[:3]}..., in the model "
                f"{list(wanted)[:3]}...: pass draws of this model, or rename them by assign_coords."
            )
    return array.values


def _check_density(
    x: np.ndarray, values: dict[str, np.ndarray], densities: ParticleDensities
) -> None:
    for variable, name in zip(densities.variables, densities.layout.names, strict=True):
        wrong = ~np.isfinite(x[:, densities.layout.slices[name]]).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"{int(wrong.sum()):,} of {len(x):,} draws of {variable!r} in idata are outside of its support or at "
                f"its edge, such as {np.array2string(values[variable][wrong][0], threshold=5)}: are these draws of "
                "this model?"
            )
    still = np.flatnonzero(np.ptp(x, axis=0) == 0.0)
    if still.size:
        raise ValueError(
            f"draws of {densities.layout.labels()[still[0]]} in idata are all the same: nothing can be fitted to them."
        )
    impossible = densities.values(x).sum(axis=0) == -np.inf
    if impossible.any():
        raise ValueError(
            f"{int(impossible.sum()):,} of {len(x):,} draws in idata have posterior density zero: they are draws of "
            "another model, or of other data."
        )


def health_of(idata: xr.DataTree, x: np.ndarray) -> Health:
    """Return R-hat, effective sample size, copies and divergences of draws (C, N, D); halves of one chain are two."""
    parts = x if len(x) > 1 else x[:, : x.shape[1] // 2 * 2].reshape(2, -1, x.shape[2])
    series = np.ascontiguousarray(np.moveaxis(parts, 2, 0))
    r_hat = float(np.max(array_stats.rhat(series, chain_axis=1, draw_axis=2)))
    ess = float(np.min(array_stats.ess(series, chain_axis=1, draw_axis=2)))
    flat = x.reshape(-1, x.shape[2])
    # Split R-hat up to which chains agree: few independent draws can exceed 1.02 by chance.
    n_dim, chains, n = series.shape[0], 2 * series.shape[1], series.shape[2] // 2
    between = float(chi2.isf(_BY_CHANCE / n_dim, chains - 1)) / (chains - 1)
    stats = idata["sample_stats"].to_dataset() if "sample_stats" in idata.children else xr.Dataset()
    return Health(
        r_hat,
        max(_R_HAT, math.sqrt((n - 1.0 + between) / n)),
        ess,
        copies=len(flat) / len(np.unique(flat, axis=0)),
        divergences=int(stats["diverging"].sum()) if "diverging" in stats else 0,
        particles="log_marginal_likelihood" in stats,
    )
