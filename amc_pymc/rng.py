"""Conversion of seeds to random generators.

This is the only module that creates a ``numpy.random.Generator``. All other code receives one, and gets
independent children for its chains, particles or jobs from :func:`spawn_generators`.
"""

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
        If `random_seed` is of any other type, booleans, floats and strings included, or an empty sequence.
    ValueError
        If an integer is negative.

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
    words = np.atleast_1d(np.asarray(random_seed, object)).tolist()
    whole = [isinstance(w, int | np.integer) and not isinstance(w, bool) for w in words]
    if not words or not all(whole):
        raise TypeError(
            "random_seed must be an int, a sequence of ints, a SeedSequence, a Generator or None, got "
            f"{random_seed!r}."
        )
    if min(words) < 0:
        raise ValueError(f"random_seed must not be negative, got {random_seed!r}.")
    return np.random.default_rng(words)


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
        If `random_seed` has the wrong type, or a generator carries no seed sequence to spawn from.
    ValueError
        For the reasons given in :func:`as_generator`.

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
    parent = as_generator(random_seed)
    try:
        return parent.spawn(n)
    except TypeError:
        raise TypeError(
            f"random_seed={random_seed!r} has no seed sequence to spawn from; "
            "make it with numpy.random.default_rng(seed)."
        ) from None


def seed_words(random_seed: RandomSeed) -> list[int]:
    """Return a seed as integers, from which a stored run can be repeated; a generator is advanced."""
    words: list[int] = as_generator(random_seed).integers(2**32, size=4).tolist()
    return words
