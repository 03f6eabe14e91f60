"""Combine unbiased estimators of one quantity, and learn while drawing which to draw from."""

from __future__ import annotations

import math
import warnings

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_int
from amc_pymc.bandits import LCB, LogLoss, Policy, RunningRange, make_policy
from amc_pymc.combination import (
    Arm,
    ArmError,
    Combination,
    Cost,
    Round,
    Sample,
    as_arms,
    draw,
    join_samples,
    plan_rounds,
)
from amc_pymc.combination.payoffs import PAYOFFS, Payoff, draws_per_reward
from amc_pymc.execution import map_jobs
from amc_pymc.inference.combination_results import History, combination_tree
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.rng import RandomSeed, spawn_generators

__all__ = ["Weights", "check_choices", "combine_estimators"]

Weights = Literal["predictable", "inverse_variance", "uniform"]

#: Draws of each arm in the first round, where the budget allows: variances need some.
_FIRST_DRAWS = 3
#: At most this share of the budget goes into the first round.
_FIRST_SHARE = 0.2
#: With a target error: rounds explore until they have cost this share of the certification round,
#: and until the arm chosen for it has been drawn this often.
_EXPLORED_SHARE, _EXPLORED_DRAWS = 0.25, 30
#: Size of the certification round, at least, in draws of the best arm so far.
_CERTIFYING = 0.5
#: Draws without a positive one after which no target is reached any more.
_ALL_ZERO = 10_000
#: Draws that one job makes at most, and the number of jobs that a round of one arm is cut into.
_LARGEST_JOB, _JOBS = 65_536, 16


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
        ``unbiased`` says in words what holds, ``stopped`` why it ended early, if it did.

    Raises
    ------
    ValueError, TypeError
        Before any draw, for arguments that cannot be used.
    ArmError
        If an estimator fails before the first round is complete. Later, what there is is returned with
        a warning that names the arm and the draw. An estimator may raise :class:`FailedPull` for a draw
        that failed independently of its value; it is counted and left out.

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
    budget = _budget(used, draws, max_cost, target_mcse, cost)
    _check_weights(weights)
    if rounds != "doubling":
        rounds = positive_int("rounds", rounds)
    bandit, paid = _policy(policy, used, payoff, budget)
    group = 1 if paid is None else draws_per_reward(paid)
    plan = _plan(used, budget, group, rounds)
    policy_rng, draw_rng = spawn_generators(random_seed, 2)
    run = Combination(used, bandit, plan, paid)
    history = History(run)
    total = None if budget.target is not None else math.ceil(budget.total)
    with progress("Combining estimators", total, enabled=progressbar) as bar:
        draws_of = _Drawing(used, cost, draw_rng, executor, bar, budget.unit)
        try:
            _run_rounds(run, history, draws_of, policy_rng, budget)
        except ArmError as error:
            if not history.complete:
                raise
            history.stopped = _describe(error, history)
            warnings.warn(
                f"{history.stopped} What was drawn before is returned.", UserWarning, stacklevel=2
            )
        except KeyboardInterrupt:
            if not history.complete:
                raise
            history.stopped = "Interrupted by the user."
    return combination_tree(
        history, weights=weights, policy=bandit, target=budget.target, cost=cost
    )


# --- arguments ----------------------------------------------------------------------------------


class _Budget(NamedTuple):
    total: float
    unit: Literal["draws", "cost"]
    target: float | None


def _budget(arms: list[Arm], draws, max_cost, target_mcse, cost) -> _Budget:
    _check_cost(cost)
    if draws is None and max_cost is None and target_mcse is None:
        raise ValueError("One of draws, max_cost and target_mcse is needed.")
    if draws is not None and max_cost is not None:
        raise ValueError(f"draws={draws!r} and max_cost={max_cost!r} exclude each other.")
    target = None if target_mcse is None else _positive("target_mcse", target_mcse)
    if draws is not None:
        n = positive_int("draws", draws)
        if n < len(arms):
            raise ValueError(
                f"draws={n} does not give each of {len(arms)} arms one draw; use at least {len(arms)}."
            )
        return _Budget(n, "draws", target)
    if max_cost is None:
        return _Budget(math.inf, "cost", target)
    total = _positive("max_cost", max_cost)
    if cost == "count":
        least = sum(1.0 if a.cost is None else a.cost for a in arms)
        if total < least:
            raise ValueError(
                f"max_cost={total:g} does not pay for one draw of each arm, which costs {least:g}."
            )
    return _Budget(total, "cost", target)


