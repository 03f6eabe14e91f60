"""Annealed importance sampling of small models: evidences, draws, refusals."""

import sys

import arviz as az
import numpy as np
import pymc as pm
import pytest

from scipy.special import softmax

import amc_pymc as amc

from amc_pymc.evidence.mcmc import HMC, KERNELS
from amc_pymc.evidence.sample_ais import __name__ as MODULE
from amc_pymc.reading.particles.densities import counted
from tests.evidence.evidence_models import (
    EASY,
    Known,
    assert_same,
    compile_before,
    compiled_once,  # noqa: F401
    error_of,
    far_off,
    flag_names,
    flags_of,
    label,
    labels,
    one,
    partly_nan,
    peak,
    regression,
    schools,
)

module = sys.modules[MODULE]


def ais(known, draws=200, *, seed=1, **settings):
    model = known.model if isinstance(known, Known) else known
    settings = {"chains": 2, "n_steps": 40, "random_seed": seed, "progressbar": False} | settings
    return amc.sample_ais(model, draws=draws, **settings)


def assert_right(tree, known, *, errors=4.5, largest=0.1):
    error, mcse = error_of(tree, known)
    assert 0.0 < mcse < largest
    assert abs(error) < errors * mcse


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", EASY, ids=lambda f: f.__name__)
def test_evidence(known):
    tree = ais(known(), n_steps=200 if known is labels else 40)
    assert_right(tree, known())
    assert flags_of(tree) == ""
    # Where variables are discrete, there is no fitted reference.
    assert (tree["evidence"].attrs["reference"] == "prior") == (known is labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Model evidence")
@pytest.mark.parametrize("reference", ["prior", "auto"])
def test_coverage(reference):
    runs = [ais(one(), 50, seed=s, reference=reference, n_steps=40) for s in range(60)]
    found = [r["evidence"].to_dataset() for r in runs]
    assert np.mean([e.attrs["flags"] != "" for e in found]) <= 0.05
    inside = [
        float(e["log_evidence_lower"]) < one().log_evidence < float(e["log_evidence_upper"])
        for e in found
    ]
    assert np.mean(inside) >= 0.95 - 3.0 * np.sqrt(0.95 * 0.05 / 60)
    z = np.array([np.divide(*error_of(r, one())) for r in runs])
    assert abs(z.std() - 1.0) < 4.0 / np.sqrt(2.0 * 60)
    # The evidence itself is unbiased.
    ratio = np.exp([error_of(r, one())[0] for r in runs])
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / np.sqrt(len(ratio))


@pytest.mark.parametrize("kernel", [*KERNELS, HMC(n_leapfrog=2)], ids=label)
def test_kernels(kernel):
    tree = ais(schools(), 100, kernel=kernel, reference="prior")
    assert_right(tree, schools(), largest=0.3)
    gradients = tree["evaluations"]["n_gradient"].sel(stage="annealing")
    assert (gradients > 0) == (kernel != "slice")


@pytest.mark.parametrize("reference", ["prior", "student_t", "auto"])
def test_references(reference):
    tree = ais(schools(), 100, reference=reference)
    assert_right(tree, schools(), largest=0.2)
    assert tree["evidence"].attrs["reference"] == reference.replace("auto", "student_t")
    assert tree["evidence"].attrs["kernel"] == "hmc"


def test_only_discrete_variables():
    with pm.Model() as model:
        coin = pm.Bernoulli("coin", 0.3)
        pm.Normal("y", 1.0 * coin, 1.0, observed=[1.5])
    y = 0.3 * np.exp(-0.5 * 0.5**2) + 0.7 * np.exp(-0.5 * 1.5**2)
    tree = ais(Known(model, np.log(y) - 0.5 * np.log(2 * np.pi)), reference="auto")
    assert_right(tree, Known(model, np.log(y) - 0.5 * np.log(2 * np.pi)))
    assert tree["posterior"]["coin"].dtype.kind == "i"


# --- what is returned -----------------------------------------------------------------------------


def test_temperatures():
    tree = ais(schools(), 130, chains=3, reference="prior", n_steps=50)
    found, log_w = tree["annealing"].to_dataset(), tree["weighted_posterior"]["log_weight"]
    assert found.sizes == {"temperature": 50, "path": 100}
    np.testing.assert_allclose(found["beta"], np.linspace(0.0, 1.0, 51)[1:] ** 4)
    np.testing.assert_allclose(found["log_weight_path"][:, -1], log_w.values.ravel()[:100])
    np.testing.assert_allclose(found["log_mean_weight"][-1], tree["evidence"]["log_evidence"])
    np.testing.assert_allclose(found["ess"][-1] * log_w.size, tree["evidence"]["ess"])
    assert ((found["accept"][:-1] > 0.0) & (found["accept"][:-1] <= 1.0)).all()
    assert np.isnan(found["accept"][-1])


def test_draws_are_copies_of_particles_of_their_chain():
    tree = ais(schools(), 100, chains=3, reference="prior", n_steps=20)
    chosen = tree["sample_stats"]["particle"]
    assert chosen.dtype.kind == "i"
    for name in ("mu", "tau", "total"):
        particles = tree["weighted_posterior"][name]
        for chain in range(3):
            np.testing.assert_array_equal(
                tree["posterior"][name][chain], particles[chain][chosen[chain].values]
            )
    log_w = tree["weighted_posterior"]["log_weight"].values
    for chain in range(3):
        counts = np.bincount(chosen[chain], minlength=100)
        # Systematic resampling: as often as the weight asks, up to one.
        assert (np.abs(counts - 100 * softmax(log_w[chain])) < 1.0).all()


def test_copies_are_not_taken_for_independent_draws():
    with pytest.warns(UserWarning, match="Model evidence"):
        tree = ais(far_off(), 500, reference="prior", n_steps=5)
    chosen = tree["sample_stats"]["particle"].values
    assert (np.diff(chosen, axis=1) >= 0).all()
    distinct = sum(len(np.unique(row)) for row in chosen)
    assert tree["posterior"].attrs["n_distinct"] == distinct < 1000
    assert az.ess(tree)["mu"] < 1.2 * distinct


def test_sample_stats():
    tree = ais(schools(), 20)
    model, stats = (
        schools().model,
        tree["sample_stats"].to_dataset().stack(sample=("chain", "draw")),
    )
    draws = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    points = [
        {"mu": m, "tau_log__": np.log(t)}
        for m, t in zip(draws["mu"].values, draws["tau"].values, strict=True)
    ]
    for name, variables in (
        ("lp", None), ("log_prior", model.free_RVs), ("log_likelihood_sum", model.observed_RVs),
    ):  # fmt: skip
        logp = model.compile_logp(variables)
        np.testing.assert_allclose(stats[name], [logp(p) for p in points], rtol=1e-7)


def test_posterior_moments():
    tree = ais(one(), 500, reference="prior")
    mu, ess = tree["posterior"]["mu"], float(tree["evidence"]["ess"])
    weighted = tree["weighted_posterior"].to_dataset()
    w = softmax(weighted["log_weight"].values)
    sd = np.sqrt(0.5)
    # Of resampled draws the error is that of the weights and at most as much again.
    for mean, factor in ((float(mu.mean()), 2.0), (float((w * weighted["mu"].values).sum()), 1.0)):
        assert abs(mean - 1.5) < 4.0 * sd * np.sqrt(factor / ess)
    for variance, factor in (
        (float(((mu - 1.5) ** 2).mean()), 2.0),
        (float((w * (weighted["mu"].values - 1.5) ** 2).sum()), 1.0),
    ):
        assert abs(variance - 0.5) < 4.0 * 0.5 * np.sqrt(2.0 * factor / ess)


@pytest.mark.parametrize(("draws", "chains"), [(1, 3), (251, 1)])
def test_numbers_of_particles(draws, chains):
    tree = ais(one(), draws, chains=chains, n_steps=20)
    for group in ("posterior", "weighted_posterior", "sample_stats"):
        assert dict(tree[group].sizes) == {"chain": chains, "draw": draws}
    assert tree["annealing"].sizes["path"] == min(draws * chains, 100)
    error, mcse = error_of(tree, one())
    assert abs(error) < 6.0 * mcse


def test_one_particle():
    with pytest.warns(UserWarning, match="the standard error is inf"):
        tree = ais(one(), 1, chains=1)
    assert dict(tree["posterior"].sizes) == {"chain": 1, "draw": 1}
    assert abs(error_of(tree, one())[0]) < 1.0
    assert tree["evidence"]["log_evidence_mcse"] == np.inf
    assert tree["evidence"]["log_evidence_upper"] == np.inf


def test_evaluations_are_counted():
    compile_before(regression().model)
    with counted() as counts:
        tree = ais(regression(), 60)
    values, gradients, _ = counts.tolist()
    found = tree["evidence"]
    assert found["n_gradient"] == gradients
    assert found["n_likelihood"] == values + gradients
    stages = tree["evaluations"].to_dataset()
    assert stages["n_likelihood"].sum() == found["n_likelihood"]
    assert stages["n_likelihood"].sel(stage="posterior") == 120
    assert found["cpu_seconds"] > 0.0


# --- reproducible ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds():
    first = ais(one(), 60)
    assert_same(first, ais(one(), 60))
    other = ais(one(), 60, seed=2)
    assert first["evidence"]["log_evidence"] != other["evidence"]["log_evidence"]
    rngs = [np.random.default_rng(5) for _ in range(2)]
    third, fourth = (ais(one(), 60, seed=rng) for rng in rngs)
    assert_same(third, fourth)
    assert (
        ais(one(), 60, seed=rngs[0])["evidence"]["log_evidence"]
        != third["evidence"]["log_evidence"]
    )


def test_a_longer_run_has_the_same_particles():
    short, long = ais(one(), 250, chains=1), ais(one(), 500, chains=1)
    np.testing.assert_array_equal(
        short["weighted_posterior"]["log_weight"], long["weighted_posterior"]["log_weight"][:, :250]
    )


def test_processes():
    parallel = ais(one(), 300, n_steps=20, cores=2)
    assert_same(parallel, ais(one(), 300, n_steps=20))


# --- interruption ---------------------------------------------------------------------------------


def interrupted(monkeypatch, after, *args, **settings):
    """A run that is interrupted after some blocks."""
    anneal, calls = module._anneal, iter(range(after))

    def job(given):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return anneal(given)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_anneal", job)
        with pytest.warns(UserWarning, match="interrupted"):
            return ais(*args, **settings)


def test_max_time_stops_after_a_block():
    with pytest.warns(UserWarning, match="max_time was over after 1 of 3 blocks"):
        part = ais(one(), 100, n_steps=20, chains=3, max_time=1e-6)
    assert part["posterior"].sizes["chain"] == 1


def test_interruption_returns_what_there_is(monkeypatch):
    part = interrupted(monkeypatch, 3, one(), 500, chains=3)
    assert dict(part["posterior"].sizes) == {"chain": 2, "draw": 250}
    assert part["annealing"].sizes["path"] == 100
    assert_right(part, one())
    whole = ais(one(), 500, chains=3)
    np.testing.assert_array_equal(
        part["weighted_posterior"]["log_weight"],
        whole["weighted_posterior"]["log_weight"][:2, :250],
    )
    # All three blocks enter the evidence.
    assert 500 < part["evidence"]["ess"] <= 750


def test_interruption_before_the_first_block(monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        interrupted(monkeypatch, 0, one())


# --- refusals -------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch):
    def work(*args, **settings):
        raise AssertionError("work was done")

    monkeypatch.setattr(module, "explored", work)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"draws": 0}, ValueError, "draws must be .*0"),
        ({"chains": True}, TypeError, "chains must be .*True"),
        ({"n_steps": 1.5}, TypeError, r"n_steps must be .*1\.5"),
        ({"kernel": "nuts"}, ValueError, "kernel must be .*'nuts'"),
        ({"kernel": HMC}, TypeError, "kernel must be"),
        ({"kernel": 3}, TypeError, "kernel must be .*3"),
        ({"reference": "posterior"}, ValueError, "reference must be .*'posterior'"),
        ({"reference": None}, ValueError, "reference must be .*None"),
        ({"reference": np.ones(3)}, ValueError, "reference must be"),
    ],
    ids=lambda v: label(v)[:50],
)  # fmt: skip
def test_bad_arguments(settings, error, message, no_work):
    with pytest.raises(error, match=message):
        ais(one(), **settings)


