"""Empirical Bernstein-Serfling bound for the mean of a sample drawn without replacement."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

__all__ = ["BernsteinFactors", "bernstein_serfling"]

_KAPPA = 7.0 / 3.0 + 3.0 / math.sqrt(2.0)


class BernsteinFactors(NamedTuple):
    """Factors of the standard deviation and of the range in the bound."""

    sd: np.ndarray
    range: np.ndarray


def bernstein_serfling(delta: ArrayLike, n: ArrayLike, n_rows: int) -> BernsteinFactors:
    r"""Compute the factors of the empirical Bernstein-Serfling bound.

    With probability at least :math:`1 - \delta`, the mean of n of N values drawn without
    replacement exceeds the population mean by at most

    .. math::
        \hat\sigma_n \sqrt{\frac{2 \rho_n \log(5 / \delta)}{n}}
            + \frac{\kappa C \log(5 / \delta)}{n}, \qquad
        \rho_n = \begin{cases}
            1 - (n - 1) / N & n \le N / 2 \\
            (1 - n / N) (1 + 1 / n) & n > N / 2 \end{cases}

    where :math:`\kappa = 7/3 + 3/\sqrt 2`, C is the range of the population and
    :math:`\hat\sigma_n` the standard deviation of the sample with divisor n. The bound holds for any
    population, and equally for deviations below the mean. Use it if the range is known and a normal
    approximation is not acceptable.

    Parameters
    ----------
    delta : array_like
        Error probability of one side, in (0, 1].
    n : array_like
        Sample sizes, from 1 to `n_rows`.
    n_rows : int
        Population size N.

    Returns
    -------
    BernsteinFactors
        ``sd``, factor of :math:`\hat\sigma_n`, and ``range``, factor of C, with the broadcast shape
        of `delta` and `n`. At n = N the second is not zero although the mean is exact.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Bardenet & Maillard (2015), *Concentration inequalities for sampling without replacement*,
    Bernoulli 21(3):1361-1385, theorem 4.3, doi:10.3150/14-BEJ605, arXiv:1309.4029 (there
    :math:`1 - 5 \delta`); Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, equation 6.

    Examples
    --------
    >>> from amc_pymc.tall.racing.bernstein import bernstein_serfling
    >>> sd, width = bernstein_serfling(0.05, [100, 900], 1000)
    >>> sd.round(4), width.round(4)
    (array([0.2881, 0.032 ]), array([0.2051, 0.0228]))
    """
    deltas, sizes = np.asarray(delta, float), np.asarray(n, float)
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows!r}.")
    if not np.all((deltas > 0.0) & (deltas <= 1.0)):
        raise ValueError(f"delta must be in (0, 1], got {delta!r}.")
    if not np.all((sizes >= 1.0) & (sizes <= n_rows)):
        raise ValueError(f"n must be between 1 and n_rows={n_rows}, got {n!r}.")
    few = 1.0 - (sizes - 1.0) / n_rows
    many = (1.0 - sizes / n_rows) * (1.0 + 1.0 / sizes)
    log = np.log(5.0 / deltas)
    sd = np.sqrt(2.0 * np.where(sizes <= n_rows / 2, few, many) * log / sizes)
    return BernsteinFactors(sd, _KAPPA * log / sizes)
