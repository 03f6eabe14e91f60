"""Scrambled Sobol' points with fast repeated scrambling.

The direction numbers of Joe & Kuo (2008, SIAM J. Sci. Comput. 30:2635-2654, doi:10.1137/070709359)
come from ``scipy.stats.qmc.Sobol`` once per dimension. A replicate multiplies the generator matrices
by random lower triangular ones and shifts all points digitally (Matoušek 1998, J. Complexity
14:527-556, doi:10.1006/jcom.1998.0489). This is the scrambling of SciPy. Its estimates have the variance
of Owen's nested uniform scrambling (Owen 2003, ACM TOMACS 13:363-378, doi:10.1145/945511.945518) at a
fraction of the cost. Only the columns that n points use are scrambled, so a replicate costs about as
much as n d exclusive ors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scipy.stats import qmc

from amc_pymc.arguments import positive_int

#: Binary digits of the net, and of the random shift below them; 53 in all with the final half unit.
_DIGITS, _BELOW = 32, 20
_LARGEST = 2**30


@lru_cache(maxsize=64)
def direction_numbers(m: int, d: int) -> np.ndarray:
    """Return the columns of the generator matrices as integers (m, d), that is, the points with index 1, 2, 4, ..."""
    engine = qmc.Sobol(d, scramble=False, bits=_DIGITS)
    found = np.empty((m, d), np.uint32)
    engine.fast_forward(1)
    for k in range(m):
        # SciPy uses Gray code order, in which index 2^k is at position 2^(k+1) - 1.
        if k:
            engine.fast_forward(2**k - 1)
        found[k] = (engine.random(1)[0] * 2.0**_DIGITS).astype(np.uint32)
    found.flags.writeable = False
    return found


def _scrambled_columns(columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Multiply generator matrices by random lower triangular ones with unit diagonals, (m, d)."""
    m, d = columns.shape
    # All digits b of a net of 2^m points are among the first m. A random matrix maps each to itself plus
    # random lower digits.
    digit = np.arange(m, dtype=np.uint32)[:, None]
    place = np.uint32(_DIGITS - 1) - digit
    images = rng.integers(0, 2**_DIGITS, (m, d), np.uint32) >> digit
    images |= np.uint32(1) << place
    out = np.zeros((m, d), np.uint32)
    for b in range(m):
        present = (columns >> place[b]) & np.uint32(1)
        out ^= present * images[b]
    return out


def scrambled_points(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Draw randomised quasi-Monte Carlo points, each uniform on the unit cube and jointly evenly spread.

    Averages over the points are unbiased. Estimate their error from independent calls, not from the
    points of a single call.

    Parameters
    ----------
    n : int
        Number of points, a power of two up to 2^30.
    d : int
        Dimension, up to 21201.
    rng : numpy.random.Generator

    Returns
    -------
    array (n, d)
        Points strictly between 0 and 1.

    Raises
    ------
    ValueError
        If n is not a power of two, because other numbers of points are not balanced.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.rqmc import scrambled_points
    >>> from amc_pymc.rng import as_generator
    >>> u = scrambled_points(64, 3, as_generator(1))
    >>> [sorted(np.floor(64 * column).astype(int).tolist()) == list(range(64)) for column in u.T]
    [True, True, True]
    """
    n, d = positive_int("n", n), positive_int("d", d)
    if n & (n - 1) or n > _LARGEST:
        raise ValueError(f"n must be a power of two up to 2^30, got {n}; Sobol' points need it.")
    if d > qmc.Sobol.MAXDIM:
        raise ValueError(f"d must be at most {qmc.Sobol.MAXDIM}, got {d}.")
    m = n.bit_length() - 1
    points = np.empty((n, d), np.uint32)
    points[0] = rng.integers(0, 2**_DIGITS, d, np.uint32)
    if m:
        columns = _scrambled_columns(direction_numbers(m, d), rng)
        for k in range(m):
            np.bitwise_xor(points[: 2**k], columns[k], out=points[2**k : 2 ** (k + 1)])
    below = (rng.integers(0, 2**_BELOW, d) + 0.5) * 2.0**-_BELOW
    u = points + below
    u *= 2.0**-_DIGITS
    return u
