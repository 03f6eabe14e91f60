"""Robust means and the robust UCB of Bubeck, Cesa-Bianchi & Lugosi (2013) for heavy-tailed rewards."""

from __future__ import annotations

import math

from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import Policy, record
from amc_pymc.bandits.rewards import PENDING, TOLD, RunningRange
from amc_pymc.bandits.waiting import first_choice
from amc_pymc.jit import njit

__all__ = ["RobustMean", "RobustUCB", "catoni_mean", "median_of_means", "truncated_mean"]

type Mean = Literal["truncated", "median_of_means", "catoni"]


class RobustMean(NamedTuple):
    """Robust estimate of a mean, with its error bound.

    Attributes
    ----------
    mean : float
    bound : float
        The true mean is above ``mean + bound`` with probability at most delta, and likewise below
        ``mean - bound``; inf if there are too few values.
    """

    mean: float
    bound: float


@njit(cache=True)
def _truncated(x: np.ndarray, log_inverse: float, u: float, epsilon: float) -> float:
    total = 0.0
    for i in range(x.size):
        # |x|^(1 + epsilon) <= u t / log(1 / delta), t counted from 1
        if abs(x[i]) ** (1.0 + epsilon) * log_inverse <= u * (i + 1.0):
            total += x[i]
    return total / x.size


@njit(cache=True)
def _truncated_bound(n: float, log_inverse: float, u: float, epsilon: float) -> float:
    power = 1.0 / (1.0 + epsilon)
    return 4.0 * u**power * (log_inverse / n) ** (epsilon * power)


@njit(cache=True)
def _block_means(x: np.ndarray, log_inverse: float) -> np.ndarray:
    k = max(1, int(min(8.0 * log_inverse + 1.0, x.size / 2.0)))
    size = x.size // k
    means = np.zeros(k)
    for b in range(k):
        for i in range(b * size, (b + 1) * size):
            means[b] += x[i]
        means[b] /= size
    return means


@njit(cache=True)
def _median_of_means_bound(n: float, log_inverse: float, v: float, epsilon: float) -> float:
    blocks = 8.0 * log_inverse + 1.0
    if n < 2.0 * blocks:
        return np.inf
    power = 1.0 / (1.0 + epsilon)
    return (12.0 * v) ** power * (2.0 * blocks / n) ** (epsilon * power)


@njit(cache=True)
def _catoni(x: np.ndarray, log_inverse: float, v: float) -> float:
    """Find the root m of sum psi(alpha (x - m)), which decreases in m, by Newton's method within a bracket."""
    n = x.size
    room = n - 2.0 * log_inverse
    alpha = math.sqrt(2.0 * log_inverse / (n * v * (1.0 + 2.0 * log_inverse / room)))
    low, high, m = np.inf, -np.inf, 0.0
    for i in range(n):
        low, high = min(low, x[i]), max(high, x[i])
        m += (x[i] - m) / (i + 1.0)
    m = min(max(m, low), high)
    for _ in range(100):
        value, slope = 0.0, 0.0
        for i in range(n):
            y = alpha * (x[i] - m)
            a = abs(y)
            inside = 1.0 + a + 0.5 * a * a
            value += math.log(inside) if y >= 0.0 else -math.log(inside)
            slope += (1.0 + a) / inside
        if value >= 0.0:
            low = m
        if value <= 0.0:
            high = m
        step = value / (alpha * slope)
        new = m + step
        if not low <= new <= high:
            new = 0.5 * (low + high)
        if abs(new - m) <= 1e-13 * (abs(m) + 1.0 / alpha):
            return new
        m = new
    return m


@njit(cache=True)
def _catoni_bound(n: float, log_inverse: float, v: float) -> float:
    room = n - 2.0 * log_inverse
    return math.sqrt(2.0 * v * log_inverse / room) if room > 0.0 else np.inf


