"""Ask, tell and drop: the account of pulls that all policies keep; see :mod:`amc_pymc.bandits`."""

from __future__ import annotations

import copy
import math
import operator

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.arguments import positive_int
from amc_pymc.bandits.rewards import Rewards, Statistics, as_reward_scale


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

    def __init__(self, arms: ArrayLike, numbers: ArrayLike, coins: ArrayLike):
        self.arms, self.numbers = np.asarray(arms, np.int64), np.asarray(numbers, np.int64)
        self.coins = np.asarray(coins, float)

    @classmethod
    def of(cls, pulls: Sequence[Pull]) -> Pulls:
        """Collect single pulls."""
        return cls([p.arm for p in pulls], [p.number for p in pulls], [p.coin for p in pulls])

    @classmethod
    def join(cls, batches: Sequence[Pulls]) -> Pulls:
        """Concatenate batches."""
        columns = ("arms", "numbers", "coins")
        return cls(*(np.concatenate([[], *(getattr(b, c) for b in batches)]) for c in columns))

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


def _as_pulls(given: Pull | Sequence[Pull]) -> Pulls:
    if isinstance(given, Pull):
        return Pulls.of([given])
    return given if isinstance(given, Pulls) else Pulls.of(given)


class Told(NamedTuple):
    """What is told of n pulls: arms, values, costs and coins (n,), and controls (n, q) if they are used."""

    arms: np.ndarray
    values: np.ndarray
    costs: np.ndarray
    coins: np.ndarray
    controls: np.ndarray | None


