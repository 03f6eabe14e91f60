"""Likelihood-free sampling by tree bandits."""

from __future__ import annotations

import dataclasses
import math

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from amc_pymc.arguments import boolean, positive_int, positive_or_none
from amc_pymc.flags import flag
from amc_pymc.likelihood_free.accepted import accept, effective, final_tolerance
from amc_pymc.likelihood_free.by_observation import Cells, cells_around
from amc_pymc.likelihood_free.choose import AdjustName
from amc_pymc.likelihood_free.history import AbcRun, History, batch_sizes
from amc_pymc.likelihood_free.learned import exchangeable_features, learned_distance, order_contrast
from amc_pymc.likelihood_free.learning import TreeProposal, one_of, rounds
from amc_pymc.likelihood_free.problem import Problem, Simulated, accepted
from amc_pymc.likelihood_free.results import abc_tree_data
from amc_pymc.likelihood_free.run import MOST_SUMMARIES, as_problem, failure_flags, simulation_run
from amc_pymc.likelihood_free.scale import FEWEST_PILOTS, pilot_scale
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.rng import RandomSeed
from amc_pymc.runs import name_of

if TYPE_CHECKING:
    from pymc import Model

DistanceScale = Literal["mad", "learned"]

#: Names reserved in results.
_NAMES = {
    "chain", "draw", "sample", "statistic", "distance", "log_weight", "round", "box", "u", "simulation",
    "coordinate", "failure", "summaries", "summary",
}  # fmt: skip
#: Standard errors above which exchangeable observations are said not to be so: hundreds of contrasts are compared.
_IN_ORDER = 6.0
#: Default options of the proposals.
_DEFAULT = TreeProposal()


