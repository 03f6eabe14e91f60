"""Choose among PyMC models of the same tall data by a chain over their product space."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import time

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import arviz_base as az
import numpy as np
import xarray as xr

from pymc.backends.arviz import coords_and_dims_for_inferencedata
from pytensor.graph.basic import Constant

import amc_pymc.product_space as ps

from amc_pymc.arguments import positive_int
from amc_pymc.diagnostics import clopper_pearson
from amc_pymc.execution import JobReport, number_of_cores, run_jobs
from amc_pymc.extract.densities import ModelDensities
from amc_pymc.extract.rows import choose_observed, interpreted_mode
from amc_pymc.progress import progress
from amc_pymc.proxies import DataProxy
from amc_pymc.results import RACE_STATS
from amc_pymc.rng import RandomSeed, spawn_generators
from amc_pymc.samplers import index, metropolis, report
from amc_pymc.samplers.index import ModelSpace
from amc_pymc.samplers.metropolis import Metropolis
from amc_pymc.step_methods import LangevinProposal, TaylorProxy
from amc_pymc.step_methods.racing_metropolis import metropolis_sampler
from amc_pymc.step_methods.racing_step import chosen_vars
from amc_pymc.step_methods.settings import Audits, Options, Proposal, Race, as_proposals

__all__ = ["sample_product_space"]

_log = logging.getLogger("amc_pymc")
#: A model that was entered fewer times has an error that batch means do not see.
_FEW_TRIPS = 10
_STEPS = ("parameters", "index")
#: Acceptance rate of the paper's Langevin moves.
_ACCEPT = 0.36


def sample_product_space(
    models: Mapping[str, Any],
    *,
    prior_probs: Sequence[float] | Mapping[str, float] | None = None,
    pseudo_prior: Literal["laplace", "pilot"] = "laplace",
    adapt: Literal["wang_landau"] | None = "wang_landau",
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    random_seed: RandomSeed = None,
    observed_vars: Sequence[Any] | None = None,
    delta: float = 0.05,
    race: Literal["normal", "bernstein", "exact"] | Race = "normal",
    batch_size: int = 50,
    proposal: Literal["langevin", "auto", "gaussian", "random_walk"] | Proposal = "langevin",
    proxy: Literal["taylor", "data"] | TaylorProxy | DataProxy = "taylor",
    audits: int | Audits = 200,
    transitions_per_draw: int = 1,
    progressbar: bool = True,
    mp_ctx: str | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> xr.DataTree:
    r"""Sample the posterior over models and their parameters, reading few rows per step.

    The chain of Carlin and Chib holds the parameters of all models, so there are no moves between
    dimensions. At each draw the current model's parameters move by :class:`RacingMetropolis`, those
    of the others are drawn from pseudo-priors, and the model index is drawn from its conditional by
    a race between the models. First the weights of the models are adapted so that all are visited
    about equally often; then they are fixed, and taken out of the result.

    Use it for a handful of models with up to a few hundred continuous parameters each, of the same
    rows. For evidence without a chain over models, estimate each model's evidence instead.

    Parameters
    ----------
    models : mapping of str to pm.Model
        At least two, continuous, with the same observed rows.
    prior_probs : sequence or mapping of float, optional
        Prior probabilities of the models, up to a constant; default all equal.
    pseudo_prior : {"laplace", "pilot"}
        Gaussian in unconstrained space: the Laplace approximation at each model's mode, or with the
        moments of a pilot chain of each model, which suits skewed posteriors better.
    adapt : {"wang_landau"} or None
        How the weights of the models are tuned, beginning with the Laplace approximation of each
        evidence, in a chain of ``tune`` draws before all others. None keeps the prior.
    draws, tune, chains : int
        ``tune`` draws of each chain tune its proposals and are left out.
    cores : int, optional
        Worker processes, default those available, four at most. Results do not depend on it.
    random_seed : int, sequence of int, SeedSequence or Generator, optional
    observed_vars, delta, race, batch_size, audits, compile_kwargs
        As for :class:`RacingMetropolis`; they hold for the index too. ``race="exact"`` reads all
        rows in every step.
    proposal : {"langevin", "auto", "gaussian", "random_walk"} or a proposal object
        How parameters move; ``"langevin"`` is tuned to an acceptance of 36 %.
    proxy : {"taylor", "data"} or TaylorProxy or DataProxy
        Control variates. Those in data space pay where posteriors are far from Gaussian.
    transitions_per_draw : int
        Moves of the parameters per draw of the index.
    progressbar : bool
    mp_ctx : str, optional
        Start method of worker processes.

    Returns
    -------
    xarray.DataTree
        ``posterior`` holds ``model_index`` (chain, draw). ``product_space`` holds, by ``model``,
        ``prob`` and ``log_bf`` (natural logarithm, row against column) with Monte Carlo standard
        errors ``prob_mcse`` and ``log_bf_mcse``, ``visits``, ``round_trips`` and ``log_weight`` per
        chain, ``prior_prob`` and ``laplace_log_evidence``. ``sample_stats`` holds the statistics of
        races by ``step`` (parameters, index), and ``row_evaluations``: log-likelihoods of one row
        under one model. ``/models/<name>/posterior`` holds the draws made while a chain was in that
        model, repeated to (chain, draw).

    Raises
    ------
    ValueError
        Fewer than two models, discrete variables, models whose observed rows differ, a model
        without a mode to build its pseudo-prior on, arguments out of range.

    Notes
    -----
    The index is drawn with probabilities proportional to

    .. math:: \tilde\pi_k \, \frac{p_k(\theta_k)}{g_k(\theta_k)} \prod_n p_k(y_n \mid \theta_k),

    :math:`g_k` the pseudo-prior. It errs with probability at most ``delta`` if batch means are
    normal; both steps' measured errors: :func:`amc_pymc.decision_error`.

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
    if pseudo_prior not in ("laplace", "pilot"):
        raise ValueError(f"pseudo_prior must be 'laplace' or 'pilot', got {pseudo_prior!r}")
    if adapt not in ("wang_landau", None):
        raise ValueError(f"adapt must be 'wang_landau' or None, got {adapt!r}")
    draws, chains = positive_int("draws", draws), positive_int("chains", chains)
    if isinstance(tune, bool) or not isinstance(tune, int | np.integer) or tune < 0:
        raise ValueError(f"tune must be a non-negative integer, got {tune!r}")
    workers = number_of_cores(cores, chains)
    options = Options.among(locals())
    if options.race.rule(1000, 2).lil.delta > 0:
        raise ValueError("race='lil_ucb' cannot be used here: its arms do not share rows")
    if options.proxy is None:
        raise ValueError("proxy must be 'taylor' or 'data', got None: pseudo-priors need the mode")
    as_proposals(proposal, options.proxy)
    if workers > 1:
        multiprocessing.get_context(mp_ctx if isinstance(mp_ctx, str) else None)
    adapting, first, *rngs = spawn_generators(random_seed, 2 + chains)
    _check_same_rows(names, [_observed(models[n], n, observed_vars) for n in names])
    samplers = [_sampler(models[n], n, options, proposal) for n in names]
    pilots = spawn_generators(first, len(names)) if pseudo_prior == "pilot" else ()
    space = ModelSpace(samplers, options.race, options.audits, pilots)
    log_weights = -space.laplace_log_evidence if adapt else np.log(prior)
    plan = _Plan(tune=int(tune), draws=draws, log_weights=log_weights, adapt=False)
    total = chains * (plan.tune + plan.draws) + (plan.tune if adapt else 0)
    begin = time.perf_counter()
    with progress("Sampling models", total, enabled=progressbar) as bar:
        if adapt and plan.tune:
            plan = plan._replace(log_weights=_adapted_weights(space, plan, adapting, bar))
        run = functools.partial(_run_chain, space, plan)
        records = run_jobs(run, rngs, cores=workers, bar=bar, mp_ctx=mp_ctx)
    seconds = time.perf_counter() - begin
    tree = _result(models, names, prior, space, plan, records)
    tree["sample_stats"].attrs["sampling_time"] = seconds
    return tree


