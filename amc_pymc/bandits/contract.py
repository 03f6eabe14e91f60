"""Ask, tell and drop: the account of pulls that all bandits keep, see :mod:`amc_pymc.bandits`."""

from __future__ import annotations

import copy
import math

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.rewards import N_ROWS, RewardScale, as_reward_scale

__all__ = ["Bandit", "Pull", "Pulls"]

_INF = math.inf


class Pull(NamedTuple):
    """Single pull requested by a policy.

    Attributes
    ----------
    arm : int
        Arm to pull, from 0 to K - 1.
    number : int
        Number of this pull in the order of requests, from 0.
    coin : float
        Uniform number for policies that randomise rewards, else nan.
    """

    arm: int
    number: int
    coin: float = math.nan

    def __str__(self) -> str:
        return f"pull {self.number} of arm {self.arm}"


class Pulls(Sequence[Pull]):
    """Batch of pulls requested by a policy.

    Attributes
    ----------
    arms : array of int (n,)
    numbers : array of int (n,)
    coins : array (n,)
    """

    def __init__(self, arms: np.ndarray, numbers: np.ndarray, coins: np.ndarray):
        self.arms, self.numbers, self.coins = arms, numbers, coins

    @classmethod
    def of(cls, pulls: Sequence[Any]) -> Pulls:
        """Collect single pulls."""
        return cls(
            np.array([p.arm for p in pulls], np.int64),
            np.array([p.number for p in pulls], np.int64),
            np.array([p.coin for p in pulls], float),
        )

    @classmethod
    def join(cls, batches: Sequence[Pulls]) -> Pulls:
        """Concatenate batches."""
        return cls(
            np.concatenate([b.arms for b in batches]),
            np.concatenate([b.numbers for b in batches]),
            np.concatenate([b.coins for b in batches]),
        )

    def __len__(self) -> int:
        return self.arms.size

    def __iter__(self) -> Iterator[Pull]:
        return map(Pull, self.arms.tolist(), self.numbers.tolist(), self.coins.tolist())

    @overload
    def __getitem__(self, item: int) -> Pull: ...
    @overload
    def __getitem__(self, item: slice | np.ndarray) -> Pulls: ...
    def __getitem__(self, item: int | slice | np.ndarray) -> Pull | Pulls:
        """Return one pull by position, or several by slice, mask or positions."""
        if isinstance(item, int | np.integer):
            return Pull(int(self.arms[item]), int(self.numbers[item]), float(self.coins[item]))
        return Pulls(self.arms[item], self.numbers[item], self.coins[item])

    def counts(self, n_arms: int) -> np.ndarray:
        """Count the pulls of each arm, (K,)."""
        return np.bincount(self.arms, minlength=n_arms)


