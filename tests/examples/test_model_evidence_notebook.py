"""The notebook on model evidence: what is stored in it and, slow, its execution."""

import re

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

from models.radiata_pine import log_evidence

NOTEBOOK = "model_evidence.ipynb"
PICTURES = 8

EXACT = {
    "estimate_evidence, density": log_evidence(1),
    "estimate_evidence, adjusted": log_evidence(2),
    "six estimators, adjusted": log_evidence(2),
    "sample_ais, adjusted": log_evidence(2),
    "sample_smc, adjusted": log_evidence(2),
    "log Bayes factor": log_evidence(2) - log_evidence(1),
}


def check_numbers(text: str) -> None:
    """Estimates within five stated errors of the closed form, which the notebook knows too."""
    lines = re.findall(
        r"^(\w[\w ,]+?) +(-?\d+\.\d{4}) ± (\d+\.\d{4}) +exact +(-?\d+\.\d{4})$", text, re.M
    )
    assert [label for label, *_ in lines] == list(EXACT)
    for label, value, error, exact in lines:
        known = EXACT[label]
        assert float(exact) == pytest.approx(known, abs=1e-4)
        # Two chains of sample_smc do not know their error.
        stated = 0.1 if "smc" in label else float(error)
        assert 0.0 < stated <= 0.1, label
        assert float(value) == pytest.approx(known, abs=5.0 * stated), label

    assert "exact 4,553.65" in text
    factor = re.search(r"^Bayes factor ([\d,]+),", text, re.M).group(1)
    assert 4300 < float(factor.replace(",", "")) < 4800
    assert int(re.search(r"(\d+) of 10 intervals hold", text).group(1)) >= 7
    wider = dict(re.findall(r"^(slope 10 times wider, .+?)  .* ([\d.]+)$", text, re.M))
    assert float(wider["slope 10 times wider, both"]) == pytest.approx(4553.65, rel=0.05)
    assert float(wider["slope 10 times wider, adjusted only"]) == pytest.approx(456.5, rel=0.05)


def check_flags(text: str) -> None:
    """One run is flagged, that of five steps, and the flag reaches the table."""
    assert len(re.findall(r"^warning:", text, re.M)) == 1
    assert len(re.findall(r"use more steps", text)) == 2


def test_the_notebook_is_stored_executed_and_clean():
    check_stored(NOTEBOOK, n_pictures=PICTURES, most_characters=500_000)


def test_the_stored_numbers_are_right():
    text = printed(read(NOTEBOOK))
    check_numbers(text)
    check_flags(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    notebook = executed(NOTEBOOK, monkeypatch)
    assert pictures(notebook) == PICTURES
    check_numbers(printed(notebook))
    check_flags(printed(notebook))
