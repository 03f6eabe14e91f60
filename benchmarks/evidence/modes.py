"""Separated modes drawn at random: the share that estimate_evidence finds, and of misses without a flag.

    python -m benchmarks.evidence.modes --quick            # ten problems: some minutes
    python -m benchmarks.evidence.modes --runs 200         # an hour
    python -m benchmarks.evidence.modes --runs 400 --resume

Every run has a problem of its own, drawn from its seed: 2 to 12 dimensions, 2 to 10 normal modes with standard
deviations of 0.1 to 1, centres in a box whose width is drawn too, and Dirichlet weights, under a uniform prior
on [-10, 10] or a normal prior with standard deviation 5. The evidence is a closed form. A run has *found* all
if it is off by less than 4 standard errors and less than 0.1 nat. Every run is a line of evidence_modes.jsonl
as soon as it is done, from which tables in Markdown, JSON and CSV are made.
"""

from __future__ import annotations

import argparse
import math
import time

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scipy.special import log_ndtr, logsumexp

from benchmarks.evidence.runs import attempt, figures_of
from benchmarks.harness import options, results
from benchmarks.harness.jobs import Result, say
from benchmarks.harness.options import Option
from benchmarks.harness.results import Book
from benchmarks.harness.tables import markdown, number, percent

_NAME = "evidence_modes"
_LOG_2PI = math.log(2.0 * math.pi)
BOX, WIDE = np.float64(10.0), np.float64(5.0)
DIMENSIONS, MODES, SDS = (2, 12), (2, 10), (0.1, 1.0)
#: Standard errors and nats within which all has been found.
ERRORS, NATS = 4.0, 0.1
_DIMENSION_BINS = ((2, 4), (5, 8), (9, 12))
_MODE_BINS = ((2, 3), (4, 6), (7, 10))
HEADERS = (
    "D", "modes", "runs", "found", "missed without a flag", "found with a flag", "unfinished",
    "median evaluations", "median gradients", "median CPU s",
)  # fmt: skip


class Modes(NamedTuple):
    """Normal modes (K, D) with weights (K,) and standard deviations (K,), under one of two priors."""

    centres: np.ndarray
    sds: np.ndarray
    log_weights: np.ndarray
    uniform: bool

    @property
    def log_heights(self) -> np.ndarray:
        """Log of what each mode adds to the likelihood at its centre (K,)."""
        return self.log_weights - self.centres.shape[1] * (np.log(self.sds) + 0.5 * _LOG_2PI)

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        """Log likelihood (n,) of points (n, D)."""
        squares = np.square(x[:, None] - self.centres).sum(axis=2) / np.square(self.sds)
        return logsumexp(self.log_heights - 0.5 * squares, axis=1)

    def log_shares(self) -> np.ndarray:
        """Log of what each mode adds to Z (K,)."""
        d = self.centres.shape[1]
        if self.uniform:
            high = (BOX - self.centres) / self.sds[:, None]
            low = (-BOX - self.centres) / self.sds[:, None]
            outside = np.exp(log_ndtr(-high)) + np.exp(log_ndtr(low))
            return self.log_weights + np.log1p(-outside).sum(axis=1) - d * math.log(2.0 * BOX)
        variance = WIDE**2 + np.square(self.sds)
        squares = np.square(self.centres).sum(axis=1) / variance
        return self.log_weights - 0.5 * (squares + d * (_LOG_2PI + np.log(variance)))

    @property
    def log_evidence(self) -> float:
        """Log Z in closed form."""
        return float(logsumexp(self.log_shares()))

    def build(self) -> Any:
        """A ``pm.Model`` with the likelihood as a potential."""
        import pymc as pm
        import pytensor.tensor as pt

        d = self.centres.shape[1]
        with pm.Model() as model:
            if self.uniform:
                x = pm.Uniform("x", -BOX, BOX, shape=d)
            else:
                x = pm.Normal("x", 0.0, WIDE, shape=d)
            squares = pt.sqr((x - self.centres) / self.sds[:, None]).sum(axis=1)
            pm.Potential("modes", pt.logsumexp(self.log_heights - 0.5 * squares))
        return model


def draw_modes(seed: int) -> Modes:
    """The problem of a seed."""
    from amc_pymc.rng import as_generator

    rng = as_generator(seed)
    d = int(rng.integers(DIMENSIONS[0], DIMENSIONS[1] + 1))
    k = int(rng.integers(MODES[0], MODES[1] + 1))
    reach = rng.uniform(2.0, 8.0)
    centres = rng.uniform(-reach, reach, (k, d))
    sds = np.exp(rng.uniform(math.log(SDS[0]), math.log(SDS[1]), k))
    return Modes(centres, sds, np.log(rng.dirichlet(np.ones(k))), bool(rng.random() < 0.5))


