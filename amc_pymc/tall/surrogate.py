r"""The second-order surrogate of units, prior times it, and the marginal of that over hyperparameters.

Rows read coefficients z, which are coordinates of x or functions of them. With the sum Q(z) of the rows' second-order
expansions around a centre c,

    log pi~(x) = log prior(x) + Q(z(x)),    Q(z) = G'(z - c) - (z - c)'H(z - c) / 2.

The coordinates of x are split into v, in which the log prior is quadratic and z affine if the others, phi, are given.
Given phi, v is Gaussian with precision K(phi) = P + A'HA, P the prior's precision and A = dz/dv, and

    log pi~(phi) = f(v*, phi) - log det K(phi) / 2

up to a constant, where f = log pi~ and v* maximises it. With S = K^-1, u = G - H (z - c) at v*, and derivatives of the
prior l and of z denoted by indices,

    d log pi~ / d phi_c = l_c + u'z_c + (sum_ab S_ab l_abc) / 2 - sum_kj (H A S)_kj z_kjc.

K is sparse or nearly so, but for terms such as the square of a sum of many coordinates (:class:`pm.ICAR` has one). Each
adds a a' for a vector a, and turns a factor F into F E with E = I + b u u', where u = F^-1 a and b = 1 / (1 + (1 + u'u)^0.5).

Rue, Martino & Chopin (2009). doi:10.1111/j.1467-9868.2008.00700.x.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scipy import sparse
from scipy.sparse import csgraph

from amc_pymc.engine.jit import fill, njit, record
from amc_pymc.tall.terms import (
    N_FAMILIES,
    Terms,
    add_slopes,
    derivatives_of,
    family_at,
    with_values,
)
from amc_pymc.tall.units import Raced

#: Number of links of a hub, relative to the median.
_MANY = 4.0


# --- surrogate of units ------------------------------------------------------------------------
# Units depend on the flat point x through parameters eta(x): x itself, or functions of x if variables
# are discrete. Let h be a second-order Taylor control variate of every unit around a centre c of eta,
# u = eta' - eta and v = eta' + eta - 2c. Then
#
#     sum_n [l_n(x') - l_n(x)] = G.u + u'Hv/2 + sum_n r_n,     r_n = residual of unit n,
#
# where G and H are population sums of gradients and Hessians at c, computed once (Bardenet, Doucet &
# Holmes 2017, JMLR 18(47)).


@record
class Surrogate(NamedTuple):
    """Centre c (E,) and population sums G (E,) and H (E, E)."""

    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


@njit(cache=True)
def surrogate_total(eta: np.ndarray, surrogate: Surrogate) -> float:
    """Return G.u + u'Hu/2 for u = eta - c, the surrogate minus its value at the centre."""
    u = eta - surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ u)


@njit(cache=True)
def surrogate_change(points: np.ndarray, surrogate: Surrogate) -> float:
    """Return G.u + u'Hv/2 for u = eta' - eta, v = eta' + eta - 2c and the points eta, eta'."""
    u = points[1] - points[0]
    v = points[1] + points[0] - 2.0 * surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ v)


def no_surrogate(centre: np.ndarray) -> Surrogate:
    """Return a surrogate that is zero everywhere."""
    return Surrogate(centre, np.zeros(centre.size), np.zeros((centre.size, centre.size)))


def surrogate_at(raced: Raced, centre: np.ndarray) -> Surrogate | None:
    """Compute the surrogate at a centre by one pass over all units; None if not finite."""
    gradient, hessian = raced.expansion(centre)
    out = Surrogate(centre.copy(), np.zeros(gradient.shape), np.zeros(hessian.shape))
    at, inside = raced.expand, np.ix_(raced.expand, raced.expand)
    out.gradient[at], out.hessian[inside] = gradient[at], hessian[inside]
    finite = np.all(np.isfinite(gradient)) and np.all(np.isfinite(out.hessian))
    return out if finite else None


# --- prior times surrogate -------------------------------------------------------------------------


@record
class Rows(NamedTuple):
    """Entries of (x, f, A x), f left out: entry i is the sum of values x[places] from starts[i] to starts[i + 1].

    ``wide`` numbers the entries that add a a' to the precision, and is -1 for others.
    """

    starts: np.ndarray
    places: np.ndarray
    values: np.ndarray
    wide: np.ndarray


