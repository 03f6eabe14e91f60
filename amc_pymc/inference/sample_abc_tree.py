"""Likelihood-free sampling by tree bandits."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path as FilePath
from typing import Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.abc_tree.adjusting import AdjustName
from amc_pymc.abc_tree.features import plain_features
from amc_pymc.abc_tree.run import Settings
from amc_pymc.abc_tree.schedule import batch_sizes
from amc_pymc.arguments import boolean, positive_int, positive_or_none, share_or_none
from amc_pymc.inference.abc_drawn import features_of
from amc_pymc.inference.abc_estimates import keeps_summaries
from amc_pymc.inference.abc_fingerprint import settings_fingerprint
from amc_pymc.inference.abc_results import abc_tree_data, final_accepted
from amc_pymc.inference.abc_run import (
    Budget,
    as_problem,
    run_batches,
    sizes_of,
)
from amc_pymc.inference.tree_proposal import TreeProposal, one_of
from amc_pymc.rng import RandomSeed
from amc_pymc.simulators.scale import ScaleName
from amc_pymc.simulators.simulator_problem import SimulatorProblem

__all__ = ["sample_abc_rejection", "sample_abc_tree"]

LearnedName = Literal["learned"]

#: Simulations accepted per round where it is not said.
_ACCEPTS = 1000
#: What results call something of their own, and where all simulations are kept.
_NAMES = {"chain", "draw", "sample", "statistic", "distance", "log_weight", "round", "box"}
_NAMES_OF_ALL = {"u", "simulation", "coordinate", "failure", "summaries", "summary"}
#: Proposals where nothing else is said.
_DEFAULT = TreeProposal()


def sample_abc_tree(
    draws: int = 1000,
    *,
    max_simulations: int,
    proposal: TreeProposal = _DEFAULT,
    tolerance: float | None = None,
    tolerance_schedule: Literal["quantile"] | float = "quantile",
    accepts_per_round: int = 1000,
    adjust: AdjustName | None = None,
    exchangeable: bool = False,
    smooth: bool = True,
    distance_scale: ScaleName | LearnedName | None = None,
    batch_size: int | None = None,
    batched: bool = False,
    chains: int = 4,
    executor: Executor | None = None,
    cores: int | None = 1,
    max_time: float | None = None,
    min_acceptance: float | None = None,
    simulation_timeout: float | None = None,
    keep_simulations: bool = False,
    model=None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    checkpoint: str | FilePath | None = None,
) -> xr.DataTree:
    r"""Draw from the posterior of a simulator by ABC-Tree: simulate where trees have learnt that it pays.

    The prior becomes uniform on the unit cube. After each batch of simulations trees cut the cube into
    boxes, at a tolerance that falls; the next batch is drawn from boxes of high acceptance :math:`\mu_k`, from kernels around
    accepted simulations as far as that has paid, and from the prior. All simulations are kept, scored again at the final tolerance, and weighted by

    .. math:: w_i = G_b \frac{\pi(\theta_i)}{q_b(\theta_i)},

    with the proposal of their own batch b, which was fixed before it was drawn, as was the gain G of it. Weighted sums of
    accepted simulations are unbiased at a tolerance fixed in advance, but for the sum they are divided by.

    Parameters
    ----------
    draws : int, default 1000
        Draws per chain of ``posterior``, 4,000 in all by default: around accepted simulations or, without `smooth`,
        copies of them.
    max_simulations : int
        Budget; all of it is spent.
    proposal : TreeProposal, optional
        How to learn where to simulate: partitions, kernels beside them, the share of the prior. The defaults are those of
        :class:`TreeProposal`.
    tolerance : float, optional
        At which lowering ends, in units of the distance: for ``pm.Simulator`` of its ``epsilon``, which is
        the default, 1. The final tolerance is above it if too few simulations come so close.
    tolerance_schedule : "quantile" or float, default "quantile"
        Lower the tolerance so that `accepts_per_round` simulations are accepted; or by a factor each round.
    accepts_per_round : int, default 1000
        Simulations that the next tolerance accepts, but not more than 3 % of those there are, and twice the
        number of effective draws to end with, which is not more than 1.5 % of all simulations. (Neither is
        less than 30.) To accept more set `tolerance`.
    adjust : {None, "auto", "linear", "heteroscedastic", "quadratic", "modes", "learned"}, default None
        Regression of accepted parameters on summary statistics (Beaumont, Zhang & Balding 2002), worth
        more than any proposal in many dimensions. "heteroscedastic" adjusts spreads as well (Blum & Francois 2010),
        "modes" does so for each mode alone. "learned" accepts by summaries that are learnt from the simulations
        (Fearnhead & Prangle 2012). "auto" takes the one, or none, that predicts parameters of simulations best that are
        close to the data.
    exchangeable : bool, default False
        Observations along the first axis of the data are independent and identically distributed: what is
        learnt, and regressed on, are moments and quantiles, which do not depend on their order. The data are compared
        in their order by the distance nevertheless, unless it is learnt.
    smooth : bool, default True
        Draw ``posterior`` from normal kernels around accepted simulations, on the scale where the prior is normal, instead
        of copying simulations: copies of a few hundred points do not look like a distribution in more than
        three dimensions. Kernels are moved towards the mean so that means and covariances stay
        (Liu & West 2001); their width, and whether their shape is a local one, is chosen by leave-one-out likelihood. Draws stay
        within the support of the prior. They know no more than the simulations: ``effective_draws`` says how
        much that is, while :func:`arviz.ess` takes all draws for independent. Models with discrete parameters are not
        smoothed.
    distance_scale : {None, "mad", "whiten", "learned"}, default None
        Replace the distance of the model by a Euclidean one between summary statistics, in units of their
        median absolute deviations in the first batch, or of their principal axes there. Those stay as they are
        for the whole run, for every change would be one of the posterior. The tolerance is in these units, and
        lowered as far as the budget goes unless it is given. "learned" is the distance between posterior means and
        second moments that are learnt from all simulations so far, anew before each batch.
    batch_size : int, optional
        Simulations between two fits. By default 2 % of the budget at first, then 40 % of all before.
    batched : bool, default False
        The simulator takes parameters of a whole batch at once: arrays with a first axis n, size=(n, ...).
    chains : int, default 4
        Groups of accepted simulations; no two share one.
    executor : concurrent.futures.Executor, optional
        Where to simulate, for example ``dask.distributed.Client.get_executor()``.
    cores : int or None, default 1
        Worker processes, without `executor`; None: as many as there are, four at most.
    max_time : float, optional
        Seconds after which no further batch begins. What is kept then depends on speed.
    min_acceptance : float, optional
        End when less than this share of a batch is accepted at its tolerance.
    simulation_timeout : float, optional
        Seconds that one simulation may take; longer ones count as not accepted.
    keep_simulations : bool, default False
        Add a group ``simulations`` with all of them.
    model : pm.Model or SimulatorProblem, optional
        Default: the model of the context. Its data are of ``pm.Simulator``.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        Reproduces everything but seconds, whatever `cores` and `executor` are.
    progressbar : bool, default True
    checkpoint : str or Path, optional
        Folder to which each batch is written. A run that was killed goes on from it when called again
        with the same arguments, to the same numbers.

    Returns
    -------
    xarray.DataTree
        ``posterior``: draws (chain, draw) of equal weight; attributes ``effective_draws``, ``unique_draws`` (simulations
        behind them), ``tolerance``, ``simulations``, ``smoothing``, ``smoothing_bandwidth``. ``sample_stats``: distance, round and number of the simulation behind
        each. ``weighted_posterior``: accepted simulations with distance, ``log_weight`` (natural logarithm),
        round and box. ``estimates``: by ``statistic`` the mean of each variable; "mcse", its Monte Carlo
        standard error, which knows of weights and regression as :func:`arviz.summary` does not; "tolerance_bias", by how much the tolerance
        shifts it according to extrapolation, and "tolerance_bias_error"; and "error", all of these together. ``abc``: by round tolerance,
        boxes, simulations, acceptance at its own and at the final tolerance, ess (at the final tolerance),
        expected gain, failed simulations, seconds; and totals.
        ``step_posterior``: boxes with their posterior mass; :func:`step_density` makes a function of them.
        ``observed_data``, ``constant_data``.

    Raises
    ------
    TypeError, ValueError
        Before anything is simulated in earnest: for arguments or models that cannot be used, simulators that always
        fail.

    Warns
    -----
    UserWarning
        If effective draws are few, one draw has much of the weight, the tolerance ends above
        epsilon or shifts posterior means by more than chance does, simulations failed, or the run was cut short.

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
    budget, size = sizes_of(max_simulations, batch_size)
    if not isinstance(proposal, TreeProposal):
        raise TypeError(f"proposal must be an amc_pymc.TreeProposal, got {proposal!r}.")
    return _sample(
        "ABC-Tree",
        proposal.learner(),
        budget,
        size,
        draws=draws,
        tolerance=tolerance,
        tolerance_schedule=tolerance_schedule,
        accepts=accepts_per_round,
        adjust=adjust,
        exchangeable=exchangeable,
        smooth=smooth,
        distance_scale=distance_scale,
        batched=batched,
        chains=chains,
        executor=executor,
        cores=cores,
        max_time=max_time,
        min_acceptance=min_acceptance,
        simulation_timeout=simulation_timeout,
        keep_simulations=keep_simulations,
        model=model,
        random_seed=random_seed,
        progressbar=progressbar,
        checkpoint=checkpoint,
    )


