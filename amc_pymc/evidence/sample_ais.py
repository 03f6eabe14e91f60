"""Annealed importance sampling of a PyMC model."""

from __future__ import annotations

import math
import time

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.evidence.annealing import (
    Annealed,
    Ladder,
    anneal,
    by_temperature,
    power_schedule,
    resample,
)
from amc_pymc.evidence.arms import climb_from_reference, draw_base
from amc_pymc.evidence.mcmc import Kernel, make_kernel
from amc_pymc.evidence.model import (
    JobMeter,
    Tally,
    TimeLimit,
    compiled_particles,
    explored,
    one_blas_thread,
    particle_kernel,
    running_off,
)
from amc_pymc.evidence.pilot import Pilot
from amc_pymc.evidence.results import (
    Answer,
    Evidence,
    PosteriorDraws,
    add_posterior,
    disagreements,
    finished,
    from_log_weights,
    likelihood_as_evidence,
    nan_flags,
    uncertain,
)
from amc_pymc.flags import Flag, flag
from amc_pymc.progress import progress
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.particles.densities import ParticleDensities
from amc_pymc.results import LARGEST_K, declared_dataset, described
from amc_pymc.results.tables import ANNEALING, DRAW_STATS, WEIGHTED
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import Pool, number_of_cores, run_loop
from amc_pymc.steps.model_groups import draws_group

if TYPE_CHECKING:
    from pymc import Model


ReferenceName = Literal["auto", "prior", "student_t"]
_REFERENCES = get_args(ReferenceName)

#: Particles in a block, the unit of parallel work.
_BLOCK = 250
#: Particles whose cumulative weights are stored for plots.
_N_PATHS = 100
#: Relative variance of weights below which a few of them cannot dominate the sum.
_UNEVEN = 0.02
#: Relative variance of weights below which the fitted reference is preferred to the prior.
_USABLE = 100.0


