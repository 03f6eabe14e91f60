"""Compiled loops for marginal log-likelihoods of groups with local effects integrated out.

Group g has rows first[g] <= i < first[g + 1] and q local effects u. Data are columns (C, N). With
parameters eta,

    log L_g(eta) = log integral p(u | eta) prod_i p(y_i | eta, u) du

is computed by adaptive Gauss-Hermite quadrature: nodes u_k = m + C z_k around the mode m of the
integrand, with C C' its inverse curvature there (Liu & Pierce 1994, Biometrika 81:624-629,
doi:10.1093/biomet/81.3.624; Pinheiro & Bates 1995, JCGS 4:12-35,
doi:10.1080/10618600.1995.10474663). With node weights p_k and derivatives s_k, c_k of the integrand's
logarithm at the nodes along directions a and b, Fisher's and Louis's identities are

    d_a log L = sum_k p_k s_k(a),
    d_a d_b log L = sum_k p_k (c_k(a, b) + s_k(a) s_k(b)) - sum_k p_k s_k(a) sum_k p_k s_k(b).

The loops are the same for all models and compiled once. The functions of a group's rows and of its
local effects are generated for each model (:func:`printed_groups`); ``program`` holds their addresses.
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amc_pymc.engine import ROW, Graph
from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.printer import (
    N_SHARED,
    ROWS,
    SHARED,
    Printed,
    Printer,
    Stages,
    call,
    of_parameters,
    room_of,
)
from amc_pymc.engine.row_kernels.loops import (
    DOTS_AT,
    N_COLUMNS,
    N_DOTS,
    N_ENTRIES,
    add_gradient,
    add_hessian,
    add_transposed,
    derivatives_by,
    line,
)

# --- quadrature nodes ----------------------------------------------------------------------


#: Step of the wide rule and number of nodes on either side of the mode, by the number of effects. The
#: steps are in z for three effects, otherwise in t with z = sinh(t).
_WIDE = {1: (0.2, 40), 2: (0.3, 13), 3: (0.9, 8)}


class Nodes(NamedTuple):
    """K points z (K, q) around a mode, and the logarithms (K,) of their weights.

    The integral of f is the sum of weights times f(m + C z) times |det C|.
    """

    points: np.ndarray
    log_weights: np.ndarray


def hermite_nodes(number: int, n_local: int) -> Nodes:
    """Return the Gauss-Hermite product rule with ``number`` nodes along each of q axes.

    It is exact for a Gaussian times a polynomial of degree 2 ``number`` - 1. One node gives the
    Laplace approximation.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.groups import hermite_nodes
    >>> z, log_w = hermite_nodes(5, 1)
    >>> f = np.exp(-0.5 * z[:, 0] ** 2) * z[:, 0] ** 4 / np.sqrt(2 * np.pi)
    >>> float(np.sum(np.exp(log_w) * f).round(12))
    3.0
    """
    z, w = np.polynomial.hermite_e.hermegauss(number)
    return _product(z, np.log(w) + 0.5 * z**2, n_local)


def _product(z: np.ndarray, log_w: np.ndarray, n_local: int) -> Nodes:
    """Return the product rule with nodes z (K,) along each axis."""
    grid = np.stack(np.meshgrid(*[z] * n_local, indexing="ij"), axis=-1).reshape(-1, n_local)
    each = np.stack(np.meshgrid(*[log_w] * n_local, indexing="ij"), axis=-1)
    return Nodes(np.ascontiguousarray(grid), each.reshape(-1, n_local).sum(axis=1))


def wide_nodes(n_local: int, finer: int = 1) -> Nodes:
    """Return a rule for integrands far from Gaussian, with several peaks or heavy tails.

    The rule is trapezoidal in t with z = sinh(t) for one or two axes, and in z for three. It extends to
    1,490, 25 and 7 standard deviations with 81, 729 and 4,913 nodes. The relative error for a Gaussian is
    below 1e-10, 1e-6 and 1e-9.

    Parameters
    ----------
    n_local : int
        Number q of local effects, 1 to 3.
    finer : int
        Factor by which the step is divided.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.groups import wide_nodes
    >>> z, log_w = wide_nodes(1)
    >>> f = 1.0 / (np.pi * (1.0 + z[:, 0] ** 2))
    >>> float(np.sum(np.exp(log_w) * f).round(3))
    1.0
    """
    step, number = _WIDE[n_local]
    t = np.arange(-number * finer, number * finer + 1) * (step / finer)
    log_w = np.full(t.size, np.log(step / finer))
    if n_local < 3:
        t, log_w = np.sinh(t), log_w + np.log(np.cosh(t))
    return _product(t, log_w, n_local)


# --- places in a program ---------------------------------------------------------------------------
# The description of a row's leaves comes first (:mod:`amc_pymc.engine.row_kernels.loops`). A stage takes four
# entries (:mod:`amc_pymc.engine.printer`).


#: Number of local effects per group, number of leaves of their log density.
N_LOCAL, N_PRIOR_LEAVES = (DOTS_AT + k for k in (1, 2))
#: Stages of values that do not depend on local effects: for log-likelihoods and Newton steps, for
#: directional derivatives, for derivatives by leaves.
VALUE, JET, SLOPE = (DOTS_AT + k for k in (3, 7, 11))
#: Functions that add sums over rows: log-likelihoods, their derivatives by local effects, directional ones.
ROWS_VALUE, ROWS_NEWTON, ROWS_JET = (DOTS_AT + k for k in (15, 16, 17))
#: Functions that write each row's derivatives by leaves and positions of entries of eta, and the number
#: of output rows of the first.
ROWS_SLOPES, ROWS_PLACES, N_SLOPES = (DOTS_AT + k for k in (18, 19, 20))
#: The same functions for the local effects' log density.
PRIOR_VALUE, PRIOR_NEWTON, PRIOR_JET, PRIOR_SLOPES, PRIOR_PLACES = (
    *(DOTS_AT + k for k in (21, 22, 23, 24, 25)),
)
#: End of the fixed entries.
END = DOTS_AT + 26


# --- generated functions ---------------------------------------------------------------------------


#: Arrays of parameters that stages read.
_ARRAYS = {"value": ("eta",), "jet": ("eta", "du", "dv"), "slope": ("eta",)}


@dataclass(frozen=True, eq=False)
class GroupProgram:
    """Expressions from which the functions of a model's groups are generated.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row, given local effects.
    prior : int
        Log density of a group's local effects.
    n_local : int
        Number of local effects per group.
    n_columns : int
        Number of data columns that a row reads.
    """

    graph: Graph
    row: int
    prior: int
    n_local: int
    n_columns: int = 1


def printed_groups(program: GroupProgram, *, curved: bool = True) -> Printed:
    """Generate the functions of a model's groups, in the order of the places above.

    Unless ``curved``, the functions of derivatives by leaves omit second derivatives, and those of
    directional derivatives write nothing.
    """
    g = program.graph
    outputs = [program.row, program.prior]
    local = [g.make("local", value=j) for j in range(program.n_local)]
    newton = [derivatives_by(g, o, local) for o in outputs]
    jets = [_jet(g, o) if curved else [] for o in outputs]
    row_leaves, row_dots = (g.leaves([program.row], op) for op in ("entry", "dot"))
    prior_leaves = g.leaves([program.prior], "entry")
    assert not g.leaves([program.prior], "dot"), "local effects depend on their group's data only"
    slopes = [
        derivatives_by(g, program.row, row_leaves + row_dots),
        derivatives_by(g, program.prior, prior_leaves),
    ]
    if not curved:
        slopes = [slopes[0][: len(row_leaves) + len(row_dots)], slopes[1][: len(prior_leaves)]]
    row_places, prior_places = (
        [g.nodes[n].args[0] for n in leaves] for leaves in (row_leaves, prior_leaves)
    )
    stages = {
        "value": Stages.of(g, [*outputs, *(d for part in newton for d in part)]),
        "jet": Stages.of(g, [d for part in jets for d in part]),
        "slope": Stages.of(g, [*(d for part in slopes for d in part), *row_places, *prior_places]),
    }
    # Values stored for each row; a group's own data are read again instead.
    kept = {k: [n for n in s.kept if g.depends[n] == ROW] for k, s in stages.items()}
    p, layout = Printer(g), list[int | str]()
    for name, stage in stages.items():  # values that do not depend on local effects
        arrays, shared = _ARRAYS[name], stage.shared
        p.function(f"{name}_shared", (*arrays, "out"), shared)
        rows = (*arrays, "shared", "block", "stride", "n", "out", "out_stride")
        number = p.function(f"{name}_kept", rows, kept[name], shared=shared)
        layout += [f"{name}_shared", f"{name}_kept", len(shared), number]
    sums = (
        ("value", "value", [[n] for n in outputs]),
        ("newton", "value", newton),
        ("jet", "jet", jets),
    )
    for name, stage_name, (of_rows, of_prior) in sums:
        arrays, shared = _ARRAYS[stage_name], stages[stage_name].shared
        rows = (*arrays, "shared", "kept", "stride", "n", "padded", "u", "out")
        p.sum_of_rows(f"rows_{name}", rows, of_rows, shared=shared, kept=kept[stage_name])
        own = (*arrays, "shared", "group", "u", "out")
        p.function(f"prior_{name}", own, of_prior, shared=shared)
    shared = stages["slope"].shared
    rows = ("eta", "shared", "kept", "stride", "n", "u", "out", "out_stride")
    n_slopes = p.function("rows_slopes", rows, slopes[0], shared=shared, kept=kept["slope"])
    rows = ("eta", "shared", "block", "stride", "n", "at", "out_stride")
    p.function("rows_places", rows, [], shared=shared, places=row_places)
    p.function("prior_slopes", ("eta", "shared", "group", "u", "out"), slopes[1], shared=shared)
    places = ("eta", "shared", "group", "at")
    p.function("prior_places", places, [], shared=shared, places=prior_places)
    layout += [f"rows_{name}" for name in ("value", "newton", "jet", "slopes", "places")]
    layout += [n_slopes]
    layout += [f"prior_{name}" for name in ("value", "newton", "jet", "slopes", "places")]
    head = [len(row_leaves), len(row_dots), program.n_columns, END]
    head += [program.n_local, len(prior_leaves)]
    return p.printed((*head, *layout), row_dots)


def _jet(g: Graph, output: int) -> list[int]:
    """Return the value, its derivatives along du and dv, and the mixed second derivative."""
    along_u = g.derivative(output, "du")
    along_v = g.derivative(output, "dv")
    return [output, along_u, along_v, g.derivative(along_u, "dv")]


#: Number of rows computed at once, and that kernels may read beyond the last one.
ROWS_BEYOND = 16
#: Degrees of freedom of the t proposals of local effects.
_FREEDOM = 7

_compiled = njit(cache=True)


# --- rows of a group ------------------------------------------------------------------------------


@_compiled
def padded(size):
    """Return the number of rows rounded up to a multiple of the rows computed at once."""
    return (size + ROWS_BEYOND - 1) // ROWS_BEYOND * ROWS_BEYOND


@_compiled
def rooms(program, first, units):
    """Allocate the columns (C, width) of the largest of some groups, and values that do not depend on effects."""
    most = 0
    for g in units:
        most = max(most, first[g + 1] - first[g])
    return np.zeros((program[N_COLUMNS], padded(most))), room_of(program, VALUE, padded(most))


@_compiled
def gather(rows, first, g, block):
    """Copy the rows of a group to a block (C, width); return their number."""
    start = first[g]  # read once: for all that LLVM knows, it could change with the block
    size = first[g + 1] - start
    for c in range(block.shape[0]):
        for j in range(size):
            block[c, j] = rows[c, start + j]
    return size


@_compiled
def keep_rows(program, stage, eta, shared, block, size, kept):
    """Write the values of a block's rows that do not depend on local effects."""
    call(
        program[stage + ROWS], eta, shared, block, block.shape[1], padded(size), kept, kept.shape[1]
    )  # fmt: skip


