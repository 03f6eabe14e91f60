r"""Accept steps without error that read a Poisson number of rows, often none.

A kernel that is reversible for prior times surrogate proposes x', and r_n is the change of row n's log-likelihood
that the surrogate does not explain. Accepting with probability

    prod_n min(1, exp(r_n))

is reversible for the posterior, because rho_n(x) min(1, rho_n(x') / rho_n(x)) = min(rho_n(x), rho_n(x')) is
symmetric for rho_n = exp(R_n). If abs(r_n) <= c_n, that probability is the one that no point of a Poisson
process is hit: draw m from Poisson(sum_n c_n) and m rows with probabilities proportional to c_n, and reject if
U c_n < -r_n for one of them, with U uniform (Cornish et al. 2019, arXiv:1901.09881; Prado, Nemeth & Sherlock
2024, arXiv:2407.19602).

Here abs(R_n) <= sum_j c_nj |w|^(3 - j) |v|^j for whitened coordinates w and, of the few that all rows share, v, with
lengths up to given radii. With a_j(w) = |w|^(3 - j) |v|^j and the largest lengths r and s of both points, the change
of R_n is at most sum_j c_nj q_j,

    q_j = min(a_j(w) + a_j(w'), (3 - j) r^(2 - j) s^j |w' - w| + j r^(3 - j) s^(j - 1) |v' - v|).
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from scipy.stats import chi2

from amc_pymc.jit import njit

__all__ = [
    "BROKEN",
    "Bounds",
    "Thinned",
    "Thinning",
    "alias_table",
    "fit_thinning",
    "not_thinned",
    "rates",
    "thin",
]

#: Status of a decision in which a row has exceeded its bound.
BROKEN = 2
#: Share by which a residual may exceed its bound, and difference that rounding may cause.
_RELATIVE, _ROUNDING = 1e-6, 1e-10


class Bounds(Protocol):
    """Bounds of all rows."""

    @property
    def n_arguments(self) -> int:
        """Number of arguments of a row."""

    @property
    def shared(self) -> np.ndarray:
        """Coordinates (V,) of arguments that all rows share."""

    def __call__(
        self, centre: np.ndarray, covariance: np.ndarray, radii: np.ndarray, cuts: int
    ) -> np.ndarray:
        """Return factors (4, N) of the bounds."""


class Thinning(NamedTuple):
    """Bounds of N rows for a range of radii.

    Attributes
    ----------
    centre : (E,) array
        Centre of the expansion of rows.
    reads : (C,) int64 array
        Coordinates of eta that rows read.
    whiten : (C, C) array
        w = whiten (eta - centre)[reads].
    shared : (V,) int64 array
        Coordinates of eta that all rows share.
    whiten_shared : (V, V) array
        v = whiten_shared (eta - centre)[shared].
    radii : (R, 2) array
        Largest abs(w) and abs(v) for which bounds hold, increasing; empty if decisions are not thinned.
    powers : (J,) int64 array
        Numbers j of bounds that are not zero for all rows.
    totals : (R, J) array
        Sums of c_nj over rows.
    bounds : (R, J, N) float32 array
        c_nj; zero for rows that are always evaluated.
    chances, aliases : (R, J, N) float32 and int32 arrays
        Tables from which rows are drawn in proportion to c_nj.
    exact : (X,) int64 array
        Rows that are always evaluated.
    most : float
        Expected number of rows above which all rows are evaluated instead.
    """

    centre: np.ndarray
    reads: np.ndarray
    whiten: np.ndarray
    shared: np.ndarray
    whiten_shared: np.ndarray
    radii: np.ndarray
    powers: np.ndarray
    totals: np.ndarray
    bounds: np.ndarray
    chances: np.ndarray
    aliases: np.ndarray
    exact: np.ndarray
    most: float


class Thinned(NamedTuple):
    """Outcome of thinning: whether no row rejects, number of rows read, status, offending row."""

    accepted: bool
    rows: int
    status: int
    row: int


def not_thinned(size: int) -> Thinning:
    """Return a thinning that is not used, for E = ``size`` parameters."""
    table, numbers = np.empty((0, 0, 0), np.float32), np.empty(0, np.int64)
    return Thinning(
        centre=np.zeros(size),
        reads=numbers,
        whiten=np.empty((0, 0)),
        shared=numbers,
        whiten_shared=np.empty((0, 0)),
        radii=np.empty((0, 2)),
        powers=numbers,
        totals=np.empty((0, 0)),
        bounds=table,
        chances=table,
        aliases=np.empty((0, 0, 0), np.int32),
        exact=numbers,
        most=0.0,
    )


@njit(cache=True, error_model="numpy")
def alias_table(weights: np.ndarray, chances: np.ndarray, aliases: np.ndarray) -> None:
    """Fill a table with which one of N numbers is drawn in proportion to weights (Vose 1991).

    Number n is drawn if n or its alias is hit: draw n uniformly, and keep it with probability ``chances[n]``, else
    take ``aliases[n]``. All weights are zero or positive, their sum is positive.

    doi:10.1109/32.92917
    """
    n = weights.size
    mean = weights.sum() / n
    small, large = np.empty(n, np.int32), np.empty(n, np.int32)
    n_small, n_large = 0, 0
    left = weights / mean
    for k in range(n):
        chances[k] = 1.0
        aliases[k] = k
        if left[k] < 1.0:
            small[n_small] = k
            n_small += 1
        else:
            large[n_large] = k
            n_large += 1
    while n_small and n_large:
        n_small -= 1
        a, b = small[n_small], large[n_large - 1]
        chances[a] = left[a]
        aliases[a] = b
        left[b] -= 1.0 - left[a]
        if left[b] < 1.0:
            n_large -= 1
            small[n_small] = b
            n_small += 1


@njit(cache=True, error_model="numpy")
def _lengths(
    points: np.ndarray, centre: np.ndarray, whiten: np.ndarray, at: np.ndarray
) -> tuple[float, float, float]:
    """Return the lengths of whitened coordinates of two points, and that of their difference."""
    here = there = apart = 0.0
    for a in range(at.size):
        s = t = 0.0
        for b in range(at.size):
            s += whiten[a, b] * (points[0, at[b]] - centre[at[b]])
            t += whiten[a, b] * (points[1, at[b]] - centre[at[b]])
        here += s * s
        there += t * t
        apart += (s - t) ** 2
    return math.sqrt(here), math.sqrt(there), math.sqrt(apart)


@njit(cache=True, error_model="numpy")
def rates(points: np.ndarray, thinning: Thinning, q: np.ndarray) -> int:
    """Write q_j to ``q`` (J,); return the position of the smallest radii that contain both points, else -1."""
    w, w_new, step = _lengths(points, thinning.centre, thinning.whiten, thinning.reads)
    v, v_new, step_shared = _lengths(
        points, thinning.centre, thinning.whiten_shared, thinning.shared
    )
    r, s = max(w, w_new), max(v, v_new)
    for n in range(q.size):
        j = thinning.powers[n]
        ends = w ** (3 - j) * v**j + w_new ** (3 - j) * v_new**j
        slope = 0.0
        if j < 3:
            slope += (3 - j) * r ** (2 - j) * s**j * step
        if j > 0:
            slope += j * r ** (3 - j) * s ** (j - 1) * step_shared
        q[n] = min(ends, slope)
    for k in range(thinning.radii.shape[0]):
        if r <= thinning.radii[k, 0] and s <= thinning.radii[k, 1]:
            return k
    return -1


@njit(cache=True, error_model="numpy")
def thin(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    k: int,
    q: np.ndarray,
    thinning: Thinning,
    rng: np.random.Generator,
) -> Thinned:
    """Draw whether no row rejects the move from points[0] to points[1].

    Parameters
    ----------
    rewards : first-class function
        ``(points (2, E), centre, rows (m,)) -> (2, m)``, whose second row holds r_n.
    points : (2, E) array
    k, q : int, (J,) array
        Results of :func:`rates`.
    thinning : Thinning
    rng : numpy.random.Generator
    """
    numbers = np.empty(q.size, np.int64)
    m = 0
    for n in range(q.size):
        numbers[n] = rng.poisson(q[n] * thinning.totals[k, n])
        m += numbers[n]
    if m == 0:
        return Thinned(True, 0, 0, -1)
    n_rows, rows = thinning.bounds.shape[2], np.empty(m, np.int64)
    drawn = 0
    for n in range(q.size):
        for _ in range(numbers[n]):
            u = rng.random() * n_rows
            row = np.int64(u)
            if u - row >= thinning.chances[k, n, row]:
                row = thinning.aliases[k, n, row]
            rows[drawn] = row
            drawn += 1
    changes = rewards(points, thinning.centre, rows)[1]
    for i in range(m):
        most = 0.0
        for n in range(q.size):
            most += q[n] * thinning.bounds[k, n, rows[i]]
        if not abs(changes[i]) <= most * (1.0 + _RELATIVE) + _ROUNDING:
            return Thinned(False, m, BROKEN, rows[i])
        if rng.random() * most < -changes[i]:
            return Thinned(False, m, 0, -1)
    return Thinned(True, m, 0, -1)


#: Probabilities of the radii under a Gaussian posterior; beyond the last, all rows are evaluated.
_INSIDE = (0.95, 1.0 - 1e-8)
#: Share of a step's expected rows that one row may have, above which it is always evaluated.
_DOMINANT = 0.2
#: Share of the rows above which all of them are read instead.
_MOST_SHARE = 0.25
#: Number of boxes of arguments, over all rows and radii, whose derivatives are bounded: about a second.
_BOXES = 300_000


def fit_thinning(
    bounds_of: Bounds, n_rows: int, centre: np.ndarray, covariance: np.ndarray, reads: np.ndarray
) -> Thinning | None:
    """Compute bounds of all rows; None if reading all rows is expected to cost less.

    Parameters
    ----------
    bounds_of : callable
        ``(centre, covariance, radii (2,), cuts) -> (4, N)``: factors of the bounds of all rows, infinite where nothing
        is known, with the number of arguments of a row and the coordinates that all rows share as attributes.
    n_rows : int
    centre : (E,) array
    covariance : (E, E) array
        Approximate posterior covariance of the coordinates that rows read, zero elsewhere.
    reads : (C,) int array
    """
    shared = bounds_of.shared
    sizes = reads.size, shared.size
    radii = np.array([[math.sqrt(chi2.ppf(p, max(1, n))) for n in sizes] for p in _INSIDE])
    cuts = max(1, int((_BOXES / n_rows) ** (1.0 / max(1, bounds_of.n_arguments))))
    with np.errstate(all="ignore"):
        bounds = np.stack([bounds_of(centre, covariance, each, cuts) for each in radii])
        typical = [sizes[0] ** (1.5 - 0.5 * j) * sizes[1] ** (0.5 * j) for j in range(4)]
        expected = 2.0 * np.einsum("j,jn->n", np.array(typical), bounds[0])
    known = np.isfinite(bounds).all(axis=(0, 1))
    exact = np.flatnonzero(~known | (expected > _DOMINANT))
    bounds[:, :, exact] = expected[exact] = 0.0
    most = _MOST_SHARE * n_rows
    if exact.size + expected.sum() > most:
        return None
    powers = np.flatnonzero(bounds.any(axis=(0, 2)))
    rounded = np.nextafter(bounds[:, powers].astype(np.float32), np.float32(np.inf))
    rounded[:, :, exact] = 0.0
    chances, aliases = np.empty_like(rounded), np.empty(rounded.shape, np.int32)
    for k, n in np.ndindex(rounded.shape[:2]):
        alias_table(rounded[k, n].astype(float), chances[k, n], aliases[k, n])
    return Thinning(
        centre=centre,
        reads=reads,
        whiten=_whitening(covariance[np.ix_(reads, reads)]),
        shared=shared,
        whiten_shared=_whitening(covariance[np.ix_(shared, shared)]),
        radii=radii,
        powers=powers,
        totals=rounded.sum(axis=2, dtype=float),
        bounds=rounded,
        chances=chances,
        aliases=aliases,
        exact=exact,
        most=most,
    )


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Return a matrix whose product with vectors of this covariance has the identity as covariance."""
    return np.linalg.inv(np.linalg.cholesky(covariance))
