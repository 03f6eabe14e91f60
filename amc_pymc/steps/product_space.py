"""Choose among PyMC models of the same tall data by a chain over their product space."""

from __future__ import annotations

import functools
import multiprocessing
import time

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import arviz_base as az
import numpy as np
import xarray as xr

from pymc import Model, Normal
from pymc.model.fgraph import clone_model
from pytensor.graph.basic import Constant

import amc_pymc.tall.product_space as ps

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.flags import flag, flag_attributes, warn_of
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.graphs import INTERPRETED, context_model, remembering
from amc_pymc.reading.rows import choose_observed
from amc_pymc.results import declared_dataset, described
from amc_pymc.results.tables import RACE_STATS, SPACE, SPACE_STATS
from amc_pymc.rng import RandomSeed, as_generator, spawn_generators
from amc_pymc.runs import JobReport, number_of_cores, run_jobs
from amc_pymc.steps.model_groups import add_data_groups, draws_group, natural_values
from amc_pymc.steps.preparation import Options, chosen_vars
from amc_pymc.steps.racing_metropolis import metropolis_sampler
from amc_pymc.steps.racing_step import wrong_decisions
from amc_pymc.tall.racing import Race
from amc_pymc.tall.samplers import gibbs, metropolis
from amc_pymc.tall.samplers.chain import Audits, report
from amc_pymc.tall.samplers.index import ModelSpace

#: Name of the variable that stands for the parameters of a model without any.
_NO_PARAMETER = "(no parameter)"
#: Number of round trips below which batch means underestimate the error of a model.
_FEW_TRIPS = 10
_STEPS = ("parameters", "index")


