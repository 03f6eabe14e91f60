"""Picture of the probability of a rare event, from your own estimators on the log scale.

    python examples/gallery/rare_event.py [--out docs/images/gallery]

A standard normal variable exceeds 8 with a probability of 6e-16. Multilevel splitting estimates it as a product over
levels of the share of particles that exceed the next level; all five estimators move 4,000 particles per draw. To see:
with few levels few particles survive, with many levels there are few particles; the bandit finds the number between.
"""

import argparse

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np

from scipy import stats

import amc_pymc as amc

LEVEL, LEVELS, MOVED = 8.0, (15, 25, 50, 100, 200), 4_000
BLUE, ORANGE = "#0b6e99", "#d1662f"


@dataclass(frozen=True)
class Splitting:
    """Estimator with a number of levels of equal conditional probability."""

    levels: int
    scale: ClassVar[str] = "log"

    def sample(self, n, rng):
        """Return the logarithms of n unbiased estimates, -inf if no particle survives a level."""
        x, rows = rng.normal(size=(n, MOVED // self.levels)), np.arange(n)[:, None]
        log_p = np.zeros(n)
        for share in np.arange(1, self.levels + 1) / self.levels:
            bound = stats.norm.isf(np.exp(share * stats.norm.logsf(LEVEL)))
            above = x > bound
            with np.errstate(divide="ignore"):
                log_p += np.log(above.mean(axis=1))
            # Survivors come first, and the others are replaced by random ones of them.
            x = np.take_along_axis(x, np.argsort(~above, axis=1), axis=1)
            left = np.maximum(above.sum(axis=1), 1)[:, None]
            x = x[rows, (rng.random(x.shape) * left).astype(int)]
            for _ in range(5):
                to = x + rng.normal(0.0, 1.5 / max(bound, 1.0), x.shape)
                keep = (to > bound) & (np.log(rng.random(x.shape)) < 0.5 * (x**2 - to**2))
                x = np.where(keep, to, x)
        return log_p


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    arms = {f"{levels}": Splitting(levels) for levels in LEVELS}
    found = amc.combine_estimators(arms, draws=1_000, random_seed=1, progressbar=False)
    arms, estimate = found["arms"], found["estimate"].sel(weights="predictable")
    means = np.append(arms["log_mean"], estimate["log_mean"]) / np.log(10.0)
    errors = np.append(arms["log_mean_mcse"], estimate["log_mean_mcse"]) / np.log(10.0)
    exact = stats.norm.logsf(LEVEL) / np.log(10.0)

    names, at = [*arms["arm"].values, "combined"], np.arange(len(LEVELS) + 1)
    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    bars = axes[0].bar(at[:-1], arms["draws"], 0.6, color=BLUE)
    axes[0].bar_label(bars, fmt="{:,.0f}", padding=3)
    axes[0].set(xlabel="levels", ylabel="draws", title="Most draws go to the best number of levels")
    axes[0].set_xticks(at[:-1], names[:-1])
    axes[1].axhline(exact, color=ORANGE, ls="--", label="exact")
    axes[1].errorbar(
        at, means, 1.96 * errors, fmt="o", color=BLUE, capsize=5, label="estimate, 95 % interval"
    )
    axes[1].set(
        xlabel="levels",
        ylabel="log10 of the probability",
        title=f"Combined: {10.0 ** means[-1]:.2e}, exact: {10.0**exact:.2e}",
    )
    axes[1].set_xticks(at, names)
    axes[1].legend(frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "rare_event.png", dpi=125)


if __name__ == "__main__":
    main()