# --- runs ----------------------------------------------------------------------------------------


def measure(modes: Modes, seed: int, target: float) -> Result:
    """One estimate."""
    import amc_pymc as amc

    begin = time.process_time()
    tree = amc.estimate_evidence(
        target_mcse=target, model=modes.build(), random_seed=seed, progressbar=False
    )
    found = figures_of(tree)
    return {**found, "setup_s": time.process_time() - begin - found["cpu_s"]}


def run(seed: int, target: float, cap: float) -> Result:
    """The row of a seed."""
    modes = draw_modes(seed)
    k, d = modes.centres.shape
    row = {
        "seed": seed, "n_dim": d, "modes": k, "prior": "uniform" if modes.uniform else "normal",
        "truth": modes.log_evidence, "shares": np.exp(modes.log_shares() - modes.log_evidence).tolist(),
        "sds": modes.sds.tolist(),
    }  # fmt: skip
    row |= attempt(lambda: measure(modes, seed, target), cap)
    return row | {"found": found_all(row)}


def found_all(row: Result) -> bool:
    """Whether an estimate is close to the evidence; none, or one that is not a number, is not."""
    if row["status"] != "finished":
        return False
    off = abs(row["log_evidence"] - row["truth"])
    return bool(off < ERRORS * row["mcse"] and off < NATS)


# --- tables --------------------------------------------------------------------------------------


def summarise(rows: Sequence[Result]) -> Result:
    """Shares and costs of some runs."""
    done = [r for r in rows if r["status"] == "finished"]
    found = np.array([r["found"] for r in done], dtype=bool)
    flagged = np.array([bool(r["flags"]) for r in done], dtype=bool)

    def median(name: str) -> float:
        return float(np.median([r[name] for r in done])) if done else math.nan

    def share(which: np.ndarray) -> float:
        return float(which.mean()) if done else math.nan

    return {
        "runs": len(rows),
        "found": share(found),
        "missed": share(~found & ~flagged),
        "needless": share(found & flagged),
        "unfinished": len(rows) - len(done),
        "seeds": [r["seed"] for r, bad in zip(done, ~found & ~flagged, strict=True) if bad],
        **{name: median(name) for name in ("evaluations", "gradients", "cpu_s")},
    }


def table(rows: Sequence[Result]) -> str:
    """Shares by dimension, by number of modes, and all."""
    bins = [(low, high, *MODES) for low, high in _DIMENSION_BINS]
    bins += [(*DIMENSIONS, low, high) for low, high in _MODE_BINS]
    lines = []
    for low, high, fewest, most in [*bins, (*DIMENSIONS, *MODES)]:
        mine = [r for r in rows if low <= r["n_dim"] <= high and fewest <= r["modes"] <= most]
        if not mine:
            continue
        s = summarise(mine)
        lines.append([
            f"{low}-{high}", f"{fewest}-{most}", str(s["runs"]), percent(s["found"]),
            percent(s["missed"]), percent(s["needless"]), str(s["unfinished"]),
            number(s["evaluations"]), number(s["gradients"]), number(s["cpu_s"], 2),
        ])  # fmt: skip
    text = markdown(HEADERS, lines)
    seeds = summarise(rows)["seeds"]
    if seeds:
        text += f"\n\nSeeds of misses without a flag: {', '.join(map(str, seeds))}."
    return text


def main(o: argparse.Namespace) -> None:
    """Measure, print, save."""
    path = Path(o.out) / f"{_NAME}.jsonl"
    if not o.resume:
        path.unlink(missing_ok=True)
    book = Book(path, lambda row: row["seed"])
    seeds = range(o.seed, o.seed + o.runs)
    have = {row["seed"] for row in book.rows()}
    for seed in seeds:
        if seed in have:
            continue
        row = run(seed, o.target, o.cap)
        book.add(row)
        off = row["log_evidence"] - row["truth"] if row["status"] == "finished" else math.nan
        say(f"... {seed}: {row['status']}, {off:+.4f}")
    rows = [row for row in book.rows() if row["seed"] in seeds]
    text = table(rows)
    print(text)
    flat = [{k: str(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    results.save(o, _NAME, flat, text)


if __name__ == "__main__":
    main(
        options.parse(
            __doc__, quick={"runs": 10}, seed=Option(1, "the first; the next ones follow"),
            runs=Option(200, "problems, each of its own seed"),
            target=Option(0.05, "standard error aimed at, in nats"),
            cap=Option(300.0, "CPU seconds of one run"), resume=False,
        )
    )  # fmt: skip
