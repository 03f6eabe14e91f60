"""Partitions of the unit cube by trees: CART, dyadic halving and BART."""

from __future__ import annotations

import ctypes

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from amc_pymc.engine.regression_trees import exact_tree, random_tree
from amc_pymc.likelihood_free.partition import (
    NARROWEST,
    Partition,
    cut_boxes,
    separation,
    shrunk_rates,
    whole_cube,
)

#: Kernel value below which simulations are far, and maximum number of near and of far ones that a tree is fitted to.
_NEAR, _MOST = 0.01, 20_000


class Partitioner(Protocol):
    """Interface of functions that make boxes from simulations; implement it to add other trees."""

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a partition from points (n, D), kernel values (n,) and the last batch's partition, if any."""


# --- CART -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cart:
    """Partitioner that fits a regression tree to how close simulations came to the data.

    The tree is fitted to square roots of kernel values, because the optimal proposal depends on square roots of
    acceptance rates. Of the simulations with kernel values below 0.01, at most 20,000, drawn at random, are used. If
    more than 20,000 have larger values, as in many dimensions, the 10,000 with the largest are used, and 10,000 drawn
    at random from all others.

    Attributes
    ----------
    max_leaves : int
    min_samples : int
        Minimum simulations in a box.
    random_beyond : int or None
        Number of simulations above which one random cut of each coordinate is tried instead of all cuts (extremely
        randomised trees; Geurts, Ernst & Wehenkel 2006, doi:10.1007/s10994-006-6226-1); None for never, 0 for always.

    Examples
    --------
    >>> from amc_pymc.likelihood_free import Cart
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> fitted = Cart(max_leaves=2)(u, (u[:, 0] < 0.3).astype(float), None, rng)
    >>> fitted.boxes, fitted.volumes.round(2)
    (2, array([0.3, 0.7]))
    """

    max_leaves: int = 1000
    min_samples: int = 15
    random_beyond: int | None = None

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a new partition; `before` is ignored."""
        if self.max_leaves < 2 or len(u) < 2 * self.min_samples:
            return whole_cube(u.shape[1])
        kept, weights = _thinned(kernel_values, _MOST, rng)
        many = self.random_beyond is not None and len(u) > self.random_beyond
        nodes = (random_tree if many else exact_tree)(
            u[kept], np.sqrt(kernel_values[kept]), weights, rng, max_leaves=self.max_leaves,
            min_samples=self.min_samples,
        )  # fmt: skip
        return Partition(*nodes, u.shape[1])


def _thinned(
    kernel_values: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray | slice, np.ndarray | None]:
    """Select the closest simulations and a sample of the others, weighted to represent all of them."""
    n, near = len(kernel_values), int((kernel_values >= _NEAR).sum())
    closest, sampled = (near, most) if near <= most else (most // 2, most - most // 2)
    if n - closest <= sampled:
        return slice(None), None
    order = np.argpartition(-kernel_values, closest)
    others = rng.choice(order[closest:], sampled, replace=False)
    kept = np.concatenate([order[:closest], others])
    return kept, np.repeat([1.0, (n - closest) / sampled], [closest, sampled])


# --- dyadic halving -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dyadic:
    """Partitioner that halves the boxes with most posterior mass, along the coordinate whose parts differ most.

    Attributes
    ----------
    cuts : int
        Number of boxes halved per round, r.
    """

    cuts: int = 20

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Refine the partition of the last batch."""
        found = whole_cube(u.shape[1]) if before is None else before
        for _ in range(self.cuts):
            widths = found.upper - found.lower
            worth = found.volumes * shrunk_rates(found, u, kernel_values)
            worth[widths.max(axis=1) <= 2.0 * NARROWEST] = 0.0
            score, along = separation(found, u, kernel_values)
            chosen = np.array([int(worth.argmax())])
            if not worth[chosen[0]] > 0.0:
                break
            widest = widths[chosen].argmax(axis=1)
            found = cut_boxes(found, chosen, np.where(score[chosen] > 0.0, along[chosen], widest))
        return found


