"""Estimate the model evidence to a given standard error: pilot run, chains or arms, checks, posterior draws."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.bandits.arms import as_arms
from amc_pymc.bandits.combine_estimators import (
    Budget,
    Combined,
    combined,
)
from amc_pymc.evidence.adapt import effective_beside, error_of, prior_error
from amc_pymc.evidence.arms import ARMS, Portfolio, make_portfolio
from amc_pymc.evidence.chains import BridgedChains, bridge_chains
from amc_pymc.evidence.from_draws import (
    affordable,
    bridge_flags,
    bridge_numbers,
    evidence_from_draws,
    stage_arms,
)
from amc_pymc.evidence.from_surrogate import FEWEST_ROWS, evidence_from_surrogate
from amc_pymc.evidence.mcmc import Kernel
from amc_pymc.evidence.model import (
    JobMeter,
    Tally,
    TimeLimit,
    compiled_particles,
    cost_of,
    explored,
    one_blas_thread,
    particle_kernel,
    running_off,
)
from amc_pymc.evidence.pilot import Pilot, PilotInterrupted
from amc_pymc.evidence.results import (
    Answer,
    Evidence,
    PosteriorDraws,
    add_posterior,
    copies_missed,
    covering_error,
    disagreements,
    effective_size,
    finished,
    likelihood_as_evidence,
    missed_mode,
    nan_flags,
    posterior_draws,
    rare_modes,
    uncertain,
    unlike_chains,
)
from amc_pymc.flags import Flag, flag
from amc_pymc.progress import progress
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.particles.densities import ParticleDensities
from amc_pymc.reading.rows import NotRowFactorised, choose_observed
from amc_pymc.results import described, tables
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import number_of_cores
from amc_pymc.signals import held_back
from amc_pymc.steps.marginal_effects import (
    Marginalize,
    chosen_effects,
    enough_nodes,
    quadrature,
)

if TYPE_CHECKING:
    from pymc import Model


#: Share of the posterior that the fitted reference may miss without a flag.
_UNCOVERED = 0.1
#: Weight above which an arm matters to the estimate, and effective number of prior draws in the region missed by
#: the reference above which the error of importance sampling accounts for that region.
_MATTERS, _REACHED = 0.1, 100.0
#: Standard errors by which the two combined estimates may differ, and nats that rounding explains.
_APART, _ROUNDING = 5.0, 1e-9
#: Evaluations that chains take at least.
_LEAST = 50_000.0
#: Difference in nats between the ends of the bridge that short chains explain.
_NATS = 0.1
#: Attributes of estimates from chains.
_BY_CHAINS = {
    "weights": "last stage",
    "unbiased": "no, but consistent as the chains become longer",
    "method": "bridge between own Hamiltonian chains and a Gaussian",
}


def estimate_evidence(
    model: Model | None = None,
    *,
    idata: xr.DataTree | None = None,
    marginalize: Marginalize = "auto",
    target_mcse: float | None = 0.05,
    max_cost: float | None = None,
    arms: Sequence[str] | None = None,
    draws: int | None = None,
    chains: int | None = None,
    cores: int | None = 1,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Estimate the log evidence of a model to a given standard error.

    A pilot run finds the posterior, its modes and a mixture of Student t distributions close to it. From these it
    makes a portfolio of unbiased estimators of :math:`Z = \int p(x) L(x) dx`: importance sampling from the mixture
    with a 10 % share of the prior, with plain and with randomised quasi-Monte Carlo points, and sequential Monte
    Carlo from the prior and from the mixture. A bandit learns which estimator
    reaches the error at the lowest cost (:func:`combine_estimators`). The size of the last, certifying round is
    fixed before it starts, so its estimate of Z is exactly unbiased.

    Models with 5,000 rows or more, continuous variables and one mode take another way if the second-order expansion
    of the rows is close to their likelihood: draws from prior times expansion, whose integral :math:`Z_s` is known or
    costs no rows, give :math:`Z = Z_s \operatorname{E} e^R` with the remainder R of the log-likelihood. A few hundred
    passes over the rows suffice. This way is taken where `arms` and `max_cost` have their defaults; the estimate is consistent, not unbiased.

    If no mixture is close to the posterior, and in more than 40 dimensions if Laplace's approximation is not, the
    run uses Hamiltonian Monte Carlo chains of its own and a bridge, as with `idata`, provided that the chains agree
    and the pilot run does not find more evidence. Otherwise, in up to 40 dimensions, it uses the estimators that
    start at the prior. The bridge estimate is consistent, not unbiased.

    With `idata`, posterior draws that you already have, there is neither a pilot run nor a bandit. A Gaussian q is
    fitted to each half of the draws and bridged with the other half. The bridge with the smallest error (Meng &
    Wong 1996) solves

    .. math::
        \hat Z = \frac{\operatorname{mean}_{x \sim q}\, e^{l(x)} / (s_p e^{l(x)} + s_q \hat Z)}
                      {\operatorname{mean}_{x \sim p}\, 1 / (s_p e^{l(x)} + s_q \hat Z)},
        \qquad l(x) = \log \frac{p(x) L(x)}{q(x)},

    with the shares s of effective draws from posterior and Gaussian. If its error is too large, draws from both
    ends are annealed along :math:`q^{1-\beta} (p L)^\beta` in T = 2, 4, ..., 512 steps, in both directions; l is
    then the sum of the log-weights along the path, and the same equation holds (Bennett 1976; Crooks 2000). The
    error accounts for the autocorrelation of the draws (Frühwirth-Schnatter 2004). The estimate is consistent, not
    unbiased, and covers only modes that the draws have visited. Short searches from prior draws raise a flag
    if they find another mode; to search thoroughly, leave out `idata`.

    Local effects u_g of groups g (one value for each school, customer or item) are integrated out if there are
    many. Then x holds only the population parameters, and the likelihood is

    .. math::
        L(x) = \prod_g \int p(u_g | x) \prod_{i \in g} p(y_i | x, u_g)\, du_g.

    The integrals are computed by adaptive Gauss-Hermite quadrature (Pinheiro & Bates 1995), which is exact for
    Gaussian effects and rows. The number of nodes is chosen for an
    error of a twentieth of `target_mcse` at posterior points and checked by a rule with many more nodes, which also
    finds multiple peaks and long tails. The remaining error is reported.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model in the context. A ``pm.Potential`` counts as likelihood.
    idata : DataTree, optional
        At least 100 draws of all free variables in a group ``posterior``, from :func:`pymc.sample` or another
        sampler, in chains and in order. Their dimensions are read by the labels of the model's ``coords``. Free variables must be continuous. A log density
        stored by PyMC or nutpie in ``sample_stats`` is compared with that of the model.
    marginalize : "auto" or None or a variable or sequence of variables
        Local effects to integrate out: variables of one grouping factor or their names, at most three per group.
        Each row must read the effects of one group, selected by an index in the data, or have an effect of its own.
        The prior must be a product over groups, and nothing else may depend on the effects. "auto" takes the factor
        with the most effects, if there are at least 20 and they can be integrated out, and logs the choice at level
        INFO. None integrates out nothing. With `idata`, draws of these effects are not needed.
    target_mcse : float or None, default 0.05
        Standard error of log Z to stop at, in nats. None spends `max_cost`.
    max_cost : float, optional
        Maximum number of evaluations of the model, where a gradient counts as two. It includes the pilot run
        and excludes posterior draws. With `idata` the bridge without annealing is always computed.
    arms : sequence of str, optional
        Estimators, from "importance_rqmc", "importance", "smc_reference" and "smc"; by default all that look
        promising after the pilot run, or chains and a bridge. Give your own to :func:`combine_estimators`.
    draws, chains : int, default 500 and 4
        Posterior draws per chain, and chains, in the result. They do not affect the evidence.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it. This, `arms`, `draws` and `chains`
        are for runs without `idata`.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine. The pilot
        run and the first two batches are always completed. Chains and later batches are
        shortened to end in time at the present rate; a bridge is annealed only if that is likely to end in time.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores`. Times in the result differ.

    Returns
    -------
    xarray.DataTree
        ``evidence``: ``log_evidence``, ``log_evidence_mcse``, a 95 % interval and further numbers; attributes
        ``flags`` and ``flag_names``, separated by "; ". ``evaluations``: counts by stage. ``arms``: each estimator,
        and why others were left out. ``estimate``, ``rounds``, ``pulls``: as from :func:`combine_estimators`.
        ``posterior``: draws by sampling importance resampling or, if the weights are too uneven, copied and moved
        particles of the pilot run (attributes ``source`` and ``n_distinct``). Copies are adjacent.
        ``sample_stats``: log densities of these draws. ``observed_data``, ``constant_data``. The page "Variables of
        results" of the reference lists all variables.

        If effects are integrated out, ``evidence`` has the attributes ``marginalized`` and ``quadrature``, and
        ``posterior`` no draws of the effects; :func:`recover_marginals` adds them. If the estimate comes from the
        run's own chains and a bridge, ``evidence`` has an attribute ``method``, ``log_evidence_iv`` repeats
        ``log_evidence``, and there are no groups ``estimate``, ``rounds`` and ``pulls``. With `idata`, ``arms`` are
        the bridge and each number of steps, the last of which is the estimate, and ``posterior`` and
        ``sample_stats`` are those of `idata`. The evidence of a model without free variables is its likelihood; its
        result has no groups but ``evidence`` and the data.

    Raises
    ------
    ValueError, TypeError
        Before any computation: for invalid arguments, models without likelihood or with an improper prior,
        variables in `marginalize` that cannot be integrated out, and draws that are missing, not finite, of the
        wrong shape, outside the support, or too few.

    KeyboardInterrupt
        At Ctrl-C before there is an estimate, and at a second Ctrl-C. The first Ctrl-C otherwise ends the run, which
        returns what is complete, if need be the estimate of the pilot run, with the flag ``interrupted``.

    Warns
    -----
    UserWarning
        For every flag, such as estimators or chains that disagree, heavy tails, a target missed, evidence that the
        estimate misses, nan where the posterior is, or draws that do not follow the model's density.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, ICML.
    Neal (2001), Annealed importance sampling, doi:10.1023/A:1008923215028.
    Pinheiro & Bates (1995), Approximations to the log-likelihood function in the nonlinear mixed-effects model,
    doi:10.1080/10618600.1995.10474663.
    Hesterberg (1995), Weighted average importance sampling and defensive mixture distributions,
    doi:10.1080/00401706.1995.10484303.
    Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica 6:831-860.
    Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data,
    doi:10.1016/0021-9991(76)90078-4.
    Crooks (2000), Path-ensemble averages in systems driven far from equilibrium, doi:10.1103/PhysRevE.61.2361.
    Frühwirth-Schnatter (2004), Estimating marginal likelihoods for mixture and Markov switching models using bridge
    sampling techniques, doi:10.1111/j.1368-423X.2004.00125.x.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import pymc as pm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    ...     found = amc.estimate_evidence(target_mcse=0.01, random_seed=1, progressbar=False)
    >>> bool(abs(found["evidence"]["log_evidence"] + 3.5155) < 0.05)
    True

    From posterior draws, here exact ones:

    >>> import arviz as az
    >>> import numpy as np
    >>> draws = np.random.default_rng(1).normal(1.5, 0.5**0.5, (4, 500))
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    >>> idata = az.from_dict({"posterior": {"mu": draws}})
    >>> found = amc.estimate_evidence(idata=idata, model=model, random_seed=1, progressbar=False)
    >>> bool(abs(found["evidence"]["log_evidence"] + 3.5155) < 0.02)
    True
    """
    if target_mcse is None and max_cost is None:
        raise ValueError("One of target_mcse and max_cost is needed.")
    positive_or_none("target_mcse", target_mcse)
    most = positive_or_none("max_cost", max_cost) or math.inf
    limit = TimeLimit(positive_or_none("max_time", max_time), time.monotonic())
    if idata is not None:
        asked = {"arms": arms, "draws": draws, "chains": chains}
        for name, value in (asked | {"cores": None if cores == 1 else cores}).items():
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} is for runs without idata; leave it out, or leave idata out."
                )
        model = context_model(model)
        if not model.free_RVs:
            return likelihood_as_evidence(model, "estimate_evidence")
        return evidence_from_draws(
            idata, model=model, marginalize=marginalize, target=target_mcse, max_cost=most,
            limit=limit, random_seed=random_seed, progressbar=progressbar,
        )  # fmt: skip
    number_of_cores(cores, 1)  # checks the value
    names = None if arms is None else _checked_names(arms)
    n_draws = positive_int("draws", 500 if draws is None else draws)
    n_chains = positive_int("chains", 4 if chains is None else chains)
    words = seed_words(random_seed)
    model = context_model(model)
    if not model.free_RVs:
        return likelihood_as_evidence(model, "estimate_evidence")
    plain = names is None and max_cost is None
    if plain and target_mcse and _has_many_rows(model, marginalize):
        with one_blas_thread():
            tall = evidence_from_surrogate(
                model, target=target_mcse, draws=n_draws, chains=n_chains, words=words,
                progressbar=progressbar,
            )  # fmt: skip
        if tall is not None:
            return tall
    densities, compiling = compiled_particles(model, chosen_effects(model, marginalize))
    begin = time.process_time()
    moves = particle_kernel(model, densities, "hmc")
    run = Run(
        model, densities, moves, spawn_generators(words, 5), names, target_mcse, most,
        n_draws, n_chains, limit, cores, progressbar,
    )  # fmt: skip
    with one_blas_thread():
        answer = run_evidence(run)
    answer.attrs["kernel"] = moves.name
    return finished(
        answer, model, "estimate_evidence", run.tally, begin,
        elsewhere=run.meter.seconds, compiling=compiling, densities=run.densities,
    )  # fmt: skip


