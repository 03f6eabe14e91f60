"""HOO of Bubeck, Munos, Stoltz & Szepesvári (2011): a bandit on a box."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.arguments import positive_int, positive_or_none

#: Halvings of a side after which cells reach floating-point precision.
_FINEST = 50


class _Node:
    """Node of the tree, with the mean of rewards `told` and the number of those that are `pending`."""

    def __init__(self, parent: _Node | None):
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: list[_Node | None] = [None, None]
        self.told, self.pending, self.mean, self.bound = 0, 0, 1.0, math.inf

    def path(self) -> list[_Node]:
        """Return this node and all above it, the root last."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found


class HOO:
    r"""Hierarchical optimistic optimisation: find the maximum of a noisy function on a box.

    The box is halved along its axes in turn, which makes a binary tree of cells. A node (h, i) at depth h
    with mean reward :math:`\hat\mu` of n pulls has the bounds

    .. math::
        U_{h,i} = \hat\mu_{h,i} + \sqrt{2 \log(\mathrm{horizon}) / n_{h,i}} + \nu \rho^h, \qquad
        B_{h,i} = \min\{U_{h,i}, \max(B_{h+1,2i-1}, B_{h+1,2i})\}

    and a pull follows the larger B from the root to a cell not yet pulled. The policy needs no gradient and
    no model, tolerates noise, and suits few dimensions. Rewards must be in [0, 1].

    Parameters
    ----------
    bounds : array_like (d, 2)
        Ends of the box.
    horizon : int
        Planned total number of pulls. As log(horizon) replaces log t, only one path changes per pull
        (section 4.2 of the paper). More pulls are possible but explore too little.
    nu : float, default 1.0
        Variation of the mean reward over the box (nu_1 of the paper).
    rho : float, optional
        Factor in (0, 1) by which that variation decreases per halving. If the mean near its maximum varies
        like the distance to the power a, rho is 2^(-a/d); by default a = 2, for a smooth maximum. Larger
        values are safer but slower.
    max_depth : int, optional
        Maximum depth of the tree, whose cells are pulled repeatedly. By default the depth where
        nu rho^h < horizon^(-1/2).

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

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
    ...     points = hoo.ask(rng)
    ...     hoo.tell(rng.random(1) < 0.9 - (points[:, 0] - 0.3) ** 2)
    >>> bool(abs(hoo.best()[0] - 0.3) < 0.2)
    True
    """

    def __init__(
        self,
        bounds: ArrayLike,
        *,
        horizon: int,
        nu: float = 1.0,
        rho: float | None = None,
        max_depth: int | None = None,
    ):
        box = np.array(bounds, float)
        if box.ndim != 2 or box.shape[1] != 2 or len(box) == 0:
            raise ValueError(f"bounds must have shape (d, 2), got {box.shape}.")
        if not (np.isfinite(box).all() and (box[:, 0] < box[:, 1]).all()):
            raise ValueError(f"bounds must be finite with low < high, got {box.tolist()}.")
        d = len(box)
        self.bounds, self.horizon = box, positive_int("horizon", horizon)
        self.nu = positive_or_none("nu", nu) or 1.0
        self.rho = positive_or_none("rho", rho, 1.0) or 2.0 ** (-2.0 / d)
        if max_depth is None:
            depth = (0.5 * math.log(self.horizon) + math.log(self.nu)) / -math.log(self.rho)
            max_depth = max(1, math.ceil(depth))
        self.max_depth = min(positive_int("max_depth", max_depth), _FINEST * d)
        self._root, self._asked = _Node(None), list[_Node]()

    def ask(self, rng: np.random.Generator, n: int = 1) -> np.ndarray:
        """Return the next points (n, d), without rewards in between."""
        points = [self._ask(rng) for _ in range(positive_int("n", n, 0))]
        return np.array(points).reshape(-1, len(self.bounds))

    def tell(self, rewards: ArrayLike) -> None:
        """Report the rewards of all points asked for since the last report, in order.

        Raises
        ------
        ValueError
            If the number of rewards is another one, or a reward is not in [0, 1]; nothing is recorded then.
        """
        x = np.asarray(rewards, float)
        if x.shape != (len(self._asked),):
            raise ValueError(f"rewards must have shape ({len(self._asked)},), got {x.shape}.")
        if not ((x >= 0.0) & (x <= 1.0)).all():
            raise ValueError(f"rewards must be between 0 and 1, got {rewards!r}.")
        for node, reward in zip(self._asked, x.tolist(), strict=True):
            for above in node.path():
                above.pending -= 1
                above.told += 1
                above.mean += (reward - above.mean) / above.told
                self._update(above)
        self._asked = []

    def best(self) -> np.ndarray:
        """Return the centre (d,) of the cell at the end of the most visited path.

        Raises
        ------
        ValueError
            If no reward has been told.
        """
        if not self._root.told:
            raise ValueError("best() needs at least one reward told.")
        node, cell = self._root, self._unit()
        while seen := [(c.told, c.mean, -s) for s, c in enumerate(node.children) if c and c.told]:
            node = self._child(node, cell, -max(seen)[2])
        return self._point(cell.mean(axis=0))

    def _unit(self) -> np.ndarray:
        return np.array([np.zeros(len(self.bounds)), np.ones(len(self.bounds))])

    def _point(self, where: np.ndarray) -> np.ndarray:
        low, high = self.bounds.T
        return np.minimum(low + where * (high - low), high)

    @staticmethod
    def _child(node: _Node, cell: np.ndarray, side: int) -> _Node:
        """Return a child, which may be new, and cut the cell (2, d) to its lower (0) or upper (1) half."""
        axis = node.depth % cell.shape[1]
        cell[1 - side, axis] = cell[:, axis].mean()
        child = node.children[side] = node.children[side] or _Node(node)
        return child

    def _ask(self, rng: np.random.Generator) -> np.ndarray:
        """Follow the larger bounds to the node to pull; ties are broken by the binary digits of a uniform number."""
        coin, *u = rng.random(1 + len(self.bounds))
        node, cell = self._root, self._unit()
        while node.depth < self.max_depth and not (node.depth and node.told + node.pending == 0):
            left, right = (math.inf if c is None else c.bound for c in node.children)
            side = int(right > left)
            if right == left:
                side = int(2.0 * coin >= 1.0)
                coin = 2.0 * coin - side
            node = self._child(node, cell, side)
        for above in node.path():
            above.pending += 1
            self._update(above)
        self._asked.append(node)
        return self._point(cell[0] + (cell[1] - cell[0]) * u)

    def _update(self, node: _Node) -> None:
        """Update the bound of a node from its rewards and the bounds of its children."""
        spread = math.sqrt(2.0 * math.log(self.horizon) / (node.told + node.pending))
        node.bound = node.mean + spread + self.nu * self.rho**node.depth
        left, right = node.children
        if left is not None and right is not None:
            node.bound = min(node.bound, max(left.bound, right.bound))
