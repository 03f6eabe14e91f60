import math

import numpy as np
import pytest

from scipy.special import softmax
from scipy.stats import multivariate_normal, multivariate_t

from amc_pymc.mixtures import StudentTMixture, fit_student_t_mixture
from amc_pymc.rng import as_generator


def data(n, n_dim, seed=1):
    rng = as_generator(seed)
    x = rng.normal(size=(n, n_dim)) + 3.0 * (rng.random((n, 1)) < 0.4)
    log_weights = rng.normal(size=n)
    return x, log_weights, np.exp(log_weights) / np.exp(log_weights).sum()


def spread(k, n_dim, dof):
    """Return a mixture whose components differ in place, scale and weight."""
    rng = as_generator(7)
    factors = [np.tril(0.2 * rng.normal(size=(n_dim, n_dim)), -1) for _ in range(k)]
    factors = [f + (1.0 + 0.3 * j) * np.eye(n_dim) for j, f in enumerate(factors)]
    means = np.linspace(0.0, 3.0, k)[:, None] * np.ones(n_dim)
    weights = 1.0 + np.arange(k)
    return StudentTMixture(weights / weights.sum(), means, factors, dof)


def log_terms(x, q, dof):
    def one(j):
        if math.isinf(dof):
            return multivariate_normal(q.means[j], q.scale_matrices[j])
        return multivariate_t(q.means[j], q.scale_matrices[j], dof)

    logs = [np.log(q.weights[j]) + one(j).logpdf(x) for j in range(q.components)]
    return np.reshape(logs, (q.components, len(x)))


def step(x, w, q, ridge):
    """Perform one iteration by the formulas of the docstring, with shrinkage towards q."""
    n_dim = x.shape[1]
    resp = softmax(log_terms(x, q, q.dof), axis=0)
    means, factors, weights = [], [], resp @ w
    for j in range(q.components):
        old = q.scale_matrices[j]
        centred = x - q.means[j]
        distances = np.einsum("nd,nd->n", centred @ np.linalg.inv(old), centred)
        precision = 1.0 if math.isinf(q.dof) else (q.dof + n_dim) / (q.dof + distances)
        member = w * resp[j] * precision
        means.append(member @ x / member.sum())
        scatter = np.cov(x.T, aweights=member, bias=True).reshape(n_dim, n_dim)
        n_own = weights[j] ** 2 / np.sum((w * resp[j]) ** 2)
        size = np.trace(np.linalg.solve(old, scatter)) / n_dim
        size = (n_own * size + ridge) / (max(n_own - 1.0, 0.0) + ridge)
        strength = ridge * (n_dim + 1.0)
        shrunk = (n_own * scatter + strength * size * old) / (n_own + strength)
        factors.append(np.linalg.cholesky(shrunk))
    return StudentTMixture(weights, means, factors, q.dof)


@pytest.mark.parametrize("dof", [3.0, math.inf])
@pytest.mark.parametrize("n, n_dim, k", [(300, 1, 1), (300, 3, 4), (20_000, 2, 2)])
def test_iterations_are_those_of_the_formulas(n, n_dim, k, dof):
    x, log_weights, w = data(n, n_dim)
    other = spread(k, n_dim, dof)
    # Shrinkage is towards the start of each fit, so iterations are single fits.
    for _ in range(3):
        found = fit_student_t_mixture(x, log_weights, start=other, n_iter=1, ridge=2.0)
        other = step(x, w, other, 2.0)
        for name in ("weights", "means", "choleskys"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(other, name), rtol=1e-9, atol=1e-11
            )


def test_labels_are_fitted_with_shrinkage_towards_the_pooled_matrix():
    x, log_weights, w = data(400, 2)
    labels = (x[:, 0] > 2.0).astype(int)
    # Components so far apart that responsibilities are the labels.
    x[labels == 1] += 1000.0
    found = fit_student_t_mixture(x, log_weights, labels=labels, ridge=1.5, n_iter=1, dof=math.inf)
    share = np.array([w[labels == j].sum() for j in range(2)])
    scatters = [np.cov(x[labels == j].T, aweights=w[labels == j], bias=True) for j in range(2)]
    pooled = np.tensordot(share, scatters, 1)
    ess, strength = 1.0 / (w @ w), 1.5 * 3.0
    target = (ess * pooled + strength * np.diag(np.diag(pooled))) / (ess + strength)
    for j in range(2):
        n_own = share[j] ** 2 / np.sum(w[labels == j] ** 2)
        shrunk = (n_own * scatters[j] + strength * target) / (n_own + strength)
        np.testing.assert_allclose(found.scale_matrices[j], shrunk, rtol=1e-8)
    np.testing.assert_allclose(found.weights, share, rtol=1e-9)


def test_degrees_of_freedom_of_highest_likelihood():
    x, log_weights, w = data(500, 2)
    dofs, start = (2.0, 5.0, math.inf), spread(3, 2, 5.0)
    # After one step, the gain is below the tolerance, and the degrees of freedom are chosen.
    found = fit_student_t_mixture(x, log_weights, start=start, dof=dofs, n_iter=2, tolerance=1e9)
    other = fit_student_t_mixture(x, log_weights, start=start, n_iter=1)
    values = [w @ np.logaddexp.reduce(log_terms(x, other, dof)) for dof in dofs]
    assert found.dof == dofs[int(np.argmax(values))]


@pytest.mark.parametrize("n, n_dim, k", [(6, 2, 5), (20, 3, 12), (40, 3, 20)])
def test_components_with_too_few_draws_are_dropped(n, n_dim, k):
    x, log_weights, _ = data(n, n_dim)
    found = fit_student_t_mixture(
        x, log_weights, n_components=k, rng=as_generator(2), min_draws=2.5
    )
    assert 1 <= found.components < k
    assert math.isclose(found.weights.sum(), 1.0)
    # All are kept if no number of draws is too small.
    kept = fit_student_t_mixture(x, log_weights, n_components=k, rng=as_generator(2), min_draws=0.0)
    assert kept.components > found.components


def test_components_left_are_shrunk_towards_their_own_start():
    x, log_weights, _ = data(200, 2)
    whole = spread(2, 2, 5.0)
    far = StudentTMixture(
        [0.2, *(0.8 * whole.weights)], [[90.0, 90.0], *whole.means],
        [[[9.0, 0.0], [8.0, 1.0]], *whole.choleskys], 5.0,
    )  # fmt: skip
    found = fit_student_t_mixture(x, log_weights, start=far, n_iter=4, ridge=5.0)
    other = fit_student_t_mixture(x, log_weights, start=whole, n_iter=3, ridge=5.0)
    np.testing.assert_allclose(found.choleskys, other.choleskys, rtol=1e-9, atol=1e-12)


def test_draws_infinitely_far_away_belong_to_the_heaviest_component():
    x = np.array([[-1.0], [1.0], [1e150]])
    start = StudentTMixture([0.4, 0.6], [[-1.0], [1.0]], [[[1e-9]], [[1e-9]]], math.inf)
    found = fit_student_t_mixture(x, start=start, n_iter=1, ridge=0.0, min_draws=0.0)
    np.testing.assert_allclose(found.weights, [1.0 / 3.0, 2.0 / 3.0])
    np.testing.assert_allclose(found.means[:, 0], [-1.0, 5e149])
