"""Partitions of the unit cube from Bayesian additive regression trees (BART), drawn by pymc-bart."""

from __future__ import annotations

import ctypes

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.common_refinement import common_refinement
from amc_pymc.abc_tree.partition import Partition, from_cuts, whole_cube
from amc_pymc.arguments import positive_int

__all__ = ["Bart", "Tree", "draw_trees", "fit_bart"]

#: Largest number of simulations used in a fit; larger sets are thinned.
_MOST = 2000
#: Particles per tree in particle Gibbs.
_PARTICLES = 10
#: Maximum tree depths, tried in turn; the sampler panics when a tree needs to be deeper.
_DEPTHS = (10, 12, 14)
#: Prior probability that a box is split: alpha (1 + depth)^-beta.
_ALPHA, _BETA = 0.95, 2.0
#: Prior of the noise variance: degrees of freedom, and scale relative to the variance of the labels.
_NU, _LAMBDA = 3.0, 0.1


@dataclass(frozen=True)
class Bart:
    """Partition rule that calls :func:`fit_bart` with these settings.

    Attributes
    ----------
    trees, draws, tune, max_leaves, min_samples : int

    Raises
    ------
    ImportError
        If pymc-bart is not installed.
    TypeError, ValueError
        If a number is not an integer of at least one.
    """

    trees: int = 20
    draws: int = 1
    tune: int = 25
    max_leaves: int = 1000
    min_samples: int = 15

    def __post_init__(self):
        for name in ("trees", "draws", "tune", "max_leaves", "min_samples"):
            positive_int(name, getattr(self, name))
        _library()

    def __call__(self, u, kernel_values, before, rng) -> Partition:
        """Return a new partition; `before` is ignored."""
        return fit_bart(
            u, kernel_values, rng, trees=self.trees, draws=self.draws, tune=self.tune,
            max_leaves=self.max_leaves, min_samples=self.min_samples,
        )  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """One tree of a sum: its boxes and their heights (K,) in units of the labels."""

    partition: Partition
    heights: np.ndarray

    def at(self, u: np.ndarray) -> np.ndarray:
        """Return the heights (n,) at points (n, D)."""
        return self.heights[self.partition.find(u)]


def fit_bart(
    u: np.ndarray,
    kernel_values: np.ndarray,
    rng: np.random.Generator,
    *,
    trees: int = 20,
    draws: int = 1,
    tune: int = 25,
    max_leaves: int = 1000,
    min_samples: int = 15,
) -> Partition:
    """Fit BART to kernel values of simulations, and return the common refinement of its trees.

    Labels are square roots of kernel values, because the optimal proposal is proportional to the square root of the
    acceptance rate. With more than two thousand simulations, the closest thousand and a random thousand of the others
    are used for the fit; `min_samples` refers to all simulations.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    kernel_values : array (n,)
        1 for accepted and 0 for rejected simulations, or values in between; not negative.
    rng : numpy.random.Generator
    trees : int
        Number of trees in the sum. O'Hagan, Kim & Rockova use five, which gives fewer boxes.
    draws : int
        Number of posterior draws, from consecutive sweeps, whose trees are combined.
    tune : int
        Number of sweeps over all trees before the first draw.
    max_leaves : int
        Maximum number of boxes. Splits that explain least of the sum of trees are left out.
    min_samples : int
        Minimum number of simulations in a box.

    Returns
    -------
    Partition
        See :func:`amc_pymc.abc_tree.common_refinement.common_refinement`.

    Raises
    ------
    ImportError
        If pymc-bart is not installed.
    ValueError
        If `u` or `kernel_values` have the wrong shape or invalid values.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("pymc_bart")  # of the extra
    >>> from amc_pymc.reading.simulators.bart import fit_bart
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> fitted = fit_bart(u, (u[:, 0] < 0.3).astype(float), rng, max_leaves=2)
    >>> fitted.boxes, fitted.volumes.round(2)
    (2, array([0.3, 0.7]))
    """
    u, kernel_values = _checked(u, kernel_values)
    if max_leaves < 2 or len(u) < 2 * min_samples:
        return whole_cube(u.shape[1])
    rows = _thinned(kernel_values, rng)
    labels = np.sqrt(kernel_values[rows] / max(kernel_values.max(), np.finfo(float).tiny))
    if np.ptp(labels) == 0.0:
        return whole_cube(u.shape[1])
    found = draw_trees(u[rows], labels, rng, trees=trees, draws=draws, tune=tune)
    heights = np.sum([tree.at(u) for tree in found], axis=0)
    partitions = [tree.partition for tree in found]
    return common_refinement(partitions, u, heights, max_leaves=max_leaves, min_samples=min_samples)


