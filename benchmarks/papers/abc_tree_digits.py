"""Figures 8, 9, 13, 14, 17 and 19: digits behind a mask."""

from __future__ import annotations

import argparse

import numpy as np

from amc_pymc.likelihood_free.trees import Cart
from amc_pymc.rng import as_generator, spawn_generators
from benchmarks.harness.intervals import gap, interval
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown
from benchmarks.papers.abc_tree_methods import (
    METHODS,
    Checkpoint,
    closest,
    first_tolerance,
    printed_tree,
)
from benchmarks.papers.abc_tree_posteriors import (
    HERE,
    PLUS_ONE,
    PRINTED,
    along,
    plus_one,
    times_of,
)
from models.masked_digits import decoder, masked_digits

#: An image, a zero, of which several digits remain possible, by trial runs of rejection, and the half that is
#: seen; the paper only shows its own.
IMAGE, SEEN = 10, "left"
#: Versions of ABC-Tree as printed in figure 13.
UTILITY_RUNS = {"omega1": "posterior", "omega2": "efficiency", "omega3": "kl"}


def digits(options: argparse.Namespace) -> Part:
    """Section 5.1: digits behind the mask, five latent dimensions, uniform prior."""
    example = masked_digits(5, image=IMAGE, seen=SEEN)
    network, n, runs = decoder(5), options.budget, options.digit_runs
    times = times_of(n)
    rng = as_generator([options.seed, 9])
    truth_u, tolerance = closest(example, options.digit_reference, rng)
    truth = network.shares(example.cube(truth_u))
    fixed = first_tolerance(
        example.distance(example.simulate(rng, example.cube(rng.random((20_000, 5)))))
    )
    fixed *= 0.9**5

    def off(c: Checkpoint) -> float:
        return float(0.5 * np.abs(shares_of(network, example, c) - truth).sum())

    methods = {**METHODS, PLUS_ONE: plus_one}
    for name, utility in list(UTILITY_RUNS.items())[1:]:
        methods[name] = lambda e, m, r, u=utility, **o: printed_tree(e, m, r, utility=u, **o)
    found = {m: {"tv": [], "overall": [], "tolerance": []} for m in methods}
    shares = {}
    for i, (name, method) in enumerate(methods.items()):
        last = []
        for stream in spawn_generators([options.seed, 9, i], runs):
            run = method(example, n, stream, lowest=tolerance)
            of = found[name]
            of["tv"].append(along(run, times, off))
            of["overall"].append(float((run.distance <= fixed).mean()))
            of["tolerance"].append(along(run, times, lambda c: c.tolerance))
            last.append(shares_of(network, example, run.path[-1]))
        shares[name] = np.mean(last, axis=0)
    found = {m: {k: np.array(v) for k, v in of.items()} for m, of in found.items()}
    found["omega1"] = found[PRINTED]
    heads = ["method", f"TV after {times[0]:,}", f"after {times[-1]:,}", "mean TV over the run",
             f"acceptance at {fixed:.2g}, whole run", "last tolerance"]  # fmt: skip
    lines = [
        [m, interval(of["tv"][:, 0]), interval(of["tv"][:, -1]), interval(of["tv"].mean(1)),
         interval(of["overall"]), interval(of["tolerance"][:, -1])]
        for m, of in found.items() if m != "omega1"
    ]  # fmt: skip
    told = ", ".join(f"{d}: {s:.2f}" for d, s in enumerate(truth) if s >= 0.005)
    text = (
        f"## Figures 8, 9, 13, 17: image {IMAGE}, {SEEN} half seen, {n:,} simulations, {runs} runs\n\n"
        f"Reference: the 1,000 closest of {options.digit_reference:,} prior draws, tolerance {tolerance:.3g}; "
        f"shares of digits {told}.\n\n"
    ) + markdown(heads, lines)
    return Part(text, digit_statements(found, shares, truth))


def shares_of(network, example, c: Checkpoint) -> np.ndarray:
    """Weighted shares (10,) of digits."""
    found = np.bincount(network.digit(example.cube(c.u)), c.weight, minlength=10)
    return found / found.sum()