@_compiled
def log_density(program, eta, shared, kept, size, group, u, total):
    """Return the log density of a group's rows and local effects; ``total`` (1,) is a work array."""
    call(program[PRIOR_VALUE], eta, shared, group, u, total)
    call(program[ROWS_VALUE], eta, shared, kept, kept.shape[1], size, padded(size), u, total)
    return total[0]


# --- sums over nodes ----------------------------------------------------------------------------------------


@_compiled
def node_place(mode, factor, z, u):
    """Write u = m + C z."""
    for a in range(u.size):
        u[a] = mode[a]
        for b in range(u.size):
            u[a] += factor[a, b] * z[b]


@_compiled
def log_sum(terms):
    """Return the logarithm of the sum of exponentials; nan if a term is nan."""
    top = -math.inf
    for t in terms:
        if math.isnan(t):
            return math.nan
        top = max(top, t)
    if top == -math.inf or top == math.inf:
        return top
    total = 0.0
    for t in terms:
        total += math.exp(t - top)
    return top + math.log(total)


@_compiled
def spread(terms, others):
    """Return the range over nodes of changes of the log integrand; nan if one is nan."""
    low, high = math.inf, -math.inf
    for k in range(terms.size):
        change = terms[k] - others[k]
        if math.isnan(change):
            return math.nan
        low = min(low, change)
        high = max(high, change)
    return high - low


