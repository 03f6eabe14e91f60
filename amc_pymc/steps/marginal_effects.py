"""Choice of the local effects that evidence estimates integrate out."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from pymc import Model
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.traversal import ancestors

from amc_pymc.flags import Flag, flag
from amc_pymc.reading.factors import Factor, find_factors
from amc_pymc.reading.graphs import remembering
from amc_pymc.reading.particles.densities import ParticleDensities
from amc_pymc.reading.rows import NotRowFactorised
from amc_pymc.reading.scalars import NotScalar
from amc_pymc.steps.preparation import grouped_by, named_vars

_log = logging.getLogger("amc_pymc")

Marginalize = Literal["auto"] | str | Sequence[Any] | None
#: Exceptions that mean that a model cannot be split into groups; others are errors of the model or the package.
CANNOT = (NotScalar, NotRowFactorised, ParameterValueError, NotImplementedError)
#: Minimum number of local effects to integrate out by default; fewer cost a sampler little.
_MANY = 20
#: Shares of the target standard error that the quadrature error may reach: at each point for which nodes are
#: chosen, and in total before it is flagged. The default target, in nats.
_SHARE_OF_TARGET, _FLAGGED, _TARGET = 0.05, 0.1, 0.05


@dataclass(frozen=True)
class LocalEffects:
    """Effects of the levels of a grouping factor.

    Attributes
    ----------
    factor : Factor
    observed_vars : tuple of str
        Names of the observed variables that depend on the effects.
    asked : bool
        Whether the user named the effects.
    """

    factor: Factor
    observed_vars: tuple[str, ...]
    asked: bool


@remembering()
def chosen_effects(model: Model, marginalize: Marginalize) -> LocalEffects | None:
    """Return the local effects to integrate out, None if there are none.

    Parameters
    ----------
    model : pm.Model
    marginalize : "auto", None, or variables or their names
        "auto" takes the grouping factor with the most effects, if there are at least 20 and they can be integrated
        out.

    Raises
    ------
    ValueError
        For variables that cannot be integrated out, with the reason.
    TypeError
        For anything but names and variables.
    """
    if marginalize is None:
        return None
    if isinstance(marginalize, str) and marginalize == "auto":
        return _largest(model)
    wanted = [v.name for v in named_vars("marginalize", _names(marginalize), model)]
    observed = _dependents(model, wanted)
    if not observed:
        raise ValueError(
            f"marginalize names {', '.join(wanted)}, on which no observed variable depends directly: there is "
            "nothing to integrate over."
        )
    factor = grouped_by(wanted, find_factors(model, observed), model, "marginalize")
    if len(factor.names) == len(model.free_RVs):
        raise ValueError(
            f"marginalize names {factor.label}, and the model has no other free variable: nothing is left to "
            "estimate. Leave marginalize=None."
        )
    return LocalEffects(factor, observed, True)


def _names(marginalize: Any) -> list[str]:
    """Return the names of the variables that the user passed."""
    single = isinstance(marginalize, str) or not isinstance(marginalize, Sequence)
    found = [getattr(v, "name", v) for v in ([marginalize] if single else marginalize)]
    if not found or not all(isinstance(n, str) for n in found):
        raise TypeError(
            "marginalize must be 'auto', None, or free variables or their names, got "
            f"{marginalize!r}."
        )
    return list(dict.fromkeys(found))


def _dependents(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the observed variables that depend directly on some free variables."""
    local = {rv for rv in model.free_RVs if rv.name in names}
    blockers = [rv for rv in model.basic_RVs if rv not in local]
    return tuple(
        rv.name
        for rv in model.observed_RVs
        if local & set(ancestors([rv], blockers=[b for b in blockers if b is not rv]))
    )


def _largest(model: Model) -> LocalEffects | None:
    """Return the factor with the most effects that are worth integrating out, None if there is none."""
    shapes = model.eval_rv_shapes()
    sizes = {rv.name: int(np.prod(s)) for rv in model.free_RVs if len(s := shapes[rv.name])}
    if len(model.free_RVs) < 2 or sum(sizes.values()) < _MANY or not model.observed_RVs:
        return None
    found: dict[tuple[str, ...], LocalEffects] = {}
    for observed in dict.fromkeys(_dependents(model, [name]) for name in sizes):
        if not observed:
            continue
        try:
            factors = find_factors(model, observed)
        except CANNOT as error:
            _log.debug("No local effects of %s: %s", ", ".join(observed), error)
            continue
        for factor in factors:
            many = factor.n_levels * factor.n_effects >= _MANY
            if factor.reason or not many or len(factor.names) == len(model.free_RVs):
                continue
            if set(observed) == set(_dependents(model, factor.variables)):  # no others read them
                found[factor.names] = LocalEffects(factor, observed, False)
    if not found:
        return None
    best = max(found.values(), key=lambda e: e.factor.n_levels * e.factor.n_effects)
    _log.info(
        "Integrating %s out: %s groups. marginalize=None leaves them as they are.",
        best.factor.label, f"{best.factor.n_levels:,}",
    )  # fmt: skip
    return best


def _integrates(densities: Any) -> bool:
    """Whether densities are integrals over local effects."""
    return isinstance(densities, ParticleDensities) and densities.groups is not None


def enough_nodes(densities: Any, x: np.ndarray, target: float | None) -> Any:
    """Return densities whose quadrature at posterior points (P, D) is accurate enough for a standard error."""
    if not _integrates(densities):
        return densities
    tolerance = _SHARE_OF_TARGET * (_TARGET if target is None else target)
    return densities.refined(x, tolerance)


def quadrature(
    numbers: dict[str, Any], densities: Any, x: np.ndarray, target: float | None
) -> list[Flag]:
    """Add the quadrature error over local effects to the numbers; return a flag if it is large.

    The error is estimated at posterior draws (P, D).
    """
    if not _integrates(densities):
        return []
    error = numbers["quadrature_error"] = densities.groups.error(x)
    if abs(error) <= _FLAGGED * (_TARGET if target is None else target):
        return []
    groups = densities.groups
    return [flag("quadrature_error", effects=groups.factor.label, rule=groups.rule, error=error)]


def describe(tree: xr.DataTree, densities: Any) -> None:
    """Record in a result which effects were integrated out, and how to draw them."""
    if not _integrates(densities):
        return
    factor, label = densities.groups.factor, densities.groups.factor.label
    tree["evidence"].attrs["marginalized"] = label
    tree["evidence"].attrs["quadrature"] = densities.groups.rule
    tree["posterior"].attrs["marginalized"] = (
        f"{label}; amc.recover_marginals(result, model=model, var_names={list(factor.variables)}) draws them"
    )
