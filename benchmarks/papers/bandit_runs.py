"""Many runs of a bandit policy at once, on rewards drawn in advance, and the policies that papers only compare with.

A fresh policy gives its formula and its settings; counts and moments of all runs are arrays (R, K). Arm k's i-th
pull of run r gets ``rewards[r, k, i]``, whatever the policy: common random numbers.
"""

from __future__ import annotations

import math

import numpy as np

from scipy import special

from amc_pymc.bandits import UCBCV, Policy, ThompsonSampling
from amc_pymc.bandits.indices import BoundPolicy


class EUCBV(BoundPolicy):
    """Efficient UCB-V of Mukherjee et al. (2018), doi:10.1609/aaai.v32i1.12110, for a known number of pulls T.

    In round m, with epsilon = 2^-m, it pulls the active arm with the largest mean +
    sqrt(rho (v + 2) log(psi T epsilon) / (4 n)), rho = 1/2 and psi = T / K². After every reward, arms whose upper
    bound is below the largest lower bound are eliminated. A round of B arms has B ceil(log(psi T epsilon²) / (2 epsilon))
    pulls, and that after round floor(log2(T / e) / 2) is the last. Only :func:`run` plays it: rounds are per run.
    """

    name = "eucbv"

    def __init__(self, n_arms: int, *, horizon: int, rewards=(0.0, 1.0)):
        super().__init__(n_arms, rewards=rewards)
        self.psi_t = (horizon / n_arms) ** 2
        self.least_epsilon = 0.5 ** (max(math.floor(0.5 * math.log2(horizon / math.e)), 0) + 1)

    def _bound(self, n, mean, variance, t, epsilon=1.0):
        log_term = np.maximum(np.log(self.psi_t * epsilon), 0.0)
        return mean + np.sqrt(0.5 * (variance + 2.0) * log_term / (4.0 * n))

    def round_length(self, epsilon: np.ndarray) -> np.ndarray:
        """Pulls per arm in a round."""
        return np.maximum(np.ceil(np.log(self.psi_t * epsilon**2) / (2.0 * epsilon)), 1.0)


