"""How close adaptive combinations come to the best estimator in hindsight.

    python -m benchmarks.papers.combine_estimators            # 10,000 runs a setting, some minutes on two cores
    python -m benchmarks.papers.combine_estimators --quick

Root-mean-square errors of the estimates of ``amc.combine_estimators`` over that of the best single
estimator given the whole budget, whose error is known in closed form; what control variates cost and
gain. Prints tables in Markdown and writes them, JSON and CSV into
results/.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from amc_pymc.bandits import LogLoss, RunningRange, make_policy
from amc_pymc.bandits.arms import as_arms, draw, join_samples
from amc_pymc.bandits.combination import Combination, plan_rounds
from amc_pymc.rng import as_generator, spawn_generators
from benchmarks.harness import options, results
from benchmarks.harness.options import Option
from benchmarks.harness.tables import markdown, number, percent
from models.cir_caplet import STRIKES, Caplet

_NAME = "combine_estimators"
WEIGHTS = ("predictable", "inverse_variance", "uniform")
POLICIES = ("lcb", "ucb1", "ucbv", "klucb", "thompson", "round_robin")


class LogNormal:
    """Log-normal weights of mean one, as logarithms: what annealed importance sampling gives."""

    scale = "log"

    def __init__(self, s: float, cost: float = 1.0):
        self.s, self.cost = s, cost
        self.variance = math.expm1(s**2)

    def sample(self, n, rng):
        return rng.normal(-0.5 * self.s**2, self.s, n)


class Linear:
    """Values of mean one that q controls explain a share rho^2 of."""

    def __init__(self, q: int, rho: float):
        self.q, self.rho = q, rho
        self.control_means = np.zeros(q)

    def sample(self, n, rng):
        w = rng.normal(size=(n, self.q))
        noise = math.sqrt(1.0 - self.rho**2) * rng.normal(size=n)
        return 1.0 + self.rho * w.sum(axis=1) / math.sqrt(self.q) + noise, None, w


LADDER = (
    LogNormal(3.7, 100), LogNormal(1.85, 400), LogNormal(0.925, 1600), LogNormal(0.4625, 6400),
)  # fmt: skip
#: Titles and arms of problems.
SUITES = {
    "ladder": ("annealing with 100 ... 6400 temperatures, cost in proportion", LADDER),
    "three": ("the ladder without its worst arm", LADDER[1:]),
    "poisoned": ("the same with a catastrophic arm, s = 6", (*LADDER[1:], LogNormal(6.0, 1600))),
    "equal": ("s = 2, 1, 0.7, 0.5 at equal cost", tuple(map(LogNormal, (2.0, 1.0, 0.7, 0.5)))),
}


def run_here(run: Combination, rng: np.random.Generator) -> Combination:
    """Run all rounds with one generator for decisions and draws."""
    while (decided := run.next_round(rng)) is not None:
        pulls = zip(run.arms, decided.counts, strict=True)
        run.record(decided, [draw(arm, int(n), rng) if n else join_samples([]) for arm, n in pulls])
    return run


def work(name: str, wanted: str, pulls: int, runs: int, rng: np.random.Generator) -> np.ndarray:
    """Estimates of a number of runs and the errors they state, (runs, 6)."""
    _, suite = SUITES[name]
    arms, costs = as_arms(suite), np.array([a.cost for a in suite])
    budget = pulls * best(suite).cost
    first = min(3.0 * costs.sum(), max(costs.sum(), 0.2 * budget))
    out = np.empty((runs, 6))
    for i in range(runs):
        if wanted == "lcb":
            policy, payoff = make_policy("lcb", len(arms), values="log"), None
        else:
            policy, payoff = make_policy(wanted, len(arms), rewards=LogLoss()), "paired"
        plan = plan_rounds(budget, first if payoff is None else 2.0 * first, "cost")
        run = run_here(Combination(arms, policy, plan, payoff), rng)
        found = [run.estimate(w) for w in WEIGHTS]  # type: ignore[arg-type]
        out[i, :3] = [e.mean * math.exp(e.offset) for e in found]
        out[i, 3:] = [e.mcse * math.exp(e.offset) for e in found]
    return out


def best(arms: Sequence[LogNormal]) -> LogNormal:
    """The arm with the least cost times variance."""
    return min(arms, key=lambda a: a.cost * a.variance)


def measure(options) -> list[dict]:
    """All suites, budgets and policies."""
    rows = []
    with ProcessPoolExecutor(options.cores) as pool:
        for name, (_, arms) in SUITES.items():
            for pulls in options.pulls:
                for policy in options.policies if name == "ladder" else ["lcb"]:
                    parts = options.cores * 4
                    rngs = spawn_generators([options.seed, pulls, POLICIES.index(policy)], parts)
                    each = partial(work, name, policy, pulls, options.runs // parts)
                    found = np.concatenate(list(pool.map(each, rngs)))
                    rows.append(summary(name, arms, policy, pulls, found))
    return rows


def summary(
    name: str, arms: Sequence[LogNormal], policy: str, pulls: int, found: np.ndarray
) -> dict:
    """Ratios of errors to the best arm's, with standard errors."""
    target = best(arms).variance / pulls
    row = {"suite": name, "policy": policy, "pulls": pulls, "runs": len(found)}
    for j, weights in enumerate(WEIGHTS):
        squared = (found[:, j] - 1.0) ** 2
        rmse = math.sqrt(squared.mean())
        row[weights] = rmse / math.sqrt(target)
        row[f"{weights}_error"] = (
            squared.std() / math.sqrt(len(found)) / (2.0 * rmse * math.sqrt(target))
        )
        row[f"{weights}_covered"] = float(np.mean(abs(found[:, j] - 1.0) < 1.96 * found[:, 3 + j]))
    return row


