"""Combine unbiased estimators of one quantity, learning from the draws which to use."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.bandits import make_policy
from amc_pymc.bandits.arms import Arm, ArmError, Cost, Sample, as_arms, draw, join_samples
from amc_pymc.bandits.combination import (
    Combination,
    Plan,
    Round,
    cheapest,
    plan_rounds,
    variances_of,
)
from amc_pymc.bandits.combination_results import combination_flags, combination_tree, missed
from amc_pymc.bandits.contract import Policy, Pulls
from amc_pymc.bandits.lcb import LCB
from amc_pymc.bandits.payoffs import PAYOFFS, Payoff
from amc_pymc.bandits.rewards import LogLoss, RunningRange
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.progress import progress
from amc_pymc.rng import RandomSeed, spawn_generators
from amc_pymc.runs import Pool, number_of_cores, run_loop
from amc_pymc.signals import held_back

#: Number of draws of each arm in the first round, if the budget allows; variances need several.
_FIRST_DRAWS = 3
#: Maximum share of the budget for the first round.
_FIRST_SHARE = 0.2
#: Minimum exploration with a target error: share of the cost of the certifying round, and draws of
#: the arm chosen for it.
_EXPLORED_SHARE, _EXPLORED_DRAWS = 0.25, 30
#: Minimum size of the certifying round, relative to the number of draws of the best arm so far.
_CERTIFYING = 0.5
#: Draws without a positive value of each arm, or of equal values, after which a run with a target stops.
_ALL_ALIKE = 10_000
#: Maximum number of draws in one job, and number of jobs for the draws of one arm in a round.
_LARGEST_JOB, _JOBS = 65_536, 16


def combine_estimators(
    arms: Mapping[str, Any] | Sequence[Any],
    *,
    policy: str | Policy = "lcb",
    draws: int | None = None,
    max_cost: float | None = None,
    target_mcse: float | None = None,
    cost: Cost = "count",
    cores: int | None = 1,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Estimate the common mean of several unbiased estimators, drawing mostly from the best.

    Use it for several Monte Carlo estimators of one number, for example importance samplers with different
    proposals, if it is not known which has the smallest variance for its cost. The draws are made in rounds that
    double; a bandit decides from earlier rounds how many draws each estimator gets in the next. The main
    estimate, ``weights="predictable"`` in the result, is

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
    policy : str or Policy, default "lcb"
        Policy that allocates the draws. "lcb": a lower confidence bound on log cost + log variance. The policies of
        the papers, "ucb1", "ucbv", "klucb", "thompson" and others of :mod:`amc_pymc.bandits`, receive as rewards
        minus the squared value, if `draws` are counted and no estimator has a known cost other than one, else minus
        the mean cost times half the squared difference of two draws.
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
    cost : "count" or "cpu", default "count"
        "count": costs that the estimator returns, else its ``cost``, else one per draw. "cpu": CPU seconds of the
        drawing thread; a seed then does not reproduce the run.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it. Daemonic processes, such as those
        of ``multiprocessing.Pool``, have none.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine. The first
        two rounds are always completed: the predictable estimate needs both. Later rounds are
        shortened to end in time at the rate of earlier ones.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores`. With ``cost="cpu"`` it does
        not.

    Returns
    -------
    xarray.DataTree
        ``estimate`` (dimension ``weights``: "predictable"; "inverse_variance", which weights all draws by estimated
        variances and is slightly biased for skewed values; "uniform", the plain average of the papers): ``mean``, ``mcse``, and on the log scale ``log_mean``,
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
        that names the arm and the draw.

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
    number_of_cores(cores, 1)  # checks the value
    used = [replace(a, cost=_known_cost(a, cost)) for a in as_arms(arms)]
    if cost not in get_args(Cost):
        raise ValueError(f"cost must be 'count' or 'cpu', got {cost!r}.")
    budget = _budget(used, draws, max_cost, target_mcse, cost)
    limit = positive_or_none("max_time", max_time)
    found = combined(
        used, budget, policy=policy, cost=cost, cores=cores,
        max_time=limit, progressbar=progressbar, random_seed=random_seed,
    )  # fmt: skip
    found.tree.attrs |= flag_attributes(found.flags)
    warn_of((f for f in found.flags if f.name != "rewards_clipped"), "Combined estimate")
    return found.tree


def _known_cost(arm: Arm, cost: Cost) -> float | None:
    """Return the cost of a draw in the unit of the budget if it is known in advance."""
    if cost != "count":
        return None
    return 1.0 if arm.cost is None and not arm.batched else arm.cost


class Meter(Protocol):
    """Measures jobs, wherever they run."""

    def measured(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that also returns measurements."""

    def receive(self, found: Any) -> Any:
        """Note the measurements; return the result."""


