"""A likelihood-free run as ArviZ data."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from amc_pymc.abc_tree.accepted import (
    Accepted,
    accept,
    deal,
    effective,
    effective_of_first,
    final_tolerance,
)
from amc_pymc.abc_tree.adjusting import AdjustName
from amc_pymc.abc_tree.features import Features
from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.smoothing import smooth_draws
from amc_pymc.abc_tree.step_posterior import StepPosterior, fit_step_posterior
from amc_pymc.inference.abc_drawn import Drawn, adjusted_drawn, flat, plain_drawn, values_at
from amc_pymc.inference.abc_estimates import (
    STATISTICS,
    stacked,
    tolerance_doubt,
    tolerance_shift,
)
from amc_pymc.inference.abc_run import AbcRun
from amc_pymc.inference.evidence_results import add_data_groups, draws_group, pareto_k
from amc_pymc.rng import as_generator
from amc_pymc.simulators.kernels import accepted, student_kernel
from amc_pymc.simulators.problem import Problem, labels

__all__ = ["abc_tree_data", "final_accepted"]

#: Number of effective draws below which, and weight of one draw above which, a warning is given.
_FEW, _HEAVY = 100.0, 0.1
#: Number of points that test whether coordinates are quantiles of single parameters.
_TRIED = 32
#: Number of bisections that find the ends of an atom of the prior.
_HALVINGS = 60


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
        flags.append(
            "draws are not adjusted: regression moves all of them to where the prior has no density"
        )
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
        draws_group(None, _stats(history, drawn, place.ravel()), n_chains=chains)
    )
    tree["weighted_posterior"] = xr.DataTree(_weighted(run, drawn, values))
    rows = _estimated(run, drawn, plain)
    tree["estimates"] = xr.DataTree(_estimates(run, rows, values))
    tree["abc"] = xr.DataTree(_rounds(run, drawn))
    tree["step_posterior"] = xr.DataTree(_steps(run, _step_posterior(run, plain)))
    if keep_simulations:
        tree["simulations"] = xr.DataTree(_simulations(run))
    _add_data(tree, run)
    flags += _doubts(drawn, plain, unique, wanted)
    flags += tolerance_doubt(rows, _spread(found, values), _elements(values), plain.tolerance)
    tree["abc"].attrs["flags"] = "; ".join(flags)
    for flag in flags:
        warnings.warn(f"Likelihood-free inference: {flag}.", UserWarning, stacklevel=4)
    return tree


def _posterior_draws(
    run: AbcRun, drawn: Drawn, values: dict[str, np.ndarray], parents: np.ndarray, smooth: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return values (m, *shape) of smoothed draws, or of copies of simulations, and the smoothing used."""
    problem = run.problem
    copies = {k: v[parents] for k, v in values.items()}
    if not smooth or _are_whole(problem).any():
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


def _estimates(run: AbcRun, rows: np.ndarray, values: dict[str, np.ndarray]) -> xr.Dataset:
    """Return posterior means and their errors in the shapes of the variables."""
    shaped, start = {}, 0
    for name, value in values.items():
        stop = start + math.prod(value.shape[1:])
        shaped[name] = rows[:, start:stop].reshape(len(rows), *value.shape[1:])
        start = stop
    return _along("statistic", run, shaped).assign_coords(statistic=STATISTICS)


def _spread(found: Accepted, values: dict[str, np.ndarray]) -> np.ndarray:
    """Return posterior standard deviations (K,)."""
    all_values = flat(values)
    with np.errstate(over="ignore", invalid="ignore"):
        spread: np.ndarray = np.sqrt(found.weight @ (all_values - found.weight @ all_values) ** 2)
        return spread


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
    return out


