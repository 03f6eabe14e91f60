"""HOO of Bubeck, Munos, Stoltz & Szepesvári (2011): a bandit on a box."""

from __future__ import annotations

import math
import operator

from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.contract import Bandit
from amc_pymc.bandits.policy import record, unit_moments
from amc_pymc.bandits.rewards import LOW, MEAN, N_ROWS, PENDING, TOLD, WIDTH, RewardScale
from amc_pymc.bandits.ucb1 import ucb1_index
from amc_pymc.engine.jit import njit

__all__ = ["HOO", "HOOCell", "HOOPull"]

#: Factor of log t, as in UCB1.
_CONSTANTS = np.array([2.0])
#: Table rows after those of all policies: the B-value of a node, and nu rho^depth.
B_VALUE, VARIATION = N_ROWS, N_ROWS + 1
#: Rows of the links between nodes: parent, children or -1, depth.
PARENT, LEFT, RIGHT, DEPTH = range(4)


class HOOPull(NamedTuple):
    """Point at which :class:`HOO` asks for a reward.

    Attributes
    ----------
    point : array (d,)
    number : int
        Number of this pull in the order of requests, from 0.
    node : int
        Index of the tree node, which is the arm that is pulled.
    """

    point: np.ndarray
    number: int
    node: int

    @property
    def arm(self) -> int:
        """Index of the tree node."""
        return self.node

    @property
    def coin(self) -> float:
        """A value is never randomised, nan."""
        return math.nan

    def __str__(self) -> str:
        return f"pull {self.number} at {self.point.tolist()}"


class HOOCell(NamedTuple):
    """Cell of the tree.

    Attributes
    ----------
    point : array (d,)
        Centre of the cell.
    bounds : array (d, 2)
    mean : float
        Mean observed reward in the cell.
    pulls : int
        Number of observed rewards in the cell.
    """

    point: np.ndarray
    bounds: np.ndarray
    mean: float
    pulls: int


@njit(cache=True)
def _update(
    table: np.ndarray, links: np.ndarray, node: int, t: float, constants: np.ndarray
) -> None:
    """Update the B-value of a node from its statistics and the B-values of its children."""
    n = table[TOLD, node] + table[PENDING, node]
    if n == 0.0:
        table[B_VALUE, node] = np.inf
        return
    mean, variance = unit_moments(table, node)
    bound = ucb1_index(n, mean, variance, t, constants) + table[VARIATION, node]
    left, right = links[LEFT, node], links[RIGHT, node]
    if left >= 0 and right >= 0:
        bound = min(bound, max(table[B_VALUE, left], table[B_VALUE, right]))
    table[B_VALUE, node] = bound


@njit(cache=True)
def _update_all(
    table: np.ndarray, links: np.ndarray, n_nodes: int, t: float, constants: np.ndarray
) -> None:
    # children have larger indices than their parents
    for node in range(n_nodes - 1, -1, -1):
        _update(table, links, node, t, constants)


@njit(cache=True)
def _update_path(
    table: np.ndarray, links: np.ndarray, node: int, t: float, constants: np.ndarray
) -> None:
    while node >= 0:
        _update(table, links, node, t, constants)
        node = links[PARENT, node]


@njit(cache=True)
def _count(table: np.ndarray, links: np.ndarray, node: int, by: float) -> None:
    """Change the number of pending pulls from a node to the root."""
    while node >= 0:
        table[PENDING, node] += by
        node = links[PARENT, node]


@njit(cache=True)
def _reward(table: np.ndarray, links: np.ndarray, node: int, reward: float) -> None:
    """Record a reward from a node to the root."""
    while node >= 0:
        record(table, node, reward)
        node = links[PARENT, node]


@njit(cache=True)
def _descend(
    table: np.ndarray,
    links: np.ndarray,
    n_nodes: int,
    max_depth: int,
    coin: float,
    rho: float,
    cell: np.ndarray,
) -> int:
    """Follow the larger B-values to the node to pull, which may be new, and fill in its cell (2, d).

    Ties are broken by the binary digits of the coin.
    """
    d = cell.shape[1]
    for j in range(d):
        cell[0, j], cell[1, j] = 0.0, 1.0
    node = 0
    for depth in range(max_depth):
        if node > 0 and table[TOLD, node] + table[PENDING, node] == 0.0:
            break
        left, right = links[LEFT, node], links[RIGHT, node]
        b_left = table[B_VALUE, left] if left >= 0 else np.inf
        b_right = table[B_VALUE, right] if right >= 0 else np.inf
        side = 1 if b_right > b_left else 0
        if b_right == b_left:
            coin *= 2.0
            side = 1 if coin >= 1.0 else 0
            coin -= side
        axis = depth % d
        cell[1 - side, axis] = 0.5 * (cell[0, axis] + cell[1, axis])
        child = right if side else left
        if child < 0:
            child = n_nodes
            links[LEFT + side, node] = child
            links[PARENT, child], links[DEPTH, child] = node, depth + 1
            links[LEFT, child] = links[RIGHT, child] = -1
            table[VARIATION, child] = rho * table[VARIATION, node]
            return child
        node = child
    return node


