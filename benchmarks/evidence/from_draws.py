"""Evidence from the draws of NUTS beside log Z as it is known, its stated error and the time of the draws.

    python -m benchmarks.evidence.from_draws --quick    # two problems, three seeds: a minute
    python -m benchmarks.evidence.from_draws            # five problems, twenty seeds: some minutes
    python -m benchmarks.evidence.from_draws --problems mixed_200 --target 0.02 --marginalize none

Draws are 4 chains of 1,000 after 1,000 to tune, by nutpie on one core. Its model and the densities of
``estimate_evidence`` are compiled before anything is timed. Prints a table in Markdown and writes it, JSON and CSV
into results/. Where log Z comes from: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.special import expit

from benchmarks.evidence.runs import figures_of
from benchmarks.harness import options, results
from benchmarks.harness.jobs import Result, say
from benchmarks.harness.tables import markdown, number, percent, with_error

_NAME = "evidence_from_draws"
_LOG_2PI = math.log(2.0 * math.pi)
#: Particles and steps of the annealing runs that are the reference of the logistic regression.
_PARTICLES, _STEPS = 4_000, 300
_QUICK: dict[str, Any] = {"seeds": 3, "problems": ["regression_10", "mixed_50"]}
HEADERS = (
    "problem", "D", "error ± its own", "root mean square error", "stated error", "sd of z", "cover",
    "flagged", "T", "evaluations", "gradients", "CPU s", "NUTS CPU s",
)  # fmt: skip


class Problem(NamedTuple):
    """A model and its log evidence, with the error of that."""

    model: Any
    n_dim: int
    log_evidence: float
    error: float = 0.0


# --- problems ------------------------------------------------------------------------------------


def regression(n_dim: int, seed: int = 1) -> Problem:
    """Linear regression with known variance: closed form."""
    import pymc as pm

    from models.linear_regression import log_evidence_known_variance, simulate

    X, y = simulate(2 * n_dim, n_dim, seed=seed)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_dim)
        pm.Normal("y", X @ beta, 1.0, observed=y)
    return Problem(model, n_dim, log_evidence_known_variance(X, y, 1.0, 1.0))


def mixed(n_groups: int) -> Problem:
    """Random intercepts, not centred, two coefficients, two scales: closed form given the scales, and quadrature."""
    from models.mixed_models import mixed_linear

    found = mixed_linear(n_groups)
    return Problem(found.build(), found.n_dim, found.log_evidence, found.error)


def logistic(n_dim: int, seed: int = 1) -> Problem:
    """Logistic regression: annealing from the Laplace approximation, in NumPy."""
    import pymc as pm

    rng = np.random.default_rng(seed)
    X = rng.standard_normal((4 * n_dim, n_dim))
    y = (rng.random(4 * n_dim) < expit(X @ rng.normal(0.0, 0.5, n_dim))).astype(float)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_dim)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return Problem(model, n_dim, *logistic_log_evidence(X, y))


class _Logistic:
    """Log prior and log likelihood of a logistic regression, as a path."""

    def __init__(self, X: np.ndarray, y: np.ndarray):
        self.X, self.y, self.n_dim = X, y, X.shape[1]

    def values(self, x: np.ndarray) -> np.ndarray:
        eta = x @ self.X.T
        prior = -0.5 * np.vecdot(x, x) - 0.5 * self.n_dim * _LOG_2PI
        return np.array([prior, eta @ self.y - np.logaddexp(0.0, eta).sum(axis=1)])

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.values(x), np.stack([-x, (self.y - expit(x @ self.X.T)) @ self.X])


def logistic_log_evidence(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Log Z and its error: annealed importance sampling from the Gaussian at the mode."""
    from amc_pymc.evidence.annealing import anneal
    from amc_pymc.evidence.mcmc import HMC, Tuning
    from amc_pymc.evidence.paths import WhitenedPath
    from amc_pymc.logweights import summarise_log_weights
    from amc_pymc.rng import as_generator

    joint, rng = _Logistic(X, y), as_generator(1)
    mode = minimize(
        lambda b: -float(joint.values(b[None]).sum()), np.zeros(joint.n_dim), method="BFGS",
        jac=lambda b: -joint.gradients(b[None])[1].sum(axis=0)[0], options={"gtol": 1e-8},
    ).x  # fmt: skip
    p = expit(X @ mode)
    precision = np.eye(joint.n_dim) + (X.T * (p * (1.0 - p))) @ X
    path = WhitenedPath(joint, mode, np.linalg.cholesky(np.linalg.inv(precision)))

    class Same:
        def at(self, beta: float) -> Tuning:
            return Tuning(0.4, np.ones(joint.n_dim))

    z = rng.standard_normal((_PARTICLES, joint.n_dim))
    run = anneal(path, z, np.linspace(0.0, 1.0, _STEPS + 1), HMC(), Same(), rng)
    found = summarise_log_weights(run.log_weights)
    return found.log_mean, math.sqrt(found.relative_variance / found.n)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "regression_10": lambda: regression(10),
    "regression_100": lambda: regression(100),
    "mixed_50": lambda: mixed(50),
    "mixed_200": lambda: mixed(200),
    "logistic_100": lambda: logistic(100),
}


