"""Figures 7, 10, 16 and 20: posterior modes by MAP-Tree, kernel estimates and hierarchical optimisation."""

from __future__ import annotations

import argparse
import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from amc_pymc.bandits.hoo import HOO
from amc_pymc.likelihood_free.map_mode import estimate_mode
from amc_pymc.likelihood_free.map_search import map_batches, map_rounds
from amc_pymc.likelihood_free.partition import Partition
from amc_pymc.likelihood_free.trees import Cart, Dyadic
from amc_pymc.rng import as_generator, spawn_generators
from benchmarks.harness.intervals import gap, interval, list_of
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown, number, percent
from benchmarks.papers.abc_tree_methods import (
    Target,
    closest,
    kde_mode,
    printed_tree,
    rejection,
    smc,
)
from models.gaussian_mixtures import bivariate_mixture
from models.masked_digits import decoder, masked_digits
from models.simulator_example import SimulatorExample

PRINTED, HERE = "MAP-Tree, printed", "MAP-Tree, here"
#: As in ``abc_tree_digits.py``, a seven.
IMAGE, SEEN = 17, "right"


class Found(NamedTuple):
    """A mode (D,) in the unit cube, and boxes at the end where there are any."""

    u: np.ndarray
    partition: Partition | None = None


def by_rejection(example: SimulatorExample, n: int, rng: np.random.Generator) -> Found:
    """Kernel estimate from the thousand closest, or five per cent."""
    last = rejection(example, n, rng, quota=min(1000, max(n // 20, 10))).path[-1]
    return Found(kde_mode(last.u))


def by_smc(example: SimulatorExample, n: int, rng: np.random.Generator) -> Found:
    """Kernel estimate from the last population."""
    last = smc(example, n, rng, quota=min(1000, max(n // 20, 10))).path[-1]
    return Found(kde_mode(last.u, last.weight))


def printed(partitioner: Callable) -> Callable[..., Found]:
    """Algorithm 4: Thompson sampling of boxes, then a kernel estimate of what was accepted last."""

    def search(example: SimulatorExample, n: int, rng: np.random.Generator) -> Found:
        quota = min(1000, max(n // 20, 10))
        last = printed_tree(
            example, n, rng, partitioner=partitioner, quota=quota, thompson=True, block=50
        ).path[-1]
        return Found(kde_mode(last.u))

    return search


def package(example: SimulatorExample, n: int, rng: np.random.Generator) -> Found:
    """MAP-Tree as it is here."""
    target, sizes = Target(example), map_batches(n)
    streams = rng.spawn(2 * len(sizes))

    def parameters(u: np.ndarray) -> dict[str, np.ndarray]:
        return {"theta": example.cube(u)}

    def flat(u: np.ndarray) -> np.ndarray:
        return np.zeros(len(u))  # the priors are uniform

    def simulate(u: np.ndarray, b: int) -> np.ndarray:
        return target.simulate(u, streams[len(sizes) + b])

    for history in map_rounds(simulate, flat, example.n_dim, sizes, streams[: len(sizes)]):
        pass
    return Found(estimate_mode(history, parameters, flat).u, history.partition)


def by_hoo(example: SimulatorExample, n: int, rng: np.random.Generator) -> Found:
    """HOO with nu = 1 and acceptance at the tolerance 6; rho = 1 would never narrow down, here 0.999."""
    d, target = example.n_dim, Target(example)
    hoo = HOO(np.tile([0.0, 1.0], (d, 1)), nu=1.0, rho=0.999, horizon=n, max_depth=15 * d)
    while target.simulated < n:
        distance = target.simulate(hoo.ask(rng, min(20, n - target.simulated)), rng)
        hoo.tell(distance <= 6.0)
    return Found(hoo.best())


def searches() -> dict[str, Callable[..., Found]]:
    """By name, in the order of tables."""
    return {
        "rejection, KDE": by_rejection, "SMC-ABC, KDE": by_smc, "HOO": by_hoo,
        f"{PRINTED}, dyadic": printed(Dyadic(cuts=10)),
        f"{PRINTED}, CART": printed(Cart(max_leaves=1000, min_samples=10)), HERE: package,
    }  # fmt: skip


def run_all(example, n, runs, seed, methods) -> dict[str, np.ndarray]:
    """Modes (runs, D) in the cube by method."""
    found = {}
    for i, (name, search) in enumerate(methods.items()):
        streams = spawn_generators([seed, i], runs)
        found[name] = np.array([search(example, n, rng).u for rng in streams])
    return found


def mixture(options: argparse.Namespace) -> Part:
    """Figures 7 and 16: squared error of the mode of example 3."""
    example, n, runs = bivariate_mixture(), options.mode_steps, options.mode_runs
    found = run_all(example, n, runs, options.seed + 7, searches())
    theta = {m: example.cube(u) for m, u in found.items()}
    errors = {m: np.square(t - example.mode).sum(axis=1) for m, t in theta.items()}
    lines = [
        [m, interval(e), number(float(np.median(e))), percent(float((e > 1.0).mean()))]
        for m, e in errors.items()
    ]
    text = (
        f"## Figures 7 and 16: the mode of example 3, {n:,} simulations, {runs} runs\n\nThe mode is "
        f"({example.mode[0]:.4f}, {example.mode[1]:.4f}).\n\n"
    ) + markdown(["method", "mean squared error", "median", "more than 1 away"], lines)
    baselines = ("rejection, KDE", "SMC-ABC, KDE", "HOO")
    statements = []
    for figure, name in (
        ("7 (c)", f"{PRINTED}, dyadic"),
        ("16", f"{PRINTED}, CART"),
        ("7 (c)", HERE),
    ):
        gaps = [gap(errors[name], errors[b]) for b in baselines]
        mode, ours = name.split(", ", 1)[1], " (ours)" if name == HERE else ""
        statements.append(Statement(
            f"figure {figure}", f"MAP-Tree ({mode}{ours}) has a smaller squared error than rejection, SMC-ABC and HOO",
            all(g.below for g in gaps), f"less each: {list_of(gaps)}",
        ))  # fmt: skip
    return Part(text, statements)


def digit(options: argparse.Namespace) -> Part:
    """Figure 10: the digit at the mode, two latent dimensions."""
    example = masked_digits(2, image=IMAGE, seen=SEEN)
    network, n, runs = decoder(2), options.map_steps, options.map_runs
    rng = as_generator([options.seed, 10])
    near, tolerance = closest(example, options.map_reference, rng)
    mode = example.cube(kde_mode(near)[None])
    right = int(network.digit(mode)[0])
    methods = {k: v for k, v in searches().items() if k != "HOO"}
    found = run_all(example, n, runs, options.seed + 10, methods)
    theta = {m: example.cube(u) for m, u in found.items()}
    hits = {m: (network.digit(t) == right).astype(float) for m, t in theta.items()}
    squares = {m: np.square(t - mode).sum(axis=1) for m, t in theta.items()}
    lines = [
        [m, interval(hits[m]), interval(squares[m]), number(math.sqrt(theta[m].var(axis=0).sum()))]
        for m in methods
    ]
    label = int(network.labels[IMAGE])
    text = (
        f"## Figure 10: image {IMAGE} (a {label}), {SEEN} half seen, {n:,} simulations, {runs} runs\n\n"
        f"Reference: kernel mode of the 1,000 closest of {options.map_reference:,} prior draws (tolerance "
        f"{tolerance:.3g}), a {right}.\n\n"
    ) + markdown(
        ["method", f"rate of a {right}", "squared distance to the reference", "sd of estimates"],
        lines,
    )
    statements = []
    for name in (f"{PRINTED}, CART", f"{PRINTED}, dyadic", HERE):
        baselines = ("rejection, KDE", "SMC-ABC, KDE")
        rate = [gap(hits[name], hits[b]) for b in baselines]
        spread = [gap(_scatter(theta[name]), _scatter(theta[b])) for b in baselines]
        statements += [
            Statement("figure 10 (c)", f"{name}: the right digit with significantly higher probability",
                      all(g.above for g in rate), f"less rejection, SMC-ABC: {list_of(rate)}"),
            Statement("figure 10 (b)", f"{name}: a narrower distribution of estimates", all(g.below for g in spread),
                      f"squared distance to their mean, less rejection, SMC-ABC: {list_of(spread)}"),
        ]  # fmt: skip
    return Part(text, statements)


def _scatter(theta: np.ndarray) -> np.ndarray:
    return np.square(theta - theta.mean(axis=0)).sum(axis=1)
