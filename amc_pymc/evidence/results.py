"""Model evidence and posterior draws as an xarray.DataTree."""

from __future__ import annotations

import math
import time

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.evidence.adapt import clearly_more, error_of
from amc_pymc.evidence.annealing import resample, taken
from amc_pymc.evidence.arms import ImportanceArm
from amc_pymc.evidence.chains import BridgedChains
from amc_pymc.evidence.mcmc import Kernel
from amc_pymc.evidence.model import Tally, prior_flags
from amc_pymc.evidence.modes import DEFAULTS
from amc_pymc.evidence.paths import PriorPath
from amc_pymc.evidence.pilot import Pilot
from amc_pymc.flags import Flag, flag, flag_attributes, warn_of
from amc_pymc.logweights import reported_variance, summarise_log_weights
from amc_pymc.reading.graphs import interpreted_function, lowered
from amc_pymc.reading.particles.densities import ParticleDensities, counted
from amc_pymc.reading.particles.prior import (
    check_evidence_defined,
    model_logp,
    without_checks,
)
from amc_pymc.results import declared_dataset, described, normal_interval, pareto_k
from amc_pymc.results.tables import DRAW_STATS, EVIDENCE
from amc_pymc.steps.marginal_effects import describe
from amc_pymc.steps.model_groups import add_data_groups, draws_group

if TYPE_CHECKING:
    from pymc import Model


#: Number of draws from the fitted reference that estimate the share of nan densities.
_LOOKED_AT = 4096
#: Minimum share of distinct posterior draws, and number of these that is always enough.
_DISTINCT, _ENOUGH = 0.5, 400


class Evidence(dict[str, Any]):
    """Numbers of the group ``evidence``, by name."""

    @property
    def estimate(self) -> tuple[float, float]:
        """Log evidence and its standard error."""
        return self["log_evidence"], self["log_evidence_mcse"]


def effective_size(error: float) -> float:
    """Return the number of draws of relative variance one with this standard error of the log evidence."""
    return 1.0 / error / error if error > 0.0 else math.inf


def from_log_weights(log_weights: np.ndarray) -> Evidence:
    """Return log evidence, standard error, effective sample size and Pareto k of independent weights."""
    summary = summarise_log_weights(log_weights)
    return Evidence(
        log_evidence=summary.log_mean,
        log_evidence_mcse=math.sqrt(reported_variance(summary, log_weights) / summary.n),
        ess=summary.ess,
        pareto_k=pareto_k(log_weights),
    )


class Answer(NamedTuple):
    """Estimate of a run.

    Attributes
    ----------
    tree : DataTree
        Groups of arms and posterior draws.
    numbers : Evidence
    flags : list of Flag
    attrs : dict
        Further attributes of the group ``evidence``.
    """

    tree: xr.DataTree
    numbers: Evidence
    flags: list[Flag]
    attrs: dict[str, Any]


def finished(
    answer: Answer,
    model: Model,
    method: str,
    tally: Tally | None = None,
    begin: float = 0.0,
    *,
    elsewhere: float = 0.0,
    compiling: float | None = None,
    densities: ParticleDensities | None = None,
) -> xr.DataTree:
    """Complete the groups of a result, and warn of its flags.

    Parameters
    ----------
    answer : Answer
    model : pm.Model
    method : str
        Name of the function that was called.
    tally : Tally, optional
        Evaluations by stage.
    begin : float
        CPU time of this process at the start of the run.
    elsewhere : float
        CPU seconds of other processes.
    compiling : float, optional
        CPU seconds of compilation.
    densities : ParticleDensities, optional
        Densities that were evaluated, which may have integrated effects out.
    """
    tree, numbers, flags, attrs = answer
    flags = flags + prior_flags(model)
    if tally is not None:
        numbers |= tally.numbers() | {"cpu_seconds": time.process_time() - begin + elsewhere}
    if compiling is not None:
        numbers["compile_seconds"] = compiling
    lower, upper = normal_interval(*numbers.estimate)
    ends = {"log_evidence_lower": lower, "log_evidence_upper": upper}
    attrs = flag_attributes(flags) | attrs
    tree["evidence"] = xr.DataTree(declared_dataset(EVIDENCE, {**numbers, **ends}, attrs=attrs))
    if tally is not None:
        tree["evaluations"] = xr.DataTree(tally.dataset())
    describe(tree, densities)
    add_data_groups(tree, model)
    tree.attrs |= {"inference_library": "amc_pymc", "sampling_method": method}
    warn_of((f for f in flags if f.name != "rewards_clipped"), "Model evidence")
    return tree


