"""What a pilot run finds, and what it says it has missed."""

import dataclasses
import math

import numpy as np
import pytest

from scipy.special import expit
from scipy.stats import norm

from amc_pymc.evidence import adapt, pilot
from amc_pymc.evidence import modes as search
from amc_pymc.evidence.adapt import AdaptedMixture
from amc_pymc.evidence.arms import ImportanceArm
from amc_pymc.evidence.mcmc import DiscreteMetropolis, Mixed, Slice, make_kernel
from amc_pymc.evidence.modes import Joint
from amc_pymc.evidence.pilot import explore
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import (
    Counts,
    FromPrior,
    Gaussian,
    HalfPlane,
    LabelAndNumber,
    Lossy,
    SpikeAndSlab,
    TwoModes,
    assert_mean,
    log_normal,
)

HMC = make_kernel("hmc")


def look(path, seed=0, kernel=HMC, **settings):
    return explore(path, kernel, np.random.default_rng(seed), **settings)


def weights(path, found, n=20_000):
    """Logarithms of weights from the frozen reference."""
    return ImportanceArm(path, found.reference).weigh(n, np.random.default_rng(99))[0]


class Tail(FromPrior):
    """Nothing was counted: the logarithm of a gamma variable has a long tail to the left."""

    n_dim = 1

    def __init__(self):
        super().__init__()
        self.log_z = -0.4 * math.log1p(3.0)

    def terms(self, x):
        e = np.exp(np.minimum(x[:, 0], 300.0))
        return np.array([0.4 * x[:, 0] - e - math.lgamma(0.4), -3.0 * e])

    def slopes(self, x):
        e = np.exp(np.minimum(x, 300.0))
        return np.array([0.4 - e, -3.0 * e])

    def draw_prior(self, n, rng):
        return np.log(rng.gamma(0.4, 1.0, (n, 1)) + 1e-300)


@pytest.mark.parametrize(
    ("path", "modes"),
    [
        (Gaussian([1.0, -2.0, 0.5, 0.0, 3.0], 0.5), 1),
        (Gaussian(np.linspace(-1.0, 1.0, 20), 0.3), 1),
        (Counts(), 1),
        (Tail(), 1),
        (TwoModes(10), 2),
        (HalfPlane(), 0),  # the best point is on the edge, where no derivative is zero
    ],
    ids=["gaussian5", "gaussian20", "counts", "tail", "two_modes10", "half_plane"],
)
def test_a_reference_good_for_importance_sampling(path, modes):
    path.evaluated = path.differentiated = 0
    found = look(path)
    assert found.modes.shape == (modes, path.n_dim)
    assert found.mode_log_evidence.shape == (modes,)
    assert found.uncovered < 0.01
    assert found.adapted.relative_variance < 1.0
    assert found.adapted.log_mean == pytest.approx(path.log_z, abs=0.3)
    log_w = weights(path, found)
    assert_mean(log_w, path.log_z, precision=0.015)
    assert np.exp(log_w - path.log_z).var() < 1.5


def test_laplace_is_exact_for_a_gaussian():
    path = Gaussian([1.0, -2.0, 0.5], 0.5)
    found = look(path)
    np.testing.assert_allclose(found.modes, [path.moments(1.0)[0]], atol=1e-4)
    np.testing.assert_allclose(found.mode_log_evidence, path.log_z, atol=1e-5)
    covariance = path.moments(1.0)[1] ** 2 * np.eye(3)
    np.testing.assert_allclose(found.laplace.scale_matrices, [covariance], atol=1e-5)


def test_a_spike_in_a_slab():
    """It holds 100 parts in 101 of the evidence, and no tempered posterior knows of it."""
    path = SpikeAndSlab()
    found = look(path)
    assert np.abs(found.ladder.particles.x).std() > 0.2  # the particles are in the slab
    assert found.mode_log_evidence[0] == pytest.approx(math.log(100.0), abs=0.1)
    assert_mean(weights(path, found), path.log_z)


@pytest.mark.parametrize("discrete_only", [False, True])
def test_nothing_is_fitted_where_coordinates_are_discrete(discrete_only):
    path, discrete = LabelAndNumber(), DiscreteMetropolis((0,), ([0, 1, 2],))
    kernel = discrete if discrete_only else Mixed(Slice(coordinates=(1,)), discrete)
    found = look(path, kernel=kernel, fitted=False)
    assert found.adapted is None
    assert found.laplace is None
    assert found.reference is None
    assert found.modes.shape == (0, 2)
    assert found.mode_log_evidence.shape == (0,)
    assert found.uncovered == 0.0
    assert found.ladder.particles.x.shape == (512, 2)
    assert not found.unfit


