"""UCB-CV of Verma & Hanawal (2021): confidence bounds with control variates of known mean."""

from __future__ import annotations

import math
import operator

from typing import Literal, NamedTuple, get_args

import numpy as np

from numpy.typing import ArrayLike
from scipy import special

from amc_pymc.bandits.contract import Pulls, Told
from amc_pymc.bandits.indices import IndexPolicy
from amc_pymc.bandits.moments import Moments, regress
from amc_pymc.bandits.rewards import RunningRange

type Estimator = Literal["regression", "jackknife", "splitting", "batching"]


class ControlledMean(NamedTuple):
    """Estimate of a mean.

    Attributes
    ----------
    mean : float
    variance : float
        Estimated variance of `mean`; inf if it cannot be estimated.
    df : float
        Degrees of freedom of Student's interval mean ± quantile * sqrt(variance).
    """

    mean: float
    variance: float
    df: float


def regression(seen: Moments) -> ControlledMean:
    r"""Estimate a mean reward by linear regression on control variates.

    .. math::
        \hat\mu^c = \hat\mu + \hat\beta^\top (\omega - \hat\omega), \qquad
        \hat\nu = \frac{\sum_r (X_r - \hat\mu^c - \hat\beta^\top (W_r - \omega))^2}{s - q - 1}
        \left( \frac1s + (\hat\omega - \omega)^\top S^{-1} (\hat\omega - \omega) \right)

    with :math:`\hat\beta = S^{-1} \sum_r (W_r - \hat\omega)(X_r - \hat\mu)` and S the sums of products
    of deviations of controls from their *sample* means. It is the intercept of ordinary least squares
    on controls centred at :math:`\omega`, and the interval with s - q - 1 degrees of freedom is exact
    for normal rewards and controls. The variance is then (s - 2) / (s - q - 2) (1 - rho^2) times that
    of the plain mean, so a control helps only if its correlation outweighs the lost degree of freedom.

    Verma & Hanawal's equation 4 divides by squares about omega; their Lemma 1 and their formula for
    q controls hold with squares about the sample mean, as here. See also Nelson (1990), Operations Research 38,
    974-992, doi:10.1287/opre.38.6.974.

    Parameters
    ----------
    seen : Moments
        Moments of rewards and of the deviations of controls from their known means. Controls that depend linearly
        on others are left out.
    """
    found, off = regress(seen.comoment), seen.mean[1:]
    mean, df = float(seen.mean[0] - found.coefficients @ off), seen.n - 1.0 - found.rank
    if df < 1.0:
        return ControlledMean(mean, math.inf, df)
    return ControlledMean(
        mean, found.left / df * float(1.0 / seen.n + off @ found.inverse @ off), df
    )


def leave_one_out(x: np.ndarray, deviations: np.ndarray, *, pseudo: bool) -> ControlledMean:
    r"""Estimate a mean by control variates and regressions without each observation in turn.

    With pseudo-values, this is the jackknife: the mean of :math:`s \hat\mu^c - (s - 1) \hat\mu^{c,-j}`, with
    :math:`\hat\mu^{c,-j}` by regression without observation j, and its variance is their variance over s. Verma &
    Hanawal (2021), section 5.1, has two misprints: both terms of the pseudo-value omit observation j, and intervals
    use the variance instead of its square root. See also Lavenberg, Moeller & Welch (1982),
    doi:10.1287/opre.30.1.182.

    Otherwise it is splitting: the mean of :math:`X_j + \hat\beta^{-j} (\omega - W_j)`, which is unbiased for any
    distribution because the coefficients of an observation do not depend on it (Nelson 1990,
    doi:10.1287/opre.38.6.974). Both intervals, with s - 1 degrees of freedom, are approximate.

    Parameters
    ----------
    x : array (s,)
        Rewards.
    deviations : array (s, q)
        Controls minus their known means.
    pseudo : bool

    Returns
    -------
    ControlledMean
        The variance is infinite if a single observation determines a coefficient. Time O(s q^2), by leverages.
    """
    s, off = x.size, deviations.mean(axis=0)
    centred = np.column_stack([x - x.mean(), deviations - off])
    found = regress(centred.T @ centred)
    beta, d = found.coefficients, centred[:, 1:]
    estimate = float(x.mean() - beta @ off)
    leverage = ((d @ found.inverse) * d).sum(axis=1)
    if s < found.rank + 2 or leverage.max(initial=0.0) > 1.0 - 1.0 / s - 1e-10:
        return ControlledMean(estimate, math.inf, s - 1.0)
    residual = (centred[:, 0] - d @ beta) / (1.0 - 1.0 / s - leverage)
    move = -d @ found.inverse @ off
    if pseudo:
        values = estimate + (s - 1.0) * (1.0 / s + move) * residual
    else:
        values = x - deviations @ beta + residual * (leverage - move)
    return ControlledMean(float(values.mean()), float(values.var(ddof=1)) / s, s - 1.0)


