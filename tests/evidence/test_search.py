"""Searches for modes: how many there are, and what points of the prior show."""

import math

import numpy as np
import pytest

from amc_pymc.evidence import pilot
from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.modes import Joint, Modes
from amc_pymc.evidence.pilot import explore, find_far_modes, nested, scan_prior
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import FromPrior, log_normal


class TwoWidths(FromPrior):
    """Half of the mass in a mode of width 1, half in a narrow one, on a wide prior."""

    wide = 6.0

    def __init__(self, n_dim=5, narrow=0.2, centres=(4.0, -4.0)):
        super().__init__()
        self.n_dim, self.narrow, self.centres, self.log_z = n_dim, narrow, centres, 0.0

    def parts(self, x):
        sds = 1.0, self.narrow
        parts = [log_normal(x, *each) for each in zip(self.centres, sds, strict=True)]
        return np.array(parts) - math.log(2.0)

    def terms(self, x):
        base = log_normal(x, 0.0, self.wide)
        return np.array([base, np.logaddexp(*self.parts(x)) - base])

    def slopes(self, x):
        parts = self.parts(x)
        share = np.exp(parts - np.logaddexp(*parts))[:, :, None]
        wide, narrow = self.centres
        both = share[0] * (wide - x) + share[1] * (narrow - x) / self.narrow**2
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


def test_a_steep_slope_leads_to_another_mode():
    """In two dimensions three gradients in ten point to the known mode by chance; half of them are too steep for it."""
    path, rng, n = TwoWidths(n_dim=2, narrow=0.05), np.random.default_rng(7), 400_000
    x = path.draw_prior(n, rng)
    narrow = (path.parts(x)[1] > path.parts(x)[0]).sum()
    wide = StudentTMixture(np.ones(1), np.full((1, 2), 4.0), np.eye(2)[None], 5.0)
    strays, _, lost = scan_prior(Joint(path), wide, n, rng)
    assert (path.parts(strays)[1] > path.parts(strays)[0]).mean() > 0.9
    assert lost > 0.85 * narrow - 3.0 * math.sqrt(2.0 * 0.85 * narrow)


@pytest.fixture
def rounds(monkeypatch):
    """The arguments of all rounds of a search."""
    out = []

    def counted(*args):
        out.append(args)
        return scan_prior(*args)

    monkeypatch.setattr(pilot, "scan_prior", counted)
    return out


@pytest.mark.parametrize(("spent", "rare"), [(100, 0.5), (40_000, 0.0)])
def test_a_mode_that_few_draws_reach_is_rare(spent, rare):
    """About 0.4 % of the draws, a quarter of `spent`, lead to the narrow mode."""
    rng = np.random.default_rng(6)
    for start in (known(0), known(0, 1)):
        modes, found = find_far_modes(Joint(TwoWidths()), start, spent, rng)
        if len(modes.x) == 2:
            assert found == pytest.approx(rare, abs=0.05)
    assert len(modes.x) == 2


def test_a_mode_near_the_centre_of_a_wider_one_is_nested():
    """The scan looks for it within half a standard deviation in each coordinate; prior draws hardly lead to it."""
    means = np.repeat([[0.0], [0.4], [0.7], [3.0]], 2, axis=1)
    roots = np.array([sd * np.eye(2) for sd in (1.0, 0.1, 0.1, 0.1)])
    mixture = StudentTMixture(np.full(4, 0.25), means, roots, 5.0)
    modes = Modes(mixture, means, np.zeros(4))
    assert nested(Joint(TwoWidths(n_dim=2)), modes).tolist() == [False, True, False, False]


def test_prior_draws_are_not_expected_to_reach_a_nested_mode(rounds):
    """With the wide mode reached by all of them, the search ends as for one mode, and none is rare."""
    path, rng = TwoWidths(narrow=0.01, centres=(0.0, 0.3)), np.random.default_rng(6)
    means = np.repeat([[0.0], [0.3]], 5, axis=1)
    roots = np.array([np.eye(5), 0.01 * np.eye(5)])
    mixture = StudentTMixture(np.full(2, 0.5), means, roots, 5.0)
    start = Modes(mixture, means, np.full(2, -math.log(2.0)))
    modes, rare = find_far_modes(Joint(path), start, 4_000, rng)
    assert len(modes.x) == 2 and rare == 0.0 and len(rounds) == 2


def test_a_time_limit_ends_the_search_after_a_round(rounds):
    for over, number in ((lambda: True, 1), (lambda: len(rounds) >= 3, 3)):
        rounds.clear()
        find_far_modes(Joint(TwoWidths()), known(0, 1), 100, np.random.default_rng(6), over)
        assert len(rounds) == number


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
