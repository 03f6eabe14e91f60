"""Coefficients: functions of parameters that rows read in place of these.

Rows are functions of z = (x, w): parameters x (D,) and coefficients w (W,). With J = dw / dx and f(x) = l(z(x)),

    f' = l_x + J' l_w,    f'' = [I J'] l'' [I; J] + sum_j l_w_j w_j''.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from numba import types
from scipy import sparse

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.first_class import bound_function
from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.row_kernels.loops import line, residual_changes, residuals_at
from amc_pymc.reading.rest import add_curves, add_slopes
from amc_pymc.tall.terms import N_FAMILIES, derivatives_of, family_at, printed_families, with_values

__all__ = ["Coefficients", "reads", "rewards", "state_rewards"]

_MAP = types.float64[::1](types.float64[::1])


class Coefficients:
    """Map from x (D,) to z (D + W,), x followed by the coefficients.

    Parameters
    ----------
    graph : Graph
    families : sequence of Family
        Expressions of entries of "eta", x, and of the columns of their tables.
    chosen : bool
        Whether discrete variables scale or choose some, other than in products of matrices.
    """

    def __init__(self, graph: Graph, families: Sequence[Family], chosen: bool = False):
        self.graph, self.families = graph, tuple(families)
        self.size = sum(len(f.table) for f in families)
        self.chosen = chosen
        orders = (printed_families(graph, families, order) for order in range(3))
        self._values, self._slopes, self._curves = orders

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k not in ("graph", "families", "native")}

    @cached_property
    def native(self) -> Any:
        """First-class ``x (D,) -> z (D + W,)``."""
        return bound_function(with_values, _MAP, list(self._values.arrays))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return z at x."""
        z: np.ndarray = with_values(np.asarray(x, float), *self._values.arrays)
        return z

    def rough(self) -> np.ndarray:
        """Return no coordinates: all are continuous."""
        return np.empty(0, np.int64)

    def gradient(self, x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Convert a gradient by z to that by x."""
        out = slopes[: x.size].copy()
        add_slopes(x, *self._slopes.arrays, slopes[x.size :], out)
        return out

    def hessian(self, x: np.ndarray, slopes: np.ndarray, curves: np.ndarray) -> np.ndarray:
        """Convert a Hessian by z to that by x, given the gradient by z."""
        chain = sparse.vstack([sparse.eye_array(x.size), self._jacobian(x)], format="csr")
        out = np.ascontiguousarray(chain.T @ (chain.T @ curves).T)
        add_curves(x, *self.arrays, slopes[x.size :], np.arange(x.size), out)
        return out

    def of_points(self, xs: np.ndarray) -> np.ndarray:
        """Return z (P, D + W) at points (P, D)."""
        out = np.empty((len(xs), xs.shape[1] + self.size))
        _of_points(xs, *self._values.arrays, out)
        return out

    def gradients(self, xs: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Convert gradients by z (P, D + W) to those by x (P, D)."""
        out = slopes[:, : xs.shape[1]].copy()
        _add_slopes_of_points(xs, *self._slopes.arrays, slopes[:, xs.shape[1] :].copy(), out)
        return out

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Arrays of the compiled coefficients with their derivatives."""
        return self._curves.arrays

    def _jacobian(self, x: np.ndarray) -> Any:
        """Return the derivatives (W, D) of the coefficients by x."""
        program, table = self.arrays
        found, begin = [sparse.csr_array((0, x.size))], 0
        for f in range(program[N_FAMILIES]):
            _, n, n_leaves = family_at(program, f)
            values, at = derivatives_of(x, program, table, f)
            rows = np.tile(np.arange(n), n_leaves)
            where = rows, at[:n_leaves].ravel()
            found.append(
                sparse.csr_array((values[1 : 1 + n_leaves].ravel(), where), shape=(n, x.size))
            )
            begin += n
        return sparse.vstack(found)


def reads(graph: Graph, family: Family, coordinates: np.ndarray) -> bool:
    """Whether elements of a family read some marked coordinates of x."""
    for entry in leaves_of(graph, family.expression)[0]:
        place = graph.nodes[entry].args[0]
        if graph.leaves([place], "entry"):
            continue
        (places,) = graph.evaluate([place], row=family.table.T)
        if coordinates[np.asarray(places, np.int64)].any():
            return True
    return False


@njit(cache=True, error_model="numpy")
def _of_points(xs, program, table, out):
    for p in range(xs.shape[0]):
        out[p] = with_values(xs[p], program, table)


@njit(cache=True, error_model="numpy")
def _add_slopes_of_points(xs, program, table, weights, out):
    for p in range(xs.shape[0]):
        add_slopes(xs[p], program, table, weights[p], out[p])


# --- expansions in parameters -----------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _along(at, du, dv, program, table):
    """Return z, its derivatives along du and dv, and that along du plus half of the second one along both."""
    z = with_values(at, program, table)
    out = np.zeros((4, z.size))
    out[0] = z
    for k, direction in enumerate((du, dv, du)):
        out[1 + k, : at.size] = direction
    begin = at.size
    for f in range(program[N_FAMILIES]):
        _, n, n_leaves = family_at(program, f)
        found, places = derivatives_of(at, program, table, f)
        for k in range(n):
            u, v, both, t = 0.0, 0.0, 0.0, n_leaves
            for a in range(n_leaves):
                i = places[a, k]
                u += found[1 + a, k] * du[i]
                v += found[1 + a, k] * dv[i]
                for b in range(a + 1):
                    t += 1
                    j = places[b, k]
                    both += found[t, k] * du[i] * dv[j]
                    if a != b:
                        both += found[t, k] * du[j] * dv[i]
            out[1, begin + k], out[2, begin + k], out[3, begin + k] = u, v, u + 0.5 * both
        begin += n
    return out


@njit(cache=True, error_model="numpy")
def rewards(points, centre, units, mask, data, rows, program, table):
    """Return residual changes (2, m) of rows that are expanded in x; row 0 is zero."""
    at, du, dv, expands = line(points[0], points[1], centre, mask)
    z = _along(at, du, dv, program, table)
    here = with_values(points[0], program, table)
    there = with_values(points[1], program, table)
    return residual_changes(here, there, z[0], z[1], z[2], z[3], expands, units, data, rows)


@njit(cache=True, error_model="numpy")
def state_rewards(points, centre, units, mask, data, rows, program, table):
    """Return log-likelihoods (K, m) at K points minus Taylor polynomials in x around a centre."""
    size = with_values(centre, program, table).size
    z, expands = np.empty((points.shape[0], 5, size)), False
    for k in range(points.shape[0]):
        at, _, _, expands = line(points[k], points[k], centre, mask)
        z[k, 0] = with_values(points[k], program, table)
        z[k, 1:] = _along(at, points[k] - at, points[k] - at, program, table)
    return residuals_at(z, expands, units, data, rows)