@record
class Surface(NamedTuple):
    """Arrays of log pi~.

    Attributes
    ----------
    inner, outer : (D,) int64 arrays
        Position of each coordinate of x in v and in phi, -1 if it is not there.
    prior : Terms
        Terms of the prior, which read (x, f(x), A x).
    combinations : Rows
    coefficients : Terms
        Coefficients that are functions of (x, f(x)).
    reads : (R,) int64 array
        Coordinates of x that rows read; these and the functions are z (C,).
    centre, slope : (C,) arrays
    curvature : (C, C) array
        c, G and H.
    highest : (1,) array
        Maximum of Q.
    """

    inner: np.ndarray
    outer: np.ndarray
    prior: Terms
    combinations: Rows
    coefficients: Terms
    reads: np.ndarray
    centre: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    highest: np.ndarray


class Conditional(NamedTuple):
    """Gaussian of v given phi.

    Attributes
    ----------
    value : float
        log pi~(phi).
    x : (D,) array
        v* and phi.
    factor : (V, V) array
        Cholesky factor L, in the lower triangle.
    spikes : (W, V) array
        u of each wide combination; K = F F' with F = L E_1 ... E_W.
    possible : bool
        Whether all is finite.
    """

    value: float
    x: np.ndarray
    factor: np.ndarray
    spikes: np.ndarray
    possible: bool

    def precision(self) -> np.ndarray:
        """Return K (V, V)."""
        factor = np.tril(self.factor)
        for u in self.spikes:
            factor += _stretch(u) * np.outer(factor @ u, u)
        out: np.ndarray = factor @ factor.T
        return out


def rows_of(
    combinations: np.ndarray, n_functions: int = 0, wide: Sequence[int] | np.ndarray = ()
) -> Rows:
    """Return the rows of x, so many functions, and A x, with A (L, D), of which ``wide`` add a a' to the precision."""
    size = combinations.shape[1]
    parts = sparse.eye_array(size), np.zeros((n_functions, size)), combinations
    whole = sparse.vstack([sparse.csr_array(p) for p in parts], format="csr")
    numbers = np.full(whole.shape[0], -1)
    numbers[size + n_functions + np.asarray(wide, np.int64)] = np.arange(len(wide))
    return Rows(whole.indptr.astype(np.int64), whole.indices.astype(np.int64), whole.data, numbers)


def ordered(positions: np.ndarray) -> np.ndarray:
    """Return the coordinates whose positions are not -1, in the order of these."""
    found = np.flatnonzero(positions >= 0)
    return found[np.argsort(positions[found])]


def narrow_order(matrix: np.ndarray) -> np.ndarray:
    """Return an order of a matrix's rows and columns in which its Cholesky factor has few entries."""
    if not len(matrix):
        return np.empty(0, np.int64)
    linked = matrix != 0.0
    degree = linked.sum(axis=0)
    hubs = degree > _MANY * np.median(degree)
    graph = sparse.csr_array(linked & ~hubs & ~hubs[:, None])
    best, least = np.arange(len(matrix)), np.inf
    for order in (best, csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)):
        order = order[np.argsort(hubs[order], kind="stable")]
        first = np.argmax(linked[np.ix_(order, order)] | np.eye(len(order), dtype=bool), axis=1)
        size = np.sum(np.square(np.arange(len(order)) - first))
        if size < least:
            best, least = order, size
    return best


@njit(cache=True)
def coefficients_at(x, surface):
    """Return z (C,), and the positions (in x) and values (C, L) of its derivatives by coordinates of v."""
    reads, program = surface.reads, surface.coefficients.program
    extended = with_values(x, surface.coefficients.functions, surface.coefficients.functions_table)
    size, widest = surface.centre.size, 1
    for f in range(program[N_FAMILIES]):
        widest = max(widest, family_at(program, f)[2])
    z, at, slopes = np.empty(size), np.full((size, widest), -1), np.zeros((size, widest))
    inner = surface.inner
    for c in range(reads.size):
        z[c] = x[reads[c]]
        if inner[reads[c]] >= 0:
            at[c, 0] = reads[c]
            slopes[c, 0] = 1.0
    c = reads.size
    for f in range(program[N_FAMILIES]):
        n, n_leaves, out, places = derivatives_of(extended, program, surface.coefficients.table, f)
        for k in range(n):
            z[c] = out[0, k]
            used = 0
            for a in range(n_leaves):
                place = places[a, k]
                if place < x.size and inner[place] >= 0:
                    at[c, used] = place
                    slopes[c, used] = out[1 + a, k]
                    used += 1
            c += 1
    return z, at, slopes


