"""Tables of evidences: numbers by hand and by simulation, what pymc.sample_smc returns, refusals."""

import warnings

import numpy as np
import pytest
import xarray as xr

from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from amc_pymc.results import compare_evidence

COLUMNS = [
    "rank", "log_evidence", "log_evidence_mcse", "log_evidence_lower", "log_evidence_upper",
    "log_bf", "log_bf_mcse", "prob", "prob_mcse", "flags", "flag_names",
]  # fmt: skip


def tree(log_evidence, mcse, flags="", observed=None):
    """A result as estimate_evidence returns it."""
    groups = {
        "evidence": xr.Dataset(
            {"log_evidence": log_evidence, "log_evidence_mcse": mcse}, attrs={"flags": flags}
        )
    }
    if observed is not None:
        groups["observed_data"] = xr.Dataset({k: (f"{k}_row", v) for k, v in observed.items()})
    return xr.DataTree.from_dict(groups)


def smc(*last, ragged=False):
    """A result as pymc.sample_smc returns it, of the values of each chain's last stage."""
    chains = [[np.nan] * (2 + i * ragged) + [np.float64(v)] for i, v in enumerate(last)]
    if len(last) == 1:
        values, dims = np.array(chains[0]), ("chain",)
    elif ragged:
        values, dims = np.empty(len(last), object), ("chain",)
        values[:] = chains
    else:
        values = np.array(chains, dtype=object)
        dims = ("chain", "log_marginal_likelihood_dim_0")
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"mu": (("chain", "draw"), np.zeros((len(last), 3)))}),
            "sample_stats": xr.Dataset({"log_marginal_likelihood": (dims, values)}),
        }
    )


def test_the_table_by_hand():
    table = compare_evidence({"a": tree(-12.0, 0.3), "b": (-10.0, 0.4), "c": (-11.0, 0.0)})
    assert table.columns.tolist() == COLUMNS
    assert table.index.tolist() == ["b", "c", "a"]
    assert table.index.name is None
    assert table["rank"].tolist() == [0, 1, 2]
    assert np.issubdtype(table["rank"].dtype, np.integer)
    assert table["log_evidence"].tolist() == [-10.0, -11.0, -12.0]
    assert table["log_bf"].tolist() == [0.0, -1.0, -2.0]
    np.testing.assert_allclose(table["log_bf_mcse"], [0.0, 0.4, 0.5])
    half = 1.959964 * np.array([0.4, 0.0, 0.3])
    np.testing.assert_allclose(table["log_evidence"] - table["log_evidence_lower"], half)
    np.testing.assert_allclose(table["log_evidence_upper"] - table["log_evidence"], half)
    p = softmax([-10.0, -11.0, -12.0])
    np.testing.assert_allclose(table["prob"], p)
    jacobian = np.diag(p) - np.outer(p, p)
    covariance = jacobian @ np.diag([0.4, 0.0, 0.3]) ** 2 @ jacobian.T
    np.testing.assert_allclose(table["prob_mcse"], np.sqrt(np.diag(covariance)))


def test_errors_of_probabilities_agree_with_simulation():
    log_evidence = np.array([-100.0, -100.7, -101.5, -104.0])
    mcse = np.array([0.01, 0.005, 0.02, 0.03])
    priors = np.array([1.0, 3.0, 2.0, 2.0])
    table = compare_evidence(
        {str(i): pair for i, pair in enumerate(zip(log_evidence, mcse, strict=True))},
        prior_probs=dict(zip("0123", priors)),
    )
    rng = np.random.default_rng(1)
    n = 200_000
    p = softmax(log_evidence + mcse * rng.normal(size=(n, 4)) + np.log(priors), axis=1)
    # The simulated standard deviation has a relative error of 1/sqrt(2n) = 0.2 %.
    np.testing.assert_allclose(table["prob_mcse"], p.std(axis=0), rtol=0.01)
    np.testing.assert_allclose(table["prob"], p.mean(axis=0), atol=3e-4)


def test_errors_of_two_models_are_equal_however_far_apart():
    table = compare_evidence({"a": (-1000.0, 0.3), "b": (-1050.0, 0.4)})
    assert table["prob"].tolist() == [1.0, pytest.approx(np.exp(-50.0))]
    np.testing.assert_allclose(table["prob_mcse"], 0.5 * np.exp(-50.0), rtol=1e-9)
    far = compare_evidence({"a": (-1e5, 0.3), "b": (-2e5, 0.4)})
    assert far["prob"].tolist() == [1.0, 0.0]
    assert far["prob_mcse"].tolist() == [0.0, 0.0]