# --- arguments ----------------------------------------------------------------------------------


def _checked_models(models) -> list[str]:
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of name -> pm.Model, got {type(models).__name__}")
    if len(models) < 2:
        raise ValueError(f"models must hold at least two models, got {len(models)}")
    for name, model in models.items():
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise ValueError(f"models must have names without '/', got {name!r}")
        if not hasattr(model, "value_vars"):
            raise TypeError(f"models[{name!r}] must be a pm.Model, got {type(model).__name__}")
        discrete = [v.name for v in model.value_vars if not v.dtype.startswith("float")]
        if discrete:
            raise ValueError(
                f"models[{name!r}] has discrete variables ({', '.join(discrete)}), for which there "
                "is no pseudo-prior; sum them out"
            )
    return list(models)


def _prior(prior_probs, names) -> np.ndarray:
    if prior_probs is None:
        return np.full(len(names), 1.0 / len(names))
    if isinstance(prior_probs, Mapping):
        if set(prior_probs) != set(names):
            raise ValueError(f"prior_probs must have the keys {names}, got {list(prior_probs)}")
        prior_probs = [prior_probs[n] for n in names]
    prior = np.asarray(prior_probs, dtype=float)
    if prior.shape != (len(names),) or not np.all(np.isfinite(prior)) or np.any(prior <= 0.0):
        raise ValueError(
            f"prior_probs must hold {len(names)} positive numbers, got {prior_probs!r}; leave out "
            "models that are impossible"
        )
    return prior / prior.sum()


