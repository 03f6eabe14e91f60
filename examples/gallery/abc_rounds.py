"""Picture of the rounds of a likelihood-free run, against rejection sampling.

    python examples/gallery/abc_rounds.py [--out docs/images/gallery]

Four means with uniform priors are inferred from one simulated observation of each. To see: the tolerance falls from
round to round, while the proposals learn where to simulate, so that the run ends with many times the effective draws of
rejection sampling at the same tolerance (dashed).
"""

import argparse

from pathlib import Path

import numpy as np

from scipy import stats

import amc_pymc as amc


def simulate(rng, mu):
    """Return observations (n, 4) given means (n, 4)."""
    return rng.normal(mu, 0.5)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    problem = amc.SimulatorProblem(
        {"mu": (stats.uniform(-5.0, 10.0), 4)}, simulate, observed=np.array([1.0, -1.0, 0.0, 2.0]),
        tolerance=0.9,
    )  # fmt: skip
    found = amc.sample_abc_tree(
        max_simulations=30_000, model=problem, batched=True, random_seed=1, progressbar=False
    )
    picture = amc.plot_abc(found, figsize=(9.6, 5.6))
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "abc_rounds.png", dpi=125)


if __name__ == "__main__":
    main()