@_compiled
def add_covariance(hessian, at_node, weights):
    """Add the covariance over nodes of the gradients (K, E) to a matrix (E, E)."""
    size = hessian.shape[0]
    mean = np.zeros(size)
    touched = np.empty(size, np.int64)
    n = 0
    for a in range(size):
        used = False
        for k in range(weights.size):
            if at_node[k, a] != 0.0:
                used = True
                mean[a] += weights[k] * at_node[k, a]
        if used:
            touched[n] = a
            n += 1
    for k in range(weights.size):
        for x in range(n):
            a = touched[x]
            left = weights[k] * (at_node[k, a] - mean[a])
            for y in range(n):
                b = touched[y]
                hessian[a, b] += left * (at_node[k, b] - mean[b])


# --- Gaussians and t distributions around a mode ----------------------------------------------------


@_compiled
def factor_of(curvature, factor):
    """Write upper C with C C' = curvature^-1; return log |C|, nan if not positive definite."""
    q = curvature.shape[0]
    lower = np.zeros((q, q))
    log_det = 0.0
    for a in range(q):
        for b in range(a + 1):
            s = curvature[a, b]
            for c in range(b):
                s -= lower[a, c] * lower[b, c]
            if a == b:
                if not s > 0.0:
                    return math.nan
                lower[a, a] = math.sqrt(s)
                log_det -= math.log(lower[a, a])
            else:
                lower[a, b] = s / lower[b, b]
    for c in range(q):  # C = L^-T, one column of L^-1 after the other
        for a in range(q):
            s = 1.0 if a == c else 0.0
            for b in range(c, a):
                s -= lower[a, b] * factor[c, b]
            factor[c, a] = s / lower[a, a] if a >= c else 0.0
    return log_det


