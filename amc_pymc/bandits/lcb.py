"""Allocation rule for estimators by a lower confidence bound of log cost plus log variance."""

from __future__ import annotations

import math

from typing import Literal

import numpy as np

from amc_pymc.bandits.contract import Told
from amc_pymc.bandits.indices import IndexPolicy
from amc_pymc.bandits.moments import Moments
from amc_pymc.bandits.rewards import RewardScale

#: Strength of the shrinkage of the kurtosis to that of a Gaussian, in pulls.
_KURTOSIS_PULLS = 10.0
#: Initial pulls of each arm.
_FIRST = 3
#: Largest number of pending pulls over observed ones, and observed ones from which it is not limited.
_GROWTH, _WELL_KNOWN = 4.0, 30
#: Relative rounding error of a value.
_ROUNDING = 2.0**-52


class LCB(IndexPolicy):
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
    :math:`\mathrm{se}_k - \ell_k`. The standard error of :math:`\log v_k` is
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

    Notes
    -----
    Every arm is first pulled three times. Of many arms with few pulls some look far better than they are, so a batch is
    spread over those that look best: an arm with fewer than 30 observed pulls has at most four times as many pending ones.
    ``means`` and ``variances`` are those of the observed values or, if these are logarithms, of the finite ones.

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

    def __init__(self, n_arms: int, *, values: Literal["log", "natural"] = "log"):
        if values not in ("log", "natural"):
            raise ValueError(f'values must be "log" or "natural", got {values!r}.')
        self.values = values
        super().__init__(n_arms, rewards=RewardScale())
        self.rewards.log = values == "log"
        self._moments = [Moments(self.rewards.log) for _ in range(self.n_arms)]
        self._total_costs = np.zeros(self.n_arms)
        self._loss, self._spread = np.zeros(self.n_arms), np.zeros(self.n_arms)

    def _summaries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log = self.rewards.log
        found = [m.logs if log else (m.n, m.mean[0], m.comoment[0, 0]) for m in self._moments]
        n, mean, squares = np.array(found).T
        return n, mean, squares

    @property
    def costs(self) -> np.ndarray:
        """Mean costs, (K,), nan for arms without observations."""
        told = self._seen.told
        return np.where(told > 0.0, self._total_costs / np.maximum(told, 1.0), np.nan)

    @property
    def losses(self) -> np.ndarray:
        """Log of mean cost times (relative) variance, (K,), nan for arms with fewer than two values."""
        return np.where(self._seen.told > 1.0, self._loss, np.nan)

    def _indices(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return minus the lower confidence bounds of the losses.

        inf for arms with fewer than three pulls, -inf for arms with fewer than two observed values.
        """
        told = self._seen.told[arms, None]
        spread = self._spread[arms, None] / np.sqrt(np.maximum(pulls - 1.0, 1.0))
        bound = np.where(told < 2.0, -np.inf, spread - self._loss[arms, None])
        return np.where(pulls < _FIRST, np.inf, bound)

    def _ranks(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Put arms at the limit of their pending pulls behind the others, and those without values last."""
        told = self._seen.told[arms, None]
        crowded = (pulls - told >= _GROWTH * told) & (told < _WELL_KNOWN)
        rank = np.where(told < 2.0, 2.0, 1.0 * crowded)
        return np.where(pulls < _FIRST, 0.0, rank)

    def _receive(self, told: Told) -> None:
        arms, new = told.arms, np.bincount(told.arms, minlength=self.n_arms)
        self._seen.told[:] += new
        self._seen.pending[:] -= new
        self._total_costs += np.bincount(arms, told.costs, self.n_arms)
        for k in np.unique(arms).tolist():
            self._moments[k].include(told.values[arms == k])
            if self._seen.told[k] > 1.0:
                summary = self._log_summary if self.values == "log" else self._natural_summary
                loss, self._spread[k] = summary(self._moments[k])
                cost = self._total_costs[k] / self._seen.told[k]
                self._loss[k] = loss + math.log(max(cost, 1e-300))

    @staticmethod
    def _variance(n: float, squares: float, size: float) -> float:
        """Return the variance of n values, at least that of rounding."""
        least = (_ROUNDING * size) ** 2
        return least if n < 2.0 else max(squares / (n - 1.0), least)

    def _log_summary(self, seen: Moments) -> tuple[float, float]:
        """Return the log relative variance, and sqrt(n - 1) times its standard error."""
        told, (finite, mean, squares) = seen.n, seen.logs.tolist()
        # If all values are zero, assume one more value that is not.
        present = finite / told if finite > 0.0 else 1.0 / (told + 1.0)
        variance = self._variance(finite, squares, max(abs(mean), 1.0))
        # relvar + 1 = exp(variance) / present; `share` = relvar / (relvar + 1).
        share = (1.0 - present) - present * math.expm1(-variance)
        log_relvar = variance - math.log(present) + math.log(share)
        squared = 2.0 * (variance / share) ** 2 * (told - 1.0) / max(finite - 1.0, 1.0)
        squared += (1.0 - present) / present / share**2
        if seen.comoment[0, 0] > 0.0:
            empirical = math.log(seen.comoment[0, 0] / (told - 1.0)) - 2.0 * math.log(seen.mean[0])
            log_relvar = max(log_relvar, empirical)
        return log_relvar, math.sqrt(squared)

    def _natural_summary(self, seen: Moments) -> tuple[float, float]:
        """Return the log variance, and sqrt(n - 1) times its standard error."""
        n, squares, kurtosis = seen.n, float(seen.comoment[0, 0]), seen.kurtosis()
        kurtosis = (n * kurtosis + 3.0 * _KURTOSIS_PULLS) / (n + _KURTOSIS_PULLS)
        if not 3.0 <= kurtosis < math.inf:
            kurtosis = 3.0
        variance = self._variance(n, squares, max(abs(float(seen.mean[0])), 1e-130))
        return math.log(variance), math.sqrt(kurtosis - 1.0)