class Policy(ABC):
    """Base class of policies that choose which of K arms to pull next from the values of earlier pulls.

    Pulls that were asked for and not yet told are pending; they may be told late, in any order and in batches. A
    policy holds no generator and can be copied and pickled at any time. The contract is that of
    :mod:`amc_pymc.bandits`.

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
    #: Whether every value is randomised by the coin of its pull.
    needs_coin: bool = False
    #: Whether choices depend on costs.
    uses_costs: ClassVar[bool] = False
    #: Whether choices depend on control variates, which must then be told.
    uses_controls: ClassVar[bool] = False

    def __init__(self, n_arms: int, *, rewards: Rewards = (0.0, 1.0)):
        self.n_arms = positive_int("n_arms", n_arms)
        self.rewards = copy.deepcopy(as_reward_scale(rewards))
        self._asked = 0
        self._open: dict[int, int] = {}  # arms of the pending pulls, by number
        self._seen = Statistics(self.n_arms)
        self.rewards.begin(self._seen)

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
        pulls = _as_pulls(pull)
        values, costs = np.asarray(value, float), np.asarray(cost, float)
        shape = () if isinstance(pull, Pull) else (len(pulls),)
        if values.shape != shape:
            raise ValueError(f"value must have shape {shape}, got {values.shape}.")
        if costs.shape not in ((), shape):
            raise ValueError(f"cost must be a number or of shape {shape}, got {costs.shape}.")
        values, costs = np.atleast_1d(values), np.full(len(pulls), costs)
        self._check_open(pulls)
        usable, paid = self.rewards.usable(values), (costs >= 0.0) & (costs < math.inf)
        for label, good, given in (("value", usable, values), ("cost", paid, costs)):
            if not good.all():
                first = int(good.argmin())
                raise ValueError(f"{label} of {pulls[first]} is {given[first]}.")
        if len(pulls) == 0:
            return
        w = self._checked_controls(pulls, controls) if self.uses_controls else None
        self._receive(Told(pulls.arms, values, costs, pulls.coins, w))
        self._close(pulls)

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
        pulls = _as_pulls(pull)
        self._check_open(pulls)
        self._close(pulls)
        self._seen.pending -= np.bincount(pulls.arms, minlength=self.n_arms)

    def _close(self, pulls: Pulls) -> None:
        for number in pulls.numbers.tolist():
            del self._open[number]

    def _check_open(self, pulls: Pulls) -> None:
        """Raise an error that names the first pull that is not pending, or is there twice."""
        numbers, arms = pulls.numbers.tolist(), pulls.arms.tolist()
        if list(map(self._open.get, numbers)) == arms and len(set(numbers)) == len(numbers):
            return
        seen: set[int] = set()
        for i, (number, arm) in enumerate(zip(numbers, arms, strict=True)):
            if number in seen or self._open.get(number) != arm:
                known = 0 <= number < self._asked
                what = "has been told or dropped already" if known else "was never asked for"
                raise ValueError(f"{pulls[i]} {what}.")
            seen.add(number)

    def _checked_controls(self, pulls: Pulls, controls: ArrayLike | None) -> np.ndarray:
        """Return the controls (n, q) of n pulls; needed if ``uses_controls``."""
        raise NotImplementedError

    @property
    def counts(self) -> np.ndarray:
        """Number of pulls told so far, (K,)."""
        return self._seen.told.astype(np.int64)

    @property
    def pending(self) -> np.ndarray:
        """Number of pulls neither told nor dropped yet, (K,)."""
        return self._seen.pending.astype(np.int64)

    @property
    def means(self) -> np.ndarray:
        """Mean observed rewards, (K,), nan for arms without any."""
        n, mean, _ = self._summaries()
        return np.where(n > 0.0, mean, np.nan)

    @property
    def variances(self) -> np.ndarray:
        """Empirical variances (divisor n) of the observed rewards, (K,), nan for arms without any."""
        n, _, squares = self._summaries()
        return np.where(n > 0.0, squares / np.maximum(n, 1.0), np.nan)

    def _summaries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return number, mean and sum of squared deviations of what is observed of each arm, (K,) each."""
        return self._seen.told, self._seen.mean, self._seen.squares

    @abstractmethod
    def index(self) -> np.ndarray:
        """Return the indices (K,): the arm with the largest index is pulled next.

        Indices are on the scale of rewards; randomised policies define their own.
        """

    def _choose(self, rng: np.random.Generator, arms: np.ndarray, n: int) -> np.ndarray:
        """Choose the arms of the next n pulls, among `arms` (L,), which are in order."""
        pending, asked = self._seen.pending.copy(), self._asked
        chosen = np.empty(n, np.int64)
        for i in range(n):
            chosen[i] = arms[self.index()[arms].argmax()]
            self._seen.pending[chosen[i]] += 1.0
            self._asked += 1
        self._seen.pending[:], self._asked = pending, asked
        return chosen

    @overload
    def ask(self, rng: np.random.Generator, *, among: ArrayLike | None = None) -> Pull: ...
    @overload
    def ask(self, rng: np.random.Generator, n: int, *, among: ArrayLike | None = None) -> Pulls: ...
    def ask(
        self, rng: np.random.Generator, n: int | None = None, *, among: ArrayLike | None = None
    ) -> Pull | Pulls:
        """Choose the next pull, or the next `n` without values in between.

        Parameters
        ----------
        rng : numpy.random.Generator
        n : int, optional
        among : array_like of int, optional
            Arms to choose from, as if there were no others. By default all.

        Returns
        -------
        Pull, or Pulls if `n` is given
        """
        size = 1 if n is None else operator.index(n)
        if size < 0:
            raise ValueError(f"n must not be negative, got {size}.")
        arms = np.arange(self.n_arms) if among is None else self._checked_arms(among)
        chosen = self._choose(rng, arms, size) if size else np.empty(0, np.int64)
        self._seen.pending += np.bincount(chosen, minlength=self.n_arms)
        numbers = np.arange(self._asked, self._asked + size)
        self._open.update(zip(numbers.tolist(), chosen.tolist(), strict=True))
        self._asked += size
        coins = rng.random(size) if self.needs_coin else np.full(size, math.nan)
        pulls = Pulls(chosen, numbers, coins)
        return pulls[0] if n is None else pulls

    def _checked_arms(self, among: ArrayLike) -> np.ndarray:
        """Return the arms in order."""
        arms = np.asarray(among)
        whole = arms.ndim == 1 and arms.size > 0 and arms.dtype.kind in "iu"
        if not whole or arms.min() < 0 or arms.max() >= self.n_arms:
            raise ValueError(f"among must be arms from 0 to {self.n_arms - 1}, got {among!r}.")
        return np.unique(arms)

    def _receive(self, told: Told) -> None:
        """Record values; subclasses that keep more than moments extend this."""
        rewards = self.rewards.convert(self._seen, told.arms, told.values)
        self._seen.add(told.arms, rewards)

    def copy(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)
