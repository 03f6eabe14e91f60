"""Adaptive model weights that make a chain visit all models."""

from __future__ import annotations

import numpy as np

__all__ = ["wang_landau_step"]


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
