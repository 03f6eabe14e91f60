"""Picture of the posterior probabilities of four models, from one chain over all of them.

    python examples/gallery/product_space.py [--out docs/images/gallery]

Polynomials of degree one to four are fitted to 20,000 rows; sample_product_space moves between them. The exact
probabilities are known, because prior and noise are normal. To see: all models are visited about equally often,
because their weights are adapted, and the probabilities, which correct for the weights, agree with the exact ones.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from numpy.polynomial import legendre
from scipy.special import softmax

import amc_pymc as amc

N_ROWS, DEGREES = 20_000, (1, 2, 3, 4)
BLUE, ORANGE = "#0b6e99", "#d1662f"


def log_evidence(X, y):
    """Return the exact log evidence, up to a constant, of coefficients N(0, 1) and noise N(0, 1)."""
    precision = np.eye(X.shape[1]) + X.T @ X
    return (
        0.5 * (X.T @ y) @ np.linalg.solve(precision, X.T @ y)
        - 0.5 * np.linalg.slogdet(precision)[1]
    )


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(2)
    basis = legendre.legvander(rng.uniform(-1.0, 1.0, N_ROWS), max(DEGREES))
    y = rng.normal(basis @ [0.5, 0.5, 0.05, 0.05, 0.0])
    models, exact = {}, []
    for degree in DEGREES:
        X = basis[:, : degree + 1]
        exact.append(log_evidence(X, y))
        with pm.Model() as models[f"degree {degree}"]:
            beta = pm.Normal("beta", 0.0, 1.0, shape=degree + 1)
            pm.Normal("y", X @ beta, 1.0, observed=y)
    found = amc.sample_product_space(
        models, draws=1500, tune=500, chains=2, cores=1, random_seed=1, progressbar=False
    )
    space, names = found["product_space"], list(models)

    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    axes[0].plot(found["posterior"]["model_index"].values[0, :100], ".-", color=BLUE, lw=0.6, ms=4)
    axes[0].set(
        xlabel="draw (the first 100 of chain 0)", title="The chain moves between all models"
    )
    axes[0].set_yticks(range(len(names)), names)
    at = np.arange(len(names))
    axes[1].bar(
        at,
        space["prob"],
        0.6,
        yerr=2.0 * space["prob_mcse"],
        color=BLUE,
        capsize=5,
        label="chain, ± 2 standard errors",
    )
    axes[1].plot(at, softmax(exact), "D", color=ORANGE, ms=8, mec="white", label="exact")
    axes[1].set(
        ylabel="posterior probability",
        ylim=(0.0, 1.15),
        title="Its probabilities agree with the exact ones",
    )
    axes[1].set_xticks(at, names)
    axes[1].legend(frameon=False, loc="upper left")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "product_space.png", dpi=125)


if __name__ == "__main__":
    main()
