r"""Instances 1-5 of bandits whose rewards come with a control variate of known mean.

Section 6 of Verma & Hanawal (2021), *Stochastic Multi-Armed Bandits with Control Variates*, NeurIPS 34.
K = 10 arms; arm i gives the reward :math:`X_i = V_i + W_i` with independent parts. :math:`W_i` is
observed and its mean is known. Hence the correlation of reward and control is

.. math:: \rho_i = \sqrt{\sigma_{w,i}^2 / (\sigma_{v,i}^2 + \sigma_{w,i}^2)} .

====  ===========  ==================  =====================  ==============================
no.   law          mean of V           mean of W              variances
====  ===========  ==================  =====================  ==============================
1     normal       0.6 - 0.05 (i - 1)  0.3                    0.1, 0.1
2     normal       0.6 - 0.05 (i - 1)  0.8 - 0.05 (i - 1)     0.1, 0.1
3     gamma        as 2                as 2                   the means, as the scale is 1
4     log-normal   as 2                as 2                   1, 1
5     normal       6 - 0.5 (i - 1)     4                      1 to 3, 1
====  ===========  ==================  =====================  ==============================

The paper does not say which variables mu and sigma^2 of instances 3 and 4 refer to. Here mu is the mean of the
variable throughout, as the known mean of the control requires: a gamma variable has shape mu and
scale 1, thus variance mu; a log-normal one has mean mu and variance sigma^2.
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import Literal

import numpy as np

N_ARMS = 10
VARIANCES_OF_5 = (1.0, 1.5, 2.0, 2.5, 3.0)
Law = Literal["normal", "gamma", "lognormal"]


@dataclass(frozen=True)
class Instance:
    """Arms with one control variate each.

    Parameters
    ----------
    law : {"normal", "gamma", "lognormal"}
    mu_v, mu_w : tuple of float (K,)
        Means mu of the unobserved part and of the control.
    var_v, var_w : float
        Variances sigma^2, the same for all arms; a gamma law has none.
    """

    law: Law
    mu_v: tuple[float, ...]
    mu_w: tuple[float, ...]
    var_v: float = 1.0
    var_w: float = 1.0

    @property
    def n_arms(self) -> int:
        """Number of arms K."""
        return len(self.mu_v)

    @property
    def control_means(self) -> np.ndarray:
        """Known means omega of the controls, (K,)."""
        return self._moments(self.mu_w, self.var_w)[0]

    @property
    def control_variances(self) -> np.ndarray:
        """Variances of the controls, (K,)."""
        return self._moments(self.mu_w, self.var_w)[1]

    @property
    def means(self) -> np.ndarray:
        """Mean rewards, (K,)."""
        return self._moments(self.mu_v, self.var_v)[0] + self.control_means

    @property
    def variances(self) -> np.ndarray:
        """Variances of the rewards, (K,)."""
        return self._moments(self.mu_v, self.var_v)[1] + self.control_variances

    @property
    def correlations(self) -> np.ndarray:
        """Correlation of reward and control, (K,)."""
        return np.sqrt(self.control_variances / self.variances)

    @property
    def gaps(self) -> np.ndarray:
        """Regret of one pull of each arm, (K,)."""
        return self.means.max() - self.means

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw rewards (K, n) and controls (K, n)."""
        hidden = self._draw(self.mu_v, self.var_v, n, rng)
        controls = self._draw(self.mu_w, self.var_w, n, rng)
        return hidden + controls, controls

    def _draw(self, mu, var, n, rng) -> np.ndarray:
        column, shape = np.array(mu)[:, None], (len(mu), n)
        if self.law == "normal":
            return column + math.sqrt(var) * rng.standard_normal(shape)
        if self.law == "gamma":
            return rng.standard_gamma(column, shape)
        log_var = np.log1p(var / column**2)
        log_mean = np.log(column) - 0.5 * log_var
        return np.exp(log_mean + np.sqrt(log_var) * rng.standard_normal(shape))

    def _moments(self, mu, var) -> tuple[np.ndarray, np.ndarray]:
        values = np.array(mu)
        return values, values.copy() if self.law == "gamma" else np.full(values.shape, var)


def make_instance(number: int, *, var_v: float = 1.0) -> Instance:
    """Build one of the paper's five instances.

    Parameters
    ----------
    number : int
        1 to 5.
    var_v : float, default 1.0
        Variance of the unobserved part, for instance 5 only: 1, 1.5, 2, 2.5 or 3 in the paper.

    Examples
    --------
    >>> make_instance(1).correlations[0].round(4), make_instance(5, var_v=3.0).correlations[0]
    (np.float64(0.7071), np.float64(0.5))
    """
    falling = tuple(0.05 * i for i in range(N_ARMS))
    if number == 5:
        means = tuple(6.0 - 10.0 * d for d in falling)
        return Instance("normal", means, (4.0,) * N_ARMS, var_v, 1.0)
    hidden = tuple(0.6 - d for d in falling)
    if number == 1:
        return Instance("normal", hidden, (0.3,) * N_ARMS, 0.1, 0.1)
    controls = tuple(0.8 - d for d in falling)
    if number == 2:
        return Instance("normal", hidden, controls, 0.1, 0.1)
    if number == 3:
        return Instance("gamma", hidden, controls)
    return Instance("lognormal", hidden, controls, 1.0, 1.0)
