"""What is found out about a model once."""

import numpy as np
import pymc as pm
import pytest

from scipy.stats import norm

from amc_pymc.reading import extract_rows
from amc_pymc.reading.graphs import initial_point_of, remembering


@pytest.fixture
def counted():
    calls = []

    def square(x):
        with remembering() as known:
            if ("square", x) not in known:
                calls.append(x)
                known["square", x] = x * x
            return known["square", x]

    return square, calls


def test_results_are_kept_inside_a_block_only(counted):
    square, calls = counted
    assert (square(2), square(2)) == (4, 4) and calls == [2, 2]
    with remembering():
        assert (square(3), square(3), square(4)) == (9, 9, 16) and calls == [2, 2, 3, 4]
        with remembering():
            assert square(3) == 9 and calls == [2, 2, 3, 4]
        assert square(3) == 9 and calls == [2, 2, 3, 4]
    assert square(3) == 9 and calls == [2, 2, 3, 4, 3]


def test_points_and_rows_of_models():
    """Nobody can change a point; data may change between blocks."""
    with pm.Model() as model:
        data = pm.Data("data", np.arange(20.0))
        mu = pm.Normal("mu", data.mean(), 1)
        pm.Normal("y", mu, 1, observed=data)
    with remembering():
        with pytest.raises(ValueError, match="read-only"):
            initial_point_of(model)["mu"][...] = 7.0
        assert extract_rows(model) is extract_rows(model)
    with model:
        pm.set_data({"data": np.arange(20.0) + 10.0})
    with remembering():
        assert initial_point_of(model)["mu"] == pytest.approx(19.5)
        rows = extract_rows(model)
        assert rows(model.initial_point(), [0]) == pytest.approx(norm.logpdf(10.0, 19.5))
