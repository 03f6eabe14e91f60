"""BG/NBD: the likelihood against an integral and its total, simulated histories, the model."""

import math

import numpy as np
import pytensor.tensor as pt
import pytest

from pytensor.compile.mode import Mode
from scipy import special
from scipy.integrate import dblquad

from models.customer_lifetime import PARAMETERS, customer_model, log_likelihood, simulate_customers

PYTHON = Mode(linker="py", optimizer="fast_compile")
R, ALPHA, A, B = 0.8, 3.0, 0.7, 1.9


def likelihood(history, age):
    value = log_likelihood(pt.as_tensor(np.asarray(history, float)), R, ALPHA, A, B, age)
    return np.exp(value.eval(mode=PYTHON))


@pytest.mark.parametrize("history", [(0, 0.0), (1, 2.0), (4, 7.5)])
def test_likelihood_integrates_over_rates_and_chances(history):
    """Fader, Hardie & Lee (2005), equation 3, over their mixing distributions."""
    x, last, age = *history, 10.0

    def given(p, rate):
        stay = (1.0 - p) ** x * rate**x * math.exp(-rate * age)
        leave = p * (1.0 - p) ** (x - 1) * rate**x * math.exp(-rate * last) if x else 0.0
        density = p ** (A - 1.0) * (1.0 - p) ** (B - 1.0) / special.beta(A, B)
        density *= ALPHA**R * rate ** (R - 1.0) * math.exp(-ALPHA * rate) / math.gamma(R)
        return (stay + leave) * density

    # Substitutions take the poles at zero away.
    total = dblquad(
        lambda q, s: given(q**4, s**4) * 16.0 * q**3 * s**3, 0.0, 2.2, 0.0, 1.0, epsabs=1e-11
    )[0]
    assert float(likelihood(history, age)) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("centred", [True, False])
def test_log_density(centred):
    data = simulate_customers(40, 5)
    model = customer_model(data, centred=centred)
    assert np.isfinite(model.compile_logp(mode=PYTHON)(model.initial_point()))
    point = {name: np.full(np.shape(v), 0.2) for name, v in model.initial_point().items()}
    suffix = "" if centred else "_z"
    point[f"segment_alpha{suffix}"] = np.linspace(-0.4, 0.4, 5)
    u = point[f"segment_alpha{suffix}"] * (1.0 if centred else math.exp(0.2))
    shift = 0.2 * (1.0 if centred else math.exp(0.2))
    logs = {name: np.full(40, 0.2) for name in PARAMETERS}
    logs["alpha"] = 0.2 + u[data.segment]
    logs["a"] = logs["a"] + shift
    own = [np.exp(logs[name]) for name in PARAMETERS]
    expected = log_likelihood(pt.as_tensor(data.history), *own, data.age).eval(mode=PYTHON).sum()
    found = model.compile_logp(vars=[model["obs"]], mode=PYTHON)(point)
    assert float(found) == pytest.approx(float(expected))
