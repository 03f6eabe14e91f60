"""Potentials change the prior of likelihood-free samplers: known posteriors, constants, and zeros."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest

from scipy.stats import norm

import amc_pymc as amc

from tests.likelihood_free.abc_runs import rejection

DATA, SD, EPSILON = 1.0, 0.5, 0.5
SAMPLERS = [amc.sample_abc_tree, rejection]
CUTS = {
    "truncated": lambda mu: pm.math.switch(mu > 0.5, 0.0, -np.inf),
    "far truncated": lambda mu: 700.0 + pm.math.switch(mu > 1.5, 0.0, -np.inf),
    "narrow": lambda mu: -1000.0 - 0.5 * ((mu - 0.2) / 0.2) ** 2,
}
LOG_DENSITIES = {
    "truncated": lambda mu: np.where(mu > 0.5, 0.0, -np.inf),
    "far truncated": lambda mu: np.where(mu > 1.5, 0.0, -np.inf),
    "narrow": lambda mu: -0.5 * ((mu - 0.2) / 0.2) ** 2,
}


def normal(rng, mu, size):
    return rng.normal(mu, SD, size=size)


def model_of(potential=None, prior=lambda: pm.Normal("mu", 0.0, 1.5)):
    with pm.Model() as model:
        mu = prior()
        if potential is not None:
            pm.Potential("cut", potential(mu))
        pm.Simulator("y", normal, mu, epsilon=EPSILON, observed=[DATA])
    return model


def sample(model, sampler=amc.sample_abc_tree, seed=1, n=3000, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message=r"Likelihood-free inference: .*(are worth|max_time|may shift)"
        )
        return sampler(
            model=model, max_simulations=n, batched=True, random_seed=seed, progressbar=False,
            **{"adjust": "none", **options},
        )  # fmt: skip


def estimates(tree):
    """Mean and acceptance of the prior, and the variance that a mean of so many effective draws has."""
    weighted = tree["weighted_posterior"]
    w, mu = np.exp(weighted["log_weight"].values[0]), weighted["mu"].values[0]
    mean = np.average(mu, weights=w)
    assert float(tree["abc"]["final_tolerance"]) == 1.0
    n = float(tree["abc"]["effective_draws"])
    variance = np.average((mu - mean) ** 2, weights=w) / n
    return mean, variance, float(tree["abc"]["prior_acceptance"])


def known(log_density):
    """Posterior mean at the tolerance and acceptance of rejection, by quadrature."""
    mu = np.linspace(-12.0, 12.0, 400_001)
    prior = norm.pdf(mu, 0.0, 1.5) * np.exp(log_density(mu))
    prior /= prior.sum()
    high, low = (DATA + s * EPSILON for s in (1.0, -1.0))
    p = prior * (norm.cdf((high - mu) / SD) - norm.cdf((low - mu) / SD))
    return p @ mu / p.sum(), p.sum()


def agree(trees, wanted, acceptance):
    means, variances, accepts = np.array([estimates(t) for t in trees]).T
    assert abs(means.mean() - wanted) < 4.0 * math.sqrt(variances.mean() / len(trees))
    error = accepts.std(ddof=1) / math.sqrt(len(trees))
    assert abs(accepts.mean() - acceptance) < 4.0 * error


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "cut", ["truncated", "narrow", pytest.param("far truncated", marks=pytest.mark.slow)]
)
def test_the_posterior_of_a_potential(cut, sampler):
    model = model_of(CUTS[cut])
    trees = [sample(model, sampler, seed) for seed in range(4)]
    agree(trees, *known(LOG_DENSITIES[cut]))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_constants_change_nothing(sampler):
    plain, found = (
        sample(model_of(p), sampler, n=2000) for p in (None, lambda mu: 0.0 * mu + 1000.0)
    )
    for name in ("mu", "distance", "round"):
        np.testing.assert_allclose(
            found["weighted_posterior"][name], plain["weighted_posterior"][name], rtol=1e-7
        )
    np.testing.assert_allclose(found["posterior"]["mu"], plain["posterior"]["mu"], rtol=1e-7)
    a, b = (t["weighted_posterior"]["log_weight"].values[0] for t in (found, plain))
    np.testing.assert_allclose(a - a.max(), b - b.max(), atol=1e-9)
    np.testing.assert_allclose(found["abc"]["gain"], plain["abc"]["gain"], rtol=1e-9)
    # Of a Potential the mean is estimated by the weights of all simulations.
    w = np.exp(plain["simulations"]["log_weight"].values)
    error = np.sqrt((w**2).sum()) / w.sum()
    accepts = [float(t["abc"]["prior_acceptance"]) for t in (found, plain)]
    assert accepts[0] == pytest.approx(accepts[1], rel=3.0 * error)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("potential", [-np.inf, np.array(-1e308)])
def test_no_prior_at_all(potential, sampler):
    model = model_of(lambda mu: 0.0 * mu + potential)
    message = r"prior density is zero at all 374 simulations\. Check these factors: 'cut' \(a pm.Potential\)"
    with pytest.raises(ValueError, match=message):
        sample(model, sampler, n=500)


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "potential",
    [
        lambda mu: pm.math.switch(mu > 3.0, 0.0, -np.inf),
        lambda mu: -0.5 * ((mu + 3.0) / 0.01) ** 2,
        lambda mu: pm.math.switch(mu > 0.0, np.array(1e308), np.array(-1e308)),
        lambda mu: pm.math.log(mu),
        lambda mu: 0.0 * mu + np.array(1e308),
    ],
)
def test_priors_far_from_the_data(potential, sampler):
    """The prior is next to nothing wherever simulations came close: still weights that are numbers."""
    tree = sampler(
        model=model_of(potential), max_simulations=1000, batched=True, random_seed=1, progressbar=False,
    )  # fmt: skip
    assert np.isfinite(tree["weighted_posterior"]["log_weight"]).all()
    # A probability that may be smaller than floating-point numbers get.
    assert 0.0 <= float(tree["abc"]["prior_acceptance"]) <= 1.0 + 1e-9
    assert float(tree["abc"]["largest_weight"]) <= 1.0


@pytest.mark.slow
def test_a_truncated_prior_has_the_same_posterior():
    def prior():
        return pm.Truncated("mu", pm.Normal.dist(0.0, 1.5), lower=0.5)

    model = model_of(prior=prior)
    trees = [sample(model, seed=seed) for seed in range(5)]
    agree(trees, *known(LOG_DENSITIES["truncated"]))
