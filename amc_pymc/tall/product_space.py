"""Weights and estimates for chains over the product space of models (Carlin & Chib 1995)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_LEAST_BATCHES = 20


class ModelEstimates(NamedTuple):
    """Estimates over M models.

    ``prob`` (M,) are posterior probabilities under the given prior, ``log_bf`` (M, M) the natural
    log Bayes factors of row against column, with Monte Carlo standard errors ``prob_mcse`` and
    ``log_bf_mcse``. Values are NaN for models never visited. ``prob_mcse`` is NaN throughout if a
    chain stayed in one model, ``log_bf`` if a chain missed one of the two.
    """

    prob: np.ndarray
    prob_mcse: np.ndarray
    log_bf: np.ndarray
    log_bf_mcse: np.ndarray


def estimate_models(
    index: np.ndarray, log_weights: np.ndarray, prior: np.ndarray
) -> ModelEstimates:
    r"""Reweight visits from the chains' own model weights to the prior.

    With f_ck the share of chain c's visits to model k and :math:`\tilde\pi_{ck}` its weight, the
    evidence of model k is proportional to :math:`f_{ck} / \tilde\pi_{ck}`. Estimates are averaged over
    the chains that visited the models in question. Standard errors are propagated from the covariance
    of the visits by batch means (batches of draws^(2/3), at least twenty). With four or more chains
    they are at least those from the variance between chains.

    Parameters
    ----------
    index : (C, S) int array
        Model visited.
    log_weights : (C, M) array
        Natural logarithms of the weights, the same for all draws of a chain.
    prior : (M,) array
        Prior probabilities of the models.

    Returns
    -------
    ModelEstimates

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.product_space import estimate_models
    >>> index = np.random.default_rng(1).choice(2, p=[0.5, 0.5], size=(4, 10_000))
    >>> log_weights = np.log(
    ...     np.tile([0.9, 0.1], (4, 1))
    ... )  # even visits: model 1 is 9 times likelier
    >>> estimates = estimate_models(index, log_weights, np.array([0.5, 0.5]))
    >>> bool(abs(estimates.prob[1] - 0.9) < 4 * estimates.prob_mcse[1])
    True
    """
    index = np.atleast_2d(index)
    n_models = log_weights.shape[1]
    probs, prob_vars, logs, log_vars = [], [], [], []
    for visits, weights in zip(index, log_weights):
        share, covariance = _shares(visits, n_models)
        log_ratio = np.log(prior) - weights
        ratio = np.exp(log_ratio - log_ratio.max())
        total = share @ ratio
        prob = share * ratio / total
        gradient = np.diag(ratio / total) - np.outer(prob, ratio / total)
        probs.append(prob)
        prob_vars.append(np.diag(gradient @ covariance @ gradient.T))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs.append(np.log(share) - weights)
            relative = covariance / np.outer(share, share)
        spread = np.diag(relative)
        log_vars.append(spread[:, None] + spread[None, :] - 2.0 * relative)
    prob, prob_mcse = _over_chains(np.array(probs), np.array(prob_vars))
    never = prob == 0.0
    prob[never] = prob_mcse[never] = np.nan
    with np.errstate(invalid="ignore"):
        log_ratios = np.array([a[:, None] - a[None, :] for a in logs])
    log_bf, log_bf_mcse = _over_chains(log_ratios, np.array(log_vars))
    np.fill_diagonal(log_bf, 0.0)
    np.fill_diagonal(log_bf_mcse, 0.0)
    return ModelEstimates(prob, prob_mcse, log_bf, log_bf_mcse)


def _over_chains(values: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over the chains (C, ...) with finite values, and its standard error.

    With four or more chains, the error is the larger of that within chains and that between chains,
    because the former is too small for chains that mix slowly.
    """
    known = np.isfinite(values)
    number = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / number
        error = np.maximum(np.where(known, variances, 0.0).sum(axis=0), 0.0) / number**2
        spread = np.where(known, np.square(values - mean), 0.0).sum(axis=0) / (number - 1)
        error = np.where(number >= 4, np.maximum(error, spread / number), error)
    error[number == 0] = np.nan
    return mean, np.sqrt(error)


def _shares(visits: np.ndarray, n_models: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shares of visits (M,) and their Monte Carlo covariance (M, M) by batch means."""
    visited = (visits[:, None] == np.arange(n_models)).astype(float)
    share = visited.mean(axis=0)
    draws = visits.size
    batch = max(1, min(int(draws ** (2 / 3)), draws // _LEAST_BATCHES))
    batches = draws // batch
    if batches < 2 or share.max() == 1.0:
        return share, np.full((n_models, n_models), np.nan)
    means = visited[: batches * batch].reshape(batches, batch, n_models).mean(axis=1)
    return share, np.atleast_2d(np.cov(means.T)) / batches


def round_trips(index: np.ndarray, n_models: int) -> np.ndarray:
    """Count how often (M,) a chain (S,) left each model and returned to it.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.product_space import round_trips
    >>> round_trips(np.array([0, 0, 1, 0, 2, 0]), 3)
    array([2, 0, 0])
    """
    starts = index[np.flatnonzero(np.diff(index, prepend=-1))]
    entered = np.bincount(starts, minlength=n_models)
    return np.maximum(entered - 1, 0)


def wang_landau_step(log_weights: np.ndarray, visited: int, t: int) -> None:
    """Decrease the weight of the model just visited, by a decreasing amount.

    log pi~_k of the model visited at iteration t decreases by 1 / (1 + t / 100), and the weights are
    normalised (Chen & Ghahramani 2016, appendix C.2; Wang & Landau 2001,
    doi:10.1103/PhysRevLett.86.2050).

    Parameters
    ----------
    log_weights : (M,) array
        Natural logarithms of the weights, overwritten.
    visited : int
    t : int
        Iteration, starting at 0.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.product_space import wang_landau_step
    >>> w = np.log([0.5, 0.5])
    >>> wang_landau_step(w, 0, t=100)
    >>> np.exp(w).round(4)
    array([0.3775, 0.6225])
    """
    log_weights[visited] -= 1.0 / (1.0 + t / 100.0)
    log_weights -= np.logaddexp.reduce(log_weights)