@_compiled
def log_student(mode, factor, u):
    """Return the log density, up to a constant, of a multivariate t with upper factor C."""
    q = mode.size
    square = 0.0
    z = np.empty(q)
    for a in range(q - 1, -1, -1):
        s = u[a] - mode[a]
        for b in range(a + 1, q):
            s -= factor[a, b] * z[b]
        z[a] = s / factor[a, a]
        square += z[a] * z[a]
    return -0.5 * (_FREEDOM + q) * math.log1p(square / _FREEDOM)


@_compiled
def draw_student(mode, factor, rng, u):
    """Draw u (q,) from that multivariate t."""
    q = mode.size
    square = 0.0
    for _ in range(_FREEDOM):
        square += rng.standard_normal() ** 2
    scale = math.sqrt(_FREEDOM / square)
    z = np.empty(q)
    for a in range(q):
        z[a] = scale * rng.standard_normal()
    node_place(mode, factor, z, u)


# --- arrays entry by entry --------------------------------------------------------------------------


@_compiled
def copy_matrix(target, source):
    """Copy a matrix to another."""
    for a in range(source.shape[0]):
        for b in range(source.shape[1]):
            target[a, b] = source[a, b]


@_compiled
def clear(vector):
    """Fill a vector with zeros."""
    for a in range(vector.size):
        vector[a] = 0.0


# --- search for the mode ---------------------------------------------------------------------------


