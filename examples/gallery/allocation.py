"""Picture of the allocation of draws to importance samplers of an option price, by a bandit.

    python examples/gallery/allocation.py [--out docs/images/gallery]

An option pays if an interest rate ends above its strike. Six importance samplers shift the simulated paths by a drift
theta; theta = 0 is plain Monte Carlo. To see: after the first rounds nearly all draws go to the best drifts, and the
interval of the running price shrinks.
"""

import argparse
import sys

from pathlib import Path

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.cir_caplet import Caplet

DRIFTS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    caplet = Caplet(strike=0.08)
    found = amc.combine_estimators(
        {f"theta = {theta:g}": caplet.arm(theta) for theta in DRIFTS},
        draws=50_000, random_seed=1, progressbar=False,
    )  # fmt: skip
    picture = amc.plot_allocation(found, figsize=(9.6, 5.6))
    picture.suptitle("A bandit finds the importance samplers with the smallest variance")
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "allocation.png", dpi=125)


if __name__ == "__main__":
    main()
