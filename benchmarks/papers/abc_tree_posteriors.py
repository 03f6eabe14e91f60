"""Figures 2, 5, 11, 12 and appendix C.1: posteriors by rejection, SMC-ABC and two ABC-Trees."""

from __future__ import annotations

import argparse
import time

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from scipy.special import ndtr
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.tree import DecisionTreeRegressor

from amc_pymc.likelihood_free.partition import Partition
from amc_pymc.likelihood_free.trees import Dyadic
from amc_pymc.rng import as_generator, spawn_generators
from benchmarks.harness.intervals import gap, interval, list_of
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown, number
from benchmarks.papers.abc_tree_methods import (
    METHODS,
    Checkpoint,
    Run,
    closest,
    marginal_tv,
    printed_tree,
    resampled,
    squared_mmd,
)
from models.gaussian_mixtures import BIVARIATE, acceptance, bivariate_mixture
from models.point_simulators import gaussian_known
from models.process_simulators import heston, lotka_volterra
from models.simulator_example import SimulatorExample

PRINTED, HERE = "ABC-Tree, printed", "ABC-Tree, here"
#: As printed, but with Beta(1, 1) added to the counts in new boxes.
PLUS_ONE = "ABC-Tree, printed, counts + 1"
#: Draws that discrepancies are taken between.
_DRAWS = 500


def times_of(n: int) -> np.ndarray:
    """Numbers of simulations at which runs are compared, from a tenth of the budget on."""
    return np.unique(np.geomspace(n / 10, n, 8).round().astype(int))


def along(run: Run, times: np.ndarray, measure: Callable[[Checkpoint], float]) -> np.ndarray:
    """A measure of the last checkpoint at each time (T,); of the first where there was none yet."""
    made = [run.at(int(t)) or run.path[0] for t in times]
    known = {c.simulations: measure(c) for c in {c.simulations: c for c in made}.values()}
    return np.array([known[c.simulations] for c in made])


def pruned_cart(
    u: np.ndarray, near: np.ndarray, before: Partition | None, rng: np.random.Generator
) -> Partition:
    """CART pruned at the complexity cost with the least cross-validated squared error (Breiman et al. 1984)."""
    values, seed = np.sqrt(near), int(rng.integers(2**31))
    tree = DecisionTreeRegressor(max_leaf_nodes=1000, min_samples_leaf=10, random_state=seed)
    costs = tree.cost_complexity_pruning_path(u, values).ccp_alphas
    costs = np.unique(np.maximum(np.quantile(costs, (0.0, 0.5, 0.75, 0.9, 0.97)), 0.0))
    search = GridSearchCV(
        tree, {"ccp_alpha": costs}, scoring="neg_mean_squared_error",
        cv=KFold(5, shuffle=True, random_state=seed),
    )  # fmt: skip
    fitted = search.fit(u, values).best_estimator_.tree_
    feature = np.maximum(fitted.feature, -1)
    nodes = feature, fitted.threshold, fitted.children_left, fitted.children_right
    return Partition(*nodes, u.shape[1])


# --- figures 2 and 5 -----------------------------------------------------------------------------


def partitions() -> dict[str, Callable]:
    """Partitioners of section 3.2.1 that are installed."""
    out: dict[str, Callable] = {"CART, pruned": pruned_cart, "dyadic": Dyadic(cuts=10)}
    with suppress(ImportError):
        from benchmarks.papers.bart import bart

        out["BART"] = bart
    return out


