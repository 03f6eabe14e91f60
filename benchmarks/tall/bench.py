"""Jobs of a benchmark on tall data one after the other, and the figures that their tables show."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import options, results
from benchmarks.harness.jobs import Result, run_job, say, serve
from benchmarks.harness.options import Option
from benchmarks.harness.tables import decision_error_cell, markdown, number, percent, with_error
from benchmarks.tall.problems import Job, Problem

#: Rows of the run that fills the compilers' caches before anything is timed.
_PRIME_ROWS = 2_000


class Bench:
    """Runs the jobs of a script, one after the other, and keeps what they return."""

    def __init__(self, script: str, options: argparse.Namespace):
        self.script = script
        self.options = options
        self.out = Path(options.out)
        self._caches = str(self.out / "caches") if options.caches == "warm" else None
        self._primed: set[tuple[str, str]] = set()

    def prime(self, job: Job) -> None:
        """Fill the compilers' caches by a small run of a method on a problem, unless that has been done."""
        key = (job.problem, job.method)
        if self._caches and key not in self._primed:
            self._primed.add(key)
            prime = replace(job, n_rows=_PRIME_ROWS, cap=5.0, draws=200, tune=100)
            run_job(self.script, prime, self._caches)

    def run(self, job: Job, watch: Callable[[int], None] | None = None) -> Result:
        """Run one job and say so; `watch` is as in `run_command`."""
        say(f"... {job.problem} N={job.n_rows:,} {job.method}")
        result = run_job(self.script, job, self._caches, watch=watch)
        say(f"    {result['status']}")
        return result

    def job(self, problem: str, method: str, n_rows: int, **changes) -> Job:
        """A job with the script's options."""
        o = self.options
        base = Job(problem, method, n_rows, o.seed, o.cap, chains=o.chains, cores=o.cores)
        return replace(base, **changes)

    def reference(self, problem: str, method: str, n_rows: int, **changes) -> Result:
        """Run a reference, or read it from disk if the same job has been run before."""
        job = self.job(problem, method, n_rows, **changes)
        name = f"{problem}-{method.replace(':', '_')}-{n_rows}-{job.seed}.json"
        path = self.out / "references" / name
        if path.exists():
            saved = json.loads(path.read_text())
            if saved["job"] == asdict(job):
                return saved["result"]
        self.prime(job)
        result = self.run(job)
        if "parameters" in result:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"job": asdict(job), "result": result}))
        return result

    def long_nuts(self, problem: str, n_rows: int, method: str = "nuts") -> Result:
        """The long NUTS run that others are compared with, on all cores."""
        o = self.options
        draws, tune = (500, 300) if o.quick else (2_500, 1_000)
        return self.reference(
            problem, method, n_rows, chains=4, cores=os.cpu_count() or 1, draws=draws, tune=tune,
            cap=o.reference_cap,
        )  # fmt: skip

    def compare(
        self, name: str, cases: Iterable[tuple[str, int]], shown: Columns,
        report: Callable[[Sequence[Result]], str], *, job: Callable[..., Job] | None = None,
        skip: Callable[[Job], str] = lambda job: "",
        reference: Callable[[str, int, dict[str, Result]], Result] = lambda problem, n_rows, found: {},
        more: Callable[[Result], Result] = lambda result: {},
    ) -> None:  # fmt: skip
        """Run all methods on all cases, and print and save the table and the report.

        Parameters
        ----------
        name : str
            Of the files.
        cases : iterable of tuple
            Problems and their numbers of rows.
        shown : dict
            Columns of the table.
        report : callable
            ``rows -> text``.
        job : callable, optional
            ``(problem, method, n_rows) -> Job``, by default that with the script's options.
        skip : callable
            ``job -> str``: why a job is not run, empty if it is.
        reference : callable
            ``(problem, n_rows, results by method) -> result`` that methods are compared with, empty
            if there is none; its entry "label" is shown.
        more : callable
            ``result -> figures`` beside those of :func:`figures`.
        """
        rows: list[Result] = []
        for problem, n_rows in cases:
            found = {}
            for method in self.options.methods:
                wanted = (job or self.job)(problem, method, n_rows)
                reason = skip(wanted)
                if not reason:
                    self.prime(wanted)
                found[method] = vars(wanted) | {"status": reason} if reason else self.run(wanted)
            against = reference(problem, n_rows, found)
            for result in found.values():
                row = {**figures(result), **more(result), "reference": against.get("label", "-")}
                rows.append(row if result is against else row | compare(result, against))
            print(table(shown, rows[-len(found) :]), flush=True)
            results.save(self.options, name, rows, report(rows))
        print(report(rows))


