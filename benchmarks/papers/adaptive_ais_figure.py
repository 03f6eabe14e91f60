"""Figure 3 and the statements of section 6.3; see ``adaptive_ais.py``."""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.harness.intervals import bootstrap, interval
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown
from benchmarks.papers.adaptive_ais_bank import COVARIATES, KINDS, Bank, price, price_ratio
from benchmarks.papers.adaptive_ais_replays import (
    BANDITS,
    PAPER,
    Replays,
    arm_names,
    loss_ratio,
    replay,
)

#: Part of the best arm's loss that counts as none more.
_NO_EXCESS = 1e-6


def figure(options, banks: Sequence[Bank], covariates: str) -> Part:
    """Figure 3 with standardised or raw covariates."""
    banks = [b for b in banks if b.problem.covariates == covariates]
    found = {}
    for bank in banks:
        rows = bank.problem.rows
        rng = np.random.default_rng([options.seed, 10, COVARIATES.index(covariates), rows])
        found[rows] = replay(bank, options.runs, options.budget, rng)
    text = [f"## Figure 3, {covariates} covariates", arms_table(banks)]
    for kind in KINDS:
        text.append(
            f"Loss at t = {options.budget:g} times t / min_k V_k delta_k, costs {kind}, "
            f"{options.runs} runs:\n\n" + loss_table({T: of[kind] for T, of in found.items()})
        )
    return Part("\n\n".join(text), figure_statements(banks, found))


def arms_table(banks: Sequence[Bank]) -> str:
    """Costs and variances of all arms."""
    lines = []
    for bank in banks:
        longest = bank.draws[-1]
        for steps, d in zip(bank.steps, bank.draws, strict=True):
            w = np.exp(d.log_weights)
            z = (w.mean() - 1.0) / (w.std(ddof=1) / math.sqrt(w.size))
            lines.append([
                str(bank.problem.rows), f"{steps:,}", f"{w.size:,}",
                f"{d.evaluations.mean():,.0f} ± {d.evaluations.std():,.0f}",
                f"{1e3 * d.seconds.mean():.3g}",
                f"{1e6 * d.seconds.sum() / d.evaluations.sum():.3g}",
                str(bootstrap(lambda i, d=d: d.some(i).relative_variance, w.size)),
                str(price_ratio(d, longest, "counted")), str(price_ratio(d, longest, "cpu")),
                f"{z:+.1f}",
            ])  # fmt: skip
    heads = ["T", "steps", "draws", "evaluations of a draw, ± sd", "CPU ms",
             "microseconds per evaluation", "relative variance, 95 %",
             "V delta over that of the last arm, counted", "the same, CPU",
             "mean weight less evidence, standard errors"]  # fmt: skip
    return markdown(heads, lines)


def loss_table(found: Mapping[int, Replays]) -> str:
    """Normalised losses at the end."""
    lines = []
    for name in next(iter(found.values())).counts:
        line = [name]
        for of in found.values():
            unit = of.times[-1] / (of.law.variances * of.law.mean_costs).min()
            share = of.counts[name][:, -1] * of.law.mean_costs
            share = (share / share.sum(-1, keepdims=True)).mean(axis=0)
            line += [
                interval(unit * of.uniform[name][:, -1]),
                f"{unit * of.by_pulls(name, 'uniform')[:, -1].mean():.3g}",
                interval(unit * of.inverse[name][:, -1]),
                f"{unit * of.by_pulls(name, 'inverse')[:, -1].mean():.3g}",
                " / ".join(f"{s:.0%}" for s in share),
            ]
        lines.append(line)
    heads = ["policy"]
    for T in found:
        heads += [f"T = {T}: uniform, 95 %", "by pulls", "inverse variance, 95 %", "by pulls",
                  "shares of cost"]  # fmt: skip
    return markdown(heads, lines)


def figure_statements(banks: Sequence[Bank], found) -> list[Statement]:
    """Section 6.3, one sentence after the other."""
    covariates = banks[0].problem.covariates
    tag = f"N 6.3, {covariates}"
    statements = (
        cost_statement(banks), random_statement(banks), correlation_statement(banks),
        weights_statement(found), close_statement(banks), optimal_statement(banks, found),
        *(static_statement(found, w) for w in ("uniform", "inverse")), best_statement(found),
        learning_statement(found),
    )  # fmt: skip
    return [Statement(tag, *of) for of in statements]


