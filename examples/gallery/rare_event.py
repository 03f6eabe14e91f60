"""Picture of the probability of a rare event, from your own estimators on the log scale.

    python examples/gallery/rare_event.py [--out docs/images/gallery]

The event is that a sum of twenty standard normal steps exceeds 30, with a probability of 1e-11. Each estimator tilts the
steps by a drift and returns the logarithm of its weight, -inf if the event does not occur. To see: drifts that are too
small or too large are given up, and the combined estimate agrees with the exact probability.
"""

import argparse

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np

from scipy import stats

import amc_pymc as amc

STEPS, LEVEL, DRIFTS = 20, 30.0, (0.5, 1.0, 1.5, 2.0, 2.5)
BLUE, ORANGE = "#0b6e99", "#d1662f"


@dataclass(frozen=True)
class Tilted:
    """Estimator of the probability with steps of mean `drift`."""

    drift: float
    scale: ClassVar[str] = "log"

    def sample(self, n, rng):
        """Return the logarithms of n unbiased estimates."""
        total = rng.normal(self.drift, 1.0, (n, STEPS)).sum(axis=1)
        log_weight = -self.drift * total + 0.5 * STEPS * self.drift**2
        return np.where(total > LEVEL, log_weight, -np.inf)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    found = amc.combine_estimators(
        {f"{drift:g}": Tilted(drift) for drift in DRIFTS},
        draws=20_000,
        random_seed=1,
        progressbar=False,
    )
    exact = stats.norm.logsf(LEVEL / np.sqrt(STEPS)) / np.log(10.0)
    arms, estimate = (
        found["arms"].to_dataset(),
        found["estimate"].to_dataset().sel(weights="predictable"),
    )
    means = np.append(arms["log_mean"].values, estimate["log_mean"]) / np.log(10.0)
    errors = np.append(arms["log_mean_mcse"].values, estimate["log_mean_mcse"]) / np.log(10.0)

    names, at = [*arms["arm"].values, "combined"], np.arange(len(DRIFTS) + 1)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    bars = axes[0].bar(at[:-1], arms["draws"], 0.6, color=BLUE)
    axes[0].bar_label(bars, fmt="{:,.0f}", padding=3)
    axes[0].set(
        xlabel="drift of the steps", ylabel="draws", title="Most draws go to the best drift"
    )
    axes[0].set_xticks(at[:-1], names[:-1])
    axes[1].axhline(exact, color=ORANGE, ls="--", label="exact")
    axes[1].errorbar(
        at, means, 1.96 * errors, fmt="o", color=BLUE, capsize=5, label="estimate, 95 % interval"
    )
    axes[1].set(
        xlabel="drift of the steps", ylabel="log10 of the probability",
        title=f"Combined: {10.0 ** means[-1]:.3g}, exact: {10.0**exact:.3g}",
    )  # fmt: skip
    axes[1].set_xticks(at, names)
    axes[1].legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "rare_event.png", dpi=125)


if __name__ == "__main__":
    main()
