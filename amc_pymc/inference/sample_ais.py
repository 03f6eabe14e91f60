"""Annealed importance sampling of a PyMC model."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from amc_pymc.annealing import (
    Annealed,
    ReferencePath,
    Schedule,
    anneal,
    anneal_back,
    climb,
    make_schedule,
)
from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.evidence import Pilot
from amc_pymc.evidence.arms import draw_base
from amc_pymc.importance import StudentTMixture
from amc_pymc.inference.ais_results import N_PATHS, AisRun, Plan, ais_results
from amc_pymc.inference.evidence_model import (
    Tally,
    compiled_particles,
    explored,
    model_told,
    one_blas_thread,
    particle_kernel,
)
from amc_pymc.inference.evidence_results import likelihood_as_evidence
from amc_pymc.kernels import Kernel, make_kernel
from amc_pymc.progress import progress
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.particles.densities import counted
from amc_pymc.reading.particles.marginal import Densities
from amc_pymc.reading.particles.prior import unconstrain
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import Pool, begin_journal, check_workers, name_of, run_loop
from amc_pymc.signals import ends_loops
from amc_pymc.steps.stored_draws import draws_of

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["sample_ais"]

ReferenceName = Literal["auto", "prior", "laplace", "student_t"]
_REFERENCES = get_args(ReferenceName)
#: Default number of steps.
_N_STEPS = 400

#: Particles in a block, the unit of parallel work and of checkpoints.
_BLOCK = 250
#: Relative variance of weights below which the fitted reference is preferred to the prior.
_USABLE = 100.0


@ends_loops
def sample_ais(
    draws: int = 1000,
    *,
    n_steps: int | None = None,
    schedule: Schedule = ("power", 4.0),
    kernel: str | Kernel = "hmc",
    n_moves: int = 1,
    reference: ReferenceName | Callable[[np.ndarray], Any] = "auto",
    reverse_draws: Any = None,
    chains: int = 4,
    model: Model | None = None,
    cores: int | None = 1,
    executor: Executor | None = None,
    checkpoint: str | FilePath | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Estimate the evidence of a model, and draw from its posterior, by annealed importance sampling.

    Particles start as independent draws from a reference density q and are moved along the path
    :math:`q^{1-\beta} (p L)^{\beta}` from q to prior times likelihood. The mean of their weights is an unbiased
    estimate of the evidence :math:`Z = \int p(x) L(x) dx` of the model as written (Neal 2001). Step sizes, scales,
    references and adaptive schedules come from a pilot run and are then frozen. To specify a standard error instead
    of a number of draws, use :func:`estimate_evidence`.

    Parameters
    ----------
    draws : int, default 1000
        Particles per chain. All are independent.
    n_steps : int, default 400
        Number T of steps in inverse temperature from 0 to 1. The variance of a log-weight decreases as 1 / T.
        Leave it out if `schedule` gives the temperatures.
    schedule : str, tuple or sequence, default ("power", 4)
        Inverse temperatures: "linear", "power", "geometric", "sigmoid", a pair of such a name and its parameter,
        "adaptive" (from the pilot run), or T + 1 numbers; see :func:`amc_pymc.annealing.make_schedule`.
    kernel : {"hmc", "langevin", "random_walk", "slice"} or Kernel, default "hmc"
        Transition kernel for continuous variables. Discrete variables are updated by Metropolis.
    n_moves : int, default 1
        Transitions at each temperature.
    reference : {"auto", "prior", "laplace", "student_t"} or callable, default "auto"
        Starting distribution: the prior, normal distributions at all modes, or a mixture of Student t distributions
        adapted in the pilot run. "auto" is "student_t" if its importance weights have a relative variance below
        100, otherwise "prior". A callable receives approximate posterior draws (P, D) on the unconstrained scale
        and returns a normalised density: an object with ``sample(n, rng)``, ``log_density(x)`` and
        ``log_density_and_gradient(x)``.
    reverse_draws : DataTree, mapping or array, optional
        Posterior draws, exact or from another sampler, to anneal back to the reference. If they are exact, minus
        the logarithm of their mean weight is above log Z in expectation. A DataTree with a group ``posterior``, a
        mapping of names to arrays (P, ...), or unconstrained vectors (P, D).
    chains : int, default 4
        Number of chains, each with `draws` particles.
    model : pm.Model, optional
        Default: the model in the context. A ``pm.Potential`` counts as likelihood.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it.
        Worker processes, which anneal the particles in blocks of 250.
    executor : concurrent.futures.Executor, optional
        Executor to use instead of processes, for example ``dask.distributed.Client.get_executor()``.
    checkpoint : str or Path, optional
        Folder to which finished batches are written. A killed run resumes from it when called again with the same
        arguments, with the same results.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores` and `executor`. Times in the result differ.

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
    Grosse, Ghahramani & Adams (2015), Sandwiching the marginal likelihood, arXiv:1511.02543.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import pymc as pm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    ...     found = amc.sample_ais(200, n_steps=50, random_seed=1, progressbar=False)
    >>> bool(abs(found["evidence"]["log_evidence"] + 3.5155) < 0.1)
    True
    """
    if hasattr(draws, "free_RVs"):
        raise TypeError("draws must be an integer, got a model: write sample_ais(model=...).")
    betas, n_steps = _temperatures(schedule, n_steps)
    settings = _Settings(
        positive_int("draws", draws),
        positive_int("chains", chains),
        positive_int("n_moves", n_moves),
        betas,
        n_steps,
    )
    named = isinstance(reference, str) and reference in _REFERENCES
    if not named and not callable(reference):
        raise ValueError(
            "reference must be 'auto', 'prior', 'laplace', 'student_t' or a callable, got "
            f"{reference!r}."
        )
    check_workers(cores, executor)
    limit, started = positive_or_none("max_time", max_time), time.monotonic()
    kernel, words = make_kernel(kernel), seed_words(random_seed)
    model = context_model(model)
    if not model.free_RVs:
        return likelihood_as_evidence(model, "sample_ais")
    densities, compiling = compiled_particles(model)
    begin = time.process_time()
    moves = particle_kernel(model, densities, kernel)
    _check_reference(reference, densities)
    back = None if reverse_draws is None else _unconstrained(model, densities, reverse_draws)
    journal, words = begin_journal(
        checkpoint,
        lambda: _told(settings, moves, reference, densities),
        words,
        random_seed,
    )
    blocks = _blocks(settings.draws, settings.chains)
    pilot_rng, resampling_rng, back_rng, *rngs = spawn_generators(words, 3 + len(blocks))
    tally, done = Tally(), list[_Block]()
    with (
        progress("Annealing", len(blocks) + 1, enabled=progressbar) as bar,
        one_blas_thread(),
        Pool(_anneal, cores=cores, executor=executor) as pool,
    ):
        with tally.stage("pilot"):
            pilot = explored(
                model, densities, moves, pilot_rng,
                report=lambda stage: bar.update(description=f"Pilot run: {stage}"),
            )  # fmt: skip
            plan = _plan(densities, pilot, moves, reference, settings, pilot_rng)
        bar.update(description="Annealing")
        bar.advance()
        apart = time.process_time() - begin

        def annealed() -> Iterator[None]:
            while (stored := journal.recall(plan.betas)) is not None:
                done.append(_restored(stored))
                yield
            jobs = [(plan, n, rng) for (_, n), rng in zip(blocks, rngs, strict=True)]
            for block in pool.map(jobs[len(done) :]):
                journal.append(_stored(block), plan.betas)
                done.append(block)
                yield

        ended = run_loop(
            annealed(), n_steps=len(blocks), n_untimed=len(journal), max_time=limit, begin=started,
            each=lambda _: bar.advance(),
        )  # fmt: skip
        begin, reverse = time.process_time(), None
        if back is not None and ended.why == "done":
            with tally.stage("reverse"):
                reverse = anneal_back(plan.path, back, plan.betas, moves, plan.ladder, back_rng)
        apart += time.process_time() - begin
    tally.add("annealing", np.sum([block.counts for block in done], axis=0))
    runs = {i: block.run for i, block in enumerate(done)}
    run = AisRun(model, densities, pilot, plan, blocks, runs, reverse, ended.why)
    apart += sum(block.seconds for block in done)
    seconds = {"compile_seconds": compiling, "cpu_seconds": apart}
    return ais_results(run, tally, resampling_rng, seconds)


