"""Inference without a likelihood: ABC-Tree and its peers at the same number of simulations.

    python -m benchmarks.abc.peers --quick                                # a minute
    python -m benchmarks.abc.peers --problems two_moons --budgets 1e3 1e4
    python -m benchmarks.abc.peers --calibration --problems ar_series     # ranks of the truth in posteriors
    python -m benchmarks.abc.peers --table                                # tables of what is there

A method is a family and its options, joined by colons. ``tree`` is ``sample_abc_tree``: ``straight``, ``boxes``,
``cart``, ``dyadic``, ``adjust`` (linear), ``forest``, ``auto`` and ``learned`` (the distance) are options, and so is any number
that it takes, as ``prior_share=0.1``; ``rejection`` is
``prior_share=1``. Both lower the tolerance as far as the budget goes, unless it is given, as in
``tree:tolerance=1``, in units of the problem's epsilon. ``smc`` is ``pm.sample_smc`` with ``pm.Simulator`` and
its defaults; ``smc:0.3`` has 0.3 times the epsilon. ``pyabc`` is ``pyabc.ABCSMC`` as it comes, and ``pyabc:tuned``
has more particles, lower quantiles and local kernels (``pip install pyabc``). ``sbi`` is neural posterior estimation
(``pip install sbi``). Neither of the other peers can be
stopped at a budget: particles of ``smc`` are as many as a pilot says, which is not counted, and of ``pyabc`` that generation
counts that ended nearest to the budget. Column "simulations" says what was spent.

All compare the same summaries by the same distance. Of what each returns, equal particles are taken as one, 10,000 draws
are resampled, and these are compared with exact ones, as they are and smoothed by one kernel, by boosted trees and by the
network of the published protocol (``--published-seeds``). Of our own methods the last compares the draws in group
``posterior``, which are smoothed already. A second table says how far their posterior means
are off, what was stated of that, how often 95 % intervals hold the exact mean, and how often there was a flag. Every run is a
line of a file as soon as it is done; what is there is not run again.
"""

from __future__ import annotations

import argparse

from collections.abc import Iterator, Sequence

import numpy as np

from amc_pymc.rng import as_generator
from benchmarks.abc.measures import (
    c2st,
    distinct,
    effective,
    resampled,
    smoothed,
    to_cube,
)
from benchmarks.abc.methods import (
    OURS,
    RUN,
    Found,
    Job,
    exact_draws,
    exact_moments,
    example,
    our_settings,
    quiet,
    warm,
)
from benchmarks.abc.tables import RANKS, row_key, tables
from benchmarks.harness import options
from benchmarks.harness.jobs import Result, say
from benchmarks.harness.options import Option
from benchmarks.harness.results import OUT, Book, record
from models.simulator_example import SimulatorExample
from models.simulator_suite import EXAMPLES

METHODS = (
    "tree", "tree:straight", "tree:cart", "tree:adjust", "tree:auto",
    "rejection", "rejection:adjust", "rejection:auto", "smc", "smc:0.3", "pyabc", "pyabc:tuned",
)  # fmt: skip
_QUICK: Result = {
    "problems": ["two_moons"], "budgets": [1000],
    "methods": ["tree", "tree:adjust", "rejection", "smc", "pyabc"], "seeds": 2, "observations": 1,
    "peer_seeds": 1, "draws": 2000,
}  # fmt: skip


# --- runs ------------------------------------------------------------------------------------------


def measured(job: Job, draws: int, *, published: bool) -> Result:
    """The row of a run; the network of the published protocol may compare, too."""
    problem = example(job.problem, job.observation)
    reference = exact_draws(job.problem, job.observation, draws)
    about = {"kind": "run", **vars(job)}
    try:
        with quiet():
            if job.family in OURS:
                warm(job.problem)
            found = RUN[job.family](job, problem)
            row = row_of(job, problem, found, reference, draws, published)
            return about | {"status": "finished"} | row
    except Exception as error:
        return about | {"status": f"failed: {type(error).__name__}: {error}"[:300]}


def row_of(
    job: Job, problem: SimulatorExample, found: Found, reference: np.ndarray | None, draws: int,
    published: bool,
) -> Result:  # fmt: skip
    """Figures of weighted particles."""
    theta, weights = distinct(found.theta, found.weights)
    row = {
        "simulations": found.simulations, "particles": len(theta), "effective": effective(weights),
        "tolerance": found.tolerance, "acceptance": found.acceptance,
        "overhead_us": 1e6 * found.overhead_s / found.overhead_of, "setup_s": found.setup_s,
    }  # fmt: skip
    if reference is None:
        return row
    rng = as_generator([job.seed, job.observation, 13])
    raw = theta[resampled(weights, draws, rng)]
    smooth = problem.cube(smoothed(to_cube(problem.cube, theta), weights, draws, rng))
    row |= {"c2st": c2st(smooth, reference), "c2st_raw": c2st(raw, reference)}
    returned = None if found.posterior is None else evenly(found.posterior, draws)
    if returned is not None:
        row["c2st_returned"] = c2st(returned, reference)
    if published:
        judged = smooth if returned is None else returned
        row["c2st_published"] = c2st(judged, reference, published=True)
    return row | errors_of(job, found)


