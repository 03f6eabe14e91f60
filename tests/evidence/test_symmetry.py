"""Labels and signs that can be exchanged, and mixtures of all copies of a mode."""

import numpy as np
import pymc as pm
import pytest

from scipy.special import logsumexp
from scipy.stats import norm

import amc_pymc as amc

from amc_pymc.evidence.adapt import adapt_mixture
from amc_pymc.evidence.modes import Joint, modes_and_mixture
from amc_pymc.evidence.symmetry import (
    Block,
    Exchange,
    Images,
    Symmetries,
    Variables,
    find_symmetries,
)
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.test_search import TwoWidths


def blocks(*sizes, signed=False):
    ends = np.cumsum([int(np.prod(s)) for s in sizes])
    return tuple(
        Block(np.arange(e - int(np.prod(s)), e).reshape(s), signed, "none")
        for s, e in zip(sizes, ends)
    )


def found(log_f, variables, sums=(), n=3):
    size = 1 + max(int(b.places.max()) for b in variables) - len(sums)
    x = np.random.default_rng(1).normal(size=(n, size))

    def terms(x):
        return np.stack([-0.5 * (x**2).sum(axis=1), [log_f(row) for row in x]])

    return find_symmetries(terms, Variables(tuple(variables), tuple(sums)), x)


def moves(symmetries):
    """What each generator does, as (places, signs) of the coordinates that it changes."""
    if symmetries is None:
        return set()
    return {
        tuple((k, int(p), int(s)) for k, (p, s) in enumerate(zip(*g)) if (p, s) != (k, 1))
        for g in symmetries.generators
    }


def swaps(*pairs, signs=()):
    places = {k: (j, 1) for i, j in pairs for k, j in ((i, j), (j, i))}
    places |= {k: (k, -1) for k in signs}
    return tuple((k, *places[k]) for k in sorted(places))


