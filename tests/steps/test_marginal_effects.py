"""Evidence with local effects integrated out."""

import functools
import math

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats
from scipy.special import logsumexp

import amc_pymc as amc

from amc_pymc.steps import marginal_effects
from amc_pymc.steps.marginal_effects import chosen_effects
from tests.evidence.evidence_models import DATA, ERRORS, assert_same, flags_of

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
G = 24


def rows(kind, seed=5):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(G), 3)
    t = 0.4 + 0.6 * rng.normal(size=G)[g]
    y = rng.poisson(np.exp(t)) if kind == "poisson" else t + rng.normal(size=g.size)
    return g, y


@functools.cache
def intercepts(kind):
    g, y = rows(kind)
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", 0, sd, shape=G)
        pm.Deterministic("mean", a + effect)
        if kind == "poisson":
            pm.Poisson("y", pm.math.exp(a + effect[g]), observed=y)
        else:
            pm.Normal("y", a + effect[g], 1.0, observed=y)
    return model


@functools.cache
def schools():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, ERRORS, observed=DATA)
    return model


def on_a_grid(log_f, low, high, n):
    """Log of the integral of exp(log_f) over two parameters, and the parameters' posterior draws."""
    axes = [np.linspace(a, b, n) for a, b in zip(low, high)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = log_f(*x.T)
    area = math.prod(axis[1] - axis[0] for axis in axes)
    total = logsumexp(logs)
    chosen = np.random.default_rng(1).choice(len(x), 2000, p=np.exp(logs - total))
    noise = np.random.default_rng(2).uniform(-0.5, 0.5, (2000, 2))
    return total + math.log(area), x[chosen] + noise * [a[1] - a[0] for a in axes]


@functools.cache
def answer(kind):
    """Log evidence of random intercepts by brute force, and posterior draws of (a, log sd)."""
    _, y = rows(kind)
    z = np.linspace(-9, 9, 121)
    weights = stats.norm.logpdf(z) + np.log(z[1] - z[0])
    y = y.reshape(G, 3, 1)

    def log_mass(a, log_sd):
        eta = a + np.exp(log_sd) * z
        mass = (
            stats.norm.logpdf(y, eta) if kind == "normal" else stats.poisson.logpmf(y, np.exp(eta))
        )
        return logsumexp(mass.sum(axis=1) + weights, axis=1).sum()

    def log_f(a, log_sd):
        prior = stats.norm.logpdf(a, 0, 2) + stats.halfnorm.logpdf(np.exp(log_sd)) + log_sd
        return prior + [log_mass(*point) for point in zip(a, log_sd)]

    return on_a_grid(log_f, (-1.2, -6.0), (1.8, 1.2), 61)


def schools_answer():
    def log_f(mu, log_tau):
        sd = np.sqrt(ERRORS**2 + np.exp(2 * log_tau[:, None]))
        prior = stats.norm.logpdf(mu, 0, 5) + stats.halfnorm.logpdf(np.exp(log_tau), 0, 5) + log_tau
        return stats.norm.logpdf(DATA, mu[:, None], sd).sum(axis=1) + prior

    return on_a_grid(log_f, (-30, -16), (40, 4.5), 401)[0]


def estimate(model, **settings):
    return amc.estimate_evidence(
        **{"model": model, "random_seed": 1, "progressbar": False} | settings
    )


def assert_right(tree, wanted):
    evidence = tree["evidence"]
    assert 0.0 < float(evidence["log_evidence_mcse"]) <= 0.05
    error = float(evidence["log_evidence"]) - wanted
    assert abs(error) < 4.0 * float(evidence["log_evidence_mcse"]) + 1e-3


def draws_of(kind, effect=None):
    """Posterior draws of the population in four chains, with effects if given."""
    x = answer(kind)[1].reshape(4, 500, 2)
    data = {"a": x[..., 0], "sd": np.exp(x[..., 1])}
    out = {k: (("chain", "draw"), v) for k, v in data.items()}
    if effect is not None:
        out["effect"] = (("chain", "draw", "group"), np.full((4, 500, G), effect))
    coords = {"chain": np.arange(4), "draw": np.arange(500)}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(out, coords)})


# --- which effects ----------------------------------------------------------------------------------


def test_auto_takes_many_effects_and_leaves_few():
    assert chosen_effects(intercepts("normal"), "auto").factor.variables == ("effect",)
    assert chosen_effects(schools(), "auto") is None
    assert chosen_effects(intercepts("normal"), None) is None