def _rounds(run: AbcRun, drawn: Drawn) -> xr.Dataset:
    """Return statistics of each round, and totals."""
    rounds, found = run.history.rounds, drawn.accepted
    hit = np.split(
        accepted(drawn.distance, found.tolerance), np.cumsum([len(r.u) for r in rounds])[:-1]
    )
    columns = {
        "tolerance": [r.tolerance for r in rounds],
        "boxes": [sum(m.partition.boxes for m in r.proposal.members) for r in rounds],
        "simulations": [len(r.u) for r in rounds],
        "acceptance": [float(accepted(r.simulated.distance, r.tolerance).mean()) for r in rounds],
        "final_acceptance": [float(h.mean()) for h in hit],
        "ess": [effective(r.log_ratio[h]) for r, h in zip(rounds, hit, strict=True)],
        "ess_so_far": _effective_so_far(found, run.history.number[found.index], len(rounds)),
        "gain": [r.proposal.gain for r in rounds],
        "failed": [int((~np.isfinite(r.simulated.distance)).sum()) for r in rounds],
        "seconds": run.seconds[: len(rounds)],
    }
    out = xr.Dataset({k: ("round", np.array(v)) for k, v in columns.items()})
    out = out.assign_coords(round=np.arange(len(rounds)))
    weight = found.weight
    totals = {
        "final_tolerance": found.tolerance,
        "effective_draws": drawn.effective,
        "accepted": len(found.index),
        "n_simulations": len(run.history),
        "n_failed": int(out["failed"].sum()),
        "largest_weight": float(weight.max()),
        "pareto_k": pareto_k(found.log_weight),
        "prior_acceptance": _prior_acceptance(run.history, hit),
    }
    return out.assign({k: ((), v) for k, v in totals.items()}).assign(_scale(run))


def _effective_so_far(found: Accepted, number: np.ndarray, n_rounds: int) -> np.ndarray:
    """Return the effective sample sizes (R,) of the accepted simulations of all rounds up to each one."""
    order = np.argsort(number, kind="stable")
    ess = np.append(0.0, effective_of_first(found.weight[order]))
    so_far: np.ndarray = ess[np.searchsorted(number[order], np.arange(n_rounds), side="right")]
    return so_far


def _scale(run: AbcRun) -> dict[str, Any]:
    """Return the units of the distance if they come from a pilot batch."""
    if run.scale is None:
        return {}
    out: dict[str, Any] = {"summary_scale": ("summary", run.scale.spread)}
    if run.scale.root is not None:
        out["summary_root"] = ("summary", "summary_bis"), run.scale.root
    return out


def _prior_acceptance(history: History, hit: Sequence[np.ndarray]) -> float:
    """Return the acceptance probability of rejection sampling, from all rounds weighted by their gains."""
    gains = np.array([r.proposal.gain * len(r.u) for r in history.rounds])
    means = [
        float((np.exp(r.log_ratio) * h).mean()) for r, h in zip(history.rounds, hit, strict=True)
    ]
    return float(gains @ means / gains.sum())


def _steps(run: AbcRun, steps: StepPosterior) -> xr.Dataset:
    """Return the boxes of the step function, in the cube and on the scale of the parameters."""
    lower, upper = steps.partition.lower, steps.partition.upper
    out = xr.Dataset(
        {
            "lower": (("box", "coordinate"), lower),
            "upper": (("box", "coordinate"), upper),
            "mass": ("box", steps.mass),
            "accepted": ("box", steps.accepted),
        },
        coords={"coordinate": run.problem.coordinates},
    )
    if _are_quantiles(run):
        for end, corner in (("lower", lower), ("upper", upper)):
            out[f"theta_{end}"] = ("box", "coordinate"), _in_cube_order(run.problem, corner)
            out[f"atom_{end}"] = ("box", "coordinate"), _part_of_atom(run.problem, corner)
        out["whole_numbers"] = "coordinate", _are_whole(run.problem)
    return out


def _part_of_atom(problem: Problem, u: np.ndarray) -> np.ndarray:
    """Return the share (n, D) below points (n, D) of the interval with the same value, an atom of the prior."""
    theta = _in_cube_order(problem, u)
    begin = _first(lambda points: _in_cube_order(problem, points) >= theta, np.zeros_like(u), u)
    end = _first(lambda points: _in_cube_order(problem, points) > theta, u, np.ones_like(u))
    width = end - begin
    part: np.ndarray = np.divide(u - begin, width, out=np.zeros_like(u), where=width > 0.0)
    return part


