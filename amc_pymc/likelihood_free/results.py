"""A likelihood-free run as ArviZ data."""

from __future__ import annotations

import math

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from scipy.special import ndtri

from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.likelihood_free.accepted import Accepted, deal, effective
from amc_pymc.likelihood_free.adjust import adjusted_effective, adjusted_mean, modes, regress_near
from amc_pymc.likelihood_free.choose import AdjustName, adjust_run
from amc_pymc.likelihood_free.history import AbcRun
from amc_pymc.likelihood_free.problem import (
    Problem,
    accepted,
    are_whole,
    labels,
    shaped,
    student_kernel,
    values_at,
)
from amc_pymc.likelihood_free.proposal import NONCENTRED, Parametrisation
from amc_pymc.likelihood_free.smoothing import SmoothingKernel, smooth_draws
from amc_pymc.likelihood_free.step_posterior import fit_step_posterior
from amc_pymc.likelihood_free.tolerance_bias import (
    STATISTICS,
    closest,
    posterior_estimates,
    spread_doubt,
    tolerance_bias,
    tolerance_doubt,
)
from amc_pymc.logweights import effective_of_first, weighted_mean
from amc_pymc.results import declared_dataset, described, pareto_k
from amc_pymc.results.tables import (
    ABC,
    ABC_SIMULATIONS,
    DRAW_STATS,
    PROBABILITIES,
    STEP_POSTERIOR,
    WEIGHTED,
)
from amc_pymc.steps.model_groups import add_data_groups, draws_group

#: Number of chains of posterior draws.
_CHAINS = 4
#: Change of a probability by the tolerance above which a warning is given, and maximum values of a whole number to look at, the most probable ones.
_PROBABILITY, _VALUES = 0.15, 20
#: Number of effective draws below which, and weight of one draw above which, a warning is given.
_FEW, _HEAVY = 100.0, 0.1
#: Squared errors at pseudo-observed data, in posterior variances, outside of which a warning is given, and standard
#: errors by which they must differ from one.
_CALIBRATED, _SURE = (0.5, 1.6), 3.0


class _Draws(NamedTuple):
    """Weighted points from which posterior draws are made.

    Attributes
    ----------
    accepted : Accepted
    u : array (A, D)
        Points of the unit cube, after adjustment.
    effective : float
        Effective number of independent draws.
    mean, mcse : arrays (K,)
        Means and standard errors of all elements of all variables.
    distance : array (N,)
        Distances by which simulations were accepted.
    excess : float
        Squared error that pseudo-observed data show, in posterior variances, beyond the one of right means and spreads.
    told : dict
        Attributes that describe the adjustment.
    coordinates : Parametrisation
        Coordinates of the adjustment.
    """

    accepted: Accepted
    u: np.ndarray
    effective: float
    mean: np.ndarray
    mcse: np.ndarray
    distance: np.ndarray
    excess: float
    told: dict[str, Any]
    coordinates: Parametrisation = NONCENTRED


def _plain(run: AbcRun, found: Accepted, told: dict[str, Any]) -> _Draws:
    """Return accepted simulations without adjustment."""
    u = run.history.u[found.index]
    moments = weighted_mean(found.weight, run.elements(u))
    return _Draws(found, u, found.effective, *moments, run.history.distance, 0.0, told)


def _adjusted(run: AbcRun, found: Accepted, adjust: AdjustName) -> _Draws | None:
    """Return adjusted draws; None if the prior density is zero at all of them."""
    problem = run.problem
    draws, distance, choice = adjust_run(run, found, adjust)
    space, kind, _ = choice.candidate
    if draws is None:
        return None
    told: dict[str, Any] = {"adjust": kind, "parametrisation": draws.regression.coordinates.name}
    if space.name != "raw":
        told |= {"summaries": "learned", "regression": space.regression}
    if adjust == "auto":
        told |= {"gain": choice.gain, "gain_error": choice.error}
    squares, error = choice.calibration
    squares = np.where(np.abs(squares - 1.0) > _SURE * error, squares, 1.0)
    run.flags += _miscalibrated(problem, squares)
    excess = max(0.0, float(squares.max()) - 1.0)
    if kind == "none" and space.name == "raw":
        return _plain(run, found, told)._replace(excess=excess)

    def values(u: np.ndarray) -> np.ndarray:
        return np.concatenate([ndtri(u), run.elements(u)], axis=1)

    mean, mcse = adjusted_mean(draws, values, problem.log_density)
    d = problem.n_dim
    worth = adjusted_effective(draws, mcse[:d])
    return _Draws(
        draws.accepted, draws.u, worth, mean[d:], mcse[d:], distance, excess, told,
        draws.regression.coordinates,
    )  # fmt: skip


