"""Student quantiles against SciPy, and the bound on them that a paper claims."""

import math

import numpy as np
import pytest

from numba import njit
from scipy import stats

from amc_pymc.bandits import student_quantile

DFS = [
    1,
    1.1,
    1.5,
    2,
    2.5,
    3,
    4,
    5,
    6,
    7.7,
    8,
    10,
    12,
    15,
    19.9,
    20,
    24,
    30,
    50,
    100,
    1e3,
    1e4,
    1e6,
]
TAILS = np.concatenate(
    [np.geomspace(1e-20, 0.3, 80), 0.5 - np.geomspace(1e-3, 0.2, 9), np.linspace(0.3, 0.97, 14)]
)


@pytest.mark.parametrize("df", [*DFS, math.inf])
def test_against_scipy(df):
    expected = stats.t.isf(TAILS, df)
    got = np.array([student_quantile(p, df) for p in TAILS])
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0.0)


def test_far_tails_at_many_degrees_of_freedom():
    """Where SciPy inverts well: the tail of the quantile is the probability asked for."""
    for df in range(1, 400, 7):
        for p, tolerance in ((1e-4, 1e-6), (1e-10, 1e-6), (1e-20, 1e-6), (1e-60, 1e-5)):
            t = student_quantile(p, df)
            # relative error of t is that of the tail over the log-log slope
            slope = t * math.exp(stats.t.logpdf(t, df) - stats.t.logsf(t, df))
            assert abs(stats.t.logsf(t, df) - math.log(p)) / slope < tolerance


@pytest.mark.parametrize("df", DFS)
def test_near_the_median(df):
    """SciPy loses digits there; the density is flat, with relative error t^2."""
    for below in (1e-4, 1e-5, 1e-7):
        expected = (0.5 - (0.5 - below)) / stats.t.pdf(0.0, df)
        assert student_quantile(0.5 - below, df) == pytest.approx(expected, rel=1e-6)


def test_special_values():
    assert student_quantile(0.5, 7.0) == 0.0
    assert student_quantile(0.9, 7.0) == pytest.approx(-student_quantile(0.1, 7.0), rel=1e-12)
    for p, df in [
        (0.0, 3.0),
        (1.0, 3.0),
        (-0.1, 3.0),
        (0.1, 0.5),
        (math.nan, 3.0),
        (0.1, math.nan),
    ]:
        assert math.isnan(student_quantile(p, df))


def ratio(q, n_pulls):
    """V^2 / log T of Verma & Hanawal (2021), remark 2: quantile 1 - 1/T^2, T - q - 1 df."""
    return student_quantile(float(n_pulls) ** -2, float(n_pulls - q - 1)) ** 2 / math.log(n_pulls)


def test_bound_on_the_quantile_of_verma_and_hanawal():
    """V^2 <= 3.726 log T for T >= q + max(32, 0.7 q): yes but for two values of q, up to T = 1e10.

    The ratio tends to 4, that of the normal distribution, so the bound fails for large T at any q.
    """
    exceptions, largest = {}, 0.0
    for q in [*range(200), 300, 1_000, 10_000, 100_000]:
        first = math.ceil(q + max(32, 0.7 * q))
        near, far = np.arange(first, first + 30), np.geomspace(first, 1e10, 60).astype(np.int64)
        for n_pulls in map(int, np.concatenate([near, far])):
            if ratio(q, n_pulls) > 3.726:
                exceptions[q, n_pulls] = ratio(q, n_pulls)
            else:
                largest = max(largest, ratio(q, n_pulls))
    assert exceptions == pytest.approx({(44, 76): 3.7302, (45, 77): 3.7363}, abs=1e-4)
    assert largest < 3.726
    assert ratio(1, 10**11) == pytest.approx(3.7469, abs=1e-4) and ratio(1, 10**100) > 3.95


def test_callable_from_compiled_code():
    @njit
    def twice(p, df):
        return 2.0 * student_quantile(p, df)

    assert twice(0.01, 9.0) == 2.0 * student_quantile(0.01, 9.0)