def check_choices(policy, cost, weights, *, scale: Literal["natural", "log"]) -> None:
    """Raise what :func:`combine_estimators` would of a policy, cost and weights, whatever the arms."""
    _check_cost(cost)
    _check_weights(weights)
    n_arms = policy.n_arms if isinstance(policy, Policy) else 2
    arms = [Arm(f"arm_{i}", math.exp, scale=scale) for i in range(n_arms)]
    _policy(policy, arms, "auto", _Budget(math.inf, "cost", None))


def _check_cost(cost) -> None:
    if not (callable(cost) or (isinstance(cost, str) and cost in ("count", "cpu"))):
        raise ValueError(f"cost must be 'count', 'cpu' or a callable, got {cost!r}.")


def _check_weights(weights) -> None:
    if weights not in get_args(Weights):
        raise ValueError(f"weights must be one of {', '.join(get_args(Weights))}, got {weights!r}.")


def _positive(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return float(value)


def _policy(policy, arms: list[Arm], payoff, budget: _Budget) -> tuple[Policy, Payoff | None]:
    """A fresh policy and what it is paid, None if it is told values."""
    if payoff not in ("auto", *PAYOFFS):
        raise ValueError(f"payoff must be one of auto, {', '.join(PAYOFFS)}, got {payoff!r}.")
    scale = arms[0].scale
    if isinstance(policy, Policy):
        if policy.asked:
            raise ValueError(
                f"policy has been used before ({policy.asked} pulls); pass a fresh one."
            )
        bandit = make_policy(policy, len(arms)).copy()
    else:
        bandit = make_policy(policy, len(arms), **_settings(policy, arms, budget))
    if isinstance(bandit, LCB):
        if bandit.values != scale:
            raise ValueError(
                f"policy is for values on the {bandit.values} scale, the arms return {scale} ones."
            )
        return bandit, None
    if (scale == "log") != isinstance(bandit.rewards, LogLoss):
        raise ValueError(
            f"policy {bandit.name!r} is paid on the {scale} scale of the arms and takes rewards by "
            f"{type(bandit.rewards).__name__}; on the log scale, and only there, use a policy made with "
            "rewards=LogLoss()."
        )
    if payoff == "auto":
        equal = all(a.cost in (None, 1.0) for a in arms) and budget.unit == "draws"
        payoff = "squared" if equal else "paired"
    return bandit, payoff


def _settings(policy, arms: list[Arm], budget: _Budget) -> dict[str, Any]:
    """Arguments that a policy known by its name takes from the problem."""
    name = policy if isinstance(policy, str) else getattr(policy, "name", "")
    scale = arms[0].scale
    if name == "lcb":
        return {"values": scale}
    settings: dict[str, Any] = {}
    if name == "robust":
        raise ValueError(
            "policy 'robust' needs a bound on moments of its rewards: pass "
            "amc_pymc.bandits.RobustUCB(n_arms, moment_bound=...)."
        )
    if name == "ucbcv":
        sizes = {0 if a.control_means is None else a.control_means.size for a in arms}
        if len(sizes) > 1:
            raise ValueError(
                f"policy 'ucbcv' needs equally many controls of each arm, got {sizes}."
            )
        settings["n_controls"] = sizes.pop()
        if settings["n_controls"]:
            settings["control_means"] = np.stack([a.control_means for a in arms])  # type: ignore[misc]
    if name == "eucbv":
        if not math.isfinite(budget.total):
            raise ValueError("policy 'eucbv' needs to know the number of draws: pass draws.")
        settings["horizon"] = max(len(arms), int(budget.total))
    if name == "ucbcv":
        return settings
    settings["rewards"] = LogLoss() if scale == "log" else RunningRange()
    return settings


def _plan(arms: list[Arm], budget: _Budget, group: int, rounds):
    """A first round that draws some of each arm, then the others."""
    each = _FIRST_DRAWS if group == 1 else 2 * group
    costs = np.array([a.cost or 1.0 for a in arms]) if budget.unit == "cost" else np.ones(len(arms))
    first = float(each * costs.sum())
    if math.isfinite(budget.total):
        first = min(first, max(float(costs.sum()) * group, _FIRST_SHARE * budget.total))
        first = min(first, budget.total)
        total = budget.total
    else:
        total = first * 2.0**40
    if budget.unit == "draws":
        return plan_rounds(int(total), max(1, int(first)), "draws", rounds)
    return plan_rounds(total, first, "cost", rounds)


# --- drawing ------------------------------------------------------------------------------------


class _Drawing:
    """Makes the draws of rounds, here or in an executor."""

    def __init__(self, arms, cost, rng, executor, bar: ProgressReport, unit):
        self._arms, self._cost, self._rng, self._executor = arms, cost, rng, executor
        self._bar, self._unit = bar, unit

    def __call__(self, decided: Round, found: list[list[Sample]]) -> None:
        """Draw what was decided; append to `found`, a list per arm, as results come in."""
        jobs = [
            (k, size)
            for k, arm in enumerate(self._arms)
            for size in _job_sizes(int(decided.counts[k]), arm)
        ]
        rngs = spawn_generators(self._rng, len(jobs))
        packed = [(self._arms[k], n, g, self._cost) for (k, n), g in zip(jobs, rngs, strict=True)]
        results = map_jobs(_draw, packed, self._executor)
        for (k, n), sample in zip(jobs, results, strict=True):
            if isinstance(sample, ArmError):
                if sample.partial is not None:
                    found[k].append(sample.partial)
                raise sample
            found[k].append(sample)
            self._bar.advance(n if self._unit == "draws" else round(float(sample.costs.sum())))


def _draw(job: tuple[Arm, int, np.random.Generator, Cost]) -> Sample | ArmError:
    """One job; an error of the arm is a result, so that what preceded it survives the journey."""
    try:
        return draw(*job)
    except ArmError as error:
        return error


def _job_sizes(n: int, arm: Arm) -> list[int]:
    """Cut n draws into jobs, the same however many workers there are."""
    if n == 0:
        return []
    least = arm.draws_per_job or (256 if arm.batched else 1)
    size = min(max(least, math.ceil(n / _JOBS)), _LARGEST_JOB)
    return [min(size, n - i) for i in range(0, n, size)]


def _run_rounds(run: Combination, history: History, drawing: _Drawing, rng, budget) -> None:
    """All rounds; with a target until a last one can certify it."""
    while (decided := run.next_round(rng)) is not None:
        _draw_round(run, history, drawing, decided)
        if budget.target is not None:
            counts = _certifying_counts(run, budget)
            if counts is not None:
                _draw_round(run, history, drawing, run.certify(counts))
                history.certified = True
                return
            if _all_zero(run):
                history.stopped = "All draws so far are zero."
                return


def _all_zero(run: Combination) -> bool:
    """Whether no arm has shown a positive value in so many draws that none is to be expected."""
    return run.scale == "log" and all(
        r.offset == -math.inf and r.n + r.failed >= _ALL_ZERO for r in run.records
    )


def _draw_round(run: Combination, history: History, drawing: _Drawing, decided: Round) -> None:
    found: list[list[Sample]] = [[] for _ in run.arms]
    try:
        drawing(decided, found)
    except (ArmError, KeyboardInterrupt):
        history.add_incomplete([join_samples(s) for s in found], decided.number)
        raise
    samples = [join_samples(s) for s in found]
    run.record(decided, samples)
    history.add(decided, samples)
    if (error := run.hopeless()) is not None:
        raise error


def _certifying_counts(run: Combination, budget: _Budget) -> np.ndarray | None:
    """Draws of the round that reaches the target error, once that is known well enough."""
    assert budget.target is not None
    variances = run.variances()
    costs = np.array([r.cost if budget.unit == "cost" else 1.0 for r in run.records])
    price = np.where(np.isfinite(variances), costs * variances, np.inf)
    best = int(np.argmin(price))
    if not math.isfinite(price[best]):
        return None
    # Variances are known to about sqrt(2 / n); the certifying round must not fall short by that.
    n_best = run.records[best].n
    margin = 1.0 + 2.0 * math.sqrt(2.0 / n_best)
    wanted = max(2, math.ceil(margin * float(variances[best]) / budget.target**2))
    # Where few draws would do, those that told so outnumber them: some more make it worth the trouble.
    wanted = max(wanted, math.ceil(_CERTIFYING * n_best))
    left = budget.total - (
        run.spent if budget.unit == "cost" else sum(r.n + r.failed for r in run.records)
    )
    affordable = left / costs[best]
    if affordable < 1.0:
        return None
    spent = float(sum((r.n + r.failed) * c for r, c in zip(run.records, costs, strict=True)))
    enough = n_best >= _EXPLORED_DRAWS and spent >= _EXPLORED_SHARE * wanted * costs[best]
    if not enough and affordable * costs[best] > spent:
        return None
    counts = np.zeros(len(run.arms), np.int64)
    counts[best] = min(wanted, affordable)
    return counts


def _describe(error: ArmError, history: History) -> str:
    """Say which draw of which arm failed."""
    return f"Draw {history.drawn_of(error.arm) + 1} of an estimator failed: {error}."