@njit(cache=True)
def _with_combinations(x, surface):
    """Return (x, f, A x)."""
    rows, terms = surface.combinations, surface.prior
    known = with_values(x, terms.functions, terms.functions_table)
    out = np.zeros(rows.starts.size - 1)
    fill(out, known)
    for i in range(known.size, out.size):
        for p in range(rows.starts[i], rows.starts[i + 1]):
            out[i] += rows.values[p] * x[rows.places[p]]
    return out


@njit(cache=True)
def _add_transposed(rows, slopes, out):
    """Add to the gradient ``out`` (D,) what comes from slopes by x and A x."""
    for i in range(slopes.size):
        for p in range(rows.starts[i], rows.starts[i + 1]):
            out[rows.places[p]] += rows.values[p] * slopes[i]


@njit(cache=True)
def _add_products(i, j, number, twice, surface, out):
    """Add to a matrix (V, V) what a second derivative by entries i and j of (x, f, A x) is by v.

    ``twice`` says that the derivative by j and i is another one, of leaves that may read the same entry.
    """
    rows, inner = surface.combinations, surface.inner
    for p in range(rows.starts[i], rows.starts[i + 1]):
        m = inner[rows.places[p]]
        if m < 0:
            continue
        for q in range(rows.starts[j], rows.starts[j + 1]):
            n = inner[rows.places[q]]
            if n >= 0:
                product = number * rows.values[p] * rows.values[q]
                out[m, n] += product
                if twice:
                    out[n, m] += product


@njit(cache=True)
def _covariance(i, j, surface, covariance):
    """Return the covariance of entries i and j of (x, f, A x), given that of v."""
    rows, inner, out = surface.combinations, surface.inner, 0.0
    for p in range(rows.starts[i], rows.starts[i + 1]):
        m = inner[rows.places[p]]
        if m < 0:
            continue
        for q in range(rows.starts[j], rows.starts[j + 1]):
            n = inner[rows.places[q]]
            if n >= 0:
                out += rows.values[p] * rows.values[q] * covariance[m, n]
    return out


