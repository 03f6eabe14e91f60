"""Regret grows like the logarithm of the number of pulls, and as slowly as it should."""

import math

import numpy as np
import pytest

from numba import njit

from amc_pymc.bandits import (
    KLUCB,
    UCB1,
    UCBV,
    FixedArm,
    RandomChoice,
    RoundRobin,
    ThompsonSampling,
    TopTwoThompsonSampling,
    klucb_index,
    ucb1_index,
    ucbv_index,
)
from amc_pymc.bandits.policy import index_kernels
from amc_pymc.bandits.thompson import choose as thompson_choose
from amc_pymc.bandits.thompson import learn

MEANS = np.array([0.2, 0.8])
#: Lai & Robbins: sum over worse arms of gap / KL(mean, best mean), per unit of log n.
LAI_ROBBINS = 0.6 / (0.2 * math.log(0.2 / 0.8) + 0.8 * math.log(0.8 / 0.2))


@njit
def record_bernoulli(table, arm, reward):
    table[0, arm] += 1.0
    d = reward - table[2, arm]
    table[2, arm] += d / table[0, arm]
    table[3, arm] += d * (reward - table[2, arm])


def runner(index):
    choose = index_kernels(index).choose

    @njit
    def run(uniforms, means, constants, marks):
        table = np.zeros((6, means.size))
        table[5] = 1.0
        out, regret, j = np.zeros(marks.size), 0.0, 0
        for t in range(uniforms.size):
            arm = choose(table, t + 1, constants)
            record_bernoulli(table, arm, 1.0 if uniforms[t] < means[arm] else 0.0)
            regret += means.max() - means[arm]
            if t + 1 == marks[j]:
                out[j] = regret
                j += 1
        return out

    return run


@njit
def run_thompson(uniforms, means, seeds, marks):
    table = np.zeros((8, means.size))
    table[5] = 1.0
    out, regret, j = np.zeros(marks.size), 0.0, 0
    for t in range(uniforms.size):
        arm = thompson_choose(table, 1.0, 1.0, seeds[t])
        learn(table, arm, 1.0 if uniforms[t] < means[arm] else 0.0, 0.5)
        regret += means.max() - means[arm]
        if t + 1 == marks[j]:
            out[j] = regret
            j += 1
    return out


MARKS = np.array([2_000, 8_000])


def growth(run, second, reps, seed):
    """Regret at the marks, (reps, 2)."""
    rng = np.random.default_rng(seed)
    n = MARKS[-1]
    return np.array([run(rng.random(n), MEANS, second(rng, n), MARKS) for _ in range(reps)])


@pytest.mark.parametrize(
    ("index", "constants", "most"),
    [
        # Auer et al., theorem 1, per unit of log n: 8 / gap for c = 2.
        (ucb1_index, [2.0], 8.0 / 0.6),
        # Audibert et al., theorem 4: 10 (variance / gap + 2).
        (ucbv_index, [1.2, 1.0], 10.0 * (0.16 / 0.6 + 2.0)),
        (klucb_index, [0.0], LAI_ROBBINS),
        # 3 log log n is not small beside log n here: held to the bound of UCB1 only.
        (klucb_index, [3.0], 8.0 / 0.6),
    ],
)
def test_regret_grows_like_the_logarithm(index, constants, most):
    regret = growth(runner(index), lambda rng, n: np.array(constants), 200, 1)
    more = np.diff(regret, axis=1)[:, 0]
    se = more.std(ddof=1) / math.sqrt(more.size)
    assert 0.0 < more.mean() < most * math.log(4.0) + 3.0 * se
    # far from linear, which would be 3 times the regret up to the first mark
    assert more.mean() + 3.0 * se < regret[:, 0].mean()


def test_thompson_regret_by_lai_and_robbins():
    regret = growth(run_thompson, lambda rng, n: rng.random(n), 400, 2)
    more = np.diff(regret, axis=1)[:, 0]
    se = more.std(ddof=1) / math.sqrt(more.size)
    assert 0.0 < more.mean() < LAI_ROBBINS * math.log(4.0) + 3.0 * se


def play(policy, n, seed, means=MEANS):
    """Regret after n pulls through ask and tell."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        pull = policy.ask(rng)
        policy.tell(pull, float(rng.random() < means[pull.arm]))
    return float((means.max() - means) @ policy.counts)


def test_regret_of_baselines_is_linear():
    n = 4_000
    for policy in (RandomChoice(2), RoundRobin(2)):
        regret = play(policy, n, 3)
        assert abs(regret - 0.3 * n) < 4.0 * 0.6 * math.sqrt(0.25 * n)
    assert play(FixedArm(2), n, 3) == pytest.approx(0.6 * n)
    # Top two pulls the best arm half of the time.
    regret = play(TopTwoThompsonSampling(2), n, 3)
    assert abs(regret - 0.3 * n) < 4.0 * 0.6 * math.sqrt(0.25 * n)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (UCB1, 8.0 / 0.3),
        (UCBV, 10.0 * (0.25 / 0.3 + 2.0)),
        (KLUCB, 8.0 / 0.3),
        (ThompsonSampling, 8.0 / 0.3),
    ],
)
def test_policies_learn(make, most):
    means = np.array([0.2, 0.5, 0.8])
    regret = play(make(3), 2_000, 4, means)
    assert regret < most * math.log(2_000) * 2.0
    assert regret < 0.5 * 0.3 * 2_000  # half of random choice