def test_effects_may_be_named():
    model = schools()
    for wanted in ("theta", ["theta"], model["theta"], (model["theta"],)):
        assert chosen_effects(model, wanted).factor.variables == ("theta",)


@pytest.mark.parametrize(
    ("marginalize", "error", "match"),
    [
        ("no", ValueError, "marginalize names no; free variables of this model: mu, tau, theta"),
        ("mu", ValueError, "names mu, on which no observed variable depends directly"),
        (3, TypeError, "must be 'auto', None, or free variables"),
        ([], TypeError, "must be 'auto', None, or free variables"),
    ],
)
def test_what_cannot_be_integrated_out_is_told(marginalize, error, match):
    with pytest.raises(error, match=match):
        estimate(schools(), marginalize=marginalize)


def test_something_must_be_left():
    g, y = rows("normal")
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=G)
        pm.Normal("y", effect[g], 1.0, observed=y)
    with pytest.raises(ValueError, match="nothing is left to estimate"):
        estimate(model, marginalize="effect")
    assert chosen_effects(model, "auto") is None


@pytest.mark.parametrize("alike", [True, False])
def test_all_observed_variables_that_read_the_effects_are_taken(alike):
    """If they have as many rows; else there are no groups."""
    g, y = rows("normal")
    other = g if alike else np.arange(G)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        effect = pm.Normal("effect", 0, 1, shape=G)
        pm.Normal("y", a + effect[g], 1.0, observed=y)
        pm.Poisson("counts", pm.math.exp(effect[other]), observed=np.ones(other.size, int))
        pm.Normal("apart", a, 1.0, observed=[1.0])
    found = chosen_effects(model, "auto")
    assert (found is not None) == alike
    assert not alike or set(found.observed_vars) == {"y", "counts"}


# --- answers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisson():
    return estimate(intercepts("poisson"), draws=250)


def test_poisson_intercepts_against_brute_force(poisson):
    assert_right(poisson, answer("poisson")[0])
    assert list(poisson["posterior"].data_vars) == ["a", "sd"]
    evidence = poisson["evidence"]
    assert abs(float(evidence["quadrature_error"])) <= 0.005
    assert evidence.attrs["marginalized"] == "effect"
    assert evidence.attrs["quadrature"].startswith("adaptive Gauss-Hermite")


@pytest.mark.slow
def test_effects_can_be_drawn_afterwards(poisson):
    model = intercepts("poisson")
    found = amc.recover_marginals(poisson, model=model, random_seed=1, progressbar=False)
    assert found["posterior"]["effect"].shape == (4, 250, G)
    means = found["posterior"]["mean"].mean(("chain", "draw"))
    g, y = rows("poisson")
    assert np.corrcoef(means, np.bincount(g, y))[0, 1] > 0.9


@pytest.mark.slow
def test_eight_schools_with_and_without():
    together = estimate(schools(), marginalize=None, draws=50)
    apart = estimate(schools(), marginalize="theta", draws=50)
    for found in (together, apart):
        assert_right(found, schools_answer())
    assert "theta" in together["posterior"]
    assert "theta" not in apart["posterior"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "poisson"])
def test_draws_of_the_population_are_enough(kind):
    model = intercepts(kind)
    found = estimate(model, idata=draws_of(kind))
    assert_right(found, answer(kind)[0])
    again = estimate(model, idata=draws_of(kind, np.nan))
    assert float(again["evidence"]["log_evidence"]) == float(found["evidence"]["log_evidence"])
    assert found["evidence"].attrs["marginalized"] == "effect"


def test_draws_of_effects_are_needed_where_they_stay():
    with pytest.raises(ValueError, match="no draws of effect"):
        estimate(intercepts("normal"), idata=draws_of("normal"), marginalize=None)


def test_too_few_nodes_are_flagged(monkeypatch):
    monkeypatch.setattr(marginal_effects, "_SHARE_OF_TARGET", 1e9)
    with pytest.warns(UserWarning, match="integrating effect out by quadrature"):
        found = estimate(intercepts("poisson"), idata=draws_of("poisson"), target_mcse=0.02)
    error = float(found["evidence"]["quadrature_error"])
    assert abs(error) > 0.002
    corrected = float(found["evidence"]["log_evidence"]) - error
    mcse = float(found["evidence"]["log_evidence_mcse"])
    assert abs(corrected - answer("poisson")[0]) < 4.0 * mcse + 1e-3
    assert "quadrature" in flags_of(found)


@pytest.mark.slow
def test_seed_reproduces_a_run(poisson):
    settings = {"draws": 250, "target_mcse": 0.05}
    assert_same(estimate(intercepts("poisson"), **settings), poisson)
