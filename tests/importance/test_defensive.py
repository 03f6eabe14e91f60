"""Defensive mixtures."""

import math

import numpy as np
import pytest

from amc_pymc.mixtures import log_mixture_density


def test_values():
    log_q, log_p = np.log([0.2, 3.0]), np.log([0.5, 1e-5])
    expected = np.log([0.7 * 0.2 + 0.3 * 0.5, 0.7 * 3.0 + 0.3e-5])
    np.testing.assert_allclose(log_mixture_density(log_q, log_p, 0.3), expected, rtol=1e-14)


def test_shares_of_nothing_and_everything():
    log_q, log_p = np.array([-1.0, -math.inf]), np.array([-math.inf, -2.0])
    assert log_mixture_density(log_q, log_p, 0.0).tolist() == log_q.tolist()
    assert log_mixture_density(log_q, log_p, 1.0).tolist() == log_p.tolist()


def test_zero_densities():
    found = log_mixture_density(np.array([-math.inf, -math.inf, -5e4]),
                                np.array([-math.inf, -3e4, -math.inf]), 0.25)  # fmt: skip
    np.testing.assert_allclose(found, [-math.inf, -3e4 + math.log(0.25), -5e4 + math.log(0.75)])


def test_weights_are_bounded():
    rng = np.random.default_rng(1)
    log_q, log_p, log_l = rng.normal(-500.0, 100.0, (3, 1000))
    log_w = log_p + log_l - log_mixture_density(log_q, log_p, 0.1)
    assert log_w.max() <= log_l.max() + math.log(10.0) + 1e-9


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_bad_shares(share):
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        log_mixture_density(np.zeros(1), np.zeros(1), share)
