"""Moves on prior times surrogate, for a density that is also written by hand."""

import functools

import numpy as np
import pytest

from compiled_calls import called_often
from scipy import stats

from amc_pymc.engine import Family, Graph
from amc_pymc.tall.mode import GaussianFit
from amc_pymc.tall.refresh import log_surface, propose_with_tails, run_on_surface
from amc_pymc.tall.samplers.fit import SurfaceFit, gaussian_surface
from amc_pymc.tall.surrogate import Surface, conditional, rows_of
from amc_pymc.tall.terms import Written, compiled_terms

#: Two coefficients, N(0, sd^2) and N(0, (sd lam)^2), with normal priors of a = log sd and b = log lam.
MEANS, SDS = np.array([-0.3, 0.2]), np.array([0.8, 0.6])
CENTRE, SLOPE = np.array([0.4, -0.6]), np.array([1.5, -2.0])
CURVATURE = np.array([[4.0, 1.5], [1.5, 3.0]])
HIGHEST = 0.5 * SLOPE @ np.linalg.solve(CURVATURE, SLOPE)
WRITTEN = ("centred", "scaled")
#: Scales of moves and degrees of freedom of the expansion's tails.
MOVES = [(0.4, np.inf), (0.7, 4.0)]


def log_p(a, b, z, freedom=np.inf):
    """log pi~ of (a, b) and standard normal z, by hand; arrays of any one shape, z a pair of them."""
    moved = np.stack([np.exp(a) * z[0] - CENTRE[0], np.exp(a + b) * z[1] - CENTRE[1]])
    pull = np.tensordot(CURVATURE, moved, 1)
    hyper = sum(stats.norm.logpdf(v, m, s) for v, m, s in zip((a, b), MEANS, SDS))
    normal = -0.5 * (z[0] ** 2 + z[1] ** 2)
    rows = np.tensordot(SLOPE, moved, 1) - 0.5 * np.sum(moved * pull, axis=0) - HIGHEST
    if np.isfinite(freedom):
        rows = -0.5 * (freedom + 2.0) * np.log1p(-2.0 * rows / freedom)
    return hyper + normal + rows


def standardised(x, written):
    """(a, b, z) of points x (..., 4) = (a, b, v)."""
    a, b, *v = np.moveaxis(x, -1, 0)
    if written == "centred":
        v = v[0] * np.exp(-a), v[1] * np.exp(-a - b)
    return np.stack([a, b, *v], axis=-1)


def log_p_at(x, written, freedom=np.inf):
    a, b, *z = np.moveaxis(standardised(x, written), -1, 0)
    return log_p(a, b, z, freedom) - (2.0 * a + b if written == "centred" else 0.0)


@functools.cache
def grid(freedom=np.inf):
    """Points (n, 4) in (a, b, z) and their probabilities."""
    t = np.linspace(-5.0, 5.0, 51)
    axes = [MEANS[0] + SDS[0] * t, MEANS[1] + SDS[1] * t, t, t]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 4)
    a, b, *z = points.T
    log = log_p(a, b, z, freedom)
    p = np.exp(log - log.max())
    return points, p / p.sum()


def statistics(points):
    """What chains are compared in: hyperparameters, coefficients, and how they depend on each other."""
    a, b, z, w = points.T
    first, second = np.exp(a) * z, np.exp(a + b) * w
    return np.stack(
        [a, b, a**2, b**2, a * b, z, w, z**2, first, second, first * second, a * z, b * w]
    )


def surface(written):
    graph, families = Graph(), []

    def entry(k):
        return graph.make("entry", graph.const(k), value="eta")

    def product(*nodes):
        return functools.reduce(lambda m, n: graph.make("mul", m, n), nodes)

    def normal(k, mean, log_sd, sd=1.0):
        z = graph.make("div", graph.make("sub", entry(k), graph.const(mean)), graph.const(sd))
        half = product(graph.const(-0.5), z, z)
        if log_sd is not None:
            half = product(half, graph.make("exp", product(graph.const(-2.0), log_sd)))
            half = graph.make("sub", half, log_sd)
        return Family(half, np.zeros((1, 0)), 0)

    sds = entry(0), graph.make("add", entry(0), entry(1))
    terms = [normal(k, MEANS[k], None, SDS[k]) for k in (0, 1)]
    for k, sd in zip((2, 3), sds):
        terms.append(normal(k, 0.0, sd if written == "centred" else None))
        if written == "scaled":
            scaled = product(graph.make("exp", sd), entry(k))
            families.append(Family(scaled, np.zeros((1, 0)), len(families)))
    return Surface(
        np.array([-1, -1, 0, 1]),
        np.array([0, 1, -1, -1]),
        compiled_terms(Written(graph, tuple(terms)), 3),
        rows_of(np.zeros((0, 4))),
        compiled_terms(Written(graph, tuple(families)), 2),
        np.array([2, 3] if written == "centred" else [], np.int64),
        CENTRE,
        SLOPE,
        CURVATURE,
        np.full(1, HIGHEST),
    )