class Bandit(ABC):
    """Base class of everything that asks for pulls and is told their values.

    Pulls that were asked for and not yet told are pending; they may be told late, in any order
    and in batches. A bandit holds no generator and can be copied, pickled, saved and restored at any time.

    Parameters
    ----------
    n_arms : int
        Number of arms, the columns of the table of statistics.
    rewards : tuple (low, high) or RewardScale
    extra_rows : int
        Number of rows of the table after those of all bandits.
    """

    #: Class of a single pull.
    pull_class: ClassVar[Any] = Pull
    #: Whether choices depend on costs.
    uses_costs: ClassVar[bool] = False
    #: Whether choices depend on control variates, which must then be told.
    uses_controls: ClassVar[bool] = False
    #: Whether every value is randomised by the coin of its pull.
    needs_coin: bool = False

    def __init__(
        self, n_arms: int, rewards: RewardScale | tuple[ArrayLike, ArrayLike], extra_rows: int
    ):
        self.rewards = copy.deepcopy(as_reward_scale(rewards))
        self._table = np.zeros((N_ROWS + extra_rows, n_arms))
        self.rewards.begin(self._table)
        self._asked = 0
        self._open: dict[int, int] = {}  # arms of the pending pulls, by number

    @property
    def asked(self) -> int:
        """Number of pulls asked for so far."""
        return self._asked

    def tell(
        self,
        pull: Any,
        value: ArrayLike,
        cost: ArrayLike = 1.0,
        *,
        controls: ArrayLike | None = None,
    ) -> None:
        """Report values of pulls, in any order.

        Parameters
        ----------
        pull : Pull, Pulls or sequence of Pull
        value : float, or array_like (n,)
            Value of each pull, on the scale declared by `rewards`.
        cost : float, or array_like (n,), default 1.0
            Cost of each pull in any unit, not negative; ignored unless ``uses_costs``.
        controls : array_like (q,) or (n, q), optional
            Control variates observed with the values; ignored unless ``uses_controls``.

        Raises
        ------
        ValueError
            If a pull was never asked for or is told or dropped already, a value or a cost is not a finite
            number, or controls that are used are missing; the message names the pull. In this case,
            nothing is recorded.
        """
        if isinstance(pull, self.pull_class):
            try:
                x, c = float(value), float(cost)  # type: ignore[arg-type]
            except TypeError:
                label, given = ("value", value) if np.ndim(value) else ("cost", cost)
                raise ValueError(f"{label} must be a number, got {given!r}.") from None
            arm, number = pull.arm, pull.number
            usable = 0.0 <= c < _INF and self.rewards.usable(x)
            if not usable or self._open.get(number) != arm:
                self._complain([pull], [x], [c])
            w = self._checked_controls([pull], controls)[0] if self.uses_controls else None
            self._receive(arm, x, c, pull.coin, w)
            del self._open[number]
            return
        pulls = pull if isinstance(pull, Pulls) else Pulls.of(pull)
        values, costs = np.asarray(value, float), np.asarray(cost, float)
        if values.shape != (len(pulls),):
            raise ValueError(f"value must have shape ({len(pulls)},), got {values.shape}.")
        if costs.shape not in ((), values.shape):
            raise ValueError(
                f"cost must be a number or of shape ({len(pulls)},), got {costs.shape}."
            )
        costs = np.full(len(pulls), costs)
        usable = all(map(self.rewards.usable, values.tolist()))
        if (
            not usable
            or not ((costs >= 0.0) & (costs < math.inf)).all()
            or not self._are_open(pulls)
        ):
            self._complain(pull, values, costs)
        if len(pulls) == 0:
            return
        many = self._checked_controls(pulls, controls) if self.uses_controls else None
        self._receive_many(pulls.arms, values, costs, pulls.coins, many)
        for i in pulls.numbers.tolist():
            del self._open[i]

    def drop(self, pull: Any) -> None:
        """Discard failed pulls, which are then no longer pending.

        Parameters
        ----------
        pull : Pull, Pulls or sequence of Pull

        Raises
        ------
        ValueError
            If a pull was never asked for or is told or dropped already; nothing is discarded then.
        """
        given = [pull] if isinstance(pull, self.pull_class) else pull
        pulls = given if isinstance(given, Pulls) else Pulls.of(given)
        if len(pulls) == 0:
            return
        if not self._are_open(pulls):
            self._complain(given)
        for i in pulls.numbers.tolist():
            del self._open[i]
        self._release(pulls.arms)

    def _are_open(self, pulls: Pulls) -> bool:
        """Whether all pulls are different and pending."""
        numbers = pulls.numbers.tolist()
        known = list(map(self._open.get, numbers)) == pulls.arms.tolist()
        return known and len(set(numbers)) == len(numbers)

    def _complain(
        self,
        pulls: Sequence[Any],
        values: Sequence[float] | np.ndarray | None = None,
        costs: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        """Raise an error that names the first pull that is not pending or has a bad value or cost."""
        seen: set[int] = set()
        for i, p in enumerate(pulls):
            if p.number in seen or self._open.get(p.number) != p.arm:
                known = 0 <= p.number < self._asked
                raise ValueError(
                    f"{p} "
                    + ("has been told or dropped already." if known else "was never asked for.")
                )
            seen.add(p.number)
            if values is not None and not self.rewards.usable(values[i]):
                raise ValueError(f"value of {p} is {values[i]}.")
            if costs is not None and not 0.0 <= costs[i] < math.inf:
                raise ValueError(f"cost of {p} is {costs[i]}.")

    def _checked_controls(self, pulls: Sequence[Any], controls: ArrayLike | None) -> np.ndarray:
        """Return the controls (n, q) of n pulls; needed if ``uses_controls``."""
        raise NotImplementedError

    @abstractmethod
    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        """Record one value."""

    def _receive_many(
        self,
        arms: np.ndarray,
        values: np.ndarray,
        costs: np.ndarray,
        coins: np.ndarray,
        controls: np.ndarray | None,
    ) -> None:
        """Record many values in sequence."""
        lists = (a.tolist() for a in (arms, values, costs, coins))
        for _ in map(self._receive, *lists, repeat(None) if controls is None else controls):
            pass

    @abstractmethod
    def _release(self, arms: np.ndarray) -> None:
        """Take pulls of these arms, possibly repeated, from the pending ones."""

    def state(self) -> dict[str, Any]:
        """Return the state as plain arrays and numbers."""
        return {
            "table": self._table.copy(),
            "asked": self._asked,
            "open": np.array(sorted(self._open.items()), np.int64).reshape(-1, 2),
            "rewards": self.rewards.state(),
        }

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by an object with the same arguments."""
        self._table = np.array(state["table"], float)
        self._asked = int(state["asked"])
        self._open = {int(i): int(a) for i, a in state["open"]}
        self.rewards.restore(state["rewards"])
        return self

    def copy(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)