def sample_abc_rejection(
    draws: int = 1000,
    *,
    max_simulations: int,
    tolerance: float | None = None,
    accepts: int | None = None,
    adjust: AdjustName | None = None,
    exchangeable: bool = False,
    smooth: bool = True,
    distance_scale: ScaleName | LearnedName | None = None,
    batch_size: int | None = None,
    batched: bool = False,
    chains: int = 4,
    executor: Executor | None = None,
    cores: int | None = 1,
    max_time: float | None = None,
    simulation_timeout: float | None = None,
    keep_simulations: bool = False,
    model=None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    checkpoint: str | FilePath | None = None,
) -> xr.DataTree:
    """Draw from the posterior of a simulator by rejection: the baseline that anyone can check against.

    Parameters are drawn from the prior; those whose simulations come closest to the data are kept.

    Parameters
    ----------
    accepts : int, optional
        Simulations to accept, unless more of them are within the tolerance. Default: 500, or 1.5 % of the
        budget if that is less, or 30 if that is more.
    draws, max_simulations, tolerance, adjust, exchangeable, smooth, distance_scale, batch_size, batched, chains, executor, cores
        As for :func:`sample_abc_tree`.
    max_time, simulation_timeout, keep_simulations, model, random_seed, progressbar, checkpoint
        As for :func:`sample_abc_tree`.

    Returns
    -------
    xarray.DataTree
        As that of :func:`sample_abc_tree`; all weights are equal.

    Raises
    ------
    TypeError, ValueError
        As for :func:`sample_abc_tree`.

    References
    ----------
    Pritchard, Seielstad, Perez-Lezaun & Feldman (1999), doi:10.1093/oxfordjournals.molbev.a026091.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> from scipy import stats
    >>> def simulator(rng, mu):
    ...     return rng.normal(mu, 1.0)
    >>> problem = amc.SimulatorProblem({"mu": stats.norm(0.0, 3.0)}, simulator, observed=2.0)
    >>> found = amc.sample_abc_rejection(
    ...     max_simulations=10_000, model=problem, batched=True, random_seed=1, progressbar=False
    ... )
    >>> bool(abs(found["posterior"]["mu"].mean() - 1.8) < 0.4)
    True
    """
    budget, size = sizes_of(max_simulations, batch_size)
    return _sample(
        "Rejection",
        None,
        budget,
        size,
        draws=draws,
        tolerance=tolerance,
        tolerance_schedule="quantile",
        accepts=accepts,
        adjust=adjust,
        exchangeable=exchangeable,
        smooth=smooth,
        distance_scale=distance_scale,
        batched=batched,
        chains=chains,
        executor=executor,
        cores=cores,
        max_time=max_time,
        min_acceptance=None,
        simulation_timeout=simulation_timeout,
        keep_simulations=keep_simulations,
        model=model,
        random_seed=random_seed,
        progressbar=progressbar,
        checkpoint=checkpoint,
    )


