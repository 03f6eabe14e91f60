"""Rounds of draws, allocated by a bandit and combined without bias.

The draws of a round are split into two folds. The numbers of draws depend on earlier rounds only. The arm
weights of a fold, the coefficients of its control variates and its weight in the estimate depend on earlier
rounds and on the other fold of the same round. Conditional on these, each fold's weighted mean

    sum_k v_k mean_k,    sum_k v_k = 1,

is unbiased for the common mean of the arms. So is the sum of folds with weights lambda that sum to one,
for any policy.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from amc_pymc.bandits.arms import Arm, Sample
from amc_pymc.bandits.contract import Policy, Pulls
from amc_pymc.bandits.moments import ArmRecord
from amc_pymc.bandits.payoffs import PAYOFFS, Payoff, rewards
from amc_pymc.flags import Flag

Weights = Literal["predictable", "inverse_variance", "uniform"]
#: Combined estimates.
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


@dataclass(frozen=True)
class Estimate:
    """A combined estimate and its standard error, both divided by exp(offset)."""

    mean: float
    mcse: float
    offset: float


#: Draws from which a variance counts as known when a round is weighted against later ones.
_KNOWN_DRAWS = 6
#: Draws with which an arm of varying values can tell whether another of equal values is right.
_SETTLED_DRAWS = 30


@dataclass(frozen=True)
class Plan:
    """Budgets of rounds.

    Attributes
    ----------
    sizes : tuple of float (R,)
        Budget of each round, in `unit`.
    unit : {"draws", "cost"}
    """

    sizes: tuple[float, ...]
    unit: Literal["draws", "cost"]


def plan_rounds(total: float, first: float, unit: Literal["draws", "cost"]) -> Plan:
    """Plan a first round, then rounds that double; the last one takes the rest, at least a third of the budget.

    Parameters
    ----------
    total : float
        Whole budget.
    first : float
        Budget of the first round, at most `total`.
    unit : {"draws", "cost"}

    Examples
    --------
    >>> from amc_pymc.bandits.combination import plan_rounds
    >>> plan_rounds(100, 12, "draws").sizes
    (12, 24, 64)
    """
    sizes, left, size = [first], total - first, 2 * first
    while left > 0:
        if left < 2 * size:
            size = left
        sizes.append(size)
        left -= size
        size *= 2
    return Plan(tuple(sizes), unit)


@dataclass(frozen=True)
class Fold:
    """Part of a round's draws, with weights that do not depend on their values.

    Attributes
    ----------
    weight : float
        Weight lambda of the fold in the estimate.
    arm_weights : array (K,)
        Weights v of the arms, zero without draws; they sum to one.
    means : array (K,)
        Means of the arms over exp(offset), adjusted by their controls; zero without draws.
    drawn : array of int (K,)
    offset : float
    """

    weight: float
    arm_weights: np.ndarray
    means: np.ndarray
    drawn: np.ndarray
    offset: float


@dataclass
class Round:
    """One round: decisions made before it, and its results.

    Attributes
    ----------
    pulls : Pulls
        Decisions of the policy; each makes one or more draws.
    counts : array of int (K,)
        Draws of each arm.
    last : bool
        Whether the round takes all the remaining weight.
    folds : list of Fold
    cost : float
    planned : float
        Cost that was expected.
    alone : bool
        Whether the round takes the weight of earlier ones once it is complete.
    """

    pulls: Pulls
    counts: np.ndarray
    last: bool
    folds: list[Fold] = field(default_factory=list)
    cost: float = 0.0
    planned: float = 0.0
    alone: bool = False

    @property
    def weight(self) -> float:
        """Weight of the round in the estimate."""
        return sum(f.weight for f in self.folds)

    @property
    def arm_weights(self) -> np.ndarray:
        """Shares (K,) of the arms in the round's weight."""
        total = self.weight or 1.0
        return sum(
            (f.weight / total * f.arm_weights for f in self.folds), np.zeros(self.counts.size)
        )


