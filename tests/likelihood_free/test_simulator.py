"""Models with ``pm.Simulator``: calls, distances and failures, compared with PyMC's own."""

from __future__ import annotations

import re

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy import special, stats

from amc_pymc.likelihood_free.model_problem import ModelProblem
from amc_pymc.likelihood_free.trial import try_simulator
from amc_pymc.reading.graphs import INTERPRETED

Y = np.array([1.0, -0.5, 2.0, 0.3, 1.7])


def normal(rng, mu, sigma, size):
    return rng.normal(mu, sigma, size=size)


def model_of(write) -> pm.Model:
    with pm.Model() as model:
        write()
    return model


def problem_of(write) -> ModelProblem:
    return ModelProblem(model_of(write))


def toy(observed=Y, function=normal, **settings):
    mu = pm.Normal("mu", 0.0, 2.0)
    sigma = pm.HalfNormal("sigma", 1.0)
    pm.Deterministic("ratio", mu / sigma)
    pm.Simulator("y", function, mu, sigma, observed=observed, **settings)


def points(problem, n=20, seed=1):
    return np.random.default_rng(seed).uniform(size=(n, problem.n_dim))


# --- parameters ---------------------------------------------------------------------------------


def test_parameters_priors_and_deterministics():
    problem = problem_of(toy)
    assert problem.shapes == {"mu": (), "sigma": ()}
    assert problem.n_dim == 2
    assert problem.tolerance == 1.0
    assert problem.fallback == {}
    np.testing.assert_array_equal(problem.observed["y"], Y)
    u = points(problem)
    values = problem.parameters(u)
    np.testing.assert_allclose(values["mu"], 2.0 * special.ndtri(u[:, 0]))
    log = stats.norm.logpdf(values["mu"], 0.0, 2.0) + stats.halfnorm.logpdf(values["sigma"])
    np.testing.assert_allclose(problem.log_prior(u), log)
    assert problem.log_density(u) is None
    found = problem.deterministics(values)
    np.testing.assert_allclose(found["ratio"], values["mu"] / values["sigma"])


# --- calls --------------------------------------------------------------------------------------


class Spy:
    """A simulator that notes how it is called."""

    def __init__(self, core=()):
        self.calls, self.core = [], core

    def __call__(self, rng, *rest):
        *parameters, size = rest
        self.calls.append((type(rng), [np.array(p) for p in parameters], size))
        return np.zeros((*size, *self.core))


