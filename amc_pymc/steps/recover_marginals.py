"""Draw local effects that were integrated out."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from pymc import Model

from amc_pymc.arguments import positive_int
from amc_pymc.progress import progress
from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.graphs import context_model, initial_point_of
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.particles.prior import unconstrain
from amc_pymc.rng import RandomSeed, as_generator
from amc_pymc.steps.model_groups import draws_group, natural_values
from amc_pymc.steps.preparation import grouped_by, grouped_densities
from amc_pymc.steps.stored_draws import draws_of


def recover_marginals(
    idata: xr.DataTree,
    *,
    model: Model | None = None,
    var_names: str | list[str] | None = None,
    observed_vars: Any = None,
    tries: int = 5,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    """Draw local effects given each draw of the population parameters.

    Use it after ``pm.sample(step=RacingMetropolis(recover=False))``, which returns NaN for the effects
    that it integrated out, or after :func:`estimate_evidence`, which leaves them out. Population
    parameters are unchanged; effects are drawn from their conditional distribution given these.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of ``pm.sample`` or :func:`estimate_evidence`.
    model : pm.Model, optional
        Default: the model in the context.
    var_names : str or list of str, optional
        Variables to draw, of one grouping factor. Default: those whose draws are missing or NaN.
    observed_vars : sequence of str or variables, optional
        As for the step.
    tries : int, default 5
        Independence Metropolis-Hastings proposals per group and draw, each accepted with a
        probability of 0.8 to 1.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the draws.

    Returns
    -------
    xarray.DataTree
        A copy of ``idata`` with the effects and all deterministic variables of the model in
        ``posterior``. Effects have an attribute ``integrated_out``, the label of their grouping factor.

    Raises
    ------
    ValueError
        If there is no variable to draw, variables belong to different factors, or effects cannot be
        integrated out.

    See Also
    --------
    RacingMetropolis : integrates local effects out.

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> rng = np.random.default_rng(1)
    >>> group = np.repeat(np.arange(300), 10)
    >>> y = rng.normal(rng.normal(size=300)[group], 1.0)
    >>> with pm.Model() as model:
    ...     sd = pm.HalfNormal("sd", 2)
    ...     effect = pm.Normal("effect", 0, sd, shape=300)
    ...     obs = pm.Normal("obs", effect[group], 1.0, observed=y)
    ...     idata = pm.sample(
    ...         100,
    ...         tune=100,
    ...         step=amc.RacingMetropolis(recover=False, progressbar=False),
    ...         chains=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...         compute_convergence_checks=False,
    ...     )
    >>> bool(idata.posterior["effect"].isnull().all())
    True
    >>> idata = amc.recover_marginals(idata, model=model, random_seed=1, progressbar=False)
    >>> found = idata.posterior["effect"].mean(("chain", "draw"))
    >>> bool(np.corrcoef(found, np.bincount(group, y) / 10)[0, 1] > 0.99)
    True
    """
    model, tries = context_model(model), positive_int("tries", tries)
    if not isinstance(idata, xr.DataTree) or "posterior" not in idata.children:
        raise ValueError("idata must be what pm.sample returned, with a group posterior")
    posterior = idata["posterior"].to_dataset()
    if not posterior.sizes.get("chain") or not posterior.sizes.get("draw"):
        raise ValueError("idata has no draws")
    names = _wanted(model, posterior, var_names)
    point = initial_point_of(model)
    factor = grouped_by(names, find_factors(model, observed_vars), model, "var_names")
    local = {str(model.values_to_rvs[v].name) for v in model.value_vars if v.name in factor.names}
    grouped = grouped_densities(model, factor, observed_vars, point)
    x = _points(model, grouped, posterior, local)
    grouped.settle(x.mean(axis=0))
    rng = as_generator(random_seed)
    effects = np.zeros((grouped.n_units, grouped.groups.program.n_local))
    natural, draws = natural_values(model), list[dict[str, np.ndarray]]()
    with progress("Drawing local effects", len(x), enabled=progressbar) as bar:
        for row in x:
            grouped.draw_effects(row, effects, tries, rng)
            draws.append(natural(grouped.unravel(row) | grouped.as_point(effects, point)))
            bar.advance()
    changed = local | {v.name for v in model.deterministics}
    values = {n: np.stack([each[n] for each in draws]) for n in draws[0] if n in changed}
    new = draws_group(model, values, n_chains=posterior.sizes["chain"])
    new = new.assign_coords(chain=posterior["chain"], draw=posterior["draw"])
    kept = posterior.drop_vars([n for n in new.data_vars if n in posterior])
    out = idata.copy()
    out["posterior"] = xr.DataTree(kept.merge(new).assign_attrs(posterior.attrs))
    for name in local:
        out["posterior"][name].attrs["integrated_out"] = factor.label
    return out


def _wanted(model: Model, posterior: xr.Dataset, var_names: str | list[str] | None) -> list[str]:
    """Return the names of the free variables to draw."""
    free = [rv.name for rv in model.free_RVs]
    if var_names is None:
        names = [n for n in free if n not in posterior or bool(posterior[n].isnull().any())]
        if not names:
            raise ValueError("no free variable of the model has draws that are missing or NaN")
        return names
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    unknown = [n for n in names if n not in free]
    if unknown or not names:
        raise ValueError(f"var_names must name free variables ({', '.join(free)}), got {names}")
    return names


def _points(
    model: Model, grouped: GroupedModel, posterior: xr.Dataset, local: set[str]
) -> np.ndarray:
    """Return the population parameters (S, E) of all draws, chain after chain."""
    values, layout = {}, grouped.layout
    for rv in model.free_RVs:
        if rv.name in local:
            continue
        if rv.name not in posterior:
            raise ValueError(f"idata has no draws of {rv.name}, which local effects depend on")
        array = draws_of(posterior, rv.name, model)
        values[rv.name] = array.reshape(-1, *array.shape[2:])
    flat = unconstrain(model, layout, values)
    places = layout.part([v.name for v in model.value_vars if v.name in layout.names]).slices
    kept = np.concatenate([flat[:, places[n]] for n in layout.names], axis=1)
    return np.stack([grouped.groups.centring.effects(x) for x in kept])