def _sample(
    description, learner, budget, size, *, draws, tolerance, tolerance_schedule, accepts, adjust, exchangeable,
    smooth, distance_scale, batched, chains, executor, cores, max_time, min_acceptance, simulation_timeout,
    keep_simulations, model, random_seed, progressbar, checkpoint,
) -> xr.DataTree:  # fmt: skip
    """Check what both samplers are given, simulate, and collect results."""
    _check_draws(draws)
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    batched, smooth = boolean("batched", batched), boolean("smooth", smooth)
    keep_simulations = boolean("keep_simulations", keep_simulations)
    if learner is not None or accepts is not None:
        accepts = positive_int("accepts" if learner is None else "accepts_per_round", accepts)
    tolerance = positive_or_none("tolerance", tolerance)
    factor = _factor(tolerance_schedule)
    if adjust is not None:
        one_of("adjust", adjust, AdjustName)
    if boolean("exchangeable", exchangeable) and adjust is None and distance_scale != "learned":
        raise ValueError(
            "exchangeable=True changes nothing without adjust= or distance_scale='learned'; give one of them."
        )
    if distance_scale is not None:
        one_of("distance_scale", distance_scale, Literal[*get_args(ScaleName), "learned"])
    limits = {
        "max_time": positive_or_none("max_time", max_time),
        "min_acceptance": share_or_none("min_acceptance", min_acceptance),
    }
    problem, model = as_problem(model)
    if tolerance is None and distance_scale is None:
        tolerance = problem.tolerance
    _check_names(problem, keep_simulations)
    features = features_of(problem, exchangeable)
    settings = Settings(learner, accepts or _ACCEPTS, tolerance, factor)
    run = run_batches(
        description,
        problem,
        model,
        Budget(batch_sizes(budget, size), **limits),
        settings,
        random_seed=random_seed,
        cores=cores,
        executor=executor,
        batched=batched,
        timeout=positive_or_none("simulation_timeout", simulation_timeout),
        progressbar=progressbar,
        checkpoint=checkpoint,
        fingerprint=settings_fingerprint(
            settings,
            batched=batched,
            adjust=adjust,
            exchangeable=exchangeable,
            distance_scale=distance_scale,
        ),
        summaries=keeps_summaries(problem.observed_summaries.size, adjust),
        distance_scale=None if distance_scale == "learned" else distance_scale,
        learn=(features or plain_features) if distance_scale == "learned" else None,
    )
    found = final_accepted(
        run, tolerance=tolerance, accepts=settings.accepts,
        enough=accepts if learner is None else None,
    )  # fmt: skip
    attrs = {"sampler": description, "distance_scale": distance_scale or "none"}
    return abc_tree_data(
        run, found, draws=draws, chains=chains, wanted=tolerance, adjust=adjust,
        features=features, smooth=smooth, keep_simulations=keep_simulations, attrs=attrs,
    )  # fmt: skip


