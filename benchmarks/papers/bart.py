"""Partitions of the unit cube by BART, which O'Hagan, Kim & Rockova propose beside CART and dyadic halving."""

from __future__ import annotations

import ctypes

import numpy as np

from pymc_bart import pymc_bart as library

from amc_pymc.likelihood_free import Cart, Partition, whole_cube


def bart(
    u: np.ndarray,
    kernel_values: np.ndarray,
    before: Partition | None,
    rng: np.random.Generator,
    *,
    trees: int = 20,
    tune: int = 25,
) -> Partition:
    r"""Make boxes by Bayesian additive regression trees, drawn by pymc-bart (extra ``bart``).

    A sum of trees is drawn from its posterior given square roots of kernel values, by particle Gibbs,

    .. math:: y_i \sim N\left(\textstyle\sum_t g_t(u_i), \sigma^2\right), \qquad \sigma^2 \sim \nu\lambda / \chi^2_\nu

    with :math:`\nu` = 3 and :math:`\lambda` a tenth of the variance of the labels. The boxes are those of a CART tree
    fitted to this step function, which makes the cuts that explain most of it. With more than two thousand
    simulations, the closest thousand and a random thousand of the others are used. `before` is ignored. O'Hagan, Kim &
    Rockova use five trees, which gives fewer boxes; `tune` sweeps are made before the draw.

    Chipman, George & McCulloch (2010), doi:10.1214/09-AOAS285. Lakshminarayanan, Roy & Teh (2015), arXiv:1502.04622.
    """
    rows = np.argsort(-kernel_values, kind="stable")
    if len(rows) > 2000:
        rows = np.concatenate([rows[:1000], rng.choice(rows[1000:], 1000, replace=False)])
    labels = np.sqrt(kernel_values[rows])
    if len(rows) < 2 or np.ptp(labels) == 0.0:
        return whole_cube(u.shape[1])
    drawn = _drawn(u[rows], (labels - labels.mean()) / labels.std(), rng, trees, tune)
    heights = np.square(drawn - drawn.min())  # of which the tree takes the root
    return Cart(min_samples=5)(u[rows], heights, None, rng)


def _drawn(
    u: np.ndarray, y: np.ndarray, rng: np.random.Generator, trees: int, tune: int
) -> np.ndarray:
    """Draw the sum of trees at points (n, D), for labels y with mean 0 and variance 1."""
    n, n_dim = u.shape
    precision = 1.0
    failed: list[BaseException] = []

    # The sampler passes the memory address of predictions and expects their log-likelihood.
    @ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
    def log_likelihood(address: int, size: int) -> float:
        try:
            gap = np.frombuffer((ctypes.c_double * size).from_address(address)) - y
            return -0.5 * precision * float(gap @ gap)
        except BaseException as error:  # an interrupt, which ctypes would only print
            failed.append(error)
            return 0.0

    # The step method of pymc-bart always uses seed 0, so the sampler underneath is called directly.
    settings = library.PyBartSettings(
        n_trees=trees, n_particles=10, max_depth=14, alpha=0.95, beta=2.0, n_outputs=1,
        sigma=1.0 / trees**0.5, split_prior=np.arange(1.0, n_dim + 1.0).tolist(),
        split_rules=["ContinuousSplit"] * n_dim, response_rule="constant",
        resampling_rule="systematic", batch_tune=1.0, batch_post=1.0,
        seed=int(rng.integers(2**63)), n_draws=1,
    )  # fmt: skip
    sampler = library.PySampler.init(
        x=np.asfortranarray(u, dtype=float), y=y, settings=settings,
        model=ctypes.cast(log_likelihood, ctypes.c_void_p).value,
    )  # fmt: skip
    for sweep in range(tune + 1):
        found: np.ndarray = sampler.step(sweep < tune)[0].ravel()
        if failed:
            raise failed[0]
        precision = rng.chisquare(3.0 + n) / (0.3 + np.square(found - y).sum())
    return found
