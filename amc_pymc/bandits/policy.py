"""Base classes of bandit policies, with an ask-and-tell interface."""

from __future__ import annotations

import copy
import math
import operator

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.arguments import positive_int
from amc_pymc.bandits.rewards import (
    LOW,
    MEAN,
    N_ROWS,
    PENDING,
    SQUARES,
    TOLD,
    WIDTH,
    RewardScale,
    as_reward_scale,
)
from amc_pymc.jit import njit

__all__ = ["IndexPolicy", "Policy", "Pull", "Pulls", "index_kernels"]


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


@njit(cache=True)
def record(table: np.ndarray, arm: int, reward: float) -> None:
    """Record a reward: update count, mean and sum of squared deviations."""
    table[PENDING, arm] -= 1.0
    table[TOLD, arm] += 1.0
    d = reward - table[MEAN, arm]
    table[MEAN, arm] += d / table[TOLD, arm]
    table[SQUARES, arm] += d * (reward - table[MEAN, arm])


class Policy(ABC):
    """Base class of policies that choose which of K arms to pull next from the rewards of earlier pulls.

    Pulls that were asked for and not yet told are pending; they may be told late, in any order
    and in batches. Policies hold no generator and can be copied, pickled, saved and restored at any
    time.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards: a pair of numbers or of arrays (K,), or :class:`KnownRange`,
        :class:`RunningRange` or :class:`LogLoss`.
    """

    #: Name of the policy in ``make_policy``.
    name: ClassVar[str]
    #: Whether the policy randomises every reward.
    needs_coin: ClassVar[bool] = False

    def __init__(
        self,
        n_arms: int,
        *,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
        extra_rows: int = 0,
    ):
        self.n_arms = positive_int("n_arms", n_arms)
        self.rewards = copy.deepcopy(as_reward_scale(rewards))
        self._table = np.zeros((N_ROWS + extra_rows, self.n_arms))
        self.rewards.begin(self._table)
        self._asked = 0
        self._open: dict[int, int] = {}

    @property
    def asked(self) -> int:
        """Number of pulls asked for so far."""
        return self._asked

    @property
    def counts(self) -> np.ndarray:
        """Number of pulls told so far, (K,)."""
        return self._table[TOLD].astype(np.int64)

    @property
    def pending(self) -> np.ndarray:
        """Number of pulls neither told nor dropped yet, (K,)."""
        return self._table[PENDING].astype(np.int64)

    @property
    def means(self) -> np.ndarray:
        """Mean observed rewards, (K,), nan for arms without any."""
        return np.where(self._table[TOLD] > 0.0, self._table[MEAN], np.nan)

    @property
    def variances(self) -> np.ndarray:
        """Empirical variances (divisor n) of the observed rewards, (K,), nan for arms without any."""
        told = self._table[TOLD]
        return np.where(told > 0.0, self._table[SQUARES] / np.maximum(told, 1.0), np.nan)

    @abstractmethod
    def index(self) -> np.ndarray:
        """Return the indices (K,): the arm with the largest index is pulled next.

        Indices are on the scale of rewards; randomised policies define their own.
        """

    @abstractmethod
    def _choose(self, rng: np.random.Generator) -> int:
        """Choose the arm of the next pull."""

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Choose the arms (n,) of the next n pulls, which the caller counts as pending."""
        pending, asked = self._table[PENDING].copy(), self._asked
        arms = np.empty(n, np.int64)
        for i in range(n):
            arms[i] = self._choose(rng)
            self._table[PENDING, arms[i]] += 1.0
            self._asked += 1
        self._table[PENDING], self._asked = pending, asked
        return arms

    @overload
    def ask(self, rng: np.random.Generator) -> Pull: ...
    @overload
    def ask(self, rng: np.random.Generator, n: int) -> Pulls: ...
    def ask(self, rng: np.random.Generator, n: int | None = None) -> Pull | Pulls:
        """Choose the next pull, or the next `n` without rewards in between.

        Parameters
        ----------
        rng : numpy.random.Generator
        n : int, optional

        Returns
        -------
        Pull, or Pulls if `n` is given
        """
        number = self._asked
        if n is None:
            arm = self._choose(rng)
            self._table[PENDING, arm] += 1.0
            self._open[number] = arm
            self._asked += 1
            return Pull(arm, number, rng.random() if self.needs_coin else math.nan)
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}.")
        arms = self._choose_many(rng, n)
        self._table[PENDING] += np.bincount(arms, minlength=self.n_arms)
        numbers = np.arange(number, number + n)
        self._open.update(zip(numbers.tolist(), arms.tolist(), strict=True))
        self._asked += n
        return Pulls(arms, numbers, rng.random(n) if self.needs_coin else np.full(n, math.nan))

    def tell(
        self, pull: Pull | Pulls, reward: ArrayLike, controls: ArrayLike | None = None
    ) -> None:
        """Report rewards of pulls, in any order.

        Parameters
        ----------
        pull : Pull or Pulls
        reward : float, or array_like (n,)
            Reward of each pull, on the scale declared by `rewards`.
        controls : array_like (q,) or (n, q), optional
            Control variates observed with the rewards; most policies ignore them.

        Raises
        ------
        ValueError
            If a pull was never asked for or is told or dropped already, or a reward is not finite; the
            message names pull and arm. In this case, nothing is recorded.
        """
        if isinstance(pull, Pull):
            value = float(reward)  # type: ignore[arg-type]
            if self._open.get(pull.number) != pull.arm or not self.rewards.usable(value):
                self._complain([pull], [value])
            w = None if controls is None else np.asarray(controls, float).reshape(-1)
            self._receive(pull.arm, value, pull.coin, w)
            del self._open[pull.number]
            return
        values = np.asarray(reward, float)
        if values.shape != (len(pull),):
            raise ValueError(f"reward must have shape ({len(pull)},), got {values.shape}.")
        numbers, arms = pull.numbers.tolist(), pull.arms.tolist()
        known = all(self._open.get(i) == a for i, a in zip(numbers, arms, strict=True))
        usable = all(map(self.rewards.usable, values.tolist()))
        if not (known and usable) or len(set(numbers)) < len(numbers):
            self._complain(pull, values)
        if len(numbers) == 0:
            return
        many = None if controls is None else np.asarray(controls, float).reshape(len(pull), -1)
        self._receive_many(pull.arms, values, pull.coins, many)
        for i in numbers:
            del self._open[i]

    def drop(self, pull: Pull | Pulls) -> None:
        """Discard failed pulls, which are then no longer pending.

        Parameters
        ----------
        pull : Pull or Pulls
        """
        for p in [pull] if isinstance(pull, Pull) else pull:
            if self._open.get(p.number) != p.arm:
                self._complain([p], [0.0])
            del self._open[p.number]
            self._table[PENDING, p.arm] -= 1.0

    def _complain(self, pulls: Iterable[Pull], rewards: Iterable[float]) -> None:
        seen: set[int] = set()
        for p, reward in zip(pulls, rewards, strict=True):
            if p.number in seen or self._open.get(p.number) != p.arm:
                known = 0 <= p.number < self._asked
                raise ValueError(
                    f"pull {p.number} of arm {p.arm} "
                    + ("has been told or dropped already." if known else "was never asked for.")
                )
            seen.add(p.number)
            if not self.rewards.usable(reward):
                raise ValueError(f"reward of pull {p.number} of arm {p.arm} is {reward}.")

    def _receive(self, arm: int, reward: float, coin: float, controls: np.ndarray | None) -> None:
        """Record one reward; subclasses that keep more than moments extend this."""
        record(self._table, arm, self.rewards.convert(self._table, arm, reward))

    def _receive_many(
        self,
        arms: np.ndarray,
        rewards: np.ndarray,
        coins: np.ndarray,
        controls: np.ndarray | None,
    ) -> None:
        """Record many rewards in sequence."""
        for i, (arm, reward, coin) in enumerate(
            zip(arms.tolist(), rewards.tolist(), coins.tolist(), strict=True)
        ):
            self._receive(arm, reward, coin, None if controls is None else controls[i])

    def state(self) -> dict[str, Any]:
        """Return the state of the policy as plain arrays and numbers."""
        return {
            "table": self._table.copy(),
            "asked": self._asked,
            "open": np.array(sorted(self._open.items()), np.int64).reshape(-1, 2),
            "rewards": self.rewards.state(),
        }

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by a policy with the same arguments."""
        table = np.asarray(state["table"], float)
        if table.shape != self._table.shape:
            raise ValueError(
                f"state is of a table of shape {table.shape}, this policy's is {self._table.shape}."
            )
        self._table = table.copy()
        self._asked = int(state["asked"])
        self._open = {int(i): int(a) for i, a in state["open"]}
        self.rewards.restore(state["rewards"])
        return self

    def copy(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)


