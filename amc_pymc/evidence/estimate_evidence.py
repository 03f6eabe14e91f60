"""Estimate the model evidence to a given standard error, with a bandit over estimators."""

from __future__ import annotations

import time

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.bandits.arms import Cost, as_arms
from amc_pymc.bandits.combine_estimators import Choices, check_choices, positive_number
from amc_pymc.evidence.arms import ARMS
from amc_pymc.evidence.doubts import prior_flags
from amc_pymc.evidence.from_draws import TimeLimit, evidence_from_draws
from amc_pymc.evidence.from_surrogate import FEWEST_ROWS, evidence_from_surrogate
from amc_pymc.evidence.model import (
    compiled_particles,
    one_blas_thread,
    particle_kernel,
)
from amc_pymc.evidence.results import finished, likelihood_as_evidence
from amc_pymc.evidence.run import Run, run_evidence
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.particles.model_terms import check_evidence_defined
from amc_pymc.reading.rows import NotRowFactorised, row_count
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import check_workers
from amc_pymc.signals import ends_loops
from amc_pymc.steps.marginal_effects import (
    Marginalize,
    chosen_effects,
    say_if_dear,
)

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["estimate_evidence"]


@ends_loops
def estimate_evidence(
    model: Model | None = None,
    *,
    idata: xr.DataTree | None = None,
    marginalize: Marginalize = "auto",
    target_mcse: float | None = 0.05,
    max_cost: float | None = None,
    arms: Literal["default"] | Sequence[Any] | Mapping[str, Any] | None = None,
    cost: Cost = "count",
    draws: int | None = None,
    chains: int | None = None,
    cores: int | None = 1,
    executor: Executor | None = None,
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
    passes over the rows suffice. This way is taken where `arms`, `max_cost` and `cost` have their defaults; the estimate is consistent, not unbiased.

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
    Gaussian effects and rows; discrete effects are summed over their states. The number of nodes is chosen for an
    error of a twentieth of `target_mcse` at posterior points and checked by a rule with many more nodes, which also
    finds multiple peaks and long tails. The remaining error is reported.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model in the context. A ``pm.Potential`` counts as likelihood.
    idata : DataTree, optional
        At least 100 draws of all free variables in a group ``posterior``, from :func:`pymc.sample` or another
        sampler, in chains and in order. Their dimensions are read by the labels of the model's ``coords``. Free variables must be continuous. Draws are transformed as in the model,
        or taken from a group ``unconstrained_posterior``. A log density stored by PyMC or nutpie in
        ``sample_stats`` is compared with that of the model.
    marginalize : "auto" or None or a variable or sequence of variables
        Local effects to integrate out: variables of one grouping factor or their names, at most three per group.
        Each row must read the effects of one group, selected by an index in the data, or have an effect of its own.
        The prior must be a product over groups, and nothing else may depend on the effects. "auto" takes the factor
        with the most effects, if there are at least 20 and they can be integrated out, and logs the choice at level
        INFO. None integrates out nothing. With `idata`, draws of these effects are not needed.
    target_mcse : float or None, default 0.05
        Standard error of log Z to stop at, in nats. None spends `max_cost`.
    max_cost : float, optional
        Maximum cost of the evidence, in units of `cost`. It includes the pilot run
        and excludes posterior draws. With `idata` the bridge without annealing is always computed.
    arms : "default", sequence or mapping, default "default"
        Estimators: names from "importance_rqmc", "importance", "smc_reference", "smc", and your own, objects with ``scale = "log"`` and ``sample(n, rng)`` (as for
        :func:`combine_estimators`). "default" is all named estimators that look promising after the pilot run, or
        chains and a bridge.
    cost : "count" or "cpu", default "count"
        "count": evaluations of the model, where a gradient counts as two; a seed then reproduces the run. "cpu":
        CPU seconds.
    draws, chains : int, default 500 and 4
        Posterior draws per chain, and chains, in the result. They do not affect the evidence.
    cores : int or None, default 1
        Worker processes. None: all cores, at most four. Results do not depend on it.
    executor : concurrent.futures.Executor, optional
        Executor to use instead of processes, for example ``dask.distributed.Client.get_executor()``. This, `cores`,
        `arms`, `draws` and `chains` are for runs without `idata`.
    max_time : float, optional
        Seconds after which no further batch starts. The result then depends on the speed of the machine. The pilot
        run and the first two batches are always completed. Chains and later batches are
        shortened to end in time at the present rate; a bridge is annealed only if that is likely to end in time.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores` and `executor`. Times in the result differ.

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
        wrong shape, outside the support, too few, or of another model according to the stored log density.

    KeyboardInterrupt
        At Ctrl-C before there is an estimate, at a second Ctrl-C, and if a call begins within a second after one that
        Ctrl-C has cut short, so that loops end. The first Ctrl-C otherwise ends the run, which returns what is
        complete, if need be the estimate of the pilot run, with the flag ``interrupted``.

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
    _check(target_mcse, max_cost)
    check_choices(Choices(cost=cost), "log")
    limit = TimeLimit(positive_or_none("max_time", max_time), time.monotonic())
    if idata is not None:
        _refuse_with_idata(
            arms=arms, draws=draws, chains=chains, cores=None if cores == 1 else cores,
            executor=executor,
        )  # fmt: skip
        model = context_model(model)
        if not model.free_RVs:
            return likelihood_as_evidence(model, "estimate_evidence")
        return evidence_from_draws(
            idata, model=model, marginalize=marginalize, target=target_mcse, max_cost=max_cost, cost=cost,
            limit=limit, random_seed=random_seed, progressbar=progressbar,
        )  # fmt: skip
    check_workers(cores, executor)
    names, own = _named("default" if arms is None else arms)
    n_draws = positive_int("draws", 500 if draws is None else draws)
    n_chains = positive_int("chains", 4 if chains is None else chains)
    words = seed_words(random_seed)
    model = context_model(model)
    if not model.free_RVs:
        return likelihood_as_evidence(model, "estimate_evidence")
    plain = names is None and not own and max_cost is None and cost == "count"
    if plain and target_mcse and _has_many_rows(model, marginalize):
        tall = _by_surrogate(model, target_mcse, n_draws, n_chains, words, progressbar)
        if tall is not None:
            return tall
    densities, compiling = compiled_particles(model, chosen_effects(model, marginalize))
    say_if_dear(densities)
    begin = time.process_time()
    moves = particle_kernel(model, densities, "hmc")
    run = Run(
        model, densities, moves, spawn_generators(words, 6), names, own, target_mcse, max_cost, cost,
        n_draws, n_chains, limit, cores, executor, progressbar,
    )  # fmt: skip
    with one_blas_thread():
        answer = run_evidence(run)
    answer.flags.extend(prior_flags(model))
    seconds = time.process_time() - begin + run.seconds_elsewhere
    answer.numbers.update(run.tally.numbers(), compile_seconds=compiling, cpu_seconds=seconds)
    answer.attrs["kernel"] = moves.name
    return finished(
        answer, model, "estimate_evidence", evaluations=run.tally.dataset(), densities=run.densities
    )


def _has_many_rows(model: Model, marginalize: Marginalize) -> bool:
    """Whether the surrogate of many rows may give the estimate."""
    if marginalize not in ("auto", None):
        return False
    if len(model.observed_RVs) != 1 or model.discrete_value_vars:
        return False
    try:
        return row_count(model, model.observed_RVs) >= FEWEST_ROWS
    except NotRowFactorised:
        return False


def _by_surrogate(
    model: Model, target: float, draws: int, chains: int, words: Any, progressbar: bool
) -> xr.DataTree | None:
    """Return the estimate from prior times the rows' expansion; None where that is not close to the posterior."""
    begin = time.process_time()
    check_evidence_defined(model)
    (rng,) = spawn_generators(words, 1)
    with one_blas_thread():
        found = evidence_from_surrogate(
            model, target=target, draws=draws, chains=chains, rng=rng, progressbar=progressbar
        )
    if found is None:
        return None
    answer, evaluations = found
    answer.flags.extend(prior_flags(model))
    answer.numbers["cpu_seconds"] = time.process_time() - begin
    return finished(answer, model, "estimate_evidence", evaluations=evaluations)


def _check(target: float | None, budget: float | None) -> None:
    if target is None and budget is None:
        raise ValueError("One of target_mcse and max_cost is needed.")
    for name, value in (("target_mcse", target), ("max_cost", budget)):
        if value is not None:
            positive_number(name, value)


def _refuse_with_idata(**given: Any) -> None:
    """Raise a ValueError if an argument that does not apply to `idata` is given."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} is for runs without idata; leave it out, or leave idata out."
            )


def _named(arms: Any) -> tuple[list[str] | None, dict[str, Any]]:
    """Return the names of the arms to make (None for the default ones) and the user's own arms."""
    if isinstance(arms, str):
        if arms == "default":
            return None, {}
        raise ValueError(f"arms must be 'default' or a list, got {arms!r}; write arms=[{arms!r}].")
    if isinstance(arms, Mapping):
        names, own = [], dict(arms)
    elif isinstance(arms, Sequence):
        names = [a for a in arms if isinstance(a, str)]
        own = {}
        if others := [a for a in arms if not isinstance(a, str)]:
            own = {a.name: a for a in as_arms(others)}
    else:
        raise TypeError(f"arms must be 'default', a list or a mapping, got {arms!r}.")
    if not names and not own:
        raise ValueError("arms is empty: there is nothing to estimate with.")
    for name in names:
        if name not in ARMS:
            raise ValueError(f"arms must be among {', '.join(ARMS)}, got {name!r}.")
    if repeated := [n for i, n in enumerate(names) if n in own or n in names[:i]]:
        raise ValueError(f"arms must have different names, {repeated[0]!r} is there twice.")
    for arm in as_arms(own) if own else []:
        if arm.scale != "log":
            raise ValueError(
                f"arm {arm.name!r} must return logarithms of estimates, and say so by scale = 'log'."
            )
    return names, own
