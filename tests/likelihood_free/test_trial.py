"""Trials of simulators before a run."""

import numpy as np
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free.problem import Failure, Simulated
from amc_pymc.likelihood_free.trial import try_simulator


class Scripted:
    """A problem whose calls end as told, one after the other, and then all over again."""

    n_dim = 1

    def __init__(self, *ends):
        self.ends, self.calls = ends, []

    def simulate(self, u, rng, *, batched=False, summaries=False):
        end = self.ends[len(self.calls) % len(self.ends)]
        self.calls.append((len(u), batched))
        failures = [Failure(0, "error", end)] if isinstance(end, str) else []
        distance = np.full(len(u), np.inf if failures else end)
        return Simulated(distance, failures, np.full((len(u), 1), end))


def test_batches_are_tried_as_such():
    problem = Scripted(1.0)
    found = try_simulator(problem, batched=True)
    assert problem.calls == [(3, True)] * 2 + [(24, True)] * 5
    assert found.simulations == sum(n for n, _ in problem.calls)


def test_ten_failures_are_too_many():
    problem = Scripted(*(f"error {k}" for k in range(12)))
    with pytest.raises(ValueError, match=r"no distance at 30 draws.*error: error 0\."):
        try_simulator(problem)
    assert len(problem.calls) == 10
    with pytest.raises(ValueError, match="all distances are infinite"):
        try_simulator(Scripted(np.inf))


@pytest.mark.parametrize("ends", [(1.0, 2.0), (np.inf, 1.0, 1.0, 1.0)])
def test_other_numbers_with_the_same_generator(ends):
    """Also if another number of trials is needed."""
    assert not try_simulator(Scripted(*ends)).reproducible


def noise(rng, mu):
    return rng.normal(mu[:, None], 1.0, (len(mu), 20))


def in_turns(rng, mu):
    """Draw column by column, with a number of random numbers that depends on parameters and outcomes."""
    x = np.zeros((len(mu), 20))
    for k in range(20):
        x[:, k] = rng.poisson(np.exp(mu) + 0.2 * x[:, k - 1])
    return x


# A simulator of a batch, and whether its rows are independent.
ROWS = {
    "by rows": (noise, True),
    "gamma": (lambda rng, mu: rng.gamma(np.exp(mu)[:, None], 1.0, (len(mu), 20)), True),
    "by columns": (in_turns, True),
    "no noise": (lambda rng, mu: mu[:, None] + np.zeros(20), True),
    "often nan": (lambda rng, mu: np.where(mu[:, None] > 0.0, noise(rng, mu), np.nan), True),
    "parameters": (lambda rng, mu: rng.normal(mu.mean(), 1.0, (len(mu), 20)), False),
    "centred": (lambda rng, mu: (x := noise(rng, mu)) - x.mean(), False),
    "scaled": (lambda rng, mu: (x := np.exp(noise(rng, mu))) / x.max(), False),
    "sorted": (lambda rng, mu: np.sort(noise(rng, mu), axis=0), False),
    "one effect": (lambda rng, mu: noise(rng, mu) + rng.normal(), False),
    "same noise": (lambda rng, mu: mu[:, None] + 0.1 * rng.normal(size=20), False),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_batch_are_independent(name):
    simulator, independent = ROWS[name]
    observed = np.random.default_rng(1).normal(size=20)
    problem = amc.SimulatorProblem({"mu": stats.norm()}, simulator, observed)
    if independent:
        assert try_simulator(problem, batched=True).simulations == 126
        return
    with pytest.raises(ValueError, match="batched=True needs rows that are independent"):
        try_simulator(problem, batched=True)
