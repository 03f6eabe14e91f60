"""The picture of a bridge: estimates and overlaps by steps."""

import numpy as np
import pytest
import xarray as xr

import amc_pymc as amc


def result(mcse=(0.2, 0.1)):
    values = {
        "log_evidence": [-8.0, -8.5], "log_evidence_mcse": list(mcse), "overlap": [0.1, 0.8], "n_steps": [1, 16],
    }  # fmt: skip
    arms = xr.Dataset({k: ("arm", v) for k, v in values.items()})
    arms["log_evidence_half"] = ("arm", "half"), [[-7.9, -8.2], [-8.4, -8.6]]
    return xr.DataTree.from_dict({"arms": arms})


def test_estimates_are_differences_from_the_last():
    pc = amc.plot_bridge(result(), backend="none")
    np.testing.assert_allclose(pc.get_viz("point", "log_evidence")["y"], [0.5, 0.0])
    interval = pc.get_viz("interval", "log_evidence")
    centre, half = np.array([0.5, 0.0]), 1.959964 * np.array([0.2, 0.1])
    np.testing.assert_allclose(interval["y_bottom"], centre - half)
    np.testing.assert_allclose(interval["y_top"], centre + half)
    np.testing.assert_allclose(pc.get_viz("halves", "log_evidence")["y"], [0.6, 0.3, 0.1, -0.1])
    np.testing.assert_allclose(pc.get_viz("overlap", "overlap")["y"], [0.1, 0.8])
    assert pc.get_viz("title", "log_evidence")["string"] == "Log evidence −8.50 ± 0.10"
    calls = [a for a in pc.get_viz("plot", "overlap") if a["function"] == "xticks"]
    assert calls[-1]["labels"] == ["1", "16"]


def test_an_unknown_error_has_no_interval():
    pc = amc.plot_bridge(result((np.inf, 0.1)), backend="none")
    assert np.isnan(pc.get_viz("interval", "log_evidence")["y_top"]).tolist() == [True, False]


def test_without_stages_or_columns_it_is_refused():
    dt = result()
    empty = xr.DataTree.from_dict({"arms": dt["arms"].to_dataset().isel(arm=[])})
    with pytest.raises(ValueError, match="at least one stage, got none"):
        amc.plot_bridge(empty, backend="none")
    other = xr.DataTree.from_dict({"arms": dt["arms"].to_dataset().drop_vars("overlap")})
    with pytest.raises(ValueError, match=r"'arms' of dt has no overlap; pass what .*idata="):
        amc.plot_bridge(other, backend="none")
