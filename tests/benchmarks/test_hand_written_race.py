"""The race that `RacingMetropolis` is measured against samples the posterior and keeps its promise."""

import numpy as np
import pytest

from compiled_calls import compiled_on_first_use
from scipy import stats

from amc_pymc import NormalRace
from amc_pymc.tall.racing import REWARDS, make_population, race
from benchmarks.tall import hand_written_race as hand
from benchmarks.tall.problems import PRIOR_SD, logistic_data

N, COEFFICIENTS = 3_000, np.array([0.3, -0.5, 0.8])
pytestmark = pytest.mark.slow
Z = hand.signed_rows(logistic_data(N, 1, COEFFICIENTS))
AT = hand.expand(Z)
#: Far from the mode, so that residuals differ.
CENTRE = AT.mode + 0.5


def row_changes(x, x_new, rows):
    """Changes of residuals about CENTRE, by NumPy."""
    here, there, centre = (Z[rows] @ b for b in (x, x_new, CENTRE))
    u, v, p = there - here, there + here - 2.0 * centre, 1.0 / (1.0 + np.exp(centre))
    return np.logaddexp(0, -here) - np.logaddexp(0, -there) - p * u + 0.5 * p * (1 - p) * u * v


@compiled_on_first_use(REWARDS)
def rewards(points, centre, rows):
    out = np.zeros((2, rows.size))
    for j in range(rows.size):
        here, there, c = 0.0, 0.0, 0.0
        for k in range(centre.size):
            here += Z[rows[j], k] * points[0, k]
            there += Z[rows[j], k] * points[1, k]
            c += Z[rows[j], k] * centre[k]
        u, v, p = there - here, there + here - 2.0 * c, 1.0 / (1.0 + np.exp(c))
        out[1, j] = np.log1p(np.exp(-here)) - np.log1p(np.exp(-there))
        out[1, j] -= p * u - 0.5 * p * (1.0 - p) * u * v
    return out


def decide(x, x_new, bias, rule, marked, rng):
    rows, residuals = np.empty(N, np.int64), np.empty(N)
    args = x, x_new, CENTRE, Z, rule.sizes, rule.sd_factor, marked, rows, residuals, rng
    return hand._race(bias, *args)


def pairs(number, seed):
    """Points between which a chain moves."""
    z = np.random.default_rng(seed).standard_normal((number, 2, 3))
    return AT.mode + z @ AT.factor.T


def test_moments():
    """Against importance sampling on all rows."""
    rng = np.random.default_rng(1)
    proposal = stats.multivariate_t(AT.mode, AT.factor @ AT.factor.T, df=10)
    points = proposal.rvs(20_000, random_state=rng)
    log_w = -0.5 * (points**2).sum(1) / PRIOR_SD**2 - proposal.logpdf(points)
    log_w -= np.logaddexp(0, -Z @ points.T).sum(0)
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    draws, counts = hand.sample(Z, AT, 40_000, rng)
    assert counts.rows.mean() < 0.3 * N and 0.8 < counts.accepted.mean() < 0.99
    for function in (lambda b: b, lambda b: (b - AT.mode) ** 2):
        expected = w @ function(points)
        error = np.sqrt(w**2 @ (function(points) - expected) ** 2)
        batches = function(draws).reshape(100, 400, 3).mean(1)
        error = np.hypot(error, batches.std(0, ddof=1) / 10)
        assert np.all(np.abs(batches.mean(0) - expected) < 4 * error)


def test_verdicts_are_those_of_the_package():
    rule = NormalRace().rule(N, 2)
    rule = rule._replace(safe_width=hand._SAFE / N)
    population, marked = make_population(N), np.zeros((N + 63) // 64, np.uint64)
    rounds = set()
    for k, (x, x_new) in enumerate(pairs(300, 2)):
        scatter = row_changes(x, x_new, np.arange(N))
        bias = -scatter.mean() + scatter.std() * np.random.default_rng(k).normal(0, 0.2)
        found = decide(x, x_new, bias, rule, marked, np.random.default_rng(k))
        args = np.stack([x, x_new]), CENTRE, np.array([0.0, bias])
        other = race(rewards(), *args, population, rule, np.random.default_rng(k))
        assert found == (other.winner == 1, other.rows, other.rounds)
        assert not marked.any()
        rounds.add(found[2])
    assert len(rounds) > 4
