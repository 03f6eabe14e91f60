"""The package's rounds on a bank beside fresh draws; see ``adaptive_ais.py``."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scipy.stats import ks_2samp

from amc_pymc.bandits import LogLoss, make_policy
from amc_pymc.bandits.arms import Sample, as_arms
from amc_pymc.bandits.combination import Combination, plan_rounds, run_here
from benchmarks.harness.intervals import interval
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown
from benchmarks.papers.adaptive_ais_bank import Bank, Draws, draw
from benchmarks.papers.adaptive_ais_replays import Law, choose

WEIGHTS = ("predictable", "inverse_variance", "uniform")


class BankArm:
    """An arm that draws from a law, as logarithms, for one run."""

    scale = "log"

    def __init__(self, law: Law, arm: int, cost: float):
        self.log_values, self.costs, self.cost = np.log(law.values[arm]), law.costs[arm], cost
        self.chosen = np.empty(0, np.int64)

    def sample(self, n, rng):
        """The next n entries, with their costs."""
        if self.chosen.size < n:
            more = choose(self.costs.size, n + 10_000, rng)
            self.chosen = np.concatenate([self.chosen, more])
        i, self.chosen = self.chosen[:n], self.chosen[n:]
        return self.log_values[i], self.costs[i]


def combination(bank: Bank, policy: str, budget: float) -> Combination:
    """A combination of the arms of a bank; numbers of steps are all that is known of costs before."""
    law = Law.of(bank, "counted")
    steps = np.array(bank.steps) / max(bank.steps)
    arms = as_arms(
        {f"{s}": BankArm(law, k, c) for k, (s, c) in enumerate(zip(bank.steps, steps, strict=True))}
    )
    first = min(3.0 * steps.sum(), max(steps.sum(), 0.2 * budget))
    if policy == "lcb":
        made, payoff = make_policy("lcb", len(arms), values="log"), None
    else:
        made, payoff = make_policy(policy, len(arms), rewards=LogLoss()), "paired"
        first *= 2.0
    plan = plan_rounds(budget, min(first, budget), "cost", "doubling")
    return Combination(arms, made, plan, payoff)  # type: ignore[arg-type]


class Outcome(NamedTuple):
    """What one combination came to."""

    errors: tuple[float, ...]
    counts: np.ndarray
    spent: float


def outcome(run: Combination) -> Outcome:
    """Errors by WEIGHTS, and what was drawn."""
    found = [run.estimate(w) for w in WEIGHTS]  # type: ignore[arg-type]
    errors = tuple(e.mean * math.exp(e.offset) - 1.0 for e in found)
    return Outcome(errors, sum(r.counts for r in run.rounds), run.spent)  # type: ignore[arg-type]


def live_runs(bank: Bank, runs: Sequence[Combination], rng) -> list[list[Draws]]:
    """Bring runs to their ends on fresh draws, all of a round annealed together; draws by arm."""
    law, drawn = Law.of(bank, "counted"), [[] for _ in bank.steps]
    going = list(runs)
    while going:
        decided = [(run, found) for run in going if (found := run.next_round(rng)) is not None]
        samples: list[list[Sample | None]] = [[None] * len(bank.steps) for _ in decided]
        for k, steps in enumerate(bank.steps):
            counts = [int(found.counts[k]) for _, found in decided]
            if sum(counts) == 0:
                continue
            fresh = draw(bank.problem, steps, sum(counts), rng)
            drawn[k].append(fresh)
            ends = np.cumsum(counts)
            for i, (n, end) in enumerate(zip(counts, ends, strict=True)):
                if n:
                    part = slice(end - n, end)
                    samples[i][k] = Sample(
                        fresh.log_weights[part],
                        fresh.evaluations[part] / law.unit,
                        None,
                    )
        for (run, found), of in zip(decided, samples, strict=True):
            run.record(found, of)
        going = [run for run, _ in decided]
    return drawn


def live(options, banks: Sequence[Bank]) -> Part:
    """Live runs and replays of the same plans."""
    bank = next(b for b in banks if b.problem.rows == options.live_rows)
    rng = np.random.default_rng([options.seed, 40])
    names = ("lcb", "thompson")
    budget, law = options.live_budget, Law.of(bank, "counted")
    fresh = {
        name: [combination(bank, name, budget) for _ in range(options.live_runs)] for name in names
    }
    drawn = live_runs(bank, [run for of in fresh.values() for run in of], rng)
    lines, gaps = [], []
    for name in names:
        ours = [outcome(run) for run in fresh[name]]
        theirs = [
            outcome(run_here(combination(bank, name, budget), rng))
            for _ in range(20 * options.live_runs)
        ]
        unit = budget / (law.variances * law.mean_costs).min()
        measures: dict[str, Callable[[Outcome], float]] = {
            f"draws of arm {k + 1}": (lambda o, k=k: float(o.counts[k]))
            for k in range(len(bank.steps))
        }
        measures["spent"] = lambda o: o.spent
        for j, w in enumerate(WEIGHTS):
            measures[f"loss, {w}"] = lambda o, j=j: unit * o.errors[j] ** 2
        for title, of in measures.items():
            a, b = np.array([of(o) for o in ours]), np.array([of(o) for o in theirs])
            # spreads of the replays, of which there are many
            error = math.sqrt(b.var(ddof=1) * (1.0 / a.size + 1.0 / b.size))
            gaps.append(0.0 if error == 0.0 else (a.mean() - b.mean()) / error)
            lines.append([name, title, f"{a.mean():.3g}", interval(b), f"{gaps[-1]:+.1f}"])
    tests = []
    for k, parts in enumerate(drawn):
        for title, of in (("weights", "log_weights"), ("evaluations", "evaluations")):
            fresh = np.concatenate([getattr(d, of) for d in parts])
            tests.append(float(ks_2samp(fresh, getattr(bank.draws[k], of)).pvalue))
            lines.append(
                ["all", f"{title} of arm {k + 1}, Kolmogorov-Smirnov", f"{fresh.size} draws",
                 f"{bank.draws[k].evaluations.size} draws", f"p = {tests[-1]:.2g}"]
            )  # fmt: skip
    p = bank.problem
    agree = max(map(abs, gaps)) < 3.3 and min(tests) > 0.05 / len(tests)
    text = f"## Live runs, {p.covariates} covariates, T = {p.rows}, t = {budget:g}\n\n" + markdown(
        ["policy", "", "live", "replayed, 95 %", "gap in standard errors"], lines
    )
    cost = float(sum(d.seconds.sum() for parts in drawn for d in parts))
    found = Statement(
        "ours",
        "replays and live runs agree",
        agree,
        f"{options.live_runs} live runs of each of 2 policies ({cost:.0f} CPU s): largest gap "
        f"{max(map(abs, gaps)):.1f} standard errors of {len(gaps)}, least p {min(tests):.2g} of {len(tests)}",
    )
    return Part([], text, [found])