def sample_abc_tree(
    draws: int = 1000,
    *,
    max_simulations: int,
    tolerance: float | None = None,
    adjust: AdjustName | None = None,
    exchangeable: bool = False,
    distance_scale: DistanceScale | None = None,
    proposal: TreeProposal = _DEFAULT,
    batched: bool = False,
    model: Model | SimulatorProblem | None = None,
    cores: int | None = 1,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Draw from the posterior of a simulator by ABC-Tree, which learns where to simulate.

    The prior is transformed to the uniform distribution on the unit cube. After each batch of simulations, trees
    partition the cube into boxes, at a decreasing tolerance. The next batch is drawn from boxes with a high
    acceptance probability :math:`\mu_k`, from kernels around accepted simulations, as far as these have been
    efficient, and from the prior. All simulations are kept, compared with the final tolerance, and weighted by

    .. math:: w_i = G_b \frac{\pi(\theta_i)}{q_b(\theta_i)},

    where the proposal :math:`q_b` of batch b and its expected gain :math:`G_b` are fixed before the batch is drawn.
    At a tolerance fixed in advance, weighted sums over accepted simulations are unbiased before they are divided by
    the sum of the weights.

    Parameters
    ----------
    draws : int, default 1000
        Draws in each of four chains of ``posterior``, around accepted simulations. No simulation is in two chains.
    max_simulations : int
        Total number of simulations, with 6 (with `batched`, 126) that try the simulator. A run from a `checkpoint` may
        have a larger budget than before, and goes on.
    tolerance : float, optional
        Smallest tolerance, in units of the distance. For ``pm.Simulator`` the unit is its ``epsilon`` and the
        default is 1. The final tolerance is larger if too few simulations come this close to the data.
    adjust : {"none", "regression", "learned", "auto"}, optional
        Regression of accepted parameters on summary statistics (Beaumont, Zhang & Balding 2002). It matters more
        than the proposal in many dimensions. "regression" is linear or quadratic, or also adjusts the spread, within
        each mode (Blum & Francois 2010). "learned" accepts by summary statistics that are learned from the simulations
        (Fearnhead & Prangle 2012). "auto" selects one of these, or none. Kind and tolerance are those that best predict
        the parameters of simulations close to the data; so are coordinates of variables that depend on others, such as
        effects of groups. If variables and summary statistics have a first axis of the same length, such as groups,
        effects are also learned from the statistics of their own group, given the other parameters. The default is
        "auto" for at most 100 summary statistics, and otherwise "none", because adjustments then take minutes.
    exchangeable : bool, default False
        Whether observations along the first axis of the data are independent and identically distributed. Summary
        statistics are then moments and quantiles, which do not depend on the order, and `distance_scale` is by
        default "mad". If observations are numbers, at least 30, and there are at most six parameters, "auto" and "learned"
        also learn the likelihood of one observation, and use estimates under it.
    distance_scale : {None, "mad", "learned"}, default None
        Replace the distance of the model by a Euclidean distance between summary statistics, in units of their
        median absolute deviations in the first batch ("mad"). The units are fixed during the run, because changing them would change the posterior. `tolerance` has the same units and
        is by default the lowest that the budget allows. "learned" is the distance between posterior means and
        second moments, which are learned again from all simulations before each batch.
    proposal : TreeProposal, optional
        How proposals are learned: partitions, kernels, the share drawn from the prior, batches and their tolerances.
    batched : bool, default False
        Whether the simulator takes parameters of a whole batch: arrays with a first axis n, ``size=(n, ...)``.
    model : pm.Model or SimulatorProblem, optional
        Default: the model in the context. A ``pm.Model`` must observe its data by ``pm.Simulator``.
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
        A seed reproduces the run, with any `cores`. Times in the result differ.

    Returns
    -------
    xarray.DataTree
        ``posterior``: draws (chain, draw) of equal weight; attributes ``effective_draws``, ``unique_draws``
        (simulations behind them), ``tolerance``, ``simulations``, ``smoothing``, ``smoothing_bandwidth`` (the largest
        of all modes).
        ``sample_stats``: distance, round and index of the simulation behind each draw. ``weighted_posterior``:
        accepted simulations with distance, ``log_weight`` (natural logarithm) and round. ``estimates``: by
        ``statistic``, the mean of each variable; "mcse", its Monte Carlo standard error, which unlike that of
        :func:`arviz.summary` accounts for weights and regression; "tolerance_bias", the extrapolated effect of the
        tolerance on the mean, and "tolerance_bias_error"; "error", the total of these; "sd", and "sd_at_zero", which
        is extrapolated to a tolerance of zero. ``probabilities``: of the values of whole numbers, with errors. ``simulations``: all of them. ``abc``: rounds and totals; attributes ``flags`` and ``flag_names``. ``step_posterior``: boxes with their posterior mass,
        which is coarse. ``observed_data``, ``constant_data``. The page "Variables of
        results" lists all variables.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments or models and for simulators that always fail, before the first batch.
    KeyboardInterrupt
        At Ctrl-C before a batch is complete. Later it ends the simulations or, while adjustments are compared, returns
        draws without adjustment; the flag `interrupted` tells.

    Warns
    -----
    UserWarning
        If there are few effective draws, one draw has much of the weight, the final tolerance is above epsilon or
        shifts posterior means significantly, simulations failed, or the run was stopped early.

    Notes
    -----
    Draws of ``posterior`` are from normal kernels around accepted simulations, on the scale where the prior is normal,
    because copies of a few hundred represent a distribution poorly in more than three dimensions. Kernels are moved
    towards the mean of their mode to preserve means and covariances (Liu & West 2001). Their bandwidth is chosen by
    leave-one-out likelihood. Draws stay within the support of the prior. Smoothing adds no
    information: ``effective_draws`` is that of the simulations, whereas :func:`arviz.ess` treats all draws as
    independent. Models with discrete parameters are not smoothed. ``weighted_posterior`` has the simulations themselves.

    References
    ----------
    O'Hagan, Kim & Rockova, Tree bandits for generative Bayes, algorithms 1 and 2.
    Liu & West (2001), Combined parameter and state estimation in simulation-based filtering,
    doi:10.1007/978-1-4757-3437-9_10.
    Alsing, Wandelt & Feeney (2018), Optimal proposals for approximate Bayesian computation, arXiv:1808.06040.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import pymc as pm
    >>> def simulator(rng, mu, size):
    ...     return rng.normal(mu, 1.0, size=size)
    >>> with pm.Model():
    ...     mu = pm.Uniform("mu", -10.0, 10.0)
    ...     y = pm.Simulator("y", simulator, mu, epsilon=0.1, observed=[2.0])
    ...     found = amc.sample_abc_tree(
    ...         max_simulations=10_000, batched=True, random_seed=1, progressbar=False
    ...     )
    >>> bool(abs(found["posterior"]["mu"].mean() - 2.0) < 0.4)
    True
    """
    if not isinstance(proposal, TreeProposal):
        raise TypeError(f"proposal must be an amc_pymc.TreeProposal, got {proposal!r}.")
    draws, tolerance = positive_int("draws", draws), positive_or_none("tolerance", tolerance)
    if adjust is not None:
        one_of("adjust", adjust, AdjustName)
    if distance_scale is not None:
        one_of("distance_scale", distance_scale, DistanceScale)
    problem, model = as_problem(model)
    _check_names(problem)
    features, cells = _features(problem) if boolean("exchangeable", exchangeable) else (None, None)
    if features is not None and distance_scale is None:
        distance_scale = "mad"
    if tolerance is None and distance_scale is None:
        tolerance = problem.tolerance
    learned = distance_scale == "learned"
    run = AbcRun(problem, model, History(), learned=learned, progressbar=progressbar)
    data = problem.observed_summaries[None]
    run.observed = (data if features is None else features(data)[0])[0]
    few = len(run.observed) <= MOST_SUMMARIES
    adjust = adjust or ("auto" if few else "none")
    if cells is not None and adjust in ("learned", "auto"):
        run.cells, run.counts = cells, [cells.counts(data)]
    kept = adjust != "none" or few or run.learned
    settings: dict[str, Any] = {
        "adjust": adjust, "exchangeable": exchangeable, "distance_scale": distance_scale,
        "tolerance": tolerance, "proposal": _told_of(proposal),
    }  # fmt: skip
    with simulation_run(
        "ABC-Tree", problem, batch_sizes, settings, summaries=kept or distance_scale is not None,
        batch_size=proposal.batch_size, max_simulations=max_simulations, batched=batched,
        cores=cores, checkpoint=checkpoint, max_time=max_time, progressbar=progressbar,
        random_seed=random_seed,
    ) as simulated:  # fmt: skip
        if distance_scale is not None and simulated.sizes[0] < FEWEST_PILOTS:
            raise ValueError(
                f"distance_scale={distance_scale!r} needs a first batch of {FEWEST_PILOTS} simulations at least, it has "
                f"{simulated.sizes[0]}; raise max_simulations or batch_size."
            )
        run.rng, *generators = simulated.rngs
        contrasts: list[float] = []

        def simulate(u: np.ndarray, b: int) -> Simulated:
            found = simulated.simulate(u, b)
            summaries, distance = found.summaries, found.distance
            if features is not None and summaries is not None:
                some = np.isfinite(summaries).all(axis=1)
                made = np.full((len(u), len(run.observed)), np.nan)
                made[some], contrast = features(summaries[some])
                contrasts.append(contrast)
                if run.cells is not None:
                    run.counts.append(run.cells.counts(summaries))
                summaries = made
            if distance_scale == "mad":
                assert summaries is not None
                if run.scale is None:
                    run.scale = pilot_scale(summaries, run.observed)
                distance = run.scale.distance(summaries)
            return found._replace(distance=distance, summaries=summaries if kept else None)

        def learn(history: History, rng: np.random.Generator, thorough: bool = False) -> np.ndarray:
            assert history.summaries is not None
            return learned_distance(
                history.u, history.summaries, run.observed, rng, thorough=thorough,
                progressbar=run.progressbar and thorough,
            )  # fmt: skip

        run.history = simulated.follow(
            rounds(
                problem, simulate, simulated.sizes, generators, proposal, tolerance,
                learn if run.learned else None, run.observed,
            ),
            _told,
        )  # fmt: skip
    run.seconds, run.flags, run.failures = simulated.seconds, simulated.flags, simulated.failures
    if run.learned:
        (rng,) = run.rng.spawn(1)
        try:
            distance = learn(run.history, rng, thorough=True)
        except KeyboardInterrupt:
            run.flags.append(flag("interrupted"))
            distance = learn(run.history, rng)
        run.history.score_again(distance)
    run.flags += failure_flags(problem, run.failures, run.history.u)
    if max(contrasts, default=0.0) > _IN_ORDER:
        run.flags.append(flag("order_matters", times=max(contrasts)))
    if run.scale is not None and np.isinf(run.scale.spread).any():
        left_out = ", ".join(map(str, np.flatnonzero(np.isinf(run.scale.spread))))
        run.flags.append(
            flag("constant_summaries", left_out=left_out, summaries=len(run.scale.spread))
        )
    distance, log_weight = run.history.distance, run.history.log_weight
    if not np.isfinite(distance).any():
        raise ValueError(
            f"all {len(distance):,} simulations failed or were infinitely far from the data; simulate once by hand with "
            "parameters from the prior to see why."
        )
    chosen = final_tolerance(distance, log_weight, accepts=proposal.accepts, lowest=tolerance)
    found = accept(distance, log_weight, chosen)
    attrs = {"sampler": "ABC-Tree", "distance_scale": distance_scale or "none"}
    return abc_tree_data(run, found, draws=draws, wanted=tolerance, adjust=adjust, attrs=attrs)


def _told_of(proposal: TreeProposal) -> dict[str, Any]:
    """Return the options of a proposal as numbers and names."""
    told = {f.name: getattr(proposal, f.name) for f in dataclasses.fields(proposal)}
    return told | {"partition": [name_of(p) for p in proposal.partitioners]}


def _told(history: History) -> str:
    last = history.rounds[-1].tolerance
    if not math.isfinite(last):
        return ""
    draws = effective(history.log_weight[accepted(history.distance, last)])
    return f": tolerance {last:.3g}, {draws:,.0f} effective draws"


def _check_names(problem: Problem) -> None:
    """Raise a ValueError if a variable has a name that is reserved in results."""
    taken = {*problem.shapes, *getattr(problem, "deterministic_names", ())} & _NAMES
    if taken:
        raise ValueError(
            f"a variable is called {', '.join(map(repr, sorted(taken)))}, which results call something else; rename it."
        )


def _features(problem: Problem) -> tuple[Any, Cells | None]:
    """Return the function from data (n, S) to features (n, F) that ignore the order of observations, and to a contrast.

    The contrast is that of :func:`order_contrast`. If observations are single numbers, cells that they are counted in are
    returned, too.
    """
    observed = problem.observed  # type: ignore[attr-defined]
    each = list(observed.values()) if isinstance(observed, dict) else [observed]
    shapes = [np.shape(o) for o in each]
    if any(not shape or shape[0] < 2 for shape in shapes):
        raise ValueError(
            "exchangeable=True needs data of two observations at least, along the first axis; shapes are "
            f"{', '.join(map(str, shapes))}."
        )
    n, sizes = len(problem.observed_summaries), [math.prod(shape) for shape in shapes]
    if sum(sizes) != n:
        raise ValueError(
            f"exchangeable=True needs the data themselves, {sum(sizes)} numbers, and there are {n} summary statistics; "
            "leave sum_stat out."
        )
    single = shapes[0][0] == n  # one variable, whose observations are numbers
    cells = cells_around(problem.observed_summaries, problem.n_dim) if single else None
    own, ends = [exchangeable_features(shape) for shape in shapes], np.cumsum(sizes)[:-1]

    def features(data: np.ndarray) -> tuple[np.ndarray, float]:
        parts = np.split(data, ends, axis=1)
        found = [f(part) for f, part in zip(own, parts, strict=True)]
        contrasts = [order_contrast(part, s) for part, s in zip(parts, shapes, strict=True)]
        return np.concatenate(found, axis=1), max(contrasts)

    return features, cells
