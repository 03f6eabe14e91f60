"""The parts that all examples share: checks, distances, batches, rejection."""

import dataclasses
import math

import numpy as np
import pytest

from models.rejection import RejectionSampler, Students, next_temperature
from models.simulator_example import (
    accepted_draws,
    batched,
    data_row,
    in_ball,
    noise_scale,
    rows,
)
from models.two_moons import two_moons

EXAMPLE = two_moons()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observed": np.array([0.0, np.nan])}, "observed must be one row of finite"),
        ({"observed": np.zeros((1, 2))}, "observed must be one row of finite"),
        ({"scale": np.ones(3)}, r"scale must have the shape of observed, \(2,\), got \(3,\)"),
        ({"scale": np.array([1.0, 0.0])}, "scale must be positive and finite"),
        ({"scale": np.array([1.0, np.inf])}, "scale must be positive and finite"),
        ({"epsilon": 0.0}, "epsilon must be positive and finite, got 0.0"),
        ({"epsilon": math.nan}, "epsilon must be positive and finite, got nan"),
        ({"shapes": {}}, "shapes must name the free variables"),
        ({"mode": np.zeros(3)}, r"mode must have shape \(2,\), got \(3,\)"),
        ({"truth": np.zeros(1)}, r"truth must have shape \(2,\), got \(1,\)"),
    ],
)
def test_an_example_that_makes_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EXAMPLE, **change)


def test_distance_by_hand():
    example = dataclasses.replace(
        EXAMPLE, observed=np.array([1.0, 2.0]), scale=np.array([2.0, 0.5])
    )
    summaries = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 3.5], [np.nan, 2.0], [np.inf, 2.0]])
    expected = [0.0, 1.0, math.hypot(2.0, 3.0), np.inf, np.inf]
    np.testing.assert_allclose(example.distance(summaries), expected)
    with pytest.raises(ValueError, match=r"summaries must have shape \(n, 2\), got \(2,\)"):
        example.distance(summaries[0])


def test_columns():
    example = dataclasses.replace(EXAMPLE, shapes={"a": (2, 2), "b": ()})
    assert example.n_dim == 5 and example.names == ("a", "b")
    values = {"b": np.array([9.0, 8.0]), "a": np.arange(8.0).reshape(2, 2, 2), "c": 0.0}
    np.testing.assert_array_equal(
        example.columns(values), [[0.0, 1.0, 2.0, 3.0, 9.0], [4.0, 5.0, 6.0, 7.0, 8.0]]
    )
    with pytest.raises(ValueError, match=r"values lacks \['b'\], it has \['a'\]"):
        example.columns({"a": np.zeros((1, 2, 2))})


def test_prior_sample_wants_a_count():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        EXAMPLE.prior_sample(np.random.default_rng(1), 0)
    with pytest.raises(TypeError, match="n must be an integer"):
        EXAMPLE.prior_sample(np.random.default_rng(1), 2.0)


def test_rows_and_data():
    assert rows("x", [[1, 2]], 2).dtype == np.float64
    assert rows("x", np.empty((0, 2)), 2).shape == (0, 2)
    for bad in ([1.0, 2.0], [[1.0]], np.zeros((1, 1, 2))):
        with pytest.raises(ValueError, match=r"x must have shape \(n, 2\)"):
            rows("x", bad, 2)
    for bad in ([1.0], [1.0, np.nan], [1.0, np.inf], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="observed must be 2 finite numbers"):
            data_row(bad, 2)


def combine(rng, theta):
    """Scalar a, vector b of two, scalar c, to three numbers that tell them apart."""
    return theta @ np.array([[1.0, 0, 0], [10.0, 0, 0], [100.0, 0, 0], [0, 1.0, 10.0]])


def test_batched_puts_parameters_into_columns():
    fn = batched(combine, (0, 1, 0))
    single = fn(None, np.array([1.0]), np.array([[2.0, 3.0]]), np.array([4.0]), (3,))
    np.testing.assert_array_equal(single, [321.0, 4.0, 40.0])
    named = fn(None, np.array([1.0]), np.array([[2.0, 3.0]]), np.array([4.0]), size=(3,))
    np.testing.assert_array_equal(named, single)
    a, b, c = np.arange(5.0)[:, None], np.arange(10.0).reshape(5, 1, 2), np.array([7.0])
    batch = fn(None, a, b, c, (5, 3))
    expected = [fn(None, a[i], b[i], c, (3,)) for i in range(5)]
    np.testing.assert_array_equal(batch, expected)
    # As in PyMC's start values: many draws at one parameter, which has no leading axis.
    many = fn(None, np.array([1.0]), np.array([[2.0, 3.0]]), np.array([4.0]), (2, 4, 3))
    assert many.shape == (2, 4, 3) and (many == single).all()