def _values(
    values: ArrayLike, delta: float, moment_bound: float, epsilon: float
) -> tuple[np.ndarray, float]:
    x = np.ascontiguousarray(values, float)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"values must have shape (n,) with n at least 1, got {x.shape}.")
    if not np.isfinite(x).all():
        raise ValueError("values must be finite.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be between 0 and 1, got {delta!r}.")
    _check_moment(moment_bound, epsilon)
    return x, -math.log(delta)


def _check_moment(moment_bound: ArrayLike, epsilon: float) -> None:
    if not (np.isfinite(moment_bound).all() and (np.asarray(moment_bound) > 0.0).all()):
        raise ValueError(f"moment_bound must be positive and finite, got {moment_bound!r}.")
    if not 0.0 < epsilon <= 1.0:
        raise ValueError(f"epsilon must be in (0, 1], got {epsilon!r}.")


def truncated_mean(
    values: ArrayLike, *, delta: float, moment_bound: float, epsilon: float = 1.0
) -> RobustMean:
    r"""Estimate a mean, counting values as zero if they exceed a threshold that grows with their position.

    .. math::
        \hat\mu = \frac1n \sum_t X_t 1\{|X_t| \le (u t / \log\delta^{-1})^{1/(1+\epsilon)}\}, \qquad
        |\hat\mu - \mu| \le 4 u^{1/(1+\epsilon)} (\log\delta^{-1} / n)^{\epsilon/(1+\epsilon)}

    where each side holds with probability 1 - delta. The estimate depends on the order of the values and on
    the location of zero.

    Parameters
    ----------
    values : array_like (n,)
    delta : float
        Probability of error in (0, 1).
    moment_bound : float
        Upper bound u on the *raw* moment :math:`E|X|^{1+\epsilon}`.
    epsilon : float, default 1.0
        Order of the moment less one, in (0, 1]; 1 for finite variance.

    Returns
    -------
    RobustMean

    References
    ----------
    Bubeck, Cesa-Bianchi & Lugosi (2013), Bandits with heavy tail, lemma 1. IEEE Transactions on
    Information Theory 59, 7711-7717. doi:10.1109/TIT.2013.2277869

    Examples
    --------
    >>> from amc_pymc.bandits import truncated_mean
    >>> truncated_mean([1.0, 1.0, 50.0, 1.0], delta=0.1, moment_bound=2.5).mean
    0.75
    """
    x, log_inverse = _values(values, delta, moment_bound, epsilon)
    bound = _truncated_bound(x.size, log_inverse, moment_bound, epsilon)
    return RobustMean(_truncated(x, log_inverse, moment_bound, epsilon), bound)


def median_of_means(
    values: ArrayLike, *, delta: float, moment_bound: float, epsilon: float = 1.0
) -> RobustMean:
    r"""Estimate a mean by the median of the means of blocks.

    .. math::
        k = \lfloor 8 \log(e^{1/8}/\delta) \wedge n/2 \rfloor \text{ blocks of } \lfloor n/k \rfloor, \qquad
        |\hat\mu - \mu| \le (12 v)^{1/(1+\epsilon)}
        \Big(\frac{16 \log(e^{1/8}/\delta)}{n}\Big)^{\epsilon/(1+\epsilon)}

    where each side holds with probability 1 - delta.

    Parameters
    ----------
    values : array_like (n,)
    delta : float
        Probability of error in (0, 1).
    moment_bound : float
        Upper bound v on the *central* moment :math:`E|X-\mu|^{1+\epsilon}`.
    epsilon : float, default 1.0
        Order of the moment less one, in (0, 1]; 1 for finite variance.

    Returns
    -------
    RobustMean
        `bound` is inf if n < 16 log(e^(1/8) / delta), because the proof of the lemma needs more blocks.

    References
    ----------
    Bubeck, Cesa-Bianchi & Lugosi (2013), Bandits with heavy tail, lemma 2. IEEE Transactions on
    Information Theory 59, 7711-7717. doi:10.1109/TIT.2013.2277869

    Examples
    --------
    >>> from amc_pymc.bandits import median_of_means
    >>> median_of_means([1.0, 3.0, 50.0, 60.0, 4.0, 2.0], delta=0.5, moment_bound=1.0).mean
    3.0
    """
    x, log_inverse = _values(values, delta, moment_bound, epsilon)
    bound = _median_of_means_bound(x.size, log_inverse, moment_bound, epsilon)
    return RobustMean(float(np.median(_block_means(x, log_inverse))), bound)


