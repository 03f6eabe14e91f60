"""Picture of the evidence from posterior draws, by a bridge that is lengthened by annealing.

    python examples/gallery/bridge.py [--out docs/images/gallery]

Twelve rates of rare events have gamma posteriors, whose draws and evidence are known exactly. On the log scale they are
skewed, so the Gaussian fitted to the draws overlaps little with the posterior. To see: with more annealing steps the
overlap grows, and the error of the estimate shrinks.
"""

import argparse

from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from scipy import stats

import amc_pymc as amc

RATES = 12
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    with pm.Model() as model:
        rate = pm.Gamma("rate", 1.0, 1.0, shape=RATES)
        pm.Poisson("y", rate, observed=np.zeros(RATES, int))
    exact = RATES * np.log(0.5)  # P(y = 0) is the integral of exp(-rate) under the prior
    draws = np.random.default_rng(1).gamma(1.0, 0.5, (4, 500, RATES))
    found = amc.estimate_evidence(
        idata=az.from_dict({"posterior": {"rate": draws}}), model=model, marginalize=None,
        target_mcse=0.01, random_seed=1, progressbar=False,
    )  # fmt: skip

    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    logs = np.log(draws[..., 0].ravel())
    x = np.linspace(-8.0, 3.0, 200)
    axes[0].hist(logs, 60, density=True, color=BLUE, alpha=0.6, label="posterior draws")
    axes[0].plot(
        x,
        stats.norm.pdf(x, logs.mean(), logs.std()),
        color=ORANGE,
        lw=2,
        label="Gaussian fitted to them",
    )
    axes[0].set(
        xlabel="log of the first rate",
        ylabel="density",
        xlim=(-8.0, 3.0),
        title="The two ends of the bridge",
    )
    axes[0].legend(frameon=False, loc="upper left")
    arms = found["arms"].to_dataset()
    steps = [1 if name == "bridge" else int(name.split("_")[1]) for name in arms["arm"].values]
    axes[1].axhline(0.0, color=GREY, ls="--", lw=1.0)
    axes[1].errorbar(
        steps, arms["log_evidence"] - exact, 1.96 * arms["log_evidence_mcse"], fmt="o", color=BLUE, capsize=5
    )  # fmt: skip
    top = float((arms["log_evidence"] - exact + 1.96 * arms["log_evidence_mcse"]).max())
    for at, overlap in zip(steps, arms["overlap"].values, strict=True):
        axes[1].text(
            at, 1.2 * top, f"{100.0 * overlap:.0f} %", ha="center", va="center", color=ORANGE
        )
    axes[1].set(
        xscale="log", xlabel="annealing steps (1: none)", ylabel="log evidence minus the exact one, nats",
        ylim=(None, 1.4 * top),
        title="More steps: more overlap (orange), less error",
    )  # fmt: skip
    axes[1].set_xticks(steps, steps)
    axes[1].minorticks_off()
    axes[1].margins(x=0.15)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "bridge.png", dpi=125)


if __name__ == "__main__":
    main()
