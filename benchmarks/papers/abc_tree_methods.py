"""Samplers that ``abc_tree.py`` compares: rejection, SMC-ABC, ABC-Tree as printed, ABC-Tree as it is here.

All of them work in the unit cube, where priors are uniform, and stop after so many simulations, of which
those outside the cube are none. Tolerances of SMC-ABC and of ABC-Tree as printed begin at the
20 % quantile of the first `quota` distances, which the paper leaves open, and fall by 0.9 whenever
`quota` simulations have been accepted; both return what the last complete round accepted. No
sampler goes below the tolerance `lowest`, that of a reference they are compared with.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scipy.spatial.distance import cdist, pdist
from scipy.stats import gaussian_kde

from amc_pymc.likelihood_free.accepted import accept, final_tolerance
from amc_pymc.likelihood_free.history import batch_sizes
from amc_pymc.likelihood_free.learning import TreeProposal, rounds
from amc_pymc.likelihood_free.partition import Partition, whole_cube
from amc_pymc.likelihood_free.problem import Simulated
from amc_pymc.likelihood_free.proposal import best_proposal
from amc_pymc.likelihood_free.trees import Cart
from amc_pymc.logweights import systematic
from models.simulator_example import SimulatorExample

QUOTA, FACTOR, FIRST = 1000, 0.9, 0.2
#: Simulations between two updates of a proposal; the paper updates after each.
BLOCK = 100


@dataclass
class Target:
    """An example in the unit cube that remembers what was simulated.

    Attributes
    ----------
    example : SimulatorExample
    u : list of arrays (n, D)
    distance : list of arrays (n,)
    """

    example: SimulatorExample
    u: list[np.ndarray] = field(default_factory=list)
    distance: list[np.ndarray] = field(default_factory=list)

    @property
    def n_dim(self) -> int:
        """D."""
        return self.example.n_dim

    @property
    def simulated(self) -> int:
        """Simulations so far."""
        return sum(map(len, self.distance))

    def simulate(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Distances (n,) at points (n, D)."""
        found = self.example.distance(self.example.simulate(rng, self.example.cube(u)))
        self.u.append(u)
        self.distance.append(found)
        return found

    def log_density(self, u: np.ndarray) -> None:
        """The prior is uniform."""


class Checkpoint(NamedTuple):
    """A weighted sample of the posterior after so many simulations.

    Attributes
    ----------
    simulations : int
    tolerance : float
    u : array (n, D)
    weight : array (n,)
    proposal : tuple of Partition and array (K,), or None
    """

    simulations: int
    tolerance: float
    u: np.ndarray
    weight: np.ndarray
    proposal: tuple[Partition, np.ndarray] | None = None


class Run(NamedTuple):
    """A run: its checkpoints, and all simulations in order.

    Attributes
    ----------
    path : list of Checkpoint
    u : array (N, D)
    distance : array (N,)
    """

    path: list[Checkpoint]
    u: np.ndarray
    distance: np.ndarray

    def at(self, simulations: int) -> Checkpoint | None:
        """The last checkpoint that took no more simulations; None if there is none yet."""
        made = [c for c in self.path if c.simulations <= simulations]
        return made[-1] if made else None


def finish(target: Target, path: list[Checkpoint]) -> Run:
    """Collect a run."""
    return Run(path, np.concatenate(target.u), np.concatenate(target.distance))


# --- samplers ------------------------------------------------------------------------------------


def rejection(
    example: SimulatorExample, n: int, rng: np.random.Generator, *, quota: int = QUOTA,
    lowest: float = 0.0,
) -> Run:  # fmt: skip
    """The `quota` closest of draws from the prior, or a fifth of them, or all within the lowest tolerance."""
    target, path = Target(example), []
    for part in np.diff(np.geomspace(min(quota, n), n, 13).round().astype(int), prepend=0):
        if part == 0:
            continue
        target.simulate(rng.random((part, target.n_dim)), rng)
        d, u = np.concatenate(target.distance), np.concatenate(target.u)
        enough = max(min(quota, math.ceil(FIRST * len(d))), int((d <= lowest).sum()))
        kept = np.argsort(d, kind="stable")[:enough]
        path.append(Checkpoint(len(d), float(d[kept[-1]]), u[kept], np.ones(len(kept))))
    return finish(target, path)


def first_tolerance(distance: np.ndarray) -> float:
    """Quantile of distances that printed samplers begin with."""
    return float(np.quantile(np.minimum(distance, np.finfo(float).max), FIRST, method="lower"))