#: Maximum number of Newton steps, and squared length of a step, in standard deviations, that ends them.
_MOST_STEPS = 30
_CLOSE = 1e-2
#: Maximum length of the first step, in standard deviations. It doubles with each further step in the
#: same direction, because the mode is many standard deviations away if the effects' variance is small.
_LONGEST = 2.0


@_compiled
def _newton_sums(program, eta, shared, kept, size, group, u, out):
    """Write gradient and lower Hessian triangle of the log integrand in the local effects."""
    call(program[PRIOR_NEWTON], eta, shared, group, u, out)
    call(program[ROWS_NEWTON], eta, shared, kept, kept.shape[1], size, padded(size), u, out)


@_compiled
def _climb_line(program, eta, shared, kept, size, group, u, factor):
    """Move u to the mode as :func:`climb` does, for one local effect.

    Once the mode is bracketed, steps that are too long, leave the bracket or start from a point where
    the density overflows are replaced by bisection.
    """
    sums = np.empty(2)
    longest, before = _LONGEST, 0.0
    low, high = -math.inf, math.inf
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        curvature = -sums[1]
        if not curvature > 0.0:
            curvature = max(1.0, abs(curvature))
        sd = 1.0 / math.sqrt(curvature)
        w = sd * sums[0]
        overflow = not np.isfinite(w)
        if overflow and before == 0.0:
            return math.nan
        if before > 0.0 if overflow else w < 0.0:
            high = u[0]
        else:
            low = u[0]
        if not overflow and w * before < 0.0:
            longest = _LONGEST
        new = u[0] + sd * min(longest, max(-longest, w))
        between = high - low < math.inf
        if overflow or (between and (abs(w) > longest or not low <= new <= high)):
            if not between:
                return math.nan
            u[0] = 0.5 * (low + high)
            continue
        u[0] = new
        longest, before = 2.0 * longest if abs(w) > longest else _LONGEST, w
        factor[0, 0] = sd
        if w * w < _CLOSE:
            break
    return math.log(factor[0, 0])


