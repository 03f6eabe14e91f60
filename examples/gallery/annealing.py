"""Picture of the weights of annealed importance sampling from the prior to the posterior.

    python examples/gallery/annealing.py [--out docs/images/gallery]

The posterior has two modes in four dimensions, with a known evidence. To see: the paths of the log-weights stay around
their mean (thick line), and the share of effective draws falls slowly, so no few particles dominate the estimate.
"""

import argparse
import sys

from pathlib import Path

import xarray as xr

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.two_modes import two_modes


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    problem = two_modes(4)
    found = amc.sample_ais(
        250, n_steps=100, reference="prior", model=problem.build(), random_seed=1, progressbar=False
    )
    fewer = found["annealing"].to_dataset().isel(path=slice(20))
    found["annealing"] = xr.DataTree(fewer)
    picture = amc.plot_ais(
        found,
        backend="matplotlib",
        figure_kwargs={"figsize": (9.6, 5.6), "figsize_units": "inches"},
    )
    estimate, error = (float(found["evidence"][n]) for n in ("log_evidence", "log_evidence_mcse"))
    picture.add_title(
        f"Log evidence {estimate:.2f} ± {error:.2f} by annealing, exactly {problem.log_evidence:.2f}"
    )
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "annealing.png", dpi=125)


if __name__ == "__main__":
    main()
