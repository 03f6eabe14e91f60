"""The example of option pricing: what it prints, and the picture."""

import re

import numpy as np
import pytest

from examples.scripts import load

demo = load("option_pricing.py")


def test_the_gain_is_the_ratio_of_variances():
    import xarray as xr

    table = xr.Dataset({"mcse": ("weights", [0.5])}, {"weights": ["predictable"]})
    found = xr.DataTree.from_dict({"/estimate": table})
    assert demo.gain(found, demo.Plain(1.0, 1.0)) == pytest.approx(4.0)


def test_the_quick_example(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    assert demo.main(["--quick", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert path.stat().st_size > 10_000
    parts = re.split(r"Strike [\d.]+:", printed)[1:]
    assert len(parts) == len(demo.STRIKES)
    for strike, part in zip(demo.STRIKES, parts, strict=True):
        exact = demo.Caplet(strike).price()
        lines = re.findall(
            r"│ (predictable|inverse-variance|uniform|plain Monte Carlo) +│ +([\d.]+) │ +([\d.]+) │",
            part,
        )
        assert len(lines) == 4
        for _, price, error in lines:
            # Four decimals are printed; Euler's scheme adds less than a thousandth.
            assert abs(float(price) - exact) < 4.0 * float(error) + 0.002
        assert float(re.search(r"takes ([\d.]+) times", part).group(1)) > 2.0
        assert float(re.search(r"formula +│ +([\d.]+)", part).group(1)) == pytest.approx(
            exact, abs=1e-4
        )
        shown = [
            int(n.replace(",", ""))
            for n in re.findall(r"(?:theta = [\d.]+|others) +│ +([\d,]+)", part)
        ]
        assert np.sum(shown) == 10_000
