"""UCB-CV of Verma & Hanawal (2021): confidence bounds with control variates."""

from __future__ import annotations

import math
import operator

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.contract import Pull
from amc_pymc.bandits.control_variates import (
    ControlledMean,
    as_covariance,
    known_variance_estimate,
    leave_one_out,
    moments_size,
    regression_estimate,
    regression_update,
)
from amc_pymc.bandits.policy import CompiledPolicy, kernels_of, record
from amc_pymc.bandits.rewards import N_ROWS, PENDING, TOLD, RunningRange
from amc_pymc.bandits.student import student_quantile
from amc_pymc.bandits.waiting import first_choice
from amc_pymc.engine.jit import njit

__all__ = ["UCBCV", "ucbcv_index"]

type Estimator = Literal["regression", "jackknife", "splitting", "batching"]

#: Table rows after those of all policies: estimated mean, its variance, degrees of freedom.
EST_MEAN, EST_VARIANCE, EST_DF = range(N_ROWS, N_ROWS + 3)


@njit(cache=True)
def ucbcv_index(moments: np.ndarray, n_controls: int, t: float, alpha: float) -> float:
    """Return the index of one arm by regression, in compiled code.

    Parameters
    ----------
    moments : array (3 + 2 q + q (q + 1) / 2,)
        Moments from `regression_update`: for q = 1 number of pulls, mean reward, sum of squares of
        rewards about their mean, mean of the control less its known mean, sum of products of control
        and reward about their means, sum of squares of the control about its mean.
    n_controls : int
        Number of controls q.
    t : int
        Number of this pull, from 1.
    alpha : float
        The bound holds at each t with probability at least 1 - 1 / t^alpha.

    Returns
    -------
    float
        Upper confidence bound; inf before q + 2 pulls.
    """
    if moments[0] < n_controls + 2:
        return np.inf
    mean, variance, df = regression_estimate(moments, n_controls)
    if variance == np.inf:
        return np.inf
    return mean + student_quantile(float(t) ** -alpha, df) * math.sqrt(variance)


@njit(cache=True)
def _indices(table: np.ndarray, t: float, constants: np.ndarray) -> np.ndarray:
    """Return the indices of all arms; constants = (alpha, number of first pulls)."""
    out, tail = np.empty(table.shape[1]), float(t) ** -constants[0]
    for k in range(out.size):
        told, pending = table[TOLD, k], table[PENDING, k]
        variance = table[EST_VARIANCE, k]
        if told + pending < constants[1]:
            out[k] = np.inf
        elif variance == np.inf:
            out[k] = -np.inf if pending > 0.0 else np.inf
        else:
            # pending pulls count as if they had already reduced the variance
            sd = math.sqrt(variance * told / (told + pending))
            out[k] = table[EST_MEAN, k] + student_quantile(tail, table[EST_DF, k]) * sd
    return out


@njit(cache=True)
def _choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
    pulls = np.empty(table.shape[1])
    for k in range(pulls.size):
        pulls[k] = table[TOLD, k] + table[PENDING, k]
    return first_choice(_indices(table, t, constants), pulls)


@njit(cache=True)
def _enter(table: np.ndarray, arm: int, mean: float, variance: float, df: float) -> None:
    table[EST_MEAN, arm], table[EST_VARIANCE, arm], table[EST_DF, arm] = mean, variance, df


@njit(cache=True)
def _take_regression(
    table: np.ndarray, moments: np.ndarray, arm: int, reward: float, deviations: np.ndarray
) -> None:
    record(table, arm, reward)
    regression_update(moments[arm], reward, deviations)
    mean, variance, df = regression_estimate(moments[arm], deviations.size)
    _enter(table, arm, mean, variance, df)


@njit(cache=True)
def _take_known(
    table: np.ndarray,
    moments: np.ndarray,
    arm: int,
    reward: float,
    deviations: np.ndarray,
    covariances: np.ndarray,
) -> None:
    record(table, arm, reward)
    regression_update(moments[arm], reward, deviations)
    found = known_variance_estimate(moments[arm], deviations.size, covariances[arm])
    _enter(table, arm, found[0], found[1], found[2])