class Budget(NamedTuple):
    """Maximum number or cost of draws, and the standard error to stop at."""

    total: float
    unit: Literal["draws", "cost"]
    target: float | None


class Combined(NamedTuple):
    """Results of a run, and flags of doubts about them."""

    tree: xr.DataTree
    flags: list[Flag]


def combined(
    arms: list[Arm],
    budget: Budget,
    *,
    policy: str | Policy,
    cost: Cost,
    cores: int | None = 1,
    max_time: float | None = None,
    begin: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
    meter: Meter | None = None,
) -> Combined:
    """Run :func:`amc_pymc.combine_estimators`, and return flags instead of warnings.

    What jobs evaluate is measured by `meter`. `max_time` counts from the time `begin` of the monotonic clock, by
    default from the start of the rounds.

    Raises
    ------
    ValueError, TypeError
        Before any draw, for invalid choices.
    ArmError, KeyboardInterrupt
        Before the first round is complete; later they are flags.
    """
    bandit, paid = _policy(policy, arms, budget)
    policy_rng, draw_rng = spawn_generators(random_seed, 2)
    started = time.monotonic()
    until = (started if begin is None else begin) + (math.inf if max_time is None else max_time)
    total = None if budget.target is not None else math.ceil(budget.total)

    def room() -> float:
        """Return the size of a round that takes half the time left at the present rate, which may change."""
        now = time.monotonic()
        if max_time is None or len(run.rounds) < 2:
            return math.inf
        return 0.5 * run.spent / max(now - started, 1e-9) * max(until - now, 0.0)

    draw_job = _draw if meter is None else meter.measured(_draw)
    with (
        progress("Combining estimators", total, enabled=progressbar) as bar,
        Pool(draw_job, cores=cores) as pool,
    ):

        def draws_of(decided: Round, found: list[list[Sample]]) -> None:
            """Make the draws of a round; append the samples to `found`, a list per arm, as they arrive."""
            jobs = [*_jobs(arms, decided)]
            rngs = spawn_generators(draw_rng, len(jobs))
            packed = [(arms[k], n, g, cost) for (k, n), g in zip(jobs, rngs, strict=True)]
            for (k, n), result in zip(jobs, pool.map(packed), strict=True):
                sample = result if meter is None else meter.receive(result)
                if isinstance(sample, ArmError):
                    raise sample
                found[k].append(sample)
                bar.advance(n if budget.unit == "draws" else round(float(sample.costs.sum())))

        pilot, first = None, list[Sample]()
        n_untimed = 1  # the predictable estimate needs two rounds
        if budget.unit == "cost" and any(a.cost is None for a in arms):
            pilot = Round(Pulls([], [], []), np.ones(len(arms), np.int64), last=False)
            drawn: list[list[Sample]] = [[] for _ in arms]
            draws_of(pilot, drawn)
            first = [s for (s,) in drawn]
            arms = [replace(a, cost=float(s.costs[0])) for a, s in zip(arms, first, strict=True)]
            n_untimed = 2
        plan = _plan(arms, budget, 1 if paid is None else PAYOFFS[paid], first)
        run = Combination(arms, bandit, plan, paid)
        if pilot is not None:
            pilot.last = len(plan.sizes) == 1
            run.record(pilot, first)
        try:
            ended = run_loop(
                _rounds(run, draws_of, policy_rng, budget, room),
                n_untimed=n_untimed,
                max_time=max_time,
                begin=begin,
                enough=lambda _: run.rounds[-1].last,
            )
        except ArmError as error:
            if not run.rounds:
                raise
            number = sum(r.n for r in run.records if r.arm.name == error.arm) + error.draw + 1
            run.stopped = flag("arm_failed", draw=number, error=error)
        else:
            if ended.why == "interrupted":
                run.stopped = flag("interrupted")
            elif ended.why == "max_time":
                run.stopped = flag("out_of_time", limit=max_time)
    with held_back():  # all draws are made
        tree = combination_tree(run, cost=cost)
        flags = combination_flags(run, tree, budget)
        flags += list(getattr(bandit.rewards, "flags", ()))
    if pilot is not None and pilot.last:
        flags.append(flag("pilot_over_budget", max_cost=budget.total, spent=pilot.cost, least=0.0))
    return Combined(tree, flags)


