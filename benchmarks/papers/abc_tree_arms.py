"""Figure 6: the best of fifty points whose rates of acceptance are known."""

from __future__ import annotations

import argparse
import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.rng import spawn_generators
from benchmarks.harness.intervals import gap, interval, list_of
from benchmarks.harness.statements import Part, Statement, times_up_to
from benchmarks.harness.tables import markdown

POLICIES = ("Thompson", "top-two", "UCB", "rejection")


@njit(cache=True)
def best_arm_game(rates, times, policy, b, rng):
    """Algorithm 5 and its peers: which arm seems best at some times (T,).

    `policy` is a place in ``POLICIES``. Top-two gives up the search for a
    second arm after a hundred draws, and pulls the first.
    """
    k, n = len(rates), times[-1]
    alpha, beta = np.ones(k), np.ones(k)
    guess, at = np.empty(len(times), np.int64), 0
    for t in range(n):
        if policy == 3:
            arm = rng.integers(0, k)
        elif policy == 2:
            arm, top = 0, -1.0
            for i in range(k):
                pulls = alpha[i] + beta[i] - 2.0
                bound = np.inf
                if pulls > 0.0:
                    bound = (alpha[i] - 1.0) / pulls + math.sqrt(2.0 * math.log(t + 1.0) / pulls)
                if bound > top:
                    arm, top = i, bound
        else:
            arm = _largest_draw(alpha, beta, rng)
            if policy == 1 and rng.random() >= b:
                first = arm
                for _ in range(100):
                    arm = _largest_draw(alpha, beta, rng)
                    if arm != first:
                        break
        if rng.random() < rates[arm]:
            alpha[arm] += 1.0
        else:
            beta[arm] += 1.0
        if t + 1 == times[at]:
            guess[at] = np.argmax(alpha / (alpha + beta))
            at += 1
    return guess


@njit(cache=True)
def _largest_draw(alpha, beta, rng):
    arm, top = 0, -1.0
    for i in range(len(alpha)):
        value = rng.beta(alpha[i], beta[i])
        if value > top:
            arm, top = i, value
    return arm


def arm_rates() -> np.ndarray:
    """Fifty rates with the largest at point 28 and rivals nearly as high; the paper draws its own only."""
    k = np.arange(1, 51)
    rates = (
        0.05
        + 0.40 * np.exp(-0.5 * ((k - 28) / 5.0) ** 2)
        + 0.38 * np.exp(-0.5 * ((k - 9) / 3.0) ** 2)
    )
    rates[27] += 0.05
    return rates


def arms(options: argparse.Namespace) -> Part:
    """Figure 6: how often the best of fifty points is found."""
    rates, n, runs = arm_rates(), options.arm_steps, options.arm_runs
    best = int(rates.argmax())
    times = times_up_to(n, 20, 100)
    right = {}
    for i, name in enumerate(POLICIES):
        streams = spawn_generators([options.seed, 6, i], runs)
        found = [best_arm_game(rates, times, i, 0.5, rng) == best for rng in streams]
        right[name] = np.array(found, float)
    middle = len(times) * 3 // 4
    heads = ["policy", f"right after {times[middle]:,}", f"after {n:,}"]
    lines = [[name, interval(v[:, middle]), interval(v[:, -1])] for name, v in right.items()]
    text = f"## Figure 6: the best of fifty points, {runs} runs\n\n" + markdown(heads, lines)
    mean = {s: v.mean(axis=1) for s, v in right.items()}  # over the times of the picture
    ahead = {
        s: [gap(mean[s], mean[o]) for o in ("rejection", "UCB")] for s in ("Thompson", "top-two")
    }
    two = gap(mean["top-two"], mean["Thompson"])
    return Part(text, [
        Statement("figure 6", "algorithm 3 (TS) finds the mode more often than rejection and UCB",
                  all(g.above for g in ahead["Thompson"]), list_of(ahead["Thompson"])),
        Statement("figure 6", "so does its top-two variant", all(g.above for g in ahead["top-two"]),
                  list_of(ahead["top-two"])),
        Statement("theorem 4.1", "top-two finds it at least as often as TS", not two.below, str(two)),
    ])  # fmt: skip
