"""Many runs of a bandit policy in compiled code, on rewards drawn in advance.

A policy comes as a fresh Python object. The compiled run takes its settings and calls doubles of its methods ``ask`` and ``tell``, which take ten
times as long in Python. Arm k's i-th pull of run r gets
``rewards[r, k, i]``, whatever the policy: common random numbers.
"""

from __future__ import annotations

import functools

from collections.abc import Callable
from typing import Any

import numpy as np

from amc_pymc.bandits import KLUCB, UCB1, UCBCV, UCBV, Policy, ThompsonSampling
from amc_pymc.engine.jit import njit
from benchmarks.papers import bandit_kernels as kernels
from benchmarks.papers import eucbv, ucbcv_kernels
from benchmarks.papers.bandit_kernels import PENDING, TOLD, record, table_of
from benchmarks.papers.eucbv import EUCBV
from benchmarks.papers.moss import MOSS, moss_index
from benchmarks.papers.tightest import TightestBound, tightest_index


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
    choose, learn, constants, table = _played(policy)
    play, counts = make_play(choose, learn), _counts(rewards, checkpoints)
    for own, pulled in zip(rewards, counts, strict=True):
        play(table.copy(), constants, own, checkpoints, pulled, rng)
    return counts


def _counts(rewards: np.ndarray, checkpoints: np.ndarray) -> np.ndarray:
    return np.empty((len(rewards), checkpoints.size, rewards.shape[1]), np.int64)


def _played(policy: Policy) -> tuple[Callable, Callable, Any, np.ndarray]:
    """Compiled functions that choose an arm and learn from a reward, with their constants and a table."""
    table = table_of(policy)
    match policy:
        case ThompsonSampling():
            constants = policy._alpha, policy._beta
            table = table_of(policy, 2)
            return kernels.thompson_choose, kernels.thompson_learn, constants, table
        case EUCBV():
            constants = (policy._constants, policy._least_epsilon)
            return _eucbv_choose, _eucbv_learn, constants, policy._table
        case UCB1():
            index, beaten, settings = kernels.ucb1_index, kernels.never, [policy.c]
        case UCBV():
            index, beaten, settings = kernels.ucbv_index, kernels.never, [policy.zeta, policy.c]
        case KLUCB():
            index, beaten, settings = kernels.klucb_index, kernels.klucb_beaten, [policy.c]
        case MOSS():
            index, beaten, settings = moss_index, kernels.never, policy.settings
        case TightestBound():
            index, beaten, settings = tightest_index, kernels.never, policy.settings
        case _:
            raise TypeError(f"no compiled runs for {type(policy).__name__}")
    return kernels.chooser(index, beaten), _index_learn, np.array(settings, float), table


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


@njit(cache=True)
def _index_learn(table, arm, reward, constants, rng):
    record(table, arm, reward)


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
    table, batches, estimator, alpha, rewards, deviations, checkpoints, counts
):  # fmt: skip
    """One run of UCB-CV with one control per arm, deviations (K, n); fills counts (C, K)."""
    c, moments, progress = 0, np.zeros((table.shape[1], 6)), np.zeros((table.shape[1], 5))
    progress[:, 1] = 1.0
    for t in range(1, checkpoints[-1] + 1):
        arm = ucbcv_kernels.choose(table, t, alpha)
        i = int(table[TOLD, arm])
        reward, deviation = rewards[arm, i], deviations[arm, i]
        record(table, arm, reward)
        known, found = False, (0.0, np.inf, 0.0)
        if estimator == _REGRESSION:
            ucbcv_kernels.regression_update(moments[arm], reward, deviation)
            known, found = True, ucbcv_kernels.regression_estimate(moments[arm])
        elif estimator == _BATCHING:
            if ucbcv_kernels.batch_update(batches[arm], progress[arm], reward, deviation):
                known, found = True, ucbcv_kernels.batch_estimate(batches[arm], progress[arm])
        elif i + 1 >= 3:
            past, pseudo = rewards[arm, : i + 1], estimator == _JACKKNIFE
            known, found = True, ucbcv_kernels.leave_one_out(past, deviations[arm, : i + 1], pseudo)
        if known:
            for row in range(3):
                table[ucbcv_kernels.EST_MEAN + row, arm] = found[row]
        table[PENDING, arm] = 0.0
        if t == checkpoints[c]:
            enter_counts(table, counts, c)
            c += 1


def _ucbcv(policy, rewards, checkpoints, controls):
    if controls is None or controls.shape != rewards.shape or policy.n_controls != 1:
        raise ValueError("UCB-CV runs need one control per reward, of the shape of rewards")
    deviations = np.ascontiguousarray(controls - policy._omega)  # omega is (K, 1)
    estimator, counts = _ESTIMATORS[policy.estimator], _counts(rewards, checkpoints)
    for own, deviation, pulled in zip(rewards, deviations, counts, strict=True):
        table, batches = table_of(policy, 3), np.zeros((policy.n_arms, 2 * policy.n_batches, 2))
        table[ucbcv_kernels.EST_VARIANCE] = np.inf
        ucbcv_play(table, batches, estimator, policy.alpha, own, deviation, checkpoints, pulled)
    return counts
