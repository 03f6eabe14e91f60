"""The notebook on evidence from draws: what is stored in it and, slow, its execution."""

import math
import re

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

from models.radiata_pine import log_evidence

NOTEBOOK = "evidence_from_draws.ipynb"
# What is looked at, and a part of the flag that it must have; None for no flag.
FLAGS = {
    "good draws": None,
    "slow chains": "effective draws of a coordinate",
    "chains on their way": "the chains of idata do not agree",
    "wrong data": "the draws are not distributed as the model's density says",
    "copies": "each draw of idata is there 5.0 times",
    "particles": "particles of sequential Monte Carlo",
    "eight schools, centred": "transitions in idata diverged",
    "small budget": "the standard error is",
    "different places": "the chains of idata do not agree",
    "one sign": "found a mode that the draws have not visited",
}


def check_estimates(text: str) -> None:
    """Estimates of the regressions within five stated errors of the closed form."""
    found = re.findall(r"^(.+?) +(-\d+\.\d{4}) ± (\d\.\d{4}) +exact +(-\d+\.\d{4}) +flags: none$", text, re.M)  # fmt: skip
    assert [label for label, *_ in found] == ["density", "adjusted density"]
    for number, (_, value, error, exact) in enumerate(found, start=1):
        assert float(exact) == pytest.approx(log_evidence(number), abs=1e-4)
        assert float(value) == pytest.approx(float(exact), abs=5.0 * float(error) + 1e-4)
        assert float(error) < 0.05
    assert "refused: the log density of the model differs from" in text


def check_flags(text: str) -> None:
    """Each way to spoil draws has its flag, and nothing else has."""
    parts = re.split(r"^(.+): off by ([+-]\d+\.\d+), stated error (\d+\.\d+)$", text, flags=re.M)
    looks = {parts[i]: (float(parts[i + 1]), float(parts[i + 2]), parts[i + 3]) for i in range(1, len(parts) - 1, 4)}  # fmt: skip
    assert list(looks) == list(FLAGS)
    for label, flag in FLAGS.items():
        off, error, below = looks[label]
        said = re.findall(r"^   - (.+)$", below, re.M)
        assert (said == ["no flag"]) if flag is None else any(flag in line for line in said), label
        if label in ("good draws", "copies", "small budget"):
            assert abs(off) < 5.0 * error + 1e-3
    assert len(re.findall("   - ", looks["small budget"][2])) == 1
    assert abs(looks["wrong data"][0]) > 0.5  # that is what the flag is about
    share = 1.0 / (1.0 + math.exp(-1.0 / 3.0))  # of the sign that the prior prefers, about
    assert looks["one sign"][0] == pytest.approx(math.log(share), abs=0.02)
    searched = re.search(r"search for modes: off by ([+-]\d\.\d+), stated error (\d\.\d+), flags: none", text)  # fmt: skip
    assert searched and abs(float(searched[1])) < 5.0 * float(searched[2]) + 1e-3


def test_the_notebook_is_stored_executed_and_clean():
    check_stored(NOTEBOOK, n_pictures=0, most_characters=60_000)


def test_the_stored_numbers_are_right():
    text = printed(read(NOTEBOOK))
    check_estimates(text)
    check_flags(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    notebook = executed(NOTEBOOK, monkeypatch)
    assert pictures(notebook) == 0
    text = printed(notebook)
    check_estimates(text)
    check_flags(text)