CALLS = {
    "no axis": (0.5, lambda mu, w: (mu,), {}),
    "one axis": (Y, lambda mu, w: (mu, 2.0), {}),
    "two axes": (np.ones((4, 2)), lambda mu, w: (mu, w[0]), {}),
    "vector along the data": (np.ones((4, 3)), lambda mu, w: (mu, w), {}),
    "signature": (Y, lambda mu, w: (mu, w), {"signature": "(),(p)->()"}),
    "vectors out": (np.ones((4, 3)), lambda mu, w: (w, mu), {"signature": "(p),()->(p)"}),
    "covariates": (Y, lambda mu, w: (mu, np.arange(5.0)), {}),
    "through a graph": (Y, lambda mu, w: (pm.math.exp(mu) + w.sum(), w[:1]), {}),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_those_of_pymc(case):
    observed, parameters, settings = CALLS[case]
    spy = Spy((3,) if case == "vectors out" else ())

    def write():
        mu, w = pm.Normal("mu", 0.0, 1.0), pm.Normal("w", 0.0, 1.0, shape=3)
        pm.Simulator("y", spy, *parameters(mu, w), observed=observed, **settings)

    model = model_of(write)
    problem = ModelProblem(model)
    u = points(problem, 3)
    values = problem.parameters(u)
    rv = model["y"]
    fn = pytensor.function(model.free_RVs, rv, mode=INTERPRETED, on_unused_input="ignore")
    spy.calls.clear()
    for i in range(3):
        fn(values["mu"][i], values["w"][i])
    wanted = list(spy.calls)
    spy.calls.clear()
    problem.simulate(u, np.random.default_rng(1))
    assert len(spy.calls) == 3
    for (kind, arrays, size), (kind_, arrays_, size_) in zip(spy.calls, wanted, strict=True):
        assert (kind, tuple(size)) == (kind_, tuple(size_))
        for a, b in zip(arrays, arrays_, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b)
    spy.calls.clear()
    found = problem.simulate(u, np.random.default_rng(1), batched=True)
    assert found.failures == []
    ((_, arrays, size),) = spy.calls
    assert size == (3, *wanted[0][2])
    for k, a in enumerate(arrays):
        np.testing.assert_allclose(a, np.stack([call[1][k] for call in wanted]))


@pytest.mark.parametrize("observed", [0.5, np.outer(Y, [1.0, 2.0])])
def test_batches_have_the_distribution_of_single_calls(observed):
    problem = problem_of(lambda: toy(observed))
    u = points(problem, 2000)
    rng = np.random.default_rng(5)
    one = problem.simulate(u, rng)
    many = problem.simulate(u, rng, batched=True)
    assert one.failures == many.failures == []
    assert stats.ks_2samp(one.distance, many.distance).pvalue > 1e-3
    # Point by point: the same parameters at the same rows.
    assert stats.spearmanr(one.distance, many.distance).statistic > 0.5


# --- distances ----------------------------------------------------------------------------------


class Squares(Op):
    """A statistic as an Op of PyTensor."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.array([np.sum(inputs[0] ** 2), 1.0])


STATISTICS = {
    "identity": "identity",
    "sort": "sort",
    "mean": "mean",
    "median": "median",
    "Python": lambda x: np.array([x.mean(), x.std()]),
    "Python scalar": lambda x: float(x.max()),
    "PyTensor": lambda x: pt.stack([x.mean(), x.max()]),
    "Op": Squares(),
}
DISTANCES = {
    "gaussian": "gaussian",
    "laplace": "laplace",
    "Python": lambda epsilon, o, s: -np.sort(np.ravel(np.asarray(o - s, float)) ** 2) / epsilon,
    "Python scalar": lambda epsilon, o, s: -float(np.max(np.abs(o - s))) / epsilon,
    "PyTensor": lambda epsilon, o, s: -pt.sqrt(pt.abs(o - s)) / epsilon,
}


def kernel_of(model, x) -> np.ndarray:
    """Sums (n,) of PyMC's log kernel for simulations (n, ...)."""
    rv = model["y"]
    op = rv.owner.op
    s = pt.tensor(shape=rv.type.shape, dtype="float64")
    data = model.rvs_to_values[rv]
    graph = op.distance(op.epsilon, op.sum_stat(data), op.sum_stat(s))
    fn = pytensor.function([s], graph, mode=INTERPRETED)
    return np.array([np.sum(fn(row)) for row in x])


COMBINATIONS = [
    *(("gaussian", s, (5,)) for s in STATISTICS),
    *((d, s, (5,)) for d in [*DISTANCES][1:] for s in ("identity", "Python")),
    *(("laplace", s, (3, 2)) for s in ("identity", "sort", "mean", "median")),
    ("gaussian", "Op", (5, 1)),
]


@pytest.mark.parametrize(("distance", "statistic", "shape"), COMBINATIONS)
def test_distances_are_those_of_pymc(distance, statistic, shape):
    rng = np.random.default_rng(1)
    observed, x = rng.normal(size=shape), rng.normal(size=(7, *shape))
    model = model_of(
        lambda: toy(
            observed, sum_stat=STATISTICS[statistic], distance=DISTANCES[distance], epsilon=0.3
        )
    )
    problem = ModelProblem(model)
    found = problem.distances([x])
    kernel = kernel_of(model, x)
    wanted = np.sqrt(-2.0 * kernel) if distance == "gaussian" else -kernel
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_epsilon_of_its_own_for_each_statistic():
    epsilon = np.array([0.1, 0.2, 0.5, 1.0, 2.0])
    for distance in ("gaussian", "laplace"):
        model = model_of(lambda d=distance: toy(epsilon=epsilon, distance=d))
        x = np.random.default_rng(1).normal(size=(4, 5))
        kernel = kernel_of(model, x)
        found = ModelProblem(model).distances([x])
        np.testing.assert_allclose(
            found, np.sqrt(-2.0 * kernel) if distance == "gaussian" else -kernel
        )
    model = model_of(lambda: toy(epsilon=epsilon, sum_stat="mean"))
    kernel = kernel_of(model, x)
    found = ModelProblem(model).distances([x])
    np.testing.assert_allclose(found, np.sqrt(-2.0 * kernel))


def two(first, second):
    def write():
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Simulator("a", normal, mu, 1.0, observed=Y, distance=first, epsilon=0.5)
        pm.Simulator("b", normal, 2.0 * mu, 1.0, observed=[[0.1], [0.2]], distance=second)

    return problem_of(write)


def test_several_simulators():
    x = [np.zeros((3, 5)), np.ones((3, 2, 1))]
    a, b = 2.0 * np.abs(Y), np.array([0.9, 0.8])
    root = np.sqrt((a**2).sum() + (b**2).sum())
    np.testing.assert_allclose(two("gaussian", "gaussian").distances(x), np.full(3, root))
    mixed = np.sqrt((a**2).sum()) + b.sum()
    np.testing.assert_allclose(two("gaussian", "laplace").distances(x), np.full(3, mixed))
    problem = two("laplace", "laplace")
    assert problem.observed["b"].shape == (2, 1)
    u = points(problem, 4)
    for batched in (False, True):
        assert np.isfinite(
            problem.simulate(u, np.random.default_rng(1), batched=batched).distance
        ).all()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "kernel", [lambda e, o, s: pt.abs(o - s) / e, lambda e, o, s: float(np.max(np.abs(o - s)))]
)
def test_a_positive_kernel_names_the_variable(kernel, batched):
    problem = problem_of(lambda: toy(distance=kernel))
    with pytest.raises(
        ValueError, match="distance of 'y' from its data must not be negative, got -"
    ):
        problem.simulate(points(problem), np.random.default_rng(1), batched=batched)
    with pytest.raises(ValueError, match="'y'"):
        try_simulator(problem, batched=batched)