def likelihood_as_evidence(model: Model, method: str) -> xr.DataTree:
    """Return the evidence of a model without free variables, which is its likelihood, without an error."""
    check_evidence_defined(model)
    graph = model_logp(model, [*model.observed_RVs, *model.potentials])
    (graph,) = without_checks(lowered([graph]))
    found = float(interpreted_function([], graph, plain=True)())
    value = -math.inf if math.isnan(found) else found
    flags = [flag("all_zero")] if value == -math.inf else []
    exact = Evidence(log_evidence=value, log_evidence_mcse=0.0, ess=math.inf, n_likelihood=1)
    attrs = {"unbiased": "exactly: it is the likelihood"}
    return finished(Answer(xr.DataTree(), exact, flags, attrs), model, method)


def nan_flags(
    numbers: Evidence,
    counts: Mapping[str, int],
    densities: ParticleDensities,
    pilot: Pilot,
    rng: np.random.Generator,
) -> list[Flag]:
    """Return a flag if the density is nan near the posterior, and more often than the error allows for.

    Elsewhere such points can be treated as impossible: a trajectory that ends at one is rejected. The share near
    the posterior is estimated from draws of the fitted proposal or, without one, from all points evaluated.
    """
    if not counts["n_nan"]:
        return []
    reference = pilot.reference
    share = counts["n_nan"] / counts["n_likelihood"]
    if reference is not None:
        with counted() as there:
            densities.values(reference.sample(_LOOKED_AT, rng))
        share = int(there[2]) / _LOOKED_AT
    if share < 1.0 and -math.log1p(-share) <= numbers["log_evidence_mcse"]:
        return []
    return [flag("nan", points=counts["n_nan"], share=share)]


def add_posterior(
    tree: xr.DataTree,
    model: Model | None,
    densities: ParticleDensities,
    drawn: PosteriorDraws,
    n_chains: int,
    terms: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], list[Flag]]:
    """Add draws of equal weight with their log densities; return the draws, and a flag if few are distinct.

    ``terms`` (2, P) are log prior and log likelihood, if known.
    """
    values = densities.constrain(drawn.x)
    terms = densities.values(drawn.x) if terms is None else terms
    posterior = draws_group(model, values, n_chains=n_chains)
    posterior.attrs |= {"source": drawn.source, "n_distinct": drawn.distinct}
    stats = {"log_prior": terms[0], "log_likelihood_sum": terms[1], "lp": terms.sum(axis=0)}
    tree["posterior"] = xr.DataTree(posterior)
    told = described(draws_group(model, stats, n_chains=n_chains), DRAW_STATS)
    tree["sample_stats"] = xr.DataTree(told)
    if drawn.distinct >= min(_DISTINCT * len(drawn.x), _ENOUGH):
        return values, []
    return values, [flag("few_distinct_draws", distinct=drawn.distinct, draws=len(drawn.x))]


#: Largest relative variance of weights at which draws are taken from importance sampling.
_USABLE = 20.0
#: Weighted draws per posterior draw, in multiples of one plus the relative variance.
_WEIGHED = 1.5
#: Minimum share of distinct draws after resampling weighted draws.
_POSTERIOR_DISTINCT = 0.75
#: Correlation with the starting points below which copies have moved enough, and the maximum number of moves.
_MOVED, _MOST_MOVES = 0.3, 16


class PosteriorDraws(NamedTuple):
    """Equally weighted draws; copies of a point and descendants of a particle are adjacent.

    Attributes
    ----------
    x : array (n, D)
        Draws on the unconstrained scale.
    distinct : int
        Number of distinct draws; if all variables are discrete, number of distinct ancestors.
    source : str
        Description of the method that made the draws.
    """

    x: np.ndarray
    distinct: int
    source: str


def posterior_draws(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    discrete: np.ndarray | None = None,
) -> PosteriorDraws:
    """Draw from the posterior with the results of a pilot run.

    If importance weights under the fitted reference are even enough, enough weighted draws are made to resample
    them with hardly any copies. Otherwise the particles of the pilot run, which were annealed from the prior, are
    copied and moved by the kernel until the copies are nearly uncorrelated with their starting points.

    Parameters
    ----------
    path : PriorPath
    pilot : Pilot
    kernel : Kernel
        Kernel of the pilot run.
    n : int
        Number of draws.
    rng : numpy.random.Generator
    discrete : array of bool (D,), optional
        Whether each coordinate is discrete.

    Returns
    -------
    PosteriorDraws
        Copies are adjacent, so chains cut from the draws are autocorrelated, and diagnostics such as ``az.ess``
        do not treat copies as independent.
    """
    found = _resampled(path, pilot, n, rng)
    return _moved(path, pilot, kernel, n, rng, discrete) if found is None else found