def _has_many_rows(model: Model, marginalize: Marginalize) -> bool:
    """Whether the surrogate of many rows may give the estimate."""
    alone = len(model.observed_RVs) == 1 and not model.discrete_value_vars
    if not alone or marginalize not in ("auto", None):
        return False
    try:
        return choose_observed(model)[1] >= FEWEST_ROWS
    except NotRowFactorised:
        return False


def _checked_names(arms: Sequence[str]) -> list[str]:
    names = [arms] if isinstance(arms, str) else arms
    if not isinstance(names, Sequence) or not names or len(set(names)) < len(names):
        raise ValueError(f"arms must be names, each once, got {arms!r}.")
    for name in names:
        if name not in ARMS:
            raise ValueError(f"arms must be among {', '.join(ARMS)}, got {name!r}.")
    return list(names)


@dataclass
class Run:
    """A model, its densities and their moves, what was asked for, how to run it, and costs so far.

    Attributes
    ----------
    model : pm.Model
    densities : ParticleDensities
    moves : Kernel
    streams : list of Generator
        Generators of pilot run, arms, posterior draws, checks and chains.
    names : list of str or None
        Arms of the portfolio; None for the default ones.
    target : float or None
    max_cost : float
    draws, chains : int
        Posterior draws per chain, and chains, in the result.
    limit : TimeLimit
    cores : int or None
    progressbar : bool
    tally : Tally
    meter : JobMeter
        Evaluations and CPU time of jobs.
    """

    model: Model
    densities: ParticleDensities
    moves: Kernel
    streams: list[np.random.Generator]
    names: list[str] | None
    target: float | None
    max_cost: float
    draws: int
    chains: int
    limit: TimeLimit
    cores: int | None = 1
    progressbar: bool = True
    tally: Tally = field(default_factory=Tally)
    meter: JobMeter = field(default_factory=JobMeter)


