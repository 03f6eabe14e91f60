"""Problems of the benchmarks of tall data are the models that their tables name."""

import pytest

from benchmarks.tall import grouped_problems, priors
from benchmarks.tall.exact import MODELS, data_of, model_of
from benchmarks.tall.functions import count

PROBLEMS = {
    **{k: p for k, p in grouped_problems.PROBLEMS.items() if not k.startswith("flights")},
    **priors.PROBLEMS,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_models_have_the_variables_they_name(name):
    problem = PROBLEMS[name]
    data = problem.make_data(400, 1)
    ways = [(), ("noncentred",)] if getattr(problem, "parameterised", False) else [()]
    for options in ways:
        model = problem.model(data, options) if options else problem.model(data)
        assert set(problem.variables) <= {v.name for v in model.unobserved_RVs}
    if name in grouped_problems.PROBLEMS:
        batches = problem.batches(data, 50)
        assert {v.name for v in batches.free_RVs} == {v.name for v in problem.model(data).free_RVs}


@pytest.mark.parametrize("kind", MODELS)
def test_data_and_models(kind):
    data = data_of(kind, 4, 500, 1)
    assert (data["X"][:, 0] == 1.0).all() and len(set(data["y"])) > 1
    model = model_of(kind, data)
    start = model.initial_point()
    assert abs(float(model.compile_logp()(start))) < 5_000.0
    extra = {"negative_binomial": 1, "ordered": 2}.get(kind, 0)
    assert sum(v.size for v in start.values()) == 4 + extra


def test_functions_of_the_package_are_counted():
    found = count(n_rows=200, draws=5)
    assert {"prepare", "run"} <= {code.co_name for code in found}
    assert all("amc_pymc" in code.co_filename for code in found)