def smc(
    example: SimulatorExample, n: int, rng: np.random.Generator, *, quota: int = QUOTA,
    lowest: float = 0.0,
) -> Run:  # fmt: skip
    """Population Monte Carlo ABC of Beaumont, Cornuet, Marin & Robert (2009), doi:10.1093/biomet/asp052.

    Normal kernels with twice the weighted covariance matrix of the particles.
    """
    target, path = Target(example), []
    size = min(quota, n)
    u = rng.random((size, target.n_dim))
    distance = target.simulate(u, rng)
    tolerance = first_tolerance(distance)
    while target.simulated < n:
        last = path[-1] if path else None
        kept_u, kept_d = [], []
        root = None if last is None else kernel_root(last.u, last.weight)
        if last is None:
            kept_u, kept_d = [u], [distance]
        while sum(int((d <= tolerance).sum()) for d in kept_d) < quota and target.simulated < n:
            block = min(BLOCK, n - target.simulated)
            found = _proposed(last, root, block, target.n_dim, rng)
            kept_u.append(found)
            kept_d.append(target.simulate(found, rng))
        d, all_u = np.concatenate(kept_d), np.concatenate(kept_u)
        hit = np.flatnonzero(d <= tolerance)[:quota]
        if len(hit) < quota and path:
            break
        new = all_u[hit]
        weight = np.ones(len(hit)) if last is None else 1.0 / kernel_density(new, last, root)
        path.append(Checkpoint(target.simulated, tolerance, new, weight / weight.sum()))
        tolerance = max(FACTOR * tolerance, lowest)
    return finish(target, path)


