"""Item response: simulated answers and the model's density."""

import numpy as np
import pytest

from pytensor.compile.mode import Mode
from scipy.special import expit
from scipy.stats import lognorm, norm

from models.item_response import item_response_model, simulate_responses

PYTHON = Mode(linker="py", optimizer=None)


def test_answers():
    data = simulate_responses(2_000, 10)
    assert data.y.shape == data.person.shape == data.item.shape == (20_000,)
    chance = expit(data.discrimination * (data.ability[:, None] - data.difficulty))
    found = data.y.reshape(2_000, 10).mean(axis=0)
    error = np.sqrt((chance * (1.0 - chance)).sum(axis=0)) / 2_000
    np.testing.assert_array_less(np.abs(found - chance.mean(axis=0)), 4.0 * error)
    assert not np.array_equal(data.y, simulate_responses(2_000, 10, seed=2).y)


def test_log_density():
    data = simulate_responses(30, 5, missing=0.1)
    model = item_response_model(data)
    rng = np.random.default_rng(4)
    theta, log_a, b = (rng.standard_normal(n) for n in (30, 5, 5))
    point = {"ability": theta, "discrimination_log__": log_a, "difficulty": b}
    logit = np.exp(log_a)[data.item] * (theta[data.person] - b[data.item])
    expected = np.log(expit(np.where(data.y, logit, -logit))).sum()
    expected += norm.logpdf(theta).sum() + norm.logpdf(b, 0.0, 2.0).sum()
    expected += (lognorm.logpdf(np.exp(log_a), 0.5) + log_a).sum()
    assert float(model.compile_logp(mode=PYTHON)(point)) == pytest.approx(expected)
