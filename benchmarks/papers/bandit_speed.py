"""Microseconds per decision of every bandit policy: `python -m benchmarks.papers.bandit_speed`.

A decision is one ``ask`` and one ``tell``, or one of many in ``ask(rng, n)``. Rewards are uniform on
[0, mean of the arm]; CPU time, the best of several repetitions.
"""

from __future__ import annotations

import time

from collections.abc import Sequence

import numpy as np

from amc_pymc.bandits import POLICIES, make_policy
from benchmarks.harness import options
from benchmarks.harness.jobs import say
from benchmarks.harness.results import save
from benchmarks.harness.tables import markdown


def single(name: str, n_arms: int, n: int) -> float:
    """Seconds per ask and tell, after 20 pulls per arm."""
    rng = np.random.default_rng(1)
    policy = make_policy(name, n_arms)
    top = np.linspace(0.5, 1.0, n_arms)
    controls = np.zeros(1) if name == "ucbcv" else None
    for _ in range(20 * n_arms):
        pull = policy.ask(rng)
        policy.tell(pull, top[pull.arm] * rng.random(), controls=controls)
    rewards = (0.5 * rng.random(n)).tolist()
    start = time.process_time()
    for reward in rewards:
        policy.tell(policy.ask(rng), reward, controls=controls)
    return (time.process_time() - start) / n


def many(name: str, n_arms: int, n: int) -> float:
    """Seconds per pull of one ask for n pulls, after 20 pulls per arm."""
    rng = np.random.default_rng(1)
    policy = make_policy(name, n_arms)
    for _ in range(5):
        pulls = policy.ask(rng, 4 * n_arms)
        policy.tell(pulls, rng.random(len(pulls)), controls=np.zeros((len(pulls), 1)))
    start = time.process_time()
    policy.ask(rng, n)
    return (time.process_time() - start) / n


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    o = options.parse(__doc__, argv, seed=None, arms=16)
    repeats, n_single, n_many = (2, 1_000, 1_000) if o.quick else (7, 3_000, 10_000)
    rows = []
    for name in sorted(POLICIES):
        one = min(single(name, o.arms, n_single) for _ in range(repeats))
        lots = min(many(name, o.arms, n_many) for _ in range(repeats))
        rows.append({"policy": name, "arms": o.arms, "one_us": 1e6 * one, "many_us": 1e6 * lots})
        say(f"... {name}")
    headers = [f"K = {o.arms}", "ask + tell, us", f"ask(rng, {n_many:,}), us per pull"]
    lines = [[f"`{r['policy']}`", f"{r['one_us']:.1f}", f"{r['many_us']:.2f}"] for r in rows]
    text = markdown(headers, lines)
    print(text)
    save(o, "bandit_speed", rows, text)


if __name__ == "__main__":
    main()
