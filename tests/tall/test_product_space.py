"""Estimates and weights of chains over a product space."""

import numpy as np
import pytest

from amc_pymc.tall.product_space import estimate_models, round_trips, wang_landau_step

EVIDENCE = np.array([0.0, -1.5, 0.7])
PRIOR = np.array([0.2, 0.5, 0.3])
PROB = PRIOR * np.exp(EVIDENCE) / (PRIOR @ np.exp(EVIDENCE))
PAIRS = np.triu_indices(3, 1)
LOG_BF = EVIDENCE[:, None] - EVIDENCE[None, :]


def share(log_weights):
    w = np.exp(log_weights + EVIDENCE)
    return w / w.sum(axis=-1, keepdims=True)


def chains(rng, log_weights, draws, stay=0.0):
    """Index chains that keep their model with probability ``stay``, else draw it anew."""
    out = np.empty((len(log_weights), draws), np.int64)
    for row, p in zip(out, share(log_weights)):
        fresh = rng.choice(len(p), size=draws, p=p)
        moved = rng.random(draws) >= stay
        moved[0] = True
        row[:] = fresh[np.maximum.accumulate(np.where(moved, np.arange(draws), 0))]
    return out


@pytest.mark.parametrize("stay", [0.0, 0.6], ids=["independent", "autocorrelated"])
@pytest.mark.parametrize("n_chains", [1, 4])
def test_unbiased_with_calibrated_errors(stay, n_chains):
    """Each chain has weights of its own; z-scores of 300 repetitions are standard normal."""
    rng = np.random.default_rng([20, n_chains, round(10 * stay)])
    log_weights = rng.normal(size=(n_chains, 3)) - EVIDENCE
    repetitions, draws = 300, 4_000
    z_prob, z_bf, probs = [], [], []
    for _ in range(repetitions):
        found = estimate_models(chains(rng, log_weights, draws, stay), log_weights, PRIOR)
        probs.append(found.prob)
        z_prob.append((found.prob - PROB) / found.prob_mcse)
        z_bf.append((found.log_bf - LOG_BF)[PAIRS] / found.log_bf_mcse[PAIRS])
    for z in (np.array(z_prob), np.array(z_bf)):
        assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(repetitions)
        # A standard deviation of n normals has standard error (2 n)^-1/2. Batches of b = 63 draws
        # at autocorrelation r miss the share 2 r / (b (1 - r^2)) = 0.03 of the variance.
        assert np.abs(z.std(axis=0) - (1.015 if stay else 1.0)).max() < 4.5 / np.sqrt(600)
        coverage = (np.abs(z) < 1.96).mean(axis=0)
        assert coverage.min() > 0.95 - 4 * np.sqrt(0.95 * 0.05 / repetitions)
    error = np.std(probs, axis=0) / np.sqrt(repetitions)
    assert np.all(np.abs(np.mean(probs, axis=0) - PROB) < 4.5 * error)


def test_by_hand():
    """Shares 3/4 and 1/4 at weights 1/2, 1/2; prior 1:3."""
    index = np.array([[0, 0, 1, 0] * 20])
    found = estimate_models(index, np.log([[0.5, 0.5]]), np.array([0.25, 0.75]))
    np.testing.assert_allclose(found.prob, [0.5, 0.5])
    np.testing.assert_allclose(found.log_bf, [[0, np.log(3)], [-np.log(3), 0]])
    # Twenty batches of four, all alike.
    np.testing.assert_allclose(found.prob_mcse, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.log_bf_mcse, 0.0, atol=1e-12)


def test_errors_by_hand():
    """Twenty batches of four with 1, 2, 3, 2, ... visits of model 1; equal weights, equal prior."""
    index = np.array([[0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0] * 5])
    found = estimate_models(index, np.zeros((1, 2)), np.array([0.5, 0.5]))
    variance = np.var([0.25, 0.5, 0.75, 0.5] * 5, ddof=1) / 20
    np.testing.assert_allclose(found.prob_mcse, np.sqrt(variance))
    # log f1 - log f0 has derivative 1/f1 + 1/f0 = 4
    error = 4 * np.sqrt(variance)
    np.testing.assert_allclose(found.log_bf_mcse, [[0.0, error], [error, 0.0]])


