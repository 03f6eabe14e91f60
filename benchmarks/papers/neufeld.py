"""Figures 1 and 2 of Neufeld et al. (2014), and the best arm in hindsight; see ``bandits.py``."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import KLUCB, UCB1, UCBV
from amc_pymc.bandits.rewards import KnownRange
from amc_pymc.bandits.thompson import ThompsonSampling
from benchmarks.harness.intervals import Z95, gap, interval, mean_and_half
from benchmarks.harness.statements import (
    Collected,
    Part,
    Statement,
    Statements,
    batches,
    times_up_to,
)
from benchmarks.harness.tables import markdown
from benchmarks.papers.bandit_runs import EUCBV, run
from models.cir_caplet import STRIKES, THETAS, Caplet, population_monte_carlo, weights
from models.scaled_bernoulli import make_problem

PAPER_POLICIES: dict[str, type[UCB1 | UCBV | KLUCB | ThompsonSampling]] = {
    "UCB1": UCB1, "UCB-V": UCBV, "KL-UCB": KLUCB, "TS": ThompsonSampling,
}  # fmt: skip
#: Variances of the better estimator, and what the other has more: together at most 0.24.
VARIANCES = tuple(0.12 / 2**j for j in range(5, -1, -1))
HIGHLIGHTED = (0.03, 0.03)
#: A tile is of high variance if its larger variance is at least half of the maximum, 1/4, and of low
#: variance if that is at most an eighth of it.
HIGH = 0.125
LOW_VARIANCE = 0.03125
#: G of Population Monte Carlo.
POPULATION = 500


# --- Neufeld et al., figure 1 --------------------------------------------------------------------


def bernoulli_values(bits: np.ndarray, variances: Sequence[float]) -> np.ndarray:
    """Values 1/2 + s_k (Z - 1/2), of the shape of bits (R, K, n)."""
    scales = 2.0 * np.sqrt(np.asarray(variances))[:, None]
    return 0.5 + scales * (bits - 0.5)


def figure_1(options) -> Part:
    """Which policy is best for two scaled Bernoulli estimators."""
    n, runs = options.steps or 100_000, options.runs or 200
    rng = np.random.default_rng([options.seed, 1])
    tiles = [(v, d) for v in VARIANCES for d in VARIANCES]
    pulls = {name: np.empty((len(tiles), runs)) for name in PAPER_POLICIES}
    done = 0
    for size in batches(runs, max(1, 20_000_000 // n)):
        bits = rng.integers(0, 2, (size, 2, n), dtype=np.int8)
        for i, (v, d) in enumerate(tiles):
            rewards = 1.0 - bernoulli_values(bits, (v, v + d)) ** 2
            for name, cls in PAPER_POLICIES.items():
                pulls[name][i, done : done + size] = run(cls(2), rewards, np.array([n]), rng)[
                    :, 0, 1
                ]
        done += size
    cells = []
    for i in range(len(tiles)):
        best, second, *_ = sorted(pulls, key=lambda name: pulls[name][i].mean())
        clear = gap(pulls[best][i], pulls[second][i]).below
        cells.append(best if clear else f"{best} (not clear)")
    columns = len(VARIANCES)
    lines = [[f"{v:.4g}", *cells[columns * j :][:columns]] for j, v in enumerate(VARIANCES)]
    heads = ["V* (rows), V - V* (columns)", *(f"{d:.4g}" for d in VARIANCES)]
    text = f"## Figure 1: least regret at n = {n:,}, {runs} runs\n\n" + markdown(heads, lines)
    shapes = shape_runs(options, n, runs)
    return Part(text, [*statements_1(tiles, pulls), shape_statement(shapes)])


def statements_1(tiles, pulls) -> list[Statement]:
    """Section 6.1: a statement about tiles holds if it does, significantly, in most of them."""
    high = [i for i, (v, d) in enumerate(tiles) if v + d >= HIGH]
    low = [i for i, (v, d) in enumerate(tiles) if v + d <= LOW_VARIANCE]
    medium = [i for i in range(len(tiles)) if i not in high and i not in low]
    both = [i for i in high if gap(pulls["KL-UCB"][i], pulls["UCB-V"][i]).below]

    def share(name, among, over):
        """Tiles where a policy is clearly better than all of `over`, and clearly worse than one."""
        better = [i for i in among if all(gap(pulls[name][i], pulls[o][i]).below for o in over)]
        worse = [i for i in among if any(gap(pulls[o][i], pulls[name][i]).below for o in over)]
        return better, worse

    def evidence(better, worse, among):
        return f"clearly in {len(better)} of {len(among)} tiles, clearly not in {len(worse)}"

    out = []
    for text, name, among, over in (
        (
            "TS is best suited where either estimator has high variance",
            "TS", high, ("UCB1", "UCB-V", "KL-UCB"),
        ),
        (
            "UCB-V is more effective for low variances",
            "UCB-V", low, ("UCB1", "KL-UCB", "TS"),
        ),
        (
            "UCB-V is more effective for medium variances",
            "UCB-V", medium, ("UCB1", "KL-UCB", "TS"),
        ),
        ("KL-UCB outperforms UCB-V for high variances", "KL-UCB", high, ("UCB-V",)),
        ("where KL-UCB outperforms UCB-V, TS eclipses it", "TS", both, ("KL-UCB",)),
    ):  # fmt: skip
        better, worse = share(name, among, over)
        holds = 2 * len(better) > len(among)
        out.append(Statement("N 6.1", text, holds, evidence(better, worse, among)))
    return out


def shape_runs(options, n: int, runs: int) -> dict[str, dict[str, np.ndarray]]:
    """Suboptimal pulls (R,) with Bernoulli, uniform and normal values of the same variances."""
    v, d = HIGHLIGHTED
    found: dict[str, dict[str, list]] = {}
    for shape in ("bernoulli", "uniform", "normal"):
        rng = np.random.default_rng([options.seed, 11])
        problem = make_problem((v, v + d), shape=shape)
        for size in batches(runs, max(1, 20_000_000 // n)):
            rewards = np.array([problem.sample(n, rng) for _ in range(size)])
            np.multiply(rewards, -rewards, out=rewards)
            rewards += 1.0
            for name, cls in PAPER_POLICIES.items():
                counts = run(cls(2), rewards, np.array([n]), rng)[:, -1, 1]
                found.setdefault(shape, {}).setdefault(name, []).append(counts)
    return {s: {k: np.concatenate(c) for k, c in of.items()} for s, of in found.items()}


def shape_statement(shapes) -> Statement:
    """Appendix E."""
    parts, outside = [], False
    for name in PAPER_POLICIES:
        base, ratios = shapes["bernoulli"][name], []
        for shape in ("uniform", "normal"):
            x = shapes[shape][name]
            ratio = x.mean() / base.mean()
            relative = math.hypot(x.std() / x.mean(), base.std() / base.mean())
            half = Z95 * ratio * relative / math.sqrt(len(x))
            ratios.append(f"{ratio:.2f} ± {half:.2f}")
            outside |= bool(ratio - half > 1.1 or ratio + half < 0.9)
        parts.append(f"{name} {ratios[0]} and {ratios[1]}")
    return Statement(
        "N app. E",
        "the shape of the distribution has a negligible effect (10 % of suboptimal pulls)",
        not outside,
        "uniform and truncated normal over Bernoulli: " + ", ".join(parts),
    )


# --- Neufeld et al., figure 2 --------------------------------------------------------------------


class Pool(NamedTuple):
    """Arms of one strike: values (K, N), drawn with replacement, of exactly equal means."""

    values: np.ndarray
    mean: float
    variances: np.ndarray
    ranges: np.ndarray


def make_pools(size: int, rng) -> list[Pool]:
    """One pool per strike, all from the same paths.

    An arm's law is the empirical distribution of `size` paths, shifted (by about its standard error)
    to the common mean, so that theorem 1 holds with known variances.
    """
    caplet = Caplet()
    values = np.empty((len(STRIKES), len(THETAS), size))
    for k, theta in enumerate(THETAS):
        paths = caplet.simulate(np.full(size, theta), rng)
        w = weights(paths.z, theta)
        for s, strike in enumerate(STRIKES):
            values[s, k] = w * caplet.payoff(paths, strike)
    pools = []
    for of_strike in values:
        means, variances = of_strike.mean(1), of_strike.var(1)
        mean = float(np.average(means, weights=1.0 / variances))
        shifted = of_strike + (mean - means)[:, None]
        pools.append(Pool(shifted, mean, variances, np.abs(shifted).max(1) ** 2))
    return pools


def pool_runs(pool: Pool, policies, n, runs, checkpoints, rng):
    """Normalised MSE of policies by theorem 1, and squared errors, both (R, C) and n / V* times."""
    best = pool.variances.min()
    excess = pool.variances / best - 1.0
    arms = np.arange(len(pool.variances))[:, None]
    by_pulls: Collected = {name: [] for name in policies}
    by_error: Collected = {name: [] for name in policies}
    for size in batches(runs, max(1, 20_000_000 // (len(arms) * n))):
        values = pool.values[arms, rng.integers(0, pool.values.shape[1], (size, len(arms), n))]
        rewards = -(values**2)
        sums = np.cumsum(values, axis=2, out=values)
        for name, make in policies.items():
            policy = make(len(arms), KnownRange(-pool.ranges, 0.0))
            counts = run(policy, rewards, checkpoints, rng)
            by_pulls[name].append(1.0 + counts @ excess / checkpoints)
            by_error[name].append(normalised_errors(sums, counts, checkpoints, pool.mean, best))
    join = np.concatenate
    return {k: join(v) for k, v in by_pulls.items()}, {k: join(v) for k, v in by_error.items()}


def normalised_errors(sums, counts, checkpoints, mean, best) -> np.ndarray:
    """Squared errors of plain averages times n / V*, (R, C), from cumulative sums (R, K, n)."""
    last = np.maximum(counts.transpose(0, 2, 1) - 1, 0)
    reached = np.take_along_axis(sums, last, axis=2) * (counts.transpose(0, 2, 1) > 0)
    errors = reached.sum(1) / checkpoints - mean
    return checkpoints * errors**2 / best


def ranged(cls: type[Policy], **settings) -> Callable[[int, KnownRange], Policy]:
    """A policy to be given its number of arms and range of rewards."""
    return lambda n_arms, rewards: cls(n_arms, rewards=rewards, **settings)


def population_runs(strike, adapt, n, size, runs, mean, best, rng) -> np.ndarray:
    """Cumulative mean of squared deviations over V*, (R, n / G), one column per population."""
    out = np.empty((runs, n // size))
    for r in range(runs):
        done = population_monte_carlo(Caplet(strike), n // size, size=size, rng=rng, adapt=adapt)
        squares = np.array([np.mean((p.values - mean) ** 2) for p in done])
        out[r] = np.cumsum(squares) / np.arange(1, len(done) + 1) / best
    return out


def figure_2(options) -> Part:
    """Caplet prices: normalised MSE of policies and of Population Monte Carlo."""
    n, runs = options.steps or 100_000, options.runs or 1_000
    size = min(POPULATION, n)
    pmc_runs = min(runs, 200)
    rng = np.random.default_rng([options.seed, 2])
    pools = make_pools(2**12 if options.quick else 2**18, rng)
    # ends of some populations, the last always among them
    populations = size * times_up_to(n // size, 30, 1)
    checkpoints = np.unique(np.concatenate([times_up_to(n, 30, 20), populations]))
    columns = np.searchsorted(checkpoints, populations)
    policies = {name: ranged(cls) for name, cls in PAPER_POLICIES.items()}
    lines, at = [], {}
    for strike, pool in zip(STRIKES, pools, strict=True):
        exact, errors = pool_runs(pool, policies, n, runs, checkpoints, rng)
        best = pool.variances.min()
        pmc = {
            adapt: population_runs(strike, adapt, n, size, pmc_runs, pool.mean, best, rng)[
                :, populations // size - 1
            ]
            for adapt in ("payoff", "weight")
        }
        at[strike] = ({k: v[:, columns] for k, v in exact.items()}, pmc)
        for name, of in [*exact.items(), *((f"PMC, {a}", x) for a, x in pmc.items())]:
            mean, half = mean_and_half(of)
            simulated = interval(errors[name][:, -1]) if name in errors else "-"
            first = mean[columns[0]] if name in exact else mean[0]
            lines.append(
                [f"{strike:g}", name, f"{first:.3f}", f"{mean[-1]:.4f} ± {half[-1]:.2g}", simulated]
            )
    drifts = ", ".join(
        f"theta = {THETAS[int(np.argmin(p.variances))]:g} at K = {k:g}"
        for k, p in zip(STRIKES, pools, strict=True)
    )
    text = (
        f"## Figure 2: n MSE / V* of caplet prices, {runs:,} runs (PMC {pmc_runs:,}, G = {size})\n\n"
        + markdown(
            ["K", "policy", f"n = {size}", f"n = {n:,}, 95 %", "squared errors, 95 %"], lines
        )
        + f"\n\nV* is the variance of the best drift: {drifts}. Rewards are minus squares, each arm "
        "scaled by its own largest square (appendix B). The second last column is by theorem 1, the "
        "last from squared errors of the same runs."
    )
    return Part(text, statements_2(at, populations, n))


def statements_2(at, populations, n) -> list[Statement]:
    """Section 6.2, at the ends of populations."""
    bandits = list(PAPER_POLICIES)

    def below(a, b):
        """Columns where a is below b, significantly (independent runs)."""
        (ma, ha), (mb, hb) = mean_and_half(a), mean_and_half(b)
        return mb - ma > np.hypot(ha, hb)

    def apart(a, b):
        (ma, ha), (mb, hb) = mean_and_half(a[:, -1]), mean_and_half(b[:, -1])
        return f"{ma - mb:+.3f} ± {np.hypot(ha, hb):.2g}"

    winners = {s: min(bandits, key=lambda b: x[b][:, -1].mean()) for s, (x, _) in at.items()}
    long_run = {s: below(x[winners[s]], p["payoff"])[-1] for s, (x, p) in at.items()}
    out = Statements("N 6.2")
    out(
        "the more effective bandits do better than PMC, particularly in the longer term",
        all(long_run.values()),
        f"n = {n:,}, best bandit less PMC: "
        + "; ".join(
            f"K = {s:g} {winners[s]} {apart(x[winners[s]], p['payoff'])} (PMC by weights "
            f"{apart(x[winners[s]], p['weight'])})"
            for s, (x, p) in at.items()
        ),
    )
    out(
        "TS is the clear winner among the bandits",
        all(
            all(gap(x["TS"][:, -1], x[b][:, -1]).below for b in bandits if b != "TS")
            for x, _ in at.values()
        ),
        f"n = {n:,}, TS less the best other: "
        + "; ".join(
            f"K = {s:g} {other} {gap(x['TS'][:, -1], x[other][:, -1])}"
            for s, (x, _) in at.items()
            for other in [min((b for b in bandits if b != "TS"), key=lambda b: x[b][:, -1].mean())]
        ),
    )
    out(
        "PMC does uniformly better than UCB1",
        all(below(p["payoff"], x["UCB1"]).all() for x, p in at.values()),
        "share of the times looked at when PMC is clearly better: "
        + "; ".join(
            f"K = {s:g} {below(p['payoff'], x['UCB1']).mean():.0%} "
            f"(by weights {below(p['weight'], x['UCB1']).mean():.0%})"
            for s, (x, p) in at.items()
        ),
    )
    x, p = at[STRIKES[0]]
    ahead = np.all([below(p["payoff"], x[b]) for b in bandits], axis=0)
    early = ahead & (populations <= max(n / 10, populations[0]))
    when = populations[ahead]
    out(
        f"PMC does better than all bandits early on for K = {STRIKES[0]:g} (up to n = {n // 10:,})",
        bool(early.any()),
        f"clearly better than all from n = {when[0]:,} to {when[-1]:,}"
        if when.size
        else "at no time clearly better than all",
    )
    return out


# --- how close to the best arm in hindsight ------------------------------------------------------


def aim(options) -> Part:
    """Normalised MSE of every policy on the highlighted case of figure 1."""
    n, runs = options.steps or 100_000, options.aim_runs
    v, d = HIGHLIGHTED
    lines, outside = [], 0
    for horizon, total in ((n, max(10, runs)), (10 * n, max(10, runs // 100))):
        policies = {k: cls(2) for k, cls in PAPER_POLICIES.items()}
        policies["EUCBV"] = EUCBV(2, horizon=horizon)
        exact: Collected = {name: [] for name in policies}
        errors: Collected = {name: [] for name in policies}
        rng = np.random.default_rng([options.seed, 3, horizon])
        checkpoints = np.array([horizon])
        for size in batches(total, max(1, 20_000_000 // horizon)):
            bits = rng.integers(0, 2, (size, 2, horizon), dtype=np.int8)
            values = bernoulli_values(bits, (v, v + d))
            rewards = 1.0 - values**2
            sums = np.cumsum(values, axis=2, out=values)
            for name, policy in policies.items():
                counts = run(policy, rewards, checkpoints, rng)
                exact[name].append(1.0 + counts[:, 0, 1] * d / (horizon * v))
                errors[name].append(normalised_errors(sums, counts, checkpoints, 0.5, v)[:, 0])
        for name in policies:
            x, e = np.concatenate(exact[name]), np.concatenate(errors[name])
            (mean, half), (m, h) = mean_and_half(x), mean_and_half(e)
            lines.append([
                f"{horizon:,}", name, f"{len(x):,}", f"{mean:.4f} ± {half:.2g}", f"{m:.3f} ± {h:.2g}",
                "yes" if mean + half <= 1.05 else "no",
            ])  # fmt: skip
            outside += abs(m - mean) > 1.5 * h
    text = f"## Aim: n MSE / V* at V* = {v:g}, V - V* = {d:g}\n\n" + markdown(
        ["n", "policy", "runs", "by pulls, 95 %", "squared errors, 95 %", "at most 1.05"], lines
    )
    agree = f"{len(lines) - outside} of {len(lines)} within 3 standard errors"
    found = Statement(
        "N theorem 1", "the MSE is what the numbers of pulls say", outside == 0, agree
    )
    return Part(text, [found])