def moves(written, step=1.1, leaps=3, freedom=np.inf, repeats=1):
    mass = np.array([[0.6, 0.0], [-0.2, 0.5]])
    none = np.empty((0, 4))
    fit = SurfaceFit(surface(written), mass, step, leaps, none, repeats=repeats, freedom=freedom)
    return fit.moves()


@pytest.fixture(scope="module")
def propose():
    return called_often(propose_with_tails)


def chain(propose, written, scale, freedom, number, seed, repeats=1):
    """Points (n, 4) of a chain that accepts all proposals, and the log ratios that the moves return."""
    refresh = moves(written, freedom=freedom, repeats=repeats)
    rng = np.random.default_rng(seed)
    points, out, ratios = np.zeros((2, 4)), np.empty((number + 1, 4)), np.empty(number)
    out[0] = points[0]
    for k in range(number):
        ratios[k], _ = propose(points, scale, refresh, rng)
        points[0] = points[1]
        out[k + 1] = points[0]
    return out, ratios


def z_of_batches(values, truth, batches=50):
    """Standardised errors of means of (..., n) correlated values, from means of batches."""
    n = values.shape[-1] // batches
    means = values[..., : n * batches].reshape(*values.shape[:-1], batches, n).mean(axis=-1)
    return (means.mean(axis=-1) - truth) / (means.std(axis=-1, ddof=1) / np.sqrt(batches))


@pytest.mark.slow
@pytest.mark.parametrize("written", WRITTEN)
def test_a_chain_has_the_moments_of_the_surface(written):
    points, p = grid()
    refresh, draws = moves(written), np.empty((20_000, 4))
    accepted = run_on_surface(np.zeros(4), refresh, 0.0, draws, np.random.default_rng(1))
    assert 0.6 < accepted < 0.9
    found = statistics(standardised(draws[200:], written))
    assert np.abs(z_of_batches(found, statistics(points) @ p)).max() < 4.0


@pytest.mark.slow
def test_several_trajectories_of_a_move_leave_the_surface_invariant(propose):
    points, p = grid()
    x, ratios = chain(propose, "centred", 0.5, np.inf, 20_000, 3, repeats=2)
    found = statistics(standardised(x[200:], "centred"))
    assert np.abs(z_of_batches(found, statistics(points) @ p)).max() < 4.0
    heights = log_p_at(x, "centred")
    np.testing.assert_allclose(ratios, heights[:-1] - heights[1:], atol=1e-8)


@pytest.mark.parametrize(("scale", "freedom"), MOVES)
@pytest.mark.parametrize("written", WRITTEN)
def test_moves_leave_the_surface_invariant_and_are_reversible(propose, written, scale, freedom):
    points, p = grid(freedom)
    x, _ = chain(propose, written, scale, freedom, 20_000, 2)
    found = statistics(standardised(x[200:], written))
    assert np.abs(z_of_batches(found, statistics(points) @ p)).max() < 4.0
    here, there = found[:, :-1], found[:, 1:]
    asymmetric = here[:, None] * there[None] - there[:, None] * here[None]
    above = np.triu_indices(len(found), 1)
    assert np.abs(z_of_batches(asymmetric[above], 0.0)).max() < 4.5  # of 78 numbers


