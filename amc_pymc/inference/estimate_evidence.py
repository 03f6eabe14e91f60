"""Model evidence to a wanted error, by a bandit over estimators."""

from __future__ import annotations

import math
import time
import warnings

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from amc_pymc.annealing import resample
from amc_pymc.arguments import positive_int
from amc_pymc.bandits import Policy
from amc_pymc.combination import Cost, as_arms
from amc_pymc.evidence import (
    ARMS,
    GRADIENT_COST,
    BridgedChains,
    ImportanceArm,
    Pilot,
    Portfolio,
    Watch,
    bridge_chains,
    make_portfolio,
    overlooked,
)
from amc_pymc.extract.particles import counted
from amc_pymc.inference.combine_estimators import Weights, check_choices, combine_estimators
from amc_pymc.inference.evidence_from_chains import (
    covering_error,
    evidence_from_chains,
    unlike_chains,
)
from amc_pymc.inference.evidence_from_draws import budget_of, evidence_from_draws
from amc_pymc.inference.evidence_model import (
    Elsewhere,
    compiled_particles,
    context_model,
    explored,
    one_blas_thread,
    particle_kernel,
    running_off,
    seed_words,
)
from amc_pymc.inference.evidence_results import (
    Evidence,
    add_data_groups,
    disagreements,
    draws_group,
    evidence_group,
    missed_mode,
    uncertain,
    warn,
)
from amc_pymc.kernels import Kernel, make_kernel
from amc_pymc.kernels.slice import Slice
from amc_pymc.rng import RandomSeed, spawn_generators

__all__ = ["estimate_evidence"]

#: Relative variance of weights up to which posterior draws are taken from importance sampling.
_USABLE = 20.0
#: Share of the posterior that a reference may miss without a flag.
_UNCOVERED = 0.1
#: Errors by which the two combined estimates may differ.
_APART = 5.0