class Far(FromPrior):
    """x ~ N(0, I), y = 1 seen of the second coordinate; the likelihood is zero where x0 < edge."""

    n_dim = 2

    def __init__(self, edge):
        super().__init__()
        self.edge = edge
        self.log_z = norm.logsf(edge) + norm.logpdf(1.0, 0.0, math.hypot(1.0, 0.5))

    def terms(self, x):
        slope = np.where(x[:, 0] > self.edge, log_normal(x[:, 1:], 1.0, 0.5), -np.inf)
        return np.array([log_normal(x, 0.0, 1.0), slope])

    def slopes(self, x):
        return np.array([-x, np.column_stack([np.zeros(len(x)), 4.0 * (1.0 - x[:, 1])])])

    def draw_prior(self, n, rng):
        return rng.standard_normal((n, 2))


@pytest.mark.parametrize("edge", [1.0, 2.5, 3.0])
def test_more_is_drawn_where_the_likelihood_is_mostly_zero(edge):
    """At 3 one draw of 740 is possible: often none of the 512 particles of a climb."""
    path = Far(edge)
    found = look(path)
    assert found.ladder.possible == pytest.approx(norm.sf(edge), rel=0.5)
    assert found.ladder.particles.x.shape == (512, 2)
    assert found.ladder.log_z == pytest.approx(path.log_z, abs=0.5)
    assert_mean(weights(path, found), path.log_z, precision=0.02)


def test_no_likelihood_within_reach():
    with pytest.raises(ValueError, match="zero at all of 65,536 draws"):
        look(Far(9.0))


def covered(mixture, path, log_mean):
    joint = Joint(path)
    adapted = AdaptedMixture(mixture, 1.0, 1.0, log_mean, np.ones(1))
    return adapt.share_uncovered(joint, adapted, np.random.default_rng(7))


def test_what_the_mixture_misses_and_prior_draws_see():
    path = TwoModes(2, sd=0.5)
    sd = 0.5 / math.hypot(1.0, 0.5 / 3.0)
    both, left, right = (
        StudentTMixture(
            np.full(len(at), 1.0 / len(at)),
            [np.full(2, m) for m in at],
            [1.1 * sd * np.eye(2)] * len(at),
            5.0,
        )
        for at in ((-1.95, 1.95), (-1.95,), (1.95,))
    )
    missing, _ = covered(both, path, path.log_z)
    assert missing < 0.01
    for mixture, share, side in ((right, 0.3, -1.0), (left, 0.7, 1.0)):
        missing, points = covered(mixture, path, path.log_z)
        assert missing == pytest.approx(share, rel=0.2)
        assert (side * points[:8] > 0.0).all()
    # Where the fit knew of less than there is, or of nothing, all of it may be missing.
    assert covered(left, path, path.log_z - 5.0)[0] == 1.0
    assert covered(left, path, -math.inf)[0] == 1.0


def test_a_reference_that_missed_a_mode_is_mended(monkeypatch):
    """At first only the mode on the right is known; draws from the prior see the other one."""
    path, calls = TwoModes(2, sd=0.5), []
    found, choose, adapt = search.modes_and_mixture, pilot.choose_mixture, pilot.adapt_mixture

    def blind(joint, starts):
        calls.append(len(starts))
        return found(joint, starts[starts.sum(axis=1) > 0.0] if len(calls) < 3 else starts)

    monkeypatch.setattr(pilot, "modes_and_mixture", blind)
    monkeypatch.setattr(pilot, "find_far_modes", lambda joint, modes, *_: (modes, 0.0))
    monkeypatch.setattr(pilot, "choose_mixture", lambda x, *a, **k: choose(x[x[:, 0] > 0], *a, **k))
    monkeypatch.setattr(pilot, "adapt_mixture", lambda *a, **k: adapt(*a, **k | {"rounds": 1}))
    found = look(path)
    assert len(calls) >= 3
    assert len(found.modes) == 2
    assert found.uncovered < 0.01
    assert_mean(weights(path, found), path.log_z, precision=0.02)


def test_a_lower_mode_is_not_crowded_out():
    """A hundred searches end at the higher mode and one at the lower."""
    path = TwoModes(3)
    starts = np.vstack([np.full((100, 3), 2.0), np.full((1, 3), -2.0)])
    starts += 0.1 * np.random.default_rng(8).standard_normal(starts.shape)
    joint = Joint(path)
    mixture, modes, log_evidence = search.modes_and_mixture(joint, starts)
    assert modes.shape == (2, 3)
    np.testing.assert_allclose(mixture.weights, [0.7, 0.3], atol=1e-3)
    assert log_evidence[0] - log_evidence[1] == pytest.approx(math.log(7 / 3), abs=1e-3)
    assert path.differentiated < 101 * 30  # few curvatures are looked at