@njit(cache=True)
def batch_update(
    batches: np.ndarray, progress: np.ndarray, reward: float, deviations: np.ndarray
) -> bool:
    """Add an observation to running batches, which are merged in pairs when all are full.

    Parameters
    ----------
    batches : array (2 b, 1 + q), changed in place
        Means of full batches: reward, controls less their known means.
    progress : array (3 + 1 + q,), changed in place
        Number of full batches, their size, number of observations in the open batch, their sums. Before
        the first observation, the size is 1 and all others are zero.

    Returns
    -------
    bool
        Whether a batch became full.
    """
    q = deviations.size
    progress[2] += 1.0
    progress[3] += reward
    for j in range(q):
        progress[4 + j] += deviations[j]
    if progress[2] < progress[1]:
        return False
    full = int(progress[0])
    progress[0], progress[2] = full + 1.0, 0.0
    for j in range(1 + q):
        batches[full, j] = progress[3 + j] / progress[1]
        progress[3 + j] = 0.0
    if full + 1 == batches.shape[0]:
        half = (full + 1) // 2
        for i in range(half):
            for j in range(1 + q):
                batches[i, j] = 0.5 * (batches[2 * i, j] + batches[2 * i + 1, j])
        progress[0], progress[1] = half, 2.0 * progress[1]
    return True


@njit(cache=True)
def batch_estimate(batches: np.ndarray, progress: np.ndarray) -> tuple[float, float, float]:
    """Return mean, variance and df of a regression on the means of full batches."""
    q = batches.shape[1] - 1
    moments = np.zeros(moments_size(q))
    for i in range(int(progress[0])):
        regression_update(moments, batches[i, 0], batches[i, 1:])
    return regression_estimate(moments, q)


@njit(cache=True)
def _take_batching(
    table: np.ndarray,
    batches: np.ndarray,
    progress: np.ndarray,
    arm: int,
    reward: float,
    deviations: np.ndarray,
) -> None:
    record(table, arm, reward)
    if batch_update(batches[arm], progress[arm], reward, deviations):
        mean, variance, df = batch_estimate(batches[arm], progress[arm])
        _enter(table, arm, mean, variance, df)