def _resampled(
    path: PriorPath, pilot: Pilot, n: int, rng: np.random.Generator
) -> PosteriorDraws | None:
    """Draw by sampling importance resampling; None if too many draws would be copies."""
    reference = pilot.reference
    if reference is None or not pilot.relative_variance < _USABLE:
        return None
    weighted = n * math.ceil(_WEIGHED * (1.0 + pilot.relative_variance))
    log_w, x = ImportanceArm(path, reference, pilot.share).weigh(weighted, rng)
    if log_w.max() == -np.inf:
        return None
    chosen = resample(log_w, n, rng)
    distinct = len(np.unique(chosen))
    if distinct < _POSTERIOR_DISTINCT * n:
        return None
    return PosteriorDraws(
        x[chosen], distinct, "sampling importance resampling from the fitted reference"
    )


def _moved(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    discrete: np.ndarray | None,
) -> PosteriorDraws:
    """Draw by moving copies of the particles of the pilot run."""
    ladder = pilot.ladder
    size = len(ladder.particles.x)
    ancestors = np.sort(rng.permutation(size)[np.arange(n) % size])
    particles = taken(ladder.particles, ancestors)
    begin, tuning = particles.x, ladder.tunings[-1]
    for _ in range(_MOST_MOVES):
        particles, _ = kernel.step(path, particles, 1.0, tuning, rng)
        a, b = begin - begin.mean(axis=0), particles.x - particles.x.mean(axis=0)
        scale = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
        # Correlations with the starting points; those of constant coordinates count as 0.
        if float(np.max((a * b).sum(axis=0) / np.where(scale > 0.0, scale, np.inf))) < _MOVED:
            break
    continuous = np.ones(path.n_dim, bool) if discrete is None else ~discrete
    x = particles.x[:, continuous] if continuous.any() else ancestors[:, None]
    source = "particles of the pilot run, annealed from the prior, copied and moved"
    return PosteriorDraws(particles.x, len(np.unique(x, axis=0)), source)


#: Standard errors by which estimates may differ without a flag.
_ERRORS = 5.0


def uncertain(z: float, error: float) -> list[Flag]:
    """Return a flag if the error is so large that the estimate means little."""
    return [flag("large_error", error=error)] if z != -math.inf and not error < 1.0 else []


def disagreements(z: float, error: float, pilot: Pilot) -> list[Flag]:
    """Return flags for evidence that the pilot run found and the estimate misses."""
    annealing, mixture = pilot.gaps(z, error)
    flags = [flag("pilot_found_more", other=z + annealing)] if annealing else []
    return flags + ([flag("mixture_found_more", other=z + mixture)] if mixture else [])


def missed_mode(z: float, error: float, pilot: Pilot, log_mass: float) -> list[Flag]:
    """Return a flag if modes outside the fitted mixture, with log evidence `log_mass`, exceed the error."""
    adapted = pilot.adapted
    if adapted is None or log_mass == -math.inf or not math.isfinite(z + error):
        return []
    total = float(np.logaddexp(adapted.log_mean, log_mass))
    more = clearly_more(total, error_of(adapted), z, error, _ERRORS)
    return [flag("missed_mode", total=total)] if more else []


def rare_modes(pilot: Pilot) -> list[Flag]:
    """Return a flag if modes that few prior draws lead to hold a hundredth of the evidence."""
    return [flag("rare_modes", share=pilot.rare)] if pilot.rare > DEFAULTS.covered else []


def copies_missed(pilot: Pilot, draws: np.ndarray) -> list[Flag]:
    """Return a flag if chains (P, D) have not visited some copies of the main mode, by exchanges of labels or signs."""
    if pilot.images is None or not len(pilot.modes):
        return []
    missed = int((pilot.images.shares(draws, pilot.modes[0]) == 0.0).sum())
    copies = len(pilot.images.exchanges)
    return [flag("copies_missed", missed=missed, copies=copies)] if missed else []


def unlike_chains(z: float, error: float, bridged: BridgedChains | None) -> list[Flag]:
    """Return a flag if chains and their bridge give a clearly different evidence."""
    if bridged is None or not _apart(z, error, bridged):
        return []
    return [flag("chains_find_other", other=bridged.log_z, error=bridged.mcse)]


def covering_error(z: float, error: float, pilot: Pilot, bridged: BridgedChains | None) -> float:
    """Return a standard error whose 95 % interval covers clearly different results of pilot run and chains."""
    gap = pilot.exceeds(z, error) if math.isfinite(error) else 0.0
    covering: float = max(error, max(gap, _apart(z, error, bridged)) / 1.959964)
    return covering


def _apart(z: float, error: float, bridged: BridgedChains | None) -> float:
    """Return the difference from the estimate of chains in nats; 0 if errors explain it or chains are unreliable."""
    if bridged is None or not bridged.believed or not math.isfinite(z + error):
        return 0.0
    high, low = max(z, bridged.log_z), min(z, bridged.log_z)
    return clearly_more(high, error, low, bridged.mcse, _ERRORS)