@njit(cache=True)
def prior_at(x: np.ndarray, surface: Surface) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return the log prior, its gradient (D,) and, minus, its second derivatives by v and by wide combinations."""
    size, weights = surface.inner.max() + 1, np.zeros(n_wide(surface))
    gradient, precision = np.zeros(x.size), np.zeros((size, size))
    terms, program = surface.prior, surface.prior.program
    extended = _with_combinations(x, surface)
    slopes, total = np.zeros(extended.size), 0.0
    for f in range(program[N_FAMILIES]):
        n, n_leaves, out, at = derivatives_of(extended, program, surface.prior.table, f)
        for k in range(n):
            total += out[0, k]
            for a in range(n_leaves):
                slopes[at[a, k]] += out[1 + a, k]
        t = 1 + n_leaves
        for a in range(n_leaves):
            for b in range(a + 1):
                number = 0.0
                for k in range(n):  # elements often read the same combination
                    number -= out[t, k]
                    if k == n - 1 or at[a, k] != at[a, k + 1] or at[b, k] != at[b, k + 1]:
                        if surface.combinations.wide[at[a, k]] >= 0:
                            weights[surface.combinations.wide[at[a, k]]] += number
                        else:
                            _add_products(at[a, k], at[b, k], number, a != b, surface, precision)
                        number = 0.0
                t += 1
    _add_transposed(surface.combinations, slopes, gradient)
    add_slopes(x, terms.functions, terms.functions_table, slopes[x.size :], gradient)
    return total, gradient, precision, weights


@njit(cache=True)
def _forces(z, surface):
    """Return Q and its gradient (C,)."""
    moved = z - surface.centre
    pull = surface.curvature @ moved
    value = np.dot(surface.slope, moved) - 0.5 * np.dot(moved, pull)
    return value, surface.slope - pull


@njit(cache=True)
def expansion_at(x: np.ndarray, surface: Surface) -> float:
    """Return Q at x minus its maximum."""
    z, _, _ = coefficients_at(x, surface)
    return min(0.0, _forces(z, surface)[0] - surface.highest[0])


@njit(cache=True)
def conditional(x: np.ndarray, surface: Surface) -> Conditional:
    """Return the Gaussian of v given the hyperparameters in x (D,), at any v."""
    found, gain = _newton_step(x, surface)
    for _ in range(_MOST_STEPS):
        if not gain > _LOST:
            break
        found, gain = _newton_step(found.x, surface)
    return found


@njit(cache=True)
def marginals(phis: np.ndarray, x: np.ndarray, surface: Surface, slopes: np.ndarray) -> np.ndarray:
    """Return log integrals of pi~ over v (P,) at hyperparameters (P, F), and fill their gradients (P, F).

    Other coordinates are those of x (D,). ``slopes`` may be empty, (0, F). A density of zero is minus infinity.
    """
    out, at = np.empty(phis.shape[0]), x.copy()
    constant = 0.5 * (surface.inner.max() + 1) * math.log(2.0 * math.pi)
    for p in range(out.size):
        for d in range(x.size):
            if surface.outer[d] >= 0:
                at[d] = phis[p, surface.outer[d]]
        found = conditional(at, surface)
        out[p] = found.value + constant if found.possible else -math.inf
        if p < slopes.shape[0] and found.possible:
            fill(slopes[p], gradient(found, surface))
    return out


@njit(cache=True)
def n_wide(surface: Surface) -> int:
    """Return the number W of wide combinations."""
    out = 0
    for number in surface.combinations.wide:
        out = max(out, number + 1)
    return out


@njit(cache=True)
def _wide_rows(surface):
    """Return the wide combinations of v (W, V)."""
    rows, inner = surface.combinations, surface.inner
    out = np.zeros((n_wide(surface), inner.max() + 1))
    for i in range(rows.wide.size):
        if rows.wide[i] >= 0:
            for p in range(rows.starts[i], rows.starts[i + 1]):
                if inner[rows.places[p]] >= 0:
                    out[rows.wide[i], inner[rows.places[p]]] += rows.values[p]
    return out


@njit(cache=True)
def dense_prior(x: np.ndarray, surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior's gradient (D,) and precision (V, V) at x, wide combinations included."""
    _, slope, precision, weights = prior_at(x, surface)
    rows = _wide_rows(surface)
    for r in range(weights.size):
        precision += weights[r] * np.outer(rows[r], rows[r])
    return slope, precision


@njit(cache=True)
def _newton_step(x, surface):
    """Return the Gaussian of v, and the increase of f from x to v*, whose rounding error is in log pi~."""
    value, slope, precision, weights = prior_at(x, surface)
    inner, size = surface.inner, precision.shape[0]
    z, at, slopes = coefficients_at(x, surface)
    more, force = _forces(z, surface)
    value += more
    for c in range(z.size):
        for a in range(at.shape[1]):
            if at[c, a] < 0:
                break
            slope[at[c, a]] += slopes[c, a] * force[c]
            i = inner[at[c, a]]
            if i < 0:
                continue
            for d in range(z.size):
                h = surface.curvature[c, d] * slopes[c, a]
                if h == 0.0:
                    continue
                for b in range(at.shape[1]):
                    if at[d, b] < 0:
                        break
                    j = inner[at[d, b]]
                    if j >= 0:
                        precision[i, j] += h * slopes[d, b]
    out, spikes = x.copy(), np.zeros((weights.size, size))
    if not math.isfinite(value) or not cholesky(precision):
        return Conditional(-math.inf, out, precision, spikes, False), 0.0
    if weights.size:
        rows = _wide_rows(surface)
        for r in range(weights.size):
            if not weights[r] >= 0.0:
                return Conditional(-math.inf, out, precision, spikes, False), 0.0
            spike = math.sqrt(weights[r]) * rows[r]
            forward_solve(precision, spikes[:r], spike)
            fill(spikes[r], spike)
    value -= log_determinant(precision, spikes)
    step = np.empty(size)
    for d in range(x.size):
        if inner[d] >= 0:
            step[inner[d]] = slope[d]
    forward_solve(precision, spikes, step)
    gain = 0.5 * np.dot(step, step)
    value += gain
    backward_solve(precision, spikes, step)
    for d in range(x.size):
        if inner[d] >= 0:
            out[d] += step[inner[d]]
    return Conditional(value, out, precision, spikes, math.isfinite(value)), gain


