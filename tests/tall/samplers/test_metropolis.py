"""Transitions against closed forms: invariance, reversibility, what is counted."""

import functools

import numpy as np
import pytest

from compiled_calls import compiled_on_first_use, entry_points
from scipy import stats

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.jit import first_class
from amc_pymc.tall.decisions import LOGP, Densities, Races, as_they_are
from amc_pymc.tall.mode import GaussianFit, Moments
from amc_pymc.tall.racing import REWARDS, ExactRace, make_population
from amc_pymc.tall.samplers.chain import Log
from amc_pymc.tall.samplers.fit import SurfaceFit, gaussian_surface
from amc_pymc.tall.samplers.metropolis import (
    SURROGATE,
    MetropolisCounts,
    Moves,
    learned,
    run_draws,
)
from amc_pymc.tall.surrogate import Surface, Surrogate, no_surrogate, rows_of
from amc_pymc.tall.terms import Written, compiled_terms

# --- transitions ----------------------------------------------------------------------------------

N_ROWS = 60
_data = np.random.default_rng(60)
GROUP = (np.arange(N_ROWS) >= 35).astype(np.int64)
EXPOSURE = _data.lognormal(0.0, 1.0, size=N_ROWS)
COUNT = _data.poisson(EXPOSURE * np.array([0.06, 0.1])[GROUP])
SHAPE, RATE = np.array([1.0, 2.0]), np.array([3.0, 5.0])
POSTERIOR = [
    stats.gamma(
        SHAPE[g] + COUNT[GROUP == g].sum(), scale=1 / (RATE[g] + EXPOSURE[GROUP == g].sum())
    )
    for g in range(2)
]


@compiled_on_first_use(LOGP)
def log_prior(x):
    """Gamma priors of two rates, on the log scale."""
    return np.sum(SHAPE * x - RATE * np.exp(x))


@functools.cache
def poisson_rows(taylor):
    """Rewards of counts with two log rates; less the second-order expansion."""

    @first_class(REWARDS)
    def rewards(points, centre, rows):
        out = np.zeros((2, rows.size))
        for j in range(rows.size):
            n = rows[j]
            g = GROUP[n]
            u = points[1, g] - points[0, g]
            v = points[1, g] + points[0, g] - 2.0 * centre[g]
            there, here = np.exp(points[1, g]), np.exp(points[0, g])
            out[1, j] = COUNT[n] * u - EXPOSURE[n] * (there - here)
            if taylor:
                at = EXPOSURE[n] * np.exp(centre[g])
                out[1, j] -= (COUNT[n] - at) * u - 0.5 * at * u * v
        return out

    all_of_them = np.arange(SHAPE.size)
    return Densities(rewards, log_prior(), as_they_are, all_of_them)


def poisson_surrogate(taylor):
    centre = np.log([p.mean() for p in POSTERIOR]) + 0.3
    gradient, hessian = np.zeros(2), np.zeros((2, 2))
    if taylor:
        for g in range(2):
            own = GROUP == g
            at = EXPOSURE[own].sum() * np.exp(centre[g])
            gradient[g] = COUNT[own].sum() - at
            hessian[g, g] = -at
    return Surrogate(centre, gradient, hessian)


def moves_of(weights, scales, mean, chol, active=None):
    """Moves for N(mean, chol chol'), of which some coordinates are moved given the others."""
    mean, covariance = np.asarray(mean, float), np.asarray(chol) @ np.transpose(chol)
    fit = GaussianFit(mean, np.linalg.inv(covariance), np.arange(mean.size))
    active = np.arange(mean.size) if active is None else np.asarray(active)
    factor = fit.factor(active)
    refresh = gaussian_surface(fit, active).moves()
    numbers = (np.array(each, float) for each in (weights, scales))
    return Moves(*numbers, active, np.linalg.inv(factor), factor, refresh)


_entry = entry_points(run_draws)


def transit(starts, n, *settings, draws=1):
    """Where ``n`` transitions lead from each start, or draws after ``n`` each; every decision made on all rows."""
    densities, surrogate, population, moves, rng = settings
    races = Races(densities, surrogate, population, ExactRace().rule(population.n_raced, 2))
    counts, none = MetropolisCounts.zeros(draws), np.zeros((2, 0, starts.shape[1]))
    log = Log(*none, *np.zeros((3, 0)), np.zeros(1, np.int64))
    points, ends = np.empty((2, starts.shape[1])), np.empty((len(starts), draws, starts.shape[1]))
    state = points, races, moves, rng, log, rng
    run = _entry(0, n, n, *state, ends[0], counts)
    for start, out in zip(starts, ends, strict=True):
        points[:] = start
        assert run(0, n, n, *state, out, counts)[:2] == (draws, 0)
    return ends.reshape(-1, starts.shape[1]), MetropolisCounts(*(c.sum(axis=0) for c in counts))


