"""Marginal log-likelihoods of groups as the units of races, instead of rows."""

from __future__ import annotations

import logging

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from numba import types

from amc_pymc.engine.first_class import bound_function
from amc_pymc.reading.group_table import GroupTable, affordable
from amc_pymc.reading.groups import Groups, effects_at
from amc_pymc.reading.rest import RestDensities
from amc_pymc.rows import AROUND
from amc_pymc.tall.groups import (
    GroupKernels,
    Nodes,
    even_nodes,
    hermite_nodes,
    lobatto_nodes,
    printed_groups,
    state_nodes,
)

__all__ = ["GroupDensities", "GroupedModel"]

_log = logging.getLogger("amc_pymc")
_REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])
#: Initial number of nodes along each axis, by the number of effects.
_FIRST = {1: 7, 2: 5, 3: 5}
#: The same for even nodes, if log-likelihoods have kinks.
_FIRST_EVEN = {1: 21, 2: 11, 3: 9}
#: Rows of groups in which kinks are looked for, nodes between two gradients, and share of the gradient's
#: change that second derivatives explain if there are no kinks.
_KINK_ROWS, _KINK_NODES, _EXPLAINED = 20_000, 16, 0.8
#: Range over held nodes of the change of the log integrand, in nats, above which nodes are moved.
_MOST_SPREAD = 1.0
#: Bytes of groups in a store that are read before their memory is released.
_PART = 64 * 2**20
#: Change of the log-likelihood in nats below which proposals are rejected whatever the quadrature error.
_HOPELESS = -20.0


