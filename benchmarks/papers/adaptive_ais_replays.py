"""Policies on arms that draw from a bank; see ``adaptive_ais.py``."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from amc_pymc.bandits import KLUCB, LCB, UCB1, UCBV, KnownRange, Policy, ThompsonSampling
from amc_pymc.bandits.payoffs import rewards
from benchmarks.harness.intervals import Ratio, bootstrap
from benchmarks.harness.statements import batches
from benchmarks.papers.adaptive_ais_bank import KINDS, Bank
from benchmarks.papers.bandit_runs import EUCBV, run

#: Runs that are replayed together.
_TOGETHER = 50
#: First draws of an arm in a run, all different: two of the same would look like an exact arm.
_DIFFERENT = 30

PAIRED: dict[str, Callable[[int, KnownRange, int], Policy]] = {
    "UCB1": lambda k, scale, n: UCB1(k, rewards=scale),
    "UCB-V": lambda k, scale, n: UCBV(k, rewards=scale),
    "KL-UCB": lambda k, scale, n: KLUCB(k, rewards=scale),
    "TS": lambda k, scale, n: ThompsonSampling(k, rewards=scale),
    "EUCBV": lambda k, scale, n: EUCBV(k, horizon=n, rewards=scale),
}  # fmt: skip
BANDITS = (*PAIRED, "lcb")
PAPER = ("UCB1", "UCB-V", "KL-UCB", "TS")


class Law(NamedTuple):
    """What the arms of a replay give: any entry of a bank with the same probability.

    Attributes
    ----------
    values : tuple of array
        With mean one.
    costs : tuple of array
        In mean draws of the dearest arm.
    unit : float
        That, as it is.
    """

    values: tuple[np.ndarray, ...]
    costs: tuple[np.ndarray, ...]
    unit: float

    @classmethod
    def of(cls, bank: Bank, kind: str) -> Law:
        """The law of a bank with one kind of cost."""
        weights = [np.exp(d.log_weights - d.log_weights.max()) for d in bank.draws]
        unit = max(float(d.costs(kind).mean()) for d in bank.draws)
        return cls(
            tuple(w / w.mean() for w in weights),
            tuple(d.costs(kind) / unit for d in bank.draws),
            unit,
        )

    @property
    def variances(self) -> np.ndarray:
        """(K,)."""
        return np.array([x.var() for x in self.values])

    @property
    def mean_costs(self) -> np.ndarray:
        """(K,)."""
        return np.array([d.mean() for d in self.costs])

    def payoff_range(self) -> KnownRange:
        """Of the payoffs of pairs: half the largest cost times the largest squared difference."""
        low = [0.5 * d.max() * np.ptp(x) ** 2 for x, d in zip(self.values, self.costs, strict=True)]
        return KnownRange(-np.array(low), 0.0)


def choose(size: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers (n,) of the entries that a run draws: with replacement, but for the first ones."""
    out = rng.integers(0, size, n)
    first = min(n, size, _DIFFERENT)
    out[:first] = rng.permutation(size)[:first]
    return out


class Replays(NamedTuple):
    """Runs of all policies, by name.

    Attributes
    ----------
    law : Law
    times : array (J,)
    uniform, inverse : dict of array (R, J)
        Squared errors of the plain average of all draws and with inverse-variance weights.
    counts : dict of array (R, J, K)
        Draws complete by then.
    """

    law: Law
    times: np.ndarray
    uniform: dict[str, np.ndarray]
    inverse: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]

    def by_pulls(self, name: str, weights: str) -> np.ndarray:
        """Squared errors to be expected from the numbers of draws, (R, J)."""
        n, v = self.counts[name].astype(float), self.law.variances
        with np.errstate(divide="ignore", invalid="ignore"):
            return n @ v / n.sum(-1) ** 2 if weights == "uniform" else 1.0 / (n @ (1.0 / v))

    def arm_losses(self) -> np.ndarray:
        """Losses of each arm alone, by pulls, (K, J)."""
        names = arm_names(self.law)
        return np.array([self.by_pulls(name, "uniform").mean(axis=0) for name in names])


def arm_names(law: Law) -> list[str]:
    """Of the policies that draw from one arm only."""
    return [f"arm {k + 1}" for k in range(len(law.values))]


def run_lcb(log_values: np.ndarray, costs: np.ndarray, budget: float, rng) -> np.ndarray:
    """Draws of each arm (R, n, K) after each of n draws; none are made beyond the budget."""
    n_runs, n_arms, n = costs.shape
    counts = np.empty((n_runs, n, n_arms), np.int64)
    for r in range(n_runs):
        policy, pulled, spent = LCB(n_arms, values="log"), np.zeros(n_arms, np.int64), 0.0
        for t in range(n):
            if spent <= budget:
                pull = policy.ask(rng)
                at = r, pull.arm, pulled[pull.arm]
                policy.tell(pull, log_values[at], costs[at])
                pulled[pull.arm] += 1
                spent += costs[at]
            counts[r, t] = pulled
    return counts