def table(rows: list[dict]) -> str:
    """Errors over the best arm's."""
    headers = [
        "arms", "policy", "pulls of the best arm", *WEIGHTS, "95 % intervals cover (predictable)",
    ]  # fmt: skip
    lines = [
        [
            r["suite"],
            r["policy"],
            f"{r['pulls']:,}",
            *(f"{number(r[w], 4)} ± {number(r[f'{w}_error'], 2)}" for w in WEIGHTS),
            percent(r["predictable_covered"]),
        ]
        for r in rows
    ]
    return markdown(headers, lines)


def caplet(options) -> str:
    """Sixteen drifts of a caplet: mean squared error times draws, over the best drift's variance."""
    lines, runs = [], max(20, options.runs // 50)
    for strike in STRIKES:
        product = Caplet(strike=strike)
        arms = as_arms({f"theta={a.theta:g}": a for a in product.arms()})
        rng = as_generator([options.seed, round(1000 * strike)])
        pilot = [a.sample(options.pilot, rng) for a in product.arms()]
        variances = [float(x.var()) for x in pilot]
        truth = float(np.average([x.mean() for x in pilot], weights=1.0 / np.array(variances)))
        for draws in options.draws:
            found = []
            for _ in range(runs):
                policy = make_policy("lcb", len(arms), values="natural")
                plan = plan_rounds(draws, min(3 * len(arms), draws // 5), "draws")
                run = run_here(Combination(arms, policy, plan, None), rng)
                found.append([run.estimate(w).mean for w in WEIGHTS])  # type: ignore[arg-type]
            squared = (np.array(found) - truth) ** 2 * draws / min(variances)
            error = squared.std(axis=0) / math.sqrt(runs)
            cells = [f"{m:.3f} ± {e:.2f}" for m, e in zip(squared.mean(axis=0), error, strict=True)]
            lines.append(
                [f"{strike:g}", arms[int(np.argmin(variances))].name, f"{draws:,}", *cells]
            )
    return markdown(["strike", "best", "draws", *WEIGHTS], lines)


def controls(options) -> str:
    """Mean squared error with controls over that of the plain mean of the same draws."""
    lines, runs = [], max(20, options.runs // 5)
    for q, rho in ((1, 0.0), (1, 0.9), (3, 0.0), (3, 0.9)):
        for draws in (51 * q + 1, 51 * q + 2, 2 * (51 * q + 2), 1000):
            rng = as_generator([options.seed, q, draws])
            gain = []
            for _ in range(runs):
                run = Combination(
                    as_arms([Linear(q, rho)]), make_policy("ucb1", 1, rewards=RunningRange()),
                    plan_rounds(draws, min(draws, 3), "draws"), "squared",
                )  # fmt: skip
                record = run_here(run, rng).records[0]
                estimates = [run.estimate(w).mean for w in WEIGHTS[:2]]  # type: ignore[arg-type]
                gain.append([*estimates, record.mean[0]])
            found = np.square(np.array(gain, float) - 1.0)
            lines.append([
                str(q), f"{rho:g}", str(draws), *(_ratio(found[:, j], found[:, 2]) for j in (0, 1)),
            ])  # fmt: skip
    told = [f"{weights} / plain mean" for weights in WEIGHTS[:2]]
    return markdown(["q", "rho", "draws", *told], lines)


def _ratio(a: np.ndarray, b: np.ndarray) -> str:
    """Ratio of means of paired numbers, by the delta method."""
    value = a.mean() / b.mean()
    error = np.std(a - value * b) / math.sqrt(a.size) / b.mean()
    return f"{value:.3f} ± {error:.3f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    quick = {
        "runs": 100, "pulls": [100], "policies": ["lcb", "thompson"], "pilot": 20_000,
        "draws": [1_000],
    }  # fmt: skip
    o = options.parse(
        __doc__, argv, quick, runs=10_000, pulls=Option([100, 1000], "of the best arm"),
        policies=Option(list(POLICIES), choices=POLICIES), cores=2,
        pilot=Option(1_000_000, "paths of each drift for the best one"),
        draws=Option([1_000, 10_000, 100_000], "of the caplet"),
    )  # fmt: skip
    rows = measure(o)
    text = "\n\n".join(
        [
            "# Combinations of estimators",
            "Root-mean-square error over that of the best arm given the whole budget, "
            f"{o.runs:,} runs a line. Estimates by weights.",
            table(rows),
            "\n".join(f"- `{k}`: {title}" for k, (title, _) in SUITES.items()),
            "## A caplet, sixteen drifts at equal cost\n\nn MSE / V*, 1 for the best drift alone.",
            caplet(o),
            "## Control variates\n\nMean squared errors on the same draws.",
            controls(o),
        ]
    )
    print(text)
    results.save(o, _NAME, rows, text)


if __name__ == "__main__":
    main()