def catoni_mean(values: ArrayLike, *, delta: float, moment_bound: float) -> RobustMean:
    r"""Estimate a mean by Catoni's M-estimator, for finite variance.

    The estimate solves :math:`\sum_i \psi(\alpha (X_i - \hat\mu)) = 0` with
    :math:`\psi(x) = \mathrm{sign}(x) \log(1 + |x| + x^2/2)` and

    .. math::
        \alpha^2 = \frac{2 \log\delta^{-1}}{n v (1 + 2 \log\delta^{-1} / (n - 2 \log\delta^{-1}))}, \qquad
        |\hat\mu - \mu| \le \sqrt{\frac{2 v \log\delta^{-1}}{n - 2 \log\delta^{-1}}}

    where each side holds with probability 1 - delta. The interval is nearly as narrow as a normal one. The
    computation takes up to 100 passes over the values.

    Parameters
    ----------
    values : array_like (n,)
    delta : float
        Probability of error in (0, 1).
    moment_bound : float
        Upper bound v on the variance.

    Returns
    -------
    RobustMean
        If n <= 2 log(1 / delta), the mean is the median and `bound` is inf.

    References
    ----------
    Catoni (2012), Challenging the empirical mean and empirical variance: a deviation study, section 2.
    Annales de l'Institut Henri Poincaré, Probabilités et Statistiques 48, 1148-1185.
    doi:10.1214/11-AIHP454

    Examples
    --------
    >>> from amc_pymc.bandits import catoni_mean
    >>> estimate = catoni_mean([0.0] * 50 + [1.0] * 50, delta=0.05, moment_bound=0.25)
    >>> round(estimate.mean, 6), round(estimate.bound, 3)
    (0.5, 0.126)
    """
    x, log_inverse = _values(values, delta, moment_bound, 1.0)
    bound = _catoni_bound(x.size, log_inverse, moment_bound)
    if bound == math.inf:
        return RobustMean(float(np.median(x)), bound)
    return RobustMean(_catoni(x, log_inverse, moment_bound), bound)