def counts_at(counts: np.ndarray, spent: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Draws (R, J, K) complete at some times.

    Parameters
    ----------
    counts : array of int (R, M, K)
        Draws after each decision.
    spent : array (R, K, n + 1)
        Cost of the first i draws of each arm.
    times : array (J,)
    """
    n_arms = counts.shape[2]
    total = sum(np.take_along_axis(spent[:, k], counts[:, :, k], axis=1) for k in range(n_arms))
    done = np.array([np.searchsorted(of, times, side="right") for of in total])
    with_none = np.concatenate([np.zeros_like(counts[:, :1]), counts], axis=1)
    return np.take_along_axis(with_none, done[:, :, None], axis=1)


def squared_errors(
    counts: np.ndarray, sums: np.ndarray, squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors (R, J) of the plain average and with inverse-variance weights.

    Parameters
    ----------
    counts : array of int (R, J, K)
    sums, squares : array (R, K, n + 1)
        Of the first i values less one, which is their mean. Before any draw the estimate is zero.
    """
    at = np.moveaxis(counts, 2, 1)
    s = np.moveaxis(np.take_along_axis(sums, at, axis=2), 1, 2)
    q = np.moveaxis(np.take_along_axis(squares, at, axis=2), 1, 2)
    n = counts.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        uniform = s.sum(-1) / n.sum(-1)
        variances = (q - s**2 / n) / (n - 1.0)
        w = np.where((n > 1.0) & (variances > 0.0), n / variances, 0.0)
        inverse = (w * np.where(n > 0.0, s / n, 0.0)).sum(-1) / w.sum(-1)
    uniform = np.where(n.sum(-1) > 0.0, uniform, -1.0)
    return uniform**2, np.where(w.sum(-1) > 0.0, inverse, uniform) ** 2


def replay(bank: Bank, runs: int, budget: float, rng: np.random.Generator) -> dict[str, Replays]:
    """Replay all policies with both kinds of cost, on the same draws."""
    laws = {kind: Law.of(bank, kind) for kind in KINDS}
    n_arms = len(bank.draws)
    cheapest = min(float(law.mean_costs.min()) for law in laws.values())
    dearest = max(float(law.mean_costs.min()) for law in laws.values())
    n_pairs = math.ceil(0.5 * (1.1 * budget + 2.0 * dearest) / cheapest) + 5
    times = np.geomspace(2.2 * n_arms, budget, 25)
    parts: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for size in batches(runs, _TOGETHER):
        values, chosen = [], []
        for x in laws["cpu"].values:
            chosen.append(np.stack([choose(x.size, 2 * n_pairs, rng) for _ in range(size)]))
            values.append(x[chosen[-1]])
        x = np.stack(values, axis=1)
        sums, squares = cumulated(x - 1.0), cumulated((x - 1.0) ** 2)
        for kind, law in laws.items():
            d = np.stack([c[i] for c, i in zip(law.costs, chosen, strict=True)], axis=1)
            found = _counts(law, x, d, times, rng)
            errors = {name: squared_errors(n, sums, squares) for name, n in found.items()}
            parts[kind].append({name: (*errors[name], found[name]) for name in found})
    out = {}
    for kind, law in laws.items():
        joined = [
            {name: np.concatenate([p[name][i] for p in parts[kind]]) for name in parts[kind][0]}
            for i in range(3)
        ]
        out[kind] = Replays(law, times, *joined)
    return out


def _counts(law: Law, x, d, times, rng) -> dict[str, np.ndarray]:
    """Draws (R, J, K) of all policies from values and costs (R, K, n)."""
    n_runs, n_arms, n = x.shape
    spent = cumulated(d)
    pairs = np.stack([x[:, :, 0::2], x[:, :, 1::2]]), np.stack([d[:, :, 0::2], d[:, :, 1::2]])
    payoffs = rewards(*pairs, "paired", "natural")
    scale, each = law.payoff_range(), np.arange(1, n // 2 + 1)
    found = {}
    for name, make in PAIRED.items():
        pulls = run(make(n_arms, scale, n // 2), payoffs, each, rng)
        found[name] = counts_at(2 * pulls, spent, times)
    pulls = run_lcb(np.log(x), d, times[-1], rng)
    found["lcb"] = counts_at(pulls, spent, times)
    turns = np.arange(1, min(n, math.ceil(1.2 * n_arms * times[-1])) + 1)
    in_turn = np.stack([(turns + n_arms - 1 - k) // n_arms for k in range(n_arms)], axis=-1)
    found["in turn"] = counts_at(np.broadcast_to(in_turn, (n_runs, *in_turn.shape)), spent, times)
    for k, name in enumerate(arm_names(law)):
        only = np.zeros((n_runs, n, n_arms), np.int64)
        only[:, :, k] = np.arange(1, n + 1)
        found[name] = counts_at(only, spent, times)
    return found


def cumulated(x: np.ndarray) -> np.ndarray:
    """Sums (R, K, n + 1) of the first 0, ..., n."""
    return np.pad(np.cumsum(x, axis=2), ((0, 0), (0, 0), (1, 0)))


def loss_ratio(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Ratio:
    """Mean squared error of a over that of b, geometric mean over problems, paired by runs."""

    def statistic(i: np.ndarray) -> float:
        logs = [math.log(p[i].mean() / q[i].mean()) for p, q in zip(a, b, strict=True)]
        return math.exp(sum(logs) / len(logs))

    return bootstrap(statistic, len(a[0]))