#: Increase of f above which v* is computed again from the first v*, and the largest number of times.
_LOST, _MOST_STEPS = 1e6, 3
#: Size of a pivot, relative to its diagonal element, that rounding errors may have produced.
_ROUNDING = 1e-12
#: For sums that may be reordered to allow vectorisation.
_in_any_order = njit(cache=True, fastmath={"contract", "nsz", "reassoc"})


@njit(cache=True)
def _first_entries(a):
    """Return the column of the first entry of each row of a lower triangle that is not zero."""
    out = np.empty(a.shape[0], np.int64)
    for i in range(out.size):
        j = 0
        while j < i and a[i, j] == 0.0:
            j += 1
        out[i] = j
    return out


@_in_any_order
def _dot(a, b):
    total = 0.0
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@_in_any_order
def cholesky(a):
    """Overwrite the lower triangle of a matrix by its Cholesky factor; return whether it is definite.

    A pivot that is little more than a rounding error counts as zero.
    """
    first = _first_entries(a)
    for j in range(a.shape[0]):
        for k in range(first[j], j + 1):
            begin = max(first[j], first[k])
            s = a[j, k] - _dot(a[j, begin:k], a[k, begin:k])
            if k < j:
                a[j, k] = s / a[k, k]
            elif s > _ROUNDING * a[j, j]:
                a[j, j] = math.sqrt(s)
            else:
                return False
    return True


@njit(cache=True)
def _stretch(u):
    """Return b of E = I + b u u', so that E E' = I + u u'."""
    return 1.0 / (1.0 + math.sqrt(1.0 + np.dot(u, u)))


@njit(cache=True)
def _shrink(u, b):
    """Overwrite b by E^-1 b."""
    b -= np.dot(u, b) * _stretch(u) / math.sqrt(1.0 + np.dot(u, u)) * u


@njit(cache=True)
def log_determinant(factor: np.ndarray, spikes: np.ndarray) -> float:
    """Return log det F."""
    out = 0.0
    for i in range(factor.shape[0]):
        out += math.log(factor[i, i])
    for r in range(len(spikes)):
        out += 0.5 * math.log1p(np.dot(spikes[r], spikes[r]))
    return out