# --- arguments ----------------------------------------------------------------------------------


def _budget(
    arms: list[Arm],
    draws: int | None,
    max_cost: float | None,
    target_mcse: float | None,
    cost: Cost,
) -> Budget:
    """Return the budget after checking the arguments."""
    if draws is None and max_cost is None and target_mcse is None:
        raise ValueError("One of draws, max_cost and target_mcse is needed.")
    if draws is not None and max_cost is not None:
        raise ValueError(f"draws={draws!r} and max_cost={max_cost!r} exclude each other.")
    target = positive_or_none("target_mcse", target_mcse)
    if draws is not None:
        n = positive_int("draws", draws)
        if n < len(arms):
            raise ValueError(
                f"draws={n} does not give each of {len(arms)} arms one draw; use at least {len(arms)}."
            )
        return Budget(n, "draws", target)
    total = positive_or_none("max_cost", max_cost)
    if total is None:
        return Budget(math.inf, "cost", target)
    if cost == "count":
        least = sum(a.cost or 0.0 for a in arms)
        if total < least:
            raise ValueError(
                f"max_cost={total:g} does not pay for one draw of each arm, which costs {least:g}."
            )
    return Budget(total, "cost", target)


def _policy(policy: str | Policy, arms: list[Arm], budget: Budget) -> tuple[Policy, Payoff | None]:
    """Return a fresh policy that fits the arms and its payoff, None if it receives values instead."""
    scale = arms[0].scale
    if isinstance(policy, Policy):
        _check_made_policy(policy, scale, len(arms))
        bandit = policy.copy()
    elif policy == "ucbcv" and scale == "log":
        raise _wrong_rewards("ucbcv", scale, "none of its own")
    else:
        bandit = make_policy(policy, len(arms), **_settings(policy, arms))
    if bandit.uses_costs:
        return bandit, None
    equal = all(a.cost in (None, 1.0) for a in arms) and budget.unit == "draws"
    return bandit, "squared" if equal else "paired"


def _check_made_policy(policy: Policy, scale: str, n_arms: int) -> None:
    if policy.asked:
        raise ValueError(f"policy has been used before ({policy.asked} pulls); pass a fresh one.")
    if n_arms != policy.n_arms:
        raise ValueError(f"policy is of {policy.n_arms} arms, there are {n_arms}.")
    if isinstance(policy, LCB):
        if policy.values != scale:
            raise ValueError(
                f"policy is for values on the {policy.values} scale, the arms return {scale} ones."
            )
    elif (scale == "log") != isinstance(policy.rewards, LogLoss):
        raise _wrong_rewards(policy.name, scale, type(policy.rewards).__name__)


def _wrong_rewards(name: str, scale: str, given: str) -> ValueError:
    return ValueError(
        f"policy {name!r} is paid on the {scale} scale of the arms and takes rewards by {given}; on the log "
        "scale, and only there, use a policy made with rewards=LogLoss()."
    )


def _settings(policy: str, arms: list[Arm]) -> dict[str, Any]:
    """Return arguments of a policy that depend on the problem."""
    if policy == "lcb":
        return {"values": arms[0].scale}
    if policy == "ucbcv":
        return _controls(arms)
    return {"rewards": LogLoss() if arms[0].scale == "log" else RunningRange()}


def _controls(arms: list[Arm]) -> dict[str, Any]:
    """Return the number and the means of the controls; the number must be the same for each arm."""
    means = [a.known_means for a in arms]
    sizes = {m.size for m in means}
    if len(sizes) > 1:
        raise ValueError(f"policy 'ucbcv' needs equally many controls of each arm, got {sizes}.")
    return {"n_controls": sizes.pop(), "control_means": np.stack(means)}


