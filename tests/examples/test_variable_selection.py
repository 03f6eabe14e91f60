"""The example of variable selection: what it prints, and the picture."""

import re

import numpy as np
import pytest

from examples.scripts import load

demo = load("variable_selection.py")


def draws_of(gamma):
    """Draws and statistics as pm.sample returns them for two racing steps; gamma (C, S, p)."""
    import arviz as az

    chains, draws, _ = gamma.shape
    rows = np.stack([np.full((chains, draws), 300.0), np.full((chains, draws), 50.0)], axis=-1)
    stats = {
        "race_rows": rows, "race_delta": np.broadcast_to([0.05, 0.01], rows.shape),
        "race_audited": np.broadcast_to([1.0, 2.0], rows.shape),
        "race_wrong": np.broadcast_to([0.0, 1.0], rows.shape),
        "race_audit_rows": np.zeros_like(rows), "accept": np.ones((chains, draws)),
    }  # fmt: skip
    return az.from_dict({"posterior": {"gamma": gamma}, "sample_stats": stats})


def test_indicators_that_never_change_have_no_error():
    gamma = np.random.default_rng(1).random((2, 1000, 3)) < np.array([2.0, 0.3, -1.0])
    found = demo.inclusion(draws_of(gamma.astype(int)))
    assert found["mean"][[0, 2]].tolist() == [1.0, 0.0]
    assert np.isnan(found["mcse"][[0, 2]]).all()
    assert found["mcse"][1] == pytest.approx(np.sqrt(0.21 / 2000), rel=0.3)
    assert found["rhat"][1] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_quick_example(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("statsmodels")
    path = tmp_path / "picture.png"
    assert demo.main(["--quick", "--rows", "5000", "--figure", str(path)]) == 0
    printed = capsys.readouterr().out
    assert path.stat().st_size > 10_000
    visits, simulated = printed.split("Simulated:")

    # Noise has no place in the model; chronic diseases (disea) and income-like lncoins have.
    low, high = map(float, re.search(r"noise columns got ([\d.]+) to ([\d.]+)", visits).groups())
    assert 0.0 <= low <= high < 0.1
    assert {"lncoins", "disea"} <= set(re.findall(r"│ (\w+) +│ 1\.000", visits))

    lines = re.findall(r"│ x\d+ +│ ([\d.]+) .*│ ([\d.]+) +│ *[-+\d.]* +│\n", simulated)
    assert len(lines) == 12
    estimate, exact = np.array(lines, dtype=float).T
    # 1,000 draws, of which autocorrelation leaves at least a tenth or so.
    np.testing.assert_allclose(estimate, exact, atol=5.0 * np.sqrt(0.25 / 100))

    for part, most in ((visits, 5.0), (simulated, 5.0)):
        share = float(re.search(r"indicator: ([\d.]+)%", re.sub(r"\s+", " ", part)).group(1))
        assert share < most
        errors = re.findall(r"│ (?:indicators|coefficients) .*│ ([\d.]+) to", part)
        assert len(errors) == 2
        assert max(map(float, errors)) < 0.05
        assert "RacingGibbs" in part
