r"""Purchases of customers in several segments until they leave (BG/NBD).

While active, a customer buys at rate lambda, and leaves with probability p after every purchase,

.. math:: \lambda \sim \text{Gamma}(r, \alpha), \qquad p \sim \text{Beta}(a, b) .

Both integrate out of the likelihood of x repeat purchases, the last at time t_x, in a time T of
observation (Fader, Hardie & Lee (2005), *"Counting your customers" the easy way*, Marketing Science
24, 275-284, doi:10.1287/mksc.1040.0098, section 4.3):

.. math:: L = \frac{B(a, b + x)}{B(a, b)} \frac{\Gamma(r + x) \alpha^r}{\Gamma(r) (\alpha + T)^{r+x}}
          + 1_{x > 0} \frac{B(a + 1, b + x - 1)}{B(a, b)}
          \frac{\Gamma(r + x) \alpha^r}{\Gamma(r) (\alpha + t_x)^{r+x}} .

The logs of some of (r, alpha, a, b) differ between segments of customers by normal effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from amc_pymc.rng import as_generator
from models.grouped import effects, row_data

Parameter = Literal["r", "alpha", "a", "b"]
PARAMETERS: tuple[Parameter, ...] = get_args(Parameter)
#: True values of log r, log alpha, log a and log b, and the standard deviation of segments.
LOG_TRUTH = {"r": -0.5, "alpha": 1.0, "a": -0.4, "b": 0.6}
SEGMENT_SD = 0.5


class Customers(NamedTuple):
    """Customers, one per row, with the segment effects of the simulation.

    Attributes
    ----------
    history : array (N, 2)
        Number of repeat purchases, and the time of the last one since the first purchase (0 if
        there is none).
    age : array (N,)
        Time between the first purchase and the end of observation.
    segment : array (N,)
    effects : dict
        Effects (S,) of the segments, by parameter; 0 for shared parameters.
    """

    history: np.ndarray
    age: np.ndarray
    segment: np.ndarray
    effects: dict[str, np.ndarray]


def simulate_customers(
    n_customers: int = 5_000, n_segments: int = 100, *,
    varying: Sequence[Parameter] = ("alpha", "a"), seed: int = 1,
) -> Customers:  # fmt: skip
    """Simulate customers who are observed for 26 to 52 weeks."""
    rng = as_generator(seed)
    segment = rng.permutation(np.arange(n_customers) % n_segments)
    u = {
        name: SEGMENT_SD * (name in varying) * rng.standard_normal(n_segments)
        for name in PARAMETERS
    }
    r, alpha, a, b = (np.exp(LOG_TRUTH[name] + u[name][segment]) for name in PARAMETERS)
    age = rng.uniform(26.0, 52.0, n_customers)
    return Customers(draw_histories(r, alpha, a, b, age, rng), age, segment, u)


def draw_histories(r, alpha, a, b, age, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of purchases and the time of the last one (..., 2); parameters and ages broadcast."""
    r, alpha, a, b, age = np.broadcast_arrays(r, alpha, a, b, age)
    rate, leave = rng.gamma(r, 1.0 / alpha), rng.beta(a, b)
    count, last = np.zeros(age.shape), np.zeros(age.shape)
    active = np.ones(age.shape, dtype=bool)
    while active.any():
        time = last + rng.exponential(size=age.shape) / np.maximum(rate, 1e-300)
        active &= time <= age
        count, last = count + active, np.where(active, time, last)
        active &= rng.random(age.shape) >= leave
    return np.stack([count, last], axis=-1)


def log_likelihood(history, r, alpha, a, b, age):
    """Return the log likelihood (N,) of histories (N, 2) as a PyTensor expression."""
    x, last = history[..., 0], history[..., 1]

    def log_beta(p, q):
        return pt.gammaln(p) + pt.gammaln(q) - pt.gammaln(p + q)

    purchases = pt.gammaln(r + x) - pt.gammaln(r) + r * pt.log(alpha) - log_beta(a, b)
    active = log_beta(a, b + x) - (r + x) * pt.log(alpha + age)
    some = pt.maximum(x, 1.0)
    left = log_beta(a + 1.0, b + some - 1.0) - (r + x) * pt.log(alpha + last)
    return purchases + pt.switch(x > 0, pt.logaddexp(active, left), active)


def customer_model(
    data: Customers, varying: Sequence[Parameter] = ("alpha", "a"), centred: bool = True
) -> pm.Model:
    """Build the BG/NBD model with effects of the segments.

    Parameters
    ----------
    data : Customers
    varying : sequence of {"r", "alpha", "a", "b"}
        Parameters that differ between segments.
    centred : bool

    Returns
    -------
    pm.Model
        For every parameter ``log_r``, the mean of its logarithm over segments; for the varying ones
        also ``sd_r`` and ``segment_r`` (S,); outcome ``obs``.
    """
    with pm.Model(coords={"segment": range(next(iter(data.effects.values())).size)}) as model:
        rows, _ = row_data(history=data.history, age=data.age, segment_index=data.segment)
        own = []
        for name in PARAMETERS:
            log_value = pm.Normal(f"log_{name}", 0.0, 1.5)
            if name in varying:
                sd = pm.HalfNormal(f"sd_{name}", 1.0)
                u = effects(f"segment_{name}", 0.0, sd, centred, dims="segment")
                log_value = log_value + u[rows["segment_index"]]
            own.append(pt.exp(log_value))
        pm.CustomDist(
            "obs", *own, rows["age"], logp=log_likelihood, random=_random,
            signature="(),(),(),(),()->(2)", observed=rows["history"],
        )  # fmt: skip
    return model


def _random(r, alpha, a, b, age, rng=None, size=None) -> np.ndarray:
    shape = np.broadcast_shapes(*(np.shape(v) for v in (r, alpha, a, b, age)))
    age = np.broadcast_to(age, shape if size is None else size)
    return draw_histories(r, alpha, a, b, age, rng)