def cost_statement(banks):
    """Costs of the arms differ."""
    parts, holds = [], True
    for bank in banks:
        mean = [d.seconds.mean() for d in bank.draws]
        holds &= mean[-1] > 2.0 * mean[0]
        parts.append(
            f"T = {bank.problem.rows} "
            + " : ".join(f"{m / mean[0]:.3g}" for m in mean)
            + " in CPU time"
        )
    return "the costs of the arms differ substantially", holds, "; ".join(parts)


def random_statement(banks):
    """Slice sampling has random costs."""
    variation = [d.evaluations.std() / d.evaluations.mean() for b in banks for d in b.draws]
    return (
        "with slice sampling costs are stochastic",
        min(variation) > 0.0,
        f"coefficient of variation of evaluations {min(variation):.2%} to {max(variation):.2%}",
    )


def correlation_statement(banks):
    """Costs and values."""
    low, high, outside, n = 1.0, -1.0, 0, 0
    bias = 0.0
    for bank in banks:
        for d in bank.draws:
            w, cost = np.exp(d.log_weights), d.evaluations
            r = float(np.corrcoef(w, cost)[0, 1])
            low, high, n = min(low, r), max(high, r), n + 1
            outside += abs(math.atanh(r)) * math.sqrt(w.size - 3) > 1.96
            spread = (w - w.mean()) ** 2
            payoff = 0.5 * np.mean(cost * spread) + 0.5 * cost.mean() * spread.mean()
            bias = max(bias, abs(payoff / (cost.mean() * spread.mean()) - 1.0))
    return (
        "costs do not correlate with the values",
        outside <= max(1, round(0.15 * n)),
        f"correlations of weight and evaluations {low:+.2f} to {high:+.2f}, {outside} of {n} outside "
        f"95 %; the mean payoff is V delta within {bias:.2%}",
    )


def weights_statement(found):
    """Inverse-variance weights against the plain average."""
    parts, better, worse, known, n = [], 0, 0, 0, 0
    for kind in KINDS:
        of_kind = []
        for T, of in found.items():
            ratios = {
                name: loss_ratio([of[kind].inverse[name][:, -1]], [of[kind].uniform[name][:, -1]])
                for name in BANDITS
            }
            better += sum(r.high < 1.0 for r in ratios.values())
            worse += sum(r.low > 1.0 for r in ratios.values())
            n += len(ratios)
            known += sum(
                of[kind].by_pulls(name, "inverse")[:, -1].mean()
                < of[kind].by_pulls(name, "uniform")[:, -1].mean()
                for name in BANDITS
            )
            of_kind.append(f"T = {T} {ratios['TS']}")
        parts.append(f"TS, {kind}: " + ", ".join(of_kind))
    return (
        "inverse-variance weights improve strikingly on uniform ones",
        2 * better > n and worse == 0,
        f"MSE ratio; {'; '.join(parts)}; clearly below one for {better} of {n} policies, T and kinds of "
        f"cost, clearly above for {worse}; with known variances, by pulls, below one for {known}",
    )


def close_statement(banks):
    """Variances against variances times costs."""
    parts, holds = [], True
    for bank in banks:
        v = np.array([d.relative_variance for d in bank.draws])
        prices = np.array([price(d, "cpu") for d in bank.draws])
        holds &= bool(v.max() / v.min() > 2.0 * prices.max() / prices.min())
        parts.append(
            f"T = {bank.problem.rows} {v.max() / v.min():.3g} and {prices.max() / prices.min():.3g}"
        )
    return (
        "arms close in V delta have considerably different variances",
        holds,
        "largest over smallest V and V delta (CPU): " + "; ".join(parts),
    )