class Combination:
    """State of a combination of arms: decisions and results so far.

    Call :meth:`next_round`, make its draws and pass them to :meth:`record`, until there is no next
    round.

    Parameters
    ----------
    arms : list of Arm
    policy : Policy
        Unused policy for K arms.
    plan : Plan
    payoff : {"squared", "paired", None}
        Rewards reported to the policy; None reports values and costs unchanged, to policies that use costs.

    Raises
    ------
    ValueError
        If a policy that uses costs is given with a payoff, or another without.
    """

    def __init__(self, arms: list[Arm], policy: Policy, plan: Plan, payoff: Payoff | None):
        if policy.uses_costs != (payoff is None):
            takes = "values and costs, not" if policy.uses_costs else "rewards, not values with"
            raise ValueError(f"policy {policy.name!r} is told {takes} payoff={payoff!r}.")
        self.arms, self.policy, self.plan = arms, policy, plan
        self.records = [ArmRecord(a) for a in arms]
        self.rounds: list[Round] = []
        self.samples: list[tuple[int, int, Sample]] = []  # with the numbers of arm and round
        self.running: list[list[Estimate]] = []  # all estimates after each round
        self.stopped: Flag | None = None  # why the run ended early, if it did
        self.scale = arms[0].scale
        self._mass = 1.0  # weight not yet assigned to rounds
        self._budget_left = float(sum(plan.sizes))
        self._payoff: Payoff | None = payoff
        self._group = 1 if payoff is None else PAYOFFS[payoff]

    @property
    def spent(self) -> float:
        """Number or cost of all draws so far, in the unit of the plan."""
        if self.plan.unit == "draws":
            return sum(r.n for r in self.records)
        return float(sum(r.cost for r in self.rounds))

    def next_round(self, rng: np.random.Generator, most: float = math.inf) -> Round | None:
        """Return the next round, decided from earlier ones, of at most some size; None after the last.

        Rounds that are smaller than planned are followed by others until the budget is spent.
        """
        number, sizes = len(self.rounds), self.plan.sizes
        if not sizes or (number and self.rounds[-1].last):
            return None
        last = number >= len(sizes) - 1
        size = self._budget_left if last else min(sizes[number], self._budget_left)
        last = last and size <= most
        pulls, counts = self._allocate(min(size, most), rng)
        planned = self._planned_cost(counts)
        self._budget_left -= planned
        return Round(pulls, counts, last or self.exhausted, planned=planned)

    def certify(self, counts: np.ndarray) -> Round:
        """Return a last round of given size that will take all the weight of earlier rounds."""
        planned = self._planned_cost(counts)
        self._budget_left -= planned
        return Round(Pulls([], [], []), counts, last=True, planned=planned, alone=True)

    def record(self, decided: Round, samples: list[Sample]) -> None:
        """Record the draws of a round: one sample per arm, which may be empty."""
        self._tell(decided.pulls, samples)
        if decided.alone:
            for done in self.rounds:
                done.folds = [replace(f, weight=0.0) for f in done.folds]
            self._mass = 1.0
        decided.folds = self._folds(decided, samples)
        self._mass -= decided.weight
        self.add(samples)
        decided.cost = float(sum(s.costs.sum() for s in samples))
        if self.plan.unit == "cost":
            self._budget_left += decided.planned - decided.cost
        self.rounds.append(decided)
        self.running.append([self.estimate(w) for w in WEIGHTS])

    def add(self, samples: list[Sample]) -> None:
        """Add draws of the next round; if it is not complete, they enter all estimates but the predictable one."""
        for k, sample in enumerate(samples):
            self.records[k].add(sample)
            self.samples.append((k, len(self.rounds), sample))

    # decisions

    def costs(self) -> np.ndarray:
        """Return the mean cost (K,) of a draw of each arm, or that expected; the largest other one if unknown."""
        if self.plan.unit == "draws":
            return np.ones(len(self.arms))
        costs = np.array([r.cost for r in self.records])
        unknown = np.isnan(costs)
        costs[unknown] = 1.0 if unknown.all() else costs[~unknown].max(initial=0.0)
        return costs

    def _planned_cost(self, counts: np.ndarray) -> float:
        return float(counts @ self.costs())

    @property
    def exhausted(self) -> bool:
        """Whether the remaining budget is too small for another decision."""
        return self._budget_left < self._group * float(self.costs().min())

    def _unsettled(self) -> np.ndarray | None:
        """Return the arms to choose among because others have equal values; None for all arms.

        Equal values look exact but may hide rare ones. Arms whose values vary can tell once they have
        enough draws.
        """
        if self.scale == "log" or not any(r.constant for r in self.records):
            return None
        few = [1 < r.n < _SETTLED_DRAWS and not r.constant for r in self.records]
        return np.flatnonzero(few) if any(few) else None

    def _allocate(self, size: float, rng: np.random.Generator) -> tuple[Pulls, np.ndarray]:
        """Return decisions of the policy that cost at most `size`, at least one, and draws per arm."""
        costs, n_arms, among = self.costs() * self._group, len(self.arms), self._unsettled()
        if self.plan.unit == "draws":
            size = max(size, 1.0)
            pulls = self.policy.ask(rng, math.ceil(size / self._group), among=among)
            counts = pulls.counts(n_arms) * self._group
            counts[pulls.arms[-1]] -= max(0, int(counts.sum() - size))
            return pulls, counts
        asked: list[Pulls] = []
        left = size * (1.0 + 1e-12)
        typical, least = float(np.median(costs)), float(costs.min())
        while True:
            n = max(1, math.ceil(left / typical))
            pulls = self.policy.ask(rng, n, among=among)
            spent = np.cumsum(costs[pulls.arms])
            fits = int(np.searchsorted(spent, left, side="right"))
            if fits == 0 and not asked:
                affordable = np.flatnonzero(costs <= left)
                if affordable.size:
                    self.policy.drop(pulls)
                    pulls = self.policy.ask(rng, 1, among=affordable)
                    spent = costs[pulls.arms]
                fits = 1
            self.policy.drop(pulls[fits:])
            if fits:
                asked.append(pulls[:fits])
                left -= spent[fits - 1]
                typical = spent[fits - 1] / fits
            if fits < len(pulls) or left < least:
                break
        pulls = Pulls.join(asked)
        return pulls, pulls.counts(n_arms) * self._group

    # results

    def _tell(self, pulls: Pulls, samples: list[Sample]) -> None:
        """Report the draws of a round to the policy, in the order of its decisions."""
        told: list[tuple[Pulls, np.ndarray, np.ndarray, np.ndarray | None]] = []
        for k, sample in enumerate(samples):
            mine = pulls[pulls.arms == k]
            if len(mine) == 0:
                continue
            whole = min(sample.values.size // self._group, len(mine))
            shape, cut = (whole, self._group), whole * self._group
            x, cost = (a[:cut].reshape(shape).T for a in (sample.values, sample.costs))
            value = x[0] if self._payoff is None else rewards(x, cost, self._payoff, self.scale)
            cost = cost.sum(axis=0)
            controls = sample.controls
            if controls is not None:
                q = controls.shape[1]
                controls = controls[:cut].reshape(*shape, q).mean(axis=1)
            if whole < len(mine):
                self.policy.drop(mine[whole:])
                mine = mine[:whole]
            told.append((mine, value, cost, controls))
        if any(c is not None for _, _, _, c in told):
            # Only some arms may have controls, so each is told on its own.
            for mine, value, cost, controls in told:
                self.policy.tell(mine, value, cost, controls=controls)
        elif told:
            every = Pulls.join([p for p, _, _, _ in told])
            order = np.argsort(every.numbers)
            value, cost = (np.concatenate([t[i] for t in told])[order] for i in (1, 2))
            self.policy.tell(every[order], value, cost)

    def _folds(self, decided: Round, samples: list[Sample]) -> list[Fold]:
        """Split a round into folds, and weight each one by records without it."""
        halves = [[_half(s, (j + k) % 2) for k, s in enumerate(samples)] for j in range(2)]
        folds = []
        for mine, rest in (halves, halves[::-1]):
            drawn = np.array([s.values.size for s in mine])
            if drawn.any():
                known = [_with(r, s) for r, s in zip(self.records, rest, strict=True)]
                folds.append((mine, known, self._planned_cost(drawn)))
        whole = sum(size for _, _, size in folds)
        return [self._fold(decided, mine, known, size / whole) for mine, known, size in folds]

    def _fold(
        self, decided: Round, mine: Sequence[Sample], known: list[ArmRecord], portion: float
    ) -> Fold:
        """Return a fold, a portion of its round, weighted by records that do not contain it."""
        drawn = np.array([s.values.size for s in mine])
        careful = variances_of(known, ArmRecord.careful_variance)
        top = max(s.values.max(initial=-math.inf) for s in mine)
        offset = float(top) if self.scale == "log" and math.isfinite(top) else 0.0
        means = np.array([_fold_mean(s, r, offset) for s, r in zip(mine, known, strict=True)])
        share = 1.0 if decided.last else self._share(decided, drawn / portion, known, careful)
        weight = self._mass * portion * share
        return Fold(weight, _arm_weights(drawn, careful), means, drawn, offset)

    def _share(
        self, decided: Round, drawn: np.ndarray, known: list[ArmRecord], careful: np.ndarray
    ) -> float:
        """Return the share of the round in the information of this and all later rounds."""
        now, later = self._planned_cost(decided.counts), self._budget_left
        if sum(r.n > 0 or n > 0 for r, n in zip(self.records, drawn, strict=True)) > 1:
            if not any(len(r.pulls) for r in self.rounds):
                return 0.0
            likely, costs = variances_of(known), self.costs()
            best, price = cheapest(costs, likely)
            if not math.isfinite(price):
                return 0.0
            # A variance used both now and later cancels; one guessed from very few draws must not.
            ahead = careful[best] if known[best].n >= _KNOWN_DRAWS else likely[best]
            here = drawn > 0
            if ahead > 0.0 and careful[here].all():
                now = float((drawn[here] / careful[here]).sum())
                later /= costs[best] * ahead
        return now / (now + later) if now > 0.0 else 0.0

    # estimates

    def estimate(self, weights: Weights) -> Estimate:
        """Return the combined estimate of the common mean so far."""
        if weights == "predictable":
            return self._predictable()
        return combine_arms(self.records, weights)

    def _predictable(self) -> Estimate:
        every = [f for r in self.rounds for f in r.folds]
        done = [f for f in every if f.weight > 0.0]
        if not done:  # the first round of several arms has no weight beside later ones
            done = [replace(f, weight=1.0) for f in every]
        if not done:
            return Estimate(math.nan, math.nan, 0.0)
        offset = max(f.offset for f in done) if self.scale == "log" else 0.0
        unit = self._unit_variances()
        total = sum(f.weight for f in done)
        mean = variance = 0.0
        for f in done:
            share, here = f.weight / total, f.arm_weights > 0.0
            v = f.arm_weights[here]
            mean += share * float(v @ f.means[here]) * math.exp(f.offset - offset)
            variance += share**2 * float(v**2 @ (unit[here] / f.drawn[here]))
        mcse = math.sqrt(variance) * (abs(mean) if self.scale == "log" else 1.0)
        return Estimate(mean, mcse, offset)

    def _unit_variances(self) -> np.ndarray:
        found = variances_of(self.records, ArmRecord.reported_variance)
        known = found[np.isfinite(found)]
        return np.where(np.isfinite(found), found, known.max() if known.size else np.nan)


def variances_of(
    records: list[ArmRecord],
    kind: Callable[[ArmRecord, float], float] = ArmRecord.cautious_variance,
) -> np.ndarray:
    """Return variances (K,) of one kind of all arms, nan if unknown; by default those used for planning."""
    common = common_mean(records)
    return np.array([kind(r, common) for r in records])


def cheapest(costs: np.ndarray, variances: np.ndarray) -> tuple[int, float]:
    """Return the arm with the smallest product of cost and variance, and that product; inf if all are unknown."""
    price = np.where(np.isfinite(variances), costs * variances, np.inf)
    best = int(np.argmin(price))
    return best, float(price[best])


def common_mean(records: list[ArmRecord]) -> float:
    """Return a first estimate of the common mean, on the natural scale."""
    if records[0].log:
        return 0.0
    several = [r for r in records if r.n > 1]
    varying = [r for r in several if not r.constant] or several
    known = [(r.n, r.centre(), r.variance()) for r in varying]
    if not known:
        return 0.0
    common = sum(n * mean for n, mean, _ in known) / sum(n for n, _, _ in known)
    # Two iterations: variances about the plain mean of all draws, then about the mean they give.
    for _ in range(2):
        spread = [variance + (mean - common) ** 2 for _, mean, variance in known]
        if min(spread) <= 0.0:
            break
        w = [n / v for (n, _, _), v in zip(known, spread, strict=True)]
        common = sum(wk * mean for wk, (_, mean, _) in zip(w, known, strict=True)) / sum(w)
    return common


def _arm_weights(counts: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return inverse-variance weights (K,) of arms, or weights by draws if no variance is known."""
    drawn = counts > 0
    exact = drawn & (variances <= 0.0)
    if exact.any():
        return np.where(exact, counts, 0) / counts[exact].sum()
    w = np.zeros(counts.size)
    w[drawn] = counts[drawn] / variances[drawn]
    w[~np.isfinite(w)] = 0.0
    return w / w.sum() if w.sum() > 0.0 else counts / counts.sum()


def _half(sample: Sample, first: int) -> Sample:
    """Return every other draw."""
    controls = None if sample.controls is None else sample.controls[first::2]
    return Sample(sample.values[first::2], sample.costs[first::2], controls)


def _with(record: ArmRecord, sample: Sample) -> ArmRecord:
    """Return a record extended by a sample."""
    out = record.copy()
    out.add(sample)
    return out


def _fold_mean(sample: Sample, known: ArmRecord, offset: float) -> float:
    """Return the mean over exp(offset), adjusted by controls with the coefficients of `known`; 0 without draws."""
    x = sample.values
    if x.size == 0:
        return 0.0
    mean = float(np.exp(x - offset).mean() if known.log else x.mean())
    beta = known.coefficients()
    if beta.any():
        assert sample.controls is not None
        shift = sample.controls.mean(axis=0) - known.arm.known_means
        mean -= math.exp(known.offset - offset) * float(beta @ shift)
    return mean


def combine_arms(
    records: list[ArmRecord], weights: Literal["inverse_variance", "uniform"]
) -> Estimate:
    """Combine the means of arms over all their draws.

    ``inverse_variance`` weights arms by draws over variance, estimated from the same draws. It is the most
    precise, but slightly biased if values are skewed. ``uniform`` is the plain average of all draws.
    """
    used = [r for r in records if r.n > 0]
    if not used:
        return Estimate(math.nan, math.nan, 0.0)
    log = used[0].log
    offset = max(r.offset for r in used) if log else 0.0
    if not math.isfinite(offset):
        return Estimate(0.0, math.nan, 0.0)
    n = np.array([float(r.n) for r in used])
    means = np.array(
        [r.centre() * math.exp(r.offset - offset) if log else r.centre() for r in used]
    )
    unit = variances_of(used, ArmRecord.reported_variance)
    if weights == "uniform":
        v = n / n.sum()
    else:
        v = _arm_weights(n, variances_of(used))
    mean = float(v @ means)
    known = v > 0.0
    variance = float(v[known] ** 2 @ (unit[known] / n[known]))
    return Estimate(mean, math.sqrt(variance) * (abs(mean) if log else 1.0), offset)
