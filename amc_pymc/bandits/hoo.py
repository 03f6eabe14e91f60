"""HOO of Bubeck, Munos, Stoltz & Szepesvári (2011): a bandit on a box."""

from __future__ import annotations

import math
import operator

from typing import NamedTuple, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.contract import Bandit, Told
from amc_pymc.bandits.rewards import Statistics

#: Halvings of a side after which cells reach floating-point precision.
_FINEST = 50


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


class _Node:
    """Node of the tree: its place, the rewards on [0, 1] of its cell, and its bound B."""

    def __init__(self, parent: _Node | None, number: int, depth: int):
        self.parent, self.number, self.depth = parent, number, depth
        self.children: list[_Node | None] = [None, None]
        self.told = self.pending = 0
        self.mean, self.bound = 1.0, math.inf


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
    horizon : int
        Planned total number of pulls. As log(horizon) replaces log t, only one path changes per pull
        (section 4.2 of the paper). More pulls are possible but explore too little.
    max_depth : int, optional
        Maximum depth of the tree, whose cells are pulled repeatedly. By default the depth where
        nu rho^h < horizon^(-1/2).
    rewards : tuple (low, high), default (0.0, 1.0)
        Range of rewards.

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
        horizon: int,
        nu: float = 1.0,
        rho: float | None = None,
        max_depth: int | None = None,
        rewards: tuple[float, float] = (0.0, 1.0),
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
        if operator.index(horizon) < 1:
            raise ValueError(f"horizon must be at least 1, got {horizon}.")
        if max_depth is not None and operator.index(max_depth) < 1:
            raise ValueError(f"max_depth must be at least 1, got {max_depth}.")
        super().__init__(rewards)
        self._range = Statistics.empty(1)
        self.rewards.begin(self._range)
        self.bounds, self.nu, self.rho, self.horizon = box, float(nu), rho, horizon
        if max_depth is None:
            depth = (0.5 * math.log(horizon) + math.log(nu)) / -math.log(rho)
            max_depth = max(1, math.ceil(depth))
        self.max_depth = min(max_depth, _FINEST * d)
        self._nodes = [_Node(None, 0, 0)]

    @property
    def told(self) -> int:
        """Number of rewards told so far."""
        return self._nodes[0].told

    @property
    def pending(self) -> int:
        """Number of pulls neither told nor dropped yet."""
        return self._nodes[0].pending

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return max(node.depth for node in self._nodes)

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
        u = rng.random(1 + len(self.bounds))
        node, cell = self._descend(float(u[0]))
        for above in self._path(node):
            above.pending += 1
            self._update(above)
        where = cell[0] + (cell[1] - cell[0]) * u[1:]
        point = self.bounds[:, 0] + where * (self.bounds[:, 1] - self.bounds[:, 0])
        number = self._asked
        self._open[number] = node.number
        self._asked += 1
        return HOOPull(np.minimum(point, self.bounds[:, 1]), number, node.number)

    def _descend(self, coin: float) -> tuple[_Node, np.ndarray]:
        """Follow the larger bounds to the node to pull, which may be new; also return its cell (2, d).

        Ties are broken by the binary digits of the coin.
        """
        cell = np.array([np.zeros(len(self.bounds)), np.ones(len(self.bounds))])
        node = self._nodes[0]
        while node.depth < self.max_depth:
            if node.depth and node.told + node.pending == 0:
                break
            left, right = (math.inf if c is None else c.bound for c in node.children)
            side = int(right > left)
            if right == left:
                coin *= 2.0
                side = int(coin >= 1.0)
                coin -= side
            _halve(cell, node.depth, side)
            child = node.children[side]
            if child is None:
                child = node.children[side] = _Node(node, len(self._nodes), node.depth + 1)
                self._nodes.append(child)
            node = child
        return node, cell

    @staticmethod
    def _path(node: _Node | None) -> list[_Node]:
        """Return a node and all above it, the root last."""
        path = []
        while node is not None:
            path.append(node)
            node = node.parent
        return path

    def _update(self, node: _Node) -> None:
        """Update the bound of a node from its rewards and the bounds of its children."""
        n = node.told + node.pending
        if n == 0:
            node.bound = math.inf
            return
        bound = (
            node.mean + math.sqrt(2.0 * math.log(self.horizon) / n) + self.nu * self.rho**node.depth
        )
        left, right = node.children
        if left is not None and right is not None:
            bound = min(bound, max(left.bound, right.bound))
        node.bound = bound

    def _receive(self, told: Told) -> None:
        arms = told.arms
        clipped = self.rewards.convert(self._range, np.zeros_like(arms), told.values)
        unit = (clipped - self._range.low[0]) / self._range.width[0]
        for arm, x in zip(arms.tolist(), unit.tolist(), strict=True):
            for node in self._path(self._nodes[arm]):
                node.pending -= 1
                node.told += 1
                node.mean = x if node.told == 1 else node.mean + (x - node.mean) / node.told
                self._update(node)

    def _release(self, arms: np.ndarray) -> None:
        for arm in arms.tolist():
            for node in self._path(self._nodes[arm]):
                node.pending -= 1
                self._update(node)

    def index(self) -> np.ndarray:
        """Return the B-values (n,) of the nodes of the tree, in the order in which they were made.

        Rewards are scaled from their range to [0, 1]. Nodes that were never pulled have inf.

        Examples
        --------
        >>> from amc_pymc.bandits import HOO
        >>> HOO([[0.0, 1.0]], horizon=10).index()
        array([inf])
        """
        return np.array([node.bound for node in self._nodes])

    def best(self) -> HOOCell:
        """Return the cell at the end of the most visited path; its centre estimates the best point.

        Raises
        ------
        ValueError
            If no reward has been told.
        """
        if self.told == 0:
            raise ValueError("best() needs at least one reward told.")
        cell = np.array([np.zeros(len(self.bounds)), np.ones(len(self.bounds))])
        node = self._nodes[0]
        while seen := [(c.told, c.mean, -s) for s, c in enumerate(node.children) if c and c.told]:
            side = -max(seen)[2]
            _halve(cell, node.depth, side)
            child = node.children[side]
            assert child is not None
            node = child
        ends = self.bounds[:, :1] + cell.T * np.diff(self.bounds, axis=1)
        mean = float(self._range.low[0] + self._range.width[0] * node.mean)
        return HOOCell(ends.mean(axis=1), ends, mean, node.told)


def _halve(cell: np.ndarray, depth: int, side: int) -> None:
    """Cut a cell (2, d) to the lower (0) or the upper (1) half along the axis of its depth."""
    axis = depth % cell.shape[1]
    cell[1 - side, axis] = cell[:, axis].mean()
