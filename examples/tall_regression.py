"""Regression on tall data: RacingMetropolis compared with NUTS.

    python examples/tall_regression.py                      the demonstration, under three minutes
    python examples/tall_regression.py --quick              the same, smaller
    python examples/tall_regression.py --data file.csv --target income
                                                            your own data instead of the first part

The demonstration has two parts.

1. Visits to the doctor: negative-binomial regression of 20,190 person-years from the RAND Health
   Insurance Experiment, which come with statsmodels, by RacingMetropolis and by NUTS.
2. Simulated: logistic regression with ten covariates on a million rows by RacingMetropolis, and a
   few draws of NUTS to measure their time.

Each part prints the posterior, its cost, the number of rows read per step, and the rate of wrong
decisions of the sampler; figures and the table of coefficients are written to ``demo_output/``.

With ``--data`` the target determines the family: logistic regression for two distinct values,
negative-binomial regression for counts, Student-t regression for other numbers. Text columns become one
indicator per level, relative to the most frequent level; numbers are standardised.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import amc_pymc as amc

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
RARE_SHARE = 0.001
RARE_ROWS = 5
#: Share of a column's variance not explained by earlier columns, below which the column is dropped.
REDUNDANT = 1e-5
INTERCEPT_SD, SLOPE_SD = 2.5, 1.0
CHAINS = 4
CORES = 2
#: Number of cells above which NUTS, which would take many minutes, is only timed.
NUTS_CELLS = 1_000_000
#: Limits for timing NUTS: depth of trees, of at most 2**3 - 1 gradients, and number of tuning steps.
TIMED_DEPTH, TIMED_TUNE = 3, 15
#: Number of rows below which, or share of rows read above which, racing is not worthwhile.
FEW_ROWS = 10_000
LARGE_SHARE = 0.1
TABLE_ROWS = 20

RACING_COLOUR, NUTS_COLOUR, TRUTH_COLOUR = "#0b6e99", "#d1662f", "#222222"
CHAIN_COLOURS = ("#0b6e99", "#6fb3c9", "#2f9e77", "#7a68b3")


class DataError(ValueError):
    """Data that cannot be used; the message gives the reason."""


# --- from a CSV file to a design ----------------------------------------------------------------


@dataclass(frozen=True)
class Design:
    """Regression problem: standardised covariates ``x`` (N, D) and a target ``y`` (N,)."""

    title: str
    slug: str
    target: str
    family: str
    names: tuple[str, ...]
    x: np.ndarray
    y: np.ndarray
    notes: tuple[str, ...] = ()
    mode: dict[str, float] = field(default_factory=dict)
    truth: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.y)


def read_table(path: Path, header: bool | None = None) -> pd.DataFrame:
    """Read a CSV file with or without a header (None: find out); columns of numbers become numeric."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        sample = file.read(100_000)
    if not sample.strip():
        raise DataError(f"{path} is empty")
    delimiter = find_delimiter(sample)
    lines = sample.splitlines()[:500]
    first_rows = [r for r in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if r]
    if header is None:
        header = has_header(first_rows)
    try:
        table = pd.read_csv(
            path, sep=delimiter, header=0 if header else None, skipinitialspace=True,
            na_values=list(MISSING), keep_default_na=False, encoding="utf-8-sig",
            encoding_errors="replace", low_memory=False,
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error
    if not header:
        table.columns = [f"x{k}" for k in range(table.shape[1])]
    table.columns = [str(name).strip() for name in table.columns]
    return table


def find_delimiter(sample: str) -> str:
    """Return the delimiter (comma, semicolon, tab or bar) that splits the first lines most evenly."""
    lines = [line for line in sample.splitlines()[:50] if line.strip()]

    def evenness(delimiter: str) -> tuple[int, int]:
        fields, count = Counter(len(r) for r in csv.reader(lines, delimiter=delimiter)).most_common(
            1
        )[0]
        return (count if fields > 1 else 0), fields

    return max((",", ";", "\t", "|"), key=evenness)


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row contains the names of the columns.

    This is the case if none of its fields is a number or missing while some column has numbers below, or, in
    a table of text only, if none of its fields recurs in its column.
    """
    first, rest = rows[0], rows[1:]
    fields = [field.strip() for field in first]
    if not rest or any(is_number(f) for f in fields) or set(fields[1:]) & set(MISSING):
        return False
    if fields[0] in MISSING[1:]:  # pandas writes a nameless index as an empty first field
        return False
    columns = [{row[k].strip() for row in rest if k < len(row)} for k in range(len(first))]
    if any(is_number(value) for column in columns for value in column):
        return True
    return all(name.strip() not in column for name, column in zip(first, columns))


def is_number(text: str) -> bool:
    """Whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def find_target(table: pd.DataFrame, target: str) -> str:
    """Return the column with the name or index ``target`` (negative: from the right)."""
    if target in table.columns:
        return target
    try:
        return table.columns[int(target)]
    except (ValueError, IndexError):
        shown = ", ".join(f"{k} {name!r}" for k, name in enumerate(table.columns[:40]))
        more = ", ..." if len(table.columns) > 40 else ""
        raise DataError(
            f"there is no column {target!r}; the columns are {shown}{more}. If the first line was "
            "taken for a header by mistake, or not, use --no-header or --header."
        ) from None


def make_design(table: pd.DataFrame, target: str, title: str, slug: str) -> Design:
    """Encode the columns of a table and choose the family of the regression."""
    target = find_target(table, target)
    notes = []
    known = table[target].notna()
    if not known.all():
        notes.append(f"left out {(~known).sum():,} rows without {target}")
        table = table[known]
    if len(table) < 2:
        raise DataError(f"a regression needs at least 2 rows, there are {len(table)}")
    family, y, note = encode_target(table[target])
    notes.append(note)
    names, columns = [], []
    for name in table.columns.drop(target):
        encoded, column_notes = encode_column(name, table[name])
        names += encoded
        columns += encoded.values()
        notes += column_notes
    kept = independent_columns(columns)
    if len(kept) < len(names):
        dropped = [name for k, name in enumerate(names) if k not in kept]
        notes.append(f"dropped what other columns already say: {', '.join(dropped)}")
    if not kept:
        raise DataError("no column is left to explain the target with")
    x = np.column_stack([columns[k] for k in kept])
    return Design(title, slug, target, family, tuple(names[k] for k in kept), x, y, tuple(notes))


def encode_target(column: pd.Series) -> tuple[str, np.ndarray, str]:
    """Return family, values and a note: two values, counts, or any numbers."""
    name, values = column.name, sorted(column.unique())
    if len(values) < 2:
        raise DataError(f"the target {name} is constant: it is always {values[0]}")
    if len(values) == 2:
        y = (column == values[1]).to_numpy().astype(np.int64)
        note = f"logistic regression of {name} = {values[1]} ({y.mean():.1%} of the rows)"
        return "bernoulli", y, note
    if not pd.api.types.is_numeric_dtype(column):
        raise DataError(
            f"the target {name} holds text with {len(values):,} different values; a regression "
            "needs numbers, or two classes"
        )
    y = column.to_numpy(dtype=float)
    if not np.isfinite(y).all():
        raise DataError(f"the target {name} holds infinite values")
    if (y >= 0).all() and (y == np.round(y)).all():
        note = f"negative-binomial regression of the counts {name}, on average {y.mean():.3g}"
        return "negative_binomial", y.astype(np.int64), note
    note = f"Student-t regression of {name}, in standard deviations of {y.std():.3g}"
    return "student_t", (y - y.mean()) / y.std(), note


def encode_column(name: str, column: pd.Series) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return covariates from one column, by name, and notes on omissions."""
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return encode_levels(name, column)
    return encode_numbers(name, column)


def encode_levels(name: str, column: pd.Series) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return one indicator per level but the most frequent; missing is a level, rare ones are pooled."""
    levels = column.astype(object).where(column.notna(), "missing").astype(str).str.strip()
    counts = levels.value_counts()
    rare = counts.index[counts < max(RARE_ROWS, RARE_SHARE * len(levels))]
    notes = []
    if len(rare) > 1:
        levels = levels.where(~levels.isin(rare), "(rare)")
        counts = levels.value_counts()
        notes.append(f"pooled {len(rare):,} rare levels of {name}")
    if len(counts) == 1:
        return {}, [*notes, f"dropped {name}, which is constant"]
    chosen = sorted(counts.index[1:])
    return {f"{name}={level}": (levels == level).to_numpy(float) for level in chosen}, notes


def encode_numbers(name: str, column: pd.Series) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return standardised numbers, 0 and 1 for two values; missing values become the median, with an indicator."""
    values = column.to_numpy(dtype=float)
    known = np.isfinite(values)
    out = {}
    if known.any():
        numbers = np.where(known, values, np.median(values[known]))
        distinct = np.unique(values[known])
        if len(distinct) == 2:
            out[name] = (numbers - distinct[0]) / (distinct[1] - distinct[0])
        elif len(distinct) > 2:
            out[name] = (numbers - numbers.mean()) / numbers.std()
    notes = [] if out else [f"dropped {name}, which is constant"]
    if 0 < known.sum() < len(known):
        out[f"{name}=missing"] = (~known).astype(float)
    return out, notes


def independent_columns(columns: Sequence[np.ndarray]) -> list[int]:
    """Return indices of columns that are not nearly linear combinations of a constant and earlier ones."""
    if not columns:
        return []
    x = np.column_stack([(c - c.mean()) / max(c.std(), 1e-300) for c in columns])
    gram = x.T @ x / len(x)
    kept: list[int] = []
    for k in range(len(columns)):
        left = gram[k, k]
        if kept:
            weights = np.linalg.solve(gram[np.ix_(kept, kept)], gram[kept, k])
            left -= gram[kept, k] @ weights
        if left > REDUNDANT:
            kept.append(k)
    return kept


# --- the two problems of the demonstration ------------------------------------------------------


def doctor_visits() -> Design:
    """Load visits to the doctor in a year (RAND Health Insurance Experiment)."""
    try:
        from statsmodels.datasets import randhie
    except ImportError:
        raise DataError("the data come with statsmodels: pip install statsmodels") from None
    table = randhie.load_pandas().data.rename(columns=RANDHIE_NAMES)
    return make_design(table, "visits", "Visits to the doctor in a year", "doctor_visits")


RANDHIE_NAMES = {
    "mdvis": "visits", "lncoins": "coinsurance (log)", "idp": "deductible plan",
    "lpi": "incentive paid (log)", "fmde": "deductible limit (log)",
    "physlm": "physical limitation", "disea": "chronic diseases", "hlthg": "health good",
    "hlthf": "health fair", "hlthp": "health poor",
}  # fmt: skip


def simulated(rows: int, seed: int, covariates: int = 10) -> Design:
    """Simulate rows of a logistic regression with known coefficients."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, covariates))
    intercept, slopes = -0.5, np.linspace(-0.5, 0.5, covariates)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-intercept - x @ slopes))).astype(np.int64)
    names = tuple(f"x{k}" for k in range(1, covariates + 1))
    truth = {"intercept": intercept, **{n: float(b) for n, b in zip(names, slopes)}}
    mode = dict(zip(truth, logistic_mode(x, y)))
    note = f"logistic regression of y = 1 ({y.mean():.1%} of the rows)"
    return Design(
        "Simulated classes", "simulated", "y", "bernoulli", names, x, y, (note,), mode, truth
    )