class HOO(Bandit):
    r"""Hierarchical optimistic optimisation, which searches a box for the largest mean reward.

    A binary tree of cells, halved along their sides in turn, grows where rewards are large. Every
    node (h, i) of depth h with n pulls in its cell has the bound

    .. math::
        U_{h,i} = \hat\mu_{h,i} + \sqrt{\frac{2 \log t}{n_{h,i}}} + \nu \rho^h, \qquad
        B_{h,i} = \min\{U_{h,i}, \max(B_{h+1,2i-1}, B_{h+1,2i})\}

    and a pull follows the larger B from the root to a cell not yet pulled. The policy needs no gradient and
    no model, tolerates noise, and suits few dimensions. The formula is for rewards in [0, 1].

    Parameters
    ----------
    bounds : array_like (d, 2)
        Ends of the box.
    nu : float, default 1.0
        Variation of the mean reward over the box (nu_1 of the paper), with rewards scaled to [0, 1].
    rho : float, optional
        Factor in (0, 1) by which that variation decreases per halving. If the mean near its maximum varies
        like the distance to the power a, rho is 2^(-a/d); by default a = 2, for a smooth maximum. Larger
        values are safer but slower.
    horizon : int, optional
        Planned total number of pulls. If given, log(horizon) replaces log t, and the tree ends at the depth
        where nu rho^h < horizon^(-1/2). Only one path then changes per pull, which takes O(log n)
        (section 4.2 of the paper). More pulls are possible but explore too little. By default all nodes
        are updated at each pull, in O(n).
    max_depth : int, optional
        Maximum depth of the tree; cells at this depth are pulled repeatedly. By default that of `horizon`,
        else 50 d, where cells reach floating-point precision.
    point : {"uniform", "centre"}, default "uniform"
        Position of a pull in its cell.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards, the same everywhere.

    Notes
    -----
    Pending pulls count in n; a node without observed rewards has mean 1.

    References
    ----------
    Bubeck, Munos, Stoltz & Szepesvári (2011), X-armed bandits. Journal of Machine Learning Research 12,
    1655-1695.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import HOO
    >>> rng = np.random.default_rng(1)
    >>> hoo = HOO([[-1.0, 1.0]], horizon=2000)
    >>> for _ in range(2000):
    ...     pull = hoo.ask(rng)
    ...     hoo.tell(pull, rng.random() < 0.9 - (pull.point[0] - 0.3) ** 2)
    >>> bool(abs(hoo.best().point[0] - 0.3) < 0.2)
    True
    """

    pull_class = HOOPull

    def __init__(
        self,
        bounds: ArrayLike,
        *,
        nu: float = 1.0,
        rho: float | None = None,
        horizon: int | None = None,
        max_depth: int | None = None,
        point: Literal["uniform", "centre"] = "uniform",
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        box = np.array(bounds, float)
        if box.ndim != 2 or box.shape[1] != 2 or len(box) == 0:
            raise ValueError(f"bounds must have shape (d, 2), got {box.shape}.")
        if not (np.isfinite(box).all() and (box[:, 0] < box[:, 1]).all()):
            raise ValueError(f"bounds must be finite with low < high, got {box.tolist()}.")
        d = len(box)
        rho = 2.0 ** (-2.0 / d) if rho is None else float(rho)
        if not 0.0 < nu < math.inf:
            raise ValueError(f"nu must be positive and finite, got {nu!r}.")
        if not 0.0 < rho < 1.0:
            raise ValueError(f"rho must be between 0 and 1, got {rho!r}.")
        if point not in ("uniform", "centre"):
            raise ValueError(f'point must be "uniform" or "centre", got {point!r}.')
        if horizon is not None and operator.index(horizon) < 1:
            raise ValueError(f"horizon must be at least 1, got {horizon}.")
        if max_depth is not None and operator.index(max_depth) < 1:
            raise ValueError(f"max_depth must be at least 1, got {max_depth}.")
        finest = 50 * d
        if max_depth is None and horizon is not None:
            depth = (0.5 * math.log(horizon) + math.log(nu)) / -math.log(rho)
            max_depth = max(1, math.ceil(depth))
        self.bounds, self.nu, self.rho, self.point = box, float(nu), rho, point
        self.horizon = horizon
        self.max_depth = finest if max_depth is None else min(max_depth, finest)
        super().__init__(64, rewards, 2)
        if np.ptp(self._table[LOW]) > 0.0 or np.ptp(self._table[WIDTH]) > 0.0:
            raise ValueError("rewards must have the same range everywhere, got one per arm.")
        self._table[VARIATION, 0] = nu
        self._links = np.full((4, 64), -1)
        self._links[DEPTH, 0] = 0
        self._n_nodes = 1
        self._cell = np.zeros((2, d))

    @property
    def told(self) -> int:
        """Number of rewards told so far."""
        return int(self._table[TOLD, 0])

    @property
    def pending(self) -> int:
        """Number of pulls neither told nor dropped yet."""
        return int(self._table[PENDING, 0])

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return int(self._links[DEPTH, : self._n_nodes].max())

    @overload
    def ask(self, rng: np.random.Generator) -> HOOPull: ...
    @overload
    def ask(self, rng: np.random.Generator, n: int) -> list[HOOPull]: ...
    def ask(self, rng: np.random.Generator, n: int | None = None) -> HOOPull | list[HOOPull]:
        """Choose the next point, or the next `n` without rewards in between.

        Parameters
        ----------
        rng : numpy.random.Generator
        n : int, optional

        Returns
        -------
        HOOPull, or list of them if `n` is given
        """
        if n is None:
            return self._ask(rng)
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}.")
        return [self._ask(rng) for _ in range(n)]

    def _ask(self, rng: np.random.Generator) -> HOOPull:
        if self._n_nodes == self._table.shape[1]:
            self._grow()
        if self.horizon is None:
            self._update_all()
        u = rng.random(1 + len(self.bounds) * (self.point == "uniform"))
        node = _descend(
            self._table, self._links, self._n_nodes, self.max_depth, u[0], self.rho, self._cell
        )
        self._n_nodes = max(self._n_nodes, node + 1)
        _count(self._table, self._links, node, 1.0)
        self._update_path(node)
        low, high = self._cell
        where = low + (high - low) * (u[1:] if self.point == "uniform" else 0.5)
        point = self.bounds[:, 0] + where * (self.bounds[:, 1] - self.bounds[:, 0])
        number = self._asked
        self._open[number] = node
        self._asked += 1
        return HOOPull(np.minimum(point, self.bounds[:, 1]), number, int(node))

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        scale = self._table[[LOW, WIDTH, MEAN], 0]
        value = self.rewards.convert(self._table, 0, value)
        moved = (scale != self._table[[LOW, WIDTH, MEAN], 0]).any()
        _reward(self._table, self._links, arm, value)
        if moved and self.horizon is not None:
            self._update_all()
        else:
            self._update_path(arm)

    def _release(self, arms: np.ndarray) -> None:
        for node in arms.tolist():
            _count(self._table, self._links, node, -1.0)
            self._update_path(node)

    def index(self) -> np.ndarray:
        """Return the B-values (n,) of the nodes of the tree, in the order in which they were made.

        Rewards are scaled from their range to [0, 1]. Nodes that were never pulled have inf.

        Examples
        --------
        >>> from amc_pymc.bandits import HOO
        >>> HOO([[0.0, 1.0]]).index()
        array([inf])
        """
        self._update_all()
        return self._table[B_VALUE, : self._n_nodes].copy()

    def best(self) -> HOOCell:
        """Return the cell at the end of the most visited path; its centre estimates the best point.

        Raises
        ------
        ValueError
            If no reward has been told.
        """
        if self.told == 0:
            raise ValueError("best() needs at least one reward told.")
        low, high = np.zeros(len(self.bounds)), np.ones(len(self.bounds))
        node = depth = 0
        while True:
            children = [int(c) for c in self._links[[LEFT, RIGHT], node]]
            told = [self._table[TOLD, c] if c >= 0 else 0.0 for c in children]
            if max(told) == 0.0:
                break
            side = int(told[1] > told[0])
            if told[0] == told[1]:
                side = int(self._table[MEAN, children[1]] > self._table[MEAN, children[0]])
            axis = depth % len(self.bounds)
            (high if side == 0 else low)[axis] = 0.5 * (low[axis] + high[axis])
            node, depth = children[side], depth + 1
        ends = self.bounds[:, :1] + np.column_stack([low, high]) * np.diff(self.bounds, axis=1)
        pulls = int(self._table[TOLD, node])
        return HOOCell(ends.mean(axis=1), ends, float(self._table[MEAN, node]), pulls)

    def state(self) -> dict[str, Any]:
        """Return the state as plain arrays and numbers."""
        n = self._n_nodes
        return super().state() | {
            "table": self._table[:, :n].copy(),
            "links": self._links[:, :n].copy(),
        }

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by an object with the same arguments."""
        table, links = np.shape(state["table"]), np.array(state["links"], np.int64)
        n = table[-1]
        if table != (N_ROWS + 2, n) or links.shape != (4, n) or n == 0:
            raise ValueError(
                f"state must have a table ({N_ROWS + 2}, n) and links (4, n), got {table} and "
                f"{links.shape}."
            )
        self._links, self._n_nodes = links, n
        return super().restore(state)

    @property
    def _t(self) -> float:
        """The number t in the bounds."""
        if self.horizon is not None:
            return float(self.horizon)
        return max(self._table[TOLD, 0] + self._table[PENDING, 0], 1.0)

    def _update_all(self) -> None:
        _update_all(self._table, self._links, self._n_nodes, self._t, _CONSTANTS)

    def _update_path(self, node: int) -> None:
        if self.horizon is not None:
            _update_path(self._table, self._links, node, self._t, _CONSTANTS)

    def _grow(self) -> None:
        more = self._table.shape[1]
        table = np.zeros((N_ROWS + 2, more))
        table[[LOW, WIDTH]] = self._table[[LOW, WIDTH], :1]
        self._table = np.ascontiguousarray(np.hstack([self._table, table]))
        self._links = np.ascontiguousarray(np.hstack([self._links, np.full((4, more), -1)]))