def _check_draws(draws: object) -> None:
    """Raise a TypeError if the first argument is the model."""
    from pymc.model.core import Model

    if isinstance(draws, Model | SimulatorProblem):
        raise TypeError(
            f"draws must be an integer, got a {type(draws).__name__}; pass it as model=."
        )


def _check_names(problem, keep_simulations: bool) -> None:
    """Raise a ValueError if results have no room for a variable beside what they tell of simulations."""
    names = {*problem.shapes, *getattr(problem, "deterministic_names", ())}
    taken = names & (_NAMES | (_NAMES_OF_ALL if keep_simulations else set()))
    if taken:
        raise ValueError(
            f"a variable is called {', '.join(map(repr, sorted(taken)))}, which results call something else; "
            "rename it."
        )


def _factor(schedule) -> float | None:
    if isinstance(schedule, str):
        if schedule != "quantile":
            raise ValueError(
                f"tolerance_schedule must be 'quantile' or a factor below 1, got {schedule!r}."
            )
        return None
    if isinstance(schedule, bool) or not isinstance(schedule, int | float | np.number):
        raise TypeError(f"tolerance_schedule must be 'quantile' or a number, got {schedule!r}.")
    if not 0.0 < schedule < 1.0:
        raise ValueError(f"tolerance_schedule must be between 0 and 1, got {schedule!r}.")
    return float(schedule)
