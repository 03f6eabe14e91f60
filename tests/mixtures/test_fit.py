"""Mixtures fitted to weighted draws."""

import math

import numpy as np
import pytest

from amc_pymc.mixtures import (
    StudentTMixture,
    choose_mixture,
    drop_component,
    fit_student_t_mixture,
    information_criterion,
    split_component,
)
from amc_pymc.mixtures.fit import used_draws


def two_in_three_dimensions(dof=5.0):
    wide = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, -0.5, 2.0]])
    return StudentTMixture(
        [0.3, 0.7], [[-4.0, 0.0, 1.0], [4.0, 1.0, 0.0]], [wide, 0.5 * np.eye(3)], dof
    )


def weighted_log_likelihood(q, x, log_weights=None):
    return np.average(
        q.log_density(x), weights=None if log_weights is None else np.exp(log_weights)
    )


def in_order(q):
    order = np.argsort(q.means[:, 0])
    return q.weights[order], q.means[order], q.scale_matrices[order]


def assert_recovered(fitted, q, n):
    """Within 4.5 standard errors, those of a t: information (dof + D) / (dof + D + 2) of a Gaussian's."""
    weights, means, scales = in_order(fitted)
    spread = (q.dof + q.n_dim + 2.0) / (q.dof + q.n_dim) if math.isfinite(q.dof) else 1.0
    assert (abs(weights - q.weights) < 4.5 * np.sqrt(q.weights * (1.0 - q.weights) / n)).all()
    for k in range(q.components):
        known = q.scale_matrices[k]
        held = n * q.weights[k]
        sd = np.sqrt(spread * np.diag(known) / held)
        assert (abs(means[k] - q.means[k]) < 4.5 * sd).all()
        error = np.sqrt(spread * (np.outer(np.diag(known), np.diag(known)) + known**2) / held)
        # The common factor of a scale matrix is less certain than the rest of it.
        assert (abs(scales[k] - known) < 4.5 * error + 0.05 * abs(known)).all()


@pytest.mark.parametrize("dof", [5.0, math.inf])
def test_recovers_a_known_mixture(dof):
    q = two_in_three_dimensions(dof)
    rng = np.random.default_rng(1)
    x = q.sample(8000, rng)
    fitted = fit_student_t_mixture(x, n_components=2, rng=rng, dof=dof)
    assert fitted.dof == dof
    assert_recovered(fitted, q, 8000)


def test_recovers_from_weighted_draws():
    q = two_in_three_dimensions()
    rng = np.random.default_rng(2)
    wide = StudentTMixture(q.weights[::-1], q.means, 1.5 * q.choleskys, 4.0)
    x = wide.sample(30_000, rng)
    log_w = q.log_density(x) - wide.log_density(x) - 1000.0
    ess = np.exp(2.0 * np.logaddexp.reduce(log_w) - np.logaddexp.reduce(2.0 * log_w))
    fitted = fit_student_t_mixture(x, log_w, n_components=2, rng=rng)
    assert_recovered(fitted, q, 0.5 * ess)


def test_likelihood_never_falls():
    q = two_in_three_dimensions()
    rng = np.random.default_rng(3)
    x, log_w = q.sample(400, rng), rng.normal(0.0, 1.0, 400)
    fitted = StudentTMixture([0.5, 0.5], q.means + 2.0, 3.0 * q.choleskys, 5.0)
    values = [weighted_log_likelihood(fitted, x, log_w)]
    for _ in range(30):
        fitted = fit_student_t_mixture(x, log_w, start=fitted, n_iter=1, ridge=0.0)
        values.append(weighted_log_likelihood(fitted, x, log_w))
    assert (np.diff(values) > -1e-12).all()
    assert values[-1] > values[0] + 0.5
    # And many iterations at once are the same thing.
    start = StudentTMixture([0.5, 0.5], q.means + 2.0, 3.0 * q.choleskys, 5.0)
    once = fit_student_t_mixture(x, log_w, start=start, n_iter=30, ridge=0.0, tolerance=1e-300)
    np.testing.assert_allclose(once.means, fitted.means, rtol=1e-6)


def test_same_seed_same_fit():
    x = two_in_three_dimensions().sample(300, np.random.default_rng(8))
    first, second = (
        fit_student_t_mixture(x, n_components=3, rng=np.random.default_rng(1)) for _ in range(2)
    )
    np.testing.assert_array_equal(first.choleskys, second.choleskys)