def test_batched_finds_the_wrong_width():
    with pytest.raises(ValueError, match=r"summaries must have shape \(n, 4\), got \(1, 3\)"):
        batched(combine, (0, 1, 0))(None, np.ones(1), np.ones((1, 2)), np.ones(1), (4,))


def test_noise_scale_leaves_failures_out():
    def simulate(rng, theta):
        x = theta * rng.standard_normal(theta.shape)
        x[::10] = np.nan
        return x

    scale = noise_scale(simulate, np.array([1.0, 5.0]), 10_000)
    # The standard error of a standard deviation is 1 / sqrt(2 n) of it.
    np.testing.assert_allclose(scale, [1.0, 5.0], rtol=4.0 / math.sqrt(18_000))


def test_in_ball():
    rng, n = np.random.default_rng(1), 20_000
    for d in (1, 2, 10):
        x = in_ball(rng, n, d, 3.0)
        share = (np.linalg.norm(x, axis=1) / 3.0) ** d  # uniform
        assert share.max() < 1.0
        assert abs(share.mean() - 0.5) < 4.0 / math.sqrt(12.0 * n)
        np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=4.0 * 3.0 / math.sqrt((d + 2) * n))
    np.testing.assert_array_equal(in_ball(rng, 3, 2, 0.0), 0.0)


def test_accepted_draws_are_the_first():
    calls = []

    def propose(rng, m):
        x = rng.random((m, 1))
        calls.append(x)
        return x, x[:, 0] < 0.1

    got = accepted_draws(propose, np.random.default_rng(1), 700, batch=1000)
    x = np.concatenate(calls)
    np.testing.assert_array_equal(got, x[x < 0.1][:700, None])
    with pytest.raises(RuntimeError, match="5000 proposals gave 0 of 1 draws"):
        accepted_draws(
            lambda rng, m: (np.zeros((m, 1)), np.zeros(m, bool)),
            np.random.default_rng(1),
            1,
            batch=5000,
            max_per_draw=5000,
        )


# --- rejection from a fitted mixture --------------------------------------------------------------


def banana(x):
    """A normal in the first coordinate and around its square in the second."""
    return -0.5 * x[:, 0] ** 2 - 0.5 * ((x[:, 1] - x[:, 0] ** 2) / 0.5) ** 2


def test_rejection_sampler_of_a_banana():
    start = np.random.default_rng(0).uniform(-20.0, 20.0, (5000, 2))
    sampler = RejectionSampler.fitted(banana, start, np.random.default_rng(1), n=4000, pilot=20_000)
    assert sampler.rate > 0.1
    x = sampler.draw(np.random.default_rng(2), 20_000)
    for values, mean, sd in (
        (x[:, 0], 0.0, 1.0),
        (x[:, 0] ** 2, 1.0, math.sqrt(2.0)),
        (x[:, 1] - x[:, 0] ** 2, 0.0, 0.5),
        (x[:, 1], 1.0, 1.5),
    ):
        assert abs(values.mean() - mean) < 4.0 * sd / math.sqrt(len(x))
    with pytest.raises(RuntimeError, match="no starting point"):
        RejectionSampler.fitted(lambda x: np.full(len(x), -np.inf), start, np.random.default_rng(1))


def test_students_integrate_to_one():
    students = Students(
        shares=np.array([0.3, 0.7]),
        means=np.array([[0.0, 0.0], [3.0, 1.0]]),
        roots=np.array([[[1.0, 0.0], [0.5, 1.0]], [[0.3, 0.0], [0.0, 2.0]]]),
    )
    edge = np.linspace(-40.0, 40.0, 801)
    grid = np.stack(np.meshgrid(edge, edge, indexing="ij"), axis=-1).reshape(-1, 2)
    total = np.exp(students.log_density(grid)).sum() * (edge[1] - edge[0]) ** 2
    assert abs(total - 1.0) < 2e-3
    x = students.draw(np.random.default_rng(3), 40_000)
    share = (x[:, 0] > 1.8).mean()
    expected = np.exp(students.log_density(grid[grid[:, 0] > 1.8])).sum() * (edge[1] - edge[0]) ** 2
    assert abs(share - expected) < 4.0 * math.sqrt(0.25 / 40_000) + 2e-3


def test_next_temperature():
    level = -0.5 * np.linspace(-30.0, 30.0, 1001) ** 2
    zero = np.zeros(1001)
    found = next_temperature(level, zero, 0.0, ess=0.3)
    weights = np.exp(found * level)
    assert abs(weights.sum() ** 2 / (weights**2).sum() / 1001 - 0.3) < 1e-3
    assert next_temperature(level, zero, 0.0, ess=0.01) == 1.0