def test_whole_numbers_stay_whole():
    seen = []

    def statistic(x):
        seen.append(getattr(x, "dtype", None))
        return np.array([x.mean()])

    def write():
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Simulator(
            "y", lambda rng, rate, size: rng.poisson(rate, size), rate,
            observed=np.array([1, 2, 3]), dtype="int64", sum_stat=statistic,
        )  # fmt: skip

    problem = problem_of(write)
    found = problem.simulate(points(problem), np.random.default_rng(1))
    assert found.failures == []
    assert seen[-1] == np.dtype("int64")


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["possible", "impossible"])
def test_an_error_in_a_batch_spares_other_rows(kind):
    """Also where some rows are not simulated."""

    def brittle(rng, mu, known, size):
        assert mu.shape == (size[0], 1)
        assert known.shape == (size[0], 5)
        if (mu > 1.0).any():
            raise RuntimeError("mu is large")
        return rng.normal(mu, 0.01, size=size) + known

    def write():
        scale = pm.Normal("scale", 0.0, 1.0) if kind == "impossible" else 1.0
        mu = pm.Normal("mu", 0.0, scale)
        known = np.arange(5.0)
        pm.Simulator("y", brittle, mu, known, observed=known)

    problem = problem_of(write)
    u = points(problem, 40)
    mu = problem.parameters(u)["mu"]
    found = problem.simulate(u, np.random.default_rng(1), batched=True, summaries=True)
    raised = [f.index for f in found.failures if f.kind == "error"]
    assert raised == np.flatnonzero(mu > 1.0).tolist()
    assert 2 <= len(raised) <= 10
    good = mu <= 1.0
    assert np.isinf(found.distance[~good]).all()
    np.testing.assert_allclose(found.distance[good], np.sqrt(5.0) * np.abs(mu[good]), atol=0.2)
    np.testing.assert_allclose(found.summaries[good, 0], mu[good], atol=0.1)


def test_impossible_parameters_are_failures():
    def write():
        scale = pm.Normal("scale", 0.0, 1.0)
        x = pm.Normal("x", 0.0, scale)
        pm.Simulator("y", normal, x, 1.0, observed=Y)

    problem = problem_of(write)
    u = np.array([[0.2, 0.5], [0.8, 0.5], [0.3, 0.1], [0.9, 0.5]])
    for batched in (False, True):
        found = problem.simulate(u, np.random.default_rng(1), batched=batched)
        assert np.isfinite(found.distance).tolist() == [False, True, False, True]
        assert [(f.index, f.kind) for f in found.failures] == [(0, "nan"), (2, "nan")]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("distance", ["gaussian", "laplace", DISTANCES["Python"]])
def test_statistics_of_another_shape_are_failures(distance, batched):
    """They are not broadcast against those of the data, of which there is one."""
    data = np.array([0.5, -1.0, -1.0, -1.0, -1.0])
    problem = problem_of(lambda: toy(data, sum_stat=lambda x: x[x > 0.0], distance=distance))
    u = points(problem, 100)
    found = problem.simulate(u, np.random.default_rng(1), batched=batched, summaries=True)
    same = problem.simulate(u, np.random.default_rng(1), batched=batched)
    np.testing.assert_array_equal(found.distance, same.distance)
    failed = [f.index for f in found.failures]
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == failed
    assert 50 < len(failed) < 95
    assert np.isnan(found.summaries[failed]).all()
    left = np.setdiff1d(np.arange(100), failed)
    assert (found.summaries[left] > 0.0).all()
    if distance != DISTANCES["Python"]:
        np.testing.assert_allclose(found.distance[left], np.abs(found.summaries[left, 0] - 0.5))
    message = r"ValueError: sum_stat of 'y' gives shape \([0-5],\) for a simulation, .* data \(1,\)"
    for f in found.failures:
        assert re.fullmatch(message, f.message), f.message