def test_scales_of_coordinates_do_not_matter():
    q = two_in_three_dimensions()
    x = q.sample(500, np.random.default_rng(9))
    scale = np.array([1e-6, 1.0, 1e7])
    plain = fit_student_t_mixture(x, n_components=2, rng=np.random.default_rng(1))
    scaled = fit_student_t_mixture(x * scale, n_components=2, rng=np.random.default_rng(1))
    np.testing.assert_allclose(scaled.means, plain.means * scale, rtol=1e-6)
    np.testing.assert_allclose(scaled.choleskys, plain.choleskys * scale[:, None], rtol=1e-6)


def degenerate():
    rng = np.random.default_rng(12)
    x = rng.standard_normal((30, 4))
    constant = x.copy()
    constant[:, 2] = 5.0
    collinear = x.copy()
    collinear[:, 3] = collinear[:, 0] - 2.0 * collinear[:, 1]
    return {
        "one draw": x[:1],
        "fewer draws than dimensions": x[:3],
        "constant coordinate": constant,
        "constant at zero": constant * [1.0, 1.0, 0.0, 1.0],
        "collinear": collinear,
        "all equal": np.ones((10, 4)),
        "all zero": np.zeros((10, 4)),
        "tiny": 1e-12 * x,
        "far away": 1e9 + x,
        "duplicates": np.repeat(x[:2], 20, axis=0),
        "one outlier": np.vstack([x, 1e8 * np.ones((1, 4))]),
    }


@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", sorted(degenerate()))
def test_degenerate_draws(name, k, ridge):
    x = degenerate()[name]
    start = StudentTMixture(
        np.full(k, 1.0 / k), np.arange(k)[:, None] * np.ones((1, 4)), np.array([np.eye(4)] * k), 5.0
    )
    for how in ({"n_components": k, "rng": np.random.default_rng(1)}, {"start": start}):
        for log_w in (None, np.linspace(0.0, -30.0, len(x))):
            fitted = fit_student_t_mixture(x, log_w, ridge=ridge, **how)
            assert 1 <= fitted.components <= k
            assert np.isfinite(fitted.log_density(x)).all()


def test_draws_that_cannot_come_from_the_start():
    """Gaussian components a thousand standard deviations away."""
    x = np.random.default_rng(13).standard_normal((50, 2))
    start = StudentTMixture([0.5, 0.5], [[1e200, 0.0], [0.0, 1e4]], [np.eye(2)] * 2, math.inf)
    fitted = fit_student_t_mixture(x, start=start)
    assert fitted.components == 1
    assert abs(fitted.means).max() < 1.0


def test_idle_components_are_dropped():
    q = two_in_three_dimensions()
    x = q.sample(500, np.random.default_rng(14))
    start = StudentTMixture(
        [0.3, 0.3, 0.4], [*q.means, [0.0, 1e3, 0.0]], [*q.choleskys, np.eye(3)], 5.0
    )
    assert fit_student_t_mixture(x, start=start).components == 2


def test_a_heavy_draw_keeps_its_component():
    """One draw with a third of the weight is a mode that was hardly seen."""
    q = two_in_three_dimensions()
    x = np.vstack([q.sample(500, np.random.default_rng(15)), [[0.0, 30.0, 0.0]]])
    log_w = np.zeros(501)
    log_w[-1] = math.log(250.0)
    start = StudentTMixture(
        [0.3, 0.3, 0.4], [*q.means, [0.0, 25.0, 0.0]], [*q.choleskys, np.eye(3)], 5.0
    )
    fitted = fit_student_t_mixture(x, log_w, start=start)
    assert fitted.components == 3
    assert fitted.weights[2] == pytest.approx(1.0 / 3.0, rel=0.01)
    # Its shape is the start's, its place the draw's.
    np.testing.assert_allclose(fitted.means[2], [0.0, 30.0, 0.0], atol=1e-6)
    assert 0.5 < fitted.scale_matrices[2].diagonal().min()