def run_evidence(run: Run) -> Answer:
    """Make a pilot run; use chains and a bridge if no mixture fits and they succeed, else combine arms.

    Chains also give the estimate if there is no time left for arms. If Ctrl-C leaves nothing else, the estimate is that
    of the pilot run.
    """
    known = list[Pilot]()
    try:
        return _found(run, known)
    except PilotInterrupted as error:
        known.append(error.pilot)
    except KeyboardInterrupt:
        if not known:
            raise
    return _of_pilot(run, known[0])


def _found(run: Run, known: list[Pilot]) -> Answer:
    """Return the estimate of a run; append its pilot run to `known` as soon as it is complete."""
    begin, rng = time.process_time(), run.streams[0]
    # Chains and a bridge may give the estimate if the user chose no arms.
    by_chains = run.names is None and not run.densities.discrete.any()

    with _part("pilot", "Pilot run", run) as (report, _):
        pilot = explored(
            run.model, run.densities, run.moves, rng, limit=run.limit, chains=by_chains,
            report=report,
        )  # fmt: skip
    known.append(pilot)
    with run.tally.stage("pilot"):
        # The denser half of the particles; the others may not have converged.
        order = np.argsort(pilot.ladder.particles.terms.sum(axis=0), kind="stable")
        denser = pilot.ladder.particles.x[order[len(order) // 2 :]]
        run.densities = enough_nodes(run.densities, denser, run.target)

    def allowed(wanted: float, so_far: float = 0.0) -> bool:
        """Whether a cost is affordable after what a part has cost so far."""
        return affordable(wanted, run.tally.cost + so_far, run.max_cost, run.limit, begin)

    bridged = None
    if by_chains and pilot.unfit and allowed(_LEAST):
        with _part("chains", "Chains", run) as (report, counts):
            bridged = bridge_chains(
                run.densities, pilot, run.moves, run.streams[4], target=run.target,
                budget=lambda cost: allowed(cost, cost_of(counts)), report=report,
            )  # fmt: skip
        answers = bridged.answers(run.target, pilot)
        if answers or pilot.adapted is None or run.limit.over():
            return _of_chains(run, pilot, bridged)
    return _combine(run, pilot, bridged)


def _of_chains(run: Run, pilot: Pilot, bridged: BridgedChains) -> Answer:
    """Return the estimate of the run's own chains and a bridge, with draws of the chains."""
    tree, target, r_hat = xr.DataTree(), run.target, bridged.chains.r_hat
    with held_back():
        numbers = bridge_numbers(bridged.stages[-1], bridged.mcse, r_hat)
        z, error = numbers.estimate  # the only estimator is also the second opinion
        numbers |= {"log_evidence_iv": z, "log_evidence_iv_mcse": error}
        arms = stage_arms(bridged.stages)
        arms.attrs["left_out"] = "all others: no fitted mixture is close to the posterior"
        tree["arms"] = xr.DataTree(arms)
        flags = [] if bridged.mixed else [flag("own_chains_disagree", r_hat=r_hat)]
        flags += bridge_flags(bridged.stages, target, _NATS)
        if target is not None and bridged.stages[-1].mcse <= target < error:
            flags.append(flag("own_chains_too_short", error=error, target=target, r_hat=r_hat))
        if gap := pilot.exceeds(z, error):
            flags.append(flag("pilot_found_more", other=z + gap))
        flags += uncertain(z, error)
        every = bridged.chains.draws.reshape(-1, run.densities.n_dim)
        places = np.linspace(0, len(every) - 1, run.draws * run.chains).round().astype(int)
        x = every[places]
        source = "own chains of Hamiltonian Monte Carlo"
        drawn = PosteriorDraws(x, len(np.unique(x, axis=0)), source)
        flags += _add_posterior(run, tree, drawn)
        flags += copies_missed(pilot, every) + rare_modes(pilot)
        numbers["log_evidence_mcse"] = covering_error(z, error, pilot, None)
    with held_back(), run.tally.stage("checks"):
        flags += quadrature(numbers, run.densities, x, run.target)
    return Answer(tree, numbers, flags, dict(_BY_CHAINS))


def _add_posterior(run: Run, tree: xr.DataTree, drawn: PosteriorDraws) -> list[Flag]:
    """Add posterior draws to the results; return flags of what is wrong with them."""
    with run.tally.stage("posterior"):
        values, flags = add_posterior(tree, run.model, run.densities, drawn, run.chains)
    return running_off(run.model, run.densities, values) + flags


def _drawn(run: Run, pilot: Pilot) -> PosteriorDraws:
    """Draw from the posterior with the results of a pilot run."""
    discrete = run.densities.discrete
    n, rng = run.draws * run.chains, run.streams[2]
    with run.tally.stage("posterior"):
        return posterior_draws(run.densities, pilot, run.moves, n, rng, discrete=discrete)


def _of_pilot(run: Run, pilot: Pilot) -> Answer:
    """Return the estimate of a pilot run, from its mixture if that is close to the posterior, else from annealing."""
    adapted, ladder, tree = pilot.adapted, pilot.ladder, xr.DataTree()
    z, error = ladder.log_z, prior_error(ladder)
    if adapted is not None and not pilot.unfit:
        z, error = adapted.log_mean, error_of(adapted)
    flags = [flag("interrupted"), *uncertain(z, error)]
    numbers = Evidence(log_evidence=z, log_evidence_iv=z, log_evidence_iv_mcse=error)
    numbers |= {"log_evidence_mcse": covering_error(z, error, pilot, None), "pareto_k": math.nan}
    numbers["ess"] = effective_size(error)
    flags += _add_posterior(run, tree, _drawn(run, pilot))
    attrs = {"weights": "pilot run", "unbiased": "no", "method": "pilot run alone"}
    return Answer(tree, numbers, flags, attrs)


@contextmanager
def _part(stage: str, what: str, run: Run) -> Iterator[tuple[Callable[[str], None], np.ndarray]]:
    """Count evaluations of a part of unknown length; the block receives a function to report progress, and counts."""
    with progress(what, None, enabled=run.progressbar) as bar, run.tally.stage(stage) as counts:

        def report(text: str) -> None:
            bar.advance()
            bar.advance(0, f"{what}: {text}")

        yield report, counts


def _combine(run: Run, pilot: Pilot, bridged: BridgedChains | None) -> Answer:
    """Combine arms from the pilot run by a bandit; only those that start at the prior if chains have failed."""
    densities, tally = run.densities, run.tally
    pilot_rng, arms_rng, _, checks_rng, _ = run.streams
    with tally.stage("pilot"):
        portfolio = make_portfolio(
            densities, pilot if bridged is None else replace(pilot, adapted=None), run.moves, pilot_rng,
            names=run.names, target=run.target, budget=run.max_cost,
        )  # fmt: skip
    left, flags = _left(run.max_cost, tally.cost, portfolio)
    try:
        found = combined(
            as_arms(portfolio.arms),
            Budget(left, "cost", run.target),
            policy="lcb",
            cost="count",
            cores=run.cores,
            **run.limit._asdict(),
            progressbar=run.progressbar,
            random_seed=arms_rng,
            meter=run.meter,
        )
    finally:
        tally.add("arms", run.meter.counts)
    with held_back():  # the estimate is complete
        tree, numbers = found.tree, _numbers(found.tree)
        with tally.stage("checks"):
            # Arms that start from the prior do not rely on the mixture.
            missed = pilot.missed if bridged is None else -math.inf
            flags += found.flags + _flags(numbers, found)
            flags += _uncovered(pilot, found, densities, checks_rng)
            flags += nan_flags(numbers, tally.numbers(), densities, pilot, checks_rng)
            flags += uncertain(*numbers.estimate) + disagreements(*numbers.estimate, pilot)
            flags += missed_mode(*numbers.estimate, pilot, missed) + rare_modes(pilot)
            flags += unlike_chains(*numbers.estimate, bridged)
        numbers["log_evidence_mcse"] = covering_error(*numbers.estimate, pilot, bridged)
        drawn = _drawn(run, pilot)
        flagged = _add_posterior(run, tree, drawn)
        with tally.stage("checks"):
            flags += quadrature(numbers, densities, drawn.x, run.target) + flagged
    arms = tree["arms"].to_dataset()  # with variables named as in the group `evidence`
    arms = arms.rename(log_mean="log_evidence", log_mean_mcse="log_evidence_mcse")
    arms["cost"] = arms["draws"] * arms["cost_per_draw"]
    arms.attrs["left_out"] = "; ".join(f"{k}: {v}" for k, v in portfolio.left_out.items())
    tree["arms"] = xr.DataTree(described(arms, tables.ARMS))
    attrs = {"weights": "predictable", "unbiased": tree.attrs["unbiased"]}
    return Answer(tree, numbers, flags, attrs)


def _left(max_cost: float, spent: float, portfolio: Portfolio) -> tuple[float, list[Flag]]:
    """Return the budget left after the pilot run, which is never zero, and flags."""
    least = 3.0 * sum(getattr(a, "cost", None) or 1.0 for a in portfolio.arms.values())
    if max_cost - spent >= least:
        return max_cost - spent, []
    return least, [flag("pilot_over_budget", max_cost=max_cost, spent=spent, least=least)]


def _numbers(tree: xr.DataTree) -> Evidence:
    estimate, arms = tree["estimate"].to_dataset(), tree["arms"].to_dataset()
    both = estimate.sel(weights=["predictable", "inverse_variance"])
    z, other = both["log_mean"].values.tolist()
    error, other_error = both["log_mean_mcse"].values.tolist()
    k = arms["pareto_k"].values[arms["weight"].values > 0.1]
    return Evidence(
        log_evidence=z,
        log_evidence_mcse=error,
        log_evidence_iv=other,
        log_evidence_iv_mcse=other_error,
        ess=0.0 if z == -math.inf else effective_size(error),
        pareto_k=float(np.nanmax(k)) if np.isfinite(k).any() else math.nan,
    )


def _flags(numbers: Evidence, found: Combined) -> list[Flag]:
    flags = []
    z, error = numbers.estimate
    if z == -math.inf and all(f.name != "all_zero" for f in found.flags):
        flags.append(flag("all_zero"))
    other = numbers["log_evidence_iv"]
    if abs(z - other) > _APART * error + _ROUNDING:
        errors = abs(z - other) / error if error > 0.0 else math.inf
        flags.append(flag("second_opinion", other=other, errors=errors))
    return flags


def _uncovered(
    pilot: Pilot, found: Combined, densities: ParticleDensities, rng: np.random.Generator
) -> list[Flag]:
    """Return a flag if the fitted reference misses much of the posterior and the estimate relies on it.

    The estimate does not rely on it if its weight is on arms from the prior, or on importance sampling whose prior
    draws reach what the mixture misses.
    """
    if pilot.uncovered <= _UNCOVERED:
        return []
    arms = found.tree["arms"].to_dataset()
    weights = dict(zip(arms["arm"].values.tolist(), arms["weight"].values.tolist(), strict=True))
    annealed = weights.get("smc_reference", 0.0)
    weighted = sum(weights.get(name, 0.0) for name in ("importance", "importance_rqmc"))
    if annealed + weighted < _MATTERS:
        return []
    if annealed < _MATTERS and effective_beside(densities, pilot.adapted, rng) >= _REACHED:
        return []
    return [flag("uncovered", share=pilot.uncovered)]