def test_simulations_of_any_length_that_a_function_summarises():
    def events(rng, mu, sigma, size):
        return np.cumsum(rng.exponential(1.0, rng.poisson(np.exp(mu))))

    problem = problem_of(lambda: toy(function=events, sum_stat=lambda t: np.array([len(t)])))
    u = points(problem, 200)
    found = problem.simulate(u, np.random.default_rng(1), summaries=True)
    rng = np.random.default_rng(1)
    rates = np.exp(problem.parameters(u)["mu"])
    counts = np.array([len(events(rng, np.log(rate), 1.0, None)) for rate in rates])
    assert found.failures == []
    np.testing.assert_array_equal(found.summaries[:, 0], counts)
    np.testing.assert_allclose(found.distance, np.abs(counts - len(Y)))
    for batched, settings in [(True, {"sum_stat": lambda t: t[:1]}), (False, {})]:
        problem = problem_of(lambda: toy(function=lambda *_: np.zeros(4), **settings))
        with pytest.raises(ValueError, match=r"if its length varies.*Python function|batched=True"):
            try_simulator(problem, batched=batched)


# --- models -------------------------------------------------------------------------------------


def with_missing():
    data = Y.copy()
    data[1] = np.nan
    with pytest.warns(pm.exceptions.ImputationWarning):
        toy(data)


def without_data():
    toy()
    pm.Simulator("z", normal, 0.0, 1.0)


def with_unnamed():
    mu = pm.Normal("mu")
    pm.Simulator("y", normal, mu + pm.Normal.dist(), 1.0, observed=Y)


def with_random_epsilon():
    mu = pm.Normal("mu")
    pm.Simulator("y", normal, mu, 1.0, epsilon=pm.HalfNormal("e"), observed=Y)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: pm.Normal("mu"), "model has no pm.Simulator. Add one for the data"),
        (lambda: pm.Simulator("y", normal, 0.0, 1.0, observed=Y), "no free variable"),
        (with_missing, "data of 'y' have missing values"),
        (without_data, "'z' is a pm.Simulator without data"),
        (with_unnamed, "'parameters of y' draws random numbers"),
        (with_random_epsilon, "epsilon of 'y' depends on random variables"),
        (lambda: toy(epsilon=0.0), "epsilon of 'y' must be positive and finite, got 0"),
        (lambda: toy(epsilon=np.inf), "epsilon of 'y' must be positive and finite, got inf"),
        (lambda: toy(epsilon=np.nan), "epsilon of 'y' must be positive and finite, got nan"),
        (lambda: toy(epsilon=[1.0, 1.0, -1.0, 1.0, 1.0]), "epsilon of 'y' must be positive"),
        (lambda: toy(observed=np.empty(0)), "data of 'y': empty"),
        (lambda: toy([1.0, np.inf, -np.inf]), "data of 'y': 2 of 3 values are infinite"),
    ],
)
def test_models_that_cannot_be_simulated(write, message):
    with pytest.raises(ValueError, match=message):
        problem_of(write)


# --- other processes ----------------------------------------------------------------------------


def _simulated(payload: bytes) -> np.ndarray:
    problem, u = cloudpickle.loads(payload)
    return problem.simulate(u, np.random.default_rng(1)).distance


def everything():
    mu = pm.Normal("mu", 0.0, 2.0)
    steps = pm.GaussianRandomWalk("steps", 1.0, init_dist=pm.Normal.dist(), steps=2)
    k = pm.Poisson("k", pm.math.exp(mu))
    pm.Potential("pull", -(mu**2))
    pm.Simulator(
        "y", lambda rng, a, b, size: rng.normal(a, b, size), steps[0] + k, 1.0, observed=Y,
        sum_stat=lambda x: np.array([x.mean(), x.std()]),
        distance=lambda epsilon, o, s: -pt.abs(o - s) / epsilon,
    )  # fmt: skip


def test_a_pickled_problem_gives_the_same():
    problem = problem_of(everything)
    u = points(problem)
    fresh = cloudpickle.dumps((problem, u))
    wanted = problem.simulate(u, np.random.default_rng(1)).distance
    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(_simulated(fresh), wanted)
    np.testing.assert_array_equal(_simulated(cloudpickle.dumps((problem, u))), wanted)