class _Settings(NamedTuple):
    draws: int
    chains: int
    n_moves: int
    schedule: Any
    n_steps: int


class _Block(NamedTuple):
    """A block of annealed particles.

    Attributes
    ----------
    run : Annealed
    seconds : float
        CPU time.
    counts : array (3,)
        Numbers of points without and with gradients and of nan densities.
    """

    run: Annealed
    seconds: float
    counts: np.ndarray


def _stored(block: _Block) -> dict[str, Any]:
    return {**block.run._asdict(), "seconds": block.seconds, "counts": block.counts}


def _restored(arrays: dict[str, np.ndarray]) -> _Block:
    seconds, counts = float(arrays.pop("seconds")), arrays.pop("counts")
    for name in ("evaluations", "gradients"):
        arrays[name] = arrays[name].item()
    return _Block(Annealed(**arrays), seconds, counts)  # type: ignore[arg-type]


def _blocks(draws: int, chains: int) -> list[tuple[int, int]]:
    """Return the chain and the size of each block of particles."""
    sizes = [min(_BLOCK, draws - i) for i in range(0, draws, _BLOCK)]
    return [(chain, size) for chain in range(chains) for size in sizes]


def _temperatures(schedule: Any, n_steps: int | None) -> tuple[Any, int]:
    """Return the inverse temperatures, or "adaptive" if the pilot run determines them, and their steps."""
    wanted = _N_STEPS if n_steps is None else positive_int("n_steps", n_steps)
    if isinstance(schedule, str) and schedule == "adaptive":
        return schedule, wanted
    betas = make_schedule(schedule, wanted).tolist()
    if n_steps is not None and len(betas) != wanted + 1:
        raise ValueError(
            f"n_steps={n_steps} contradicts schedule=, which has {len(betas) - 1} steps; leave n_steps out."
        )
    return betas, len(betas) - 1