def test_fitted_references_want_continuous_variables(no_work):
    with pytest.raises(ValueError, match=r"reference=.*discrete.*'prior'"):
        ais(labels(), reference="student_t")


# --- hard models ----------------------------------------------------------------------------------


def test_nan_is_counted_as_impossible():
    with pytest.warns(UserWarning, match=r"the density was nan at [\d,]+ points"):
        tree = ais(partly_nan(), reference="prior")
    assert_right(tree, partly_nan(), largest=0.2)
    assert tree["evidence"]["n_nan"] > 0
    assert "nan" in flag_names(tree).split("; ")


@pytest.mark.slow
def test_a_peak_that_annealing_misses_is_flagged():
    with pytest.warns(UserWarning, match=r"found more evidence.*narrow peak"):
        tree = ais(peak(), 250, chains=1, reference="prior", n_steps=400)
    assert error_of(tree, peak())[0] < -4.0
    assert "narrow peak" in flags_of(tree)
    assert_right(ais(peak(), n_steps=20), peak())


def test_few_effective_particles_are_flagged():
    with pytest.warns(UserWarning, match="Model evidence"):
        tree = ais(far_off(), reference="prior", n_steps=2)
    assert "particles are effective" in flags_of(tree) or "a few weights" in flags_of(tree)
    assert_right(ais(far_off(), n_steps=100), far_off())
