"""Summed marginal log-likelihood of all groups of a model at many points, and its quadrature error."""

from __future__ import annotations

import copy

import numpy as np

from amc_pymc.logweights import log_mean_exp
from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.reading.groups import Groups
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.tall.groups import Nodes, hermite_nodes, wide_nodes

__all__ = ["GroupTotals"]

#: Numbers of Gauss-Hermite nodes along each axis that are tried before the wide rule, by the number of effects.
_TRIED = {1: (2, 3, 5, 7, 11, 15, 21, 31), 2: (2, 3, 5, 7, 11, 15), 3: (2, 3, 5, 7, 11)}
#: Largest factor by which the spacing of the wide rule may be refined, by the number of effects.
_FINEST = {1: 4, 2: 2, 3: 1}
#: Log-likelihoods of rows that a check may evaluate, and numbers of points at which nodes are chosen and their
#: error is measured.
_WORK, _CHOSEN_AT, _MEASURED_AT = 1e8, 8, 64
#: Difference in nats up to which two nodes are considered as accurate as more.
_SAME = 1e-7
_SEED = 20241


class GroupTotals:
    """Sum over groups of log L_g, integrated by one quadrature rule.

    Parameters
    ----------
    groups : Groups
        Groups that were extracted without centring.
    layout : FlatLayout
        Layout of the points x (D,), with the variables of ``groups.layout`` in any order.

    Attributes
    ----------
    rule : str
        Description of the quadrature rule.
    """

    def __init__(self, groups: Groups, layout: FlatLayout):
        self._groups = GroupDensities(groups, curved=False)
        places = [np.arange(layout.size)[layout.slices[n]] for n in groups.layout.names]
        self._order = np.concatenate(places)
        self._discrete = layout.discrete
        self.rule, self._wide = f"sum over {self._groups.n_nodes} states", False
        self._finer = 1
        if not self._groups.discrete:
            self._take(self._groups.n_nodes)

    @property
    def groups(self) -> Groups:
        """Data and expressions of the groups."""
        return self._groups.groups

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return values (P,) at points (P, D)."""
        return self._groups.sums(self._etas(xs), 0)[0]

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values (P,) and gradients (P, D), zero at discrete coordinates."""
        values, slopes, _ = self._groups.sums(self._etas(xs), 1)
        out = np.empty(slopes.shape)
        out[:, self._order] = slopes
        out[:, self._discrete] = 0.0
        return values, out

    def complete(self, x: np.ndarray, effects: np.ndarray) -> float:
        """Return the log density of all rows and local effects (G, q) at a point (D,)."""
        return self._groups.complete(x[self._order], effects)

    def settled(self, x: np.ndarray) -> GroupTotals:
        """Return a copy whose mode searches start at the modes of a point (D,)."""
        found = self._copy()
        found._groups.settle(x[self._order])
        return found

    def simplified(self, xs: np.ndarray) -> GroupTotals:
        """Return a copy with two nodes, or self if that makes a difference at points (P, D).

        Two nodes are enough if effects are Gaussian given rows and parameters.
        """
        if self._groups.discrete or not len(xs):
            return self
        found = self._sampled(xs, hermite_nodes(2, self._n_local))
        if not np.all(np.abs(found - self._sampled(xs, self._groups.nodes)) <= _SAME):
            return self
        out = self._copy()
        out._take(2)
        return out

    def refined(self, xs: np.ndarray, tolerance: float) -> GroupTotals:
        """Return a copy with as many nodes as the sum needs at posterior points (P, D).

        These are the fewest whose error is at most a tolerance in nats at every point. Mode searches start
        at the modes of the points' mean.
        """
        found = self.settled(xs.mean(axis=0))
        if self._groups.discrete:
            return found
        xs = _some(xs, _CHOSEN_AT)
        wanted, found._finer = found._reference(xs, tolerance)
        for number in _TRIED[self._n_local]:
            error = found._sampled(xs, hermite_nodes(number, self._n_local)) - wanted
            if np.abs(error).max() <= tolerance:
                found._take(number)
                return found
        found._take(None)
        return found

    def error(self, xs: np.ndarray) -> float:
        """Return the quadrature error of the log evidence, in nats, from posterior points (P, D).

        The ratio of two evidences is the posterior mean of the ratio of their likelihoods. The rule in use
        is compared with the wide rule, and the wide rule itself with one of half its spacing.
        """
        if self._groups.discrete:
            return 0.0
        xs = _some(xs, _MEASURED_AT)
        nodes, finer = self._groups.nodes, self._finer * (2 if self._wide else 1)
        best = self._sampled(xs, wide_nodes(self._n_local, finer))
        return -float(log_mean_exp(best - self._sampled(xs, nodes)))

    def _reference(self, xs: np.ndarray, tolerance: float) -> tuple[np.ndarray, int]:
        """Return sums (P,) by the wide rule, and the refinement of its spacing that they need."""
        finer, found = 1, self._sampled(xs, wide_nodes(self._n_local))
        while finer < _FINEST[self._n_local]:
            better = self._sampled(xs, wide_nodes(self._n_local, 2 * finer))
            if np.abs(better - found).max() <= tolerance:
                break
            finer, found = 2 * finer, better
        return found, finer

    # --- rules ------------------------------------------------------------------------------------

    @property
    def _n_local(self) -> int:
        return self.groups.program.n_local

    def _etas(self, xs: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(xs[:, self._order])

    def _take(self, number: int | None) -> None:
        """Use ``number`` Gauss-Hermite nodes along each axis, or the wide rule if None."""
        self._wide = number is None
        nodes = wide_nodes(self._n_local, self._finer)
        self._groups.nodes = nodes if number is None else hermite_nodes(number, self._n_local)
        kind = "trapezoidal rule" if self._wide else "adaptive Gauss-Hermite"
        self.rule = f"{kind}, {len(self._groups.nodes.log_weights)} nodes"

    def _copy(self) -> GroupTotals:
        """Return a copy with its own nodes and modes."""
        found = copy.copy(self)
        found._groups = copy.copy(self._groups)
        found._groups.modes = self._groups.modes.copy()
        found._groups.factors = self._groups.factors.copy()
        return found

    def _sampled(self, xs: np.ndarray, nodes: Nodes) -> np.ndarray:
        """Estimate sums (P,) with given nodes from as many groups as a check may evaluate."""
        d = self._groups
        most = _WORK / (len(nodes.log_weights) * max(1, len(xs)) * max(1, d.n_rows) / d.n_units)
        number = int(np.clip(most, 1, d.n_units))
        rng = np.random.Generator(np.random.PCG64(_SEED))
        some = np.sort(rng.permutation(d.n_units)[:number])
        values = [d.values(eta, some, nodes).sum() for eta in self._etas(xs)]
        return d.n_units / number * np.array(values)


def _some(xs: np.ndarray, number: int) -> np.ndarray:
    """Return at most ``number`` points, evenly spaced."""
    places = np.linspace(0, len(xs) - 1, min(number, len(xs))).astype(int)
    return xs[places]