def _check_reference(reference: Any, densities: Densities) -> None:
    if densities.discrete.any() and reference not in ("auto", "prior"):
        raise ValueError(
            f"reference={name_of(reference)!r} is for continuous variables, the model has discrete ones; "
            "use 'prior'."
        )


def _anneal(job: tuple[Plan, int, np.random.Generator]) -> _Block:
    """Anneal one block."""
    plan, n, rng = job
    with one_blas_thread(), counted() as counts:
        begin = time.thread_time()
        x = draw_base(plan.base, n, rng)
        run = anneal(
            plan.path, x, plan.betas, plan.kernel, plan.ladder, rng,
            n_paths=N_PATHS, n_moves=plan.n_moves,
        )  # fmt: skip
        spent = np.array([run.evaluations, run.gradients, counts[2]], np.int64)
        return _Block(run, time.thread_time() - begin, spent)


def _told(
    settings: _Settings, moves: Kernel, reference: Any, densities: Densities
) -> dict[str, Any]:
    """Return what the numbers depend on; the model is told by its densities at a few points."""
    return {
        "sampler": "annealed importance sampling",
        **settings._asdict(),
        "kernel": name_of(moves),
        "reference": name_of(reference),
        **model_told(densities),
    }


def _plan(
    densities: Densities,
    pilot: Pilot,
    kernel: Kernel,
    reference: ReferenceName | Callable[[np.ndarray], Any],
    settings: _Settings,
    rng: np.random.Generator,
) -> Plan:
    """Choose the reference, the schedule and the tuning of the kernel."""
    name = reference if isinstance(reference, str) else "callable"
    if name == "auto":
        usable = pilot.adapted is not None and pilot.adapted.relative_variance < _USABLE
        name = "student_t" if usable else "prior"
    path: Any
    base: Any
    if name == "prior":
        path, base, ladder = densities, densities, pilot.ladder
    else:
        if not isinstance(reference, str):
            base = reference(pilot.ladder.particles.x)
        else:
            base = pilot.reference if name == "student_t" else _normals(pilot)
        path = ReferencePath(densities, base)
        n = len(pilot.ladder.particles.x)
        ladder = climb(path, base.sample(n, rng), kernel, rng)
    betas = make_schedule(
        settings.schedule, settings.n_steps, barrier=(ladder.betas, ladder.heights)
    )
    return Plan(path, base, betas, kernel, ladder, settings.n_moves, name)


def _normals(pilot: Pilot) -> StudentTMixture:
    """Return normal distributions at the modes."""
    if pilot.laplace is None:
        raise ValueError("reference='laplace': no mode was found; use 'prior' or 'student_t'.")
    m = pilot.laplace
    return StudentTMixture(m.weights, m.means, m.choleskys, math.inf)


def _unconstrained(model: Model, densities: Densities, draws: Any) -> np.ndarray:
    """Return the draws to anneal back as unconstrained vectors (P, D)."""
    if isinstance(draws, xr.DataTree):
        if "posterior" not in draws.children:
            raise ValueError("reverse_draws has no group 'posterior'.")
        group = draws["posterior"].to_dataset()
        arrays = {n: draws_of(group, n, model) for n in densities.variables if n in group}
        draws = {n: a.reshape(-1, *a.shape[2:]) for n, a in arrays.items()}
    if not isinstance(draws, np.ndarray | Mapping):
        raise TypeError(
            f"reverse_draws must be a DataTree, a mapping of names to arrays or an array, got {draws!r}."
        )
    if isinstance(draws, np.ndarray):
        if draws.ndim != 2 or draws.shape[1] != densities.n_dim:
            raise ValueError(
                f"reverse_draws must have shape (P, {densities.n_dim}), got {draws.shape}."
            )
        out = np.asarray(draws, float)
    else:
        try:
            out = unconstrain(model, densities.layout, draws)
        except ValueError as error:
            raise ValueError(f"reverse_draws: {error}") from error
    if not np.isfinite(out).all() or not len(out):
        raise ValueError("reverse_draws must be finite, and at least one.")
    return out
