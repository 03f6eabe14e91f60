"""Picture of the boxes of ABC-Tree, for a posterior in the shape of a ring.

    python examples/gallery/abc_boxes.py [--out docs/images/gallery]

A noisy distance from the origin is observed, so the posterior of the position is a ring. To see: the boxes are small
along the ring and large elsewhere, and the draws follow it.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
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
        max_simulations=40_000,
        model=problem,
        adjust="none",
        batched=True,
        random_seed=1,
        progressbar=False,
    )
    boxes, draws = found["step_posterior"].to_dataset(), found["posterior"].to_dataset()
    picture, axes = plt.subplots(figsize=(6.0, 5.6), layout="constrained")
    for box in range(boxes.sizes["box"]):
        low, high = (prior.ppf(boxes[side][box]) for side in ("lower", "upper"))
        axes.add_patch(plt.Rectangle(low, *(high - low), fill=False, edgecolor="#555555", lw=0.5))
    x, y = (draws[name].values.ravel()[::8] for name in "xy")
    axes.plot(x, y, ".", color="#d55e00", alpha=0.5, ms=3)
    axes.set(xlabel="x (m)", ylabel="y (m)", xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "abc_boxes.png", dpi=125)


if __name__ == "__main__":
    main()
