"""Picture of the regret of four policies that allocate draws to five estimators.

    python examples/gallery/regret.py [--out docs/images/gallery]

The estimators are normal with the same mean and standard deviations of 1 to 3. Regret is the loss from draws of other
estimators than the best, in draws of the best. To see: the curve of "lcb" flattens after some hundred draws, those of
the policies of the papers later, and that of the random choice never.
"""

import argparse

from pathlib import Path

import amc_pymc as amc

SDS = (1.0, 1.5, 2.0, 2.5, 3.0)
POLICIES = ("lcb", "thompson", "ucbv", "random")


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    arms = {f"sd {sd:g}": lambda rng, sd=sd: rng.normal(1.0, sd) for sd in SDS}
    runs = {
        policy: amc.combine_estimators(
            arms, policy=policy, draws=5_000, rounds=50, random_seed=1, progressbar=False
        )
        for policy in POLICIES
    }
    picture = amc.plot_regret(
        runs, best="sd 1", variances={f"sd {sd:g}": sd**2 for sd in SDS}, backend="matplotlib",
        figure_kwargs={"figsize": (9.6, 5.6), "figsize_units": "inches"},
        visuals={"title": {"text": "The regret of a policy that learns flattens"}},
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "regret.png", dpi=125)


if __name__ == "__main__":
    main()
