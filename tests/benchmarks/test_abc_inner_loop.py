"""The bandit game of algorithm 1: the same as step by step, unbiased, and its regret falls."""

import math

import numpy as np
import pytest

from scipy.optimize import minimize

from amc_pymc.likelihood_free.proposal import UTILITIES, best_proposal
from benchmarks.papers.inner_loop import initial_plays, inner_loop, regret

RATES = np.array([0.0, 0.02, 0.05, 0.3, 0.6])
PI = np.array([0.3, 0.3, 0.2, 0.15, 0.05])
P = PI * RATES / (PI @ RATES)


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


def played_again(pi, rates, played, utility, judge, plays):
    """Boxes' probabilities and regrets of a game with means, by best_proposal at each step."""
    alpha, beta = np.ones(len(pi)), np.ones(len(pi))
    p = pi * rates / (pi @ rates)
    top = utility_of(best_proposal(p, pi, judge), p, pi, judge)
    drawn, lost = [], []
    for t, (box, accepted) in enumerate(zip(played.box, played.accepted, strict=True)):
        q = np.full(len(pi), 1.0 / len(pi))
        if t >= plays * len(pi):
            q = best_proposal(pi * alpha / (alpha + beta), pi, utility)
        drawn.append(q[box])
        lost.append(top - utility_of(q, p, pi, judge))
        (alpha if accepted else beta)[box] += 1.0
    return np.array(drawn), np.array(lost), alpha, beta


