"""Many runs of a bandit policy in compiled code, on rewards drawn in advance.

A policy comes as a fresh Python object; the compiled loop copies its table and constants and calls the
functions the object itself would call, so that both decide alike. Arm k's i-th pull of run r gets
``rewards[r, k, i]``, whatever the policy: common random numbers.
"""

from __future__ import annotations

import functools
import math

from collections.abc import Callable

import numpy as np

from amc_pymc.bandits import eucbv, thompson, ucbcv
from amc_pymc.bandits.control_variates import leave_one_out
from amc_pymc.bandits.eucbv import EUCBV
from amc_pymc.bandits.klucb import KLUCB, kl_upper
from amc_pymc.bandits.policy import IndexPolicy, Policy, record
from amc_pymc.bandits.rewards import LOW, MEAN, PENDING, TOLD, WIDTH
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV
from amc_pymc.jit import njit


def run(
    policy: Policy,
    rewards: np.ndarray,
    checkpoints: np.ndarray,
    rng: np.random.Generator,
    controls: np.ndarray | None = None,
) -> np.ndarray:
    """How often each arm has been pulled after checkpoints[c] pulls of run r.

    Parameters
    ----------
    policy : Policy
        Fresh, with a known range of rewards; rewards outside the range are taken as they are.
    rewards : array (R, K, n)
    checkpoints : array of int (C,)
        Increasing, the last at most n.
    rng : numpy.random.Generator
        For policies that draw, consumed run after run as ``ask`` does.
    controls : array (R, K, n), optional
        One control per reward, for UCB-CV.

    Returns
    -------
    array of int (R, C, K)
    """
    checkpoints = np.asarray(checkpoints, np.int64)
    if policy.asked:
        raise ValueError(f"policy must be fresh, it was asked {policy.asked} times")
    if rewards.ndim != 3 or rewards.shape[1] != policy.n_arms:
        raise ValueError(f"rewards must be (R, {policy.n_arms}, n), got {rewards.shape}")
    if checkpoints[-1] > rewards.shape[2] or np.any(np.diff(checkpoints, prepend=0) <= 0):
        raise ValueError(f"checkpoints must increase and end by {rewards.shape[2]}")
    rewards = np.ascontiguousarray(rewards, float)
    return _runs_of(policy)(policy, rewards, checkpoints, rng, controls)


def _runs_of(policy: Policy) -> Callable[..., np.ndarray]:
    if type(policy) is ThompsonSampling:
        return _thompson
    if isinstance(policy, EUCBV):
        return _eucbv
    if isinstance(policy, KLUCB):
        return _klucb
    if isinstance(policy, UCBCV):
        return _ucbcv
    if isinstance(policy, IndexPolicy):
        return _index
    raise TypeError(f"no compiled runs for {type(policy).__name__}")


@functools.cache
def make_runs(choose: Callable) -> Callable:
    """Compile the runs of a policy that goes by an index.

    Parameters
    ----------
    choose : compiled function
        ``choose(table, t, constants) -> arm``, see ``amc_pymc.bandits.policy.index_kernels``.

    Returns
    -------
    compiled function
        ``runs(fresh, constants, rewards, checkpoints) -> counts (R, C, K)``
    """

    @njit(cache=True)
    def runs(fresh, constants, rewards, checkpoints):
        n_runs, n_arms = rewards.shape[:2]
        counts = np.empty((n_runs, checkpoints.size, n_arms), np.int64)
        for r in range(n_runs):
            table = fresh.copy()
            c = 0
            for t in range(1, checkpoints[-1] + 1):
                arm = choose(table, t, constants)
                record_now(table, arm, rewards[r, arm, int(table[TOLD, arm])])
                if t == checkpoints[c]:
                    counts[r, c] = table[TOLD].astype(np.int64)
                    c += 1
        return counts

    return runs


@njit(cache=True)
def record_now(table, arm, reward):
    """One pull asked for and told at once."""
    record(table, arm, reward)
    table[PENDING, arm] = 0.0


def _index(policy, rewards, checkpoints, rng, controls):
    runs = make_runs(policy._kernels.choose)
    return runs(policy._table, policy._constants, rewards, checkpoints)


@njit(cache=True)
def thompson_runs(fresh, alpha, beta, rewards, checkpoints, rng):
    """Runs of Thompson sampling: a number for the choice and one for the coin per pull."""
    n_runs, n_arms = rewards.shape[:2]
    counts = np.empty((n_runs, checkpoints.size, n_arms), np.int64)
    for r in range(n_runs):
        table = fresh.copy()
        c = 0
        for t in range(1, checkpoints[-1] + 1):
            arm = thompson.choose(table, alpha, beta, rng.random())
            thompson.learn(table, arm, rewards[r, arm, int(table[TOLD, arm])], rng.random())
            if t == checkpoints[c]:
                counts[r, c] = table[TOLD].astype(np.int64)
                c += 1
    return counts


def _thompson(policy, rewards, checkpoints, rng, controls):
    return thompson_runs(policy._table, policy._alpha, policy._beta, rewards, checkpoints, rng)


@njit(cache=True)
def eucbv_runs(fresh, rho, psi_t, least_epsilon, rewards, checkpoints):
    """Runs of EUCBV."""
    n_runs, n_arms = rewards.shape[:2]
    counts = np.empty((n_runs, checkpoints.size, n_arms), np.int64)
    for r in range(n_runs):
        table = fresh.copy()
        c = 0
        for t in range(1, checkpoints[-1] + 1):
            arm = eucbv.choose(table, rho, psi_t)
            reward = rewards[r, arm, int(table[TOLD, arm])]
            eucbv.learn(table, arm, reward, rho, psi_t, least_epsilon)
            table[PENDING, arm] = 0.0
            if t == checkpoints[c]:
                counts[r, c] = table[TOLD].astype(np.int64)
                c += 1
    return counts