def test_exact_and_impossible_models():
    table = compare_evidence({"a": -2.0, "b": (-2.0, 0.1), "c": -np.inf, "d": (-np.inf, np.inf)})
    assert table["prob"].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert table["log_bf"].tolist() == [0.0, 0.0, -np.inf, -np.inf]
    assert table["prob_mcse"].round(6).tolist() == [0.025, 0.025, 0.0, 0.0]
    assert table["flag_names"].tolist() == ["", "not_separated", "", "unknown_error"]


def test_prior_probabilities():
    priors = {"b": 1.0, "a": 3.0}
    table = compare_evidence({"a": (0.0, 0.0), "b": (1.0, 0.0)}, prior_probs=priors)
    assert table.index.tolist() == ["b", "a"]
    expected = np.e / (np.e + 3.0)
    np.testing.assert_allclose(table["prob"], [expected, 1.0 - expected])
    assert table["prob"].idxmax() == "a"


@pytest.mark.parametrize("ragged", [False, True])
def test_chains_of_smc_are_averaged_on_the_natural_scale(ragged):
    last = np.array([-700.0, -700.6, -699.9, -700.2])
    found = compare_evidence({"smc": smc(*last, ragged=ragged), "other": (-800.0, 0.1)}).loc["smc"]
    assert found["log_evidence"] == pytest.approx(logsumexp(last) - np.log(4))
    z = np.exp(last + 700.0)
    assert found["log_evidence_mcse"] == pytest.approx(z.std(ddof=1) / 2.0 / z.mean())
    assert found["flags"] == ""


def test_few_chains_of_smc_are_flagged():
    table = compare_evidence(
        {"two": smc(-5.0, -5.5), "one": smc(-7.0), "far": smc(-9, -14, -9, -9)}
    )
    assert table.loc["two", "flags"] == "error from 2 chains"
    assert table.loc["one", "flags"] == "one chain; error unknown"
    assert table.loc["one", "flag_names"] == "single_chain; unknown_error"
    assert table.loc["far", "flags"] == "chains differ by 5.0 nats"
    assert table.loc["one", "log_evidence"] == -7.0
    assert np.isnan(table.loc["one", ["log_evidence_mcse", "log_bf_mcse"]].astype(float)).all()
    # The unknown error is one of every probability.
    assert table["prob_mcse"].isna().all()
    assert table.loc["two", "log_bf_mcse"] == 0.0


def test_flags():
    table = compare_evidence(
        {
            "best": tree(-10.0, 0.1, flags="Pareto k 0.81; 3 nan likelihoods"),
            "close": (-10.3, 0.2),
            "clear": (-10.5, 0.1),
            "tied": (-10.0, 0.0),
            "vague": (-50.0, 1.5),
            "unknown": (-60.0, np.inf),
        }
    )
    assert table["flags"].to_dict() == {
        "best": "Pareto k 0.81; 3 nan likelihoods",
        "tied": "not separated from best",
        "close": "not separated from best",
        "clear": "",
        "vague": "error above 1 nat",
        "unknown": "error unknown",
    }


Y = np.array([3.0, 1.0, 2.0, np.nan])


@pytest.mark.parametrize(
    "other",
    [
        {"y": Y[::-1]},
        {"z": Y},
        {"counts": Y[:1], "times": Y[1:]},
        {"y": Y.astype(np.float32)},
        None,
    ],
)
def test_the_same_data_may_have_other_names_and_order(other):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = compare_evidence({"a": tree(0, 0.1, "", {"y": Y}), "b": tree(-9, 0.1, "", other)})
    assert table["flags"].tolist() == ["", ""]


@pytest.mark.parametrize("other", [{"y": Y[1:]}, {"y": 2.0 * Y}, {"y": np.append(Y, 0.0)}])
def test_other_data_are_warned_of(other):
    models = {"none": (5.0, 0.1), "a": tree(0, 0.1, "", {"y": Y}), "b": tree(-9, 0.1, "", other)}
    with pytest.warns(UserWarning, match="Evidence of 'b': other data than a"):
        table = compare_evidence(models)
    assert table["flags"].tolist() == ["", "", "other data than a"]
    assert table["flag_names"].tolist() == ["", "", "other_data"]


