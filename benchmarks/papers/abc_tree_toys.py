"""Figures 3, 4 and 15, theorem 3.1 and table 1: games on boxes whose rates of acceptance are known, and costs."""

from __future__ import annotations

import argparse
import math

from collections.abc import Callable
from time import process_time
from timeit import repeat

import numpy as np

from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr

from amc_pymc.engine.jit import njit
from amc_pymc.likelihood_free.trees import Cart
from amc_pymc.rng import as_generator, spawn_generators
from benchmarks.harness.intervals import Gap, gap, interval, list_of
from benchmarks.harness.statements import Part, Statement, times_up_to
from benchmarks.harness.tables import markdown
from benchmarks.papers.abc_tree_methods import Checkpoint, kernel_density, kernel_root
from benchmarks.papers.inner_loop import initial_plays, inner_loop, pull, regret
from models.gaussian_mixtures import UNIVARIATE, univariate_mixture
from models.gaussian_mixtures import acceptance as mixture_acceptance

#: Example 1: X | U ~ N(U, 5), with U uniform on (theta - 1, theta) and theta one of a hundred points.
SD = math.sqrt(5.0)
#: Utilities of the paper, by its names.
OMEGAS = {"posterior": "omega1", "efficiency": "omega2", "kl": "omega3", "ess": "ess (ours)"}


def toy_rates(observed: float = 49.5, epsilon: float = 2.0, n_points: int = 100) -> np.ndarray:
    """Rates of acceptance (n_points,) of example 1 to full relative precision, in the tails as well.

    >>> from benchmarks.papers.abc_tree_toys import toy_rates
    >>> rates = toy_rates()
    >>> bool(rates.min() > 0.0), int(rates.argmax()) + 1
    (True, 50)
    """
    nodes, weights = leggauss(30)
    u = np.arange(1, n_points + 1)[:, None] - 1.0 + 0.5 * (nodes + 1.0)
    low, high = (observed - epsilon - u) / SD, (observed + epsilon - u) / SD
    flip = low > 0.0  # the smaller tail keeps its digits
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return (ndtr(high) - ndtr(low)) @ (0.5 * weights)


# --- figures 3 and 15 ----------------------------------------------------------------------------


@njit(cache=True)
def thompson_game(rates, n, rng, points):
    """Thompson sampling with the probabilities that it draws each arm with.

    q_k = P(arm k has the largest draw) is an integral over a grid of distribution functions, which
    are moved by one term with each reward.

    Returns
    -------
    boxes (n,), rewards (n,), and q (n, K)
    """
    k, g = len(rates), len(points)
    alpha, beta = np.ones(k), np.ones(k)
    cdf, log_cdf = np.empty((k, g)), np.empty((k, g))
    log_norm = np.zeros(k)  # log B(alpha, beta)
    for i in range(k):
        cdf[i], log_cdf[i] = points, np.log(points)
    log_x, log_y = np.log(points), np.log1p(-points)
    total = log_cdf.sum(axis=0)
    boxes, rewards, q = np.empty(n, np.int64), np.empty(n, np.bool_), np.empty((n, k))
    others = np.empty(g)
    for t in range(n):
        for i in range(k):
            for j in range(g):
                others[j] = math.exp(total[j] - log_cdf[i, j])
            # Stieltjes: the product of the other functions, over the increments of this one.
            mass = 0.5 * others[0] * cdf[i, 0]
            for j in range(1, g):
                mass += 0.5 * (others[j] + others[j - 1]) * (cdf[i, j] - cdf[i, j - 1])
            mass += 0.5 * (1.0 + others[g - 1]) * (1.0 - cdf[i, g - 1])
            q[t, i] = mass
        q[t] /= q[t].sum()
        box = pull(q[t], rng.random())
        won = rng.random() < rates[box]
        boxes[t], rewards[t] = box, won
        a, b = alpha[box], beta[box]
        for j in range(g):
            term = math.exp(a * log_x[j] + b * log_y[j] - log_norm[box])
            total[j] -= log_cdf[box, j]
            value = cdf[box, j] + (-term / a if won else term / b)
            cdf[box, j] = min(max(value, 1e-300), 1.0)
            log_cdf[box, j] = math.log(cdf[box, j])
            total[j] += log_cdf[box, j]
        if won:
            log_norm[box] += math.log(a / (a + b))
            alpha[box] += 1.0
        else:
            log_norm[box] += math.log(b / (a + b))
            beta[box] += 1.0
    return boxes, rewards, q


def grid_for_thompson(n_points: int = 150) -> np.ndarray:
    """Points of (0, 1), denser towards zero."""
    return np.linspace(0.0, 1.0, n_points + 2)[1:-1] ** 1.5


