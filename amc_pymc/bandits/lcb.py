"""Allocation rule for estimators by a lower confidence bound of log cost plus log variance."""

from __future__ import annotations

import math

from typing import Any, Literal

import numpy as np

from amc_pymc.bandits.policy import CompiledPolicy, kernels_of
from amc_pymc.bandits.rewards import LOW, MEAN, N_ROWS, PENDING, SQUARES, TOLD, WIDTH
from amc_pymc.engine.jit import njit

__all__ = ["LCB", "lcb_index"]

#: Table rows after those of all policies. MEAN and SQUARES are moments of the values, or of the finite log
#: values; FINITE is their number. COST is the sum of costs. For log values, TOP is the largest, and WMEAN
#: and WSQUARES are mean and sum of squared deviations of the values over exp(TOP), including zeros. For
#: natural values, CUBES and FOURTHS are sums of powers of deviations. LOSS and SPREAD enter the index.
FINITE, COST, TOP, WMEAN, WSQUARES, LOSS, SPREAD = range(N_ROWS, N_ROWS + 7)
CUBES, FOURTHS = WMEAN, WSQUARES
#: Strength of the shrinkage of the kurtosis to that of a Gaussian, in pulls.
KURTOSIS_PULLS = 10.0
#: Number of observed pulls from which the pending pulls of an arm are not limited.
WELL_KNOWN = 30
#: Relative rounding error of a value.
ROUNDING = 2.0**-52


@njit(cache=True)
def add_log(table: np.ndarray, k: int, x: float) -> None:
    """Add the logarithm of a value."""
    table[PENDING, k] -= 1.0
    table[TOLD, k] += 1.0
    w = 0.0
    if x > -np.inf:
        table[FINITE, k] += 1.0
        d = x - table[MEAN, k]
        table[MEAN, k] += d / table[FINITE, k]
        table[SQUARES, k] += d * (x - table[MEAN, k])
        if x > table[TOP, k]:
            shrink = math.exp(table[TOP, k] - x)
            table[WMEAN, k] *= shrink
            table[WSQUARES, k] *= shrink**2
            table[TOP, k] = x
        w = math.exp(x - table[TOP, k])
    d = w - table[WMEAN, k]
    table[WMEAN, k] += d / table[TOLD, k]
    table[WSQUARES, k] += d * (w - table[WMEAN, k])


@njit(cache=True)
def add_natural(table: np.ndarray, k: int, x: float) -> None:
    """Add a value to the central moments up to the fourth (Pébay 2008)."""
    table[PENDING, k] -= 1.0
    table[TOLD, k] += 1.0
    table[FINITE, k] += 1.0
    n = table[TOLD, k]
    d = x - table[MEAN, k]
    e = d / n
    f = d * e * (n - 1.0)
    table[MEAN, k] += e
    table[FOURTHS, k] += (
        f * e * e * (n * n - 3.0 * n + 3.0)
        + 6.0 * e * e * table[SQUARES, k]
        - 4.0 * e * table[CUBES, k]
    )
    table[CUBES, k] += f * e * (n - 2.0) - 3.0 * e * table[SQUARES, k]
    table[SQUARES, k] += f


@njit(cache=True)
def variance_of(table: np.ndarray, k: int, unit: float, prior_variance: float) -> float:
    """Return the variance of values or finite log values; the prior counts as one more pull.

    The result is at least the squared rounding error of the mean, or of a number of size `unit`.
    """
    n = table[FINITE, k]
    weight = 1.0 if prior_variance > 0.0 else 0.0
    least = (ROUNDING * max(abs(table[MEAN, k]), unit)) ** 2
    if n + weight < 2.0:
        return least
    return max((table[SQUARES, k] + prior_variance) / (n - 1.0 + weight), least)


@njit(cache=True)
def log_summary(table: np.ndarray, k: int, prior_variance: float) -> tuple[float, float]:
    """Return the log relative variance of an arm from log values, and sqrt(n - 1) times its standard error."""
    told, finite = table[TOLD, k], table[FINITE, k]
    # If all values are zero, assume one more value that is not.
    present = finite / told if finite > 0.0 else 1.0 / (told + 1.0)
    variance = variance_of(table, k, 1.0, prior_variance)
    # relvar + 1 = exp(variance) / present; `share` = relvar / (relvar + 1).
    share = (1.0 - present) - present * math.expm1(-variance)
    log_relvar = variance - math.log(present) + math.log(share)
    squared = 2.0 * (variance / share) ** 2 * (told - 1.0) / max(finite - 1.0, 1.0)
    squared += (1.0 - present) / present / share**2
    if table[WSQUARES, k] > 0.0:
        empirical = math.log(table[WSQUARES, k] / (told - 1.0)) - 2.0 * math.log(table[WMEAN, k])
        log_relvar = max(log_relvar, empirical)
    return log_relvar, math.sqrt(squared)


