"""Variable selection in a regression, with indicators drawn by RacingGibbs.

    python examples/variable_selection.py             about two minutes, longer the first time
    python examples/variable_selection.py --quick     fewer draws and simulated rows

The indicator gamma of a covariate determines whether its coefficient is in the model. To draw
one indicator, an ordinary Gibbs sampler evaluates all rows with and without the covariate; the
racing sampler stops as soon as the result is clear.

1. Doctor visits: covariates that predict whether a person saw a doctor in a year. 20,190 person-years of the
   RAND Health Insurance Experiment (included in statsmodels), nine covariates, and six columns of
   random numbers, which should be excluded. PyMC's own sampler for indicators is run for comparison.
2. Simulated: a linear regression with twelve covariates, for which the exact inclusion
   probabilities are known by enumeration of all 4,096 models. Its log likelihood is quadratic, so
   the control variate is exact and a decision takes hardly more than a first batch of rows.
"""

from __future__ import annotations

import argparse
import sys
import time

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

from rich.console import Console
from rich.table import Table

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import variable_selection as vs

CHAINS = CORES = 2
COVARIATE_COLOUR, NOISE_COLOUR, EXACT_COLOUR = "#0b6e99", "#d1662f", "#222222"


class Run(NamedTuple):
    """Draws, the step that drew the indicators, and seconds for preparing the steps and for sampling."""

    idata: xr.DataTree
    indicators: amc.RacingGibbs
    preparing: float
    sampling: float


# --- sampling -----------------------------------------------------------------------------------


