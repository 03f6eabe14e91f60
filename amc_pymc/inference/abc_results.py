"""A likelihood-free run as ArviZ data."""

from __future__ import annotations

import math

from typing import Any

import numpy as np
import xarray as xr

from amc_pymc.abc_tree.accepted import (
    Accepted,
    accept,
    deal,
    final_tolerance,
)
from amc_pymc.abc_tree.adjusting import AdjustName
from amc_pymc.abc_tree.estimates import (
    STATISTICS,
    posterior_sd,
    stacked,
    tolerance_doubt,
    tolerance_shift,
)
from amc_pymc.abc_tree.features import Features
from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.round_statistics import prior_acceptance, round_statistics
from amc_pymc.abc_tree.smoothing import smooth_draws
from amc_pymc.abc_tree.step_posterior import StepPosterior, fit_step_posterior
from amc_pymc.abc_tree.tolerance_bias import closest, tolerance_bias
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.inference.abc_drawn import Drawn, adjusted_drawn, flat, plain_drawn, values_at
from amc_pymc.inference.abc_run import AbcRun
from amc_pymc.results import declared_dataset, described, pareto_k
from amc_pymc.results.tables import ABC, ABC_SIMULATIONS, DRAW_STATS, STEP_POSTERIOR, WEIGHTED
from amc_pymc.simulators.coordinates import are_quantiles, are_whole, in_cube_order, part_of_atom
from amc_pymc.simulators.kernels import student_kernel
from amc_pymc.simulators.problem import labels
from amc_pymc.steps.model_groups import add_data_groups, draws_group

__all__ = ["abc_tree_data", "final_accepted"]

#: Change of a probability by the tolerance above which a warning is given, and maximum values of a whole number to look at.
_PROBABILITY, _VALUES = 0.15, 20
#: Number of effective draws below which, and weight of one draw above which, a warning is given.
_FEW, _HEAVY = 100.0, 0.1


def final_accepted(
    run: AbcRun, *, tolerance: float | None, accepts: int, enough: float | None = None
) -> Accepted:
    """Return the simulations accepted at the requested tolerance, or at one that leaves enough of them."""
    history = run.history
    distance, log_weight = history.distance, history.log_weight
    if not np.isfinite(distance).any():
        raise ValueError(
            f"all {len(distance):,} simulations failed or were infinitely far from the data; simulate once by "
            "hand with parameters from the prior to see why."
        )
    chosen = final_tolerance(distance, log_weight, accepts=accepts, enough=enough, lowest=tolerance)
    return accept(distance, log_weight, chosen)


def abc_tree_data(
    run: AbcRun,
    found: Accepted,
    *,
    draws: int,
    chains: int,
    wanted: float | None,
    adjust: AdjustName | None,
    features: Features | None,
    smooth: bool,
    keep_simulations: bool,
    attrs: dict[str, Any],
) -> xr.DataTree:
    """Return all groups of a result, and issue its warnings."""
    history, problem, plain = run.history, run.problem, found
    drawn = None if adjust is None else adjusted_drawn(run, found, adjust, features)
    flags = list(run.flags)
    if drawn is None and adjust is not None:
        flags.append(flag("not_adjusted"))
    drawn = drawn or plain_drawn(run, found)
    found, values = drawn.accepted, values_at(problem, drawn.u)
    place = deal(found, chains, draws, run.rng)
    tree = xr.DataTree()
    returned, smoothing = _posterior_draws(run, drawn, values, place.ravel(), smooth)
    posterior = draws_group(run.model, returned, n_chains=chains)
    unique = len(np.unique(place))
    attrs = {
        **attrs,
        **drawn.told,
        "tolerance": found.tolerance,
        "simulations": len(history),
        "effective_draws": drawn.effective,
        "unique_draws": unique,
        **smoothing,
    }
    posterior.attrs.update(attrs)
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(
        described(
            draws_group(None, _stats(history, drawn, place.ravel()), n_chains=chains), DRAW_STATS
        )
    )
    tree["weighted_posterior"] = xr.DataTree(_weighted(run, drawn, values))
    rows = _estimated(run, drawn, plain)
    tree["estimates"] = xr.DataTree(_estimates(run, rows, values))
    tree["abc"] = xr.DataTree(_rounds(run, drawn))
    tree["step_posterior"] = xr.DataTree(_steps(run, _step_posterior(run, plain)))
    if keep_simulations:
        tree["simulations"] = xr.DataTree(_simulations(run))
    _add_data(tree, run)
    flags += _flags(drawn, plain, unique, wanted)
    flags += _probability_doubt(run, plain)
    flags += tolerance_doubt(
        rows, posterior_sd(found.weight, flat(values)), _elements(values), plain.tolerance
    )
    tree["abc"].attrs |= flag_attributes(flags)
    warn_of(flags, "Likelihood-free inference")
    return tree