def kernel_root(u: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Cholesky factor of twice the weighted covariance matrix."""
    cov = np.cov(u.T, aweights=weight).reshape(u.shape[1], -1)
    return np.linalg.cholesky(2.0 * cov + 1e-14 * np.eye(len(cov)))


def kernel_density(x: np.ndarray, last: Checkpoint, root: np.ndarray) -> np.ndarray:
    """Density (n,) of kernels around the last population, up to a factor."""
    z = np.linalg.solve(root, x.T).T
    centres = np.linalg.solve(root, last.u.T).T
    return np.exp(-0.5 * cdist(z, centres, "sqeuclidean")) @ last.weight


def _proposed(last, root, n, n_dim, rng):
    if last is None:
        return rng.random((n, n_dim))
    out = np.empty((0, n_dim))
    while len(out) < n:
        at = last.u[rng.choice(len(last.u), n, p=last.weight)]
        found = at + rng.standard_normal((n, n_dim)) @ root.T
        out = np.concatenate([out, found[((found >= 0.0) & (found < 1.0)).all(axis=1)]])
    return out[:n]


def printed_tree(
    example: SimulatorExample, n: int, rng: np.random.Generator, *, utility: str = "posterior",
    partitioner: Callable = Cart(max_leaves=1000, min_samples=10), quota: int = QUOTA,
    factor: float = FACTOR, thompson: bool = False, pseudo: float = 0.0, block: int = BLOCK,
    lowest: float = 0.0,
) -> Run:  # fmt: skip
    """Algorithms 1 and 2 of the paper, or with `thompson` 3 and 4: acceptance as labels, counts as they are.

    The proposal is updated after each block. As printed, a box in which nothing has been accepted is never
    drawn from again, which biases the sample; `pseudo` is added to both counts of every box in a new
    partition.
    """
    target, path = Target(example), []
    u = rng.random((min(quota, n), target.n_dim))
    distance = target.simulate(u, rng)
    tolerance = first_tolerance(distance)
    partition, alpha, beta = whole_cube(target.n_dim), np.ones(1), np.ones(1)
    while target.simulated < n:
        kept, weights, hits = [], [], 0
        pi = partition.volumes
        while hits < quota and target.simulated < n:
            size = min(block, n - target.simulated)
            total = alpha + beta
            if thompson:
                eta = rng.beta(np.maximum(alpha, 1e-9), np.maximum(beta, 1e-9), (size, len(pi)))
                boxes, q = eta.argmax(axis=1), None
            else:
                rates = np.divide(alpha, total, out=np.full(len(pi), 0.5), where=total > 0.0)
                q = best_proposal(pi * rates, pi, utility)
                boxes = rng.choice(len(pi), size, p=q)
            u = partition.draw(boxes, rng)
            accepted = target.simulate(u, rng) <= tolerance
            alpha = alpha + np.bincount(boxes[accepted], minlength=len(pi))
            beta = beta + np.bincount(boxes[~accepted], minlength=len(pi))
            hits += int(accepted.sum())
            kept.append(u[accepted])
            own = boxes[accepted]
            weights.append(np.ones(len(own)) if q is None else pi[own] / q[own])
        if hits < quota and path:
            break
        made = None if q is None else (partition, q)
        found = np.concatenate(kept), np.concatenate(weights)
        path.append(Checkpoint(target.simulated, tolerance, *found, made))
        all_u, labels = np.concatenate(target.u), np.concatenate(target.distance) <= tolerance
        partition = partitioner(all_u, labels.astype(float), partition, rng)
        found = partition.find(all_u)
        alpha = np.bincount(found, labels, minlength=partition.boxes) + pseudo
        beta = np.bincount(found, ~labels, minlength=partition.boxes) + pseudo
        tolerance = max(factor * tolerance, lowest)
    return finish(target, path)


def package_tree(
    example: SimulatorExample, n: int, rng: np.random.Generator, *, quota: int = QUOTA,
    lowest: float = 0.0, **options,
) -> Run:  # fmt: skip
    """``sample_abc_tree`` with its defaults, or others of its learner."""
    target, path = Target(example), []
    sizes = batch_sizes(n)
    proposal = TreeProposal(accepts=quota, **{"partition": (Cart(random_beyond=0),) * 4} | options)
    streams = rng.spawn(2 * len(sizes))

    def simulate(u: np.ndarray, b: int) -> Simulated:
        return Simulated(target.simulate(u, streams[len(sizes) + b]), [])

    for history in rounds(target, simulate, sizes, streams[: len(sizes)], proposal, lowest):
        d, w = history.distance, history.log_weight
        found = accept(d, w, final_tolerance(d, w, accepts=quota, lowest=lowest))
        path.append(Checkpoint(len(d), found.tolerance, history.u[found.index], found.weight))
    return finish(target, path)


METHODS: dict[str, Callable[..., Run]] = {
    "rejection": rejection, "SMC-ABC": smc, "ABC-Tree, printed": printed_tree,
    "ABC-Tree, here": package_tree,
}  # fmt: skip


def closest(
    example: SimulatorExample, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """The thousand closest (1000, D) of very many draws from the prior, in the cube, and the largest of their distances."""
    u, d = np.empty((0, example.n_dim)), np.empty(0)
    for start in range(0, n, 50_000):
        new = rng.random((min(50_000, n - start), example.n_dim))
        u = np.concatenate([u, new])
        d = np.concatenate([d, example.distance(example.simulate(rng, example.cube(new)))])
        kept = np.argpartition(d, min(QUOTA, len(d)) - 1)[:QUOTA]
        u, d = u[kept], d[kept]
    return u, float(d.max())


# --- measures ------------------------------------------------------------------------------------


def resampled(found: Checkpoint, n: int, rng: np.random.Generator) -> np.ndarray:
    """Points (n, D) of equal weight."""
    return found.u[systematic(found.weight, n, rng)]


def squared_mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Unbiased squared maximum mean discrepancy, normal kernel, by the median distance in y.

    Gretton et al. (2012), Journal of Machine Learning Research 13, 723-773.
    """
    scale = np.median(pdist(y)) ** 2

    def kernel(a, b):
        return np.exp(-cdist(a, b, "sqeuclidean") / scale)

    def within(a):
        k = kernel(a, a)
        return (k.sum() - np.trace(k)) / (len(a) * (len(a) - 1))

    return float(within(x) + within(y) - 2.0 * kernel(x, y).mean())


def marginal_tv(x: np.ndarray, weight: np.ndarray, y: np.ndarray) -> float:
    """Total variation distance of histograms over the cube, mean over coordinates."""
    edges = np.linspace(0.0, 1.0, 21)
    out = []
    for d in range(x.shape[1]):
        a = np.histogram(x[:, d], edges, weights=weight)[0]
        b = np.histogram(y[:, d], edges)[0]
        out.append(0.5 * np.abs(a / a.sum() - b / b.sum()).sum())
    return float(np.mean(out))


def kde_mode(u: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Where a normal kernel estimate (Scott's widths) of points (n, D) is largest, by mean shift."""
    kde = gaussian_kde(u.T, weights=weight)
    root = np.linalg.cholesky(kde.covariance)
    z = np.linalg.solve(root, u.T).T
    x = z[np.argsort(-kde(u.T))[:: max(1, len(u) // 20)]]
    for _ in range(200):
        k = np.exp(-0.5 * cdist(x, z, "sqeuclidean")) * kde.weights
        new = k @ z / np.maximum(k.sum(axis=1, keepdims=True), 1e-300)
        if np.abs(new - x).max() < 1e-6:
            break
        x = new
    x = x @ root.T
    return x[int(np.argmax(kde(x.T)))]