#: Name: log likelihood, variables, and generators.
CASES = {
    "elements of a vector": (
        lambda x: np.prod(np.sin(x[:3])),
        blocks((3,)),
        {swaps((0, 1)), swaps((0, 2)), swaps((1, 2))},
    ),
    "two vectors together": (
        lambda x: np.sum(x[:2] * np.exp(x[2:])),
        blocks((2,), (2,)),
        {swaps((0, 1), (2, 3))},
    ),
    "columns of a matrix and a vector": (
        lambda x: np.sum(x[6:] ** 3 * x[:6].reshape(2, 3)[0] * x[:6].reshape(2, 3)[1] ** 2),
        blocks((2, 3), (3,)),
        {swaps((i, j), (3 + i, 3 + j), (6 + i, 6 + j)) for i, j in ((0, 1), (0, 2), (1, 2))},
    ),
    "both axes of a square matrix": (
        lambda x: np.sin(x[:4].reshape(2, 2) @ x[4:]) @ x[4:] ** 2,
        blocks((2, 2), (2,)),
        {swaps((0, 3), (1, 2), (4, 5))},
    ),
    "scalars": (
        lambda x: x[0] * np.exp(x[2]) + x[1] * np.exp(x[3]),
        blocks((), (), (), ()),
        {swaps((0, 1), (2, 3))},
    ),
    "a sign": (lambda x: x[0] ** 2 + x[1], blocks((), (), signed=True), {swaps(signs=[0])}),
    "signs of two together": (
        lambda x: x[0] * x[1] + x[1] ** 2 * x[2],
        blocks((), (), (), signed=True),
        {swaps(signs=[0, 1])},
    ),
    "signs of columns": (
        lambda x: np.sum(np.outer(x[:2], [1.0, 2.0]) ** 2 @ x[2:4] ** 2) + x[4],
        (*blocks((2,), (2,), signed=True), Block(np.array([4]), False, "none")),
        {swaps(signs=[k]) for k in range(4)} | {swaps(signs=[0, 1]), swaps(signs=[2, 3])},
    ),
    "components and a log odds": (
        lambda x: np.exp(x[2]) * x[0] + np.exp(-x[2]) * x[1],
        (*blocks((2,)), Block(np.array(2), True, "LogOdds")),
        {swaps((0, 1), signs=[2])},
    ),
    "nothing": (lambda x: x[0] + 2.0 * x[1] ** 3, blocks((2,), signed=True), set()),
    "nearly": (
        lambda x: np.prod(np.sin(x)) + 1e-5 * x[0],
        blocks((3,)),
        {swaps((1, 2))},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exchanges_that_are_found(name):
    log_f, variables, expected = CASES[name]
    assert moves(found(log_f, variables)) >= expected
    if not expected or name in ("two vectors together", "scalars", "nearly", "a sign"):
        assert moves(found(log_f, variables)) == expected


def test_a_simplex_has_an_element_without_a_coordinate():
    """Of x = (u_0, u_1, m_0, m_1, m_2), log-ratios u and m change together."""

    def log_f(x):
        u = np.append(x[:2], -x[:2].sum())
        return np.sum(np.exp(u) * np.sin(x[2:]))

    def terms(x):
        prior = -0.5 * (x[:, 2:] ** 2).sum(axis=1)
        return np.stack([prior, [log_f(row) for row in x]])

    simplex = Block(np.array([0, 1, 5]), False, "SimplexTransform")
    variables = Variables((simplex, Block(np.arange(2, 5), False, "none")), (np.array([0, 1]),))
    x = np.random.default_rng(1).normal(size=(2, 5))
    symmetries = find_symmetries(terms, variables, x)
    assert len(symmetries.generators) == 3
    images = symmetries.images(x[:1], np.eye(5)[None])
    assert len(images.exchanges) == 6
    values = [terms(y[None]).sum() for y in images.every(x[:1])[:, 0]]
    np.testing.assert_allclose(values, terms(x[:1]).sum(), rtol=1e-12)
    assert len(np.unique(images.every(x[:1])[:, 0].round(9), axis=0)) == 6
    np.testing.assert_allclose(np.abs(np.linalg.det(images.matrices)), 1.0)


def test_a_spread_mixture_is_the_mean_over_images():
    rng = np.random.default_rng(3)
    swap = Exchange(np.array([0, 1, 3, 2]), np.array([1.0, -1.0, 1.0, 1.0]))
    images = Images(3, (np.array([0, 2]),), (Exchange(np.arange(4), np.ones(4)), swap))
    roots = np.tril(rng.normal(size=(2, 3, 3)))
    roots[:, range(3), range(3)] = np.exp(rng.normal(size=(2, 3)))
    q = StudentTMixture([0.4, 0.6], rng.normal(size=(2, 3)), roots, 4.0)
    x = 2.0 * rng.normal(size=(50, 3))
    expected = np.logaddexp(q.log_density(x), q.log_density(images.of(x, swap.inverse())))
    np.testing.assert_allclose(images.spread(q).log_density(x), expected - np.log(2.0), rtol=1e-9)
    folded = images.folded(x, q)
    highest = np.maximum(q.log_density(x), q.log_density(images.of(x, swap)))
    np.testing.assert_array_equal(q.log_density(folded), highest)


def test_adaptation_fits_one_copy_and_covers_all():
    """Six copies of a banana; the integral is that of one times six."""
    exchanges = tuple(
        Exchange(np.array(p), np.ones(3))
        for p in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    )

    def one(x):
        return (
            norm.logpdf(x[:, 0], -9.0)
            + norm.logpdf(x[:, 1], 0.2 * (x[:, 0] + 9.0) ** 2)
            + (norm.logpdf(x[:, 2], 9.0, 0.5))
        )

    def log_f(x):
        return logsumexp([one(x[:, list(t.places)]) for t in exchanges], axis=0)

    images = Images(3, (), exchanges)
    start = StudentTMixture([1.0], [[-9.0, 0.0, 9.0]], [np.eye(3)], 5.0)
    flat = np.full
    fit = adapt_mixture(
        log_f, lambda x: flat(len(x), -np.inf), None, start, np.random.default_rng(1),
        share=0.0, images=images, enough=0.05,
    )  # fmt: skip
    assert fit.mixture.components == 6 * fit.one_copy.components
    assert abs(fit.log_mean - np.log(6.0)) < 4.0 / np.sqrt(fit.ess)
    assert fit.relative_variance < 0.3
    assert (fit.one_copy.means[:, 0] < -3.0).all()


# --- models -----------------------------------------------------------------------------------------


def three_means():
    """Three components of known weights, with means on a grid."""
    y = np.random.default_rng(3).normal([-6.0, 0.0, 6.0], size=(14, 3)).ravel()
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0, shape=3)
        pm.NormalMixture("y", w=np.full(3, 1.0 / 3.0), mu=mu, sigma=1.0, observed=y)
    grid = np.linspace(-9.0, 9.0, 91)
    each = np.exp(norm.logpdf(y[:, None], grid)) / 3.0
    pairs = each[:, :, None] + each[:, None, :]
    prior = norm.logpdf(grid, 0.0, 5.0)
    slices = [
        prior[i]
        + logsumexp(np.log(each[:, i, None, None] + pairs).sum(axis=0) + prior[:, None] + prior)
        for i in range(len(grid))
    ]
    return model, logsumexp(slices) + 3.0 * np.log(grid[1] - grid[0])


def two_planets():
    """Two sinusoids with amplitudes that are integrated out for each pair of frequencies."""
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0.0, 20.0, 40))
    y = 1.5 * np.sin(1.3 * t + 0.3) + np.sin(2.9 * t) + 0.4 * rng.normal(size=t.size)
    with pm.Model() as model:
        f = [pm.Uniform(f"f{k}", 0.5, 6.0) for k in range(2)]
        a, b = ([pm.Normal(f"{n}{k}") for k in range(2)] for n in "ab")
        waves = [a[k] * pm.math.sin(f[k] * t) + b[k] * pm.math.cos(f[k] * t) for k in range(2)]
        pm.Normal("y", waves[0] + waves[1], 0.4, observed=y)
    grid = np.linspace(0.5, 6.0, 441)
    waves = np.stack([np.sin(grid[:, None] * t), np.cos(grid[:, None] * t)], axis=1) / 0.4
    products = np.einsum("gin,hjn->gihj", waves, waves)
    pull = waves @ (y / 0.4)
    values = np.empty((grid.size, grid.size))
    own = products[range(grid.size), :, range(grid.size)]
    for i in range(grid.size):
        across = products[i].swapaxes(0, 1)
        top = np.concatenate([np.broadcast_to(own[i], own.shape), across], axis=2)
        precision = np.concatenate(
            [top, np.concatenate([across.swapaxes(1, 2), own], axis=2)], axis=1
        )
        precision = precision + np.eye(4)
        r = np.concatenate([np.broadcast_to(pull[i], pull.shape), pull], axis=1)
        mean = np.linalg.solve(precision, r[..., None])[..., 0]
        values[i] = 0.5 * np.vecdot(r, mean) - 0.5 * np.linalg.slogdet(precision)[1]
    weights = np.full(grid.size, 1.0)
    weights[[0, -1]] = 0.5
    values += np.log(weights[:, None] * weights / weights.sum() ** 2)
    return model, logsumexp(values) + norm.logpdf(y, 0.0, 0.4).sum()