@njit(cache=True)
def natural_summary(table: np.ndarray, k: int, prior_variance: float) -> tuple[float, float]:
    """Return the log variance of an arm from natural values, and sqrt(n - 1) times its standard error."""
    n, kurtosis = table[TOLD, k], 3.0
    if table[SQUARES, k] > 0.0:
        kurtosis = n * table[FOURTHS, k] / table[SQUARES, k] ** 2
        kurtosis = (n * kurtosis + 3.0 * KURTOSIS_PULLS) / (n + KURTOSIS_PULLS)
        if not 3.0 <= kurtosis < np.inf:
            kurtosis = 3.0
    return math.log(variance_of(table, k, 1e-130, prior_variance)), math.sqrt(kurtosis - 1.0)


@njit(cache=True)
def summarise(table: np.ndarray, k: int, log: bool, prior_variance: float) -> None:
    """Update loss and spread of an arm."""
    if table[TOLD, k] < 2.0:
        return
    if log:
        loss, spread = log_summary(table, k, prior_variance)
    else:
        loss, spread = natural_summary(table, k, prior_variance)
    table[LOSS, k] = loss + math.log(max(table[COST, k] / table[TOLD, k], 1e-300))
    table[SPREAD, k] = spread


@njit(cache=True)
def tell_one(
    table: np.ndarray, k: int, x: float, cost: float | np.ndarray, log: bool, prior_variance: float
) -> None:
    """Add one value and its cost."""
    if log:
        add_log(table, k, x)
    else:
        add_natural(table, k, x)
    table[COST, k] += cost
    summarise(table, k, log, prior_variance)


@njit(cache=True)
def tell_many(
    table: np.ndarray,
    arms: np.ndarray,
    values: np.ndarray,
    costs: np.ndarray,
    log: bool,
    prior_variance: float,
) -> None:
    """Add many values and their costs."""
    for i in range(arms.size):
        if log:
            add_log(table, arms[i], values[i])
        else:
            add_natural(table, arms[i], values[i])
        table[COST, arms[i]] += costs[i]
    for k in range(table.shape[1]):
        summarise(table, k, log, prior_variance)


@njit(cache=True)
def lcb_index(n: float, loss: float, spread: float, z: float) -> float:
    """Return minus the lower confidence bound of a loss with standard error spread / sqrt(n - 1)."""
    return z * spread / math.sqrt(n - 1.0) - loss


@njit(cache=True)
def indices(table: np.ndarray, t: float, constants: np.ndarray) -> np.ndarray:
    """Return the indices of all arms: inf below `min_pulls`, -inf with fewer than two observed values.

    constants = (z, min_pulls, growth).
    """
    z, min_pulls = constants[0], constants[1]
    out = np.empty(table.shape[1])
    for k in range(out.size):
        n = table[TOLD, k] + table[PENDING, k]
        if n < min_pulls:
            out[k] = np.inf
        elif table[TOLD, k] < 2.0:
            out[k] = -np.inf
        else:
            out[k] = lcb_index(n, table[LOSS, k], table[SPREAD, k], z)
    return out


@njit(cache=True)
def choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
    """Choose the next arm: the one with fewest pulls if below `min_pulls`, else the best below its pending limit."""
    z, min_pulls, growth = constants[0], constants[1], constants[2]
    rarest, least = 0, np.inf
    best, largest = -1, -np.inf
    crowded, crowded_largest = -1, -np.inf
    for k in range(table.shape[1]):
        told, pending = table[TOLD, k], table[PENDING, k]
        if told + pending < least:
            rarest, least = k, told + pending
        if told < 2.0:
            continue
        value = lcb_index(told + pending, table[LOSS, k], table[SPREAD, k], z)
        if pending < growth * told or told >= WELL_KNOWN:
            if best < 0 or value > largest:
                best, largest = k, value
        elif crowded < 0 or value > crowded_largest:
            crowded, crowded_largest = k, value
    if least < min_pulls:
        return rarest
    if best >= 0:
        return best
    return crowded if crowded >= 0 else rarest


