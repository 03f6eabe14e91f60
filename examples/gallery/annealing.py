"""Picture of the weights of annealed importance sampling from the prior to the posterior.

    python examples/gallery/annealing.py [--out docs/images/gallery]

The posterior has two modes in four dimensions, with a known evidence. To see: the paths of the log-weights stay around
their mean (thick line), and the share of effective draws falls slowly, so no few particles dominate the estimate.
"""

import argparse
import sys

from pathlib import Path

import matplotlib.pyplot as plt

import amc_pymc as amc

from amc_pymc.results.plots.painting import COLOURS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.two_modes import two_modes


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    problem = two_modes(4)
    found = amc.sample_ais(
        problem.build(), draws=250, n_steps=100, reference="prior", random_seed=1, progressbar=False
    )
    weights = found["annealing"].to_dataset()
    steps = range(weights.sizes["temperature"])
    figure, (left, right) = plt.subplots(ncols=2, figsize=(9.6, 5.6), layout="constrained")
    paths = (weights["log_weight_path"] - weights["log_mean_weight"]).values[:20]
    left.plot(steps, paths.T, color="#888888", alpha=0.35, lw=0.7)
    left.axhline(0.0, color=COLOURS[0], lw=2.5)
    left.set(xlabel="annealing step", ylabel="log of weight / mean weight")
    for line, colour, label in (
        ("ess", COLOURS[0], "effective draws"), ("accept", COLOURS[1], "acceptance")
    ):  # fmt: skip
        right.plot(steps, weights[line].values, color=colour, label=label)
    right.set(xlabel="annealing step", ylabel="share", ylim=(0.0, 1.05))
    right.legend(frameon=False)
    estimate, error = (float(found["evidence"][n]) for n in ("log_evidence", "log_evidence_mcse"))
    figure.suptitle(
        f"Log evidence {estimate:.2f} ± {error:.2f} by annealing, exactly {problem.log_evidence:.2f}"
    )
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "annealing.png", dpi=125)


if __name__ == "__main__":
    main()
