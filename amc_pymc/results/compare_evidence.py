"""Compare models by their evidence."""

from __future__ import annotations

import math

from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.flags import Flag, flag, warn_of
from amc_pymc.logweights import summarise_log_weights
from amc_pymc.results.common import CompactTable, normal_interval, result_group, with_error

#: Number of chains below which the standard error of their mean is flagged.
_FEW_CHAINS = 4
#: Standard error of a log evidence, in nats, above which the delta method is inaccurate.
_ROUGH = 1.0


def compare_evidence(
    compare_dict: Mapping[str, xr.DataTree | tuple[float, float] | float],
    *,
    prior_probs: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    r"""Compare models by Bayes factors and posterior probabilities, with their standard errors.

    Parameters
    ----------
    compare_dict : mapping of {str : DataTree, (float, float) or float}
        For each model the result of :func:`amc_pymc.sample_ais`, :func:`amc_pymc.estimate_evidence` or
        :func:`pymc.sample_smc`, or a pair of its natural log evidence and the standard error (nan if unknown), or
        the exact natural log evidence, such as the log likelihood of a point hypothesis. -inf is the log evidence
        of a model that is impossible given the data. The estimates must be independent of each other.
    prior_probs : mapping of {str : float}, optional
        Prior probabilities of the models by name. They must be positive and need not sum to one. Uniform by default.

    Returns
    -------
    DataFrame
        One row per model, the largest evidence first, with the columns

        * rank : 0 for the largest evidence.
        * log_evidence, log_evidence_mcse : natural log of the evidence :math:`Z_k`, and its Monte
          Carlo standard error :math:`s_k`.
        * log_evidence_lower, log_evidence_upper : 95 % interval, that of the result if it has one; infinite if the
          error is unknown.
        * log_bf : :math:`\log Z_k - \log Z_\text{best}`, the log Bayes factor against the first row.
        * log_bf_mcse : :math:`(s_k^2 + s_\text{best}^2)^{1/2}`, 0 in the first row.
        * prob : posterior probability :math:`p_k \propto \pi_k Z_k`, with prior probabilities
          :math:`\pi_k`. Unless these are uniform, a row other than the first can have the largest.
        * prob_mcse : Monte Carlo standard error of prob.
        * flags, flag_names : warnings about the row and their names, separated by "; ".

    Raises
    ------
    TypeError, ValueError
        If there are no models, a value is neither a result nor numbers, a group is missing, a log evidence is nan
        or +inf, all are -inf, or `prior_probs` do not match.

    Warns
    -----
    UserWarning
        If two models have different observed data, because their evidences then cannot be compared. Only sorted
        values are checked, not names, and only for results with a group ``observed_data``. Also if the same result
        is given under two names.

    Notes
    -----
    The standard errors of the probabilities are computed by the delta method,

    .. math:: \operatorname{se}(p_i)^2 = \sum_j \Bigl(\frac{\partial p_i}{\partial \log Z_j} s_j\Bigr)^2,
        \qquad \frac{\partial p_i}{\partial \log Z_j} = p_i (\delta_{ij} - p_j).

    Simulating log evidences around their estimates would give the same to first order and add noise. The two
    methods differ if standard errors of log evidences are not small compared with one. Such errors come from
    heavy-tailed weights, for which neither the standard error nor the normal distribution that a simulation needs
    can be trusted. These rows are flagged.

    For :func:`pymc.sample_smc` the evidence is the mean over chains (not of their logarithms), and the standard
    error comes from the spread between chains: it is rough for few chains and unknown for one. If tempering misses
    a mode in all chains, the spread between chains does not show it.

    A row is flagged as not separated from the best if the log Bayes factor is within two standard errors of zero.

    :func:`arviz_plots.plot_compare`, made for predictive accuracies, can plot the table if the columns are renamed,
    either for differences from the best (with bars of one standard error)::

        names = {"log_bf": "elpd_diff", "log_bf_mcse": "dse"}
        az.plot_compare(table.rename(columns=names), visuals={"labels": False})

    or for the log evidences themselves::

        names = {"log_evidence": "elpd", "log_evidence_mcse": "se"}
        az.plot_compare(
            table.rename(columns=names), relative_scale=False, visuals={"labels": False}
        )

    ``"labels": False`` hides the axis label, which would be ELPD.

    See Also
    --------
    amc_pymc.plot_evidence : plot of this table.

    Examples
    --------
    >>> import xarray as xr
    >>> from amc_pymc.results import compare_evidence
    >>> found = xr.Dataset({"log_evidence": -12.0, "log_evidence_mcse": 0.03}, attrs={"flags": ""})
    >>> table = compare_evidence(
    ...     {"linear": (-14.1, 0.04), "quadratic": xr.DataTree.from_dict({"evidence": found})}
    ... )
    >>> table[["rank", "log_bf", "log_bf_mcse", "prob", "prob_mcse"]].round(4)
               rank  log_bf  log_bf_mcse    prob  prob_mcse
    quadratic     0     0.0         0.00  0.8909     0.0049
    linear        1    -2.1         0.05  0.1091     0.0049
    """
    if not isinstance(compare_dict, Mapping) or isinstance(compare_dict, xr.DataTree):
        raise TypeError(
            "compare_dict must be a mapping of names to results, such as {'linear': dt}, got "
            f"{type(compare_dict).__name__}."
        )
    if not compare_dict:
        raise ValueError("compare_dict must hold at least one model, got an empty mapping.")
    given = {name: _read(name, result) for name, result in compare_dict.items()}
    priors = _prior_probs(prior_probs, list(given))

    names = sorted(given, key=lambda name: -given[name].log_evidence)
    log_evidence = np.array([given[name].log_evidence for name in names])
    mcse = np.array([given[name].mcse for name in names])
    if log_evidence[0] == -math.inf:
        raise ValueError(
            f"The log evidence of all models ({', '.join(map(str, names))}) is -inf: none of them allows the data."
        )
    log_bf = log_evidence - log_evidence[0]
    log_bf_mcse = np.hypot(mcse, mcse[0])
    log_bf_mcse[0] = 0.0
    prob, prob_mcse = _probabilities(log_bf + np.log([priors[name] for name in names]), mcse)

    flags = {name: given[name].flags for name in names}
    for name, bf, error in zip(names[1:], log_bf[1:], log_bf_mcse[1:], strict=True):
        if abs(bf) <= 2.0 * error:
            flags[name].add(flag("not_separated", best=names[0]))
    _check_pairs(compare_dict, given, names)
    table = pd.DataFrame(
        {
            "rank": np.arange(len(names)),
            "log_evidence": log_evidence,
            "log_evidence_mcse": mcse,
            "log_evidence_lower": [given[name].interval[0] for name in names],
            "log_evidence_upper": [given[name].interval[1] for name in names],
            "log_bf": log_bf,
            "log_bf_mcse": log_bf_mcse,
            "prob": prob,
            "prob_mcse": prob_mcse,
            "flags": ["; ".join(flags[name].texts) for name in names],
            "flag_names": ["; ".join(flags[name].names) for name in names],
        },
        index=names,
    )
    return CompactTable.of(table, _summary)


def _summary(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[Any, str]]:
    """Return the numbers with their errors, and the flags of each model."""
    columns = ("log_evidence", "log_bf", "prob")
    shown = {
        c: [with_error(x, e) for x, e in zip(table[c], table[f"{c}_mcse"], strict=True)]
        for c in columns
    }
    return pd.DataFrame(shown, table.index), table["flags"].to_dict()


class _Flags:
    """Texts and names of the flags of a row: those that a result stores, and what the comparison adds."""

    def __init__(self, attrs: Mapping[Any, Any]) -> None:
        self.texts = flag_parts(attrs.get("flags", ""))
        self.names = flag_parts(attrs.get("flag_names", ""))

    def add(self, found: Flag) -> None:
        self.texts.append(found.happened)
        self.names.append(found.name)


def flag_parts(text: object) -> list[str]:
    """Return the parts of an attribute or a cell that stores flags."""
    return [part for part in map(str.strip, str(text).split(";")) if part]


class _Evidence(NamedTuple):
    """Log evidence, its standard error (nan if unknown) and interval, flags, and the sorted data of the model."""

    log_evidence: float
    mcse: float
    interval: tuple[float, float]
    flags: _Flags
    observed: np.ndarray | None


def _read(name: str, result: Any) -> _Evidence:
    """Return the evidence, flags and data of a result after checking them."""
    flags, observed, interval = _Flags({}), None, None
    if isinstance(result, xr.DataTree):
        observed = _observed(result)
        if "evidence" in result.children:
            log_evidence, mcse, interval = _of_group(name, result)
            flags = _Flags({**result.attrs, **result["evidence"].attrs})
        else:
            log_evidence, mcse = _of_smc(name, result, flags)
    else:
        log_evidence, mcse = _of_pair(name, result)
    if not log_evidence < math.inf:
        raise ValueError(
            f"The log evidence of {name!r} must be a finite number or -inf, got {log_evidence}."
        )
    if mcse < 0.0:
        raise ValueError(
            f"The standard error of the log evidence of {name!r} must not be negative, got {mcse}."
        )
    if not math.isfinite(mcse):
        mcse = math.nan
        flags.add(flag("unknown_error"))
    elif mcse > _ROUGH:
        flags.add(flag("rough_error", limit=_ROUGH))
    if interval is None:
        lower, upper = normal_interval(log_evidence, mcse)
        interval = float(lower), float(upper)
    return _Evidence(log_evidence, mcse, interval, flags, observed)


def _of_pair(name: str, result: object) -> tuple[float, float]:
    if isinstance(result, Real) and not isinstance(result, bool):
        result = (result, 0.0)
    if isinstance(result, tuple | list) and len(result) == 2:
        with suppress(TypeError, ValueError):
            return float(result[0]), float(result[1])
    raise TypeError(
        f"Model {name!r} must be a result of amc_pymc.sample_ais, amc_pymc.estimate_evidence or "
        "pymc.sample_smc, a tuple (log_evidence, mcse) of numbers, or an exact log evidence, got "
        f"{result!r}."[:400]
    )


def _of_group(name: str, dt: xr.DataTree) -> tuple[float, float, tuple[float, float] | None]:
    """Return log evidence, standard error and, if it is there, the interval from the group ``evidence``."""
    needed = ("log_evidence", "log_evidence_mcse")
    group = result_group(dt, "evidence", needed, "estimate_evidence", name=f"model {name!r}")
    for variable in needed:
        if group[variable].size != 1:
            raise ValueError(
                f"{variable} of model {name!r} must be one number, got {group[variable].size}."
            )
    interval = None
    if "log_evidence_lower" in group and "log_evidence_upper" in group:
        interval = float(group["log_evidence_lower"]), float(group["log_evidence_upper"])
    return group["log_evidence"].item(), group["log_evidence_mcse"].item(), interval


def _of_smc(name: str, dt: xr.DataTree, flags: _Flags) -> tuple[float, float]:
    """Return the log of the mean evidence over the chains of pymc.sample_smc and its standard error; add flags."""
    stats = dt.children.get("sample_stats")
    if stats is None or "log_marginal_likelihood" not in stats.data_vars:
        raise ValueError(
            f"Model {name!r} has no group 'evidence', and no log_marginal_likelihood in "
            f"'sample_stats'; its groups are {sorted(map(str, dt.children))}. Draws from the posterior "
            "alone do not tell the evidence: pass what amc_pymc.sample_ais, "
            "amc_pymc.estimate_evidence or pymc.sample_smc returned."
        )
    last = []
    for number, stages in enumerate(_stages(dt)):
        values = np.asarray(stages, float)
        values = values[np.isfinite(values)]
        if values.size == 0:
            raise ValueError(
                f"Chain {number} of model {name!r} has no finite log_marginal_likelihood."
            )
        last.append(values[-1])
    found = summarise_log_weights(last)
    n = len(last)
    if n == 1:
        flags.add(flag("single_chain"))
        return found.log_mean, math.nan
    if n < _FEW_CHAINS:
        flags.add(flag("few_chains", chains=n))
    spread = max(last) - min(last)
    if spread > _ROUGH:
        flags.add(flag("chains_differ", spread=spread))
    return found.log_mean, math.sqrt(found.relative_variance / n)


def _stages(dt: xr.DataTree) -> list[np.ndarray]:
    """Return the log marginal likelihoods of the stages of each chain; only the last stage has a finite one.

    PyMC stores several chains as rows of one array, or as lists if their numbers of stages differ. For a single
    chain it stores the stages in place of the chains.
    """
    values = np.atleast_1d(dt["sample_stats"].to_dataset()["log_marginal_likelihood"].values)
    if values.ndim > 1 or any(np.ndim(v) for v in values):
        return [np.ravel(row) for row in values]
    n_chains = dt["posterior"].sizes.get("chain") if "posterior" in dt.children else None
    return list(values[:, None]) if n_chains == values.size else [values]


def _prior_probs(prior_probs: Mapping[str, float] | None, names: list[str]) -> dict[str, float]:
    """Return the prior probability of each model."""
    if prior_probs is None:
        return dict.fromkeys(names, 1.0 / len(names))
    if not isinstance(prior_probs, Mapping):
        raise TypeError(
            f"prior_probs must be a mapping of names to probabilities, got {prior_probs!r}."
        )
    if set(prior_probs) != set(names):
        raise ValueError(f"prior_probs must name the models {names}, got {list(prior_probs)}.")
    for name, value in prior_probs.items():
        if isinstance(value, str) or not 0.0 < value < math.inf:
            raise ValueError(
                f"prior_probs must be positive and finite, got {value!r} for {name!r}."
            )
    total = math.fsum(prior_probs.values())
    return {name: value / total for name, value in prior_probs.items()}


def _probabilities(log_weights: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normalised exp(log_weights) (K,) and their standard errors by the delta method."""
    p = np.exp(log_weights - log_weights.max())
    p /= p.sum()
    slopes = -np.outer(p, p)
    # 1 - p is computed as the sum of the others to avoid cancellation.
    others = (~np.eye(p.size, dtype=bool)) @ p
    np.fill_diagonal(slopes, p * others)
    # An unknown error of an evidence without influence must not make the result nan.
    parts = np.where(slopes == 0.0, 0.0, slopes * errors)
    return p, np.sqrt(np.sum(parts**2, axis=1))


def _observed(dt: xr.DataTree) -> np.ndarray | None:
    """Return all observed values of a result, sorted; None if they are missing or not numeric."""
    if "observed_data" not in dt.children:
        return None
    arrays = [v.values.ravel() for v in dt["observed_data"].to_dataset().data_vars.values()]
    try:
        return np.sort(np.concatenate([np.asarray(a, float) for a in arrays])) if arrays else None
    except (TypeError, ValueError):
        return None


def _check_pairs(
    results: Mapping[str, object], given: Mapping[str, _Evidence], names: list[str]
) -> None:
    """Warn about results under two names, and data that differ from those of the best model with known data."""
    known = next((n for n in names if given[n].observed is not None), None)
    for i, name in enumerate(names):
        found = []
        first = next((n for n in names[:i] if results[n] is results[name]), None)
        if first is not None and isinstance(results[name], xr.DataTree):
            found.append(flag("same_result", first=first))
        if known is not None and not _same(given[known].observed, given[name].observed):
            found.append(flag("other_data", first=known))
        for one in found:
            given[name].flags.add(one)
        warn_of(found, f"Evidence of {name!r}")


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether data are equal up to rounding, or unknown."""
    if a is None or b is None:
        return True
    return a.size == b.size and np.allclose(a, b, rtol=1e-6, atol=0.0, equal_nan=True)