def sample(model: pm.Model, draws: int, tune: int, seed: int) -> Run:
    """Draw the indicators and the coefficients in turn."""
    begin = time.perf_counter()
    with model:
        indicators = amc.RacingGibbs([model["gamma"]])
        coefficients = amc.RacingMetropolis([model["beta"], model["intercept"]])
        prepared = time.perf_counter()
        idata = pm.sample(
            draws, tune=tune, step=[indicators, coefficients], chains=CHAINS, cores=CORES,
            random_seed=seed, progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    return Run(idata, indicators, prepared - begin, time.perf_counter() - prepared)


def seconds_per_sweep(step, point: dict[str, np.ndarray], most: int, limit: float = 5.0) -> float:
    """Time one draw of all indicators with fixed coefficients, after as many sweeps of tuning."""
    step.setup_chain(np.random.default_rng(1), most, most)
    for tuning in (True, False):
        if not tuning:
            step.stop_tuning()
        begin = time.perf_counter()
        for sweeps in range(1, most + 1):
            point, _ = step.step(point)
            if time.perf_counter() - begin > limit:
                break
    return (time.perf_counter() - begin) / sweeps


def last_draw(idata: xr.DataTree) -> dict[str, np.ndarray]:
    """Return the last draw of the first chain."""
    last = idata["posterior"].to_dataset().isel(chain=0, draw=-1)
    return {str(name): values.values for name, values in last.data_vars.items()}


def sweep_rows(idata: xr.DataTree) -> np.ndarray:
    """Return the rows read by each sweep over the indicators (draws,), the chains one after the other."""
    return idata["sample_stats"]["race_rows"].values[..., 0].ravel()


def decisions_of(idata: xr.DataTree, step: int) -> xr.DataTree:
    """Return the draws with the statistics of one of the two steps only."""
    stats = idata["sample_stats"].to_dataset()
    races = {name: stats[name] for name in stats if str(name).startswith("race_")}
    chosen = {n: s[..., step] if s.ndim == 3 else s for n, s in races.items()}
    return xr.DataTree.from_dict({"sample_stats": xr.Dataset(chosen)})


# --- tables -------------------------------------------------------------------------------------


def inclusion(idata: xr.DataTree) -> dict[str, np.ndarray]:
    """Return mean, MCSE, R-hat and ESS of each indicator (p,); NaN for those that never changed."""
    gamma = idata["posterior"].to_dataset()[["gamma"]]
    with np.errstate(all="ignore"):
        found = {
            "mean": gamma.mean(("chain", "draw")), "mcse": az.mcse(gamma, method="mean"),
            "rhat": az.rhat(gamma), "ess": az.ess(gamma, method="mean"),
        }  # fmt: skip
    values = {name: table["gamma"].values for name, table in found.items()}
    constant = np.isin(values["mean"], (0.0, 1.0))
    return {n: v if n == "mean" else np.where(constant, np.nan, v) for n, v in values.items()}


def print_inclusion(console: Console, data: vs.SelectionData, idata, exact=None) -> None:
    """Print the inclusion probabilities, with the exact ones if they are known."""
    found = inclusion(idata)
    headers = ["covariate", "P(included)", "MCSE", "R-hat", "ESS"]
    if exact is not None:
        headers += ["exact", "difference / MCSE"]
    table = Table(*headers)
    for j, name in enumerate(data.names):
        mean, mcse, rhat, ess = (found[key][j] for key in ("mean", "mcse", "rhat", "ess"))
        fixed = np.isnan(mcse)
        cells = [f"{mean:.3f}", *(["never changed", "", ""] if fixed else
                 [f"{mcse:.3f}", f"{rhat:.3f}", f"{ess:,.0f}"])]  # fmt: skip
        if exact is not None:
            cells += [f"{exact[j]:.3f}", "" if fixed else f"{(mean - exact[j]) / mcse:+.1f}"]
        table.add_row(name, *cells)
    console.print(table)


def print_cost(console: Console, data: vs.SelectionData, run: Run) -> None:
    """Print the cost of the draws and the rate of wrong decisions."""
    n_rows, p = data.X.shape
    rows = sweep_rows(run.idata)
    console.print(
        f"Preparing took {run.preparing:.0f} s, sampling {run.sampling:.1f} s. A sweep over the {p} "
        f"indicators read {rows.mean():,.0f} rows on average, {rows.mean() / p:,.0f} per indicator: "
        f"{rows.mean() / p / n_rows:.2%} of the {n_rows:,}.",
        highlight=False,
    )
    table = Table("decisions of", "promised error", "re-made on all rows", "wrong", "95 % interval")
    for step, name in enumerate(("indicators", "coefficients")):
        error = amc.decision_error(decisions_of(run.idata, step)).loc["all"]
        table.add_row(
            name, f"{error.delta:g}", f"{error.audited:.0f}", f"{error.wrong:.0f}",
            f"{error.ci_low:.3f} to {error.ci_high:.3f}",
        )  # fmt: skip
    console.print(table)


def print_pymc(console: Console, model: pm.Model, run: Run, sweeps: int) -> None:
    """Time PyMC's sampler of indicators against the racing sampler, same sweeps from the same point."""
    point = last_draw(run.idata)
    with model:
        pymc = seconds_per_sweep(pm.BinaryGibbsMetropolis([model["gamma"]]), point, sweeps)
    racing = seconds_per_sweep(run.indicators, point, sweeps)
    console.print(
        f"A sweep over the indicators takes pm.BinaryGibbsMetropolis {1e3 * pymc:.2f} ms, "
        f"RacingGibbs {1e3 * racing:.2f} ms: a ratio of {pymc / racing:.1f}.\n",
        highlight=False,
    )


# --- picture ------------------------------------------------------------------------------------


def draw_figure(parts: list[tuple[str, vs.SelectionData, Run, np.ndarray | None]], path: Path):
    """Write a figure: inclusion probabilities, and below them the rows that sweeps read."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(parts), figsize=(11, 6.5), height_ratios=(2.4, 1), layout="constrained"
    )
    for (title, data, run, exact), (top, bottom) in zip(parts, axes.T):
        found = inclusion(run.idata)
        noise = [n.startswith("noise") or b == 0.0 for n, b in zip(data.names, data.beta)]
        where = np.arange(len(noise))
        colours = [NOISE_COLOUR if n else COVARIATE_COLOUR for n in noise]
        top.barh(where, found["mean"], color=colours, height=0.7)
        top.errorbar(found["mean"], where, xerr=np.nan_to_num(2.0 * found["mcse"]),
                     fmt="none", ecolor="#555555", lw=1.2)  # fmt: skip
        if exact is not None:
            top.plot(exact, where, "D", color=EXACT_COLOUR, ms=4, label="exact")
        top.bar(0.0, 0.0, color=COVARIATE_COLOUR, label="covariate")
        top.bar(0.0, 0.0, color=NOISE_COLOUR, label="noise column")
        top.legend(loc="lower right", frameon=False)
        top.set(title=title, yticks=where, yticklabels=data.names, xlim=(0.0, 1.02),
                xlabel="inclusion probability (bars: two Monte Carlo errors)")  # fmt: skip
        top.invert_yaxis()
        share = 100.0 * sweep_rows(run.idata) / data.X.size
        bins = np.geomspace(0.8 * share.min(), 130.0, 60)
        bottom.hist(share, bins=bins, color=COVARIATE_COLOUR)
        bottom.axvline(100.0, color=EXACT_COLOUR, lw=1.2, ls="--")
        bottom.text(95.0, 0.9, "all rows", ha="right", va="top",
                    transform=bottom.get_xaxis_transform())  # fmt: skip
        bottom.set(xscale="log", yticks=[], xlabel="rows read by a sweep over the indicators, %")
        bottom.set_xlim(right=bins[-1])
        for axis in (top, bottom):
            axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# --- the program --------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Which covariates matter? Indicators on tall data."
    )
    parser.add_argument("--rows", type=int, help="simulated rows (default 200,000)")
    parser.add_argument("--draws", type=int, help="draws per chain (default 4,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figure", type=Path, default=Path("demo_output/variable_selection.png"))
    parser.add_argument("--quick", action="store_true", help="20,000 simulated rows, 500 draws")
    args = parser.parse_args(arguments)
    rows = args.rows or (20_000 if args.quick else 200_000)
    draws = args.draws or (500 if args.quick else 4000)
    if rows < 100 or draws < 100:
        parser.error(f"--rows and --draws must be at least 100, got {rows} and {draws}")
    begin = time.perf_counter()
    console = Console(width=100)

    data = vs.doctor_visits()
    model = vs.selection_model(data.X, data.y, names=data.names)
    console.print(f"[bold]Doctor visits[/bold]: {len(data.y):,} rows, logistic regression")
    run = sample(model, draws, draws // 2, args.seed)
    print_inclusion(console, data, run.idata)
    console.print(noise_verdict(data, run.idata), highlight=False)
    print_cost(console, data, run)
    print_pymc(console, model, run, min(draws, 500))
    visits = ("Doctor visits", data, run, None)

    data = vs.sparse_data(rows, weakest=3.0, family="normal", rng=np.random.default_rng(3))
    exact = vs.inclusion_probabilities(data.X, data.y).inclusion
    model = vs.selection_model(data.X, data.y, names=data.names, family="normal")
    console.print(f"[bold]Simulated[/bold]: {rows:,} rows, linear regression, x6 to x11 are noise")
    run = sample(model, draws, draws // 2, args.seed)
    print_inclusion(console, data, run.idata, exact)
    print_cost(console, data, run)
    print_pymc(console, model, run, min(draws, 500))

    draw_figure([visits, (f"Simulated, {rows:,} rows", data, run, exact)], args.figure)
    console.print(f"wrote {args.figure}; all done in {time.perf_counter() - begin:.0f} s")
    return 0


def noise_verdict(data: vs.SelectionData, idata: xr.DataTree) -> str:
    """Return a sentence on the inclusion probabilities of the noise columns."""
    mean = inclusion(idata)["mean"]
    noise = np.array([name.startswith("noise") for name in data.names])
    kept = [name for name, m, n in zip(data.names, mean, noise) if m > 0.5 and not n]
    return (
        f"The {noise.sum()} noise columns got {mean[noise].min():.3f} to {mean[noise].max():.3f}; "
        f"more likely in than out: {', '.join(kept)}."
    )


if __name__ == "__main__":
    sys.exit(main())