class GroupDensities:
    """Marginal log-likelihoods of groups, with the interface of row densities.

    Parameters
    ----------
    groups : Groups
    n_nodes : int, optional
        Number of quadrature nodes along each axis.

    Notes
    -----
    ``modes`` (G, q) and ``factors`` (G, q, q) locate the nodes at the point where :meth:`settle` was
    last called. Mode searches start there, and control variates use these nodes.

    Population sums of control variates use all ``nodes``, as many as the likelihood needs. A race
    samples only residuals, for which fewer ``held_nodes``, fixed where they are stored, are enough.
    Let L_K be the likelihood by K held nodes, h_K the second-order Taylor polynomial of its logarithm
    around the centre, and h the polynomial for all nodes. A race decides by

        sum_g h_g + sum_g (log L_K,g - h_K,g).

    The error of using fewer nodes therefore enters only through third derivatives.
    """

    #: Name of a unit in messages.
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
        self.kinked = False
        #: Control variates of groups whose log-likelihoods have kinks.
        self.table: GroupTable | None = None
        #: ``_MOST_SPREAD`` if races hold nodes, else zero.
        self.most_spread = np.zeros(1)
        self.set_nodes(n_nodes or _FIRST[q])
        self.modes = np.zeros((self.n_units, q))
        self.factors = np.tile(np.eye(q), (self.n_units, 1, 1))
        self.settled = False
        #: Number of rows of groups read so far.
        self.counter = np.zeros(1, np.int64)
        #: Cost of full passes so far, in log-likelihoods of one row.
        self.rows_evaluated = 0
        #: Largest change so far of a decision's log ratio by taking twice the nodes.
        self.approximation_error = 0.0

    def set_nodes(self, number: int) -> None:
        """Set the number of nodes along each axis, all moved to the modes; audits use twice as many."""
        states = self.groups.states
        self.n_nodes = number if states is None else len(states)
        self.nodes = self.rule(number) if states is None else state_nodes(states)
        self.finer = self.nodes if self.discrete else self.rule(2 * number + 1)
        self.__dict__.pop("state_rewards", None)  # bound to the nodes of before
        self.hold_nodes(None)

    def rule(self, number: int) -> Nodes:
        """Return the quadrature rule with ``number`` nodes along each axis."""
        rule = even_nodes if self.kinked else hermite_nodes
        return rule(number, self.groups.program.n_local)

    def find_kinks(self, x: np.ndarray) -> bool:
        """If the log-likelihood of effects has kinks at x, call :meth:`expect_kinks`; return whether it did."""
        if self.kinked or self.discrete or not np.all(np.isfinite(x)):
            return False
        apart = max(1, self.n_rows // _KINK_ROWS)
        some, rule = np.arange(0, self.n_units, apart), lobatto_nodes(_KINK_NODES)
        parts = [self.kernels.curvatures(x, p, *self._places, *rule) for p in self._parts(some)]
        measured, explained = np.sum(parts, axis=0)
        if not explained < _EXPLAINED * measured:
            return False
        _log.info("Log-likelihoods have kinks: quadrature nodes over effects are evenly spaced.")
        self.expect_kinks()
        return True

    def expect_kinks(self) -> None:
        """Measure the scale of effects by differences of gradients from now on, and use even nodes."""
        self.kinked, self.settled = True, False
        self.__dict__.pop("kernels", None)
        self.set_nodes(_FIRST_EVEN[self.groups.program.n_local])

    def tabulate(self) -> None:
        """Keep control variates by differences of log-likelihoods in a table, if that is affordable."""
        work = float(self.n_rows * len(self.finer.log_weights))
        if self.groups.held is None and affordable(self.n_units, self.expand.size, work):
            self.table, self.settled = GroupTable(self.n_units, self.expand), False
            self.__dict__.pop("rewards", None)

    def hold_nodes(self, number: int | None) -> None:
        """Let races hold ``number`` nodes along each axis; None moves all nodes to the modes."""
        self.held_nodes = self.nodes if number is None else self.rule(number)
        self.most_spread[0] = 0.0 if number is None else _MOST_SPREAD
        self.__dict__.pop("rewards", None)

    def raced(self, x, x_new, centre: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the changes of residuals (m,) of some groups from x to x_new, which races sample."""
        self.rows_evaluated += int(idx.size * self.race_cost / 4)
        pair, (rewards, arrays) = np.stack([x, x_new]), self._races
        parts = [rewards(pair, centre, p, *arrays)[1] for p in self._parts(idx)]
        return _joined(parts)

    def raced_change(self, x, x_new, surrogate, idx: np.ndarray) -> float:
        """Return the change of some groups' summed log-likelihood as approximated in races."""
        rest = self.raced(x, x_new, surrogate[0], idx).sum()
        return float(rest + self.expanded_change(x, x_new, surrogate))

    def expanded_change(self, x, x_new, surrogate) -> float:
        """Return the change of the summed control variates of a surrogate (centre, gradient, Hessian)."""
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
        return GroupKernels(printed_groups(self.groups.program), self.kinked)

    @property
    def observed_vars(self) -> tuple[str, ...]:
        """Names of the observed variables whose rows are in the groups."""
        return self.groups.observed_vars

    @property
    def n_rows(self) -> int:
        """Number of rows in all groups."""
        return self.groups.n_rows

    @property
    def race_cost(self) -> float:
        """Cost of racing one group, in log-likelihoods of one row; measured."""
        held, all_nodes = len(self.held_nodes.log_weights), len(self.nodes.log_weights)
        if self.table is not None:
            return self.n_rows / self.n_units * (20.0 * self.modes.shape[1] + 0.65 * all_nodes)
        a_row = 12.0 + 3.5 * held if self.most_spread[0] else 13.0 + 3.5 * all_nodes
        return self.n_rows / self.n_units * a_row

    @property
    def audit_cost(self) -> float:
        """Cost per group of auditing a decision, in log-likelihoods of one row; measured."""
        a_row = 12.0 + 3.0 * len(self.finer.log_weights)
        return self.race_cost + self.n_rows / self.n_units * a_row

    @property
    def rows_read(self) -> int:
        """Number of rows read so far."""
        return int(self.counter[0])

    @property
    def reads(self) -> np.ndarray:
        """Coordinates of x that groups depend on."""
        return self.layout.indices(self.groups.reads)

    def forget_errors(self) -> None:
        """Set :attr:`approximation_error` to zero."""
        self.approximation_error = 0.0

    def touch(self, n_rows: float) -> None:
        """Count rows read at random; the memory mapped for them is released now and then."""
        if self._store is not None:
            self._store.touch(n_rows / max(1.0, self.n_rows) * self.n_units * self._places_read)

    def release(self) -> None:
        """Release the memory mapped for rows in a store, if any."""
        if self._store is not None:
            self._store.release()

    @property
    def _store(self):
        return self.groups.store

    @property
    def _places_read(self) -> float:
        """Average number of memory regions that reading a group maps."""
        width = self.groups.columns.itemsize * len(self.groups.columns)
        return 1.0 + self.n_rows / self.n_units * width / AROUND

    def _parts(self, idx: np.ndarray) -> Iterator[np.ndarray]:
        """Yield units in parts whose rows take a bounded amount of memory.

        Without a store there is one part. With a store, memory is released after each part.
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
        """Return the bytes of memory that reading each of some groups may map."""
        first, columns = self.groups.first, self.groups.columns
        size = (first[idx + 1] - first[idx]) * (columns.itemsize * len(columns))
        apart = idx[-1] - idx[0] + 1 > idx.size
        return size + (AROUND if apart else 0)

    def raise_errors(self) -> None:
        """Do nothing: no Python code is called."""

    # --- for compiled loops ---------------------------------------------------------------------

    @property
    def _places(self):
        g = self.groups
        return [g.columns, g.first, g.groups, self.modes, self.factors]

    @property
    def _arrays(self):
        return [*self._places, *self.nodes]

    @property
    def _races(self):
        """Kernel of races, and arrays to which it is bound."""
        kernels, last = self.kernels, [self.counter, self.kernels.program]
        if self.table is not None:
            known = [self.table.places, self.table.gradients, self.table.hessians]
            return kernels.tabulated_rewards, [*self._arrays, *known, *last]
        held = [*self.held_nodes, self.most_spread]
        return kernels.rewards, [self.mask, *self._places, *held, *self.nodes, *last]

    @cached_property
    def rewards(self):
        """First-class ``(points (2, E), centre, groups (m,)) -> (2, m)``; row 0 is zero."""
        kernel, arrays = self._races
        return bound_function(kernel, _REWARDS, arrays)

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, E), centre, groups (m,)) -> (K, m)``."""
        arrays = [self.mask, *self._arrays, self.counter, self.kernels.program]
        return bound_function(self.kernels.state_rewards, _REWARDS, arrays)

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the marginal log-likelihoods (m,) of some groups at x."""
        return self._values(x, idx, self.nodes, False)

    def _values(self, x: np.ndarray, idx: np.ndarray, nodes, keep: bool) -> np.ndarray:
        """Return the same with given nodes; ``keep`` stores where they were moved to."""
        arrays = [*self._places, *nodes]
        values = self.kernels.values
        return _joined([values(x, p, *arrays, keep, self.counter) for p in self._parts(idx)])

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return the marginal log-likelihoods (G,) of all groups at x."""
        return self._all_values(self.nodes, x)

    def _all_values(self, nodes: Nodes, x: np.ndarray) -> np.ndarray:
        self.rows_evaluated += self.n_rows * len(nodes.log_weights)
        return self._values(x, np.arange(self.n_units), nodes, False)

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield :meth:`all_values` in one piece."""
        yield self.all_values(x)

    def residual_summary(self, probes: list[np.ndarray], centre: np.ndarray, number: int) -> None:
        """Return None: residuals of groups are computed in this process."""

    def all_finite(self, x: np.ndarray) -> bool:
        """Whether all groups have a finite log-likelihood at x."""
        return bool(np.isfinite(self.all_values(x)).all())

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the change of the summed log-likelihood from x to x_new, with twice the nodes.

        ``surrogate`` (centre, gradient, Hessian) defines the control variates of races. The change is
        compared with that of a race over all groups to update :attr:`approximation_error`.
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

    def refinement(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the changes (m,) of some groups' log-likelihoods at x by taking twice the nodes."""
        return self._values(x, idx, self.finer, False) - self.values(x, idx)

    def settle(self, x: np.ndarray, idx: np.ndarray | None = None) -> None:
        """Move the stored nodes of some groups (default all) to the modes at x."""
        self.settled = idx is None
        idx = np.arange(self.n_units) if idx is None else idx
        self._values(x, idx, self.nodes, True)

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True):
        """Return the summed log-likelihood of some groups (default all) and its gradient (E,)."""
        total, gradient, _ = self._sums(x, rows, climb, False)
        return total, gradient

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None, *, climb=True) -> np.ndarray:
        """Return the Hessian (E, E) of the summed log-likelihood."""
        return self._sums(x, rows, climb, True)[2]

    def expansion(
        self, x: np.ndarray, idx: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient (E,) and Hessian (E, E) of some or all groups' control variates around x.

        The sums use the stored nodes, which the first call for all groups moves to the modes at x.
        """
        fresh = idx is None and not self.settled
        if fresh:
            self.settle(x)
        if self.table is None or idx is not None:
            return self._sums(x, idx, False, True)[1:]
        if fresh:
            values = partial(self._all_values, self.finer)
            self.table.fill(values, x, self._sums(x, None, False, True)[2])
        return self.table.sums(self.layout.size)

    def forget_expansion(self) -> None:
        """Remove the control variate."""
        self.expand, self.table = np.empty(0, np.int64), None
        self.mask[:] = 0.0
        self.hold_nodes(None)

    def forget_centre(self) -> None:
        """Make the next expansion move the nodes to the modes at its centre.

        If variables are held, mode searches start at zero each time, which makes chains independent of
        each other.
        """
        self.settled = False
        if self.groups.held is not None:
            self.modes[:] = 0.0

    # --- local effects --------------------------------------------------------------------------

    def complete(self, x: np.ndarray, effects: np.ndarray) -> float:
        """Return the log density of all rows and local effects (G, q)."""
        g, total = self.groups, 0.0
        for s, first in self._ranges():
            total += self.kernels.complete(x, effects[s], g.columns, first, g.groups[s])
        return float(total)

    def draw_effects(self, x: np.ndarray, effects: np.ndarray, tries: int, rng) -> float:
        """Draw local effects (G, q) given x, in place, and return the acceptance rate."""
        g, accepted = self.groups, 0.0
        for s, first in self._ranges():
            places = [g.columns, first, g.groups[s], self.modes[s], self.factors[s], *self.nodes]
            share = self.kernels.draw_effects(x, effects[s], tries, rng, *places, self.counter)
            accepted += share * (first.size - 1) / self.n_units
        return accepted

    def _ranges(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield consecutive units in parts, and the bounds of the rows of each unit."""
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
    """Join the results of parts of the units into one array."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class GroupedModel(GroupDensities, RestDensities):
    """Densities of the groups and the rest of a model whose local effects are integrated out.

    Parameters
    ----------
    groups, n_nodes
        As for :class:`GroupDensities`.
    rest, value_vars, compile_kwargs
        As for :class:`~amc_pymc.reading.rest.RestDensities`.
    """

    def __init__(self, groups: Groups, rest, value_vars, *, n_nodes=None, compile_kwargs=None):
        GroupDensities.__init__(self, groups, n_nodes)
        RestDensities.__init__(
            self, rest, value_vars, self.layout, compile_kwargs, groups.centring, groups.held
        )

    def hold(self, point) -> None:
        """Set the values of held variables, if any, to those of a point of the user's model."""
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
        """Return the local effects (G, q) at a point of the whole model."""
        return effects_at(self.groups.factor, point)

    def as_point(self, effects: np.ndarray, like) -> dict[str, np.ndarray]:
        """Return local effects (G, q) as variables with the shapes and dtypes of the point ``like``."""
        out, start = {}, 0
        for name in self.groups.factor.names:
            old = np.asarray(like[name])
            width = int(np.prod(old.shape[1:]))
            part = effects[:, start : start + width].reshape(old.shape)
            out[name] = part.astype(old.dtype)
            start += width
        return out
