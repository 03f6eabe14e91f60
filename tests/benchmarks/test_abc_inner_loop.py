"""The bandit game of algorithm 1: the same as step by step, unbiased, and its regret falls."""

import math

import numpy as np
import pytest

from scipy.optimize import minimize

from amc_pymc.likelihood_free.proposal import UTILITIES, best_proposal
from benchmarks.papers.inner_loop import inner_loop, regret

RATES = np.array([0.0, 0.02, 0.05, 0.3, 0.6])
PI = np.array([0.3, 0.3, 0.2, 0.15, 0.05])


def utility_of(q, p, pi, utility):
    """As the paper prints them, term by term."""
    terms = [(a, b, c) for a, b, c in zip(q, p, pi, strict=True) if b > 0.0]
    spread = sum(b * c / a if a > 0.0 else math.inf for a, b, c in terms)
    if utility == "posterior":
        return -sum((a - b) ** 2 for a, b in zip(q, p, strict=True))
    if utility == "ess":
        return 1.0 / spread
    hits = sum(a * b / c for a, b, c in terms)
    if utility == "efficiency":
        return hits / spread
    if any(a > 0.0 and b == 0.0 for a, b in zip(q, p, strict=True)):
        return -math.inf
    return math.log(hits) - sum(a * math.log(a / b) for a, b, _ in terms if a > 0.0)


@pytest.mark.parametrize("utility", UTILITIES)
def test_regret_against_brute_force(utility):
    """Of the best proposal by a search over the simplex, and of any other by the printed formulas."""
    rng = np.random.default_rng(3)
    pi, rates = rng.dirichlet(np.ones(4)), rng.random(4)
    p = pi * rates / (pi @ rates)

    def shares(z):
        w = np.exp(np.append(z, 0.0))
        return w / w.sum()

    found = minimize(
        lambda z: -utility_of(shares(z), p, pi, utility), np.zeros(3),
        method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000},
    )  # fmt: skip
    others = rng.dirichlet(np.ones(4), (2, 5))
    lost = regret(others, p, pi, utility)
    assert lost.shape == (2, 5)
    for q, of in zip(others.reshape(-1, 4), lost.ravel(), strict=True):
        assert of == pytest.approx(-found.fun - utility_of(q, p, pi, utility), rel=1e-7, abs=1e-9)
    assert abs(regret(best_proposal(p, pi, utility), p, pi, utility)) < 1e-9
    assert (lost > 0.0).all()
    np.testing.assert_allclose(regret(3.0 * others, 5.0 * p, 2.0 * pi, utility), lost)


@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("plays", [0, 20])
def test_weights_are_unbiased(draw, plays):
    """Sums of pi / q over acceptances in a box, with the probabilities each was drawn with."""
    n, runs, rng = 200, 2_000, np.random.default_rng(7)
    found = np.empty((runs, 5))
    for r in range(runs):
        played = inner_loop(PI, RATES, n, rng, draw=draw, plays=plays)
        weight = played.accepted * PI[played.box] / played.q
        found[r] = np.bincount(played.box, weight, minlength=5) / n
    error = found.std(axis=0) / math.sqrt(runs)
    assert (np.abs(found.mean(axis=0) - PI * RATES) < 4.0 * error + 1e-12).all()
