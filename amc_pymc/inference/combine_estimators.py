"""Combine unbiased estimators of one quantity, and learn while drawing which to draw from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal

import xarray as xr

from amc_pymc.bandits import Policy
from amc_pymc.combination import Cost, as_arms
from amc_pymc.combination.payoffs import Payoff
from amc_pymc.inference.combination_run import (
    Choices,
    Weights,
    check_choices,
    combined,
    wanted_budget,
)
from amc_pymc.inference.flags import flag_attributes, warn_of
from amc_pymc.rng import RandomSeed

__all__ = ["combine_estimators"]


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
    random_seed: RandomSeed = None,
    executor: Executor | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    r"""Estimate the common mean of several unbiased estimators, drawing mostly from the best.

    Use it where several Monte Carlo estimators of one number are at hand, importance samplers with
    different proposals for example, and nobody knows which has the smallest variance for its cost. The
    draws are made in rounds that double; a bandit decides from earlier rounds how many draws each
    estimator gets in the next. With ``weights="predictable"`` the estimate

    .. math::
        \hat\mu = \sum_r \lambda_r \sum_k v_{kr} \bar X_{kr}, \qquad \sum_r \lambda_r = 1,

    has weights :math:`\lambda_r, v_{kr}` and numbers of draws that are functions of rounds before r
    only, and so is exactly unbiased for any policy. The first round only informs
    (:math:`\lambda_0 = 0`) unless it draws from one estimator alone.

    Parameters
    ----------
    arms : mapping of names to estimators, or sequence of estimators
        K estimators with the same mean. An estimator is a callable ``rng -> value``, or an object with
        ``sample(n, rng)`` that returns n values, or ``(values, costs)``, or ``(values, costs,
        controls)``. Attributes it may have: ``scale``, "natural" (default) or "log" if values are
        logarithms of positive estimates, -inf for zero; ``cost`` of one draw if it is known before it
        is made; ``control_means`` (q,), the exact means of the controls.
    policy : str, Policy or class, default "lcb"
        Who is drawn from. "lcb": a lower confidence bound on log cost + log variance. The policies of
        the papers, "ucb1", "ucbv", "klucb", "moss", "thompson", "top_two", "eucbv" and others of
        :mod:`amc_pymc.bandits`, are paid by `payoff`.
    draws : int, optional
        Number of draws in all.
    max_cost : float, optional
        Budget in units of `cost`. If a draw's cost is known before it is made, it is not exceeded;
        else rounds are planned by mean costs so far and always finished.
    target_mcse : float, optional
        Error at which to stop: of the mean, on the log scale of the logarithm of the mean. Rounds are
        drawn until it can be said how many draws the error takes; these are then made in one last,
        certifying round, which alone enters the predictable estimate. One of `draws`, `max_cost` and
        `target_mcse` is needed; a target can be combined with a budget.
    cost : "count", "cpu" or callable, default "count"
        "count": what the estimator says, else its ``cost``, else one per draw. "cpu": seconds of CPU
        time of the drawing thread; then a seed does not reproduce a run. A callable is given each value
        and returns its cost.
    weights : {"predictable", "inverse_variance", "uniform"}
        Which of the three estimates is the headline; all are computed. "inverse_variance" weights all
        draws by estimated variances: most precise, slightly biased for skewed values. "uniform" is the
        plain average of the papers.
    payoff : {"auto", "squared", "paired", "triple"}
        What policies of the papers are paid: minus the squared value, which suits equal costs; minus
        the mean cost times half the squared difference of two draws; the same of three draws, for costs
        that depend on values. "auto" is "squared" if `draws` are counted and no estimator has a known
        cost but one, else "paired".
    rounds : "doubling" or int, default "doubling"
        An integer is the number of draws of each round after the first; 1 decides after each draw, as
        the papers do.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        Reproduces the run, with and without `executor`, unless costs are timed.
    executor : concurrent.futures.Executor, optional
        Where draws are made: processes, threads, Dask, MPI.
    progressbar : bool, default True

    Returns
    -------
    xarray.DataTree
        ``estimate`` (dimension ``weights``): ``mean``, ``mcse``, and on the log scale ``log_mean``,
        ``log_mean_mcse``. ``arms`` (dimension ``arm``): draws, failures, mean, its error, sd of a value (on the
        log scale of its logarithm), cost, share of the weight, and how far its mean is from the others'. ``rounds`` (``round``, ``arm``): draws and
        weights as decided, the estimates after each round. ``pulls`` (``pull``, in the order they were
        begun): arm, value, cost, round, whether it failed, plain running mean. Attributes of the root:
        ``unbiased`` says in words what holds, ``stopped`` why it ended early, if it did, ``flags`` what is doubtful
        about the result, and ``flag_names`` the names of these flags, both separated by "; ".

    Raises
    ------
    ValueError, TypeError
        Before any draw, for arguments that cannot be used.
    ArmError
        If an estimator fails before the first round is complete. Later, what there is is returned with
        a flag that names the arm and the draw. An estimator may raise :class:`FailedPull` for a draw
        that failed independently of its value; it is counted and left out.

    Warns
    -----
    UserWarning
        For every flag: an estimator that failed or a run that was interrupted after the first round, estimators
        that disagree, heavy tails, an error that was not reached.

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
    used = as_arms(arms)
    choices = Choices(policy, cost, weights, payoff, rounds)
    known = draws is not None or max_cost is not None
    check_choices(choices, used[0].scale, draws_known=known or target_mcse is None)
    budget = wanted_budget(used, draws=draws, max_cost=max_cost, target_mcse=target_mcse, cost=cost)
    found = combined(
        used, budget, choices, random_seed=random_seed, executor=executor, progressbar=progressbar
    )
    found.tree.attrs |= flag_attributes(found.flags)
    warn_of(found.flags, "Combined estimate", stacklevel=2)
    return found.tree
