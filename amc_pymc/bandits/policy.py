"""Base classes of policies for K arms."""

from __future__ import annotations

import copy
import math
import operator

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.arguments import positive_int
from amc_pymc.bandits.contract import Bandit, Pull, Pulls
from amc_pymc.bandits.rewards import LOW, MEAN, PENDING, SQUARES, TOLD, WIDTH, RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["CompiledPolicy", "IndexPolicy", "Kernels", "Policy", "index_kernels", "kernels_of"]


@njit(cache=True)
def record(table: np.ndarray, arm: int, reward: float) -> None:
    """Record a reward: update count, mean and sum of squared deviations."""
    table[PENDING, arm] -= 1.0
    table[TOLD, arm] += 1.0
    d = reward - table[MEAN, arm]
    table[MEAN, arm] += d / table[TOLD, arm]
    table[SQUARES, arm] += d * (reward - table[MEAN, arm])


@njit(cache=True, error_model="numpy")
def unit_moments(table: np.ndarray, k: int) -> tuple[float, float]:
    """Return mean and variance (divisor n) of the rewards of an arm on [0, 1]; 1 and 0.25 without any.

    So they are if the range of the arm is a point.
    """
    told, width = table[TOLD, k], table[WIDTH, k]
    if told == 0.0 or width == 0.0:
        return 1.0, 0.25
    return (table[MEAN, k] - table[LOW, k]) / width, table[SQUARES, k] / told / width**2


class Policy(Bandit):
    """Base class of policies that choose which of K arms to pull next from the values of earlier pulls.

    The contract is that of :mod:`amc_pymc.bandits`.

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

    def __init__(
        self,
        n_arms: int,
        *,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
        extra_rows: int = 0,
    ):
        self.n_arms = positive_int("n_arms", n_arms)
        super().__init__(self.n_arms, rewards, extra_rows)

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
        number, given = self._asked, None if among is None else self._checked_arms(among)
        if n is None:
            arm = self._choose(rng) if given is None else given[self._only(given)._choose(rng)]
            self._table[PENDING, arm] += 1.0
            self._open[number] = arm
            self._asked += 1
            coin = rng.random() if self.needs_coin else math.nan
            return tuple.__new__(Pull, (arm, number, coin))  # a quarter of the time of Pull(...)
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}.")
        if given is None:
            arms = self._choose_many(rng, n)
        else:
            arms = np.array(given)[self._only(given)._choose_many(rng, n)]
        self._table[PENDING] += np.bincount(arms, minlength=self.n_arms)
        numbers = np.arange(number, number + n)
        self._open.update(zip(numbers.tolist(), arms.tolist(), strict=True))
        self._asked += n
        return Pulls(arms, numbers, rng.random(n) if self.needs_coin else np.full(n, math.nan))

    def _checked_arms(self, among: ArrayLike) -> list[int]:
        """Return the arms in order."""
        arms = np.asarray(among)
        whole = arms.ndim == 1 and arms.size > 0 and arms.dtype.kind in "iu"
        if not whole or arms.min() < 0 or arms.max() >= self.n_arms:
            raise ValueError(f"among must be arms from 0 to {self.n_arms - 1}, got {among!r}.")
        return np.unique(arms).tolist()

    def _only(self, arms: list[int]) -> Self:
        """Return a shallow copy that chooses among some arms; subclasses with other data of arms extend this."""
        part = copy.copy(self)
        part.n_arms, part._table = len(arms), np.ascontiguousarray(self._table[:, arms])
        return part

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        """Record one value; subclasses that keep more than moments extend this."""
        record(self._table, arm, self.rewards.convert(self._table, arm, value))

    def _release(self, arms: np.ndarray) -> None:
        self._table[PENDING] -= np.bincount(arms, minlength=self.n_arms)

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by a policy with the same arguments."""
        have = np.shape(state["table"])
        if have != self._table.shape:
            raise ValueError(
                f"state is of a table of shape {have}, this policy's is {self._table.shape}."
            )
        return super().restore(state)


class Kernels(NamedTuple):
    """Compiled functions of a policy.

    Attributes
    ----------
    indices : compiled function
        ``indices(table, t, constants) -> (K,)``: the indices at pull number t, from 1.
    choose : compiled function
        ``choose(table, t, constants) -> arm``
    choose_many : compiled function
        ``choose_many(table, t, constants, n) -> (n,)``, where each pull is pending for the next ones.
    """

    indices: Callable[[np.ndarray, float, np.ndarray], np.ndarray]
    choose: Callable[[np.ndarray, float, np.ndarray], int]
    choose_many: Callable[[np.ndarray, float, np.ndarray, int], np.ndarray]