class UCBCV(IndexPolicy):
    r"""Policy with upper confidence bounds on means estimated with control variates.

    Each reward comes with q control variates, which correlate with it and have known means. The policy
    pulls the arm with the largest

    .. math:: \hat\mu^c_k + V^{(\alpha)}_{t, s} \sqrt{\hat\nu_k}

    where :math:`\hat\mu^c_k` is the mean reward corrected for the deviations of the means of the controls,
    :math:`\hat\nu_k` its estimated variance and V the 1 - 1 / t^alpha quantile of Student's distribution.
    Rewards need no known range. For normal rewards and controls, the regret is reduced by the factor
    1 - rho^2, the share of the variance that the controls do not explain.

    If the first rewards of an arm are all equal (0 or 1, for example), its interval has width zero and it
    may never be pulled again, so use this policy for continuous rewards.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    n_controls : int, default 1
        Number q of control variates per reward; with 0, the interval is that of the plain mean. Every
        arm is first pulled q + 2 times.
    control_means : float or array_like (q,) or (K, q), default 0.0
        Known means of the controls. An error in them biases the estimates.
    alpha : float, default 2.0
        The bounds hold at each t with probability at least 1 - 1 / t^alpha; the bound on regret requires
        more than 1.
    estimator : {"regression", "jackknife", "splitting", "batching"}, default "regression"
        "regression" is exact for normal variables, with s - q - 1 degrees of freedom after s pulls
        (s - 2 in Lemmas 1 and 2 of the paper, for q = 1) and O(q^3) per pull; "jackknife" and "splitting" are for
        other distributions, with s - 1 and O(s q^2); "batching" is the regression of batch means, which are closer to
        normal (Nelson 1989), with the number of full batches - q - 1.
    n_batches : int, default 30
        Minimum number of batches for `estimator="batching"`; the batch size is doubled so that between
        `n_batches` and twice as many are full.

    Notes
    -----
    With pending pulls, the variance is multiplied by told / (told + pending).

    References
    ----------
    Verma & Hanawal (2021), Stochastic multi-armed bandits with control variates. Advances in Neural
    Information Processing Systems 34. arXiv:2105.03962

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import UCBCV
    >>> rng = np.random.default_rng(1)
    >>> policy = UCBCV(2, control_means=[3.0])
    >>> for _ in range(500):
    ...     pull = policy.ask(rng)
    ...     w = rng.normal(3.0, 1.0)
    ...     policy.tell(pull, w + rng.normal((0.0, 0.5)[pull.arm], 0.1), controls=[w])
    >>> bool(policy.counts[1] > 450)
    True
    """

    name = "ucbcv"
    uses_controls = True

    def __init__(
        self,
        n_arms: int,
        *,
        n_controls: int = 1,
        control_means: ArrayLike = 0.0,
        alpha: float = 2.0,
        estimator: Estimator = "regression",
        n_batches: int = 30,
    ):
        super().__init__(n_arms, rewards=RunningRange())
        q, k = operator.index(n_controls), self.n_arms
        if q < 0:
            raise ValueError(f"n_controls must not be negative, got {q}.")
        if not 0.0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {alpha!r}.")
        known = get_args(Estimator.__value__)
        if estimator not in known:
            raise ValueError(f"estimator must be one of {known}, got {estimator!r}.")
        omega = np.asarray(control_means, float)
        if omega.shape not in ((), (q,), (k, q)) or not np.isfinite(omega).all():
            raise ValueError(
                f"control_means must be finite and a number, ({q},) or ({k}, {q}) for {q} controls "
                f"and {k} arms, got {control_means!r}."
            )
        self.n_controls, self.alpha, self.estimator = q, float(alpha), estimator
        self.n_batches = n_batches
        self._omega = np.array(np.broadcast_to(omega, (k, q)))
        self._mean, self._variance = np.full(k, math.nan), np.full(k, math.inf)
        self._df = np.zeros(k)
        # data kept for the estimator
        self._moments = [Moments(False, q) for _ in range(k)]
        self._past = [np.empty((0, 1 + q)) for _ in range(k)]

    def _indices(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return the upper bounds.

        inf for arms pulled fewer than q + 2 times, -inf for arms with enough pulls but too few observed
        rewards.
        """
        told = self._seen.told[arms, None]
        variance, df = self._variance[arms, None], np.maximum(self._df[arms, None], 1.0)
        # pending pulls count as if they had already reduced the variance
        known = np.where(variance < math.inf, variance, 0.0)
        sd = np.sqrt(known * told / np.maximum(pulls, 1.0))
        tail = min((self._asked + 1.0) ** -self.alpha, 1.0 - 1e-16)
        quantile = -special.stdtrit(df, tail)
        bound = np.where(told > 0.0, self._mean[arms, None], 0.0) + quantile * sd
        bound = np.where(variance < math.inf, bound, np.where(pulls > told, -np.inf, np.inf))
        return np.where(pulls < self.n_controls + 2, np.inf, bound)

    def _checked_controls(self, pulls: Pulls, controls: ArrayLike | None) -> np.ndarray:
        """Return the controls (n, q) of n pulls; a single control may also be a number or (n,)."""
        n, q = len(pulls), self.n_controls
        w = np.empty(0) if controls is None else np.asarray(controls, float)
        if w.size != n * q or (n > 1 and q > 0 and len(w) != n):
            raise ValueError(
                f"controls of {pulls[0]} must have shape ({n}, {q}) for {n} pulls, got {w.shape}."
            )
        w = w.reshape(n, q)
        if not np.isfinite(w).all():
            i = int(np.isfinite(w).all(axis=1).argmin())
            raise ValueError(f"controls of {pulls[i]} are {w[i].tolist()}.")
        return w

    def _receive(self, told: Told) -> None:
        super()._receive(told)
        assert told.controls is not None
        rows = np.column_stack([told.values, told.controls - self._omega[told.arms]])
        for k in np.unique(told.arms).tolist():
            found = self._estimate(k, rows[told.arms == k])
            if found is not None:
                self._mean[k], self._variance[k], self._df[k] = found

    def _estimate(self, k: int, rows: np.ndarray) -> ControlledMean | None:
        """Return the estimate after further rewards and deviations of controls, (n, 1 + q); None if too few."""
        seen = self._moments[k]
        if self.estimator != "regression":
            rows = self._past[k] = np.vstack([self._past[k], rows])
            if self.estimator == "batching":
                size = 2 ** (len(rows) // (2 * self.n_batches)).bit_length()
                full = len(rows) // size
                rows = rows[: full * size].reshape(full, size, -1).mean(axis=1)
                seen = Moments(False, self.n_controls)
            if len(rows) < self.n_controls + 2:
                return None
            if self.estimator != "batching":
                return leave_one_out(rows[:, 0], rows[:, 1:], pseudo=self.estimator == "jackknife")
        seen.include(rows[:, 0], rows[:, 1:])
        return regression(seen)