def sample_ais(
    model: Model | None = None,
    *,
    draws: int = 1000,
    chains: int = 4,
    n_steps: int = 400,
    kernel: str | Kernel = "hmc",
    reference: ReferenceName = "auto",
    cores: int | None = 1,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Estimate the evidence of a model, and draw from its posterior, by annealed importance sampling.

    Particles start as independent draws from a reference density q and are moved along the path
    :math:`q^{1-\beta} (p L)^{\beta}` from q to prior times likelihood. The mean of their weights is an unbiased
    estimate of the evidence :math:`Z = \int p(x) L(x) dx` of the model as written (Neal 2001). Step sizes, scales
    and references come from a pilot run and are then frozen. To specify a standard error instead
    of a number of draws, use :func:`estimate_evidence`.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model in the context. A ``pm.Potential`` counts as likelihood.
    draws, chains : int, default 1000 and 4
        Particles per chain, and chains. All particles are independent.
    n_steps : int, default 400
        Number T of steps from inverse temperature 0 to 1, at (t / T)^4. The variance of a log-weight decreases as
        1 / T.
    kernel : {"hmc", "slice"} or Kernel, default "hmc"
        Transition kernel for continuous variables, applied once at each temperature. Discrete variables are updated
        by Metropolis.
    reference : {"auto", "prior", "student_t"}, default "auto"
        Starting distribution: the prior, or a mixture of Student t distributions adapted in the pilot run. "auto" is "student_t" if its importance weights have a relative variance below
        100, otherwise "prior".
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it. Particles are annealed in blocks
        of 250.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores`. Times in the result differ.

    Returns
    -------
    xarray.DataTree
        ``posterior``: draws (chain, draw) of equal weight, resampled from the particles of their chain. Copies are
        adjacent; the attribute ``n_distinct`` counts distinct particles. ``weighted_posterior``: the particles,
        with ``log_weight``. ``sample_stats``: log densities (unconstrained, with Jacobians) and the particle of each
        draw. ``evidence``: ``log_evidence``, ``log_evidence_mcse``, a 95 % interval and further numbers; attributes
        ``flags`` and ``flag_names``. ``evaluations``: evaluations by stage. ``annealing``: statistics by
        temperature. ``observed_data``, ``constant_data``. The page "Variables of results" lists all variables.

    Raises
    ------
    ValueError, TypeError
        Before any computation, for invalid arguments, models without likelihood or with an improper prior.

    Warns
    -----
    UserWarning
        For every flag: few particles dominate the sum, densities are nan, the pilot run found evidence that the
        estimate misses, or the run was interrupted.

    References
    ----------
    Neal (2001), Annealed importance sampling, Statistics and Computing 11:125-139, doi:10.1023/A:1008923215028.
    Sohl-Dickstein & Culpepper (2012), Hamiltonian annealed importance sampling, arXiv:1205.1925.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import pymc as pm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    ...     found = amc.sample_ais(draws=200, n_steps=50, random_seed=1, progressbar=False)
    >>> bool(abs(found["evidence"]["log_evidence"] + 3.5155) < 0.1)
    True
    """
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    n_steps = positive_int("n_steps", n_steps)
    if not isinstance(reference, str) or reference not in _REFERENCES:
        raise ValueError(f"reference must be one of {_REFERENCES}, got {reference!r}.")
    number_of_cores(cores, 1)  # checks the value
    limit = TimeLimit(positive_or_none("max_time", max_time), time.monotonic())
    kernel, words = make_kernel(kernel), seed_words(random_seed)
    model = context_model(model)
    if not model.free_RVs:
        return likelihood_as_evidence(model, "sample_ais")
    densities, compiling = compiled_particles(model)
    begin = time.process_time()
    moves = particle_kernel(model, densities, kernel)
    if densities.discrete.any() and reference not in ("auto", "prior"):
        raise ValueError(
            f"reference={reference!r} is for continuous variables, the model has discrete ones; use 'prior'."
        )
    blocks = _blocks(draws, chains)
    pilot_rng, resampling_rng, *rngs = spawn_generators(words, 2 + len(blocks))
    tally, meter, runs = Tally(), JobMeter(), list[Annealed]()
    with (
        progress("Annealing", len(blocks) + 1, enabled=progressbar) as bar,
        one_blas_thread(),
        Pool(meter.measured(_anneal), cores=cores) as pool,
    ):
        with tally.stage("pilot"):
            pilot = explored(
                model, densities, moves, pilot_rng, limit=limit,
                report=lambda stage: bar.advance(0, f"Pilot run: {stage}"),
            )  # fmt: skip
            plan = _plan(densities, pilot, moves, reference, n_steps, pilot_rng)
        bar.advance(0, "Annealing")
        bar.advance()

        def annealed() -> Iterator[None]:
            jobs = [(plan, n, rng) for (_, n), rng in zip(blocks, rngs, strict=True)]
            for measured in pool.map(jobs):
                runs.append(meter.receive(measured))
                yield

        ended = run_loop(
            annealed(), n_steps=len(blocks), each=lambda _: bar.advance(), **limit._asdict()
        )  # fmt: skip
    tally.add("annealing", meter.counts)
    log_weights = np.concatenate([run.log_weights for run in runs])
    numbers = from_log_weights(log_weights)
    flags = []
    if ended.why != "done":
        why = "interrupted" if ended.why == "interrupted" else "max_time was over"
        flags.append(flag("blocks_missing", why=why, done=len(runs), blocks=len(blocks)))
    flags += _flags(numbers, len(log_weights))
    with tally.stage("checks"):
        flags += nan_flags(numbers, tally.numbers(), densities, pilot, resampling_rng)
    flags += uncertain(*numbers.estimate) + disagreements(*numbers.estimate, pilot)
    tree = xr.DataTree()
    with tally.stage("posterior"):
        values = _add_draws(tree, model, densities, *_whole_chains(blocks, runs), resampling_rng)
    flags += running_off(model, densities, values)
    columns = {
        "beta": plan.betas[1:],
        "log_weight_path": np.concatenate([run.paths for run in runs])[:_N_PATHS],
    }
    tree["annealing"] = xr.DataTree(declared_dataset(ANNEALING, columns | by_temperature(runs)))
    attrs = {
        "reference": plan.reference,
        "kernel": moves.name,
        "unbiased": "of the evidence, not of its logarithm",
    }
    answer = Answer(tree, numbers, flags, attrs)
    return finished(
        answer, model, "sample_ais", tally, begin, elsewhere=meter.seconds, compiling=compiling
    )


class _Plan(NamedTuple):
    """Everything that is fixed before particles are annealed."""

    path: Any
    betas: np.ndarray
    kernel: Kernel
    ladder: Ladder
    reference: str


def _blocks(draws: int, chains: int) -> list[tuple[int, int]]:
    """Return the chain and the size of each block of particles."""
    sizes = [min(_BLOCK, draws - i) for i in range(0, draws, _BLOCK)]
    return [(chain, size) for chain in range(chains) for size in sizes]


def _anneal(job: tuple[_Plan, int, np.random.Generator]) -> Annealed:
    """Anneal one block."""
    plan, n, rng = job
    x = draw_base(plan.path, n, rng)
    return anneal(plan.path, x, plan.betas, plan.kernel, plan.ladder.at, rng, n_paths=_N_PATHS)


def _plan(
    densities: ParticleDensities,
    pilot: Pilot,
    kernel: Kernel,
    reference: ReferenceName,
    n_steps: int,
    rng: np.random.Generator,
) -> _Plan:
    """Choose the reference and the tuning of the kernel."""
    betas = power_schedule(n_steps)
    if reference == "auto":
        usable = pilot.adapted is not None and pilot.adapted.relative_variance < _USABLE
        reference = "student_t" if usable else "prior"
    if reference == "prior":
        return _Plan(densities, betas, kernel, pilot.ladder, reference)
    path, ladder = climb_from_reference(densities, pilot, kernel, rng)
    return _Plan(path, betas, kernel, ladder, reference)


def _flags(numbers: Evidence, n: int) -> list[Flag]:
    flags = []
    if numbers["log_evidence"] == -math.inf:
        flags.append(flag("all_zero"))
    uneven = numbers["ess"] * (1.0 + _UNEVEN) < n
    if numbers["pareto_k"] > LARGEST_K and uneven:
        flags.append(flag("few_values", values="weights", k=numbers["pareto_k"], limit=LARGEST_K))
    elif numbers["ess"] < min(50.0, 0.5 * n):
        flags.append(flag("few_effective_particles", ess=numbers["ess"], particles=n))
    return flags


def _whole_chains(
    blocks: Sequence[tuple[int, int]], runs: Sequence[Annealed]
) -> tuple[np.ndarray, np.ndarray]:
    """Return points (C, N, D) and log-weights (C, N) of non-empty chains, truncated to the same number."""
    chains = [
        [run for (chain, _), run in zip(blocks, runs) if chain == k]
        for k in range(blocks[len(runs) - 1][0] + 1)
    ]
    n = min(sum(len(run.x) for run in runs) for runs in chains)
    x = [np.concatenate([run.x for run in runs])[:n] for runs in chains]
    log_w = [np.concatenate([run.log_weights for run in runs])[:n] for runs in chains]
    return np.stack(x), np.stack(log_w)


def _add_draws(
    tree: xr.DataTree,
    model: Model,
    densities: ParticleDensities,
    x: np.ndarray,
    log_w: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Add the particles (C, N, D) with their log-weights (C, N) and draws of equal weight to the tree; return the draws.

    Copies of a particle are adjacent, so diagnostics do not treat them as independent.
    """
    n_chains, n_draws = log_w.shape
    index = np.stack(
        [resample(w, n_draws, rng) if w.max() > -np.inf else np.arange(n_draws) for w in log_w]
    )
    chosen = (index + n_draws * np.arange(n_chains)[:, None]).ravel()
    x = x.reshape(-1, x.shape[2])
    terms, distinct = densities.values(x), sum(len(np.unique(row)) for row in index)
    drawn = PosteriorDraws(x[chosen], distinct, "annealed particles, resampled")
    draws, _ = add_posterior(tree, model, densities, drawn, n_chains, terms[:, chosen])
    particle = described(
        draws_group(model, {"particle": index.ravel()}, n_chains=n_chains), DRAW_STATS
    )
    tree["sample_stats"] = xr.DataTree(tree["sample_stats"].to_dataset().merge(particle))
    weighted = draws_group(model, densities.constrain(x), n_chains=n_chains)
    weighted["log_weight"] = ("chain", "draw"), log_w
    tree["weighted_posterior"] = xr.DataTree(described(weighted, WEIGHTED))
    return draws
