"""Likelihood-free sampling by tree bandits."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import xarray as xr

from amc_pymc.abc_tree.adjusting import AdjustName
from amc_pymc.abc_tree.estimates import keeps_summaries
from amc_pymc.abc_tree.features import plain_features
from amc_pymc.abc_tree.learning import Learner
from amc_pymc.abc_tree.run import Settings
from amc_pymc.arguments import boolean, positive_int, positive_or_none, share_or_none
from amc_pymc.inference.abc_drawn import features_of
from amc_pymc.inference.abc_fingerprint import settings_fingerprint
from amc_pymc.inference.abc_results import abc_tree_data, final_accepted
from amc_pymc.inference.abc_run import run_batches
from amc_pymc.inference.simulation_run import How, as_problem
from amc_pymc.inference.tree_proposal import TreeProposal, one_of
from amc_pymc.rng import RandomSeed
from amc_pymc.signals import ends_loops
from amc_pymc.simulators import Problem
from amc_pymc.simulators.scale import ScaleName
from amc_pymc.simulators.simulator_problem import SimulatorProblem

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["sample_abc_rejection", "sample_abc_tree"]

LearnedName = Literal["learned"]

#: Default number of simulations accepted per round.
_ACCEPTS = 1000
#: Names reserved in results, and further ones if all simulations are kept.
_NAMES = {"chain", "draw", "sample", "statistic", "distance", "log_weight", "round", "box"}
_NAMES_OF_ALL = {"u", "simulation", "coordinate", "failure", "summaries", "summary"}
#: Default options of the proposals.
_DEFAULT = TreeProposal()


@ends_loops
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
    min_acceptance: float | None = None,
    simulation_timeout: float | None = None,
    keep_simulations: bool = False,
    model: Model | SimulatorProblem | None = None,
    cores: int | None = 1,
    executor: Executor | None = None,
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
        Draws per chain in ``posterior``: around accepted simulations or, without `smooth`, copies of them.
    max_simulations : int
        Total number of simulations, with 6 (with `batched`, 126) that try the simulator. A run from a `checkpoint` may
        have a larger budget than before, and goes on.
    proposal : TreeProposal, optional
        Options of the proposals: partitions, kernels, and the share drawn from the prior.
    tolerance : float, optional
        Smallest tolerance, in units of the distance. For ``pm.Simulator`` the unit is its ``epsilon`` and the
        default is 1. The final tolerance is larger if too few simulations come this close to the data.
    tolerance_schedule : "quantile" or float, default "quantile"
        "quantile" lowers the tolerance until it accepts `accepts_per_round` simulations. A number between 0 and 1
        multiplies the tolerance in each round.
    accepts_per_round : int, default 1000
        Simulations that the next tolerance accepts, at most 3 % of those so far or 30, whichever is more. The final
        tolerance aims at half as many effective draws, at most 1.5 % of all simulations and at least 30. To accept
        more, set `tolerance`.
    adjust : {None, "auto", "linear", "heteroscedastic", "quadratic", "modes", "learned", "forest"}, default None
        Regression of accepted parameters on summary statistics (Beaumont, Zhang & Balding 2002). It matters more
        than the proposal in many dimensions. "heteroscedastic" also adjusts the spread (Blum & Francois 2010);
        "modes" does so for each mode separately. "learned" accepts by summary statistics that are learned from the
        simulations (Fearnhead & Prangle 2012). "forest" weights simulations by how often they share a leaf with the
        data in a random forest, in the place of a tolerance (Raynal et al. 2019), and regresses on the summary
        statistics. "auto" selects the adjustment other than "forest", or none, that best predicts the parameters
        of simulations close to the data.
    exchangeable : bool, default False
        Whether observations along the first axis of the data are independent and identically distributed.
        Regressions and learned summaries then use moments and quantiles, which do not depend on the order. The
        distance still compares the data in order, unless it is learned.
    smooth : bool, default True
        Whether to draw ``posterior`` from normal kernels around accepted simulations, on the scale where the prior
        is normal, instead of copying simulations. A few hundred copies represent a distribution poorly in more than
        three dimensions. Kernels are moved towards the mean to preserve means and covariances (Liu & West 2001).
        Their bandwidth, and whether their shape is local, is chosen by leave-one-out likelihood. Draws stay within
        the support of the prior. Smoothing adds no information: ``effective_draws`` is that of the simulations,
        whereas :func:`arviz.ess` treats all draws as independent. Models with discrete parameters are not smoothed.
    distance_scale : {None, "mad", "whiten", "learned"}, default None
        Replace the distance of the model by a Euclidean distance between summary statistics, in units of their
        median absolute deviations ("mad") or of their principal axes ("whiten") in the first batch. The units are
        fixed during the run, because changing them would change the posterior. `tolerance` has the same units and
        is by default the lowest that the budget allows. "learned" is the distance between posterior means and
        second moments, which are learned again from all simulations before each batch.
    batch_size : int, optional
        Simulations per batch. Default: 2 % of the budget first, then 40 % of all previous simulations.
    batched : bool, default False
        Whether the simulator takes parameters of a whole batch: arrays with a first axis n, ``size=(n, ...)``.
    chains : int, default 4
        Groups of accepted simulations. No simulation is in two groups.
    min_acceptance : float, optional
        Stop when a smaller share of a batch is accepted at its own tolerance.
    simulation_timeout : float, optional
        Time limit of one simulation in seconds. Slower ones are not accepted.
    keep_simulations : bool, default False
        Whether to add a group ``simulations`` with all simulations.
    model : pm.Model or SimulatorProblem, optional
        Default: the model in the context. A ``pm.Model`` must observe its data by ``pm.Simulator``.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it.
    executor : concurrent.futures.Executor, optional
        Executor to use instead of processes, for example ``dask.distributed.Client.get_executor()``.
    checkpoint : str or Path, optional
        Folder to which finished batches are written. A killed run resumes from it when called again with the same
        arguments, with the same results.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores` and `executor`. Times in the result differ.

    Returns
    -------
    xarray.DataTree
        ``posterior``: draws (chain, draw) of equal weight; attributes ``effective_draws``, ``unique_draws``
        (simulations behind them), ``tolerance``, ``simulations``, ``smoothing``, ``smoothing_bandwidth``.
        ``sample_stats``: distance, round and index of the simulation behind each draw. ``weighted_posterior``:
        accepted simulations with distance, ``log_weight`` (natural logarithm), round and box. ``estimates``: by
        ``statistic``, the mean of each variable; "mcse", its Monte Carlo standard error, which unlike that of
        :func:`arviz.summary` accounts for weights and regression; "tolerance_bias", the extrapolated effect of the
        tolerance on the mean, and "tolerance_bias_error"; and "error", the total of these. ``abc``: rounds and
        totals; attributes ``flags`` and ``flag_names``. ``step_posterior``: boxes with their posterior mass;
        :func:`step_density` turns them into a function. ``observed_data``, ``constant_data``. The page "Variables of
        results" lists all variables.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for invalid arguments or models and for simulators that always fail.

    Warns
    -----
    UserWarning
        If there are few effective draws, one draw has much of the weight, the final tolerance is above epsilon or
        shifts posterior means significantly, simulations failed, or the run was stopped early.

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
    return _sample(
        "ABC-Tree",
        proposal.learner(),
        draws=draws,
        tolerance=tolerance,
        tolerance_schedule=tolerance_schedule,
        accepts=accepts_per_round,
        adjust=adjust,
        exchangeable=exchangeable,
        smooth=smooth,
        distance_scale=distance_scale,
        chains=chains,
        min_acceptance=min_acceptance,
        keep_simulations=keep_simulations,
        model=model,
        how=How.of(
            max_simulations, batch_size, batched, simulation_timeout, cores, executor, checkpoint,
            max_time, progressbar, random_seed,
        ),
    )  # fmt: skip


@ends_loops
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
    simulation_timeout: float | None = None,
    keep_simulations: bool = False,
    model: Model | SimulatorProblem | None = None,
    cores: int | None = 1,
    executor: Executor | None = None,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    """Draw from the posterior of a simulator by rejection, as a baseline for :func:`sample_abc_tree`.

    Parameters are drawn from the prior; those whose simulations come closest to the data are kept.

    Parameters
    ----------
    accepts : int, optional
        Simulations to accept; more if more are within the tolerance. Default: 500, but at most 1.5 % of the budget
        and at least 30.
    draws, max_simulations, tolerance, adjust, exchangeable, smooth, distance_scale, batch_size, batched, chains
        As for :func:`sample_abc_tree`.
    simulation_timeout, keep_simulations, model, cores, executor, checkpoint, max_time, progressbar, random_seed
        As for :func:`sample_abc_tree`.

    Returns
    -------
    xarray.DataTree
        The same groups as from :func:`sample_abc_tree`; all weights are equal.

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
    return _sample(
        "Rejection",
        None,
        draws=draws,
        tolerance=tolerance,
        tolerance_schedule="quantile",
        accepts=accepts,
        adjust=adjust,
        exchangeable=exchangeable,
        smooth=smooth,
        distance_scale=distance_scale,
        chains=chains,
        min_acceptance=None,
        keep_simulations=keep_simulations,
        model=model,
        how=How.of(
            max_simulations, batch_size, batched, simulation_timeout, cores, executor, checkpoint,
            max_time, progressbar, random_seed,
        ),
    )  # fmt: skip