class Funnel(FromPrior):
    """v ~ N(0, 9), x_i ~ N(0, e^v), observations at zero with variance 9: the prior's neck stays."""

    n_dim = 5

    def terms(self, x):
        v, rest = np.clip(x[:, :1], -60.0, 60.0), x[:, 1:]
        spread = norm.logpdf(rest, 0.0, np.exp(0.5 * v)).sum(axis=1)
        return np.array([log_normal(v, 0.0, 3.0) + spread, log_normal(rest, 0.0, 3.0)])

    def slopes(self, x):
        v, rest = np.clip(x[:, :1], -60.0, 60.0), x[:, 1:]
        of_v = -v / 9.0 + 0.5 * (rest**2 * np.exp(-v) - 1.0).sum(axis=1, keepdims=True)
        prior = np.column_stack([of_v, -rest * np.exp(-v)])
        return np.array([prior, np.column_stack([0.0 * v, -rest / 9.0])])

    def draw(self, n, beta, rng):
        v = 3.0 * rng.standard_normal((n, 1))
        return np.column_stack([v, np.exp(0.5 * v) * rng.standard_normal((n, self.n_dim - 1))])


def test_a_posterior_close_to_the_prior_gets_more_draws_from_it():
    found = look(Funnel())
    assert found.share == 0.5
    rough, adapted = found.ladder.particles, found.adapted
    usual = pilot.moment(rough, adapted.mixture, 0.1, adapted.log_mean) - 1.0
    assert found.relative_variance < 0.7 * usual
    other = look(Gaussian([1.0, -2.0, 0.5], 0.5))
    assert other.share == 0.1
    assert other.relative_variance == other.adapted.relative_variance


def has_spike(modes):
    return bool((np.abs(expit(modes) - 0.531).max(axis=1) < 0.01).any())


def test_a_spike_that_trajectories_have_crossed(monkeypatch):
    """Refused by Metropolis, its points are the highest of all; 498 of 500 pilots found it by them."""
    monkeypatch.setattr(pilot, "scan", lambda joint, mixture, *_: mixture.means)
    monkeypatch.setattr(adapt, "_scattered", lambda path, mixture, *_: mixture.means)
    found = look(SpikeAndSlab())
    assert has_spike(found.modes)
    assert found.adapted.log_mean == pytest.approx(math.log(101.0), abs=0.3)
    assert found.missed == -math.inf


def test_a_spike_that_only_the_second_look_finds(monkeypatch):
    """The mixture is adapted again with it."""
    highest, ends, calls = Joint.highest, search.modes_and_mixture, []

    def blind(joint, starts):
        calls.append(len(starts))
        return ends(joint, starts[:1] * 0.0 if len(calls) < 3 else starts)

    monkeypatch.setattr(pilot, "modes_and_mixture", blind)
    monkeypatch.setattr(pilot, "scan", lambda joint, mixture, *_: mixture.means)
    monkeypatch.setattr(Joint, "highest", lambda self, n=None: highest(self, 0))
    path = SpikeAndSlab(8)
    found = look(path)
    assert has_spike(found.modes)
    assert found.missed == -math.inf
    assert_mean(weights(path, found), path.log_z, precision=0.02)


def one_sided(path, side, log_z):
    """A pilot run that knows the mode on one side only."""
    sd = 0.5 / math.hypot(1.0, 0.5 / 3.0)
    mean = np.full((1, path.n_dim), side * 1.95)
    q = StudentTMixture([1.0], mean, [1.1 * sd * np.eye(path.n_dim)], 5.0)
    adapted = AdaptedMixture(q, 1.0, 100.0, log_z, np.ones(1))
    none = np.empty((0, path.n_dim))
    return pilot.Pilot(None, adapted, q, none, np.empty(0), 0.0)


def overlooked(joint, found, rng):
    """The log evidence of modes that were seen and that a pilot run does not cover."""
    starts = adapt.heaviest(joint, found.adapted, *joint.highest())
    if not len(starts):
        return -math.inf
    return adapt.search_again(joint, found.adapted, found.laplace, starts, rng)[0]


@pytest.mark.parametrize(("side", "share"), [(1.0, 0.3), (-1.0, 0.7)])
def test_evidence_of_an_overlooked_mode(side, share):
    path = TwoModes(8, sd=0.5)
    seen = Joint(path)
    found = one_sided(path, side, path.log_z + math.log1p(-share))
    seen.values(np.full((1, 8), -1.5 * side))
    log_mass = overlooked(seen, found, np.random.default_rng(5))
    assert log_mass == pytest.approx(path.log_z + math.log(share), abs=0.2)


