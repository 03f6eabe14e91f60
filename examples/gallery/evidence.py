"""Picture of a comparison by evidence, of two regressions of the strength of wood.

    python examples/gallery/evidence.py [--out docs/images]

Two regressions of the strength of radiata pine on a density (Williams 1959), with the priors of Friel & Wyse (2012), under
which the evidences are known: -310.1283 and -301.7046.
"""

import argparse
import sys

from pathlib import Path

import pymc as pm

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.radiata_pine import ADJUSTED_DENSITY, DENSITY, STRENGTH

COVARIATES = {"density": DENSITY, "adjusted density": ADJUSTED_DENSITY}


def regression(covariate):
    """Return the model of the strength given a covariate."""
    with pm.Model() as model:
        tau = pm.Gamma("tau", alpha=3.0, beta=2.0 * 300.0**2)
        a = pm.Normal("a", 3000.0, tau=0.06 * tau)
        b = pm.Normal("b", 185.0, tau=6.0 * tau)
        pm.Normal("strength", a + b * (covariate - covariate.mean()), tau=tau, observed=STRENGTH)
    return model


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    found = {
        name: amc.estimate_evidence(regression(x), random_seed=seed, progressbar=False)
        for seed, (name, x) in enumerate(COVARIATES.items(), start=1)
    }
    print(amc.compare_evidence(found))
    picture = amc.plot_evidence(found)
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "evidence.png", dpi=110)


if __name__ == "__main__":
    main()