def skewed_moves(kind):
    """Moves for the counts that fit badly: off centre, too wide, with a dependence there is not."""
    mean = np.log([p.mean() for p in POSTERIOR]) - 0.4
    weights = {"mixture": [0.4, 0.6], "random_walk": [1.0, 0.0]}.get(kind, [0.0, 1.0])
    moves = moves_of(weights, [1.5, 0.9], mean, np.array([[0.8, 0.0], [0.3, 0.6]]))
    if kind == "hyperparameter":
        moves = moves._replace(refresh=with_a_hyperparameter(*mean))
    return moves


def with_a_hyperparameter(first, second):
    """The first log rate determines the scale of the second, which is Gaussian given it."""
    g = Graph()
    x, y = (
        g.make("sub", g.make("entry", g.const(k), value="eta"), g.const(m))
        for k, m in enumerate((first, second))
    )
    y = g.make("mul", y, g.make("exp", g.make("mul", g.const(-0.5), x)))
    half = g.make("mul", -0.5, g.fold("add", [g.make("mul", x, x), g.make("mul", y, y), x]))
    surface = Surface(
        np.array([-1, 0]),
        np.array([0, -1]),
        compiled_terms(Written(g, (Family(half, np.zeros((1, 0)), 0),)), 3),
        rows_of(np.zeros((0, 2))),
        compiled_terms(Written(Graph()), 2),
        np.array([1]),
        np.array([second]),
        np.array([0.3]),
        np.array([[0.5]]),
        np.zeros(1),
    )
    return SurfaceFit(surface, np.eye(1), 0.6, 4, np.empty((0, 2))).moves()


def z_of_mean(values):
    return values.mean() / (values.std(ddof=1) / np.sqrt(len(values)))


#: Rows to take out: those with the largest exposures, whose part cannot be overlooked.
EXACT = tuple(np.argsort(EXPOSURE)[-4:].tolist())
CASES = [
    ("random_walk", False, ()),
    ("surrogate", True, ()),
    ("hyperparameter", True, ()),
    ("mixture", True, EXACT),
]


@functools.cache
def transitions_from_the_posterior(kind, taylor, exact, n=2, size=12_000):
    rng = np.random.default_rng([20161, n, len(kind), len(exact)])
    starts = np.log(np.column_stack([p.rvs(size, random_state=rng) for p in POSTERIOR]))
    population = make_population(N_ROWS, exact)
    surrogate = poisson_surrogate(taylor)
    ends, counts = transit(
        starts, n, poisson_rows(taylor), surrogate, population, skewed_moves(kind), rng
    )
    return starts, ends, counts


@pytest.mark.parametrize(("kind", "taylor", "exact"), CASES)
def test_the_posterior_is_left_invariant(kind, taylor, exact):
    """Gamma-Poisson posterior, skewed on the log scale: draws from it stay draws from it."""
    _, ends, counts = transitions_from_the_posterior(kind, taylor, exact)
    assert 0.1 < counts.accepted.sum() / counts.tries.sum() < 0.9
    for g in range(2):
        rates = np.exp(ends[:, g])
        truth = POSTERIOR[g]
        assert stats.kstest(rates, truth.cdf).pvalue > 1e-4
        squares = (rates - truth.mean()) ** 2 - truth.var()
        assert abs(z_of_mean(rates - truth.mean())) < 4
        assert abs(z_of_mean(squares)) < 4


@pytest.mark.parametrize(("kind", "taylor", "exact"), CASES)
def test_transitions_are_reversible(kind, taylor, exact):
    """Start and end of a stationary chain are exchangeable: E[f(x) g(x')] = E[g(x) f(x')]."""
    starts, ends, _ = transitions_from_the_posterior(kind, taylor, exact)
    for g in range(2):
        x, x_new = (np.exp(v[:, g]) / POSTERIOR[g].mean() for v in (starts, ends))
        for f, h in (
            (x * x_new**2, x_new * x**2),
            ((x < 0.5) * x_new, (x_new < 0.5) * x),
            (np.log(x) ** 3 * np.log(x_new), np.log(x_new) ** 3 * np.log(x)),
        ):
            assert abs(z_of_mean(f - h)) < 4
    cross = starts[:, 0] * ends[:, 1] - ends[:, 0] * starts[:, 1]
    assert abs(z_of_mean(cross)) < 4


# --- a Gaussian posterior -------------------------------------------------------------------------

PRECISION = np.array([[4.0, 1.0, -0.5], [1.0, 2.0, 0.3], [-0.5, 0.3, 1.0]])
CENTRE = np.array([1.0, -2.0, 0.5])


@compiled_on_first_use(LOGP)
def log_normal_density(x):
    return -0.5 * np.dot(x - CENTRE, PRECISION @ (x - CENTRE))


@compiled_on_first_use(REWARDS)
def nothing(points, centre, rows):
    return np.zeros((2, rows.size))


def gaussian_transit(starts, n, moves, rng):
    """Transitions on that posterior, of which no row knows anything."""
    densities = Densities(nothing(), log_normal_density(), as_they_are, np.arange(3))
    return transit(starts, n, densities, no_surrogate(np.zeros(3)), make_population(4), moves, rng)