def evenly(draws: np.ndarray, n: int) -> np.ndarray:
    """At most n of the draws (m, D), at equal distances."""
    return draws[np.linspace(0, len(draws) - 1, min(n, len(draws))).round().astype(int)]


def errors_of(job: Job, found: Found) -> Result:
    """Errors of posterior means beside the stated ones, in posterior standard deviations, and the flags."""
    moments = exact_moments(job.problem, job.observation)
    if moments is None or "mean" not in found.estimates:
        return {}
    mean, sd = moments
    told = {f"stated_{k}": (v / sd).tolist() for k, v in found.estimates.items() if k != "mean"}
    gap = (found.estimates["mean"] - mean) / sd
    return {"mean_errors": gap.tolist(), **told, "flags": found.flags}


def calibrated(job: Job) -> Result:
    """Ranks of parameters among draws of the posterior of data that they made.

    Ranks are uniform on 0, ..., 99 for exact posteriors (Talts et al. 2018, arXiv:1804.06788); those at a
    tolerance are wider, and ranks then come from the middle too often. The seed is the number of the data set.
    """
    problem = example(job.problem, 1)
    about = {"kind": "rank", **vars(job)}
    rng = as_generator([job.seed, 17])
    while True:
        theta = problem.prior_sample(rng, 1)
        summaries = problem.simulate(rng, theta)[0]
        if np.isfinite(summaries).all():
            break
    try:
        with quiet():
            found = RUN[job.family](job, problem, summaries)
    except Exception as error:
        return about | {"status": f"failed: {type(error).__name__}: {error}"[:300]}
    draws = found.theta[resampled(found.weights, RANKS, rng)]
    return about | {
        "status": "finished",
        "ranks": (draws < theta).sum(axis=0).tolist(),
        "tolerance": found.tolerance,
        "effective": effective(distinct(found.theta, found.weights)[1]),
    }


def jobs(o: argparse.Namespace) -> Iterator[Job]:
    """All runs that are asked for, seed after seed."""
    seeds = max(o.seeds, o.peer_seeds)
    for problem in o.problems:
        for budget in o.budgets:
            for seed in range(1, seeds + 1):
                for observation in range(1, o.observations + 1):
                    for method in o.methods:
                        job = Job(problem, method, observation, budget, seed)
                        if seed <= (o.seeds if job.family in OURS else o.peer_seeds):
                            yield job


def rank_jobs(o: argparse.Namespace) -> Iterator[Job]:
    """All data sets of calibration."""
    for problem in o.problems:
        for method in o.methods:
            for seed in range(1, o.data_sets + 1):
                yield Job(problem, method, 1, o.budgets[0], seed)


# --- options ---------------------------------------------------------------------------------------


def known_method(text: str) -> str:
    """A method whose family and options there are."""
    family, *options = text.split(":")
    if family not in RUN:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(RUN)} with options")
    try:
        if family in OURS:
            our_settings(options)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is not there yet, and print tables."""
    o = options.parse(
        __doc__, argv, _QUICK, seed=None, out=Option(OUT / "abc_peers.jsonl", "file of the rows"),
        problems=Option(list(EXAMPLES), choices=EXAMPLES), budgets=[1000, 10_000, 100_000],
        methods=Option(list(METHODS), read=known_method), seeds=Option(10, "for ours"), peer_seeds=3,
        observations=Option(3, "of each problem, the example's own first"),
        draws=Option(10_000, "of each side of a comparison"),
        published_seeds=Option(0, "seeds for which the network of Lueckmann et al. (2021) compares"),
        calibration=Option(False, "ranks, with the first budget"),
        data_sets=Option(60, "of --calibration"),
        table=Option(False, "print the tables of --out; nothing is run"),
    )  # fmt: skip
    book = Book(o.out, row_key)
    done = book.done()
    kind = "rank" if o.calibration else "run"
    wanted = rank_jobs(o) if o.calibration else jobs(o)
    for job in () if o.table else wanted:
        if row_key({"kind": kind, **vars(job)}) in done:
            continue
        published = job.seed <= o.published_seeds
        row = calibrated(job) if o.calibration else measured(job, o.draws, published=published)
        book.add(row)
        say(f"... {' '.join(map(str, vars(job).values()))}: {row['status']}")
    text = tables(book.rows())
    print(text)
    if o.record:
        record("abc_peers", text)


if __name__ == "__main__":
    main()