# --- BART -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bart:
    r"""Partitioner by Bayesian additive regression trees, drawn by pymc-bart.

    A sum of trees is drawn from its posterior given square roots of kernel values, by particle Gibbs,

    .. math:: y_i \sim N\left(\textstyle\sum_t g_t(u_i), \sigma^2\right), \qquad \sigma^2 \sim \nu\lambda / \chi^2_\nu

    with :math:`\nu` = 3 and :math:`\lambda` a tenth of the variance of the labels. The boxes are those of a CART tree
    fitted to this step function, which makes the cuts that explain most of it. With more than two thousand
    simulations, the closest thousand and a random thousand of the others are used.

    Chipman, George & McCulloch (2010), doi:10.1214/09-AOAS285. Lakshminarayanan, Roy & Teh (2015), arXiv:1502.04622.

    Attributes
    ----------
    trees : int
        Number of trees in the sum. O'Hagan, Kim & Rockova use five, which gives fewer boxes.
    tune : int
        Number of sweeps over all trees before the draw.
    max_leaves : int

    Raises
    ------
    ImportError
        If pymc-bart is not installed.
    """

    trees: int = 20
    tune: int = 25
    max_leaves: int = 1000

    def __post_init__(self) -> None:
        _bart_library()

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a new partition; `before` is ignored."""
        rows = np.argsort(-kernel_values, kind="stable")
        if len(rows) > 2000:
            rows = np.concatenate([rows[:1000], rng.choice(rows[1000:], 1000, replace=False)])
        labels = np.sqrt(kernel_values[rows])
        if len(rows) < 2 or np.ptp(labels) == 0.0:
            return whole_cube(u.shape[1])
        drawn = self._drawn(u[rows], (labels - labels.mean()) / labels.std(), rng)
        heights = np.square(drawn - drawn.min())  # of which the tree takes the root
        return Cart(self.max_leaves, min_samples=5)(u[rows], heights, None, rng)

    def _drawn(self, u: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a draw of the sum of trees at points (n, D), for labels y with mean 0 and variance 1."""
        library, (n, n_dim) = _bart_library(), u.shape
        precision = 1.0
        failed: list[BaseException] = []

        # The sampler passes the memory address of predictions and expects their log-likelihood.
        @ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)  # type: ignore[untyped-decorator]
        def log_likelihood(address: int, size: int) -> float:
            try:
                gap = np.frombuffer((ctypes.c_double * size).from_address(address)) - y
                return -0.5 * precision * float(gap @ gap)
            except BaseException as error:  # an interrupt, which ctypes would only print
                failed.append(error)
                return 0.0

        # The step method of pymc-bart always uses seed 0, so the sampler underneath is called directly.
        settings = library.PyBartSettings(
            n_trees=self.trees, n_particles=10, max_depth=14, alpha=0.95, beta=2.0, n_outputs=1,
            sigma=1.0 / self.trees**0.5, split_prior=np.arange(1.0, n_dim + 1.0).tolist(),
            split_rules=["ContinuousSplit"] * n_dim, response_rule="constant",
            resampling_rule="systematic", batch_tune=1.0, batch_post=1.0,
            seed=int(rng.integers(2**63)), n_draws=1,
        )  # fmt: skip
        pointer = ctypes.cast(log_likelihood, ctypes.c_void_p).value
        sampler = library.PySampler.init(
            x=np.asfortranarray(u, dtype=float), y=y, model=pointer, settings=settings
        )
        for sweep in range(self.tune + 1):
            found: np.ndarray = sampler.step(sweep < self.tune)[0].ravel()
            if failed:
                raise failed[0]
            precision = rng.chisquare(3.0 + n) / (0.3 + np.square(found - y).sum())
        return found


def _bart_library() -> Any:
    """Return the compiled module of pymc-bart."""
    try:
        from pymc_bart import pymc_bart
    except ImportError as error:
        raise ImportError(
            "Partitions by BART need pymc-bart: pip install 'amc-pymc[bart]'."
        ) from error
    return pymc_bart
