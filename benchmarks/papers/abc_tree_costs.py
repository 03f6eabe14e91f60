"""Table 1: what ABC-Tree and its peers cost."""

from __future__ import annotations

import argparse
import math
import time

from collections.abc import Callable

import numpy as np

from amc_pymc.likelihood_free.partition import Partition
from amc_pymc.likelihood_free.trees import Cart
from amc_pymc.rng import as_generator
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown
from benchmarks.papers.abc_tree_methods import METHODS, Checkpoint, kernel_density, kernel_root
from benchmarks.papers.abc_tree_posteriors import PRINTED
from benchmarks.papers.inner_loop import inner_loop
from models.point_simulators import gaussian_known


def costs(options: argparse.Namespace) -> Part:
    """Table 1: seconds per simulation and per tolerance against boxes, particles, and dimensions."""
    rng = as_generator([options.seed, 1])

    def seconds(call: Callable[[], object], repeats: int = 3) -> float:
        call()
        best = math.inf
        for _ in range(repeats):
            begun = time.process_time()
            call()
            best = min(best, time.process_time() - begun)
        return best

    boxes, n = np.array([300, 1000, 3000]), 2_000
    inner = [
        seconds(lambda k=k: inner_loop(np.ones(k), np.full(k, 0.1), n, rng, utility="posterior"))
        / n
        for k in boxes
    ]
    sizes = np.array([2_000, 8_000, 32_000])
    points, d = rng.random((int(sizes[-1]), 5)), 5

    def cart(m: int) -> Partition:
        return Cart(min_samples=10)(points[:m], (points[:m].sum(1) < 2.0).astype(float), None, rng)

    cart_s = [seconds(lambda m=m: cart(m)) for m in sizes]
    particles = np.array([500, 1_000, 2_000, 4_000])
    last = Checkpoint(0, 1.0, points, np.ones(len(points)))

    def weigh(b: int) -> np.ndarray:
        population = replace_population(last, b)
        return kernel_density(
            population.u, population, kernel_root(population.u, population.weight)
        )

    smc_s = [seconds(lambda b=b: weigh(b)) for b in particles]
    example, budget = gaussian_known(d), options.cost_steps
    alone = seconds(
        lambda: example.distance(example.simulate(rng, example.cube(rng.random((budget, d)))))
    )
    whole = {
        name: seconds(lambda m=method: m(example, budget, as_generator([options.seed, 2])), 1)
        - alone
        for name, method in METHODS.items()
    }
    slopes = {
        "K": _slope(boxes, inner),
        "B log B": _slope(sizes * np.log(sizes), cart_s),
        "B^2": _slope(particles, smc_s),
    }
    lines = [
        ["inner loop, per simulation, against K", ", ".join(f"{1e6 * s:.2f} us" for s in inner), f"{slopes['K']:.2f}", "1"],
        ["CART, per tolerance, against n log n", ", ".join(f"{1e3 * s:.1f} ms" for s in cart_s), f"{slopes['B log B']:.2f}", "1"],
        ["SMC-ABC weights, per tolerance, against B", ", ".join(f"{1e3 * s:.1f} ms" for s in smc_s), f"{slopes['B^2']:.2f}", "2"],
        *([f"{name}, whole run without simulating, D = {d}", f"{1e6 * s / budget:.1f} us a simulation", "", ""]
          for name, s in whole.items()),
    ]  # fmt: skip
    text = "## Table 1: costs\n\n" + markdown(["what", "measured", "slope", "table 1"], lines)
    near = [abs(slopes[k] - v) < 0.4 for k, v in (("K", 1.0), ("B log B", 1.0), ("B^2", 2.0))]
    ratio = whole[PRINTED] / max(whole["SMC-ABC"], 1e-9)
    return Part(text, [
        Statement("table 1", "costs grow like K, B log B and B² (slopes within 0.4)", all(near),
                  ", ".join(f"{k}: {v:.2f}" for k, v in slopes.items())),
        Statement("table 1", "ABC-Tree (CART) costs less than SMC-ABC where K < d B", bool(ratio < 1.0),
                  f"{ratio:.2f} times its cost, K <= 1,000, B = 1,000, d = {d}"),
    ])  # fmt: skip


def replace_population(found: Checkpoint, b: int) -> Checkpoint:
    """The first b particles."""
    return found._replace(u=found.u[:b], weight=found.weight[:b])


def _slope(x, y) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
