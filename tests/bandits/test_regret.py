"""Regret grows as slowly as the papers' theorems say."""

import math

import numpy as np
import pytest

from amc_pymc.bandits import KLUCB, UCB1, UCBV, ThompsonSampling
from benchmarks.papers.bandit_runs import run

MEANS = np.array([0.2, 0.8])
#: Lai & Robbins: sum over worse arms of gap / KL(mean, best mean), per unit of log n.
LAI_ROBBINS = 0.6 / (0.2 * math.log(0.2 / 0.8) + 0.8 * math.log(0.8 / 0.2))
MARKS = np.array([2_000, 8_000])


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        # Auer et al., theorem 1, per unit of log n: 8 / gap for c = 2.
        (UCB1(2), 8.0 / 0.6),
        # Audibert et al., theorem 4: 10 (variance / gap + 2).
        (UCBV(2), 10.0 * (0.16 / 0.6 + 2.0)),
        pytest.param(KLUCB(2, c=0.0), LAI_ROBBINS, marks=pytest.mark.slow),
        (ThompsonSampling(2), LAI_ROBBINS),
    ],
    ids=["UCB1", "UCB-V", "KL-UCB", "Thompson"],
)
def test_regret_grows_like_the_logarithm(policy, most):
    rng = np.random.default_rng(1)
    rewards = (rng.random((100, 2, MARKS[-1])) < MEANS[:, None]).astype(float)
    regret = run(policy, rewards, MARKS, rng) @ (MEANS.max() - MEANS)
    more = np.diff(regret, axis=1)[:, 0]
    se = more.std(ddof=1) / math.sqrt(more.size)
    assert 0.0 < more.mean() < most * math.log(4.0) + 3.0 * se
    # far from linear, which would be 3 times the regret up to the first mark
    assert more.mean() + 3.0 * se < regret[:, 0].mean()
