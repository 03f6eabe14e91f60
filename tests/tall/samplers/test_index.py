"""The draw of the model index against probabilities computed here from normal densities and priors."""

import functools

import numpy as np
import pytest

from scipy import stats

from amc_pymc.engine.first_class import first_class
from amc_pymc.rng import as_generator
from amc_pymc.tall.racing import (
    DECIDED,
    NOT_FINITE,
    REWARDS,
    ExactRace,
    NormalRace,
    make_population,
)
from amc_pymc.tall.samplers.index import (
    IndexLog,
    IndexRaces,
    Model,
    PseudoPrior,
    draw_index,
)

# Three models of the same rows: a mean, a regression (two parameters), a log scale.
N = 40
_data = np.random.default_rng(3)
X = _data.normal(size=N)
Y = 0.3 + 0.2 * X + _data.normal(size=N)
SIZES = np.array([1, 2, 1])
M, D = 3, 2
LOG_PRIOR = np.log([0.2, 0.5, 0.3])
MEAN = np.array([[0.25, 0.0], [0.3, 0.2], [0.1, 0.0]])
CHOL = np.zeros((M, D, D))
CHOL[0, 0, 0], CHOL[2, 0, 0] = 0.3, 0.15
CHOL[1] = [[0.25, 0.0], [0.2, 0.1]]
#: Centres of the expansions, away from the pseudo-priors' means.
CENTRE = np.array([[0.1, 0.0], [0.2, 0.3], [-0.1, 0.0]])
CENTRES = np.array([0.1, 0.2, 0.3, -0.1])
OFFSET = np.array([0, 1, 3])
PSEUDO_PRIORS = [
    stats.multivariate_normal(MEAN[k, :d], CHOL[k, :d, :d] @ CHOL[k, :d, :d].T)
    for k, d in enumerate(SIZES)
]