def weighted_tv(box, accepted, weight, p, times) -> np.ndarray:
    """Total variation distance of weighted acceptances to p (K,) after so many simulations (T,); 1 before any."""
    out = np.ones(len(times))
    for i, t in enumerate(times):
        mass = np.bincount(box[:t], accepted[:t] * weight[:t], minlength=len(p))
        if mass.sum() > 0.0:
            out[i] = 0.5 * np.abs(mass / mass.sum() - p).sum()
    return out


def toy(options: argparse.Namespace) -> Part:
    """Figures 3 and 15: acceptance, regret and total variation distance on a hundred points."""
    rates, n, runs = toy_rates(), options.toy_steps, options.toy_runs
    k = len(rates)
    pi, p = np.full(k, 1.0 / k), rates / rates.sum()
    times = times_up_to(n, 30, 100)
    points = grid_for_thompson()
    schemes = ["rejection", "Thompson", *OMEGAS.values(), "omega1, Beta draws"]
    found = {s: {m: [] for m in ("acceptance", "regret", "tv", "ess")} for s in schemes}

    def note(name, box, accepted, q, lost):
        weight = pi[box] / q
        of = found[name]
        of["acceptance"].append((np.cumsum(accepted) / np.arange(1, n + 1))[times - 1])
        of["regret"].append((np.cumsum(lost) / np.arange(1, n + 1))[times - 1])
        of["tv"].append(weighted_tv(box, accepted, weight, p, times))
        w = weight * accepted
        of["ess"].append(
            np.cumsum(w)[times - 1] ** 2 / np.maximum(np.cumsum(w**2)[times - 1], 1e-300)
        )

    for rng in spawn_generators([options.seed, 3], runs):
        box = rng.integers(k, size=n)
        hit = rng.random(n) < rates[box]
        note("rejection", box, hit, np.full(n, 1.0 / k), np.full(n, float(regret(pi, p, pi, "kl"))))
        box, hit, q = thompson_game(rates, n, rng, points)
        note("Thompson", box, hit, q[np.arange(n), box], regret(np.maximum(q, 0.0), p, pi, "kl"))
        for utility, name in OMEGAS.items():
            game = inner_loop(pi, rates, n, rng, utility=utility, judge="kl")
            note(name, game.box, game.accepted, game.q, game.regret)
        game = inner_loop(pi, rates, n, rng, utility="posterior", judge="kl", draw=True)
        note("omega1, Beta draws", game.box, game.accepted, game.q, game.regret)
    found = {s: {m: np.array(v) for m, v in of.items()} for s, of in found.items()}
    lines = []
    early = int(np.searchsorted(times, n // 10))
    for name, of in found.items():
        cells = [
            interval(of[m][:, j])
            for m in ("acceptance", "regret", "tv", "ess")
            for j in (early, -1)
        ]
        lines.append([name, *cells])
    heads = ["scheme"]
    for m in ("acceptance", "regret (omega3)", "TV", "effective draws"):
        heads += [f"{m}, {times[early]:,}", f"{times[-1]:,}"]
    text = f"## Figures 3 and 15: a hundred points, {runs} runs\n\n" + markdown(heads, lines)
    return Part(text, toy_statements(found, early))


def toy_statements(found, early) -> list[Statement]:
    """What section 3.1, example 1, appendix B.1 and figure 15 say."""

    def between(measure, a, b, at=-1) -> Gap:
        return gap(found[a][measure][:, at], found[b][measure][:, at])

    printed = ["omega1", "omega2", "omega3"]
    greedy = [between("acceptance", s, "Thompson") for s in printed]
    least = [between("acceptance", "rejection", s) for s in (*printed, "Thompson")]
    worse = [between("tv", s, "Thompson") for s in printed]
    better = [between("tv", s, "rejection") for s in printed]
    spread = [between("ess", "Thompson", s) for s in printed]
    lost = [between("regret", s, t) for s in printed for t in ("rejection", "Thompson")]
    draws = between("tv", "omega1, Beta draws", "omega1")
    regular = between("ess", "omega1", "omega2")
    first = [between("tv", "omega3", s, early) for s in ("omega1", "omega2")]
    accepts = [between("acceptance", s, "omega3", early) for s in ("omega1", "omega2")]
    later = [between("tv", s, "omega3") for s in ("omega1", "omega2")]
    return [
        Statement("figure 3", "Thompson sampling has the largest acceptance rate",
                  all(g.below for g in greedy), f"omega1-3 less TS: {list_of(greedy)}"),
        Statement("figure 3", "rejection has the lowest acceptance rate", all(g.below for g in least),
                  f"rejection less omega1-3, TS: {list_of(least)}"),
        Statement("figure 3", "TS cannot recreate the posterior as well (TV)", all(g.below for g in worse),
                  f"omega1-3 less TS: {list_of(worse)}"),
        Statement("figure 3", "weights of TS have a large variance (effective draws)",
                  all(g.below for g in spread), f"TS less omega1-3: {list_of(spread)}"),
        Statement("figure 3", "algorithm 1 has less regret (omega3) than TS and rejection",
                  all(g.below for g in lost), f"omega1-3 less rejection, TS: {list_of(lost)}"),
        Statement("figure 3", "algorithm 1 is nearer to the posterior than rejection (TV)",
                  all(g.below for g in better), f"omega1-3 less rejection: {list_of(better)}"),
        Statement("section 3.1.2", "regularisation (omega2) lowers the variance of weights: more effective draws "
                  "than omega1", regular.below, f"omega1 less omega2: {regular}"),
        Statement("footnote 4", "draws from the Beta distributions do as well as means",
                  not draws.above, f"TV of draws less means: {draws}"),
        Statement("figure 15", "omega3 has a larger acceptance early on", all(g.below for g in accepts),
                  f"omega1, omega2 less omega3: {list_of(accepts)}"),
        Statement("figure 15", "omega3 is superior early on (TV at a tenth of the run)",
                  all(g.below for g in first), f"omega3 less omega1, omega2: {list_of(first)}"),
        Statement("figure 15", "omega3 is overtaken at the end (TV)", all(g.below for g in later),
                  f"omega1, omega2 less omega3: {list_of(later)}"),
    ]  # fmt: skip


# --- theorem 3.1 ---------------------------------------------------------------------------------


def theorem(options: argparse.Namespace) -> Part:
    """Regret with the first plays of theorem 3.1, and without them, against the number of simulations."""
    rates = np.array([0.5, 0.6, 0.75, 0.9, 1.0])
    k, gamma, runs = len(rates), 0.5, options.theorem_runs
    pi = np.full(k, 1.0 / k)
    totals = [t for t in (20_000, 60_000, 200_000) if t <= options.theorem_steps]
    utilities = ("posterior", "efficiency", "ess")
    lost = {(u, m): [] for u in utilities for m in (True, False)}
    streams = spawn_generators([options.seed, 31], len(totals) * runs)
    for i, n in enumerate(totals):
        plays = initial_plays(n, k, gamma)
        for (utility, first), of in lost.items():
            of.append([
                inner_loop(pi, rates, n, rng, utility=utility,
                           plays=min(plays, n // k) if first else 0).regret.mean()
                for rng in streams[i * runs : (i + 1) * runs]
            ])  # fmt: skip
    lines, slopes = [], {}
    logs = np.log(totals)
    for (utility, first), of in lost.items():
        of = np.array(of)
        steepness = np.array([np.polyfit(logs, np.log(r), 1)[0] for r in of.T])
        slopes[utility, first] = steepness
        name = f"{OMEGAS[utility]}, {'with' if first else 'without'} first plays"
        lines.append([name, *(interval(v) for v in of), interval(steepness)])
    heads = ["scheme", *(f"R_T, T = {n:,}" for n in totals), "slope in log T"]
    text = f"## Theorem 3.1: five boxes, rates {rates.min():g} to 1, {runs} runs\n\n" + markdown(
        heads, lines
    )
    bound = float(np.polyfit(logs, np.log(np.log(totals) ** 2 / np.array(totals)), 1)[0])
    with_plays = [interval(slopes[u, True]) for u in utilities]
    without = [interval(slopes[u, False]) for u in utilities]
    holds = [slopes[u, True].mean() < 0.8 * bound for u in ("posterior", "efficiency")]
    return Part(text, [
        Statement("theorem 3.1", "with the first plays regret falls like log² T / T",
                  bool(all(holds)), f"slopes {', '.join(with_plays)} for omega1, omega2, ess; log² T / T has {bound:.2f}"),
        Statement("theorem 3.1", "they are not needed for that rate (ours)",
                  bool(all(slopes[u, False].mean() < 0.8 * bound for u in utilities)),
                  f"slopes without: {', '.join(without)}"),
    ])  # fmt: skip


# --- figure 4 ------------------------------------------------------------------------------------


def grid(options: argparse.Namespace) -> Part:
    """Figure 4: algorithm 1 on regular bins of example 2."""
    example, epsilon = univariate_mixture(), 0.5
    fine = (np.arange(100_000) + 0.5) / 100_000
    rate = mixture_acceptance(example.observed, epsilon, fine[:, None], UNIVARIATE)
    truth = np.cumsum(rate) / rate.sum()
    sizes, n, runs = (4, 25, 100, 1000, 2000), options.grid_steps, options.grid_runs
    times = times_up_to(n, 25, 200)
    errors, rates = {k: [] for k in sizes}, {k: [] for k in sizes}
    for rng in spawn_generators([options.seed, 4], runs):
        for k in sizes:
            bins = np.minimum((fine * k).astype(int), k - 1)
            mean = np.bincount(bins, rate, minlength=k) / np.bincount(bins, minlength=k)
            game = inner_loop(np.full(k, 1.0), np.clip(mean, 0.0, 1.0), n, rng, utility="posterior")
            hit = np.flatnonzero(game.accepted)
            rates[k].append(len(hit) / n)
            theta = accepted_in_bins(game.box[hit], k, truth, fine, rng)
            weight = 1.0 / (k * game.q[hit])
            errors[k].append([
                wasserstein(theta[hit < t], weight[hit < t], fine, truth) for t in times
            ])  # fmt: skip
    errors = {k: np.array(v) for k, v in errors.items()}
    middle, coarse, finest = 100, sizes[0], sizes[-1]
    half = len(times) // 2
    heads = ["bins", f"error, {times[half]:,} simulations", f"{times[-1]:,}", "acceptance"]
    lines = [
        [f"{k:,}", interval(v[:, half]), interval(v[:, -1]), interval(rates[k])]
        for k, v in errors.items()
    ]
    text = (
        f"## Figure 4: regular bins, example 2, {runs} runs\n\nWasserstein distance of weighted acceptances "
        "to the posterior at the tolerance, in its standard deviations.\n\n"
    ) + markdown(heads, lines)
    pairs, halfway = (
        [gap(errors[middle][:, j], errors[k][:, j]) for k in (coarse, finest)] for j in (-1, half)
    )
    wasted = gap(rates[coarse], rates[middle])
    return Part(text, [
        Statement("figure 4", "a coarse grid cannot leave out where the posterior is small: it accepts less",
                  wasted.below, f"acceptance, {coarse} less {middle} bins: {wasted}"),
        Statement("figure 4", f"a grid of middle size ({middle}) is more accurate than a coarse one ({coarse})",
                  pairs[0].below, f"at the end {pairs[0]}, halfway {halfway[0]}"),
        Statement("figure 4", f"and than a fine one ({finest:,})", pairs[1].below,
                  f"at the end {pairs[1]}, halfway {halfway[1]}"),
    ])  # fmt: skip


def accepted_in_bins(bins, k, cdf, fine, rng) -> np.ndarray:
    """Parameters of acceptances in given bins (n,), by inversion of their distribution function in the bin."""
    edges = np.interp(
        np.arange(k + 1) / k, np.append(0.0, fine + 0.5 / len(fine)), np.append(0.0, cdf)
    )
    low, high = edges[bins], edges[bins + 1]
    u = low + (high - low) * rng.random(len(bins))
    found = np.interp(u, np.append(0.0, cdf), np.append(0.0, fine + 0.5 / len(fine)))
    return np.clip(found, bins / k, (bins + 1) / k)


def wasserstein(theta, weight, fine, cdf) -> float:
    """Of weighted points to a distribution on a grid, in its standard deviations; that of all at 0 if none."""
    mass = np.diff(cdf, prepend=0.0)
    mean = mass @ fine
    sd = math.sqrt(mass @ (fine - mean) ** 2)
    if len(theta) == 0:
        return float(mean / sd)
    order = np.argsort(theta)
    ends = np.concatenate([[0.0], np.cumsum(weight[order])])
    own = ends[np.searchsorted(theta[order], fine, side="right")] / ends[-1]
    return float(np.abs(own - cdf).mean() / sd)


def costs(options: argparse.Namespace) -> Part:
    """Table 1: CPU seconds against boxes K, and against simulations or particles B."""
    rng = as_generator([options.seed, 1])
    points = rng.random((32_000, 5))

    def inner(k: int) -> None:
        inner_loop(np.ones(k), np.full(k, 0.1), 2_000, rng, utility="posterior")

    def cart(n: int) -> None:
        Cart(min_samples=10)(points[:n], points[:n, 0], None, rng)

    def smc(n: int) -> None:
        x, w = points[:n], np.ones(n)
        kernel_density(x, Checkpoint(0, 1.0, x, w), kernel_root(x, w))

    games = (inner, 300, 3000), (cart, 2000, 32_000), (smc, 500, 4000)
    slopes = np.array([slope_of_times(*game) for game in games])
    found, as_said = f"slopes {slopes.round(2)}", bool((abs(slopes - [1, 1, 2]) < 0.4).all())
    what = "costs grow like K, B log B and B² (slopes within 0.4)"
    return Part("## Table 1: costs\n\n" + found, [Statement("table 1", what, as_said, found)])


def slope_of_times(call: Callable[[int], None], *sizes: int) -> float:
    """Slope of the logarithm of CPU seconds, the least of three, against that of the size."""
    seconds = [min(repeat(lambda m=m: call(m), timer=process_time, repeat=3, number=1)) for m in sizes]  # fmt: skip
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