def _sampler(model, name: str, options: Options, proposal: str | Proposal) -> Metropolis:
    if proposal == "langevin":
        proposal = LangevinProposal(target_accept=_ACCEPT)
    try:
        chosen = chosen_vars(None, model, "sample_product_space")
        sampler = metropolis_sampler(model, chosen, options, proposal)
    except ValueError as error:
        raise type(error)(f"models[{name!r}]: {error}") from error
    if sampler.prepared.fit is None:
        raise ValueError(f"models[{name!r}] has no finite curvature at its mode to build on")
    return sampler


def _check_same_rows(names, observed: Sequence[list[np.ndarray]]) -> None:
    """All models must be of the same observed values, row by row."""
    first = observed[0]
    shapes = ", ".join(str(a.shape) for a in first)
    for name, here in zip(names[1:], observed[1:]):
        if [a.shape for a in here] != [a.shape for a in first]:
            raise ValueError(
                f"models[{name!r}] has observed data of shape "
                f"{', '.join(str(a.shape) for a in here)}, models[{names[0]!r}] {shapes}; models "
                "can only be compared on the same rows"
            )
        # Missing values are refused later, with their own reason.
        differ = [(a != b) & ~(np.isnan(a) & np.isnan(b)) for a, b in zip(here, first)]
        rows = [np.flatnonzero(d.reshape(len(d), -1).any(axis=1)) for d in differ if d.ndim]
        if any(r.size for r in rows):
            row = min(int(r[0]) for r in rows if r.size)
            raise ValueError(
                f"models[{name!r}] has other observed data than models[{names[0]!r}] (first in row "
                f"{row}); models can only be compared on the same rows"
            )


def _observed(model, name, observed_vars) -> list[np.ndarray]:
    """Values of the observed variables that are raced."""
    try:
        values = [model.rvs_to_values[rv] for rv in choose_observed(model, observed_vars)]
    except ValueError as error:
        raise type(error)(f"models[{name!r}]: {error}") from error
    return [
        np.asarray(v.data if isinstance(v, Constant) else v.eval(mode=interpreted_mode()), float)
        for v in values
    ]


# --- a chain ------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    tune: int
    draws: int
    log_weights: np.ndarray
    adapt: bool


class _Record(NamedTuple):
    """What one chain leaves, ``complete`` unless it was stopped.

    ``visits`` (S,) of models, ``points`` (S, D) of the current model, ``log_weights`` (M,).
    """

    visits: np.ndarray
    points: np.ndarray
    stats: dict[str, np.ndarray]
    log_weights: np.ndarray
    complete: bool


