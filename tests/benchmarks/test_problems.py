"""Problems of the benchmarks of tall data are the models that their tables name."""

import pytest

from benchmarks.tall import grouped_problems, priors
from benchmarks.tall.exact import MODELS, data_of, model_of

GROUPED = {k: p for k, p in grouped_problems.PROBLEMS.items() if not k.startswith("flights")}


@pytest.mark.parametrize("problem", GROUPED.values(), ids=GROUPED)
def test_models_of_groups_have_the_variables_they_name(problem):
    data = problem.make_data(400, 1)
    batches = {v.name for v in problem.batches(data, 50).free_RVs}
    assert batches == {v.name for v in problem.model(data).free_RVs}
    for options in [(), ("noncentred",)] if problem.parameterised else [()]:
        model = problem.model(data, options)
        assert set(problem.variables) <= {v.name for v in model.unobserved_RVs}


@pytest.mark.parametrize("problem", priors.PROBLEMS.values(), ids=priors.PROBLEMS)
def test_models_with_priors_have_the_variables_they_name(problem):
    model = problem.model(problem.make_data(400, 1))
    assert set(problem.variables) <= {v.name for v in model.unobserved_RVs}


@pytest.mark.parametrize("kind", MODELS)
def test_data_and_models(kind):
    data = data_of(kind, 4, 500, 1)
    assert (data["X"][:, 0] == 1.0).all() and len(set(data["y"])) > 1
    model = model_of(kind, data)
    start = model.initial_point()
    assert abs(float(model.compile_logp()(start))) < 5_000.0
    extra = {"negative_binomial": 1, "ordered": 2}.get(kind, 0)
    assert sum(v.size for v in start.values()) == 4 + extra