class IndexKernels(NamedTuple):
    """Compiled functions of an index policy, see :func:`index_kernels`."""

    indices: Callable[[np.ndarray, float, np.ndarray], np.ndarray]
    choose: Callable[[np.ndarray, float, np.ndarray], int]
    choose_many: Callable[[np.ndarray, float, np.ndarray, int], np.ndarray]


def index_kernels(
    index: Callable[[float, float, float, float, np.ndarray], float],
) -> IndexKernels:
    """Compile the functions that choose arms by an index.

    Parameters
    ----------
    index : compiled function
        ``index(n, mean, variance, t, constants) -> float`` for one arm: n pulls (told and pending),
        mean and variance (divisor n) of its rewards on [0, 1], the number t of this pull among all, from
        1, and an array of constants. An arm without observed rewards has mean 1 and variance 0.25.

    Returns
    -------
    IndexKernels
        ``indices(table, t, constants) -> (K,)`` on the scale of rewards, inf for arms never pulled;
        ``choose(table, t, constants) -> arm``, the first arm with the largest index;
        ``choose_many(table, t, constants, n) -> (n,)``, where each pull is pending for the next ones.
    """

    @njit(cache=True)
    def of_arm(table: np.ndarray, k: int, t: float, constants: np.ndarray) -> float:
        told, width = table[TOLD, k], table[WIDTH, k]
        n = told + table[PENDING, k]
        if n == 0.0:
            return np.inf
        mean, variance = 1.0, 0.25
        if told > 0.0:
            mean = (table[MEAN, k] - table[LOW, k]) / width
            variance = table[SQUARES, k] / told / width**2
        return table[LOW, k] + width * index(n, mean, variance, t, constants)

    @njit(cache=True)
    def indices(table: np.ndarray, t: float, constants: np.ndarray) -> np.ndarray:
        out = np.empty(table.shape[1])
        for k in range(out.size):
            out[k] = of_arm(table, k, t, constants)
        return out

    @njit(cache=True)
    def choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
        best, largest = 0, -np.inf
        for k in range(table.shape[1]):
            value = of_arm(table, k, t, constants)
            if value > largest:
                best, largest = k, value
        return best

    @njit(cache=True)
    def choose_many(table: np.ndarray, t: float, constants: np.ndarray, n: int) -> np.ndarray:
        table = table.copy()
        arms = np.empty(n, np.int64)
        for i in range(n):
            arms[i] = choose(table, t + i, constants)
            table[PENDING, arms[i]] += 1.0
        return arms

    return IndexKernels(indices, choose, choose_many)


class IndexPolicy(Policy):
    """Policy that pulls the arm with the largest index, a function of its count, mean and variance.

    Subclasses set ``_kernels``, made once per class by :func:`index_kernels`, and ``_constants``.
    """

    _kernels: ClassVar[IndexKernels]
    _constants: np.ndarray

    def index(self) -> np.ndarray:
        """Return the indices of all arms on the scale of rewards, (K,); inf for arms never pulled."""
        return self._kernels.indices(self._table, self._asked + 1, self._constants)

    def _choose(self, rng: np.random.Generator) -> int:
        return self._kernels.choose(self._table, self._asked + 1, self._constants)

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return self._kernels.choose_many(self._table, self._asked + 1, self._constants, n)
