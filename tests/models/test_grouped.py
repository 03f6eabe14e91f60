"""Simulated data in groups: the models evaluate, and the truth is found again."""

import grouped_small
import numpy as np
import pytest

from pytensor.compile.mode import Mode
from scipy.special import expit

from models.grouped import EXAMPLES, draw_outcomes

# Python code instead of compiled code, for graphs that are evaluated once.
PYTHON = Mode(linker="py", optimizer=None)


def rows_and_groups(name):
    return (40, 40) if name == "overdispersion" else (60, 12)


def log_density(model, point):
    return float(model.compile_logp(mode=PYTHON)(point))


@pytest.mark.parametrize("name", [n for n in EXAMPLES if "slope" not in n])
def test_centred_and_not_centred_are_one_density(name):
    """Log densities differ by the Jacobian G log sd of every factor, anywhere."""
    example = EXAMPLES[name]
    data = example.simulate(*rows_and_groups(name))
    centred, other = (example.build(data, centred) for centred in (True, False))
    rng = np.random.default_rng(5)
    z = {k: 0.3 * rng.standard_normal(np.shape(v)) for k, v in other.initial_point().items()}
    z |= {k: np.sort(v) for k, v in z.items() if k.startswith("cutpoints")}
    names = list(example.local)
    sds = {local: np.exp(z[f"sd_{local}_log__"]) for local in names}
    mean = dict.fromkeys(names, 0.0)
    point = {k: v for k, v in z.items() if not k.endswith("_z")}
    for local in names:  # the parent comes first
        if local == "class":
            mean[local] = point["school"][data.extra["parent"]]
        if "W" in data.extra:
            mean[local] = data.extra["W"] @ z["gamma"]
        point[local] = mean[local] + sds[local] * z[f"{local}_z"]
    jacobian = sum(data.n_groups[local] * np.log(sds[local]) for local in names)
    assert log_density(centred, point) + jacobian == pytest.approx(log_density(other, z))


# --- the truth is found again ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["gaussian", "logistic", "poisson", "negative_binomial", "exponential", "weibull"]
)
def test_outcomes_have_their_mean(family):
    eta, n = 0.4, 40_000
    y, truth, extra = draw_outcomes(family, np.full(n, eta), np.random.default_rng(2))
    if extra:  # survival: the mean of min(T, c) given c is the integral of the survivor function
        shape = truth.get("shape", 1.0)
        t = np.linspace(0.0, 4.0, 4_001)
        alive = np.clip((4.0 - t) / 3.0, 0.0, 1.0)  # the chance that the limit is beyond t
        mean = np.trapezoid(np.exp(-np.exp(eta) * t**shape) * alive, t)
        assert (y <= extra["limit"]).all() and 0.0 < (y == extra["limit"]).mean() < 0.5
    else:
        log_mean = family in ("poisson", "negative_binomial")
        mean = np.exp(eta) if log_mean else expit(eta) if family == "logistic" else eta
    assert abs(y.mean() - mean) < 4.0 * y.std() / np.sqrt(n)


# --- references -----------------------------------------------------------------------------------


def test_frozen_references_are_long_and_near_the_truth():
    for name in grouped_small.FAMILIES:
        truth = EXAMPLES[name].simulate(50, 10).truth
        for label, (mean, sd, ess) in grouped_small.FROZEN[name].items():
            variable, _, k = label.partition("[")
            true = np.ravel(truth[variable])[int(k.rstrip("]")) if k else 0]
            assert abs(mean - true) < 4.0 * sd, (name, label)
            assert ess > 2_000, (name, label)
