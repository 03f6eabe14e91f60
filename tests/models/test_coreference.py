import json
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from models.coreference import (
    Factor,
    Mentions,
    b_cubed_f1,
    digit_mentions,
    pair_factors,
    power_law_mentions,
    put_in,
    run_coreference,
    singletons,
    sweep,
    take_out,
)
from models.race_sums import make_sums_rule
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
    with pytest.raises(ValueError, match="equally long"):
        b_cubed_f1([1, 2], [1, 2, 3])


# --- clusters -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_clusters_after_many_moves():
    """Against a plain list of labels, with growth and packing."""
    rng = np.random.default_rng(0)
    block = np.array([0] * 30 + [1] * 1 + [2] * 50)[rng.permutation(81)]
    clusters = singletons(block)
    labels = clusters.of.copy()
    for step in range(6000):
        i = rng.integers(81)
        b = block[i]
        take_out(clusters, i, b)
        first, n_open = clusters.first_slot[b], clusters.n_open[b]
        favoured = rng.integers(min(3, n_open + 1)) if step % 2 else rng.integers(n_open + 1)
        c = clusters.slots[first + favoured]
        put_in(clusters, i, c, b)
        labels[i] = c
    np.testing.assert_array_equal(clusters.of, labels)
    for c in range(81):
        held = clusters.members[clusters.start[c] : clusters.start[c] + clusters.size[c]]
        np.testing.assert_array_equal(np.sort(held), np.flatnonzero(labels == c))
        assert clusters.size[c] <= clusters.room[c]
    np.testing.assert_array_equal(clusters.members[clusters.place], np.arange(81))
    np.testing.assert_array_equal(clusters.slots[clusters.slot_place], np.arange(81))
    for b in range(3):
        first, last = clusters.first_slot[b], clusters.first_slot[b + 1]
        sizes = clusters.size[clusters.slots[first:last]]
        assert np.all(sizes[: clusters.n_open[b]] > 0)
        assert np.all(sizes[clusters.n_open[b] :] == 0)
        assert set(block[np.isin(labels, clusters.slots[first:last])]) == {b}


# --- the sampler ----------------------------------------------------------------------------------


def partitions(n):
    """All partitions of n things as tuples of labels in order of appearance."""
    if n == 0:
        return [()]
    return [(*p, c) for p in partitions(n - 1) for c in range(max(p, default=-1) + 2)]


def canonical(labels):
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(int(c), len(seen)) for c in labels)


@pytest.mark.parametrize("temperature", [1.0, pytest.param(2.5, marks=pytest.mark.slow)])
def test_stationary_distribution(temperature):
    """Four mentions, 15 partitions: p(y) is the exponential of the sum over pairs, each once."""
    x = np.array([[0.0], [0.9], [1.3], [2.0]])
    factor = Factor(x, 0.8, 0.7, 0)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    f = {(i, j): 0.8 - 0.7 * (x[i, 0] - x[j, 0]) ** 2 for i, j in pairs}
    states = partitions(4)
    assert len(states) == 15
    log_p = np.array([sum(f[i, j] for i, j in pairs if y[i] == y[j]) for y in states])
    p = np.exp(log_p / temperature)
    p /= p.sum()
    clusters = singletons(np.zeros(4, dtype=np.int64))
    rng, rule = np.random.default_rng(4), make_sums_rule(0.05, first=100)
    n_sweeps, n_batches = 20_000, 50
    one_sweep = called_often(sweep)
    draws = np.empty(n_sweeps, dtype=np.int64)
    for s in range(n_sweeps):
        order, block = rng.permutation(4), np.zeros(4, dtype=np.int64)
        one_sweep(pair_factors(), factor, clusters, block, order, temperature, rule, 0.0, rng)
        draws[s] = states.index(canonical(clusters.of))
    hits = (draws[:, None] == np.arange(15)).reshape(n_batches, -1, 15).mean(axis=1)
    z = (hits.mean(axis=0) - p) / (hits.std(axis=0, ddof=1) / np.sqrt(n_batches))
    assert np.all(np.abs(z) < 4.0)