def logistic_mode(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Find the posterior mode of the logistic regression by Newton's method, intercept first.

    With so many rows its difference from the posterior mean is much less than a Monte Carlo error.
    """
    x = np.column_stack([np.ones(len(y)), x])
    prior = np.r_[INTERCEPT_SD, np.full(x.shape[1] - 1, SLOPE_SD)] ** -2.0
    b = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1.0 / (1.0 + np.exp(-x @ b))
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + np.diag(prior)
        change = np.linalg.solve(hessian, x.T @ (y - p) - prior * b)
        b += change
        if np.abs(change).max() < 1e-10:
            break
    return b


# --- model and samplers -------------------------------------------------------------------------


def build_model(design: Design) -> pm.Model:
    """Build the regression as a PyMC model with weakly informative priors."""
    with pm.Model(coords={"covariate": list(design.names)}) as model:
        x = pm.Data("x", design.x, dims=("row", "covariate"))
        intercept = pm.Normal("intercept", 0.0, INTERCEPT_SD)
        slope = pm.Normal("slope", 0.0, SLOPE_SD, dims="covariate")
        eta = intercept + x @ slope
        kwargs = {"observed": design.y, "dims": "row"}
        if design.family == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, **kwargs)
        elif design.family == "negative_binomial":
            alpha = pm.Exponential("alpha", 0.5)
            pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, **kwargs)
        else:
            sigma = pm.HalfNormal("sigma", 1.0)
            nu = pm.Gamma("nu", 2.0, 0.1)
            pm.StudentT("y", nu=nu, mu=eta, sigma=sigma, **kwargs)
    return model


@dataclass(frozen=True)
class Settings:
    """Settings of the samplers."""

    draws: int = 4000
    tune: int = 1000
    nuts_draws: int = 250
    nuts_tune: int = 200
    nuts_seconds: float = 10.0
    seed: int = 1


@dataclass(frozen=True)
class Run:
    """Draws of a sampler and the time in seconds."""

    idata: xr.DataTree
    setup: float
    sampling: float

    @property
    def total(self) -> float:
        return self.setup + self.sampling


@dataclass(frozen=True)
class NutsTiming:
    """Timing of a few iterations of NUTS, in one chain started inside the posterior."""

    setup: float
    seconds: float
    warmup: int
    draws: int
    gradients_per_draw: float
    seconds_per_gradient: float

    @property
    def seconds_per_draw(self) -> float:
        return self.gradients_per_draw * self.seconds_per_gradient


def sample_racing(model: pm.Model, design: Design, settings: Settings) -> Run:
    """Draw with RacingMetropolis; set-up includes compilation and the search for the mode."""
    audits = amc.Audits()
    if design.rows > 100_000:  # an audit reads all rows, so the default makes only a few of them
        audits = amc.Audits(15, max_share=None)
    begin = time.perf_counter()
    with model:
        step = amc.RacingMetropolis(audits=audits)
        ready = time.perf_counter()
        idata = pm.sample(
            settings.draws, tune=settings.tune, step=step, chains=CHAINS, cores=CORES,
            random_seed=settings.seed,
        )  # fmt: skip
    return Run(idata, ready - begin, time.perf_counter() - ready)


def sample_nuts(model: pm.Model, settings: Settings) -> Run:
    """Draw with NUTS, by nutpie if it is installed."""
    begin = time.perf_counter()
    with model:
        idata = pm.sample(
            settings.nuts_draws, tune=settings.nuts_tune, chains=CHAINS, cores=CORES,
            random_seed=settings.seed,
        )  # fmt: skip
    sampling = idata.posterior.attrs["sampling_time"]
    return Run(idata, time.perf_counter() - begin - sampling, sampling)


def time_nuts(model: pm.Model, start: dict[str, np.ndarray], settings: Settings) -> NutsTiming:
    """Run one chain of NUTS for a limited time from a point drawn from the posterior."""
    import nutpie

    begin = time.perf_counter()
    with Console(stderr=True).status("Compiling NUTS"):
        compiled = nutpie.compile_pymc_model(model, initial_points=start, jitter_rvs=set())
    latest: dict[str, float] = {}

    def remember(chains) -> None:
        latest.update(seconds=chains[0].runtime_ms / 1e3, gradients=chains[0].total_num_steps)

    ready = time.perf_counter()
    sampler = nutpie.sample(
        compiled, draws=100_000, tune=TIMED_TUNE, maxdepth=TIMED_DEPTH, chains=1, cores=1,
        seed=settings.seed, blocking=False, progress_bar=False, progress_callback=remember,
    )  # fmt: skip
    bar = Progress(
        TextColumn("A few draws of NUTS"), BarColumn(), TimeElapsedColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=settings.nuts_seconds)
        while (elapsed := time.perf_counter() - ready) < settings.nuts_seconds:
            bar.update(task, completed=elapsed)
            time.sleep(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # in case no draw has been made
        idata = sampler.abort()
    warmup = idata["warmup_sample_stats"]["n_steps"].values.ravel()
    draws = idata["sample_stats"]["n_steps"].values.ravel()
    typical = draws if draws.size >= 5 else warmup[-5:]
    return NutsTiming(
        setup=ready - begin, seconds=settings.nuts_seconds, warmup=warmup.size, draws=draws.size,
        gradients_per_draw=float(typical.mean()) if typical.size else np.nan,
        seconds_per_gradient=latest["seconds"] / max(latest["gradients"], 1),
    )  # fmt: skip


# --- tables -------------------------------------------------------------------------------------


def coefficient_table(design: Design, racing: Run, nuts: Run | None) -> pd.DataFrame:
    """Tabulate mean and sd of every parameter, and the samplers' differences in Monte Carlo errors."""
    out = pd.DataFrame(index=pd.Index(labelled(racing.idata), name="parameter"))
    out["mean"], out["sd"], error = moments(racing.idata)
    if nuts is not None:
        out["NUTS mean"], out["NUTS sd"], nuts_error = moments(nuts.idata)
        out["difference / MCSE"] = (out["mean"] - out["NUTS mean"]) / np.hypot(error, nuts_error)
    if design.mode:
        out["mode"] = pd.Series(design.mode)
        out["(mean - mode) / MCSE"] = (out["mean"] - out["mode"]) / error
    if design.truth:
        out["truth"] = pd.Series(design.truth)
        out["(mean - truth) / sd"] = (out["mean"] - out["truth"]) / out["sd"]
    return out


def labelled(idata: xr.DataTree) -> list[str]:
    """Return names of the scalar parameters: intercept, covariates, then the others."""
    data = idata["posterior"].to_dataset()
    out = []
    for name in parameter_order(data):
        out += (
            [str(c) for c in data["covariate"].values] if "covariate" in data[name].dims else [name]
        )
    return out


def parameter_order(data: xr.Dataset) -> list[str]:
    return ["intercept", "slope", *sorted(set(data.data_vars) - {"intercept", "slope"})]


def stacked(data: xr.Dataset) -> np.ndarray:
    """Return values (..., P) of all scalar parameters in the order of :func:`labelled`."""
    parts = [data[name].values for name in parameter_order(data)]
    lead = data["intercept"].ndim
    return np.concatenate([p if p.ndim > lead else p[..., None] for p in parts], axis=-1)


def moments(idata: xr.DataTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return posterior means, standard deviations, and Monte Carlo errors of the means."""
    draws = stacked(idata["posterior"].to_dataset())
    error = stacked(az.mcse(idata).to_dataset())
    return draws.mean((0, 1)), draws.std((0, 1)), error


def smallest_ess(idata: xr.DataTree, method: str) -> float:
    """Return the smallest number of effective draws of any parameter."""
    return float(stacked(az.ess(idata, method=method).to_dataset()).min())


def rows_per_step(run: Run) -> np.ndarray:
    return run.idata.sample_stats["race_rows"].values.ravel()


def print_coefficients(console: Console, design: Design, table: pd.DataFrame) -> None:
    """Print the coefficients; of many, those for which the samplers differ most."""
    shown, caption = table, ""
    order = next((c for c in ("difference / MCSE", "(mean - truth) / sd") if c in table), "mean")
    if len(table) > TABLE_ROWS:
        largest = table[order].abs().sort_values(ascending=False).index[:TABLE_ROWS]
        shown = table[table.index.isin(largest)]
        caption = f"{TABLE_ROWS} of {len(table)} parameters: those with the largest |{order}|"
    out = Table(title=f"{design.title}: posterior", caption=caption or None)
    out.add_column("parameter")
    for name in table.columns:
        out.add_column(
            name.replace("mean", "racing mean", 1) if name == "mean" else name, justify="right"
        )
    for name, values in shown.iterrows():
        ratios = [c.startswith(("difference", "(mean")) for c in shown.columns]
        cells = [f"{v:+.1f}" if r else f"{v:.4f}" for v, r in zip(values, ratios)]
        out.add_row(str(name), *cells)
    console.print(out)


def cost_table(design: Design, racing: Run, nuts: Run | None, timing: NutsTiming | None) -> Table:
    """Tabulate the cost of the draws."""
    out = Table(title=f"{design.title}: cost", show_lines=False)
    out.add_column("")
    out.add_column("RacingMetropolis", justify="right")
    columns = [racing_cost(design, racing)]
    if nuts is not None:
        out.add_column("NUTS", justify="right")
        columns.append(nuts_cost(design, nuts))
    if timing is not None:
        out.add_column("NUTS, best case *", justify="right")
        columns.append(timing_cost(design, timing))
        out.caption = (
            f"* One chain, stopped after {timing.seconds:.0f} s: {timing.draws} draws after "
            f"{timing.warmup} warm-up iterations. A gradient takes {timing.seconds_per_gradient:.3f} "
            f"s. The bound takes trees of at most {2**TIMED_DEPTH - 1} gradients, leaves out tuning, "
            "begins inside the posterior, counts each draw as one effective draw, and takes "
            f"{CORES} such chains to run side by side without slowing each other down."
        )
    for label in columns[0]:
        out.add_row(label, *(column.get(label, "") for column in columns))
    return out


def racing_cost(design: Design, run: Run) -> dict[str, str]:
    rows = rows_per_step(run)
    error = amc.decision_error(run.idata).loc["all"]
    return {
        **ess_cost(run),
        "rows read per step, median": f"{np.median(rows):,.0f}",
        "rows read per step, mean": f"{rows.mean():,.0f}",
        "share of all rows, mean": f"{rows.mean() / design.rows:.3%}",
        "wrong decisions, promised": f"at most {error['delta']:.1%}",
        "wrong decisions, measured": f"{error['wrong']:.0f} of {error['audited']:.0f}",
        "  95 % interval": f"{error['ci_low']:.1%} to {error['ci_high']:.1%}",
    }


def ess_cost(run: Run) -> dict[str, str]:
    bulk, tail = (smallest_ess(run.idata, method) for method in ("bulk", "tail"))
    draws = run.idata.posterior.sizes
    return {
        "chains x draws": f"{draws['chain']} x {draws['draw']:,}",
        "compiling, mode search (s)": f"{run.setup:.1f}",
        "sampling with tuning (s)": f"{run.sampling:.1f}", "smallest ESS, bulk": f"{bulk:,.0f}",
        "smallest ESS, tail": f"{tail:,.0f}",
        "ESS/s of sampling, bulk": f"{bulk / run.sampling:,.1f}",
        "ESS/s of sampling, tail": f"{tail / run.sampling:,.1f}",
        "ESS/s of total time, bulk": f"{bulk / run.total:,.1f}",
        "ESS/s of total time, tail": f"{tail / run.total:,.1f}",
    }  # fmt: skip


def nuts_cost(design: Design, run: Run) -> dict[str, str]:
    stats = run.idata.sample_stats
    name = "n_steps" if "n_steps" in stats else "tree_size"
    gradients = float(stats[name].mean())
    return {
        **ess_cost(run),
        "rows read per step, mean": f"{gradients * design.rows:,.0f}",
        "share of all rows, mean": f"{gradients:.1f} x all",
    }


def timing_cost(design: Design, timing: NutsTiming) -> dict[str, str]:
    speed = f"{CORES / timing.seconds_per_draw:,.1f}"
    return {
        "chains x draws": f"1 x {timing.draws}",
        "compiling, mode search (s)": f"{timing.setup:.1f}",
        "sampling with tuning (s)": f"{timing.seconds:.1f}",
        "ESS/s of sampling, bulk": f"at most {speed}",
        "ESS/s of sampling, tail": f"at most {speed}",
        "rows read per step, mean": f"{timing.gradients_per_draw * design.rows:,.0f}",
        "share of all rows, mean": f"{timing.gradients_per_draw:.1f} x all",
    }


def verdict(
    design: Design, racing: Run, nuts: Run | None = None, timing: NutsTiming | None = None
) -> str:
    """Return a verdict on whether racing is worthwhile, by the effective draws per second of sampling."""
    share = rows_per_step(racing).mean() / design.rows
    text = f"A step reads {share:.2%} of the {design.rows:,} rows, on average."
    speed = smallest_ess(racing.idata, "bulk") / racing.sampling
    ratio = None
    if nuts is not None:
        ratio = speed / (smallest_ess(nuts.idata, "bulk") / nuts.sampling)
        text += f" Racing makes {times(ratio)} as many effective draws per second as NUTS."
    elif timing is not None:
        ratio = speed * timing.seconds_per_draw / CORES
        text += f" Racing makes {times(ratio)} as many effective draws per second as NUTS at best."
    wins = share <= LARGE_SHARE if ratio is None else ratio > 1.0
    if design.rows >= FEW_ROWS and wins:
        return text
    reason = "there are few rows" if design.rows < FEW_ROWS else "its steps read too many rows"
    return f"[bold]Racing does not pay here:[/bold] {reason}. {text} Use NUTS for such data."


def times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


# --- pictures -----------------------------------------------------------------------------------


def draw_pictures(design: Design, racing: Run, nuts: Run | None, out: Path) -> list[Path]:
    """Write the figures of one problem and return their paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pictures = {
        "trace": draw_trace(design, racing),
        "posterior": draw_posterior(design, racing, nuts),
        "rows": draw_rows(design, racing),
    }
    paths = []
    for name, figure in pictures.items():
        paths.append(out / f"{design.slug}_{name}.png")
        figure.savefig(paths[-1], dpi=130)
        plt.close(figure)
    return paths


def pick_parameters(idata: xr.DataTree, most: int) -> list[int]:
    """Return indices of the parameters to draw: all, or those furthest from zero."""
    names = labelled(idata)
    if len(names) <= most:
        return list(range(len(names)))
    mean, sd, _ = moments(idata)
    return sorted(np.argsort(-np.abs(mean / sd), kind="stable")[:most].tolist())


def draw_trace(design: Design, run: Run, most: int = 6):
    """Plot the trace of a few parameters, a colour for each chain."""
    import matplotlib.pyplot as plt

    names, draws = labelled(run.idata), stacked(run.idata["posterior"].to_dataset())
    chosen = pick_parameters(run.idata, most)
    every = max(1, draws.shape[1] // 1000)
    steps = np.arange(0, draws.shape[1], every)
    figure, axes = plt.subplots(
        len(chosen), 2, figsize=(11, 1.5 * len(chosen) + 1.0), width_ratios=(1, 2.6),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for (density, trace), k in zip(axes, chosen):
        for chain, colour in zip(draws[:, :, k], CHAIN_COLOURS):
            density.plot(*smooth_density(chain), color=colour, lw=1.3)
            trace.plot(steps, chain[::every], color=colour, lw=0.5, alpha=0.7)
        density.set_yticks([])
        density.set_ylabel(names[k], rotation=0, ha="right", va="center")
        trace.set_xlim(0, draws.shape[1])
        density.locator_params(axis="x", nbins=5)
        if k != chosen[-1]:
            trace.tick_params(labelbottom=False)
        tidy(density, trace)
    axes[0, 0].set_title("Density by chain")
    axes[0, 1].set_title("Trace" + (f", every {every}th draw" if every > 1 else ""))
    axes[-1, 0].set_xlabel("value")
    axes[-1, 1].set_xlabel("draw")
    figure.suptitle(f"{design.title}: RacingMetropolis, {len(draws)} chains")
    return figure


def draw_posterior(design: Design, racing: Run, nuts: Run | None, most: int = 12):
    """Plot marginal posterior densities, together with those of NUTS or the true values."""
    import matplotlib.pyplot as plt

    names, draws = labelled(racing.idata), stacked(racing.idata["posterior"].to_dataset())
    other = stacked(nuts.idata["posterior"].to_dataset()) if nuts is not None else None
    chosen = pick_parameters(racing.idata, most)
    columns = min(4, len(chosen))
    lines = -(-len(chosen) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3 * columns, 2.1 * lines + 1.0), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axis, k in zip(axes.flat, chosen):
        grid, height = smooth_density(draws[..., k].ravel())
        axis.fill_between(grid, height, color=RACING_COLOUR, alpha=0.3, lw=0)
        axis.plot(grid, height, color=RACING_COLOUR, lw=1.5, label="RacingMetropolis")
        if other is not None:
            density = smooth_density(other[..., k].ravel())
            axis.plot(*density, color=NUTS_COLOUR, lw=1.5, ls="--", label="NUTS")
        if names[k] in design.truth:
            axis.axvline(design.truth[names[k]], color=TRUTH_COLOUR, lw=1.2, ls=":", label="truth")
        axis.set_title(names[k], fontsize=10)
        axis.set_yticks([])
        axis.set_ylim(bottom=0)
        axis.locator_params(axis="x", nbins=4)
        tidy(axis)
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    shown = f", {most} of {len(names)} parameters" if len(names) > most else ""
    figure.suptitle(f"{design.title}: posterior densities{shown}")
    return figure


def draw_rows(design: Design, run: Run):
    """Plot a histogram of the rows read per step relative to all rows."""
    import matplotlib.pyplot as plt

    from matplotlib.ticker import LogLocator

    rows = rows_per_step(run)
    low, high = rows[rows > 0].min(), max(design.rows, rows.max())
    bins = np.geomspace(low * 0.9, high * 1.1, 60)
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axis.hist(
        rows, bins, weights=np.full(rows.size, 100 / rows.size), color=RACING_COLOUR, alpha=0.8
    )
    for value, colour, style, label in (
        (np.median(rows), TRUTH_COLOUR, ":", f"median: {np.median(rows):,.0f} rows"),
        (rows.mean(), TRUTH_COLOUR, "--", f"mean: {rows.mean():,.0f} rows"),
        (design.rows, NUTS_COLOUR, "-", f"all {design.rows:,} rows"),
    ):
        axis.axvline(value, color=colour, ls=style, lw=1.6, label=label)
    axis.set(xscale="log", yscale="log", xlabel="rows read in a step", ylabel="steps [%]")
    axis.set_ylim(top=110)
    axis.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,), numticks=20)
    )
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title(f"{design.title}: rows read per step of RacingMetropolis")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    tidy(axis)
    return figure


def smooth_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute a Gaussian kernel density estimate on a grid, from a fine histogram."""
    spread = min(values.std(), np.subtract(*np.percentile(values, (75, 25))) / 1.34)
    width = 1.06 * max(spread, 1e-12) * values.size**-0.2
    middle, half = np.median(values), 5.0 * max(values.std(), 1e-12)
    counts, edges = np.histogram(
        values, bins=400, range=(middle - half, middle + half), density=True
    )
    grid = 0.5 * (edges[1:] + edges[:-1])
    step = grid[1] - grid[0]
    reach = np.arange(-int(4 * width / step) - 1, int(4 * width / step) + 2) * step
    kernel = np.exp(-0.5 * (reach / width) ** 2)
    height = np.convolve(counts, kernel / kernel.sum(), mode="same")
    seen = height > 1e-3 * height.max()
    return grid[seen], height[seen]


def tidy(*axes) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


# --- the program --------------------------------------------------------------------------------


def run_problem(console: Console, design: Design, settings: Settings, nuts: str, out: Path) -> None:
    """Sample one problem, print its tables and draw its figures; nuts: full, timed or none."""
    console.rule(f"[bold]{design.title}")
    console.print(f"{design.rows:,} rows, {len(design.names)} covariates and an intercept")
    for note in design.notes:
        console.print(f"- {note}", highlight=False, markup=False)
    model = build_model(design)
    racing = sample_racing(model, design, settings)
    full = timing = None
    if nuts == "full":
        full = sample_nuts(model, settings)
    elif nuts == "timed":
        timing = time_nuts(model, last_draw(racing.idata), settings)
    coefficients = coefficient_table(design, racing, full)
    print_coefficients(console, design, coefficients)
    console.print(cost_table(design, racing, full, timing))
    console.print(verdict(design, racing, full, timing))
    table_path = out / f"{design.slug}_coefficients.csv"
    coefficients.to_csv(table_path)
    for path in (table_path, *draw_pictures(design, racing, full, out)):
        console.print(f"wrote {path}", highlight=False)
    console.print()


def last_draw(idata: xr.DataTree) -> dict[str, np.ndarray]:
    """Return the last draw of the first chain, by variable."""
    last = idata["posterior"].to_dataset().isel(chain=0, draw=-1)
    return {str(name): np.asarray(values) for name, values in last.data_vars.items()}


def nuts_mode(design: Design) -> str:
    """Return "full" if NUTS can be run in reasonable time, otherwise "timed"."""
    return "full" if design.x.size <= NUTS_CELLS else "timed"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command-line arguments."""
    parser = argparse.ArgumentParser(
        description="Regression on tall data: RacingMetropolis beside NUTS."
    )
    parser.add_argument("--data", type=Path, metavar="CSV", help="your own data")
    parser.add_argument("--target", help="name or index (from 0) of the column to explain")
    header = parser.add_mutually_exclusive_group()
    header.add_argument("--header", action="store_true", default=None, help="first line is names")
    header.add_argument("--no-header", dest="header", action="store_false", help="it is not")
    parser.add_argument("--rows", type=positive, help="simulated rows (default 1,000,000)")
    parser.add_argument("--draws", type=positive, help="draws per chain (default 5,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="where results go")
    parser.add_argument("--quick", action="store_true", help="fewer rows and draws")
    parser.add_argument("--no-nuts", action="store_true", help="leave out NUTS")
    parser.add_argument("--no-simulated", action="store_true", help="leave out the simulated data")
    args = parser.parse_args(arguments)
    if (args.data is None) != (args.target is None):
        parser.error("--data and --target go together")
    if args.header is not None and args.data is None:
        parser.error("--header and --no-header are about --data")
    return args


def positive(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("must be at least 2")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return the exit code."""
    args = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100)
    settings = Settings(seed=args.seed)
    if args.quick:
        settings = Settings(1000, 500, 200, 300, 8.0, args.seed)
    if args.draws:
        settings = replace(settings, draws=args.draws)
    begin = time.perf_counter()
    try:
        if args.data is None:
            design = doctor_visits()
        else:
            table = read_table(args.data, args.header)
            design = make_design(table, args.target, args.data.stem, args.data.stem)
    except DataError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    run_problem(console, design, settings, "none" if args.no_nuts else nuts_mode(design), args.out)
    if not args.no_simulated:
        rows = args.rows or (100_000 if args.quick else 1_000_000)
        nuts = "none" if args.no_nuts else "timed"
        run_problem(console, simulated(rows, args.seed), settings, nuts, args.out)
    console.print(f"All done in {time.perf_counter() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