def normal_log(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


def row_logs(k, theta):
    """Log-likelihoods (N,) of model k's rows."""
    if k == 0:
        return normal_log(Y, theta[0], 1.0)
    if k == 1:
        return normal_log(Y, theta[0] + theta[1] * X, 1.0)
    return normal_log(Y, 0.0, np.exp(theta[0]))


def row_derivatives(k, theta):
    """Population gradient (D_k,) and Hessian (D_k, D_k) of model k."""
    if k == 2:
        power = (Y**2).sum() * np.exp(-2.0 * theta[0])
        return np.array([-N + power]), np.array([[-2.0 * power]])
    design = np.ones((N, 1)) if k == 0 else np.column_stack([np.ones(N), X])
    return design.T @ (Y - design @ theta), -design.T @ design


def prior_log(k, theta):
    if k == 2:
        return normal_log(theta[0], 0.0, 0.5)
    return normal_log(theta, 0.0, 1.0 + k).sum()


def as_they_are(theta):
    return theta


def no_control(k, theta):
    return 0.0


def some_control(k, theta):
    """The population sum of what ``rewards(control=True)`` leaves out."""
    return 7.0 * k + N * theta[0]


@functools.cache
def rewards(taylor=False, control=False, bad_model=-1, bad_row=-1, bad_value=0.0):
    """Rows less their expansion; less what ``some_control`` adds up; one value replaced."""

    @first_class(REWARDS)
    def out(points, centre, rows):
        values = np.empty((points.shape[0], rows.size))
        for a in range(points.shape[0]):
            k = int(points[a, 0])
            for j in range(rows.size):
                n = rows[j]
                t, s = points[a, 1], points[a, 2]
                if k == 0:
                    r = Y[n] - t
                elif k == 1:
                    r = Y[n] - t - s * X[n]
                else:
                    r = Y[n] * np.exp(-t)
                v = -0.5 * r * r - 0.5 * np.log(2 * np.pi)
                if k == 2:
                    v -= t
                if taylor and k < 2:
                    v = 0.0  # quadratic: the expansion is exact
                if taylor and k == 2:
                    c = CENTRES[OFFSET[k]]
                    u, q = t - c, Y[n] ** 2 * np.exp(-2.0 * c)
                    v -= -c - 0.5 * q - 0.5 * np.log(2 * np.pi) + (q - 1.0) * u - q * u * u
                if control:
                    v -= 7.0 * k / N + t
                if k == bad_model and n == bad_row:
                    v = bad_value
                values[a, j] = v
        return values

    return out


def known(k, theta, taylor, control=no_control):
    """Sum over all rows of what rewards leave out."""
    out = control(k, theta)
    if taylor:
        centre = CENTRE[k, : SIZES[k]]
        gradient, hessian = row_derivatives(k, centre)
        u = theta - centre
        out += row_logs(k, centre).sum() + gradient @ u + 0.5 * u @ hessian @ u
    return out


def models(taylor=False, control=no_control, rest=prior_log):
    return [
        Model(
            PseudoPrior.of(MEAN[k, :d], CHOL[k, :d, :d]),
            functools.partial(rest, k),
            as_they_are,
            functools.partial(known, k, taylor=taylor, control=control),
        )
        for k, d in enumerate(SIZES)
    ]


def first_points():
    points = np.zeros((M, 1 + D))
    points[:, 0] = np.arange(M)
    points[:, 1:] = MEAN
    return points


def setup(
    *, taylor=False, exact=(), normal=False, control=no_control, rest=prior_log, log=None, **bad
):
    """``draw(current, points, rng)`` with everything else fixed."""
    population = make_population(N, exact)
    rule = (NormalRace(batch_size=10) if normal else ExactRace()).rule(population.n_raced, M)
    reward = rewards(taylor=taylor, control=control is some_control, **bad)
    races = IndexRaces(models(taylor, control, rest), reward, population, rule)
    log = IndexLog.empty(0, M, D) if log is None else log
    log_rng = as_generator(99)

    def draw(current, points, rng, log_prior=LOG_PRIOR):
        return draw_index(current, points, log_prior, races, rng, log, log_rng)

    return draw


def log_scores(points, log_prior=LOG_PRIOR):
    out = np.empty(M)
    for k, d in enumerate(SIZES):
        theta = points[k, 1 : 1 + d]
        pseudo = PSEUDO_PRIORS[k].logpdf(theta)
        out[k] = log_prior[k] + prior_log(k, theta) + row_logs(k, theta).sum() - pseudo
    return out


@pytest.mark.parametrize("current", range(M))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"taylor": True},
        {"exact": (0, 7, 39)},
        {"taylor": True, "exact": (0, 7, 39)},
        {"control": some_control},
        {"exact": tuple(range(N))},
    ],
    ids=["plain", "taylor", "exact rows", "taylor, exact rows", "control", "all rows exact"],
)
def test_models_are_drawn_with_their_exact_probabilities(settings, current):
    draw = setup(**settings)
    rng = np.random.default_rng([5, current])
    probabilities, hits, seen = [], [], []
    for _ in range(1_000):
        points = first_points()
        points[current, 1 : 1 + SIZES[current]] += 0.1
        step = draw(current, points, rng)
        assert step.status == DECIDED
        probabilities.append(points.copy())
        hits.append(step.model)
        seen.append(step.evaluations)
    scores = np.array([log_scores(p) for p in probabilities])
    p = np.exp(scores - np.logaddexp.reduce(scores, axis=1)[:, None])
    hit = np.array(hits)[:, None] == np.arange(M)
    # Sums of indicators less probabilities, over all draws and where a model is likely or not.
    for part in (p >= 0.0, p < 0.3, p > 0.6):
        error = ((hit - p) * part).sum(axis=0)
        sd = np.sqrt((p * (1 - p) * part).sum(axis=0))
        big = sd > 3.0
        assert big.any()
        assert np.abs(error[big] / sd[big]).max() < 4.0
    error = (hit - p).sum(axis=0)[:-1]
    covariance = (np.diag(p.sum(axis=0)) - p.T @ p)[:-1, :-1]
    statistic = error @ np.linalg.solve(covariance, error)
    assert stats.chi2.sf(statistic, M - 1) > 1e-4
    assert set(seen) == {M * N}


