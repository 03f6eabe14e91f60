"""Centred coordinates of hierarchical models, and inference with them, against quadrature."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest

from scipy import stats
from scipy.special import logsumexp

import amc_pymc as amc

from amc_pymc.likelihood_free.choose import (
    Candidate,
    Space,
    Tilt,
    best_candidate,
    kernel_score,
    pseudo_observed,
    tilted,
)
from amc_pymc.likelihood_free.model_prior import PriorTransform
from amc_pymc.likelihood_free.proposal import NONCENTRED
from amc_pymc.mixtures import StudentTMixture


def cube_of(write):
    with pm.Model(coords={"group": range(3)}) as model:
        write()
    return PriorTransform(model, {})


def many_families():
    mu, tau = pm.Normal("mu", 1.0, 2.0), pm.HalfNormal("tau", 1.5)
    pm.Normal("effect", mu, tau, shape=(2, 2))
    pm.Uniform("below", 0.0, tau)
    pm.Gamma("rate", 2.0, tau)
    pm.Beta("share", 2.0, 1.0 + tau)
    pm.Truncated("positive", pm.Normal.dist(mu, 1.0), lower=0.0)
    pm.LogNormal("size", mu, tau)


def test_centred_coordinates_lead_back_to_the_cube():
    cube = cube_of(many_families)
    u = np.random.default_rng(1).uniform(0.01, 0.99, (500, cube.n_dim))
    own = cube.centred(u)
    x = own.to(u)
    np.testing.assert_allclose(own.back(x), u, atol=1e-9)
    for part in np.split(
        x[:, 2:], [4, 5, 6, 7, 8], axis=1
    ):  # elements of a variable have the same units
        np.testing.assert_allclose([part.mean(), part.std()], [0.0, 1.0], atol=1e-9)


def test_densities_in_centred_coordinates_are_the_prior():
    """The change of variables from the cube, where the prior is uniform, by numerical derivatives."""
    cube = cube_of(many_families)
    u = np.random.default_rng(2).uniform(0.1, 0.9, (20, cube.n_dim))
    own, z, step = cube.centred(u), NONCENTRED.to(u), 1e-5
    slopes = np.stack(
        [
            (own.to(NONCENTRED.back(z + e)) - own.to(NONCENTRED.back(z - e))) / (2.0 * step)
            for e in step * np.eye(cube.n_dim)
        ],
        axis=2,
    )
    expected = NONCENTRED.log_prior(z) - np.linalg.slogdet(slopes)[1]
    np.testing.assert_allclose(own.log_prior(own.to(u)), expected, atol=1e-5)


def test_scores_do_not_depend_on_coordinates():
    rng = np.random.default_rng(6)
    x, at, weight, h = rng.normal(size=(200, 3)), np.ones(3), rng.random(200), np.array([0.1, 0.5])
    scores = kernel_score(x, weight, at, NONCENTRED.log_prior(at[None])[0], h)
    scaled = NONCENTRED.log_prior(at[None])[0] - 3.0 * np.log(10.0)
    np.testing.assert_allclose(kernel_score(10.0 * x, weight, 10.0 * at, scaled, h), scores)
    assert scores[1] > -1.0  # draws of the prior: about as good as the prior


def independent():
    pm.Normal("mu")
    pm.HalfNormal("tau")


def multivariate():
    pm.MvNormal("effect", pm.Normal("mu") * np.ones(2), np.eye(2))


def discrete():
    pm.Poisson("count", pm.HalfNormal("rate"))


def without_quantiles():
    pm.VonMises("angle", pm.Normal("mu"), 1.0)


def named():
    pmd.Normal("effect", pmd.Normal("mu"), 1.0, dims="group")


def drawn():
    pm.CustomDist("x", pm.Normal("mu"), dist=lambda mu, size: pm.Exponential.dist(pm.math.exp(mu)))


@pytest.mark.parametrize("write", [independent, multivariate, discrete, without_quantiles, named])
def test_priors_without_centred_coordinates(write):
    cube = cube_of(write)
    assert cube.centred(np.full((2, cube.n_dim), 0.5)) is None


def test_a_prior_that_draws_numbers_is_refused_by_its_name():
    with pytest.raises(ValueError, match="'x' draws random numbers"):
        cube_of(drawn)


# --- groups of normal means --------------------------------------------------------------------------------------

GROUPS, NOISE = 10, 0.3
DATA = np.array([-1.9, -1.2, -0.8, -0.3, -0.1, 0.2, 0.5, 0.9, 1.3, 1.8])


def noisy(rng, effect, size):
    return rng.normal(effect, NOISE, size=size)


def grouped(useless=0):
    """Model of effects, with so many statistics that depend on nothing beside those of groups."""

    def simulator(rng, effect, size):
        n = (*np.shape(effect)[:-1], useless)
        return np.concatenate([noisy(rng, effect, None), rng.normal(0.0, NOISE, n)], axis=-1)

    with pm.Model() as model:
        tau = pm.HalfNormal("tau")
        effect = pm.Normal("effect", 0.0, tau, shape=GROUPS)
        data = np.append(DATA, np.zeros(useless))
        pm.Simulator("y", simulator, effect, epsilon=0.3, observed=data)
    return model


def exact():
    """Posterior mean and standard deviation of tau, and standard deviations of effects, by quadrature."""
    tau = np.linspace(1e-3, 5.0, 5001)
    log = stats.halfnorm.logpdf(tau)
    log += stats.norm.logpdf(DATA, 0.0, np.hypot(tau, NOISE)[:, None]).sum(axis=1)
    p = np.exp(log - logsumexp(log))
    mean, share = p @ tau, (tau**2 / (tau**2 + NOISE**2))[:, None]
    within = p @ (NOISE**2 * share)
    between = p @ (share * DATA) ** 2 - (p @ (share * DATA)) ** 2
    return mean, np.sqrt(p @ (tau - mean) ** 2), np.sqrt(within + between)


def test_pseudo_observations_have_parameters_of_the_posterior():
    """The closest data have a smaller variance between groups: there are more of these."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5000, 1 + GROUPS))
    tau = stats.halfnorm.ppf(stats.norm.cdf(x[:, 0]))
    data = noisy(rng, tau[:, None] * x[:, 1:], (5000, GROUPS))
    gaps, even = data - DATA, np.zeros(5000)
    distance = np.sqrt((gaps**2).sum(axis=1))
    centred = np.column_stack([x[:, 0], tau[:, None] * x[:, 1:]])
    tilt = tilted([x, centred], gaps, distance, even)
    assert list(tilt.columns) == [0]
    mean, sd, _ = exact()
    chosen, closest = (pseudo_observed(x, distance, even, 100.0, t, rng) for t in (tilt, None))
    # The posterior of a linear regression is not exact.
    assert abs(tau[chosen].mean() - mean) < 0.75 * sd
    assert tau[closest].mean() < mean - sd


