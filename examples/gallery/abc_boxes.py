"""Picture of the boxes of ABC-Tree, for a posterior in the shape of a ring.

    python examples/gallery/abc_boxes.py [--out docs/images/gallery]

A noisy distance from the origin is observed, so the posterior of the position is a ring. To see: the boxes are small
along the ring and large elsewhere, and the draws follow it.
"""

import argparse

from pathlib import Path

import numpy as np

from scipy import stats

import amc_pymc as amc


def simulate(rng, x, y):
    """Return measured distances (n,) from the origin of positions, in metres."""
    return rng.normal(np.hypot(x, y), 0.1)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    prior = stats.uniform(-2.0, 4.0)
    problem = amc.SimulatorProblem({"x": prior, "y": prior}, simulate, observed=1.0, tolerance=0.05)
    found = amc.sample_abc_tree(
        max_simulations=40_000, model=problem, batched=True, random_seed=1, progressbar=False
    )
    picture = amc.plot_partition(found, figsize=(11.0, 4.4))
    picture.axes[-1].set_aspect("equal")
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "abc_boxes.png", dpi=125)


if __name__ == "__main__":
    main()
