"""References of the hard and the applied problems against a second computation of each."""

import math

import numpy as np
import pytest

from scipy.stats import multivariate_normal, norm, poisson

from models import group_problems as groups
from models import (
    mixed_models,
)
from models import series_problems as series
from models import shape_problems as shapes
from models.evidence_suite import PROBLEMS, STORED
from models.normal_scores import climb, half_cauchy


@pytest.mark.parametrize("case", [(5, 4.0, (1.0, 0.2)), (2, 9.0, (0.7, 0.1)), (1, 8.0, (2.0, 1.5))])
def test_unequal_modes(case):
    (d, centre, sds), box = case, shapes.MODES_BOX
    mode = norm(centre, sds)
    inside = (mode.cdf(box) - mode.cdf(-box)) ** d
    expected = np.log(inside.mean()) - d * math.log(2.0 * box)
    assert shapes.modes_log_evidence(*case) == pytest.approx(expected, abs=1e-12)


def test_intercepts_of_counts():
    """The mean probability over many draws of the intercepts."""
    x, y = mixed_models.simulate("poisson", 2)
    (found,) = mixed_models.poisson_given_population(np.array([[0.2, 0.3, 0.7]]), x, y)
    z = np.random.default_rng(1).standard_normal((200_000, 2))
    rate = np.exp(0.2 + 0.3 * x + 0.7 * z[:, :, None])
    chances = np.exp(poisson.logpmf(y, rate).sum(axis=2))  # groups are independent
    ratio = chances / np.exp(found / 2.0)
    product = ratio.mean(axis=0).prod()
    error = math.sqrt(np.sum((ratio.std(axis=0) / ratio.mean(axis=0)) ** 2) / len(z))
    assert abs(product - 1.0) < 4.0 * error < 0.1


def test_abilities():
    """The mean probability over many draws of an ability."""
    y = groups.answers()[:1]
    theta = np.concatenate([[1.3], np.linspace(-1.0, 1.0, 6)])[None]
    (found,) = groups.log_given_items(theta, y)
    ability = np.random.default_rng(1).standard_normal(400_000)
    logits = 1.3 * (ability[:, None] - theta[0, 1:])
    chances = np.exp((y * logits - np.logaddexp(0.0, logits)).sum(axis=1))
    ratio = chances / np.exp(found)
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / math.sqrt(ratio.size) < 0.02


def test_forward_algorithm():
    """All ways of the chain, for four years."""
    theta = np.array([[12.0, 20.0, 0.9, 0.7]])
    y = series.EARTHQUAKES_COUNTS[:4]
    total = 0.0
    for code in range(16):
        states = [code >> t & 1 for t in range(4)]
        chance = 0.5
        for t, s in enumerate(states):
            if t:
                stay = theta[0, 2 + states[t - 1]]
                chance *= stay if s == states[t - 1] else 1.0 - stay
            chance *= poisson.pmf(y[t], theta[0, s])
        total += chance
    assert series.EARTHQUAKES_COUNTS.size == 107
    assert series.forward(theta, y)[0] == pytest.approx(math.log(total))


def test_kalman_filter():
    y = series.series()[:6]
    sigma, tau = 1.3, 0.6
    times = np.arange(6)
    spread = series.START**2 + tau**2 * np.minimum(times[:, None], times) + sigma**2 * np.eye(6)
    expected = multivariate_normal(cov=spread).logpdf(y)
    assert series.kalman(np.array([[sigma, tau]]), y)[0] == pytest.approx(expected)
    assert series.FLOW.size == 100 and series.FLOW.mean() == pytest.approx(919.35)


def test_eight_schools():
    """The mean density over many draws of the scale."""
    tau = half_cauchy(np.random.default_rng(1).standard_normal(20_000), 5.0)
    spread = groups.ERRORS**2
    variance = tau[:, None] ** 2 + spread
    precision = (1.0 / variance).sum(axis=1)
    mean = (groups.EFFECTS / variance).sum(axis=1) / precision
    logs = norm.logpdf(groups.EFFECTS, mean[:, None], np.sqrt(variance)).sum(axis=1)
    logs += norm.logpdf(mean, 0.0, np.sqrt(25.0 + 1.0 / precision))
    logs += 0.5 * np.log(2.0 * np.pi / precision)
    ratio = np.exp(logs - groups.eight_schools_log_evidence())
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / math.sqrt(ratio.size) < 0.05


def test_coal():
    assert series.COAL_COUNTS.size == 112 and series.COAL_COUNTS.sum() == 191
    problem = series.coal()
    grid = np.linspace(0.01, 6.0, 100)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = np.array([problem.log_likelihood(point) for point in points])
    logs += (np.log(points) - points).sum(axis=1)
    area = (
        np.log(np.sum(np.exp(logs - logs.max()))) + logs.max() + 2.0 * math.log(grid[1] - grid[0])
    )
    assert problem.log_evidence == series.coal_discrete().log_evidence
    assert problem.log_evidence == pytest.approx(area, abs=1e-5)


# --- all of them, by annealing from the prior in NumPy -------------------------------------------

CHEAP = ["leukaemia", "eight_schools"]
DEARER = ["zero_inflated", "autoregression_2", "garch", "ordered_answers", "gp_regression"]
#: References that are stored, and take a few seconds.
QUICK = ["nile_marginal", "garch", "rat_tumours", "negative_binomial", "puromycin"]


@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in DEARER)]
)
def test_evidence_is_that_of_annealing_from_the_prior(name):
    """Prior and likelihood as another test compares them with PyMC's; four runs give the error."""
    problem = PROBLEMS[name]()
    scores = problem.prior_transform.__self__
    runs = [
        climb(scores.log_given, scores.n_dim, particles=400, moves=6, last=0, seed=k)
        for k in range(4)
    ]
    logs = np.array([run.log_evidence for run in runs])
    error = max(logs.std(ddof=1) / 2.0, 0.05)
    assert abs(logs.mean() - problem.log_evidence) < 6.0 * error < 1.0  # t with three degrees


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_stored_references_are_found_again(name):
    problem, found = PROBLEMS[name](), STORED[name]()
    error = math.hypot(problem.error, found.error) + 1e-6
    assert abs(found.log_evidence - problem.log_evidence) < 4.0 * error
