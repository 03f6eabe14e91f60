"""Nodes of quadrature."""

import math

import numpy as np
import pytest

from scipy import stats

from amc_pymc.tall.groups import hermite_nodes, wide_nodes


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_polynomials_up_to_twice_the_nodes_are_exact(number):
    z, log_w = hermite_nodes(number, 1)
    for power in range(2 * number):
        f = np.exp(log_w - 0.5 * z[:, 0] ** 2) / math.sqrt(2 * math.pi) * z[:, 0] ** power
        moment = 0.0 if power % 2 else math.prod(range(1, power, 2))
        assert f.sum() == pytest.approx(moment, abs=1e-11 * max(1.0, np.abs(f).sum()))


def test_products_of_polynomials_are_exact():
    z, log_w = hermite_nodes(4, 3)
    assert z.shape == (64, 3) and log_w.shape == (64,)
    weight = np.exp(log_w - 0.5 * (z**2).sum(axis=1)) / (2 * math.pi) ** 1.5
    assert weight.sum() == pytest.approx(1.0)
    assert weight @ (z[:, 0] ** 4 * z[:, 1] ** 2 * z[:, 2] ** 6) == pytest.approx(3 * 15)


@pytest.mark.parametrize(("n_local", "error"), [(1, 1e-10), (2, 1e-6), (3, 1e-9)])
@pytest.mark.parametrize("finer", [1, 2])
def test_wide_nodes_integrate_a_gaussian(n_local, error, finer):
    z, log_w = wide_nodes(n_local, finer)
    f = stats.norm.logpdf(z).sum(axis=1)
    assert np.exp(log_w + f).sum() == pytest.approx(1.0, abs=error)


@pytest.mark.parametrize("finer", [1, 2])
def test_wide_nodes_integrate_heavy_tails(finer):
    """All but the mass beyond the last node."""
    z, log_w = wide_nodes(1, finer)
    beyond = 2.0 * stats.cauchy.sf(z.max())
    assert np.exp(log_w + stats.cauchy.logpdf(z[:, 0])).sum() == pytest.approx(1.0, abs=2 * beyond)
