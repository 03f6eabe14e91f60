"""Partitions by BART find where simulations came close."""

import numpy as np
import pytest


def test_boxes_are_dense_where_simulations_came_close():
    pytest.importorskip("pymc_bart")
    from benchmarks.papers.bart import bart

    u = np.random.default_rng(1).random((3000, 2))
    near = (u[:, 0] < 0.3).astype(float)
    found = bart(u, near, None, np.random.default_rng(2), tune=5)
    assert found.volumes.sum() == pytest.approx(1.0, abs=1e-12)
    rates = np.bincount(found.find(u), near, found.boxes) / np.bincount(
        found.find(u), minlength=found.boxes
    )
    assert found.volumes[rates > 0.5].sum() == pytest.approx(0.3, abs=0.05)