def _compiled(inner: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a closure over a compiled function, and names it after that.

    Symbols of cached machine code consist of names and of a count of the process that compiled it, so closures of the
    same name, from two processes, would call each other's functions.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ += f".{inner.py_func.__module__}.{inner.py_func.__qualname__}"
        return njit(cache=True)(function)

    return decorate


def kernels_of(
    indices: Callable[[np.ndarray, float, np.ndarray], np.ndarray],
    choose: Callable[[np.ndarray, float, np.ndarray], int],
) -> Kernels:
    """Add to compiled functions the choice of several arms, each of which is pending for the next ones."""

    @_compiled(choose)
    def choose_many(table: np.ndarray, t: float, constants: np.ndarray, n: int) -> np.ndarray:
        table = table.copy()
        arms = np.empty(n, np.int64)
        for i in range(n):
            arms[i] = choose(table, t + i, constants)
            table[PENDING, arms[i]] += 1.0
        return arms

    return Kernels(indices, choose, choose_many)


def index_kernels(
    index: Callable[..., float], beaten: Callable[..., bool] | None = None
) -> Kernels:
    """Compile the functions that choose arms by an index.

    Parameters
    ----------
    index : compiled function
        ``index(n, mean, variance, t, constants) -> float`` for one arm: n pulls (told and pending),
        mean and variance (divisor n) of its rewards on [0, 1], the number t of this pull among all, from
        1, and an array of constants. An arm without observed rewards has mean 1 and variance 0.25.
    beaten : compiled function, optional
        ``beaten(n, mean, variance, t, constants, x) -> bool``: whether the index is certainly below x, if that
        takes less time than the index.

    Returns
    -------
    Kernels
        Indices are on the scale of rewards, inf for arms never pulled; the first arm with the largest index
        is chosen.
    """
    surely_below: Any = beaten

    @_compiled(index)
    def of_arm(table: np.ndarray, k: int, t: float, constants: np.ndarray) -> float:
        n = table[TOLD, k] + table[PENDING, k]
        if n == 0.0:
            return np.inf
        mean, variance = unit_moments(table, k)
        return table[LOW, k] + table[WIDTH, k] * index(n, mean, variance, t, constants)

    @_compiled(index)
    def indices(table: np.ndarray, t: float, constants: np.ndarray) -> np.ndarray:
        out = np.empty(table.shape[1])
        for k in range(out.size):
            out[k] = of_arm(table, k, t, constants)
        return out

    @_compiled(index)
    def skipped(table: np.ndarray, k: int, t: float, constants: np.ndarray, largest: float) -> bool:
        n, width = table[TOLD, k] + table[PENDING, k], table[WIDTH, k]
        if n == 0.0 or width == 0.0:
            return False
        mean, variance = unit_moments(table, k)
        return surely_below(n, mean, variance, t, constants, (largest - table[LOW, k]) / width)

    @_compiled(index)
    def choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
        best, largest = 0, -np.inf
        for k in range(table.shape[1]):
            if surely_below is not None:
                if skipped(table, k, t, constants, largest):
                    continue
            value = of_arm(table, k, t, constants)
            if value > largest:
                best, largest = k, value
        return best

    return kernels_of(indices, choose)


class CompiledPolicy(Policy):
    """Policy that chooses by compiled functions, ``_kernels``, of its table and of ``_constants``."""

    _kernels: ClassVar[Kernels]
    _constants: np.ndarray

    def index(self) -> np.ndarray:
        """Return the indices of all arms on the scale of rewards, (K,); inf for arms never pulled."""
        return self._kernels.indices(self._table, self._asked + 1, self._constants)

    def _choose(self, rng: np.random.Generator) -> int:
        return self._kernels.choose(self._table, self._asked + 1, self._constants)

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return self._kernels.choose_many(self._table, self._asked + 1, self._constants, n)


class IndexPolicy(CompiledPolicy):
    """Policy that pulls the arm with the largest index, a function of its count, mean and variance.

    Subclasses set ``_kernels``, made once per class by :func:`index_kernels`, and ``_constants``.
    """

    def begin_with(self, counts: ArrayLike, means: ArrayLike, variances: ArrayLike = 0.0) -> Self:
        """Begin with a summary of values, as if they had been told.

        Parameters
        ----------
        counts : array_like (K,)
            Numbers of values, not negative; they need not be whole.
        means : array_like (K,)
            Mean values, on the scale of rewards and within their range.
        variances : float or array_like (K,), default 0.0
            Variances of the values (divisor n).

        Returns
        -------
        The policy itself.

        Raises
        ------
        ValueError
            If the policy has been asked before, or a number is not finite or negative where it must not be.

        Examples
        --------
        >>> from amc_pymc.bandits import UCB1
        >>> UCB1(2).begin_with([10.0, 10.0], [0.2, 0.7]).index().round(3)
        array([0.98, 1.48])
        """
        if self._asked:
            raise ValueError(f"begin_with needs a fresh policy, this one made {self._asked} pulls.")
        n, mean, variance = (
            np.broadcast_to(np.asarray(x, float), self.n_arms) for x in (counts, means, variances)
        )
        for label, x, least in (
            ("counts", n, 0.0),
            ("means", mean, -math.inf),
            ("variances", variance, 0.0),
        ):
            if not (np.isfinite(x) & (x >= least)).all():
                raise ValueError(f"{label} must be finite and not negative, got {x.tolist()}.")
        self._table[TOLD], self._table[MEAN], self._table[SQUARES] = n, mean, n * variance
        self._asked = int(n.sum())
        return self