def test_others_are_drawn_from_their_pseudo_priors_and_the_current_stays():
    draw = setup()
    rng = np.random.default_rng(2)
    points = first_points()
    points[1, 1:] = [0.7, -0.4]
    drawn = np.empty((8_000, M, 1 + D))
    for i in range(len(drawn)):
        draw(1, points, rng)
        drawn[i] = points
    assert np.all(drawn[:, 1, 1:] == [0.7, -0.4])
    assert np.all(drawn[:, :, 0] == np.arange(M))
    for k in (0, 2):
        assert stats.kstest(drawn[:, k, 1], stats.norm(MEAN[k, 0], CHOL[k, 0, 0]).cdf).pvalue > 1e-4
        assert np.all(drawn[:, k, 2] == 0.0)
    for i in range(len(drawn)):
        draw(0, points, rng)
        drawn[i] = points
    white = np.linalg.solve(CHOL[1], (drawn[:, 1, 1:] - MEAN[1]).T)
    for row in white:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(white)[0, 1]) < 4 / np.sqrt(len(drawn))
    # Drawn anew each time: nothing is carried over.
    for row in white:
        assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < 4 / np.sqrt(len(drawn))


def test_scores_hold_the_pseudo_prior_of_the_current_model():
    """Without noise the scores are prior + rest - pseudo-prior; the noise is standard Gumbel."""
    log = IndexLog.empty(1, M, D)
    draw = setup(log=log)
    rng = np.random.default_rng(4)
    noise = np.empty((2_000, M))
    for i in range(len(noise)):
        points = first_points()
        points[1, 1:] += [0.4, -0.3]
        log.seen[0] = 0
        draw(1, points, rng)
        likelihoods = [row_logs(k, points[k, 1 : 1 + d]).sum() for k, d in enumerate(SIZES)]
        noise[i] = log.scores[0] + likelihoods - log_scores(points)
    for column in noise.T:
        assert stats.kstest(column, "gumbel_r").pvalue > 1e-4


def test_a_race_errs_at_most_as_often_as_promised():
    """The same Gumbels on all rows, recovered from the log."""
    log = IndexLog.empty(1, M, D)
    draw = setup(normal=True, log=log)
    rng = np.random.default_rng(6)
    wrong = early = 0
    for _ in range(4_000):
        points = first_points()
        log.seen[0] = 0
        step = draw(0, points, rng)
        totals = [row_logs(k, points[k, 1 : 1 + d]).sum() for k, d in enumerate(SIZES)]
        wrong += np.argmax(log.scores[0] + totals) != step.model
        early += step.rows < N
    assert early > 200
    assert stats.binom.sf(wrong - 1, 4_000, 0.05) > 1e-4


# --- impossible models --------------------------------------------------------------------------


def rest_without_middle(k, theta):
    return -np.inf if k == 1 else 0.0


def rest_nan_but_first(k, theta):
    return np.nan if k > 0 else 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"rest": rest_without_middle},
        {"bad_model": 1, "bad_row": 11, "bad_value": -np.inf},
        {"bad_model": 1, "bad_row": 11, "bad_value": -np.inf, "exact": (11,)},
        {"bad_model": 1, "bad_row": 11, "bad_value": np.nan, "exact": (11,)},
    ],
    ids=["rest", "raced row", "exact row", "NaN in exact row"],
)
def test_an_impossible_model_is_not_drawn_and_the_others_are(settings):
    draw = setup(**settings)
    rng = np.random.default_rng(1)
    steps = [draw(0, first_points(), rng) for _ in range(300)]
    assert {s.status for s in steps} == {DECIDED}
    assert {s.model for s in steps} == {0, 2}


def test_where_nothing_else_is_possible_the_current_model_stays():
    draw = setup(rest=rest_nan_but_first, exact=(3,))
    step = draw(0, first_points(), np.random.default_rng(1))
    assert (step.model, step.status, step.rows, step.exact) == (0, DECIDED, 0, 1)
    step = setup()(2, first_points(), np.random.default_rng(1), np.full(M, -np.inf))
    assert (step.model, step.status) == (2, DECIDED)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_raced_row_that_is_not_finite_is_named(value):
    draw = setup(bad_model=2, bad_row=23, bad_value=value)
    step = draw(0, first_points(), np.random.default_rng(1))
    assert (step.model, step.status, step.row) == (0, NOT_FINITE, 23)