@pytest.mark.parametrize("judge", [None, "kl"])
@pytest.mark.parametrize("plays", [0, 3])
@pytest.mark.parametrize("utility", UTILITIES)
def test_step_by_step(utility, plays, judge):
    rates = RATES + 0.01  # so that "kl" is finite
    played = inner_loop(
        PI, rates, 400, np.random.default_rng(1), utility=utility, judge=judge, plays=plays
    )
    drawn, lost, alpha, beta = played_again(PI, rates, played, utility, judge or utility, plays)
    np.testing.assert_allclose(played.q, drawn, rtol=1e-8)
    np.testing.assert_allclose(played.regret, lost, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(played.alpha, alpha)
    np.testing.assert_array_equal(played.beta, beta)
    if plays:
        np.testing.assert_array_equal(played.box[:15], np.tile(np.arange(5), 3))


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


def test_regret_where_the_posterior_is_zero():
    assert regret(PI, P, PI, "kl") == math.inf
    assert regret([1.0, 0.0, 0.0, 0.0, 0.0], P, PI) == pytest.approx(
        utility_of(best_proposal(P, PI), P, PI, "ess")
    )


def test_the_best_proposal_is_approached():
    """By the closed form q proportional to pi sqrt(mu), within the error of the rates."""
    played = inner_loop(PI, RATES, 50_000, np.random.default_rng(4))
    rates = played.alpha / (played.alpha + played.beta)
    counts = played.alpha + played.beta
    error = np.sqrt(RATES * (1.0 - RATES) / counts) + 1.0 / counts
    assert (np.abs(rates - RATES) < 4.0 * error).all()
    wanted = PI * np.sqrt(RATES) / (PI @ np.sqrt(RATES))
    tail = np.bincount(played.box[25_000:], minlength=5) / 25_000
    # Box 0, which never accepts, still has the square root of 1 / n of what is believed of it.
    assert abs(tail[1:] / tail[1:].sum() - wanted[1:]).max() < 0.015
    assert 0.0 < tail[0] < 0.05


@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("utility", UTILITIES)
def test_regret_falls(utility, draw):
    rates, n = RATES + 0.01, 20_000
    rng = np.random.default_rng(5)
    games = np.array(
        [inner_loop(PI, rates, n, rng, utility=utility, draw=draw).regret for _ in range(10)]
    )
    assert (games > -1e-9).all()
    means = games.reshape(10, 20, n // 20).mean(axis=2)
    first, last = means[:, 0], means[:, -1]
    gap = last - 0.3 * first
    assert gap.mean() < -4.0 * gap.std() / math.sqrt(10)


def test_theorem_3_1():
    """Where each box is played as often as it says, regret falls nearly as fast as 1 / n."""
    pi, rates, runs = np.full(2, 0.5), np.array([0.9, 1.0]), 20
    rng, ratio = np.random.default_rng(6), []
    for n in (1_000, 100_000):
        plays = initial_plays(n, 2, 0.9)
        lost = [
            inner_loop(pi, rates, n, rng, utility="posterior", plays=plays).regret.mean()
            for _ in range(runs)
        ]
        ratio.append(np.array(lost) * n / math.log(n) ** 2)
    # R_n n / log^2 n is bounded: by what the first plays cost.
    even = float(regret(pi, rates, pi, "posterior"))
    for of in ratio:
        assert of.mean() < 4.0 / 0.9 * even * 1.5
    assert ratio[1].mean() < 2.0 * ratio[0].mean()


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


def test_seeds():
    one, same, other = (inner_loop(PI, RATES, 500, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.box, same.box)
    np.testing.assert_array_equal(one.regret, same.regret)
    assert (one.box != other.box).any()


def test_one_box():
    played = inner_loop([2.0], [0.5], 10, np.random.default_rng(1), utility="efficiency")
    assert (played.box == 0).all() and (played.q == 1.0).all()
    np.testing.assert_allclose(played.regret, 0.0, atol=1e-12)


def test_what_is_known_at_the_start():
    """Beliefs worth many simulations make the first proposal the best one."""
    worth = 1e9
    played = inner_loop(
        PI, RATES, 10, np.random.default_rng(1), utility="posterior",
        alpha=worth * RATES + 1e-9, beta=worth * (1.0 - RATES),
    )  # fmt: skip
    np.testing.assert_allclose(played.regret, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pi": [0.5, -0.5]}, "pi must be a row of positive, finite masses"),
        ({"pi": [0.5, np.nan]}, "pi must be a row"),
        ({"pi": []}, "pi must be a row"),
        ({"pi": [[0.5, 0.5]]}, "pi must be a row"),
        ({"rates": [0.0, 0.0]}, "rates must be 2 probabilities, one of them positive"),
        ({"rates": [0.1, 1.1]}, "rates must be 2 probabilities"),
        ({"rates": [0.1, np.nan]}, "rates must be 2 probabilities"),
        ({"rates": [0.1]}, "rates must be 2 probabilities"),
        ({"n": 0}, "n must be at least 1"),
        ({"utility": "best"}, "utility must be one of ess, .*'best'"),
        ({"judge": "best"}, "judge must be one of ess, .*'best'"),
        ({"plays": -1}, "plays must be a whole number"),
        ({"plays": 1.5}, "plays must be a whole number"),
        ({"plays": 6}, "plays=6 in each of 2 boxes are 12 simulations, more than n=10"),
        ({"alpha": 0.0}, "alpha must be positive and finite"),
        ({"beta": [1.0, 2.0, 3.0]}, "beta must be positive and finite, one number or 2"),
        ({"beta": np.inf}, "beta must be positive and finite"),
    ],
)
def test_bad_input(change, message):
    given = {"pi": [0.5, 0.5], "rates": [0.1, 0.2], "n": 10} | change
    with pytest.raises(ValueError, match=message):
        inner_loop(
            given.pop("pi"), given.pop("rates"), given.pop("n"), np.random.default_rng(1), **given
        )


def test_bad_input_of_regret():
    for q in (np.ones(4), -PI, np.zeros(5), np.full(5, np.nan), 1.0):
        with pytest.raises(ValueError, match="q must"):
            regret(q, P, PI)
    for p in (np.zeros(5), np.full(5, np.nan), P[:3], -P):
        with pytest.raises(ValueError, match="p must be 5 masses"):
            regret(PI, p, PI)
    with pytest.raises(ValueError, match="utility must be one of"):
        regret(PI, P, PI, "best")
    with pytest.raises(ValueError, match=r"least_rate must be in \(0, 1\]"):
        initial_plays(10, 2, 0.0)
    with pytest.raises(TypeError, match="n must be an integer"):
        inner_loop(PI, RATES, 10.0, np.random.default_rng(1))
