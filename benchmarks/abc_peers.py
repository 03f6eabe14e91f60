"""Inference without a likelihood: ABC-Tree and its peers at the same number of simulations.

    python benchmarks/abc_peers.py --quick                                # a minute
    python benchmarks/abc_peers.py --problems two_moons --budgets 1e3 1e4
    python benchmarks/abc_peers.py --calibration --problems mg1_queue     # ranks of the truth in posteriors
    python benchmarks/abc_peers.py --table abc_peers.jsonl                # tables of what is there

A method is a family and its options, joined by colons. ``tree`` is ``sample_abc_tree``: ``straight``, ``boxes``,
``cart``, ``dyadic`` and ``adjust`` are options, and so is any number that it takes, as ``prior_share=0.1``; ``rejection`` is
``sample_abc_rejection``. Both lower the tolerance as far as the budget goes, unless it is given, as in
``tree:tolerance=1``, in units of the problem's epsilon. ``smc`` is ``pm.sample_smc`` with ``pm.Simulator`` and
its defaults; ``smc:0.3`` has 0.3 times the epsilon. ``pyabc`` is ``pyabc.ABCSMC`` as it comes, and ``pyabc:tuned``
has more particles, lower quantiles and local kernels (``pip install pyabc``). Neither peer can be
stopped at a budget: particles of ``smc`` are as many as a pilot says, which is not counted, and of ``pyabc`` that generation
counts that ended nearest to the budget. Column "simulations" says what was spent.

All compare the same summaries by the same distance. Of what each returns, equal particles are taken as one, 10,000 draws
are resampled, and these are compared with exact ones, as they are and smoothed by one kernel. Every run is a
line of a file as soon as it is done; what is there is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import sys
import time
import warnings

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pymc as pm

from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from amc_pymc.logweights import systematic
from amc_pymc.rng import as_generator
from benchmarks.common import RESULTS, Result, markdown, number, percent
from benchmarks.evidence_suite import Stages, measured_kernel
from models.simulator_example import SimulatorExample
from models.simulator_suite import EXAMPLES

#: Observations of each problem; the first is the example's own.
_OBSERVATIONS = 3
#: Problems whose data are given; those of the others are simulated with their truth.
_GIVEN = ("two_moons", "two_scale_mixture", "gaussian_10")
#: Problems with a normal prior, and those with exact draws of another posterior.
_NORMAL, _NEAR = ("gaussian_10",), ("ma2",)
_OURS = ("tree", "rejection")
METHODS = (
    "tree", "tree:straight", "tree:cart", "tree:adjust",
    "rejection", "rejection:adjust", "smc", "smc:0.3", "pyabc", "pyabc:tuned",
)  # fmt: skip
_FLAGS: dict[str, Result] = {
    "straight": {"rotate": False},
    "boxes": {"local": False},
    "adjust": {"adjust": "linear"},
    "honest": {"honest": True},
    "cart": {"partition": "cart"},
    "dyadic": {"partition": "dyadic"},
}
#: Options of ``TreeProposal``.
_OF_PROPOSAL = {
    "partition",
    "local",
    "utility",
    "prior_share",
    "rates",
    "rotate",
    "honest",
    "window",
}
#: A tolerance that nobody reaches.
_LOWEST = 1e-9
#: Simulations per particle are told by a pilot of so many particles of one chain.
_PILOT, _FEWEST = 100, 20
_LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
#: Ranks of the truth are among so many draws.
_RANKS = 99
_QUICK: Result = {
    "problems": ["two_moons"],
    "budgets": [1000],
    "methods": ["tree", "tree:adjust", "rejection", "smc", "pyabc"],
    "seeds": 2,
    "observations": 1,
    "peer_seeds": 1,
    "draws": 2000,
}


# --- measures ------------------------------------------------------------------------------------


def c2st(
    draws: np.ndarray, reference: np.ndarray, *, classifier: str = "trees", seed: int = 1
) -> float:
    """Accuracy of a classifier that tells draws (n, D) from others (m, D): 1/2 for equal distributions.

    Both are centred and scaled by the reference; the accuracy is that on the halves of the data that were not
    trained on. "mlp" is a network of two layers, as in Lueckmann et al. (2021), arXiv:2101.04653, for a
    fixed number of epochs; "trees" are boosted, which takes a tenth of the time and sees more.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    centre, spread = reference.mean(axis=0), reference.std(axis=0)
    x = (np.concatenate([draws, reference]) - centre) / spread
    y = np.repeat([0, 1], [len(draws), len(reference)])
    if classifier == "trees":
        model = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    else:
        width = max(32, 10 * x.shape[1])
        model = MLPClassifier(
            (width, width), batch_size=min(1000, len(x) // 4), learning_rate_init=0.01, max_iter=100,
            n_iter_no_change=1000, random_state=seed,
        )  # fmt: skip
    folds = StratifiedKFold(2, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = cross_val_score(model, x, y, cv=folds, scoring="balanced_accuracy")
    return float(found.mean())


def sliced_wasserstein(
    draws: np.ndarray, reference: np.ndarray, rng: np.random.Generator, n_slices: int = 50
) -> float:
    """Mean Wasserstein-1 distance of projections on random directions, in reference standard deviations.

    Of n equal shifts by t in D dimensions it is the mean of abs(t . v) over directions v.
    """
    n = max(len(draws), len(reference))
    spread = reference.std(axis=0)
    direction = rng.standard_normal((draws.shape[1], n_slices))
    direction /= np.linalg.norm(direction, axis=0)
    at, parts = (np.arange(n) + 0.5) / n, []
    for x in (draws, reference):
        own = (np.arange(len(x)) + 0.5) / len(x)
        lines = np.sort((x / spread @ direction).T)
        parts.append(lines if len(x) == n else np.array([np.interp(at, own, y) for y in lines]))
    return float(np.abs(parts[0] - parts[1]).mean())


def weighted_quantiles(x: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles (Q, D) of points (n, D): where the middle of each point's weight lies at the level."""
    out = np.empty((len(levels), x.shape[1]))
    for j, column in enumerate(x.T):
        order = np.argsort(column)
        w = weights[order]
        out[:, j] = np.interp(levels, (np.cumsum(w) - 0.5 * w) / w.sum(), column[order])
    return out


def quantile_errors(x: np.ndarray, weights: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Absolute errors (Q, D) of quantiles in standard deviations of the reference (m, D)."""
    gaps = weighted_quantiles(x, weights, _LEVELS) - np.quantile(reference, _LEVELS, axis=0)
    return np.abs(gaps) / reference.std(axis=0)


def effective(weights: np.ndarray) -> float:
    """Effective draws of Kish."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def distinct(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, D) without repetition, with the sums of their weights."""
    points, place = np.unique(theta, axis=0, return_inverse=True)
    return points, np.bincount(place.ravel(), weights, len(points))


def to_cube(cube: Callable, theta: np.ndarray, n_steps: int = 48) -> np.ndarray:
    """Points (n, D) of the unit cube that are mapped to parameters (n, D), by bisection.

    Coordinate j of the parameters must increase with coordinate j of the cube and not depend on later ones.
    """
    u = np.full(theta.shape, 0.5)
    for j in range(theta.shape[1]):
        low, high = np.zeros(len(u)), np.ones(len(u))
        for _ in range(n_steps):
            u[:, j] = 0.5 * (low + high)
            below = cube(u)[:, j] < theta[:, j]
            low, high = np.where(below, u[:, j], low), np.where(below, high, u[:, j])
        u[:, j] = 0.5 * (low + high)
    return u


def resampled(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Indices (n,) in random order, each as often as its weight asks, rounded up or down."""
    return rng.permutation(systematic(weights, n, rng))


def smoothed(u: np.ndarray, weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws (n, D) of an adaptive kernel density of weighted points (m, D) of the unit cube.

    Kernels are normal on the unbounded scale of normal quantiles, as wide as half of the distance to the k-th
    neighbour over the root of D, with k the root of the number of effective draws.
    """
    edge = 2.0**-40
    x = ndtri(np.clip(u, edge, 1.0 - edge))
    index = resampled(weights, n, rng)
    k = min(max(2, round(math.sqrt(effective(weights)))), len(x) - 1)
    if k < 1:
        return u[index]
    distance, _ = cKDTree(x).query(x, k=[k + 1])
    width = 0.5 * distance[:, -1:] / math.sqrt(x.shape[1])
    return ndtr(x[index] + width[index] * rng.standard_normal((n, x.shape[1])))


# --- problems ------------------------------------------------------------------------------------


@cache
def example(name: str, observation: int) -> SimulatorExample:
    """A problem with its data: the first observation is the example's own."""
    make = EXAMPLES[name]
    if observation == 1:
        return make()
    if name not in _GIVEN:
        return make(data_seed=observation)
    first, rng = make(), as_generator([observation, 7])
    # Away from the edges of the prior, where the mixture's builder takes no data.
    theta = first.cube(rng.uniform(0.1, 0.9, (1, first.n_dim)))
    return make(observed=first.simulate(rng, theta)[0])


@cache
def exact_draws(name: str, observation: int, n: int) -> np.ndarray | None:
    """Reference draws (n, D), if there are any."""
    reference = example(name, observation).reference
    return None if reference is None else reference(as_generator([observation, 11]), n)


@dataclass
class Meter:
    """What a simulator was asked for and took.

    Attributes
    ----------
    simulations : int
    seconds : float
        Of the process.
    limit : float
        Simulations after which :class:`Enough` is raised.
    """

    simulations: int = 0
    seconds: float = 0.0
    limit: float = math.inf

    def metered(self, function: Callable) -> Callable:
        """A function of a ``pm.Simulator`` that is counted and timed: a row of summaries is a simulation."""

        def call(*arguments, **named):
            if self.simulations >= self.limit:
                raise Enough
            begin = time.process_time()
            out = function(*arguments, **named)
            self.seconds += time.process_time() - begin
            self.simulations += out.size // out.shape[-1]
            return out

        return call


class Enough(Exception):
    """A sampler without a budget has had more than that."""


def metered_model(
    problem: SimulatorExample,
    meter: Meter,
    *,
    factor: float = 1.0,
    observed: np.ndarray | None = None,
) -> pm.Model:
    """The model of an example, whose simulator is metered; with a factor on epsilon, or other data."""
    simulator = pm.Simulator

    def changed(name, function, *parameters, epsilon, **named):
        if observed is not None:
            named["observed"] = observed
        return simulator(
            name, meter.metered(function), *parameters, epsilon=factor * epsilon, **named
        )

    with mock.patch.object(pm, "Simulator", changed):
        return problem.model()


# --- methods -------------------------------------------------------------------------------------


class Found(NamedTuple):
    """Weighted particles and what they cost.

    Attributes
    ----------
    theta : array (n, D)
    weights : array (n,)
    tolerance : float
        In units of the example's distance.
    simulations : int
    acceptance : float
        Of the last batch, stage or generation.
    overhead_s : float
        CPU seconds beyond the simulator's and the set-up.
    overhead_of : int
        Simulations that the overhead belongs to.
    setup_s : float
        CPU seconds of compiling and the like.
    """

    theta: np.ndarray
    weights: np.ndarray
    tolerance: float
    simulations: int
    acceptance: float
    overhead_s: float
    overhead_of: int
    setup_s: float


@dataclass(frozen=True)
class Job:
    """A run: observation and seed of a problem, with a budget of simulations."""

    problem: str
    observation: int
    budget: int
    method: str
    seed: int

    @property
    def family(self) -> str:
        """What stands before the options of the method."""
        return self.method.split(":")[0]

    @property
    def options(self) -> list[str]:
        """The options of the method."""
        return self.method.split(":")[1:]


def run_ours(job: Job, problem: SimulatorExample, observed: np.ndarray | None = None) -> Found:
    """sample_abc_tree or sample_abc_rejection, in batches."""
    import amc_pymc as amc

    from amc_pymc.extract.simulator import ModelProblem

    meter, settings = Meter(), our_settings(job.options)
    model = metered_model(problem, meter, observed=observed)
    sample = amc.sample_abc_tree if job.family == "tree" else amc.sample_abc_rejection
    from_model, setup = ModelProblem.from_model, 0.0

    def timed(model):
        nonlocal setup
        begin = time.process_time()
        out = from_model(model)
        setup += time.process_time() - begin
        return out

    begin = time.process_time()
    with mock.patch.object(ModelProblem, "from_model", timed):
        tree = sample(
            max_simulations=job.budget, batched=True, model=model, progressbar=False,
            random_seed=[job.seed, job.observation], **{"tolerance": _LOWEST, **settings},
        )  # fmt: skip
    whole = time.process_time() - begin
    particles, rounds = tree["weighted_posterior"], tree["abc"]
    log_weight = particles["log_weight"].values[0]
    return Found(
        theta=problem.columns({name: particles[name].values[0] for name in problem.names}),
        weights=np.exp(log_weight - log_weight.max()),
        tolerance=float(rounds["final_tolerance"]) * problem.epsilon,
        simulations=int(rounds["n_simulations"]),
        acceptance=float(rounds["final_acceptance"].values[-1]),
        overhead_s=whole - meter.seconds - setup,
        overhead_of=job.budget,
        setup_s=setup,
    )


def our_settings(options: Sequence[str]) -> Result:
    """Keyword arguments from options: flags by name, and numbers as ``prior_share=0.1``."""
    out: Result = {}
    for option in options:
        name, equals, value = option.partition("=")
        if equals:
            out[name] = float(value) if set(value) & set(".e") else int(value)
        elif name in _FLAGS:
            out |= _FLAGS[name]
        else:
            raise ValueError(f"unknown option {option!r}: {', '.join(_FLAGS)}, or a number by name")
    learnt = {name: out.pop(name) for name in _OF_PROPOSAL & set(out)}
    if learnt:
        from amc_pymc.inference.tree_proposal import TreeProposal

        out["proposal"] = TreeProposal(**learnt)
    return out


def run_smc(job: Job, problem: SimulatorExample, observed: np.ndarray | None = None) -> Found:
    """PyMC's sequential Monte Carlo; an option is a factor on epsilon."""
    factor = float(job.options[0]) if job.options else 1.0
    per_particle = pilot(job.problem, job.observation, factor)
    chains = 2
    draws = max(_FEWEST, round(job.budget / per_particle / chains))
    meter, record = Meter(limit=20.0 * job.budget), Stages()
    model = metered_model(problem, meter, factor=factor, observed=observed)
    begin = time.process_time()
    tree = smc(model, draws, chains, [job.seed, 100 + job.seed], record)
    whole = time.process_time() - begin
    posterior = tree["posterior"]
    values = {n: posterior[n].values.reshape(-1, *problem.shapes[n]) for n in problem.names}
    rates = [
        np.ravel(stages)[-1] for stages in np.atleast_1d(tree["sample_stats"]["accept_rate"].values)
    ]
    return Found(
        theta=problem.columns(values),
        weights=np.ones(draws * chains),
        tolerance=factor * problem.epsilon,
        simulations=meter.simulations,
        acceptance=float(np.mean([np.mean(r) for r in rates])),
        overhead_s=record.seconds - meter.seconds,
        overhead_of=meter.simulations,
        setup_s=whole - record.seconds,
    )


def smc(model: pm.Model, draws: int, chains: int, seeds: Sequence[int], record: Stages):
    """A run of ``pm.sample_smc`` whose stages are measured."""
    return pm.sample_smc(
        draws=draws, chains=chains, cores=1, kernel=measured_kernel(pm.smc.IMH, record), model=model,
        random_seed=list(seeds), progressbar=False,
    )  # fmt: skip


@cache
def pilot(name: str, observation: int, factor: float) -> float:
    """Simulations that a particle of ``pm.sample_smc`` takes."""
    meter = Meter()
    smc(metered_model(example(name, observation), meter, factor=factor), _PILOT, 1, [1], Stages())
    return meter.simulations / _PILOT


def run_pyabc(job: Job, problem: SimulatorExample, observed: np.ndarray | None = None) -> Found:
    """``pyabc.ABCSMC`` on one core; the generation counts whose end is nearest to the budget."""
    pyabc = _pyabc()
    meter = Meter(limit=2.0 * job.budget)
    rng = as_generator([job.seed, job.observation])
    np.random.seed(rng.integers(2**31))  # the only generator that it takes
    names = [f"x{j:02d}" for j in range(problem.n_dim)]
    normal = job.problem in _NORMAL
    prior = pyabc.RV("norm", 0.0, 1.0) if normal else pyabc.RV("uniform", 0.0, 1.0)
    simulate = meter.metered(problem.simulate)
    target = np.zeros_like(problem.observed) if observed is None else problem.observed - observed

    def to_theta(x: np.ndarray) -> np.ndarray:
        return problem.cube(ndtr(x) if normal else np.clip(x, 1e-12, 1.0 - 1e-12))

    def model(parameters):
        theta = to_theta(np.array([[parameters[name] for name in names]]))
        return {"s": simulate(rng, theta)[0]}

    begin = time.process_time()
    sampler = pyabc.ABCSMC(
        model,
        pyabc.Distribution(**dict.fromkeys(names, prior)),
        lambda x, _: float(problem.distance(x["s"][None] + target)[0]),
        sampler=pyabc.sampler.SingleCoreSampler(),
        **_pyabc_settings(pyabc, job),
    )
    sampler.new("sqlite://", {"s": problem.observed - target})
    setup = time.process_time() - begin
    begin = time.process_time()
    with contextlib.suppress(Enough):
        sampler.run(max_total_nr_simulations=job.budget)
    whole = time.process_time() - begin
    told = sampler.history.get_all_populations().query("t >= 0")
    if not len(told):
        raise RuntimeError("no generation ended within twice the budget")
    spent = told["samples"].cumsum().to_numpy()
    last = int(np.abs(np.log(spent / job.budget)).argmin())
    particles, weights = sampler.history.get_distribution(m=0, t=int(told["t"].iloc[last]))
    return Found(
        theta=to_theta(particles[names].to_numpy(float)),
        weights=np.asarray(weights, dtype=float),
        tolerance=float(told["epsilon"].iloc[last]),
        simulations=int(spent[last]),
        acceptance=len(particles) / float(told["samples"].iloc[last]),
        overhead_s=whole - meter.seconds,
        overhead_of=meter.simulations,
        setup_s=setup,
    )


def _pyabc():
    try:
        import pyabc
    except ImportError:
        raise ImportError(
            "pyabc is not installed; pip install pyabc, or leave it out of --methods"
        ) from None
    logging.getLogger("ABC").setLevel(logging.ERROR)
    return pyabc


def _pyabc_settings(pyabc, job: Job) -> Result:
    if not job.options:
        return {"population_size": 100}
    return {
        "population_size": min(1000, max(50, job.budget // 50)),
        "eps": pyabc.QuantileEpsilon(alpha=0.3),
        "transitions": pyabc.LocalTransition(k_fraction=0.25),
    }


@cache
def warm(name: str) -> None:
    """A first run of ours, after which everything is compiled and imported."""
    for method in ("tree:adjust", "rejection"):
        run_ours(Job(name, 1, 500, method, 1), example(name, 1))


RUN = {"tree": run_ours, "rejection": run_ours, "smc": run_smc, "pyabc": run_pyabc}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings and messages of libraries, and one thread for their algebra."""
    from threadpoolctl import threadpool_limits

    level = logging.getLogger("pymc").level
    logging.getLogger("pymc").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("pymc").setLevel(level)


# --- runs ----------------------------------------------------------------------------------------


def measured(job: Job, draws: int, *, mlp: bool) -> Result:
    """The row of a run."""
    problem = example(job.problem, job.observation)
    reference = exact_draws(job.problem, job.observation, draws)
    about = {"kind": "run", **vars(job)}
    try:
        with quiet():
            if job.family in _OURS:
                warm(job.problem)
            found = RUN[job.family](job, problem)
            return (
                about | {"status": "finished"} | row_of(job, problem, found, reference, draws, mlp)
            )
    except Exception as error:
        return about | {"status": f"failed: {type(error).__name__}: {error}"[:300]}


def row_of(
    job: Job, problem: SimulatorExample, found: Found, reference: np.ndarray | None, draws: int,
    mlp: bool,
) -> Result:  # fmt: skip
    """Figures of weighted particles."""
    theta, weights = distinct(found.theta, found.weights)
    row = {
        "simulations": found.simulations,
        "particles": len(theta),
        "effective": effective(weights),
        "tolerance": found.tolerance,
        "acceptance": found.acceptance,
        "overhead_us": 1e6 * found.overhead_s / found.overhead_of,
        "setup_s": found.setup_s,
    }
    if reference is None:
        return row
    rng = as_generator([job.seed, job.observation, 13])
    raw = theta[resampled(weights, draws, rng)]
    smooth = problem.cube(smoothed(to_cube(problem.cube, theta), weights, draws, rng))
    errors = quantile_errors(theta, weights, reference)
    row |= {
        "c2st": c2st(smooth, reference),
        "c2st_raw": c2st(raw, reference),
        "wasserstein": sliced_wasserstein(smooth, reference, rng),
        "wasserstein_raw": sliced_wasserstein(raw, reference, rng),
        "quantile_error": float(errors.mean()),
        "quantile_error_worst": float(errors.max()),
    }
    if mlp:
        row["c2st_mlp"] = c2st(smooth, reference, classifier="mlp")
        row["c2st_mlp_raw"] = c2st(raw, reference, classifier="mlp")
    return row


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
    draws = found.theta[resampled(found.weights, _RANKS, rng)]
    return about | {
        "status": "finished",
        "ranks": (draws < theta).sum(axis=0).tolist(),
        "tolerance": found.tolerance,
        "effective": effective(distinct(found.theta, found.weights)[1]),
    }


class Book:
    """Rows on disk, as they come."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def rows(self) -> list[Result]:
        """Rows by kind and job, of several the last; lines that were cut off are left out."""
        found: dict[tuple, Result] = {}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                found[row_key(row)] = row
        return list(found.values())

    def done(self) -> set[tuple]:
        """What need not be run again."""
        return {row_key(row) for row in self.rows() if row["status"] == "finished"}

    def add(self, row: Result) -> None:
        """Append a row in one piece."""
        with self.path.open("a") as sink:
            sink.write(json.dumps(row) + "\n")


def row_key(row: Result) -> tuple:
    """What tells a row from others."""
    return tuple(row[k] for k in ("kind", "problem", "observation", "budget", "method", "seed"))


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All runs that are asked for, seed after seed."""
    seeds = max(options.seeds, options.peer_seeds)
    for problem in options.problems:
        for budget in options.budgets:
            for seed in range(1, seeds + 1):
                for observation in range(1, options.observations + 1):
                    for method in options.methods:
                        job = Job(problem, observation, budget, method, seed)
                        if seed <= (options.seeds if job.family in _OURS else options.peer_seeds):
                            yield job


def rank_jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All data sets of calibration."""
    for problem in options.problems:
        for method in options.methods:
            for seed in range(1, options.data_sets + 1):
                yield Job(problem, 1, options.budgets[0], method, seed)


# --- tables --------------------------------------------------------------------------------------

#: Columns that are means over runs: heading, name, and how many digits.
_COLUMNS = (
    ("simulations", "simulations", 3),
    ("tolerance", "tolerance", 3),
    ("effective draws", "effective", 3),
    ("C2ST network", "c2st_mlp", 3),
    ("not smoothed", "c2st_mlp_raw", 3),
    ("C2ST trees", "c2st", 3),
    ("±", "c2st_error", 1),
    ("not smoothed", "c2st_raw", 3),
    ("against `tree`", "c2st_paired", 2),
    ("Wasserstein", "wasserstein", 2),
    ("not smoothed", "wasserstein_raw", 2),
    ("quantile error", "quantile_error", 2),
    ("us over simulator", "overhead_us", 2),
    ("set-up s", "setup_s", 2),
)


def grouped(rows: Sequence[Result], *keys: str) -> dict[tuple, list[Result]]:
    """Rows by some of their entries, in order of appearance."""
    out: dict[tuple, list[Result]] = {}
    for row in rows:
        out.setdefault(tuple(row[k] for k in keys), []).append(row)
    return out


def by_observation(rows: Sequence[Result], name: str) -> dict[int, np.ndarray]:
    """A figure of each observation's runs."""
    groups = grouped([r for r in rows if name in r], "observation")
    return {key[0]: np.array([r[name] for r in group]) for key, group in groups.items()}


def mean_and_error(values: dict[int, np.ndarray]) -> tuple[float, float]:
    """Mean over observations, and its error by the spread of runs about the mean of their own observation."""
    if not values:
        return math.nan, math.nan
    mean = float(np.mean([v.mean() for v in values.values()]))
    free = sum(len(v) - 1 for v in values.values())
    if not free:
        return mean, math.nan
    variance = sum(((v - v.mean()) ** 2).sum() for v in values.values()) / free
    return mean, math.sqrt(sum(variance / len(v) for v in values.values())) / len(values)


def paired(rows: Sequence[Result], others: Sequence[Result], name: str) -> float:
    """Mean difference over the observations that both have."""
    mine, theirs = by_observation(rows, name), by_observation(others, name)
    both = sorted(set(mine) & set(theirs))
    return float(np.mean([mine[k].mean() - theirs[k].mean() for k in both])) if both else math.nan


def summary(rows: Sequence[Result], ours: Sequence[Result]) -> Result:
    """What the runs of one method with one budget come to."""
    done = [r for r in rows if r["status"] == "finished"]
    out: Result = {"runs": f"{len(done)}/{len(rows)}"}
    for _, name, _ in _COLUMNS:
        out[name] = mean_and_error(by_observation(done, name))[0]
    out["c2st_error"] = mean_and_error(by_observation(done, "c2st"))[1]
    out["c2st_paired"] = paired(done, ours, "c2st")
    out["per_simulation"] = float(
        np.mean([r["effective"] / r["simulations"] for r in done] or math.nan)
    )
    out["acceptance"] = mean_and_error(by_observation(done, "acceptance"))[0]
    return out


def run_tables(rows: Sequence[Result]) -> str:
    """A table for each problem and budget."""
    text = []
    for (problem, budget), group in grouped(rows, "problem", "budget").items():
        methods = grouped(group, "method")
        ours = [r for r in methods.get(("tree",), []) if r["status"] == "finished"]
        headings = ["method", "runs", "acceptance", "effective per simulation"]
        lines = []
        for (method,), runs in methods.items():
            found = summary(runs, ours)
            shown = [
                method,
                found["runs"],
                percent(found["acceptance"]),
                number(found["per_simulation"]),
            ]
            lines.append(shown + [number(found[name], digits) for _, name, digits in _COLUMNS])
        table = markdown([*headings, *(heading for heading, _, _ in _COLUMNS)], lines)
        note = (
            "Exact draws are of the posterior given the whole series, which no sampler of summaries reaches.\n\n"
            if problem in _NEAR
            else ""
        )
        text.append(f"### {problem}, {budget:,} simulations\n\n{note}{table}")
    return "\n\n".join(text)


def uniformity(ranks: np.ndarray, n_bins: int = 10) -> float:
    """P-value of the chi-squared test of ranks (n,) among 99 draws for equal chances."""
    counts = np.bincount(ranks * n_bins // (_RANKS + 1), minlength=n_bins)
    expected = len(ranks) / n_bins
    return float(chi2.sf(((counts - expected) ** 2).sum() / expected, n_bins - 1))


def covered(ranks: np.ndarray, level: float) -> float:
    """Share of ranks in the central part of so much probability."""
    return float((np.abs((ranks + 0.5) / (_RANKS + 1) - 0.5) < 0.5 * level).mean())


def rank_table(rows: Sequence[Result]) -> str:
    """How often central intervals of the posterior hold the truth, by problem and method."""
    lines = []
    for (problem, budget, method), group in grouped(rows, "problem", "budget", "method").items():
        done = [r for r in group if r["status"] == "finished"]
        if not done:
            lines.append([problem, f"{budget:,}", method, f"0/{len(group)}", *["-"] * 6])
            continue
        ranks = np.array([r["ranks"] for r in done])
        p = [uniformity(column) for column in ranks.T]
        lines.append([
            problem, f"{budget:,}", method, f"{len(done)}/{len(group)}",
            number(float(np.median([r["tolerance"] for r in done]))),
            number(float(np.median([r["effective"] for r in done]))),
            percent(covered(ranks, 0.5)), percent(covered(ranks, 0.9)),
            number(float(ranks.mean()) / _RANKS), number(min(1.0, len(p) * min(p)), 2),
        ])  # fmt: skip
    headings = [
        "problem", "budget", "method", "data sets", "tolerance", "effective draws", "in 50 %", "in 90 %",
        "mean rank", "p of equal ranks",
    ]  # fmt: skip
    return "### Ranks of the truth\n\n" + markdown(headings, lines)


def tables(rows: Sequence[Result]) -> str:
    """All tables of a book."""
    runs = [r for r in rows if r["kind"] == "run"]
    ranks = [r for r in rows if r["kind"] == "rank"]
    failed = sorted(
        {
            f"{r['method']} on {r['problem']} {r['status']}"
            for r in rows
            if r["status"] != "finished"
        }
    )
    parts = [
        run_tables(runs) if runs else "",
        rank_table(ranks) if ranks else "",
        "\n".join(failed),
    ]
    return "\n\n".join(part for part in parts if part)


# --- options -------------------------------------------------------------------------------------


def whole(text: str) -> int:
    """A whole number that may be written as 1e4."""
    value = float(text)
    if not (value >= 1.0 and value == int(value)):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text!r}")
    return int(value)


def known_method(text: str) -> str:
    """A method whose family and options there are."""
    family, *options = text.split(":")
    if family not in RUN:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(RUN)} with options")
    try:
        if family in _OURS:
            our_settings(options)
        elif family == "smc":
            [float(option) for option in options]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return text


def parser() -> argparse.ArgumentParser:
    """Options of the script."""
    p = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--problems", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    p.add_argument("--budgets", nargs="+", type=whole, default=[1000, 10_000, 100_000])
    p.add_argument("--methods", nargs="+", type=known_method, default=list(METHODS))
    p.add_argument("--seeds", type=whole, default=10, help="for ours")
    p.add_argument("--peer-seeds", type=whole, default=3)
    p.add_argument("--observations", type=whole, default=_OBSERVATIONS)
    p.add_argument("--draws", type=whole, default=10_000, help="of each side of a comparison")
    p.add_argument(
        "--mlp-seeds", type=int, default=1, help="seeds for which a network compares, too"
    )
    p.add_argument("--calibration", action="store_true", help="ranks, with the first budget")
    p.add_argument("--data-sets", type=whole, default=60, help="of --calibration")
    p.add_argument("--out", type=Path, default=RESULTS / "abc_peers.jsonl", help="file of the rows")
    p.add_argument(
        "--table", type=Path, metavar="FILE", help="print tables of a file; nothing is run"
    )
    p.add_argument("--quick", action="store_true", help="a small run that shows that it works")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is not there yet, and print tables."""
    arguments: list[Any] = list(sys.argv[1:] if argv is None else argv)
    known = parser()
    if "--quick" in arguments:
        known.set_defaults(**_QUICK)
    options = known.parse_args(arguments)
    if options.table is not None:
        if not options.table.exists():
            known.error(f"--table: there is no {options.table}")
        print(tables(Book(options.table).rows()))
        return
    book = Book(options.out)
    done = book.done()
    kind = "rank" if options.calibration else "run"
    for job in rank_jobs(options) if options.calibration else jobs(options):
        if row_key({"kind": kind, **vars(job)}) in done:
            continue
        if options.calibration:
            row = calibrated(job)
        else:
            row = measured(job, options.draws, mlp=job.seed <= options.mlp_seeds)
        book.add(row)
        print(
            f"... {' '.join(map(str, vars(job).values()))}: {row['status']}",
            file=sys.stderr,
            flush=True,
        )
    print(tables(book.rows()))


if __name__ == "__main__":
    main()
