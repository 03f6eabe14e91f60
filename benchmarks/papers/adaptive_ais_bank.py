"""Annealing runs with costs, and banks of them; see ``adaptive_ais.py``."""

from __future__ import annotations

import math
import time

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.evidence.annealing import Ladder, anneal, power_schedule
from amc_pymc.evidence.mcmc import Kernel, Particles, Slice, Tuning
from benchmarks.harness.intervals import RESAMPLES, Ratio
from benchmarks.harness.jobs import say
from benchmarks.harness.statements import batches
from models.logistic_regression import load_pima, neufeld, reference, standardise

VARIANCE = 0.05
COVARIATES = ("standardised", "raw")
KINDS = ("cpu", "counted")
#: Particles that are annealed together, the same for all arms, for the seconds depend on it.
_BATCH = 300
#: Widths of slices in prior standard deviations.
_WIDTH = 2.0


class Problem(NamedTuple):
    """Rows of the data, and their evidence."""

    covariates: str
    rows: int
    X: np.ndarray
    y: np.ndarray
    log_evidence: float
    error: float

    @property
    def n_dim(self) -> int:
        """D."""
        return self.X.shape[1]


def make_problem(path: str | None, covariates: str, rows: int) -> Problem:
    """The first rows of the Pima data."""
    X, y = load_pima(path)
    if covariates == "standardised":
        known = neufeld(path, rows)
        return Problem(
            covariates, rows, standardise(X)[:rows], y[:rows], known.log_evidence, known.error
        )
    scales = np.full(X.shape[1], VARIANCE**0.5)
    found = reference(X[:rows], y[:rows], scales, log2_points=16)
    return Problem(covariates, rows, X[:rows], y[:rows], *found)


@njit(cache=True, fastmath=True)
def add_values(x, signed, constant, counts, out):
    """Log prior and log likelihood (2, P) at points that end with the number of their particle."""
    n_rows, n_dim = signed.shape
    for p in range(x.shape[0]):
        squares = positive = 0.0
        for d in range(n_dim):
            squares += x[p, d] ** 2
        # sum of log(1 + e^z) = sum of max(z, 0) + log of the product of 1 + e^-|z|
        product = 1.0
        for i in range(n_rows):
            z = 0.0
            for d in range(n_dim):
                z += signed[i, d] * x[p, d]
            positive += max(z, 0.0)
            product *= 1.0 + math.exp(-abs(z))
        out[0, p] = constant - 0.5 / VARIANCE * squares
        out[1, p] = -positive - math.log(product)
        counts[int(x[p, n_dim])] += 1


@njit(cache=True, fastmath=True)
def add_gradients(x, signed, out):
    """Gradients (2, P, D + 1) of both; those by the number of a particle stay as they are."""
    n_rows, n_dim = signed.shape
    for p in range(x.shape[0]):
        for d in range(n_dim):
            out[0, p, d] = -x[p, d] / VARIANCE
        for i in range(n_rows):
            z = 0.0
            for d in range(n_dim):
                z += signed[i, d] * x[p, d]
            e = math.exp(-abs(z))
            share = (1.0 if z > 0.0 else e) / (1.0 + e)
            for d in range(n_dim):
                out[1, p, d] -= share * signed[i, d]


class LogisticPath:
    """From the prior to the posterior of a logistic regression of at most 1,000 rows.

    The last coordinate is the number of a particle, which no kernel moves: so evaluations are counted
    for each. ``evaluations`` (P,) counts gradients, too.
    """

    def __init__(self, problem: Problem, n_particles: int):
        self.signed = np.ascontiguousarray((1.0 - 2.0 * problem.y)[:, None] * problem.X)
        self.evaluations = np.zeros(n_particles, np.int64)
        self.constant = -0.5 * problem.n_dim * math.log(2.0 * math.pi * VARIANCE)

    @property
    def n_dim(self) -> int:
        """D + 1."""
        return self.signed.shape[1] + 1

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P)."""
        out = np.empty((2, len(x)))
        add_values(x, self.signed, self.constant, self.evaluations, out)
        return out

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, and gradients (2, P, D + 1)."""
        gradients = np.zeros((2, *x.shape))
        add_gradients(x, self.signed, gradients)
        return self.values(x), gradients


