"""Picture of the step density of a likelihood-free run, beside the exact posterior.

    python examples/gallery/step_density.py [--out docs/images/gallery]

The posterior is two crescents of equal mass (Greenberg, Nonnenmacher & Macke 2019). step_density turns the boxes of
ABC-Tree into a function that can be evaluated anywhere. To see: it is coarse, but finds both crescents, with about half
of the mass each.
"""

import argparse
import sys

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.point_simulators import moons_log_likelihood as log_likelihood
from models.point_simulators import two_moons


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    example = two_moons()
    found = amc.sample_abc_tree(
        max_simulations=50_000, model=example.model(), batched=True, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    side = np.linspace(-0.5, 0.5, 251)
    first, second = (g.ravel() for g in np.meshgrid(side, side))
    density = amc.step_density(found)
    steps = density.ratio(dict(zip(density.coordinates, (first, second), strict=True)))
    exact = np.exp(log_likelihood(example.observed, np.column_stack([first, second])))
    upper = steps[first + second > 0.0].sum() / steps.sum()

    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), sharey=True, layout="constrained")
    titles = (
        f"Step density, {100.0 * upper:.0f} % in the upper crescent",
        "Exact posterior, 50 % in the upper crescent",
    )
    for axis, values, title in zip(axes, (steps, exact), titles, strict=True):
        values = values / (values.sum() * (side[1] - side[0]) ** 2)
        image = axis.imshow(
            values.reshape(251, 251), extent=(-0.5, 0.5, -0.5, 0.5), origin="lower", cmap="Blues", interpolation="nearest", vmax=40.0
        )  # fmt: skip
        axis.set(xlabel="theta[0]", title=title)
    axes[0].set(ylabel="theta[1]")
    figure.colorbar(image, ax=axes, label="density", location="bottom", shrink=0.5, extend="max")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "step_density.png", dpi=125)


if __name__ == "__main__":
    main()
