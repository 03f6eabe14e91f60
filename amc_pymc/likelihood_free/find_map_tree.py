"""Find the posterior mode of a simulator without its likelihood."""

from __future__ import annotations

import math

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_or_none
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.likelihood_free.learned import learned_distance
from amc_pymc.likelihood_free.map_mode import Mode, estimate_mode
from amc_pymc.likelihood_free.map_search import MapHistory, lowered, map_batches, map_rounds
from amc_pymc.likelihood_free.partition import whole_cube
from amc_pymc.likelihood_free.problem import Problem, are_whole, gaussian_kernel, shaped, values_at
from amc_pymc.likelihood_free.run import MOST_SUMMARIES, as_problem, failure_flags, simulation_run
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.results import declared_dataset
from amc_pymc.results.tables import MAP_ROUNDS
from amc_pymc.rng import RandomSeed
from amc_pymc.steps.model_groups import draws_group

if TYPE_CHECKING:
    from pymc import Model

#: Ratio of the final to the requested tolerance above which a warning is given.
_FAR = 2.0
#: Estimated bias, in units of the standard error without it, above which a warning is given.
_BIASED = 3.0
#: Minimum simulations to learn summaries from; mean kernel value with learned summaries, and minimum sum of these.
_TO_LEARN, _LABEL, _LABELS = 500, 0.02, 200.0
#: Mean kernel value at the mode over that of draws from the prior below which, and effective share of these draws
#: above which, a warning is given.
_NARROWS, _MOST = 1.5, 0.5