# --- figures -------------------------------------------------------------------------------------


def figures(result: Result) -> Result:
    """What the tables show of a worker's result, without its arrays."""
    row = {k: v for k, v in result.items() if k != "parameters"}
    row["family"] = row["method"].split(":")[0]
    for key in ("setup_s", "warmup_s", "sample_s", "peak_mb", "rows_share", "draws"):
        row[key] = _number(row.get(key))
    parameters = result.get("parameters", {})
    for key in ("ess_bulk", "ess_tail"):
        row[key] = float(np.min(parameters.get(key) or math.nan))
    ess = min(row["ess_bulk"], row["ess_tail"])
    row["ess_per_s"] = ess / row["sample_s"] if row["sample_s"] > 0 else math.nan
    row["fixed_s"] = row["setup_s"] + row["warmup_s"]
    row["to_1000_s"] = row["fixed_s"] + 1000.0 / row["ess_per_s"] if ess > 0 else math.nan
    row["total_s"] = row["fixed_s"] + row["sample_s"]
    row["ess_min"], row["ess_min_of"] = _least_of(parameters)
    cpu = _number(row.get("sample_cpu_s"))
    row["ess_per_cpu_s"] = row["ess_min"] / cpu if cpu > 0 else math.nan
    row["r_hat"] = float(np.max(parameters.get("r_hat") or math.nan))
    return row


def _least_of(parameters: Result) -> tuple[float, str]:
    """The smaller of bulk and tail ESS of the parameter where it is smallest, and which that is."""
    if not parameters.get("ess_bulk"):
        return math.nan, ""
    ess = np.minimum(parameters["ess_bulk"], parameters["ess_tail"])
    return float(ess.min()), parameters["label"][int(ess.argmin())]


def compare(result: Result, reference: Result) -> Result:
    """Errors of a result's means and sds in the reference's sds, with Monte Carlo errors."""
    if "parameters" not in result or "parameters" not in reference:
        return {}
    got, ref = _arrays(result["parameters"]), _arrays(reference["parameters"])
    with np.errstate(divide="ignore", invalid="ignore"):  # a variable that never moved has no sd
        bias_mean = (got["mean"] - ref["mean"]) / ref["sd"]
        bias_sd = got["sd"] / ref["sd"] - 1.0
    if not np.all(np.isfinite(bias_mean) & np.isfinite(bias_sd)):
        return {}
    mcse_mean = np.hypot(got["mcse_mean"], ref["mcse_mean"]) / ref["sd"]
    mcse_sd = np.hypot(got["mcse_sd"], ref["mcse_sd"]) / ref["sd"]
    labels = result["parameters"]["label"]
    return {
        **_worst("mean", bias_mean, mcse_mean, labels), **_worst("sd", bias_sd, mcse_sd, labels),
        "sd_ratio_min": float(1.0 + bias_sd.min()), "sd_ratio_max": float(1.0 + bias_sd.max()),
    }  # fmt: skip


def _worst(name, bias, mcse, labels) -> Result:
    k = int(np.argmax(np.abs(bias)))
    z = np.abs(bias) / np.where(mcse > 0.0, mcse, np.nan)
    return {
        f"bias_{name}": float(bias[k]),
        f"bias_{name}_mcse": float(mcse[k]),
        f"bias_{name}_of": labels[k],
        f"bias_{name}_max_z": float(np.nanmax(z)) if np.any(np.isfinite(z)) else math.nan,
    }