def sample_product_space(
    models: Mapping[str, Any],
    *,
    prior_probs: Sequence[float] | Mapping[str, float] | None = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    observed_vars: Sequence[Any] | None = None,
    delta: float | None = None,
    race: Literal["normal", "exact"] | Race = "normal",
    batch_size: int | None = None,
    audits: int | Audits = 200,
    transitions_per_draw: int = 1,
    mp_ctx: str | None = None,
    cores: int | None = None,
    max_time: float | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> xr.DataTree:
    r"""Sample the posterior over models and their parameters, reading few rows per step.

    The chain of Carlin and Chib holds the parameters of all models, so there are no moves between
    dimensions. At each draw the current model's parameters move by :class:`RacingMetropolis`, those
    of the others are drawn from pseudo-priors, and the model index is drawn from its conditional by
    a race between the models. First the weights of the models are adapted so that all are visited
    about equally often; then they are fixed, and their effect is removed from the result.

    Use it for a handful of models with up to a few hundred continuous parameters each, of the same
    rows. For evidence without a chain over models, estimate each model's evidence instead.

    Parameters
    ----------
    models : mapping of str to pm.Model
        At least two, continuous, with the same observed rows. A model may have no free variable.
    prior_probs : sequence or mapping of float, optional
        Prior probabilities of the models, up to a constant; default all equal.
    draws, tune, chains : int
        A chain of ``tune`` draws tunes the weights of the models, from the Laplace approximation of each evidence. Then
        the first ``tune`` draws of each chain tune its proposals and are discarded.
    observed_vars, delta, race, batch_size, audits
        As for :class:`RacingMetropolis`; they also apply to the index. ``race="exact"`` reads all
        rows in every step.
    transitions_per_draw : int
        Transitions of the parameters per draw of the index.
    mp_ctx : str, optional
        Start method of worker processes.
    cores : int or None, default None
        Worker processes. None: all cores, at most four. Results do not depend on it.
    max_time : float, optional
        Seconds after which no further draw starts; chains that have begun are tuned to the end. The result then depends
        on the speed of the machine.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        A seed reproduces the run, with any `cores`.

    Returns
    -------
    xarray.DataTree
        ``posterior`` holds ``model_index`` (chain, draw), ``product_space`` probabilities of the
        models ``prob`` and log Bayes factors ``log_bf`` (row against column) with their errors, and
        attributes ``flags`` and ``flag_names``. ``sample_stats`` holds the statistics of races by
        ``step`` (parameters, index). ``/models/<name>/posterior`` holds the draws made while a chain
        was in that model, repeated to (chain, draw). The page "Variables of results" lists all.

    Warns
    -----
    UserWarning
        For every flag: models rarely or never visited, audited decisions that were wrong.

    Raises
    ------
    ValueError
        For fewer than two models, discrete variables, models whose observed rows differ, a model
        without a control variate, or arguments out of range.

    Notes
    -----
    The index is drawn with probabilities proportional to

    .. math:: \tilde\pi_k \, \frac{p_k(\theta_k)}{g_k(\theta_k)} \prod_n p_k(y_n \mid \theta_k),

    where :math:`g_k` is the pseudo-prior, the Laplace approximation of the posterior. The draw errs with probability at most ``delta`` if batch
    means are normal. :func:`amc_pymc.decision_error` returns the measured errors of both steps.

    References
    ----------
    B. P. Carlin and S. Chib (1995). Bayesian model choice via Markov chain Monte Carlo methods.
    JRSS B 57(3). doi:10.1111/j.2517-6161.1995.tb02042.x
    Y. Chen and Z. Ghahramani (2016). Scalable Discrete Sampling as a Multi-Armed Bandit Problem.
    ICML, PMLR 48:2492-2501, section 5.2 and appendix C.2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> y = np.random.default_rng(1).normal(0.02, 1.0, size=10_000)
    >>> models = {}
    >>> for name, sd in [("wide", 1.0), ("narrow", 0.1)]:
    ...     with pm.Model() as models[name]:
    ...         mu = pm.Normal("mu", 0, sd)
    ...         obs = pm.Normal("obs", mu, 1, observed=y)
    >>> idata = amc.sample_product_space(
    ...     models, draws=500, tune=200, chains=2, cores=1, random_seed=1, progressbar=False
    ... )
    >>> bool(idata["product_space"]["log_bf"].sel(model="narrow", against="wide") > 1)
    True
    """
    names = _checked_models(models)
    prior = _prior(prior_probs, names)
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    tune = positive_int("tune", tune, 0)
    limit, started = positive_or_none("max_time", max_time), time.time()
    as_generator(random_seed)  # raises an error if it is no seed
    workers = number_of_cores(cores, chains)
    options = Options(
        observed_vars=observed_vars,
        delta=delta,
        race=race,
        batch_size=batch_size,
        audits=audits,
        transitions_per_draw=transitions_per_draw,
        progressbar=progressbar,
    )
    if workers > 1:
        multiprocessing.get_context(mp_ctx if isinstance(mp_ctx, str) else None)
    _check_same_rows(names, [_observed(models[n], n, observed_vars) for n in names])
    shared = replace(options.audits, chains=chains)
    samplers = [replace(_sampler(models[n], n, options), audits=shared) for n in names]
    # The second stream stays unused, so that a seed keeps its draws.
    adapting, _, *rngs = spawn_generators(random_seed, 2 + chains)
    space = ModelSpace(samplers, options.race, shared)
    until = None if limit is None else started + limit
    plan = _Plan(tune, draws, -space.laplace_log_evidence, adapt=False, until=until)
    total = chains * (plan.tune + plan.draws) + plan.tune
    begin = time.perf_counter()
    with progress("Sampling models", total, enabled=progressbar) as bar:
        if plan.tune:
            plan = plan._replace(log_weights=_adapted_weights(space, plan, adapting, bar))
        run = functools.partial(_run_chain, space, plan)
        records = run_jobs(run, list(enumerate(rngs)), cores=workers, bar=bar, mp_ctx=mp_ctx)
    seconds = time.perf_counter() - begin
    tree = _result(models, prior, space, plan.tune, records, limit if plan.over else None)
    preparing = sum(sampler.prepared.seconds for sampler in samplers)
    tree["sample_stats"].attrs |= {"sampling_time": seconds, "preparation_time": preparing}
    return tree


# --- arguments ----------------------------------------------------------------------------------


def _checked_models(models: Mapping[str, Model]) -> list[str]:
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of name -> pm.Model, got {type(models).__name__}")
    if len(models) < 2:
        raise ValueError(f"models must hold at least two models, got {len(models)}")
    for name, model in models.items():
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise ValueError(f"models must have strings as names, names without '/', got {name!r}")
        if not hasattr(model, "value_vars"):
            raise TypeError(f"models[{name!r}] must be a pm.Model, got {type(model).__name__}")
        context_model(model)
        discrete = [v.name for v in model.value_vars if not v.dtype.startswith("float")]
        if discrete:
            raise ValueError(
                f"models[{name!r}] has discrete variables ({', '.join(discrete)}), for which there "
                "is no pseudo-prior; sum them out"
            )
    return list(models)


def _prior(prior_probs: Any, names: Sequence[str]) -> np.ndarray:
    if prior_probs is None:
        return np.full(len(names), 1.0 / len(names))
    if isinstance(prior_probs, Mapping):
        if set(prior_probs) != set(names):
            raise ValueError(f"prior_probs must have the keys {names}, got {list(prior_probs)}")
        prior_probs = [prior_probs[n] for n in names]
    prior: np.ndarray = np.asarray(prior_probs, dtype=float)
    if prior.shape != (len(names),) or not np.all(np.isfinite(prior)) or np.any(prior <= 0.0):
        raise ValueError(
            f"prior_probs must hold {len(names)} positive numbers, got {prior_probs!r}; leave out "
            "models that are impossible"
        )
    normalised: np.ndarray = prior / prior.sum()
    return normalised


@remembering()
def _sampler(model: Model, name: str, options: Options) -> metropolis.Metropolis:
    if not model.free_RVs:  # it gets a variable that its rows do not depend on
        with clone_model(model) as model:
            Normal(_NO_PARAMETER)
    try:
        chosen = chosen_vars(None, model, "sample_product_space")
        return metropolis_sampler(model, [v.name for v in chosen], options)
    except ValueError as error:
        raise type(error)(f"models[{name!r}]: {error}") from error


def _check_same_rows(names: Sequence[str], observed: Sequence[list[np.ndarray]]) -> None:
    """Raise a ValueError if the observed values of the models differ; missing ones raise an error of their own."""
    for name, here in zip(names[1:], observed[1:]):
        same = (np.array_equal(*pair, equal_nan=True) for pair in zip(here, observed[0]))
        if len(here) != len(observed[0]) or not all(same):
            raise ValueError(
                f"models[{name!r}] has other observed data than models[{names[0]!r}]; models can "
                "only be compared on the same rows"
            )


def _observed(model: Model, name: str, observed_vars: Sequence[Any] | None) -> list[np.ndarray]:
    """Return the values of the observed variables that are raced."""
    try:
        observed, _ = choose_observed(model, observed_vars)
        values = [model.rvs_to_values[rv] for rv in observed]
    except ValueError as error:
        raise type(error)(f"models[{name!r}]: {error}") from error
    return [
        np.asarray(v.data if isinstance(v, Constant) else v.eval(mode=INTERPRETED), float)
        for v in values
    ]


# --- a chain ------------------------------------------------------------------------------------


class _ChainRecord(NamedTuple):
    """Record of one chain, ``complete`` unless it was stopped.

    ``visits`` (S,) are models, ``points`` their parameters; ``log_weights`` (M,).
    """

    visits: np.ndarray
    points: list[np.ndarray]
    stats: dict[str, np.ndarray]
    log_weights: np.ndarray
    complete: bool


class _Plan(NamedTuple):
    tune: int
    draws: int
    log_weights: np.ndarray
    adapt: bool
    until: float | None

    @property
    def over(self) -> bool:
        """Whether the time limit, in seconds since the epoch because chains may run elsewhere, is over."""
        return self.until is not None and time.time() > self.until


def _adapted_weights(
    space: ModelSpace, plan: _Plan, rng: np.random.Generator, bar: ProgressReport
) -> np.ndarray:
    """Return log weights (M,), averaged over the second half of a chain that is used only for tuning.

    The last weights would be too low for the model that the chain happened to stay in.
    """
    run = functools.partial(_run_chain, space, plan._replace(draws=0, adapt=True))
    (record,) = run_jobs(run, [(0, rng)], bar=bar)
    if not record.complete:
        raise KeyboardInterrupt("Stopped before a draw was kept")
    log_weights: np.ndarray = record.log_weights - np.logaddexp.reduce(record.log_weights)
    return log_weights


def _run_chain(
    space: ModelSpace, plan: _Plan, numbered: tuple[int, np.random.Generator], job: JobReport
) -> _ChainRecord:
    number, rng = numbered
    m = len(space.samplers)
    tune, draws = plan.tune // m, max(1, plan.draws // m)
    chains = [metropolis.init(s, rng, tune=tune, draws=draws) for s in space.samplers]
    state = gibbs.init(space.sampler, rng, draws=plan.draws)
    x = np.concatenate([[0.0], plan.log_weights, *(p.draw(rng) for p in space.pseudo_priors)])
    x[0] = rng.integers(m)
    visits, visited = list[int](), list[np.ndarray]()
    stats, past, complete = list[dict[str, Any]](), list[np.ndarray](), True
    for t in range(plan.tune + plan.draws):
        # The first chain makes a draw in any case, and others if they began in time.
        if job.stopped() or ((visits or (number and t == 0)) and plan.over):
            complete = False
            break
        tuning, k = t < plan.tune, int(x[0])
        sampler, theta = space.samplers[k], space.theta(x)
        theta[:], counts = metropolis.step(sampler, chains[k], theta.copy(), rng, tuning=tuning)
        moved = {} if tuning else report(sampler, chains[k], counts)
        space.draw_others(x, rng)
        x, found = gibbs.step(space.sampler, state, x, rng, tuning=tuning)
        if not tuning:
            visits.append(int(x[0]))
            visited.append(space.theta(x).copy())
            drawn = report(space.sampler, state, found)
            # An exact chain keeps the log-likelihood of the current point; a race evaluates both points.
            points = 2.0 if drawn["race_delta"] > 0.0 else 1.0
            evaluations = float(found.rewards[0] + m * found.other[0])
            stats.append(
                {key: (moved[key], drawn[key]) for key in RACE_STATS}
                | {
                    "accept": moved["accept"],
                    "race_arms_left": drawn["race_arms_left"],
                    "row_evaluations": points * moved["race_rows"] + evaluations,
                }
            )
        elif plan.adapt:
            ps.wang_landau_step(space.log_weights(x), int(x[0]), t)
            past.append(space.log_weights(x).copy())
        job.advance(1)
    return _ChainRecord(
        np.array(visits, np.int64),
        visited,
        {key: np.array([each[key] for each in stats]) for key in stats[0]} if stats else {},
        np.mean(past[len(past) // 2 :], axis=0) if past else plan.log_weights,
        complete,
    )


# --- results --------------------------------------------------------------------------------------


def _result(
    models: Mapping[str, Any],
    prior: np.ndarray,
    space: ModelSpace,
    tune: int,
    records: Sequence[_ChainRecord],
    limit: float | None = None,
) -> xr.DataTree:
    """Return the posterior over models, that of each model, and the statistics of the chains.

    Incomplete chains were ended by a time limit in seconds, or interrupted if it is None.
    """
    names = list(models)
    flags = []
    if not all(r.complete for r in records):
        flags = [flag("interrupted") if limit is None else flag("out_of_time", limit=limit)]
    # The chains and the number of draws that keep most draws if chains were interrupted.
    lengths = sorted((len(r.visits) for r in records), reverse=True)
    draws = max(lengths, key=lambda n: n * sum(m >= n for m in lengths))
    if draws == 0:
        raise KeyboardInterrupt("Stopped before a draw was kept")
    records = [r for r in records if len(r.visits) >= draws]
    index = np.stack([r.visits[:draws] for r in records])
    log_weights = np.stack([r.log_weights for r in records])
    stats = {key: np.stack([r.stats[key][:draws] for r in records]) for key in records[0].stats}
    tree = az.from_dict(
        {"posterior": {"model_index": index}, "sample_stats": stats},
        coords={"step": list(_STEPS)},
        dims={key: ["step"] for key in RACE_STATS},
        attrs={
            "/": {"inference_library": "amc_pymc"},
            "posterior": {"models": names, "tuning_steps": tune},
        },
    )
    tree["sample_stats"].dataset = described(tree["sample_stats"].to_dataset(), SPACE_STATS)
    visits = np.stack([np.bincount(i, minlength=len(names)) for i in index])
    trips = np.stack([ps.round_trips(i, len(names)) for i in index])
    summary = declared_dataset(
        SPACE,
        {
            **ps.estimate_models(index, log_weights, prior)._asdict(),
            "visits": visits,
            "round_trips": trips,
            "log_weight": log_weights,
            "prior_prob": prior,
            "laplace_log_evidence": space.laplace_log_evidence,
        },
        coords={"model": names, "against": names, "chain": np.arange(len(index))},
    )
    flags += list(dict.fromkeys(f for s in space.samplers for f in s.prepared.flags))
    # Models that the chains rarely came back to, or never visited.
    totals = list(zip(names, visits.sum(axis=0), trips.sum(axis=0)))
    rare = ", ".join(repr(name) for name, n, t in totals if n and t < _FEW_TRIPS)
    if rare:
        flags.append(flag("few_round_trips", models=rare, fewest=_FEW_TRIPS))
    flags += [flag("never_visited", model=name) for name, n, _ in totals if not n]
    wrong, audited = (stats[k].sum(axis=(0, 1)).astype(int) for k in ("race_wrong", "race_audited"))
    of_steps = (
        wrong_decisions(int(w), int(a), f"the {step}", space.race.delta)
        for w, a, step in zip(wrong, audited, _STEPS)
    )
    flags += [f for f in of_steps if f]
    tree["product_space"] = xr.DataTree(summary.assign_attrs(flag_attributes(flags)))
    warn_of(flags, "Product space")
    for k, name in enumerate(names):
        points = [r.points[:draws] for r in records]
        if np.any(index == k):
            tree[f"models/{name}"] = _model_posterior(models[name], space, k, index, points)
    return tree


def _model_posterior(
    model: Model, space: ModelSpace, k: int, index: np.ndarray, points: Sequence[list[np.ndarray]]
) -> xr.DataTree:
    """Return the draws made in model k, repeated evenly to the full number per chain, and its data."""
    draws = index.shape[1]
    pools = [[x for x, visited in zip(p, i) if visited == k] for p, i in zip(points, index)]
    everywhere = [x for pool in pools for x in pool]
    layout = cast(ModelDensities, space.samplers[k].prepared.densities).layout
    natural = natural_values(model)
    chosen: list[dict[str, np.ndarray]] = []
    for pool in pools:
        found = [natural(layout.unravel(x)) for x in pool or everywhere]
        places = ((np.arange(draws) + 0.5) / draws * len(found)).astype(int)
        chosen += [found[c] for c in places]
    values = {name: np.stack([each[name] for each in chosen]) for name in chosen[0]}
    posterior = draws_group(model, values, n_chains=len(pools))
    tree = xr.DataTree.from_dict(
        {"posterior": posterior.assign_attrs(visits_per_chain=[len(p) for p in pools])}
    )
    add_data_groups(tree, model)
    return tree