class _Values:
    """Reward scale that keeps values unchanged."""

    def __init__(self, log: bool):
        self._log = log

    def begin(self, table: np.ndarray) -> None:
        table[LOW], table[WIDTH] = 0.0, 1.0

    def usable(self, reward: float) -> bool:
        return reward < math.inf if self._log else math.isfinite(reward)

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        return reward

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class LCB(CompiledPolicy):
    r"""Policy for estimators by the lower confidence bound of log cost plus log variance.

    The arms are unbiased estimators of the same quantity. The policy observes their values and costs
    instead of rewards. The best arm has the smallest product of mean cost and variance, whose logarithm
    is the loss,

    .. math::
        \ell_k = \log \bar D_k + \log v_k, \qquad
        v_k = \max\{\hat v_k, e^{s_k^2} - 1\} \text{ for log values},\quad
        v_k = \hat\sigma_k^2 \text{ for natural ones},

    with the variance :math:`s_k^2` of the log values and the empirical relative variance
    :math:`\hat v_k`. The term in :math:`s_k` guards against heavy-tailed weights: before the tail has been
    observed, the empirical variance is far too small, and the worst arm looks best. The index is
    :math:`z\,\mathrm{se}_k - \ell_k`. The standard error of :math:`\log v_k` is
    :math:`\sqrt{2 / (n_k - 1)}` propagated from :math:`s_k^2` to :math:`e^{s_k^2} - 1`, or
    :math:`\sqrt{(\kappa_k - 1) / (n_k - 1)}` with the kurtosis of natural values, shrunk towards 3 and at
    least 3. Pending pulls count in :math:`n_k`. Future costs are assumed equal to the mean cost so far.

    Values of zero, that is, log values of minus infinity, are allowed: with a share :math:`p_0` of zeros,
    relative variances plus one are divided by :math:`1 - p_0`.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    values : {"log", "natural"}, default "log"
        Whether values are reported as logarithms of non-negative values of any size, or as values of any
        sign, whose deviations from their mean should be between 1e-70 and 1e70.
    z : float, default 1.0
        Number of standard errors by which the bound is below the loss.
    min_pulls : int, default 3
        Initial pulls of each arm, at least 2.
    growth : float, default 4.0
        Maximum number of pending pulls of an arm, as a multiple of its observed pulls if these are fewer than 30.
        Some of many arms with few pulls look far better than they are, so a batch is spread over
        those that look best.
    prior_sd : float, optional
        Prior standard deviation of the (log) values; counts as one more pull of each arm.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import LCB
    >>> rng = np.random.default_rng(1)
    >>> policy = LCB(2)
    >>> for _ in range(200):
    ...     pull = policy.ask(rng)
    ...     s = (2.0, 0.5)[pull.arm]
    ...     policy.tell(pull, rng.normal(-0.5 * s**2, s), cost=(1.0, 4.0)[pull.arm])
    >>> bool(policy.counts[1] > 180)
    True
    """

    name = "lcb"
    uses_costs = True
    _kernels = kernels_of(indices, choose)

    def __init__(
        self,
        n_arms: int,
        *,
        values: Literal["log", "natural"] = "log",
        z: float = 1.0,
        min_pulls: int = 3,
        growth: float = 4.0,
        prior_sd: float | None = None,
    ):
        if values not in ("log", "natural"):
            raise ValueError(f'values must be "log" or "natural", got {values!r}.')
        self.values = values
        self._log = values == "log"
        super().__init__(n_arms, rewards=_Values(self._log), extra_rows=7)
        if not 0.0 <= z < math.inf:
            raise ValueError(f"z must be finite and not negative, got {z!r}.")
        if not 2 <= min_pulls < math.inf:
            raise ValueError(f"min_pulls must be at least 2 and finite, got {min_pulls!r}.")
        if not 0.0 < growth <= math.inf:
            raise ValueError(f"growth must be positive, got {growth!r}.")
        if prior_sd is not None and not 0.0 < prior_sd < math.inf:
            raise ValueError(f"prior_sd must be positive and finite, or None, got {prior_sd!r}.")
        self._constants = np.array([z, min_pulls, growth], float)
        self._prior_variance = 0.0 if prior_sd is None else float(prior_sd) ** 2
        if self._log:
            self._table[TOP] = -np.inf

    @property
    def means(self) -> np.ndarray:
        """Means of the observed values or finite log values, (K,), nan for arms without any."""
        return np.where(self._table[FINITE] > 0.0, self._table[MEAN], np.nan)

    @property
    def variances(self) -> np.ndarray:
        """Variances (divisor n) of the observed values or finite log values, (K,), nan for arms without any."""
        n = self._table[FINITE]
        return np.where(n > 0.0, self._table[SQUARES] / np.maximum(n, 1.0), np.nan)

    @property
    def costs(self) -> np.ndarray:
        """Mean costs, (K,), nan for arms without observations."""
        told = self._table[TOLD]
        return np.where(told > 0.0, self._table[COST] / np.maximum(told, 1.0), np.nan)

    @property
    def losses(self) -> np.ndarray:
        """Log of mean cost times (relative) variance, (K,), nan for arms with fewer than two values."""
        return np.where(self._table[TOLD] > 1.0, self._table[LOSS], np.nan)

    def index(self) -> np.ndarray:
        """Return minus the lower confidence bounds of the losses, (K,).

        inf for arms with fewer than `min_pulls` pulls, -inf for arms with fewer than two observed values.
        """
        return super().index()

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        tell_one(self._table, arm, value, cost, self._log, self._prior_variance)

    def _receive_many(
        self,
        arms: np.ndarray,
        values: np.ndarray,
        costs: np.ndarray,
        coins: np.ndarray,
        controls: np.ndarray | None,
    ) -> None:
        tell_many(self._table, arms, values, costs, self._log, self._prior_variance)