class UCBCV(CompiledPolicy):
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
    control_variance : float or array_like (q,), (q, q) or (K, q, q), optional
        Known variances or covariance matrices of the controls, for the coefficients of
        `estimator="regression"`, see :func:`known_variance`. By default they are estimated, which is
        better if correlations are high.
    alpha : float, default 2.0
        The bounds hold at each t with probability at least 1 - 1 / t^alpha; the bound on regret requires
        more than 1.
    estimator : {"regression", "jackknife", "splitting", "batching"}, default "regression"
        :func:`regression`, exact for normal variables, with s - q - 1 degrees of freedom after s pulls
        (s - 2 in Lemmas 1 and 2 of the paper, for q = 1) and O(q^3) per pull;
        :func:`jackknife` and :func:`splitting`, for other distributions, with s - 1 and O(s q^2);
        :func:`batching`, with the number of full batches - q - 1.
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
    _kernels = kernels_of(_indices, _choose)
    _estimators: ClassVar[tuple[str, ...]] = get_args(Estimator.__value__)

    def __init__(
        self,
        n_arms: int,
        *,
        n_controls: int = 1,
        control_means: ArrayLike = 0.0,
        control_variance: ArrayLike | None = None,
        alpha: float = 2.0,
        estimator: Estimator = "regression",
        n_batches: int = 30,
    ):
        super().__init__(n_arms, rewards=RunningRange(), extra_rows=3)
        q, k = operator.index(n_controls), self.n_arms
        if q < 0:
            raise ValueError(f"n_controls must not be negative, got {q}.")
        if not 0.0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {alpha!r}.")
        if estimator not in self._estimators:
            raise ValueError(f"estimator must be one of {self._estimators}, got {estimator!r}.")
        if estimator == "batching" and n_batches < q + 2:
            raise ValueError(f"n_batches must be at least q + 2 = {q + 2}, got {n_batches!r}.")
        omega = np.asarray(control_means, float)
        if omega.shape not in ((), (q,), (k, q)) or not np.isfinite(omega).all():
            raise ValueError(
                f"control_means must be finite and a number, ({q},) or ({k}, {q}) for {q} controls "
                f"and {k} arms, got {control_means!r}."
            )
        self.n_controls, self.alpha, self.estimator = q, float(alpha), estimator
        self._constants = np.array([self.alpha, q + 2.0])
        self._omega = np.array(np.broadcast_to(omega, (k, q)))
        self._covariances = self._known(control_variance)
        self._table[EST_MEAN], self._table[EST_VARIANCE] = math.nan, math.inf
        # data kept for the estimator
        self._moments = np.zeros((k, moments_size(q)))
        self._batches = np.zeros((k, 2 * n_batches if estimator == "batching" else 0, 1 + q))
        self._progress = np.zeros((k, 4 + q))
        self._progress[:, 1] = 1.0
        self._past = [np.zeros((0, 1 + q)) for _ in range(k)]
        self._stale: set[int] = set()

    def _known(self, control_variance: ArrayLike | None) -> np.ndarray | None:
        if control_variance is None:
            return None
        if self.estimator != "regression":
            raise ValueError(
                f'control_variance is used by estimator="regression" only, got {self.estimator!r}.'
            )
        v, k = np.asarray(control_variance, float), self.n_arms
        if v.ndim == 3:
            if v.shape[0] != k:
                raise ValueError(f"control_variance is given for {v.shape[0]} arms, there are {k}.")
            return np.stack([as_covariance(one, self.n_controls) for one in v])
        return np.stack([as_covariance(v, self.n_controls)] * k)

    @property
    def estimates(self) -> ControlledMean:
        """Controlled means of all arms, each field (K,); without an estimate, nan with variance inf."""
        self._refresh()
        mean, variance, df = self._table[[EST_MEAN, EST_VARIANCE, EST_DF]]
        return ControlledMean(np.where(variance < math.inf, mean, math.nan), variance, df)  # type: ignore[arg-type]

    def index(self) -> np.ndarray:
        """Return the upper bounds of all arms, (K,).

        inf for arms pulled fewer than q + 2 times, -inf for arms with enough pulls but too few observed
        rewards.
        """
        self._refresh()
        return super().index()

    def _choose(self, rng: np.random.Generator) -> int:
        self._refresh()
        return super()._choose(rng)

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        self._refresh()
        return super()._choose_many(rng, n)

    def _only(self, arms: list[int]) -> Self:
        self._refresh()
        return super()._only(arms)

    def _checked_controls(self, pulls: Sequence[Pull], controls: ArrayLike | None) -> np.ndarray:
        """Return the controls (n, q) of n pulls; a single control may also be a number or (n,)."""
        n, q = len(pulls), self.n_controls
        w = np.empty(0) if controls is None else np.asarray(controls, float)
        if w.size != n * q or (n > 1 and q > 0 and len(w) != n):
            got = "none" if controls is None else f"shape {w.shape}"
            whose, shape = (f"{n} pulls, from {pulls[0]} on,", f"({n}, {q})")
            if n == 1:
                whose, shape = str(pulls[0]), f"({q},)"
            raise ValueError(f"controls of {whose} must have shape {shape}, got {got}.")
        w = w.reshape(n, q)
        if not math.isfinite(w.sum()):
            i = int(np.isfinite(w).all(axis=1).argmin())
            raise ValueError(f"controls of {pulls[i]} are {w[i].tolist()}.")
        return w

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        assert controls is not None
        reward = self.rewards.convert(self._table, arm, value)
        deviations = controls - self._omega[arm]
        if self.estimator == "batching":
            _take_batching(self._table, self._batches, self._progress, arm, reward, deviations)
        elif self.estimator != "regression":
            self._remember(arm, reward, deviations)
        elif self._covariances is None:
            _take_regression(self._table, self._moments, arm, reward, deviations)
        else:
            _take_known(self._table, self._moments, arm, reward, deviations, self._covariances)

    def _remember(self, arm: int, reward: float, deviations: np.ndarray) -> None:
        past, s = self._past[arm], int(self._table[TOLD, arm])
        if s == len(past):
            grown = np.zeros((max(16, 2 * s), 1 + self.n_controls))
            grown[:s] = past
            past = self._past[arm] = grown
        past[s, 0], past[s, 1:] = reward, deviations
        record(self._table, arm, reward)
        self._stale.add(arm)

    def _refresh(self) -> None:
        """Update jackknife and splitting estimates."""
        for arm in self._stale:
            s = int(self._table[TOLD, arm])
            rewards, deviations = self._past[arm][:s, 0], self._past[arm][:s, 1:]
            if s >= self.n_controls + 2:
                found = leave_one_out(rewards, deviations, self.estimator == "jackknife")
                self._table[[EST_MEAN, EST_VARIANCE, EST_DF], arm] = found
        self._stale.clear()

    def state(self) -> dict[str, Any]:
        """Return the state of the policy as plain arrays and numbers."""
        self._refresh()
        told = self._table[TOLD].astype(int).tolist()
        return super().state() | {
            "moments": self._moments.copy(),
            "batches": self._batches.copy(),
            "progress": self._progress.copy(),
            "past": np.concatenate([p[:s] for p, s in zip(self._past, told, strict=True)]),
        }

    def restore(self, state: dict[str, Any]) -> Self:
        """Restore a state saved by a policy with the same arguments."""
        for name in ("moments", "batches", "progress"):
            have, kept = np.asarray(state[name], float), getattr(self, f"_{name}")
            if have.shape != kept.shape:
                raise ValueError(
                    f"state has {name} of shape {have.shape}, this policy's are {kept.shape}."
                )
        super().restore(state)
        self._moments = np.array(state["moments"], float)
        self._batches = np.array(state["batches"], float)
        self._progress = np.array(state["progress"], float)
        ends = np.cumsum(self.counts)[:-1]
        self._past = [np.array(p) for p in np.split(np.asarray(state["past"], float), ends)]
        self._stale = set()
        return self
