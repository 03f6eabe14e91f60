"""Sums over accepted simulations are unbiased at any tolerance, for all partitions and utilities."""

import math

import numpy as np
import pytest

from scipy.stats import beta

from amc_pymc.likelihood_free.history import batch_sizes
from amc_pymc.likelihood_free.learning import TreeProposal, rounds
from amc_pymc.likelihood_free.partition import whole_cube
from amc_pymc.likelihood_free.problem import Simulated
from amc_pymc.likelihood_free.trees import Cart, Dyadic
from amc_pymc.rng import spawn_generators
from tests.likelihood_free.problems import NormalMean, TwoModes, UniformProblem, run, settings

#: Partitions of each kind, utilities, and whether the prior is uniform.
CASES = [
    ({"partition": "cart"}, "ess", False),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ({"partition": (Cart(random_beyond=0), Cart()) * 2}, "ess", False),
            ({"partition": "cart"}, "kl", True),
            ({"partition": Dyadic(cuts=5)}, "efficiency", True),
            ({"partition": "cart"}, "posterior", False),
        )
    ),
]


def sums_of(problem, options, tolerance, n, seeds):
    """Weighted sums over accepted simulations, per simulation, which have known means; and what was gained.

    The gain is that in effective draws per simulation, over rejection.
    """
    z, mean, *_ = problem.known(tolerance)
    out, gains = [], []
    for seed in range(seeds):
        history = run(problem, n, settings(tolerance, accepts=300, **options), seed)
        w = np.exp(history.log_ratio) * (history.distance <= tolerance)
        u = history.u[:, 0]
        out.append(
            np.array([w.sum(), w @ u, w @ (u - mean) ** 2, w @ (u < problem.OBSERVED)]) / len(w)
        )
        w = np.exp(history.log_weight[history.distance <= tolerance])
        gains.append(w.sum() ** 2 / (w @ w) / (n * z))
    return np.array(out), np.array(gains)


@pytest.mark.parametrize(("options", "utility", "uniform"), CASES)
def test_the_posterior_at_a_tolerance(options, utility, uniform):
    log_density = None if uniform else lambda u: beta(2.0, 3.0).logpdf(u[:, 0])
    problem, tolerance, n = NormalMean(log_density), 0.01, 3000
    z, mean, sd, below = problem.known(tolerance)
    sums, gains = sums_of(problem, {"utility": utility, **options}, tolerance, n, 25)
    for x, wanted in zip(sums.T, [z, z * mean, z * sd**2, z * below], strict=True):
        assert abs(x.mean() - wanted) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))
    if uniform:
        assert np.median(gains) > 1.5


def test_sums_are_unbiased_with_a_kernel_ahead_of_the_tolerance():
    """Summaries are parameters of the unit square with noise: the area within the tolerance is known."""
    observed, sd, tolerance, n, seeds = np.array([0.3, 0.6]), 1e-3, 3e-3, 3000, 25
    sums, used = [], 0
    for seed in range(seeds):
        noise = np.random.default_rng([1, seed])

        def simulate(u, b, noise=noise):
            s = u + sd * noise.standard_normal(u.shape)
            return Simulated(np.linalg.norm(s - observed, axis=1), [], s)

        problem, sizes = UniformProblem(None, n_dim=2), batch_sizes(n)
        generators = spawn_generators(seed, len(sizes))
        for history in rounds(
            problem, simulate, sizes, generators, TreeProposal(), tolerance, observed=observed
        ):
            pass
        used += sum(0.3 in r.proposal.kernel_shares for r in history.rounds)
        last = slice(sum(sizes[:-3]), None)  # batches that the kernel makes precise
        w = np.exp(history.log_ratio[last]) * (history.distance[last] <= tolerance)
        sums.append(np.array([w.sum(), *(w @ history.u[last])]) / len(w))
    assert used > 2 * seeds
    z = np.pi * tolerance**2
    x = np.array(sums)
    error = x.std(axis=0, ddof=1) / math.sqrt(seeds)
    assert (error < 0.02 * z).all()
    assert (np.abs(x.mean(axis=0) - z * np.array([1.0, *observed])) < 4.0 * error).all()


def minor_masses(seeds):
    """Mass of the minor mode with the weights of a run, and with those of the mixture of its proposals."""
    problem, own, mixed = TwoModes(), [], []
    for seed in range(seeds):
        history = run(problem, 40_000, settings(0.01), seed)
        hit = history.distance <= 0.01
        u, second = history.u[hit], history.u[hit, 0] > 0.5
        w = np.exp(history.log_weight[hit])
        own.append(w[second].sum() / w.sum())
        density = sum(len(r.u) * r.proposal.density(u) for r in history.rounds)
        mixed.append((second / density).sum() / (1.0 / density).sum())
    return problem.minor, np.array(own), np.array(mixed)


@pytest.mark.slow
def test_a_minor_mode_keeps_its_mass():
    """Not so with mixture weights: an accepted draw raises later proposals where it is, and so lowers its weight."""
    wanted, own, mixed = minor_masses(200)
    error = own.std(ddof=1) / math.sqrt(len(own))
    assert error < 0.013 * wanted
    assert abs(own.mean() - wanted) < 3.0 * error
    assert abs(mixed.mean() - wanted) > 3.0 * mixed.std(ddof=1) / math.sqrt(len(mixed))


@pytest.mark.parametrize(
    "proposal",
    [
        TreeProposal(partition=lambda u, near, before, rng: whole_cube(1), local=False),
        TreeProposal(prior_share=1.0),
    ],
)
def test_a_run_of_the_prior_is_rejection(proposal):
    history = run(NormalMean(), 3000, (proposal, 0.05), 1)
    np.testing.assert_allclose(history.log_ratio, 0.0, atol=1e-12)


def test_nothing_accepted():
    never = UniformProblem(lambda u, rng: np.full(len(u), np.inf), n_dim=2)
    history = run(never, 200, settings(0.1, partition="cart"), 1)
    assert len(history) == 200
    np.testing.assert_array_equal(history.log_weight, np.zeros(200))


def test_all_accepted():
    always = UniformProblem(lambda u, rng: np.zeros(len(u)), n_dim=2)
    history = run(always, 1000, settings(partition="cart"), 1)
    w = np.exp(history.log_ratio)
    assert abs(w.mean() - 1.0) < 0.02
