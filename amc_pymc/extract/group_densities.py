"""Marginal log-likelihoods of groups as what races sample, in the place of rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from numba import types

from amc_pymc.extract.groups import Groups, effects_at
from amc_pymc.extract.rest import RestDensities
from amc_pymc.first_class import bound_function
from amc_pymc.marginals import GroupKernels, hermite_nodes, printed_groups, state_nodes
from amc_pymc.row_store import AROUND

__all__ = ["GroupDensities", "GroupedModel"]

_REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])
#: Nodes along each axis at first, by the number of effects.
_FIRST = {1: 7, 2: 5, 3: 5}
#: Where weights of held nodes have changed by more than this between nodes, in nats, nodes are moved.
_MOST_SPREAD = 1.0
#: Bytes of groups in a store that are read before their memory is let go of.
_PART = 64 * 2**20
#: Proposals that lower the log-likelihood by more than this, in nats, are rejected whatever the error.
_HOPELESS = -20.0


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

    Population sums of control variates are taken with ``nodes``, which are as many as the
    likelihood needs. A race samples only what is left beside them, for which ``held_nodes`` will do
    that are fewer and stay where they are stored. With L_K of K held nodes, h_K its Taylor
    polynomial of second order around the centre, and h that of all nodes, a race decides by

        sum_g h_g + sum_g (log L_K,g - h_K,g),

    so that the error of the few nodes enters by its third derivatives only.
    """

    #: What a unit is called.
    unit = "group"

    def __init__(self, groups: Groups, n_nodes: int | None = None):
        self.groups = groups
        self.layout = groups.layout
        self.n_units = groups.n_groups
        q = groups.program.n_local
        continuous = [n for n in groups.reads if self.layout.is_continuous(n)]
        self.expand = self.layout.indices(continuous)
        self.mask = np.zeros(self.layout.size)
        self.mask[self.expand] = 1.0
        self.discrete = groups.states is not None
        #: Positive where races hold nodes: the largest change of their weights, in nats.
        self.most_spread = np.zeros(1)
        self.set_nodes(n_nodes or _FIRST[q])
        self.modes = np.zeros((self.n_units, q))
        self.factors = np.zeros((self.n_units, q, q))
        self.factors[:] = np.eye(q)
        self.settled = False
        #: Rows of groups read so far.
        self.counter = np.zeros(1, np.int64)
        #: Cost of full passes so far, in log-likelihoods of one row.
        self.rows_evaluated = 0
        #: Largest difference that twice the nodes have made to a decision's log ratio so far.
        self.approximation_error = 0.0

    def set_nodes(self, number: int) -> None:
        """Take so many nodes along each axis, which are moved; audits take twice as many."""
        states, q = self.groups.states, self.groups.program.n_local
        self.n_nodes = number if states is None else len(states)
        self.nodes = hermite_nodes(number, q) if states is None else state_nodes(states)
        self.finer = self.nodes if self.discrete else hermite_nodes(2 * number + 1, q)
        self.hold_nodes(None)

    def hold_nodes(self, number: int | None) -> None:
        """Let races hold some nodes along each axis; None moves all nodes to the modes."""
        q = self.groups.program.n_local
        self.held_nodes = self.nodes if number is None else hermite_nodes(number, q)
        self.most_spread[0] = 0.0 if number is None else _MOST_SPREAD

    def raced(self, x, x_new, centre: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """What races sample of some groups, (m,)."""
        self.rows_evaluated += int(idx.size * self.race_cost / 4)
        pair, arrays = np.stack([x, x_new]), self._raced_arrays
        rewards = self.kernels.rewards
        parts = [rewards(pair, centre, p, *arrays)[1] for p in self._parts(idx)]
        return _joined(parts)

    def raced_change(self, x, x_new, surrogate, idx: np.ndarray) -> float:
        """Change of some groups' summed log-likelihood as races see it."""
        rest = self.raced(x, x_new, surrogate[0], idx).sum()
        return float(rest + self.expanded_change(x, x_new, surrogate))

    def expanded_change(self, x, x_new, surrogate) -> float:
        """Change of the sum of control variates of a surrogate (centre, gradient, Hessian)."""
        centre, gradient, hessian = surrogate
        u, v = self.mask * (x_new - x), self.mask * (x_new + x - 2.0 * centre)
        return float(gradient @ u + 0.5 * u @ hessian @ v)

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
        return GroupKernels(printed_groups(self.groups.program))

    @property
    def observed_vars(self) -> tuple[str, ...]:
        """Names of the observed variables whose rows are in the groups."""
        return self.groups.observed_vars

    @property
    def n_rows(self) -> int:
        """Rows of all groups."""
        return self.groups.n_rows

    @property
    def race_cost(self) -> float:
        """Cost of racing one group, in log-likelihoods of one row; measured."""
        held, all_nodes = len(self.held_nodes.log_weights), len(self.nodes.log_weights)
        a_row = 12.0 + 3.5 * held if self.most_spread[0] else 13.0 + 3.5 * all_nodes
        return self.n_rows / self.n_units * a_row

    @property
    def audit_cost(self) -> float:
        """Cost of auditing a decision, for each group; measured."""
        a_row = 12.0 + 3.0 * len(self.finer.log_weights)
        return self.race_cost + self.n_rows / self.n_units * a_row

    @property
    def rows_read(self) -> int:
        """Rows that have been read so far."""
        return int(self.counter[0])

    @property
    def reads(self) -> np.ndarray:
        """Coordinates of x that groups depend on."""
        return self.layout.indices(self.groups.reads)

    def forget_errors(self) -> None:
        """Begin to look for the largest error anew."""
        self.approximation_error = 0.0

    def touch(self, n_rows: float) -> None:
        """Take note of rows of groups read at random, which may take memory."""
        if self._store is not None:
            self._store.touch(n_rows / max(1.0, self.n_rows) * self.n_units * self._places_read)

    def release(self) -> None:
        """Let go of memory that can be read again, if rows lie in a store."""
        if self._store is not None:
            self._store.release()

    @property
    def _store(self):
        return self.groups.store

    @property
    def _places_read(self) -> float:
        """Pieces of memory that reading an average group maps."""
        width = self.groups.columns.itemsize * len(self.groups.columns)
        return 1.0 + self.n_rows / self.n_units * width / AROUND

    def _parts(self, idx: np.ndarray) -> Iterator[np.ndarray]:
        """Units of which so many are read at once that their rows take a bounded memory.

        In memory these are all. In a store, the pages of a part are let go of after it.
        """
        if self._store is None or not idx.size:
            yield idx
            return
        ends = np.cumsum(self._bytes_read(idx))
        start = 0
        while start < idx.size:
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + _PART, side="right")))
            yield idx[start:stop]
            self.release()
            start = stop

    def _bytes_read(self, idx: np.ndarray) -> np.ndarray:
        """Memory that reading each of some groups may map."""
        first, columns = self.groups.first, self.groups.columns
        size = (first[idx + 1] - first[idx]) * (columns.itemsize * len(columns))
        apart = idx[-1] - idx[0] + 1 > idx.size
        return size + (AROUND if apart else 0)

    def raise_errors(self) -> None:
        """No Python code is called."""

    # --- for compiled loops ---------------------------------------------------------------------

    @property
    def _places(self):
        g = self.groups
        return [g.columns, g.first, g.groups, self.modes, self.factors]

    @property
    def _arrays(self):
        return [*self._places, *self.nodes]

    @property
    def _raced_arrays(self):
        held = [*self.held_nodes, self.most_spread]
        program = self.kernels.program
        return [self.mask, *self._places, *held, *self.nodes, self.counter, program]

    @cached_property
    def rewards(self):
        """First-class ``(points (2, E), centre, groups (m,)) -> (2, m)``; row 0 is zero."""
        return bound_function(self.kernels.rewards, _REWARDS, self._raced_arrays)

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, E), centre, groups (m,)) -> (K, m)``."""
        arrays = [self.mask, *self._arrays, self.counter, self.kernels.program]
        return bound_function(self.kernels.state_rewards, _REWARDS, arrays)

    @property
    def row_gradient(self):
        """There is none."""
        raise TypeError("gradients of single groups are not at hand")

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Marginal log-likelihoods (m,) of some groups at x."""
        return self._values(x, idx, self.nodes, False)

    def _values(self, x: np.ndarray, idx: np.ndarray, nodes, keep: bool) -> np.ndarray:
        """The same with some nodes, which may be left where they were moved to."""
        arrays = [*self._places, *nodes]
        values = self.kernels.values
        return _joined([values(x, p, *arrays, keep, self.counter) for p in self._parts(idx)])

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Marginal log-likelihoods (G,) of all groups at x."""
        self.rows_evaluated += self.n_rows * len(self.nodes.log_weights)
        return self.values(x, np.arange(self.n_units))

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """The same in one piece."""
        yield self.all_values(x)

    def residual_summary(self, probes: list[np.ndarray], centre: np.ndarray, number: int) -> None:
        """None: residuals of groups are computed here."""

    def all_finite(self, x: np.ndarray) -> bool:
        """Whether all groups are possible at x."""
        return bool(np.isfinite(self.all_values(x)).all())

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Sum over all groups of the change from x to x_new, with twice the nodes.

        ``surrogate`` (centre, gradient, Hessian) is the one that races take control variates from;
        :attr:`approximation_error` is that of a race over all groups beside it.
        """
        units = np.arange(self.n_units)
        if surrogate is None:
            coarse = float(np.sum(self.all_values(x_new) - self.all_values(x)))
        else:
            coarse = self.raced_change(x, x_new, surrogate, units)
        if self.discrete:
            return coarse
        there, here = (self._values(y, units, self.finer, False) for y in (x_new, x))
        fine = float(np.sum(there - here))
        if fine > _HOPELESS:
            self.approximation_error = max(self.approximation_error, abs(fine - coarse))
        return fine

    def settle(self, x: np.ndarray, idx: np.ndarray | None = None) -> None:
        """Move the stored nodes to the modes at x, of some groups or all."""
        self.settled = idx is None
        idx = np.arange(self.n_units) if idx is None else idx
        self._values(x, idx, self.nodes, True)

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True):
        """Sum of the log-likelihood over some groups (default all) and its gradient (E,)."""
        total, gradient, _ = self._sums(x, rows, climb, False)
        return total, gradient

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True) -> np.ndarray:
        """Hessian (E, E) of the summed log-likelihood."""
        return self._sums(x, rows, climb, True)[2]

    def expansion(
        self, x: np.ndarray, idx: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (E,) and Hessian (E, E) of the sum of some or all control variates around x.

        They belong to the nodes that are stored, which the first call for all puts at the modes
        there.
        """
        if idx is None and not self.settled:
            self.settle(x)
        _, gradient, hessian = self._sums(x, idx, False, True)
        return gradient, hessian

    def forget_expansion(self) -> None:
        """Do without a control variate."""
        self.expand = np.empty(0, np.int64)
        self.mask[:] = 0.0
        self.hold_nodes(None)

    def forget_centre(self) -> None:
        """Put the nodes anew where the next expansion is.

        If variables are held, the search for the modes begins at zero each time, so that what a
        chain does depends on no other chain.
        """
        self.settled = False
        if self.groups.held is not None:
            self.modes[:] = 0.0

    # --- local effects --------------------------------------------------------------------------

    def complete(self, x: np.ndarray, effects: np.ndarray) -> float:
        """Log density of all rows and local effects (G, q)."""
        g, total = self.groups, 0.0
        for s, first in self._ranges():
            total += self.kernels.complete(x, effects[s], g.columns, first, g.groups[s])
        return float(total)

    def draw_effects(self, x: np.ndarray, effects: np.ndarray, tries: int, rng) -> float:
        """Draw local effects (G, q) given x, in place; return the share of proposals accepted."""
        g, accepted = self.groups, 0.0
        for s, first in self._ranges():
            places = [g.columns, first, g.groups[s], self.modes[s], self.factors[s], *self.nodes]
            share = self.kernels.draw_effects(x, effects[s], tries, rng, *places, self.counter)
            accepted += share * (first.size - 1) / self.n_units
        return accepted

    def _ranges(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Consecutive units in parts, and where rows of each unit of a part begin and end."""
        for part in self._parts(np.arange(self.n_units)):
            start, stop = int(part[0]), int(part[-1]) + 1
            yield slice(start, stop), self.groups.first[start : stop + 1]

    def _sums(self, x, rows, climb, second):
        idx = np.arange(self.n_units) if rows is None else np.asarray(rows, np.int64)
        share = idx.size / self.n_units
        self.rows_evaluated += int(3 * share * self.n_rows * len(self.nodes.log_weights))
        total, gradient, hessian = 0.0, 0.0, 0.0
        for part in self._parts(idx):
            found = self.kernels.sums(x, part, *self._arrays, climb, second, self.counter)
            total, gradient, hessian = (
                total + found[0],
                gradient + found[1],
                hessian + found[2],
            )
        return total, gradient, hessian


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Results of parts of the units, in one array."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class GroupedModel(GroupDensities, RestDensities):
    """Groups and the rest of a model whose local effects are integrated out.

    Parameters
    ----------
    groups, n_nodes
        As for :class:`GroupDensities`.
    rest, value_vars, compile_kwargs
        As for :class:`~amc_pymc.extract.rest.RestDensities`.
    """

    def __init__(self, groups: Groups, rest, value_vars, *, n_nodes=None, compile_kwargs=None):
        GroupDensities.__init__(self, groups, n_nodes)
        RestDensities.__init__(
            self, rest, value_vars, self.layout, compile_kwargs, groups.centring, groups.held
        )

    def changed_data(self, model) -> tuple[str, ...]:
        """Names of data of the model that have changed since it was taken apart."""
        for source in self.groups.sources:
            if not source.is_current(model):
                return source.shared_names
        return self.changed_rest_data(model)

    def hold(self, point) -> None:
        """Take the values of held variables from a point of the user's model, if there are any."""
        groups = self.groups
        if groups.held is None:
            return
        groups.held.take(point)
        for data, columns in (
            (groups.rows, groups.held_rows),
            (groups.groups.T, groups.held_groups),
        ):
            for k, positions in columns:
                data[k] = groups.held.values[positions]

    def effects(self, point) -> np.ndarray:
        """Local effects (G, q) at a point of the whole model."""
        return effects_at(self.groups.factor, point)

    def as_point(self, effects: np.ndarray, like) -> dict[str, np.ndarray]:
        """Local effects (G, q) as variables with the shapes and dtypes of a point."""
        out, start = {}, 0
        for name in self.groups.factor.names:
            old = np.asarray(like[name])
            width = int(np.prod(old.shape[1:]))
            part = effects[:, start : start + width].reshape(old.shape)
            out[name] = part.astype(old.dtype)
            start += width
        return out
