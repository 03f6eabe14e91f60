"""Searches for modes: how many there are, and what points of the prior show."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.far_modes import find_far_modes, scan_prior
from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.modes import Joint, Modes
from amc_pymc.evidence.pilot import explore
from amc_pymc.mixtures import StudentTMixture
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


def known(*modes):
    """The modes of TwoWidths with these numbers, as a search returns them."""
    means, sds = np.repeat([[4.0], [-4.0]], 5, axis=1), (1.0, 0.2)
    chosen = list(modes)
    roots = np.array([sds[k] * np.eye(5) for k in chosen])
    mixture = StudentTMixture(np.full(len(chosen), 1.0 / len(chosen)), means[chosen], roots, 5.0)
    return Modes(mixture, means[chosen], np.full(len(chosen), -math.log(2.0)))


def test_draws_that_lead_to_no_known_mode():
    path, rng, n = TwoWidths(), np.random.default_rng(5), 20_000
    x = path.draw_prior(400_000, rng)
    share = (path.parts(x)[1] > path.parts(x)[0]).mean()
    usual = math.sqrt(n * share)
    strays, counts, lost = scan_prior(Joint(path), known(0).mixture, n, rng)
    narrow = path.parts(strays)[1] > path.parts(strays)[0]
    assert narrow.all() and n * share - 3.0 * usual < len(strays) < n * share + 3.0 * usual
    assert counts == n - len(strays) and lost == len(strays)
    strays, counts, lost = scan_prior(Joint(path), known(0, 1).mixture, n, rng)
    assert lost == 0 and counts.sum() == n
    assert abs(counts[1] - n * share) < 3.0 * usual


@pytest.mark.parametrize(("spent", "rare"), [(100, 0.5), (40_000, 0.0)])
def test_a_mode_that_few_draws_reach_is_rare(spent, rare):
    """About 0.4 % of the draws, a quarter of `spent`, lead to the narrow mode."""
    rng = np.random.default_rng(6)
    for start in (known(0), known(0, 1)):
        modes, found = find_far_modes(Joint(TwoWidths()), start, spent, rng)
        if len(modes.x) == 2:
            assert found == pytest.approx(rare, abs=0.05)
    assert len(modes.x) == 2


def test_draws_leave_out_what_is_impossible():
    class Half(TwoWidths):
        def terms(self, x):
            base, slope = super().terms(x)
            return np.array([base, np.where(x[:, 0] > 0.0, slope, -np.inf)])

        def draw_prior(self, n, rng):
            x = super().draw_prior(n, rng)
            x[3] = np.inf
            return x

    _, counts, lost = scan_prior(Joint(Half()), known(0).mixture, 500, np.random.default_rng(6))
    assert lost == 0 and 180 < counts.sum() < 320