def optimal_statement(banks, found):
    """The best arms of all T."""
    holds, parts = True, []
    for kind in KINDS:
        beaten = [False] * len(banks[0].draws)
        of_kind = []
        for bank in banks:
            best = int(np.argmin([price(d, kind) for d in bank.draws]))
            ratios = {
                k: price_ratio(d, bank.draws[best], kind)
                for k, d in enumerate(bank.draws)
                if k != best
            }
            for k, r in ratios.items():
                beaten[k] |= r.low > 1.0
            of_kind.append(
                f"T = {bank.problem.rows} arm {best + 1} ("
                + ", ".join(f"arm {k + 1} {r}" for k, r in ratios.items())
                + ")"
            )
        holds &= all(beaten)
        parts.append(f"{kind} " + ", ".join(of_kind))
    early = ", ".join(
        f"T = {T} arm {int(of['counted'].arm_losses()[:, 0].argmin()) + 1}"
        for T, of in found.items()
    )
    start = next(iter(found.values()))["counted"].times[0]
    return (
        "no one arm is optimal for all T",
        holds,
        f"least V delta and the others over it: {'; '.join(parts)}; by completed draws at t = {start:.2g} "
        f"{early}; three panels of 20 runs would name different arms in {named_apart(found):.0%} of "
        "repetitions",
    )


def named_apart(found, runs: int = 20, repetitions: int = 1_000) -> float:
    """How often the arms with the least average regret of few runs are not one for all T."""
    rng = np.random.default_rng(3)
    winners = []
    for of in found.values():
        errors = np.stack([of["cpu"].uniform[name][:, -1] for name in arm_names(of["cpu"].law)])
        some = rng.integers(0, errors.shape[1], (repetitions, runs))
        winners.append(errors[:, some].mean(axis=2).argmin(axis=0))
    first = np.array(winners)
    return float((first != first[0]).any(axis=0).mean())


def static_statement(found, weights: str):
    """Thompson sampling against each arm alone, over all T."""
    parts, holds = [], True
    for kind in KINDS:
        of_kind = []
        everything = [of[kind] for of in found.values()]
        ours = [getattr(of, weights)["TS"][:, -1] for of in everything]
        for name in arm_names(everything[0].law):
            r = loss_ratio(ours, [of.uniform[name][:, -1] for of in everything])
            logs = [
                math.log(
                    of.by_pulls("TS", weights)[:, -1].mean()
                    / of.by_pulls(name, "uniform")[:, -1].mean()
                )
                for of in everything
            ]
            of_kind.append(f"{name} {r}, by pulls {math.exp(sum(logs) / len(logs)):.3g}")
            holds &= r.high < 1.0
        parts.append(f"{kind} " + ", ".join(of_kind))
    label = "uniform" if weights == "uniform" else "inverse-variance"
    return (
        f"TS with {label} weights outperforms any static strategy over the three T",
        holds,
        f"MSE of TS over that of each arm, geometric mean over T: {'; '.join(parts)}",
    )


def best_statement(found):
    """Thompson sampling against the other policies of the paper."""
    parts, holds = [], True
    for kind in KINDS:
        of_kind = []
        everything = [of[kind] for of in found.values()]
        for name in (*(p for p in PAPER if p != "TS"), "lcb"):
            r = loss_ratio(*([of.uniform[p][:, -1] for of in everything] for p in ("TS", name)))
            of_kind.append(f"{name} {r}")
            holds &= r.high < 1.0 or name == "lcb"
        parts.append(f"{kind} " + ", ".join(of_kind))
    return (
        "TS does better than the other bandits of the paper (uniform weights)",
        holds,
        f"MSE of TS over that of others, geometric mean over T: {'; '.join(parts)}",
    )


def learning_statement(found):
    """Section 5: the normalised loss comes down to that of the best arm."""
    parts, holds = [], True
    for T, of in found.items():
        r = of["cpu"]
        early = int(np.searchsorted(r.times, r.times[-1] / 4.0))
        best = r.arm_losses().min(axis=0)
        excess = r.by_pulls("TS", "uniform") / best - 1.0

        def remaining(i, e=excess, early=early):
            # Of few runs none may have drawn from another arm by then.
            return float(e[i, -1].mean() / max(e[i, early].mean(), _NO_EXCESS))

        ratio = bootstrap(remaining, len(excess))
        holds &= ratio.high < 1.0
        parts.append(f"T = {T} {excess[:, -1].mean():.3g} ({ratio} of that at t / 4)")
    return (
        "regret of TS is sublinear: its excess loss over the best arm falls (uniform weights)",
        holds,
        f"excess over the best arm's loss, by pulls, CPU: {'; '.join(parts)}",
    )