def _miscalibrated(problem: Problem, squares: np.ndarray) -> list[Flag]:
    """Return a flag if squared errors (D,) at pseudo-observed data differ from posterior variances."""
    worst = int(np.abs(np.log(np.maximum(squares, 1e-300))).argmax())
    if _CALIBRATED[0] <= squares[worst] <= _CALIBRATED[1]:
        return []
    times = math.sqrt(squares[worst])
    return [flag("miscalibrated", name=problem.coordinates[worst], times=times)]


def abc_tree_data(
    run: AbcRun,
    plain: Accepted,
    *,
    draws: int,
    wanted: float | None,
    adjust: AdjustName,
    attrs: dict[str, Any],
) -> xr.DataTree:
    """Return all groups of a result, and issue its warnings.

    Parameters
    ----------
    run : AbcRun
    plain : Accepted
        Simulations accepted before adjustment.
    draws : int
        Draws per chain.
    wanted : float or None
        Tolerance that was asked for.
    adjust : {"none", "regression", "learned", "auto"}
    attrs : dict
        Attributes of ``posterior``.
    """
    history, problem, flags = run.history, run.problem, run.flags
    drawn, before = None, [*flags]
    if adjust != "none":
        try:
            drawn = _adjusted(run, plain, adjust)
            flags += [flag("not_adjusted")] if drawn is None else []
        except KeyboardInterrupt:
            flags = [*before, flag("interrupted")]
    drawn = drawn or _plain(run, plain, {"adjust": "none"})
    found, values = drawn.accepted, values_at(problem, drawn.u)
    names = [x for name, value in values.items() for x in labels(name, value.shape[1:])]
    place = deal(found, _CHAINS, draws, run.rng).ravel()
    returned, smoothing = _posterior_draws(run, drawn, values, place)
    unique, index = len(np.unique(place)), found.index[place]
    estimates = _estimates(run, drawn, plain)
    rows = shaped(estimates.rows, {name: value.shape[1:] for name, value in values.items()})
    told = {"tolerance": found.tolerance, "simulations": len(history), **smoothing}
    told |= {"effective_draws": drawn.effective, "unique_draws": unique}
    posterior = draws_group(run.model, returned, n_chains=_CHAINS)
    posterior.attrs |= attrs | drawn.told | told
    stats = {"distance": drawn.distance[index], "round": history.number[index], "simulation": index}
    groups = {
        "posterior": posterior,
        "sample_stats": described(draws_group(None, stats, n_chains=_CHAINS), DRAW_STATS),
        "weighted_posterior": _weighted(run, drawn, values),
        "estimates": _along("statistic", run, rows).assign_coords(statistic=STATISTICS),
        "abc": _rounds(run, drawn),
        "step_posterior": _steps(run, plain),
        "simulations": _simulations(run),
    }
    tree = xr.DataTree.from_dict(groups)
    if run.model is not None:
        add_data_groups(tree, run.model)
    else:
        observed = np.asarray(problem.observed)  # type: ignore[attr-defined]
        dims = [f"observed_dim_{i}" for i in range(observed.ndim)]
        tree["observed_data"] = xr.DataTree(xr.Dataset({"observed": (dims, observed)}))
    flags += _flags(drawn, plain, unique, wanted)
    probabilities, doubt = _probabilities(run, drawn, plain)
    if probabilities:
        tree["probabilities"] = xr.DataTree(probabilities)
    flags += doubt
    flags += tolerance_doubt(estimates, names, plain.tolerance)
    narrowing = _narrowing(run, plain) if found is plain else np.nan
    flags += spread_doubt(estimates, narrowing, names, plain.tolerance)
    flags = list(dict.fromkeys(flags))
    tree["abc"].attrs |= flag_attributes(flags)
    warn_of(flags, "Likelihood-free inference")
    return tree