class _Game:
    """All runs of a policy by a bound: counts, means and sums of squared deviations (R, K)."""

    def __init__(self, policy: Policy, n_runs: int):
        self.policy, self.rows = policy, np.arange(n_runs)
        self.low, self.width = policy._seen.low, policy._seen.width
        self.told, self.mean, self.squares = np.zeros((3, n_runs, policy.n_arms))

    def bounds(self, *args: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds on the scale of rewards; infinite for arms never pulled."""
        n, width = np.maximum(self.told, 1.0), np.where(self.width > 0.0, self.width, 1.0)
        mean, variance = (self.mean - self.low) / width, self.squares / n / width**2
        upper = self.policy._bound(n, mean, variance, *args)
        none = self.told == 0.0
        lower = np.where(none, -np.inf, self.low + self.width * (2.0 * mean - upper))
        return lower, np.where(none, np.inf, self.low + self.width * upper)

    def choose(self, t: int, rng: np.random.Generator) -> np.ndarray:
        """The first arm (R,) with the largest bound."""
        return self.bounds(float(t))[1].argmax(axis=1)

    def learn(self, arm: np.ndarray, x: np.ndarray, rng: np.random.Generator) -> None:
        """Record a reward (R,) of every run."""
        at = self.rows, arm
        self.told[at] += 1.0
        d = x - self.mean[at]
        self.mean[at] += d / self.told[at]
        self.squares[at] += d * (x - self.mean[at])


class _Rounds(_Game):
    """Runs of EUCBV."""

    policy: EUCBV

    def __init__(self, policy: EUCBV, n_runs: int):
        super().__init__(policy, n_runs)
        self.alive, self.epsilon = np.ones(self.told.shape, bool), np.ones((n_runs, 1))
        self.end = np.full(n_runs, policy.n_arms * policy.round_length(np.ones(1))[0])

    def choose(self, t, rng):
        return np.where(self.alive, self.bounds(t, self.epsilon)[1], -np.inf).argmax(axis=1)

    def learn(self, arm, x, rng):
        super().learn(arm, x, rng)
        lower, upper = self.bounds(0, self.epsilon)
        self.alive &= upper >= np.where(self.alive, lower, -np.inf).max(axis=1, keepdims=True)
        t, over = self.told.sum(axis=1), self.told.sum(axis=1) >= self.end
        self.epsilon[over] *= 0.5
        epsilon = self.epsilon[over, 0]
        pulls = self.alive[over].sum(axis=1) * self.policy.round_length(epsilon)
        self.end[over] = np.where(epsilon <= self.policy.least_epsilon, np.inf, t[over] + pulls)


class _Thompson(_Game):
    """Runs of Thompson sampling, which makes a reward a success by a coin."""

    policy: ThompsonSampling

    def __init__(self, policy: ThompsonSampling, n_runs: int):
        super().__init__(policy, n_runs)
        self.wins = np.zeros_like(self.told)

    def choose(self, t, rng):
        a, b = self.wins + 1.0, self.told - self.wins + 1.0
        return (self.low + self.width * rng.beta(a, b)).argmax(axis=1)

    def learn(self, arm, x, rng):
        self.told[self.rows, arm] += 1.0
        share = (x - self.low[arm]) / self.width[arm]
        self.wins[self.rows, arm] += rng.random(x.size) < share


class _Controlled(_Game):
    """Runs of UCB-CV by regression on one control."""

    policy: UCBCV

    def __init__(self, policy: UCBCV, n_runs: int, deviations: np.ndarray):
        super().__init__(policy, n_runs)
        self.deviations = deviations
        self.off, self.cross, self.products = np.zeros((3, *self.told.shape))

    def choose(self, t, rng):
        n = self.told
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = self.cross / self.products
            left = np.maximum(self.squares - self.cross * slope, 0.0)
            variance = left / (n - 2.0) * (1.0 / n + self.off**2 / self.products)
            quantile = -special.stdtrit(n - 2.0, float(t) ** -self.policy.alpha)
            bound = self.mean - slope * self.off + quantile * np.sqrt(variance)
        # Of the arms with too few rewards, the one with the fewest.
        return np.where(n < 3.0, 1e300 / (1.0 + n), bound).argmax(axis=1)

    def learn(self, arm, x, rng):
        at = self.rows, arm
        w = self.deviations[self.rows, arm, self.told[at].astype(int)]
        e = w - self.off[at]
        d = x - self.mean[at]
        super().learn(arm, x, rng)
        self.off[at] += e / self.told[at]
        self.cross[at] += d * (w - self.off[at])
        self.products[at] += e * (w - self.off[at])


def _game(policy: Policy, n_runs: int, controls: np.ndarray | None) -> _Game:
    match policy:
        case UCBCV():
            return _Controlled(policy, n_runs, controls - policy._omega)
        case EUCBV():
            return _Rounds(policy, n_runs)
        case ThompsonSampling():
            return _Thompson(policy, n_runs)
        case _:
            return _Game(policy, n_runs)


def run(
    policy: Policy, rewards: np.ndarray, checkpoints: np.ndarray, rng: np.random.Generator,
    controls: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """How often each arm has been pulled after checkpoints[c] pulls of run r.

    Parameters
    ----------
    policy : Policy
        Fresh, with a known range of rewards; rewards outside the range are taken as they are.
    rewards : array (R, K, n)
    checkpoints : array of int (C,)
        Increasing, the last at most n.
    rng : numpy.random.Generator
        For policies that draw.
    controls : array (R, K, n), optional
        One control per reward, for UCB-CV.

    Returns
    -------
    array of int (R, C, K)
    """
    n_runs, n_arms, _ = rewards.shape
    counts = np.empty((n_runs, len(checkpoints), n_arms), np.int64)
    if isinstance(policy, UCBCV) and policy.estimator != "regression":
        for r in range(n_runs):
            path = one_run(policy.copy(), rewards[r], int(checkpoints[-1]), rng, controls[r])
            counts[r] = path[np.asarray(checkpoints) - 1]
        return counts
    game, rows = _game(policy, n_runs, controls), np.arange(n_runs)
    column = {int(t): c for c, t in enumerate(checkpoints)}
    for t in range(1, int(checkpoints[-1]) + 1):
        arm = game.choose(t, rng)
        game.learn(arm, rewards[rows, arm, game.told[rows, arm].astype(int)], rng)
        if t in column:
            counts[:, column[t]] = game.told
    return counts


def one_run(
    policy: Policy, rewards: np.ndarray, n: int, rng: np.random.Generator,
    controls: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Pulls (n, K) after each of n pulls, by ask and tell, for rewards (K, n)."""
    counts = np.zeros((n + 1, len(rewards)), np.int64)
    for t in range(n):
        pull = policy.ask(rng)
        i = counts[t, pull.arm]
        w = None if controls is None else [controls[pull.arm, i]]
        policy.tell(pull, rewards[pull.arm, i], controls=w)
        counts[t + 1] = counts[t]
        counts[t + 1, pull.arm] += 1
    return counts[1:]
