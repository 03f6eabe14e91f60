"""Combine unbiased estimators of one quantity, learning from the draws which to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal

import xarray as xr

from amc_pymc.arguments import positive_or_none
from amc_pymc.bandits.arms import Arm, Cost, as_arms
from amc_pymc.bandits.combination_run import (
    Choices,
    Weights,
    check_choices,
    combined,
    wanted_budget,
)
from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.payoffs import Payoff
from amc_pymc.bandits.recorded import open_record
from amc_pymc.flags import flag_attributes, warn_of
from amc_pymc.rng import RandomSeed
from amc_pymc.runs import check_workers
from amc_pymc.signals import ends_loops

__all__ = ["combine_estimators"]


@ends_loops
def combine_estimators(
    arms: Mapping[str, Any] | Sequence[Any],
    *,
    policy: str | Policy | type[Policy] = "lcb",
    draws: int | None = None,
    max_cost: float | None = None,
    target_mcse: float | None = None,
    cost: Cost = "count",
    weights: Weights = "predictable",
    payoff: Literal["auto"] | Payoff = "auto",
    rounds: Literal["doubling"] | int = "doubling",
    cores: int | None = 1,
    executor: Executor | None = None,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Estimate the common mean of several unbiased estimators, drawing mostly from the best.

    Use it for several Monte Carlo estimators of one number, for example importance samplers with different
    proposals, if it is not known which has the smallest variance for its cost. The draws are made in rounds that
    double; a bandit decides from earlier rounds how many draws each estimator gets in the next. With
    ``weights="predictable"`` the estimate is

    .. math::
        \hat\mu = \sum_r \lambda_r \sum_k v_{kr} \bar X_{kr}, \qquad \sum_r \lambda_r = 1,

    where the numbers of draws depend only on earlier rounds. Each round is weighted in two halves; the weights
    :math:`\lambda_r, v_{kr}` of a half depend only on earlier rounds and on the other half. The estimate is
    therefore exactly unbiased for any policy. The first round has no weight (:math:`\lambda_0 = 0`) unless it draws
    from one estimator alone.

    Parameters
    ----------
    arms : mapping of names to estimators, or sequence of estimators
        K estimators with the same mean. An estimator is a callable ``rng -> value``, or an object with
        ``sample(n, rng)`` that returns n values, or ``(values, costs)``, or ``(values, costs, controls)``. Optional
        attributes: ``scale``, "natural" (default) or "log" if values are logarithms of positive estimates, -inf for
        zero; ``cost`` of one draw if it is known in advance; ``control_means`` (q,), the exact means of the
        controls.
    policy : str, Policy or class, default "lcb"
        Policy that allocates the draws. "lcb": a lower confidence bound on log cost + log variance. The policies of
        the papers, "ucb1", "ucbv", "klucb", "thompson" and others of :mod:`amc_pymc.bandits`, receive
        `payoff` as rewards.
    draws : int, optional
        Total number of draws.
    max_cost : float, optional
        Budget in units of `cost`. It is not exceeded if costs of draws are known in advance. Otherwise a draw of each
        arm measures them first, as a part of the budget; rounds are planned by mean costs so far and always finished.
    target_mcse : float, optional
        Standard error at which to stop: of the mean or, on the log scale, of its logarithm. Rounds are drawn until
        it is known how many draws the target needs; these are made in one last, certifying round, which alone
        enters the predictable estimate. If it misses the target, others follow. One of `draws`, `max_cost` and `target_mcse` is needed; a target can be
        combined with a budget.
    cost : "count", "cpu" or callable, default "count"
        "count": costs that the estimator returns, else its ``cost``, else one per draw. "cpu": CPU seconds of the
        drawing thread; a seed then does not reproduce the run. A callable maps each value to its cost.
    weights : {"predictable", "inverse_variance", "uniform"}
        Which of the three estimates is the main one; all are computed. "inverse_variance" weights all draws by
        estimated variances: most precise, but slightly biased for skewed values. "uniform" is the plain average
        used in the papers.
    payoff : {"auto", "squared", "paired"}
        Rewards for policies of the papers: minus the squared value, for equal costs; or minus the mean cost times half
        the squared difference of two draws. "auto" is
        "squared" if `draws` are counted and no estimator has a known cost other than one, else "paired".
    rounds : "doubling" or int, default "doubling"
        An integer is the number of draws of each round after the first; 1 decides after each draw, as in the
        papers.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it. Daemonic processes, such as those
        of ``multiprocessing.Pool``, have none.
    executor : concurrent.futures.Executor, optional
        Executor to use instead of processes, for example ``dask.distributed.Client.get_executor()``.
    checkpoint : str or Path, optional
        Folder to which finished batches are written. A killed run resumes from it when called again with the same
        arguments, with the same results. Arms are compared by their names, costs and a few draws, which are repeated.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine. The first
        two rounds are always completed: the predictable estimate needs both. Without `checkpoint`, later rounds are
        shortened to end in time at the rate of earlier ones.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores` and `executor`. With ``cost="cpu"`` it does
        not.

    Returns
    -------
    xarray.DataTree
        ``estimate`` (dimension ``weights``): ``mean``, ``mcse``, and on the log scale ``log_mean``,
        ``log_mean_mcse``. ``arms``, ``rounds`` and ``pulls``, in the order in which they were started: see the page
        "Variables of results". Attributes of the root: ``unbiased`` states which estimates
        are unbiased, ``stopped`` why the run ended early, if it did, ``flags`` lists doubts about the result, and
        ``flag_names`` their names, both separated by "; ".

    Raises
    ------
    ValueError, TypeError
        Before any draw, for invalid arguments.
    ArmError
        If an estimator fails before the first round is complete. Later, the results so far are returned with a flag
        that names the arm and the draw. An estimator may raise :class:`FailedPull` for a draw that failed
        independently of its value; it is counted and left out.

    Warns
    -----
    UserWarning
        For every flag: an estimator failed or the run was interrupted after the first round, estimators disagree,
        tails are heavy, or the target error was not reached.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, ICML.
    Verma & Hanawal (2021), Stochastic multi-armed bandits with control variates, NeurIPS.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> found = amc.combine_estimators(
    ...     {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)},
    ...     draws=1000,
    ...     random_seed=1,
    ... )
    >>> found["arms"]["draws"].sel(arm="sharp").item() > 900
    True
    >>> found["estimate"]["mean"].sel(weights="predictable").round(1).item()
    1.0
    """
    check_workers(cores, executor)
    used = [replace(a, cost=_known_cost(a, cost)) for a in as_arms(arms)]
    choices = Choices(policy, cost, weights, payoff, rounds)
    check_choices(choices, used[0].scale)
    budget = wanted_budget(used, draws=draws, max_cost=max_cost, target_mcse=target_mcse, cost=cost)
    limit = positive_or_none("max_time", max_time)
    told = choices._asdict() | budget._asdict()
    record, seed = open_record(checkpoint, used, told, random_seed)
    found = combined(
        used, budget, choices, cores=cores, executor=executor, max_time=limit, progressbar=progressbar,
        random_seed=seed, record=record,
    )  # fmt: skip
    found.tree.attrs |= flag_attributes(found.flags)
    warn_of((f for f in found.flags if f.name != "rewards_clipped"), "Combined estimate")
    return found.tree


def _known_cost(arm: Arm, cost: Cost) -> float | None:
    """Return the cost of a draw in the unit of the budget if it is known in advance."""
    if cost != "count":
        return None
    return 1.0 if arm.cost is None and not arm.batched else arm.cost