@pytest.mark.parametrize(("scale", "freedom"), MOVES)
@pytest.mark.parametrize("written", WRITTEN)
def test_the_log_ratio_is_that_of_the_density(propose, written, scale, freedom):
    x, ratios = chain(propose, written, scale, freedom, 300, 3)
    values = log_p_at(x, written, freedom)
    np.testing.assert_allclose(ratios, values[:-1] - values[1:], rtol=1e-8, atol=1e-8)
    assert (np.diff(x[:, 0]) != 0.0).mean() > 0.5  # hyperparameters move
    refresh, values = moves(written), log_p_at(x, written)
    logs = np.array([log_surface(point, refresh) for point in x])
    np.testing.assert_allclose(logs - logs[0], values - values[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("written", WRITTEN)
def test_short_leaps_of_trajectories_hardly_lose_energy(propose, written):
    """Which needs the gradient of the marginal, with its trace."""
    refresh, rng = moves(written, step=0.02, leaps=50), np.random.default_rng(4)
    points, accepted = np.zeros((2, 4)), []
    for _ in range(200):
        accepted.append(propose(points, 1.0, refresh, rng)[1])
        points[0] = points[1]
    assert np.mean(accepted) > 0.999


def test_what_is_known_of_earlier_points_changes_nothing(propose):
    """Also where other moves change hyperparameters or coefficients in between."""
    refresh, rng = moves("centred"), np.random.default_rng(5)
    x = np.zeros(4)
    for k in range(50):
        found = []
        for each in (refresh, moves("centred")):
            points = np.stack([x, x])
            found.append((*propose(points, 0.7, each, np.random.default_rng(k)), *points[1]))
        np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)
        if k % 3 == 0:
            x = points[1]
        elif k % 3 == 1:
            x[k % 4] += 0.1 * rng.normal()


def test_impossible_points_are_not_left(propose):
    refresh = SurfaceFit(
        surface("centred")._replace(curvature=-1e4 * np.eye(2)),
        np.eye(2),
        0.1,
        10,
        np.empty((0, 4)),
    ).moves()
    points = np.zeros((2, 4))
    assert propose(points, 1.0, refresh, np.random.default_rng(7)) == (-np.inf, 0.0)
    assert log_surface(points[0], refresh) == -np.inf


def spike_and_slab(shared):
    """A surface of indicators g_k, log P(g_k = 1) = -0.5 + const, and v_k ~ N(0, exp(a - 2 (1 - g_k))^2).

    Its coordinates are (g_0, g_1, a, v_0, v_1) with a ~ N(0.1, 0.5^2) if the scale is ``shared``, else (g, v) with a = 0.1.
    """
    graph, terms, first = Graph(), [], 3 if shared else 2

    def entry(k):
        return graph.make("entry", graph.const(k), value="eta")

    def product(*nodes):
        return functools.reduce(lambda m, n: graph.make("mul", m, n), nodes)

    def add(term):
        terms.append(Family(term, np.zeros((1, 0)), 0))

    a = entry(2) if shared else graph.const(0.1)
    if shared:
        z = product(graph.make("sub", a, graph.const(0.1)), graph.const(2.0))
        add(product(graph.const(-0.5), z, z))
    for k in range(2):
        off = graph.make("sub", graph.const(1.0), entry(k))
        log_sd = graph.make("sub", a, product(graph.const(2.0), off))
        square = product(entry(first + k), entry(first + k))
        half = product(
            graph.const(-0.5), square, graph.make("exp", product(graph.const(-2.0), log_sd))
        )
        add(graph.make("sub", half, log_sd))
        add(product(graph.const(-0.5), entry(k)))
    d, v = first + 2, np.arange(first, first + 2)
    inner, outer = np.full(d, -1), np.full(d, -1)
    inner[v], outer[2:first] = np.arange(2), np.arange(first - 2)
    nothing = compiled_terms(Written(Graph()), 2)
    prior = compiled_terms(Written(graph, tuple(terms)), 3)
    combinations = rows_of(np.zeros((0, d)))
    gaussian = CENTRE, SLOPE, CURVATURE, np.full(1, HIGHEST)
    return Surface(inner, outer, prior, combinations, nothing, v, *gaussian)


def mass_of_indicators(a):
    """Integrals (2, 2) over v given a scale, from the closed form of a Gaussian integral."""
    out = np.empty((2, 2))
    for g in np.ndindex(2, 2):
        log_sd = a - 2.0 * (1.0 - np.array(g))
        precision = CURVATURE + np.diag(np.exp(-2.0 * log_sd))
        pull = SLOPE + CURVATURE @ CENTRE
        quadratic = 0.5 * pull @ np.linalg.solve(precision, pull)
        log = quadratic - 0.5 * np.linalg.slogdet(precision)[1] - log_sd.sum() - 0.5 * sum(g)
        out[g] = np.exp(log)
    return out


@pytest.mark.parametrize("shared", [False, True])
def test_indicators_have_their_probabilities(propose, shared):
    t = np.linspace(-6.0, 6.0, 201)
    weights = np.exp(-0.5 * t**2) if shared else np.ones(1)
    scales = 0.1 + 0.5 * t if shared else [0.1]
    expected = sum(w * mass_of_indicators(a) for w, a in zip(weights, scales))
    expected /= expected.sum()
    mixed = spike_and_slab(shared)
    mass = np.eye(np.sum(mixed.outer >= 0))
    refresh = SurfaceFit(mixed, mass, 0.1, 10, np.empty((0, 0)), np.array([0, 1])).moves()
    refresh.step[0], refresh.leaps[0] = 0.4, 4
    points, rng = np.zeros((2, refresh.surface.inner.size)), np.random.default_rng(5)
    seen = np.empty((20_000, 2), np.int64)
    for k in range(len(seen)):
        propose(points, 0.8, refresh, rng)
        points[0] = points[1]
        seen[k] = points[0, :2]
    for g in np.ndindex(2, 2):
        found = (seen == g).all(axis=1).astype(float)
        assert abs(z_of_batches(found, expected[g])) < 4.0


def test_coordinates_without_hyperparameters_are_drawn_from_their_gaussian(propose):
    precision = np.array([[4.0, 1.0, -0.5], [1.0, 2.0, 0.3], [-0.5, 0.3, 1.0]])
    mean, rng = np.array([1.0, -2.0, 0.5]), np.random.default_rng(6)
    fit = GaussianFit(mean, precision, np.arange(3))
    for active in ([0, 1, 2], [0, 2]):
        refresh = gaussian_surface(fit, np.array(active)).moves()
        points, draws = np.zeros((2, 3)), np.empty((4_000, 3))
        points[0] = mean + np.array([0.0, 0.7, 0.0])
        for k in range(len(draws)):
            ratio, accepted = propose(points, 1.0, refresh, rng)
            moved = points - mean
            change = 0.5 * np.einsum("ka,ab,kb->k", moved, precision, moved)
            assert ratio == pytest.approx(change[1] - change[0]) and accepted == 1.0
            points[0] = draws[k] = points[1]
        others = np.setdiff1d(np.arange(3), active)
        own = precision[np.ix_(active, active)]
        pull = precision[np.ix_(active, others)] @ (points[0] - mean)[others]
        w = (draws[:, active] - mean[active] + np.linalg.solve(own, pull)) @ np.linalg.cholesky(own)
        errors = np.concatenate([w.mean(axis=0), (w.T @ w / len(w) - np.eye(len(active))).ravel()])
        assert np.abs(errors).max() < 4.5 * np.sqrt(2.0 / len(w))
        np.testing.assert_array_equal(draws[:, others], np.tile(points[0, others], (len(w), 1)))


def test_the_marginal_does_not_depend_on_coefficients_that_are_far_from_theirs():
    """A scale of exp(-20) makes a coefficient of 1 improbable by 1e17 nats."""
    found = [
        conditional(np.array([a, 0.0, v, -v]), surface("centred")).value
        for a in (-20.0, -5.0)
        for v in (1.0, 1e-9)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert found[2] == pytest.approx(found[3], abs=1e-6)


def test_precisions_that_are_singular_but_for_rounding_are_impossible():
    """The difference of two coefficients has the scale exp(a), and rows know their sum."""
    g = Graph()
    a, v, w = (g.make("entry", g.const(k), value="eta") for k in range(3))
    z = g.make("mul", g.make("sub", v, w), g.make("exp", g.make("neg", a)))
    half = g.make("sub", g.make("mul", g.const(-0.5), g.make("mul", z, z)), a)
    surface = Surface(
        np.array([-1, 0, 1]),
        np.array([0, -1, -1]),
        compiled_terms(Written(g, (Family(half, np.zeros((1, 0)), 0),)), 3),
        rows_of(np.zeros((0, 3))),
        compiled_terms(Written(Graph()), 2),
        np.array([1, 2]),
        np.zeros(2),
        np.array([1.0, 2.0]),
        np.eye(2),
        np.zeros(1),
    )
    possible = []
    for a in np.arange(-20.0, 3.0):
        found = conditional(np.array([a, 0.1, 0.1]), surface)
        difference = 1.0 + 2.0 * np.exp(-2.0 * a)
        expected = 0.5 * (4.5 + 0.5 / difference) - 0.5 * np.log(difference) - a
        possible.append(found.possible)
        if found.possible:
            assert found.value == pytest.approx(expected, abs=1e-3)
    assert possible == sorted(possible) and 10 < sum(possible) < 20
