"""Searches for modes: how many there are, and what points of the prior show."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.modes import DEFAULTS, Joint, prior_summits
from amc_pymc.evidence.pilot import explore
from tests.evidence.annealing.problems import FromPrior, log_normal


class TwoWidths(FromPrior):
    """Half of the mass in a mode of width 1, half in one of width 0.2, on a wide prior of five dimensions."""

    n_dim, wide = 5, 6.0

    def __init__(self):
        super().__init__()
        self.log_z = 0.0

    def parts(self, x):
        return np.array([log_normal(x, 4.0, 1.0), log_normal(x, -4.0, 0.2)]) - math.log(2.0)

    def terms(self, x):
        base = log_normal(x, 0.0, self.wide)
        return np.array([base, np.logaddexp(*self.parts(x)) - base])

    def slopes(self, x):
        parts = self.parts(x)
        share = np.exp(parts - np.logaddexp(*parts))[:, :, None]
        both = share[0] * (4.0 - x) + share[1] * (-4.0 - x) / 0.04
        base = -x / self.wide**2
        return np.array([base, both - base])

    def draw_prior(self, n, rng):
        return self.wide * rng.standard_normal((n, self.n_dim))


@pytest.mark.parametrize("seed", range(2))
def test_a_narrow_mode_far_from_a_wide_one(seed):
    """Searches from 64 prior draws found it in none of these runs."""
    path = TwoWidths()
    found = explore(path, make_kernel("hmc"), np.random.default_rng(seed))
    assert len(found.modes) == 2
    assert found.adapted.log_mean == pytest.approx(0.0, abs=0.2)


def test_summits_of_the_prior():
    """Among the local maxima of the points scanned there are some in the reach of the narrow mode."""
    path, rng = TwoWidths(), np.random.default_rng(5)
    x = path.draw_prior(DEFAULTS.prior_scanned, rng)
    found = prior_summits(Joint(path), x)
    assert len(found) <= 2 * DEFAULTS.starts
    narrow = path.parts(found)[1] > path.parts(found)[0]
    assert narrow.any()
    assert narrow.mean() > 5.0 * (path.parts(x)[1] > path.parts(x)[0]).mean()


def test_summits_leave_out_what_is_impossible():
    class Half(TwoWidths):
        def terms(self, x):
            base, slope = super().terms(x)
            return np.array([base, np.where(x[:, 0] > 0.0, slope, -np.inf)])

    path = Half()
    x = path.draw_prior(500, np.random.default_rng(6))
    x[3] = np.inf
    found = prior_summits(Joint(path), x)
    assert (found[:, 0] > 0.0).all()
    few = prior_summits(Joint(path), x[:8])
    assert len(few) == np.count_nonzero(np.isfinite(x[:8]).all(axis=1) & (x[:8, 0] > 0.0))