@pytest.mark.parametrize("active", [[0, 1, 2], [0, 2], [1]])
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_surrogate_moves_are_always_accepted_where_the_posterior_is_the_surrogate(active, scale):
    """Also with other coordinates away from the centre."""
    rng, chol = np.random.default_rng(1), np.linalg.cholesky(np.linalg.inv(PRECISION))
    moves = moves_of([0.0, 1.0], [1.0, scale], CENTRE, chol, active)
    starts = rng.normal(0, 3, size=(200, 3))
    ends, counts = gaussian_transit(starts, 5, moves, rng)
    assert counts.tries[1] == counts.accepted[1] == 1_000
    assert counts.acceptance[1] == pytest.approx(1_000, abs=1e-6)
    others = np.setdiff1d(np.arange(3), active)
    np.testing.assert_array_equal(ends[:, others], starts[:, others])
    assert np.all(ends[:, active] != starts[:, active])


def test_squared_jumps_are_in_standard_deviations():
    rng = np.random.default_rng(2)
    chol = np.linalg.cholesky(np.linalg.inv(PRECISION))
    moves = moves_of([0.0, 1.0], [1.0, 1.0], CENTRE, chol)
    starts = CENTRE + rng.normal(size=(4_000, 3)) @ chol.T
    _, counts = gaussian_transit(starts, 1, moves, rng)
    # |w' - w|^2 / 2 is chi-square with three degrees of freedom, of variance six.
    z = (counts.jumps[1] / 4_000 / 2 - 3) / np.sqrt(6 / 4_000)
    assert abs(z) < 4


def test_estimated_acceptance_agrees_with_the_share_accepted():
    _, _, counts = transitions_from_the_posterior("mixture", True, EXACT)
    tried = counts.tries > 0
    error = (counts.accepted - counts.acceptance)[tried]
    assert np.all(np.abs(error) < 4 * np.sqrt(0.25 * counts.tries[tried]))
    assert counts.tries.sum() == 24_000
    np.testing.assert_allclose(counts.tries[tried] / 24_000, [0.4, 0.6], atol=4 * 0.0032)


@pytest.mark.parametrize(
    ("scale", "points", "replaced"), [(0.4, 400, True), (0.6, 400, False), (0.4, 60, False)]
)
def test_a_gaussian_that_fits_badly_is_replaced_by_the_moments_of_the_chain(
    scale, points, replaced
):
    rng, moments = np.random.default_rng(3), Moments()
    chol = np.linalg.cholesky(np.linalg.inv(PRECISION))
    for z in rng.normal(size=(points, 3)):
        moments.add(CENTRE + chol @ z)
    moves = moves_of([0.1, 0.9], [1.0, scale], CENTRE + 2.0, 3.0 * chol)
    first = GaussianFit(CENTRE + 2.0, PRECISION / 9.0, np.arange(3))
    refresh = moves.refresh
    moves = learned(moves, first, moments)
    assert (moves.refresh is not refresh) == replaced
    _, counts = gaussian_transit(
        CENTRE + rng.normal(size=(300, 3)) @ chol.T, 1, moves._replace(weights=np.array([0.0, 1.0])), rng
    )  # fmt: skip
    assert moves.scales[SURROGATE] == (1.0 if replaced else scale)
    assert (counts.acceptance[SURROGATE] > 0.85 * 300) == replaced
    variances = np.diag(moves.walk @ moves.walk.T) / np.diag(chol @ chol.T)
    expected = (points + 13 * 9.0) / (points + 13)  # thirteen draws of the first Gaussian
    np.testing.assert_allclose(variances, expected, rtol=4.0 * np.sqrt(2.0 / points))


def test_a_surface_with_hyperparameters_is_kept():
    moments = Moments()
    for z in np.random.default_rng(4).normal(size=(400, 2)):
        moments.add(z)
    moves = skewed_moves("hyperparameter")
    fit = GaussianFit(np.zeros(2), np.eye(2), np.arange(2))
    found = learned(moves._replace(scales=np.array([1.0, 0.1])), fit, moments)
    assert found.refresh is moves.refresh and found.scales[SURROGATE] == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random_walk", "surrogate", "hyperparameter"])
def test_a_long_chain_has_the_posterior(kind):
    """From far away, thinned: means, variances and the distribution of the skewed posterior."""
    rng = np.random.default_rng(5)
    population = make_population(N_ROWS)
    x, _ = transit(
        np.array([[-5.0, 0.0]]), 20, poisson_rows(False), poisson_surrogate(False), population,
        skewed_moves(kind), rng, draws=1_700,
    )  # fmt: skip
    for g, rates in enumerate(np.exp(x[200:]).T):
        truth = POSTERIOR[g]
        correlation = np.corrcoef(rates[1:], rates[:-1])[0, 1]
        assert correlation < 0.25
        inflation = np.sqrt((1 - max(correlation, 0)) / (1 + max(correlation, 0)))
        assert abs(z_of_mean(rates - truth.mean())) * inflation < 4
        assert abs(z_of_mean((rates - truth.mean()) ** 2 - truth.var())) * inflation < 4
        assert stats.kstest(rates[::2], truth.cdf).pvalue > 1e-4
