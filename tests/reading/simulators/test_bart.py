"""Boxes from BART: they fill the cube, are reproducible, cut where the function jumps, and leave sums unbiased."""

import ctypes
import math
import sys

import numpy as np
import pytest

from abc_tree.problems import NormalMean, run, settings
from scipy import stats

import amc_pymc as amc

from amc_pymc.abc_tree.learning import Learner
from amc_pymc.reading.simulators import bart
from amc_pymc.reading.simulators.bart import Bart, draw_trees, fit_bart

pytest.importorskip("pymc_bart")


def crescent(n=1500, d=2, seed=1):
    u = np.random.default_rng(seed).random((n, d))
    return u, (np.abs(np.linalg.norm(u[:, :2], axis=1) - 0.8) < 0.05).astype(float)


def corner(n=1500, seed=1):
    u = np.random.default_rng(seed).random((n, 3))
    return u, ((u[:, 0] < 0.3) & (u[:, 2] > 0.6)).astype(float)


def fitted(u, near, seed=2, **options):
    return fit_bart(u, near, np.random.default_rng(seed), **options)


def same(first, second):
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("feature", "threshold", "left", "right")
    )


def cuts(partition):
    """(coordinate, threshold), in the order they were made in."""
    inner = np.flatnonzero(partition.feature >= 0)
    inner = inner[np.argsort(partition.left[inner])]
    along, at = partition.feature[inner], partition.threshold[inner]
    return [*zip(along.tolist(), at.tolist(), strict=True)]