def estimate_evidence(
    *,
    idata: xr.DataTree | None = None,
    target_mcse: float | None = 0.05,
    max_cost: float | None = None,
    arms: Literal["default"] | Sequence[Any] | Mapping[str, Any] = "default",
    policy: str | Policy | type[Policy] = "lcb",
    cost: Cost = "count",
    weights: Weights = "predictable",
    kernel: str | Kernel = "hmc",
    draws: int = 500,
    chains: int = 4,
    model=None,
    random_seed: RandomSeed = None,
    executor: Executor | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    r"""Estimate the logarithm of the evidence of a model to a wanted error.

    A pilot run finds the posterior, its modes and a mixture of Student t distributions close to it. From these
    a portfolio of unbiased estimators of :math:`Z = \int p(x) L(x) dx` is made: importance sampling from the
    mixture with a tenth of the prior, plain and at randomised quasi-Monte Carlo points; annealed importance sampling and
    sequential Monte Carlo from the prior and from the mixture. A bandit learns which reaches the error at
    the least cost (:func:`combine_estimators`); the last, certifying round has a size fixed before it
    begins, so that its estimate of Z is exactly unbiased.

    Where no mixture is close to the posterior, and in more than 40 dimensions where Laplace's approximation is not, own chains of
    Hamiltonian Monte Carlo and a bridge, as with `idata`, give the answer: if the chains agree and the climb from the prior does not
    find more. Otherwise, in up to 40 dimensions, the estimators that start at the prior do. The answer of a bridge is consistent, not
    unbiased.

    With `idata`, draws from the posterior that you have, there is neither a pilot run nor a bandit: a
    Gaussian q is fitted to one half of the draws and bridged with the other half, and the other way round. The bridge
    of least error (Meng & Wong 1996) solves

    .. math::
        \hat Z = \frac{\operatorname{mean}_{x \sim q}\, e^{l(x)} / (s_p e^{l(x)} + s_q \hat Z)}
                      {\operatorname{mean}_{x \sim p}\, 1 / (s_p e^{l(x)} + s_q \hat Z)},
        \qquad l(x) = \log \frac{p(x) L(x)}{q(x)},

    with the shares s of effective draws from posterior and Gaussian. If its error is too large, draws of both ends are
    annealed along :math:`q^{1-\beta} (p L)^\beta` in T = 2, 4, ..., 512 steps, upwards and downwards; l is then the
    sum of the log-weights along the way, and the same equation holds (Bennett 1976; Crooks 2000). The error
    counts the autocorrelation of the draws (Frühwirth-Schnatter 2004). The answer is consistent, not unbiased, and knows only the
    modes that the draws know: leave `idata` out to search for others.

    Parameters
    ----------
    idata : DataTree, optional
        Draws of all free variables of the model in a group ``posterior``, from :func:`pymc.sample` with any
        sampler or from elsewhere, at least 100, in chains and in order. Free variables must be continuous. Draws are transformed as
        the model says, or taken from a group ``unconstrained_posterior``. A log density that PyMC or nutpie stored in
        ``sample_stats`` is compared with that of the model.
    target_mcse : float or None, default 0.05
        Standard error of log Z to stop at, in nats. None spends `max_cost`.
    max_cost : float, optional
        Most that may be spent, in units of `cost`; the pilot run included, unless `cost` is a callable. With
        `idata` the bridge without annealing is always computed.
    arms : "default", sequence or mapping
        Estimators: names, of "importance_rqmc", "importance", "ais_reference", "smc_reference", "smc",
        "ais_400", "ais_2000", "ais_8000", and your own, objects with ``scale = "log"`` and
        ``sample(n, rng)`` (as for :func:`combine_estimators`). "default" is all of the named ones
        that the pilot run does not show to be hopeless, or chains and a bridge.
    policy : str, Policy or class, default "lcb"
        As for :func:`combine_estimators`.
    cost : "count", "cpu" or callable, default "count"
        "count": evaluations of the model, a gradient counting for two; then a seed reproduces the run.
        "cpu": seconds. With `idata` no callable.
    weights : {"predictable", "inverse_variance", "uniform"}
        Which combined estimate is the headline.
    kernel : {"hmc", "langevin", "random_walk", "slice"} or Kernel, default "hmc"
        Moves of annealing estimators; discrete variables are moved by Metropolis. With `idata` they must
        be reversible, which "slice" is not.
    draws, chains : int
        Posterior draws per chain in the result. They take a part of the importance weights' accuracy,
        not of the evidence's.
    model : pm.Model, optional
        Default: that of the context. A ``pm.Potential`` counts as likelihood.
    random_seed : int, sequence of int, SeedSequence, Generator or None
    executor : concurrent.futures.Executor, optional
        Where draws of the estimators are made. This, `arms`, `policy`, `weights`, `draws` and `chains` are for runs
        without `idata`.
    progressbar : bool, default True

    Returns
    -------
    xarray.DataTree
        ``evidence``: ``log_evidence``, ``log_evidence_mcse``, 95 % interval, ``log_evidence_iv`` with its error (all
        draws weighted by inverse variance: a second opinion), ``ess`` (draws of relative variance one that
        would give the same error), ``pareto_k``, ``n_likelihood``, ``n_gradient`` (evaluations, the pilot run included),
        ``n_nan``, ``cpu_seconds`` after ``compile_seconds``; attribute ``flags``. ``arms``: every estimator's own ``log_evidence`` and error,
        draws, cost, weight; those left out with the reason. ``estimate``, ``rounds``, ``pulls``: as from
        :func:`combine_estimators`. ``posterior``: draws by sampling importance resampling, or from the pilot
        run where weights are too uneven (its attribute ``source``). ``observed_data``, ``constant_data``.

        Where own chains and a bridge gave the answer, attribute ``method`` of ``evidence`` says so, there are no groups ``estimate``,
        ``rounds`` and ``pulls``, ``log_evidence_iv`` is the same number again, and ``evidence`` has ``n_steps``, ``overlap``, ``bridge_ess``
        and ``r_hat``, as with `idata`.

        With `idata`: ``evidence`` with ``n_steps`` (T), ``overlap`` of Gaussian and posterior (1 if they are the same),
        ``bridge_ess`` (effective draws that carry the estimate), ``r_hat`` and ``ess_bulk`` of the worst unconstrained
        coordinate and ``n_divergent`` in the place of the second opinion; ``arms``: the bridge and each
        number of steps, of which the last is the answer, with ``log_evidence_half`` of the two halves; ``posterior``
        and ``sample_stats``: those of `idata`.

    Raises
    ------
    ValueError, TypeError
        Before any work: for arguments that cannot be used, models without likelihood or with an improper
        prior, draws that are missing, not finite, of the wrong shape, outside of the support, too few, or of another
        model by the log density stored with them.

    Warns
    -----
    UserWarning
        For every flag: estimators that disagree, heavy tails, a target missed, evidence that the pilot run saw
        and the estimate misses, a mode that only a last search found, nan. With `idata`: chains that disagree or have few
        effective draws, divergences, copies of draws, halves that disagree, a Gaussian that hardly overlaps with the posterior,
        draws that are not distributed as the model says, a target missed.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, ICML.
    Neal (2001), Annealed importance sampling, doi:10.1023/A:1008923215028.
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
    if idata is not None:
        _check_with_idata(
            arms=(arms, "default"), policy=(policy, "lcb"), weights=(weights, "predictable"),
            draws=(draws, 500), chains=(chains, 4), executor=(executor, None),
        )  # fmt: skip
        if cost not in ("count", "cpu"):
            raise ValueError(f"cost must be 'count' or 'cpu' where idata is given, got {cost!r}.")
        return evidence_from_draws(
            idata, model=context_model(model), target=target_mcse, max_cost=max_cost, cost=str(cost),
            kernel=make_kernel(kernel), random_seed=random_seed, progressbar=progressbar,
        )  # fmt: skip
    check_choices(policy, cost, weights, scale="log")
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    names, own = _named(arms)
    kernel, words = make_kernel(kernel), seed_words(random_seed)
    model = context_model(model)
    densities, compiling = compiled_particles(model)
    begin = time.process_time()
    moves = particle_kernel(model, densities, kernel)
    pilot_rng, combine_rng, posterior_rng, last_rng, chains_rng = spawn_generators(words, 5)
    by_chains = names is None and not own and not densities.discrete.any()
    by_chains = by_chains and not isinstance(moves, Slice)  # which is not reversible
    elsewhere = None if executor is None else Elsewhere(executor)
    with one_blas_thread():
        with counted() as counts:
            pilot = explored(model, densities, moves, pilot_rng, chains=by_chains)
            price = _price(cost, pilot, time.process_time() - begin)
            bridged = None
            if by_chains and pilot.unfit:
                bridged = bridge_chains(
                    densities, pilot, moves, chains_rng, target=target_mcse,
                    budget=budget_of(None if price is None else max_cost, str(cost), counts, begin),
                )  # fmt: skip
                if pilot.adapted is None or bridged.answers(target_mcse, pilot):
                    return evidence_from_chains(
                        bridged, pilot, model, densities, counts, moves.name, target=target_mcse,
                        max_cost=max_cost, draws=draws, chains=chains, compiling=compiling, begin=begin,
                    )  # fmt: skip
            seen = Watch(densities)
            portfolio = make_portfolio(
                densities if pilot.adapted is None else seen,
                pilot if bridged is None else replace(pilot, adapted=None), moves, pilot_rng,
                names=names, target=target_mcse,
                budget=math.inf if max_cost is None or price is None else max_cost / price,
            )  # fmt: skip
            portfolio.arms = _priced(portfolio.arms, price) | own
            left, flags = _left(
                max_cost, _spent(pilot, portfolio, bridged) * (price or 0.0), portfolio, cost
            )
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                tree = combine_estimators(
                    portfolio.arms,
                    policy=policy,
                    target_mcse=target_mcse,
                    max_cost=left,
                    cost=cost,
                    weights=weights,
                    random_seed=combine_rng,
                    executor=elsewhere,  # type: ignore[arg-type]
                    progressbar=progressbar,
                )
            missed = max(pilot.missed, overlooked(seen, pilot, last_rng))
        flags += _said(caught)
        numbers = _numbers(tree, weights)
        if elsewhere is not None:
            counts += elsewhere.counts
        n_values, n_gradients, n_nan = counts.tolist()
        numbers |= {
            "n_likelihood": n_values + n_gradients, "n_gradient": n_gradients, "n_nan": n_nan,
        }  # fmt: skip
        flags += _flags(numbers, pilot, tree) + missed_mode(numbers, pilot, missed)
        flags += unlike_chains(numbers, bridged)
        numbers["log_evidence_mcse"] = covering_error(numbers, pilot, bridged)
        found = _add_posterior(tree, model, densities, pilot, draws, chains, posterior_rng)
        flags += running_off(model, densities, found)
    numbers["compile_seconds"] = compiling
    numbers["cpu_seconds"] = time.process_time() - begin
    if elsewhere is not None:
        numbers["cpu_seconds"] += elsewhere.seconds
    _finish_arms(tree, portfolio)
    tree["evidence"] = xr.DataTree(
        evidence_group(
            numbers, flags, weights=weights, kernel=moves.name, unbiased=tree.attrs["unbiased"]
        )
    )
    add_data_groups(tree, model)
    tree.attrs["sampling_method"] = "estimate_evidence"
    warn(flags)
    return tree


def _check(target, budget) -> None:
    if target is None and budget is None:
        raise ValueError("One of target_mcse and max_cost is needed.")
    for name, value in (("target_mcse", target), ("max_cost", budget)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise TypeError(f"{name} must be a number, got {value!r}.")
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}.")


def _check_with_idata(**given: tuple[Any, Any]) -> None:
    """Arguments that say nothing where draws are given must have their defaults."""
    for name, (value, default) in given.items():
        if value is not default and value != default:
            raise ValueError(
                f"{name}={value!r} is for runs without idata; leave it out, or leave idata out."
            )


def _named(arms: Any) -> tuple[list[str] | None, dict[str, Any]]:
    """Names of arms to be made (None for the default ones) and arms that are brought along."""
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


def _spent(pilot: Pilot, portfolio: Portfolio, bridged: BridgedChains | None = None) -> float:
    """Evaluations of the pilot runs and of chains, gradients counting for two."""
    evaluations = pilot.evaluations + portfolio.evaluations
    by_chains = 0.0 if bridged is None else bridged.cost
    return evaluations + GRADIENT_COST * (pilot.gradients + portfolio.gradients) + by_chains


def _price(cost: Cost, pilot: Pilot, seconds: float) -> float | None:
    """Cost of an evaluation of the model, in the units asked for; None if nobody knows."""
    if cost == "count":
        return 1.0
    return seconds / _spent(pilot, Portfolio()) if cost == "cpu" else None


def _priced(arms: dict[str, Any], price: float | None) -> dict[str, Any]:
    """Arms with their costs, as far as known in advance, in the units asked for."""
    if price == 1.0 or not arms:
        return arms
    return {
        a.name: replace(a, cost=None if a.cost is None or price is None else a.cost * price)
        for a in as_arms(arms)
    }


def _said(caught: list[warnings.WarningMessage]) -> list[str]:
    """What users were to be warned of, each once; other warnings are passed on."""
    said = []
    for w in caught:
        if issubclass(w.category, UserWarning):
            said.append(str(w.message).removesuffix("."))
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return list(dict.fromkeys(said))


def _left(max_cost, spent: float, portfolio: Portfolio, cost) -> tuple[float | None, list[str]]:
    """What is left to spend after the pilot run: at least something."""
    if max_cost is None:
        return None, []
    least = sum(getattr(a, "cost", None) or 1.0 for a in portfolio.arms.values())
    least = 3.0 * least if cost == "count" else 0.1 * spent
    if max_cost - spent >= least:
        return max_cost - spent, []
    return least, [
        f"max_cost={max_cost:g} is hardly more than the pilot run cost ({spent:.3g}); {least:.3g} were spent "
        "beyond that"
    ]


def _numbers(tree, weights) -> Evidence:
    estimate, arms = tree["estimate"].to_dataset(), tree["arms"].to_dataset()
    headline = estimate.sel(weights=weights)
    z = float(headline["log_mean"])
    error = float(headline["log_mean_mcse"])
    other = estimate.sel(weights="inverse_variance")
    used = arms["weight"].values > 0.1
    k = arms["pareto_k"].values[used]
    return Evidence(
        log_evidence=z,
        log_evidence_mcse=error,
        log_evidence_iv=float(other["log_mean"]),
        log_evidence_iv_mcse=float(other["log_mean_mcse"]),
        ess=0.0 if z == -math.inf else 1.0 / error**2 if error > 0.0 else math.inf,
        pareto_k=float(np.nanmax(k)) if np.isfinite(k).any() else math.nan,
    )


def _flags(numbers: Evidence, pilot: Pilot, tree) -> list[str]:
    flags = []
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    if tree.attrs["stopped"]:
        flags.append(str(tree.attrs["stopped"]).removesuffix("."))
    if z == -math.inf:
        flags.append("all weights are zero")
    if abs(z - numbers["log_evidence_iv"]) > _APART * error:
        flags.append(
            f"the estimate that weights all draws by inverse variance is {numbers['log_evidence_iv']:.2f}"
        )
    if pilot.uncovered > _UNCOVERED:
        flags.append(
            f"the fitted reference misses about {pilot.uncovered:.0%} of the posterior, which only draws from "
            "the prior reach; errors may be larger than stated"
        )
    if numbers["n_nan"]:
        flags.append(
            f"the density was nan at {numbers['n_nan']:,} points, which count as impossible"
        )
    return flags + uncertain(numbers) + disagreements(numbers, pilot)


def _finish_arms(tree: xr.DataTree, portfolio: Portfolio) -> None:
    """Names as those of evidence, and what was left out."""
    arms = tree["arms"].to_dataset()
    arms = arms.rename(log_mean="log_evidence", log_mean_mcse="log_evidence_mcse")
    arms["cost"] = arms["draws"] * arms["cost_per_draw"]
    arms.attrs["left_out"] = "; ".join(f"{k}: {v}" for k, v in portfolio.left_out.items())
    tree["arms"] = xr.DataTree(arms)


def _add_posterior(
    tree, model, densities, pilot: Pilot, draws, chains, rng
) -> dict[str, np.ndarray]:
    """Add draws of equal weight from the posterior, and return them."""
    n = draws * chains
    adapted = pilot.adapted
    reference = pilot.reference
    if adapted is not None and reference is not None and adapted.relative_variance < _USABLE:
        arm = ImportanceArm(densities, reference)
        log_w, x = arm.weigh(2 * n, rng)
        x = x[resample(log_w, n, rng)]
        source = "sampling importance resampling from the fitted reference"
    else:
        x = pilot.ladder.particles.x
        x = x[np.arange(n) % len(x)]
        source = "particles of the pilot run, adaptive sequential Monte Carlo"
    x = rng.permutation(x)
    values = densities.constrain(x)
    posterior = draws_group(model, values, n_chains=chains)
    posterior.attrs["source"] = source
    terms = densities.values(x)
    stats = {"log_prior": terms[0], "log_likelihood": terms[1], "lp": terms.sum(axis=0)}
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(draws_group(model, stats, n_chains=chains))
    return values
