"""What is remembered of the points at which a density was evaluated."""

import numpy as np
import pytest

from amc_pymc.evidence.modes import Joint
from tests.evidence.annealing.problems import Gaussian, HalfPlane


def gaussian():
    return Gaussian([1.0, -2.0], 0.5)


def test_the_highest_of_all_are_kept():
    """However many calls there were, and in whichever of them the highest points came."""
    path, rng = gaussian(), np.random.default_rng(3)
    seen, best = Joint(path, kept=16), []
    for _ in range(200):
        x = rng.standard_normal((50, 2))
        log_f = path.terms(x).sum(axis=0)
        best += [(v, tuple(p)) for v, p in zip(log_f, x, strict=True) if v >= np.sort(log_f)[-4]]
        (seen.values if rng.random() < 0.5 else seen.gradients)(x)
        assert seen._n <= 32
    best.sort(reverse=True)
    x, terms = seen.highest()
    assert x.shape == (16, 2)
    np.testing.assert_array_equal(x, [p for _, p in best[:16]])
    np.testing.assert_array_equal(terms, path.terms(x))
    np.testing.assert_array_equal(seen.highest(3)[0], x[:3])


@pytest.mark.parametrize("n", [1, 10])
def test_impossible_points_are_not_kept(n):
    seen = Joint(HalfPlane())
    seen.values(np.full((n, 2), -1.0))
    x, terms = seen.highest()
    assert x.shape == (0, 2)
    assert terms.shape == (2, 0)
