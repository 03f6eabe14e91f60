"""The scripts of the gallery: the race decides as all rows do, and each makes its picture."""

import importlib.util
import sys

from pathlib import Path

import numpy as np
import pytest

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"


def load(name):
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name, tmp_path, monkeypatch):
    """Return the size of the picture that a script has made, in bytes."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(tmp_path)])
    load(name).main()
    return (tmp_path / f"{name}.png").stat().st_size


def test_the_race(tmp_path, monkeypatch):
    assert made("race", tmp_path, monkeypatch) > 10_000


def test_a_race_decides_as_all_rows_do_and_a_control_variate_saves_rows():
    script = load("race")
    rng = np.random.default_rng(1)
    X, y = script.simulate(rng)
    centre, hessian = script.mode_and_hessian(X, y)
    p = 1.0 / (1.0 + np.exp(-X @ centre))
    np.testing.assert_allclose(X.T @ (y - p), 0.0, atol=1e-6 * len(y))
    there = centre + np.linalg.cholesky(np.linalg.inv(-hessian)) @ rng.normal(size=len(centre))
    rewards = script.log_likelihoods(X, y, there) - script.log_likelihoods(X, y, centre)
    known = script.expansions(X, y, centre, there) - script.expansions(X, y, centre, centre)
    order, threshold = rng.permutation(len(y)), rewards.sum() - 1.0
    plain = script.race(rewards, 0.0, threshold, order)
    controlled = script.race(rewards - known, known.sum(), threshold, order)
    assert controlled[1, -1] > threshold
    assert controlled[0, -1] == script.FIRST_BATCH < plain[0, -1]
    # Third-order residuals remain; with a wrong second-order term the interval is wider.
    assert controlled[2, -1] < 0.1
    np.testing.assert_allclose(controlled[1, -1], rewards.sum(), atol=controlled[2, -1])


def test_heights_hold_their_shares():
    density = np.arange(1.0, 101.0).reshape(10, 10)
    low, high = load("abc_posterior").heights(density, (0.5, 0.95))
    for height, share in ((high, 0.5), (low, 0.95)):
        assert share <= density[density >= height].sum() / density.sum() < share + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evidence", "abc_posterior"])
def test_a_picture_is_made(name, tmp_path, monkeypatch):
    assert made(name, tmp_path, monkeypatch) > 10_000