def _eucbv(policy, rewards, checkpoints, rng, controls):
    return eucbv_runs(
        policy._table, policy._rho, policy._psi_t, policy._least_epsilon, rewards, checkpoints
    )


_SLACK = 1.0 + 1e-9


@njit(cache=True)
def klucb_choose(table, level, start):
    """KL-UCB's arm with few root searches: one for arm `start`, others if their bound is above.

    The bound of arm k exceeds x just if n_k KL(mean_k, x) < level, which takes two logarithms.
    """
    best = start
    largest = table[LOW, start] + table[WIDTH, start] * klucb_bound(table, start, level)
    for k in range(table.shape[1]):
        if k == start:
            continue
        mean = (table[MEAN, k] - table[LOW, k]) / table[WIDTH, k]
        x = (largest - table[LOW, k]) / table[WIDTH, k]
        # the slack leaves ties to the bounds themselves
        if x > 1.0 or (mean < x < 1.0 and table[TOLD, k] * divergence(mean, x) > level * _SLACK):
            continue
        value = table[LOW, k] + table[WIDTH, k] * klucb_bound(table, k, level)
        if value > largest or (value == largest and k < best):
            best, largest = k, value
    return best


@njit(cache=True)
def klucb_bound(table, k, level):
    """Bound of one arm on [0, 1]."""
    mean = (table[MEAN, k] - table[LOW, k]) / table[WIDTH, k]
    return kl_upper(mean, level / table[TOLD, k])


@njit(cache=True)
def divergence(p, q):
    """KL of Bernoulli distributions, q strictly between 0 and 1."""
    out = 0.0
    if p > 0.0:
        out += p * math.log(p / q)
    if p < 1.0:
        out += (1.0 - p) * math.log((1.0 - p) / (1.0 - q))
    return out


@njit(cache=True)
def klucb_runs(fresh, c_log, rewards, checkpoints):
    """Runs of KL-UCB."""
    n_runs, n_arms = rewards.shape[:2]
    counts = np.empty((n_runs, checkpoints.size, n_arms), np.int64)
    for r in range(n_runs):
        table = fresh.copy()
        c, arm = 0, 0
        for t in range(1, checkpoints[-1] + 1):
            if t <= n_arms:
                arm = t - 1
            else:
                log_t = math.log(max(t, 3.0))
                arm = klucb_choose(table, log_t + c_log * math.log(log_t), arm)
            record_now(table, arm, rewards[r, arm, int(table[TOLD, arm])])
            if t == checkpoints[c]:
                counts[r, c] = table[TOLD].astype(np.int64)
                c += 1
    return counts


def _klucb(policy, rewards, checkpoints, rng, controls):
    return klucb_runs(policy._table, policy._constants[0], rewards, checkpoints)


_REGRESSION, _BATCHING, _JACKKNIFE, _SPLITTING = range(4)
_ESTIMATORS = {
    "regression": _REGRESSION,
    "batching": _BATCHING,
    "jackknife": _JACKKNIFE,
    "splitting": _SPLITTING,
}


@njit(cache=True)
def ucbcv_runs(
    fresh, fresh_moments, fresh_batches, fresh_progress, estimator, alpha, rewards, deviations, checkpoints
):  # fmt: skip
    """Runs of UCB-CV with one control per arm, deviations (R, K, n, 1)."""
    n_runs, n_arms = rewards.shape[:2]
    counts = np.empty((n_runs, checkpoints.size, n_arms), np.int64)
    for r in range(n_runs):
        table, moments = fresh.copy(), fresh_moments.copy()
        batches, progress = fresh_batches.copy(), fresh_progress.copy()
        c = 0
        for t in range(1, checkpoints[-1] + 1):
            arm = ucbcv._choose(table, t, alpha, 3)
            i = int(table[TOLD, arm])
            reward, deviation = rewards[r, arm, i], deviations[r, arm, i]
            if estimator == _REGRESSION:
                ucbcv._take_regression(table, moments, arm, reward, deviation)
            elif estimator == _BATCHING:
                ucbcv._take_batching(table, batches, progress, arm, reward, deviation)
            else:
                record(table, arm, reward)
                if i + 1 >= 3:
                    past, pseudo = rewards[r, arm, : i + 1], estimator == _JACKKNIFE
                    mean, variance, df = leave_one_out(past, deviations[r, arm, : i + 1], pseudo)
                    ucbcv._enter(table, arm, mean, variance, df)
            table[PENDING, arm] = 0.0
            if t == checkpoints[c]:
                counts[r, c] = table[TOLD].astype(np.int64)
                c += 1
    return counts


def _ucbcv(policy, rewards, checkpoints, rng, controls):
    if controls is None or controls.shape != rewards.shape or policy.n_controls != 1:
        raise ValueError("UCB-CV runs need one control per reward, of the shape of rewards")
    if policy._covariances is not None:
        raise ValueError("UCB-CV runs estimate the controls' variance")
    deviations = np.ascontiguousarray((controls - policy._omega)[..., None])  # omega is (K, 1)
    return ucbcv_runs(
        policy._table,
        policy._moments,
        policy._batches,
        policy._progress,
        _ESTIMATORS[policy.estimator],
        policy.alpha,
        rewards,
        deviations,
        checkpoints,
    )