# --- measurements --------------------------------------------------------------------------------


def measure(name: str, options: argparse.Namespace) -> list[Result]:
    """All seeds of a problem; what is compiled is compiled before."""
    import nutpie

    problem = PROBLEMS[name]()
    compiled = nutpie.compile_pymc_model(problem.model)
    sample = {"chains": 4, "cores": 1, "progress_bar": False, "store_divergences": False}
    short = nutpie.sample(compiled, draws=100, tune=100, seed=0, **sample)
    marginalize = None if options.marginalize == "none" else "auto"
    evidence(problem, short, 0, options.target, marginalize)
    rows = []
    for seed in range(1, options.seeds + 1):
        begin = time.process_time()
        idata = nutpie.sample(compiled, draws=options.draws, tune=1000, seed=seed, **sample)
        nuts = time.process_time() - begin
        row = {"problem": name, "n_dim": problem.n_dim, "seed": seed, "nuts_cpu_s": nuts}
        row |= {"truth": problem.log_evidence, "truth_error": problem.error}
        rows.append(row | evidence(problem, idata, seed, options.target, marginalize))
        say(f"... {name} {seed}: {rows[-1]['error']:+.4f}")
    return rows


def evidence(
    problem: Problem, idata: Any, seed: int, target: float, marginalize: Any = "auto"
) -> Result:
    """One estimate."""
    import amc_pymc as amc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # flags are kept
        tree = amc.estimate_evidence(
            idata=idata,
            model=problem.model,
            marginalize=marginalize,
            target_mcse=target,
            random_seed=seed,
            progressbar=False,
        )
    found = tree["evidence"]
    return {
        **figures_of(tree),
        "error": float(found["log_evidence"]) - problem.log_evidence,
        "steps": int(found["n_steps"]),
        "overlap": float(found["overlap"]),
        "flags": str(found.attrs["flags"]),
    }


def summarise(rows: Sequence[Result]) -> Result:
    """What the table shows of the runs of one problem."""
    errors = np.array([r["error"] for r in rows])
    total = np.array([math.hypot(r["mcse"], r["truth_error"]) for r in rows])
    z = errors / total
    return {
        "problem": rows[0]["problem"],
        "n_dim": rows[0]["n_dim"],
        "bias": float(errors.mean()),
        "bias_error": float(errors.std(ddof=1) / math.sqrt(len(rows)))
        if len(rows) > 1
        else math.nan,
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "mcse": float(np.mean([r["mcse"] for r in rows])),
        "z_sd": float(np.sqrt(np.mean(z**2))),
        "cover": float(np.mean(np.abs(z) < 1.959964)),
        "flagged": float(np.mean([bool(r["flags"]) for r in rows])),
        "steps": sorted({r["steps"] for r in rows}),
        **{
            k: float(np.median([r[k] for r in rows]))
            for k in ("evaluations", "gradients", "cpu_s", "nuts_cpu_s")
        },
    }


def line(found: Result) -> list[str]:
    """A row of the table."""
    return [
        found["problem"], str(found["n_dim"]),
        with_error(found["bias"], found["bias_error"]),
        number(found["rmse"], 2), number(found["mcse"], 2), number(found["z_sd"], 2),
        percent(found["cover"]), percent(found["flagged"]), ", ".join(map(str, found["steps"])),
        number(found["evaluations"]), number(found["gradients"]),
        number(found["cpu_s"], 2), number(found["nuts_cpu_s"], 2),
    ]  # fmt: skip


def main(o: argparse.Namespace) -> None:
    """Measure all problems, print and save the table."""
    rows: list[Result] = []
    lines = []
    for name in o.problems:
        own = measure(name, o)
        rows += own
        lines.append(line(summarise(own)))
    text = markdown(HEADERS, lines)
    print(text)
    results.save(o, _NAME, rows, text)


def parser() -> argparse.ArgumentParser:
    """Options."""
    p = options.parser(__doc__, seed=None)
    p.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    p.add_argument("--seeds", type=int, default=20)
    p.add_argument("--draws", type=int, default=1_000, help="of each of four chains")
    p.add_argument("--target", type=float, default=0.05, help="standard error aimed at, in nats")
    p.add_argument(
        "--marginalize", choices=["auto", "none"], default="auto",
        help="whether effects of the mixed models are integrated out",
    )  # fmt: skip
    return p


if __name__ == "__main__":
    main(options.parse(parser(), quick=_QUICK))