def _posterior_draws(
    run: AbcRun, drawn: _Draws, values: dict[str, np.ndarray], parents: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return values (m, *shape) of smoothed draws, or of copies of simulations, and the smoothing used."""
    problem = run.problem
    kernels: list[SmoothingKernel] = []
    if not are_whole(problem).any():
        u, kernels = smooth_draws(
            drawn.u, drawn.accepted.weight, parents, run.rng.spawn(1)[0], problem.log_density,
            drawn.coordinates,
        )  # fmt: skip
    if not kernels:
        return {k: v[parents] for k, v in values.items()}, {"smoothing": "none"}
    widest = max(k.bandwidth for k in kernels)
    return values_at(problem, u), {"smoothing": "normal", "smoothing_bandwidth": widest}


def _estimates(run: AbcRun, drawn: _Draws, plain: Accepted) -> Any:
    """Return posterior means and spreads and their errors for all elements of all variables."""
    history, weight, values = run.history, drawn.accepted.weight, run.elements(drawn.u)
    index = closest(history.log_weight, history.distance, plain.tolerance)
    with np.errstate(over="ignore", invalid="ignore"):
        sd = np.sqrt(weight @ (values - weight @ values) ** 2)
    return posterior_estimates(
        run.elements(history.u[index]), history.log_weight[index], history.distance[index],
        plain.tolerance,
        None if history.summaries is None else history.summaries[index] - run.observed,
        (drawn.mean, drawn.mcse, sd), adjusted=drawn.accepted is not plain, excess=drawn.excess,
    )  # fmt: skip


def _narrowing(run: AbcRun, plain: Accepted) -> np.ndarray:
    """Return by which factor (K,) a regression on summary statistics narrows plain draws, or the modes of these.

    The larger factor is used; nan means unknown. Modes with too few simulations for a regression are left out.
    """
    x = run.history.x[plain.index]
    by_mode, whole = modes(x, plain.weight), _narrowed(run, plain, [np.arange(len(x))])
    return np.fmax(_narrowed(run, plain, by_mode), whole) if len(by_mode) > 1 else whole


def _narrowed(run: AbcRun, plain: Accepted, parts: list[np.ndarray]) -> np.ndarray:
    """Return by which factor (K,) regressions narrow parts of plain draws."""
    history = run.history
    before = after = np.zeros(1)
    for part in parts:
        near, weight = plain.index[part], plain.weight[part]
        summaries = None if history.summaries is None else history.summaries[near]
        fit = regress_near(history.x[near], summaries, run.observed, weight)
        if fit is not None:
            before = before + _squares(run.elements(history.u[near]), weight)
            after = after + _squares(run.elements(fit.u), weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(before / after)


def _squares(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return weighted sums (K,) of squared deviations of values (n, K) from their means."""
    with np.errstate(over="ignore", invalid="ignore"):
        return weight @ (values - weight @ values / weight.sum()) ** 2


def _along(dim: str, run: AbcRun, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return values (n, *shape) along one dimension, with the model's coords and dims."""
    found = draws_group(run.model, values, n_chains=1).isel(chain=0, drop=True)
    return found.drop_vars("draw").rename(draw=dim)


def _weighted(run: AbcRun, drawn: _Draws, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return the accepted simulations with their weights, in one chain."""
    history, found = run.history, drawn.accepted
    columns = {
        "distance": drawn.distance[found.index],
        "log_weight": found.log_weight,
        "round": history.number[found.index],
    }
    out = draws_group(run.model, values, n_chains=1)
    named = {name: (("chain", "draw"), column[None]) for name, column in columns.items()}
    return described(out.assign(named), WEIGHTED)


def _rounds(run: AbcRun, drawn: _Draws) -> xr.Dataset:
    """Return statistics of each round, and totals."""
    rounds, found, number = run.history.rounds, drawn.accepted, run.history.number
    sizes = np.array([len(r.u) for r in rounds])
    hit = np.split(accepted(drawn.distance, found.tolerance), np.cumsum(sizes)[:-1])
    gains = sizes * [r.proposal.gain for r in rounds]
    rates = [float((np.exp(r.log_ratio) * h).mean()) for r, h in zip(rounds, hit, strict=True)]
    order = np.argsort(number[found.index], kind="stable")
    so_far = np.append(0.0, effective_of_first(found.weight[order]))
    reached = np.searchsorted(number[found.index][order], np.arange(len(rounds)), side="right")
    failed = np.array([int((~np.isfinite(r.simulated.distance)).sum()) for r in rounds])
    values: dict[str, Any] = {
        "tolerance": [r.tolerance for r in rounds],
        "boxes": [sum(m.partition.boxes for m in r.proposal.members) for r in rounds],
        "simulations": sizes,
        "acceptance": [float(accepted(r.simulated.distance, r.tolerance).mean()) for r in rounds],
        "final_acceptance": [float(h.mean()) for h in hit],
        "ess": [effective(r.log_ratio[h]) for r, h in zip(rounds, hit, strict=True)],
        "ess_so_far": so_far[reached],
        "gain": [r.proposal.gain for r in rounds],
        "failed": failed,
        "seconds": run.seconds[: len(rounds)],
        "final_tolerance": found.tolerance,
        "effective_draws": drawn.effective,
        "accepted": len(found.index),
        "n_simulations": len(run.history),
        "n_failed": int(failed.sum()),
        "largest_weight": found.weight.max(),
        "pareto_k": pareto_k(found.log_weight),
        # Of rejection sampling, from all rounds weighted by their gains.
        "prior_acceptance": float(gains @ rates / gains.sum()),
    }
    if run.scale is not None:
        values["summary_scale"] = run.scale.spread
    return declared_dataset(ABC, values, {"round": np.arange(len(rounds))})


def _steps(run: AbcRun, plain: Accepted) -> xr.Dataset:
    """Return the boxes of the step function."""
    history = run.history
    near = student_kernel(history.distance, plain.tolerance) * history.density
    steps = fit_step_posterior(history.u, near, plain.index, plain.weight, run.rng)
    return declared_dataset(
        STEP_POSTERIOR, steps._asdict(), {"coordinate": run.problem.coordinates}
    )


def _simulations(run: AbcRun) -> xr.Dataset:
    """Return all simulations with their parameters, positions, distances, weights and failures."""
    history = run.history
    failure = np.full(len(history), "", dtype="<U7")
    for failed in run.failures:
        if failed.index < len(failure):
            failure[failed.index] = failed.kind
    named: dict[str, Any] = {
        "distance": ("simulation", history.distance),
        "log_weight": ("simulation", history.log_weight),
        "round": ("simulation", history.number),
        "failure": ("simulation", failure),
        "u": (("simulation", "coordinate"), history.u),
    }
    if history.summaries is not None:
        named["summaries"] = ("simulation", "summary"), history.summaries
    out = _along("simulation", run, run.problem.parameters(history.u)).assign(named)
    return described(out.assign_coords(coordinate=run.problem.coordinates), ABC_SIMULATIONS)


def _flags(drawn: _Draws, plain: Accepted, unique: int, wanted: float | None) -> list[Flag]:
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


def _probabilities(run: AbcRun, drawn: _Draws, plain: Accepted) -> tuple[xr.Dataset, list[Flag]]:
    """Return probabilities of whole numbers with their errors, and a flag if the tolerance may change one much.

    Mass moves between the values of a variable, so the error of each is at least the largest change of any.
    """
    history, problem = run.history, run.problem
    index = closest(history.log_weight, history.distance, plain.tolerance)
    distance = history.distance[index]
    near, here = (values_at(problem, u) for u in (history.u[index], drawn.u))
    events, owners, columns = [], [], []
    for name, value in near.items():
        if value.dtype.kind not in "iub":
            continue
        each = zip(
            value.reshape(len(value), -1).T, here[name].reshape(len(drawn.u), -1).T, strict=True
        )
        for label, (all_near, own) in zip(labels(name, value.shape[1:]), each, strict=True):
            wholes = np.unique(np.concatenate([all_near[distance <= plain.tolerance], own]))
            place = np.searchsorted(wholes, own)
            mass = np.bincount(place, drawn.accepted.weight, len(wholes))
            most = np.argsort(-mass, kind="stable")[:_VALUES]
            for whole in wholes[np.sort(most)]:
                events.append(f"{label}={whole}")
                owners.append(label)
                columns.append((all_near == whole, own == whole))
    if not events:
        return xr.Dataset(), []
    indicators, own = (np.array(c, float).T for c in zip(*columns, strict=True))
    shift = tolerance_bias(indicators, history.log_weight[index], distance, plain.tolerance)
    mean, mcse = weighted_mean(drawn.accepted.weight, own)
    sizes = np.nan_to_num(np.hypot(shift.bias, shift.error))
    owner = np.array(owners)
    doubt = np.array([sizes[owner == label].max() for label in owners])
    rows = np.stack([mean, mcse, doubt, np.hypot(mcse, doubt)])
    coords = {"statistic": ["mean", "mcse", "tolerance_error", "error"], "event": events}
    table = declared_dataset(PROBABILITIES, {"probability": rows}, coords)
    size, event = max(zip(sizes.tolist(), events, strict=True))
    told = {"tolerance": plain.tolerance, "name": event, "size": size}
    return table, [flag("uncertain_probabilities", **told)] if size >= _PROBABILITY else []
