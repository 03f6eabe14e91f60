"""Problems and methods of :mod:`benchmarks.abc.peers`: what is run, and what it costs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
import warnings

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

import numpy as np
import pymc as pm

from scipy.special import ndtr

from amc_pymc import TreeProposal
from amc_pymc.rng import as_generator
from benchmarks.harness import jobs
from benchmarks.harness.jobs import Result
from benchmarks.harness.smc import Stages, measured_kernel
from models.simulator_example import SimulatorExample
from models.simulator_suite import EXAMPLES

#: Problems whose data are given; those of the others are simulated with their truth.
_GIVEN = ("two_moons", "two_scale_mixture", "gaussian_10", "gaussian_uniform_10")
#: Problems with a normal prior.
_NORMAL = ("gaussian_10",)
#: Families of methods of this package.
OURS = ("tree", "rejection")
FLAGS: dict[str, Result] = {
    "boxes": {"local": False}, "adjust": {"adjust": "regression"}, "auto": {"adjust": "auto"},
    "learned": {"distance_scale": "learned"}, "cart": {"partition": "cart"},
    "dyadic": {"partition": "dyadic"},
}  # fmt: skip
#: A tolerance that nobody reaches.
_LOWEST = 1e-9
#: Simulations per particle are told by a pilot of so many particles of one chain.
_PILOT, _FEWEST = 100, 20
#: Draws in each of four chains.
_DRAWS = 2500
#: Reference draws for means.
_MANY = 200_000


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


@cache
def exact_moments(name: str, observation: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Posterior means and standard deviations (D,) from 200,000 reference draws, if there are any."""
    found = exact_draws(name, observation, _MANY)
    return None if found is None else (found.mean(axis=0), found.std(axis=0))


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
    problem: SimulatorExample, meter: Meter, *, factor: float = 1.0,
    observed: np.ndarray | None = None,
) -> pm.Model:  # fmt: skip
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
    estimates : dict of str to array (D,)
        Means and what is said of their errors, by statistic; empty if nothing is said.
    flags : str
        Doubts of the sampler.
    posterior : array (m, D) or None
        Posterior draws as a user gets them; None if these are the particles.
    """

    theta: np.ndarray
    weights: np.ndarray
    tolerance: float
    simulations: int
    acceptance: float
    overhead_s: float
    overhead_of: int
    setup_s: float
    estimates: Mapping[str, np.ndarray] = MappingProxyType({})
    flags: str = ""
    posterior: np.ndarray | None = None


@dataclass(frozen=True)
class Job(jobs.Job):
    """A run: observation and seed of a problem, with a budget of simulations."""

    observation: int
    budget: int
    seed: int


def run_ours(job: Job, problem: SimulatorExample, observed: np.ndarray | None = None) -> Found:
    """sample_abc_tree, in batches, which simulates from the prior only as "rejection"."""
    import amc_pymc as amc

    from amc_pymc.likelihood_free.model_problem import ModelProblem

    meter, settings = Meter(), our_settings(job.options)
    model = metered_model(problem, meter, observed=observed)
    if job.family != "tree":
        own = settings.get("proposal", TreeProposal())
        settings["proposal"] = dataclasses.replace(own, prior_share=1.0)
    make, setup = ModelProblem.__init__, 0.0

    def timed(*args, **kwargs):
        nonlocal setup
        begin = time.process_time()
        make(*args, **kwargs)
        setup += time.process_time() - begin

    begin = time.process_time()
    with mock.patch.object(ModelProblem, "__init__", timed):
        tree = amc.sample_abc_tree(
            max_simulations=job.budget, batched=True, model=model, progressbar=False,
            random_seed=[job.seed, job.observation],
            **{"tolerance": _LOWEST, "draws": _DRAWS, **settings},
        )  # fmt: skip
    whole = time.process_time() - begin
    particles, rounds = tree["weighted_posterior"], tree["abc"]
    log_weight = particles["log_weight"].values[0]
    posterior = stacked(problem, tree["posterior"])
    return Found(
        theta=problem.columns({name: particles[name].values[0] for name in problem.names}),
        weights=np.exp(log_weight - log_weight.max()),
        tolerance=float(rounds["final_tolerance"]) * problem.epsilon,
        simulations=int(rounds["n_simulations"]),
        acceptance=float(rounds["final_acceptance"].values[-1]),
        overhead_s=whole - meter.seconds - setup,
        overhead_of=job.budget,
        setup_s=setup,
        estimates=stated(problem, tree["estimates"]),
        flags=str(rounds.attrs["flags"]),
        posterior=posterior,
    )


def stacked(problem: SimulatorExample, posterior) -> np.ndarray:
    """Draws (n, D) of all chains."""
    values = {n: posterior[n].values.reshape(-1, *problem.shapes[n]) for n in problem.names}
    return problem.columns(values)


def stated(problem: SimulatorExample, estimates) -> dict[str, np.ndarray]:
    """Rows (D,) of group ``estimates`` by statistic."""
    found = problem.columns({name: estimates[name].values for name in problem.names})
    return dict(zip(estimates["statistic"].values.tolist(), found, strict=True))


def our_settings(options: Sequence[str]) -> Result:
    """Keyword arguments from options: flags by name, and numbers as ``prior_share=0.1``."""
    out: Result = {"adjust": "none"}
    for option in options:
        name, equals, value = option.partition("=")
        if equals:
            out[name] = float(value) if set(value) & set(".e") else int(value)
        elif name in FLAGS:
            out |= FLAGS[name]
        else:
            raise ValueError(f"unknown option {option!r}: {', '.join(FLAGS)}, or a number by name")
    learnt = {f.name: out.pop(f.name) for f in dataclasses.fields(TreeProposal) if f.name in out}
    if learnt:
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
    rates = [
        np.ravel(stages)[-1] for stages in np.atleast_1d(tree["sample_stats"]["accept_rate"].values)
    ]
    return Found(
        theta=stacked(problem, tree["posterior"]), weights=np.ones(draws * chains),
        tolerance=factor * problem.epsilon, simulations=meter.simulations,
        acceptance=float(np.mean([np.mean(r) for r in rates])),
        overhead_s=record.seconds - meter.seconds, overhead_of=meter.simulations,
        setup_s=whole - record.seconds,
    )  # fmt: skip


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
    import pyabc

    logging.getLogger("ABC").setLevel(logging.ERROR)
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

    settings: Result = {"population_size": 100}
    if job.options:
        settings = {
            "population_size": min(1000, max(50, job.budget // 50)),
            "eps": pyabc.QuantileEpsilon(alpha=0.3),
            "transitions": pyabc.LocalTransition(k_fraction=0.25),
        }
    begin = time.process_time()
    sampler = pyabc.ABCSMC(
        model, pyabc.Distribution(**dict.fromkeys(names, prior)),
        lambda x, _: float(problem.distance(x["s"][None] + target)[0]),
        sampler=pyabc.sampler.SingleCoreSampler(), **settings,
    )  # fmt: skip
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
        theta=to_theta(particles[names].to_numpy(float)), weights=np.asarray(weights, dtype=float),
        tolerance=float(told["epsilon"].iloc[last]), simulations=int(spent[last]),
        acceptance=len(particles) / float(told["samples"].iloc[last]),
        overhead_s=whole - meter.seconds, overhead_of=meter.simulations, setup_s=setup,
    )  # fmt: skip


def run_sbi(job: Job, problem: SimulatorExample) -> Found:
    """Neural posterior estimation by ``sbi``, a masked autoregressive flow, on the scale where the prior is normal."""
    import torch

    from sbi.inference import NPE

    n, rng = job.budget, as_generator([job.seed, job.observation])
    torch.manual_seed(int(rng.integers(2**31)))
    z = rng.standard_normal((n, problem.n_dim))
    data = problem.simulate(rng, problem.cube(ndtr(z)))
    begin = time.process_time()
    prior = torch.distributions.MultivariateNormal(torch.zeros(z.shape[1]), torch.eye(z.shape[1]))
    trainer = NPE(prior, show_progress_bars=False)
    trainer.append_simulations(torch.tensor(z).float(), torch.tensor(data).float()).train()
    target = torch.tensor(problem.observed).float()
    drawn = trainer.build_posterior().sample((10_000,), x=target, show_progress_bars=False)
    theta = problem.cube(ndtr(drawn.numpy().astype(float)))
    spent = time.process_time() - begin
    return Found(theta, np.ones(len(theta)), 0.0, n, 1.0, spent, n, 0.0, posterior=theta)


@cache
def warm(name: str) -> None:
    """A first run of ours, after which everything is compiled and imported."""
    for method in ("tree:adjust", "rejection"):
        run_ours(Job(name, method, 1, 500, 1), example(name, 1))


RUN = {"tree": run_ours, "rejection": run_ours, "smc": run_smc, "pyabc": run_pyabc, "sbi": run_sbi}


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