def one_factor():
    """A factor with loadings on a grid, whose sign is arbitrary."""
    rng = np.random.default_rng(4)
    y = rng.normal(size=(100, 1)) * [1.0, -0.8, 0.6] + 0.7 * rng.normal(size=(100, 3))
    moments, s2 = y.T @ y, 0.49
    with pm.Model() as model:
        w = pm.Normal("w", shape=3)
        size = (w**2).sum()
        quadratic = (np.trace(moments) - w @ (moments @ w) / (s2 + size)) / s2
        pm.Potential("y", -0.5 * quadratic - 50.0 * (2.0 * np.log(s2) + pm.math.log(s2 + size)))
    grid = np.linspace(-2.5, 2.5, 101)
    w = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), axis=-1).reshape(-1, 3)
    size = (w**2).sum(axis=1)
    quadratic = (np.trace(moments) - np.vecdot(w, w @ moments) / (s2 + size)) / s2
    log_f = -0.5 * quadratic - 50.0 * (2.0 * np.log(s2) + np.log(s2 + size))
    log_f += norm.logpdf(w).sum(axis=1)
    return model, logsumexp(log_f) + 3.0 * np.log(grid[1] - grid[0])


MODELS = {
    "three means": (three_means, 6),
    "two planets": (two_planets, 2),
    "one factor": (one_factor, 2),
}


@pytest.fixture(scope="module", params=MODELS)
def problem(request):
    build, copies = MODELS[request.param]
    return *build(), copies


def test_evidence_of_models_with_copies(problem):
    model, truth, _ = problem
    evidence = amc.estimate_evidence(model, random_seed=1, progressbar=False)["evidence"]
    error = abs(float(evidence["log_evidence"]) - truth)
    assert error < 4.0 * float(evidence["log_evidence_mcse"]) + 0.002
    assert evidence.attrs["flag_names"] == ""


def test_posterior_draws_visit_all_copies():
    model, _ = three_means()
    result = amc.estimate_evidence(model, draws=200, random_seed=1, progressbar=False)
    mu = result["posterior"]["mu"].to_numpy().reshape(-1, 3)
    _, counts = np.unique(mu.argsort(axis=1), axis=0, return_counts=True)
    n = len(mu) / 6.0
    assert len(counts) == 6
    assert (np.abs(counts - n) < 5.0 * np.sqrt(n)).all()


def plain(n_dim):
    return Images(n_dim, (), (Exchange(np.arange(n_dim), np.ones(n_dim)),))


def test_exchanges_that_hardly_move_a_mode_are_left_out():
    swap = Exchange(np.array([1, 0, 2]), np.ones(3))
    flip = Exchange(np.arange(3), np.array([1.0, 1.0, -1.0]))
    symmetries = Symmetries(plain(3), (swap, flip))
    for mode, copies in (([1, 1.1, 3], 2), ([1, 5, 3], 4), ([1, 5, 0], 2), ([1, 1, 0.1], None)):
        images = symmetries.images(np.array([mode], float), np.eye(3)[None])
        assert (None if images is None else len(images.exchanges)) == copies


def test_a_narrow_mode_breaks_a_symmetry_of_the_wide_one():
    path = TwoWidths(n_dim=2, narrow=0.01, centres=(0.0, 0.3))
    swap = Exchange(np.array([1, 0]), np.ones(2))
    flip = Exchange(np.arange(2), -np.ones(2))
    joint = Joint(path)
    joint.symmetries = Symmetries(plain(2), (swap, flip))
    away = np.array([[1.0, -0.5]])
    assert joint.symmetries.holding(joint.log_density, away).generators == (swap, flip)
    modes = modes_and_mixture(joint, np.array([[0.5, -0.5], [0.31, 0.3]]))
    assert len(modes.x) == 2 and joint.images is None
    assert joint.symmetries.generators == (swap,)
