"""The notebook on likelihood-free inference: what is stored in it and, slow, its execution."""

import re

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

NOTEBOOK = "likelihood_free.ipynb"
PICTURES = 6
#: Posterior means of the four rates by differential equations (Carpenter 2018).
PUBLISHED = (0.55, 0.028, 0.024, 0.80)
LABELS = ("rejection", "trees", "trees, seed 7", "trees, adjusted", "mode")


def table(text: str) -> dict[str, tuple[float, list[tuple[float, float]]]]:
    """Tolerance, and mean and standard deviation of each rate, by line of the last table."""
    out = {}
    for label, tolerance, rest in re.findall(
        r"^(\w[\w ,]*?) +tolerance (\d\.\d+) +(.*)$", text, re.M
    ):
        pairs = re.findall(r"(\d\.\d{4}) ± (\d\.\d{4})", rest)
        out[label] = float(tolerance), [(float(a), float(b)) for a, b in pairs]
    return out


def check_numbers(text: str) -> None:
    """Trees beat rejection and come nearer, and all agree with each other and with what was published."""
    found = table(text)
    assert tuple(found) == LABELS
    assert all(len(rates) == 4 for _, rates in found.values())
    assert found["trees"][0] == 1.0 < found["rejection"][0] < 1.4
    gain = re.search(r"trees (\d+): ([\d.]+) times as many", text)
    assert int(gain.group(1)) >= 500
    assert 3.0 < float(gain.group(2)) < 12.0
    for k, published in enumerate(PUBLISHED):
        (mean, sd), (other, other_sd) = found["trees"][1][k], found["trees, seed 7"][1][k]
        # Two runs of 500 effective draws or more, to four standard errors.
        assert abs(mean - other) < 4.0 * (sd**2 / 500 + other_sd**2 / 500) ** 0.5
        assert abs(mean - published) < sd
        assert abs(found["mode"][1][k][0] - mean) < 0.5 * sd
        assert 0.0 < found["mode"][1][k][1] < 0.2 * sd
        assert 0.2 * sd < found["trees, adjusted"][1][k][1] < sd
    shares = re.findall(r"\d\d%: (\d+)%", text)
    assert len(shares) == 4
    assert min(map(int, shares)) >= 40


def check_warnings(text: str) -> None:
    """Rejection, the small budget and the simulator that raises are told of, and nothing else."""
    lines = re.findall(r"^warning: .*", text, re.M)
    assert len(lines) >= 4
    assert sum("simulations are worth" in line for line in lines) >= 1
    assert sum("raised ('FloatingPointError: too many hares'" in line for line in lines) == 1
    assert sum("the tolerance ended at" in line for line in lines) >= 2


def test_the_notebook_is_stored_executed_and_clean():
    check_stored(NOTEBOOK, n_pictures=PICTURES, most_characters=600_000)


def test_the_stored_numbers_are_right():
    text = printed(read(NOTEBOOK))
    check_numbers(text)
    check_warnings(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    notebook = executed(NOTEBOOK, monkeypatch)
    assert pictures(notebook) == PICTURES
    check_numbers(printed(notebook))
    check_warnings(printed(notebook))