def _posterior_draws(
    run: AbcRun, drawn: Drawn, values: dict[str, np.ndarray], parents: np.ndarray, smooth: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return values (m, *shape) of smoothed draws, or of copies of simulations, and the smoothing used."""
    problem = run.problem
    copies = {k: v[parents] for k, v in values.items()}
    if not smooth or are_whole(problem).any():
        return copies, {"smoothing": "none"}
    u, kernel = smooth_draws(
        drawn.u, drawn.accepted.weight, parents, run.rng.spawn(1)[0], problem.log_density
    )
    if kernel is None:
        return copies, {"smoothing": "none"}
    told = {
        "smoothing": "normal" if kernel.neighbours == 1.0 else "local normal",
        "smoothing_bandwidth": kernel.bandwidth,
        "smoothing_neighbours": kernel.neighbours,
    }
    return values_at(problem, u), told


def _estimated(run: AbcRun, drawn: Drawn, plain: Accepted) -> np.ndarray:
    """Return posterior means and their errors (5, K) for all elements of all variables."""
    shift = tolerance_shift(
        run.history, run.problem.observed_summaries, plain.tolerance,
        lambda u: flat(values_at(run.problem, u)),
        None if drawn.accepted is plain else (drawn.mean, drawn.mcse),
    )  # fmt: skip
    return stacked(drawn.mean, drawn.mcse, shift)


def _probability_doubt(run: AbcRun, plain: Accepted) -> list[Flag]:
    """Return a flag if the tolerance may change the probability of a whole number."""
    history, found = run.history, {}
    index = closest(history.log_weight, history.distance, plain.tolerance)
    distance = history.distance[index]
    for name, value in values_at(run.problem, history.u[index]).items():
        if value.dtype.kind in "iub":
            columns = value.reshape(len(value), -1).T
            for label, column in zip(labels(name, value.shape[1:]), columns, strict=True):
                for whole in np.unique(column[distance <= plain.tolerance])[:_VALUES]:
                    found[f"{label}={whole}"] = column == whole
    if not found:
        return []
    shift = tolerance_bias(
        np.array([*found.values()], float).T, history.log_weight[index], distance, plain.tolerance
    )
    sizes = np.nan_to_num(np.hypot(shift.bias, shift.error))
    size, name = max(zip(sizes.tolist(), found, strict=True))
    if size < _PROBABILITY:
        return []
    return [flag("uncertain_probabilities", tolerance=plain.tolerance, name=name, size=size)]


def _estimates(run: AbcRun, rows: np.ndarray, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return posterior means and their errors in the shapes of the variables."""
    shaped, start = {}, 0
    for name, value in values.items():
        stop = start + math.prod(value.shape[1:])
        shaped[name] = rows[:, start:stop].reshape(len(rows), *value.shape[1:])
        start = stop
    return _along("statistic", run, shaped).assign_coords(statistic=STATISTICS)


def _elements(values: dict[str, np.ndarray]) -> list[str]:
    return [label for name, value in values.items() for label in labels(name, value.shape[1:])]


def _along(dim: str, run: AbcRun, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return values (n, *shape) along one dimension, with the model's coords and dims."""
    found = draws_group(run.model, values, n_chains=1).isel(chain=0, drop=True)
    return found.drop_vars("draw").rename(draw=dim)


def _step_posterior(run: AbcRun, found: Accepted) -> StepPosterior:
    history = run.history
    near = student_kernel(history.distance, found.tolerance) * history.density
    return fit_step_posterior(history.u, near, found.index, found.weight, run.rng)


def _stats(history: History, drawn: Drawn, place: np.ndarray) -> dict[str, np.ndarray]:
    index = drawn.accepted.index[place]
    return {
        "distance": drawn.distance[index],
        "round": history.number[index],
        "simulation": index,
    }


def _weighted(run: AbcRun, drawn: Drawn, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return the accepted simulations with their weights, in one chain."""
    history, found = run.history, drawn.accepted
    out = draws_group(run.model, values, n_chains=1)
    columns = {
        "distance": drawn.distance[found.index],
        "log_weight": found.log_weight,
        "round": history.number[found.index],
        "box": history.box[found.index],
    }
    for name, column in columns.items():
        out[name] = ("chain", "draw"), column[None]
    return described(out, WEIGHTED)


def _rounds(run: AbcRun, drawn: Drawn) -> xr.Dataset:
    """Return statistics of each round, and totals."""
    history, found = run.history, drawn.accepted
    columns = round_statistics(history, found, drawn.distance)
    totals = {
        "final_tolerance": found.tolerance,
        "effective_draws": drawn.effective,
        "accepted": len(found.index),
        "n_simulations": len(history),
        "n_failed": int(columns["failed"].sum()),
        "largest_weight": found.weight.max(),
        "pareto_k": pareto_k(found.log_weight),
        "prior_acceptance": prior_acceptance(history, found.tolerance, drawn.distance),
    }
    seconds = np.array(run.seconds[: len(history.rounds)])
    values = columns | {"seconds": seconds} | totals | _scale(run)
    return declared_dataset(ABC, values, {"round": np.arange(len(history.rounds))})


def _scale(run: AbcRun) -> dict[str, Any]:
    """Return the units of the distance if they come from a pilot batch."""
    if run.scale is None:
        return {}
    root = {} if run.scale.root is None else {"summary_root": run.scale.root}
    return {"summary_scale": run.scale.spread, **root}


def _steps(run: AbcRun, steps: StepPosterior) -> xr.Dataset:
    """Return the boxes of the step function, in the cube and on the scale of the parameters."""
    lower, upper = steps.partition.lower, steps.partition.upper
    values = {"lower": lower, "upper": upper, "mass": steps.mass, "accepted": steps.accepted}
    if are_quantiles(run.problem):
        corners = np.concatenate([lower, upper])
        theta, atom = in_cube_order(run.problem, corners), part_of_atom(run.problem, corners)
        values["theta_lower"], values["theta_upper"] = np.split(theta, 2)
        values["atom_lower"], values["atom_upper"] = np.split(atom, 2)
        values["whole_numbers"] = are_whole(run.problem)
    return declared_dataset(STEP_POSTERIOR, values, {"coordinate": run.problem.coordinates})


def _simulations(run: AbcRun) -> xr.Dataset:
    """Return all simulations with their positions, distances, weights and failures."""
    history = run.history
    failure = np.full(len(history), "", dtype="<U7")
    for failed in history.failures:
        failure[failed.index] = failed.kind
    columns = {
        "distance": history.distance,
        "log_weight": history.log_weight,
        "round": history.number,
        "failure": failure,
    }
    out = _along("simulation", run, values_at(run.problem, history.u))
    out = out.assign({k: ("simulation", v) for k, v in columns.items()})
    out["u"] = ("simulation", "coordinate"), history.u
    if history.summaries is not None:
        out["summaries"] = ("simulation", "summary"), history.summaries
    return described(out.assign_coords(coordinate=run.problem.coordinates), ABC_SIMULATIONS)


def _add_data(tree: xr.DataTree, run: AbcRun) -> None:
    if run.model is not None:
        add_data_groups(tree, run.model)
        return
    observed = np.asarray(run.problem.observed)  # type: ignore[attr-defined]
    dims = [f"observed_dim_{i}" for i in range(observed.ndim)]
    tree["observed_data"] = xr.DataTree(xr.Dataset({"observed": (dims, observed)}))


def _flags(drawn: Drawn, plain: Accepted, unique: int, wanted: float | None) -> list[Flag]:
    """Return flags about draws and tolerance; `plain` are the simulations accepted before adjustment."""
    out, found = [], drawn.accepted
    worth = {
        "accepted": len(found.index), "effective": drawn.effective, "tolerance": found.tolerance
    }  # fmt: skip
    if drawn.effective < min(_FEW, found.effective):
        out.append(flag("few_adjusted_draws", **worth))
    elif drawn.effective < _FEW:
        out.append(flag("few_draws", **worth, unique=unique))
    elif found.weight.max() > _HEAVY:
        out.append(flag("heavy_draw", share=100 * found.weight.max()))
    if wanted is not None and plain.tolerance > wanted:
        out.append(flag("tolerance_missed", tolerance=plain.tolerance, wanted=wanted))
    return out