class RobustUCB(Policy):
    r"""Policy with upper confidence bounds on means of heavy-tailed rewards.

    The policy pulls the arm with the largest mean + bound of a robust estimator at :math:`\delta = t^{-2}`.
    Its regret is logarithmic for unbounded rewards with no more than 1 + epsilon moments. The estimates
    depend on t, so each decision reads all past rewards: tens of microseconds after thousands of pulls,
    more for `mean="catoni"`.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    moment_bound : float or array_like (K,)
        Bound on the moment of order 1 + epsilon of the rewards of each arm: raw for "truncated", central
        for the others.
    mean : {"truncated", "median_of_means", "catoni"}, default "truncated"
        :func:`truncated_mean`, :func:`median_of_means` or :func:`catoni_mean`. An arm is pulled again
        until the bound is finite: 16 log(e^(1/8) t^2) and 4 log t times for the last two.
    epsilon : float, default 1.0
        Order of the moment less one, in (0, 1]; "catoni" requires 1.

    Notes
    -----
    Pending pulls count in the bound, not in the mean.

    References
    ----------
    Bubeck, Cesa-Bianchi & Lugosi (2013), Bandits with heavy tail. IEEE Transactions on Information
    Theory 59, 7711-7717. doi:10.1109/TIT.2013.2277869

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import RobustUCB
    >>> rng = np.random.default_rng(1)
    >>> policy = RobustUCB(2, moment_bound=3.0, mean="catoni")
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.standard_t(3) + (0.0, 2.0)[pull.arm])
    >>> bool(policy.counts[1] > 850)
    True
    """

    name = "robust"
    _means: ClassVar[tuple[str, ...]] = get_args(Mean.__value__)

    def __init__(
        self,
        n_arms: int,
        *,
        moment_bound: ArrayLike,
        mean: Mean = "truncated",
        epsilon: float = 1.0,
    ):
        super().__init__(n_arms, rewards=RunningRange())
        if mean not in self._means:
            raise ValueError(f"mean must be one of {self._means}, got {mean!r}.")
        u = np.asarray(moment_bound, float)
        if u.shape not in ((), (self.n_arms,)):
            raise ValueError(
                f"moment_bound must be a number or have shape ({self.n_arms},), got {u.shape}."
            )
        _check_moment(u, epsilon)
        if mean == "catoni" and epsilon != 1.0:
            raise ValueError(
                f'mean="catoni" needs a finite variance, epsilon=1.0, got {epsilon!r}.'
            )
        self.mean, self.epsilon = mean, float(epsilon)
        self.moment_bound = np.array(np.broadcast_to(u, self.n_arms))
        self._past = [np.zeros(0) for _ in range(self.n_arms)]

    def index(self) -> np.ndarray:
        """Return the upper bounds of all arms, (K,).

        inf for arms with too few pulls, -inf for arms with enough pulls but too few observed rewards.
        """
        return self._indices(self._table[PENDING], self._asked + 1)

    def _indices(self, pending: np.ndarray, t: int) -> np.ndarray:
        told, log_inverse = self._table[TOLD].astype(int).tolist(), 2.0 * math.log(t)
        out = np.empty(self.n_arms)
        for k, (s, u) in enumerate(zip(told, self.moment_bound.tolist(), strict=True)):
            n = s + pending[k]
            bound = self._bound(n, log_inverse, u) if n > 0 else math.inf
            if bound == math.inf:
                out[k] = math.inf
            elif s == 0 or self._bound(s, log_inverse, u) == math.inf:
                out[k] = -math.inf
            else:
                out[k] = self._estimate(self._past[k][:s], log_inverse, u) + bound
        return out

    def _bound(self, n: float, log_inverse: float, u: float) -> float:
        if self.mean == "truncated":
            return _truncated_bound(n, log_inverse, u, self.epsilon)
        if self.mean == "median_of_means":
            return _median_of_means_bound(n, log_inverse, u, self.epsilon)
        return _catoni_bound(n, log_inverse, u)

    def _estimate(self, x: np.ndarray, log_inverse: float, u: float) -> float:
        if self.mean == "truncated":
            return _truncated(x, log_inverse, u, self.epsilon)
        if self.mean == "median_of_means":
            return float(np.median(_block_means(x, log_inverse)))
        return _catoni(x, log_inverse, u)

    def _only(self, arms: list[int]) -> Self:
        part = super()._only(arms)
        part._past, part.moment_bound = [self._past[k] for k in arms], self.moment_bound[arms]
        return part

    def _choose(self, rng: np.random.Generator) -> int:
        return first_choice(self.index(), self._table[TOLD] + self._table[PENDING])

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        reward = self.rewards.convert(self._table, arm, value)
        s = int(self._table[TOLD, arm])
        if s == self._past[arm].size:
            grown = np.zeros(max(16, 2 * s))
            grown[:s] = self._past[arm]
            self._past[arm] = grown
        self._past[arm][s] = reward
        record(self._table, arm, reward)

    def state(self) -> dict[str, Any]:
        """Return the state of the policy as plain arrays and numbers."""
        told = self._table[TOLD].astype(int).tolist()
        past = [p[:s] for p, s in zip(self._past, told, strict=True)]
        return super().state() | {"past": np.concatenate(past)}

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by a policy with the same arguments."""
        super().restore(state)
        ends = np.cumsum(self.counts)[:-1]
        self._past = [np.array(p) for p in np.split(np.asarray(state["past"], float), ends)]
        return self
