"""Bridge sampling from the works of both ends: closed forms, errors with autocorrelated draws, tension."""

import math

import numpy as np
import pytest

from scipy.signal import lfilter
from scipy.special import expit

from amc_pymc.evidence.bridge import acceptance_ratio, bridge, variance_of_mean

LOG_Z = -3.0
CHAINS, DRAWS = 4, 500


def autoregressive(rng, shape, rho):
    """Stationary standard normal chains (C, N)."""
    x = rng.standard_normal(shape)
    x[:, 1:] *= math.sqrt(1.0 - rho**2)
    return lfilter([1.0], [1.0, -rho], x, axis=1)


def works(seed, shift=1.0, rho=0.0, wrong=0.0):
    """Works between q = N(0, 1) and Z N(shift, 1), whose draws are off by `wrong`."""
    rng = np.random.default_rng(seed)
    below = rng.standard_normal(CHAINS * DRAWS)
    above = shift + wrong + autoregressive(rng, (CHAINS, DRAWS), rho)
    return tuple(LOG_Z + shift * x - 0.5 * shift**2 for x in (below, above))


def z_scores(runs=100, **settings):
    found = [bridge(*works(seed, **settings)) for seed in range(runs)]
    return np.array([(f.log_z - LOG_Z) / math.sqrt(f.variance) for f in found]), found


def test_acceptance_ratio_solves_its_equation():
    forward, backward = works(1)
    share = 0.3
    z = math.exp(acceptance_ratio(forward, backward, share))
    up = np.mean(np.exp(forward) / (share * np.exp(forward) + (1.0 - share) * z))
    down = np.mean(1.0 / (share * np.exp(backward) + (1.0 - share) * z))
    assert up / down == pytest.approx(z)


def test_works_far_from_zero():
    forward, backward = works(1)
    found = bridge(forward - 1e6, backward - 1e6)
    assert found.log_z == pytest.approx(bridge(forward, backward).log_z - 1e6, rel=1e-12)


def test_ends_that_do_not_meet():
    found = bridge(np.full(10, -np.inf), np.zeros((2, 5)))
    assert found.log_z == -math.inf
    assert found.variance == math.inf
    assert found.effective == 0.0
    some = bridge(np.append(works(1)[0], np.full(2000, -np.inf)), works(1)[1])
    assert abs(some.log_z - LOG_Z + math.log(2.0)) < 4.0 * math.sqrt(some.variance)


def test_overlap():
    """It is the integral of q p / (s_p p + s_q q), here with equal shares."""
    found = bridge(*works(1, shift=2.0))
    x = np.linspace(-9.0, 11.0, 4001)
    density = np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
    share = 1.0 / (1.0 + found.time)
    exact = np.sum(expit(2.0 * x - 2.0 - math.log((1.0 - share) / share)) * density) * (x[1] - x[0])
    assert found.overlap == pytest.approx(exact / share, rel=0.1)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_errors(rho):
    """Errors and tensions are as large as stated, also with draws that depend on each other."""
    z, found = z_scores(rho=rho)
    tension = np.array([f.tension / f.tension_error for f in found])
    for values in (z, tension):
        assert abs(values.mean()) < 4.0 / math.sqrt(len(z))
        assert abs(values.std() - 1.0) < 4.0 / math.sqrt(2.0 * len(z))
    if rho:
        times = np.array([f.time for f in found])
        assert 10.0 < times.mean() < 25.0  # 19 of x itself, less of a bounded function of it


def test_tension_of_wrong_draws():
    wrong = bridge(*works(1, wrong=-1.0))
    assert abs(wrong.tension) > 5.0 * wrong.tension_error


def test_copies_count_once():
    """Copies in any order, as resampling leaves them, make errors larger, not smaller."""
    z = []
    for seed in range(100):
        forward, backward = works(seed)
        copied = np.random.default_rng(seed).permutation(np.repeat(backward.ravel()[:200], 10))
        found = bridge(forward, copied.reshape(backward.shape), copies=10.0)
        assert found.time == pytest.approx(10.0, rel=0.2)
        z.append((found.log_z - LOG_Z) / math.sqrt(found.variance))
    assert 0.72 < np.std(z) < 1.28
    share = backward.size / found.time / (backward.size / found.time + forward.size)
    h = 1.0 / (share * np.exp(copied) + (1.0 - share) * math.exp(found.log_z))
    upper = found.time * h.var() / h.mean() ** 2 / h.size
    assert found.upper_variance == pytest.approx(upper, rel=0.05)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_autocorrelation_time(rho):
    rng = np.random.default_rng(1)
    variance, time = variance_of_mean(autoregressive(rng, (4, 20_000), rho))
    exact = (1.0 + rho) / (1.0 - rho)
    assert time == pytest.approx(exact, rel=0.15)
    assert variance == pytest.approx(exact / 80_000, rel=0.15)


def test_chains_that_do_not_mix_say_so():
    rng = np.random.default_rng(1)
    apart = rng.standard_normal((4, 500)) + np.array([-3.0, 0.0, 0.0, 3.0])[:, None]
    variance, _ = variance_of_mean(apart)
    assert variance > 0.2  # of the chains' means it is 6 / 4
    alternating = np.tile([1.0, -1.0], (2, 100))
    assert variance_of_mean(alternating + 0.01 * rng.standard_normal((2, 200)))[1] == 1.0
    assert variance_of_mean(np.ones((2, 20))) == (0.0, 1.0)


def test_equal_ends():
    """Works that are all the same tell Z without an error."""
    found = bridge(np.full(50, 2.0), np.full((2, 25), 2.0))
    assert found.log_z == pytest.approx(2.0)
    assert found.variance == pytest.approx(0.0, abs=1e-20)
    assert found.overlap == pytest.approx(1.0)
    assert found.effective == pytest.approx(50.0)


def test_wide_gaps_make_wide_errors():
    z, found = z_scores(100, shift=4.0)
    assert 0.7 < z.std() < 1.3
    assert found[0].variance > 10.0 * bridge(*works(0)).variance
