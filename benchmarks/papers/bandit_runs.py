"""Many runs of a bandit policy in compiled code, on rewards drawn in advance.

A policy comes as a fresh Python object. The compiled run takes a copy of its table and calls the functions of the package that the object itself calls in ``ask`` and ``tell``, which take ten
times as long in Python. Arm k's i-th pull of run r gets
``rewards[r, k, i]``, whatever the policy: common random numbers.
"""

from __future__ import annotations

import functools

from collections.abc import Callable
from typing import Any

import numpy as np

from amc_pymc.bandits import thompson, ucbcv
from amc_pymc.bandits.control_variates import leave_one_out
from amc_pymc.bandits.policy import IndexPolicy, Policy, record
from amc_pymc.bandits.rewards import PENDING, TOLD
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV
from amc_pymc.engine.jit import njit
from benchmarks.papers import eucbv
from benchmarks.papers.eucbv import EUCBV


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
    if isinstance(policy, UCBCV):
        return _ucbcv(policy, rewards, checkpoints, controls)
    choose, learn, constants = _played(policy)
    play, counts = make_play(choose, learn), _counts(rewards, checkpoints)
    for own, pulled in zip(rewards, counts, strict=True):
        play(policy._table.copy(), constants, own, checkpoints, pulled, rng)
    return counts


def _counts(rewards: np.ndarray, checkpoints: np.ndarray) -> np.ndarray:
    return np.empty((len(rewards), checkpoints.size, rewards.shape[1]), np.int64)


def _played(policy: Policy) -> tuple[Callable, Callable, Any]:
    """The package's functions that choose an arm and learn from a reward, with their constants."""
    if type(policy) is ThompsonSampling:
        return _thompson_choose, _thompson_learn, (policy._alpha, policy._beta)
    if isinstance(policy, EUCBV):
        constants = (policy._constants, policy._least_epsilon)
        return _eucbv_choose, _eucbv_learn, constants
    if isinstance(policy, IndexPolicy):
        return _index_choose(policy._kernels.choose), _index_learn, policy._constants
    raise TypeError(f"no compiled runs for {type(policy).__name__}")


@functools.cache
def make_play(choose: Callable, learn: Callable) -> Callable:
    """Compile one run of a policy.

    Parameters
    ----------
    choose : compiled function
        ``choose(table, t, constants, rng) -> arm``
    learn : compiled function
        ``learn(table, arm, reward, constants, rng)``

    Returns
    -------
    compiled function
        ``play(table, constants, rewards (K, n), checkpoints (C,), counts (C, K), rng)``, which fills
        ``counts`` and changes ``table``.
    """

    @njit(cache=True)
    def play(table, constants, rewards, checkpoints, counts, rng):
        c = 0
        for t in range(1, checkpoints[-1] + 1):
            arm = choose(table, t, constants, rng)
            learn(table, arm, rewards[arm, int(table[TOLD, arm])], constants, rng)
            table[PENDING, arm] = 0.0  # asked for and told at once
            if t == checkpoints[c]:
                enter_counts(table, counts, c)
                c += 1

    return play


@njit(cache=True)
def enter_counts(table, counts, c):
    """Write how often each arm has been pulled into counts[c]."""
    for arm in range(counts.shape[1]):
        counts[c, arm] = int(table[TOLD, arm])


@functools.cache
def _index_choose(kernel: Callable) -> Callable:
    @njit(cache=True)
    def choose(table, t, constants, rng):
        return kernel(table, t, constants)

    return choose


@njit(cache=True)
def _index_learn(table, arm, reward, constants, rng):
    record(table, arm, reward)


@njit(cache=True)
def _thompson_choose(table, t, constants, rng):
    return thompson.choose(table, constants[0], constants[1], rng.random())


@njit(cache=True)
def _thompson_learn(table, arm, reward, constants, rng):
    thompson.learn(table, arm, reward, rng.random())


@njit(cache=True)
def _eucbv_choose(table, t, constants, rng):
    return eucbv.choose(table, t, constants[0])


@njit(cache=True)
def _eucbv_learn(table, arm, reward, constants, rng):
    eucbv.learn(table, arm, reward, constants[0][0], constants[0][1], constants[1])


_REGRESSION, _BATCHING, _JACKKNIFE, _SPLITTING = range(4)
_ESTIMATORS = {
    "regression": _REGRESSION,
    "batching": _BATCHING,
    "jackknife": _JACKKNIFE,
    "splitting": _SPLITTING,
}


@njit(cache=True)
def ucbcv_play(
    table, moments, batches, progress, estimator, constants, rewards, deviations, checkpoints, counts
):  # fmt: skip
    """One run of UCB-CV with one control per arm, deviations (K, n, 1); fills counts (C, K)."""
    c = 0
    for t in range(1, checkpoints[-1] + 1):
        arm = ucbcv._choose(table, t, constants)
        i = int(table[TOLD, arm])
        reward, deviation = rewards[arm, i], deviations[arm, i]
        if estimator == _REGRESSION:
            ucbcv._take_regression(table, moments, arm, reward, deviation)
        elif estimator == _BATCHING:
            ucbcv._take_batching(table, batches, progress, arm, reward, deviation)
        else:
            record(table, arm, reward)
            if i + 1 >= 3:
                past, pseudo = rewards[arm, : i + 1], estimator == _JACKKNIFE
                mean, variance, df = leave_one_out(past, deviations[arm, : i + 1], pseudo)
                ucbcv._enter(table, arm, mean, variance, df)
        table[PENDING, arm] = 0.0
        if t == checkpoints[c]:
            enter_counts(table, counts, c)
            c += 1


def _ucbcv(policy, rewards, checkpoints, controls):
    if controls is None or controls.shape != rewards.shape or policy.n_controls != 1:
        raise ValueError("UCB-CV runs need one control per reward, of the shape of rewards")
    if policy._covariances is not None:
        raise ValueError("UCB-CV runs estimate the controls' variance")
    deviations = np.ascontiguousarray((controls - policy._omega)[..., None])  # omega is (K, 1)
    estimator, counts = _ESTIMATORS[policy.estimator], _counts(rewards, checkpoints)
    for own, deviation, pulled in zip(rewards, deviations, counts, strict=True):
        state = (policy._table, policy._moments, policy._batches, policy._progress)
        copies = (array.copy() for array in state)
        ucbcv_play(*copies, estimator, policy._constants, own, deviation, checkpoints, pulled)
    return counts