def _arrays(parameters: Result) -> dict[str, np.ndarray]:
    return {k: np.asarray(v, dtype=float) for k, v in parameters.items() if k != "label"}


def _number(value) -> float:
    return math.nan if value is None else float(value)


# --- tables --------------------------------------------------------------------------------------

Columns = dict[str, Callable[[Result], str]]


def shown(key: str, digits: int = 3) -> Callable[[Result], str]:
    """A column that shows a figure."""
    return lambda row: number(row.get(key), digits)


COLUMNS: Columns = {
    "problem": itemgetter("problem"), "method": itemgetter("method"),
    "N": lambda row: f"{row['n_rows']:,}", "draws": shown("draws", 7), "set-up s": shown("setup_s"),
    "warm-up s": shown("warmup_s"), "sample s": shown("sample_s"), "total s": shown("total_s"),
    "ESS bulk min": shown("ess_bulk"), "ESS tail min": shown("ess_tail"),
    "ESS/s sampling": shown("ess_per_s"), "s to 1000 ESS": shown("to_1000_s"),
    "rows read per step": lambda row: percent(row["rows_share"]),
    "audits' rows per step": lambda row: percent(row.get("audit_share")),
    "decision error [95 % CI]": decision_error_cell, "peak MB": shown("peak_mb"),
    "reference": itemgetter("reference"), "run": itemgetter("status"),
}  # fmt: skip


def columns(names: Sequence[str], own: Columns) -> Columns:
    """Columns of a benchmark in order: its own, and those that several have."""
    return {name: own.get(name) or COLUMNS[name] for name in names}


def table(shown: Columns, rows: Sequence[Result]) -> str:
    """A line for every row."""
    return markdown(list(shown), [[cell(row) for cell in shown.values()] for row in rows])


def report(
    title: str, problems: Sequence[Problem], how: str, shown: Columns, rows: Sequence[Result],
    peer: str, against: tuple[Sequence[str], Sequence[Sequence[str]]],
) -> str:  # fmt: skip
    """A report of all rows: how they were made, their table, and a comparison with one method."""
    told = "\n".join(f"- `{p.name}`: {p.title}" for p in problems)
    beside = f"## Against {peer}", markdown(*against)
    return "\n\n".join(filter(None, (f"# {title}", told, how, table(shown, rows), *beside)))


def peer_of(rows: Sequence[Result], row: Result, method: str) -> Result:
    """The row of a method on the same problem at the same N; empty if there is none."""
    key = row["problem"], row["n_rows"]
    same = (r for r in rows if r["method"] == method and (r["problem"], r["n_rows"]) == key)
    return next(same, {})


def mean_error(row: Result) -> str:
    """The largest error of a mean in the reference's sds, with its Monte Carlo error."""
    return with_error(row.get("bias_mean"), row.get("bias_mean_mcse"))


# --- options -------------------------------------------------------------------------------------

#: Options of benchmarks with references and several methods.
OPTIONS = {
    "cap": 600.0,
    "reference_cap": Option(1_800.0, "the same for references"),
    "chains": 1,
    "cores": Option(1, "cores that every method may use"),
    "caches": Option(
        "warm", "compilers' caches on disk: filled by a small run first, or empty for every job",
        choices=("warm", "cold"),
    ),
}  # fmt: skip


def conditions(o: argparse.Namespace) -> str:
    """How methods were run, for the report."""
    return (
        f"{o.chains} chain(s) per method on {o.cores} core(s), every method in a process of its own, at "
        f"most {o.cap:.0f} s of warm-up and sampling, {o.caches} compiler caches."
    )


def start(
    script: str, doc: str | None, main: Callable[[Bench], None], work: Callable[[Job], Result],
    quick: dict[str, Any], **own: Any,
) -> None:  # fmt: skip
    """Work on one job if asked to, else hand them out; options are as in :func:`options.parse`."""
    if not serve(sys.argv[1:], lambda job: work(Job(**job))):
        main(Bench(script, options.parse(doc, quick=quick, **(OPTIONS | own))))
