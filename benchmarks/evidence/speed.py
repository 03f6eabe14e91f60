"""What densities and moves cost: those of the package, and written by hand."""

from __future__ import annotations

import time

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.evidence.by_hand import NumbaLogistic, NumpyLogistic, anneal_by_hand
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import markdown, number

PARTICLES, STEPS = 1000, 20
_COMPILED = "pm.Model, compiled"
LOGISTIC = {"logistic n=50 p=8": (50, 8), "logistic n=768 p=8": (768, 8)}


def speed(name: str) -> list[Result]:
    """Microseconds for a particle: of the compiled density, by hand, and of a step of annealing."""
    from amc_pymc.evidence.annealing import anneal, climb, power_schedule
    from amc_pymc.evidence.mcmc import HMC
    from amc_pymc.reading.particles.densities import extract_particles
    from amc_pymc.rng import as_generator
    from models.evidence_suite import PROBLEMS
    from models.logistic_regression import logistic_regression, simulate

    rng = as_generator(1)
    if name not in LOGISTIC:
        densities = extract_particles(PROBLEMS[name]().build())
        x = densities.draw_prior(PARTICLES, rng)
        return [
            _speed_row(name, _COMPILED, "values", lambda: densities.values(x)),
            _speed_row(name, _COMPILED, "gradients", lambda: densities.gradients(x)),
        ]
    X, y = simulate(*LOGISTIC[name])
    problem = logistic_regression(*LOGISTIC[name])
    paths = {
        _COMPILED: extract_particles(problem.build()),
        "NumPy by hand": NumpyLogistic(X, y),
        "Numba by hand": NumbaLogistic(X, y),
    }
    compiled = paths[_COMPILED]
    kernel, betas = HMC(n_leapfrog=3), power_schedule(STEPS, 4.0)
    ladder = climb(compiled, compiled.draw_prior(PARTICLES, rng), kernel, rng)
    tunings = [ladder.at(beta) for beta in betas[1:-1]]
    x, rows = ladder.particles.x, []
    for implementation, path in paths.items():
        rows += [
            _speed_row(name, implementation, "values", lambda: path.values(x)),
            _speed_row(name, implementation, "gradients", lambda: path.gradients(x)),
        ]

    def ours(path):
        begin = path.draw_prior(PARTICLES, rng)
        return anneal(path, begin, betas, kernel, ladder, rng).log_weights

    def by_hand(path):
        return anneal_by_hand(path, path.draw_prior(PARTICLES, rng), betas, tunings, rng)

    for label, run, path in (
        (_COMPILED + "; amc_pymc.evidence.annealing", ours, compiled),
        ("Numba by hand; amc_pymc.evidence.annealing", ours, paths["Numba by hand"]),
        ("NumPy by hand; NumPy by hand", by_hand, paths["NumPy by hand"]),
        ("Numba by hand; NumPy by hand", by_hand, paths["Numba by hand"]),
    ):
        step = _speed_row(name, label, "step of HMC(3)", lambda: run(path), STEPS - 1)
        rows.append(step)
    return rows


def _speed_row(problem: str, implementation: str, what: str, run: Callable, steps=1) -> Result:
    """Median of three measurements after a call that does not count."""
    run()
    seconds = []
    for _ in range(3):
        n, begin = 0, time.process_time()
        while time.process_time() - begin < 0.1:
            run()
            n += 1
        seconds.append((time.process_time() - begin) / n)
    us = 1e6 * float(np.median(seconds)) / PARTICLES / steps
    return {
        "kind": "speed",
        "problem": problem,
        "method": implementation,
        "seed": what,
        "status": "finished",
        "us": us,
    }


def speed_table(rows: Sequence[Result]) -> str:
    """Microseconds for a particle, and over those of ours."""
    these = [r for r in rows if r["kind"] == "speed"]
    ours = {(r["problem"], r["seed"]): r["us"] for r in these if r["method"].startswith(_COMPILED)}
    lines = [
        [
            r["problem"],
            r["seed"],
            r["method"],
            number(r["us"]),
            number(r["us"] / ours[r["problem"], r["seed"]]),
        ]
        for r in sorted(these, key=lambda r: (r["problem"], r["seed"]))
    ]
    headers = ["problem", "what", "density; move", "us", "over ours"]
    return markdown(headers, lines)
