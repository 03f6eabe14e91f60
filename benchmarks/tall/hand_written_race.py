"""A race for one model, written by hand: what `RacingMetropolis` is measured against.

Logistic regression with priors N(0, s^2). One compiled loop makes the moves that `RacingMetropolis`
makes of such a model once it is tuned: nine in ten are drawn from the Laplace approximation, one in
ten is a random walk. Verdicts are races by the normal rule: batches that double, drawn without
replacement, over residuals of the second-order Taylor polynomials at the mode, with the same two
guards as in :mod:`amc_pymc.tall.racing`. Only numbers of the rule are taken from the package.

Rows are multiplied by their sign, z = (2 y - 1) x, so that l(beta) = -log(1 + exp(-z.beta)), and a
row costs three inner products and three logarithms or exponentials.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import njit

from benchmarks.tall.problems import PRIOR_SD, Data, laplace

_CHUNK = 200_000
#: Rows that are gathered at a time.
_BLOCK = 256
_GAUSSIAN_SHARE = 0.9
#: Half-width in nats above which a proposal needs a lead of four half-widths, and the share of the
#: squares that no single row may hold.
_SAFE, _FIRM_LEAD, _DOMINANT_SHARE = 5.0, 4.0, 0.5


class Expansion(NamedTuple):
    """Mode (D,), sums of gradients (D,) and Hessians (D, D) there, factor (D, D) of the covariance."""

    mode: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    factor: np.ndarray


class Counts(NamedTuple):
    """Per step (n,): rows read, rounds, whether the proposal was accepted."""

    rows: np.ndarray
    rounds: np.ndarray
    accepted: np.ndarray


def signed_rows(data: Data) -> np.ndarray:
    """Rows (N, D) times their signs; overwrites the data."""
    X, y = data["X"], data["y"]
    for begin in range(0, y.size, _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        X[rows] *= (2.0 * y[rows] - 1.0)[:, None]
    return X


def expand(Z: np.ndarray) -> Expansion:
    """Expand at the posterior mode."""
    at = laplace({"X": Z, "y": np.ones(len(Z), np.int8)})
    prior = np.eye(at.mode.size) / PRIOR_SD**2
    gradient, hessian = at.gradient + prior @ at.mode, prior - at.precision
    return Expansion(at.mode, gradient, hessian, np.linalg.cholesky(at.covariance))


def sample(
    Z: np.ndarray, at: Expansion, n: int, rng: np.random.Generator, *, delta=0.05, batch_size=50
) -> tuple[np.ndarray, Counts]:
    """Draw `n` states (n, D) of a chain that begins at the mode; rows are the signed ones (N, D)."""
    from amc_pymc import NormalRace

    rule = NormalRace(delta, batch_size).rule(len(Z), 2)
    draws = np.empty((n, Z.shape[1]))
    counts = Counts(np.zeros(n), np.zeros(n), np.zeros(n))
    marked = np.zeros((len(Z) + 63) // 64, np.uint64)
    inverse = np.linalg.inv(at.factor)
    _run(Z, at, inverse, rule.sizes, rule.sd_factor, marked, rng, draws, counts)
    return draws, counts


# --- the compiled loop ----------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _softplus(t):
    return max(t, 0.0) + math.log1p(math.exp(-abs(t)))


@njit(cache=True, error_model="numpy")
def _run(Z, at, inverse, sizes, factors, marked, rng, draws, counts):
    """Fill the draws and the counts."""
    n_rows, size = Z.shape
    rows, residuals = np.empty(sizes[-1], np.int64), np.empty(sizes[-1])
    walk = 2.38 / math.sqrt(size)
    x = at.mode.copy()
    for k in range(len(draws)):
        z = at.factor @ rng.standard_normal(size)
        log_q = 0.0
        if rng.random() < _GAUSSIAN_SHARE:
            x_new = at.mode + z
            w, w_new = inverse @ (x - at.mode), inverse @ z
            log_q = 0.5 * (np.dot(w_new, w_new) - np.dot(w, w))
        else:
            x_new = x + walk * z
        u, v = x_new - x, x_new + x - 2.0 * at.mode
        known = log_q - math.log(1.0 - rng.random())
        known -= 0.5 * (np.dot(x_new, x_new) - np.dot(x, x)) / PRIOR_SD**2
        known += np.dot(at.gradient, u) + 0.5 * np.dot(u, at.hessian @ v)
        accepted, counts.rows[k], counts.rounds[k] = _race(
            known / n_rows, x, x_new, at.mode, Z, sizes, factors, marked, rows, residuals, rng
        )
        counts.accepted[k] = accepted
        if accepted:
            x = x_new
        draws[k] = x


@njit(cache=True, error_model="numpy")
def _race(bias, x, x_new, mode, Z, sizes, factors, marked, rows, residuals, rng):
    """Whether bias + the mean of the residuals' changes > 0; rows read and rounds."""
    n_rows, last = len(Z), sizes.size - 1
    seen, mean, squares = 0, 0.0, 0.0
    lowest, highest = np.inf, -np.inf
    for t in range(sizes.size):
        if t == last:
            _take_the_rest(marked, rows, seen, n_rows)
        else:
            _draw(marked, rows, seen, sizes[t], n_rows, rng)
        _residuals(x, x_new, mode, Z, rows, seen, sizes[t], residuals)
        for j in range(seen, sizes[t]):
            shift = residuals[j] - mean
            mean += shift / (j + 1)
            squares += shift * (residuals[j] - mean)
            lowest, highest = min(lowest, residuals[j]), max(highest, residuals[j])
        seen = sizes[t]
        if t == last or _decided(bias, mean, squares, lowest, highest, seen, factors[t], n_rows):
            break
    if seen == n_rows:
        marked[:] = np.uint64(0)
    else:
        _forget(marked, rows, seen)
    return bias + mean > 0.0, seen, t + 1