def _adapted_weights(space: ModelSpace, plan: _Plan, rng, bar) -> np.ndarray:
    """Log weights (M,), averaged over the second half of a chain that is only tuned.

    The last ones would be too low for the model that the chain happened to stay in.
    """
    run = functools.partial(_run_chain, space, plan._replace(draws=0, adapt=True))
    (record,) = run_jobs(run, [rng], bar=bar)
    if not record.complete:
        raise KeyboardInterrupt("Stopped before a draw was kept")
    return record.log_weights - np.logaddexp.reduce(record.log_weights)


def _run_chain(space: ModelSpace, plan: _Plan, rng, job: JobReport) -> _Record:
    m = len(space.samplers)
    tune, draws = plan.tune // m, max(1, plan.draws // m)
    chains = [metropolis.init(s, rng, tune=tune, draws=draws) for s in space.samplers]
    state = index.init(space, plan.log_weights, rng, draws=plan.draws)
    visits, visited = np.zeros(plan.draws, np.int64), np.zeros((plan.draws, space.width))
    stats, past = _no_stats(plan.draws), []
    kept, complete = 0, True
    for t in range(plan.tune + plan.draws):
        if job.stopped:
            complete = False
            break
        tuning, k = t < plan.tune, state.current
        sampler, theta = space.samplers[k], state.theta(space)
        theta[:], counts = metropolis.step(sampler, chains[k], theta.copy(), rng, tuning=tuning)
        moved = {} if tuning else report(sampler, chains[k], counts)
        found = index.step(space, state, rng, tuning=tuning)
        if not tuning:
            theta = state.theta(space)
            visits[kept], visited[kept, : theta.size] = state.current, theta
            _record(stats, kept, moved, index.report(space, state, found), found.evaluations)
            kept += 1
        elif plan.adapt:
            ps.wang_landau_step(state.log_weights, state.current, t)
            past.append(state.log_weights.copy())
        job.advance()
    return _Record(
        visits[:kept],
        visited[:kept],
        {k: v[:kept] for k, v in stats.items()},
        np.mean(past[len(past) // 2 :], axis=0) if past else state.log_weights,
        complete,
    )


def _no_stats(draws: int) -> dict[str, np.ndarray]:
    """Room for the statistics of some draws."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(RACE_STATS, (draws, len(_STEPS)))
    shapes |= dict.fromkeys(("accept", "row_evaluations", "race_arms_left"), (draws,))
    return {key: np.zeros(shape) for key, shape in shapes.items()}


def _record(stats, s: int, moved, drawn, evaluations: int) -> None:
    """Write down what the steps of the parameters and of the index report of draw ``s``."""
    for key in RACE_STATS:
        stats[key][s] = moved[key], drawn[key]
    stats["accept"][s] = moved["accept"]
    stats["race_arms_left"][s] = drawn["race_arms_left"]
    # An exact chain would keep the current point's log-likelihood; a race needs both.
    points = 2.0 if drawn["race_delta"] > 0.0 else 1.0
    stats["row_evaluations"][s] = points * moved["race_rows"] + evaluations


# --- the result ---------------------------------------------------------------------------------


def _result(models, names, prior, space, plan, records) -> xr.DataTree:
    records, draws = _rectangle(records)
    if draws == 0:
        raise KeyboardInterrupt("Stopped before a draw was kept")
    index = np.stack([r.visits[:draws] for r in records])
    log_weights = np.stack([r.log_weights for r in records])
    stats = {key: np.stack([r.stats[key][:draws] for r in records]) for key in records[0].stats}
    tree = az.from_dict(
        {"posterior": {"model_index": index}, "sample_stats": stats},
        coords={"step": list(_STEPS)},
        dims={key: ["step"] for key in RACE_STATS},
        attrs={
            "/": {"inference_library": "amc_pymc"},
            "posterior": {"models": list(names), "tuning_steps": plan.tune},
        },
    )
    tree["product_space"] = xr.DataTree(_summary(names, prior, space, index, log_weights))
    _warn_of_mixing(tree["product_space"].to_dataset())
    _warn_of_errors(stats, space.race.delta)
    for k, name in enumerate(names):
        points = [r.points[:draws] for r in records]
        if np.any(index == k):
            tree[f"models/{name}"] = _model_posterior(models[name], space, k, index, points)
        else:
            _log.warning(
                "Model %r was never visited; it has no posterior and no Bayes factor.", name
            )
    return tree


def _rectangle(records) -> tuple[list[_Record], int]:
    """The chains and the number of draws that keep most draws of interrupted chains."""
    lengths = sorted((len(r.visits) for r in records), reverse=True)
    draws = max(lengths, key=lambda n: n * sum(m >= n for m in lengths))
    return [r for r in records if len(r.visits) >= draws], draws


def _warn_of_mixing(summary: xr.Dataset) -> None:
    trips, visits = summary["round_trips"].sum("chain"), summary["visits"].sum("chain")
    rare = summary["model"].values[((trips < _FEW_TRIPS) & (visits > 0)).values]
    if rare.size:
        _log.warning(
            "The chains came back to %s fewer than %d times; their Bayes factors have larger errors "
            "than stated. Draw and tune longer, try pseudo_prior='pilot', or give parameters a "
            "transform in which their posterior is closer to a Gaussian.",
            ", ".join(map(repr, rare)),
            _FEW_TRIPS,
        )


def _warn_of_errors(stats, delta: float) -> None:
    for j, step in enumerate(_STEPS):
        audited, wrong = (int(stats[k][..., j].sum()) for k in ("race_audited", "race_wrong"))
        if audited and clopper_pearson(wrong, audited)[0] > delta:
            _log.warning(
                "%d of %d audited decisions on the %s were wrong, more than delta=%s allows: batch "
                "means are not normal. Raise batch_size.",
                wrong,
                audited,
                step,
                delta,
            )


def _summary(names, prior, space, index, log_weights) -> xr.Dataset:
    estimates = ps.estimate_models(index, log_weights, prior)
    counts = np.stack([np.bincount(i, minlength=len(names)) for i in index])
    trips = np.stack([ps.round_trips(i, len(names)) for i in index])
    pair = ("model", "against")
    return xr.Dataset(
        {
            "prob": ("model", estimates.prob),
            "prob_mcse": ("model", estimates.prob_mcse),
            "log_bf": (pair, estimates.log_bf),
            "log_bf_mcse": (pair, estimates.log_bf_mcse),
            "visits": (("chain", "model"), counts),
            "round_trips": (("chain", "model"), trips),
            "log_weight": (("chain", "model"), log_weights),
            "prior_prob": ("model", prior),
            "laplace_log_evidence": ("model", space.laplace_log_evidence),
        },
        coords={"model": list(names), "against": list(names), "chain": np.arange(len(index))},
    )


def _model_posterior(model, space, k, index, points) -> xr.DataTree:
    """The draws made in model k, each chain's repeated evenly to the full number of draws."""
    draws = index.shape[1]
    pools = [p[i == k, : space.sizes[k]] for p, i in zip(points, index)]
    everywhere = np.concatenate(pools)
    layout = cast(ModelDensities, space.samplers[k].prepared.densities).layout
    outputs = list(model.unobserved_value_vars)
    fn = model.compile_fn(outputs, inputs=model.value_vars, point_fn=True, on_unused_input="ignore")
    chains = []
    for pool in pools:
        pool = pool if len(pool) else everywhere
        values = [fn(layout.unravel(x)) for x in pool]
        chosen = ((np.arange(draws) + 0.5) / draws * len(pool)).astype(int)
        chains.append([np.stack([v[j] for v in values])[chosen] for j in range(len(outputs))])
    hidden = {v.name for v in model.value_vars} - {rv.name for rv in model.free_RVs}
    posterior = {
        v.name: np.stack([c[j] for c in chains])
        for j, v in enumerate(outputs)
        if v.name not in hidden
    }
    coords, dims = coords_and_dims_for_inferencedata(model)
    visits = [len(p) for p in pools]
    return az.from_dict(
        {"posterior": posterior},
        coords=coords,
        dims={n: d for n, d in dims.items() if n in posterior},
        attrs={"posterior": {"visits_per_chain": visits}},
    )