def digit_statements(found, shares, truth) -> list[Statement]:
    """What section 5.1 and appendix C.3 say."""
    out = []
    for name in (PRINTED, HERE):
        who = "ABC-Tree" if name == PRINTED else "ABC-Tree as it is here (ours)"
        tv = found[name]["tv"]
        others = ("rejection", "SMC-ABC")
        path = [gap(tv.mean(1), found[o]["tv"].mean(1)) for o in others]
        end = [gap(tv[:, -1], found[o]["tv"][:, -1]) for o in others]
        rate = [gap(found[o]["overall"], found[name]["overall"]) for o in others]
        out += [
            Statement("figure 9 (c)", f"{who}: the distance to the reference falls faster (mean TV over the run)",
                      all(g.below for g in path), f"less rejection {path[0]}, less SMC-ABC {path[1]}"),
            Statement("figure 9 (d)", f"{who}: acceptance at a fixed tolerance rises much faster",
                      all(g.below for g in rate), f"rejection less it {rate[0]}, SMC-ABC less it {rate[1]}"),
            Statement("figure 17", f"{who}: the last sample resembles the reference most",
                      all(g.below for g in end), f"TV less rejection {end[0]}, less SMC-ABC {end[1]}"),
        ]  # fmt: skip
    common_digits = np.flatnonzero(truth > 0.02)
    caught = bool((shares[PRINTED][common_digits] > 0.0).all())
    cells = ", ".join(f"{d}: {shares[PRINTED][d]:.3f} of {truth[d]:.3f}" for d in common_digits)
    out.append(Statement("figure 9 (b)", "ABC-Tree catches multimodality: all digits of more than 2 %", caught, cells))  # fmt: skip
    omega3, rivals = found["omega3"], [found[o] for o in ("omega1", "omega2")]
    first = [gap(omega3["tv"].mean(1), of["tv"].mean(1)) for of in rivals]
    rate = [gap(omega3["overall"], of["overall"]) for of in rivals]
    fell = [gap(omega3["tolerance"].mean(1), of["tolerance"].mean(1)) for of in rivals]
    out += [
        Statement("figure 13", "a criterion that favours acceptance (omega3) approximates the posterior more quickly",
                  all(g.below for g in first), f"mean TV less omega1 {first[0]}, less omega2 {first[1]}"),
        Statement("figure 13", "it accepts more", all(g.above for g in rate),
                  f"less omega1 {rate[0]}, less omega2 {rate[1]}"),
        Statement("figure 13", "its tolerance falls sooner", all(g.below for g in fell),
                  f"mean over the run, less omega1 {fell[0]}, less omega2 {fell[1]}"),
    ]  # fmt: skip
    return out


def leaves(options: argparse.Namespace) -> Part:
    """Figure 14: ten leaves and a thousand, two latent dimensions, a one."""
    example = masked_digits(2, image=1, seen=SEEN)
    n, runs = options.leaf_steps, options.digit_runs
    rng = as_generator([options.seed, 14])
    fixed = closest(example, options.leaf_reference, rng)[1]
    found, lows = {}, {}
    for i, most in enumerate((10, 1000)):
        shares, low = [], []
        for stream in spawn_generators([options.seed, 14, i], runs):
            run = printed_tree(
                example, n, stream, partitioner=Cart(max_leaves=most, min_samples=10)
            )
            last = slice(len(run.distance) * 3 // 4, None)
            shares.append(float((run.distance[last] <= fixed).mean()))
            low.append(float((run.distance[last] > 1.5 * fixed).mean()))
        found[most], lows[most] = np.array(shares), np.array(low)
    sharper, spread = gap(found[1000], found[10]), gap(lows[10], lows[1000])
    heads = [
        "leaves",
        f"acceptance at {fixed:.3g}, last quarter",
        f"farther than {1.5 * fixed:.3g}",
    ]
    lines = [[f"{k:,}", interval(found[k]), interval(lows[k])] for k in found]
    text = (
        f"## Figure 14: at most 10 leaves or 1,000, {n:,} simulations, {runs} runs\n\n"
        + markdown(heads, lines)
    )
    return Part(text, [
        Statement("figure 14", "with a thousand leaves proposals are sharper: more acceptances", sharper.above,
                  f"1,000 less 10: {sharper}"),
        Statement("figure 14", "with ten leaves some parameters are spread across low posterior regions", spread.above,
                  f"far from the data, 10 less 1,000: {spread}"),
    ])  # fmt: skip