def find_MAP_tree(
    *,
    max_simulations: int,
    tolerance: float | None = None,
    batch_size: int | None = None,
    batched: bool = False,
    model: Model | SimulatorProblem | None = None,
    return_raw: bool = False,
    cores: int | None = 1,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> dict[str, np.ndarray] | tuple[dict[str, np.ndarray], xr.DataTree]:
    r"""Find the posterior mode of a simulator by MAP-Tree, from simulations only.

    The arms of a bandit are boxes of the unit cube, where the prior is uniform. Top-two Thompson sampling with b = 1/2
    chooses among them. The value of a box is its posterior
    density,

    .. math:: \pi(\theta_k) \, E\left[e^{-d^2 / 2 h^2} \mid \theta \in \Omega_k\right]

    with the distance d between a simulation and the data. The tolerance h is lowered as boxes with high values are
    found and split. The mode is the maximum of a local-likelihood kernel estimate from several starting points: the
    logarithm of the mean kernel value is quadratic, in a window and at a tolerance that balance bias and variance.

    The density :math:`\pi` is that on the scale of the parameters themselves. ``pm.find_MAP`` instead maximises the
    density on PyMC's unconstrained scale, whose maximum differs if parameters are transformed, such as positive
    ones. All parameters must be continuous: :func:`sample_abc_tree` returns probabilities of whole numbers.

    Parameters
    ----------
    max_simulations : int
        Total number of simulations, with 6 (with `batched`, 126) that try the simulator. A run from a `checkpoint` may
        have a larger budget than before, and goes on.
    tolerance : float, optional
        Smallest tolerance, in units of the distance. For ``pm.Simulator`` the unit is its ``epsilon`` and the
        default is 1. The estimate uses a higher tolerance if too few simulations come this close, or if the
        difference is negligible.
    batch_size : int, optional
        Simulations per batch. Default: a twentieth of `max_simulations`.
    batched : bool, default False
        Whether the simulator takes parameters of a whole batch: arrays with a first axis n, ``size=(n, ...)``.
    model : pm.Model or SimulatorProblem, optional
        Default: the model in the context. A ``pm.Model`` must observe its data by ``pm.Simulator``.
    return_raw : bool, default False
        Whether to return details of the search, too.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it.
    checkpoint : str or Path, optional
        Folder to which finished batches are written. A killed run resumes from it when called again with the same
        arguments, with the same results.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores`.

    Returns
    -------
    dict of str to array, or tuple (dict, xarray.DataTree)
        Free variables, and deterministics of a ``pm.Model``, at the mode, on their natural scale. The tree has the
        groups ``mode`` (attributes ``log_density``: natural logarithm of prior density times mean kernel value, its
        standard error ``log_density_se``, ``tolerance`` of the estimate, ``simulations``, ``summaries`` ("learned" if simulations near the mode of the
        given distance came no closer to the data than draws from the prior), ``flags`` and ``flag_names``,
        separated by "; "), ``mode_se`` (standard errors of free variables relative to the mode at the lowest
        tolerance, estimated bias included; nan if unknown) and ``rounds`` (by batch: tolerance, boxes, centre of the best
        box in the unit cube, simulations).

    Raises
    ------
    TypeError, ValueError
        For invalid arguments or models and for simulators that always fail, before the first batch. Afterwards, if
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
    tolerance = positive_or_none("tolerance", tolerance)
    problem, model = as_problem(model)
    whole = np.array(problem.coordinates)[are_whole(problem)].tolist()
    if whole:
        raise ValueError(
            f"find_MAP_tree needs continuous parameters, and {whole[0]!r} is a whole number; sample_abc_tree returns the "
            "probabilities of whole numbers."
        )
    lowest = problem.tolerance if tolerance is None else tolerance
    summaries: list[np.ndarray] = []
    with simulation_run(
        "MAP-Tree", problem, map_batches, {"tolerance": lowest}, max_simulations=max_simulations,
        batch_size=batch_size, batched=batched, cores=cores, checkpoint=checkpoint, max_time=max_time,
        progressbar=progressbar, random_seed=random_seed,
        summaries=1 < len(problem.observed_summaries) <= MOST_SUMMARIES,
    ) as run:  # fmt: skip

        def simulate(u: np.ndarray, b: int) -> np.ndarray:
            found = run.simulate(u, b)
            if found.summaries is not None:
                summaries.append(found.summaries)
            return found.distance

        states = map_rounds(
            simulate, problem.log_prior, problem.n_dim, run.sizes, run.rngs[: len(run.sizes)],
            lowest=lowest or 0.0,
        )  # fmt: skip
        history = run.follow(states, _told)
    u, flags = history.u, run.flags
    flags += failure_flags(problem, run.failures, u)
    mode = estimate_mode(history, problem.parameters, problem.log_prior, lowest=lowest or 0.0)
    doubts, learned = _flags(problem, history, mode, lowest), False
    if summaries and len(u) >= _TO_LEARN and any(f.name == "mode_of_prior" for f in doubts):
        try:
            again = _with_learned_summaries(problem, history, summaries, run.rngs[-1], progressbar)
            mode = estimate_mode(again, problem.parameters, problem.log_prior)
        except KeyboardInterrupt:
            flags.append(flag("interrupted"))
        else:
            history, learned = again, True
            doubts = [flag("mode_by_learning"), *_flags(problem, history, mode, None)]
    flags = list(dict.fromkeys([*flags, *doubts]))
    warn_of(flags, "Likelihood-free inference")
    values = {k: np.asarray(np.asarray(v)[0]) for k, v in values_at(problem, mode.u[None]).items()}
    if not return_raw:
        return values
    told = ("log_density", "log_density_se", "tolerance", "effective")
    attrs: dict[str, Any] = {name: getattr(mode, name) for name in told}
    attrs |= {"simulations": len(u), "summaries": "learned" if learned else "given"}
    attrs |= flag_attributes(flags)
    return values, _tree(problem, model, values, history, mode, attrs)


def _with_learned_summaries(
    problem: Problem, history: MapHistory, summaries: list[np.ndarray], rng: np.random.Generator,
    progressbar: bool,
) -> MapHistory:  # fmt: skip
    """Return the simulations with distances between learned summaries, at a tolerance for these."""
    u, data = history.u, np.concatenate(summaries)[: len(history.u)]
    distance = learned_distance(
        u, data, problem.observed_summaries, rng, thorough=True, progressbar=progressbar
    )
    distance[np.isinf(history.distance)] = np.inf
    tolerance = lowered(distance, math.inf, kernel_values=max(_LABEL, _LABELS / len(u)))
    out = MapHistory(whole_cube(problem.n_dim))
    out.add(u, distance, tolerance, problem.log_prior)
    parts = np.split(distance, np.cumsum([len(r.u) for r in history.rounds])[:-1])
    out.rounds = [
        r._replace(distance=part, tolerance=tolerance)
        for r, part in zip(history.rounds, parts, strict=True)
    ]
    return out


def _told(history: MapHistory) -> str:
    last = history.rounds[-1]
    told = f": tolerance {last.tolerance:.3g}, {last.boxes:,} boxes"
    return told if math.isfinite(last.tolerance) else ""


def _flags(problem: Problem, history: MapHistory, mode: Mode, lowest: float | None) -> list[Flag]:
    """Return flags about the tolerance, the bias, and simulations no closer to the data than draws from the prior."""
    flags = []
    # A fit at a higher tolerance than that of the search was as good there: no reason to warn.
    ended = min(mode.tolerance, history.tolerance)
    if lowest is not None and ended > _FAR * lowest:
        flags.append(flag("mode_tolerance_missed", tolerance=ended, lowest=lowest))
    squares = mode.bias**2 if len(mode.bias) == len(mode.se) else np.zeros(len(mode.se))
    if (squares > _BIASED**2 * np.maximum(mode.se**2 - squares, 0.0)).any():
        flags.append(flag("mode_biased"))
    anywhere = gaussian_kernel(history.rounds[0].distance, mode.tolerance)
    ratio = math.exp(mode.log_density - problem.log_prior(mode.u[None])[0]) / anywhere.mean()
    worth = anywhere.sum() ** 2 / max(float(anywhere @ anywhere), 1e-300)
    if ratio <= _NARROWS and worth >= _MOST * len(anywhere):
        flags.append(flag("mode_of_prior", ratio=ratio, tolerance=mode.tolerance))
    return flags


def _tree(
    problem: Problem,
    model: Model | None,
    values: dict[str, np.ndarray],
    history: MapHistory,
    mode: Mode,
    attrs: dict[str, Any],
) -> xr.DataTree:

    def group(arrays: dict[str, np.ndarray]) -> xr.Dataset:
        found = draws_group(model, arrays, n_chains=1)
        return found.isel(chain=0, draw=0, drop=True).drop_attrs(deep=False)  # such as the time

    names = ("tolerance", "boxes", "incumbent")
    columns = {name: np.array([getattr(r, name) for r in history.rounds]) for name in names}
    columns["simulations"] = np.array([len(r.u) for r in history.rounds])
    return xr.DataTree.from_dict(
        {
            "mode": group({k: v[None] for k, v in values.items()}).assign_attrs(attrs),
            "mode_se": group(shaped(mode.se[None], problem.shapes)),
            "rounds": declared_dataset(MAP_ROUNDS, columns, {"coordinate": problem.coordinates}),
        }
    )