def _plan(
    arms: list[Arm],
    budget: Budget,
    group: int,
    pilot: Sequence[Sample],
) -> Plan:
    """Plan a pilot round that has been drawn, if any, a first one with some draws of each arm, and later ones."""
    each = _FIRST_DRAWS if group == 1 else 2 * group
    costs = np.array([1.0 if budget.unit == "draws" else a.cost or math.nan for a in arms])
    before = [sum(float(s.costs.sum()) for s in pilot)] if pilot else []
    total, first = budget.total - sum(before), float(each * costs.sum())
    if math.isfinite(total):
        first = min(first, max(float(costs.sum()) * group, _FIRST_SHARE * total), total)
    else:
        total = first * 2.0**40
    if budget.unit == "draws":
        return plan_rounds(int(total), max(1, int(first)), "draws")
    if total < group * costs.min():
        return Plan(tuple(before), "cost")
    return Plan((*before, *plan_rounds(total, first, "cost").sizes), "cost")


# --- drawing ------------------------------------------------------------------------------------


type _Draws = Callable[[Round, list[list[Sample]]], None]


def _draw(job: tuple[Arm, int, np.random.Generator, Cost]) -> Sample | ArmError:
    """Run one job; return an ArmError instead of raising it, because it carries the draws before it."""
    try:
        return draw(*job)
    except ArmError as error:
        return error


def _jobs(arms: list[Arm], decided: Round) -> Iterator[tuple[int, int]]:
    """Yield the arm and the number of draws of each job of a round, independently of the number of workers."""
    for k, (arm, n) in enumerate(zip(arms, decided.counts.tolist(), strict=True)):
        least = arm.draws_per_job or (256 if arm.batched else 1)
        size = min(max(least, math.ceil(n / _JOBS)), _LARGEST_JOB)
        yield from ((k, min(size, n - i)) for i in range(0, n, size))


def _rounds(
    run: Combination, draws_of: _Draws, rng: np.random.Generator, budget: Budget,
    room: Callable[[], float],
) -> Iterator[None]:  # fmt: skip
    """Make one round after the other, as large as there is room; with a target, until a last one certifies it.

    A certifying round that misses the target, because draws vary more than earlier ones showed, is followed by others.
    """
    if run.rounds:
        yield  # the pilot
    while (decided := run.next_round(rng, room())) is not None:
        _draw_round(run, draws_of, decided)
        yield
        if budget.target is None:
            continue
        counts = _certifying_counts(run, budget, room())
        if counts is not None:
            decided = run.certify(counts)
            _draw_round(run, draws_of, decided)
            decided.last = run.exhausted or not missed(run, budget.target)
            yield
        elif _all_zero(run):
            run.stopped = flag("all_zero")
            return


def _all_zero(run: Combination) -> bool:
    """Whether no arm has returned a positive value in so many draws that none is to be expected."""
    return run.scale == "log" and all(
        r.offset == -math.inf and r.n >= _ALL_ALIKE for r in run.records
    )


def _draw_round(run: Combination, draws_of: _Draws, decided: Round) -> None:
    found: list[list[Sample]] = [[] for _ in run.arms]
    try:
        draws_of(decided, found)
    except (ArmError, KeyboardInterrupt):
        run.add([join_samples(s) for s in found])
        raise
    with held_back() as pressed:
        run.record(decided, [join_samples(s) for s in found])
    if pressed:
        raise KeyboardInterrupt


def _certifying_counts(run: Combination, budget: Budget, most: float) -> np.ndarray | None:
    """Return the draws of the round that reaches the target error; None while that is too uncertain."""
    assert budget.target is not None
    variances, costs = variances_of(run.records), run.costs()
    best, price = cheapest(costs, variances)
    if not math.isfinite(price):
        return None
    # Variances have a relative error of about sqrt(2 / n), which the certifying round must allow for.
    n_best = run.records[best].n
    margin = 1.0 + 2.0 * math.sqrt(2.0 / n_best)
    wanted = max(2, math.ceil(margin * float(variances[best]) / budget.target**2))
    # If few draws suffice, exploration has used many more; a larger certifying round then costs little.
    wanted = max(wanted, math.ceil(_CERTIFYING * n_best))
    affordable = (budget.total - run.spent) / costs[best]
    unseen = run.scale == "natural" and variances[best] == 0.0 and n_best < _ALL_ALIKE
    if affordable < 1.0 or unseen or most < min(wanted, affordable) * costs[best]:
        return None
    spent = float(sum(r.n * c for r, c in zip(run.records, costs, strict=True)))
    enough = n_best >= _EXPLORED_DRAWS and spent >= _EXPLORED_SHARE * wanted * costs[best]
    if not enough and affordable * costs[best] > spent:
        return None
    counts = np.zeros(len(run.arms), np.int64)
    counts[best] = min(wanted, affordable)
    return counts
