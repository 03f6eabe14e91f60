"""What simulators do wrong, and what does not end a run because of it."""

from __future__ import annotations

import numpy as np
import pytest

from amc_pymc.likelihood_free.fail_safe import (
    Measure,
    NegativeDistance,
    clipped,
    run_batch,
    run_each,
)
from amc_pymc.likelihood_free.problem import Failure

SHAPES = [(2,)]


def first(simulations):
    return simulations[0][:, 0]


def each(call, n=4, rows=None, distance=first, shapes=SHAPES):
    rows = np.arange(n) if rows is None else np.asarray(rows)
    return run_each(call, Measure(distance, shapes), rows, n)


def batch(call, n=4, rows=None, distance=first, shapes=SHAPES, seed=1):
    rows = np.arange(n) if rows is None else np.asarray(rows)
    rng = np.random.default_rng(seed)
    return run_batch(lambda part, rng: call(part), Measure(distance, shapes), rows, n, rng)


def test_errors_are_told_and_count_as_far():
    def call(i):
        if i % 2:
            raise ZeroDivisionError(f"row {i}")
        return [[float(i), 0.0]]

    found = each(call)
    assert found.distance.tolist() == [0.0, np.inf, 2.0, np.inf]
    assert found.failures == [
        Failure(1, "error", "ZeroDivisionError: row 1"),
        Failure(3, "error", "ZeroDivisionError: row 3"),
    ]


def test_nan_is_told_and_counts_as_far():
    found = each(lambda i: [[float(i), np.nan if i == 1 else 0.0]])
    assert found.distance.tolist() == [0.0, np.inf, 2.0, 3.0]
    assert found.failures == [Failure(1, "nan", "the simulation has nan")]


@pytest.mark.parametrize(
    ("simulation", "message"),
    [
        (
            np.zeros((1, 2)),
            "ValueError: simulation of shape (1, 2), the data call for (2,); drop the first axis",
        ),
        (1.0, "ValueError: simulation of shape (), the data call for (2,)"),
        (None, "TypeError: simulation of dtype object, it must be numbers"),
        (np.array([1j, 0.0]), "TypeError: simulation of dtype complex128, it must be numbers"),
        (["a", "b"], "TypeError: simulation of dtype <U1, it must be numbers"),
    ],
)
def test_what_is_no_simulation_is_told(simulation, message):
    shapes = [()] if simulation is None else SHAPES
    found = each(lambda i: [simulation if i == 1 else np.zeros(shapes[0])], shapes=shapes,
                 distance=lambda s: s[0].reshape(len(s[0]), -1).sum(axis=1))  # fmt: skip
    assert found.failures == [Failure(1, "error", message)]
    assert found.distance.tolist() == [0.0, np.inf, 0.0, 0.0]


def test_an_error_in_one_distance_spares_the_others():
    def distance(simulations):
        if (simulations[0][:, 0] == 2.0).any():
            raise KeyError("two")
        return simulations[0][:, 0]

    found = each(lambda i: [[float(i), 0.0]], distance=distance)
    assert found.distance.tolist() == [0.0, 1.0, np.inf, 3.0]
    assert found.failures == [Failure(2, "error", "KeyError: 'two'")]


def negative(simulations):
    raise NegativeDistance("below zero")


@pytest.mark.parametrize("run", [each, batch])
def test_negative_distances_end_the_run(run):
    with pytest.raises(NegativeDistance, match="below zero"):
        run(lambda i: [np.zeros((4, 2)) if run is batch else [0.0, 0.0]], distance=negative)


@pytest.mark.parametrize("run", [each, batch])
def test_interrupts_pass(run):
    def call(i):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(call)


class Brittle:
    """Calls of rows, of which some always raise."""

    def __init__(self, *bad):
        self.bad, self.calls = set(bad), []

    def __call__(self, rows):
        self.calls.append(rows.tolist())
        met = sorted(self.bad & set(self.calls[-1]))
        if met:
            raise ValueError(f"row {met[0]}")
        return [np.stack([rows, rows], axis=1)]


@pytest.mark.parametrize(("n", "bad"), [(64, (5,)), (1, (0,)), (5, (4,)), (7, (0, 6))])
def test_rows_that_raise_in_a_batch_are_told_from_the_others(n, bad):
    call = Brittle(*bad)
    found = batch(call, n=n)
    good = np.setdiff1d(np.arange(n), bad)
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == list(bad)
    assert found.distance[good].tolist() == good.tolist()
    assert found.failures == [Failure(i, "error", f"ValueError: row {i}") for i in bad]
    assert call.calls == [[*range(n)], *([i] for i in range(n) if n > 1)]


def raising(probability):
    """Simulations that each raise with their probability, and are uniform."""

    def call(rows, rng):
        if (rng.random(len(rows)) < probability[rows]).any():
            raise ValueError("bad luck")
        return [rng.random((len(rows), 2))]

    return call


@pytest.mark.parametrize("probability", [0.02, 0.5])
def test_rows_fail_about_as_often_in_batches_as_alone(probability):
    n, repeats = 200, 100
    failed, small = np.zeros((repeats, n), bool), np.zeros((repeats, n), bool)
    for k in range(repeats):
        rng, each = np.random.default_rng([3, k]), np.full(n, probability)
        found = run_batch(raising(each), Measure(first, SHAPES), np.arange(n), n, rng)
        failed[k], small[k] = np.isinf(found.distance), found.distance < 0.3
    expected = probability * (1.0 - (1.0 - probability) ** n)
    assert probability - expected < 1.0 / (np.e * n)
    for seen, wanted in ((failed, expected), (small, 0.3 * (1.0 - expected))):
        assert abs(seen.mean() - wanted) < 4.0 * np.sqrt(wanted * (1.0 - wanted) / seen.size)


@pytest.mark.parametrize(
    ("u", "message"),
    [
        (np.zeros(2), r"shape \(n, 2\), got \(2,\)"),
        (np.zeros((3, 1)), r"shape \(n, 2\), got \(3, 1\)"),
        ([[0.5, np.nan]], "unit cube, got values from nan to nan"),
        ([[0.5, 1.1]], "unit cube, got values from 0.5 to 1.1"),
    ],
)
def test_bad_points_are_refused(u, message):
    with pytest.raises(ValueError, match=message):
        clipped(u, 2)


def test_points_are_kept_off_the_faces():
    assert clipped([[0.0, 1.0]], 2).tolist() == [[2.0**-53, 1.0 - 2.0**-53]]
    assert clipped(np.empty((0, 2)), 2).shape == (0, 2)


def test_nan_distances_are_told():
    found = each(
        lambda i: [[float(i), 0.0]], distance=lambda s: np.where(s[0][:, 0] == 2.0, np.nan, 1.0)
    )
    assert found.distance.tolist() == [1.0, 1.0, np.inf, 1.0]
    assert found.failures == [Failure(2, "nan", "the distance is nan")]


def test_a_batch_of_the_wrong_shape():
    found = batch(lambda rows: [np.zeros((2, 4))])
    assert found.failures[0].message.startswith(
        "ValueError: simulation of shape (2, 4), the data call for (1, 2); if its length varies, return summary"
    )


def test_negative_distances_of_parts_end_the_run():
    with pytest.raises(NegativeDistance, match="below zero"):
        batch(Brittle(2), distance=negative)