def _first(
    true_from: Callable[[np.ndarray], np.ndarray], lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Return where a condition becomes true between points (n, D), element by element; `upper` if it does not."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (lower + upper)
        found = true_from(middle)
        lower, upper = np.where(found, lower, middle), np.where(found, middle, upper)
    return upper


def _are_whole(problem: Problem) -> np.ndarray:
    """Return which coordinates (D,) belong to whole numbers."""
    values = problem.parameters(np.full((1, problem.n_dim), 0.5))
    whole = {
        label: value.dtype.kind in "biu"
        for name, value in values.items()
        for label in labels(name, value.shape[1:])
    }
    return np.array([whole[c] for c in problem.coordinates])


def _in_cube_order(problem: Problem, u: np.ndarray) -> np.ndarray:
    """Return parameters (n, D) at points (n, D), that of coordinate d in column d."""
    columns = {
        label: column
        for name, value in problem.parameters(u).items()
        for label, column in zip(
            labels(name, value.shape[1:]), value.reshape(len(u), -1).T, strict=True
        )
    }
    return np.stack([columns[c].astype(float) for c in problem.coordinates], axis=1)


def _are_quantiles(run: AbcRun) -> bool:
    """Whether each coordinate alone determines one parameter, which does not decrease with it."""
    problem, rng = run.problem, as_generator(0)
    elements = [c for name, shape in problem.shapes.items() for c in labels(name, shape)]
    if sorted(elements) != sorted(problem.coordinates):
        return False
    u = np.sort(rng.random((_TRIED, problem.n_dim)), axis=0)
    if problem.log_density(u) is not None:
        return False
    theta = _in_cube_order(problem, u)
    if not (np.diff(theta, axis=0) >= 0.0).all():
        return False
    for d in range(problem.n_dim):
        other = rng.random(u.shape)
        other[:, d] = u[:, d]
        if not np.array_equal(_in_cube_order(problem, other)[:, d], theta[:, d]):
            return False
    return True


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
    return out.assign_coords(coordinate=run.problem.coordinates)


def _add_data(tree: xr.DataTree, run: AbcRun) -> None:
    if run.model is not None:
        add_data_groups(tree, run.model)
        return
    observed = np.asarray(run.problem.observed)  # type: ignore[attr-defined]
    dims = [f"observed_dim_{i}" for i in range(observed.ndim)]
    tree["observed_data"] = xr.DataTree(xr.Dataset({"observed": (dims, observed)}))


def _doubts(drawn: Drawn, plain: Accepted, unique: int, wanted: float | None) -> Sequence[str]:
    """Return warnings; `plain` are the simulations accepted before adjustment."""
    out, found = [], drawn.accepted
    if drawn.effective < min(_FEW, found.effective):
        out.append(
            f"{len(found.index):,} accepted simulations, adjusted at tolerance {found.tolerance:.3g}, are worth "
            f"{drawn.effective:.0f} independent draws, so uncertain is the regression; simulate more, or give it "
            "fewer summary statistics"
        )
    elif drawn.effective < _FEW:
        out.append(
            f"{len(found.index):,} accepted simulations are worth {drawn.effective:.0f} independent draws at "
            f"tolerance {found.tolerance:.3g}, {unique:,} of them are in the posterior; simulate more or raise "
            "the tolerance"
        )
    elif found.weight.max() > _HEAVY:
        out.append(
            f"one draw has {100 * found.weight.max():.0f} % of all weight: it was accepted where little was "
            "expected; simulate more"
        )
    if wanted is not None and plain.tolerance > wanted:
        out.append(
            f"the tolerance ended at {plain.tolerance:.3g}, above {wanted:.3g} that is asked for; simulate "
            "more, or raise it"
        )
    return out