class Draws(NamedTuple):
    """Independent annealing runs of one arm.

    Attributes
    ----------
    log_weights : array (n,)
        Less the log evidence.
    evaluations : array (n,)
        Of the likelihood or its gradient.
    seconds : array (n,)
        Of CPU time.
    """

    log_weights: np.ndarray
    evaluations: np.ndarray
    seconds: np.ndarray

    def costs(self, kind: str) -> np.ndarray:
        """Of one of KINDS."""
        return self.seconds if kind == "cpu" else self.evaluations

    @property
    def relative_variance(self) -> float:
        """Of the weights, over their squared mean."""
        w = np.exp(self.log_weights - self.log_weights.max())
        return float(w.var(ddof=1) / w.mean() ** 2)

    @property
    def cautious_variance(self) -> float:
        """The larger of that and what log-normal weights would have; n draws never show more than n."""
        return max(self.relative_variance, math.expm1(min(self.log_weights.var(ddof=1), 600.0)))

    def some(self, i) -> Draws:
        """Of some draws."""
        return Draws(*(x[i] for x in self))


def fixed_ladder(size: float, n_dim: int) -> Ladder:
    """The same size at all temperatures, in prior standard deviations."""
    tuning = Tuning(size, np.full(n_dim, VARIANCE**0.5))
    nobody = Particles(np.empty((0, n_dim + 1)), np.empty((2, 0)))
    return Ladder(
        np.array([0.0, 1.0]), np.array([0.0, 1.0]), (tuning, tuning), math.nan, nobody,
        np.zeros(2), 1.0, math.nan,
    )  # fmt: skip


def prior_draws(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws and their numbers, (n, D + 1)."""
    theta = rng.normal(0.0, VARIANCE**0.5, (n, problem.n_dim))
    return np.column_stack([theta, np.arange(n)])


def moves_all(kernel: type, problem: Problem) -> Kernel:
    """A kernel with its defaults that leaves the numbers of particles alone."""
    return kernel(coordinates=tuple(range(problem.n_dim)))


def draw(
    problem: Problem, n_steps: int, n: int, rng: np.random.Generator, kernel: Kernel | None = None,
    ladder: Ladder | None = None,
) -> Draws:  # fmt: skip
    """Anneal n particles in n_steps steps, by default with slices of fixed width."""
    kernel = kernel or moves_all(Slice, problem)
    ladder = ladder or fixed_ladder(_WIDTH, problem.n_dim)
    betas = power_schedule(n_steps, 4.0)
    parts = []
    for size in batches(n, _BATCH):
        begun = time.thread_time()
        path = LogisticPath(problem, size)
        found = anneal(path, prior_draws(problem, size, rng), betas, kernel, ladder.at, rng)
        seconds = time.thread_time() - begun
        count = path.evaluations
        parts.append(
            Draws(
                found.log_weights - problem.log_evidence,
                count.astype(float),
                count * (seconds / count.sum()),
            )
        )
    return Draws(*map(np.concatenate, zip(*parts, strict=True)))


class Bank(NamedTuple):
    """Draws of all arms of one problem."""

    problem: Problem
    steps: tuple[int, ...]
    draws: tuple[Draws, ...]


def make_banks(options) -> list[Bank]:
    """Draw all banks."""
    banks = []
    for covariates in COVARIATES:
        sizes = options.bank if covariates == "standardised" else options.raw_bank
        for rows in options.rows:
            problem = make_problem(options.data, covariates, rows)
            draws = tuple(
                draw(problem, s, n, bank_generator(options.seed, problem, k))
                for k, (s, n) in enumerate(zip(options.steps, sizes, strict=True))
            )
            banks.append(Bank(problem, tuple(options.steps), draws))
            say(f"drawn: {covariates}, T = {rows}")
    return banks


def bank_generator(seed: int, problem: Problem, arm: int) -> np.random.Generator:
    """Of the draws of one arm."""
    return np.random.default_rng([seed, COVARIATES.index(problem.covariates), problem.rows, arm])


def price(draws: Draws, kind: str) -> float:
    """Mean cost times relative variance."""
    return draws.relative_variance * float(draws.costs(kind).mean())


def ratio(a: Draws, b: Draws, measure: Callable[[Draws], float]) -> Ratio:
    """A measure of some draws over that of others."""
    rng = np.random.default_rng(1)

    def resampled(draws: Draws) -> np.ndarray:
        n = draws.log_weights.size
        return np.array([measure(draws.some(rng.integers(0, n, n))) for _ in range(RESAMPLES)])

    low, high = np.percentile(resampled(a) / resampled(b), (2.5, 97.5))
    return Ratio(measure(a) / measure(b), float(low), float(high))


def price_ratio(a: Draws, b: Draws, kind: str) -> Ratio:
    """Mean cost times relative variance of one arm over that of another."""
    return ratio(a, b, lambda draws: price(draws, kind))
