"""Defensive mixtures of a proposal and the prior."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["log_mixture_density"]


def log_mixture_density(log_q: np.ndarray, log_prior: np.ndarray, share: float) -> np.ndarray:
    r"""Return the log density of a defensive mixture.

    .. math:: \log\{(1 - s)\, q(x) + s\, p(x)\}

    The share of the prior bounds the weights, prior times likelihood over density, by 1/s times the
    largest likelihood, even where the fitted q is too low (Hesterberg 1995, Technometrics 37:185-194,
    doi:10.1080/00401706.1995.10484303; Owen & Zhou 2000, JASA 95:135-143,
    doi:10.1080/01621459.2000.10473909).

    Parameters
    ----------
    log_q, log_prior : array (P,)
        Log densities; -inf where a density is zero.
    share : float
        Share s of the prior, from 0 to 1.

    Returns
    -------
    array (P,)
        Log density of the mixture; -inf where both densities are zero.

    Raises
    ------
    ValueError
        If the share is outside [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.importance import log_mixture_density
    >>> log_q, log_prior = np.array([-1.0, -np.inf, -1e4]), np.array([-1.0, 0.0, -np.inf])
    >>> np.round(log_mixture_density(log_q, log_prior, 0.1), 2).tolist()
    [-1.0, -2.3, -10000.11]
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share!r}.")
    log_q, log_prior = np.asarray(log_q, float), np.asarray(log_prior, float)
    if share == 0.0:
        return log_q.copy()
    if share == 1.0:
        return log_prior.copy()
    return np.logaddexp(log_q + math.log1p(-share), log_prior + math.log(share))
