"""Generators that compiled loops take by their addresses."""

import copy

import numpy as np
import pytest

from amc_pymc.engine.jit import njit
from amc_pymc.engine.streams import generator_of, stream_of


@njit
def draw(stream, n):
    rng, out = generator_of(stream), np.empty((n, 3))
    for k in range(n):
        out[k] = np.array([rng.random(), rng.standard_normal(), rng.random()])
    return out


@njit
def draw_numba(rng, n):
    out = np.empty((n, 3))
    for k in range(n):
        out[k] = np.array([rng.random(), rng.standard_normal(), rng.random()])
    return out


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_draws_are_those_of_the_generator_which_advances(bits):
    rng = np.random.Generator(getattr(np.random, bits)(5))
    same = copy.deepcopy(rng)
    for n in (3, 1, 4):
        np.testing.assert_array_equal(draw(stream_of(rng), n), draw_numba(same, n))
    assert rng.random() == same.random()


def test_a_copy_and_a_child_have_streams_of_their_own():
    rng = np.random.default_rng(1)
    draw(stream_of(rng), 2)
    others = copy.deepcopy(rng), rng.spawn(1)[0]
    assert len({stream_of(g)[0] for g in (rng, *others)}) == 3
    np.testing.assert_array_equal(draw(stream_of(others[0]), 5), draw(stream_of(rng), 5))


def test_a_state_that_is_set_is_that_of_the_stream():
    rng = np.random.default_rng(1)
    state, first = rng.bit_generator.state, draw(stream_of(rng), 2)
    rng.bit_generator.state = state
    np.testing.assert_array_equal(draw(stream_of(rng), 2), first)


def test_many_generators():
    """Addresses that are forgotten are looked up again."""
    made = [np.random.default_rng(k) for k in range(600)]
    for _ in range(2):
        for k, rng in enumerate(made):
            assert draw(stream_of(rng), 1).shape == (1, 3), k
    expected = np.random.default_rng(599)
    draw_numba(expected, 2)
    assert made[-1].random() == expected.random()
