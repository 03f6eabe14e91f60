"""Boxes from draws of Bayesian additive regression trees, by pymc-bart."""

from __future__ import annotations

import ctypes

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.common_refinement import common_refinement
from amc_pymc.abc_tree.partition import Partition, from_cuts, whole_cube
from amc_pymc.arguments import positive_int

__all__ = ["Bart", "Tree", "draw_trees", "fit_bart"]

#: Simulations that a fit takes; more are thinned.
_MOST = 2000
#: Particles of a tree.
_PARTICLES = 10
#: Cuts on the way down to a box that there is room for; the sampler panics when it wants one more.
_DEPTHS = (10, 12, 14)
#: Prior that a box is cut: alpha (1 + depth)^-beta.
_ALPHA, _BETA = 0.95, 2.0
#: Degrees of freedom and scale, in terms of the variance of labels, of the prior of the noise.
_NU, _LAMBDA = 3.0, 0.1


@dataclass(frozen=True)
class Bart:
    """Partitions by :func:`fit_bart`.

    Attributes
    ----------
    trees, draws, tune, max_leaves, min_samples : int

    Raises
    ------
    ImportError
        Without pymc-bart.
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
        """A new partition; `before` plays no part."""
        return fit_bart(
            u, kernel_values, rng, trees=self.trees, draws=self.draws, tune=self.tune,
            max_leaves=self.max_leaves, min_samples=self.min_samples,
        )  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """Boxes of one tree of a sum, and its heights (K,) there in units of the labels."""

    partition: Partition
    heights: np.ndarray

    def at(self, u: np.ndarray) -> np.ndarray:
        """Heights (n,) at points (n, D)."""
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
    """Fit BART to how close simulations came, and lay the trees of a draw on top of each other.

    Labels are square roots of kernel values, as the best proposal is of that of acceptance rates. Of more than two
    thousand simulations the closest thousand and as many of the others, at random, are fitted to; simulations in
    boxes are counted among all.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    kernel_values : array (n,)
        1 where the simulation was accepted, else 0, or numbers between; not negative.
    rng : numpy.random.Generator
    trees : int
        In the sum. O'Hagan, Kim & Rockova take five, which make fewer boxes.
    draws : int
        Draws from the posterior, sweeps apart, whose trees are laid on top of each other.
    tune : int
        Sweeps over all trees before the first draw.
    max_leaves : int
        The cuts that explain least of the sum of trees are left out.
    min_samples : int
        Least simulations in a box.

    Returns
    -------
    Partition
        See :func:`amc_pymc.abc_tree.common_refinement.common_refinement`.

    Raises
    ------
    ImportError
        Without pymc-bart.
    ValueError
        If points or kernel_values have the wrong shape, or values they cannot have.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("pymc_bart")  # of the extra
    >>> from amc_pymc.extract.bart import fit_bart
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

    with :math:`\nu` = 3 and :math:`\lambda` a tenth of the variance of the labels. Noise is drawn between sweeps over all
    trees.

    Parameters
    ----------
    u : array (n, D)
    labels : array (n,)
        y, not all the same.
    rng, trees, draws, tune
        As for :func:`fit_bart`.

    Returns
    -------
    list of Tree
        `trees` of each draw; those of one draw add up to its function.

    Raises
    ------
    ImportError
        Without pymc-bart.

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
        except BaseException as error:  # panics are no Exceptions
            if type(error).__name__ != "PanicException":
                raise
        else:
            return [_tree(heap, u.shape[1], scale, centre / trees) for heap in heaps]
    raise RuntimeError(
        f"BART grew a tree of more than {_DEPTHS[-1]} cuts in a row each time; more than trees={trees!r} "
        f"or less than tune={tune!r} would need fewer."
    )


def _sampled(u, y, rng, trees: int, draws: int, tune: int, depth: int) -> list:
    """Trees of the draws, in heaps, for labels y of mean 0 and variance 1."""
    library = _library()
    n, n_dim = u.shape
    precision = 1.0
    failed: list[BaseException] = []

    # The sampler asks for the log-likelihood of predictions, which begin at an address.
    @ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
    def log_likelihood(address, size):
        try:
            gap = np.frombuffer((ctypes.c_double * size).from_address(address)) - y
            return -0.5 * precision * float(gap @ gap)
        except BaseException as error:  # an interrupt, which ctypes would print and forget
            failed.append(error)
            return 0.0

    # The step method of pymc-bart leaves the seed at 0 whatever its generator is, hence the sampler itself.
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
    """From a tree in a heap, children of i at 2 i + 1 and 2 i + 2, whose left side includes the threshold."""
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
    """Rows of the closest simulations and of some of the others."""
    if len(kernel_values) <= _MOST:
        return np.arange(len(kernel_values))
    order = np.argsort(-kernel_values, kind="stable")
    near, far = order[: _MOST // 2], order[_MOST // 2 :]
    return np.sort(np.concatenate([near, rng.choice(far, _MOST - len(near), replace=False)]))


def _library():
    """The compiled part of pymc-bart."""
    try:
        from pymc_bart import pymc_bart
    except ImportError as error:
        raise ImportError(
            "Partitions by BART need pymc-bart: pip install 'amc-pymc[bart]'."
        ) from error
    return pymc_bart
