"""Modes drawn at random: their closed form, the judgement of runs, and the tables."""

import math

import numpy as np
import pytest

from scipy.stats import norm

from benchmarks.evidence import modes as bench

SOME = bench.Modes(
    np.array([[2.0, -1.0], [9.9, 0.5]]), np.array([0.5, 0.3]), np.log([0.4, 0.6]), True
)


@pytest.mark.parametrize("uniform", [True, False])
def test_closed_form(uniform):
    modes = SOME._replace(uniform=uniform)
    axis = 10.0 * ((2.0 * np.arange(1_000) + 1.0) / 1_000 - 1.0)
    if not uniform:
        axis *= 3.0  # six standard deviations
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    prior = 2.0 * math.log(1.0 / 20.0) if uniform else norm.logpdf(x, 0.0, 5.0).sum(axis=1)
    area = np.exp(modes.log_likelihood(x) + prior).sum() * (axis[1] - axis[0]) ** 2
    assert modes.log_evidence == pytest.approx(math.log(area), abs=1e-4)
    assert np.exp(modes.log_shares() - modes.log_evidence).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("uniform", [True, False])
def test_model(uniform):
    modes = SOME._replace(uniform=uniform)
    model = modes.build()
    x = np.array([1.5, -0.5])
    found = model.potentials[0].eval({model["x"]: x})
    assert found == pytest.approx(modes.log_likelihood(x[None])[0])
    law = model.free_RVs[0].owner.op.name
    assert law == ("uniform" if uniform else "normal")