def test_the_same_result_under_two_names_is_noticed():
    found = tree(-3.0, 0.1)
    with pytest.warns(UserWarning, match="Evidence of 'again': the same result as a"):
        table = compare_evidence({"a": found, "again": found, "b": tree(-5.0, 0.1)})
    assert "the same result as a" in table.loc["again", "flags"]
    assert table.loc["b", "flags"] == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = (-3.0, 0.1)  # numbers may well be equal
        compare_evidence({"a": pair, "b": pair, "c": tree(-3.0, 0.1), "d": tree(-3.0, 0.1)})


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ({}, ValueError, "at least one model"),
        ([(-1.0, 0.1)], TypeError, "mapping of names to results, .*got list"),
        (tree(-1.0, 0.1), TypeError, "mapping of names to results, .*got DataTree"),
        ({"m": "-1"}, TypeError, r"Model 'm' must be .* a tuple \(log_evidence, mcse\) .* exact"),
        ({"m": True}, TypeError, "Model 'm' must be a result"),
        ({"m": (-1.0,)}, TypeError, "Model 'm' must be a result"),
        ({"m": (-1.0, None)}, TypeError, "Model 'm' must be a result"),
        ({"m": tree(-1.0, 0.1).to_dataset()}, TypeError, "Model 'm' must be a result"),
        (
            {"m": (np.nan, 0.1)},
            ValueError,
            "log evidence of 'm' must be a finite number or -inf, got nan",
        ),
        ({"m": tree(-np.inf, 0.1), "n": -np.inf}, ValueError, r"all models \(m, n\) is -inf"),
        ({"m": (-1.0, -0.1)}, ValueError, "of 'm' must not be negative, got -0.1"),
        ({"m": smc(np.nan, -1.0)}, ValueError, "Chain 0 of model 'm' has no finite"),
        (
            {"m": xr.DataTree.from_dict({"posterior": xr.Dataset(), "sample_stats": xr.Dataset()})},
            ValueError,
            r"'m' has no group 'evidence'.*\['posterior', 'sample_stats'\].*pass what amc_pymc.sample",
        ),
        (
            {"m": xr.DataTree.from_dict({"evidence": xr.Dataset({"log_evidence": 1.0})})},
            ValueError,
            "Group 'evidence' of model 'm' has no log_evidence_mcse",
        ),
        (
            {"m": tree(("arm", [1.0, 2.0]), 0.1)},
            ValueError,
            "log_evidence of model 'm' must be one number, got 2",
        ),
    ],
)
def test_what_is_no_evidence_is_refused(models, error, message):
    with pytest.raises(error, match=message):
        compare_evidence(models)


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ({"a": 1.0}, r"must name the models \['a', 'b'\], got \['a'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "must name the models"),
        ({"a": 1.0, "b": 0.0}, "positive and finite, got 0.0 for 'b'"),
        ({"b": -1.0, "a": 1.0}, "positive and finite, got -1.0 for 'b'"),
        ({"a": np.nan, "b": 1.0}, "positive and finite, got nan for 'a'"),
        ({"a": "1", "b": "2"}, "positive and finite, got '1' for 'a'"),
        ([3.0, 1.0], r"a mapping of names to probabilities, got \[3.0, 1.0\]"),
    ],
)
def test_wrong_prior_probabilities_are_refused(priors, message):
    with pytest.raises((TypeError, ValueError), match=message):
        compare_evidence({"a": (0.0, 0.1), "b": (0.0, 0.1)}, prior_probs=priors)


@pytest.mark.slow
def test_what_pymc_really_returns():
    pm = pytest.importorskip("pymc")
    y = np.array([0.3, 1.2, -0.4, 2.0])
    with pm.Model():
        mu = pm.Normal("mu", 0.0, 5.0)
        pm.Normal("y", mu, 1.0, observed=y)
        options = {
            "draws": 500, "cores": 1, "random_seed": 1, "progressbar": False,
            "compute_convergence_checks": False,
        }  # fmt: skip
        several = pm.sample_smc(chains=4, **options)
        # At some threshold the chains take different numbers of stages.
        for threshold in np.arange(0.3, 0.9, 0.02):
            ragged = pm.sample_smc(chains=4, threshold=threshold, **options)
            if ragged["sample_stats"]["log_marginal_likelihood"].ndim == 1:
                break
        one = pm.sample_smc(chains=1, **options)
    exact = multivariate_normal(np.zeros(4), np.eye(4) + 25.0).logpdf(y)
    table = compare_evidence({"several": several, "ragged": ragged, "one": one})
    assert table.loc["one", "flags"].startswith("one chain; error unknown")
    for name in ("several", "ragged"):
        found = table.loc[name]
        assert abs(found["log_evidence"] - exact) < 5.0 * found["log_evidence_mcse"]
    assert table.loc["one", "log_evidence"] == pytest.approx(exact, abs=0.5)
    assert several["sample_stats"]["log_marginal_likelihood"].ndim == 2
    assert ragged["sample_stats"]["log_marginal_likelihood"].ndim == 1
    assert one["sample_stats"]["log_marginal_likelihood"].ndim == 1
