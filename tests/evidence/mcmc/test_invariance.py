"""Particles drawn exactly from a member of a path must remain draws from it."""

import numpy as np
import pytest

from amc_pymc.evidence.mcmc import (
    HMC,
    KERNELS,
    DiscreteMetropolis,
    Mixed,
    Slice,
    Tuning,
    log_target,
    make_kernel,
    scale_of,
    start,
)
from tests.evidence.mcmc.paths import CONTINUOUS, LabelsAndCounts, LogGamma, TiltedMixture

P = 20_000
BETAS = (0.0, 0.4, 1.0)
#: With these about half of the proposals are accepted, so that errors of the ratio show.
SIZES = {"slice": 1.5, "hmc": 0.6}
#: Some 2500 statistics are looked at: one of them beyond this has a probability of 0.02.
STANDARD_ERRORS = 4.5


def statistics(x, reference):
    """Moments, quantiles and products (P, S) in units of reference points."""
    u = (x - reference.mean(axis=0)) / reference.std(axis=0)
    cuts = np.quantile(reference, [0.1, 0.5, 0.9], axis=0)
    columns = [u, u**2, np.clip(u, -6, 6) ** 3, *(x < c for c in cuts)]
    for i in range(x.shape[1]):
        for j in range(x.shape[1]):
            if i < j:
                columns.append(u[:, [i]] * u[:, [j]])
            if i != j:
                columns.append(u[:, [i]] ** 2 * u[:, [j]])
    return np.hstack(columns)


def z_scores(path, before, after, beta):
    """How far statistics have changed on the mean, in standard errors of the change."""
    change = statistics(after.x, before.x) - statistics(before.x, before.x)
    energy = log_target(after.terms, beta) - log_target(before.terms, beta)
    change = np.column_stack([change, energy])
    return change.mean(axis=0) / (change.std(axis=0) / np.sqrt(len(change)) + 1e-300)


def run(kernel, path, beta, size, *, dense, n_moves, seed=0):
    rng = np.random.default_rng([seed, int(10 * beta), dense])
    x = path.draw(P, beta, rng)
    assert len(x) == P
    at = list(kernel.continuous.coordinates) if isinstance(kernel, Mixed) else slice(None)
    tuning = Tuning(size, scale_of(x[:, at], dense=dense))
    before = after = start(path, x, with_gradient=kernel.needs_gradient)
    for _ in range(n_moves):
        after, accepted = kernel.step(path, after, beta, tuning, rng)
    return before, after, accepted


def assert_invariant(kernel, path, beta, size, *, dense=False, n_moves=4):
    before, after, accepted = run(kernel, path, beta, size, dense=dense, n_moves=n_moves)
    z = z_scores(path, before, after, beta)
    assert np.abs(z).max() < STANDARD_ERRORS, (np.abs(z).argmax(), np.abs(z).max())
    jumps = np.abs(after.x - before.x).mean(axis=0) / before.x.std(axis=0)
    moved = getattr(kernel, "coordinates", None)
    assert jumps[slice(None) if moved is None else list(moved)].min() > 0.1
    assert accepted.shape == (P,)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("path", CONTINUOUS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_leave_their_target_alone(name, path, beta, dense):
    n_moves = 2 if name == "slice" else 4
    assert_invariant(make_kernel(name), path(), beta, SIZES[name], dense=dense, n_moves=n_moves)


@pytest.mark.parametrize("path", [LogGamma, TiltedMixture])
@pytest.mark.parametrize(
    ("kernel", "size"),
    [
        (Slice(max_widths=3), 0.4),
        (Slice(max_widths=1), 1.5),
        (Slice(), 20.0),
        (HMC(n_leapfrog=1, jitter=0.0), 1.5),
        (HMC(n_leapfrog=5, jitter=0.9), 0.7),
        (HMC(n_leapfrog=3), 1.4),
    ],
    ids=repr,
)
def test_so_they_do_with_other_settings(kernel, size, path):
    assert_invariant(kernel, path(), 0.4, size, n_moves=6)


DISCRETE = DiscreteMetropolis((2, 0), (LabelsAndCounts.labels, None))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("name", ["discrete", *KERNELS])
def test_so_do_discrete_and_mixed_kernels(name, beta):
    kernel, size = DISCRETE, 1.0
    if name != "discrete":
        kernel, size = Mixed(KERNELS[name](coordinates=(1,)), DISCRETE), SIZES[name]
    assert_invariant(kernel, LabelsAndCounts(), beta, size, n_moves=5)
