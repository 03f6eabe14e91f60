import numpy as np
import pytest

from amc_pymc.rng import as_generator, spawn_generators

SEEDS = {
    "int": lambda: 3, "zero": lambda: 0, "numpy int": lambda: np.int64(3),
    "list": lambda: [1, 2, 3], "array": lambda: np.array([1, 2, 3]),
    "SeedSequence": lambda: np.random.SeedSequence(3),
    "Generator": lambda: np.random.default_rng(3),
}  # fmt: skip


def draws(rng):
    return tuple(rng.integers(2**62, size=4))


@pytest.mark.parametrize("make", SEEDS.values(), ids=SEEDS)
def test_equal_seeds_give_equal_streams(make):
    assert draws(as_generator(make())) == draws(as_generator(make()))
    first, second = spawn_generators(make(), 3), spawn_generators(make(), 3)
    assert [draws(r) for r in first] == [draws(r) for r in second]


def test_spellings_of_one_seed_agree():
    assert draws(as_generator([1, 2])) == draws(as_generator(np.array([1, 2], dtype=np.uint8)))
    assert draws(as_generator(5)) == draws(as_generator(np.random.SeedSequence(5)))


def test_other_seeds_give_other_streams():
    streams = [draws(as_generator(seed)) for seed in (0, 1, [1, 2], [2, 1], None, None)]
    assert len(set(streams)) == len(streams)


def test_generator_is_passed_through():
    rng = np.random.default_rng(1)
    assert as_generator(rng) is rng


@pytest.mark.parametrize("make", SEEDS.values(), ids=SEEDS)
def test_children_differ_from_each_other_and_from_the_parent(make):
    streams = [draws(r) for r in [as_generator(make()), *spawn_generators(make(), 5)]]
    assert len(set(streams)) == 6


def test_children_do_not_depend_on_their_number():
    few, many = spawn_generators(9, 2), spawn_generators(9, 5)
    assert [draws(r) for r in few] == [draws(r) for r in many[:2]]


def test_global_state_is_neither_read_nor_written():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    spawn_generators(None, 2)
    as_generator(1).random()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (1.0, TypeError, r"random_seed must be .* got 1\.0"),
        (True, TypeError, "random_seed must be .* got True"),
        ("12", TypeError, "random_seed must be .* got '12'"),
        ([1, 2.5], TypeError, r"random_seed must be .* got \[1, 2\.5\]"),
        (np.array([0.5]), TypeError, r"random_seed must be .* got array\(\[0\.5\]\)"),
        (np.array([True]), TypeError, "random_seed must be .* True"),
        (np.ones((2, 2), dtype=int), TypeError, "random_seed must be .* got array"),
        (np.random.RandomState(1), TypeError, "random_seed must be .* got RandomState"),
        (np.random.PCG64(1), TypeError, "random_seed must be .*PCG64"),
        (-1, ValueError, "random_seed must not be negative, got -1"),
        ([3, -2], ValueError, r"random_seed must not be negative, got \[3, -2\]"),
        ([], TypeError, r"random_seed must be .* got \[\]"),
    ],
)
def test_bad_seed_is_named(seed, error, message):
    with pytest.raises(error, match=message):
        as_generator(seed)
    with pytest.raises(error, match=message):
        spawn_generators(seed, 2)