def draw_trees(
    u: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
    *,
    trees: int = 20,
    draws: int = 1,
    tune: int = 25,
) -> list[Tree]:
    r"""Draw sums of trees from their posterior given labels, by particle Gibbs.

    .. math:: y_i \sim N\left(\textstyle\sum_t g_t(u_i), \sigma^2\right), \qquad \sigma^2 \sim \nu\lambda / \chi^2_\nu

    with :math:`\nu` = 3 and :math:`\lambda` a tenth of the variance of the labels. The noise variance is drawn
    between sweeps over all trees.

    Parameters
    ----------
    u : array (n, D)
    labels : array (n,)
        The labels y, not all equal.
    rng, trees, draws, tune
        As for :func:`fit_bart`.

    Returns
    -------
    list of Tree
        `trees` trees for each draw, whose sum is the function of the draw.

    Raises
    ------
    ImportError
        If pymc-bart is not installed.

    References
    ----------
    Chipman, George & McCulloch (2010), doi:10.1214/09-AOAS285. Lakshminarayanan, Roy & Teh (2015), Particle Gibbs for
    Bayesian additive regression trees, arXiv:1502.04622.
    """
    centre, scale = labels.mean(), labels.std()
    y = (labels - centre) / scale
    for depth in _DEPTHS:
        try:
            heaps = _sampled(u, y, rng, trees, draws, tune, depth)
        except BaseException as error:  # PanicException is not an Exception
            if type(error).__name__ != "PanicException":
                raise
        else:
            return [_tree(heap, u.shape[1], scale, centre / trees) for heap in heaps]
    raise RuntimeError(
        f"BART grew a tree of more than {_DEPTHS[-1]} cuts in a row each time; more than trees={trees!r} "
        f"or less than tune={tune!r} would need fewer."
    )


def _sampled(u, y, rng, trees: int, draws: int, tune: int, depth: int) -> list:
    """Return the trees of the draws as heaps, for labels y with mean 0 and variance 1."""
    library = _library()
    n, n_dim = u.shape
    precision = 1.0
    failed: list[BaseException] = []

    # The sampler passes the memory address of predictions and expects their log-likelihood.
    @ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
    def log_likelihood(address, size):
        try:
            gap = np.frombuffer((ctypes.c_double * size).from_address(address)) - y
            return -0.5 * precision * float(gap @ gap)
        except BaseException as error:  # an interrupt, which ctypes would only print
            failed.append(error)
            return 0.0

    # The step method of pymc-bart always uses seed 0, so the sampler underneath is called directly.
    settings = library.PyBartSettings(
        n_trees=trees,
        n_particles=_PARTICLES,
        max_depth=depth,
        alpha=_ALPHA,
        beta=_BETA,
        sigma=1.0 / trees**0.5,
        n_outputs=1,
        split_prior=np.arange(1.0, n_dim + 1.0).tolist(),
        split_rules=["ContinuousSplit"] * n_dim,
        response_rule="constant",
        resampling_rule="systematic",
        batch_tune=1.0,
        batch_post=1.0,
        seed=int(rng.integers(2**63)),
        n_draws=draws,
    )
    sampler = library.PySampler.init(
        x=np.asfortranarray(u, dtype=float),
        y=y,
        model=ctypes.cast(log_likelihood, ctypes.c_void_p).value,
        settings=settings,
    )
    for sweep in range(tune + draws):
        gap = sampler.step(sweep < tune)[0].ravel() - y
        if failed:
            raise failed[0]
        precision = rng.chisquare(_NU + n) / (_NU * _LAMBDA + gap @ gap)
    return [heap for _, batch in sampler.all_batches for heap in batch]


def _tree(heap, n_dim: int, scale: float, offset: float) -> Tree:
    """Convert a heap, where i has children 2 i + 1 and 2 i + 2 and the left one includes the threshold."""
    cuts: list[tuple[int, int, float]] = []
    leaves, waiting = {0: 0}, [(0, 0)]
    split_var, split_val = np.asarray(heap.split_var), np.asarray(heap.split_val)
    while waiting:
        theirs, ours = waiting.pop()
        if split_var[theirs] >= n_dim:
            leaves[ours] = theirs
            continue
        at = float(np.nextafter(split_val[theirs], np.inf))
        children = 2 * len(cuts) + 1, 2 * len(cuts) + 2
        cuts.append((ours, int(split_var[theirs]), at))
        waiting += [(2 * theirs + 1, children[0]), (2 * theirs + 2, children[1])]
    partition = from_cuts(cuts, n_dim)
    values = np.asarray(heap.leaf_val).ravel()[[leaves[node] for node in partition.leaves]]
    return Tree(partition, scale * values + offset)


def _checked(u, kernel_values) -> tuple[np.ndarray, np.ndarray]:
    u, kernel_values = np.asarray(u, dtype=float), np.asarray(kernel_values, dtype=float)
    if u.ndim != 2 or u.shape[1] == 0:
        raise ValueError(f"u must be an array (n, D) with D at least 1, got shape {u.shape}.")
    if kernel_values.shape != u.shape[:1]:
        raise ValueError(
            f"kernel_values must have one value for each of {len(u)} points, got shape {kernel_values.shape}."
        )
    outside = ~((u >= 0.0) & (u <= 1.0))
    if outside.any():
        raise ValueError(f"u must be in the unit cube, got {u[outside][0]}.")
    wrong = ~((kernel_values >= 0.0) & (kernel_values < np.inf))
    if wrong.any():
        raise ValueError(
            f"kernel_values must be finite and not negative, got {kernel_values[wrong][0]}."
        )
    return u, kernel_values


def _thinned(kernel_values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of the closest simulations and of a random sample of the others."""
    if len(kernel_values) <= _MOST:
        return np.arange(len(kernel_values))
    order = np.argsort(-kernel_values, kind="stable")
    near, far = order[: _MOST // 2], order[_MOST // 2 :]
    return np.sort(np.concatenate([near, rng.choice(far, _MOST - len(near), replace=False)]))


def _library():
    """Return the compiled module of pymc-bart."""
    try:
        from pymc_bart import pymc_bart
    except ImportError as error:
        raise ImportError(
            "Partitions by BART need pymc-bart: pip install 'amc-pymc[bart]'."
        ) from error
    return pymc_bart
