import numpy as np
import pytest

from models.coreference import (
    Factor,
    b_cubed_f1,
    pair_factors,
    power_law_mentions,
    run_coreference,
    singletons,
    sweep,
)
from models.race_sums import SumsRule
from tests.compiled_calls import called_often


@pytest.fixture(scope="module")
def mentions():
    return power_law_mentions(60, n_blocks=4, largest=150, n_features=16, seed=3)


# --- the score ------------------------------------------------------------------------------------


def test_b_cubed_of_the_authors_example():
    """Bagga & Baldwin (1998), figures 1 and 2: precision 76 % and 58 %, recall 100 %."""
    truth = [0] * 5 + [1] * 2 + [2] * 5
    for response, precision in (
        ([0] * 5 + [1] * 7, (5 + 2 * 2 / 7 + 5 * 5 / 7) / 12),
        ([0] * 5 + [1] * 2 + [0] * 5, (10 * 5 / 10 + 2) / 12),
    ):
        assert b_cubed_f1(response, truth) == pytest.approx(2 * precision / (precision + 1.0))
        assert b_cubed_f1(truth, response) == pytest.approx(b_cubed_f1(response, truth))
    assert b_cubed_f1([3, 3, 8], [1, 1, 0]) == 1.0


# --- the sampler ----------------------------------------------------------------------------------


def partitions(n):
    """All partitions of n things as tuples of labels in order of appearance."""
    if n == 0:
        return [()]
    return [(*p, c) for p in partitions(n - 1) for c in range(max(p, default=-1) + 2)]


def canonical(labels):
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(int(c), len(seen)) for c in labels)


@pytest.mark.slow
def test_stationary_distribution():
    """Four mentions, 15 partitions: p(y) is the exponential of the sum over pairs, each once."""
    x = np.array([[0.0], [0.9], [1.3], [2.0]])
    factor = Factor(x, 0.8, 0.7, 0)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    f = {(i, j): 0.8 - 0.7 * (x[i, 0] - x[j, 0]) ** 2 for i, j in pairs}
    states = partitions(4)
    assert len(states) == 15
    log_p = np.array([sum(f[i, j] for i, j in pairs if y[i] == y[j]) for y in states])
    p = np.exp(log_p / 2.5)
    p /= p.sum()
    clusters = singletons(np.zeros(4, dtype=np.int64))
    rng, rule = np.random.default_rng(4), SumsRule(first=100)
    n_sweeps, n_batches = 20_000, 50
    one_sweep = called_often(sweep)
    draws = np.empty(n_sweeps, dtype=np.int64)
    for s in range(n_sweeps):
        order, block = rng.permutation(4), np.zeros(4, dtype=np.int64)
        one_sweep(pair_factors(), factor, clusters, block, order, 2.5, rule, 0.0, rng)
        draws[s] = states.index(canonical(clusters.of))
    hits = (draws[:, None] == np.arange(15)).reshape(n_batches, -1, 15).mean(axis=1)
    z = (hits.mean(axis=0) - p) / (hits.std(axis=0, ddof=1) / np.sqrt(n_batches))
    assert np.all(np.abs(z) < 4.0)


def test_racing_agrees_with_exact_and_reads_less(mentions):
    def runs(race):
        return [
            run_coreference(mentions, race=race, seed=s, n_sweeps=12, hottest=5.0, audit_share=0.5)
            for s in range(6)
        ]

    exact, racing = runs(None), runs(0.05)
    f1 = np.array([[t.f1[-1] for t in traces] for traces in (exact, racing)])
    error = np.hypot(*f1.std(axis=1, ddof=1)) / np.sqrt(6)
    assert abs(f1[0].mean() - f1[1].mean()) < 4.0 * error + 1e-3
    assert f1.min() > 0.6
    assert 2.0 * np.mean([t.read_share[-1] for t in racing]) < 1.0
    audited, wrong = (sum(getattr(t, k)[-1] for t in racing) for k in ("audited", "wrong"))
    assert audited > 0.4 * 6 * 12 * mentions.entity.size
    assert wrong / audited < 0.05