@njit(cache=True)
def transposed_product(factor: np.ndarray, spikes: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return F' b."""
    out = np.zeros(b.size)
    for i in range(b.size):
        for j in range(i + 1):
            out[j] += factor[i, j] * b[i]
    for r in range(len(spikes)):
        out += np.dot(spikes[r], out) * _stretch(spikes[r]) * spikes[r]
    return out


@_in_any_order
def forward_solve(factor, spikes, b):
    """Overwrite b by F^-1 b."""
    for i in range(b.size):
        s = b[i]
        for k in range(i):
            s -= factor[i, k] * b[k]
        b[i] = s / factor[i, i]
    for r in range(len(spikes)):
        _shrink(spikes[r], b)


@_in_any_order
def backward_solve(factor: np.ndarray, spikes: np.ndarray, b: np.ndarray) -> None:
    """Overwrite b by F'^-1 b."""
    for r in range(len(spikes) - 1, -1, -1):
        _shrink(spikes[r], b)
    for i in range(b.size - 1, -1, -1):
        s = b[i] / factor[i, i]
        b[i] = s
        for k in range(i):
            b[k] -= factor[i, k] * s


@_in_any_order
def _inverse(factor, spikes):
    """Return K^-1 where L or a later entry of its row may differ from zero, and other numbers elsewhere.

    Takahashi, Fagan & Chin (1973) for L, Sherman & Morrison (1950) for the spikes.
    """
    first, size = _first_entries(factor), factor.shape[0]
    out, column = np.zeros((size, size)), np.empty(size)
    for j in range(size - 1, -1, -1):
        end = size
        while first[end - 1] > j:
            end -= 1
        for k in range(j + 1, end):
            column[k] = factor[k, j] if first[k] <= j else 0.0
        diagonal = 1.0 / factor[j, j]
        s = diagonal
        for i in range(j + 1, end):
            if first[i] > j:
                continue
            out[i, j] = out[j, i] = -_dot(out[i, j + 1 : end], column[j + 1 : end]) * diagonal
            s -= out[i, j] * column[i]
        out[j, j] = s * diagonal
    for r in range(len(spikes)):
        column = spikes[r].copy()
        backward_solve(factor, spikes[:r], column)
        out -= np.outer(column, column) / (1.0 + np.dot(spikes[r], spikes[r]))
    return out


@njit(cache=True)
def gradient(found: Conditional, surface: Surface) -> np.ndarray:
    """Return the gradient of log pi~(phi) (F,) at a result of :func:`conditional`."""
    x, outer = found.x, surface.outer
    out = np.zeros(outer.max() + 1)
    covariance = _inverse(found.factor, found.spikes)
    terms, program = surface.prior, surface.prior.program
    extended = _with_combinations(x, surface)
    slopes = np.zeros(extended.size)
    for f in range(program[N_FAMILIES]):
        n, n_leaves, values, at = derivatives_of(extended, program, surface.prior.table, f)
        for k in range(n):
            for a in range(n_leaves):
                slopes[at[a, k]] += values[1 + a, k]
        thirds = values[1 + n_leaves + n_leaves * (n_leaves + 1) // 2 :]
        for a in range(n_leaves):
            for b in range(a + 1):
                number = 0.0
                for k in range(n):
                    if surface.combinations.wide[at[a, k]] >= 0:
                        continue  # such terms are quadratic
                    if k == 0 or at[a, k] != at[a, k - 1] or at[b, k] != at[b, k - 1]:
                        number = _covariance(at[a, k], at[b, k], surface, covariance)
                    if number != 0.0:
                        weight = 0.5 * number if a == b else number
                        for c in range(n_leaves):
                            slopes[at[c, k]] += weight * thirds[_third(a, b, c), k]
    by_x = np.zeros(x.size)
    _add_transposed(surface.combinations, slopes, by_x)
    add_slopes(x, terms.functions, terms.functions_table, slopes[x.size :], by_x)
    _add_by_coefficients(x, covariance, surface, by_x)
    for d in range(x.size):
        if outer[d] >= 0:
            out[outer[d]] = by_x[d]
    return out


@njit(cache=True)
def _add_by_coefficients(x, covariance, surface, by_x):
    """Add to the gradient (D,) u'z_c - sum_kj (H A S)_kj z_kjc of coefficients z."""
    z, at, slopes = coefficients_at(x, surface)
    inner, (_, force), n_read = surface.inner, _forces(z, surface), surface.reads.size
    for c in range(n_read):
        by_x[surface.reads[c]] += force[c]
    if z.size == n_read:
        return
    terms, c = surface.coefficients, n_read
    extended = with_values(x, terms.functions, terms.functions_table)
    by_extended = np.zeros(extended.size)
    for f in range(terms.program[N_FAMILIES]):
        n, n_leaves, values, places = derivatives_of(extended, terms.program, terms.table, f)
        for k in range(n):
            for a in range(n_leaves):
                i = places[a, k]
                by_extended[i] += force[c] * values[1 + a, k]
                if i >= x.size or inner[i] < 0:
                    continue
                number = 0.0  # H A S in the row of z_c and the column of x_i
                for d in range(z.size):
                    if surface.curvature[c, d] != 0.0:
                        for b in range(at.shape[1]):
                            if at[d, b] < 0:
                                break
                            part = slopes[d, b] * covariance[inner[at[d, b]], inner[i]]
                            number += surface.curvature[c, d] * part
                for b in range(n_leaves):
                    t = 1 + n_leaves + max(a, b) * (max(a, b) + 1) // 2 + min(a, b)
                    by_extended[places[b, k]] -= number * values[t, k]
            c += 1
    for d in range(x.size):
        by_x[d] += by_extended[d]
    add_slopes(x, terms.functions, terms.functions_table, by_extended[x.size :], by_x)


@njit(cache=True)
def _third(a, b, c):
    """Return the place of the third derivative by leaves a >= b and c."""
    if c > a:
        a, b, c = c, a, b
    elif c > b:
        b, c = c, b
    return a * (a + 1) * (a + 2) // 6 + b * (b + 1) // 2 + c
