"""Marginal log-likelihoods of groups as what races sample, in the place of rows."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from numba import types

from amc_pymc.extract.groups import Groups
from amc_pymc.extract.native import bound_function
from amc_pymc.marginals import hermite_nodes, load_kernels, printed_source, state_nodes

__all__ = ["GroupDensities"]

_REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])
#: Nodes along each axis, by the number of local effects.
_NODES = {1: 7, 2: 5, 3: 5}


class GroupDensities:
    """Marginal log-likelihoods of groups, with the interface of densities of rows.

    Parameters
    ----------
    groups : Groups
    n_nodes : int, optional
        Nodes of the quadrature along each axis.

    Notes
    -----
    ``modes`` (G, q) and ``factors`` (G, q, q) hold the nodes' places at the point where
    :meth:`settle` was called last. Searches start there, and control variates use these nodes.
    """

    def __init__(self, groups: Groups, n_nodes: int | None = None):
        self.groups = groups
        self.layout = groups.layout
        self.n_units = groups.n_groups
        q = groups.program.n_local
        continuous = [n for n in self.layout.names if self.layout.is_continuous(n)]
        self.expand = self.layout.indices(continuous)
        self.mask = np.zeros(self.layout.size)
        self.mask[self.expand] = 1.0
        if groups.states is None:
            self.n_nodes = n_nodes or _NODES[q]
            self.nodes = hermite_nodes(self.n_nodes, q)
        else:
            self.n_nodes = len(groups.states)
            self.nodes = state_nodes(groups.states)
        self.modes = np.zeros((self.n_units, q))
        self.factors = np.zeros((self.n_units, q, q))
        self.factors[:] = np.eye(q)
        #: Rows read so far, by whatever function.
        self.counter = np.zeros(1, np.int64)

    def __getstate__(self):
        kind = type(self)
        return {
            k: v
            for k, v in self.__dict__.items()
            if not isinstance(getattr(kind, k, None), cached_property)
        }

    @cached_property
    def kernels(self):
        """Compiled kernels of the model."""
        return load_kernels(printed_source(self.groups.program))

    # --- for compiled loops ---------------------------------------------------------------------

    @property
    def _arrays(self):
        g = self.groups
        return [g.rows, g.first, g.groups, self.modes, self.factors, *self.nodes]

    @cached_property
    def rewards(self):
        """First-class ``(points (2, E), centre, groups (m,)) -> (2, m)``; row 0 is zero."""
        arrays = [self.mask, *self._arrays, self.counter]
        return bound_function(self.kernels.rewards, _REWARDS, arrays)

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, E), centre, groups (m,)) -> (K, m)``."""
        arrays = [self.mask, *self._arrays, self.counter]
        return bound_function(self.kernels.state_rewards, _REWARDS, arrays)

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Marginal log-likelihoods (m,) of some groups at x."""
        return self.kernels.values(x, idx, *self._arrays, False, self.counter)

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Marginal log-likelihoods (G,) of all groups at x."""
        return self.values(x, np.arange(self.n_units))

    def change(self, x: np.ndarray, x_new: np.ndarray) -> float:
        """Sum over all groups of the change from x to x_new, without any control variate."""
        return float(np.sum(self.all_values(x_new) - self.all_values(x)))

    def settle(self, x: np.ndarray) -> None:
        """Move the stored nodes to the modes at x."""
        idx = np.arange(self.n_units)
        self.kernels.values(x, idx, *self._arrays, True, self.counter)

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True):
        """Sum of the log-likelihood over some groups (default all) and its gradient (E,)."""
        total, gradient, _ = self._sums(x, rows, climb, False)
        return total, gradient

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True) -> np.ndarray:
        """Hessian (E, E) of the summed log-likelihood."""
        return self._sums(x, rows, climb, True)[2]

    def _sums(self, x, rows, climb, second):
        idx = np.arange(self.n_units) if rows is None else np.asarray(rows, np.int64)
        return self.kernels.sums(x, idx, *self._arrays, climb, second, self.counter)
