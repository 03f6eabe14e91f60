"""Quantile functions of random variables as graphs, in terms of the variables they depend on."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from scipy import stats

_LOWEST, _HIGHEST = 2.0**-53, 1.0 - 2.0**-53


def quantile(rv, u):
    """Return the graph of a random variable's quantiles.

    Parameters
    ----------
    rv : variable
        Output of a random variable's node.
    u : tensor variable
        Levels in (0, 1), of the shape given by :func:`quantile_shape`: independent uniform levels
        give a draw of `rv`.

    Returns
    -------
    variable
        Quantiles of the shape of `rv`; those of discrete variables may be floats.

    Raises
    ------
    NotImplementedError
        If no quantile function of the distribution is known.
    """
    op = rv.owner.op
    for kind, own in _OWN.items():
        if isinstance(op, kind):
            return own(rv, u)
    if getattr(op, "ndim_supp", 0) > 0:
        name, *_ = getattr(op, "_print_name", (type(op).__name__,))
        raise NotImplementedError(f"{name} is multivariate")
    return pm.icdf(rv, u, warn_rvs=False)


def quantile_shape(rv, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the levels of a random variable of some shape."""
    if isinstance(rv.owner.op, pm.Dirichlet.rv_type):
        return (*shape[:-1], shape[-1] - 1)
    return shape


# --- families -----------------------------------------------------------------------------------


def _constant(rv, u):
    _, value = rv.owner.inputs
    return value + pt.zeros_like(u)


def _categorical(rv, u):
    """Return the first index at which the cumulative sum of p (..., K) reaches a level (...)."""
    (p,) = rv.owner.op.dist_params(rv.owner)
    below = pt.cumsum(p, axis=-1)[..., :-1]
    return pt.sum(pt.gt(u[..., None], below), axis=-1)


def _truncated(rv, u):
    """Rescale the levels to lie between those of the bounds."""
    *inputs, lower, upper = rv.owner.inputs
    base = rv.owner.op.base_rv_op.make_node(*inputs).default_output()
    below = pt.ceil(lower) - 1.0 if base.type.dtype.startswith("int") else lower
    low = pt.switch(pt.isinf(lower), 0.0, _cdf(base, below, u))
    high = pt.switch(pt.isinf(upper), 1.0, _cdf(base, upper, u))
    x = quantile(base, pt.clip(low + u * (high - low), _LOWEST, _HIGHEST))
    return pt.clip(x, lower, upper)


def _cdf(rv, value, like):
    value = (value + pt.zeros_like(like)).astype("float64")
    return pt.exp(pm.logcdf(rv, value, warn_rvs=False))


def _mv_normal(rv, u):
    mean, cov = rv.owner.op.dist_params(rv.owner)
    z = pm.icdf(pm.Normal.dist(), u)
    return mean + pt.matmul(pt.linalg.cholesky(cov), z[..., None])[..., 0]


def _dirichlet(rv, u):
    """Break a stick: each part takes a Beta-distributed share of what the parts before it left."""
    (a,) = rv.owner.op.dist_params(rv.owner)
    after = pt.cumsum(a[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    share = pt.betaincinv(a[..., :-1], after, u)
    left = pt.cumprod(1.0 - share, axis=-1)
    one = pt.ones_like(u[..., :1])
    return pt.concatenate([share, one], axis=-1) * pt.concatenate([one, left], axis=-1)


class _Quantile(Op):
    """Elementwise quantiles by SciPy, of a family by its name there."""

    __props__ = ("family",)

    def __init__(self, family: str):
        self.family = family

    def make_node(self, *inputs):
        tensors = [pt.as_tensor(i) for i in inputs]
        ndim = max(t.type.ndim for t in tensors)
        aligned = [pt.shape_padleft(t, ndim - t.type.ndim) for t in tensors]
        return Apply(self, aligned, [pt.tensor(dtype="float64", shape=(None,) * ndim)])

    def perform(self, node, inputs, output_storage):
        out = getattr(stats, self.family).ppf(*np.broadcast_arrays(*inputs))
        output_storage[0][0] = np.asarray(out, dtype=np.float64)


@_vectorize_node.register(_Quantile)
def _vectorize_quantile(op, node, *inputs):
    return op.make_node(*inputs)


def _by_scipy(family: str):
    return lambda rv, u: _Quantile(family)(u, *rv.owner.op.dist_params(rv.owner))


#: Functions of a variable and levels, by the type of its operation.
_OWN = {
    DiracDeltaRV: _constant,
    pm.Categorical.rv_type: _categorical,
    TruncatedRV: _truncated,
    pm.MvNormal.rv_type: _mv_normal,
    pm.Dirichlet.rv_type: _dirichlet,
    pm.Poisson.rv_type: _by_scipy("poisson"),
    pm.Binomial.rv_type: _by_scipy("binom"),
    pm.NegativeBinomial.rv_type: _by_scipy("nbinom"),
}
