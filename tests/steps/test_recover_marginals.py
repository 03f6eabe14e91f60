"""Local effects drawn after a run that did without them."""

import functools

import arviz as az
import numpy as np
import pymc as pm
import pytest

from grouped_runs import assert_agree, flat, racing, sample
from scipy import stats

import amc_pymc as amc

from models.grouped import intercepts_model, simulate_intercepts
from models.grouped_gaussian import gaussian_reference

N_ROWS, N_GROUPS = 300, 30


@functools.cache
def data():
    return simulate_intercepts("gaussian", N_ROWS, N_GROUPS)


@functools.cache
def run(centred=True):
    """The model, and a run without local effects."""
    model = intercepts_model(data(), "gaussian", centred)
    step = racing(model, recover=False)
    return model, sample(model, step, 350)


@functools.cache
def recovered(centred=True):
    model, idata = run(centred)
    return amc.recover_marginals(idata, model=model, random_seed=1, progressbar=False)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
def test_effects_have_the_posterior(centred):
    idata = recovered(centred)
    truth = {name: tuple(m) for name, m in gaussian_reference(data())[0].items()}
    assert_agree(idata, truth)


def test_given_the_population_parameters_effects_are_independent_normals():
    posterior, index = recovered().posterior, data().groups["group"]
    beta, u = (flat(recovered(), n).reshape(-1, k) for n, k in (("beta", 3), ("group", N_GROUPS)))
    sigma, tau = (posterior[n].values.reshape(-1, 1) for n in ("sigma", "sd_group"))
    counts = np.bincount(index, minlength=N_GROUPS)
    share = tau**2 / (sigma**2 + counts * tau**2)
    residuals = data().y - beta @ data().X.T
    sums = np.array([np.bincount(index, r, minlength=N_GROUPS) for r in residuals])
    z = (u - share * sums) / (np.sqrt(share) * sigma)
    assert stats.kstest(z[::3].ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 4 / np.sqrt(len(z))


@pytest.mark.slow
def test_effects_of_another_factor_are_not_its_standard_normals():
    """Draws given those of a second non-centred factor, which the chain would move as effects."""
    rng, shape = np.random.default_rng(3), (2, 50)
    first, second = np.arange(600) % 60, np.arange(600) % 7
    y = rng.normal(3.0 * rng.normal(size=7)[second], 1.0)
    with pm.Model() as model:
        u, v = (pm.Normal(n, 0, 1, shape=k) for n, k in (("u", 60), ("v", 7)))
        sd_u, sd_v = pm.HalfNormal("sd_u", 1), pm.HalfNormal("sd_v", 5)
        pm.Normal("y", sd_u * u[first] + sd_v * v[second], 1.0, observed=y)
    drawn = {"v": rng.normal(size=(*shape, 7)), "sd_u": rng.uniform(0.5, 1.0, shape)}
    idata = az.from_dict({"posterior": drawn | {"sd_v": rng.uniform(2.0, 4.0, shape)}})
    out = amc.recover_marginals(idata, model=model, random_seed=1, progressbar=False).posterior
    u, v, sd, sd_v = (out[n].values.reshape(100, -1) for n in ("u", "v", "sd_u", "sd_v"))
    rest = y - (sd_v * v)[:, second]
    sums = np.array([np.bincount(first, r) for r in rest])
    share = sd**2 / (1.0 + 10.0 * sd**2)
    z = (sd * u - share * sums) / np.sqrt(share)
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3


def test_population_parameters_stay_and_nothing_is_lost():
    before, after = run()[1], recovered()
    for name in ("beta", "sigma", "sd_group"):
        np.testing.assert_array_equal(before.posterior[name], after.posterior[name])
    assert before.posterior["group"].isnull().all() and after.posterior["group"].notnull().all()
    assert set(after.posterior.data_vars) == set(before.posterior.data_vars)
    assert set(after.children) == set(before.children)
    marked = [n for n, v in after.posterior.data_vars.items() if "integrated_out" in v.attrs]
    assert marked == ["group"]
    for name in after.posterior.data_vars:
        assert after.posterior[name].dims == before.posterior[name].dims


def test_deterministic_variables_follow():
    idata = recovered(False)
    u, z, sd = (idata.posterior[n] for n in ("group", "group_z", "sd_group"))
    assert run(False)[1].posterior["group"].isnull().all()
    np.testing.assert_allclose(u.values, z.values * sd.values[:, :, None], rtol=1e-10)


def test_the_seed_decides():
    model, idata = run()
    some = idata.isel(draw=slice(5))
    draws = [
        amc.recover_marginals(some, model=model, random_seed=s, progressbar=False)
        for s in (3, 3, 4)
    ]
    one, same, other = (d.posterior["group"].values for d in draws)
    np.testing.assert_array_equal(one, same)
    assert np.all(one != other)


def without_sigma(idata):
    less = idata.copy()
    less["posterior"] = idata["posterior"].to_dataset().drop_vars("sigma")
    return less


def another_model():
    with pm.Model() as other:
        pm.Normal("obs", pm.Normal("mu"), 1.0, observed=np.zeros(5))
    return other


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        (lambda idata: 5, {}, r"idata must be what pm\.sample returned"),
        (lambda idata: {"posterior": 1}, {}, r"idata must be what pm\.sample returned"),
        (lambda idata: idata.isel(draw=slice(0)), {}, "idata has no draws"),
        (
            lambda idata: idata,
            {"var_names": ["zz"]},
            r"must name free variables \(beta, sd_group, ",
        ),
        (lambda idata: idata, {"var_names": []}, r"must name free variables \(beta, sd_group, "),
        (lambda idata: idata, {"var_names": "sd_group"}, "names sd_group, which is not one group"),
        (lambda idata: recovered(), {}, r"no free variable .* missing or NaN"),
        (without_sigma, {"var_names": "group"}, "idata has no draws of sigma"),
        (lambda idata: idata, {"model": another_model()}, "not one grouping factor|no draws"),
    ],
)
def test_bad_input(given, arguments, message):
    model, idata = run()
    with pytest.raises(ValueError, match=message):
        amc.recover_marginals(given(idata), **{"model": model} | arguments)