@pytest.mark.parametrize(
    ("dof", "expected"), [(3.0, {3.0}), (10.0, {8.0, 20.0}), (math.inf, {100.0})]
)
def test_degrees_of_freedom_are_found(dof, expected):
    q = two_in_three_dimensions(dof)
    rng = np.random.default_rng(16)
    x = q.sample(4000, rng)
    fitted = fit_student_t_mixture(x, n_components=2, rng=rng, dof=(3.0, 8.0, 20.0, 100.0))
    assert fitted.dof in expected


def ring(k, rng, n):
    angle = 2.0 * math.pi * np.arange(k) / k
    q = StudentTMixture(np.full(k, 1.0 / k), 8.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1),
                        [np.eye(2)] * k, 8.0)  # fmt: skip
    return q.sample(n, rng)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_number_of_components(k):
    rng = np.random.default_rng(17)
    assert choose_mixture(ring(k, rng, 1500), None, rng).components == k


def test_number_of_components_of_weighted_draws():
    rng = np.random.default_rng(18)
    x = rng.standard_t(4, (20_000, 2)) * 6.0
    target = StudentTMixture([0.5, 0.5], [[-5.0, 0.0], [5.0, 0.0]], [np.eye(2)] * 2, 5.0)
    proposal = StudentTMixture([1.0], [[0.0, 0.0]], [6.0 * np.eye(2)], 4.0)
    log_w = target.log_density(x) - proposal.log_density(x)
    assert choose_mixture(x, log_w, rng).components == 2


def test_split_where_the_excess_is():
    rng = np.random.default_rng(19)
    x = ring(3, rng, 900)
    labels = (np.arctan2(x[:, 1], x[:, 0]) > 0.5 * math.pi).astype(int)
    two = fit_student_t_mixture(x, labels=labels)
    even = np.zeros(900)
    both = two.log_terms(x).argmax(axis=0)
    wide = int(np.argmax(np.linalg.det(two.choleskys)))
    three = split_component(two, x, even, (both == wide).astype(float), rng)
    assert three.components == 3
    w = np.full(900, 1.0 / 900.0)
    assert information_criterion(three, x, w) > information_criterion(two, x, w)
    wrong = split_component(two, x, even, (both != wide).astype(float), rng)
    assert information_criterion(three, x, w) > information_criterion(wrong, x, w)
    nothing = np.where(both == wide, -math.inf, 0.0)
    assert split_component(two, x, nothing, (both == wide).astype(float), rng) is two


def test_many_draws_of_small_weight_count():
    """Together they have a hundred times the weight that may be left out."""
    assert used_draws(np.log(np.r_[1.0, np.full(1_000, 1e-11)])).all()


def test_draws_without_weight_do_not_count():
    q = StudentTMixture([0.5, 0.5], [[0.0], [3.0]], np.ones((2, 1, 1)), math.inf)
    x, w = np.array([[0.0], [1.0], [1e200]]), np.array([0.5, 0.5, 0.0])
    assert information_criterion(q, x, w) == information_criterion(q, x[:2], w[:2])
    assert drop_component(q, x, w)[1] == drop_component(q, x[:2], w[:2])[1]


def test_loss_of_a_dropped_component():
    q = StudentTMixture([0.2, 0.3, 0.5], [[0.0, 0.0], [1.0, 0.0], [9.0, 0.0]], [np.eye(2)] * 3, 5.0)
    rng = np.random.default_rng(20)
    x = q.sample(300, rng)
    w = rng.dirichlet(np.ones(300))
    fewer, loss = drop_component(q, x, w)
    assert fewer.means.tolist() == [[1.0, 0.0], [9.0, 0.0]]
    np.testing.assert_allclose(fewer.weights, [0.375, 0.625])
    assert loss == pytest.approx(w @ (q.log_density(x) - fewer.log_density(x)), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 1, "log_weights": np.full(5, -math.inf)}, "all -inf"),
        ({"n_components": 1, "log_weights": np.full(5, math.nan)}, "nan or inf"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_student_t_mixture(np.arange(10.0).reshape(5, 2), **arguments)


def test_bad_draws():
    x = np.zeros((3, 2))
    x[1, 1] = math.nan
    with pytest.raises(ValueError, match="x must be finite"):
        fit_student_t_mixture(x, n_components=1)
    fitted = fit_student_t_mixture(x, np.array([0.0, -math.inf, 0.0]), n_components=1)
    assert np.isfinite(fitted.means).all()