def test_a_model_never_visited_is_nan():
    index = np.array([[0, 1] * 50, [1, 0] * 50])
    found = estimate_models(index, np.zeros((2, 3)), PRIOR)
    assert np.isnan(found.prob[2]) and np.isnan(found.prob_mcse[2])
    assert np.all(np.isfinite(found.prob[:2]))
    for table in (found.log_bf, found.log_bf_mcse):
        assert np.all(np.isnan(table[2, :2])) and np.all(np.isnan(table[:2, 2]))
        assert np.all(np.isfinite(table[:2, :2]))
        assert np.all(np.diag(table) == 0.0)


def test_chains_that_never_leave_a_model_know_no_error():
    found = estimate_models(np.array([[0] * 100, [1] * 100]), np.zeros((2, 2)), np.full(2, 0.5))
    np.testing.assert_allclose(found.prob, 0.5)
    assert np.all(np.isnan(found.prob_mcse))
    assert np.isnan(found.log_bf[0, 1])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([0, 0, 1, 0, 2, 0], [2, 0, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([1, 2, 1, 2, 1], [0, 2, 1]),
        ([2], [0, 0, 0]),
        ([0, 1, 1, 2, 0, 0, 1, 1, 0], [2, 1, 0]),
    ],
)
def test_round_trips_by_hand(index, expected):
    assert round_trips(np.array(index), 3).tolist() == expected


def test_chains_that_disagree():
    """Four chains with shares of 0.2, 0.4, 0.6 and 0.8 of model 1: their differences tell the error."""
    shares = np.array([2, 4, 6, 8])
    index = np.array([np.tile([1] * k + [0] * (10 - k), 20) for k in shares])
    found = estimate_models(index, np.zeros((4, 2)), np.array([0.5, 0.5]))
    np.testing.assert_allclose(found.prob, 0.5)
    np.testing.assert_allclose(found.prob_mcse, np.std(shares / 10, ddof=1) / 2.0)
    log_odds = np.log(shares / (10 - shares))
    np.testing.assert_allclose(found.log_bf_mcse[1, 0], np.std(log_odds, ddof=1) / 2.0)


# --- adaptive weights -----------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "gain"), [(0, 1.0), (100, 0.5), (900, 0.1)])
def test_a_weight_by_hand(t, gain):
    """Weights (0.2, 0.3, 0.5), model 1 visited: 0.3 becomes 0.3 exp(-gain) before normalising."""
    w = np.log([0.2, 0.3, 0.5])
    wang_landau_step(w, 1, t)
    left = 0.3 * np.exp(-gain)
    np.testing.assert_allclose(np.exp(w), np.array([0.2, left, 0.5]) / (0.7 + left), rtol=1e-12)


def test_visits_become_even():
    """Independent draws with evidences five units apart; afterwards the weights are fixed."""
    rng = np.random.default_rng(7)
    evidence = np.array([0.0, -5.0, 3.0])
    w = np.zeros(3)

    def visit():
        p = np.exp(w + evidence - np.logaddexp.reduce(w + evidence))
        return int(rng.choice(3, p=p))

    for t in range(20_000):
        wang_landau_step(w, visit(), t)
    # The last gain is 1/200, the weights fluctuate by about its root.
    p = np.exp(w + evidence - np.logaddexp.reduce(w + evidence))
    np.testing.assert_allclose(p, 1 / 3, atol=4 * np.sqrt(1 / 200) / 3)
    np.testing.assert_allclose(w - w[0], -(evidence - evidence[0]), atol=4 * np.sqrt(1 / 200))
