"""Microseconds per decision of every bandit policy: `python -m benchmarks.papers.bandit_speed`.

A decision is one ``ask`` and one ``tell``, or one of many in ``ask(rng, n)``. Rewards are uniform on
[0, mean of the arm]; CPU time, the best of several repetitions.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from amc_pymc.bandits import POLICIES, make_policy

SETTINGS = {"eucbv": {"horizon": 100_000}, "robust": {"moment_bound": 1.0}}


def single(name: str, n_arms: int, n: int) -> float:
    """Seconds per ask and tell, after 20 pulls per arm."""
    rng = np.random.default_rng(1)
    policy = make_policy(name, n_arms, **SETTINGS.get(name, {}))
    top = np.linspace(0.5, 1.0, n_arms)
    controls = np.zeros(1) if name == "ucbcv" else None
    for _ in range(20 * n_arms):
        pull = policy.ask(rng)
        policy.tell(pull, top[pull.arm] * rng.random(), controls)
    rewards = (0.5 * rng.random(n)).tolist()
    start = time.process_time()
    for reward in rewards:
        policy.tell(policy.ask(rng), reward, controls)
    return (time.process_time() - start) / n


def many(name: str, n_arms: int, n: int) -> float:
    """Seconds per pull of one ask for n pulls, after 20 pulls per arm."""
    rng = np.random.default_rng(1)
    policy = make_policy(name, n_arms, **SETTINGS.get(name, {}))
    for _ in range(5):
        pulls = policy.ask(rng, 4 * n_arms)
        policy.tell(pulls, rng.random(len(pulls)), np.zeros((len(pulls), 1)))
    start = time.process_time()
    policy.ask(rng, n)
    return (time.process_time() - start) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", type=int, default=16)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    repeats, n_single, n_many = (2, 1_000, 1_000) if options.quick else (7, 3_000, 10_000)
    print(f"| K = {options.arms} | ask + tell, us | ask(rng, {n_many:,}), us per pull |")
    print("|---|---|---|")
    for name in sorted(POLICIES):
        one = min(single(name, options.arms, n_single) for _ in range(repeats))
        lots = min(many(name, options.arms, n_many) for _ in range(repeats))
        print(f"| `{name}` | {1e6 * one:.1f} | {1e6 * lots:.2f} |", flush=True)


if __name__ == "__main__":
    main()