def simulated(d, rng):
    """Parameters with standard normal priors, their data, and those that were observed."""
    x = rng.normal(size=(5000, d))
    return x, x + 0.5 * rng.normal(size=x.shape), rng.normal(0.0, 1.1, size=d)


def selected(x, data, observed, rng, tilt=None):
    """Simulations that are taken as data."""
    distance = np.sqrt(((data - observed) ** 2).sum(axis=1))
    return pseudo_observed(x, distance, np.zeros(5000), 100.0, tilt, rng)


@pytest.mark.parametrize("d", [1, 3])
def test_errors_at_pseudo_observations_are_those_of_posteriors(d):
    rng, squares = np.random.default_rng(6), []
    for _ in range(20):
        x, data, observed = simulated(d, rng)
        chosen = selected(x, data, observed, rng)
        errors = x[chosen] - data[chosen] / 1.25
        squares.append((errors**2).mean() / 0.2)
    assert abs(np.mean(squares) - 1.0) < 4.0 * np.std(squares) / np.sqrt(20) < 0.2


def test_scores_take_account_of_how_pseudo_observations_were_selected():
    """Likely parameters are selected, which makes errors smaller than posteriors say."""
    rng, squares = np.random.default_rng(7), []
    for _ in range(20):
        x, data, observed = simulated(1, rng)
        posterior = StudentTMixture([1.0], [observed / 1.25], [[[0.2]]], np.inf)
        tilt = Tilt(np.array([0]), posterior)
        chosen = selected(x, data, observed, rng, tilt)
        targets = np.concatenate([data[chosen], observed[None]])[None]
        space = Space("raw", NONCENTRED, x, data, np.zeros(5000, int), targets, np.ones(1))
        tried, even = [Candidate(space, "linear", 500.0)], np.zeros(5000)
        squares.append(
            [
                best_candidate(tried, even, chosen, None, t, prefer_first=False).calibration[0][0]
                for t in (tilt, None)
            ]
        )
    right, blind = np.transpose(squares)
    assert abs(right.mean() - 1.0) < 4.0 * right.std() / np.sqrt(20) < 0.2
    assert blind.mean() < 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
@pytest.mark.parametrize(("useless", "parametrisation"), [(0, "by group"), (1, "centred")])
def test_effects_are_as_uncertain_as_they_are(useless, parametrisation):
    """With a useless statistic beside those of groups, these are not recognised."""
    found = amc.sample_abc_tree(
        model=grouped(useless), max_simulations=5000, adjust="auto", batched=True, random_seed=1,
        progressbar=False,
    )["posterior"]  # fmt: skip
    mean, sd, sds = exact()
    assert found.attrs["parametrisation"] == parametrisation
    effect = found["effect"].values.reshape(-1, GROUPS)
    assert (np.abs(np.log(effect.std(axis=0) / sds)) < np.log(1.5)).all()
    assert abs(float(found["tau"].mean()) - mean) < sd
