"""Conversion of seeds to random generators.

This is the only module that creates a ``numpy.random.Generator``. All other code receives one, and gets
independent children for its chains, particles or jobs from :func:`spawn_generators`.
"""

import operator

from collections.abc import Sequence

import numpy as np

type RandomSeed = int | Sequence[int] | np.random.SeedSequence | np.random.Generator | None


def as_generator(random_seed: RandomSeed = None) -> np.random.Generator:
    """Turn a seed into a generator.

    Parameters
    ----------
    random_seed : int, sequence of int, SeedSequence, Generator or None
        Integers must not be negative. A generator is returned as it is, so drawing from the result advances
        the caller's generator. None takes entropy from the operating system.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    TypeError
        If `random_seed` is of any other type, booleans, floats and strings included.
    ValueError
        If an integer is negative or a sequence is empty.

    Examples
    --------
    Equal seeds give equal streams:

    >>> from amc_pymc.rng import as_generator
    >>> bool(as_generator(7).random() == as_generator(7).random())
    True

    A generator passes through:

    >>> rng = as_generator([2024, 7])
    >>> as_generator(rng) is rng
    True
    """
    if isinstance(random_seed, np.random.Generator):
        return random_seed
    if random_seed is None or isinstance(random_seed, np.random.SeedSequence):
        return np.random.default_rng(random_seed)
    if isinstance(random_seed, np.random.RandomState | np.random.BitGenerator):
        raise TypeError(
            f"random_seed is a {type(random_seed).__name__}, which is not supported; "
            "pass an int or a numpy.random.Generator."
        )
    if isinstance(random_seed, np.ndarray) and random_seed.ndim > 0:
        if random_seed.ndim > 1:
            raise TypeError(
                f"random_seed must have one dimension if it is an array, got shape {random_seed.shape}."
            )
        return np.random.default_rng(_seed_words(random_seed.tolist()))
    if isinstance(random_seed, Sequence) and not isinstance(random_seed, str | bytes | bytearray):
        return np.random.default_rng(_seed_words(random_seed))
    return np.random.default_rng(_seed_word(random_seed, "random_seed"))


def spawn_generators(random_seed: RandomSeed, n: int) -> list[np.random.Generator]:
    """Make `n` generators with independent streams, one per chain, particle or job.

    Parameters
    ----------
    random_seed : int, sequence of int, SeedSequence, Generator or None
        As in :func:`as_generator`. Integers, alone or in a sequence, give the same children in every call.
        A Generator or SeedSequence counts its children, so each call gives new ones.
    n : int
        Number of generators; zero gives an empty list.

    Returns
    -------
    list of numpy.random.Generator
        The i-th child depends on the seed and on i, not on `n`.

    Raises
    ------
    TypeError
        If `random_seed` or `n` has the wrong type, or a generator carries no seed sequence to spawn from.
    ValueError
        If `n` is negative, or for the reasons given in :func:`as_generator`.

    Examples
    --------
    >>> from amc_pymc.rng import spawn_generators
    >>> first, second = spawn_generators(11, 2)
    >>> bool(first.random() == second.random())
    False

    Requesting more children does not change the earlier ones:

    >>> streams = [rng.random() for rng in spawn_generators(11, 2)]
    >>> streams == [rng.random() for rng in spawn_generators(11, 3)][:2]
    True
    """
    if isinstance(n, bool | np.bool_):
        raise TypeError(f"n must be an int, got {n!r}.")
    try:
        count = operator.index(n)
    except TypeError:
        raise TypeError(f"n must be an int, got {n!r} of type {type(n).__name__}.") from None
    if count < 0:
        raise ValueError(f"n must not be negative, got {count}.")
    parent = as_generator(random_seed)
    try:
        return parent.spawn(count)
    except TypeError:
        raise TypeError(
            f"random_seed={random_seed!r} has no seed sequence to spawn from; "
            "make it with numpy.random.default_rng(seed)."
        ) from None


def seed_words(random_seed: RandomSeed) -> list[int]:
    """Return a seed as integers, from which a stored run can be repeated; a generator is advanced."""
    words: list[int] = as_generator(random_seed).integers(2**32, size=4).tolist()
    return words


def _seed_words(values: Sequence[int]) -> list[int]:
    if len(values) == 0:
        raise ValueError(
            f"random_seed must not be an empty sequence, got {values!r}; pass None for a fresh seed."
        )
    return [_seed_word(value, f"random_seed[{i}]") for i, value in enumerate(values)]


def _seed_word(value: object, name: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an int, got {value!r}; use 0 or 1.")
    try:
        word = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an int, got {value!r} of type {type(value).__name__}; as a whole, random_seed "
            "may be an int, a sequence of ints, a SeedSequence, a Generator or None."
        ) from None
    if word < 0:
        raise ValueError(f"{name} must not be negative, got {word}.")
    return word