def proposal_density(partition: Partition, q: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Density (n,) of a proposal relative to the prior."""
    return (q / partition.volumes)[partition.find(points)]


def proposals(options: argparse.Namespace) -> Part:
    """Figures 2 and 5: how proposals close in on the posterior of example 3."""
    example, n, side = bivariate_mixture(), options.example_steps, 200
    axis = (np.arange(side) + 0.5) / side
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = example.cube(points)

    rate = acceptance(example.observed, 1e-2, theta, BIVARIATE)
    exact = rate / rate.mean()
    lines, statements = [], []
    for name, partitioner in partitions().items():
        final, boxes = [], []
        for rng in spawn_generators([options.seed, 5], options.example_runs):
            run = printed_tree(
                example, n, rng, partitioner=partitioner, quota=options.example_quota, factor=0.8
            )
            path = [c for c in run.path if c.proposal is not None]
            densities = [proposal_density(*c.proposal, points) for c in path]
            final.append([float(0.5 * np.abs(q - exact).mean()) for q in densities])
            boxes.append([c.proposal[0].boxes for c in path])
        rounds = min(map(len, final))
        first, end = np.array([f[0] for f in final]), np.array([f[-1] for f in final])
        lines.append([
            name, str(rounds), f"{np.mean([b[-1] for b in boxes]):.0f}", interval(first), interval(end),
        ])  # fmt: skip
        closer = gap(end, first)
        statements.append(Statement(
            "figure 5", f"proposals of {name} encapsulate the posterior more closely as the tolerance falls",
            closer.below, f"TV to the exact posterior, last less first round: {closer}",
        ))  # fmt: skip
    if "BART" not in partitions():
        lines.append(["BART", *["not installed"] * 4])
    heads = [
        "partition", "rounds", "boxes", "TV of the first proposal to the exact posterior",
        "of the last",
    ]  # fmt: skip
    text = f"## Figures 2 and 5: proposals of example 3, {n:,} simulations\n\n" + markdown(
        heads, lines
    )
    return Part(text, statements)


# --- figures 11 and 12 ---------------------------------------------------------------------------


def compare(
    options, example: SimulatorExample, figure: str, runs: int, n: int, reference: int
) -> Part:
    """Discrepancies to the closest of very many prior draws."""
    rng = as_generator([options.seed, 11, example.n_dim])
    times = times_of(n)
    truth_u, tolerance = closest(example, reference, rng)
    truth = truth_u[rng.choice(len(truth_u), _DRAWS, replace=False)]
    found = {m: {k: [] for k in ("mmd", "tv", "tolerance", "seconds")} for m in METHODS}
    for i, (name, method) in enumerate(METHODS.items()):
        for stream in spawn_generators([options.seed, 11, i], runs):
            begun = time.process_time()
            run = method(example, n, stream, lowest=tolerance)
            of = found[name]
            of["seconds"].append(time.process_time() - begun)
            of["mmd"].append(
                along(run, times, lambda c, s=stream: squared_mmd(resampled(c, _DRAWS, s), truth))
            )
            of["tv"].append(along(run, times, lambda c: marginal_tv(c.u, c.weight, truth_u)))
            of["tolerance"].append(along(run, times, lambda c: c.tolerance))
    found = {m: {k: np.array(v) for k, v in of.items()} for m, of in found.items()}
    heads = ["method", "squared MMD", "marginal TV", "last tolerance", "seconds a run"]
    lines = [
        [
            m,
            *(interval(of[k][:, -1]) for k in ("mmd", "tv", "tolerance")),
            number(of["seconds"].mean()),
        ]
        for m, of in found.items()
    ]
    text = (
        f"## Figure {figure}: {example.name}, {n:,} simulations, {runs} runs\n\nReference: the 1,000 closest of "
        f"{reference:,} prior draws, tolerance {tolerance:.3g}.\n\n"
    ) + markdown(heads, lines)
    return Part(text, compare_statements(found, figure))


def compare_statements(found, figure) -> list[Statement]:
    """ABC-Tree is better under a budget, by each measure, for both versions."""
    out = []
    said = {"mmd": "MMD", "tv": "total variation"}
    for name in (PRINTED, HERE):
        who = "ABC-Tree" if name == PRINTED else "ABC-Tree as it is here (ours)"
        for k, title in said.items():
            gaps = [
                gap(found[name][k][:, -1], found[o][k][:, -1]) for o in ("rejection", "SMC-ABC")
            ]
            out.append(Statement(
                f"figure {figure}", f"{who} does better than rejection and SMC-ABC under the budget: {title}",
                all(g.below for g in gaps), f"less rejection {gaps[0]}, less SMC-ABC {gaps[1]}",
            ))  # fmt: skip
    return out


def heston_part(options: argparse.Namespace) -> Part:
    """Figure 11."""
    return compare(
        options, heston(), "11", options.heston_runs, options.budget, options.heston_reference
    )


def lotka_part(options: argparse.Namespace) -> Part:
    """Figure 12."""
    example = lotka_volterra(prior="unit")
    return compare(
        options, example, "12", options.lotka_runs, options.lotka_steps, options.lotka_reference
    )


def dimensions(options: argparse.Namespace) -> Part:
    """Appendix C.1: ABC-Tree and SMC-ABC in more and more dimensions."""
    n, runs, sizes = options.dimension_steps, options.dimension_runs, (2, 5, 10)
    found: dict[tuple[str, int], np.ndarray] = {}
    for d in sizes:
        example = gaussian_known(d)
        draws = example.reference(as_generator([options.seed, 111, d]), _DRAWS)
        truth = ndtr((draws - draws.mean(0)) / draws.std(0))
        centre, spread = draws.mean(0), draws.std(0)
        for i, (name, method) in enumerate(METHODS.items()):
            of = []
            for stream in spawn_generators([options.seed, 112, d, i], runs):
                x = example.cube(resampled(method(example, n, stream).path[-1], _DRAWS, stream))
                of.append(squared_mmd(ndtr((x - centre) / spread), truth))
            found[name, d] = np.array(of)
    heads = ["method", *(f"D = {d}" for d in sizes)]
    lines = [[m, *(interval(found[m, d]) for d in sizes)] for m in METHODS]
    text = (
        f"## Appendix C.1: a normal mean in D dimensions, {n:,} simulations, {runs} runs\n\nSquared MMD to "
        "the exact posterior.\n\n"
    ) + markdown(heads, lines)
    gaps = {m: [gap(found[m, d], found["SMC-ABC", d]) for d in sizes] for m in (PRINTED, HERE)}
    return Part(text, [
        Statement("appendix C.1", f"{m} is ahead of SMC-ABC especially in more dimensions",
                  gaps[m][-1].below and gaps[m][-1].mean < gaps[m][0].mean,
                  f"MMD less that of SMC-ABC, D = 2, 5, 10: {list_of(gaps[m])}")
        for m in (PRINTED, HERE)
    ])  # fmt: skip


def weights(options: argparse.Namespace) -> Part:
    """Section 3.1: mean and variance of weighted acceptances against the posterior at their tolerance."""
    example, n, runs, quota = gaussian_known(2), options.weight_steps, options.weight_runs, 300
    methods = {**METHODS, PLUS_ONE: plus_one}
    found = {}
    for i, (name, method) in enumerate(methods.items()):
        of = []
        for rng in spawn_generators([options.seed, 31, i], runs):
            last = method(example, n, rng, quota=quota).path[-1]
            x, w = example.cube(last.u), last.weight / last.weight.sum()
            exact = example.epsilon_reference(rng, 4_000, last.tolerance)
            mean = w @ x
            # Of the first coordinate; acceptance is largest at -0.75, the prior's mean is 0.
            of.append(
                [
                    mean[0] - exact[:, 0].mean(),
                    w @ (x[:, 0] - mean[0]) ** 2 / exact[:, 0].var() - 1.0,
                ]
            )
        found[name] = np.array(of)
    lines = [[m, interval(v[:, 0]), interval(v[:, 1])] for m, v in found.items()]
    text = (
        f"## Weights: a normal mean in two dimensions, {n:,} simulations, {runs} runs\n\nBias of the mean of the "
        "first coordinate, and relative bias of its variance.\n\n"
    ) + markdown(["method", "mean", "variance"], lines)
    statements = []
    for name in (PRINTED, PLUS_ONE, HERE):
        gaps = [gap(found[name][:, j]) for j in (0, 1)]
        statements.append(Statement(
            "section 3.1", f"{name}: weights revert samples to the prior, so that means and variances are unbiased",
            not any(g.below or g.above for g in gaps), f"mean {gaps[0]}, variance {gaps[1]}",
        ))  # fmt: skip
    return Part(text, statements)


def plus_one(example, n, rng, **options) -> Run:
    """As printed, with both counts of every new box one larger."""
    return printed_tree(example, n, rng, pseudo=1.0, **options)
