"""Arguments about the run have the same order and meaning in all public functions."""

import inspect

import pymc as pm
import pytensor
import pytest

import amc_pymc as amc

#: Arguments of each sampler; steps of ``pm.sample`` have only a progress bar.
ALL = ["cores", "checkpoint", "max_time", "progressbar", "random_seed"]
#: Arguments of runs that are short.
SHORT = [name for name in ALL if name != "checkpoint"]
EXPECTED = {
    "combine_estimators": SHORT,
    "estimate_evidence": SHORT,
    "find_MAP_tree": ALL,
    "racing_forecast": ["progressbar"],
    "recover_marginals": ["progressbar", "random_seed"],
    "sample_abc_tree": ALL,
    "sample_ais": SHORT,
    "sample_product_space": SHORT,
}
DEFAULTS = {
    "progressbar": True,
    "checkpoint": None,
    "max_time": None,
    "random_seed": None,
}


def public_functions():
    found = {name: getattr(amc, name) for name in amc.__all__}
    return {k: v for k, v in found.items() if inspect.isfunction(v)}


def parameters(function):
    return inspect.signature(function).parameters


def test_all_samplers_are_in_the_table():
    found = {
        name: [p for p in parameters(function) if p in ALL]
        for name, function in public_functions().items()
    }
    assert {name: given for name, given in found.items() if given} == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_they_close_the_signature_by_keyword(name):
    found = parameters(getattr(amc, name))
    assert [*found][-len(EXPECTED[name]) :] == EXPECTED[name]
    for argument in EXPECTED[name]:
        assert found[argument].kind is inspect.Parameter.KEYWORD_ONLY
        if argument in DEFAULTS:
            assert found[argument].default is DEFAULTS[argument]
    if "cores" in found:  # chains run in parallel by default, as those of pm.sample do
        assert found["cores"].default is (None if name == "sample_product_space" else 1)


#: Calls that need nothing but these arguments to fail.
CALLS = {
    "combine_estimators": lambda **given: amc.combine_estimators(
        {"a": lambda rng: rng.normal()}, draws=10, progressbar=False, **given
    ),
    "find_MAP_tree": lambda **given: amc.find_MAP_tree(
        max_simulations=100, model=problem(), progressbar=False, **given
    ),
    "sample_abc_tree": lambda **given: amc.sample_abc_tree(
        max_simulations=100, model=problem(), progressbar=False, **given
    ),
    "sample_ais": lambda **given: amc.sample_ais(normal(), draws=10, n_steps=2, progressbar=False, **given),
    "estimate_evidence": lambda **given: amc.estimate_evidence(
        target_mcse=0.1, model=normal(), progressbar=False, **given
    ),
}  # fmt: skip


def problem():
    from scipy import stats

    return amc.SimulatorProblem({"x": stats.norm()}, lambda rng, x: rng.normal(x), 0.0)


def normal():
    import pymc as pm

    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), observed=[1.0])
    return model


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"cores": 0}, ValueError, "cores must be at least 1, got 0"),
        ({"cores": "2"}, TypeError, "cores must be an integer or None, got '2'"),
        ({"max_time": 0}, ValueError, "max_time must be positive and finite, got 0"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be a path, got 3"),
        ({"random_seed": "a"}, TypeError, "random_seed must be an int, .* got 'a'"),
    ],
)
def test_bad_values_are_refused_alike(name, given, error, message):
    if not set(given) <= set(EXPECTED[name]):
        pytest.skip("not an argument")
    with pytest.raises(error, match=message):
        CALLS[name](**given)


@pytest.mark.parametrize(
    "name",
    ["estimate_evidence", "racing_forecast", "recover_marginals", "sample_ais", "sample_product_space"],
)  # fmt: skip
@pytest.mark.parametrize("single", ["PyTensor", "model"])
def test_numbers_of_32_bits_are_refused_in_one_sentence(name, single):
    """The steps of pm.sample have the same check; simulators work with them."""
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("y", mu, 1.0, observed=[0.0, 1.0])
    values = {"idata": None, "model": model, "models": {"a": model, "b": model}}
    given = {k: values[k] for k in parameters(getattr(amc, name)) if k in values}
    with pytensor.config.change_flags(floatX="float32" if single == "PyTensor" else "float64"):
        with pytest.raises(
            ValueError, match=r"computes in float64. Set pytensor.config.floatX = 'f"
        ):
            getattr(amc, name)(**given)
