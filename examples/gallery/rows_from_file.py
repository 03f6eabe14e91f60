"""Picture of a posterior given rows that stay in NumPy files.

    python examples/gallery/rows_from_file.py [--out docs/images/gallery]

A robust regression is built on 500 placeholder rows; RacingMetropolis reads 200,000 rows from two files through a
memory map. To see: the posterior is that of all rows, much narrower than that of the placeholders, although a draw
reads about a hundred rows.
"""

import argparse
import tempfile

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import amc_pymc as amc

N_ROWS, N_PLACEHOLDERS, SLOPE = 200_000, 500, 0.5
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


def sample(x, y, rows=None):
    """Return draws given the placeholders, or the rows that they stand for."""
    with pm.Model():
        x, y = pm.Data("x", x[:N_PLACEHOLDERS]), pm.Data("y", y[:N_PLACEHOLDERS])
        a, b = pm.Normal("a", 0.0, 10.0), pm.Normal("b", 0.0, 10.0)
        pm.StudentT("obs", nu=4.0, mu=a + b * x, sigma=1.0, observed=y)
        step = amc.RacingMetropolis(rows=rows, transitions_per_draw=1, progressbar=False)
        return pm.sample(
            1000, tune=300, step=step, chains=2, cores=1, random_seed=1,
            progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(1)
    x = rng.normal(size=N_ROWS)
    y = 1.0 + SLOPE * x + rng.standard_t(4.0, N_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        for name, values in {"x": x, "y": y}.items():
            np.save(Path(folder, name), values)
        files = {name: np.load(Path(folder, f"{name}.npy"), mmap_mode="r") for name in ("x", "y")}
        found = sample(x, y, amc.Rows(files))
        few = sample(x, y)

    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    for idata, colour, label in (
        (few, GREY, f"{N_PLACEHOLDERS} placeholder rows"), (found, BLUE, f"{N_ROWS:,} rows of the files")
    ):  # fmt: skip
        counts, edges = np.histogram(idata["posterior"]["b"], 30)
        axes[0].stairs(
            counts / counts.max(), edges, fill=True, color=colour, alpha=0.8, label=label
        )
    axes[0].axvline(SLOPE, color="black", lw=1.0, label="simulated")
    axes[0].set(ylim=(0.0, 1.05), xlabel="slope b", ylabel="draws, relative to the maximum")
    axes[0].set_title("The posterior is that of the files")
    axes[0].legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    read = found["sample_stats"]["race_rows"].values.ravel()
    axes[1].hist(read, 35.0 * 2.0 ** np.arange(14), color=ORANGE, ec="white")
    axes[1].axvline(N_ROWS, color="black", ls="--")
    axes[1].text(
        0.85 * N_ROWS,
        0.5,
        "all rows",
        rotation=90,
        ha="right",
        va="center",
        transform=axes[1].get_xaxis_transform(),
    )
    axes[1].set(
        xscale="log", xlim=(30, 1.5 * N_ROWS), xlabel="rows read", ylabel="draws",
        title=f"A draw reads {read.mean():,.0f} rows on average",
    )  # fmt: skip
    axes[1].xaxis.set_major_formatter("{x:,.0f}")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "rows_from_file.png", dpi=125)


if __name__ == "__main__":
    main()
