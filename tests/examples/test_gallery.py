"""The scripts of the gallery: each makes its picture, and docs/examples.md shows it."""

import re
import sys

from pathlib import Path

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from examples.scripts import load

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "gallery"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py"))
#: Scripts that run in the fast tier; others take three seconds or more.
FAST = {"race", "bridge"}
#: Width and height in pixels; other pictures are 1200 x 700.
SIZES = {
    "race": (990, 396), "evidence": (1152, 226), "abc_posterior": (572, 462),
    "abc_boxes": (750, 700),
}  # fmt: skip


def made(name, tmp_path, monkeypatch):
    """Return the size of the picture that a script has made, in bytes."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(tmp_path)])
    try:
        load(f"gallery/{name}.py").main()
    finally:
        plt.close("all")
        plt.rcdefaults()
    return (tmp_path / f"{name}.png").stat().st_size


def check_picture(path, size):
    """Check the width and height of a picture, and that it has coloured parts; axes alone are black."""
    pixels = matplotlib.image.imread(path)[..., :3]
    assert pixels.shape[1::-1] == size
    assert (pixels.max(axis=-1) - pixels.min(axis=-1) > 0.2).mean() > 0.003


def test_a_race_decides_as_all_rows_do_and_a_control_variate_saves_rows():
    script = load("gallery/race.py")
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


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SCRIPTS]
)
def test_a_picture_is_made(name, tmp_path, monkeypatch):
    assert made(name, tmp_path, monkeypatch) > 10_000
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.png"]
    check_picture(tmp_path / f"{name}.png", SIZES.get(name, (1200, 700)))


def test_an_empty_picture_is_noticed(tmp_path):
    figure, _ = plt.subplots(figsize=(9.6, 5.6))
    figure.savefig(tmp_path / "axes.png", dpi=125)
    plt.close(figure)
    with pytest.raises(AssertionError):
        check_picture(tmp_path / "axes.png", (1200, 700))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_shows_the_picture_of_a_script(name):
    page = ROOT / "docs" / "examples.md"
    text = page.read_text(encoding="utf-8")
    assert f"](../examples/gallery/{name}.py)" in text
    (shown,) = re.findall(rf"\]\((images/(?:gallery/)?{name}\.png)\)", text)
    check_picture(page.parent / shown, SIZES.get(name, (1200, 700)))
    if shown.startswith("images/gallery/"):
        assert (page.parent / shown).stat().st_size < 60_000