@_compiled
def climb(program, eta, shared, kept, size, group, u, factor):
    """Move u (q,) to the integrand's mode; write ``factor`` C and return log |C|.

    C C' is the inverse curvature, whose diagonal is increased if it is not positive definite.
    """
    q = u.size
    if q == 1:
        return _climb_line(program, eta, shared, kept, size, group, u, factor)
    sums = np.empty(q + q * (q + 1) // 2)
    curvature = np.empty((q, q))
    w = np.empty(q)
    step, before = np.zeros(q), np.zeros(q)
    longest, shorter = _LONGEST, 0.0
    log_det = math.nan
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        if not np.isfinite(sums).all():
            if shorter == 0.0:
                return math.nan
            for a in range(q):  # a quarter of the last step
                u[a] -= 0.75 * shorter * step[a]
            shorter *= 0.25
            continue
        place = q
        for a in range(q):
            for b in range(a + 1):
                curvature[a, b] = -sums[place]
                place += 1
        log_det = factor_of(curvature, factor)
        lift = 0.0
        while not np.isfinite(log_det):
            lift = max(1.0, 4.0 * lift)
            if lift > 1e12:
                return math.nan
            for a in range(q):
                curvature[a, a] += lift
            log_det = factor_of(curvature, factor)
        length = 0.0
        for a in range(q):
            w[a] = 0.0
            for b in range(q):
                w[a] += factor[b, a] * sums[b]
            length += w[a] * w[a]
        onwards = 0.0
        for a in range(q):
            step[a] = 0.0
            for b in range(q):
                step[a] += factor[a, b] * w[b]
            onwards += step[a] * before[a]
        if onwards < 0.0:
            longest = _LONGEST
        shorter = min(1.0, longest / math.sqrt(length)) if length > 0.0 else 1.0
        for a in range(q):
            u[a] += shorter * step[a]
            before[a] = step[a]
        longest = 2.0 * longest if shorter < 1.0 else _LONGEST
        if length < _CLOSE:
            break
    return log_det


# --- nodes --------------------------------------------------------------------------------------------


@_compiled
def _log_terms(program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms):
    """Write the logarithms of integrand times weight at nodes (K, q) around the mode."""
    u, total = np.empty(program[N_LOCAL]), np.empty(1)
    for k in range(log_weights.size):
        node_place(mode, factor, nodes[k], u)
        value = log_density(program, eta, shared, kept, size, group, u, total)
        terms[k] = value + log_weights[k]


@_compiled
def _value(
    program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights, climbs, terms
):
    """Return a group's marginal log-likelihood; write logarithms of integrand times weight to ``terms``.

    If ``climbs``, mode (q,) and factor (q, q) are updated in place.
    """
    keep_rows(program, VALUE, eta, shared, block, size, kept)
    log_det = 0.0
    if climbs:
        log_det = climb(program, eta, shared, kept, size, group, mode, factor)
    else:
        for a in range(mode.size):
            log_det += math.log(abs(factor[a, a]))
    _log_terms(program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms)
    return log_det + log_sum(terms)


@_compiled
def values(
    eta, units, rows, first, groups, modes, factors, nodes, log_weights, keep, counter, program
):
    """Return the marginal log-likelihoods (m,) of some groups.

    The search starts from ``modes`` (G, q) and ``factors`` (G, q, q), which are updated if ``keep``.
    """
    out = np.empty(units.size)
    shared, q = of_parameters(program, VALUE, eta), program[N_LOCAL]
    block, kept = rooms(program, first, units)
    mode, factor, terms = np.empty(q), np.empty((q, q)), np.empty(log_weights.size)
    for n in range(units.size):
        g = units[n]
        size = gather(rows, first, g, block)
        fill(mode, modes[g])
        copy_matrix(factor, factors[g])
        out[n] = _value(
            program, eta, shared, kept, block, size, groups[g], mode, factor, nodes, log_weights,
            True, terms,
        )  # fmt: skip
        counter[0] += size
        if keep:
            fill(modes[g], mode)
            copy_matrix(factors[g], factor)
    return out


# --- residuals ----------------------------------------------------------------------------------------


@_compiled
def _expansion(
    program, at, du, dv, shared, kept, block, size, group, mode, factor, nodes, log_weights, terms
):
    """Return the derivatives of log L along du, and the mixed second derivative along du and dv.

    Writes the logarithms of integrand times weight at the nodes to ``terms`` (K,).
    """
    width, whole = kept.shape[1], padded(size)
    call(program[JET + ROWS], at, du, dv, shared, block, block.shape[1], whole, kept, width)
    n_nodes = log_weights.size
    jets = np.empty((n_nodes, 4))
    u = np.empty(program[N_LOCAL])
    for k in range(n_nodes):
        node_place(mode, factor, nodes[k], u)
        call(program[PRIOR_JET], at, du, dv, shared, group, u, jets[k])
        call(program[ROWS_JET], at, du, dv, shared, kept, width, size, whole, u, jets[k])
        terms[k] = jets[k, 0] + log_weights[k]
    total = log_sum(terms)
    first_u, first_v, second = 0.0, 0.0, 0.0
    for k in range(n_nodes):
        weight = math.exp(terms[k] - total)
        if weight == 0.0:  # derivatives may be infinite there
            continue
        first_u += weight * jets[k, 1]
        first_v += weight * jets[k, 2]
        second += weight * (jets[k, 3] + jets[k, 1] * jets[k, 2])
    return first_u, second - first_u * first_v


@_compiled
def rewards(
    points, centre, units, mask, rows, first, groups, modes, factors, nodes, log_weights, most_spread,
    moved_nodes, moved_log_weights, counter, program,
):  # fmt: skip
    """Return residual changes of groups from points[0] to points[1], in row 1 of (2, m).

    With u = points[1] - points[0] and v = points[1] + points[0] - 2 centre over the coordinates in
    ``mask`` (1 or 0), the control variate changes by d_u log L + d_u d_v log L / 2 at the centre, with
    ``nodes`` at the stored modes. Log-likelihoods use the same nodes, unless changes of the log
    integrand from the centre range over more than ``most_spread`` (1,) between nodes; then they use
    ``moved_nodes`` around the modes at both points.
    """
    at, du, dv, _ = line(points[0], points[1], centre, mask)
    here, there = of_parameters(program, VALUE, points[0]), of_parameters(program, VALUE, points[1])
    jets = np.empty(max(1, program[JET + N_SHARED]))
    call(program[JET + SHARED], at, du, dv, jets)
    q = program[N_LOCAL]
    block, kept = rooms(program, first, units)
    kept_there, kept_jets = np.empty(kept.shape), room_of(program, JET, kept.shape[1])
    mode, factor = np.empty(q), np.empty((q, q))
    at_centre, moved_terms = np.empty(log_weights.size), np.empty(moved_log_weights.size)
    old, new = np.empty(log_weights.size), np.empty(log_weights.size)
    out = np.zeros((2, units.size))
    for n in range(units.size):
        g = units[n]
        size = gather(rows, first, g, block)
        counter[0] += size
        slope, curvature = _expansion(
            program, at, du, dv, jets, kept_jets, block, size, groups[g], modes[g], factors[g],
            nodes, log_weights, at_centre,
        )  # fmt: skip
        near = most_spread[0] > 0.0
        if near:
            keep_rows(program, VALUE, points[0], here, block, size, kept)
            keep_rows(program, VALUE, points[1], there, block, size, kept_there)
            held = (size, groups[g], modes[g], factors[g], nodes, log_weights)
            _log_terms(program, points[0], here, kept, *held, old)
            _log_terms(program, points[1], there, kept_there, *held, new)
            near = spread(old, at_centre) <= most_spread[0] >= spread(new, at_centre)
        if near:
            change = log_sum(new) - log_sum(old)
        else:
            moved = (
                block, size, groups[g], mode, factor, moved_nodes, moved_log_weights, True, moved_terms
            )  # fmt: skip
            fill(mode, modes[g])
            copy_matrix(factor, factors[g])
            before = _value(program, points[0], here, kept, *moved)
            after = _value(program, points[1], there, kept, *moved)
            change = -math.inf if after == -math.inf else after - before
        out[1, n] = change if change == -math.inf else change - slope - 0.5 * curvature
    return out


# --- sums and their derivatives -------------------------------------------------------------------------


@_compiled
def sums(
    etas, units, rows, first, groups, modes, factors, nodes, log_weights, climbs, order, counter,
    program,
):  # fmt: skip
    """Return sums (P,) of log L over some groups at points (P, E), gradients (P, E) and Hessians (P, E, E).

    Derivatives are empty above the ``order`` 0, 1 or 2. ``climbs`` says whether nodes are centred at each
    group's mode at eta or at the stored mode. A sum stops at the first group that is not finite.
    """
    n_points, size_eta = etas.shape
    totals = np.zeros(n_points)
    gradients = np.zeros((n_points if order > 0 else 0, size_eta))
    hessians = np.zeros((n_points if order > 1 else 0, size_eta, size_eta))
    block, kept = rooms(program, first, units)
    width, q, n_nodes = kept.shape[1], program[N_LOCAL], log_weights.size
    kept_slope = room_of(program, SLOPE, width)
    n_leaves, n_prior = program[N_ENTRIES] + program[N_DOTS], program[N_PRIOR_LEAVES]
    n_row, n_group = n_leaves, n_prior
    if order > 1:
        n_row += n_leaves * (n_leaves + 1) // 2
        n_group += n_prior * (n_prior + 1) // 2
    part = np.empty((n_row, width))
    found = np.empty((max(1, program[N_SLOPES]), width))
    places = np.empty((max(1, program[N_ENTRIES]), width), np.int64)
    prior_part = np.empty(n_group)
    prior_found = np.empty(max(1, n_prior + n_prior * (n_prior + 1) // 2))
    prior_at = np.empty(max(1, n_prior), np.int64)
    at_node = np.empty((n_nodes, size_eta))
    terms, u, work = np.empty(n_nodes), np.empty(q), np.empty(width)
    mode, factor = np.empty(q), np.empty((q, q))
    for p in range(n_points):
        eta = etas[p]
        shared, slope = of_parameters(program, VALUE, eta), of_parameters(program, SLOPE, eta)
        other = np.zeros(hessians.shape[1:] if order > 1 else (0, 0))
        for g in units:
            group = groups[g]
            size = gather(rows, first, g, block)
            counter[0] += size
            fill(mode, modes[g])
            copy_matrix(factor, factors[g])
            totals[p] += _value(
                program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights,
                climbs, terms,
            )  # fmt: skip
            if not math.isfinite(totals[p]):
                break
            if order == 0:
                continue
            total = log_sum(terms)
            for k in range(n_nodes):
                terms[k] = math.exp(terms[k] - total)
            keep_rows(program, SLOPE, eta, slope, block, size, kept_slope)
            call(program[ROWS_PLACES], eta, slope, block, width, size, places, width)
            call(program[PRIOR_PLACES], eta, slope, group, prior_at)
            for a in range(n_row):
                clear(part[a, :size])
            clear(prior_part)
            for k in range(n_nodes):
                w, s = terms[k], at_node[k]
                clear(s)
                if w == 0.0:  # derivatives may be infinite there
                    continue
                node_place(mode, factor, nodes[k], u)
                call(program[PRIOR_SLOPES], eta, slope, group, u, prior_found)
                for a in range(n_group):
                    prior_part[a] += w * prior_found[a]
                call(program[ROWS_SLOPES], eta, slope, kept_slope, width, size, u, found, width)
                for a in range(n_row):
                    for j in range(size):
                        part[a, j] += w * found[a, j]
                if order > 1:
                    for a in range(n_prior):
                        s[prior_at[a]] += prior_found[a]
                    add_gradient(program, found, places, block, size, s)
            for a in range(n_prior):
                gradients[p, prior_at[a]] += prior_part[a]
            add_gradient(program, part, places, block, size, gradients[p])
            if order > 1:
                add_covariance(hessians[p], at_node, terms)
                _add_prior(prior_part, prior_at, n_prior, hessians[p])
                add_hessian(program, part[n_leaves:], places, block, size, work, hessians[p], other)
        if order > 1:
            add_transposed(hessians[p], other)
    return totals, gradients, hessians


@_compiled
def _add_prior(part, at, n_leaves, hessian):
    """Add second derivatives of the local effects' log density (lower triangle) to the Hessian."""
    n = n_leaves
    for a in range(n_leaves):
        for b in range(a + 1):
            hessian[at[a], at[b]] += part[n]
            if a != b:
                hessian[at[b], at[a]] += part[n]
            n += 1


# --- local effects ---------------------------------------------------------------------------------


@_compiled
def complete(eta, effects, rows, first, groups, program):
    """Return the sum over all groups of the log density of rows and local effects (G, q)."""
    shared = of_parameters(program, VALUE, eta)
    units = np.arange(first.size - 1)
    block, kept = rooms(program, first, units)
    total, room = 0.0, np.empty(1)
    for g in units:
        size = gather(rows, first, g, block)
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        total += log_density(program, eta, shared, kept, size, groups[g], effects[g], room)
    return total


@_compiled
def draw_effects(eta, effects, tries, rng, rows, first, groups, modes, factors, counter, program):
    """Draw the local effects (G, q) of all groups given eta, in place.

    They are updated by ``tries`` independence Metropolis-Hastings steps with multivariate t proposals around the mode.
    Returns the acceptance rate.
    """
    shared = of_parameters(program, VALUE, eta)
    units, q = np.arange(first.size - 1), program[N_LOCAL]
    block, kept = rooms(program, first, units)
    mode, factor, u = np.empty(q), np.empty((q, q)), np.empty(q)
    room, accepted = np.empty(1), 0
    for g in units:
        group = groups[g]
        size = gather(rows, first, g, block)
        counter[0] += size
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        fill(mode, modes[g])
        copy_matrix(factor, factors[g])
        climb(program, eta, shared, kept, size, group, mode, factor)
        here = log_density(program, eta, shared, kept, size, group, effects[g], room)
        here -= log_student(mode, factor, effects[g])
        for _ in range(tries):
            draw_student(mode, factor, rng, u)
            there = log_density(program, eta, shared, kept, size, group, u, room)
            there -= log_student(mode, factor, u)
            if there > here + math.log(1.0 - rng.random()) or math.isnan(here):
                fill(effects[g], u)
                here = there
                accepted += 1
    return accepted / max(1, tries * units.size)