def test_a_mode_of_no_mass_is_not_overlooked():
    """A higher peak beside the known mode that holds e^-12 of the evidence."""

    class Needle(Gaussian):
        def terms(self, x):
            base, slope = super().terms(x)
            needle = self.log_z - 12.0 + log_normal(x, 1.0, 1e-3) - base
            return np.array([base, np.logaddexp(slope, needle)])

        def slopes(self, x):
            base, slope = super().slopes(x)
            parts = Gaussian.terms(self, x)
            needle = self.log_z - 12.0 + log_normal(x, 1.0, 1e-3) - parts[0]
            share = np.exp(needle - np.logaddexp(parts[1], needle))[:, None]
            return np.array([base, (1 - share) * slope + share * ((1.0 - x) * 1e6 - base)])

    path = Needle([0.0, 0.0, 0.0], 0.5)
    mean, sd = path.moments(1.0)
    q = StudentTMixture([1.0], [mean], [1.1 * sd * np.eye(3)], 5.0)
    seen = Joint(path)
    seen.values(np.full((1, 3), 1.0))
    adapted = AdaptedMixture(q, 1.0, 100.0, path.log_z, np.ones(1))
    found = pilot.Pilot(None, adapted, q, q.means, np.zeros(1), 0.0)
    highest = adapt.log_weights(adapted, *seen.highest())
    assert highest > math.log(20.0)  # it is looked at
    assert overlooked(seen, found, np.random.default_rng(5)) == -math.inf


def test_what_a_polynomial_leaves():
    rng = np.random.default_rng(6)
    z = 0.3 * rng.standard_normal((4000, 5))
    smooth = 0.4 * (z**3).sum(axis=1) - 0.2 * (z**4).sum(axis=1)
    bump = 0.1 * np.exp(-0.5 * ((z - z[17]) ** 2).sum(axis=1) / 0.02**2)
    assert smooth.argmax() != 17
    odd = search.unexplained_residuals(z, smooth + bump)
    assert odd.argmax() == 17
    assert odd[17] > 4.0
    impossible = np.arange(4000) % 7 == 0
    odd = search.unexplained_residuals(z, np.where(impossible, -np.inf, smooth))
    assert (odd[impossible] == -np.inf).all()
    assert np.abs(odd[~impossible]).max() < 1e-6
    for few in (z[:20], z[:1]):
        assert (search.unexplained_residuals(few, smooth[: len(few)]) == -np.inf).all()
    assert (search.unexplained_residuals(z, np.full(4000, -np.inf)) == -np.inf).all()


def test_prior_draws_that_are_lost_do_no_harm():
    path = Lossy([3.0, -1.0], 0.3)
    found = look(path)
    assert not found.unfit and found.missed == -math.inf
    assert 0.0 <= found.uncovered < 0.01
    assert abs(found.adapted.log_mean - path.log_z) < 0.1


def test_a_mixture_that_is_far_too_low_at_annealed_particles_is_unfit():
    """Even if its own draws show small weights: the importance sampling that follows would hardly ever end."""
    found = look(Gaussian([1.0, -2.0], 0.001))
    mixture = found.adapted.mixture
    away = dataclasses.replace(mixture, means=mixture.means + 0.1, dof=np.inf)
    for adapted, unfit in ((found.adapted, False), (found.adapted._replace(mixture=away), True)):
        _, variance = pilot.best_share(found.ladder.particles, adapted)
        assert pilot.is_unfit(adapted, variance, found.ladder, search.DEFAULTS) == unfit


def test_lost_draws_count_in_the_share_that_is_uncovered():
    """Of a mixture that misses everything, with twice the evidence."""
    path, rng = Lossy([1.0, 0.0], 1.0), np.random.default_rng(1)
    q = StudentTMixture([1.0], [np.full(2, 60.0)], [0.1 * np.eye(2)], 50.0)
    adapted = AdaptedMixture(q, 1.0, 1.0, path.log_z + math.log(2.0), np.ones(1))
    share, _ = adapt.share_uncovered(Joint(path), adapted, rng)
    mean, sd = path.moments(1.0)
    kept = norm.sf(-1.0, mean[0], sd)
    # The squared weights of 4,096 draws are at most twice the square of their mean.
    assert share == pytest.approx(0.5 * kept, abs=4.0 * 0.5 / math.sqrt(4096))


def test_nothing_was_overlooked():
    path = TwoModes(8, sd=0.5)
    sd = 0.5 / math.hypot(1.0, 0.5 / 3.0)
    seen, means = Joint(path), [np.full(8, m) for m in (-1.95, 1.95)]
    q = StudentTMixture([0.3, 0.7], means, [1.1 * sd * np.eye(8)] * 2, 5.0)
    seen.values(np.full((1, 8), -1.5))
    adapted = AdaptedMixture(q, 1.0, 100.0, path.log_z, np.ones(1))
    found = pilot.Pilot(None, adapted, q, q.means, np.zeros(2), 0.0)
    assert overlooked(seen, found, np.random.default_rng(5)) == -math.inf