@njit(cache=True, error_model="numpy")
def _decided(bias, mean, squares, lowest, highest, seen, factor, n_rows):
    """Whether the lead is as large as it must be."""
    largest = max(highest - mean, mean - lowest)
    if squares <= 0.0 or largest * largest > _DOMINANT_SHARE * squares:
        return False
    half, lead = factor * math.sqrt(squares / (seen - 1.0)), bias + mean
    if lead > 0.0 and half * n_rows > _SAFE:
        half *= _FIRM_LEAD
    return abs(lead) > half


@njit(cache=True, error_model="numpy")
def _residuals(x, x_new, mode, Z, rows, begin, end, out):
    """Change of a row's log-likelihood from x to x_new, less that of its polynomial.

    Rows are gathered first: so many are under way from memory at once.
    """
    size = min(_BLOCK, end - begin)
    block = np.empty((mode.size, size))
    dots = np.empty((3, size))
    for first in range(begin, end, _BLOCK):
        n = min(_BLOCK, end - first)
        for j in range(n):
            i = rows[first + j]
            for c in range(mode.size):
                block[c, j] = Z[i, c]
        dots[:] = 0.0
        for c in range(mode.size):
            for j in range(n):
                dots[0, j] += block[c, j] * mode[c]
                dots[1, j] += block[c, j] * x[c]
                dots[2, j] += block[c, j] * x_new[c]
        for j in range(n):
            centre, here, there = dots[0, j], dots[1, j], dots[2, j]
            u, v = there - here, there + here - 2.0 * centre
            p = 1.0 / (1.0 + math.exp(centre))
            polynomial = p * u - 0.5 * p * (1.0 - p) * u * v
            out[first + j] = _softplus(-here) - _softplus(-there) - polynomial


@njit(cache=True, error_model="numpy")
def _draw(marked, rows, begin, end, n_rows, rng):
    """Draw and mark rows that have not been read."""
    for j in range(begin, end):
        while True:
            row = np.int64(rng.random() * n_rows)
            bit = np.uint64(1) << np.uint64(row & 63)
            if marked[row >> 6] & bit == 0:
                marked[row >> 6] |= bit
                rows[j] = row
                break


@njit(cache=True, error_model="numpy")
def _take_the_rest(marked, rows, seen, n_rows):
    """All rows that have not been read, in order."""
    for row in range(n_rows):
        if marked[row >> 6] & (np.uint64(1) << np.uint64(row & 63)) == 0:
            rows[seen] = row
            seen += 1


@njit(cache=True, error_model="numpy")
def _forget(marked, rows, n):
    for j in range(n):
        marked[rows[j] >> 6] &= ~(np.uint64(1) << np.uint64(rows[j] & 63))