def _sample(
    description: str,
    learner: Learner | None,
    *,
    draws: int,
    tolerance: float | None,
    tolerance_schedule: str | float,
    accepts: int | None,
    adjust: AdjustName | None,
    exchangeable: bool,
    smooth: bool,
    distance_scale: ScaleName | LearnedName | None,
    chains: int,
    min_acceptance: float | None,
    keep_simulations: bool,
    model: Model | SimulatorProblem | None,
    how: How,
) -> xr.DataTree:
    """Check the arguments of both samplers, simulate, and collect the results."""
    _check_draws(draws)
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    smooth = boolean("smooth", smooth)
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
    least = share_or_none("min_acceptance", min_acceptance)
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
        settings,
        how,
        settings_fingerprint(
            settings, adjust=adjust, exchangeable=exchangeable, distance_scale=distance_scale
        ),
        min_acceptance=least,
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


def _check_names(problem: Problem, keep_simulations: bool) -> None:
    """Raise a ValueError if a variable has a name that is reserved in results."""
    names = {*problem.shapes, *getattr(problem, "deterministic_names", ())}
    taken = names & (_NAMES | (_NAMES_OF_ALL if keep_simulations else set()))
    if taken:
        raise ValueError(
            f"a variable is called {', '.join(map(repr, sorted(taken)))}, which results call something else; "
            "rename it."
        )


def _factor(schedule: str | float) -> float | None:
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