def test_the_exact_sampler_reads_every_factor(mentions):
    n = np.bincount(mentions.block)
    trace = run_coreference(mentions, race=None, n_sweeps=2)
    np.testing.assert_array_equal(np.diff(trace.evaluations), np.sum(n * (n - 1)))
    np.testing.assert_array_equal(trace.read_share[1:], 1.0)


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


def test_audits_find_wrong_decisions(mentions):
    """A race that promises next to nothing errs, and the audits see it."""
    trace = run_coreference(mentions, race=0.49, student=False, n_sweeps=4, audit_share=1.0)
    assert trace.audited[-1] == 4 * mentions.entity.size
    assert trace.wrong[-1] > 0


def test_reproducible(mentions):
    first, again, other = (run_coreference(mentions, seed=s, n_sweeps=3) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.evaluations, again.evaluations)
    assert not np.array_equal(first.labels, other.labels)


# --- data -----------------------------------------------------------------------------------------


def test_power_law_sizes():
    m = power_law_mentions(400, largest=500, exponent=1.6, n_features=2, seed=1)
    sizes = np.bincount(m.entity)
    assert (sizes.size, sizes.max()) == (400, 500)
    expected = 1.0 / np.sum(np.arange(1, 501) ** -1.6)
    ones = np.mean(sizes[1:] == 1)
    assert abs(ones - expected) < 4.0 * np.sqrt(expected * (1.0 - expected) / 399)
    assert all(np.unique(m.block[m.entity == e]).size == 1 for e in range(400))


def test_factor_is_a_log_density_ratio():
    m = power_law_mentions(5, n_blocks=1, largest=3, n_features=3, noise=0.7)
    d = np.array([0.3, -1.0, 0.5])

    def log_normal(v):
        return -0.5 * d @ d / v - 1.5 * np.log(2.0 * np.pi * v)

    expected = log_normal(2 * 0.49) - log_normal(2 * 1.49)
    assert m.offset - m.slope * (d @ d) == pytest.approx(expected)


def test_digits():
    m = digit_mentions()
    assert m.features.shape == (899, 9)
    assert m.slope > 0.0
    assert np.unique(m.entity).size == 10
    trace = run_coreference(m, n_sweeps=6, hottest=1.0)
    assert trace.f1[0] < 0.05
    assert trace.f1[-1] > 0.7


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_sweeps": 0}, "n_sweeps"),
        ({"hottest": 0.1, "coldest": 0.2}, "temperatures"),
        ({"coldest": 0.0}, "temperatures"),
        ({"audit_share": 1.5}, "audit_share"),
        ({"race": 0.7}, "delta"),
        ({"first": 1}, "first"),
    ],
)
def test_bad_input(mentions, change, match):
    with pytest.raises(ValueError, match=match):
        run_coreference(mentions, **change)


def test_a_factor_that_is_not_finite():
    features = np.array([[0.0], [np.nan], [1.0]])
    m = Mentions(features, np.zeros(3, dtype=int), np.arange(3), 1.0, 1.0)
    with pytest.raises(FloatingPointError, match="not finite"):
        run_coreference(m, n_sweeps=1)


def test_bad_generator_input():
    with pytest.raises(ValueError, match="n_entities >= n_blocks"):
        power_law_mentions(3, n_blocks=5)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path):
    command = [sys.executable, "-m", "benchmarks.papers.coreference", "--quick"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert "## power law" in done.stdout
    rows = json.loads((tmp_path / "coreference.json").read_text())["rows"]
    assert len(rows) == 8
    for row in rows:
        assert row["f1"] > 0.7
        assert row["method"] == "exact" or row["saving_near_convergence"] > 2.5
        assert row["error_low"] <= row["delta"] or not row["audited"]