@pytest.mark.parametrize("d", [1, 2, 5])
def test_boxes_fill_the_cube(d):
    u, near = crescent(d=d) if d > 1 else (corner()[0][:, :1], corner()[1])
    found = fitted(u, near, tune=10)
    assert found.boxes > 5
    assert found.volumes.sum() == pytest.approx(1.0, abs=1e-12)
    rng = np.random.default_rng(3)
    other = rng.random((500, d))
    inside = ((found.lower <= other[:, None]) & (other[:, None] < found.upper)).all(axis=2)
    assert (inside.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(inside.argmax(axis=1), found.find(other))
    boxes = np.repeat(np.arange(found.boxes), 50)
    np.testing.assert_array_equal(found.find(found.draw(boxes, rng)), boxes)


@pytest.mark.parametrize("n", [1500, 5000])
def test_seeds(n):
    u, near = crescent(n)
    first, again, other = (fitted(u, near, seed, tune=5) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    rng = np.random.default_rng(1)
    fit_bart(u, near, rng, tune=5)
    assert not same(first, fit_bart(u, near, rng, tune=5))


@pytest.fixture
def sweeps(monkeypatch):
    """What the sampler predicts after each sweep, and the precision of noise that it is made with."""
    library = bart._library()

    class Sweeps(list): ...

    found = Sweeps()
    found.precisions = []

    class Spy:
        def __init__(self, **given):
            self.sampler, self.y = library.PySampler.init(**given), given["y"]
            kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
            self.log_likelihood = kind(given["model"])

        def step(self, tune):
            zeros = np.zeros(len(self.y))
            value = self.log_likelihood(zeros.ctypes.data, len(zeros))
            found.precisions.append(-2.0 * value / (self.y @ self.y))
            after = self.sampler.step(tune)
            found.append(np.array(after[0]).ravel())
            return after

        all_batches = property(lambda self: self.sampler.all_batches)

    class Library:
        PyBartSettings = library.PyBartSettings
        PySampler = type("PySampler", (), {"init": staticmethod(lambda **given: Spy(**given))})

    monkeypatch.setattr(bart, "_library", lambda: Library)
    return found


def test_the_sampler_has_a_seed_of_its_own(sweeps):
    """The first sweep depends on nothing else that is drawn."""
    u, near = crescent(500)
    for seed in (1, 1, 2):
        draw_trees(u, near, np.random.default_rng(seed), tune=1)
    first, again, other = sweeps[::2]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_trees_add_up_to_what_the_sampler_predicts(sweeps):
    """At its own thresholds, which are points, too."""
    u, near = corner(500)
    near = near + np.random.default_rng(4).standard_normal(len(u))
    trees = draw_trees(u, near, np.random.default_rng(1), trees=4, draws=2, tune=30)
    assert len(trees) == 8
    assert not np.array_equal(sweeps[-1], sweeps[-2])
    for draw in range(2):
        total = sum(tree.at(u) for tree in trees[4 * draw : 4 * draw + 4])
        wanted = near.mean() + near.std() * sweeps[30 + draw]
        np.testing.assert_allclose(total, wanted, atol=1e-12)


def test_cuts_are_where_the_function_jumps():
    """The first two cuts are at both jumps, and boxes tell the labels apart."""
    u, near = corner(2000)
    found = fitted(u, near, tune=100)
    (first, at), (second, beside) = sorted(cuts(found)[:2])
    assert (first, second) == (0, 2)
    assert abs(at - 0.3) < 0.02
    assert abs(beside - 0.6) < 0.02
    boxes = found.find(u)
    p = np.bincount(boxes, near) / np.bincount(boxes)
    assert (p[boxes] * (1.0 - p[boxes])).mean() < 0.1 * near.var()


def test_trees_follow_the_function_and_not_the_noise():
    u, near = corner(2000)
    noisy = near + 0.5 * np.random.default_rng(5).standard_normal(len(near))
    total = sum(tree.at(u) for tree in draw_trees(u, noisy, np.random.default_rng(6)))
    assert ((total - near) ** 2).mean() < 0.3 * near.var()
    assert (total - noisy).std() == pytest.approx(0.5, abs=0.05)


def test_noise_is_drawn_given_residuals(sweeps):
    """The precision that each sweep was made with, by residuals of the one before, is chi-square."""
    u, near = corner(1000)
    near = near + 0.5 * np.random.default_rng(4).standard_normal(len(u))
    draw_trees(u, near, np.random.default_rng(1), tune=60)
    y = (near - near.mean()) / near.std()
    squares = np.array([((predicted - y) ** 2).sum() for predicted in sweeps])
    scaled = np.array(sweeps.precisions[1:]) * (3.0 * 0.1 + squares[:-1])
    n, df = len(scaled), len(u) + 3.0
    assert n == 60
    assert abs(scaled.mean() - df) < 4.0 * math.sqrt(2.0 * df / n)
    assert abs(scaled.std(ddof=1) / math.sqrt(2.0 * df) - 1.0) < 4.0 / math.sqrt(2.0 * n)


def test_leaves_are_capped_and_hold_enough_simulations():
    u, near = crescent(5000)
    found = fitted(u, near, tune=5, min_samples=40)
    assert np.bincount(found.find(u), minlength=found.boxes).min() >= 40
    assert 10 < found.boxes
    capped = fitted(u, near, tune=5, min_samples=40, max_leaves=7)
    assert capped.boxes == 7
    assert cuts(capped) == cuts(found)[:6]


def test_more_draws_make_more_boxes():
    u, near = crescent(1000)
    one, four = (fitted(u, near, tune=10, draws=draws) for draws in (1, 4))
    assert four.boxes > one.boxes


@pytest.mark.parametrize(
    ("u", "near"),
    [
        (np.empty((0, 2)), np.empty(0)),
        (np.full((1, 2), 0.5), np.ones(1)),
        (crescent(100)[0], np.zeros(100)),
        (crescent(100)[0], np.full(100, 1e-310)),
        (np.full((100, 1), 0.5), (np.arange(100) < 50).astype(int)),
        (crescent(20)[0], crescent(20)[1]),
    ],
)
def test_nothing_to_cut(u, near):
    assert fitted(u, near, tune=3).boxes == 1


def test_tiny_labels_are_not_lost():
    u, near = corner(800)
    assert same(fitted(u, near, tune=5), fitted(u, 2.0**-1040 * near, tune=5))


def test_many_ties_at_the_edges():
    u = np.repeat(np.array([[0.0], [1e-12], [0.5], [1.0]]), 50, axis=0)
    found = fitted(u, np.repeat([1.0, 0.0, 1.0, 0.0], 50))
    assert 1 < found.boxes <= 3
    assert (found.upper - found.lower).min() >= 1e-9


@pytest.mark.parametrize(
    ("u", "near", "message"),
    [
        (np.zeros(3), np.zeros(3), r"u must be an array \(n, D\).*got shape \(3,\)"),
        (np.zeros((3, 0)), np.zeros(3), r"u must be an array \(n, D\)"),
        (np.zeros((3, 1)), np.zeros(2), r"kernel_values must have one value for each of 3 points"),
        (np.full((3, 1), np.nan), np.zeros(3), "u must be in the unit cube, got nan"),
        (np.full((3, 1), 1.5), np.zeros(3), "u must be in the unit cube, got 1.5"),
        (
            np.zeros((3, 1)),
            np.full(3, np.nan),
            "kernel_values must be finite and not negative, got nan",
        ),
        (
            np.zeros((3, 1)),
            np.full(3, np.inf),
            "kernel_values must be finite and not negative, got inf",
        ),
        (
            np.zeros((3, 1)),
            np.full(3, -1.0),
            "kernel_values must be finite and not negative, got -1",
        ),
    ],
)
def test_bad_arrays(u, near, message):
    with pytest.raises(ValueError, match=message):
        fitted(u, near)


@pytest.mark.parametrize("name", ["trees", "draws", "tune", "max_leaves", "min_samples"])
def test_bad_counts(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Bart(**{name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got 2.0"):
        Bart(**{name: 2.0})


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc_bart", None)
    with pytest.raises(ImportError, match=r"pip install 'amc-pymc\[bart\]'"):
        Bart()


def test_an_interrupt_is_not_lost(monkeypatch):
    class Interrupted:
        def __getattr__(self, name):
            if name == "frombuffer":
                raise KeyboardInterrupt
            return getattr(np, name)

    monkeypatch.setattr(bart, "np", Interrupted())
    u, near = corner(100)
    with pytest.raises(KeyboardInterrupt):
        draw_trees(u, near, np.random.default_rng(1))


def test_trees_that_grow_too_deep_are_drawn_again(monkeypatch, capfd):
    u, near = corner(300)
    wanted = draw_trees(u, near, np.random.default_rng(1), tune=5)
    monkeypatch.setattr(bart, "_DEPTHS", (1, 10))
    found = draw_trees(u, near, np.random.default_rng(1), tune=5)
    assert len(found) == len(wanted)
    assert not all(same(a.partition, b.partition) for a, b in zip(found, wanted, strict=True))
    monkeypatch.setattr(bart, "_DEPTHS", (1,))
    with pytest.raises(
        RuntimeError, match=r"more than 1 cuts in a row.*trees=20 or less than tune=5"
    ):
        draw_trees(u, near, np.random.default_rng(1), tune=5)
    capfd.readouterr()


def test_by_name():
    def simulator(rng, mu):
        return rng.normal(mu, 0.1)

    problem = amc.SimulatorProblem({"mu": stats.uniform()}, simulator, observed=0.4)
    given = {"model": problem, "batched": True, "progressbar": False, "tolerance": 0.2}
    first, again = (
        amc.sample_abc_tree(
            50,
            max_simulations=1000,
            batch_size=500,
            random_seed=1,
            proposal=amc.TreeProposal(partition="bart"),
            **given,
        )
        for _ in range(2)
    )
    assert first["abc"]["boxes"].max() > 1
    np.testing.assert_array_equal(first["posterior"]["mu"], again["posterior"]["mu"])


@pytest.mark.slow
def test_the_posterior_at_a_tolerance():
    """As for the other partitions: weighted sums over accepted simulations are unbiased."""
    problem, tolerance, n = NormalMean(), 0.01, 3000
    z, mean, sd, below = problem.known(tolerance)
    sums = []
    for seed in range(25):
        learner = Learner(Bart(tune=10), trees=2)
        history = run(problem, n, settings(learner, tolerance=tolerance, accepts=300), seed)
        hit = np.exp(history.log_ratio) * (history.distance <= tolerance)
        u = history.u[:, 0]
        sums.append(
            np.array([hit.sum(), hit @ u, hit @ (u - mean) ** 2, hit @ (u < problem.OBSERVED)]) / n
        )
    for x, wanted in zip(np.array(sums).T, [z, z * mean, z * sd**2, z * below], strict=True):
        assert abs(x.mean() - wanted) < 4.0 * x.std(ddof=1) / math.sqrt(len(x))
    w = np.exp(history.log_weight[history.distance <= tolerance])
    assert w.sum() ** 2 / (w @ w) / (n * z) > 2.5
