"""Find the posterior mode of a simulator without its likelihood."""

from __future__ import annotations

import math

from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_or_none
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.inference.map_run import search
from amc_pymc.inference.simulation_run import How, as_problem
from amc_pymc.map_tree.estimate import ESTIMATES, MapResult, map_result
from amc_pymc.map_tree.search import MapHistory, MapSettings
from amc_pymc.results import declared_dataset
from amc_pymc.results.tables import MAP_BOX, MAP_ROUNDS
from amc_pymc.rng import RandomSeed
from amc_pymc.signals import ends_loops
from amc_pymc.simulators import Problem, SimulatorProblem, gaussian_kernel

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["find_MAP_tree"]

#: Ratio of the final to the requested tolerance above which a warning is given.
_FAR = 2.0
#: Estimated bias, in units of the standard error without it, above which a warning is given.
_BIASED = 3.0
#: Mean kernel value at the mode over that of draws from the prior below which, and effective share of these draws
#: above which, a warning is given.
_NARROWS, _MOST = 1.5, 0.5


@ends_loops
def find_MAP_tree(
    *,
    max_simulations: int,
    policy: Literal["top_two", "thompson", "ucb", "hoo"] = "top_two",
    estimate: Literal["kde", "box"] = "kde",
    tolerance: float | None = None,
    batch_size: int | None = None,
    batched: bool = False,
    simulation_timeout: float | None = None,
    model: Model | SimulatorProblem | None = None,
    return_raw: bool = False,
    cores: int | None = 1,
    executor: Executor | None = None,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> dict[str, np.ndarray] | tuple[dict[str, np.ndarray], xr.DataTree]:
    r"""Find the posterior mode of a simulator by MAP-Tree, from simulations only.

    The arms of a bandit are boxes of the unit cube, where the prior is uniform. The value of a box is its posterior
    density,

    .. math:: \pi(\theta_k) \, E\left[e^{-d^2 / 2 h^2} \mid \theta \in \Omega_k\right]

    with the distance d between a simulation and the data. The tolerance h is lowered as boxes with high values are
    found and split.

    The density :math:`\pi` is that on the scale of the parameters themselves. ``pm.find_MAP`` instead maximises the
    density on PyMC's unconstrained scale, whose maximum differs if parameters are transformed, such as positive
    ones. Discrete parameters are compared by their probability mass.

    Parameters
    ----------
    max_simulations : int
        Total number of simulations, with 6 (with `batched`, 126) that try the simulator. A run from a `checkpoint` may
        have a larger budget than before, and goes on.
    policy : {"top_two", "thompson", "ucb", "hoo"}, default "top_two"
        Choice of boxes: top-two Thompson sampling with b = 1/2, Thompson sampling, upper confidence bounds, or, as
        a baseline, hierarchical optimistic optimisation at the tolerance of the first batch.
    estimate : {"kde", "box"}, default "kde"
        "kde": maximum of a local-likelihood kernel estimate from several starting points. The logarithm of the mean
        kernel value is quadratic, with cubic terms if they are significant, and the tolerance balances bias and
        variance. "box": centre of the box with the highest lower confidence bound.
    tolerance : float, optional
        Smallest tolerance, in units of the distance. For ``pm.Simulator`` the unit is its ``epsilon`` and the
        default is 1. The estimate uses a higher tolerance if too few simulations come this close, or if the
        difference is negligible.
    batch_size : int, optional
        Simulations per batch. Default: a twentieth of `max_simulations`.
    batched : bool, default False
        Whether the simulator takes parameters of a whole batch: arrays with a first axis n, ``size=(n, ...)``.
    simulation_timeout : float, optional
        Time limit of one simulation in seconds. Slower ones count as far from the data.
    model : pm.Model or SimulatorProblem, optional
        Default: the model in the context. A ``pm.Model`` must observe its data by ``pm.Simulator``.
    return_raw : bool, default False
        Whether to return details of the search, too.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it.
    executor : concurrent.futures.Executor, optional
        Executor to use instead of processes, for example ``dask.distributed.Client.get_executor()``.
    checkpoint : str or Path, optional
        Folder to which finished batches are written. A killed run resumes from it when called again with the same
        arguments, with the same results. `estimate` may differ.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores` and `executor`.

    Returns
    -------
    dict of str to array, or tuple (dict, xarray.DataTree)
        Free variables, and deterministics of a ``pm.Model``, at the mode, on their natural scale. The tree has the
        groups ``mode`` (attributes ``log_density``: natural logarithm of prior density times mean kernel value, its
        standard error ``log_density_se``, ``tolerance`` of the estimate, ``simulations``, ``flags`` and ``flag_names``,
        separated by "; "), ``mode_se`` (standard errors of free variables relative to the mode at the lowest
        tolerance, estimated bias included; nan if unknown, 0 if discrete), ``box`` (corners of the best box in the
        unit cube) and ``rounds`` (by batch: tolerance, accepts, boxes, value of the best box as log density, its
        centre, simulations).

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for invalid arguments or models and for simulators that always fail. Afterwards, if
        no simulation with positive prior density came close to the data.

    Warns
    -----
    UserWarning
        If the tolerance is more than twice epsilon, the mode is hardly that of the data, simulations failed, or the run
        was stopped early.

    References
    ----------
    O'Hagan, Kim & Rockova, Tree bandits for generative Bayes, algorithms 3 and 4.
    Russo (2020), Simple Bayesian algorithms for best-arm identification, doi:10.1287/opre.2019.1911.
    Loader (1996), Local likelihood density estimation, Annals of Statistics 24, 1602-1618,
    doi:10.1214/aos/1032298287.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import pymc as pm
    >>> def simulator(rng, mu, size):
    ...     return rng.normal(mu, 1.0, size=size)
    >>> with pm.Model():
    ...     mu = pm.Uniform("mu", -10.0, 10.0)
    ...     y = pm.Simulator("y", simulator, mu, epsilon=0.1, observed=[2.0])
    ...     found = amc.find_MAP_tree(
    ...         max_simulations=10_000, batched=True, random_seed=1, progressbar=False
    ...     )
    >>> bool(abs(found["mu"] - 2.0) < 0.3)
    True
    """
    if estimate not in ESTIMATES:
        raise ValueError(f"estimate must be 'kde' or 'box', got {estimate!r}.")
    tolerance = positive_or_none("tolerance", tolerance)
    how = How.of(
        max_simulations, batch_size, batched, simulation_timeout, cores, executor, checkpoint,
        max_time, progressbar, random_seed,
    )  # fmt: skip
    MapSettings(policy=policy)
    problem, model = as_problem(model)
    lowest = problem.tolerance if tolerance is None else tolerance
    settings = MapSettings(policy=policy, tolerance=lowest)
    history, flags = search(problem, settings, how)
    found = map_result(
        history, problem.parameters, problem.log_prior, estimate=estimate, lowest=lowest or 0.0
    )
    # A fit at a higher tolerance than that of the search was as good there: no reason to warn.
    ended = min(found.mode.tolerance, history.tolerance)
    if lowest is not None and ended > _FAR * lowest:
        flags.append(flag("mode_tolerance_missed", tolerance=ended, lowest=lowest))
    sampling = np.sqrt(np.maximum(found.mode.se**2 - _squared(found.mode.bias, found.mode.se), 0.0))
    if (_squared(found.mode.bias, found.mode.se) > (_BIASED * sampling) ** 2).any():
        flags.append(flag("mode_biased"))
    flags += _prior_doubt(problem, history, found)
    warn_of(flags, "Likelihood-free inference")
    values = dict(found.parameters)
    if hasattr(problem, "deterministics"):
        more = problem.deterministics({k: np.asarray(v)[None] for k, v in values.items()})
        values |= {k: np.asarray(v)[0] for k, v in more.items()}
    values = {k: np.asarray(v) for k, v in values.items()}
    if not return_raw:
        return values
    return values, _tree(problem, model, values, found, flags, policy, estimate)


def _prior_doubt(problem: Problem, history: MapHistory, found: MapResult) -> list[Flag]:
    """Return a flag if kernel values are about as large for most draws from the prior as at the mode."""
    mode = found.mode
    anywhere = gaussian_kernel(history.rounds[0].distance, mode.tolerance)
    at_mode = math.exp(mode.log_density - problem.log_prior(mode.u[None])[0])
    if at_mode > _NARROWS * anywhere.mean() or anywhere.sum() ** 2 < _MOST * len(anywhere) * (
        anywhere @ anywhere
    ):
        return []
    return [flag("mode_of_prior", ratio=at_mode / anywhere.mean(), tolerance=mode.tolerance)]


def _squared(bias: np.ndarray, se: np.ndarray) -> np.ndarray:
    """Return the squared biases, 0 where they are unknown."""
    return bias**2 if len(bias) == len(se) else np.zeros(len(se))


def _tree(
    problem: Problem,
    model: Model | None,
    values: dict[str, np.ndarray],
    found: MapResult,
    flags: list[Flag],
    policy: str,
    estimate: str,
) -> xr.DataTree:
    dims = _dims(model, values)
    errors, start = {}, 0
    for name, shape in problem.shapes.items():
        size = math.prod(shape)
        errors[name] = (dims[name], found.mode.se[start : start + size].reshape(shape))
        start += size
    corners = {"lower": found.lower, "upper": found.upper}
    names = ("tolerance", "accepts", "boxes", "value", "incumbent")
    rounds = {name: getattr(found, name) for name in names} | {"simulations": found.batch}
    attrs = {
        "log_density": found.mode.log_density,
        "log_density_se": found.mode.log_density_se,
        "tolerance": found.mode.tolerance,
        "effective": found.mode.effective,
        "simulations": found.simulations,
        "policy": policy,
        "estimate": estimate,
        **flag_attributes(flags),
    }
    mode = xr.Dataset({k: (dims[k], v) for k, v in values.items()}, attrs=attrs)
    mode_se, coordinate = xr.Dataset(errors), {"coordinate": problem.coordinates}
    return xr.DataTree.from_dict(
        {
            "mode": mode.assign_coords(_coords(model, mode)),
            "mode_se": mode_se.assign_coords(_coords(model, mode_se)),
            "box": declared_dataset(MAP_BOX, corners, coordinate),
            "rounds": declared_dataset(MAP_ROUNDS, rounds, coordinate),
        }
    )


def _dims(model: Model | None, values: Mapping[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    """Return the dims of each variable: those of the model, else names made from the variable's name."""
    named = {} if model is None else model.named_vars_to_dims
    out = {}
    for name, value in values.items():
        given = named.get(name) or [None] * value.ndim
        out[name] = tuple(d or f"{name}_dim_{i}" for i, d in enumerate(given))
    return out


def _coords(model: Model | None, dataset: xr.Dataset) -> dict[str, Any]:
    known = {} if model is None else model.coords
    names = [str(d) for d in dataset.dims]
    return {d: list(known[d]) for d in names if known.get(d) is not None}
