"""The path and its counts, the bank, replays that do as policies and plain sums say; it runs."""

import math

import numpy as np

from benchmarks.papers import adaptive_ais_bank as bank_module
from benchmarks.papers.adaptive_ais_bank import (
    Problem,
    draw,
)
from models.logistic_regression import reference, simulate

V = bank_module.VARIANCE


def make_problem(rows=6, n_dim=3, scale=1.0, seed=1) -> Problem:
    X, y = simulate(rows, n_dim, seed=seed)
    found = reference(scale * X, y, np.full(n_dim, V**0.5))
    return Problem("standardised", rows, scale * X, y, *found)


# --- bank ----------------------------------------------------------------------------------------


def test_weights_are_unbiased_and_longer_runs_vary_less():
    problem, rng = make_problem(rows=30), np.random.default_rng(5)
    variances = []
    for steps in (3, 30):
        draws = draw(problem, steps, 1_000, rng)
        w = np.exp(draws.log_weights)
        assert abs(w.mean() - 1.0) < 4.0 * w.std() / math.sqrt(w.size) + 4.0 * problem.error
        variances.append(draws.relative_variance)
        assert draws.seconds.shape == (1_000,) and draws.seconds.min() > 0.0
    assert variances[0] > 4.0 * variances[1]
